//! Finds the files below the paths given on the command line.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use safealign::bundle::{Index, Listing, cache, names};
use safealign::error::{Error, Status};

use crate::output::{shown, system_message};

/// The result of a search.
#[derive(Default)]
pub struct Found {
    pub files: Vec<Model>,
    /// Files without tensors, if the search includes them.
    pub others: Vec<Other>,
    /// Empty directories, if the search includes files without tensors.
    pub empty: Vec<Other>,
    /// Warnings: the path and the message.
    pub warnings: Vec<(PathBuf, String)>,
    /// The number of shards that an index, or the names of the other shards, say there are, and that do not exist.
    /// There are warnings about them, too.
    pub missing_shards: usize,
    pub errors: Vec<Problem>,
    /// The sharded models, with those of their shards that exist.
    pub bundles: Vec<Sharded>,
}

/// An error that concerns a path.
pub struct Problem {
    pub path: PathBuf,
    pub message: String,
    pub status: Status,
}

impl Problem {
    fn new(path: &Path, message: &str) -> Problem {
        Problem { path: path.to_owned(), message: message.to_owned(), status: Status::Io }
    }

    fn io(path: &Path, error: &io::Error) -> Problem {
        Problem::new(path, &system_message(error))
    }

    pub fn of(path: &Path, error: &Error) -> Problem {
        let path = error.path().unwrap_or(path).to_owned();
        Problem { path, message: error.message().to_owned(), status: error.status() }
    }
}

/// A sharded model: an index and its shards, or shards that belong together by their names.
pub struct Sharded {
    pub directory: PathBuf,
    pub index: Option<(PathBuf, Index)>,
    /// Paths relative to the directory; with an index, in its order.
    pub shards: Vec<PathBuf>,
}

/// A safetensors file.
pub struct Model {
    pub path: PathBuf,
    /// The argument under which the file was found, and the path relative to it.
    pub root: PathBuf,
    pub below: PathBuf,
    /// The index that lists the file.
    pub index: Option<PathBuf>,
    /// The set that the file belongs to, such as `model.fp16`, if its directory has several indexes; otherwise empty.
    pub set: String,
}

impl Model {
    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// Tells bundles apart: a bundle is the files of one directory, or of one index if the directory has several.
    pub fn bundle(&self) -> (&Path, &str) {
        (self.directory(), &self.set)
    }
}

/// A file of a bundle that is not a safetensors file, or an empty directory.
pub struct Other {
    pub path: PathBuf,
    pub root: PathBuf,
    pub below: PathBuf,
}

/// What to search for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Each model once, even if it has several names. A name that is not a symbolic link is preferred.
    EachModelOnce,
    /// The same, but without following links to directories, whose contents may belong to another bundle.
    ToReplace,
    /// Models under all their names.
    EveryName,
    /// Models under all their names, and all other files.
    Everything,
}

struct Search<'a> {
    found: Found,
    directories: HashSet<(u64, u64)>,
    /// The index in `found.files` of each model.
    models: HashMap<(u64, u64), usize>,
    root: &'a Path,
    want: Want,
}

/// Finds the given files, and the files below the given directories.
pub fn find(paths: &[PathBuf], want: Want) -> Found {
    let (found, directories, models) = Default::default();
    let mut search = Search { found, directories, models, root: Path::new(""), want };
    for path in paths {
        search.root = path;
        if want == Want::ToReplace
            && let Some(link) = link_in(path)
        {
            let real = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
            let message = format!(
                "{} is a link to a directory, and `--in-place` does not follow links; use the path {}",
                shown(&link),
                shown(&real)
            );
            search.found.errors.push(Problem::new(path, &message));
            continue;
        }
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => search.directory(path, &found),
            Ok(found) if found.is_file() => {
                search.model(path, PathBuf::from(path.file_name().unwrap_or_default()), &found, &Indexes::default())
            }
            Ok(_) => search.found.errors.push(Problem::new(path, "not a regular file or directory")),
            Err(error) => search.found.errors.push(Problem::io(path, &error)),
        }
    }
    search.remove_blobs();
    search.found
}

