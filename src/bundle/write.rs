//! Writes a bundle: all its shards and its index, or nothing.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::index;
use super::names::{self, ModelName};
use crate::atomic_file::{AtomicFile, sync_directory};
use crate::error::{Error, Name, Result, Status};
use crate::file_lock::FileLock;
use crate::header::first_duplicate;
use crate::layout::{Plan, TensorSpec};
use crate::source::require_regular;
use crate::writer::{Durability, Progress, Tensor, WriteOptions, WriteReport, write_contents};

/// A bundle, as [`write_sharded`] leaves it. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardedReport {
    /// The model files, in the order of the tensors.
    pub shards: Vec<PathBuf>,
    /// The index; `None` if there is only one model file.
    pub index: Option<PathBuf>,
    /// Number of tensors.
    pub tensors: u64,
    /// Their total size, without padding: `total_size` of the index.
    pub tensor_bytes: u64,
    /// Total size of the model files, without the index.
    pub file_bytes: u64,
    /// Zero bytes between tensors; 0 in the compact layout.
    pub gap_bytes: u64,
    /// Tensors whose position in their shard differs from the one that they were given in.
    pub tensors_moved: u64,
    /// Old files of the prefix that were removed and not replaced by one of the same name.
    pub removed: u64,
}

/// Writes tensors to shards, and the index that says which shard holds which tensor, into `directory`, which has to
/// exist.
///
/// The tensors are split in their order. A new shard begins where the next tensor would bring the tensor data of the
/// shard above `max_shard_bytes`; a larger tensor gets a shard of its own. Shards are named
/// `PREFIX-00001-of-00002.safetensors`, and the index `PREFIX.safetensors.index.json`. If one shard is enough, it is
/// named `PREFIX.safetensors` and there is no index, as in the Hugging Face libraries. Within a shard, `options.layout`
/// applies. The same input gives the same bytes.
///
/// `metadata` is written to each model file, and to the `metadata` object of the index beside `total_size`, the size of
/// all tensors in bytes, which replaces an entry of that name.
///
/// `options.progress` is called with the bytes written and those in all, over all shards, without the index.
///
/// # Replacing
/// Model files and the index of the same prefix (and of no variant: `PREFIX.fp16` is another prefix) are refused
/// ([`Status::Refused`]), unless `replace` is true: then they are replaced, and those that have no successor are
/// removed. Names are compared by their text: shards that an old index lists under other names stay.
///
/// Space for all files is reserved before the first byte is written, and all of them are complete, and with
/// [`Durability::Durable`] on disk, before a name in the directory changes. Then the shards get their names, and the
/// index last; stale files are removed. What a reader that opens the bundle in between can see depends on the names of
/// the shards, which contain their number:
///
/// - If no new shard has the name of an old one, the old bundle stays complete until the index is replaced or removed,
///   in one step; from then on it is the new bundle. Without an index on one side, opening the directory may be refused
///   as ambiguous in between; opening the index or the file is not.
/// - If names collide (as many shards as before), the old files are first set aside, the index first, as hidden files
///   (`.NAME.safealign-old`). A reader finds a missing file in between, but never old and new tensors together, unless
///   it opened the first file before and the last one after: [`Bundle::open`](super::Bundle::open) notices that
///   ([`Status::Changed`]).
///
/// Files that are already open or mapped keep their content. Concurrent calls for the same
/// directory are serialised.
///
/// # Errors
/// Whatever fails, the old files are back under their names and no new file is left, with one exception: a failure to
/// remove an old file is reported when the new bundle is in place. If the process is killed, a reader sees what is
/// described above, and nothing is lost: where names collide, the old files may have their hidden names, complete.
/// [`Bundle::open`](super::Bundle::open) then names one of them in its error. Renaming each to its old name restores
/// the old bundle; a later call with `replace` writes the new one and then removes them.
///
/// [`Status::InvalidArgument`]: a `max_shard_bytes` of 0, two tensors of the same name, a prefix that is empty, starts
/// with a dot, ends with a shard number, or contains `/`, a backslash or NUL; and those of
/// [`Plan::new`]. [`Status::NoSpace`], [`Status::Io`], which includes too many open files: there is one for each shard
/// until all are complete. [`Status::Cancelled`].
pub fn write_sharded(
    directory: &Path,
    prefix: &str,
    max_shard_bytes: u64,
    tensors: &[Tensor],
    metadata: &[(&str, &str)],
    options: WriteOptions,
    replace: bool,
) -> Result<ShardedReport> {
    // The current directory may be another one by the time that files are renamed.
    let absolute =
        std::path::absolute(directory).map_err(|error| Error::io("current directory", &error).at(directory))?;
    let directory = &*absolute;
    let invalid = |message: String| Error::new(Status::InvalidArgument, message).at(directory);
    check_prefix(prefix).map_err(|problem| invalid(format!("prefix {}: {problem}", Name(prefix))))?;
    if max_shard_bytes == 0 {
        return Err(invalid("the largest size of a shard is 0 bytes".to_owned()));
    }
    if let Some(name) = first_duplicate(tensors.iter().map(|tensor| tensor.name)) {
        return Err(invalid(format!("tensor {}: two tensors have this name", Name(name))));
    }
    let shards = plan(directory, prefix, max_shard_bytes, tensors, metadata, &options)?;
    let tensor_bytes = tensors.iter().map(|tensor| tensor.data.len() as u64).sum();
    let index = match shards.len() {
        1 => None,
        _ => {
            let map = shards.iter().flat_map(|shard| shard.tensors.iter().map(|tensor| (tensor.name, &*shard.name)));
            Some(index::emit(tensor_bytes, metadata, map).map_err(|error| error.at(directory))?)
        }
    };
    // Two calls at once would mix their shards.
    let _lock = FileLock::of_directory(directory)?;
    let old = OldFiles::find(directory, prefix)?;
    if let Some(name) = old.files.first().filter(|_| !replace) {
        let files = if old.files.len() == 1 { "file" } else { "files" };
        let count = old.files.len();
        let name = Name(&name.to_string_lossy()).to_string();
        let message = format!(
            "already has {count} {files} of the prefix {}, such as {name}: choose another prefix, or ask to replace them",
            Name(prefix)
        );
        return Err(Error::new(Status::Refused, message).at(directory));
    }
    let durability = options.durability;
    let new = NewFiles::write(directory, prefix, &shards, index.as_deref(), options)?;
    let mut swap = Swap { directory, durability, aside: Vec::new(), published: Vec::new() };
    let mut stale = match swap.run(&old.files, new) {
        Ok(stale) => stale,
        Err(error) => return Err(swap.undo(error)),
    };
    if replace {
        stale.extend(old.leftovers);
    }
    swap.finish(stale)?;
    let is_replaced = |name: &OsString| {
        shards.iter().any(|shard| **name == *shard.name) || { index.is_some() && **name == *names::index_name(prefix) }
    };
    let reports: Vec<WriteReport> = shards.iter().map(|shard| WriteReport::of(&shard.plan)).collect();
    Ok(ShardedReport {
        shards: shards.iter().map(|shard| directory.join(&shard.name)).collect(),
        index: index.as_ref().map(|_| directory.join(names::index_name(prefix))),
        tensors: tensors.len() as u64,
        tensor_bytes,
        file_bytes: reports.iter().map(|report| report.file_size).sum(),
        gap_bytes: reports.iter().map(|report| report.gap_bytes).sum(),
        tensors_moved: reports.iter().map(|report| report.tensors_moved).sum(),
        removed: old.files.iter().filter(|name| !is_replaced(name)).count() as u64,
    })
}

