//! Bundles: models that consist of several files.

use std::ffi::c_char;
use std::sync::{Arc, Mutex, PoisonError};

use super::boundary::{self, Call, SizedStruct, guard, sized_struct};
use super::file::{sa_file, sa_open_options, sa_stats, sa_tensor_info};
use super::status::{sa_error, sa_status};
use super::types::{sa_metadata, sa_tensor};
use super::view::sa_view;
use super::write::{durability, layout, progress, sa_progress};
use crate::bundle::{self, Bundle, ShardedReport};
use crate::error::{Error, Result, Status};
use crate::writer::WriteOptions;

/// An open bundle: the tensors of several files as if they were in one.
///
/// A bundle is a model file, the shards of one model, or an index (`model.safetensors.index.json`) with its shards, as
/// the Hugging Face libraries name them. Tensors are indexed in the order of the shards, which are sorted by file name,
/// and within a shard in the order of their data.
///
/// Reference-counted: `sa_bundle_free` releases the reference that a call returned. Immutable, and safe to use from
/// several threads at once. Views keep the mapping of their shard alive on their own.
pub struct sa_bundle {
    bundle: Bundle,
    shards: Vec<sa_file>,
}

/// Opens and maps a bundle, and checks that its files belong together. Never writes anything.
///
/// With an index, the index decides: model files that it does not list are not opened, and tensors that it does not
/// list are not part of the bundle. An entry is a path below the directory of the index. Symbolic links are followed
/// wherever they lead, as in a download cache.
///
/// For a directory, its only index is opened or, if it has several, the one without a variant such as `fp16`. Without
/// an index, its one set of model files is opened. Files that start with `._` or end with
/// `.incomplete` are ignored.
///
/// @param path     A directory, an index or a model file; NUL-terminated, in the system's encoding.
/// @param options  Null for the defaults. They apply to each shard.
/// @param bundle   Receives the bundle, to be freed with `sa_bundle_free`.
/// @param error    Null, or receives the error, which names the file at fault.
/// @return `SA_ERR_INVALID_ARGUMENT` for a directory with several bundles; the message lists them. `SA_ERR_NOT_FOUND`
///         for a directory without model files. `SA_ERR_IO` with `os_error` ENOENT for a missing shard. `SA_ERR_FORMAT`
///         for a tensor that is in two shards, a malformed index, an index entry whose shard lacks the tensor, and an
///         entry outside the directory of the index, in which case nothing is opened. `SA_ERR_TOO_LARGE` for an index
///         above 100000000 bytes. `SA_ERR_CHANGED` if a file was replaced during the call. Otherwise as `sa_file_open`.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_bundle_open(
    path: *const c_char,
    options: *const sa_open_options,
    bundle: *mut *mut sa_bundle,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let path = call.path(path, "path")?;
        let options = call.options(options)?.open_options(call)?;
        let out = call.output(bundle, "bundle")?;
        let bundle = Bundle::open(path, &options)?;
        let shards = bundle.shards().iter().cloned().map(sa_file::new).collect();
        out.set(Arc::into_raw(Arc::new(sa_bundle { bundle, shards })).cast_mut());
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Releases a reference to a bundle. With the last one it is closed; its views stay valid. Null is ignored.
///
/// # Safety
/// `bundle` is null or a bundle, and the reference is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_bundle_free(bundle: *mut sa_bundle) {
    if !bundle.is_null() {
        // SAFETY: it came from `Arc::into_raw`, and the caller keeps the count.
        drop(unsafe { Arc::from_raw(bundle) });
    }
}

/// Number of tensors; 0 for null.
///
/// # Safety
/// `bundle` is null or a bundle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_bundle_len(bundle: *const sa_bundle) -> usize {
    // SAFETY: as the caller says.
    unsafe { bundle.as_ref() }.map_or(0, |bundle| bundle.bundle.len())
}

