//! A new file that is written beside its target and then replaces the target in one step.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FallocateFlags};
use rustix::io::retry_on_intr;
use tempfile::TempPath;

use crate::error::{Error, Result, Status};
use crate::source::require_regular;

/// Whether a write waits until the file is on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Durability {
    /// The file and its directory entry survive a power failure once the call has returned.
    #[default]
    Durable = 0,
    /// The replacement is still atomic, but the syncs are skipped.
    NotDurable = 1,
}

/// The largest mode of a new file, before the umask is applied.
const NEW_FILE_MODE: u32 = 0o666;

/// Dropped before [`AtomicFile::publish`], it leaves nothing behind.
///
/// Where the file system can (`O_TMPFILE`), the new file has no name until it is published, so that not even a killed
/// process leaves it; elsewhere it is a hidden file that an error removes.
pub(crate) struct AtomicFile {
    file: File,
    name: Option<TempPath>,
    target: PathBuf,
    /// Whose mode and, where permitted, owner it gets, should no regular file stand at the target when it is published.
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
    /// Begins a file that is to stand at `target`, where a regular file, a symbolic link (which is replaced, not
    /// followed) or nothing may be.
    ///
    /// Where no regular file stands at the target, the new one takes mode and owner of `model`.
    pub(crate) fn like(target: &Path, durability: Durability, model: Option<&Metadata>) -> Result<AtomicFile> {
        if target.file_name().is_none() || target.as_os_str().as_bytes().ends_with(b"/") {
            return Err(Error::new(Status::InvalidArgument, "the path does not end in a file name"));
        }
        let model = replaceable(target)?.or_else(|| model.cloned());
        // Never wider than what it replaces, also while it is written.
        let mode = model.as_ref().map_or(NEW_FILE_MODE, |found| found.mode() & NEW_FILE_MODE);
        // The current directory may be another one by the time that it is published.
        let target = std::path::absolute(target).map_err(|error| Error::io("current directory", &error))?;
        let directory = directory_of(&target);
        let (file, name) = match unnamed(directory, mode) {
            Some(file) => (file, None),
            None => {
                // Not `tempfile_in`, whose errors have no number.
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

    /// Makes the file `len` bytes long and reserves their blocks, so that a full disk shows now. The bytes are zero.
    pub(crate) fn reserve(&self, len: u64) -> Result<()> {
        // Counted before the attempt: one that fails half-way may hold what it got until the new file is gone.
        let free = rustix::fs::fstatvfs(&self.file).ok();
        let no_space = |error: io::Error| {
            let counted = free.as_ref().and_then(free_of).filter(|_| error.kind() != io::ErrorKind::FileTooLarge);
            let free = counted.map_or_else(String::new, |free| {
                format!(", {free} are free, {} are missing", len.saturating_sub(free))
            });
            Error::io(&format!("reserve: {len} bytes are needed{free}"), &error)
        };
        // What the system keeps for root counts here, so that root is not refused what it may have.
        let all = free
            .as_ref()
            .filter(|found| found.f_blocks > 0)
            .and_then(|found| found.f_bfree.checked_mul(found.f_frsize));
        if all.is_some_and(|all| all < len) {
            return Err(no_space(rustix::io::Errno::NOSPC.into()));
        }
        // In memory, reserving a page and then filling it costs more than filling it, so what was counted has to do.
        if all.is_some() && in_memory(&self.file) {
            return self.file.set_len(len).map_err(|error| Error::io("truncate", &error));
        }
        match retry_on_intr(|| rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, len)) {
            Ok(()) => return Ok(()),
            // A file system that cannot reserve; and one that would rather say so by ENOSYS or EINVAL.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS | rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(no_space(error.into())),
        }
        self.file.set_len(len).map_err(|error| Error::io("truncate", &error))
    }

    /// Makes the content durable, if that was asked for. [`AtomicFile::publish`] does it too; this is for several files
    /// that are to be complete before the first one is published.
    pub(crate) fn sync(&self) -> Result<()> {
        match self.durability {
            Durability::Durable => self.file.sync_all().map_err(|error| Error::io("sync", &error)),
            Durability::NotDurable => Ok(()),
        }
    }

    /// Puts the new file in the target's place. Until the rename the target is untouched; after it, it is the new file.
    pub(crate) fn publish(self) -> Result<()> {
        let AtomicFile { file, name, target, model, durability } = self;
        // Looked at again: what stands there may have changed since.
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

/// Bytes that this process can still take in that folder's file system, where it says so.
pub fn free_space_in(directory: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(directory).ok()?;
    let all = found.f_bfree.checked_mul(found.f_frsize);
    // What the system keeps for root is root's to take.
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

/// A file system without a size (ramfs, some that are mounted over a network) does not count its free space either.
fn free_of(found: &rustix::fs::StatVfs) -> Option<u64> {
    if found.f_blocks == 0 { None } else { found.f_bavail.checked_mul(found.f_frsize) }
}

pub(crate) fn directory_of(target: &Path) -> &Path {
    match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Names of temporary files: hidden, of a length that does not depend on the target's, and not ending like a model.
fn temp_names() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".safealign-").suffix(".tmp");
    builder
}

/// A file without a name in that directory, where the system and the file system have such a thing.
#[cfg(target_os = "linux")]
fn unnamed(directory: &Path, mode: u32) -> Option<File> {
    // It gets its name through /proc, which not every container has.
    if !Path::new("/proc/self/fd").exists() {
        return None;
    }
    let flags = libc::O_TMPFILE;
    File::options().read(true).write(true).mode(mode).custom_flags(flags).open(directory).ok()
}

#[cfg(not(target_os = "linux"))]
fn unnamed(_directory: &Path, _mode: u32) -> Option<File> {
    None
}

/// Gives an unnamed file a name that nothing has.
fn link(file: &File, path: &Path) -> io::Result<()> {
    let by_descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::linkat(CWD, &by_descriptor, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

/// The regular file at a path, which a new file may replace, as it may a symbolic link, or nothing; anything else is an
/// error.
fn replaceable(path: &Path) -> Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => Ok(None),
        Ok(found) => require_regular(found.file_type()).map(|()| Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("stat", &error)),
    }
}

/// The owner first, since changing it clears the set-id bits. Giving a file away takes a privilege: without it the
/// file is the writer's, as after any save.
fn keep_owner_and_mode(file: &File, replaced: &Metadata) -> Result<()> {
    let _ = std::os::unix::fs::fchown(file, Some(replaced.uid()), Some(replaced.gid()));
    let mode = Permissions::from_mode(replaced.mode() & 0o7777);
    file.set_permissions(mode).map_err(|error| Error::io("chmod", &error))
}

pub(crate) fn sync_directory(directory: &Path) -> Result<()> {
    let synced = File::open(directory).and_then(|opened| opened.sync_all());
    match synced {
        // Some file systems cannot sync a directory and say so by EINVAL.
        Err(error) if error.raw_os_error() != Some(libc::EINVAL) => {
            Err(Error::io("the file is in place, but its directory could not be synced", &error))
        }
        _ => Ok(()),
    }
}
