//! Maps files: one mapping a file, views that keep it alive, aligned copies for the tensors that cannot be shared.
//!
//! All `unsafe` of the Rust API is in this file, but for one system call in `repair/cache.rs`.
//!
//! A mapping shows the file as it is now. A file that somebody else truncates while it is mapped raises SIGBUS on
//! access; one that is replaced by a rename, as this library does it, stays whole for those who have it mapped.

use std::alloc::Layout;
use std::fs::{File as OsFile, Metadata};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memmap2::{Advice as MapAdvice, Mmap, MmapMut, MmapOptions, UncheckedAdvice};

use crate::dtype::Dtype;
use crate::error::{Error, Name, Result, Status};
use crate::header::{Header, HeaderPadding, Survey, TensorInfo};
use crate::overlay;
use crate::source;

/// How a file is mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum MapMode {
    /// Read-only and shared with every other process that maps the file.
    #[default]
    Shared = 0,
    /// Private and writable, with no swap reserved: a page that is written becomes this process's own and the file
    /// stays as it is. For engines that may reuse an input's buffer.
    CopyOnWrite = 1,
}

/// What mapping a misaligned tensor gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Unaligned {
    /// An aligned copy in anonymous memory, shared by the views that exist at the same time.
    #[default]
    Copy = 0,
    /// An error of status [`Status::Unaligned`].
    Error = 1,
    /// The misaligned bytes of the mapping.
    Borrow = 2,
    /// Decided for the whole file when it is opened: where a tensor is misaligned, an aligned twin of the file in
    /// [`OpenOptions::overlay_dir`] is mapped in its place, and written there first if it is missing or stale. Its
    /// memory belongs to a file and can be evicted, unlike a copy's. The tensors are the same; their order may differ.
    Overlay = 3,
}

/// What opening does about the pages of the file that are not in memory yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum ReadAhead {
    /// Nothing: each page is read when it is touched.
    #[default]
    None = 0,
    /// Opening returns when the whole file is in memory and mapped.
    Populate = 1,
    /// A thread of the library does that while the caller goes on. It ends early when nobody has the file or a view of
    /// it any more.
    Background = 2,
}

/// How to open a file.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    pub map: MapMode,
    pub unaligned: Unaligned,
    pub read_ahead: ReadAhead,
    /// Where [`Unaligned::Overlay`] keeps its twins; made where it is missing.
    pub overlay_dir: Option<PathBuf>,
    /// Refuse everything that the reference reader refuses.
    pub strict: bool,
}

/// Where a view's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Origin {
    /// In the mapping of the file (or in the memory that the file was read into, see [`Stats::is_mapped`]).
    Mapped = 0,
    /// In an aligned copy.
    Copied = 1,
}

/// How a view's bytes will be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Advice {
    WillNeed = 0,
    /// The pages may go. Ignored where they hold the only copy of the data: in a copy, a copy-on-write mapping, or a
    /// file that was read instead of mapped.
    DoNotNeed = 1,
    Random = 2,
    Sequential = 3,
}

/// What is known of an open file, and what has been handed out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of the file.
    pub file_size: u64,
    /// Whether the file is mapped. Otherwise its file system cannot map, and it was read into memory.
    pub is_mapped: bool,
    /// Number of tensors.
    pub tensors: u64,
    /// Tensors that are not empty and do not stand on a multiple of their dtype width.
    pub misaligned_tensors: u64,
    /// Bytes of those.
    pub misaligned_bytes: u64,
    /// Tensors handed out of the mapping so far, each counted once.
    pub tensors_mapped: u64,
    /// Bytes of those.
    pub bytes_mapped: u64,
    /// Tensors of which an aligned copy was made so far, each counted once.
    pub tensors_copied: u64,
    /// Bytes of those.
    pub bytes_copied: u64,
    /// Holes before or between tensors.
    pub gaps: u64,
    /// Bytes in those holes.
    pub gap_bytes: u64,
    /// Bytes after the last tensor.
    pub trailing_bytes: u64,
    /// What pads the header.
    pub header_padding: HeaderPadding,
}