/// Says what is wrong with a prefix.
fn check_prefix(prefix: &str) -> std::result::Result<(), &'static str> {
    if prefix.is_empty() {
        return Err("is empty");
    }
    if prefix.starts_with('.') {
        return Err("starts with a dot");
    }
    if prefix.contains(['/', '\\', '\0']) {
        return Err("contains `/`, a backslash or NUL");
    }
    match ModelName::parse(&names::model_name(prefix)) {
        Some(ModelName { shard: None, .. }) => Ok(()),
        _ => Err("ends with a shard number"),
    }
}

/// A shard that is to be written.
struct Shard<'a> {
    name: String,
    tensors: &'a [Tensor<'a>],
    plan: Plan,
}

fn plan<'a>(
    directory: &Path,
    prefix: &str,
    max_shard_bytes: u64,
    tensors: &'a [Tensor<'a>],
    metadata: &[(&str, &str)],
    options: &WriteOptions,
) -> Result<Vec<Shard<'a>>> {
    let ranges = split(tensors.iter().map(|tensor| tensor.data.len() as u64), max_shard_bytes);
    let total = ranges.len();
    let shard = |(number, range): (usize, Range<usize>)| {
        let name = if total == 1 { names::model_name(prefix) } else { names::shard_name(prefix, number, total) };
        let tensors = &tensors[range];
        let specs: Vec<TensorSpec> = tensors.iter().map(Tensor::spec).collect();
        let plan = Plan::new(&specs, metadata, &options.layout).map_err(|error| error.at(&directory.join(&name)))?;
        Ok(Shard { name, tensors, plan })
    };
    (1..).zip(ranges).map(shard).collect()
}

