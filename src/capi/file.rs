//! Opening a file, and what is in it.

use std::ffi::{c_char, c_void};
use std::mem::size_of;

use super::boundary::{self, Output, Report, guard, required, text};
use super::info::choice;
use super::status::{sa_error, sa_status};
use super::types::sa_metadata;
use super::write::init;
use crate::error::{Error, Status};
use crate::header::HeaderPadding;
use crate::map::{File, MapMode, OpenOptions, ReadAhead, Unaligned};

/// An open file.
///
/// Freed by `sa_file_free`. Views outlive it: they keep the mapping for themselves. Safe to use from several threads at
/// once.
pub struct sa_file(pub(super) File);

/// How a file is mapped.
#[repr(i32)]
pub enum sa_map_mode {
    /// Read-only, and shared with every process that maps the file. Writing to it is a fault.
    SA_MAP_SHARED = 0,
    /// Private and writable, with no swap reserved: a page that is written becomes this process's own, the file stays as
    /// it is. For engines that may reuse an input's buffer, as MLX's donation does.
    SA_MAP_COPY_ON_WRITE = 1,
}

/// What mapping a misaligned tensor gives: one that is not empty and whose absolute offset is not a multiple of its dtype
/// width.
#[repr(i32)]
pub enum sa_unaligned {
    /// An aligned copy in anonymous memory. It is made when the tensor is first mapped, shared by all views that exist at
    /// the same time, freed with the last, and counted in `sa_stats`.
    SA_UNALIGNED_COPY = 0,
    /// `SA_ERR_UNALIGNED`.
    SA_UNALIGNED_ERROR = 1,
    /// The misaligned bytes of the mapping.
    SA_UNALIGNED_BORROW = 2,
    /// Decided for the whole file when it is opened: where a tensor is misaligned, an aligned twin of the file in
    /// `overlay_dir` is mapped in its place, and written there first if it is missing or stale, which takes the disk space
    /// of the file and the time of a copy. Its memory belongs to a file and can be evicted, unlike a copy's. The tensors
    /// are the same, their order may differ. Two processes at once: one writes, the other waits.
    SA_UNALIGNED_OVERLAY = 3,
}

/// What opening does about the pages of the file that are not in memory yet.
#[repr(i32)]
pub enum sa_read_ahead {
    /// Nothing: each page is read when it is touched.
    SA_READ_AHEAD_NONE = 0,
    /// Opening returns when the whole file is in memory and mapped.
    SA_READ_AHEAD_POPULATE = 1,
    /// A thread of the library does that while the caller goes on. It ends early when nobody has the file or a view of it
    /// any more.
    SA_READ_AHEAD_BACKGROUND = 2,
}

/// What stands between the end of the JSON and the data section.
#[repr(i32)]
pub enum sa_header_padding {
    SA_HEADER_PADDING_NONE = 0,
    SA_HEADER_PADDING_SPACES = 1,
    /// White space of other kinds too; every reader accepts it.
    SA_HEADER_PADDING_WHITESPACE = 2,
    /// NUL bytes: MLX opens the file, the reference reader does not.
    SA_HEADER_PADDING_NUL = 3,
}

/// How to open a file. Initialise with `sa_open_options_init`, then change what you want.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_open_options {
    /// Bytes of this struct, as the caller's header has it.
    pub struct_size: usize,
    /// An `sa_map_mode`; `SA_MAP_SHARED` by default.
    pub map_mode: i32,
    /// An `sa_unaligned`; `SA_UNALIGNED_COPY` by default.
    pub unaligned: i32,
    /// Not 0 to refuse everything that the reference reader refuses: holes, trailing bytes, a header padded with NUL.
    pub strict: i32,
    /// An `sa_read_ahead`; `SA_READ_AHEAD_NONE` by default.
    pub read_ahead: i32,
    /// The folder of the twins of `SA_UNALIGNED_OVERLAY`, NUL-terminated, in the system's encoding; made where it is
    /// missing. Null by default, and not looked at otherwise. Twins of files that changed are removed when the next is
    /// written; those of files that are gone are the caller's to remove.
    pub overlay_dir: *const c_char,
}

// SAFETY: begins with its size; numbers and a pointer.
unsafe impl boundary::SizedStruct for sa_open_options {
    const DEFAULT: Self = sa_open_options {
        struct_size: size_of::<Self>(),
        map_mode: MapMode::Shared as i32,
        unaligned: Unaligned::Copy as i32,
        strict: 0,
        read_ahead: ReadAhead::None as i32,
        overlay_dir: std::ptr::null(),
    };
}