/// An open file. Cheap to clone; safe to use from several threads at once.
#[derive(Clone)]
pub struct File(Arc<Keeper>);

/// What a view keeps alive. One reference-counted type for both kinds, so that a view of the mapping costs no
/// allocation and C has one pointer to release.
pub(crate) enum Keeper {
    File(Box<Opened>),
    /// An aligned copy, and the file whose header describes it.
    Copy(Aligned, Arc<Keeper>),
}

pub(crate) struct Opened {
    path: PathBuf,
    header: Header,
    survey: Survey,
    memory: Memory,
    unaligned: Unaligned,
    /// One slot for each misaligned tensor, in the order of `misaligned`.
    copies: Vec<Mutex<Weak<Keeper>>>,
    misaligned: Vec<u32>,
    handed_out: Vec<AtomicBool>,
    mapped: Counter,
    copied: Counter,
}

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

/// Bytes that are read ahead in one call.
const READ_AHEAD_STEP: usize = 16 << 20;

/// The bytes of a file, at a page-aligned address that stays the same.
enum Memory {
    Shared(Mmap),
    /// The pointer is taken once, so that no later `&mut` to the mapping ends what was handed out.
    Private(NonNull<u8>, MmapMut),
    /// Anonymous memory that the file was read into.
    Read(NonNull<u8>, MmapMut),
}

// SAFETY: the pointers are into the mappings beside them, which are Send and Sync themselves, live as long and do not
// move. The library never writes through them after `Memory::of` has returned.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn of(file: &OsFile, len: u64, mode: MapMode) -> Result<Memory> {
        let len = usize::try_from(len)
            .ok()
            .filter(|&len| isize::try_from(len).is_ok())
            .ok_or_else(|| Error::new(Status::TooLarge, format!("{len} bytes do not fit this system's memory")))?;
        let mut options = MmapOptions::new();
        options.len(len);
        let mapped = match mode {
            // SAFETY: other processes may change or truncate the file under the mapping. Only tensor data is ever read
            // from it, as raw bytes, for which every value is valid; the header was read beforehand. Truncation raises
            // SIGBUS, which the documentation says.
            MapMode::Shared => unsafe { options.map(file) }.map(Memory::Shared),
            // SAFETY: as above; pages that are written become private to this process.
            MapMode::CopyOnWrite => unsafe { options.no_reserve_swap().map_copy(file) }
                .map(|mut map| Memory::Private(base_of(&mut map), map)),
        };
        match mapped {
            // Some network and FUSE file systems cannot map.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EOPNOTSUPP)) => {
                Memory::read(file, len)
            }
            other => other.map_err(|error| Error::io("mmap", &error)),
        }
    }

    fn read(file: &OsFile, len: usize) -> Result<Memory> {
        let mut map = MmapMut::map_anon(len).map_err(|error| Error::io("read: memory", &error))?;
        file.read_exact_at(&mut map, 0).map_err(|error| source::read_error(&error))?;
        Ok(Memory::Read(base_of(&mut map), map))
    }

    fn base(&self) -> *mut u8 {
        match self {
            Memory::Shared(map) => map.as_ptr().cast_mut(),
            Memory::Private(base, _) | Memory::Read(base, _) => base.as_ptr(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Memory::Shared(map) => map.len(),
            Memory::Private(_, map) | Memory::Read(_, map) => map.len(),
        }
    }

    /// Reads and maps the pages of one step, as far as the system does it: it is only ahead of what would come anyway.
    fn populate(&self, offset: usize) {
        let len = READ_AHEAD_STEP.min(self.len() - offset);
        let advise = |advice| match self {
            Memory::Shared(map) => map.advise_range(advice, offset, len),
            Memory::Private(_, map) => map.advise_range(advice, offset, len),
            Memory::Read(..) => Ok(()),
        };
        #[cfg(target_os = "linux")]
        if advise(MapAdvice::PopulateRead).is_ok() {
            return;
        }
        // Linux before 5.14, and other systems.
        let _ = advise(MapAdvice::WillNeed);
    }

    fn advise(&self, advice: Advice, offset: usize, len: usize) -> io::Result<()> {
        let safe = match advice {
            Advice::WillNeed => MapAdvice::WillNeed,
            Advice::Random => MapAdvice::Random,
            Advice::Sequential => MapAdvice::Sequential,
            Advice::DoNotNeed => {
                return match self {
                    // SAFETY: the mapping is shared and never written through, so dropped pages come back from the
                    // file as they were.
                    Memory::Shared(map) => unsafe {
                        map.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, len)
                    },
                    // Here it would throw away what was written, or all there is.
                    Memory::Private(..) | Memory::Read(..) => Ok(()),
                };
            }
        };
        match self {
            Memory::Shared(map) => map.advise_range(safe, offset, len),
            Memory::Private(_, map) | Memory::Read(_, map) => map.advise_range(safe, offset, len),
        }
    }
}

