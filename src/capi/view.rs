//! Mapping tensors.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use super::boundary::{Call, SizedStruct, choice, guard, invalid, sized_struct};
use super::file::sa_file;
use super::status::{sa_error, sa_status};
use crate::error::Result;
use crate::map::{Advice, Keeper, Origin, View};

/// Where a view's bytes are.
#[repr(i32)]
pub enum sa_origin {
    /// In the mapping of the file, or in the memory that the file was read into (see `sa_stats.is_mapped`).
    SA_ORIGIN_MAPPED = 0,
    /// In an aligned copy in anonymous memory.
    SA_ORIGIN_COPIED = 1,
    /// In the mapping of the aligned cache.
    SA_ORIGIN_CACHED = 2,
}

/// How a view's bytes will be used.
#[repr(i32)]
pub enum sa_advice {
    /// Read the pages ahead of use.
    SA_ADVICE_WILL_NEED = 0,
    /// The pages may be evicted; they are read from the file again when they are accessed. Ignored where memory holds
    /// the only copy: for an aligned copy, with `SA_MAP_COPY_ON_WRITE`, and where the file could not be mapped.
    SA_ADVICE_DO_NOT_NEED = 1,
    /// Random access: reading ahead is of no use.
    SA_ADVICE_RANDOM = 2,
    /// Sequential access.
    SA_ADVICE_SEQUENTIAL = 3,
}

/// The bytes of a tensor. Initialise with `SA_INIT` before the call that fills it.
///
/// A view keeps its mapping alive, even if the file is closed first. Pass `owner` to `sa_view_release` once for each
/// view that was made and once for each `sa_view_retain`. No field is valid after the last release. A view may be
/// released on any thread, and read by several threads at once.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_view {
    /// Size of this struct in bytes, set by `SA_INIT`.
    pub struct_size: usize,
    /// `nbytes` bytes: elements in row-major order, little-endian. Never null, and aligned for the dtype unless the
    /// file was opened with `SA_UNALIGNED_BORROW`. Read-only; see `sa_view_writable`.
    pub data: *const c_void,
    /// Size of the data in bytes.
    pub nbytes: usize,
    /// An `sa_dtype`.
    pub dtype: i32,
    /// An `sa_origin`.
    pub origin: i32,
    /// Number of dimensions; 0 for a scalar.
    pub rank: usize,
    /// `rank` sizes in elements; never null.
    pub shape: *const u64,
    /// Keeps the bytes alive; for `sa_view_release` and `sa_view_retain`.
    pub owner: *mut c_void,
    /// For the tests of the ABI.
    #[cfg(safealign_grown)]
    pub grown: u64,
}

sized_struct!(sa_view, owner);

impl From<View> for sa_view {
    fn from(view: View) -> sa_view {
        let (data, nbytes) = view.span();
        let origin = match view.origin() {
            Origin::Mapped => sa_origin::SA_ORIGIN_MAPPED,
            Origin::Copied => sa_origin::SA_ORIGIN_COPIED,
            Origin::Cached => sa_origin::SA_ORIGIN_CACHED,
        };
        let info = view.info();
        let (dtype, rank, shape) = (info.dtype.map_or(0, |dtype| dtype as i32), info.shape.len(), info.shape.as_ptr());
        let owner = Arc::into_raw(view.into_keeper()).cast_mut().cast();
        let data = data.cast();
        sa_view { data, nbytes, dtype, origin: origin as i32, rank, shape, owner, ..sa_view::zeroed() }
    }
}

impl sa_view {
    /// What keeps the bytes alive. The call vouches for the view.
    fn keeper(&self, _: &Call) -> Result<&Keeper> {
        // SAFETY: null or that of a view that is not released, by the contract of `guard`.
        let keeper = unsafe { self.owner.cast_const().cast::<Keeper>().as_ref() };
        keeper.ok_or_else(|| invalid("`view.owner` is null"))
    }
}

