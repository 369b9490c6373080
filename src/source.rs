//! Opens a file to be read and reads its header, without touching the data.

use std::fs::{File, FileType, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::fs::OFlags;
use rustix::io::{Errno, retry_on_intr};

use crate::error::{Error, Result, Status};
use crate::header::{self, Header, PREFIX_LEN};

/// Opens a regular file for reading. Anything else is an error at once: opening a FIFO would wait for its other end,
/// and opening a device can have side effects.
pub(crate) fn open_regular(path: &Path) -> Result<(File, Metadata)> {
    let before = std::fs::metadata(path).map_err(|error| Error::io("open", &error))?;
    require_regular(before.file_type())?;
    // Non-blocking, should a FIFO have replaced the file meanwhile; for a regular file it makes no difference.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let opened = File::options().read(true).custom_flags(flags).open(path);
    let file = opened.map_err(|error| Error::io("open", &error))?;
    let metadata = file.metadata().map_err(|error| Error::io("stat", &error))?;
    require_regular(metadata.file_type())?;
    Ok((file, metadata))
}

/// Refuses everything but a regular file; the message says what it is.
pub(crate) fn require_regular(kind: FileType) -> Result<()> {
    let what = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(Error::new(Status::Io, format!("is {what}, not a regular file")))
}

/// What tells that a file is still the same one, unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub device: u64,
    pub inode: u64,
    pub size: u64,
    /// Seconds and nanoseconds.
    pub mtime: (i64, i64),
    pub ctime: (i64, i64),
}

impl Identity {
    pub(crate) fn of(found: &Metadata) -> Identity {
        Identity {
            device: found.dev(),
            inode: found.ino(),
            size: found.size(),
            mtime: (found.mtime(), found.mtime_nsec()),
            ctime: (found.ctime(), found.ctime_nsec()),
        }
    }

    /// Whether these are names of one file, changed or not.
    pub(crate) fn same_file(&self, found: &Metadata) -> bool {
        (self.device, self.inode) == (found.dev(), found.ino())
    }

    /// Whether it is the same file with the same size and modification time. A new name or mode makes no difference.
    pub(crate) fn same_content(&self, found: &Metadata) -> bool {
        let other = Identity::of(found);
        Identity { ctime: other.ctime, ..*self } == other
    }
}

/// Reads and parses the header of a file of `file_len` bytes. Reads the 8-byte prefix and the header, nothing else.
pub(crate) fn read_header(file: &File, file_len: u64) -> Result<Header> {
    read_header_at(file, 0, file_len)
}

/// As [`read_header`], for `len` bytes of a file from `start` on.
///
/// The header is read and not mapped: a file that shrinks or changes meanwhile gives an error here, where a mapping
/// would raise SIGBUS or change a string after it was checked.
pub(crate) fn read_header_at(file: &File, start: u64, len: u64) -> Result<Header> {
    let mut prefix = [0; PREFIX_LEN as usize];
    let prefix = &mut prefix[..len.min(PREFIX_LEN) as usize];
    file.read_exact_at(prefix, start).map_err(|error| read_error(&error))?;
    let json_len = header::read_prefix(prefix, len)? as usize;
    let mut json = Vec::new();
    if json.try_reserve_exact(json_len).is_err() {
        return Err(Error::io("read", &Errno::NOMEM.into()));
    }
    while json.len() < json_len {
        // Into the spare capacity, which need not be filled with zeros first.
        let offset = start + PREFIX_LEN + json.len() as u64;
        let read = retry_on_intr(|| rustix::io::pread(file, spare_capacity(&mut json), offset));
        match read {
            Ok(0) => return Err(read_error(&io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => json.truncate(json_len),
            Err(error) => return Err(Error::io("read", &error.into())),
        }
    }
    Header::parse(&json)
}

/// The header of a file in memory.
pub(crate) fn header_of(bytes: &[u8]) -> Result<Header> {
    let prefix = &bytes[..bytes.len().min(PREFIX_LEN as usize)];
    let json_len = header::read_prefix(prefix, bytes.len() as u64)? as usize;
    // `read_prefix` checked that the header ends within the bytes.
    Header::parse(bytes.get(PREFIX_LEN as usize..).and_then(|rest| rest.get(..json_len)).unwrap_or_default())
}

/// A failed read. One that meets the end of the file where there were bytes before means that the file was truncated.
pub(crate) fn read_error(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::new(Status::Changed, "the file became shorter while it was read"),
        _ => Error::io("read", error),
    }
}
