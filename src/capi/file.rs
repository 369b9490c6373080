//! Opening a file, and what is in it.

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr::NonNull;

use super::boundary::{Call, SizedStruct, choice, guard, invalid, sized_struct};
use super::status::{sa_error, sa_status};
use super::types::sa_metadata;
use super::write::Context;
use crate::error::{Error, Result, Status};
use crate::header::{Header, HeaderPadding, TensorInfo};
use crate::map::{Borrowed, File, MapMode, OpenOptions, ReadAhead, Stats, Unaligned};

/// An open file.
///
/// Freed by `sa_file_free`. Views keep the mapping alive on their own. Safe to use from several threads at once.
pub struct sa_file(pub(super) File, Option<CString>);

/// How a file is mapped.
#[repr(i32)]
pub enum sa_map_mode {
    /// Read-only, and shared with every process that maps the file. Writing to it is a fault.
    SA_MAP_SHARED = 0,
    /// Private and writable (see `sa_view_writable`), with no swap reserved: a page that is written becomes private to
    /// this process, and the file stays as it is. For programs on a Linux CPU that write through a view. On macOS, and
    /// where a device pins the pages, such a mapping may be copied as a whole.
    SA_MAP_COPY_ON_WRITE = 1,
}

/// How a misaligned tensor is mapped: a tensor that is not empty and whose address is not a multiple of its dtype
/// width. The other way to handle misaligned tensors is an aligned cache; see `sa_open_options.aligned_cache`.
#[repr(i32)]
pub enum sa_unaligned {
    /// As an aligned copy in anonymous memory. It is made when the tensor is first mapped, shared by all views that
    /// exist at the same time, freed with the last, and counted in `sa_stats`.
    SA_UNALIGNED_COPY = 0,
    /// Not at all: mapping it fails with `SA_ERR_UNALIGNED`.
    SA_UNALIGNED_ERROR = 1,
    /// As the misaligned bytes of the mapping.
    SA_UNALIGNED_BORROW = 2,
}

/// What opening does about the pages of the file that are not in memory yet.
#[repr(i32)]
pub enum sa_read_ahead {
    /// Nothing: each page is read when it is first accessed.
    SA_READ_AHEAD_NONE = 0,
    /// Opening returns when the whole file is in memory and mapped.
    SA_READ_AHEAD_POPULATE = 1,
    /// A thread of the library reads the file in the background. It ends early once the file and its views are gone.
    SA_READ_AHEAD_BACKGROUND = 2,
}

/// What is between the end of the JSON and the data section.
#[repr(i32)]
pub enum sa_header_padding {
    /// Nothing.
    SA_HEADER_PADDING_NONE = 0,
    /// Spaces.
    SA_HEADER_PADDING_SPACES = 1,
    /// White space of other kinds too. Every reader accepts it.
    SA_HEADER_PADDING_WHITESPACE = 2,
    /// NUL bytes. MLX opens the file, the reference reader rejects it.
    SA_HEADER_PADDING_NUL = 3,
}

/// Options for opening a file. Initialise with `SA_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_open_options {
    /// Size of this struct in bytes, set by `SA_INIT`.
    pub struct_size: usize,
    /// An `sa_map_mode`. The default is `SA_MAP_SHARED`.
    pub map_mode: i32,
    /// An `sa_unaligned`. The default is `SA_UNALIGNED_COPY`.
    pub unaligned: i32,
    /// If non-zero, reject everything that the reference reader rejects: gaps, trailing bytes, a header padded with
    /// NUL.
    pub strict: i32,
    /// An `sa_read_ahead`. The default is `SA_READ_AHEAD_NONE`.
    pub read_ahead: i32,
    /// Null, or the path of a file made by `sa_aligned_cache_write` for this file or its bundle, NUL-terminated, in the
    /// system's encoding. Both files are mapped, and each tensor is taken from where it is aligned.
    pub aligned_cache: *const c_char,
    /// For the tests of the ABI.
    #[cfg(safealign_grown)]
    pub grown: u64,
}

sized_struct!(sa_open_options, aligned_cache);

