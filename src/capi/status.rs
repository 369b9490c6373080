//! Status and error of a call.

use std::ffi::c_char;

use crate::error::Status;

/// Size of the message in an `sa_error` in bytes, including the NUL.
pub const SA_ERROR_MESSAGE_SIZE: usize = 504;

/// The result of a call. The values never change; later versions may add some.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sa_status {
    /// Success.
    SA_OK = 0,
    /// Invalid argument: null, an unknown enum value, a size that does not match the shape.
    SA_ERR_INVALID_ARGUMENT = 1,
    /// A system call failed (see `os_error`), or the path does not name a regular file.
    SA_ERR_IO = 2,
    /// The disk or the quota is full. Detected before anything is written, if the file system can reserve space.
    SA_ERR_NO_SPACE = 3,
    /// No such tensor, or an index out of range.
    SA_ERR_NOT_FOUND = 4,
    /// The file is malformed.
    SA_ERR_FORMAT = 5,
    /// The file is shorter than its header says: an incomplete download.
    SA_ERR_TRUNCATED = 6,
    /// The header is, or would be, longer than readers accept. On reading, this usually means that the file is not a
    /// safetensors file; the message says what it looks like.
    SA_ERR_TOO_LARGE = 7,
    /// A dtype that is not part of the format.
    SA_ERR_UNSUPPORTED = 8,
    /// The tensor is misaligned, and the file was opened with `SA_UNALIGNED_ERROR`.
    SA_ERR_UNALIGNED = 9,
    /// The file was opened with `strict`, and the reference reader would reject it.
    SA_ERR_NONCONFORMING = 10,
    /// The operation could lose data. The message says what to do instead.
    SA_ERR_REFUSED = 11,
    /// The source was modified during the call.
    SA_ERR_CHANGED = 12,
    /// The progress callback cancelled the call.
    SA_ERR_CANCELLED = 13,
    /// A library bug. Please report it.
    SA_ERR_INTERNAL = 14,
}

impl From<Status> for sa_status {
    fn from(status: Status) -> sa_status {
        match status {
            Status::Ok => sa_status::SA_OK,
            Status::InvalidArgument => sa_status::SA_ERR_INVALID_ARGUMENT,
            Status::Io => sa_status::SA_ERR_IO,
            Status::NoSpace => sa_status::SA_ERR_NO_SPACE,
            Status::NotFound => sa_status::SA_ERR_NOT_FOUND,
            Status::Format => sa_status::SA_ERR_FORMAT,
            Status::Truncated => sa_status::SA_ERR_TRUNCATED,
            Status::TooLarge => sa_status::SA_ERR_TOO_LARGE,
            Status::Unsupported => sa_status::SA_ERR_UNSUPPORTED,
            Status::Unaligned => sa_status::SA_ERR_UNALIGNED,
            Status::Nonconforming => sa_status::SA_ERR_NONCONFORMING,
            Status::Refused => sa_status::SA_ERR_REFUSED,
            Status::Changed => sa_status::SA_ERR_CHANGED,
            Status::Cancelled => sa_status::SA_ERR_CANCELLED,
            Status::Internal => sa_status::SA_ERR_INTERNAL,
        }
    }
}

/// Describes a failure, in 512 bytes of memory that the caller provides. Nothing has to be freed. On success `status`
/// is `SA_OK` and the message is empty. The struct never grows.
#[repr(C)]
pub struct sa_error {
    /// An `sa_status`.
    pub status: i32,
    /// The system's error number (`errno`); 0 if no system call failed.
    pub os_error: i32,
    /// NUL-terminated UTF-8 in lower case. Names the file and the tensor, and gives the numbers.
    pub message: [c_char; SA_ERROR_MESSAGE_SIZE],
}
