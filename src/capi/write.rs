//! Writing in one call, and the options that plan and writer share.

use std::ffi::{c_char, c_int, c_void};
use std::mem::size_of;
use std::ops::ControlFlow;

use super::boundary::{self, Report, guard, slice};
use super::info::choice;
use super::status::{sa_error, sa_status};
use super::types::{sa_metadata, sa_tensor};
use crate::error::Result;
use crate::layout::{DEFAULT_ALIGNMENT, Layout, LayoutOptions};
use crate::writer::{self, Durability, WriteOptions, WriteReport};

/// How tensors are made to stand on aligned offsets.
#[repr(i32)]
pub enum sa_layout {
    /// No holes, so every reader opens the file. Tensors are sorted, stably, by the largest power of two that divides
    /// their size in bytes (at most the alignment), largest first and empty ones before all. Every tensor then stands on
    /// a multiple of that power, hence of its dtype width; one whose size is a multiple of the alignment stands on the
    /// alignment.
    SA_LAYOUT_COMPACT = 0,
    /// The caller's order, every tensor on a multiple of the alignment, zero bytes between (at most alignment - 1 a
    /// tensor). MLX and its forks open such a file; the reference reader (the `safetensors` package) refuses it.
    SA_LAYOUT_PADDED = 1,
}

/// Whether a write waits until the file is on the disk.
#[repr(i32)]
pub enum sa_durability {
    /// The new file survives a power failure once the call has returned.
    SA_DURABLE = 0,
    /// The replacement is still atomic, the syncs are skipped.
    SA_NOT_DURABLE = 1,
}

/// Called while a file is written, on the thread that writes.
///
/// @param context      The `progress_context` of the options.
/// @param bytes_done   Bytes written so far.
/// @param bytes_total  Bytes in all.
/// @return 0 to go on; anything else cancels, and the target stays as it was. Must not throw or jump out.
pub type sa_progress = Option<unsafe extern "C" fn(context: *mut c_void, bytes_done: u64, bytes_total: u64) -> c_int>;

/// How to write. Initialise with `sa_write_options_init`, then change what you want.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_write_options {
    /// Bytes of this struct, as the caller's header has it.
    pub struct_size: usize,
    /// In bytes: a power of two from 8 to 2097152. 64 by default, a cache line; 8 covers every dtype, 256 what GPU
    /// libraries ask for, 16384 a page of Apple silicon.
    pub alignment: u64,
    /// An `sa_layout`; `SA_LAYOUT_COMPACT` by default.
    pub layout: i32,
    /// An `sa_durability`; `SA_DURABLE` by default.
    pub durability: i32,
    /// Null by default. Not called by `sa_writer_*`.
    pub progress: sa_progress,
    /// Given to `progress`.
    pub progress_context: *mut c_void,
}

// SAFETY: begins with its size; every bit pattern is valid but for `progress`, a pointer that the caller vouches for.
unsafe impl boundary::SizedStruct for sa_write_options {
    const DEFAULT: Self = sa_write_options {
        struct_size: size_of::<Self>(),
        alignment: DEFAULT_ALIGNMENT,
        layout: Layout::Compact as i32,
        durability: Durability::Durable as i32,
        progress: None,
        progress_context: std::ptr::null_mut(),
    };
}

impl sa_write_options {
    pub(super) fn layout(&self) -> Result<LayoutOptions> {
        let layout = choice(self.layout, &[Layout::Compact, Layout::Padded], "options.layout")?;
        Ok(LayoutOptions { layout, alignment: self.alignment })
    }

    pub(super) fn durability(&self) -> Result<Durability> {
        choice(self.durability, &[Durability::Durable, Durability::NotDurable], "options.durability")
    }

    /// # Safety
    /// `progress`, if set, may be called with the context.
    pub(super) unsafe fn progress(&self) -> Option<impl FnMut(u64, u64) -> ControlFlow<()> + use<>> {
        // SAFETY: as the caller says.
        unsafe { progress(self.progress, self.progress_context) }
    }
}

