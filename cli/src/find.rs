//! Finds the files that a user means by a path.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::output::shown;

/// What a search found.
#[derive(Default)]
pub struct Found {
    pub files: Vec<Model>,
    /// Every file that is no model, for a search that wants them.
    pub others: Vec<Other>,
    /// Folders with nothing in them, for the same.
    pub empty: Vec<Other>,
    /// What is odd, but no failure: the path and what is odd about it.
    pub warnings: Vec<(PathBuf, String)>,
    /// What could not be looked at.
    pub errors: Vec<(PathBuf, String)>,
}

/// A file of tensors.
pub struct Model {
    pub path: PathBuf,
    /// The argument that it was found under, and its place below.
    pub root: PathBuf,
    pub below: PathBuf,
}

impl Model {
    /// The folder that it is in: a bundle is the files of a folder.
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }
}

/// What belongs to a bundle and has no tensors.
pub struct Other {
    pub path: PathBuf,
    pub root: PathBuf,
    pub below: PathBuf,
}

/// What a search is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Each model once, whatever names it has: by the name that is not a link, where there is one.
    EachModelOnce,
    /// The same, and no way through a link to a folder: what lies behind it is somebody else's.
    ToReplace,
    /// Models by all their names.
    EveryName,
    /// Those, and the files that are no models.
    Everything,
}

struct Search<'a> {
    found: Found,
    folders: HashSet<(u64, u64)>,
    /// The place in `found` of each model.
    models: HashMap<(u64, u64), usize>,
    root: &'a Path,
    want: Want,
}

/// Files as they are given, and folders with everything below them.
pub fn find(paths: &[PathBuf], want: Want) -> Found {
    let (found, folders, models) = Default::default();
    let mut search = Search { found, folders, models, root: Path::new(""), want };
    for path in paths {
        search.root = path;
        if want == Want::ToReplace
            && let Some(link) = link_in(path)
        {
            let real = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
            let message = format!(
                "{} is a link to a folder, which in place does not follow: name {}",
                shown(&link),
                shown(&real)
            );
            search.found.errors.push((path.clone(), message));
            continue;
        }
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => search.folder(path, &found),
            Ok(found) if found.is_file() => {
                search.model(path, PathBuf::from(path.file_name().unwrap_or_default()), &found)
            }
            // What else it may be, the library says best.
            Ok(_) => search.found.errors.push((path.clone(), "not a regular file or a folder".to_owned())),
            Err(error) => search.found.errors.push((path.clone(), system(&error))),
        }
    }
    search.leave_out_blobs();
    search.found
}

/// The first part of a path that is a link to a folder. Those right below the root are the system's own (`/tmp` of
/// macOS).
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

/// A system's message in lower case, as all others.
pub fn system(error: &std::io::Error) -> String {
    let mut text = error.to_string();
    if text.as_bytes().get(1).is_some_and(u8::is_ascii_lowercase) {
        text[..1].make_ascii_lowercase();
    }
    text
}

