//! Opens a file to be read and takes its header, without touching the data.

use std::fs::{File, FileType, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::io::retry_on_intr;

use crate::error::{Error, Result, Status};
use crate::header::{self, Header, PREFIX_LEN};

/// Opens a regular file for reading. Anything else is an error at once: opening a FIFO would wait for its other end,
/// and opening a device can set it in motion.
pub(crate) fn open_regular(path: &Path) -> Result<(File, Metadata)> {
    let before = std::fs::metadata(path).map_err(|error| Error::io("open", &error))?;
    require_regular(before.file_type())?;
    // Non-blocking, should a FIFO have taken the file's place meanwhile; a regular file does not know the difference.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let opened = File::options().read(true).custom_flags(flags).open(path);
    let file = opened.map_err(|error| Error::io("open", &error))?;
    let metadata = file.metadata().map_err(|error| Error::io("stat", &error))?;
    require_regular(metadata.file_type())?;
    Ok((file, metadata))
}

/// Refuses everything but a regular file, by the name of what it is.
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

/// Reads and parses the header of a file of `file_len` bytes. Reads the 8-byte prefix and the header, nothing else.
///
/// The header is read and not mapped: a file that shrinks or changes meanwhile gives an error here, where a mapping
/// would raise SIGBUS or change a text after it was checked.
pub(crate) fn read_header(file: &File, file_len: u64) -> Result<Header> {
    let mut prefix = [0; PREFIX_LEN as usize];
    let prefix = &mut prefix[..file_len.min(PREFIX_LEN) as usize];
    file.read_exact_at(prefix, 0).map_err(|error| read_error(&error))?;
    let json_len = header::read_prefix(prefix, file_len)? as usize;
    let mut json = Vec::new();
    if json.try_reserve_exact(json_len).is_err() {
        return Err(Error::io("read", &io::Error::from_raw_os_error(libc::ENOMEM)));
    }
    while json.len() < json_len {
        // Into the spare capacity, which need not be filled with zeros first.
        let offset = PREFIX_LEN + json.len() as u64;
        let read = retry_on_intr(|| rustix::io::pread(file, spare_capacity(&mut json), offset));
        match read {
            Ok(0) => return Err(read_error(&io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => json.truncate(json_len),
            Err(error) => return Err(Error::io("read", &error.into())),
        }
    }
    Header::parse(&json)
}

/// A failed read. One that meets the end of the file where there were bytes before is somebody else's doing.
pub(crate) fn read_error(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::new(Status::Changed, "the file became shorter while it was read"),
        _ => Error::io("read", error),
    }
}
