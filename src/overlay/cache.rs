//! The aligned twin of a file, in a folder of twins.

use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::manifest::Lock;
use crate::error::{Error, Result, Status};
use crate::header::Header;
use crate::repair::{Identity, RepairOptions, repair_ours};
use crate::source;

/// The twin of the misaligned file at `path`, which was opened and has that header: the one in the folder, or a new one.
///
/// A twin's name tells which file it is of, and of what size and times: one that is stale is not found, and is removed
/// when the next is made. Two processes at once: one writes, the other waits.
pub(crate) fn twin_of(
    path: &Path,
    found: &Metadata,
    header: &Header,
    folder: &Path,
) -> Result<(PathBuf, File, Metadata)> {
    fs::create_dir_all(folder).map_err(|error| Error::io("create", &error).at(folder))?;
    let real = fs::canonicalize(path).map_err(|error| Error::io("open", &error).at(path))?;
    let key = hash(&real);
    // The time of the last change of anything, too: nobody can set that back.
    let times = [(found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec())];
    let [mtime, ctime] = times.map(|(seconds, nanoseconds)| format!("{seconds:x}.{nanoseconds:x}"));
    let stamp = format!("{:x}-{mtime}-{ctime}", found.size());
    let twin = folder.join(format!("{key:016x}-{:x}-{:x}-{stamp}.safetensors", found.dev(), found.ino()));
    if let Some((file, metadata)) = open(&twin, header) {
        return Ok((twin, file, metadata));
    }
    let _lock = Lock::of(&folder.join(format!("{key:016x}.lock")))?;
    if let Some((file, metadata)) = open(&twin, header) {
        return Ok((twin, file, metadata));
    }
    // The source keeps its trailing bytes, which no reader of tensors sees.
    let mut options = RepairOptions { drop_trailing: true, ..RepairOptions::default() };
    repair_ours(path, &twin, &mut |_| Ok(()), &mut options)?;
    // Another file may have taken the path since it was opened: then this is a twin of that one.
    let is_same = fs::metadata(path).is_ok_and(|now| Identity::of(&now) == Identity::of(found));
    if let Some((file, metadata)) = open(&twin, header).filter(|_| is_same) {
        remove_stale(folder, key, &twin);
        return Ok((twin, file, metadata));
    }
    let _ = fs::remove_file(&twin);
    Err(Error::new(Status::Changed, "the file changed while its twin was written").at(path))
}

/// Opens a twin, if it is there and holds what that header says.
fn open(twin: &Path, header: &Header) -> Option<(File, Metadata)> {
    // A link is not ours.
    fs::symlink_metadata(twin).ok().filter(|found| found.is_file())?;
    let (file, metadata) = source::open_regular(twin).ok()?;
    let ours = source::read_header(&file, metadata.len()).ok()?;
    let survey = ours.survey(metadata.len().checked_sub(ours.data_start())?).ok()?;
    let same = ours.len() == header.len()
        && ours.metadata().eq(header.metadata())
        && header.iter().all(|tensor| {
            let twin = ours.find(tensor.name).and_then(|index| ours.get(index));
            twin.is_some_and(|twin| twin.dtype == tensor.dtype && twin.shape == tensor.shape)
        });
    (same && survey.misaligned_tensors == 0).then_some((file, metadata))
}

/// Removes twins of earlier contents of the same path; those who have one mapped keep it.
fn remove_stale(folder: &Path, key: u64, keep: &Path) {
    let prefix = format!("{key:016x}-");
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_twin = entry.file_name().as_bytes().starts_with(prefix.as_bytes());
        if is_twin && entry.path() != keep {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// FNV-1a: the same in every process and version, unlike the hash of the standard library.
fn hash(path: &Path) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    path.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step)
}
