//! Opens a bundle: finds its files, maps them, and checks that they belong together.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::contents::{Contents, Finding};
use super::index::{Index, without_nul};
use super::listing::{Listing, list};
use super::{cache, names};
use crate::error::{Error, Name, Reason, Result, Status};
use crate::header::{Header, HeaderPadding, TensorInfo};
use crate::map::{File, OpenOptions, Stats, View};
use crate::source::Identity;

/// An open bundle: the tensors of several files as if they were in one.
///
/// Tensors are indexed in the order of the shards, which are sorted by the bytes of their file names, and within a
/// shard in the order of their data. Safe to use from several threads at once. Views keep the shard that they are from
/// open: the bundle may be dropped first.
pub struct Bundle {
    path: PathBuf,
    index: Option<(PathBuf, Identity)>,
    shards: Vec<File>,
    contents: Contents,
    /// Of the index; `None` if there is none. Each string is followed by a NUL byte.
    metadata: Option<Vec<(String, String)>>,
}

/// The files of a bundle.
struct Files {
    /// Of the index and the shards.
    directory: PathBuf,
    /// The index, what it says, and which file it is.
    index: Option<(PathBuf, Index, Identity)>,
    /// File names relative to the directory, sorted.
    shards: Vec<PathBuf>,
}

impl Bundle {
    /// Opens and maps the bundle at `path`: a directory, an index (`*.safetensors.index.json`), or a single model file.
    /// Never writes anything.
    ///
    /// With an index, it alone decides what belongs to the bundle: model files that it does not list are not opened,
    /// and tensors that it does not list are not part of the bundle, although the Hugging Face libraries load them. An
    /// entry is a path below the directory of the index. Symbolic links are followed wherever they lead, as in a
    /// download cache.
    ///
    /// For a directory, its only index is opened or, if it has several, the one without a variant such as `fp16`.
    /// Without an index, its one set of model files is opened. Names that start with `._` or end with `.incomplete` are
    /// ignored.
    ///
    /// `options` apply to each shard.
    ///
    /// Errors name the file at fault. [`Status::InvalidArgument`]: a directory from which the bundle cannot be told
    /// (several indexes without a common base, or several sets of model files without an index). [`Status::NotFound`]:
    /// a directory without model files. [`Status::Io`] with the number of `ENOENT`: a missing shard.
    /// [`Status::Format`]: a tensor that two shards have; an index that is malformed, that lists a tensor in a shard
    /// that does not have it, or that has an entry outside its directory, in which case no shard is opened.
    /// [`Status::TooLarge`]: an index above [`MAX_INDEX_LEN`](super::MAX_INDEX_LEN). [`Status::Changed`]: a file of the
    /// bundle was replaced or modified while the bundle was opened. Otherwise those of [`File::open`]. If a call of
    /// [`write_sharded`](super::write_sharded) was interrupted and its old files are still hidden, errors name one.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Bundle> {
        Bundle::open_path(path, options).map_err(|error| {
            let directory = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
            let is_missing = matches!(error.status(), Status::Io | Status::NotFound | Status::InvalidArgument);
            match set_aside(directory).filter(|_| is_missing) {
                Some(hidden) => error.and(&format!(
                    "; a write was interrupted, and an old file is now named {}: see sa_write_sharded",
                    Name(&hidden)
                )),
                None => error,
            }
        })
    }

    fn open_path(path: &Path, options: &OpenOptions) -> Result<Bundle> {
        let is_directory = fs::metadata(path).map_err(|error| Error::io("open", &error).at(path))?.is_dir();
        let files = if is_directory {
            Files::in_directory(path)?
        } else if path.file_name().is_some_and(names::is_index) {
            Files::of_index(path)?
        } else {
            Files { directory: PathBuf::new(), index: None, shards: vec![path.to_owned()] }
        };
        let outside = files.index.as_ref().and_then(|(path, index, _)| Some((path, index.outside().first()?)));
        if let Some((index, entry)) = outside {
            return Err(entry.error().at(index));
        }
        let shards = files.open(options)?;
        files.require_current(&shards)?;
        Bundle::of(path, files, shards)
    }

    fn of(path: &Path, files: Files, shards: Vec<File>) -> Result<Bundle> {
        let (index, identity) = files.index.map(|(path, index, identity)| ((path, index), identity)).unzip();
        let headers: Vec<Option<&Header>> = shards.iter().map(|shard| Some(shard.header())).collect();
        if headers.iter().flatten().map(|header| header.len() as u64).sum::<u64>() > u64::from(u32::MAX) {
            return Err(Error::new(Status::TooLarge, "has more than 4294967295 tensors").at(path));
        }
        let (contents, findings) = Contents::of(&headers, index.as_ref().map(|(_, index)| index));
        let shown = |shard: usize| Name(&files.shards[shard].to_string_lossy()).to_string();
        for finding in findings {
            match finding {
                Finding::Unlisted { .. } => {}
                Finding::Duplicate { tensor, shards: [first, second] } => {
                    let message = format!("tensor {}: is in {} and in {}", Name(tensor), shown(first), shown(second));
                    return Err(Error::format(Reason::DuplicateKey, message).at(path));
                }
                Finding::Absent { tensor, shard } => {
                    let message = format!("tensor {}: is not in {}, as the index says", Name(tensor), shown(shard));
                    let at = index.as_ref().map_or(path, |(index, _)| index);
                    return Err(Error::new(Status::Format, message).at(at));
                }
            }
        }
        let (index, metadata) = index.map(|(path, index)| (path, index.into_metadata())).unzip();
        let index = index.zip(identity);
        Ok(Bundle { path: path.to_owned(), index, shards, contents, metadata })
    }

    /// The path that the bundle was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the index, if the bundle has one.
    pub fn index_path(&self) -> Option<&Path> {
        self.index.as_ref().map(|(path, _)| path.as_path())
    }

    /// Whether every file of the bundle, and its index, is still the one that its path names, unmodified; see
    /// [`File::is_current`].
    pub fn is_current(&self) -> Result<bool> {
        if let Some((path, identity)) = &self.index {
            match fs::metadata(path) {
                Ok(found) if identity.same_content(&found) => {}
                Ok(_) => return Ok(false),
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                    return Ok(false);
                }
                Err(error) => return Err(Error::io("stat", &error).at(path)),
            }
        }
        for shard in &self.shards {
            if !shard.is_current()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The files, sorted by name. Not all of their tensors need be part of the bundle.
    pub fn shards(&self) -> &[File] {
        &self.shards
    }

    /// The path of the shard at that position in [`Bundle::shards`].
    pub fn shard_path(&self, shard: usize) -> Option<&Path> {
        self.shards.get(shard)?.path()
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.contents.len()
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The position in [`Bundle::shards`] of the shard that has the tensor with that index, and its index in the shard.
    ///
    /// Fails if the index is out of range ([`Status::NotFound`]).
    pub fn location(&self, index: usize) -> Result<(usize, usize)> {
        self.contents.get(index).ok_or_else(|| {
            let message = format!("tensor index {index} is out of range: there are {} tensors", self.len());
            Error::new(Status::NotFound, message).at(&self.path)
        })
    }

    /// The shard of the tensor with that index, and what the header of the shard says of the tensor.
    ///
    /// Fails if the index is out of range ([`Status::NotFound`]).
    pub fn get(&self, index: usize) -> Result<(usize, TensorInfo<'_>)> {
        let (shard, at) = self.location(index)?;
        Ok((shard, self.shards[shard].get(at)?))
    }

    /// The index of the tensor of that name, in constant time.
    ///
    /// Fails if there is none ([`Status::NotFound`]).
    pub fn find(&self, name: &str) -> Result<usize> {
        self.contents.find(name, |shard| self.shards[shard].header()).ok_or_else(|| {
            let message = format!("tensor {}: not found among {} tensors", Name(name), self.len());
            Error::new(Status::NotFound, message).at(&self.path)
        })
    }

    /// The tensor with that index, without a copy where its offset allows it. Fails as [`File::map_at`].
    pub fn map_at(&self, index: usize) -> Result<View> {
        let (shard, at) = self.location(index)?;
        self.shards[shard].map_at(at)
    }

    /// The tensor of that name, without a copy where its offset allows it. Fails as [`File::map`].
    pub fn map(&self, name: &str) -> Result<View> {
        self.map_at(self.find(name)?)
    }

    /// Number of metadata entries.
    pub fn metadata_len(&self) -> usize {
        match &self.metadata {
            Some(metadata) => metadata.len(),
            None => self.shards.first().map_or(0, |shard| shard.header().metadata_len()),
        }
    }

    /// A metadata entry: key, value. In memory each is followed by a NUL byte.
    ///
    /// With an index these are the entries of its `metadata` object, in its order; values other than strings are JSON.
    /// Without an index they are those of the first shard.
    pub fn metadata_at(&self, index: usize) -> Option<(&str, &str)> {
        match &self.metadata {
            Some(metadata) => metadata.get(index).map(|(key, value)| (without_nul(key), without_nul(value))),
            None => self.shards.first()?.header().metadata_at(index),
        }
    }

    /// Every metadata entry; see [`Bundle::metadata_at`].
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &str)> {
        (0..self.metadata_len()).filter_map(|index| self.metadata_at(index))
    }

    /// The sums of the counts of all shards, including tensors that the index does not list.
    ///
    /// `is_mapped` is true if all shards are mapped, and `header_padding` is the one that fewest readers accept.
    pub fn stats(&self) -> Stats {
        let mut sum = Stats { is_mapped: true, ..Stats::default() };
        for shard in self.shards.iter().map(File::stats) {
            sum.file_size += shard.file_size;
            sum.is_mapped &= shard.is_mapped;
            sum.tensors += shard.tensors;
            sum.misaligned_tensors += shard.misaligned_tensors;
            sum.misaligned_bytes += shard.misaligned_bytes;
            sum.tensors_mapped += shard.tensors_mapped;
            sum.bytes_mapped += shard.bytes_mapped;
            sum.tensors_copied += shard.tensors_copied;
            sum.bytes_copied += shard.bytes_copied;
            sum.gaps += shard.gaps;
            sum.gap_bytes += shard.gap_bytes;
            sum.trailing_bytes += shard.trailing_bytes;
            if rank(shard.header_padding) > rank(sum.header_padding) {
                sum.header_padding = shard.header_padding;
            }
        }
        sum
    }
}

