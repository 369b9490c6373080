//! Overlays: directories that load in place of a bundle.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use common::{Owned, hostile, packed, temporary_directory};
use safealign::dtype::Dtype;
use safealign::error::Status;
use safealign::layout::{Layout, LayoutOptions};
use safealign::map::{File, OpenOptions};
use safealign::overlay::{OverlayOptions, OverlayReport, overlay};
use safealign::scan::{ScanOptions, scan};
use safealign::writer::Durability;

fn make(bundle: &Path, output: &Path) -> safealign::error::Result<OverlayReport> {
    overlay(bundle, output, &mut OverlayOptions { durability: Durability::NotDurable, ..OverlayOptions::default() })
}

/// The bytes of each tensor by name.
fn content(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let file = File::open(path, &OpenOptions::default()).expect("opens");
    let tensor = |index| {
        let view = file.map_at(index).expect("maps");
        (view.info().name.to_owned(), common::bytes_of(&view).to_vec())
    };
    (0..file.len()).map(tensor).collect()
}

/// A bundle in a download cache, with subdirectories.
fn bundle(root: &Path) -> std::path::PathBuf {
    let (blobs, snapshot) = (root.join("blobs"), root.join("snapshots/main"));
    fs::create_dir_all(&blobs).and_then(|()| fs::create_dir_all(snapshot.join("vae"))).expect("creates");
    fs::create_dir_all(snapshot.join("tokenizer")).expect("creates");
    fs::write(blobs.join("1"), packed(&hostile())).expect("writes");
    fs::write(blobs.join("2"), packed(&[Owned::new("a", Dtype::U8, &[64])])).expect("writes");
    symlink("../../blobs/1", snapshot.join("model-1.safetensors")).expect("links");
    symlink("../../blobs/2", snapshot.join("model-2.safetensors")).expect("links");
    symlink("../../blobs/3", snapshot.join("dangling.safetensors")).expect("links");
    fs::write(snapshot.join("config.json"), "{}").expect("writes");
    fs::write(snapshot.join("model.safetensors.index.json"), "{\"weight_map\":{}}").expect("writes");
    fs::write(snapshot.join("._model-1.safetensors"), "x").expect("writes");
    fs::write(snapshot.join("tokenizer/vocab.txt"), "a b").expect("writes");
    fs::write(snapshot.join("vae/inner.safetensors"), packed(&hostile())).expect("writes");
    fs::write(snapshot.join("vae/config.json"), "{}").expect("writes");
    snapshot
}

/// Two tensors with a tensor of 3 bytes between them: one is misaligned at any data offset.
fn other() -> Vec<Owned> {
    [("new", Dtype::F32), ("odd", Dtype::U8), ("newer", Dtype::F32)]
        .map(|(name, dtype)| Owned::new(name, dtype, &[3]))
        .into()
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).expect("is there").is_symlink()
}

#[test]
fn misaligned_files_are_written_and_everything_else_is_a_link() {
    let (root, output) = (temporary_directory(), temporary_directory());
    let (bundle, output) = (bundle(root.path()), output.path().join("deep/out"));
    let report = make(&bundle, &output).expect("makes it");
    assert_eq!((report.written, report.kept, report.warnings.len()), (2, 0, 1), "{report:?}");
    for (name, expected) in [
        ("model-1.safetensors", false),
        ("model-2.safetensors", true),
        ("config.json", true),
        ("model.safetensors.index.json", true),
        ("tokenizer", true),
        ("vae", false),
        ("vae/inner.safetensors", false),
        ("vae/config.json", true),
    ] {
        assert_eq!(is_link(&output.join(name)), expected, "{name}");
        if name.ends_with(".json") {
            assert_eq!(fs::read(output.join(name)).expect("reads"), fs::read(bundle.join(name)).expect("reads"));
        }
        if name.ends_with(".safetensors") {
            assert_eq!(content(&output.join(name)), content(&bundle.join(name)));
            let found = scan(&output.join(name), &ScanOptions::default()).expect("scans");
            assert_eq!((found.misaligned_tensors, found.nonconforming.is_none()), (0, true), "{name}");
        }
    }
    assert!(fs::symlink_metadata(output.join("._model-1.safetensors")).is_err());
    assert!(fs::symlink_metadata(output.join("dangling.safetensors")).is_err());
    // The bundle is unchanged.
    assert!(is_link(&bundle.join("model-1.safetensors")));
    assert_eq!(fs::read(root.path().join("blobs/1")).expect("reads"), packed(&hostile()));
}