/// What is known of an open file, and what was handed out of it so far. Set `struct_size`, or call `sa_stats_init`, before
/// `sa_file_stats`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_stats {
    /// Bytes of this struct, as the caller's header has it.
    pub struct_size: usize,
    /// Bytes of the file.
    pub file_size: u64,
    /// Number of tensors.
    pub tensors: u64,
    /// Tensors that are not empty and whose absolute offset is not a multiple of their dtype width.
    pub misaligned_tensors: u64,
    /// Bytes of those: what a loader that maps has to copy.
    pub misaligned_bytes: u64,
    /// Tensors handed out without a copy so far, each counted once.
    pub tensors_mapped: u64,
    /// Bytes of those.
    pub bytes_mapped: u64,
    /// Tensors of which an aligned copy was made so far, each counted once.
    pub tensors_copied: u64,
    /// Bytes of those.
    pub bytes_copied: u64,
    /// Holes before or between tensors; the reference reader refuses a file that has one.
    pub gaps: u64,
    /// Bytes in those holes.
    pub gap_bytes: u64,
    /// Bytes after the last tensor; the reference reader refuses a file that has any.
    pub trailing_bytes: u64,
    /// An `sa_header_padding`.
    pub header_padding: i32,
    /// 1 if the file is mapped; 0 if its file system cannot map (it answered ENODEV) and the whole file was read into
    /// anonymous memory.
    pub is_mapped: i32,
}

// SAFETY: begins with its size; plain numbers.
unsafe impl boundary::SizedStruct for sa_stats {
    const DEFAULT: Self = sa_stats {
        struct_size: size_of::<Self>(),
        file_size: 0,
        tensors: 0,
        misaligned_tensors: 0,
        misaligned_bytes: 0,
        tensors_mapped: 0,
        bytes_mapped: 0,
        tensors_copied: 0,
        bytes_copied: 0,
        gaps: 0,
        gap_bytes: 0,
        trailing_bytes: 0,
        header_padding: 0,
        is_mapped: 0,
    };
}

/// A tensor as the header describes it. The pointers are into the file, valid until it and its views are gone.
#[repr(C)]
pub struct sa_tensor_info {
    /// NUL-terminated UTF-8.
    pub name: *const c_char,
    /// Bytes of the name, without the NUL.
    pub name_len: usize,
    /// An `sa_dtype`.
    pub dtype: i32,
    /// 1 if a loader that maps has to copy the tensor, 0 if not.
    pub is_misaligned: i32,
    /// Number of dimensions; 0 for a scalar.
    pub rank: usize,
    /// Elements in each dimension; `rank` of them, never null.
    pub shape: *const u64,
    /// First byte, counted from the start of the file.
    pub offset: u64,
    /// Bytes of data.
    pub nbytes: u64,
}

/// Sets every option to its default. Null is ignored.
///
/// # Safety
/// `options` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_open_options_init(options: *mut sa_open_options) {
    // SAFETY: as the caller says.
    unsafe { init(options) }
}

/// Sets `struct_size`, and every number to 0. Null is ignored.
///
/// # Safety
/// `stats` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_stats_init(stats: *mut sa_stats) {
    // SAFETY: as the caller says.
    unsafe { init(stats) }
}

/// Opens and maps a file, and checks its header and every offset.
///
/// Files with holes between tensors, bytes after the last one or a header padded with NUL are opened, as MLX opens them,
/// unless `strict` is set. Overlapping tensors, a name that stands twice and offsets past the end are always refused.
///
/// @param path     NUL-terminated, in the system's encoding. Anything but a regular file is an error at once.
/// @param options  Null for the defaults.
/// @param file     Receives the file; free it with `sa_file_free`.
/// @return `SA_ERR_IO`, `SA_ERR_FORMAT`, `SA_ERR_TRUNCATED`, `SA_ERR_TOO_LARGE`, `SA_ERR_UNSUPPORTED`,
///         `SA_ERR_NONCONFORMING` (only with `strict`), `SA_ERR_INVALID_ARGUMENT`; with `SA_UNALIGNED_OVERLAY` also what
///         `sa_repair_file` returns when the twin cannot be written.
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
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe {
        guard(error, || {
            let path = boundary::path(path, "path")?;
            let options = boundary::options(options, "options")?;
            let out = Output::new(file, "file")?;
            let mut open_options = OpenOptions {
                map: choice(options.map_mode, &[MapMode::Shared, MapMode::CopyOnWrite], "options.map_mode")?,
                unaligned: choice(
                    options.unaligned,
                    &[Unaligned::Copy, Unaligned::Error, Unaligned::Borrow, Unaligned::Overlay],
                    "options.unaligned",
                )?,
                read_ahead: choice(
                    options.read_ahead,
                    &[ReadAhead::None, ReadAhead::Populate, ReadAhead::Background],
                    "options.read_ahead",
                )?,
                overlay_dir: None,
                strict: options.strict != 0,
            };
            if open_options.unaligned == Unaligned::Overlay {
                open_options.overlay_dir = Some(boundary::path(options.overlay_dir, "options.overlay_dir")?.to_owned());
            }
            let file = File::open(path, &open_options)?;
            out.set(Box::into_raw(Box::new(sa_file(file))));
            Ok(())
        })
    }
}