fn rank(padding: HeaderPadding) -> u8 {
    match padding {
        HeaderPadding::None => 0,
        HeaderPadding::Spaces => 1,
        HeaderPadding::Whitespace => 2,
        HeaderPadding::Nul => 3,
    }
}

impl Files {
    fn in_directory(directory: &Path) -> Result<Files> {
        let listing = Listing::read(directory)?;
        if let Some(index) = listing.main_index().map_err(|error| error.at(directory))? {
            return Files::of_index(&directory.join(index));
        }
        let snapshots = if listing.models().is_empty() { cache::snapshots(directory) } else { Vec::new() };
        if !snapshots.is_empty() {
            let names = snapshots.iter().map(|path| Name(&path.to_string_lossy()).to_string());
            let message = format!("is the directory of a download cache; open a snapshot: {}", list(names));
            return Err(Error::new(Status::InvalidArgument, message).at(directory));
        }
        let set = listing.main_set().map_err(|error| error.at(directory))?;
        if let Some((name, _)) = set.missing() {
            return Err(missing(&name, Errno::NOENT.raw_os_error()).at(directory));
        }
        let shards = set.files.iter().map(PathBuf::from).collect();
        Ok(Files { directory: directory.to_owned(), index: None, shards })
    }

    fn of_index(path: &Path) -> Result<Files> {
        // Before it is read: a change in between shows later.
        let identity = fs::metadata(path).map_err(|error| Error::io("open", &error).at(path))?;
        let index = Index::read(path)?;
        let shards = index.shards().iter().map(PathBuf::from).collect();
        let directory = path.parent().unwrap_or(Path::new("")).to_owned();
        Ok(Files { directory, index: Some((path.to_owned(), index, Identity::of(&identity))), shards })
    }

