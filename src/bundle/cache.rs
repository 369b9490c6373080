//! Download caches, whose files are named by their content.
//!
//! A Hugging Face cache has a directory for each repository, `models--ORGANISATION--NAME`, with the files in `blobs/`,
//! named by their hash, and in `snapshots/` a directory for each revision, with links to them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::atomic_file::directory_of;

/// The directory of the files, and that of the revisions.
const BLOBS: &str = "blobs";
const SNAPSHOTS: &str = "snapshots";

/// Whether a path is in the `blobs/` of a download cache. Links to the directory are followed.
pub fn is_blob(path: &Path) -> bool {
    let directory = directory_of(path);
    // A relative path may begin below its directory.
    let directory = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    directory.ends_with(BLOBS) && directory.with_file_name(SNAPSHOTS).is_dir()
}

/// Whether a file, or the file that a link leads to, must not change because its name is the hash of its content: it is
/// in the `blobs/` of a download cache, or has such a name.
pub fn is_content_addressed(path: &Path) -> bool {
    let is_entry = |path: &Path| path.file_name().is_some_and(is_hash) || is_blob(path);
    is_entry(path) || fs::canonicalize(path).is_ok_and(|path| is_entry(&path))
}

/// Whether a name is a hash in hexadecimal digits: of Git, or SHA-256, with or without `sha256-` before it.
fn is_hash(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let hash = name.strip_prefix("sha256").and_then(|rest| rest.strip_prefix(['-', ':'])).unwrap_or(&name);
    matches!(hash.len(), 40 | 64) && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The snapshots of a repository of a download cache, sorted; none if the directory is not one.
pub fn snapshots(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory.join(SNAPSHOTS));
    let mut snapshots: Vec<PathBuf> = entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    snapshots.retain(|path| path.is_dir());
    snapshots.sort();
    snapshots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_recognised() {
        let git = "0123456789abcdef0123456789abcdef01234567";
        let sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        for name in [git.to_owned(), sha256.to_owned(), format!("sha256-{sha256}"), format!("sha256:{sha256}")] {
            assert!(is_hash(OsStr::new(&name)), "{name}");
        }
        for name in ["model.safetensors", &git[1..], &format!("{git}.safetensors"), &format!("md5-{sha256}")] {
            assert!(!is_hash(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn a_blob_is_next_to_snapshots() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| root.path().join(name);
        fs::create_dir_all(path("blobs")).expect("creates");
        fs::write(path("blobs/1"), b"x").expect("writes");
        assert!(!is_blob(&path("blobs/1")), "control: without `snapshots/` it is a directory like any other");
        fs::create_dir_all(path("snapshots/b")).expect("creates");
        fs::create_dir_all(path("snapshots/a")).expect("creates");
        fs::write(path("snapshots/file"), b"x").expect("writes");
        std::os::unix::fs::symlink("../../blobs/1", path("snapshots/a/model.safetensors")).expect("links");
        assert!(is_blob(&path("blobs/1")) && is_blob(&path("blobs/new")));
        assert!(!is_blob(&path("snapshots/a/model.safetensors")));
        assert!(is_content_addressed(&path("snapshots/a/model.safetensors")));
        assert_eq!(snapshots(root.path()), [path("snapshots/a"), path("snapshots/b")]);
        assert!(snapshots(&path("blobs")).is_empty());
    }
}
