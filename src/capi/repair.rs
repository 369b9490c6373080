//! Mending a file.

use std::ffi::{c_char, c_void};
use std::mem::size_of;
use std::ops::ControlFlow;

use super::boundary::{self, Report, guard};
use super::info::choice;
use super::status::{sa_error, sa_status};
use super::write::{init, sa_progress};
use crate::error::Result;
use crate::layout::{DEFAULT_ALIGNMENT, Layout, LayoutOptions};
use crate::repair::{self, Action, RepairOptions, RepairReport};
use crate::writer::Durability;

/// What came of a repair.
#[repr(i32)]
pub enum sa_repair_action {
    /// Nothing was wrong: the file was not written to.
    SA_REPAIR_UNTOUCHED = 0,
    /// Nothing was wrong: the destination is the source, byte for byte.
    SA_REPAIR_COPIED = 1,
    /// The tensors were laid out anew.
    SA_REPAIR_REWRITTEN = 2,
}

impl From<Action> for sa_repair_action {
    fn from(action: Action) -> sa_repair_action {
        match action {
            Action::Untouched => sa_repair_action::SA_REPAIR_UNTOUCHED,
            Action::Copied => sa_repair_action::SA_REPAIR_COPIED,
            Action::Rewritten => sa_repair_action::SA_REPAIR_REWRITTEN,
        }
    }
}

/// How to repair. Initialise with `sa_repair_options_init`, then change what you want.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_repair_options {
    /// Bytes of this struct, as the caller's header has it.
    pub struct_size: usize,
    /// In bytes: a power of two from 8 to 2097152; 64 by default.
    pub alignment: u64,
    /// An `sa_layout`; `SA_LAYOUT_COMPACT` by default.
    pub layout: i32,
    /// An `sa_durability`; `SA_DURABLE` by default.
    pub durability: i32,
    /// Not 0, the default, to read back every tensor and compare it with the source's before the file is put in place.
    pub compare: i32,
    /// Not 0 to leave out the bytes after the last tensor. Without it, a file that has some is refused where it would
    /// have to be written anew: they are somebody's data.
    pub drop_trailing: i32,
    /// Not 0 to lay the file out anew even where nothing is wrong with it.
    pub force: i32,
    /// Not 0 to check everything, report what would be done, and do nothing.
    pub dry_run: i32,
    /// Null by default.
    pub progress: sa_progress,
    /// Given to `progress`.
    pub progress_context: *mut c_void,
}

// SAFETY: begins with its size; every bit pattern is valid but for `progress`, a pointer that the caller vouches for.
unsafe impl boundary::SizedStruct for sa_repair_options {
    const DEFAULT: Self = sa_repair_options {
        struct_size: size_of::<Self>(),
        alignment: DEFAULT_ALIGNMENT,
        layout: Layout::Compact as i32,
        durability: Durability::Durable as i32,
        compare: 1,
        drop_trailing: 0,
        force: 0,
        dry_run: 0,
        progress: None,
        progress_context: std::ptr::null_mut(),
    };
}

impl sa_repair_options {
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
        unsafe { super::write::progress(self.progress, self.progress_context) }
    }
}

/// What a repair did. Set `struct_size`, or call `sa_repair_report_init`, before the call that fills it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_repair_report {
    /// Bytes of this struct, as the caller's header has it.
    pub struct_size: usize,
    /// An `sa_repair_action`.
    pub action: i32,
    /// 0.
    pub reserved: i32,
    /// Number of tensors.
    pub tensors: u64,
    /// Tensors that stand at another place in the order than before.
    pub tensors_moved: u64,
    /// Tensors of the source that a loader that maps has to copy. None is left.
    pub misaligned_tensors: u64,
    /// Bytes of those.
    pub misaligned_bytes: u64,
    /// Bytes of the source.
    pub source_size: u64,
    /// Bytes in holes before or between tensors of the source.
    pub source_gap_bytes: u64,
    /// Bytes after the last tensor of the source.
    pub source_trailing_bytes: u64,
    /// Bytes of the file as it is now: at the destination, or in place.
    pub file_size: u64,
    /// Where its data section starts, in bytes.
    pub data_start: u64,
    /// Bytes in holes that it has; 0 in the compact layout.
    pub padding: u64,
    /// Bytes that were compared with the source's.
    pub bytes_compared: u64,
}

