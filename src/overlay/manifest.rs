//! The manifest of an overlay: what was written from which source, to find what is stale.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use serde_json::{Value, json};

use crate::error::{Error, Name, Result, Status};
use crate::layout::LayoutOptions;
use crate::writer::{self, Durability};

pub(super) const MANIFEST: &str = ".safealign-overlay.json";
pub(super) const LOCK: &str = ".safealign-overlay.lock";
const SCHEMA: &str = "safealign-overlay/2";

/// A file that was written, and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    source: Source,
    /// The file that was written is last. While it is put in place, the file that it replaces comes before it.
    written: Vec<Written>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    size: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
    inode: u64,
}

/// Identifies a file that was written, to detect that it was replaced or edited.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Written {
    size: u64,
    mtime: (i64, i64),
    inode: u64,
}

impl Written {
    fn of(found: &Metadata) -> Written {
        Written { size: found.size(), mtime: (found.mtime(), found.mtime_nsec()), inode: found.ino() }
    }
}

impl Source {
    fn of(found: &Metadata) -> Source {
        Source {
            size: found.size(),
            mtime: (found.mtime(), found.mtime_nsec()),
            ctime: (found.ctime(), found.ctime_nsec()),
            inode: found.ino(),
        }
    }
}

impl Entry {
    /// For a source, and the file that was written from it.
    pub(super) fn of(source: &Metadata, written: &Metadata) -> Entry {
        Entry { source: Source::of(source), written: vec![Written::of(written)] }
    }

    /// Adds the file of an earlier entry, which this one is about to replace.
    pub(super) fn replacing(mut self, earlier: Option<&Entry>) -> Entry {
        self.written.splice(0..0, earlier.into_iter().flat_map(|earlier| earlier.written.clone()));
        self
    }

    /// Whether that file was written by an overlay.
    pub(super) fn wrote(&self, found: &Metadata) -> bool {
        self.written.contains(&Written::of(found))
    }

    /// Whether that file was written from that source, and both are unmodified.
    pub(super) fn is_current(&self, source: &Metadata, found: &Metadata) -> bool {
        self.source == Source::of(source) && self.written.last() == Some(&Written::of(found))
    }

    /// Makes it match no source.
    pub(super) fn outdate(&mut self) {
        self.source.inode = 0;
    }
}

pub(super) struct Manifest {
    pub source: PathBuf,
    /// The layout of the files: with another layout they are stale.
    layout: String,
    /// By their path in the output.
    pub entries: BTreeMap<PathBuf, Entry>,
    pub links: BTreeSet<PathBuf>,
    pub folders: BTreeSet<PathBuf>,
}

impl Manifest {
    pub(super) fn new(source: &Path, layout: &LayoutOptions) -> Manifest {
        let layout = format!("{:?} {}", layout.layout, layout.alignment);
        let (entries, links, folders) = Default::default();
        Manifest { source: source.to_owned(), layout, entries, links, folders }
    }

