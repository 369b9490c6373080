//! Overlays: directories that load in place of a bundle.

use std::ffi::{CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;

use super::boundary::{Call, SizedStruct, guard, sized_struct};
use super::status::{sa_error, sa_status};
use super::write::{durability, layout, progress, sa_progress};
use crate::overlay::{self, OverlayOptions, OverlayReport};

/// Called for each file that an overlay links or leaves out although it is misaligned, on the thread that made the
/// call, before the call returns. It must not throw or `longjmp`.
///
/// @param context  The `warning_context` of the options.
/// @param path     The file, NUL-terminated, in the system's encoding; valid during the call.
/// @param message  The reason, NUL-terminated UTF-8; valid during the call.
pub type sa_warning = Option<unsafe extern "C" fn(context: *mut c_void, path: *const c_char, message: *const c_char)>;

/// Overlay options. Initialise with `SA_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_overlay_options {
    /// Size of this struct in bytes, set by `SA_INIT`.
    pub struct_size: usize,
    /// As in `sa_write_options`.
    pub alignment: u64,
    /// An `sa_layout`. The default is `SA_LAYOUT_COMPACT`.
    pub layout: i32,
    /// An `sa_durability`. The default is `SA_DURABLE`.
    pub durability: i32,
    /// As in `sa_repair_options`.
    pub skip_verify: i32,
    /// If non-zero, drop the bytes after the last tensor. By default a misaligned file that has such bytes is linked as
    /// it is, with a warning.
    pub drop_trailing: i32,
    /// Null, or called with the progress of all files that are written.
    pub progress: sa_progress,
    /// Passed to `progress`.
    pub progress_context: *mut c_void,
    /// Null, or called with each warning.
    pub warning: sa_warning,
    /// Passed to `warning`.
    pub warning_context: *mut c_void,
    /// For the tests of the ABI.
    #[cfg(safealign_grown)]
    pub grown: u64,
}

sized_struct!(sa_overlay_options, warning_context);

/// Describes an overlay. Initialise with `SA_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_overlay_report {
    /// Size of this struct in bytes, set by `SA_INIT`.
    pub struct_size: usize,
    /// Repaired files that were written.
    pub written: u64,
    /// Their total size in bytes.
    pub bytes_written: u64,
    /// Repaired files that existed already and are up to date.
    pub kept: u64,
    /// Their total size in bytes.
    pub bytes_kept: u64,
    /// Files and directories that are symbolic links.
    pub linked: u64,
    /// Entries that were removed because the bundle no longer has them.
    pub removed: u64,
    /// Number of warnings; see `sa_overlay_options.warning`.
    pub warnings: u64,
    /// For the tests of the ABI.
    #[cfg(safealign_grown)]
    pub grown: u64,
}

sized_struct!(sa_overlay_report, warnings);

impl From<&OverlayReport> for sa_overlay_report {
    fn from(report: &OverlayReport) -> sa_overlay_report {
        sa_overlay_report {
            written: report.written,
            bytes_written: report.bytes_written,
            kept: report.kept,
            bytes_kept: report.bytes_kept,
            linked: report.linked,
            removed: report.removed,
            warnings: report.warnings.len() as u64,
            ..sa_overlay_report::zeroed()
        }
    }
}

/// Makes a directory that loads in place of a bundle: every misaligned file is written repaired, and everything else
/// (aligned files, configuration, tokenizer, index, subdirectories without misaligned files) is a symbolic link. The
/// bundle is not changed. For loaders that do not use this library; see `sa_aligned_cache_write` otherwise.
///
/// A second call only writes what is missing or stale. It replaces and removes nothing but its own links and the files
/// that it wrote and that were not modified since. Concurrent calls are serialised.
///
/// @param bundle   The directory, NUL-terminated, in the system's encoding.
/// @param output   The directory to make: missing, empty, or an overlay of this bundle, and not inside the bundle.
/// @param options  Null for the defaults.
/// @param report   Null, or receives the report.
/// @param error    Null, or receives the error.
/// @return `SA_ERR_REFUSED` if the output has other content, is inside the bundle or contains it, or if there is too
///         little free space; then nothing was changed. `SA_ERR_CANCELLED`, `SA_ERR_CHANGED`, `SA_ERR_NO_SPACE`,
///         `SA_ERR_IO`.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_overlay_bundle(
    bundle: *const c_char,
    output: *const c_char,
    options: *const sa_overlay_options,
    report: *mut sa_overlay_report,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let bundle = call.path(bundle, "bundle")?;
        let output = call.path(output, "output")?;
        let given = call.options(options)?;
        let out = call.optional_report(report, "report")?;
        let mut progress = progress(call, given.progress, given.progress_context);
        let mut options = OverlayOptions {
            layout: layout(given.layout, given.alignment)?,
            durability: durability(given.durability)?,
            verify: given.skip_verify == 0,
            drop_trailing: given.drop_trailing != 0,
            progress: progress.as_mut().map(|progress| progress as _),
        };
        let report = overlay::overlay(bundle, output, &mut options)?;
        if let Some(warning) = given.warning {
            for (path, message) in &report.warnings {
                // Paths come from the system and have no NUL; a message might.
                let path = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
                let message = CString::new(message.replace('\0', "\u{fffd}")).unwrap_or_default();
                // SAFETY: it may be called with its context; both strings are NUL-terminated.
                unsafe { warning(given.warning_context, path.as_ptr(), message.as_ptr()) };
            }
        }
        if let Some(out) = out {
            out.set(&(&report).into());
        }
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}
