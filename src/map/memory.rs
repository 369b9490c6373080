//! The bytes of a file at a fixed address, and aligned copies of parts of them.

use std::alloc::Layout;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use memmap2::{Advice as MapAdvice, Mmap, MmapMut, MmapOptions, UncheckedAdvice};
use rustix::io::Errno;

use super::{Advice, MapMode};
use crate::error::{Error, Result, Status};
use crate::source;

/// Bytes that are read ahead in one call.
pub(super) const READ_AHEAD_STEP: usize = 16 << 20;

/// Bytes that were lent to the library, and the call that gives them back.
pub(crate) struct Borrowed {
    start: NonNull<u8>,
    len: usize,
    release: Mutex<Option<Release>>,
}

pub(crate) type Release = Box<dyn FnOnce() + Send>;

impl Borrowed {
    /// # Safety
    /// `len` bytes at `start` can be read, from any thread, and do not change until the release is called.
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize) -> Borrowed {
        Borrowed { start, len, release: Mutex::new(None) }
    }

    /// The bytes, while they are borrowed.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `new` was promised that these bytes can be read and do not change.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if let Some(release) = self.release.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            release();
        }
    }
}

/// The bytes of a file, at an address that stays the same.
pub(super) struct Memory {
    base: NonNull<u8>,
    len: usize,
    held: Held,
}

/// What holds the bytes.
enum Held {
    /// A mapping that cannot be written to.
    ReadOnly(Mmap),
    /// A private mapping that can be written to.
    Private(MmapMut),
    /// Anonymous memory that the file was read into.
    Read(MmapMut),
    /// Memory of the caller.
    Borrowed(Borrowed),
}

// SAFETY: `base` points into what `held` holds, which lives as long and does not move. The library only reads through
// it; `Borrowed` may be read from any thread by its contract, and its release is `Send`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `len` bytes of a file from `offset` on, or reads them where the file system cannot map.
    pub(super) fn of(file: &File, offset: u64, len: u64, mode: MapMode) -> Result<Memory> {
        let len = usize::try_from(len)
            .ok()
            .filter(|&len| isize::try_from(len).is_ok())
            .ok_or_else(|| Error::new(Status::TooLarge, format!("{len} bytes do not fit the address space")))?;
        let mut options = MmapOptions::new();
        options.offset(offset).len(len);
        let held = match mode {
            // SAFETY: tensor data is read from the mapping as raw bytes only, for which every value is valid; the
            // header was read beforehand. What a change of the file means is documented at the module.
            MapMode::Shared => unsafe { options.map(file) }
                .or_else(|error| match is_refused(&error) {
                    // SAFETY: as above. Some FUSE file systems refuse shared mappings only.
                    true => unsafe { options.map_copy_read_only(file) },
                    false => Err(error),
                })
                .map(Held::ReadOnly),
            // SAFETY: as above; pages that are written become private to this process.
            MapMode::CopyOnWrite => unsafe { options.no_reserve_swap().map_copy(file) }.map(Held::Private),
        };
        match held {
            Ok(held) => Ok(Memory::held(held, len)),
            Err(error) if is_refused(&error) => {
                let mut map = MmapMut::map_anon(len).map_err(|error| Error::io("allocate", &error))?;
                file.read_exact_at(&mut map, offset).map_err(|error| source::read_error(&error))?;
                Ok(Memory::held(Held::Read(map), len))
            }
            Err(error) => Err(Error::io("mmap", &error)),
        }
    }

    /// Bytes of the caller.
    pub(super) fn borrowed(bytes: Borrowed) -> Memory {
        Memory { base: bytes.start, len: bytes.len, held: Held::Borrowed(bytes) }
    }

    /// Sets what is called when lent bytes are no longer used.
    pub(super) fn on_release(&self, release: Release) {
        if let Held::Borrowed(bytes) = &self.held {
            *bytes.release.lock().unwrap_or_else(PoisonError::into_inner) = Some(release);
        }
    }

    fn held(mut held: Held, len: usize) -> Memory {
        // Taken once: a later `&mut` to a mapping would end the validity of what was handed out.
        let base = match &mut held {
            Held::ReadOnly(map) => NonNull::from(&map[..]).cast(),
            Held::Private(map) | Held::Read(map) => NonNull::from(&mut map[..]).cast(),
            Held::Borrowed(bytes) => bytes.start,
        };
        Memory { base, len, held }
    }

    /// The first byte. A multiple of the page size unless the file begins elsewhere in its container.
    pub(super) fn base(&self) -> *const u8 {
        self.base.as_ptr()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The first byte, for writing; nothing where the bytes must not be written to.
    pub(super) fn writable_base(&self) -> Option<*mut u8> {
        matches!(self.held, Held::Private(..) | Held::Read(_)).then_some(self.base.as_ptr())
    }

    /// Whether the bytes are those of a file, and not a copy or the caller's.
    pub(super) fn is_mapped(&self) -> bool {
        matches!(self.held, Held::ReadOnly(..) | Held::Private(..))
    }

    /// Whether an address is within these bytes, and its offset.
    pub(super) fn offset_of(&self, start: *const u8, len: usize) -> Option<usize> {
        let offset = start.addr().checked_sub(self.base().addr())?;
        offset.checked_add(len).filter(|&end| end <= self.len).map(|_| offset)
    }

    /// Reads and maps the pages of one step. Errors do not matter: the pages are read when they are accessed.
    pub(super) fn populate(&self, offset: usize) {
        let len = READ_AHEAD_STEP.min(self.len - offset);
        let advise = |advice| match &self.held {
            Held::ReadOnly(map) => map.advise_range(advice, offset, len),
            Held::Private(map) => map.advise_range(advice, offset, len),
            Held::Read(_) | Held::Borrowed(_) => Ok(()),
        };
        #[cfg(target_os = "linux")]
        if advise(MapAdvice::PopulateRead).is_ok() {
            return;
        }
        // Linux before 5.14, and other systems.
        let _ = advise(MapAdvice::WillNeed);
    }

    pub(super) fn advise(&self, advice: Advice, offset: usize, len: usize) -> io::Result<()> {
        let advice = match advice {
            Advice::WillNeed => MapAdvice::WillNeed,
            Advice::Random => MapAdvice::Random,
            Advice::Sequential => MapAdvice::Sequential,
            Advice::DoNotNeed => {
                return match &self.held {
                    // SAFETY: the mapping is never written through, so pages that are dropped come back from the file
                    // as they were.
                    Held::ReadOnly(map) => unsafe {
                        map.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, len)
                    },
                    // Dropping these pages would discard what was written, or the only copy.
                    Held::Private(..) | Held::Read(_) | Held::Borrowed(_) => Ok(()),
                };
            }
        };
        match &self.held {
            Held::ReadOnly(map) => map.advise_range(advice, offset, len),
            Held::Private(map) => map.advise_range(advice, offset, len),
            Held::Read(_) | Held::Borrowed(_) => Ok(()),
        }
    }
}

