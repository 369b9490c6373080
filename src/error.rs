//! The error type of the library: status, reason, message.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The kind of a failure. The values are those of `sa_status` in the C header and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Status {
    Ok = 0,
    InvalidArgument = 1,
    Io = 2,
    NoSpace = 3,
    NotFound = 4,
    Format = 5,
    Truncated = 6,
    TooLarge = 7,
    Unsupported = 8,
    Unaligned = 9,
    Nonconforming = 10,
    Refused = 11,
    Changed = 12,
    Cancelled = 13,
    Internal = 14,
}

impl Status {
    /// Every status, in the order of the values.
    pub const ALL: [Status; 15] = [
        Status::Ok,
        Status::InvalidArgument,
        Status::Io,
        Status::NoSpace,
        Status::NotFound,
        Status::Format,
        Status::Truncated,
        Status::TooLarge,
        Status::Unsupported,
        Status::Unaligned,
        Status::Nonconforming,
        Status::Refused,
        Status::Changed,
        Status::Cancelled,
        Status::Internal,
    ];

    /// The name of the constant in the C header.
    pub const fn name(self) -> &'static str {
        let name = self.name_with_nul();
        name.split_at(name.len() - 1).0
    }

    /// The name with a NUL after it, for C.
    pub(crate) const fn name_with_nul(self) -> &'static str {
        match self {
            Status::Ok => "SA_OK\0",
            Status::InvalidArgument => "SA_ERR_INVALID_ARGUMENT\0",
            Status::Io => "SA_ERR_IO\0",
            Status::NoSpace => "SA_ERR_NO_SPACE\0",
            Status::NotFound => "SA_ERR_NOT_FOUND\0",
            Status::Format => "SA_ERR_FORMAT\0",
            Status::Truncated => "SA_ERR_TRUNCATED\0",
            Status::TooLarge => "SA_ERR_TOO_LARGE\0",
            Status::Unsupported => "SA_ERR_UNSUPPORTED\0",
            Status::Unaligned => "SA_ERR_UNALIGNED\0",
            Status::Nonconforming => "SA_ERR_NONCONFORMING\0",
            Status::Refused => "SA_ERR_REFUSED\0",
            Status::Changed => "SA_ERR_CHANGED\0",
            Status::Cancelled => "SA_ERR_CANCELLED\0",
            Status::Internal => "SA_ERR_INTERNAL\0",
        }
    }

    /// The status with that value.
    pub fn from_number(number: i32) -> Option<Status> {
        Status::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// Why a file was rejected, for programs that classify files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    FileTooSmall,
    HeaderEmpty,
    HeaderTooLarge,
    HeaderTruncated,
    HeaderNotUtf8,
    HeaderNotJson,
    HeaderNotObject,
    HeaderTrailingNul,
    DuplicateKey,
    BadMetadata,
    BadTensorInfo,
    BadShape,
    BadName,
    UnknownDtype,
    OffsetsReversed,
    SizeMismatch,
    SizeOverflow,
    SubbyteSize,
    Overlap,
    Truncated,
    Hole,
    TrailingBytes,
}

impl Reason {
    /// The name, such as `DUPLICATE_KEY`.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::FileTooSmall => "FILE_TOO_SMALL",
            Reason::HeaderEmpty => "HEADER_EMPTY",
            Reason::HeaderTooLarge => "HEADER_TOO_LARGE",
            Reason::HeaderTruncated => "HEADER_TRUNCATED",
            Reason::HeaderNotUtf8 => "HEADER_NOT_UTF8",
            Reason::HeaderNotJson => "HEADER_NOT_JSON",
            Reason::HeaderNotObject => "HEADER_NOT_OBJECT",
            Reason::HeaderTrailingNul => "HEADER_TRAILING_NUL",
            Reason::DuplicateKey => "DUPLICATE_KEY",
            Reason::BadMetadata => "BAD_METADATA",
            Reason::BadTensorInfo => "BAD_TENSOR_INFO",
            Reason::BadShape => "BAD_SHAPE",
            Reason::BadName => "BAD_NAME",
            Reason::UnknownDtype => "UNKNOWN_DTYPE",
            Reason::OffsetsReversed => "OFFSETS_REVERSED",
            Reason::SizeMismatch => "SIZE_MISMATCH",
            Reason::SizeOverflow => "SIZE_OVERFLOW",
            Reason::SubbyteSize => "SUBBYTE_SIZE",
            Reason::Overlap => "OVERLAP",
            Reason::Truncated => "TRUNCATED",
            Reason::Hole => "HOLE",
            Reason::TrailingBytes => "TRAILING_BYTES",
        }
    }
}