    fn open(&self, options: &OpenOptions) -> Result<Vec<File>> {
        let open = |shard: &PathBuf| {
            let path = self.directory.join(shard);
            File::open(&path, options).map_err(|error| {
                let is_missing = error.path() == Some(&path) && is_missing(&path, error.os_error());
                match &self.index {
                    Some((index, ..)) if is_missing => missing(&shard.to_string_lossy(), error.os_error()).at(index),
                    _ => error,
                }
            })
        };
        self.shards.iter().map(open).collect()
    }

    /// Fails if a file was replaced after it was opened: then the others may be from before or after that.
    fn require_current(&self, shards: &[File]) -> Result<()> {
        let changed = |path: &Path| {
            let message = "was replaced or modified while the bundle was opened; open the bundle again";
            Err(Error::new(Status::Changed, message).at(path))
        };
        for shard in shards {
            if !shard.is_current()? {
                return changed(shard.path().unwrap_or(&self.directory));
            }
        }
        match &self.index {
            Some((path, _, identity)) if !fs::metadata(path).is_ok_and(|found| identity.same_content(&found)) => {
                changed(path)
            }
            _ => Ok(()),
        }
    }
}

/// The first file in the directory that an interrupted write set aside.
fn set_aside(directory: &Path) -> Option<String> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let names = fs::read_dir(directory).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| names::original_name(name).is_some()).min()
}