/// Splits a list of sizes into consecutive ranges whose sums are at most `most`, except for a single larger one. There
/// is at least one range.
fn split(sizes: impl Iterator<Item = u64>, most: u64) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut start, mut end, mut sum) = (0, 0, 0u64);
    for size in sizes {
        let with = sum.saturating_add(size);
        if with > most && end > start {
            ranges.push(start..end);
            (start, sum) = (end, size);
        } else {
            sum = with;
        }
        end += 1;
    }
    ranges.push(start..end);
    ranges
}

/// The files of a prefix that are in the directory.
struct OldFiles {
    /// Model files and index, sorted by name.
    files: Vec<OsString>,
    /// Files that an earlier call set aside and did not remove, because it was killed.
    leftovers: Vec<OsString>,
}

impl OldFiles {
    fn find(directory: &Path, prefix: &str) -> Result<OldFiles> {
        let list = || {
            let entries = fs::read_dir(directory)?.collect::<std::io::Result<Vec<_>>>()?;
            Ok(entries.iter().map(fs::DirEntry::file_name).collect())
        };
        let all: Vec<OsString> = list().map_err(|error| Error::io("list", &error).at(directory))?;
        let is_ours = |name: &str| {
            name == names::index_name(prefix)
                || names::set_of_index(name).is_some_and(|set| set == prefix)
                || ModelName::parse(name).is_some_and(|name| name.set == prefix)
        };
        let (mut files, mut leftovers) = (Vec::new(), Vec::new());
        for name in all {
            let Some(text) = name.to_str() else { continue };
            if is_ours(text) {
                let path = directory.join(&name);
                let found = fs::symlink_metadata(&path).map_err(|error| Error::io("stat", &error).at(&path))?;
                if !found.is_symlink() {
                    require_regular(found.file_type()).map_err(|error| error.at(&path))?;
                }
                files.push(name);
            } else if names::original_name(text).is_some_and(is_ours) {
                leftovers.push(name);
            }
        }
        files.sort();
        Ok(OldFiles { files, leftovers })
    }
}

/// Complete files that have no name in the directory yet: the shards, then the index.
struct NewFiles(Vec<(String, AtomicFile)>);

