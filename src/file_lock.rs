//! A lock between processes, on a file of its own.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use crate::error::{Error, Result};

/// Held by one process at a time, and released when it is dropped or the process ends.
pub(crate) struct FileLock(#[expect(dead_code, reason = "closing the file releases the lock")] File);

impl FileLock {
    /// As [`FileLock::wait`], on a directory, which leaves no file behind.
    pub(crate) fn of_directory(path: &Path) -> Result<FileLock> {
        let file = File::open(path).map_err(|error| Error::io("open", &error).at(path))?;
        Ok(FileLock::locked(file))
    }

    /// Waits until no one else holds the lock. The file is created where it is missing.
    ///
    /// Some network file systems have no locks. There the call succeeds at once: everything that is written under a
    /// lock is put in place by a rename, so concurrent calls only do the same work twice.
    pub(crate) fn wait(path: &Path) -> Result<FileLock> {
        // Not through a symbolic link, which would create a file elsewhere, and not blocking on a FIFO.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let opened = File::options().create(true).truncate(false).write(true).custom_flags(flags).open(path);
        let file = opened.map_err(|error| Error::io("lock", &error).at(path))?;
        Ok(FileLock::locked(file))
    }

    fn locked(file: File) -> FileLock {
        while let Err(error) = file.lock() {
            if error.kind() != std::io::ErrorKind::Interrupted {
                break;
            }
        }
        FileLock(file)
    }
}
