//! What every exported function goes through: panics, null pointers, struct sizes, texts, outputs.

use std::ffi::{CStr, OsStr, c_char};
use std::mem::size_of;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use super::status::{SA_ERROR_MESSAGE_SIZE, sa_error, sa_status};
use crate::error::{Error, Result, Status};

/// Runs the body of an exported function: no panic gets out, and the error struct says what happened.
///
/// # Safety
/// `error` is null or points to an `sa_error` that may be written.
pub(super) unsafe fn guard(error: *mut sa_error, body: impl FnOnce() -> Result<()>) -> sa_status {
    let outcome = catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|_| Err(Error::new(Status::Internal, "internal error: a panic was caught")));
    let (status, os_error, message) = match &outcome {
        Ok(()) => (Status::Ok, 0, String::new()),
        Err(error) => (error.status(), error.os_error(), error.to_string()),
    };
    if !error.is_null() {
        // SAFETY: not null, and the caller of the exported function gave it to be written.
        unsafe { error.write(sa_error { status: status as i32, os_error, message: fixed(&message) }) };
    }
    status.into()
}

/// A text as a NUL-terminated array, cut where a character ends.
fn fixed(message: &str) -> [c_char; SA_ERROR_MESSAGE_SIZE] {
    let mut out = [0; SA_ERROR_MESSAGE_SIZE];
    let cut = &message[..message.floor_char_boundary(SA_ERROR_MESSAGE_SIZE - 1)];
    for (to, from) in out.iter_mut().zip(cut.bytes()) {
        *to = from as c_char;
    }
    out
}

pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(Status::InvalidArgument, message)
}

fn null(argument: &str) -> Error {
    invalid(format!("`{argument}` is null"))
}

/// # Safety
/// `pointer` is null or points to a `T` that lives through the call.
pub(super) unsafe fn required<'a, T>(pointer: *const T, argument: &str) -> Result<&'a T> {
    // SAFETY: as the caller says.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(argument))
}

/// # Safety
/// `pointer` is null or points to a `T` that lives through the call and that nobody else uses meanwhile.
pub(super) unsafe fn required_mut<'a, T>(pointer: *mut T, argument: &str) -> Result<&'a mut T> {
    // SAFETY: as the caller says.
    unsafe { pointer.as_mut() }.ok_or_else(|| null(argument))
}

/// An output that was checked before the work began and is written after it succeeded.
pub(super) struct Output<T>(*mut T);

impl<T> Output<T> {
    /// # Safety
    /// `pointer` is null or may be written through the call; what it points to need not be initialised.
    pub(super) unsafe fn new(pointer: *mut T, argument: &str) -> Result<Output<T>> {
        if pointer.is_null() { Err(null(argument)) } else { Ok(Output(pointer)) }
    }

    pub(super) fn set(self, value: T) {
        // SAFETY: not null by `new`, and writable by its contract.
        unsafe { self.0.write(value) };
    }
}

/// An array of the caller's; null is the same as none where the count is 0.
///
/// # Safety
/// `pointer` is null or points to `count` values that live through the call.
pub(super) unsafe fn slice<'a, T>(pointer: *const T, count: usize, argument: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(null(argument));
    }
    match count.checked_mul(size_of::<T>()) {
        // SAFETY: not null, as long as the caller says, and not longer than a slice may be.
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(unsafe { std::slice::from_raw_parts(pointer, count) }),
        _ => Err(invalid(format!("`{argument}`: {count} elements are more than memory can hold"))),
    }
}

/// A text of the caller's, of `len` bytes, or up to its NUL where `len` is 0.
///
/// # Safety
/// `pointer` is null or points to `len` bytes, or to a NUL-terminated text where `len` is 0, that live through the call.
pub(super) unsafe fn text<'a>(pointer: *const c_char, len: usize, argument: &str) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(null(argument));
    }
    let bytes = if len == 0 {
        // SAFETY: not null, and NUL-terminated as the caller says.
        unsafe { CStr::from_ptr(pointer) }.to_bytes()
    } else {
        // SAFETY: as the caller says.
        unsafe { slice(pointer.cast::<u8>(), len, argument) }?
    };
    std::str::from_utf8(bytes).map_err(|error| {
        invalid(format!("`{argument}` is not UTF-8: invalid byte at {} of {}", error.valid_up_to(), bytes.len()))
    })
}