/// Whether a failed mmap means that the file system cannot map in this way.
fn is_refused(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NODEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS))
}

/// An aligned copy.
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
    /// With huge pages, a large copy takes a five-hundredth of the page faults.
    const HUGE_PAGE: usize = 2 << 20;
    const HUGE_FROM: usize = 4 * Self::HUGE_PAGE;

    /// Copies bytes of a mapping, by pointer: another process may be changing them.
    ///
    /// # Safety
    /// `len` bytes at `bytes` can be read.
    pub(super) unsafe fn copy_of(bytes: *const u8, len: usize) -> Result<Aligned> {
        let no_memory = || Error::io("copy", &Errno::NOMEM.into());
        let alignment = if len < Self::HUGE_FROM { Self::ALIGNMENT } else { Self::HUGE_PAGE };
        let layout = Layout::from_size_align(len.max(1), alignment).map_err(|_| no_memory())?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { std::alloc::alloc(layout) }).ok_or_else(no_memory)?;
        #[cfg(target_os = "linux")]
        if len >= Self::HUGE_FROM {
            let whole = len / Self::HUGE_PAGE * Self::HUGE_PAGE;
            // SAFETY: `whole` bytes from `start` on were allocated above and begin on a page; the advice changes no
            // byte. Where the system does not take it, pages are small.
            let _ = unsafe { rustix::mm::madvise(start.as_ptr().cast(), whole, rustix::mm::Advice::LinuxHugepage) };
        }
        // SAFETY: the caller vouches for the source; the destination is `len` bytes and new.
        unsafe { std::ptr::copy_nonoverlapping(bytes, start.as_ptr(), len) };
        Ok(Aligned { start, layout })
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated in `copy_of` with this layout, and freed only here.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}
