//! Tests of `safealign repair`, `verify` and `overlay`, and that no failure damages a file.

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{aligned, cases, command, copy_directory, misaligned, names, run, temporary_directory, write};
use rustix::process::{Pid, Signal, kill_process};

fn assert_repaired(path: &Path) {
    let bytes = fs::read(path).expect("reads");
    safetensors::SafeTensors::deserialize(&bytes).expect("the reference reader accepts it");
    let ran = run(Path::new("/"), &["scan", "--check", "--json", path.to_str().expect("UTF-8")]);
    assert_eq!(ran.status, Some(0), "{}", ran.out);
}

#[test]
fn without_output_or_in_place_nothing_is_changed() {
    let root = temporary_directory();
    copy_directory(&cases().join("dir_shards"), &root.path().join("m"));
    let before: Vec<_> = names(&root.path().join("m"));
    let ran = run(root.path(), &["repair", "m"]);
    assert_eq!(ran.status, Some(0));
    assert_eq!(ran.out.matches("would repair").count(), 2, "{}", ran.out);
    assert!(
        ran.out.contains("nothing was changed; use `--output DIR` to write a repaired copy, or `--in-place`"),
        "{}",
        ran.out
    );
    for args in [&["repair", "m", "--dry-run", "--in-place"][..], &["repair", "m", "--dry-run", "--output", "out"]] {
        let ran = run(root.path(), args);
        assert_eq!((ran.status, ran.out.matches("would be rewritten").count()), (Some(0), 2), "{}", ran.out);
    }
    assert_eq!(names(root.path()), ["m"]);
    assert_eq!(names(&root.path().join("m")), before);
    for name in before {
        let (path, source) = (root.path().join("m").join(&name), cases().join("dir_shards").join(&name));
        assert_eq!(fs::read(path).expect("reads"), fs::read(source).expect("reads"));
    }
}

#[test]
fn repair_writes_a_bundle_to_an_output_directory() {
    let root = temporary_directory();
    let (model, out) = (root.path().join("m"), root.path().join("out"));
    copy_directory(&cases().join("dir_shards"), &model);
    write(&model.join("tokenizer/vocab.txt"), b"a b");
    let ran = run(root.path(), &["repair", "m", "--output", "out"]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    assert!(ran.out.contains("before: 1 of 1 bundle affected, 44 B would be copied"), "{}", ran.out);
    assert!(ran.out.contains("after: 0 of 1 bundle affected, 0 B would be copied"), "{}", ran.out);
    for name in
        ["config.json", "model.safetensors.index.json", "tokenizer/vocab.txt", "model-00001-of-00003.safetensors"]
    {
        assert_eq!(fs::read(out.join(name)).expect("reads"), fs::read(model.join(name)).expect("reads"), "{name}");
    }
    for name in ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "extra.safetensors"] {
        assert_repaired(&out.join(name));
    }
    assert!(!names(&out).iter().any(|name| name.starts_with('.') || name.ends_with(".incomplete")));
    assert_eq!(run(root.path(), &["verify", "m", "out"]).status, Some(0));
    let misaligned_tensors = |name: &str| {
        run(root.path(), &["scan", "--json", name]).kind("total")[0]["misaligned_tensors"].as_u64().expect("a number")
    };
    assert_eq!((misaligned_tensors("m"), misaligned_tensors("out")), (4, 0));
    // The output must not be inside the source.
    assert_eq!(run(root.path(), &["repair", "m", "--output", "m/out"]).status, Some(2));
    assert!(!model.join("out").exists());
}

#[test]
fn in_place_writes_only_files_that_need_repair() {
    let root = temporary_directory();
    let model = root.path().join("m");
    copy_directory(&cases().join("dir_shards"), &model);
    copy_directory(&model, &root.path().join("old"));
    let inode = |name: &str| fs::metadata(model.join(name)).expect("stat").ino();
    let shards = ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"];
    let (before, files) = (shards.map(inode), names(&model));
    let ran = run(root.path(), &["repair", "--in-place", "--json", "m"]);
    assert_eq!(ran.status, Some(0));
    let actions: Vec<_> = ran.kind("repair").iter().map(|value| value["action"].clone()).collect();
    assert_eq!(actions, ["rewritten", "untouched", "rewritten"]);
    let after = shards.map(inode);
    assert!(before[0] == after[0] && before[1] != after[1]);
    assert_eq!(names(&model), files);
    assert_eq!(run(root.path(), &["verify", "old", "m"]).status, Some(0));
    assert_eq!(run(root.path(), &["repair", "--in-place", "m"]).out.matches("untouched").count(), 3);
    let ran = run(root.path(), &["repair", "--in-place", "--force", "--json", "m"]);
    assert!(ran.kind("repair").iter().all(|value| value["action"] == "rewritten"));
}

