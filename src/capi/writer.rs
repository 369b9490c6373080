//! Writing in pieces.

use std::ffi::{c_char, c_void};

use super::boundary::{Call, guard};
use super::plan::sa_placement;
use super::status::{sa_error, sa_status};
use super::types::{sa_metadata, sa_tensor, specs};
use super::write::{progress, sa_write_options, sa_write_report};
use crate::error::Error;
use crate::writer::{Missing, Writer, WriterOptions};

/// A file that is written in pieces, for tensors that do not all fit in memory.
///
/// Freed by `sa_writer_free`, whatever `sa_writer_finish` returned. `sa_writer_put`, `sa_writer_put_at` and the queries
/// may be called from several threads at once; finish and free only when no other call runs.
pub struct sa_writer(Writer<'static>);

/// Lays out a file, reserves its space beside `path` and writes its header. The file at `path` stays as it is until
/// `sa_writer_finish`.
///
/// @param path        NUL-terminated, in the system's encoding.
/// @param tensors     Array of `n_tensors`; null if there are none. Their `data` is ignored.
/// @param n_tensors   Number of tensors.
/// @param metadata    Array of `n_metadata`; null if there are none.
/// @param n_metadata  Number of metadata entries.
/// @param options     Null for the defaults. `progress` is called by `sa_writer_put` and `sa_writer_put_at`, on the
///                    thread that calls them, after each piece. Concurrent calls of it are serialised. Cancelling makes
///                    that call return `SA_ERR_CANCELLED`; the piece is written and the writer stays usable: to give
///                    up, free it. It must not write to this writer.
/// @param writer      Receives the writer, which keeps no pointer to the arrays.
/// @param error       Null, or receives the error.
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
    let body = |call: &Call| {
        let path = call.path(path, "path")?;
        let open = || {
            let specs = specs(call, tensors, n_tensors)?;
            let metadata = super::types::metadata(call, metadata, n_metadata)?;
            let options = call.options(options)?;
            let out = call.output(writer, "writer")?;
            let options = WriterOptions {
                layout: options.layout()?,
                durability: options.durability()?,
                progress: progress(call, options.progress, options.progress_context).map(|call| Box::new(call) as _),
            };
            let writer = Writer::open(path, &specs, &metadata, options)?;
            out.set(Box::into_raw(Box::new(sa_writer(writer))));
            Ok(())
        };
        open().map_err(|error: Error| error.at(path))
    };
    // SAFETY: the pointers are the C caller's, null or valid, and arrays as long as their counts.
    unsafe { guard(error, body) }
}

