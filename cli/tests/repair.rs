//! `safealign repair`, `verify` and `overlay`: what they do, and that nothing is harmed whatever happens.

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{aligned, cases, command, copy_folder, folder, misaligned, names, run, write};
use rustix::process::{Pid, Signal, kill_process};

fn assert_mended(path: &Path) {
    let bytes = fs::read(path).expect("reads");
    safetensors::SafeTensors::deserialize(&bytes).expect("the reference opens it");
    let ran = run(Path::new("/"), &["scan", "--check", "--json", path.to_str().expect("UTF-8")]);
    assert_eq!(ran.status, Some(0), "{}", ran.out);
}

#[test]
fn without_a_place_nothing_is_changed() {
    let root = folder();
    copy_folder(&cases().join("dir_shards"), &root.path().join("m"));
    let before: Vec<_> = names(&root.path().join("m"));
    let ran = run(root.path(), &["repair", "m"]);
    assert_eq!(ran.status, Some(0));
    assert_eq!(ran.out.matches("would repair").count(), 2, "{}", ran.out);
    assert!(ran.out.contains("nothing was changed: say --output DIR for a mended copy, or --in-place"), "{}", ran.out);
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
fn two_commands_mend_a_bundle_into_a_folder() {
    let root = folder();
    let (model, out) = (root.path().join("m"), root.path().join("out"));
    copy_folder(&cases().join("dir_shards"), &model);
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
        assert_mended(&out.join(name));
    }
    assert!(!names(&out).iter().any(|name| name.starts_with('.') || name.ends_with(".incomplete")));
    assert_eq!(run(root.path(), &["verify", "m", "out"]).status, Some(0));
    assert_eq!(run(root.path(), &["scan", "--check", "m"]).status, Some(1));
    // Not into itself.
    assert_eq!(run(root.path(), &["repair", "m", "--output", "m/out"]).status, Some(2));
    assert!(!model.join("out").exists());
}