fn base_of(map: &mut MmapMut) -> NonNull<u8> {
    NonNull::from(&mut map[..]).cast()
}

/// Bytes of our own at an aligned address.
pub(crate) struct Aligned {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its bytes, and nothing in the library writes to them after `Aligned::copy_of` has returned.
unsafe impl Send for Aligned {}
// SAFETY: as above.
unsafe impl Sync for Aligned {}

impl Aligned {
    /// A cache line, and more than the width of any dtype.
    const ALIGNMENT: usize = 64;
    /// Where huge pages are to be had for the asking, a large copy takes a five-hundredth of the page faults.
    const HUGE_PAGE: usize = 2 << 20;
    const HUGE_FROM: usize = 4 * Self::HUGE_PAGE;

    /// Copies bytes of a mapping, by pointer: somebody else may be changing them.
    ///
    /// # Safety
    /// `len` bytes at `bytes` can be read.
    unsafe fn copy_of(bytes: *const u8, len: usize) -> Result<Aligned> {
        let no_memory = || Error::io("copy", &io::Error::from_raw_os_error(libc::ENOMEM));
        let alignment = if len < Self::HUGE_FROM { Self::ALIGNMENT } else { Self::HUGE_PAGE };
        let layout = Layout::from_size_align(len.max(1), alignment).map_err(|_| no_memory())?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { std::alloc::alloc(layout) }).ok_or_else(no_memory)?;
        #[cfg(target_os = "linux")]
        if len >= Self::HUGE_FROM {
            let whole = len / Self::HUGE_PAGE * Self::HUGE_PAGE;
            // SAFETY: `whole` bytes from `start` on were allocated above and begin on a page; the advice changes no byte.
            // Where the system does not take it, pages are small.
            let _ = unsafe { rustix::mm::madvise(start.as_ptr().cast(), whole, rustix::mm::Advice::LinuxHugepage) };
        }
        // SAFETY: the caller vouches for the source; the destination is `len` bytes and new.
        unsafe { std::ptr::copy_nonoverlapping(bytes, start.as_ptr(), len) };
        Ok(Aligned { start, layout })
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated in `copy_of` with this layout, and freed only here.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

impl File {
    /// Opens and maps a file, and checks its header and every offset.
    ///
    /// Tensors are numbered in the order of their data in the file.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<File> {
        let open = || {
            let (mut file, mut found) = source::open_regular(path)?;
            let mut path = path.to_owned();
            let (mut header, mut survey) = checked(&file, &found, options.strict)?;
            if options.unaligned == Unaligned::Overlay {
                let Some(folder) = &options.overlay_dir else {
                    return Err(Error::new(Status::InvalidArgument, "an overlay needs a folder to be in"));
                };
                if survey.misaligned_tensors > 0 {
                    (path, file, found) = overlay::twin_of(&path, &found, &header, folder)?;
                    (header, survey) = checked(&file, &found, options.strict)?;
                }
            }
            let file_size = found.len();
            let memory = Memory::of(&file, file_size, options.map)?;
            let misaligned: Vec<u32> =
                (0..).zip(header.iter()).filter(|(_, tensor)| header.is_misaligned(tensor)).map(|(n, _)| n).collect();
            Ok(Opened {
                path,
                copies: misaligned.iter().map(|_| Mutex::default()).collect(),
                handed_out: header.iter().map(|_| AtomicBool::new(false)).collect(),
                misaligned,
                header,
                survey,
                memory,
                unaligned: options.unaligned,
                mapped: Counter::default(),
                copied: Counter::default(),
            })
        };
        let opened = open().map_err(|error: Error| error.at(path))?;
        let file = File(Arc::new(Keeper::File(Box::new(opened))));
        match options.read_ahead {
            ReadAhead::None => {}
            ReadAhead::Populate => {
                let opened = file.opened();
                (0..opened.memory.len()).step_by(READ_AHEAD_STEP).for_each(|offset| opened.memory.populate(offset));
            }
            ReadAhead::Background => file.read_ahead(),
        }
        Ok(file)
    }