#[test]
fn a_second_run_does_only_what_is_missing_or_stale() {
    let (root, output) = (temporary_directory(), temporary_directory());
    let (bundle, output) = (bundle(root.path()), output.path());
    make(&bundle, output).expect("makes it");
    let inode = |name: &str| fs::metadata(output.join(name)).expect("stat").ino();
    let first = inode("model-1.safetensors");
    let report = make(&bundle, output).expect("nothing to do");
    assert_eq!((report.written, report.kept, inode("model-1.safetensors")), (0, 2, first));
    // Missing.
    fs::remove_file(output.join("vae/inner.safetensors")).expect("removes");
    fs::remove_file(output.join("config.json")).expect("removes");
    let report = make(&bundle, output).expect("makes what is missing");
    assert_eq!((report.written, report.kept), (1, 1));
    assert!(is_link(&output.join("config.json")));
    // Stale.
    let other = other();
    fs::write(root.path().join("blobs/1"), packed(&other)).expect("writes");
    let report = make(&bundle, output).expect("makes what is stale");
    assert_eq!((report.written, report.kept), (1, 1));
    assert_eq!(content(&output.join("model-1.safetensors")), content(&bundle.join("model-1.safetensors")));
    // One source is aligned now, and the other was removed.
    fs::write(root.path().join("blobs/1"), packed(&[Owned::new("a", Dtype::U8, &[64])])).expect("writes");
    fs::remove_dir_all(bundle.join("vae")).expect("removes");
    let report = make(&bundle, output).expect("follows");
    assert_eq!((report.written, report.kept), (0, 0), "{report:?}");
    assert!(is_link(&output.join("model-1.safetensors")));
    assert!(fs::symlink_metadata(output.join("vae/inner.safetensors")).is_err());
    // Another layout.
    fs::write(root.path().join("blobs/1"), packed(&hostile())).expect("writes");
    let layout = LayoutOptions { layout: Layout::Padded, alignment: 512 };
    make(&bundle, output).expect("makes it");
    let report =
        overlay(&bundle, output, &mut OverlayOptions { layout, ..OverlayOptions::default() }).expect("writes again");
    assert_eq!((report.written, report.kept), (1, 0));
}

#[test]
fn directories_with_other_content_are_refused() {
    let (root, output) = (temporary_directory(), temporary_directory());
    let bundle = bundle(root.path());
    for place in [bundle.clone(), bundle.join("inner"), root.path().to_owned()] {
        assert_eq!(make(&bundle, &place).expect_err("refused").status(), Status::Refused, "{place:?}");
    }
    assert!(!bundle.join("inner").exists());
    fs::write(output.path().join("mine.txt"), "mine").expect("writes");
    assert_eq!(make(&bundle, output.path()).expect_err("refused").status(), Status::Refused);
    fs::remove_file(output.path().join("mine.txt")).expect("removes");
    make(&bundle, output.path()).expect("makes it");
    let other = temporary_directory();
    fs::write(other.path().join("x.safetensors"), packed(&hostile())).expect("writes");
    assert_eq!(make(other.path(), output.path()).expect_err("refused").status(), Status::Refused);
    // A file that is added later stays.
    fs::write(output.path().join("mine.txt"), "mine").expect("writes");
    make(&bundle, output.path()).expect("makes it");
    assert_eq!(fs::read(output.path().join("mine.txt")).expect("reads"), b"mine");
}