#[test]
fn in_place_only_what_needs_it_is_written() {
    let root = folder();
    let model = root.path().join("m");
    copy_folder(&cases().join("dir_shards"), &model);
    copy_folder(&model, &root.path().join("old"));
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
fn what_may_not_be_replaced_is_refused_and_the_rest_is_done() {
    let root = folder();
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
    for says in ["m/read-only.safetensors: is read-only", "has 2 hard links", "is a symbolic link", "broken"] {
        assert!(ran.err.contains(says), "{says}: {}", ran.err);
    }
    assert!(ran.out.contains("after: 1 of 1 bundle affected"), "{}", ran.out);
    assert_mended(&path("m/good.safetensors"));
    for name in ["m/read-only.safetensors", "m/linked.safetensors", "blobs/1"] {
        assert_eq!(fs::read(path(name)).expect("reads"), misaligned(100));
    }
    // The way out.
    let ran = run(root.path(), &["repair", "m", "--output", "out"]);
    assert_eq!((ran.status, ran.err.lines().count()), (Some(2), 1), "{}", ran.err);
    for name in ["read-only", "linked", "symbolic"] {
        assert_mended(&path(&format!("out/{name}.safetensors")));
    }
}

#[test]
fn a_file_with_several_names_is_mended_by_its_own_and_copied_by_each() {
    let root = folder();
    let path = |name: &str| root.path().join(name);
    write(&path("m/real.safetensors"), &misaligned(100));
    symlink("real.safetensors", path("m/a-link.safetensors")).expect("links");
    assert_eq!(run(root.path(), &["repair", "m", "--output", "out"]).status, Some(0));
    assert_mended(&path("out/a-link.safetensors"));
    assert_mended(&path("out/real.safetensors"));
    assert_eq!(run(root.path(), &["verify", "m", "out"]).status, Some(0));
    let ran = run(root.path(), &["repair", "m", "--in-place"]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    assert_mended(&path("m/a-link.safetensors"));
    assert!(fs::symlink_metadata(path("m/a-link.safetensors")).expect("is there").is_symlink());
}

#[test]
fn holes_and_padding_are_proposed_and_mended_too() {
    let root = folder();
    for name in ["hole_align", "pad_nul", "trailing_bytes", "mlx_lucky"] {
        let name = format!("m/{name}.safetensors");
        write(&root.path().join(&name), &fs::read(cases().join(&name[2..])).expect("the case"));
    }
    let ran = run(root.path(), &["repair", "m"]);
    assert_eq!(ran.out.matches("would repair").count(), 2, "{}", ran.out);
    assert_eq!(run(root.path(), &["repair", "m", "--drop-trailing"]).out.matches("would repair").count(), 3);
    let ran = run(root.path(), &["repair", "m", "--in-place", "--drop-trailing", "--json"]);
    assert_eq!(ran.kind("repair").iter().filter(|value| value["action"] == "rewritten").count(), 3, "{}", ran.out);
    for name in ["hole_align", "pad_nul", "trailing_bytes", "mlx_lucky"] {
        assert_mended(&root.path().join(format!("m/{name}.safetensors")));
    }
}

#[test]
fn verify_tells_the_first_difference() {
    let root = folder();
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
    // The same tensors in other shards.
    write(&path("one/x.safetensors"), &misaligned(100));
    write(&path("one/y.safetensors"), &aligned());
    write(&path("two/p.safetensors"), &aligned());
    write(&path("two/q.safetensors"), &misaligned(100));
    assert_eq!(run(root.path(), &["verify", "one", "two"]).status, Some(0));
    write(&path("two/q.safetensors"), &bytes);
    assert_eq!(run(root.path(), &["verify", "one", "two"]).status, Some(1));
}

#[test]
fn an_overlay_loads_in_place_of_its_bundle() {
    let root = folder();
    copy_folder(&cases().join("dir_shards"), &root.path().join("m"));
    let ran = run(root.path(), &["overlay", "m", "out"]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    assert!(ran.out.contains("2 files repaired"), "{}", ran.out);
    assert_eq!(run(root.path(), &["verify", "m", "out"]).status, Some(0));
    assert_eq!(run(root.path(), &["scan", "--check", "out"]).status, Some(0));
    assert!(fs::symlink_metadata(root.path().join("out/config.json")).expect("is there").is_symlink());
    let ran = run(root.path(), &["overlay", "--json", "m", "out"]);
    let report = &ran.kind("overlay")[0];
    assert_eq!((&report["written"], &report["kept"], &report["linked"]), (&0.into(), &2.into(), &3.into()));
    assert_eq!(run(root.path(), &["overlay", "m", "m/inner"]).status, Some(2));
}

/// Starts an in-place repair of the file `x.safetensors` of a folder.
fn start(folder: &Path) -> Child {
    let mut repair = command();
    repair.args(["repair", "--in-place", "--no-sync", "x.safetensors"]).current_dir(folder);
    repair.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts")
}

/// Lets that much time go by, on the clock: what is done in it differs from run to run, which is what is wanted.
fn spend(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// The old file, the new one, and the time that takes from one to the other.
fn old_and_new(folder: &Path, elements: usize) -> (Vec<u8>, Vec<u8>, Duration) {
    let path = folder.join("x.safetensors");
    let old = misaligned(elements);
    let once = || {
        fs::write(&path, &old).expect("writes");
        let begin = Instant::now();
        assert!(start(folder).wait().expect("ends").success());
        begin.elapsed()
    };
    // The first is slower than what follows.
    let time = (0..5).map(|_| once()).min().expect("five");
    let new = fs::read(&path).expect("reads");
    assert_ne!(old, new);
    assert_mended(&path);
    (old, new, time)
}

#[test]
fn killed_at_any_point_the_file_is_the_old_one_or_the_new_one_whole() {
    const KILLS: u32 = 240;
    let root = folder();
    let path = root.path().join("x.safetensors");
    let (old, new, time) = old_and_new(root.path(), 150_000);
    let (mut olds, mut news) = (0, 0);
    for kill in 0..KILLS {
        fs::write(&path, &old).expect("writes");
        let mut child = start(root.path());
        // From the first moment to some time after the last.
        spend(time * kill * 3 / (2 * KILLS));
        child.kill().expect("kills");
        child.wait().expect("ends");
        let found = fs::read(&path).expect("the file is there");
        assert!(found == old || found == new, "kill {kill}: neither the old file nor the new one");
        if found == old { olds += 1 } else { news += 1 }
    }
    eprintln!("{olds} times the old file, {news} times the new one");
    // The control: the first kill comes before the new file, and left alone it comes.
    assert!(olds > 0);
    fs::write(&path, &old).expect("writes");
    assert!(start(root.path()).wait().expect("ends").success());
    assert_eq!(fs::read(&path).expect("reads"), new);
}

#[test]
fn interrupted_at_any_point_nothing_is_left_behind() {
    let root = folder();
    let path = root.path().join("x.safetensors");
    let (old, new, time) = old_and_new(root.path(), 150_000);
    for signal in 0..40 {
        fs::write(&path, &old).expect("writes");
        let mut child = start(root.path());
        spend(time * signal / 40);
        let process = Pid::from_child(&child);
        kill_process(process, Signal::INT).expect("signals");
        let status = child.wait().expect("ends");
        let found = fs::read(&path).expect("the file is there");
        assert!(found == old || found == new, "signal {signal}: neither the old file nor the new one");
        assert_eq!(names(root.path()), ["x.safetensors"], "signal {signal}");
        // `None` is death by the signal, before it was caught.
        assert!(matches!(status.code(), None | Some(0 | 2)), "{status}");
        assert!(status.code() != Some(0) || found == new);
    }
}

#[test]
fn a_full_disk_leaves_the_old_file_and_says_what_is_missing() {
    let root = folder();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=12m", "tmpfs"]).arg(root.path()).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: mounting a tmpfs takes root");
        return;
    }
    let checked = std::panic::catch_unwind(|| {
        let path = root.path().join("x.safetensors");
        let old = misaligned(1 << 20);
        fs::write(&path, &old).expect("writes");
        let ran = run(root.path(), &["repair", "--in-place", "x.safetensors"]);
        assert_eq!(ran.status, Some(2));
        assert!(ran.err.contains(" are free, ") && ran.err.contains(" are missing"), "{}", ran.err);
        assert_eq!(fs::read(&path).expect("reads"), old);
        assert_eq!(names(root.path()), ["x.safetensors"]);
    });
    let _ = Command::new("umount").arg(root.path()).output();
    assert!(checked.is_ok());
}

/// The limit is the system's, set by `prlimit` where it is installed.
#[test]
fn memory_stays_small_whatever_the_size_of_the_file() {
    let root = folder();
    // Of 256 MiB, most of them a hole: data that takes no space is read like any other.
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
        eprintln!("skipped: there is no `prlimit`");
        return;
    };
    assert!(output.status.success(), "{output:?}");
    for args in [&["repair", "--no-sync", "x.safetensors", "--output", "out"][..], &["verify", "x.safetensors", "out"]]
    {
        let output = limited(32 << 20, args).expect("runs");
        assert!(output.status.success(), "{output:?}");
    }
    // The control: there is a limit below which it does not go.
    let output = limited(64 << 10, &["verify", "x.safetensors", "out"]).expect("runs");
    assert!(!output.status.success(), "{output:?}");
}
