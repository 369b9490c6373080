//! What every exported function needs: panics, null pointers, struct sizes, strings, outputs.

use std::ffi::{CStr, OsStr, c_char};
use std::mem::size_of;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use super::status::{SA_ERROR_MESSAGE_SIZE, sa_error, sa_status};
use super::types::SA_NUL_TERMINATED;
use crate::error::{Error, Result, Status};

/// A call from C, whose pointers are what its documentation says. It converts them, so that what follows is safe Rust.
pub(super) struct Call(());

/// Runs the body of an exported function: catches panics and fills the error struct.
///
/// # Safety
/// `error`, and every pointer that the body gives to the methods of [`Call`], is null or points to what the exported
/// function documents: values that live through the call, arrays as long as their counts, strings as long as their
/// length or NUL-terminated, outputs that may be written and that nothing else uses meanwhile, structs as long as their
/// `struct_size`. Callbacks may be called with their context, on the threads that are documented.
pub(super) unsafe fn guard(error: *mut sa_error, body: impl FnOnce(&Call) -> Result<()>) -> sa_status {
    let outcome = catch_unwind(AssertUnwindSafe(|| body(&Call(()))))
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

/// A string as a NUL-terminated array, cut where a character ends.
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

impl Call {
    pub(super) fn required<T>(&self, pointer: *const T, argument: &str) -> Result<&T> {
        // SAFETY: null or valid through the call, by the contract of `guard`.
        unsafe { pointer.as_ref() }.ok_or_else(|| null(argument))
    }

    #[expect(clippy::mut_from_ref, reason = "the reference is made from the pointer, not from the call")]
    pub(super) fn required_mut<T>(&self, pointer: *mut T, argument: &str) -> Result<&mut T> {
        // SAFETY: null, or valid and used by nothing else, by the contract of `guard`.
        unsafe { pointer.as_mut() }.ok_or_else(|| null(argument))
    }

    /// An output, which need not be initialised.
    pub(super) fn output<T>(&self, pointer: *mut T, argument: &str) -> Result<Output<T>> {
        if pointer.is_null() { Err(null(argument)) } else { Ok(Output(pointer)) }
    }

    /// An array of the caller's; null is the empty array.
    pub(super) fn slice<T>(&self, pointer: *const T, count: usize, argument: &str) -> Result<&[T]> {
        if count == 0 {
            return Ok(&[]);
        }
        if pointer.is_null() {
            return Err(null(argument));
        }
        match count.checked_mul(size_of::<T>()) {
            // SAFETY: not null, `count` values by the contract of `guard`, and not longer than a slice may be.
            Some(bytes) if isize::try_from(bytes).is_ok() => Ok(unsafe { std::slice::from_raw_parts(pointer, count) }),
            _ => Err(invalid(format!("`{argument}`: {count} elements are more than memory can hold"))),
        }
    }

    /// A string of the caller's: `len` bytes, or up to its NUL where `len` is [`SA_NUL_TERMINATED`]. The empty string
    /// is null and 0; a pointer with a length of 0 is an error, since the length was most likely forgotten.
    pub(super) fn string(&self, pointer: *const c_char, len: usize, argument: &str) -> Result<&str> {
        let bytes = match (pointer.is_null(), len) {
            (true, 0) => &[],
            (true, _) => return Err(null(argument)),
            (false, 0) => {
                return Err(invalid(format!(
                    "`{argument}` has length 0: pass SA_NUL_TERMINATED for a C string, or null for the empty string"
                )));
            }
            // SAFETY: not null, and NUL-terminated by the contract of `guard`.
            (false, SA_NUL_TERMINATED) => unsafe { CStr::from_ptr(pointer) }.to_bytes(),
            (false, _) => self.slice(pointer.cast::<u8>(), len, argument)?,
        };
        std::str::from_utf8(bytes).map_err(|error| {
            invalid(format!("`{argument}` is not UTF-8: invalid byte at {} of {}", error.valid_up_to(), bytes.len()))
        })
    }

    /// A path: the system's own bytes.
    pub(super) fn path(&self, pointer: *const c_char, argument: &str) -> Result<&Path> {
        self.optional_path(pointer, argument)?.ok_or_else(|| null(argument))
    }

    /// A path, or none for null.
    pub(super) fn optional_path(&self, pointer: *const c_char, argument: &str) -> Result<Option<&Path>> {
        if pointer.is_null() {
            return Ok(None);
        }
        // SAFETY: not null, and NUL-terminated by the contract of `guard`.
        let bytes = unsafe { CStr::from_ptr(pointer) }.to_bytes();
        if bytes.is_empty() {
            Err(invalid(format!("`{argument}` is empty")))
        } else {
            Ok(Some(Path::new(OsStr::from_bytes(bytes))))
        }
    }

    /// Options of the caller's: the defaults for null, and for fields that the caller's header does not have.
    pub(super) fn options<T: SizedStruct>(&self, pointer: *const T) -> Result<T> {
        let mut options = T::zeroed();
        if pointer.is_null() {
            return Ok(options);
        }
        // SAFETY: `SizedStruct` begins with its size.
        let given = unsafe { pointer.cast::<usize>().read() };
        T::check_size(given)?;
        let known = given.min(size_of::<T>());
        // SAFETY: `known` bytes are there on both sides, and every bit pattern is a `T`.
        unsafe { std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), (&raw mut options).cast(), known) };
        // SAFETY: the rest of the caller's struct.
        let rest = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>().add(known), given - known) };
        match rest.iter().position(|&byte| byte != 0) {
            None => Ok(options),
            Some(at) => {
                let (name, at) = (T::NAME, known + at);
                Err(invalid(format!(
                    "`{name}`: byte {at} is set, which this version of the library does not know: it has {known} bytes"
                )))
            }
        }
    }

    /// As [`Call::options`], for a struct that must not be null.
    pub(super) fn input<T: SizedStruct>(&self, pointer: *const T, argument: &str) -> Result<T> {
        if pointer.is_null() { Err(null(argument)) } else { self.options(pointer) }
    }

    /// A struct to be filled.
    pub(super) fn report<T: SizedStruct>(&self, pointer: *mut T, argument: &str) -> Result<Report<T>> {
        if pointer.is_null() {
            return Err(null(argument));
        }
        // SAFETY: `SizedStruct` begins with its size.
        let given = unsafe { pointer.cast::<usize>().read() };
        T::check_size(given)?;
        Ok(Report(pointer, given))
    }

    /// As [`Call::report`], for an output that may be null.
    pub(super) fn optional_report<T: SizedStruct>(&self, pointer: *mut T, argument: &str) -> Result<Option<Report<T>>> {
        if pointer.is_null() { Ok(None) } else { self.report(pointer, argument).map(Some) }
    }
}

