//! Version, status, dtype.

use std::ffi::c_char;

use super::boundary::{Output, guard, invalid, text};
use super::status::{sa_error, sa_status};
use crate::dtype::Dtype;
use crate::error::Status;

/// The version of this header.
pub const SA_VERSION_MAJOR: u32 = 0;
/// The version of this header.
pub const SA_VERSION_MINOR: u32 = 2;
/// The version of this header.
pub const SA_VERSION_PATCH: u32 = 0;

/// The version of the library that runs: `major * 1000000 + minor * 1000 + patch`.
#[unsafe(no_mangle)]
pub extern "C" fn sa_version() -> u32 {
    SA_VERSION_MAJOR * 1_000_000 + SA_VERSION_MINOR * 1000 + SA_VERSION_PATCH
}

/// The version of the library that runs, as text: `"0.1.0"`. Never null, never freed.
#[unsafe(no_mangle)]
pub extern "C" fn sa_version_string() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The name of a status: `"SA_ERR_FORMAT"`, or `"unknown"` for a number that is none. Never null, never freed.
#[unsafe(no_mangle)]
pub extern "C" fn sa_status_name(status: i32) -> *const c_char {
    Status::from_number(status).map_or("unknown\0", Status::name_with_nul).as_ptr().cast()
}

/// The name of a dtype as it stands in a file: `"BF16"`, or `"unknown"` for a number that is none. Never null, never
/// freed.
#[unsafe(no_mangle)]
pub extern "C" fn sa_dtype_name(dtype: i32) -> *const c_char {
    Dtype::from_number(dtype).map_or("unknown\0", Dtype::name_with_nul).as_ptr().cast()
}

/// The dtype of a name such as `"BF16"`; case matters.
///
/// @param name   NUL-terminated.
/// @param dtype  Receives an `sa_dtype`.
/// @return `SA_ERR_UNSUPPORTED` if the format has no such dtype.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_dtype_from_name(name: *const c_char, dtype: *mut i32, error: *mut sa_error) -> sa_status {
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe {
        guard(error, || {
            let name = text(name, 0, "name")?;
            let out = Output::new(dtype, "dtype")?;
            let Some(dtype) = Dtype::from_name(name) else {
                let message = format!("unknown dtype {}", crate::error::Name(name));
                return Err(crate::error::Error::new(Status::Unsupported, message));
            };
            out.set(dtype as i32);
            Ok(())
        })
    }
}

/// Bits of an element: 4, 6, 8, 16, 32 or 64; 0 for a number that is no dtype. The width in bytes that a tensor's
/// offset has to be a multiple of is an eighth of it, at least 1.
#[unsafe(no_mangle)]
pub extern "C" fn sa_dtype_bits(dtype: i32) -> u32 {
    Dtype::from_number(dtype).map_or(0, Dtype::bits)
}

/// An enum value of the caller's.
pub(super) fn choice<T: Copy>(value: i32, values: &[T], argument: &str) -> crate::error::Result<T> {
    let found = usize::try_from(value).ok().and_then(|at| values.get(at));
    found.copied().ok_or_else(|| invalid(format!("`{argument}` is {value}, expected 0 to {}", values.len() - 1)))
}
