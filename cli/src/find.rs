//! Finds the files below the paths given on the command line.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

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
    /// The number of shards that an index names and that do not exist. Each has a warning, too.
    pub missing_shards: usize,
    /// Errors: the path and the message.
    pub errors: Vec<(PathBuf, String)>,
}

/// A safetensors file.
pub struct Model {
    pub path: PathBuf,
    /// The argument under which the file was found, and the path relative to it.
    pub root: PathBuf,
    pub below: PathBuf,
}

impl Model {
    /// The directory of the file. A bundle is the files of one directory.
    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
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
            search.found.errors.push((path.clone(), message));
            continue;
        }
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => search.directory(path, &found),
            Ok(found) if found.is_file() => {
                search.model(path, PathBuf::from(path.file_name().unwrap_or_default()), &found)
            }
            Ok(_) => search.found.errors.push((path.clone(), "not a regular file or directory".to_owned())),
            Err(error) => search.found.errors.push((path.clone(), system_message(&error))),
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
    fn model(&mut self, path: &Path, below: PathBuf, found: &Metadata) {
        let model = Model { path: path.to_owned(), root: self.root.to_owned(), below };
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
                    self.found.errors.push((directory, system_message(&error)));
                    continue;
                }
            };
            entries.sort_by_key(|entry| entry.file_name());
            if everything && entries.is_empty() {
                let (root, below) = (self.root.to_owned(), below(&directory, top));
                self.found.empty.push(Other { path: directory.clone(), root, below });
            }
            let mut inner = Vec::new();
            let mut names = BTreeSet::new();
            for entry in entries {
                let path = entry.path();
                let name = entry.file_name();
                // AppleDouble files, which macOS writes on other file systems, and incomplete downloads.
                if name.as_bytes().starts_with(b"._") || name.as_bytes().ends_with(b".incomplete") {
                    continue;
                }
                let is_model = is_model(&path);
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
                        names.insert(name.to_string_lossy().into_owned());
                        self.model(&path, below(&path, top), &found);
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
            self.check_index(&directory, &names);
            // The last entry is taken first.
            pending.extend(inner.into_iter().rev());
        }
    }

    /// Removes the entries of `blobs/` in a download cache that were also found through the links in `snapshots/`.
    fn remove_blobs(&mut self) {
        let is_blob = |path: &Path| {
            let directory = path.parent().unwrap_or(Path::new(""));
            directory.file_name().is_some_and(|name| name == "blobs") && directory.with_file_name("snapshots").is_dir()
        };
        let blobs = self.found.others.iter().map(|other| &other.path).filter(|path| is_blob(path));
        if blobs.count() == 0 {
            return;
        }
        let identity = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        let paths = self.found.files.iter().map(|model| &model.path);
        let paths = paths.chain(self.found.others.iter().map(|other| &other.path));
        let reached: HashSet<_> = paths.filter(|path| !is_blob(path)).filter_map(|path| identity(path)).collect();
        self.found.others.retain(|other| {
            !is_blob(&other.path) || !identity(&other.path).is_some_and(|blob| reached.contains(&blob))
        });
    }

    /// Compares the models of a directory with the shards that its index names.
    fn check_index(&mut self, directory: &Path, names: &BTreeSet<String>) {
        let Some(indexed) = indexed(directory, &mut self.found.warnings) else { return };
        for (shard, index) in &indexed {
            if leaves_directory(shard) {
                let message = format!("index entry `{shard}` is outside the directory of the index");
                self.found.errors.push((directory.join(index), message));
            } else if fs::metadata(directory.join(shard)).is_err() {
                let message = format!("shard `{shard}` is missing");
                self.found.warnings.push((directory.join(index), message));
                self.found.missing_shards += 1;
            }
        }
        for name in names.iter().filter(|name| !indexed.contains_key(*name)) {
            self.found.warnings.push((directory.join(name), "not in the index of its directory".to_owned()));
        }
    }
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink())
}

/// Whether a path has the extension of a safetensors file.
fn is_model(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("safetensors"))
}

fn below(path: &Path, top: &Path) -> PathBuf {
    path.strip_prefix(top).unwrap_or(path).to_owned()
}

/// Whether a file is named like an index: `model.safetensors.index.json`, or `model.safetensors.index.fp16.json` for a
/// variant.
fn is_index(name: &str) -> bool {
    let variant = name.strip_suffix(".json").and_then(|name| name.split_once(".safetensors.index"));
    variant.is_some_and(|(_, variant)| variant.is_empty() || variant.starts_with('.'))
}

/// Whether an index entry, as written, leads out of the directory of the index.
fn leaves_directory(entry: &str) -> bool {
    let path = Path::new(entry);
    path.is_absolute() || path.components().any(|component| component == Component::ParentDir)
}

/// The shards that the indexes of a directory name, each with its index. `None` if there is no index.
fn indexed(directory: &Path, warnings: &mut Vec<(PathBuf, String)>) -> Option<BTreeMap<String, String>> {
    let mut shards: Option<BTreeMap<String, String>> = None;
    let mut indexes: Vec<PathBuf> =
        fs::read_dir(directory).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    indexes.retain(|path| {
        let name = path.file_name().unwrap_or_default().as_bytes();
        is_index(&String::from_utf8_lossy(name)) && !name.starts_with(b"._") && path.is_file()
    });
    for path in indexes {
        let parsed = fs::read(&path)
            .map_err(|error| system_message(&error))
            .and_then(|json| serde_json::from_slice::<serde_json::Value>(&json).map_err(|error| error.to_string()));
        let map = match &parsed {
            Ok(value) => value.get("weight_map").and_then(|map| map.as_object()),
            Err(_) => None,
        };
        let Some(map) = map else {
            let why = parsed.as_ref().err().map_or("it has no `weight_map`", |error| error);
            warnings.push((path.clone(), format!("invalid index: {why}")));
            continue;
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let shards = shards.get_or_insert_default();
        shards.extend(map.values().filter_map(|shard| Some((shard.as_str()?.to_owned(), name.clone()))));
    }
    shards
}