/// A path: the system's own bytes.
///
/// # Safety
/// `pointer` is null or points to a NUL-terminated text that lives through the call.
pub(super) unsafe fn path<'a>(pointer: *const c_char, argument: &str) -> Result<&'a Path> {
    if pointer.is_null() {
        return Err(null(argument));
    }
    // SAFETY: not null, and NUL-terminated as the caller says.
    let bytes = unsafe { CStr::from_ptr(pointer) }.to_bytes();
    if bytes.is_empty() {
        Err(invalid(format!("`{argument}` is empty")))
    } else {
        Ok(Path::new(OsStr::from_bytes(bytes)))
    }
}

/// A struct that begins with its own size, and that may be a shorter one of an older header or a longer one of a newer.
///
/// # Safety
/// A C struct of plain numbers and pointers, for which every bit pattern is valid, whose first field is a `usize` that
/// says how many bytes it has.
pub(super) unsafe trait SizedStruct: Copy {
    const DEFAULT: Self;
}

/// Options of the caller's: the defaults for null, and for fields that the caller's header did not have.
///
/// # Safety
/// `pointer` is null or points to as many bytes as their first field says, which live through the call.
pub(super) unsafe fn options<T: SizedStruct>(pointer: *const T, argument: &str) -> Result<T> {
    let mut options = T::DEFAULT;
    if pointer.is_null() {
        return Ok(options);
    }
    // SAFETY: `SizedStruct` begins with its size, which the caller gave.
    let given = unsafe { pointer.cast::<usize>().read() };
    check_size(given, argument)?;
    let known = given.min(size_of::<T>());
    // SAFETY: `known` bytes are there on both sides, and every bit pattern is a `T`.
    unsafe { std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), (&raw mut options).cast(), known) };
    for at in known..given {
        // SAFETY: within the caller's struct.
        if unsafe { pointer.cast::<u8>().add(at).read() } != 0 {
            return Err(invalid(format!(
                "`{argument}`: an option is set that this version of the library does not know"
            )));
        }
    }
    Ok(options)
}

/// A report to be filled, as far as the caller's header knows it.
pub(super) struct Report<T>(*mut T, usize);

impl<T: SizedStruct> Report<T> {
    /// # Safety
    /// `pointer` is null or points to as many bytes as their first field says, which may be written through the call.
    pub(super) unsafe fn new(pointer: *mut T, argument: &str) -> Result<Report<T>> {
        if pointer.is_null() {
            return Err(null(argument));
        }
        // SAFETY: `SizedStruct` begins with its size, which the caller gave.
        let given = unsafe { pointer.cast::<usize>().read() };
        check_size(given, argument)?;
        Ok(Report(pointer, given))
    }

    /// As [`Report::new`], but null is nobody who wants to know.
    ///
    /// # Safety
    /// As for [`Report::new`].
    pub(super) unsafe fn optional(pointer: *mut T, argument: &str) -> Result<Option<Report<T>>> {
        // SAFETY: as the caller says.
        if pointer.is_null() { Ok(None) } else { unsafe { Report::new(pointer, argument) }.map(Some) }
    }

    /// Writes what fits; the size that the caller gave stays.
    pub(super) fn set(self, value: &T) {
        let skip = size_of::<usize>();
        let len = self.1.min(size_of::<T>()) - skip;
        // SAFETY: both have `skip + len` bytes; `new` checked that the caller's has at least `skip`.
        unsafe {
            let from = std::ptr::from_ref(value).cast::<u8>().add(skip);
            std::ptr::copy_nonoverlapping(from, self.0.cast::<u8>().add(skip), len);
        }
    }
}

/// A struct without its size was not initialised; one of more than a page is not one of ours.
fn check_size(given: usize, argument: &str) -> Result<()> {
    if (size_of::<usize>()..=4096).contains(&given) {
        return Ok(());
    }
    Err(invalid(format!("`{argument}`: struct_size is {given}: call its init function first")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_internal_error() {
        let mut error = sa_error { status: 7, os_error: 7, message: [7; SA_ERROR_MESSAGE_SIZE] };
        // SAFETY: the error is ours.
        let status = unsafe { guard(&mut error, || panic!("boom")) };
        assert_eq!((status, error.status), (sa_status::SA_ERR_INTERNAL, sa_status::SA_ERR_INTERNAL as i32));
        // SAFETY: null is allowed.
        assert_eq!(unsafe { guard(std::ptr::null_mut(), || Ok(())) }, sa_status::SA_OK);
    }

    #[test]
    fn long_messages_are_cut_where_a_character_ends() {
        let out = fixed(&"é".repeat(400));
        assert_eq!((out[501] as u8, out[502], out[503]), (0xa9, 0, 0));
    }
}