impl Search<'_> {
    fn model(&mut self, path: &Path, below: PathBuf, found: &Metadata) {
        let model = Model { path: path.to_owned(), root: self.root.to_owned(), below };
        let place = self.models.entry((found.dev(), found.ino())).or_insert(self.found.files.len());
        match self.found.files.get_mut(*place) {
            Some(known) if matches!(self.want, Want::EachModelOnce | Want::ToReplace) => {
                // A link cannot be repaired in place, what it leads to can.
                if is_link(&known.path) && !is_link(path) {
                    *known = model;
                }
            }
            _ => self.found.files.push(model),
        }
    }

    /// Everything below a folder, in the order of names. Links are followed; a folder that was seen is not entered
    /// again, which also ends a cycle.
    fn folder(&mut self, top: &Path, found: &Metadata) {
        self.folders.insert((found.dev(), found.ino()));
        let everything = self.want == Want::Everything;
        let mut open = vec![top.to_owned()];
        while let Some(folder) = open.pop() {
            let entries = fs::read_dir(&folder).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
            let mut entries = match entries {
                Ok(entries) => entries,
                Err(error) => {
                    self.found.errors.push((folder, system(&error)));
                    continue;
                }
            };
            entries.sort_by_key(|entry| entry.file_name());
            if everything && entries.is_empty() {
                let (root, below) = (self.root.to_owned(), below(&folder, top));
                self.found.empty.push(Other { path: folder.clone(), root, below });
            }
            let mut inner = Vec::new();
            let mut names = BTreeSet::new();
            for entry in entries {
                let path = entry.path();
                let name = entry.file_name();
                // Twins that macOS leaves on foreign disks, and downloads that are not done.
                if name.as_bytes().starts_with(b"._") || name.as_bytes().ends_with(b".incomplete") {
                    continue;
                }
                let is_model = is_model(&path);
                match fs::metadata(&path) {
                    Ok(found) if found.is_dir() => {
                        if self.want == Want::ToReplace && is_link(&path) {
                            let message = "is a link to a folder: skipped, in place does not follow it";
                            self.found.warnings.push((path, message.to_owned()));
                        } else if self.folders.insert((found.dev(), found.ino())) {
                            inner.push(path);
                        } else if everything {
                            let message = "is a folder that was found by another name already: skipped";
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
                        self.found.warnings.push((path, format!("is {what}: skipped")));
                    }
                    Err(error) if is_model || everything => {
                        let what = match entry.file_type() {
                            Ok(kind) if kind.is_symlink() => "a link that leads nowhere",
                            _ => "cannot be looked at",
                        };
                        self.found.warnings.push((path, format!("{what}: {}", system(&error))));
                    }
                    Ok(_) | Err(_) => {}
                }
            }
            self.check_index(&folder, &names);
            // The last is taken first.
            open.extend(inner.into_iter().rev());
        }
    }

    /// Of a cache that names files by their content, leaves out those that were found under their real names, through
    /// the links of `snapshots/`.
    fn leave_out_blobs(&mut self) {
        let is_blob = |path: &Path| {
            let folder = path.parent().unwrap_or(Path::new(""));
            folder.file_name().is_some_and(|name| name == "blobs") && folder.with_file_name("snapshots").is_dir()
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

    /// Compares the models of a folder with those that its index names.
    fn check_index(&mut self, folder: &Path, names: &BTreeSet<String>) {
        let Some(indexed) = indexed(folder, &mut self.found.warnings) else { return };
        for (shard, index) in &indexed {
            if fs::metadata(folder.join(shard)).is_err() {
                let message = format!("the shard `{shard}` is missing");
                self.found.warnings.push((folder.join(index), message));
            }
        }
        for name in names.iter().filter(|name| !indexed.contains_key(*name)) {
            self.found.warnings.push((folder.join(name), "is not in the index of its folder".to_owned()));
        }
    }
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink())
}

/// Whether a path is named like a model.
pub fn is_model(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("safetensors"))
}

fn below(path: &Path, top: &Path) -> PathBuf {
    path.strip_prefix(top).unwrap_or(path).to_owned()
}

/// The shards that the indices of a folder name, and which index names each; `None` where there is no index.
fn indexed(folder: &Path, warnings: &mut Vec<(PathBuf, String)>) -> Option<BTreeMap<String, String>> {
    let mut shards: Option<BTreeMap<String, String>> = None;
    let mut indices: Vec<PathBuf> = fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    indices.retain(|path| {
        let name = path.file_name().unwrap_or_default().as_bytes();
        name.ends_with(b".safetensors.index.json") && !name.starts_with(b"._") && path.is_file()
    });
    for path in indices {
        let parsed = fs::read(&path)
            .map_err(|error| system(&error))
            .and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).map_err(|error| error.to_string()));
        let map = match &parsed {
            Ok(value) => value.get("weight_map").and_then(|map| map.as_object()),
            Err(_) => None,
        };
        let Some(map) = map else {
            let why = parsed.as_ref().err().map_or("there is no `weight_map` in it", |error| error);
            warnings.push((path.clone(), format!("is not an index: {why}")));
            continue;
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let shards = shards.get_or_insert_default();
        shards.extend(map.values().filter_map(|shard| Some((shard.as_str()?.to_owned(), name.clone()))));
    }
    shards
}