/// The index of a tensor in the array given to `sa_writer_open`, by its name.
///
/// @param writer    The writer.
/// @param name      The name.
/// @param name_len  Its length in bytes, or `SA_NUL_TERMINATED`.
/// @param index     Receives the index.
/// @param error     Null, or receives the error.
/// @return `SA_ERR_NOT_FOUND` if there is no such tensor.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_writer_find(
    writer: *const sa_writer,
    name: *const c_char,
    name_len: usize,
    index: *mut usize,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let writer = call.required(writer, "writer")?;
        let name = call.string(name, name_len, "name")?;
        let out = call.output(index, "index")?;
        out.set(writer.0.find(name)?);
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Where a tensor is located in the file.
///
/// @param writer     The writer.
/// @param index      Index in the array given to `sa_writer_open`.
/// @param placement  Receives the placement.
/// @param error      Null, or receives the error.
/// @return `SA_ERR_NOT_FOUND` if the index is out of range.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_writer_at(
    writer: *const sa_writer,
    index: usize,
    placement: *mut sa_placement,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let writer = call.required(writer, "writer")?;
        let out = call.report(placement, "placement")?;
        out.set(&writer.0.placement(index)?.into());
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Writes a whole tensor.
///
/// @param writer  The writer.
/// @param index   Index in the array given to `sa_writer_open`; see `sa_writer_find` for a name.
/// @param data    `nbytes` bytes at any address; null only for 0 bytes.
/// @param nbytes  The size of the tensor in bytes.
/// @param error   Null, or receives the error.
/// @return `SA_ERR_NOT_FOUND` if the index is out of range; `SA_ERR_INVALID_ARGUMENT`, `SA_ERR_IO`, `SA_ERR_NO_SPACE`,
///         `SA_ERR_CANCELLED`. The writer stays usable.
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
    let body = |call: &Call| {
        let writer = call.required(writer, "writer")?;
        writer.0.put(index, call.slice(data.cast(), nbytes, "data")?)
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Writes a piece of a tensor. Pieces may come in any order and from any thread. Where two overlap, the one that was
/// written last stays.
///
/// @param writer  The writer.
/// @param index   Index in the array given to `sa_writer_open`.
/// @param offset  Where the piece starts, in bytes from the start of the tensor.
/// @param data    `nbytes` bytes at any address; null only for 0 bytes.
/// @param nbytes  Size of the piece in bytes. It must end within the tensor.
/// @param error   Null, or receives the error.
/// @return As `sa_writer_put`.
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
    let body = |call: &Call| {
        let writer = call.required(writer, "writer")?;
        writer.0.put_at(index, offset, call.slice(data.cast(), nbytes, "data")?)
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Total size in bytes of the tensor data that has not been written yet; 0 for null.
///
/// # Safety
/// `writer` is null or a writer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_writer_bytes_missing(writer: *const sa_writer) -> u64 {
    // SAFETY: as the caller says.
    unsafe { writer.as_ref() }.map_or(0, |writer| writer.0.bytes_missing())
}

/// The first range of bytes that has not been written yet, in the order of the array given to `sa_writer_open`.
///
/// @param writer  The writer.
/// @param index   Receives the index of the tensor in that array.
/// @param offset  Receives the start of the range, in bytes from the start of the tensor.
/// @param nbytes  Receives the size of the range in bytes; 0 if nothing is missing.
/// @param error   Null, or receives the error.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_writer_first_missing(
    writer: *const sa_writer,
    index: *mut usize,
    offset: *mut u64,
    nbytes: *mut u64,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let writer = call.required(writer, "writer")?;
        let (index, offset) = (call.output(index, "index")?, call.output(offset, "offset")?);
        let nbytes = call.output(nbytes, "nbytes")?;
        let found = writer.0.first_missing().unwrap_or(Missing { index: 0, offset: 0, nbytes: 0 });
        index.set(found.index);
        offset.set(found.offset);
        nbytes.set(found.nbytes);
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Puts the file in place of the one at the path. The writer still has to be freed with `sa_writer_free`.
///
/// If bytes are missing (`SA_ERR_INVALID_ARGUMENT`; the message names the tensor and the bytes), they can be written
/// and the call repeated. After any other result the writer can only be freed.
///
/// @param writer  The writer.
/// @param report  Null, or receives the report.
/// @param error   Null, or receives the error.
/// @return `SA_ERR_INVALID_ARGUMENT`, `SA_ERR_IO`, `SA_ERR_NO_SPACE`.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_writer_finish(
    writer: *mut sa_writer,
    report: *mut sa_write_report,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let writer = call.required_mut(writer, "writer")?;
        let out = call.optional_report(report, "report")?;
        let report = writer.0.finish()?;
        if let Some(out) = out {
            out.set(&report.into());
        }
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Frees a writer. If `sa_writer_finish` did not succeed, this discards the unfinished file, and the file at the path
/// stays as it was. Null is ignored.
///
/// # Safety
/// `writer` is null or a writer that is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_writer_free(writer: *mut sa_writer) {
    if !writer.is_null() {
        // SAFETY: it came from `Box::into_raw` in `sa_writer_open`.
        drop(unsafe { Box::from_raw(writer) });
    }
}