    /// Reads the file into memory on a thread that keeps nothing alive for longer than a step.
    fn read_ahead(&self) {
        let (len, keeper) = (self.opened().memory.len(), Arc::downgrade(&self.0));
        let populate = move || {
            for offset in (0..len).step_by(READ_AHEAD_STEP) {
                let Some(keeper) = keeper.upgrade() else { return };
                keeper.opened().memory.populate(offset);
            }
        };
        // Without a thread the pages are read when they are touched.
        let _ = std::thread::Builder::new().name("safealign-read".to_owned()).spawn(populate);
    }

    fn opened(&self) -> &Opened {
        self.0.opened()
    }

    /// The file that is mapped: the one that was opened, or its twin (see [`Unaligned::Overlay`]).
    pub fn path(&self) -> &Path {
        &self.opened().path
    }

    /// The parsed header.
    pub fn header(&self) -> &Header {
        &self.opened().header
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.header().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the header says of the tensor of that number.
    pub fn get(&self, index: usize) -> Result<TensorInfo<'_>> {
        self.header().get(index).ok_or_else(|| {
            let message = format!("tensor number {index} of {}: there is no such tensor", self.len());
            Error::new(Status::NotFound, message).at(&self.opened().path)
        })
    }

    /// The number of the tensor of that name.
    pub fn find(&self, name: &str) -> Result<usize> {
        self.header().find(name).ok_or_else(|| {
            let message = format!("tensor {}: not found among {} tensors", Name(name), self.len());
            Error::new(Status::NotFound, message).at(&self.opened().path)
        })
    }

    /// The start of the mapping; the file's size is in [`File::stats`], the start of the data section in
    /// [`Header::data_start`]. Writable only with [`MapMode::CopyOnWrite`].
    pub fn base(&self) -> *mut u8 {
        self.opened().memory.base()
    }