impl sa_open_options {
    pub(super) fn open_options(&self, call: &Call) -> Result<OpenOptions> {
        let unaligned = [Unaligned::Copy, Unaligned::Error, Unaligned::Borrow];
        let read_ahead = [ReadAhead::None, ReadAhead::Populate, ReadAhead::Background];
        let aligned_cache = call.optional_path(self.aligned_cache, "options.aligned_cache")?;
        Ok(OpenOptions {
            map: choice(self.map_mode, &[MapMode::Shared, MapMode::CopyOnWrite], "options.map_mode")?,
            unaligned: choice(self.unaligned, &unaligned, "options.unaligned")?,
            read_ahead: choice(self.read_ahead, &read_ahead, "options.read_ahead")?,
            strict: self.strict != 0,
            aligned_cache: aligned_cache.map(ToOwned::to_owned),
        })
    }
}

/// Counts of an open file or bundle, and of what has been handed out of it. Initialise with `SA_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_stats {
    /// Size of this struct in bytes, set by `SA_INIT`.
    pub struct_size: usize,
    /// Size of the file in bytes.
    pub file_size: u64,
    /// Number of tensors.
    pub tensors: u64,
    /// Tensors that are not empty and whose address is not a multiple of their dtype width.
    pub misaligned_tensors: u64,
    /// Their total size in bytes: what a loader that maps has to copy.
    pub misaligned_bytes: u64,
    /// Tensors handed out without a copy so far, each counted once.
    pub tensors_mapped: u64,
    /// Their total size in bytes.
    pub bytes_mapped: u64,
    /// Tensors of which an aligned copy was made so far, each counted once.
    pub tensors_copied: u64,
    /// Their total size in bytes.
    pub bytes_copied: u64,
    /// Gaps before or between tensors. The reference reader rejects a file with gaps.
    pub gaps: u64,
    /// Their total size in bytes.
    pub gap_bytes: u64,
    /// Bytes after the last tensor. The reference reader rejects a file with trailing bytes.
    pub trailing_bytes: u64,
    /// An `sa_header_padding`; for a bundle, the kind that the fewest readers accept.
    pub header_padding: i32,
    /// 1 if the file is mapped; 0 if its file system cannot map and the file was read into anonymous memory, and for a
    /// file that was opened from memory.
    pub is_mapped: i32,
    /// For the tests of the ABI.
    #[cfg(safealign_grown)]
    pub grown: u64,
}

sized_struct!(sa_stats, is_mapped);

impl From<Stats> for sa_stats {
    fn from(found: Stats) -> sa_stats {
        sa_stats {
            file_size: found.file_size,
            tensors: found.tensors,
            misaligned_tensors: found.misaligned_tensors,
            misaligned_bytes: found.misaligned_bytes,
            tensors_mapped: found.tensors_mapped,
            bytes_mapped: found.bytes_mapped,
            tensors_copied: found.tensors_copied,
            bytes_copied: found.bytes_copied,
            gaps: found.gaps,
            gap_bytes: found.gap_bytes,
            trailing_bytes: found.trailing_bytes,
            header_padding: padding(found.header_padding) as i32,
            is_mapped: i32::from(found.is_mapped),
            ..sa_stats::zeroed()
        }
    }
}

/// A tensor as the header describes it. Initialise with `SA_INIT` before the call that fills it. The pointers are valid
/// until the file and its views are gone.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_tensor_info {
    /// Size of this struct in bytes, set by `SA_INIT`.
    pub struct_size: usize,
    /// UTF-8, NUL-terminated.
    pub name: *const c_char,
    /// Length of the name in bytes, without the NUL.
    pub name_len: usize,
    /// An `sa_dtype`.
    pub dtype: i32,
    /// 1 if a loader that maps has to copy the tensor, 0 if not.
    pub is_misaligned: i32,
    /// Number of dimensions; 0 for a scalar.
    pub rank: usize,
    /// `rank` sizes in elements; never null.
    pub shape: *const u64,
    /// Offset of the data, in bytes from the start of the file.
    pub offset: u64,
    /// Size of the data in bytes.
    pub nbytes: u64,
    /// For the tests of the ABI.
    #[cfg(safealign_grown)]
    pub grown: u64,
}

sized_struct!(sa_tensor_info, nbytes);