/// Maps a tensor by its name: without a copy, if its offset allows it.
///
/// @param file      The file.
/// @param name      The name.
/// @param name_len  Its length in bytes, or `SA_NUL_TERMINATED`.
/// @param view      Receives the view. Release its `owner` with `sa_view_release`.
/// @param error     Null, or receives the error.
/// @return `SA_ERR_NOT_FOUND`; `SA_ERR_UNALIGNED` only with `SA_UNALIGNED_ERROR`; `SA_ERR_IO` with `os_error` ENOMEM if
///         there is no memory for an aligned copy.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_map_tensor(
    file: *const sa_file,
    name: *const c_char,
    name_len: usize,
    view: *mut sa_view,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let file = &call.required(file, "file")?.0;
        let name = call.string(name, name_len, "name")?;
        let out = call.report(view, "view")?;
        out.set(&file.map(name)?.into());
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Maps a tensor by its index, as `sa_map_tensor`.
///
/// @param file   The file.
/// @param index  From 0 to `sa_file_len` - 1.
/// @param view   Receives the view. Release its `owner` with `sa_view_release`.
/// @param error  Null, or receives the error.
/// @return As `sa_map_tensor`; `SA_ERR_NOT_FOUND` if the index is out of range.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_map_tensor_at(
    file: *const sa_file,
    index: usize,
    view: *mut sa_view,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let file = &call.required(file, "file")?.0;
        let out = call.report(view, "view")?;
        out.set(&file.map_at(index)?.into());
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Releases a view, or one retain of it. Null is ignored. The parameter is a `void *`, so that the function can be the
/// deleter of another library's array type.
///
/// @param owner  The `owner` of the view.
///
/// # Safety
/// `owner` is null or that of a view, and is not released more often than the view was made and retained.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_view_release(owner: *mut c_void) {
    if !owner.is_null() {
        // SAFETY: it came from `Arc::into_raw`, and the caller keeps the count.
        drop(unsafe { Arc::from_raw(owner.cast_const().cast::<Keeper>()) });
    }
}

/// Keeps a view's bytes for one more `sa_view_release`. Null is ignored.
///
/// @param owner  The `owner` of a view that is not released yet.
///
/// # Safety
/// `owner` is null or that of a view that is not released yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_view_retain(owner: *mut c_void) {
    if !owner.is_null() {
        // SAFETY: it came from `Arc::into_raw` and is still held.
        unsafe { Arc::increment_strong_count(owner.cast_const().cast::<Keeper>()) };
    }
}

/// A pointer through which a view's bytes may be written. All views of the tensor see what is written; the file stays
/// as it is. The caller synchronises writes with reads on other threads.
///
/// @param view   A view that is not released yet.
/// @param data   Receives the address; the same as `data` of the view.
/// @param error  Null, or receives the error.
/// @return `SA_ERR_INVALID_ARGUMENT` unless the file was opened with `SA_MAP_COPY_ON_WRITE`.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_view_writable(
    view: *const sa_view,
    data: *mut *mut c_void,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let view = call.input(view, "view")?;
        let out = call.output(data, "data")?;
        out.set(view.keeper(call)?.writable((view.data.cast(), view.nbytes))?.cast());
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid; the owner is that of a view.
    unsafe { guard(error, body) }
}

/// Says how a view's bytes will be used. Whole pages are affected, hence also neighbouring tensors.
///
/// @param view    A view that is not released yet.
/// @param advice  An `sa_advice`.
/// @param error   Null, or receives the error.
/// @return `SA_ERR_IO` if the system refuses.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_view_advise(view: *const sa_view, advice: i32, error: *mut sa_error) -> sa_status {
    let body = |call: &Call| {
        let view = call.input(view, "view")?;
        let every = [Advice::WillNeed, Advice::DoNotNeed, Advice::Random, Advice::Sequential];
        let advice = choice(advice, &every, "advice")?;
        view.keeper(call)?.advise(advice, view.data.cast(), view.nbytes)
    };
    // SAFETY: the pointers are the C caller's, null or valid; the owner is that of a view.
    unsafe { guard(error, body) }
}