impl NewFiles {
    fn write(
        directory: &Path,
        prefix: &str,
        shards: &[Shard],
        index: Option<&[u8]>,
        options: WriteOptions,
    ) -> Result<NewFiles> {
        let durability = options.durability;
        let mut progress = options.progress;
        let index_name = names::index_name(prefix);
        let sizes = shards.iter().map(|shard| (&shard.name, shard.plan.file_size()));
        let sizes = sizes.chain(index.map(|json| (&index_name, json.len() as u64)));
        let mut files = Vec::new();
        for (name, _) in sizes.clone() {
            let path = directory.join(name);
            let create = || step().and_then(|()| AtomicFile::like(&path, durability, None));
            files.push((name.clone(), create().map_err(|error| error.at(&path))?));
        }
        let at = |error: Error, name: &str| error.at(&directory.join(name));
        for ((name, file), (_, size)) in files.iter().zip(sizes) {
            step().and_then(|()| file.reserve(size)).map_err(|error| at(error, name))?;
        }
        let total = shards.iter().map(|shard| shard.plan.file_size()).sum();
        let mut done = 0;
        for ((name, file), shard) in files.iter().zip(shards) {
            let mut of_all = progress.as_mut().map(|progress| |now: u64, _: u64| progress(done + now, total));
            let progress = of_all.as_mut().map(|progress| progress as Progress);
            let write = || write_contents(file, &shard.plan, shard.tensors, durability, progress);
            step().and_then(|()| write()).map_err(|error| at(error, name))?;
            done += shard.plan.file_size();
        }
        if let (Some(json), Some((name, file))) = (index, files.last()) {
            let write = || file.file().write_all_at(json, 0).map_err(|error| Error::io("write", &error));
            step().and_then(|()| write()).map_err(|error| at(error, name))?;
        }
        for (name, file) in &files {
            step().and_then(|()| file.sync()).map_err(|error| at(error, name))?;
        }
        Ok(NewFiles(files))
    }
}

/// Puts new files in the place of old ones, and can take that back.
struct Swap<'a> {
    directory: &'a Path,
    durability: Durability,
    /// Old files: their name, and the one that they have meanwhile.
    aside: Vec<(OsString, OsString)>,
    /// New files that may have their name: name, device, inode.
    published: Vec<(String, u64, u64)>,
}

