//! Writing in one call.

use std::ffi::{c_char, c_int, c_void};
use std::ops::ControlFlow;

use super::boundary::{Call, SizedStruct, choice, guard, sized_struct};
use super::status::{sa_error, sa_status};
use super::types::{sa_metadata, sa_tensor};
use crate::error::{Error, Result};
use crate::layout::{DEFAULT_ALIGNMENT, Layout, LayoutOptions};
use crate::writer::{self, Durability, WriteOptions, WriteReport};

/// The data layout of a file.
#[repr(i32)]
pub enum sa_layout {
    /// No gaps, so every reader opens the file. Tensors are sorted, stably, by the largest power of two that divides
    /// their size in bytes (at most the alignment), largest first; empty tensors come before all others. Every tensor
    /// then starts at a multiple of that power, hence at a multiple of its dtype width. A tensor whose size is a
    /// multiple of the alignment starts at a multiple of the alignment.
    SA_LAYOUT_COMPACT = 0,
    /// The caller's order, with every tensor at a multiple of the alignment and zero bytes in the gaps (at most
    /// alignment - 1 bytes for each tensor). MLX and its forks open such a file; the reference reader (the
    /// `safetensors` package) rejects it.
    SA_LAYOUT_PADDED = 1,
}

/// Whether a write waits until the file is on the disk.
#[repr(i32)]
pub enum sa_durability {
    /// The new file survives a power failure once the call has returned.
    SA_DURABLE = 0,
    /// The file is still replaced atomically, but nothing waits for the disk.
    SA_NOT_DURABLE = 1,
}

/// Called while a file is written, on the thread that made the call. It must not throw or `longjmp`.
///
/// @param context      The `progress_context` of the options.
/// @param bytes_done   Bytes written so far.
/// @param bytes_total  Bytes to write.
/// @return 0 to continue. Any other value cancels the call, and the file at the path stays as it was.
pub type sa_progress = Option<unsafe extern "C" fn(context: *mut c_void, bytes_done: u64, bytes_total: u64) -> c_int>;

/// Options of `sa_write_aligned` and `sa_writer_open`. Initialise with `SA_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_write_options {
    /// Size of this struct in bytes, set by `SA_INIT`.
    pub struct_size: usize,
    /// In bytes: a power of two from 8 to 2097152. 0 for the default of 64, a cache line. 8 covers every dtype, 256 GPU
    /// libraries, 16384 a page of Apple silicon.
    pub alignment: u64,
    /// An `sa_layout`. The default is `SA_LAYOUT_COMPACT`.
    pub layout: i32,
    /// An `sa_durability`. The default is `SA_DURABLE`.
    pub durability: i32,
    /// Null, or called with the progress.
    pub progress: sa_progress,
    /// Passed to `progress`.
    pub progress_context: *mut c_void,
    /// For the tests of the ABI.
    #[cfg(safealign_grown)]
    pub grown: u64,
}

sized_struct!(sa_write_options, progress_context);

impl sa_write_options {
    pub(super) fn layout(&self) -> Result<LayoutOptions> {
        layout(self.layout, self.alignment)
    }

    pub(super) fn durability(&self) -> Result<Durability> {
        durability(self.durability)
    }
}

/// The layout that options ask for.
pub(super) fn layout(layout: i32, alignment: u64) -> Result<LayoutOptions> {
    let layout = choice(layout, &[Layout::Compact, Layout::Padded], "options.layout")?;
    Ok(LayoutOptions { layout, alignment: if alignment == 0 { DEFAULT_ALIGNMENT } else { alignment } })
}

/// The durability that options ask for.
pub(super) fn durability(durability: i32) -> Result<Durability> {
    choice(durability, &[Durability::Durable, Durability::NotDurable], "options.durability")
}

