//! Aligned caches: the misaligned tensors of a model in a second file.

mod common;

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use common::{Owned, bytes_of, hostile, packed, temporary_directory};
use safealign::aligned_cache::{self, CacheOptions, CacheReport};
use safealign::bundle::Bundle;
use safealign::dtype::Dtype;
use safealign::error::{Result, Status};
use safealign::map::{File, MapMode, OpenOptions, Origin};
use safealign::scan::{ScanOptions, scan};
use safealign::writer::Durability;

fn write(source: &Path, directory: &Path) -> Result<CacheReport> {
    aligned_cache::write(
        source,
        directory,
        CacheOptions { durability: Durability::NotDurable, ..CacheOptions::default() },
    )
}

fn open_with(source: &Path, cache: &Path) -> Result<File> {
    File::open(source, &OpenOptions { aligned_cache: Some(cache.to_owned()), ..OpenOptions::default() })
}

/// A misaligned file in a directory of its own, and a directory for caches.
fn model(root: &Path) -> (PathBuf, PathBuf) {
    fs::create_dir(root.join("model")).expect("creates");
    let source = root.join("model/x.safetensors");
    fs::write(&source, packed(&hostile())).expect("writes");
    (source, root.join("cache/models"))
}

/// The directory's files, without locks.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("lists").map(|entry| entry.expect("an entry").path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension != "lock")).collect()
}

#[test]
fn misaligned_tensors_map_from_the_cache_and_others_from_the_source() {
    let root = temporary_directory();
    let (source, directory) = model(root.path());
    let report = write(&source, &directory).expect("writes");
    assert!(report.is_new && report.path.starts_with(&directory), "{report:?}");
    for map in [MapMode::Shared, MapMode::CopyOnWrite] {
        let options = OpenOptions { map, aligned_cache: Some(report.path.clone()), ..OpenOptions::default() };
        let file = File::open(&source, &options).expect("opens");
        let mut cached = 0;
        for owned in hostile() {
            let index = file.find(&owned.name).expect("is there");
            let view = file.map_at(index).expect("maps");
            let expected = if file.is_misaligned(index) { Origin::Cached } else { Origin::Mapped };
            assert_eq!((view.origin(), bytes_of(&view)), (expected, &owned.data[..]), "{}", owned.name);
            assert!(view.span().0.addr().is_multiple_of(owned.dtype.width() as usize));
            assert_eq!(view.writable().is_ok(), map == MapMode::CopyOnWrite);
            cached += u64::from(expected == Origin::Cached);
        }
        assert!(cached > 0 && cached == report.tensors, "{report:?}");
        assert_eq!((file.stats().tensors_copied, file.stats().misaligned_tensors), (0, report.tensors));
        assert_eq!(file.stats().misaligned_bytes, report.tensor_bytes);
    }
    // The control: without the cache, tensors are copied.
    let direct = File::open(&source, &OpenOptions::default()).expect("opens");
    assert!((0..direct.len()).any(|index| direct.map_at(index).expect("maps").origin() == Origin::Copied));
}

#[test]
fn the_cache_is_a_valid_file_with_the_misaligned_tensors_only() {
    let root = temporary_directory();
    let (source, directory) = model(root.path());
    let report = write(&source, &directory).expect("writes");
    let found = scan(&report.path, &ScanOptions::default()).expect("scans");
    assert_eq!((found.tensors, found.misaligned_tensors, found.tensor_bytes), (report.tensors, 0, report.tensor_bytes));
    assert!(found.nonconforming.is_none() && found.file_size == report.file_size);
    assert!(report.tensor_bytes < fs::metadata(&source).expect("stat").len());
    safetensors::SafeTensors::deserialize(&fs::read(&report.path).expect("reads")).expect("the reference opens it");
}

