//! Aligned caches.

use std::ffi::{CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;

use super::boundary::{Call, SizedStruct, guard, sized_struct};
use super::status::{sa_error, sa_status};
use super::write::{durability, layout, progress, sa_progress};
use crate::aligned_cache::{self, CacheOptions, CacheReport};

/// An aligned cache file that is up to date.
///
/// Freed by `sa_aligned_cache_free`, which leaves the file where it is. Immutable, and safe to use from several threads
/// at once.
pub struct sa_aligned_cache(CacheReport, CString);

/// Options of `sa_aligned_cache_write`. Initialise with `SA_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_aligned_cache_options {
    /// Size of this struct in bytes, set by `SA_INIT`.
    pub struct_size: usize,
    /// As in `sa_write_options`.
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

sized_struct!(sa_aligned_cache_options, progress_context);

/// Describes an aligned cache file. Initialise with `SA_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_aligned_cache_report {
    /// Size of this struct in bytes, set by `SA_INIT`.
    pub struct_size: usize,
    /// Size of the cache file in bytes.
    pub file_size: u64,
    /// Number of tensors in it: those of the source that are misaligned.
    pub tensors: u64,
    /// Their total size in bytes.
    pub tensor_bytes: u64,
    /// 1 if the file was written by this call, 0 if it existed already and was up to date.
    pub is_new: i32,
    /// 0.
    pub reserved: i32,
    /// For the tests of the ABI.
    #[cfg(safealign_grown)]
    pub grown: u64,
}

sized_struct!(sa_aligned_cache_report, reserved);

/// Writes the misaligned tensors of a model, aligned, into a file in a cache directory. The source is not changed.
///
/// Pass the path of that file as `sa_open_options.aligned_cache` to open the model with both files mapped, each tensor
/// taken from where it is aligned. Unlike that of a copy, the memory then belongs to a file and can be evicted. The
/// cache file holds the misaligned tensors only, and is itself a valid safetensors file.
///
/// The metadata of the cache file records the size, modification time, device and inode of the source and a hash of its
/// header, but no hash of its data. The name of the file depends on the path of the source only: a stale file is
/// replaced, one that is up to date is kept, and nothing else in the directory is touched. Concurrent calls for the
/// same source are serialised. Files for sources that no longer exist are left for the caller to remove.
///
/// @param source     A file, or a bundle as for `sa_bundle_open`; NUL-terminated, in the system's encoding.
/// @param directory  The cache directory, not that of the source. It is created if it is missing.
/// @param options    Null for the defaults.
/// @param cache      Receives the cache, to be freed with `sa_aligned_cache_free`.
/// @param error      Null, or receives the error.
/// @return `SA_ERR_REFUSED` if the directory is that of the source, or has too little free space. `SA_ERR_CHANGED` if
///         the source was modified during the call. `SA_ERR_CANCELLED`, `SA_ERR_NO_SPACE`, `SA_ERR_IO`, and the results
///         of opening the source. Whatever fails, the cache file is the old one or the new one, complete.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_aligned_cache_write(
    source: *const c_char,
    directory: *const c_char,
    options: *const sa_aligned_cache_options,
    cache: *mut *mut sa_aligned_cache,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let source = call.path(source, "source")?;
        let directory = call.path(directory, "directory")?;
        let options = call.options(options)?;
        let out = call.output(cache, "cache")?;
        let mut progress = progress(call, options.progress, options.progress_context);
        let options = CacheOptions {
            layout: layout(options.layout, options.alignment)?,
            durability: durability(options.durability)?,
            progress: progress.as_mut().map(|progress| progress as _),
        };
        let report = aligned_cache::write(source, directory, options)?;
        let path = CString::new(report.path.as_os_str().as_bytes()).unwrap_or_default();
        out.set(Box::into_raw(Box::new(sa_aligned_cache(report, path))));
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// The path of the cache file, NUL-terminated, in the system's encoding; null for null. Valid until the cache is freed.
///
/// # Safety
/// `cache` is null or a cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_aligned_cache_path(cache: *const sa_aligned_cache) -> *const c_char {
    // SAFETY: as the caller says.
    unsafe { cache.as_ref() }.map_or(std::ptr::null(), |cache| cache.1.as_ptr())
}

/// Describes the cache file.
///
/// @param cache   The cache.
/// @param report  Receives the report.
/// @param error   Null, or receives the error.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_aligned_cache_get(
    cache: *const sa_aligned_cache,
    report: *mut sa_aligned_cache_report,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let found = &call.required(cache, "cache")?.0;
        let out = call.report(report, "report")?;
        out.set(&sa_aligned_cache_report {
            file_size: found.file_size,
            tensors: found.tensors,
            tensor_bytes: found.tensor_bytes,
            is_new: i32::from(found.is_new),
            ..sa_aligned_cache_report::zeroed()
        });
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Frees a cache. The file stays. Null is ignored.
///
/// # Safety
/// `cache` is null or a cache that is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_aligned_cache_free(cache: *mut sa_aligned_cache) {
    if !cache.is_null() {
        // SAFETY: it came from `Box::into_raw` in `sa_aligned_cache_write`.
        drop(unsafe { Box::from_raw(cache) });
    }
}
