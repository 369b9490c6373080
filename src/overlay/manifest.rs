//! What an overlay knows of its sources, to see what is stale; and the lock that keeps two runs apart.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::layout::LayoutOptions;
use crate::writer::{Draft, Durability};

const MANIFEST: &str = ".safealign-overlay.json";
pub(super) const LOCK: &str = ".safealign-overlay.lock";
const SCHEMA: &str = "safealign-overlay/1";

/// What was written, and of what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Of the source.
    size: u64,
    mtime: (i64, i64),
    inode: u64,
    /// Of the file that was written: a half-restored backup shows.
    written_size: u64,
}

impl Entry {
    pub(super) fn of(source: &Metadata, written: &Metadata) -> Entry {
        Entry {
            size: source.size(),
            mtime: (source.mtime(), source.mtime_nsec()),
            inode: source.ino(),
            written_size: written.size(),
        }
    }

    /// Makes it match no file.
    pub(super) fn outdate(&mut self) {
        self.inode = 0;
    }
}

pub(super) struct Manifest {
    pub source: PathBuf,
    /// How the files were laid out: with another layout they are stale.
    layout: String,
    /// By the path below the output.
    pub entries: BTreeMap<PathBuf, Entry>,
    pub links: BTreeSet<PathBuf>,
}

impl Manifest {
    pub(super) fn new(source: &Path, layout: &LayoutOptions) -> Manifest {
        let layout = format!("{:?} {}", layout.layout, layout.alignment);
        Manifest { source: source.to_owned(), layout, entries: BTreeMap::new(), links: BTreeSet::new() }
    }

    /// The manifest of an output folder, if it has one. With one that cannot be read everything is written anew.
    pub(super) fn read(output: &Path) -> Result<Option<Manifest>> {
        let path = output.join(MANIFEST);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("read", &error).at(&path)),
        };
        Ok(serde_json::from_slice(&text).ok().and_then(|value| Manifest::parse(&value)))
    }

    fn parse(value: &Value) -> Option<Manifest> {
        if value["schema"] != SCHEMA {
            return None;
        }
        let entry = |(below, entry): (&String, &Value)| {
            Some((
                decoded(below)?,
                Entry {
                    size: entry["size"].as_u64()?,
                    mtime: (entry["mtime"].as_i64()?, entry["mtime_ns"].as_i64()?),
                    inode: entry["inode"].as_u64()?,
                    written_size: entry["written_size"].as_u64()?,
                },
            ))
        };
        Some(Manifest {
            source: decoded(value["source"].as_str()?)?,
            layout: value["layout"].as_str()?.to_owned(),
            entries: value["files"].as_object()?.iter().filter_map(entry).collect(),
            links: value["links"].as_array()?.iter().filter_map(|link| decoded(link.as_str()?)).collect(),
        })
    }

    pub(super) fn is_laid_out_as(&self, other: &LayoutOptions) -> bool {
        self.layout == Manifest::new(Path::new(""), other).layout
    }

    pub(super) fn write(&self, output: &Path) -> Result<()> {
        let files: serde_json::Map<String, Value> = self
            .entries
            .iter()
            .map(|(below, entry)| {
                let value = json!({
                    "size": entry.size,
                    "mtime": entry.mtime.0,
                    "mtime_ns": entry.mtime.1,
                    "inode": entry.inode,
                    "written_size": entry.written_size,
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
        });
        let path = output.join(MANIFEST);
        let write = || {
            // Lost in a power failure, it costs writing the files again.
            let draft = Draft::like(&path, Durability::NotDurable, None)?;
            let mut file = draft.file();
            writeln!(file, "{value:#}").map_err(|error| Error::io("write", &error))?;
            draft.publish()
        };
        write().map_err(|error: Error| error.at(&path))
    }
}

/// A path as text: bytes that are not UTF-8, and the sign for them, as `%XX`.
fn encoded(path: &Path) -> String {
    let mut out = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        out.push_str(&chunk.valid().replace('%', "%25"));
        chunk.invalid().iter().for_each(|byte| out.push_str(&format!("%{byte:02X}")));
    }
    out
}

fn decoded(text: &str) -> Option<PathBuf> {
    let mut parts = text.split('%');
    let mut out = parts.next()?.as_bytes().to_vec();
    for part in parts {
        out.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        out.extend_from_slice(part.get(2..)?.as_bytes());
    }
    Some(PathBuf::from(OsStr::from_bytes(&out)))
}

/// Held by one process at a time, and let go when it ends, however that is.
pub(super) struct Lock(#[expect(dead_code, reason = "closing it unlocks")] Option<File>);

impl Lock {
    /// Waits until nobody else holds it.
    pub(super) fn of(path: &Path) -> Result<Lock> {
        let opened = File::options().create(true).truncate(false).write(true).open(path);
        let file = opened.map_err(|error| Error::io("lock", &error).at(path))?;
        match rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive)) {
            Ok(()) => Ok(Lock(Some(file))),
            // Some network file systems have no locks. What is written is put in place whole: two at once do the same
            // work twice.
            Err(_) => Ok(Lock(None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_path_comes_back() {
        for bytes in [&b"a/b.safetensors"[..], b"100%", b"\xff\xfe%41/\xc3\xa9", "名".as_bytes(), b""] {
            let path = Path::new(OsStr::from_bytes(bytes));
            assert_eq!(decoded(&encoded(path)).as_deref(), Some(path));
        }
        assert_eq!(decoded("%4"), None);
        assert_eq!(decoded("%zz"), None);
    }
}
