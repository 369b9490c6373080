//! An open file: its header, its mapping, and what was handed out of it.

use std::fs::File as OsFile;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use super::memory::{Aligned, Borrowed, Memory, READ_AHEAD_STEP, Release};
use super::{Advice, MapMode, OpenOptions, Origin, ReadAhead, Stats, Unaligned, View};
use crate::cache_file::{self, Identified};
use crate::dtype::Dtype;
use crate::error::{Error, Name, Result, Status};
use crate::header::{Header, Survey, TensorInfo};
use crate::source::{self, Identity};

/// An open file. Cheap to clone; safe to use from several threads at once.
#[derive(Clone)]
pub struct File(Arc<Keeper>);

/// What a view keeps alive. One reference-counted type for both kinds: a view of the mapping needs no allocation, and C
/// has one pointer to release.
pub(crate) enum Keeper {
    File(Box<Opened>),
    /// An aligned copy, and the file whose header describes it.
    Copy(Aligned, Arc<Keeper>),
}

pub(crate) struct Opened {
    origin: Source,
    header: Header,
    survey: Survey,
    memory: Memory,
    mode: MapMode,
    unaligned: Unaligned,
    /// The tensors whose address is not a multiple of their dtype width, in ascending order.
    misaligned: Vec<u32>,
    misaligned_bytes: u64,
    /// One slot for each misaligned tensor.
    copies: Vec<Mutex<Weak<Keeper>>>,
    cache: Option<Cache>,
    handed_out: Vec<AtomicBool>,
    mapped: Counter,
    copied: Counter,
}

/// Where the bytes come from.
enum Source {
    Path {
        path: PathBuf,
        identity: Identity,
        /// Opened when it is asked for: a mapping needs no open file.
        descriptor: OnceLock<OsFile>,
    },
    Descriptor {
        /// What error messages call it.
        label: PathBuf,
        file: OsFile,
        /// Where the model starts in the file, in bytes.
        offset: u64,
    },
    Memory(PathBuf),
}

/// A file while it is being opened.
struct Opening<'a> {
    /// Its path, or what error messages call it.
    label: &'a Path,
    file: &'a OsFile,
    identity: &'a Identity,
    /// Where the model starts in the file, in bytes.
    offset: u64,
    /// Size of the model in bytes.
    len: u64,
}

/// The mapping of an aligned cache.
struct Cache {
    memory: Memory,
    /// For each misaligned tensor, its offset in that mapping.
    offsets: Vec<usize>,
}

/// Where an empty tensor is if the mapping is not aligned.
static EMPTY: Empty = Empty;

#[repr(align(64))]
struct Empty;

#[derive(Default)]
struct Counter {
    tensors: AtomicU64,
    bytes: AtomicU64,
}

