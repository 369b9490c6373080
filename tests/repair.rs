//! Repair: the same tensors at aligned offsets, and which files are refused.

mod common;

use std::fs::{self, Permissions};
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Owned, framed, hostile, packed, temporary_directory};
use safealign::dtype::Dtype;
use safealign::error::Status;
use safealign::layout::{Layout, LayoutOptions};
use safealign::map::{File, OpenOptions, Unaligned};
use safealign::overlay::{OverlayOptions, overlay};
use safealign::repair::{Action, RepairOptions, RepairReport, copy, repair};
use safealign::scan::{ScanOptions, scan};
use safealign::writer::Durability;

/// Without syncs, which the tests do not need.
fn options() -> RepairOptions<'static> {
    RepairOptions { durability: Durability::NotDurable, ..RepairOptions::default() }
}

fn in_place(path: &Path) -> safealign::error::Result<RepairReport> {
    repair(path, None, &mut options())
}

/// Writes a misaligned file.
fn misaligned(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, packed(&hostile())).expect("writes");
    assert!(scan(&path, &ScanOptions::default()).expect("scans").misaligned_tensors > 0);
    path
}

/// Metadata; name, dtype, shape and bytes of each tensor.
type Content = (Vec<(String, String)>, Vec<(String, String, Vec<u64>, Vec<u8>)>);

/// The content of a file, without offsets.
fn content(path: &Path) -> Content {
    let file = File::open(path, &OpenOptions { unaligned: Unaligned::Borrow, ..OpenOptions::default() });
    let file = file.expect("opens");
    let metadata = file.header().metadata().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let mut tensors: Vec<_> = (0..file.len())
        .map(|index| {
            let view = file.map_at(index).expect("maps");
            let info = view.info();
            (info.name.to_owned(), format!("{:?}", info.dtype), info.shape.to_vec(), common::bytes_of(&view).to_vec())
        })
        .collect();
    tensors.sort();
    (metadata, tensors)
}