/// Closes a file. Its views stay valid: the mapping goes with the last of them. Null is ignored.
///
/// # Safety
/// `file` is null or a file that is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_file_free(file: *mut sa_file) {
    if !file.is_null() {
        // SAFETY: it came from `Box::into_raw` in `sa_file_open`.
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

/// What the header says of a tensor. Tensors are numbered in the order of their data in the file.
///
/// @param index  From 0 to `sa_file_len` - 1.
/// @param info   Receives the description.
/// @return `SA_ERR_NOT_FOUND` for a number that is not there.
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
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe {
        guard(error, || {
            let file = &required(file, "file")?.0;
            let out = Output::new(info, "info")?;
            let tensor = file.get(index)?;
            let header = file.header();
            out.set(sa_tensor_info {
                name: tensor.name.as_ptr().cast(),
                name_len: tensor.name.len(),
                dtype: tensor.dtype.map_or(0, |dtype| dtype as i32),
                is_misaligned: i32::from(header.is_misaligned(&tensor)),
                rank: tensor.shape.len(),
                shape: tensor.shape.as_ptr(),
                offset: header.data_start() + tensor.begin,
                nbytes: tensor.nbytes(),
            });
            Ok(())
        })
    }
}

/// The number of a tensor, by its name. Takes the same time however many tensors there are.
///
/// @param name   NUL-terminated UTF-8.
/// @param index  Receives the number, for `sa_file_at` and `sa_map_tensor_at`.
/// @return `SA_ERR_NOT_FOUND` if the file has no such tensor.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_file_find(
    file: *const sa_file,
    name: *const c_char,
    index: *mut usize,
    error: *mut sa_error,
) -> sa_status {
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe {
        guard(error, || {
            let file = &required(file, "file")?.0;
            let name = text(name, 0, "name")?;
            let out = Output::new(index, "index")?;
            out.set(file.find(name)?);
            Ok(())
        })
    }
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
/// @param index  From 0 to `sa_file_metadata_len` - 1.
/// @param entry  Receives pointers into the file, valid until it and its views are gone; both texts are NUL-terminated,
///               and their lengths leave the NUL out.
/// @return `SA_ERR_NOT_FOUND` for a number that is not there.
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
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe {
        guard(error, || {
            let header = required(file, "file")?.0.header();
            let out = Output::new(entry, "entry")?;
            let Some((key, value)) = header.metadata_at(index) else {
                let message = format!("metadata number {index} of {}: there is no such entry", header.metadata_len());
                return Err(Error::new(Status::NotFound, message));
            };
            out.set(sa_metadata {
                key: key.as_ptr().cast(),
                value: value.as_ptr().cast(),
                key_len: key.len(),
                value_len: value.len(),
            });
            Ok(())
        })
    }
}

/// The whole mapping, for engines that make one buffer of it.
///
/// @param base        Receives the address of the file's first byte, a multiple of the page size; valid until the file
///                    and its views are gone. Writable only with `SA_MAP_COPY_ON_WRITE`.
/// @param nbytes      Receives the bytes of the file.
/// @param data_start  Receives where the data section starts, in bytes from the base.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_file_base(
    file: *const sa_file,
    base: *mut *mut c_void,
    nbytes: *mut usize,
    data_start: *mut u64,
    error: *mut sa_error,
) -> sa_status {
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe {
        guard(error, || {
            let file = &required(file, "file")?.0;
            let (base, nbytes) = (Output::new(base, "base")?, Output::new(nbytes, "nbytes")?);
            let data_start = Output::new(data_start, "data_start")?;
            base.set(file.base().cast());
            nbytes.set(file.stats().file_size as usize);
            data_start.set(file.header().data_start());
            Ok(())
        })
    }
}

/// Counts of what is in the file and of what was handed out of it.
///
/// @param stats  Receives the counts; its `struct_size` has to be set.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_file_stats(file: *const sa_file, stats: *mut sa_stats, error: *mut sa_error) -> sa_status {
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe {
        guard(error, || {
            let file = &required(file, "file")?.0;
            let out = Report::new(stats, "stats")?;
            let found = file.stats();
            out.set(&sa_stats {
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
                ..<sa_stats as boundary::SizedStruct>::DEFAULT
            });
            Ok(())
        })
    }
}

pub(super) fn padding(padding: HeaderPadding) -> sa_header_padding {
    match padding {
        HeaderPadding::None => sa_header_padding::SA_HEADER_PADDING_NONE,
        HeaderPadding::Spaces => sa_header_padding::SA_HEADER_PADDING_SPACES,
        HeaderPadding::Whitespace => sa_header_padding::SA_HEADER_PADDING_WHITESPACE,
        HeaderPadding::Nul => sa_header_padding::SA_HEADER_PADDING_NUL,
    }
}
