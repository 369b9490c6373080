//! Status and error of a call.

use std::ffi::c_char;

use crate::error::Status;

/// Bytes of the message in an `sa_error`, the NUL included.
pub const SA_ERROR_MESSAGE_SIZE: usize = 504;

/// What a call came to. The values never change; later versions may add some.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sa_status {
    /// Success.
    SA_OK = 0,
    /// An argument that no file could make right: null, a bad enum value, a size that disagrees with its shape.
    SA_ERR_INVALID_ARGUMENT = 1,
    /// A system call failed (`os_error` says how), or the path is not that of a regular file.
    SA_ERR_IO = 2,
    /// The disk or the quota is full, seen before anything was written where the file system can tell.
    SA_ERR_NO_SPACE = 3,
    /// No tensor of that name or number.
    SA_ERR_NOT_FOUND = 4,
    /// The file breaks the format.
    SA_ERR_FORMAT = 5,
    /// The file is shorter than its header says: an incomplete download.
    SA_ERR_TRUNCATED = 6,
    /// The header is, or would be, longer than readers accept. When reading this mostly means that the file is
    /// something else; the message says what it looks like.
    SA_ERR_TOO_LARGE = 7,
    /// A dtype that the format does not know.
    SA_ERR_UNSUPPORTED = 8,
    /// The tensor is misaligned, and the file was opened with `SA_UNALIGNED_ERROR`.
    SA_ERR_UNALIGNED = 9,
    /// Opened with `strict`: the reference reader would refuse the file.
    SA_ERR_NONCONFORMING = 10,
    /// The operation could harm something, and says what to do instead.
    SA_ERR_REFUSED = 11,
    /// The file changed while it was read.
    SA_ERR_CHANGED = 12,
    /// The progress callback asked to stop.
    SA_ERR_CANCELLED = 13,
    /// A defect of this library; please report it.
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

/// What went wrong, in 512 bytes of the caller's: nothing to free. On success `status` is `SA_OK` and the message
/// empty.
#[repr(C)]
pub struct sa_error {
    /// An `sa_status`.
    pub status: i32,
    /// The system's error number (`errno`), 0 where no system call failed.
    pub os_error: i32,
    /// Lower case, NUL-terminated UTF-8; names the file, the tensor in backticks, and the numbers.
    pub message: [c_char; SA_ERROR_MESSAGE_SIZE],
}