/// The first component of a path that is a link to a directory. Links directly below the root belong to the system
/// (`/tmp` on macOS) and are allowed.
fn link_in(path: &Path) -> Option<PathBuf> {
    let mut so_far = PathBuf::new();
    for part in path.components() {
        so_far.push(part);
        let is_systems = path.is_absolute() && so_far.components().count() <= 2;
        if !is_systems && is_link(&so_far) && so_far.is_dir() {
            return Some(so_far);
        }
    }
    None
}

impl Search<'_> {
    fn model(&mut self, path: &Path, below: PathBuf, found: &Metadata, indexes: &Indexes) {
        let (index, set) = indexes.of(path);
        let model = Model { path: path.to_owned(), root: self.root.to_owned(), below, index, set };
        let place = self.models.entry((found.dev(), found.ino())).or_insert(self.found.files.len());
        match self.found.files.get_mut(*place) {
            Some(known) if matches!(self.want, Want::EachModelOnce | Want::ToReplace) => {
                // A link cannot be repaired in place, but its target can.
                if is_link(&known.path) && !is_link(path) {
                    *known = model;
                }
            }
            _ => self.found.files.push(model),
        }
    }

    /// Searches a directory recursively, in the order of names. Links are followed. Each directory is entered only
    /// once, which also ends cycles of links.
    fn directory(&mut self, top: &Path, found: &Metadata) {
        self.directories.insert((found.dev(), found.ino()));
        let everything = self.want == Want::Everything;
        let mut pending = vec![top.to_owned()];
        while let Some(directory) = pending.pop() {
            let entries = fs::read_dir(&directory).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
            let mut entries = match entries {
                Ok(entries) => entries,
                Err(error) => {
                    self.found.errors.push(Problem::io(&directory, &error));
                    continue;
                }
            };
            entries.sort_by_key(|entry| entry.file_name());
            if everything && entries.is_empty() {
                let (root, below) = (self.root.to_owned(), below(&directory, top));
                self.found.empty.push(Other { path: directory.clone(), root, below });
            }
            let mut inner = Vec::new();
            let indexes = self.indexes(&directory, entries.iter().map(fs::DirEntry::file_name));
            let mut models = Vec::new();
            for entry in entries {
                let path = entry.path();
                let name = entry.file_name();
                if names::is_ignored(&name) {
                    continue;
                }
                let is_model = names::is_model(&name);
                match fs::metadata(&path) {
                    Ok(found) if found.is_dir() => {
                        if self.want == Want::ToReplace && is_link(&path) {
                            let message =
                                "is a link to a directory; skipped, because `--in-place` does not follow links";
                            self.found.warnings.push((path, message.to_owned()));
                        } else if self.directories.insert((found.dev(), found.ino())) {
                            inner.push(path);
                        } else if everything {
                            let message = "was already found under another name; skipped";
                            self.found.warnings.push((path, message.to_owned()));
                        }
                    }
                    Ok(found) if found.is_file() && is_model => {
                        models.push(name);
                        self.model(&path, below(&path, top), &found, &indexes);
                    }
                    Ok(found) if found.is_file() => {
                        if everything {
                            let (root, below) = (self.root.to_owned(), below(&path, top));
                            self.found.others.push(Other { path, root, below });
                        }
                    }
                    Ok(found) if is_model || everything => {
                        let what = if found.file_type().is_fifo() { "a FIFO" } else { "a device or a socket" };
                        self.found.warnings.push((path, format!("is {what}; skipped")));
                    }
                    Err(error) if is_model || everything => {
                        let what = match entry.file_type() {
                            Ok(kind) if kind.is_symlink() => "dangling symbolic link",
                            _ => "cannot be read",
                        };
                        self.found.warnings.push((path, format!("{what}: {}", system_message(&error))));
                    }
                    Ok(_) | Err(_) => {}
                }
            }
            self.bundles(&directory, models, indexes);
            // The last entry is taken first.
            pending.extend(inner.into_iter().rev());
        }
    }

    /// Removes the entries of `blobs/` in a download cache that were also found through the links in `snapshots/`.
    fn remove_blobs(&mut self) {
        let blobs = self.found.others.iter().map(|other| &other.path).filter(|path| cache::is_blob(path));
        if blobs.count() == 0 {
            return;
        }
        let identity = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        let paths = self.found.files.iter().map(|model| &model.path);
        let paths = paths.chain(self.found.others.iter().map(|other| &other.path));
        let reached: HashSet<_> =
            paths.filter(|path| !cache::is_blob(path)).filter_map(|path| identity(path)).collect();
        self.found.others.retain(|other| {
            !cache::is_blob(&other.path) || !identity(&other.path).is_some_and(|blob| reached.contains(&blob))
        });
    }

    /// Reads the indexes of a directory. A malformed one is an error, as is an entry outside the directory.
    fn indexes(&mut self, directory: &Path, names: impl Iterator<Item = OsString>) -> Indexes {
        let listing = Listing::of(names);
        let mut indexes = Indexes::default();
        let main = listing.main_index().ok().flatten();
        for name in listing.indexes() {
            let path = directory.join(name);
            if path.is_dir() {
                continue;
            }
            match Index::read(&path) {
                Ok(index) => {
                    let outside = index.outside().iter();
                    self.found.errors.extend(outside.map(|entry| Problem::of(&path, &entry.error())));
                    let set = names::set_of_index(name).unwrap_or_default();
                    let at = if Some(name.as_str()) == main { 0 } else { indexes.valid.len() };
                    indexes.valid.insert(at, (path, index, set));
                }
                Err(error) => {
                    self.found.errors.push(Problem::of(&path, &error));
                    indexes.any_invalid = true;
                }
            }
        }
        indexes
    }

    /// Compares the models of a directory with the shards that its indexes name. Without an index, their own names say
    /// how many there are.
    fn bundles(&mut self, directory: &Path, models: Vec<OsString>, indexes: Indexes) {
        if indexes.valid.is_empty() {
            // The models may be those of the invalid index.
            let sets = if indexes.any_invalid { Vec::new() } else { Listing::of(models).sets() };
            for set in sets {
                if let Some((shard, count)) = set.missing() {
                    let more = if count > 1 { format!(" (and {} more)", count - 1) } else { String::new() };
                    let message = format!("shard `{shard}` is missing{more}");
                    self.found.warnings.push((directory.to_owned(), message));
                    self.found.missing_shards += count;
                }
                if set.files.len() > 1 {
                    let shards = set.files.into_iter().map(PathBuf::from).collect();
                    self.found.bundles.push(Sharded { directory: directory.to_owned(), index: None, shards });
                }
            }
            return;
        }
        for (path, index, _) in &indexes.valid {
            for shard in index.shards().iter().filter(|shard| fs::metadata(directory.join(shard)).is_err()) {
                self.found.warnings.push((path.clone(), format!("shard `{shard}` is missing")));
                self.found.missing_shards += 1;
            }
        }
        // The file may be listed in the invalid index.
        let strays = models.iter().filter(|name| !indexes.any_invalid && indexes.listing(name).is_none());
        let strays = strays.map(|name| (directory.join(name), "not in the index of its directory".to_owned()));
        self.found.warnings.extend(strays);
        for (path, index, _) in indexes.valid {
            let shards = index.shards().iter().map(PathBuf::from).collect();
            self.found.bundles.push(Sharded { directory: directory.to_owned(), index: Some((path, index)), shards });
        }
    }
}

/// The indexes of a directory.
#[derive(Default)]
struct Indexes {
    /// Path, content and set of each, the main one first.
    valid: Vec<(PathBuf, Index, String)>,
    any_invalid: bool,
}

impl Indexes {
    /// The index that lists a file of the directory.
    fn listing(&self, name: &OsString) -> Option<&(PathBuf, Index, String)> {
        let shard = name.to_str()?.to_owned();
        self.valid.iter().find(|(_, index, _)| index.shards().binary_search(&shard).is_ok())
    }

    /// The index that lists a model, and the set that tells its bundle from others of the directory. A model that is in
    /// no index counts for the main one.
    fn of(&self, model: &Path) -> (Option<PathBuf>, String) {
        let found = model.file_name().and_then(|name| self.listing(&name.to_owned()));
        let set = found.or(self.valid.first()).filter(|_| self.valid.len() > 1).map(|(_, _, set)| set.clone());
        (found.map(|(path, ..)| path.clone()), set.unwrap_or_default())
    }
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink())
}

fn below(path: &Path, top: &Path) -> PathBuf {
    path.strip_prefix(top).unwrap_or(path).to_owned()
}