impl sa_tensor_info {
    pub(super) fn of(header: &Header, tensor: &TensorInfo, is_misaligned: bool) -> sa_tensor_info {
        sa_tensor_info {
            name: tensor.name.as_ptr().cast(),
            name_len: tensor.name.len(),
            dtype: tensor.dtype.map_or(0, |dtype| dtype as i32),
            is_misaligned: i32::from(is_misaligned),
            rank: tensor.shape.len(),
            shape: tensor.shape.as_ptr(),
            offset: header.data_start() + tensor.begin,
            nbytes: tensor.nbytes(),
            ..sa_tensor_info::zeroed()
        }
    }
}

/// Opens and maps a file, and checks its header and every offset. Never writes anything.
///
/// Files with gaps between tensors, trailing bytes or a header padded with NUL are opened, as MLX opens them, unless
/// `strict` is set. Overlapping tensors, duplicate names and offsets past the end are always rejected.
///
/// @param path     NUL-terminated, in the system's encoding. Anything but a regular file is an error at once.
/// @param options  Null for the defaults.
/// @param file     Receives the file, to be freed with `sa_file_free`.
/// @param error    Null, or receives the error.
/// @return `SA_ERR_IO`, `SA_ERR_FORMAT`, `SA_ERR_TRUNCATED`, `SA_ERR_TOO_LARGE`, `SA_ERR_UNSUPPORTED`,
///         `SA_ERR_NONCONFORMING` (only with `strict`), `SA_ERR_INVALID_ARGUMENT`. For an `aligned_cache` that was
///         written for another file `SA_ERR_INVALID_ARGUMENT`, for a stale one `SA_ERR_CHANGED`.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_file_open(
    path: *const c_char,
    options: *const sa_open_options,
    file: *mut *mut sa_file,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let path = call.path(path, "path")?;
        let options = call.options(options)?.open_options(call)?;
        let out = call.output(file, "file")?;
        out.set(handle(File::open(path, &options)?));
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Size of a model that extends to the end of its file.
pub const SA_TO_END: u64 = u64::MAX;

/// Opens a model that is a part of a file, such as an archive or an app package, as `sa_file_open`.
///
/// Tensors whose address is misaligned because of the offset count as misaligned.
///
/// @param descriptor  Of a regular file that is open for reading. It is duplicated: the caller may close it. Its file
///                    position is neither used nor changed.
/// @param offset      Start of the model, in bytes from the start of the file.
/// @param nbytes      Size of the model in bytes, or `SA_TO_END`.
/// @param options     Null for the defaults.
/// @param file        Receives the file, to be freed with `sa_file_free`.
/// @param error       Null, or receives the error.
/// @return As `sa_file_open`; `SA_ERR_TRUNCATED` also if the file ends before the model.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_file_open_descriptor(
    descriptor: c_int,
    offset: u64,
    nbytes: u64,
    options: *const sa_open_options,
    file: *mut *mut sa_file,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        if descriptor < 0 {
            return Err(invalid(format!("`descriptor` is {descriptor}")));
        }
        let options = call.options(options)?.open_options(call)?;
        let out = call.output(file, "file")?;
        // SAFETY: not -1; it is duplicated before anything else is done with it, which fails if it is not open.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let nbytes = (nbytes != SA_TO_END).then_some(nbytes);
        out.set(handle(File::open_descriptor(descriptor, offset, nbytes, &options)?));
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Called once when the library no longer uses memory that was lent to it, on the thread that released the last view or
/// freed the file. It must not throw or `longjmp`.
///
/// @param context  The `release_context` of the call.
pub type sa_release = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// Opens a model that is in memory, as `sa_file_open`. The library borrows the bytes: it neither copies nor writes
/// them.
///
/// Tensors whose address is misaligned count as misaligned: an address that is a multiple of 64 avoids copies of
/// aligned files.
///
/// @param data             The file's bytes. They must not change until `release` is called.
/// @param nbytes           Their number.
/// @param release          Null, or called when the file and its views are gone; not called if this call fails.
/// @param release_context  Passed to `release`.
/// @param options          Null for the defaults. `SA_MAP_COPY_ON_WRITE` and `aligned_cache` are errors here, and
///                         `read_ahead` has no effect: the bytes are in memory.
/// @param file             Receives the file, to be freed with `sa_file_free`.
/// @param error            Null, or receives the error.
/// @return As `sa_file_open`.
///
/// # Safety
/// Pointers are null or valid for the call; the bytes are valid until they are released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_file_open_memory(
    data: *const c_void,
    nbytes: usize,
    release: sa_release,
    release_context: *mut c_void,
    options: *const sa_open_options,
    file: *mut *mut sa_file,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let options = call.options(options)?.open_options(call)?;
        let out = call.output(file, "file")?;
        let bytes = call.slice(data.cast::<u8>(), nbytes, "data")?;
        // SAFETY: the caller lends the bytes until they are released.
        let bytes = unsafe { Borrowed::new(NonNull::from(bytes).cast(), bytes.len()) };
        let file = File::open_memory(bytes, &options)?;
        if let Some(release) = release {
            let context = Context(release_context);
            file.on_release(Box::new(move || {
                let context = context;
                // SAFETY: the caller gave both for this call.
                unsafe { release(context.0) };
            }));
        }
        out.set(handle(file));
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