    /// Counts of what is in the file and of what was handed out.
    pub fn stats(&self) -> Stats {
        let Opened { header, survey, memory, mapped, copied, .. } = self.opened();
        let (tensors_mapped, bytes_mapped) = mapped.get();
        let (tensors_copied, bytes_copied) = copied.get();
        Stats {
            file_size: memory.len() as u64,
            is_mapped: !matches!(memory, Memory::Read(..)),
            tensors: header.len() as u64,
            misaligned_tensors: survey.misaligned_tensors,
            misaligned_bytes: survey.misaligned_bytes,
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

    /// The tensor of that number, without a copy where its offset allows it.
    pub fn map_at(&self, index: usize) -> Result<View> {
        let opened = self.opened();
        let tensor = self.get(index)?;
        let slot = match opened.unaligned {
            Unaligned::Borrow => None,
            _ => opened.misaligned.binary_search(&(index as u32)).ok(),
        };
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
                return Err(Error::new(Status::Unaligned, message).at(&opened.path));
            }
            Some(slot) => self.copy(index, slot).map_err(|error| error.at(&opened.path))?,
        };
        Ok(View { keeper, index })
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

/// The header of a file, with every offset checked.
fn checked(file: &OsFile, found: &Metadata, strict: bool) -> Result<(Header, Survey)> {
    let header = source::read_header(file, found.len())?;
    header.require_known_dtypes()?;
    let survey = header.survey(found.len() - header.data_start())?;
    match survey.nonconforming.clone().filter(|_| strict) {
        Some(error) => Err(error),
        None => Ok((header, survey)),
    }
}

impl Opened {
    /// Where a tensor's bytes are in the mapping, and how many. An empty tensor is at the start of the mapping, which
    /// is aligned for every dtype.
    fn span(&self, index: usize) -> (*mut u8, usize) {
        let base = self.memory.base();
        match self.header.get(index) {
            Some(tensor) if tensor.nbytes() > 0 => {
                let offset = self.header.data_start() + tensor.begin;
                // SAFETY: `Header::survey` checked that the tensor ends within the file, whose bytes the memory holds.
                (unsafe { base.add(offset as usize) }, tensor.nbytes() as usize)
            }
            _ => (base, 0),
        }
    }

    fn hand_out(&self, index: usize, counter: &Counter, bytes: u64) {
        if !self.handed_out[index].swap(true, Ordering::Relaxed) {
            counter.add(bytes);
        }
    }
}

impl Keeper {
    fn opened(&self) -> &Opened {
        match self {
            Keeper::File(opened) => opened,
            Keeper::Copy(_, file) => file.opened(),
        }
    }

    /// Says how bytes of a view will be used. For a copy there is nothing to do.
    pub(crate) fn advise(&self, advice: Advice, start: *const u8, len: usize) -> Result<()> {
        let Keeper::File(opened) = self else { return Ok(()) };
        let offset = start.addr().wrapping_sub(opened.memory.base().addr());
        let fits = offset.checked_add(len).is_some_and(|end| end <= opened.memory.len());
        let advised = match (fits, len) {
            (false, _) => Err(Error::new(Status::InvalidArgument, "the bytes are not those of a view of this file")),
            (true, 0) => Ok(()),
            (true, _) => opened.memory.advise(advice, offset, len).map_err(|error| Error::io("madvise", &error)),
        };
        advised.map_err(|error| error.at(&opened.path))
    }
}

/// A tensor of an open file. It keeps the file's mapping alive, so the [`File`] may go first. Cheap to clone; safe to
/// use from several threads at once.
#[derive(Clone)]
pub struct View {
    keeper: Arc<Keeper>,
    index: usize,
}

impl View {
    /// Name, dtype, shape and offsets.
    pub fn info(&self) -> TensorInfo<'_> {
        let header = &self.keeper.opened().header;
        // The number was checked when the view was made, and headers do not change.
        header.get(self.index).unwrap_or_else(|| unreachable!("a view has a tensor"))
    }

    /// Whether the bytes are those of the mapping.
    pub fn origin(&self) -> Origin {
        match *self.keeper {
            Keeper::File(_) => Origin::Mapped,
            Keeper::Copy(..) => Origin::Copied,
        }
    }

    /// The first byte, and the number of bytes. Writable only with [`MapMode::CopyOnWrite`] or where the view is a
    /// copy; all views of the tensor then see what is written.
    pub fn span(&self) -> (*mut u8, usize) {
        let (start, len) = self.keeper.opened().span(self.index);
        match &*self.keeper {
            Keeper::File(_) => (start, len),
            Keeper::Copy(bytes, _) => (bytes.start.as_ptr(), len),
        }
    }

    /// The bytes: elements in row-major order, little-endian.
    pub fn bytes(&self) -> &[u8] {
        let (start, len) = self.span();
        // SAFETY: the keeper holds these bytes for as long as `self` lives, and safe code never writes to them.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// Says how the bytes will be used.
    pub fn advise(&self, advice: Advice) -> Result<()> {
        let (start, len) = self.span();
        self.keeper.advise(advice, start, len)
    }

    /// Gives up the view for what keeps its bytes alive.
    pub(crate) fn into_keeper(self) -> Arc<Keeper> {
        self.keeper
    }
}