/// One cache file for all shards, through an index whose shards are links, as in a download cache.
#[test]
fn a_bundle_has_one_cache_file() {
    let root = temporary_directory();
    let (blobs, snapshot) = (root.path().join("blobs"), root.path().join("snapshots/1"));
    fs::create_dir_all(&blobs).and_then(|()| fs::create_dir_all(&snapshot)).expect("creates");
    let shard = |name: &str| [Owned::new(&format!("{name}.odd"), Dtype::U8, &[3]), Owned::new(name, Dtype::F32, &[5])];
    for (name, blob) in [("a", "1"), ("b", "2")] {
        fs::write(blobs.join(blob), packed(&shard(name))).expect("writes");
        std::os::unix::fs::symlink(format!("../../blobs/{blob}"), snapshot.join(format!("{name}.safetensors")))
            .expect("links");
    }
    let index = r#"{"metadata": {}, "weight_map": {"a.odd": "a.safetensors", "a": "a.safetensors",
        "b.odd": "b.safetensors", "b": "b.safetensors"}}"#;
    fs::write(blobs.join("3"), index).expect("writes");
    std::os::unix::fs::symlink("../../blobs/3", snapshot.join("model.safetensors.index.json")).expect("links");
    let directory = root.path().join("cache");
    let report = write(&snapshot, &directory).expect("writes");
    assert!(report.tensors == 2 && files(&directory).len() == 1, "{report:?}");
    let by_index = write(&snapshot.join("model.safetensors.index.json"), &directory).expect("writes");
    assert_eq!(by_index.tensors, 2);
    let options = OpenOptions { aligned_cache: Some(report.path), ..OpenOptions::default() };
    let bundle = Bundle::open(&snapshot, &options).expect("opens");
    for name in ["a", "b"] {
        let view = bundle.map(name).expect("maps");
        assert_eq!((view.origin(), bytes_of(&view)), (Origin::Cached, &shard(name)[1].data[..]));
    }
    assert_eq!(bundle.stats().tensors_copied, 0);
    // Neither the snapshot nor the directory that its links lead to.
    for refused in [&snapshot, &blobs] {
        for source in [&snapshot, &snapshot.join("model.safetensors.index.json"), &snapshot.join("a.safetensors")] {
            assert_eq!(write(source, refused).expect_err("refused").status(), Status::Refused, "{source:?}");
        }
    }
    // Two snapshots with links to the same blobs do not replace each other's cache.
    let second = root.path().join("snapshots/2");
    fs::create_dir(&second).expect("creates");
    for name in ["a.safetensors", "b.safetensors", "model.safetensors.index.json"] {
        let target = fs::read_link(snapshot.join(name)).expect("a link");
        std::os::unix::fs::symlink(target, second.join(name)).expect("links");
    }
    let [one, two] = [&snapshot, &second].map(|snapshot| snapshot.join("model.safetensors.index.json"));
    let (first, other) = (write(&one, &directory).expect("writes"), write(&two, &directory).expect("writes"));
    assert_ne!(first.path, other.path);
    assert!(!write(&one, &directory).expect("writes").is_new);
}

#[test]
fn a_second_call_keeps_a_current_cache_and_replaces_a_stale_one() {
    let root = temporary_directory();
    let (source, directory) = model(root.path());
    let first = write(&source, &directory).expect("writes");
    let inode = fs::metadata(&first.path).expect("stat").ino();
    let again = write(&source, &directory).expect("writes");
    assert_eq!((again.is_new, &again.path), (false, &first.path));
    assert_eq!(fs::metadata(&first.path).expect("stat").ino(), inode);
    let open = open_with(&source, &first.path).expect("opens");
    // Replaced by a file with other tensors.
    let other = [Owned::new("odd", Dtype::U8, &[3]), Owned::new("new", Dtype::F32, &[3])];
    let new = root.path().join("new");
    fs::write(&new, packed(&other)).expect("writes");
    fs::rename(&new, &source).expect("renames");
    let error = open_with(&source, &first.path).err().expect("is stale");
    assert_eq!(error.status(), Status::Changed);
    let message = error.to_string();
    assert!(message.contains("is stale") && message.contains("x.safetensors was modified"), "{message}");
    assert!(message.starts_with(&*first.path.to_string_lossy()), "{message}");
    let replaced = write(&source, &directory).expect("writes");
    assert_eq!((replaced.is_new, &replaced.path), (true, &first.path));
    assert_eq!(files(&directory), std::slice::from_ref(&first.path));
    let view = open_with(&source, &first.path).expect("opens").map("new").expect("maps");
    assert_eq!(bytes_of(&view), other[1].data);
    // The old files stay mapped.
    assert_eq!(bytes_of(&open.map("wide").expect("maps")), hostile()[6].data);
    // A damaged cache is an error, and is written again.
    fs::write(&first.path, "damaged").expect("writes");
    assert!(open_with(&source, &first.path).is_err());
    assert!(write(&source, &directory).expect("writes").is_new);
    assert!(open_with(&source, &first.path).is_ok());
}