impl Counter {
    fn add(&self, bytes: u64) {
        self.tensors.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn get(&self) -> (u64, u64) {
        (self.tensors.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

impl File {
    /// Opens and maps a file, and checks its header and every offset. Never writes anything.
    ///
    /// Tensors are indexed in the order of their data.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<File> {
        let open = || {
            let (file, found) = source::open_regular(path)?;
            let identity = Identity::of(&found);
            let opening = Opening { label: path, file: &file, identity: &identity, offset: 0, len: found.len() };
            let (header, memory, cache) = opening.map(options)?;
            let origin = Source::Path { path: path.to_owned(), identity, descriptor: OnceLock::new() };
            File::new(origin, header, memory, cache, options)
        };
        open().map_err(|error: Error| error.at(path))
    }

    /// As [`File::open`], for a part of a file that is open already: a model inside an archive or an app package.
    ///
    /// `offset` is where the model starts in the file and `len` is its size, both in bytes; without a `len` it extends
    /// to the end of the file. The descriptor is duplicated; its file position is neither used nor changed. Tensors
    /// whose address is misaligned because of the offset count as misaligned.
    pub fn open_descriptor(
        descriptor: BorrowedFd<'_>,
        offset: u64,
        len: Option<u64>,
        options: &OpenOptions,
    ) -> Result<File> {
        let label = PathBuf::from(format!("file descriptor {}", descriptor.as_raw_fd()));
        let open = || {
            let file = descriptor.try_clone_to_owned().map_err(|error| Error::io("dup", &error))?;
            let file = OsFile::from(file);
            let found = file.metadata().map_err(|error| Error::io("stat", &error))?;
            source::require_regular(found.file_type())?;
            let available = found.len().checked_sub(offset).ok_or_else(|| {
                let message = format!("offset {offset} is past the end of the file, which has {} bytes", found.len());
                Error::new(Status::Truncated, message)
            })?;
            let len = len.unwrap_or(available);
            if len > available {
                let message = format!("{len} bytes at offset {offset}, but the file has only {} bytes", found.len());
                return Err(Error::new(Status::Truncated, message));
            }
            let identity = Identity::of(&found);
            let opening = Opening { label: &label, file: &file, identity: &identity, offset, len };
            let (header, memory, cache) = opening.map(options)?;
            File::new(Source::Descriptor { label: label.clone(), file, offset }, header, memory, cache, options)
        };
        open().map_err(|error: Error| error.at(&label))
    }

    /// As [`File::open`], for bytes in memory.
    pub(crate) fn open_memory(bytes: Borrowed, options: &OpenOptions) -> Result<File> {
        let label = PathBuf::from("memory");
        let open = || {
            if options.map == MapMode::CopyOnWrite {
                let message = "borrowed memory is read-only: it cannot be opened with copy-on-write";
                return Err(Error::new(Status::InvalidArgument, message));
            }
            if options.aligned_cache.is_some() {
                let message = "an aligned cache belongs to a file: it cannot be used with bytes in memory";
                return Err(Error::new(Status::InvalidArgument, message));
            }
            let header = source::header_of(bytes.bytes())?;
            File::new(Source::Memory(label.clone()), header, Memory::borrowed(bytes), None, options)
        };
        open().map_err(|error: Error| error.at(&label))
    }

    /// Opens bytes in memory, which the file then owns.
    pub fn open_bytes(bytes: Vec<u8>, options: &OpenOptions) -> Result<File> {
        let mut bytes = bytes.into_boxed_slice();
        let (start, len) = (std::ptr::NonNull::from(&mut *bytes).cast(), bytes.len());
        let owner = Owned(Box::into_raw(bytes));
        // SAFETY: `owner` holds the bytes until the release is called, or until this call has failed.
        let file = File::open_memory(unsafe { Borrowed::new(start, len) }, options)?;
        file.on_release(Box::new(move || drop(owner)));
        Ok(file)
    }

    /// Sets what is called when memory that was lent to [`File::open_memory`] is no longer used.
    pub(crate) fn on_release(&self, release: Release) {
        self.opened().memory.on_release(release);
    }

    fn new(
        origin: Source,
        header: Header,
        memory: Memory,
        cache: Option<Cache>,
        options: &OpenOptions,
    ) -> Result<File> {
        header.require_known_dtypes()?;
        let survey = header.survey(memory.len() as u64 - header.data_start())?;
        if let Some(error) = survey.nonconforming.clone().filter(|_| options.strict) {
            return Err(error);
        }
        let misaligned = misaligned(&header, &memory);
        let bytes_of = |&index: &u32| header.get(index as usize).map_or(0, |tensor| tensor.nbytes());
        let misaligned_bytes = misaligned.iter().map(bytes_of).sum();
        let opened = Opened {
            origin,
            copies: misaligned.iter().map(|_| Mutex::default()).collect(),
            handed_out: header.iter().map(|_| AtomicBool::new(false)).collect(),
            misaligned,
            misaligned_bytes,
            header,
            survey,
            memory,
            mode: options.map,
            unaligned: options.unaligned,
            cache,
            mapped: Counter::default(),
            copied: Counter::default(),
        };
        let file = File(Arc::new(Keeper::File(Box::new(opened))));
        match options.read_ahead {
            // In memory there is nothing to read, and a thread would hold the bytes after the file is closed.
            _ if !file.opened().memory.is_mapped() => {}
            ReadAhead::None => {}
            ReadAhead::Populate => file.opened().populate().for_each(|step| step()),
            ReadAhead::Background => file.read_ahead(),
        }
        Ok(file)
    }

    /// Reads the file into memory on a thread that keeps nothing alive for longer than a step.
    fn read_ahead(&self) {
        let (steps, keeper) = (self.opened().populate().count(), Arc::downgrade(&self.0));
        let populate = move || {
            for step in 0..steps {
                let Some(keeper) = keeper.upgrade() else { return };
                if let Some(populate) = keeper.opened().populate().nth(step) {
                    populate();
                }
            }
        };
        // Without a thread the pages are read when they are accessed.
        let _ = std::thread::Builder::new().name("safealign-read".to_owned()).spawn(populate);
    }

    fn opened(&self) -> &Opened {
        self.0.opened()
    }

    /// The path that the file was opened by; none for a descriptor or memory.
    pub fn path(&self) -> Option<&Path> {
        match &self.opened().origin {
            Source::Path { path, .. } => Some(path),
            Source::Descriptor { .. } | Source::Memory(_) => None,
        }
    }

    /// The open file, and the offset in bytes where the model starts in it.
    ///
    /// A file that was opened by its path is opened again by the first call, and stays open until the `File` and its
    /// views are gone. Fails if the path names another file by then ([`Status::Changed`]), and for a file that was
    /// opened from memory ([`Status::InvalidArgument`]).
    pub fn descriptor(&self) -> Result<(BorrowedFd<'_>, u64)> {
        let (path, identity, descriptor) = match &self.opened().origin {
            Source::Path { path, identity, descriptor } => (path, identity, descriptor),
            Source::Descriptor { file, offset, .. } => return Ok((file.as_fd(), *offset)),
            Source::Memory(label) => {
                let message = "was opened from memory: it has no descriptor";
                return Err(Error::new(Status::InvalidArgument, message).at(label));
            }
        };
        if let Some(file) = descriptor.get() {
            return Ok((file.as_fd(), 0));
        }
        let (file, found) = source::open_regular(path).map_err(|error| error.at(path))?;
        if !identity.same_file(&found) {
            return Err(Error::new(Status::Changed, "another file has this path now").at(path));
        }
        Ok((descriptor.get_or_init(|| file).as_fd(), 0))
    }

    /// Whether the path that the file was opened by still names this file, with the size and modification time that it
    /// had. False if another file was renamed over it, if it was modified, or if the path is gone.
    ///
    /// Fails for a file that was opened without a path ([`Status::InvalidArgument`]).
    pub fn is_current(&self) -> Result<bool> {
        let Source::Path { path, identity, .. } = &self.opened().origin else {
            let message = "was opened without a path: there is nothing to compare it with";
            return Err(Error::new(Status::InvalidArgument, message).at(self.opened().path()));
        };
        match std::fs::metadata(path) {
            Ok(found) => Ok(identity.same_content(&found)),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
                Ok(false)
            }
            Err(error) => Err(Error::io("stat", &error).at(path)),
        }
    }

    /// The parsed header.
    pub fn header(&self) -> &Header {
        &self.opened().header
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.header().len()
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the header says of the tensor with that index.
    pub fn get(&self, index: usize) -> Result<TensorInfo<'_>> {
        self.header().get(index).ok_or_else(|| {
            let message = format!("tensor index {index} is out of range: there are {} tensors", self.len());
            Error::new(Status::NotFound, message).at(self.opened().path())
        })
    }

    /// The index of the tensor of that name.
    pub fn find(&self, name: &str) -> Result<usize> {
        self.header().find(name).ok_or_else(|| {
            let message = format!("tensor {}: not found among {} tensors", Name(name), self.len());
            Error::new(Status::NotFound, message).at(self.opened().path())
        })
    }

    /// Whether the address of the tensor with that index is not a multiple of its dtype width.
    pub fn is_misaligned(&self, index: usize) -> bool {
        self.opened().slot(index).is_some()
    }

    /// The first byte of the file in memory; the file's size is in [`File::stats`], the start of the data section in
    /// [`Header::data_start`].
    pub fn base(&self) -> *const u8 {
        self.opened().memory.base()
    }

    /// Counts of what is in the file and of what was handed out.
    pub fn stats(&self) -> Stats {
        let Opened { header, survey, memory, misaligned, misaligned_bytes, mapped, copied, .. } = self.opened();
        let (tensors_mapped, bytes_mapped) = mapped.get();
        let (tensors_copied, bytes_copied) = copied.get();
        Stats {
            file_size: memory.len() as u64,
            is_mapped: memory.is_mapped(),
            tensors: header.len() as u64,
            misaligned_tensors: misaligned.len() as u64,
            misaligned_bytes: *misaligned_bytes,
            tensors_mapped,
            bytes_mapped,
            tensors_copied,
            bytes_copied,
            gaps: survey.gaps,
            gap_bytes: survey.gap_bytes,
            trailing_bytes: survey.trailing_bytes,
            header_padding: header.padding(),
        }
    }

    /// The tensor of that name, without a copy where its offset allows it.
    pub fn map(&self, name: &str) -> Result<View> {
        self.map_at(self.find(name)?)
    }

    /// The tensor with that index, without a copy where its offset allows it.
    pub fn map_at(&self, index: usize) -> Result<View> {
        let opened = self.opened();
        let tensor = self.get(index)?;
        let slot = opened.slot(index).filter(|_| opened.cache.is_none() && opened.unaligned != Unaligned::Borrow);
        let keeper = match slot {
            None => {
                opened.hand_out(index, &opened.mapped, tensor.nbytes());
                self.0.clone()
            }
            Some(_) if opened.unaligned == Unaligned::Error => {
                let offset = opened.header.data_start() + tensor.begin;
                let width = tensor.dtype.map_or(1, Dtype::width);
                let message = format!(
                    "tensor {}: offset {offset} is not a multiple of its {width}-byte dtype width",
                    Name(tensor.name)
                );
                return Err(Error::new(Status::Unaligned, message).at(opened.path()));
            }
            Some(slot) => self.copy(index, slot).map_err(|error| error.at(opened.path()))?,
        };
        Ok(View::new(keeper, index))
    }

    /// The aligned copy of a misaligned tensor: the one that exists, or a new one. Other tensors do not wait for it.
    fn copy(&self, index: usize, slot: usize) -> Result<Arc<Keeper>> {
        let opened = self.opened();
        let mut slot = opened.copies[slot].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = slot.upgrade() {
            return Ok(copy);
        }
        let (start, len) = opened.span(index);
        // SAFETY: `span` lies within the mapping, which `self` keeps alive.
        let bytes = unsafe { Aligned::copy_of(start, len) }?;
        let copy = Arc::new(Keeper::Copy(bytes, self.0.clone()));
        *slot = Arc::downgrade(&copy);
        opened.hand_out(index, &opened.copied, len as u64);
        Ok(copy)
    }
}

/// Bytes that are freed with it.
struct Owned(*mut [u8]);

// SAFETY: it owns the bytes.
unsafe impl Send for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: it came from `Box::into_raw` and is freed only here.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl Source {
    fn path(&self) -> &Path {
        match self {
            Source::Path { path, .. } => path,
            Source::Descriptor { label, .. } | Source::Memory(label) => label,
        }
    }
}

impl Opening<'_> {
    /// Reads the header and maps the file, and its aligned cache if there is one.
    fn map(&self, options: &OpenOptions) -> Result<(Header, Memory, Option<Cache>)> {
        let Opening { label, file, identity, offset, len } = *self;
        let header = source::read_header_at(file, offset, len)?;
        let memory = Memory::of(file, offset, len, options.map)?;
        let Some(path) = &options.aligned_cache else { return Ok((header, memory, None)) };
        let wanted = Identified { path: label, identity, file, offset, header: &header };
        let found = cache_file::open(path, &wanted, &misaligned(&header, &memory))?;
        let cache = Memory::of(&found.file, 0, found.len, options.map).map_err(|error| error.at(path))?;
        Ok((header, memory, Some(Cache { memory: cache, offsets: found.offsets })))
    }
}

/// The tensors that are not empty and whose address is not a multiple of their dtype width, in ascending order.
fn misaligned(header: &Header, memory: &Memory) -> Vec<u32> {
    let base = memory.base().addr() as u64 + header.data_start();
    let is_misaligned = |tensor: &TensorInfo| {
        let width = tensor.dtype.map_or(1, Dtype::width);
        tensor.begin < tensor.end && !(base % width + tensor.begin % width).is_multiple_of(width)
    };
    (0..).zip(header.iter()).filter(|(_, tensor)| is_misaligned(tensor)).map(|(index, _)| index).collect()
}

impl Opened {
    pub(super) fn header(&self) -> &Header {
        &self.header
    }