impl sa_file {
    pub(super) fn new(file: File) -> sa_file {
        let path = file.path().and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
        sa_file(file, path)
    }
}

fn handle(file: File) -> *mut sa_file {
    Box::into_raw(Box::new(sa_file::new(file)))
}

/// Closes a file. Its views stay valid: the mapping is released with the last of them. Null is ignored.
///
/// # Safety
/// `file` is null or a file that is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_file_free(file: *mut sa_file) {
    if !file.is_null() {
        // SAFETY: it came from `Box::into_raw` in `handle`.
        drop(unsafe { Box::from_raw(file) });
    }
}

/// Number of tensors; 0 for null.
///
/// # Safety
/// `file` is null or a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_file_len(file: *const sa_file) -> usize {
    // SAFETY: as the caller says.
    unsafe { file.as_ref() }.map_or(0, |file| file.0.len())
}

/// Describes a tensor. Tensors are indexed in the order of their data in the file.
///
/// @param file   The file.
/// @param index  From 0 to `sa_file_len` - 1.
/// @param info   Receives the description.
/// @param error  Null, or receives the error.
/// @return `SA_ERR_NOT_FOUND` if the index is out of range.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_file_at(
    file: *const sa_file,
    index: usize,
    info: *mut sa_tensor_info,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let file = &call.required(file, "file")?.0;
        let out = call.report(info, "info")?;
        let tensor = file.get(index)?;
        out.set(&sa_tensor_info::of(file.header(), &tensor, file.is_misaligned(index)));
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// The index of a tensor, by its name. Takes constant time and copies no string.
///
/// @param file      The file.
/// @param name      The name.
/// @param name_len  Its length in bytes, or `SA_NUL_TERMINATED`.
/// @param index     Receives the index, for `sa_file_at` and `sa_map_tensor_at`.
/// @param error     Null, or receives the error.
/// @return `SA_ERR_NOT_FOUND` if the file has no such tensor.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_file_find(
    file: *const sa_file,
    name: *const c_char,
    name_len: usize,
    index: *mut usize,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let file = &call.required(file, "file")?.0;
        let name = call.string(name, name_len, "name")?;
        let out = call.output(index, "index")?;
        out.set(file.find(name)?);
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Number of metadata entries; 0 for null.
///
/// # Safety
/// `file` is null or a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_file_metadata_len(file: *const sa_file) -> usize {
    // SAFETY: as the caller says.
    unsafe { file.as_ref() }.map_or(0, |file| file.0.header().metadata_len())
}