/// Describes a tensor. Its `offset` is in its shard.
///
/// @param bundle  The bundle.
/// @param index   From 0 to `sa_bundle_len` - 1.
/// @param info    Receives the description. Its pointers are valid until the bundle and the views of the shard are
///                gone.
/// @param shard   Null, or receives the shard, for `sa_bundle_shard`.
/// @param error   Null, or receives the error.
/// @return `SA_ERR_NOT_FOUND` if the index is out of range.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_bundle_at(
    bundle: *const sa_bundle,
    index: usize,
    info: *mut sa_tensor_info,
    shard: *mut usize,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let bundle = &call.required(bundle, "bundle")?.bundle;
        let out = call.report(info, "info")?;
        let (at, in_shard) = bundle.location(index)?;
        let file = &bundle.shards()[at];
        let tensor = file.get(in_shard)?;
        out.set(&sa_tensor_info::of(file.header(), &tensor, file.is_misaligned(in_shard)));
        if let Ok(shard) = call.output(shard, "shard") {
            shard.set(at);
        }
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// The index of a tensor, by its name. Takes constant time and copies no string.
///
/// @param bundle    The bundle.
/// @param name      The name.
/// @param name_len  Its length in bytes, or `SA_NUL_TERMINATED`.
/// @param index     Receives the index, for `sa_bundle_at` and `sa_bundle_map_at`.
/// @param error     Null, or receives the error.
/// @return `SA_ERR_NOT_FOUND` if the bundle has no such tensor.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_bundle_find(
    bundle: *const sa_bundle,
    name: *const c_char,
    name_len: usize,
    index: *mut usize,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let bundle = &call.required(bundle, "bundle")?.bundle;
        let name = call.string(name, name_len, "name")?;
        let out = call.output(index, "index")?;
        out.set(bundle.find(name)?);
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Maps a tensor by its name, as `sa_map_tensor`.
///
/// @param bundle    The bundle.
/// @param name      The name.
/// @param name_len  Its length in bytes, or `SA_NUL_TERMINATED`.
/// @param view      Receives the view. Release its `owner` with `sa_view_release`.
/// @param error     Null, or receives the error.
/// @return As `sa_map_tensor`.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_bundle_map(
    bundle: *const sa_bundle,
    name: *const c_char,
    name_len: usize,
    view: *mut sa_view,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let bundle = &call.required(bundle, "bundle")?.bundle;
        let name = call.string(name, name_len, "name")?;
        let out = call.report(view, "view")?;
        out.set(&bundle.map(name)?.into());
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Maps a tensor by its index, as `sa_map_tensor`.
///
/// @param bundle  The bundle.
/// @param index   From 0 to `sa_bundle_len` - 1.
/// @param view    Receives the view. Release its `owner` with `sa_view_release`.
/// @param error   Null, or receives the error.
/// @return As `sa_map_tensor`; `SA_ERR_NOT_FOUND` if the index is out of range.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_bundle_map_at(
    bundle: *const sa_bundle,
    index: usize,
    view: *mut sa_view,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let bundle = &call.required(bundle, "bundle")?.bundle;
        let out = call.report(view, "view")?;
        out.set(&bundle.map_at(index)?.into());
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Number of metadata entries; 0 for null.
///
/// # Safety
/// `bundle` is null or a bundle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_bundle_metadata_len(bundle: *const sa_bundle) -> usize {
    // SAFETY: as the caller says.
    unsafe { bundle.as_ref() }.map_or(0, |bundle| bundle.bundle.metadata_len())
}

