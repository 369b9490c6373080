//! Aligned twins of bundles that must not change.

use std::ffi::c_char;
use std::mem::size_of;

use super::boundary::{self, Report, guard};
use super::repair::sa_repair_options;
use super::status::{sa_error, sa_status};
use super::write::init;
use crate::overlay::{self, OverlayOptions, OverlayReport};

/// What an overlay has. Set `struct_size`, or call `sa_overlay_report_init`, before the call that fills it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_overlay_report {
    /// Bytes of this struct, as the caller's header has it.
    pub struct_size: usize,
    /// Files that were written repaired.
    pub written: u64,
    /// Bytes of those.
    pub bytes_written: u64,
    /// Repaired files that were there already and up to date.
    pub kept: u64,
    /// Bytes of those.
    pub bytes_kept: u64,
    /// Files and folders that are links.
    pub linked: u64,
    /// What was there for files that the bundle no longer has.
    pub removed: u64,
    /// Files that could not be mended and were linked as they are, left out, or left in the output; scan the bundle to
    /// learn which.
    pub warnings: u64,
}

// SAFETY: begins with its size; plain numbers.
unsafe impl boundary::SizedStruct for sa_overlay_report {
    const DEFAULT: Self = sa_overlay_report {
        struct_size: size_of::<Self>(),
        written: 0,
        bytes_written: 0,
        kept: 0,
        bytes_kept: 0,
        linked: 0,
        removed: 0,
        warnings: 0,
    };
}

impl From<OverlayReport> for sa_overlay_report {
    fn from(report: OverlayReport) -> sa_overlay_report {
        sa_overlay_report {
            written: report.written,
            bytes_written: report.bytes_written,
            kept: report.kept,
            bytes_kept: report.bytes_kept,
            linked: report.linked,
            removed: report.removed,
            warnings: report.warnings.len() as u64,
            ..<Self as boundary::SizedStruct>::DEFAULT
        }
    }
}

/// Sets `struct_size`, and every number to 0. Null is ignored.
///
/// # Safety
/// `report` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_overlay_report_init(report: *mut sa_overlay_report) {
    // SAFETY: as the caller says.
    unsafe { init(report) }
}

/// Makes a folder that loads in place of a bundle, which stays as it is: every misaligned file is written repaired, and
/// everything else (aligned files, configuration, tokenizer, index, folders without misaligned files) is a symbolic link.
///
/// Run again, it does only what is missing or stale. It replaces and removes nothing but its own links, and files that are
/// still those that it wrote. Two at once: the second waits for the first. For one file that is to
/// be opened there is `SA_UNALIGNED_OVERLAY`.
///
/// @param bundle   The folder, NUL-terminated, in the system's encoding.
/// @param output   The folder to make, elsewhere: empty, missing, or an overlay of this bundle.
/// @param options  Null for the defaults; `force` and `dry_run` have to be 0.
/// @param report   Null, or a report to fill.
/// @return `SA_ERR_REFUSED` for an output with other content, or where something else has taken the place of a link or a
///         file of the overlay, or within the bundle or around it, and for too little free space: nothing was touched; `SA_ERR_CANCELLED`, `SA_ERR_CHANGED`, `SA_ERR_NO_SPACE`, `SA_ERR_IO`.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_overlay_bundle(
    bundle: *const c_char,
    output: *const c_char,
    options: *const sa_repair_options,
    report: *mut sa_overlay_report,
    error: *mut sa_error,
) -> sa_status {
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe {
        guard(error, || {
            let bundle = boundary::path(bundle, "bundle")?;
            let output = boundary::path(output, "output")?;
            let options = boundary::options::<sa_repair_options>(options, "options")?;
            let out = Report::optional(report, "report")?;
            if options.force != 0 || options.dry_run != 0 {
                return Err(boundary::invalid("`options.force` and `options.dry_run` have to be 0"));
            }
            let mut progress = options.progress();
            let mut options = OverlayOptions {
                layout: options.layout()?,
                durability: options.durability()?,
                skip_compare: options.compare == 0,
                drop_trailing: options.drop_trailing != 0,
                progress: progress.as_mut().map(|progress| progress as _),
            };
            let report = overlay::overlay(bundle, output, &mut options)?;
            if let Some(out) = out {
                out.set(&report.into());
            }
            Ok(())
        })
    }
}