/// Nothing is misaligned, and the reference reader reads the same bytes.
fn assert_repaired(path: &Path) {
    let report = scan(path, &ScanOptions::default()).expect("scans");
    assert_eq!(report.misaligned_tensors, 0);
    assert!(report.nonconforming.is_none(), "{:?}", report.nonconforming);
    let bytes = fs::read(path).expect("reads");
    let reference = safetensors::SafeTensors::deserialize(&bytes).expect("the reference opens it");
    for (name, _, _, data) in content(path).1 {
        assert_eq!(reference.tensor(&name).expect("is there").data(), data, "{name}");
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("lists").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn every_case_that_opens_is_repaired_and_keeps_its_bytes() {
    let root = temporary_directory();
    let mut repaired = 0;
    for entry in fs::read_dir(common::cases()).expect("lists") {
        let source = entry.expect("an entry").path();
        if source.extension() != Some("safetensors".as_ref()) || File::open(&source, &OpenOptions::default()).is_err() {
            continue;
        }
        let path = root.path().join(source.file_name().expect("a name"));
        fs::copy(&source, &path).expect("copies");
        let before = content(&path);
        let report = repair(&path, None, &mut RepairOptions { drop_trailing: true, force: true, ..options() });
        let unwritable = path.file_name() == Some("shape_0_then_huge.safetensors".as_ref());
        let report = report.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(report.action, Action::Rewritten);
        assert_eq!(content(&path), before);
        if !unwritable {
            assert_repaired(&path);
        }
        repaired += 1;
    }
    assert!(repaired > 30, "{repaired}");
}

#[test]
fn an_aligned_file_is_not_touched() {
    let root = temporary_directory();
    let path = misaligned(root.path(), "x.safetensors");
    assert_eq!(in_place(&path).expect("repairs").action, Action::Rewritten);
    assert_repaired(&path);
    let found = fs::metadata(&path).expect("stat");
    let report = in_place(&path).expect("nothing to do");
    assert_eq!((report.action, report.bytes_verified), (Action::Untouched, 0));
    let again = fs::metadata(&path).expect("stat");
    assert_eq!(
        (again.ino(), again.mtime_nsec(), again.ctime_nsec()),
        (found.ino(), found.mtime_nsec(), found.ctime_nsec())
    );
    // Control: `force` writes another file with the same bytes.
    let bytes = fs::read(&path).expect("reads");
    let report = repair(&path, None, &mut RepairOptions { force: true, ..options() }).expect("repairs");
    assert_eq!(report.action, Action::Rewritten);
    assert_eq!(fs::read(&path).expect("reads"), bytes);
    assert_ne!(fs::metadata(&path).expect("stat").ino(), found.ino());
}

#[test]
fn a_destination_gets_a_repaired_file_or_a_copy() {
    let root = temporary_directory();
    let source = misaligned(root.path(), "x.safetensors");
    let (repaired, copied) = (root.path().join("repaired"), root.path().join("copied"));
    let bytes = fs::read(&source).expect("reads");
    assert_eq!(repair(&source, Some(&repaired), &mut options()).expect("repairs").action, Action::Rewritten);
    assert_eq!(fs::read(&source).expect("reads"), bytes);
    assert_eq!(content(&source), content(&repaired));
    assert_repaired(&repaired);
    assert_eq!(repair(&repaired, Some(&copied), &mut options()).expect("copies").action, Action::Copied);
    assert_eq!(fs::read(&repaired).expect("reads"), fs::read(&copied).expect("reads"));
    // An aligned file with trailing bytes keeps them in a copy.
    let trailing = common::cases().join("trailing_bytes.safetensors");
    repair(&trailing, Some(&copied), &mut options()).expect("copies");
    assert_eq!(fs::read(trailing).expect("reads"), fs::read(&copied).expect("reads"));
}

#[test]
fn trailing_bytes_are_dropped_only_on_request() {
    let root = temporary_directory();
    let path = root.path().join("x.safetensors");
    fs::copy(common::cases().join("trailing_misaligned.safetensors"), &path).expect("copies");
    let bytes = fs::read(&path).expect("reads");
    let error = in_place(&path).expect_err("refused");
    assert_eq!(error.status(), Status::Refused);
    assert!(error.message().contains("bytes after the last tensor would be lost"), "{error}");
    assert_eq!(fs::read(&path).expect("reads"), bytes);
    repair(&path, None, &mut RepairOptions { drop_trailing: true, ..options() }).expect("repairs");
    assert_repaired(&path);
    let aligned = root.path().join("y.safetensors");
    fs::copy(common::cases().join("trailing_bytes.safetensors"), &aligned).expect("copies");
    assert_eq!(in_place(&aligned).expect("nothing else").action, Action::Untouched);
    repair(&aligned, None, &mut RepairOptions { drop_trailing: true, ..options() }).expect("repairs");
    assert_repaired(&aligned);
}

#[test]
fn metadata_mode_and_owner_are_kept() {
    let root = temporary_directory();
    let path = root.path().join("x.safetensors");
    let json =
        br#"{"__metadata__":{"z":"1","a":"\u0000x","m":""},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    // The data starts at an odd offset.
    let mut header = json.to_vec();
    header.resize(json.len().next_multiple_of(8) + 1, b' ');
    fs::write(&path, framed(&header, b"abcd")).expect("writes");
    assert_eq!(scan(&path, &ScanOptions::default()).expect("scans").misaligned_tensors, 1);
    let before = content(&path);
    assert_eq!(before.0.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["z", "a", "m"]);
    let is_root = std::os::unix::fs::chown(&path, Some(12), Some(34)).is_ok();
    fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("chmod");
    let destination = root.path().join("y.safetensors");
    repair(&path, Some(&destination), &mut options()).expect("repairs");
    in_place(&path).expect("repairs");
    for path in [&path, &destination] {
        assert_eq!(content(path), before);
        let found = fs::metadata(path).expect("stat");
        assert_eq!(found.mode() & 0o7777, 0o640);
        assert!(!is_root || (found.uid(), found.gid()) == (12, 34));
    }
}

fn refused(path: &Path, destination: Option<&Path>, says: &str) {
    let bytes = fs::read(path).expect("reads");
    let error = repair(path, destination, &mut options()).expect_err("refused");
    assert_eq!(error.status(), Status::Refused, "{error}");
    assert!(error.message().contains(says), "{error}");
    assert_eq!(fs::read(path).expect("reads"), bytes);
    // A dry run is refused too.
    let dry = repair(path, destination, &mut RepairOptions { dry_run: true, ..options() });
    assert_eq!(dry.expect_err("refused").status(), Status::Refused);
}

#[test]
fn links_and_cache_entries_are_refused() {
    let root = temporary_directory();
    let root = root.path();
    let path = misaligned(root, "x.safetensors");
    let link = root.join("link.safetensors");
    symlink(&path, &link).expect("links");
    refused(&link, None, "symbolic link");
    // Another name of the same file is refused too.
    refused(&path, Some(&link), "is the source itself");
    refused(&link, Some(&link), "is the source itself");
    let hard = root.join("hard.safetensors");
    fs::hard_link(&path, &hard).expect("links");
    refused(&path, None, "2 hard links");
    refused(&path, Some(&hard), "is the source itself");
    // Control: another destination is allowed, and the target of the link stays.
    let other = root.join("other.safetensors");
    repair(&link, Some(&other), &mut options()).expect("repairs");
    assert_repaired(&other);
    fs::remove_file(&hard).expect("removes");

    let cache = root.join("models--a--b");
    let (blobs, snapshot) = (cache.join("blobs"), cache.join("snapshots/main"));
    fs::create_dir_all(&blobs).and_then(|()| fs::create_dir_all(&snapshot)).expect("creates");
    let blob = misaligned(&blobs, "0123abc");
    let entry = snapshot.join("model.safetensors");
    symlink("../../blobs/0123abc", &entry).expect("links");
    refused(&blob, None, "hash of its content");
    refused(&entry, None, "symbolic link");
    refused(&path, Some(&blob), "hash of its content");
    refused(&blobs.join("../blobs/0123abc"), None, "hash of its content");
    let through = root.join("through");
    symlink(&blobs, &through).expect("links");
    refused(&through.join("0123abc"), None, "hash of its content");
    let lfs = misaligned(root, &"0a".repeat(32));
    refused(&lfs, None, "hash of its content");
    repair(&entry, Some(&other), &mut options()).expect("repairs");
    assert_eq!(content(&other), content(&blob));
    // Control: a directory of this name that is not a download cache.
    fs::remove_dir_all(cache.join("snapshots")).expect("removes");
    assert_eq!(in_place(&blob).expect("repairs").action, Action::Rewritten);
}

#[test]
fn a_destination_that_is_the_source_is_refused() {
    let root = temporary_directory();
    let path = misaligned(root.path(), "x.safetensors");
    symlink(".", root.path().join("self")).expect("links");
    for name in ["x.safetensors", "self/x.safetensors", "self/self/x.safetensors"] {
        refused(&path, Some(&root.path().join(name)), "is the source itself");
        let copied = copy(&path, &root.path().join(name), &mut options()).expect_err("refused");
        assert!(copied.message().contains("is the source itself"), "{copied}");
    }
    in_place(&path).expect("repairs");
    // Also if the file needs no repair.
    refused(&path, Some(&path), "is the source itself");
}

#[test]
#[cfg(target_os = "linux")]
fn a_copy_has_no_name_until_it_is_complete() {
    use std::os::unix::fs::OpenOptionsExt;
    let root = temporary_directory();
    let unnamed = fs::File::options().write(true).custom_flags(libc::O_TMPFILE).open(root.path());
    if unnamed.is_err() {
        eprintln!("skipped: the file system has no files without a name");
        return;
    }
    let (source, out) = (root.path().join("vocab.txt"), root.path().join("out"));
    fs::write(&source, vec![b'x'; 40 << 20]).and_then(|()| fs::create_dir(&out)).expect("writes");
    let mut calls = 0;
    let mut look = |_, _| {
        calls += 1;
        // A process that is killed here leaves no file.
        assert_eq!(names(&out), [""; 0]);
        ControlFlow::Continue(())
    };
    let mut watched = RepairOptions { progress: Some(&mut look), ..options() };
    assert_eq!(copy(&source, &out.join("vocab.txt"), &mut watched).expect("copies"), 40 << 20);
    assert!(calls > 2);
    assert_eq!(fs::read(out.join("vocab.txt")).expect("reads"), fs::read(&source).expect("reads"));
    // A cancelled copy leaves nothing.
    let mut cancel = |done, _| if done > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let mut cancelled = RepairOptions { progress: Some(&mut cancel), ..options() };
    let error = copy(&source, &out.join("other.txt"), &mut cancelled).expect_err("cancelled");
    assert_eq!((error.status(), names(&out)), (Status::Cancelled, vec!["vocab.txt".to_owned()]));
}

#[test]
fn options_are_checked_before_the_file() {
    let root = temporary_directory();
    let path = misaligned(root.path(), "x.safetensors");
    in_place(&path).expect("repairs");
    for alignment in [0, 3, 4, 4 << 20] {
        let layout = LayoutOptions { alignment, ..LayoutOptions::default() };
        for path in [&path, &root.path().join("missing")] {
            let error = repair(path, None, &mut RepairOptions { layout, ..options() }).expect_err("refused");
            assert_eq!(error.status(), Status::InvalidArgument, "{error}");
        }
        let mut options = OverlayOptions { layout, ..OverlayOptions::default() };
        let out = root.path().join("out");
        let error = overlay(root.path(), &out, &mut options).expect_err("refused");
        assert_eq!((error.status(), out.exists()), (Status::InvalidArgument, false), "{error}");
    }
}

#[test]
fn an_aligned_file_with_an_unknown_dtype_is_copied() {
    let root = temporary_directory();
    let (path, other) = (root.path().join("x.safetensors"), root.path().join("y.safetensors"));
    let mut json = br#"{"a":{"dtype":"F128","shape":[1],"data_offsets":[0,16]}}"#.to_vec();
    json.resize(120, b' ');
    fs::write(&path, framed(&json, &[7; 16])).expect("writes");
    let report = repair(&path, Some(&other), &mut options()).expect("copies");
    assert_eq!(report.action, Action::Copied);
    assert_eq!(fs::read(&path).expect("reads"), fs::read(&other).expect("reads"));
    assert_eq!(in_place(&path).expect("nothing to do").action, Action::Untouched);
    let error = repair(&path, Some(&other), &mut RepairOptions { force: true, ..options() });
    assert_eq!(error.expect_err("cannot be laid out").status(), Status::Unsupported);
}

#[test]
fn read_only_files_and_directories_are_refused() {
    let root = temporary_directory();
    let path = misaligned(root.path(), "x.safetensors");
    fs::set_permissions(&path, Permissions::from_mode(0o444)).expect("chmod");
    refused(&path, None, "is read-only");
    fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("chmod");
    fs::set_permissions(root.path(), Permissions::from_mode(0o555)).expect("chmod");
    refused(&path, None, "directory is read-only");
    fs::set_permissions(root.path(), Permissions::from_mode(0o755)).expect("chmod");
    in_place(&path).expect("repairs");
    assert_eq!(names(root.path()), ["x.safetensors"]);
}

#[test]
fn cancelling_leaves_the_old_file_and_nothing_else() {
    let root = temporary_directory();
    let path = misaligned(root.path(), "x.safetensors");
    let bytes = fs::read(&path).expect("reads");
    let mut cancel = |_, _| ControlFlow::Break(());
    let error = repair(&path, None, &mut RepairOptions { progress: Some(&mut cancel), ..options() });
    assert_eq!(error.expect_err("cancelled").status(), Status::Cancelled);
    assert_eq!(fs::read(&path).expect("reads"), bytes);
    assert_eq!(names(root.path()), ["x.safetensors"]);
    let mut seen = Vec::new();
    let mut watch = |done, total| {
        seen.push((done, total));
        ControlFlow::Continue(())
    };
    let report = repair(&path, None, &mut RepairOptions { progress: Some(&mut watch), ..options() }).expect("repairs");
    assert_eq!(seen.last(), Some(&(report.after.file_size, report.after.file_size)));
    assert!(seen.is_sorted());
}

#[test]
fn a_source_modified_during_the_call_is_not_replaced() {
    let root = temporary_directory();
    let (path, other) = (misaligned(root.path(), "x.safetensors"), root.path().join("other"));
    for change in 0..4 {
        fs::write(&path, packed(&hostile())).expect("writes");
        let mut changed = false;
        let mut modify = |_, _| {
            match change {
                _ if changed => {}
                // The size; only the time; another file at the path; removed.
                0 => fs::write(&path, [packed(&hostile()), b"more".to_vec()].concat()).expect("writes"),
                1 => fs::File::open(&path).and_then(|file| file.set_modified(std::time::UNIX_EPOCH)).expect("touches"),
                2 => fs::copy(&path, &other).and_then(|_| fs::rename(&other, &path)).expect("replaces"),
                _ => fs::remove_file(&path).expect("removes"),
            }
            changed = true;
            ControlFlow::Continue(())
        };
        let result = repair(&path, None, &mut RepairOptions { progress: Some(&mut modify), ..options() });
        assert_eq!(result.expect_err("changed").status(), Status::Changed, "{change}");
        if change < 3 {
            assert!(scan(&path, &ScanOptions::default()).expect("scans").misaligned_tensors > 0, "{change}");
        }
        assert!(names(root.path()).len() <= 1);
    }
}

#[test]
fn every_byte_is_compared_unless_disabled() {
    let root = temporary_directory();
    let (path, other) = (root.path().join("x.safetensors"), root.path().join("y.safetensors"));
    // Larger than one window.
    let owned = [Owned::new("a", Dtype::U8, &[3]), Owned::new("b", Dtype::F32, &[10 << 20])];
    fs::write(&path, packed(&owned)).expect("writes");
    let report = repair(&path, Some(&other), &mut options()).expect("repairs");
    assert_eq!(report.bytes_verified, 3 + (40 << 20));
    let report = repair(&path, None, &mut RepairOptions { verify: false, ..options() }).expect("repairs");
    assert_eq!(report.bytes_verified, 0);
    assert_eq!(content(&path), content(&other));
}

#[test]
fn padded_keeps_the_order_and_compact_removes_its_gaps() {
    let root = temporary_directory();
    let path = misaligned(root.path(), "x.safetensors");
    let before = content(&path);
    let layout = LayoutOptions { layout: Layout::Padded, alignment: 256 };
    let report = repair(&path, None, &mut RepairOptions { layout, ..options() }).expect("repairs");
    assert_eq!((report.after.tensors_moved, report.after.gap_bytes > 0), (0, true));
    let found = scan(&path, &ScanOptions { alignment: 256 }).expect("scans");
    assert_eq!((found.tensors_below_alignment, found.gap_bytes), (0, report.after.gap_bytes));
    // The gaps were requested. The compact layout removes them.
    let again = repair(&path, None, &mut RepairOptions { layout, ..options() }).expect("repairs");
    assert_eq!(again.action, Action::Untouched);
    assert_eq!(in_place(&path).expect("repairs").action, Action::Rewritten);
    assert_repaired(&path);
    assert_eq!(content(&path), before);
}

#[test]
fn many_small_tensors_go_through_the_buffer() {
    let root = temporary_directory();
    let path = root.path().join("x.safetensors");
    let owned: Vec<Owned> = (0..20_000u64)
        .map(|number| {
            Owned::new(&format!("t{number}"), [Dtype::U8, Dtype::F32, Dtype::Bf16][number as usize % 3], &[number % 9])
        })
        .chain([Owned::new("large", Dtype::F64, &[100_000]), Owned::new("odd", Dtype::U8, &[70_001])])
        .collect();
    fs::write(&path, packed(&owned)).expect("writes");
    let before = content(&path);
    in_place(&path).expect("repairs");
    assert_repaired(&path);
    assert_eq!(content(&path), before);
}

#[test]
fn malformed_files_are_errors_and_stay() {
    let root = temporary_directory();
    for name in ["trunc_tail", "overlap_partial", "html_page", "file_empty"] {
        let path = root.path().join("x.safetensors");
        let source = common::cases().join(format!("{name}.safetensors"));
        fs::copy(&source, &path).expect("copies");
        in_place(&path).expect_err("refused");
        repair(&path, Some(&root.path().join("y")), &mut options()).expect_err("refused");
        assert_eq!(fs::read(&path).expect("reads"), fs::read(&source).expect("reads"));
    }
    assert_eq!(names(root.path()), ["x.safetensors"]);
    let error = in_place(&root.path().join("missing")).expect_err("is missing");
    assert_eq!((error.status(), error.os_error()), (Status::Io, libc::ENOENT));
}

/// A mounted file system, if the test has the permission.
struct Small(tempfile::TempDir);

impl Small {
    fn mount(size: &str) -> Option<Small> {
        Small::of("tmpfs", &format!("size={size}"))
    }

    fn of(kind: &str, options: &str) -> Option<Small> {
        let root = temporary_directory();
        let mounted = Command::new("mount").args(["-t", kind, "-o", options, kind]).arg(root.path()).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Small(root));
        }
        eprintln!("skipped: mounting a file system requires root");
        None
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).output();
    }
}

