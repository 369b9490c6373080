//! Writing in pieces.

use std::ffi::{c_char, c_void};

use super::boundary::{self, Output, Report, guard, required, required_mut, slice};
use super::status::{sa_error, sa_status};
use super::types::{sa_metadata, sa_tensor, specs};
use super::write::{sa_write_options, sa_write_report};
use crate::writer::{WriteOptions, Writer};

/// A file that is written in pieces, for tensors that do not all fit in memory.
///
/// Freed by `sa_writer_finish` when it succeeds, otherwise by `sa_writer_abort`. `sa_writer_put` and
/// `sa_writer_put_at` may be called from several threads at once; finish and abort only when no other call runs.
pub struct sa_writer(Writer);

/// Lays out a file, reserves its space beside `path` and writes its header. The file at `path` stays as it is until
/// `sa_writer_finish`.
///
/// @param path      NUL-terminated, in the system's encoding.
/// @param tensors   `n_tensors` of them; null if there are none. `data` is not looked at, `nbytes` is.
/// @param metadata  `n_metadata` entries; null if there are none.
/// @param options   Null for the defaults.
/// @param writer    Receives the writer, which borrows nothing.
/// @return As `sa_write_aligned`.
///
/// # Safety
/// Pointers are null or valid for the call, and arrays as long as their counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_writer_open(
    path: *const c_char,
    tensors: *const sa_tensor,
    n_tensors: usize,
    metadata: *const sa_metadata,
    n_metadata: usize,
    options: *const sa_write_options,
    writer: *mut *mut sa_writer,
    error: *mut sa_error,
) -> sa_status {
    // SAFETY: the pointers are the C caller's, null or valid, and arrays as long as their counts.
    unsafe {
        guard(error, || {
            let path = boundary::path(path, "path")?;
            let open = || {
                let specs = specs(tensors, n_tensors)?;
                let metadata = super::types::metadata(metadata, n_metadata)?;
                let options = boundary::options(options, "options")?;
                let out = Output::new(writer, "writer")?;
                let options =
                    WriteOptions { layout: options.layout()?, durability: options.durability()?, progress: None };
                let writer = Writer::open(path, &specs, &metadata, &options)?;
                out.set(Box::into_raw(Box::new(sa_writer(writer))));
                Ok(())
            };
            open().map_err(|error: crate::error::Error| error.at(path))
        })
    }
}

/// Writes a whole tensor.
///
/// @param index   Position of the tensor in the array given to `sa_writer_open`.
/// @param data    `nbytes` bytes, at any address; null only for 0 bytes.
/// @param nbytes  Has to be the tensor's size.
/// @return `SA_ERR_INVALID_ARGUMENT`, `SA_ERR_IO`, `SA_ERR_NO_SPACE`. The writer stays usable.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_writer_put(
    writer: *const sa_writer,
    index: usize,
    data: *const c_void,
    nbytes: usize,
    error: *mut sa_error,
) -> sa_status {
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe {
        guard(error, || {
            let writer = required(writer, "writer")?;
            writer.0.put(index, slice(data.cast(), nbytes, "data")?)
        })
    }
}

/// Writes a piece of a tensor. Pieces may come in any order and from any thread; where two overlap, what was written last
/// stays.
///
/// @param index   Position of the tensor in the array given to `sa_writer_open`.
/// @param offset  Where the piece goes, in bytes from the start of the tensor.
/// @param data    `nbytes` bytes, at any address; null only for 0 bytes.
/// @param nbytes  Bytes of the piece; it has to end within the tensor.
/// @return `SA_ERR_INVALID_ARGUMENT`, `SA_ERR_IO`, `SA_ERR_NO_SPACE`. The writer stays usable.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_writer_put_at(
    writer: *const sa_writer,
    index: usize,
    offset: u64,
    data: *const c_void,
    nbytes: usize,
    error: *mut sa_error,
) -> sa_status {
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe {
        guard(error, || {
            let writer = required(writer, "writer")?;
            writer.0.put_at(index, offset, slice(data.cast(), nbytes, "data")?)
        })
    }
}

/// Puts the file in place, and frees the writer if that succeeds.
///
/// After a failure the writer is still the caller's: where a byte was missing (`SA_ERR_INVALID_ARGUMENT`, naming the
/// tensor and the bytes) it can be put and the call repeated; after anything else only `sa_writer_abort` is left.
///
/// @param report  Null, or a report to fill.
///
/// # Safety
/// Pointers are null or valid for the call; after success the writer is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_writer_finish(
    writer: *mut sa_writer,
    report: *mut sa_write_report,
    error: *mut sa_error,
) -> sa_status {
    // SAFETY: the pointers are the C caller's, null or valid; the writer came from `Box::into_raw` in `sa_writer_open`.
    unsafe {
        guard(error, || {
            let open = required_mut(writer, "writer")?;
            let out = Report::optional(report, "report")?;
            let report = open.0.finish()?;
            drop(Box::from_raw(writer));
            if let Some(out) = out {
                out.set(&report.into());
            }
            Ok(())
        })
    }
}

/// Gives up: frees the writer and removes what it wrote; the file at the path stays as it was. Null is ignored.
///
/// # Safety
/// `writer` is null or a writer that is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_writer_abort(writer: *mut sa_writer) {
    if !writer.is_null() {
        // SAFETY: it came from `Box::into_raw` in `sa_writer_open`.
        drop(unsafe { Box::from_raw(writer) });
    }
}