    /// What error messages call the file.
    pub(super) fn path(&self) -> &Path {
        self.origin.path()
    }

    /// The position of a tensor among the misaligned ones.
    fn slot(&self, index: usize) -> Option<usize> {
        self.misaligned.binary_search(&u32::try_from(index).ok()?).ok()
    }

    /// The cache and the offset in it of a tensor that is mapped from there.
    fn cached(&self, index: usize) -> Option<(&Cache, usize)> {
        let cache = self.cache.as_ref()?;
        Some((cache, cache.offsets[self.slot(index)?]))
    }

    /// Where a tensor's bytes are in a mapping, and how many. An empty tensor is at the start of the mapping, or
    /// elsewhere if that is not aligned for every dtype.
    fn span(&self, index: usize) -> (*const u8, usize) {
        let base = self.memory.base();
        let Some(tensor) = self.header.get(index).filter(|tensor| tensor.nbytes() > 0) else {
            let empty = if base.addr().is_multiple_of(align_of_val(&EMPTY)) { base } else { (&raw const EMPTY).cast() };
            return (empty, 0);
        };
        let len = tensor.nbytes() as usize;
        match self.cached(index) {
            // SAFETY: `cache_file::open` checked that the tensor ends within that file.
            Some((cache, offset)) => (unsafe { cache.memory.base().add(offset) }, len),
            // SAFETY: `Header::survey` checked that the tensor ends within the file.
            None => (unsafe { base.add((self.header.data_start() + tensor.begin) as usize) }, len),
        }
    }