/// Every entry below a directory, with its content.
fn tree(directory: &Path) -> Vec<(std::path::PathBuf, String)> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).expect("lists") {
            let path = entry.expect("an entry").path();
            let at = fs::symlink_metadata(&path).expect("stat");
            let what = match at.file_type() {
                kind if kind.is_dir() => "directory".to_owned(),
                kind if kind.is_symlink() => format!("{:?}", fs::read_link(&path).expect("reads")),
                _ => format!("{} {:?}", at.ino(), fs::read(&path).expect("reads")),
            };
            if at.is_dir() {
                open.push(path.clone());
            }
            found.push((path, what));
        }
    }
    found.sort();
    found
}

/// Runs again, and checks that this is refused and changes nothing.
fn refused(bundle: &Path, output: &Path, says: &str) {
    let before = (tree(bundle), tree(output));
    let error = make(bundle, output).expect_err(says);
    assert_eq!(error.status(), Status::Refused, "{error}");
    assert!(error.to_string().contains(says), "{says}: {error}");
    assert_eq!((tree(bundle), tree(output)), before);
}

#[test]
fn files_of_other_programs_are_not_replaced() {
    let (root, output) = (temporary_directory(), temporary_directory());
    let (bundle, output) = (bundle(root.path()), output.path());
    make(&bundle, output).expect("makes it");
    let restore = |name: &str| {
        let path = output.join(name);
        match fs::symlink_metadata(&path).expect("is there").is_dir() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        }
        .expect("removes");
        make(&bundle, output).expect("makes it again");
    };
    // A directory, a file and another link, in place of a link to a directory or a file.
    for name in ["tokenizer", "config.json", "model-2.safetensors", "vae/config.json"] {
        let path = output.join(name);
        fs::remove_file(&path).and_then(|()| fs::create_dir(&path)).expect("a directory");
        refused(&bundle, output, name);
        fs::write(path.join("mine.txt"), "mine").expect("writes");
        refused(&bundle, output, name);
        restore(name);
        fs::remove_file(&path).and_then(|()| fs::write(&path, "mine")).expect("a file");
        refused(&bundle, output, name);
        restore(name);
        fs::remove_file(&path).and_then(|()| symlink("elsewhere", &path)).expect("a link");
        refused(&bundle, output, name);
        restore(name);
    }
    // A file that was written, edited or replaced.
    for edit in 0..2 {
        let path = output.join("model-1.safetensors");
        match edit {
            0 => fs::write(&path, "mine"),
            _ => fs::copy(&path, output.join("x")).and_then(|_| fs::rename(output.join("x"), &path)),
        }
        .expect("edits");
        refused(&bundle, output, "model-1.safetensors");
        // Removed, it is written again.
        restore("model-1.safetensors");
    }
    // A directory that has to become a link, with a file of another program in it.
    fs::write(output.join("vae/mine.txt"), "mine").expect("writes");
    fs::remove_file(bundle.join("vae/inner.safetensors")).expect("removes");
    refused(&bundle, output, "vae/mine.txt");
    fs::remove_file(output.join("vae/mine.txt")).expect("removes");
    make(&bundle, output).expect("makes it");
    assert!(is_link(&output.join("vae")));
    // Removed from the bundle, and replaced by another program in the overlay.
    fs::remove_file(output.join("config.json"))
        .and_then(|()| fs::write(output.join("config.json"), "m"))
        .expect("mine");
    fs::remove_file(bundle.join("config.json")).expect("removes");
    let report = make(&bundle, output).expect("makes it");
    assert_eq!((report.removed, report.warnings.len()), (0, 2), "{report:?}");
    assert_eq!(fs::read(output.join("config.json")).expect("reads"), b"m");
}