/// A metadata entry. With an index these are the entries of its `metadata` object, such as `total_size`; values other
/// than strings are JSON. Without an index they are those of the first shard. See `sa_file_metadata_at` for each shard.
///
/// @param bundle  The bundle.
/// @param index   From 0 to `sa_bundle_metadata_len` - 1.
/// @param entry   Receives the entry. Its pointers are valid until the bundle is freed.
/// @param error   Null, or receives the error.
/// @return `SA_ERR_NOT_FOUND` if the index is out of range.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_bundle_metadata_at(
    bundle: *const sa_bundle,
    index: usize,
    entry: *mut sa_metadata,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let bundle = &call.required(bundle, "bundle")?.bundle;
        let out = call.output(entry, "entry")?;
        let Some((key, value)) = bundle.metadata_at(index) else {
            let len = bundle.metadata_len();
            let message = format!("metadata index {index} is out of range: there are {len} entries");
            return Err(Error::new(Status::NotFound, message).at(bundle.path()));
        };
        out.set(sa_metadata::read(key, value));
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// The sums of the counts of all shards. `is_mapped` is 1 if all of them are mapped; `header_padding` is the kind that
/// the fewest readers accept.
///
/// @param bundle  The bundle.
/// @param stats   Receives the counts.
/// @param error   Null, or receives the error.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_bundle_stats(
    bundle: *const sa_bundle,
    stats: *mut sa_stats,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let bundle = &call.required(bundle, "bundle")?.bundle;
        let out = call.report(stats, "stats")?;
        out.set(&bundle.stats().into());
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Number of shards; 0 for null.
///
/// # Safety
/// `bundle` is null or a bundle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_bundle_shard_len(bundle: *const sa_bundle) -> usize {
    // SAFETY: as the caller says.
    unsafe { bundle.as_ref() }.map_or(0, |bundle| bundle.shards.len())
}

/// A shard, as a file. It may have tensors that are not part of the bundle.
///
/// @param bundle  The bundle.
/// @param shard   From 0 to `sa_bundle_shard_len` - 1, in the order of the file names.
/// @return The file, valid until the bundle is freed; it belongs to the bundle. Null if the shard is out of range, and
///         for null.
///
/// # Safety
/// `bundle` is null or a bundle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_bundle_shard(bundle: *const sa_bundle, shard: usize) -> *const sa_file {
    // SAFETY: as the caller says.
    let shard = unsafe { bundle.as_ref() }.and_then(|bundle| bundle.shards.get(shard));
    shard.map_or(std::ptr::null(), std::ptr::from_ref)
}

/// Whether every file of a bundle, and its index, is still the one that its path names; see `sa_file_is_current`.
///
/// @param bundle      The bundle.
/// @param is_current  Receives 1 or 0.
/// @param error       Null, or receives the error.
/// @return `SA_ERR_IO`.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_bundle_is_current(
    bundle: *const sa_bundle,
    is_current: *mut i32,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let bundle = &call.required(bundle, "bundle")?.bundle;
        let out = call.output(is_current, "is_current")?;
        out.set(i32::from(bundle.is_current()?));
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// A place that holds a bundle, for programs that reload a model while other threads use it: one thread opens the new
/// bundle and sets it; every other thread gets a reference before it uses the bundle, and releases it afterwards.
///
/// Freed by `sa_bundle_slot_free`. `sa_bundle_slot_get` and `sa_bundle_slot_set` are safe to call from several threads
/// at once.
pub struct sa_bundle_slot(Mutex<Arc<sa_bundle>>);

