//! What a file costs a loader that maps it.

use std::ffi::{CString, c_char};
use std::mem::size_of;

use super::boundary::{self, Output, Report, guard, required};
use super::file::padding;
use super::status::{sa_error, sa_status};
use super::write::init;
use crate::error::{Error, Status};
use crate::layout::DEFAULT_ALIGNMENT;
use crate::scan::{self, DtypeUse, ScanOptions, ScanReport};

/// What a scan found.
///
/// Freed by `sa_scan_free`. Never changes once made, and keeps no file open: safe to use from several threads at once.
pub struct sa_scan {
    report: ScanReport,
    nonconforming: Option<(CString, CString)>,
    dtypes: Vec<(CString, DtypeUse)>,
}

/// What to look for. Initialise with `sa_scan_options_init`, then change what you want.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_scan_options {
    /// Bytes of this struct, as the caller's header has it.
    pub struct_size: usize,
    /// The alignment that `tensors_below_alignment` is about, in bytes: a power of two from 8 to 2097152, 64 by default.
    /// Which tensors are misaligned does not depend on it.
    pub alignment: u64,
}

// SAFETY: begins with its size; plain numbers.
unsafe impl boundary::SizedStruct for sa_scan_options {
    const DEFAULT: Self = sa_scan_options { struct_size: size_of::<Self>(), alignment: DEFAULT_ALIGNMENT };
}

/// What the header says of a file. Set `struct_size`, or call `sa_scan_report_init`, before `sa_scan_get`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_scan_report {
    /// Bytes of this struct, as the caller's header has it.
    pub struct_size: usize,
    /// Bytes of the file.
    pub file_size: u64,
    /// Bytes of the JSON header with its padding, without the 8-byte length.
    pub header_len: u64,
    /// Where the data section starts, in bytes from the start of the file.
    pub data_start: u64,
    /// Number of tensors.
    pub tensors: u64,
    /// Bytes of those.
    pub tensor_bytes: u64,
    /// Tensors that are not empty and whose absolute offset is not a multiple of their dtype width.
    pub misaligned_tensors: u64,
    /// Bytes of those: what a loader that maps has to copy.
    pub misaligned_bytes: u64,
    /// Tensors that are not empty and whose absolute offset is not a multiple of the alignment of the options. Loaders
    /// can map them, but not on that boundary.
    pub tensors_below_alignment: u64,
    /// Holes before or between tensors.
    pub gaps: u64,
    /// Bytes in those holes.
    pub gap_bytes: u64,
    /// Bytes after the last tensor.
    pub trailing_bytes: u64,
    /// Tensors whose dtype the format does not know; their sizes cannot be checked, and they count as aligned.
    pub unknown_dtype_tensors: u64,
    /// Rows for `sa_scan_dtype_at`.
    pub dtypes: usize,
    /// An `sa_header_padding`.
    pub header_padding: i32,
    /// 1 if the reference reader would open the file, 0 if not.
    pub conforms: i32,
    /// Why the reference reader would not open the file: a message; null if it would. Valid until the scan is freed.
    pub nonconforming: *const c_char,
    /// The same in a word: `"HOLE"`, `"TRAILING_BYTES"`, `"HEADER_TRAILING_NUL"`, `"UNKNOWN_DTYPE"`, `"SIZE_OVERFLOW"`;
    /// null if it would. Valid until the scan is freed.
    pub nonconforming_reason: *const c_char,
}

// SAFETY: begins with its size; numbers and pointers.
unsafe impl boundary::SizedStruct for sa_scan_report {
    const DEFAULT: Self = sa_scan_report {
        struct_size: size_of::<Self>(),
        file_size: 0,
        header_len: 0,
        data_start: 0,
        tensors: 0,
        tensor_bytes: 0,
        misaligned_tensors: 0,
        misaligned_bytes: 0,
        tensors_below_alignment: 0,
        gaps: 0,
        gap_bytes: 0,
        trailing_bytes: 0,
        unknown_dtype_tensors: 0,
        dtypes: 0,
        header_padding: 0,
        conforms: 0,
        nonconforming: std::ptr::null(),
        nonconforming_reason: std::ptr::null(),
    };
}

/// What a file has of one dtype. Set `struct_size`, or call `sa_scan_dtype_init`, before `sa_scan_dtype_at`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_scan_dtype {
    /// Bytes of this struct, as the caller's header has it.
    pub struct_size: usize,
    /// As it stands in the header, NUL-terminated. Valid until the scan is freed.
    pub name: *const c_char,
    /// Bytes of the name, without the NUL.
    pub name_len: usize,
    /// Number of tensors.
    pub tensors: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Tensors that a loader that maps has to copy.
    pub misaligned_tensors: u64,
    /// Bytes of those.
    pub misaligned_bytes: u64,
    /// An `sa_dtype`; 0 for one that the format does not know.
    pub dtype: i32,
    /// 0.
    pub reserved: i32,
}

// SAFETY: begins with its size; numbers and a pointer.
unsafe impl boundary::SizedStruct for sa_scan_dtype {
    const DEFAULT: Self = sa_scan_dtype {
        struct_size: size_of::<Self>(),
        name: std::ptr::null(),
        name_len: 0,
        tensors: 0,
        bytes: 0,
        misaligned_tensors: 0,
        misaligned_bytes: 0,
        dtype: 0,
        reserved: 0,
    };
}