/// An output that was checked before the work began and is written after it succeeded.
pub(super) struct Output<T>(*mut T);

impl<T> Output<T> {
    pub(super) fn set(self, value: T) {
        // SAFETY: made by `Call::output` from a pointer that is not null and may be written.
        unsafe { self.0.write(value) };
    }
}

/// An enum value of the caller's.
pub(super) fn choice<T: Copy>(value: i32, values: &[T], argument: &str) -> Result<T> {
    let found = usize::try_from(value).ok().and_then(|at| values.get(at));
    found.copied().ok_or_else(|| invalid(format!("`{argument}` is {value}, expected 0 to {}", values.len() - 1)))
}

/// A struct that begins with its own size, as the caller's header has it.
///
/// # Safety
/// A C struct for which every bit pattern is valid (zero bytes are the defaults), without implicit padding, whose first
/// field is a `usize` that says how many bytes it has.
pub(super) unsafe trait SizedStruct: Copy {
    const NAME: &'static str;
    /// Sizes in bytes that the struct had in released headers.
    const RELEASED: &'static [usize];

    /// A struct of zero bytes, but for its size.
    fn zeroed() -> Self {
        let mut value = std::mem::MaybeUninit::<Self>::zeroed();
        // SAFETY: every bit pattern is valid, and the first field is a `usize`.
        unsafe {
            value.as_mut_ptr().cast::<usize>().write(size_of::<Self>());
            value.assume_init()
        }
    }

    /// Checks the size that the caller gave. Sizes above ours are those of a newer header.
    fn check_size(given: usize) -> Result<()> {
        let known = size_of::<Self>();
        let newer = given > known && given <= MOST && given.is_multiple_of(size_of::<u64>());
        if given == known || newer || Self::RELEASED.contains(&given) {
            return Ok(());
        }
        let name = Self::NAME;
        Err(invalid(format!("`{name}`: struct_size is {given}, expected {known}: initialise the struct with SA_INIT")))
    }
}

/// No struct of ours will ever be larger than a page.
const MOST: usize = 4096;

/// The size of a field.
pub(super) const fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// Declares a [`SizedStruct`]: its name, and the last field that it had in each released header, oldest first.
macro_rules! sized_struct {
    ($name:ident, $($last:ident),+) => {
        // SAFETY: `#[repr(C)]` with explicit padding (tests/abi.rs), numbers, pointers and nullable function pointers;
        // the first field is `struct_size`.
        unsafe impl $crate::capi::boundary::SizedStruct for $name {
            const NAME: &'static str = stringify!($name);
            const RELEASED: &'static [usize] = &[$(
                std::mem::offset_of!($name, $last)
                    + $crate::capi::boundary::size_of_field(|value: &$name| &value.$last)
            ),+];
        }
    };
}
pub(super) use sized_struct;

/// A struct to be filled, as far as the caller's header knows it.
pub(super) struct Report<T>(*mut T, usize);

impl<T: SizedStruct> Report<T> {
    /// Writes what fits; the size that the caller gave stays.
    pub(super) fn set(self, value: &T) {
        let skip = size_of::<usize>();
        let len = self.1.min(size_of::<T>()) - skip;
        // SAFETY: both have `skip + len` bytes by `Call::report` and `check_size`.
        unsafe {
            let from = std::ptr::from_ref(value).cast::<u8>().add(skip);
            std::ptr::copy_nonoverlapping(from, self.0.cast::<u8>().add(skip), len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_internal_error() {
        let mut error = sa_error { status: 7, os_error: 7, message: [7; SA_ERROR_MESSAGE_SIZE] };
        // SAFETY: the error is ours.
        let status = unsafe { guard(&mut error, |_| panic!("boom")) };
        assert_eq!((status, error.status), (sa_status::SA_ERR_INTERNAL, sa_status::SA_ERR_INTERNAL as i32));
        // SAFETY: null is allowed.
        assert_eq!(unsafe { guard(std::ptr::null_mut(), |_| Ok(())) }, sa_status::SA_OK);
    }

    #[test]
    fn long_messages_are_cut_where_a_character_ends() {
        let out = fixed(&"é".repeat(400));
        assert_eq!((out[501] as u8, out[502], out[503]), (0xa9, 0, 0));
    }
}