/// Makes a slot that holds a bundle.
///
/// @param bundle  The bundle. The slot keeps a reference of its own; the caller still has to free theirs.
/// @param slot    Receives the slot, to be freed with `sa_bundle_slot_free`.
/// @param error   Null, or receives the error.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_bundle_slot_new(
    bundle: *const sa_bundle,
    slot: *mut *mut sa_bundle_slot,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let bundle = shared(call, bundle)?;
        let out = call.output(slot, "slot")?;
        out.set(Box::into_raw(Box::new(sa_bundle_slot(Mutex::new(bundle)))));
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// The bundle that a slot holds. It stays valid after the slot gets another one.
///
/// @param slot    The slot.
/// @param bundle  Receives a reference, to be released with `sa_bundle_free`.
/// @param error   Null, or receives the error.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_bundle_slot_get(
    slot: *const sa_bundle_slot,
    bundle: *mut *mut sa_bundle,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let slot = call.required(slot, "slot")?;
        let out = call.output(bundle, "bundle")?;
        let found = slot.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        out.set(Arc::into_raw(found).cast_mut());
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Replaces the bundle that a slot holds, in one step: every later `sa_bundle_slot_get` returns the new one.
///
/// @param slot    The slot.
/// @param bundle  The new bundle. The slot keeps a reference of its own; the caller still has to free theirs.
/// @param error   Null, or receives the error.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_bundle_slot_set(
    slot: *const sa_bundle_slot,
    bundle: *const sa_bundle,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let slot = call.required(slot, "slot")?;
        let bundle = shared(call, bundle)?;
        // The old one is released outside the lock: unmapping may take time.
        let old = std::mem::replace(&mut *slot.0.lock().unwrap_or_else(PoisonError::into_inner), bundle);
        drop(old);
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Frees a slot and its reference to the bundle. Null is ignored.
///
/// # Safety
/// `slot` is null or a slot that is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_bundle_slot_free(slot: *mut sa_bundle_slot) {
    if !slot.is_null() {
        // SAFETY: it came from `Box::into_raw` in `sa_bundle_slot_new`.
        drop(unsafe { Box::from_raw(slot) });
    }
}

/// One more reference to a bundle of the caller's.
fn shared(call: &Call, bundle: *const sa_bundle) -> Result<Arc<sa_bundle>> {
    call.required(bundle, "bundle")?;
    // SAFETY: it came from `Arc::into_raw` and is still held by the caller.
    unsafe { Arc::increment_strong_count(bundle) };
    // SAFETY: takes over the count that was just added.
    Ok(unsafe { Arc::from_raw(bundle) })
}

/// Options of `sa_write_sharded`. Initialise with `SA_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_sharded_options {
    /// Size of this struct in bytes, set by `SA_INIT`.
    pub struct_size: usize,
    /// As in `sa_write_options`.
    pub alignment: u64,
    /// An `sa_layout`, within each shard. The default is `SA_LAYOUT_COMPACT`.
    pub layout: i32,
    /// An `sa_durability`. The default is `SA_DURABLE`.
    pub durability: i32,
    /// If non-zero, replace the files of the same prefix. By default they are refused.
    pub replace: i32,
    /// 0.
    pub reserved: i32,
    /// Null, or called with the progress of all shards.
    pub progress: sa_progress,
    /// Passed to `progress`.
    pub progress_context: *mut std::ffi::c_void,
    /// For the tests of the ABI.
    #[cfg(safealign_grown)]
    pub grown: u64,
}

sized_struct!(sa_sharded_options, progress_context);

/// Describes a bundle that was written. Initialise with `SA_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_sharded_report {
    /// Size of this struct in bytes, set by `SA_INIT`.
    pub struct_size: usize,
    /// Number of model files. With one there is no index.
    pub shards: u64,
    /// Number of tensors.
    pub tensors: u64,
    /// Their total size in bytes: `total_size` of the index.
    pub tensor_bytes: u64,
    /// Total size of the model files in bytes, without the index.
    pub file_bytes: u64,
    /// Zero bytes in gaps between tensors; 0 in the compact layout.
    pub gap_bytes: u64,
    /// Tensors whose position in their shard is not the one that they were given in.
    pub tensors_moved: u64,
    /// Files of the same prefix that were removed and not replaced by one of the same name.
    pub removed: u64,
    /// For the tests of the ABI.
    #[cfg(safealign_grown)]
    pub grown: u64,
}

sized_struct!(sa_sharded_report, removed);

impl From<&ShardedReport> for sa_sharded_report {
    fn from(report: &ShardedReport) -> sa_sharded_report {
        sa_sharded_report {
            shards: report.shards.len() as u64,
            tensors: report.tensors,
            tensor_bytes: report.tensor_bytes,
            file_bytes: report.file_bytes,
            gap_bytes: report.gap_bytes,
            tensors_moved: report.tensors_moved,
            removed: report.removed,
            ..sa_sharded_report::zeroed()
        }
    }
}