/// A metadata entry, in the order of the header.
///
/// @param file   The file.
/// @param index  From 0 to `sa_file_metadata_len` - 1.
/// @param entry  Receives the entry. Its pointers are valid until the file and its views are gone.
/// @param error  Null, or receives the error.
/// @return `SA_ERR_NOT_FOUND` if the index is out of range.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_file_metadata_at(
    file: *const sa_file,
    index: usize,
    entry: *mut sa_metadata,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let header = call.required(file, "file")?.0.header();
        let out = call.output(entry, "entry")?;
        let Some((key, value)) = header.metadata_at(index) else {
            let message =
                format!("metadata index {index} is out of range: there are {} entries", header.metadata_len());
            return Err(Error::new(Status::NotFound, message));
        };
        out.set(sa_metadata::read(key, value));
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// The whole mapping, for engines that make one buffer of it.
///
/// @param file        The file.
/// @param base        Receives the address of the file's first byte: a multiple of the page size, unless the file was
///                    opened from memory or at an offset. Valid until the file and its views are gone. Read-only.
/// @param nbytes      Receives the size of the file in bytes.
/// @param data_start  Receives the start of the data section, in bytes from `base`.
/// @param error       Null, or receives the error.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_file_base(
    file: *const sa_file,
    base: *mut *const c_void,
    nbytes: *mut usize,
    data_start: *mut u64,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let file = &call.required(file, "file")?.0;
        let (base, nbytes) = (call.output(base, "base")?, call.output(nbytes, "nbytes")?);
        let data_start = call.output(data_start, "data_start")?;
        base.set(file.base().cast());
        nbytes.set(file.stats().file_size as usize);
        data_start.set(file.header().data_start());
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Counts of what is in a file and of what has been handed out of it.
///
/// @param file   The file.
/// @param stats  Receives the counts.
/// @param error  Null, or receives the error.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_file_stats(file: *const sa_file, stats: *mut sa_stats, error: *mut sa_error) -> sa_status {
    let body = |call: &Call| {
        let file = &call.required(file, "file")?.0;
        let out = call.report(stats, "stats")?;
        out.set(&file.stats().into());
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// The path that a file was opened by. Null for null, and for a file that was opened by descriptor or from memory.
/// Valid until the file is freed.
///
/// # Safety
/// `file` is null or a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_file_path(file: *const sa_file) -> *const c_char {
    // SAFETY: as the caller says.
    let path = unsafe { file.as_ref() }.and_then(|file| file.1.as_ref());
    path.map_or(std::ptr::null(), |path| path.as_ptr())
}

/// A descriptor of the file, for engines that read to a device themselves. A tensor's data is at `offset` plus the
/// `offset` of its `sa_tensor_info`.
///
/// A mapping needs no open file: a file that was opened by its path is opened again by the first call, and stays open
/// until the handle and its views are gone.
///
/// @param file        The file.
/// @param descriptor  Receives a descriptor that is open for reading, valid until the file is freed. It belongs to the
///                    file: do not close it, and read with `pread`.
/// @param offset      Receives the start of the model, in bytes from the start of that file.
/// @param error       Null, or receives the error.
/// @return `SA_ERR_CHANGED` if the path names another file by then; `SA_ERR_INVALID_ARGUMENT` for a file that was
///         opened from memory; `SA_ERR_IO`.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_file_descriptor(
    file: *const sa_file,
    descriptor: *mut c_int,
    offset: *mut u64,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let file = &call.required(file, "file")?.0;
        let (descriptor, offset) = (call.output(descriptor, "descriptor")?, call.output(offset, "offset")?);
        let (found, start) = file.descriptor()?;
        descriptor.set(found.as_raw_fd());
        offset.set(start);
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Whether the path that a file was opened by still names this file, with the size and modification time that it had.
/// For programs that reload a model when it is replaced.
///
/// @param file        The file.
/// @param is_current  Receives 1, or 0 if another file was renamed over it, if it was modified, or if the path is gone.
/// @param error       Null, or receives the error.
/// @return `SA_ERR_INVALID_ARGUMENT` for a file that was opened without a path; `SA_ERR_IO`.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_file_is_current(
    file: *const sa_file,
    is_current: *mut i32,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let file = &call.required(file, "file")?.0;
        let out = call.output(is_current, "is_current")?;
        out.set(i32::from(file.is_current()?));
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

pub(super) fn padding(padding: HeaderPadding) -> sa_header_padding {
    match padding {
        HeaderPadding::None => sa_header_padding::SA_HEADER_PADDING_NONE,
        HeaderPadding::Spaces => sa_header_padding::SA_HEADER_PADDING_SPACES,
        HeaderPadding::Whitespace => sa_header_padding::SA_HEADER_PADDING_WHITESPACE,
        HeaderPadding::Nul => sa_header_padding::SA_HEADER_PADDING_NUL,
    }
}
