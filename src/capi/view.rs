//! Mapping tensors.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use super::boundary::{Output, guard, invalid, required, text};
use super::file::sa_file;
use super::info::choice;
use super::status::{sa_error, sa_status};
use crate::map::{Advice, Keeper, Origin, View};

/// Where a view's bytes are.
#[repr(i32)]
pub enum sa_origin {
    /// In the mapping of the file.
    SA_ORIGIN_MAPPED = 0,
    /// In an aligned copy in anonymous memory.
    SA_ORIGIN_COPIED = 1,
}

/// How a view's bytes will be used.
#[repr(i32)]
pub enum sa_advice {
    /// Read them from the disk ahead of use.
    SA_ADVICE_WILL_NEED = 0,
    /// They may leave this process's memory; they come back from the file when touched. Ignored where memory holds the only
    /// copy: for a view that is a copy, with `SA_MAP_COPY_ON_WRITE`, and where the file could not be mapped.
    SA_ADVICE_DO_NOT_NEED = 1,
    /// In no order: reading ahead is of no use.
    SA_ADVICE_RANDOM = 2,
    /// From the first to the last.
    SA_ADVICE_SEQUENTIAL = 3,
}

/// A tensor's bytes. It keeps the mapping alive, also when the file is closed before it.
///
/// Give `owner` to `sa_view_release` once for each view made, and once for each `sa_view_retain`; nothing of the view is
/// valid afterwards. May be released on any thread. Several threads may read through it at once.
#[repr(C)]
pub struct sa_view {
    /// `nbytes` bytes, elements in row-major order, little-endian; never null, and aligned for the dtype unless the file was
    /// opened with `SA_UNALIGNED_BORROW`. To be written to only with `SA_MAP_COPY_ON_WRITE`; all views of the tensor then
    /// see it.
    pub data: *mut c_void,
    /// Bytes of data.
    pub nbytes: usize,
    /// An `sa_dtype`.
    pub dtype: i32,
    /// An `sa_origin`.
    pub origin: i32,
    /// Number of dimensions; 0 for a scalar.
    pub rank: usize,
    /// Elements in each dimension; `rank` of them, never null.
    pub shape: *const u64,
    /// What keeps the bytes alive.
    pub owner: *mut c_void,
}

impl From<View> for sa_view {
    fn from(view: View) -> sa_view {
        let (data, nbytes) = view.span();
        let origin = match view.origin() {
            Origin::Mapped => sa_origin::SA_ORIGIN_MAPPED,
            Origin::Copied => sa_origin::SA_ORIGIN_COPIED,
        };
        let info = view.info();
        let (dtype, rank, shape) = (info.dtype.map_or(0, |dtype| dtype as i32), info.shape.len(), info.shape.as_ptr());
        let owner = Arc::into_raw(view.into_keeper()).cast_mut().cast();
        sa_view { data: data.cast(), nbytes, dtype, origin: origin as i32, rank, shape, owner }
    }
}

/// The bytes of a tensor, by its name: those of the mapping, with no copy, where its offset allows it.
///
/// @param name  NUL-terminated UTF-8.
/// @param view  Receives the view; release its `owner` with `sa_view_release`.
/// @return `SA_ERR_NOT_FOUND`; `SA_ERR_UNALIGNED` only with `SA_UNALIGNED_ERROR`; `SA_ERR_IO` with `os_error` ENOMEM if there
///         is no memory for a copy.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_map_tensor(
    file: *const sa_file,
    name: *const c_char,
    view: *mut sa_view,
    error: *mut sa_error,
) -> sa_status {
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe {
        guard(error, || {
            let file = &required(file, "file")?.0;
            let name = text(name, 0, "name")?;
            let out = Output::new(view, "view")?;
            out.set(file.map(name)?.into());
            Ok(())
        })
    }
}

/// The bytes of a tensor, by its number, as `sa_map_tensor`.
///
/// @param index  From 0 to `sa_file_len` - 1.
/// @param view   Receives the view; release its `owner` with `sa_view_release`.
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
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe {
        guard(error, || {
            let file = &required(file, "file")?.0;
            let out = Output::new(view, "view")?;
            out.set(file.map_at(index)?.into());
            Ok(())
        })
    }
}

/// Releases a view, or one retain of it. Null is ignored. Of this type so that it can be the deleter in somebody else's
/// array type.
///
/// @param owner  The `owner` of the view.
///
/// # Safety
/// `owner` is null or that of a view, and is not released more often than the view was made and retained.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_view_release(owner: *mut c_void) {
    if !owner.is_null() {
        // SAFETY: it came from `Arc::into_raw`, and the count is the caller's to keep.
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

/// Says how a view's bytes will be used; whole pages are meant, so the neighbours in the file are touched too.
///
/// @param view    A view that is not released yet.
/// @param advice  An `sa_advice`.
/// @return `SA_ERR_IO` if the system refuses.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_view_advise(view: *const sa_view, advice: i32, error: *mut sa_error) -> sa_status {
    // SAFETY: the pointers are the C caller's, null or valid; the owner is that of a view.
    unsafe {
        guard(error, || {
            let view = required(view, "view")?;
            let every = [Advice::WillNeed, Advice::DoNotNeed, Advice::Random, Advice::Sequential];
            let advice = choice(advice, &every, "advice")?;
            let Some(keeper) = view.owner.cast_const().cast::<Keeper>().as_ref() else {
                return Err(invalid("`view.owner` is null"));
            };
            keeper.advise(advice, view.data.cast_const().cast(), view.nbytes)
        })
    }
}
