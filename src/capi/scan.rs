//! Finding misaligned tensors.

use std::ffi::{CString, c_char};

use super::boundary::{Call, SizedStruct, guard, sized_struct};
use super::file::padding;
use super::status::{sa_error, sa_status};
use crate::error::{Error, Status};
use crate::layout::DEFAULT_ALIGNMENT;
use crate::scan::{self, DtypeUse, ScanOptions, ScanReport};

/// The result of a scan.
///
/// Freed by `sa_scan_free`. Immutable, keeps no file open, and is safe to use from several threads at once.
pub struct sa_scan {
    report: ScanReport,
    nonconforming: Option<(CString, CString)>,
    dtypes: Vec<(CString, DtypeUse)>,
}

/// Scan options. Initialise with `SA_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_scan_options {
    /// Size of this struct in bytes, set by `SA_INIT`.
    pub struct_size: usize,
    /// The alignment for `tensors_below_alignment`, in bytes: a power of two from 8 to 2097152. 0 for the default of
    /// 64. Which tensors are misaligned does not depend on it.
    pub alignment: u64,
    /// For the tests of the ABI.
    #[cfg(safealign_grown)]
    pub grown: u64,
}

sized_struct!(sa_scan_options, alignment);

/// The layout of a file, from its header. Initialise with `SA_INIT`. The strings are valid until the scan is freed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_scan_report {
    /// Size of this struct in bytes, set by `SA_INIT`.
    pub struct_size: usize,
    /// Size of the file in bytes.
    pub file_size: u64,
    /// Size of the JSON header with its padding in bytes, without the 8-byte length.
    pub header_len: u64,
    /// Start of the data section, in bytes from the start of the file.
    pub data_start: u64,
    /// Number of tensors.
    pub tensors: u64,
    /// Their total size in bytes.
    pub tensor_bytes: u64,
    /// Tensors that are not empty and whose absolute offset is not a multiple of their dtype width.
    pub misaligned_tensors: u64,
    /// Their total size in bytes: what a loader that maps has to copy.
    pub misaligned_bytes: u64,
    /// Tensors that are not empty and whose absolute offset is not a multiple of the alignment of the options. A loader
    /// can map them, but not at that alignment.
    pub tensors_below_alignment: u64,
    /// Gaps before or between tensors.
    pub gaps: u64,
    /// Their total size in bytes.
    pub gap_bytes: u64,
    /// Bytes after the last tensor.
    pub trailing_bytes: u64,
    /// Tensors with a dtype that is not part of the format. Their sizes cannot be checked, and they count as aligned.
    pub unknown_dtype_tensors: u64,
    /// Number of rows for `sa_scan_dtype_at`.
    pub dtypes: usize,
    /// An `sa_header_padding`.
    pub header_padding: i32,
    /// 1 if the reference reader would open the file, 0 if not.
    pub conforms: i32,
    /// Why the reference reader would reject the file, as a message; null if it would open it.
    pub nonconforming: *const c_char,
    /// The same as a code: `"HOLE"`, `"TRAILING_BYTES"`, `"HEADER_TRAILING_NUL"`, `"UNKNOWN_DTYPE"` or
    /// `"SIZE_OVERFLOW"`; null if it would open the file.
    pub nonconforming_reason: *const c_char,
    /// For the tests of the ABI.
    #[cfg(safealign_grown)]
    pub grown: u64,
}

sized_struct!(sa_scan_report, nonconforming_reason);

/// The tensors of one dtype in a file. Initialise with `SA_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_scan_dtype {
    /// Size of this struct in bytes, set by `SA_INIT`.
    pub struct_size: usize,
    /// The dtype as it is written in the header, NUL-terminated. Valid until the scan is freed.
    pub name: *const c_char,
    /// Length of the name in bytes, without the NUL.
    pub name_len: usize,
    /// Number of tensors.
    pub tensors: u64,
    /// Their total size in bytes.
    pub bytes: u64,
    /// Tensors that a loader that maps has to copy.
    pub misaligned_tensors: u64,
    /// Their total size in bytes.
    pub misaligned_bytes: u64,
    /// An `sa_dtype`; 0 for a dtype that is not part of the format.
    pub dtype: i32,
    /// 0.
    pub reserved: i32,
    /// For the tests of the ABI.
    #[cfg(safealign_grown)]
    pub grown: u64,
}

sized_struct!(sa_scan_dtype, reserved);

/// Scans a file: reads its 8-byte prefix and its header, never the data.
///
/// A dtype that is not part of the format is reported, not an error; everything else is checked as by `sa_file_open`.
///
/// @param path     NUL-terminated, in the system's encoding. Anything but a regular file is an error at once.
/// @param options  Null for the defaults.
/// @param scan     Receives the scan, to be freed with `sa_scan_free`.
/// @param error    Null, or receives the error.
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
    let body = |call: &Call| {
        let path = call.path(path, "path")?;
        let options = call.options::<sa_scan_options>(options)?;
        let alignment = if options.alignment == 0 { DEFAULT_ALIGNMENT } else { options.alignment };
        let out = call.output(scan, "scan")?;
        let report = scan::scan(path, &ScanOptions { alignment })?;
        let nonconforming = report.nonconforming.as_ref().map(|error| {
            let reason = error.reason().map_or("", crate::error::Reason::name);
            (without_nul(error.message()), without_nul(reason))
        });
        let dtypes = report.dtypes.iter().map(|row| (without_nul(&row.name), row.clone())).collect();
        out.set(Box::into_raw(Box::new(sa_scan { report, nonconforming, dtypes })));
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// A string for C. A NUL in it, which only an unknown dtype can have, would end it early; it is replaced by U+FFFD.
fn without_nul(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

/// The layout of the file that was scanned.
///
/// @param scan    The scan.
/// @param report  Receives the report.
/// @param error   Null, or receives the error.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_scan_get(
    scan: *const sa_scan,
    report: *mut sa_scan_report,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let scan = call.required(scan, "scan")?;
        let out = call.report(report, "report")?;
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
            ..sa_scan_report::zeroed()
        });
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// The tensors of one dtype. The rows are sorted, most bytes first.
///
/// @param scan   The scan.
/// @param index  From 0 to `dtypes` of the report - 1.
/// @param row    Receives the row.
/// @param error  Null, or receives the error.
/// @return `SA_ERR_NOT_FOUND` if the index is out of range.
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
    let body = |call: &Call| {
        let scan = call.required(scan, "scan")?;
        let out = call.report(row, "row")?;
        let Some((name, found)) = scan.dtypes.get(index) else {
            let message = format!("dtype index {index} is out of range: there are {} rows", scan.dtypes.len());
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
            ..sa_scan_dtype::zeroed()
        });
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
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