#[test]
fn a_manifest_with_paths_outside_the_directory_is_refused() {
    let (root, output) = (temporary_directory(), temporary_directory());
    let (bundle, precious) = (bundle(root.path()), output.path().join("precious.txt"));
    let output = output.path().join("out");
    make(&bundle, &output).expect("makes it");
    fs::write(&precious, "mine").expect("writes");
    let path = output.join(".safealign-overlay.json");
    let good: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("reads")).expect("JSON");
    let entry = good["files"]["model-1.safetensors"].clone();
    let absolute = precious.to_str().expect("UTF-8").to_owned();
    for name in ["../precious.txt", &absolute, "vae/../../precious.txt", "", ".", "vae/", "%2E%2E/precious.txt"] {
        for list in ["links", "folders", "files"] {
            let mut bad = good.clone();
            match list {
                "files" => bad["files"][name] = entry.clone(),
                _ => bad[list].as_array_mut().expect("a list").push(name.into()),
            }
            fs::write(&path, bad.to_string()).expect("writes");
            refused(&bundle, &output, "is outside the output directory");
        }
    }
    // Names within the directory that lead out of it through a link, or to files that the overlay did not create.
    symlink(output.parent().expect("a directory"), output.join("way")).expect("links");
    fs::write(output.join("mine.txt"), "mine").expect("writes");
    let mut bad = good.clone();
    for name in ["way/precious.txt", "mine.txt", "tokenizer/vocab.txt"] {
        bad["files"][name] = entry.clone();
        bad["links"].as_array_mut().expect("a list").push(name.into());
    }
    fs::write(&path, bad.to_string()).expect("writes");
    make(&bundle, &output).expect("makes it");
    for path in [precious, output.join("mine.txt")] {
        assert_eq!(fs::read(path).expect("reads"), b"mine");
    }
    assert_eq!(fs::read(bundle.join("tokenizer/vocab.txt")).expect("reads"), b"a b");
    // A refused directory gets no lock.
    let other = temporary_directory();
    fs::write(other.path().join("mine.txt"), "mine").expect("writes");
    refused(&bundle, other.path(), "not part of an overlay");
}

#[test]
fn a_run_after_a_killed_one_keeps_its_files() {
    let (root, output) = (temporary_directory(), temporary_directory());
    let (bundle, output) = (bundle(root.path()), output.path());
    make(&bundle, output).expect("makes it");
    // Every file is stale; the second run ends between the two.
    let layout = LayoutOptions { layout: Layout::Padded, alignment: 512 };
    let mut calls = 0;
    let mut stop = |_, _| {
        calls += 1;
        if calls > 2 { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
    };
    let mut options = OverlayOptions { layout, progress: Some(&mut stop), ..OverlayOptions::default() };
    assert_eq!(overlay(&bundle, output, &mut options).expect_err("cancelled").status(), Status::Cancelled);
    let report =
        overlay(&bundle, output, &mut OverlayOptions { layout, ..OverlayOptions::default() }).expect("continues");
    assert_eq!((report.written, report.kept), (1, 1), "{report:?}");
    // A run that was killed before it renamed a new file: the manifest has the new file and the old, stale one.
    let path = output.join(".safealign-overlay.json");
    let mut manifest: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("reads")).expect("JSON");
    let written = manifest["files"]["model-1.safetensors"]["written"].as_array_mut().expect("a list");
    written.push(serde_json::json!({ "size": 1, "mtime": [1, 1], "inode": 1 }));
    fs::write(&path, manifest.to_string()).expect("writes");
    let report =
        overlay(&bundle, output, &mut OverlayOptions { layout, ..OverlayOptions::default() }).expect("continues");
    assert_eq!((report.written, report.kept), (1, 1), "{report:?}");
}

#[test]
fn trailing_bytes_and_broken_files_are_linked_with_a_warning() {
    let (root, output) = (temporary_directory(), temporary_directory());
    for name in ["trailing_misaligned", "trunc_tail"] {
        let name = format!("{name}.safetensors");
        fs::copy(common::cases().join(&name), root.path().join(&name)).expect("copies");
    }
    let text = String::from_utf8_lossy(&packed(&other())).replace("U8", "X9").into_bytes();
    fs::write(root.path().join("unknown.safetensors"), text).expect("writes");
    let report = make(root.path(), output.path()).expect("makes it");
    assert_eq!((report.written, report.linked, report.warnings.len()), (0, 3, 3), "{report:?}");
    let mut options = OverlayOptions { drop_trailing: true, ..OverlayOptions::default() };
    let report = overlay(root.path(), output.path(), &mut options).expect("makes it");
    assert_eq!((report.written, report.linked, report.warnings.len()), (1, 2, 2), "{report:?}");
}