    fn hand_out(&self, index: usize, counter: &Counter, bytes: u64) {
        if !self.handed_out[index].swap(true, Ordering::Relaxed) {
            counter.add(bytes);
        }
    }

    /// The steps that read the file, and what is mapped beside it, into memory.
    fn populate(&self) -> impl Iterator<Item = impl Fn()> {
        let memories = std::iter::once(&self.memory).chain(self.cache.as_ref().map(|cache| &cache.memory));
        memories.flat_map(|memory| {
            let offsets = (0..memory.len()).step_by(READ_AHEAD_STEP);
            offsets.map(move |offset| move || memory.populate(offset))
        })
    }

    /// The mapping that some bytes are in, and their offset.
    fn memory_of(&self, start: *const u8, len: usize) -> Option<(&Memory, usize)> {
        let memories = std::iter::once(&self.memory).chain(self.cache.as_ref().map(|cache| &cache.memory));
        memories.into_iter().find_map(|memory| Some((memory, memory.offset_of(start, len)?)))
    }
}

impl Keeper {
    pub(super) fn opened(&self) -> &Opened {
        match self {
            Keeper::File(opened) => opened,
            Keeper::Copy(_, file) => file.opened(),
        }
    }

    pub(super) fn span(&self, index: usize) -> (*const u8, usize) {
        let (start, len) = self.opened().span(index);
        match self {
            Keeper::File(_) => (start, len),
            Keeper::Copy(bytes, _) => (bytes.start().cast_const(), len),
        }
    }