/// Whether opening failed because nothing is at the path.
fn is_missing(path: &Path, os_error: i32) -> bool {
    [Errno::NOENT, Errno::NOTDIR].map(Errno::raw_os_error).contains(&os_error) && fs::metadata(path).is_err()
}

fn missing(shard: &str, os_error: i32) -> Error {
    Error::io(&format!("shard {} is missing", Name(shard)), &io::Error::from_raw_os_error(os_error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with one tensor of one byte.
    fn write(path: &Path, tensor: &str, byte: u8) {
        let json = format!(r#"{{"{tensor}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#);
        let mut file = (json.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(json.as_bytes());
        file.push(byte);
        // By a rename, so that it is another file each time.
        let new = path.with_extension("new");
        fs::write(&new, file).expect("writes");
        fs::rename(new, path).expect("renames");
    }

    #[test]
    fn a_file_that_is_replaced_during_the_call_is_noticed() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| root.path().join(name);
        let index = path("m.safetensors.index.json");
        fs::write(&index, r#"{"weight_map": {"a": "a", "b": "b"}}"#).expect("writes");
        write(&path("a"), "a", 1);
        write(&path("b"), "b", 1);
        let files = Files::of_index(&index).expect("reads");
        let opened = files.open(&OpenOptions::default()).expect("opens");
        assert!(files.require_current(&opened).is_ok());
        write(&path("a"), "a", 2);
        let error = files.require_current(&opened).expect_err("was replaced");
        assert_eq!((error.status(), error.path()), (Status::Changed, Some(&*path("a"))));
        let opened = files.open(&OpenOptions::default()).expect("opens");
        assert!(files.require_current(&opened).is_ok());
        fs::write(&index, r#"{"weight_map": {"a": "a", "b": "b"} }"#).expect("writes");
        let error = files.require_current(&opened).expect_err("was replaced");
        assert_eq!((error.status(), error.path()), (Status::Changed, Some(&*index)));
    }
}