/// Writes a bundle: shards named `PREFIX-00001-of-00002.safetensors` and the index `PREFIX.safetensors.index.json`, as
/// the Hugging Face libraries name them. If one shard is enough, it is named `PREFIX.safetensors` and there is no
/// index.
///
/// The tensors are split in their order. A new shard begins where the next tensor would bring the tensor data of the
/// shard above `max_shard_bytes`; a larger tensor gets a shard of its own. The same input gives the same bytes.
///
/// Space for all files is reserved first, and every file is complete before any name in the directory changes. Files of
/// the same prefix are refused unless `replace` is set. Then the shards get their names, the index last, and stale
/// files are removed. If no new shard has the name of an old one, the old bundle stays complete until the index is
/// replaced, in one step. If names collide (as many shards as before), the old files are first set aside under hidden
/// names, `.NAME.safealign-old`: a reader finds a missing file in between, never a mixture. Files that are open or
/// mapped keep their content. Concurrent calls for the same directory are serialised.
///
/// If the process is killed while the old files have their hidden names, they are complete, the bundle does not open,
/// and the error of `sa_bundle_open` names one of them. Renaming each to its old name restores the old bundle. A later
/// call with `replace` writes the new bundle and then removes them.
///
/// @param directory        An existing directory, NUL-terminated, in the system's encoding.
/// @param prefix           Such as `model`. Not empty, without a directory separator, and not starting with a dot.
/// @param prefix_len       Its length in bytes, or `SA_NUL_TERMINATED`.
/// @param max_shard_bytes  The largest size of the tensor data of a shard in bytes; not 0.
/// @param tensors          Array of `n_tensors`; null if there are none.
/// @param n_tensors        Number of tensors.
/// @param metadata         Array of `n_metadata`; null if there are none. Written to each shard and to the index, where
///                         `total_size` is replaced by the size of all tensors.
/// @param n_metadata       Number of metadata entries.
/// @param options          Null for the defaults.
/// @param report           Null, or receives the report.
/// @param error            Null, or receives the error.
/// @return As `sa_write_aligned`; `SA_ERR_REFUSED` if files of the prefix exist. If the call fails, the old files are
///         back under their names and no new file is left, except if only removing an old file failed: then the new
///         bundle is in place, and the message says so.
///
/// # Safety
/// Pointers are null or valid for the call, and arrays as long as their counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_write_sharded(
    directory: *const c_char,
    prefix: *const c_char,
    prefix_len: usize,
    max_shard_bytes: u64,
    tensors: *const sa_tensor,
    n_tensors: usize,
    metadata: *const sa_metadata,
    n_metadata: usize,
    options: *const sa_sharded_options,
    report: *mut sa_sharded_report,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let directory = call.path(directory, "directory")?;
        let write = || {
            let prefix = call.string(prefix, prefix_len, "prefix")?;
            let tensors = call.slice(tensors, n_tensors, "tensors")?;
            let tensors: Vec<_> = tensors.iter().map(|tensor| tensor.tensor(call)).collect::<Result<_>>()?;
            let metadata = super::types::metadata(call, metadata, n_metadata)?;
            let given = call.options(options)?;
            let out = call.optional_report(report, "report")?;
            if given.reserved != 0 {
                return Err(boundary::invalid("`options.reserved` is not 0"));
            }
            let mut progress = progress(call, given.progress, given.progress_context);
            let options = WriteOptions {
                layout: layout(given.layout, given.alignment)?,
                durability: durability(given.durability)?,
                progress: progress.as_mut().map(|progress| progress as _),
            };
            let replace = given.replace != 0;
            let report =
                bundle::write_sharded(directory, prefix, max_shard_bytes, &tensors, &metadata, options, replace)?;
            if let Some(out) = out {
                out.set(&(&report).into());
            }
            Ok(())
        };
        write().map_err(|error: Error| error.at(directory))
    };
    // SAFETY: the pointers are the C caller's, null or valid, and arrays as long as their counts.
    unsafe { guard(error, body) }
}