    pub(super) fn origin(&self, index: usize) -> Origin {
        match self {
            Keeper::File(opened) if opened.cached(index).is_some() => Origin::Cached,
            Keeper::File(_) => Origin::Mapped,
            Keeper::Copy(..) => Origin::Copied,
        }
    }

    /// A pointer for writing to bytes of a view of this keeper. Every view of the tensor sees what is written.
    ///
    /// Fails unless the file was opened with [`MapMode::CopyOnWrite`] ([`Status::InvalidArgument`]).
    pub(crate) fn writable(&self, (start, len): (*const u8, usize)) -> Result<*mut u8> {
        let opened = self.opened();
        let invalid = |message| Error::new(Status::InvalidArgument, message).at(opened.path());
        if opened.mode != MapMode::CopyOnWrite {
            return Err(invalid("the mapping is read-only: open the file with copy-on-write to write to its tensors"));
        }
        let found = match self {
            _ if len == 0 => Some(start.cast_mut()),
            Keeper::Copy(bytes, _) => (bytes.start().cast_const() == start).then_some(bytes.start()),
            Keeper::File(_) => opened
                .memory_of(start, len)
                // SAFETY: the offset is within the mapping.
                .and_then(|(memory, offset)| Some(unsafe { memory.writable_base()?.add(offset) })),
        };
        found.ok_or_else(|| invalid("the bytes are not those of a view of this file"))
    }

    /// Says how bytes of a view will be used. For a copy there is nothing to do.
    pub(crate) fn advise(&self, advice: Advice, start: *const u8, len: usize) -> Result<()> {
        let Keeper::File(opened) = self else { return Ok(()) };
        let advised = match opened.memory_of(start, len) {
            _ if len == 0 => Ok(()),
            None => Err(Error::new(Status::InvalidArgument, "the bytes are not those of a view of this file")),
            Some((memory, offset)) => memory.advise(advice, offset, len).map_err(|error| Error::io("madvise", &error)),
        };
        advised.map_err(|error| error.at(opened.path()))
    }
}