#[test]
fn files_that_must_not_be_replaced_are_refused_and_the_others_are_repaired() {
    let root = temporary_directory();
    let path = |name: &str| root.path().join(name);
    for name in ["m/good.safetensors", "m/read-only.safetensors", "m/linked.safetensors", "blobs/1"] {
        write(&path(name), &misaligned(100));
    }
    fs::set_permissions(path("m/read-only.safetensors"), Permissions::from_mode(0o444)).expect("chmod");
    fs::hard_link(path("m/linked.safetensors"), path("elsewhere")).expect("links");
    symlink("../blobs/1", path("m/symbolic.safetensors")).expect("links");
    write(&path("m/broken.safetensors"), b"x");
    let ran = run(root.path(), &["repair", "--in-place", "m"]);
    assert_eq!(ran.status, Some(2));
    assert_eq!(ran.err.lines().count(), 4, "{}", ran.err);
    for expected in ["m/read-only.safetensors: is read-only", "has 2 hard links", "is a symbolic link", "broken"] {
        assert!(ran.err.contains(expected), "{expected}: {}", ran.err);
    }
    assert!(ran.out.contains("after: 1 of 1 bundle affected"), "{}", ran.out);
    assert_repaired(&path("m/good.safetensors"));
    for name in ["m/read-only.safetensors", "m/linked.safetensors", "blobs/1"] {
        assert_eq!(fs::read(path(name)).expect("reads"), misaligned(100));
    }
    // `--output` works for these files.
    let ran = run(root.path(), &["repair", "m", "--output", "out"]);
    assert_eq!((ran.status, ran.err.lines().count()), (Some(2), 1), "{}", ran.err);
    for name in ["read-only", "linked", "symbolic"] {
        assert_repaired(&path(&format!("out/{name}.safetensors")));
    }
}