/// A callback of the caller's as the library calls it.
pub(super) fn progress(
    _: &Call,
    progress: sa_progress,
    context: *mut c_void,
) -> Option<impl FnMut(u64, u64) -> ControlFlow<()> + Send + use<>> {
    let (progress, context) = (progress?, Context(context));
    Some(move |done, total| {
        let context = &context;
        // SAFETY: it may be called with its context, by the contract of `guard`.
        let stop = unsafe { progress(context.0, done, total) } != 0;
        if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

/// A pointer of the caller's that is handed back to the caller.
pub(super) struct Context(pub *mut c_void);

// SAFETY: the library never dereferences it; the header says on which threads the callback runs.
unsafe impl Send for Context {}

/// Describes a file that was written. Initialise with `SA_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_write_report {
    /// Size of this struct in bytes, set by `SA_INIT`.
    pub struct_size: usize,
    /// Size of the file in bytes.
    pub file_size: u64,
    /// Start of the data section, in bytes from the start of the file.
    pub data_start: u64,
    /// Zero bytes in gaps between tensors; 0 in the compact layout.
    pub gap_bytes: u64,
    /// Number of tensors.
    pub tensors: u64,
    /// Tensors whose position in the file is not their position in the input.
    pub tensors_moved: u64,
    /// For the tests of the ABI.
    #[cfg(safealign_grown)]
    pub grown: u64,
}

sized_struct!(sa_write_report, tensors_moved);

impl From<WriteReport> for sa_write_report {
    fn from(report: WriteReport) -> sa_write_report {
        sa_write_report {
            file_size: report.file_size,
            data_start: report.data_start,
            gap_bytes: report.gap_bytes,
            tensors: report.tensors,
            tensors_moved: report.tensors_moved,
            ..sa_write_report::zeroed()
        }
    }
}

/// Writes a file in which every tensor starts at a multiple of its dtype width, so that a loader can map all of them.
///
/// The file at `path` is replaced atomically: whatever fails, it is the old file or the new one, complete. A file may
/// be replaced while it is mapped. A symbolic link at `path` is replaced, not followed. The mode of a replaced file is
/// kept; a new file follows the umask.
///
/// The data is written from the caller's buffers without a copy, except for a durable file of 512 MiB or more on Linux:
/// that is written past the page cache, through two staging buffers of 8 MiB.
///
/// @param path        NUL-terminated, in the system's encoding. Names a regular file, a symbolic link or nothing.
/// @param tensors     Array of `n_tensors`; null if there are none. Their data may overlap.
/// @param n_tensors   Number of tensors.
/// @param metadata    Array of `n_metadata`; null if there are none. Their order is kept.
/// @param n_metadata  Number of metadata entries.
/// @param options     Null for the defaults.
/// @param report      Null, or receives the report.
/// @param error       Null, or receives the error.
/// @return `SA_ERR_INVALID_ARGUMENT` also for a duplicate or reserved name and for a size that does not match the
///         shape; `SA_ERR_TOO_LARGE` for a header of 100000000 bytes or more; `SA_ERR_NO_SPACE`, `SA_ERR_IO`,
///         `SA_ERR_CANCELLED`.
///
/// # Safety
/// Pointers are null or valid for the call, and arrays as long as their counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_write_aligned(
    path: *const c_char,
    tensors: *const sa_tensor,
    n_tensors: usize,
    metadata: *const sa_metadata,
    n_metadata: usize,
    options: *const sa_write_options,
    report: *mut sa_write_report,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let path = call.path(path, "path")?;
        let write = || {
            let tensors = call.slice(tensors, n_tensors, "tensors")?;
            let tensors: Vec<_> = tensors.iter().map(|tensor| tensor.tensor(call)).collect::<Result<_>>()?;
            let metadata = super::types::metadata(call, metadata, n_metadata)?;
            let options = call.options(options)?;
            let out = call.optional_report(report, "report")?;
            let mut progress = progress(call, options.progress, options.progress_context);
            let options = WriteOptions {
                layout: options.layout()?,
                durability: options.durability()?,
                progress: progress.as_mut().map(|progress| progress as _),
            };
            let report = writer::write_aligned(path, &tensors, &metadata, options)?;
            if let Some(out) = out {
                out.set(&report.into());
            }
            Ok(())
        };
        write().map_err(|error: Error| error.at(path))
    };
    // SAFETY: the pointers are the C caller's, null or valid, and arrays as long as their counts.
    unsafe { guard(error, body) }
}