/// A failure: a status, a message in lower case and, if known, the file, the reason and the system's error number.
#[derive(Debug, Clone)]
pub struct Error(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    status: Status,
    reason: Option<Reason>,
    os_error: i32,
    path: Option<PathBuf>,
    message: String,
}

/// The result of every call that can fail.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with that status.
    pub fn new(status: Status, message: impl Into<String>) -> Error {
        Error(Box::new(Inner { status, reason: None, os_error: 0, path: None, message: message.into() }))
    }

    /// A malformed file.
    pub(crate) fn format(reason: Reason, message: impl Into<String>) -> Error {
        Error::new(Status::Format, message).because(reason)
    }

    /// A failed system call; `doing` names it, such as `open`. A full disk or quota is [`Status::NoSpace`].
    pub(crate) fn io(doing: &str, error: &io::Error) -> Error {
        let os_error = error.raw_os_error().unwrap_or(0);
        let status = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Status::NoSpace,
            _ => Status::Io,
        };
        let mut text = error.to_string();
        if text.as_bytes().get(1).is_some_and(u8::is_ascii_lowercase) {
            text[..1].make_ascii_lowercase();
        }
        let mut made = Error::new(status, format!("{doing}: {text}"));
        made.0.os_error = os_error;
        made
    }

    pub(crate) fn because(mut self, reason: Reason) -> Error {
        self.0.reason = Some(reason);
        self
    }

    /// Appends to the message.
    pub(crate) fn and(mut self, more: &str) -> Error {
        self.0.message.push_str(more);
        self
    }

    /// Sets the file that the error is about, unless it is set already.
    pub fn at(mut self, path: &Path) -> Error {
        self.0.path.get_or_insert_with(|| path.to_owned());
        self
    }

    pub fn status(&self) -> Status {
        self.0.status
    }

    /// Why the file was rejected, if its content is the cause.
    pub fn reason(&self) -> Option<Reason> {
        self.0.reason
    }

    /// The system's error number (`errno`); 0 if no system call failed.
    pub fn os_error(&self) -> i32 {
        self.0.os_error
    }

    /// The file that the error is about.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// The message without the path of the file.
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.0.path {
            write!(out, "{}: ", Shortened(&path.to_string_lossy(), 200))?;
        }
        out.write_str(&self.0.message)
    }
}

impl std::error::Error for Error {}

/// A tensor's name for a message: in backticks, with control characters escaped, and shortened if it is long.
pub(crate) struct Name<'a>(pub &'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "`{}`", Shortened(self.0, 120))
    }
}

/// A string with control characters escaped. If it is longer than that, the middle is replaced by an ellipsis.
struct Shortened<'a>(&'a str, usize);

impl fmt::Display for Shortened<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shortened(text, most) = *self;
        if text.len() > most {
            // The limit is in bytes; cut at character boundaries.
            let head = text.floor_char_boundary(most / 2);
            let tail = text.floor_char_boundary(text.len() - most / 2);
            return write!(out, "{}...{}", Shortened(&text[..head], most), Shortened(&text[tail..], most));
        }
        for character in text.chars() {
            if character.is_control() {
                write!(out, "{}", character.escape_default())?;
            } else {
                write!(out, "{character}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_round_trip() {
        for status in Status::ALL {
            assert_eq!(Status::from_number(status as i32), Some(status));
        }
        assert_eq!(Status::from_number(15), None);
        assert_eq!(Status::from_number(-1), None);
    }

    #[test]
    fn a_message_names_the_file_once_and_starts_in_lower_case() {
        let error =
            Error::io("open", &io::Error::from_raw_os_error(libc::ENOENT)).at(Path::new("a")).at(Path::new("b"));
        assert_eq!(error.to_string(), "a: open: no such file or directory (os error 2)");
        assert_eq!((error.status(), error.os_error()), (Status::Io, libc::ENOENT));
        let full = Error::io("write", &io::Error::from_raw_os_error(libc::ENOSPC));
        assert_eq!(full.status(), Status::NoSpace);
    }

    #[test]
    fn long_and_hostile_names_stay_short_and_printable() {
        let name = format!("{}\u{1b}[31m{}", "é".repeat(500), "z".repeat(500));
        let shown = Name(&name).to_string();
        assert!(shown.len() < 140 && shown.starts_with("`éé") && shown.ends_with("zz`"), "{shown}");
        assert_eq!(Name("a\u{1b}\n").to_string(), "`a\\u{1b}\\n`");
    }
}