impl Swap<'_> {
    /// Returns the old files that are still there, to be removed.
    fn run(&mut self, old: &[OsString], new: NewFiles) -> Result<Vec<OsString>> {
        let (indexes, shards): (Vec<&OsString>, Vec<&OsString>) = old.iter().partition(|name| names::is_index(name));
        let (new_indexes, new_shards): (Vec<_>, Vec<_>) =
            new.0.into_iter().partition(|(name, _)| names::is_index(OsStr::new(name)));
        let is_taken = |(name, _): &(String, AtomicFile)| shards.iter().any(|old| ***old == **name);
        // A single file is replaced by one rename, as any file.
        let is_single = shards.len() == 1 && new_shards.len() == 1 && indexes.is_empty() && new_indexes.is_empty();
        let collide = new_shards.iter().any(is_taken) && !is_single;
        let stale: Vec<OsString> = shards
            .iter()
            .filter(|old| !new_shards.iter().any(|(new, _)| ***old == **new))
            .map(|&old| old.clone())
            .collect();
        if is_single && new_shards.iter().any(is_taken) {
            self.link_aside(shards[0]).map_err(|error| error.at(&self.directory.join(shards[0])))?;
        }
        if collide {
            // The index first: without it no reader takes the other files for a whole.
            for name in indexes.iter().chain(&shards) {
                self.set_aside(name).map_err(|error| error.at(&self.directory.join(name)))?;
            }
        }
        // Without a collision the old bundle stays complete until the index is replaced or removed, in one step.
        for (name, file) in new_shards {
            self.publish(&name, file).map_err(|error| error.at(&self.directory.join(&name)))?;
        }
        if !collide {
            for name in indexes {
                let is_replaced = new_indexes.iter().any(|(new, _)| **name == **new);
                let keep = if is_replaced { Swap::link_aside } else { Swap::set_aside };
                keep(self, name).map_err(|error| error.at(&self.directory.join(name)))?;
            }
        }
        for (name, file) in new_indexes {
            self.publish(&name, file).map_err(|error| error.at(&self.directory.join(&name)))?;
        }
        Ok(if collide { Vec::new() } else { stale })
    }

    /// Gives an old file a second name, to restore it from. Where the file system has no links, it is set aside.
    fn link_aside(&mut self, name: &OsStr) -> Result<()> {
        step()?;
        let hidden = hidden(self.directory, name);
        let (from, to) = (self.directory.join(name), self.directory.join(&hidden));
        if fs::hard_link(from, to).is_err() {
            return self.set_aside(name);
        }
        self.aside.push((name.to_owned(), hidden));
        Ok(())
    }

    fn set_aside(&mut self, name: &OsStr) -> Result<()> {
        step()?;
        let hidden = hidden(self.directory, name);
        let (from, to) = (self.directory.join(name), self.directory.join(&hidden));
        fs::rename(from, to).map_err(|error| Error::io("rename", &error))?;
        self.aside.push((name.to_owned(), hidden));
        Ok(())
    }

    fn publish(&mut self, name: &str, file: AtomicFile) -> Result<()> {
        step()?;
        let found = file.file().metadata().map_err(|error| Error::io("stat", &error))?;
        // Also if publishing fails: that may happen when the name is there already.
        self.published.push((name.to_owned(), found.dev(), found.ino()));
        file.publish()?;
        step()
    }

    /// Removes the new files and gives the old ones their names back, the index last.
    fn undo(&self, error: Error) -> Error {
        let mut lost = None;
        for (name, device, inode) in self.published.iter().rev() {
            let path = self.directory.join(name);
            let is_it = |found: fs::Metadata| (found.dev(), found.ino()) == (*device, *inode);
            if fs::symlink_metadata(&path).is_ok_and(is_it) && fs::remove_file(&path).is_err() {
                lost = lost.or(Some(format!("; the new file {} could not be removed", Name(name))));
            }
        }
        for (name, hidden) in self.aside.iter().rev() {
            let (from, to) = (self.directory.join(hidden), self.directory.join(name));
            let renamed = fs::rename(&from, to);
            if renamed.is_ok() {
                // Renaming one link to another of the same file leaves both.
                let _ = fs::remove_file(from);
            } else {
                let (name, hidden) = (name.to_string_lossy(), hidden.to_string_lossy());
                lost = lost.or(Some(format!("; the old file {} is now named {}", Name(&name), Name(&hidden))));
            }
        }
        if self.durability == Durability::Durable && !(self.aside.is_empty() && self.published.is_empty()) {
            // The call fails anyway.
            let _ = sync_directory(self.directory);
        }
        match lost {
            Some(more) => error.and(&more),
            None => error,
        }
    }

    /// Removes the old files.
    fn finish(self, leftovers: Vec<OsString>) -> Result<()> {
        let mut names: Vec<OsString> = self.aside.into_iter().map(|(_, hidden)| hidden).chain(leftovers).collect();
        // A leftover of the same name was replaced.
        names.sort();
        names.dedup();
        let mut outcome = Ok(());
        for name in &names {
            let path = self.directory.join(name);
            let doing = "the new files are in place, but an old one could not be removed";
            let remove = || fs::remove_file(&path).map_err(|error| Error::io(doing, &error));
            outcome = outcome.and(step().and_then(|()| remove()).map_err(|error| error.at(&path)));
        }
        if self.durability == Durability::Durable && !names.is_empty() {
            outcome = outcome.and(sync_directory(self.directory).map_err(|error| error.at(self.directory)));
        }
        outcome
    }
}

/// The name of an old file while it is being replaced. One that exists is of an earlier call that was killed, and may
/// be the only copy of an older file: it is left until this call has succeeded.
fn hidden(directory: &Path, name: &OsStr) -> OsString {
    let name = name.to_string_lossy();
    let mut attempt = 1;
    loop {
        let hidden = names::set_aside_name(&name, attempt);
        if fs::symlink_metadata(directory.join(&hidden)).is_err() {
            return hidden.into();
        }
        attempt += 1;
    }
}

#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, reason = "fails in tests")]
fn step() -> Result<()> {
    Ok(())
}

