//! Repairing a file.

use std::ffi::{c_char, c_void};
use std::path::Path;

use super::boundary::{Call, SizedStruct, guard, sized_struct};
use super::status::{sa_error, sa_status};
use super::write::{durability, layout, progress, sa_progress};
use crate::error::Result;
use crate::repair::{self, Action, RepairOptions, RepairReport};

/// A repair outcome.
#[repr(i32)]
pub enum sa_repair_action {
    /// The file needed no repair and was not written.
    SA_REPAIR_UNTOUCHED = 0,
    /// The file needed no repair: the destination is a copy of the source, byte for byte.
    SA_REPAIR_COPIED = 1,
    /// The file was written with a new layout.
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

/// Repair options. Initialise with `SA_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_repair_options {
    /// Size of this struct in bytes, set by `SA_INIT`.
    pub struct_size: usize,
    /// As in `sa_write_options`.
    pub alignment: u64,
    /// An `sa_layout`. The default is `SA_LAYOUT_COMPACT`.
    pub layout: i32,
    /// An `sa_durability`. The default is `SA_DURABLE`.
    pub durability: i32,
    /// If non-zero, do not verify the new file. By default every tensor is read back and compared with the source
    /// before the new file is put in place.
    pub skip_verify: i32,
    /// If non-zero, drop the bytes after the last tensor. By default a file that has such bytes and needs repair is
    /// refused, since they may be data.
    pub drop_trailing: i32,
    /// If non-zero, write a new layout even if the file needs no repair.
    pub force: i32,
    /// If non-zero, check everything and report what would be done, but write nothing.
    pub dry_run: i32,
    /// Null, or called with the progress.
    pub progress: sa_progress,
    /// Passed to `progress`.
    pub progress_context: *mut c_void,
    /// For the tests of the ABI.
    #[cfg(safealign_grown)]
    pub grown: u64,
}

sized_struct!(sa_repair_options, progress_context);

/// Describes a repair. Initialise with `SA_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_repair_report {
    /// Size of this struct in bytes, set by `SA_INIT`.
    pub struct_size: usize,
    /// An `sa_repair_action`.
    pub action: i32,
    /// 0.
    pub reserved: i32,
    /// Number of tensors.
    pub tensors: u64,
    /// Tensors whose position in the file changed.
    pub tensors_moved: u64,
    /// Tensors of the source that a loader that maps has to copy. The new file has none.
    pub misaligned_tensors: u64,
    /// Their total size in bytes.
    pub misaligned_bytes: u64,
    /// Size of the source in bytes.
    pub source_size: u64,
    /// Bytes in gaps before or between tensors of the source.
    pub source_gap_bytes: u64,
    /// Bytes after the last tensor of the source.
    pub source_trailing_bytes: u64,
    /// Size in bytes of the resulting file: at the destination, or in place.
    pub file_size: u64,
    /// Start of its data section, in bytes from the start of the file.
    pub data_start: u64,
    /// Bytes in its gaps; 0 in the compact layout.
    pub gap_bytes: u64,
    /// Bytes that were compared with the source.
    pub bytes_verified: u64,
    /// For the tests of the ABI.
    #[cfg(safealign_grown)]
    pub grown: u64,
}

sized_struct!(sa_repair_report, bytes_verified);

impl From<RepairReport> for sa_repair_report {
    fn from(report: RepairReport) -> sa_repair_report {
        let RepairReport { action, before, after, bytes_verified } = report;
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
            gap_bytes: after.gap_bytes,
            bytes_verified,
            ..sa_repair_report::zeroed()
        }
    }
}

/// Writes a repaired copy of a file, in which every tensor maps without a copy. The bytes of every tensor stay the
/// same.
///
/// Repaired are misaligned tensors, a header padded with NUL bytes, gaps (in the compact layout) and, with
/// `drop_trailing`, bytes after the last tensor. A file without any of these is copied byte for byte. Whatever fails,
/// the file at the destination is the old one or the new one, complete. Metadata and its order, mode and, where
/// permitted, owner are kept. Memory use does not grow with the data: it stays below 8 MiB plus five times the size of
/// the header.
///
/// @param source       NUL-terminated, in the system's encoding. A symbolic link is followed.
/// @param destination  Path of the repaired file, NUL-terminated, in the system's encoding. An existing file is
///                     replaced unless it is read-only. The source itself, by whatever name, is refused; see
///                     `sa_repair_in_place`.
/// @param options      Null for the defaults.
/// @param report       Null, or receives the report.
/// @param error        Null, or receives the error.
/// @return `SA_ERR_REFUSED`, with the alternative in the message, if the destination is the source, is read-only, is in
///         a read-only directory or in a content-addressed cache, if trailing bytes would be lost, or if there is too
///         little free space. `SA_ERR_UNSUPPORTED` for a file that needs a new layout and has a dtype that is not part
///         of the format. `SA_ERR_CHANGED` if the source was modified during the call; then nothing was replaced.
///         `SA_ERR_CANCELLED`, `SA_ERR_NO_SPACE`, `SA_ERR_IO`, and the results of `sa_file_open` for a malformed file.
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
    let body = |call: &Call| {
        let source = call.path(source, "source")?;
        let destination = call.path(destination, "destination")?;
        repair(call, source, Some(destination), options, report)
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Replaces a file by a repaired one, as `sa_repair_file`. A file that needs no repair is not written.
///
/// @param path     NUL-terminated, in the system's encoding.
/// @param options  Null for the defaults.
/// @param report   Null, or receives the report.
/// @param error    Null, or receives the error.
/// @return As `sa_repair_file`. `SA_ERR_REFUSED` also for a symbolic link and for a file with other hard links.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_repair_in_place(
    path: *const c_char,
    options: *const sa_repair_options,
    report: *mut sa_repair_report,
    error: *mut sa_error,
) -> sa_status {
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, |call| repair(call, call.path(path, "path")?, None, options, report)) }
}

fn repair(
    call: &Call,
    source: &Path,
    destination: Option<&Path>,
    options: *const sa_repair_options,
    report: *mut sa_repair_report,
) -> Result<()> {
    let options = call.options(options)?;
    let out = call.optional_report(report, "report")?;
    let mut progress = progress(call, options.progress, options.progress_context);
    let mut options = RepairOptions {
        layout: layout(options.layout, options.alignment)?,
        durability: durability(options.durability)?,
        verify: options.skip_verify == 0,
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
}
