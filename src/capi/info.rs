//! Version, status, dtype.

use std::ffi::c_char;

use super::boundary::{Call, guard};
use super::status::{sa_error, sa_status};
use crate::dtype::Dtype;
use crate::error::Status;

/// The version of this header.
pub const SA_VERSION_MAJOR: u32 = 0;
/// The version of this header.
pub const SA_VERSION_MINOR: u32 = 2;
/// The version of this header.
pub const SA_VERSION_PATCH: u32 = 0;

/// The version of the library at run time: `major * 1000000 + minor * 1000 + patch`.
#[unsafe(no_mangle)]
pub extern "C" fn sa_version() -> u32 {
    SA_VERSION_MAJOR * 1_000_000 + SA_VERSION_MINOR * 1000 + SA_VERSION_PATCH
}

/// The version of the library at run time as a string, such as `"0.2.0"`. Never null; not to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn sa_version_string() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The name of a status, such as `"SA_ERR_FORMAT"`; `"unknown"` for any other value. Never null; not to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn sa_status_name(status: i32) -> *const c_char {
    Status::from_number(status).map_or("unknown\0", Status::name_with_nul).as_ptr().cast()
}

/// The name of a dtype as it is written in a file, such as `"BF16"`; `"unknown"` for any other value. Never null; not
/// to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn sa_dtype_name(dtype: i32) -> *const c_char {
    Dtype::from_number(dtype).map_or("unknown\0", Dtype::name_with_nul).as_ptr().cast()
}

/// The dtype with a name such as `"BF16"`. Case matters.
///
/// @param name      The name.
/// @param name_len  Its length in bytes, or `SA_NUL_TERMINATED`.
/// @param dtype     Receives an `sa_dtype`.
/// @param error     Null, or receives the error.
/// @return `SA_ERR_UNSUPPORTED` if the format has no such dtype.
///
/// # Safety
/// Pointers are null or valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sa_dtype_from_name(
    name: *const c_char,
    name_len: usize,
    dtype: *mut i32,
    error: *mut sa_error,
) -> sa_status {
    let body = |call: &Call| {
        let name = call.string(name, name_len, "name")?;
        let out = call.output(dtype, "dtype")?;
        let Some(dtype) = Dtype::from_name(name) else {
            let message = format!("unknown dtype {}", crate::error::Name(name));
            return Err(crate::error::Error::new(Status::Unsupported, message));
        };
        out.set(dtype as i32);
        Ok(())
    };
    // SAFETY: the pointers are the C caller's, null or valid.
    unsafe { guard(error, body) }
}

/// Size of an element in bits: 4, 6, 8, 16, 32 or 64; 0 for any other value. A tensor is aligned if its offset is a
/// multiple of an eighth of that, at least 1.
#[unsafe(no_mangle)]
pub extern "C" fn sa_dtype_bits(dtype: i32) -> u32 {
    Dtype::from_number(dtype).map_or(0, Dtype::bits)
}