/// Fails where a test says so.
#[cfg(test)]
fn step() -> Result<()> {
    tests::step()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use super::*;
    use crate::bundle::Bundle;
    use crate::dtype::Dtype;
    use crate::map::OpenOptions;

    thread_local! {
        /// Steps until one fails.
        static REMAINING: Cell<Option<usize>> = const { Cell::new(None) };
        /// Whether that step panics.
        static KILLED: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn step() -> Result<()> {
        let remaining = REMAINING.get();
        REMAINING.set(remaining.and_then(|steps| steps.checked_sub(1)));
        match remaining {
            Some(0) if KILLED.get() => panic!("killed"),
            Some(0) => Err(Error::new(Status::Io, "injected")),
            _ => Ok(()),
        }
    }

    /// The names and contents of a directory.
    fn contents(directory: &Path) -> BTreeMap<OsString, Vec<u8>> {
        let entry = |entry: std::io::Result<fs::DirEntry>| {
            let entry = entry.expect("an entry");
            (entry.file_name(), fs::read(entry.path()).expect("reads"))
        };
        fs::read_dir(directory).expect("lists").map(entry).collect()
    }

    /// Tensors of 10 bytes.
    fn data(count: usize, byte: u8) -> Vec<(String, Vec<u8>)> {
        (0..count).map(|at| (format!("t{at}"), vec![byte; 10])).collect()
    }

    fn write(directory: &Path, data: &[(String, Vec<u8>)], durability: Durability, replace: bool) -> Result<()> {
        let tensor = |(name, data): &'static (String, Vec<u8>)| Tensor { name, dtype: Dtype::U8, shape: &[10], data };
        let data: &'static Vec<_> = Box::leak(Box::new(data.to_vec()));
        let tensors: Vec<Tensor> = data.iter().map(tensor).collect();
        let options = WriteOptions { durability, ..WriteOptions::default() };
        write_sharded(directory, "m", 20, &tensors, &[], options, replace).map(drop)
    }

    #[test]
    fn sizes_are_split_in_order() {
        for (sizes, most, expected) in [
            (&[][..], 5, &[0][..]),
            (&[1, 2, 3], 6, &[3]),
            (&[1, 2, 3], 5, &[2, 3]),
            (&[9, 1, 9, 9, 1, 1], 2, &[1, 2, 3, 4, 6]),
            (&[0, 9, 0], 2, &[1, 2, 3]),
            (&[5, 0, 5, 0], 5, &[2, 4]),
            (&[u64::MAX, 1], u64::MAX - 1, &[1, 2]),
        ] {
            let ranges = split(sizes.iter().copied(), most);
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start) && ranges[0].start == 0);
            assert_eq!(ranges.iter().map(|range| range.end).collect::<Vec<_>>(), expected, "{sizes:?}");
        }
    }

    #[test]
    fn a_failure_at_any_step_leaves_the_old_bundle_or_the_new_one() {
        // The same number of shards, more, fewer, and one without an index.
        for (old, new) in [(5, 5), (5, 9), (9, 5), (5, 2), (2, 5), (0, 5)] {
            let root = tempfile::tempdir().expect("a temporary directory");
            let directory = root.path();
            let durability = if old == new { Durability::Durable } else { Durability::NotDurable };
            fs::write(directory.join("m.fp16-00001-of-00002.safetensors"), b"another bundle").expect("writes");
            if old > 0 {
                write(directory, &data(old, 1), durability, false).expect("writes");
            }
            let before = contents(directory);
            let mut failures = 0;
            loop {
                REMAINING.set(Some(failures));
                let outcome = write(directory, &data(new, 2), durability, true);
                REMAINING.set(None);
                match outcome {
                    // With old files, removing one of them is the last step that can fail.
                    Ok(()) => {
                        assert_eq!(old, 0);
                        break;
                    }
                    Err(error) if error.message().contains("in place") || contents(directory) != before => {
                        let bundle = Bundle::open(&directory.join(main_file(new)), &OpenOptions::default());
                        assert_eq!(bundle.expect("opens").len(), new);
                        break;
                    }
                    Err(error) => assert_eq!(contents(directory), before, "after {failures} steps: {error}"),
                }
                failures += 1;
            }
            // Create, reserve, write, sync and publish each file, and after the last one.
            assert!(failures > 5 * new.div_ceil(2), "{failures}");
            write(directory, &data(new, 2), durability, true).expect("writes");
            let fresh = tempfile::tempdir().expect("a temporary directory");
            write(fresh.path(), &data(new, 2), durability, false).expect("writes");
            let mut expected = contents(fresh.path());
            expected.insert("m.fp16-00001-of-00002.safetensors".into(), b"another bundle".to_vec());
            assert_eq!(contents(directory), expected, "from {old} to {new}");
        }
    }

    /// A process that is killed undoes nothing: a panic at a step simulates it.
    #[test]
    fn a_killed_write_never_leaves_a_mixture() {
        for (old, new) in [(5, 5), (5, 9), (9, 5), (5, 2), (2, 5)] {
            let collide = old == new;
            for steps in 0.. {
                let root = tempfile::tempdir().expect("a temporary directory");
                write(root.path(), &data(old, 1), Durability::NotDurable, false).expect("writes");
                // Left by an earlier killed call, and possibly the only copy of its data.
                let earlier = root.path().join(".m-00001-of-00003.safetensors.safealign-old");
                fs::write(&earlier, b"earlier").expect("writes");
                REMAINING.set(Some(steps));
                KILLED.set(true);
                let outcome = std::panic::catch_unwind(|| {
                    write(root.path(), &data(new, 2), Durability::NotDurable, true).expect("writes");
                });
                REMAINING.set(None);
                KILLED.set(false);
                let is = |tensors, byte| {
                    // By its index or file, and by the directory: without an index, a complete set of shards is a
                    // bundle.
                    let paths = [root.path().join(main_file(tensors)), root.path().to_owned()];
                    let opened = paths.iter().filter_map(|path| Bundle::open(path, &OpenOptions::default()).ok());
                    opened.into_iter().any(|bundle| {
                        let all = |index| {
                            let view = bundle.map_at(index).expect("maps");
                            // SAFETY: nothing modifies the files.
                            unsafe { view.bytes() }.iter().all(|&found| found == byte)
                        };
                        bundle.len() == tensors && (0..tensors).all(all)
                    })
                };
                let is_missing = || {
                    let opened = Bundle::open(&root.path().join(main_file(old)), &OpenOptions::default());
                    let message = opened.err().map(|error| error.message().to_owned()).unwrap_or_default();
                    message.contains("a write was interrupted, and an old file is now named `.m-0")
                };
                assert!(
                    is(old, 1) || is(new, 2) || (collide && is_missing()),
                    "{old} to {new}, killed at step {steps}"
                );
                let is_done = is(new, 2) && !contents(root.path()).keys().any(|name| is_aside(name));
                assert!(is_done || is(new, 2) || fs::read(&earlier).is_ok_and(|bytes| bytes == b"earlier"));
                if outcome.is_ok() {
                    assert!(is_done);
                    break;
                }
                // As documented: the old files are complete, and renaming them restores the old bundle.
                if collide && !is(new, 2) {
                    fs::remove_file(&earlier).expect("removes");
                    for name in contents(root.path()).keys().filter_map(|name| name.to_str()) {
                        if let Some(original) = names::original_name(name) {
                            fs::rename(root.path().join(name), root.path().join(original)).expect("renames");
                        }
                    }
                    assert!(is(old, 1), "{old} to {new}, killed at step {steps}");
                }
            }
        }
    }

    fn is_aside(name: &OsStr) -> bool {
        name.to_str().is_some_and(|name| names::original_name(name).is_some())
    }

    fn main_file(tensors: usize) -> &'static str {
        if tensors > 2 { "m.safetensors.index.json" } else { "m.safetensors" }
    }

    #[test]
    fn no_file_appears_before_all_are_complete() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let shards = 3;
        // Create, reserve and write for each shard and the index, and all syncs.
        for steps in 0..4 * (shards + 1) {
            REMAINING.set(Some(steps));
            write(root.path(), &data(5, 1), Durability::NotDurable, false).expect_err("fails");
            assert!(contents(root.path()).is_empty());
        }
        // The next one is the first that changes the directory.
        REMAINING.set(Some(4 * (shards + 1)));
        let error = write(root.path(), &data(5, 1), Durability::NotDurable, false).expect_err("fails");
        assert_eq!(error.path().and_then(Path::file_name), Some("m-00001-of-00003.safetensors".as_ref()));
        REMAINING.set(None);
    }
}