#[test]
fn free_space_is_checked_first() {
    let Some(disk) = Small::mount("16m") else { return };
    let root = disk.0.path();
    let path = root.join("x.safetensors");
    let owned = [Owned::new("a", Dtype::U8, &[3]), Owned::new("b", Dtype::F32, &[9 << 18])];
    fs::write(&path, packed(&owned)).expect("writes");
    let size = fs::metadata(&path).expect("stat").len();
    let error = in_place(&path).expect_err("refused");
    assert_eq!(error.status(), Status::Refused);
    let missing: u64 = error
        .message()
        .split(" are missing")
        .next()
        .and_then(|text| text.rsplit(' ').next())
        .and_then(|number| number.parse().ok())
        .expect("a number");
    let free = (16 << 20) - size;
    assert!(missing.abs_diff(size - free) < 64 << 10, "{error}");
    assert_eq!((fs::read(&path).expect("reads"), names(root)), (packed(&owned), vec!["x.safetensors".to_owned()]));
    // Control: with enough space it succeeds.
    let smaller = [Owned::new("a", Dtype::U8, &[3]), Owned::new("b", Dtype::F32, &[1 << 20])];
    fs::write(&path, packed(&smaller)).expect("writes");
    in_place(&path).expect("repairs");
    assert_eq!(names(root), ["x.safetensors"]);
}

#[test]
fn the_destination_may_be_on_another_file_system() {
    let Some(disk) = Small::mount("64m") else { return };
    let root = temporary_directory();
    let path = root.path().join("x.safetensors");
    let owned = [Owned::new("a", Dtype::U8, &[3]), Owned::new("b", Dtype::F32, &[1 << 20])];
    fs::write(&path, packed(&owned)).expect("writes");
    let destination = disk.0.path().join("y.safetensors");
    repair(&path, Some(&destination), &mut options()).expect("repairs");
    assert_eq!(content(&path), content(&destination));
    assert_repaired(&destination);
}

#[test]
fn a_file_system_without_a_size_is_not_full() {
    let Some(disk) = Small::of("ramfs", "mode=0777") else { return };
    let path = misaligned(disk.0.path(), "x.safetensors");
    in_place(&path).expect("repairs");
    assert_repaired(&path);
    assert_eq!(names(disk.0.path()), ["x.safetensors"]);
}
