//! What repair refuses to do, and the way out.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::atomic_file::{directory_of, free_space_in};
use crate::bundle::cache;
use crate::error::{Error, Result, Status};
use crate::source::Identity;

const WAY_OUT: &str = "write the repaired file to another directory (`--output DIR`), or make an overlay";

/// Refuses to replace a file where that could harm something that its name or its links promise. `found` is what is
/// at the path itself, not what a link there points to.
pub(super) fn may_replace(path: &Path, found: &Metadata) -> Result<()> {
    if found.is_symlink() {
        return refuse(format!("is a symbolic link, perhaps into a download cache: {WAY_OUT}"));
    }
    if found.nlink() > 1 {
        let links = found.nlink();
        return refuse(format!("has {links} hard links, and the other names would keep the old content: {WAY_OUT}"));
    }
    not_in_a_cache(path)?;
    may_write(path, found)
}

/// Refuses a destination that is the source by any name.
pub(super) fn is_another(destination: &Path, source: &Identity) -> Result<()> {
    let found = [fs::symlink_metadata(destination), fs::metadata(destination)];
    if found.into_iter().flatten().any(|found| source.same_file(&found)) {
        return refuse(format!(
            "is the source itself: to replace it, ask for a repair in place (`--in-place`), or {WAY_OUT}"
        ));
    }
    Ok(())
}

/// Refuses a path in a cache whose files are named by their content.
pub(super) fn not_in_a_cache(path: &Path) -> Result<()> {
    if cache::is_content_addressed(path) {
        return refuse(format!("is a cache entry named by the hash of its content, which must not change: {WAY_OUT}"));
    }
    Ok(())
}

/// Refuses a file that is marked read-only, or whose directory is. This also applies to root, whom the system would not
/// stop.
pub(super) fn may_write(path: &Path, found: &Metadata) -> Result<()> {
    if found.mode() & 0o222 == 0 || !is_writable(path) {
        return refuse(format!("is read-only: make it writable (chmod u+w), or {WAY_OUT}"));
    }
    let directory = directory_of(path);
    let found = fs::metadata(directory).map_err(|error| Error::io("stat", &error))?;
    if found.mode() & 0o222 == 0 || !is_writable(directory) {
        return refuse(format!("its directory is read-only: make it writable (chmod u+w), or {WAY_OUT}"));
    }
    Ok(())
}

fn is_writable(path: &Path) -> bool {
    !matches!(
        rustix::fs::access(path, rustix::fs::Access::WRITE_OK),
        Err(rustix::io::Errno::ACCESS | rustix::io::Errno::ROFS | rustix::io::Errno::PERM)
    )
}

/// Refuses where fewer bytes are free beside `target` than the new file takes. The old one stays until the new one is
/// whole, so its space does not count.
pub(super) fn room_for(target: &Path, size: u64) -> Result<()> {
    room_in(directory_of(target), size, "the new file")
}

/// Refuses where fewer bytes are free in the file system of a directory than that takes.
pub(crate) fn room_in(directory: &Path, size: u64, what: &str) -> Result<()> {
    match free_space_in(directory) {
        Some(free) if free < size => refuse(format!(
            "{size} bytes are needed for {what}, {free} are free, {} are missing: free some space, or write to another \
             disk",
            size - free
        )),
        _ => Ok(()),
    }
}

/// What is at a path itself, if anything.
pub(super) fn at(path: &Path) -> Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("stat", &error)),
    }
}

pub(super) fn refuse<T>(message: String) -> Result<T> {
    Err(Error::new(Status::Refused, message))
}