    /// The manifest of an output directory, if it has a valid one. A manifest with a path that leaves the directory is
    /// refused: this library does not write one.
    pub(super) fn read(output: &Path) -> Result<Option<Manifest>> {
        let path = output.join(MANIFEST);
        if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
            return Ok(None);
        }
        let bytes = fs::read(&path).map_err(|error| Error::io("read", &error).at(&path))?;
        let parsed = serde_json::from_slice(&bytes).ok().and_then(|value| Manifest::parse(&value));
        let Some(manifest) = parsed else { return Ok(None) };
        if let Some(name) = manifest.names().find(|name| !is_within(name)) {
            let message =
                format!("{} is outside the output directory; use another output directory", Name(&encoded(name)));
            return Err(Error::new(Status::Refused, message).at(&path));
        }
        Ok(Some(manifest))
    }

    fn names(&self) -> impl Iterator<Item = &PathBuf> {
        self.entries.keys().chain(&self.links).chain(&self.folders)
    }

    fn parse(value: &Value) -> Option<Manifest> {
        if value["schema"] != SCHEMA {
            return None;
        }
        let time = |value: &Value| Some((value[0].as_i64()?, value[1].as_i64()?));
        let entry = |(below, entry): (&String, &Value)| {
            let source = Source {
                size: entry["size"].as_u64()?,
                mtime: time(&entry["mtime"])?,
                ctime: time(&entry["ctime"])?,
                inode: entry["inode"].as_u64()?,
            };
            let written = |written: &Value| {
                Some(Written {
                    size: written["size"].as_u64()?,
                    mtime: time(&written["mtime"])?,
                    inode: written["inode"].as_u64()?,
                })
            };
            let written = entry["written"].as_array()?.iter().map(written).collect::<Option<_>>()?;
            Some((decoded(below)?, Entry { source, written }))
        };
        let names = |value: &Value| -> Option<BTreeSet<PathBuf>> {
            value.as_array()?.iter().map(|name| decoded(name.as_str()?)).collect()
        };
        Some(Manifest {
            source: decoded(value["source"].as_str()?)?,
            layout: value["layout"].as_str()?.to_owned(),
            entries: value["files"].as_object()?.iter().map(entry).collect::<Option<_>>()?,
            links: names(&value["links"])?,
            folders: names(&value["folders"])?,
        })
    }

    pub(super) fn is_laid_out_as(&self, other: &LayoutOptions) -> bool {
        self.layout == Manifest::new(Path::new(""), other).layout
    }

    pub(super) fn write(&self, output: &Path, durability: Durability) -> Result<()> {
        let files: serde_json::Map<String, Value> = self
            .entries
            .iter()
            .map(|(below, entry)| {
                let written = |written: &Written| {
                    json!({
                        "size": written.size,
                        "mtime": [written.mtime.0, written.mtime.1],
                        "inode": written.inode,
                    })
                };
                let value = json!({
                    "size": entry.source.size,
                    "mtime": [entry.source.mtime.0, entry.source.mtime.1],
                    "ctime": [entry.source.ctime.0, entry.source.ctime.1],
                    "inode": entry.source.inode,
                    "written": entry.written.iter().map(written).collect::<Vec<_>>(),
                });
                (encoded(below), value)
            })
            .collect();
        let value = json!({
            "schema": SCHEMA,
            "source": encoded(&self.source),
            "layout": self.layout,
            "files": files,
            "links": self.links.iter().map(|link| encoded(link)).collect::<Vec<_>>(),
            "folders": self.folders.iter().map(|folder| encoded(folder)).collect::<Vec<_>>(),
        });
        let path = output.join(MANIFEST);
        writer::replace(&path, format!("{value:#}\n").as_bytes(), durability)
    }
}

/// Whether a relative path stays within the directory that it is joined to.
fn is_within(name: &Path) -> bool {
    let normal = |part: Component| matches!(part, Component::Normal(_));
    // `components` skips empty components and dots, so compare the result with the path.
    !name.as_os_str().is_empty()
        && name.components().all(normal)
        && name.components().collect::<PathBuf>().as_os_str() == name.as_os_str()
        && !name.as_os_str().as_bytes().contains(&0)
}

/// A path as a string: bytes that are not UTF-8, and `%`, become `%XX`.
fn encoded(path: &Path) -> String {
    let mut out = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        out.push_str(&chunk.valid().replace('%', "%25"));
        chunk.invalid().iter().for_each(|byte| out.push_str(&format!("%{byte:02X}")));
    }
    out
}

fn decoded(string: &str) -> Option<PathBuf> {
    let mut parts = string.split('%');
    let mut out = parts.next()?.as_bytes().to_vec();
    for part in parts {
        out.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        out.extend_from_slice(part.get(2..)?.as_bytes());
    }
    Some(PathBuf::from(OsStr::from_bytes(&out)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_paths_are_within() {
        for name in ["a", "a/b", "..a", "a./b"] {
            assert!(is_within(Path::new(name)), "{name}");
        }
        for name in ["", ".", "..", "/", "/a", "../a", "a/..", "a/../b", "./a", "a/./b", "a/", "a//b", "a\0b"] {
            assert!(!is_within(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn any_path_round_trips() {
        for bytes in [&b"a/b.safetensors"[..], b"100%", b"\xff\xfe%41/\xc3\xa9", "名".as_bytes(), b""] {
            let path = Path::new(OsStr::from_bytes(bytes));
            assert_eq!(decoded(&encoded(path)).as_deref(), Some(path));
        }
        assert_eq!(decoded("%4"), None);
        assert_eq!(decoded("%zz"), None);
    }
}
