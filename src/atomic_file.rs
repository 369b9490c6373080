//! A new file that is written to the directory of its target and then replaces the target atomically.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FallocateFlags};
use rustix::io::{Errno, retry_on_intr};
use tempfile::TempPath;

use crate::error::{Error, Result, Status};
use crate::source::require_regular;

/// Whether a write waits until the file is on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Durability {
    /// The new file survives a power failure once the call has returned.
    #[default]
    Durable = 0,
    /// The file is still replaced atomically, but nothing waits for the disk.
    NotDurable = 1,
}

/// The largest mode of a new file, before the umask is applied.
const NEW_FILE_MODE: u32 = 0o666;

/// An unfinished file. If it is dropped before [`AtomicFile::publish`], it leaves nothing behind.
///
/// If the file system supports `O_TMPFILE`, the new file has no name until it is published, so that even a killed
/// process leaves nothing behind. Otherwise it is a hidden file, which is removed after an error.
pub(crate) struct AtomicFile {
    file: File,
    name: Option<TempPath>,
    target: PathBuf,
    /// If there is no regular file at the target, the new file gets the mode and, if permitted, the owner of this one.
    model: Option<Metadata>,
    durability: Durability,
}

/// Replaces the file at a path with a small file of any content, atomically. A symbolic link is replaced, not followed.
pub fn replace(path: &Path, bytes: &[u8], durability: Durability) -> Result<()> {
    let write = || {
        let new_file = AtomicFile::like(path, durability, None)?;
        new_file.reserve(bytes.len() as u64)?;
        new_file.file().write_all_at(bytes, 0).map_err(|error| Error::io("write", &error))?;
        new_file.publish()
    };
    write().map_err(|error: Error| error.at(path))
}

impl AtomicFile {
    /// Creates an unfinished file for `target`: a regular file, a symbolic link (which is replaced, not followed) or
    /// nothing.
    ///
    /// If there is no regular file at the target, the new file takes mode and owner of `model`.
    pub(crate) fn like(target: &Path, durability: Durability, model: Option<&Metadata>) -> Result<AtomicFile> {
        if target.file_name().is_none() || target.as_os_str().as_bytes().ends_with(b"/") {
            return Err(Error::new(Status::InvalidArgument, "the path does not end in a file name"));
        }
        let model = replaceable(target)?.or_else(|| model.cloned());
        // Never more permissive than the file that it replaces, even while it is written.
        let mode = model.as_ref().map_or(NEW_FILE_MODE, |found| found.mode() & NEW_FILE_MODE);
        // The current directory may change before it is published.
        let target = std::path::absolute(target).map_err(|error| Error::io("current directory", &error))?;
        let directory = directory_of(&target);
        let (file, name) = match unnamed(directory, mode) {
            Some(file) => (file, None),
            None => {
                // Not `tempfile_in`, whose errors have no error number.
                let made = temp_names().make_in(directory, |path| {
                    File::options().read(true).write(true).create_new(true).mode(mode).open(path)
                });
                let (file, name) = made.map_err(|error| Error::io("create", &error))?.into_parts();
                (file, Some(name))
            }
        };
        Ok(AtomicFile { file, name, target, model, durability })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Sets the size of the file to `len` bytes and reserves the space, so that a full disk is detected now. The bytes
    /// are zero.
    pub(crate) fn reserve(&self, len: u64) -> Result<()> {
        // Before the attempt, because a partial reservation may keep the space until the file is closed.
        let free = rustix::fs::fstatvfs(&self.file).ok();
        let no_space = |error: io::Error| {
            let counted = free.as_ref().and_then(free_of).filter(|_| error.kind() != io::ErrorKind::FileTooLarge);
            let free = counted.map_or_else(String::new, |free| {
                format!(", {free} are free, {} are missing", len.saturating_sub(free))
            });
            Error::io(&format!("reserve: {len} bytes are needed{free}"), &error)
        };
        // Includes the space that is reserved for root, which root may use.
        let all = free
            .as_ref()
            .filter(|found| found.f_blocks > 0)
            .and_then(|found| found.f_bfree.checked_mul(found.f_frsize));
        if all.is_some_and(|all| all < len) {
            return Err(no_space(rustix::io::Errno::NOSPC.into()));
        }
        // On tmpfs, reserving pages costs time, so checking the free space has to suffice.
        if all.is_some() && in_memory(&self.file) {
            return self.file.set_len(len).map_err(|error| Error::io("truncate", &error));
        }
        match retry_on_intr(|| rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, len)) {
            Ok(()) => return Ok(()),
            // The file system cannot reserve space; some report this as ENOSYS or EINVAL.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS | rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(no_space(error.into())),
        }
        self.file.set_len(len).map_err(|error| Error::io("truncate", &error))
    }