/// Sets every option to its default. Null is ignored.
///
/// # Safety
/// `options` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_scan_options_init(options: *mut sa_scan_options) {
    // SAFETY: as the caller says.
    unsafe { init(options) }
}

/// Sets `struct_size`, every number to 0 and every pointer to null. Null is ignored.
///
/// # Safety
/// `report` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_scan_report_init(report: *mut sa_scan_report) {
    // SAFETY: as the caller says.
    unsafe { init(report) }
}

/// Sets `struct_size`, every number to 0 and every pointer to null. Null is ignored.
///
/// # Safety
/// `row` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_scan_dtype_init(row: *mut sa_scan_dtype) {
    // SAFETY: as the caller says.
    unsafe { init(row) }
}

/// Scans a file: reads its 8-byte prefix and its header, never the data.
///
/// A dtype that the format does not know is reported and gone on from; everything else is checked as by `sa_file_open`.
///
/// @param path     NUL-terminated, in the system's encoding. Anything but a regular file is an error at once.
/// @param options  Null for the defaults.
/// @param scan     Receives the scan; free it with `sa_scan_free`.
/// @return `SA_ERR_IO`, `SA_ERR_FORMAT`, `SA_ERR_TRUNCATED`, `SA_ERR_TOO_LARGE`, `SA_ERR_INVALID_ARGUMENT`.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_scan_file(
    path: *const c_char,
    options: *const sa_scan_options,
    scan: *mut *mut sa_scan,
    error: *mut sa_error,
) -> sa_status {
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe {
        guard(error, || {
            let path = boundary::path(path, "path")?;
            let options = boundary::options(options, "options")?;
            let out = Output::new(scan, "scan")?;
            let report = scan::scan(path, &ScanOptions { alignment: options.alignment })?;
            let nonconforming = report.nonconforming.as_ref().map(|error| {
                let reason = error.reason().map_or("", crate::error::Reason::name);
                (without_nul(error.message()), without_nul(reason))
            });
            let dtypes = report.dtypes.iter().map(|row| (without_nul(&row.name), row.clone())).collect();
            out.set(Box::into_raw(Box::new(sa_scan { report, nonconforming, dtypes })));
            Ok(())
        })
    }
}

/// A text for C. A NUL in it, which only an unknown dtype can have, would end it early; it shows as U+FFFD.
fn without_nul(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

/// What was found.
///
/// @param report  Receives it; its `struct_size` has to be set. Its texts belong to the scan.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_scan_get(
    scan: *const sa_scan,
    report: *mut sa_scan_report,
    error: *mut sa_error,
) -> sa_status {
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe {
        guard(error, || {
            let scan = required(scan, "scan")?;
            let out = Report::new(report, "report")?;
            let (found, null) = (&scan.report, std::ptr::null());
            out.set(&sa_scan_report {
                file_size: found.file_size,
                header_len: found.header_len,
                data_start: found.data_start,
                tensors: found.tensors,
                tensor_bytes: found.tensor_bytes,
                misaligned_tensors: found.misaligned_tensors,
                misaligned_bytes: found.misaligned_bytes,
                tensors_below_alignment: found.tensors_below_alignment,
                gaps: found.gaps,
                gap_bytes: found.gap_bytes,
                trailing_bytes: found.trailing_bytes,
                unknown_dtype_tensors: found.unknown_dtype_tensors(),
                dtypes: scan.dtypes.len(),
                header_padding: padding(found.padding) as i32,
                conforms: i32::from(scan.nonconforming.is_none()),
                nonconforming: scan.nonconforming.as_ref().map_or(null, |(message, _)| message.as_ptr()),
                nonconforming_reason: scan.nonconforming.as_ref().map_or(null, |(_, reason)| reason.as_ptr()),
                ..<sa_scan_report as boundary::SizedStruct>::DEFAULT
            });
            Ok(())
        })
    }
}

/// What the file has of one dtype; the rows are sorted, most bytes first.
///
/// @param index  From 0 to `dtypes` of the report - 1.
/// @param row    Receives it; its `struct_size` has to be set. Its name belongs to the scan.
/// @return `SA_ERR_NOT_FOUND` for a number that is not there.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_scan_dtype_at(
    scan: *const sa_scan,
    index: usize,
    row: *mut sa_scan_dtype,
    error: *mut sa_error,
) -> sa_status {
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe {
        guard(error, || {
            let scan = required(scan, "scan")?;
            let out = Report::new(row, "row")?;
            let Some((name, found)) = scan.dtypes.get(index) else {
                let message = format!("dtype number {index} of {}: there is no such row", scan.dtypes.len());
                return Err(Error::new(Status::NotFound, message));
            };
            out.set(&sa_scan_dtype {
                name: name.as_ptr(),
                name_len: name.as_bytes().len(),
                tensors: found.tensors,
                bytes: found.bytes,
                misaligned_tensors: found.misaligned_tensors,
                misaligned_bytes: found.misaligned_bytes,
                dtype: found.dtype.map_or(0, |dtype| dtype as i32),
                ..<sa_scan_dtype as boundary::SizedStruct>::DEFAULT
            });
            Ok(())
        })
    }
}

/// Frees a scan. Null is ignored.
///
/// # Safety
/// `scan` is null or a scan that is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_scan_free(scan: *mut sa_scan) {
    if !scan.is_null() {
        // SAFETY: it came from `Box::into_raw` in `sa_scan_file`.
        drop(unsafe { Box::from_raw(scan) });
    }
}