/// A callback of the caller's as the library calls it.
///
/// # Safety
/// `progress`, if set, may be called with the context.
pub(super) unsafe fn progress(
    progress: sa_progress,
    context: *mut c_void,
) -> Option<impl FnMut(u64, u64) -> ControlFlow<()>> {
    let progress = progress?;
    Some(move |done, total| {
        // SAFETY: as the caller says.
        let stop = unsafe { progress(context, done, total) } != 0;
        if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

/// What was written. Set `struct_size`, or call `sa_write_report_init`, before the call that fills it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_write_report {
    /// Bytes of this struct, as the caller's header has it.
    pub struct_size: usize,
    /// Bytes of the file.
    pub file_size: u64,
    /// Where the data section starts, in bytes.
    pub data_start: u64,
    /// Zero bytes between tensors, in all; 0 in the compact layout.
    pub padding: u64,
    /// Number of tensors.
    pub tensors: u64,
    /// Tensors whose place in the file is not their place in the input.
    pub tensors_moved: u64,
}

// SAFETY: begins with its size; plain numbers.
unsafe impl boundary::SizedStruct for sa_write_report {
    const DEFAULT: Self = sa_write_report {
        struct_size: size_of::<Self>(),
        file_size: 0,
        data_start: 0,
        padding: 0,
        tensors: 0,
        tensors_moved: 0,
    };
}

impl From<WriteReport> for sa_write_report {
    fn from(report: WriteReport) -> sa_write_report {
        sa_write_report {
            file_size: report.file_size,
            data_start: report.data_start,
            padding: report.padding,
            tensors: report.tensors,
            tensors_moved: report.tensors_moved,
            ..<Self as boundary::SizedStruct>::DEFAULT
        }
    }
}

/// Sets every option to its default. Null is ignored.
///
/// # Safety
/// `options` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_write_options_init(options: *mut sa_write_options) {
    // SAFETY: as the caller says.
    unsafe { init(options) }
}

/// Sets `struct_size`, and every number to 0. Null is ignored.
///
/// # Safety
/// `report` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_write_report_init(report: *mut sa_write_report) {
    // SAFETY: as the caller says.
    unsafe { init(report) }
}

/// # Safety
/// `pointer` is null or may be written.
pub(super) unsafe fn init<T: boundary::SizedStruct>(pointer: *mut T) {
    // What it points to is not initialised, and need not be: it is only written.
    // SAFETY: as the caller says.
    if let Ok(out) = unsafe { boundary::Output::new(pointer, "") } {
        out.set(T::DEFAULT);
    }
}

/// Writes a file whose tensors all stand on multiples of their dtype width, so that a loader can map every one.
///
/// The data goes from the tensors' buffers straight to the file. Whatever fails, the file at `path` is the old one or the
/// new one, whole; a file that is mapped may be saved over. A symbolic link at `path` is replaced, not followed. The mode
/// of a replaced file is kept, a new file follows the umask.
///
/// @param path        NUL-terminated, in the system's encoding; where a regular file, a symbolic link or nothing may be.
/// @param tensors     `n_tensors` of them; null if there are none. May share buffers.
/// @param metadata    `n_metadata` entries; null if there are none. Their order is kept.
/// @param options     Null for the defaults.
/// @param report      Null, or a report to fill.
/// @return `SA_ERR_INVALID_ARGUMENT` for what nobody could read back (a name twice, a reserved name, a size that disagrees
///         with its shape), `SA_ERR_TOO_LARGE` for a header of 100000000 bytes or more, `SA_ERR_NO_SPACE`, `SA_ERR_IO`,
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
    // SAFETY: the pointers are the C caller's, null or valid, and arrays as long as their counts.
    unsafe {
        guard(error, || {
            let path = boundary::path(path, "path")?;
            let write = || {
                let tensors = slice(tensors, n_tensors, "tensors")?;
                let tensors: Vec<_> = tensors.iter().map(|tensor| tensor.tensor()).collect::<Result<_>>()?;
                let metadata = super::types::metadata(metadata, n_metadata)?;
                let options = boundary::options(options, "options")?;
                let out = Report::optional(report, "report")?;
                let mut progress = options.progress();
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
            write().map_err(|error: crate::error::Error| error.at(path))
        })
    }
}