    /// Syncs the data, unless the file is [`Durability::NotDurable`]. [`AtomicFile::publish`] does this too; this is
    /// for several files that must be complete before the first one is published.
    pub(crate) fn sync(&self) -> Result<()> {
        match self.durability {
            Durability::Durable => self.file.sync_all().map_err(|error| Error::io("sync", &error)),
            Durability::NotDurable => Ok(()),
        }
    }

    /// Replaces the target with the new file, by a rename.
    pub(crate) fn publish(self) -> Result<()> {
        let AtomicFile { file, name, target, model, durability } = self;
        // Check again: the target may have been replaced.
        if let Some(model) = replaceable(&target)?.or(model) {
            keep_owner_and_mode(&file, &model)?;
        }
        if durability == Durability::Durable {
            file.sync_all().map_err(|error| Error::io("sync", &error))?;
        }
        let directory = directory_of(&target);
        let name = match name {
            Some(name) => Some(name),
            // If there is no file at the target, the new file gets that name directly; a link cannot replace.
            None if link(&file, &target).is_ok() => None,
            None => {
                let linked = temp_names().make_in(directory, |path| link(&file, path));
                Some(linked.map_err(|error| Error::io("link", &error))?.into_temp_path())
            }
        };
        if let Some(name) = name {
            name.persist(&target).map_err(|error| Error::io("rename", &error.error))?;
        }
        if durability == Durability::Durable {
            sync_directory(directory)?;
        }
        Ok(())
    }
}

/// Bytes that are available to this process in the file system of that directory; `None` if it does not report them.
pub fn free_space_in(directory: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(directory).ok()?;
    let all = found.f_bfree.checked_mul(found.f_frsize);
    // Root may also use the reserved space.
    free_of(&found).and_then(|free| if rustix::process::geteuid().is_root() { all } else { Some(free) })
}

#[cfg(target_os = "linux")]
fn in_memory(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|found| found.f_type == libc::TMPFS_MAGIC)
}

#[cfg(not(target_os = "linux"))]
fn in_memory(_file: &File) -> bool {
    false
}

/// A file system that reports no size (ramfs, some network file systems) reports no free space either.
fn free_of(found: &rustix::fs::StatVfs) -> Option<u64> {
    if found.f_blocks == 0 { None } else { found.f_bavail.checked_mul(found.f_frsize) }
}

pub(crate) fn directory_of(target: &Path) -> &Path {
    match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Names of temporary files: hidden, of fixed length, and without the extension of a model file.
fn temp_names() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".safealign-").suffix(".tmp");
    builder
}

/// An unnamed file in that directory, if the system and the file system support it.
#[cfg(target_os = "linux")]
fn unnamed(directory: &Path, mode: u32) -> Option<File> {
    // It is named through /proc, which some containers lack.
    if !Path::new("/proc/self/fd").exists() {
        return None;
    }
    let flags = rustix::fs::OFlags::TMPFILE.bits() as i32;
    File::options().read(true).write(true).mode(mode).custom_flags(flags).open(directory).ok()
}

#[cfg(not(target_os = "linux"))]
fn unnamed(_directory: &Path, _mode: u32) -> Option<File> {
    None
}

/// Gives an unnamed file a name, which must not exist.
fn link(file: &File, path: &Path) -> io::Result<()> {
    let by_descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::linkat(CWD, &by_descriptor, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

/// The regular file at a path; `None` for a symbolic link or if nothing is there. Anything else cannot be replaced, and
/// is an error.
fn replaceable(path: &Path) -> Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => Ok(None),
        Ok(found) => require_regular(found.file_type()).map(|()| Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("stat", &error)),
    }
}

/// Sets the owner first, because changing it clears the set-id bits. This requires a privilege; without it, the owner
/// is that of the process.
fn keep_owner_and_mode(file: &File, replaced: &Metadata) -> Result<()> {
    let _ = std::os::unix::fs::fchown(file, Some(replaced.uid()), Some(replaced.gid()));
    let mode = Permissions::from_mode(replaced.mode() & 0o7777);
    file.set_permissions(mode).map_err(|error| Error::io("chmod", &error))
}

pub(crate) fn sync_directory(directory: &Path) -> Result<()> {
    let synced = File::open(directory).and_then(|opened| opened.sync_all());
    match synced {
        // Some file systems cannot sync a directory and return EINVAL.
        Err(error) if error.raw_os_error() != Some(Errno::INVAL.raw_os_error()) => {
            Err(Error::io("the file is in place, but its directory could not be synced", &error))
        }
        _ => Ok(()),
    }
}