#[test]
fn a_modification_that_keeps_the_size_is_noticed() {
    let root = temporary_directory();
    let (source, directory) = model(root.path());
    let cache = write(&source, &directory).expect("writes").path;
    let file = fs::File::options().write(true).open(&source).expect("opens");
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("sets");
    assert_eq!(open_with(&source, &cache).err().map(|error| error.status()), Some(Status::Changed));
}

#[test]
fn a_foreign_file_is_an_error_that_names_both() {
    let root = temporary_directory();
    let (source, directory) = model(root.path());
    let cache = write(&source, &directory).expect("writes").path;
    let other = root.path().join("model/other.safetensors");
    fs::write(&other, packed(&hostile())).expect("writes");
    for (source, cache, what) in [(&other, &cache, "was not written for"), (&source, &other, "not an aligned cache")] {
        let error = open_with(source, cache).err().expect("is foreign");
        assert_eq!(error.status(), Status::InvalidArgument);
        let message = error.to_string();
        assert!(message.contains(what) && message.contains(&*source.to_string_lossy()), "{message}");
        assert!(message.starts_with(&*cache.to_string_lossy()), "{message}");
    }
    let missing = open_with(&source, &root.path().join("none")).err().expect("is missing");
    assert_eq!((missing.status(), missing.os_error()), (Status::Io, 2));
}

#[test]
fn an_aligned_model_has_an_empty_cache() {
    let root = temporary_directory();
    let (source, directory) = model(root.path());
    let aligned = write(&source, &directory).expect("writes").path;
    let report = write(&aligned, &root.path().join("second")).expect("writes");
    assert_eq!((report.tensors, report.tensor_bytes), (0, 0));
    let file = open_with(&aligned, &report.path).expect("opens");
    assert!((0..file.len()).all(|index| file.map_at(index).expect("maps").origin() == Origin::Mapped));
}

#[test]
fn progress_reaches_the_size_and_can_cancel() {
    let root = temporary_directory();
    let (source, directory) = model(root.path());
    let mut cancel = |_, _| ControlFlow::Break(());
    let options = CacheOptions { progress: Some(&mut cancel), ..CacheOptions::default() };
    let error = aligned_cache::write(&source, &directory, options).expect_err("cancelled");
    assert_eq!(error.status(), Status::Cancelled);
    assert!(files(&directory).is_empty());
    let mut seen = Vec::new();
    let mut watch = |done, total| {
        seen.push((done, total));
        ControlFlow::Continue(())
    };
    let options = CacheOptions { progress: Some(&mut watch), ..CacheOptions::default() };
    let report = aligned_cache::write(&source, &directory, options).expect("writes");
    assert_eq!(seen.last(), Some(&(report.file_size, report.file_size)));
    assert!(seen.is_sorted());
}

#[test]
fn a_source_modified_during_the_call_gives_no_cache() {
    let root = temporary_directory();
    let (source, directory) = model(root.path());
    let mut modify = |_, _| {
        fs::write(&source, packed(&hostile())).expect("writes");
        let file = fs::File::options().write(true).open(&source).expect("opens");
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("sets");
        ControlFlow::Continue(())
    };
    let options = CacheOptions { progress: Some(&mut modify), ..CacheOptions::default() };
    let error = aligned_cache::write(&source, &directory, options).expect_err("changed");
    assert_eq!((error.status(), error.path()), (Status::Changed, Some(&*fs::canonicalize(&source).expect("real"))));
    assert!(files(&directory).is_empty());
}

#[test]
fn the_directory_of_the_source_is_refused() {
    let root = temporary_directory();
    let (source, _) = model(root.path());
    let error = write(&source, source.parent().expect("has one")).expect_err("refused");
    assert_eq!(error.status(), Status::Refused);
    assert_eq!(files(source.parent().expect("has one")), [source]);
}

#[test]
fn concurrent_calls_write_one_file() {
    let root = temporary_directory();
    let (source, directory) = model(root.path());
    let barrier = Barrier::new(8);
    let new = std::thread::scope(|scope| {
        let call = || {
            barrier.wait();
            write(&source, &directory).expect("writes").is_new
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(call)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).filter(|&is_new| is_new).count()
    });
    assert_eq!((new, files(&directory).len()), (1, 1));
}