#[test]
fn a_file_with_several_names_is_repaired_once_in_place_and_copied_under_each_name() {
    let root = temporary_directory();
    let path = |name: &str| root.path().join(name);
    write(&path("m/real.safetensors"), &misaligned(100));
    symlink("real.safetensors", path("m/a-link.safetensors")).expect("links");
    assert_eq!(run(root.path(), &["repair", "m", "--output", "out"]).status, Some(0));
    assert_repaired(&path("out/a-link.safetensors"));
    assert_repaired(&path("out/real.safetensors"));
    assert_eq!(run(root.path(), &["verify", "m", "out"]).status, Some(0));
    let ran = run(root.path(), &["repair", "m", "--in-place"]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    assert_repaired(&path("m/a-link.safetensors"));
    assert!(fs::symlink_metadata(path("m/a-link.safetensors")).expect("exists").is_symlink());
}

#[test]
fn gaps_and_padding_are_proposed_and_repaired_too() {
    let root = temporary_directory();
    for name in ["hole_align", "pad_nul", "trailing_bytes", "mlx_lucky"] {
        let name = format!("m/{name}.safetensors");
        write(&root.path().join(&name), &fs::read(cases().join(&name[2..])).expect("the case"));
    }
    let ran = run(root.path(), &["repair", "m"]);
    assert_eq!(ran.out.matches("would repair").count(), 2, "{}", ran.out);
    assert_eq!(run(root.path(), &["repair", "m", "--drop-trailing"]).out.matches("would repair").count(), 3);
    // A file that would be rewritten only by `--force` is refused as well, and the message names the option.
    let ran = run(root.path(), &["repair", "m/trailing_bytes.safetensors", "--in-place", "--force"]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.err.contains("m/trailing_bytes.safetensors: ") && ran.err.contains("`--drop-trailing`"), "{}", ran.err);
    let ran = run(root.path(), &["repair", "m", "--in-place", "--drop-trailing", "--json"]);
    assert_eq!(ran.kind("repair").iter().filter(|value| value["action"] == "rewritten").count(), 3, "{}", ran.out);
    for name in ["hole_align", "pad_nul", "trailing_bytes", "mlx_lucky"] {
        assert_repaired(&root.path().join(format!("m/{name}.safetensors")));
    }
}

#[test]
fn verify_reports_the_first_difference() {
    let root = temporary_directory();
    let path = |name: &str| root.path().join(name);
    write(&path("a.safetensors"), &misaligned(100));
    assert_eq!(run(root.path(), &["repair", "a.safetensors", "--output", "out"]).status, Some(0));
    let ran = run(root.path(), &["verify", "a.safetensors", "out/a.safetensors"]);
    assert_eq!((ran.status, ran.out.as_str()), (Some(0), "equal: 3 tensors, 803 B\n"));
    let mut bytes = misaligned(100);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    write(&path("b.safetensors"), &bytes);
    let ran = run(root.path(), &["verify", "out/a.safetensors", "b.safetensors"]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.out.contains("tensor `b`: byte 399 of 400 is 0x"), "{}", ran.out);
    let ran = run(root.path(), &["verify", "--json", "a.safetensors", "b.safetensors"]);
    assert_eq!((ran.status, &ran.kind("verify")[0]["equal"]), (Some(1), &false.into()));
    write(&path("c.safetensors"), &misaligned(99));
    assert_eq!(run(root.path(), &["verify", "a.safetensors", "c.safetensors"]).status, Some(1));
    write(&path("d.safetensors"), &aligned());
    assert_eq!(run(root.path(), &["verify", "a.safetensors", "d.safetensors"]).status, Some(1));
    assert_eq!(run(root.path(), &["verify", "d.safetensors", "a.safetensors"]).status, Some(1));
    assert_eq!(run(root.path(), &["verify", "a.safetensors", "missing"]).status, Some(2));
    // The same tensors in different shards.
    write(&path("one/x.safetensors"), &misaligned(100));
    write(&path("one/y.safetensors"), &aligned());
    write(&path("two/p.safetensors"), &aligned());
    write(&path("two/q.safetensors"), &misaligned(100));
    assert_eq!(run(root.path(), &["verify", "one", "two"]).status, Some(0));
    write(&path("two/q.safetensors"), &bytes);
    assert_eq!(run(root.path(), &["verify", "one", "two"]).status, Some(1));
}

#[test]
fn an_overlay_has_the_tensors_of_its_bundle() {
    let root = temporary_directory();
    copy_directory(&cases().join("dir_shards"), &root.path().join("m"));
    let ran = run(root.path(), &["overlay", "m", "out"]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    assert!(ran.out.contains("2 files repaired"), "{}", ran.out);
    assert_eq!(run(root.path(), &["verify", "m", "out"]).status, Some(0));
    let ran = run(root.path(), &["scan", "--json", "out"]);
    assert_eq!(ran.kind("total")[0]["misaligned_tensors"], 0);
    assert!(fs::symlink_metadata(root.path().join("out/config.json")).expect("exists").is_symlink());
    let ran = run(root.path(), &["overlay", "--json", "m", "out"]);
    let report = &ran.kind("overlay")[0];
    assert_eq!((&report["written"], &report["kept"], &report["linked"]), (&0.into(), &2.into(), &3.into()));
    assert_eq!(run(root.path(), &["overlay", "m", "m/inner"]).status, Some(2));
}

#[test]
fn two_sources_with_one_destination_are_an_error_before_anything_is_written() {
    let root = temporary_directory();
    let path = |name: &str| root.path().join(name);
    for name in ["v1/model/m.safetensors", "v2/model/m.safetensors", "v2/m.safetensors", "a/m.safetensors"] {
        write(&path(name), &misaligned(100));
    }
    write(&path("v1/model/config.json"), b"1");
    write(&path("b/m.safetensors/config.json"), b"2");
    fs::create_dir_all(path("c/m.safetensors")).expect("creates");
    for (args, sources) in [
        (&["v1/model", "v2/model"][..], ["v1/model/m.safetensors", "v2/model/m.safetensors"]),
        (&["a/m.safetensors", "v2/m.safetensors"], ["a/m.safetensors", "v2/m.safetensors"]),
        (&["v2/m.safetensors", "v1/model"], ["v2/m.safetensors", "v1/model/m.safetensors"]),
        (&["v2/m.safetensors", "b"], ["v2/m.safetensors", "b/m.safetensors/config.json"]),
        (&["v2/m.safetensors", "c"], ["v2/m.safetensors", "c/m.safetensors"]),
    ] {
        for extra in [&["--output", "out"][..], &["--output", "out", "--dry-run"]] {
            let ran = run(root.path(), &[&["repair"], args, extra].concat());
            assert_eq!((ran.status, ran.err.lines().count(), path("out").exists()), (Some(2), 1, false), "{}", ran.err);
            assert!(sources.iter().all(|source| ran.err.contains(source)), "{}", ran.err);
            assert!(!ran.out.contains("after:"), "{}", ran.out);
        }
    }
    // The same file given twice is no conflict, and neither are directories with different names.
    let ran = run(root.path(), &["repair", "a/m.safetensors", "a", "--output", "out"]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    assert_eq!(run(root.path(), &["repair", "a", "v2", "--output", "more"]).status, Some(0));
    assert_repaired(&path("more/a/m.safetensors"));
    assert_repaired(&path("more/v2/model/m.safetensors"));
}

#[test]
fn the_source_is_never_the_destination() {
    let root = temporary_directory();
    let path = |name: &str| root.path().join(name);
    for name in ["m/x.safetensors", "m/sub/y.safetensors"] {
        write(&path(name), &misaligned(100));
    }
    write(&path("m/sub/config.json"), b"{}");
    let ran = run(&path("m"), &["repair", "x.safetensors", "--output", "."]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.err.contains("--in-place"), "{}", ran.err);
    // This includes links below the output, even for files that need no repair.
    fs::create_dir(path("out")).and_then(|()| symlink("../m/sub", path("out/sub"))).expect("links");
    let inode = fs::metadata(path("m/sub/config.json")).expect("stat").ino();
    let ran = run(root.path(), &["repair", "m", "--output", "out"]);
    assert_eq!((ran.status, ran.err.matches("--in-place").count()), (Some(2), 2), "{}", ran.err);
    for name in ["m/x.safetensors", "m/sub/y.safetensors"] {
        assert_eq!(fs::read(path(name)).expect("reads"), misaligned(100));
    }
    assert_eq!(fs::metadata(path("m/sub/config.json")).expect("stat").ino(), inode);
}

#[test]
fn in_place_follows_no_link_to_a_directory() {
    let root = temporary_directory();
    let path = |name: &str| root.path().join(name);
    for name in ["m/x.safetensors", "elsewhere/y.safetensors", "elsewhere/deep/z.safetensors"] {
        write(&path(name), &misaligned(100));
    }
    symlink("../elsewhere", path("m/link")).expect("links");
    let ran = run(root.path(), &["repair", "--in-place", "m"]);
    assert_eq!((ran.status, ran.err.lines().count()), (Some(0), 1), "{}", ran.err);
    assert!(ran.err.contains("warning: m/link: is a link to a directory"), "{}", ran.err);
    assert_repaired(&path("m/x.safetensors"));
    for args in ["m/link", "m/link/", "m/link/deep", "m/link/y.safetensors", "m/link/deep/z.safetensors"] {
        let ran = run(root.path(), &["repair", "--in-place", args]);
        assert_eq!(ran.status, Some(2), "{args}: {}", ran.err);
        assert!(ran.err.contains("m/link is a link to a directory"), "{}", ran.err);
    }
    for name in ["elsewhere/y.safetensors", "elsewhere/deep/z.safetensors"] {
        assert_eq!(fs::read(path(name)).expect("reads"), misaligned(100));
    }
    // Control: a scan follows the link, and the path of the target directory works.
    assert_eq!(run(root.path(), &["scan", "--json", "m"]).kind("file").len(), 3);
    assert_eq!(run(root.path(), &["repair", "--in-place", "elsewhere"]).status, Some(0));
    assert_repaired(&path("elsewhere/deep/z.safetensors"));
}

#[test]
fn a_copy_is_complete_or_warns_about_what_is_missing() {
    let root = temporary_directory();
    let path = |name: &str| root.path().join(name);
    write(&path("m/x.safetensors"), &misaligned(100));
    write(&path("m/sub/config.json"), b"{}");
    let mut json = br#"{"a":{"dtype":"F128","shape":[1],"data_offsets":[0,16]}}"#.to_vec();
    json.resize(120, b' ');
    write(&path("m/unknown.safetensors"), &common::framed(&json, 16));
    fs::create_dir(path("m/empty")).expect("creates");
    symlink("nowhere", path("m/dangling.txt")).expect("links");
    let ran = run(root.path(), &["repair", "m", "--output", "out"]);
    assert_eq!((ran.status, ran.err.lines().count()), (Some(0), 2), "{}", ran.err);
    for expected in ["m/dangling.txt: dangling symbolic link", "m/unknown.safetensors: no repair needed"] {
        assert!(ran.err.contains(expected), "{expected}: {}", ran.err);
    }
    assert!(path("out/empty").is_dir());
    for name in ["unknown.safetensors", "sub/config.json"] {
        let read = |directory: &str| fs::read(path(directory).join(name)).expect("reads");
        assert_eq!(read("out"), read("m"), "{name}");
    }
}

#[test]
fn blobs_that_snapshots_link_to_are_not_copied_again() {
    let root = temporary_directory();
    let path = |name: &str| root.path().join(name);
    write(&path("hub/models--a--b/blobs/1"), &misaligned(100));
    write(&path("hub/models--a--b/blobs/2"), b"{}");
    write(&path("hub/models--a--b/blobs/3"), b"unused");
    fs::create_dir_all(path("hub/models--a--b/snapshots/r")).expect("creates");
    for (blob, name) in [("1", "m.safetensors"), ("2", "config.json")] {
        let link = path("hub/models--a--b/snapshots/r").join(name);
        symlink(format!("../../blobs/{blob}"), link).expect("links");
    }
    let ran = run(root.path(), &["repair", "hub", "--output", "out"]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    assert_repaired(&path("out/models--a--b/snapshots/r/m.safetensors"));
    assert_eq!(fs::read(path("out/models--a--b/snapshots/r/config.json")).expect("reads"), b"{}");
    assert_eq!(names(&path("out/models--a--b/blobs")), ["3"]);
}

#[test]
fn a_failure_is_reported_once_and_no_result_is_claimed() {
    let root = temporary_directory();
    let path = |name: &str| root.path().join(name);
    for name in ["m/a.safetensors", "m/b.safetensors", "m/c.safetensors"] {
        write(&path(name), &misaligned(100));
    }
    // No directory can be created below a file.
    write(&path("out"), b"a file");
    let ran = run(root.path(), &["repair", "m", "--output", "out/repaired"]);
    assert_eq!((ran.status, ran.err.lines().count()), (Some(2), 1), "{}", ran.err);
    assert!(!ran.out.contains("after:"), "{}", ran.out);
    let ran = run(root.path(), &["repair", "m", "--output", "out/repaired", "--json"]);
    assert_eq!((ran.status, ran.err.lines().count(), ran.kind("error").len()), (Some(2), 1, 3), "{}", ran.out);
    let ran = run(root.path(), &["repair", "missing", "missing", "--output", "repaired"]);
    assert_eq!((ran.status, ran.err.lines().count()), (Some(2), 1), "{}", ran.err);
    assert!(!ran.out.contains("after:"), "{}", ran.out);
}

#[test]
fn free_space_for_the_whole_bundle_is_checked_first() {
    let (root, disk) = (temporary_directory(), temporary_directory());
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=12m", "tmpfs"]).arg(disk.path()).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: mounting a tmpfs requires root");
        return;
    }
    let checked = std::panic::catch_unwind(|| {
        // Each file fits, but not all of them together.
        for name in ["m/a.safetensors", "m/b.safetensors"] {
            write(&root.path().join(name), &misaligned(500_000));
        }
        write(&root.path().join("m/large.bin"), &vec![7; 5 << 20]);
        let out = disk.path().join("out");
        let args = ["repair", "m", "--no-sync", "--output", out.to_str().expect("UTF-8")];
        let ran = run(root.path(), &args);
        assert_eq!((ran.status, ran.err.lines().count(), out.exists()), (Some(2), 1, false), "{}", ran.err);
        assert!(ran.err.contains(" are free, ") && ran.err.contains(" are missing"), "{}", ran.err);
        // A replaced file frees space for the next one.
        fs::write(root.path().join("m/large.bin"), b"small").expect("writes");
        assert_eq!(run(root.path(), &args).status, Some(0));
        assert_eq!(run(root.path(), &args).status, Some(0));
        // An overlay also checks first.
        fs::write(disk.path().join("full"), vec![7; 2 << 20]).expect("writes");
        let over = disk.path().join("over");
        let ran = run(root.path(), &["overlay", "m", over.to_str().expect("UTF-8")]);
        assert_eq!(ran.status, Some(2));
        assert!(ran.err.contains(" are missing"), "{}", ran.err);
        assert!(names(&over).iter().all(|name| name.starts_with(".safealign")), "{:?}", names(&over));
    });
    let _ = Command::new("umount").arg(disk.path()).output();
    assert!(checked.is_ok());
}

#[test]
fn svg_output_replaces_only_an_svg() {
    let root = temporary_directory();
    let path = |name: &str| root.path().join(name);
    write(&path("x.safetensors"), &misaligned(100));
    write(&path("y.safetensors"), &aligned());
    write(&path("notes.txt"), b"mine");
    write(&path("page.svg"), b"<!DOCTYPE html><html><svg/></html>");
    for (target, link) in [("x.safetensors", "x-link.svg"), ("y.safetensors", "y-link.svg"), (".", "directory.svg")] {
        symlink(target, path(link)).expect("links");
    }
    fs::hard_link(path("x.safetensors"), path("hard.svg")).expect("links");
    let before = names(root.path());
    for target in [
        "x.safetensors",
        "y.safetensors",
        "notes.txt",
        "page.svg",
        "x-link.svg",
        "y-link.svg",
        "directory.svg",
        "hard.svg",
    ] {
        let ran = run(root.path(), &["inspect", "x.safetensors", "--svg", target]);
        assert_eq!((ran.status, ran.err.lines().count()), (Some(2), 1), "{target}: {}", ran.err);
        assert!(ran.err.contains("use another name"), "{}", ran.err);
    }
    assert_eq!(names(root.path()), before);
    assert_eq!(fs::read(path("x.safetensors")).expect("reads"), misaligned(100));
    assert_eq!(fs::read(path("y.safetensors")).expect("reads"), aligned());
    assert_eq!(fs::read(path("notes.txt")).expect("reads"), b"mine");
    assert!(fs::symlink_metadata(path("y-link.svg")).expect("exists").is_symlink());
    // A new file, the same file again, and a link to an SVG: the link is replaced, not its target.
    for target in ["new.svg", "new.svg"] {
        assert_eq!(run(root.path(), &["inspect", "x.safetensors", "--svg", target]).status, Some(0));
    }
    write(&path("old.svg"), b"<?xml version=\"1.0\"?>\n<!-- a -->\n<svg/>");
    symlink("old.svg", path("to-old.svg")).expect("links");
    assert_eq!(run(root.path(), &["inspect", "x.safetensors", "--svg", "to-old.svg"]).status, Some(0));
    assert_eq!(fs::read(path("old.svg")).expect("reads"), b"<?xml version=\"1.0\"?>\n<!-- a -->\n<svg/>");
    assert!(fs::read(path("to-old.svg")).expect("reads").starts_with(b"<svg"));
}

/// Starts an in-place repair of `x.safetensors` in a directory.
fn start(directory: &Path) -> Child {
    let mut repair = command();
    repair.args(["repair", "--in-place", "--no-sync", "x.safetensors"]).current_dir(directory);
    repair.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts")
}

/// Waits without sleeping. How far the child gets in this time varies from run to run, which is intended.
fn wait_for(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// The old file, the new file, and the time of a repair.
fn old_and_new(directory: &Path, elements: usize) -> (Vec<u8>, Vec<u8>, Duration) {
    let path = directory.join("x.safetensors");
    let old = misaligned(elements);
    let once = || {
        fs::write(&path, &old).expect("writes");
        let begin = Instant::now();
        assert!(start(directory).wait().expect("ends").success());
        begin.elapsed()
    };
    // The first run is slower than the others.
    let time = (0..5).map(|_| once()).min().expect("five");
    let new = fs::read(&path).expect("reads");
    assert_ne!(old, new);
    assert_repaired(&path);
    (old, new, time)
}

#[test]
fn a_kill_at_any_point_leaves_a_complete_file() {
    const KILLS: u32 = 240;
    let root = temporary_directory();
    let path = root.path().join("x.safetensors");
    let (old, new, time) = old_and_new(root.path(), 150_000);
    let (mut olds, mut news) = (0, 0);
    for kill in 0..KILLS {
        fs::write(&path, &old).expect("writes");
        let mut child = start(root.path());
        // From the start to some time after the end.
        wait_for(time * kill * 3 / (2 * KILLS));
        child.kill().expect("kills");
        child.wait().expect("ends");
        let found = fs::read(&path).expect("the file is there");
        assert!(found == old || found == new, "kill {kill}: neither the old file nor the new one");
        if found == old { olds += 1 } else { news += 1 }
    }
    eprintln!("{olds} kills left the old file, {news} the new file");
    // Control: the first kill comes before the new file, and a repair that is not killed succeeds.
    assert!(olds > 0);
    fs::write(&path, &old).expect("writes");
    assert!(start(root.path()).wait().expect("ends").success());
    assert_eq!(fs::read(&path).expect("reads"), new);
}

#[test]
fn an_interrupt_at_any_point_leaves_no_temporary_file() {
    let root = temporary_directory();
    let path = root.path().join("x.safetensors");
    let (old, new, time) = old_and_new(root.path(), 150_000);
    for signal in 0..40 {
        fs::write(&path, &old).expect("writes");
        let mut child = start(root.path());
        wait_for(time * signal / 40);
        let process = Pid::from_child(&child);
        kill_process(process, Signal::INT).expect("signals");
        let status = child.wait().expect("ends");
        let found = fs::read(&path).expect("the file is there");
        assert!(found == old || found == new, "signal {signal}: neither the old file nor the new one");
        assert_eq!(names(root.path()), ["x.safetensors"], "signal {signal}");
        // `None`: the signal arrived before the handler was installed.
        assert!(matches!(status.code(), None | Some(0 | 2)), "{status}");
        assert!(status.code() != Some(0) || found == new);
    }
}

/// Uses `prlimit`, if it is installed, to limit memory.
#[test]
fn memory_use_does_not_depend_on_the_file_size() {
    let root = temporary_directory();
    // A sparse file of 256 MiB. It is read like any other file.
    let data = 256 << 20;
    let json = format!(
        r#"{{"odd":{{"dtype":"U8","shape":[3],"data_offsets":[0,3]}},"w":{{"dtype":"F32","shape":[{}],"data_offsets":[3,{}]}},"v":{{"dtype":"F32","shape":[1],"data_offsets":[{},{}]}}}}"#,
        data / 4,
        data + 3,
        data + 3,
        data + 7
    );
    let path = root.path().join("x.safetensors");
    write(&path, &common::framed(json.as_bytes(), 0));
    let file = fs::File::options().write(true).open(&path).expect("opens");
    file.set_len(8 + json.len() as u64 + data + 7).expect("grows");
    let limited = |bytes: u64, args: &[&str]| {
        let mut prlimit = Command::new("prlimit");
        prlimit.arg(format!("--data={bytes}")).arg(env!("CARGO_BIN_EXE_safealign")).args(args);
        prlimit.current_dir(root.path()).env("RAYON_NUM_THREADS", "2").output()
    };
    let Ok(output) = limited(32 << 20, &["scan", "x.safetensors"]) else {
        eprintln!("skipped: `prlimit` is not installed");
        return;
    };
    assert!(output.status.success(), "{output:?}");
    for args in [&["repair", "--no-sync", "x.safetensors", "--output", "out"][..], &["verify", "x.safetensors", "out"]]
    {
        let output = limited(32 << 20, args).expect("runs");
        assert!(output.status.success(), "{output:?}");
    }
    // Control: a lower limit makes the command fail.
    let output = limited(64 << 10, &["verify", "x.safetensors", "out"]).expect("runs");
    assert!(!output.status.success(), "{output:?}");
}