// SAFETY: begins with its size; plain numbers.
unsafe impl boundary::SizedStruct for sa_repair_report {
    const DEFAULT: Self = sa_repair_report {
        struct_size: size_of::<Self>(),
        action: 0,
        reserved: 0,
        tensors: 0,
        tensors_moved: 0,
        misaligned_tensors: 0,
        misaligned_bytes: 0,
        source_size: 0,
        source_gap_bytes: 0,
        source_trailing_bytes: 0,
        file_size: 0,
        data_start: 0,
        padding: 0,
        bytes_compared: 0,
    };
}

impl From<RepairReport> for sa_repair_report {
    fn from(report: RepairReport) -> sa_repair_report {
        let RepairReport { action, before, after, bytes_compared } = report;
        sa_repair_report {
            action: sa_repair_action::from(action) as i32,
            tensors: after.tensors,
            tensors_moved: after.tensors_moved,
            misaligned_tensors: before.misaligned_tensors,
            misaligned_bytes: before.misaligned_bytes,
            source_size: before.file_size,
            source_gap_bytes: before.gap_bytes,
            source_trailing_bytes: before.trailing_bytes,
            file_size: after.file_size,
            data_start: after.data_start,
            padding: after.padding,
            bytes_compared,
            ..<Self as boundary::SizedStruct>::DEFAULT
        }
    }
}

/// Sets every option to its default. Null is ignored.
///
/// # Safety
/// `options` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_repair_options_init(options: *mut sa_repair_options) {
    // SAFETY: as the caller says.
    unsafe { init(options) }
}

/// Sets `struct_size`, and every number to 0. Null is ignored.
///
/// # Safety
/// `report` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_repair_report_init(report: *mut sa_repair_report) {
    // SAFETY: as the caller says.
    unsafe { init(report) }
}

/// Writes a file anew so that every tensor maps without a copy; the bytes of every tensor stay the same.
///
/// Mended are misaligned tensors, a header padded with NUL bytes, holes (in the compact layout) and, if asked for, bytes
/// after the last tensor. A file without any of these is left alone, or copied as it is where there is a destination.
/// Whatever fails, the file at the path is the old one or the new one, whole. Metadata and its order, mode and, where
/// permitted, owner are kept. Memory does not grow with the data: it stays below 8 MiB and five times the bytes of the
/// JSON header.
///
/// @param source       NUL-terminated, in the system's encoding. A link is followed where there is a destination.
/// @param destination  The path of the repaired file; null to replace the source. A file that is there is replaced,
///                     unless it is read-only. The source itself, by whatever name, is refused: in place has to be asked
///                     for, by null.
/// @param options      Null for the defaults.
/// @param report       Null, or a report to fill.
/// @return `SA_ERR_REFUSED` for what could harm something, with the way out in the message: a symbolic link, a file with
///         other hard links, an entry of a cache that names files by their content, a read-only file or folder, a
///         destination that is the source, trailing bytes that would be lost, too little free space. `SA_ERR_UNSUPPORTED`
///         for a file that has to be laid out anew and has a dtype that the format does not know. `SA_ERR_CHANGED` if somebody wrote to the source meanwhile;
///         nothing was replaced. `SA_ERR_CANCELLED`, `SA_ERR_NO_SPACE`, `SA_ERR_IO`, and what `sa_file_open` returns
///         for a file that is broken.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_repair_file(
    source: *const c_char,
    destination: *const c_char,
    options: *const sa_repair_options,
    report: *mut sa_repair_report,
    error: *mut sa_error,
) -> sa_status {
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe {
        guard(error, || {
            let source = boundary::path(source, "source")?;
            let destination =
                if destination.is_null() { None } else { Some(boundary::path(destination, "destination")?) };
            let options = boundary::options::<sa_repair_options>(options, "options")?;
            let out = Report::optional(report, "report")?;
            let mut progress = options.progress();
            let mut options = RepairOptions {
                layout: options.layout()?,
                durability: options.durability()?,
                compare: options.compare != 0,
                drop_trailing: options.drop_trailing != 0,
                force: options.force != 0,
                dry_run: options.dry_run != 0,
                progress: progress.as_mut().map(|progress| progress as _),
            };
            let report = repair::repair(source, destination, &mut options)?;
            if let Some(out) = out {
                out.set(&report.into());
            }
            Ok(())
        })
    }
}
