//! Tests of `safealign scan` and `inspect`, and of behaviour that all commands share.

mod common;

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;

use common::{aligned, bundles, cases, command, copy_directory, framed, misaligned, run, temporary_directory, write};
use rustix::fs::{CWD, FileType, Mode, mknodat};

#[test]
fn a_sharded_bundle_is_read_with_its_index() {
    let ran = run(&cases(), &["scan", "--json", "dir_shards"]);
    assert_eq!(ran.status, Some(3));
    let files = ran.kind("file");
    let row = |value: &serde_json::Value| {
        let name = Path::new(value["path"].as_str().expect("a path")).file_name().expect("a name").to_owned();
        (name.to_string_lossy().into_owned(), value["misaligned_tensors"].as_u64(), value["misaligned_bytes"].as_u64())
    };
    // Most misaligned bytes first. The AppleDouble file and the incomplete download are skipped.
    assert_eq!(
        files.iter().map(row).collect::<Vec<_>>(),
        [
            ("extra.safetensors".to_owned(), Some(2), Some(22)),
            ("model-00002-of-00003.safetensors".to_owned(), Some(2), Some(22)),
            ("model-00001-of-00003.safetensors".to_owned(), Some(0), Some(0)),
        ]
    );
    let warnings: Vec<String> =
        ran.kind("warning").iter().map(|value| format!("{} {}", value["path"], value["message"])).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("`model-00003-of-00003.safetensors` is missing"));
    assert!(warnings[1].contains("extra.safetensors") && warnings[1].contains("not in the index"));
    let total = &ran.kind("total")[0];
    assert_eq!((&total["bundles"], &total["affected_bundles"], &total["errors"]), (&1.into(), &1.into(), &0.into()));
    assert_eq!((&total["misaligned_bytes"], &total["files"]), (&44.into(), &3.into()));
}

#[test]
fn a_missing_shard_has_an_exit_status_of_its_own() {
    let root = temporary_directory();
    let path = |name: &str| root.path().join(name);
    let index = |shards: &[&str]| {
        let entries = shards.iter().flat_map(|shard| ["a", "odd", "b"].map(|name| (name.to_owned(), (*shard).into())));
        let map: serde_json::Map<_, _> = entries.collect();
        serde_json::to_vec(&serde_json::json!({ "weight_map": map })).expect("JSON")
    };
    write(&path("m/model-1.safetensors"), &misaligned(100));
    write(&path("m/model.safetensors.index.json"), &index(&["model-1.safetensors"]));
    // Control: with all shards the status is 0. A variant has an index of its own.
    write(&path("m/model-1.fp16.safetensors"), &misaligned(100));
    write(&path("m/model.safetensors.index.fp16.json"), &index(&["model-1.fp16.safetensors"]));
    let ran = run(root.path(), &["scan", "m"]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    fs::remove_file(path("m/model-1.fp16.safetensors")).expect("removes");
    for args in [&["scan", "m"][..], &["scan", "--check", "m"]] {
        let ran = run(root.path(), args);
        assert_eq!((ran.status, ran.err.lines().count()), (Some(3), 1), "{}", ran.err);
        assert!(ran.err.contains("m/model.safetensors.index.fp16.json: shard `model-1.fp16.safetensors`"));
    }
    // An error takes precedence.
    assert_eq!(run(root.path(), &["scan", "m", "missing"]).status, Some(2));
}

#[test]
fn an_index_entry_outside_the_directory_is_an_error() {
    let root = temporary_directory();
    let path = |name: &str| root.path().join(name);
    write(&path("other/x.safetensors"), &misaligned(100));
    write(&path("m/y.safetensors"), &misaligned(100));
    let absolute = path("other/x.safetensors").to_string_lossy().into_owned();
    for entry in ["../other/x.safetensors", "sub/../../other/x.safetensors", &absolute] {
        let index = serde_json::json!({ "weight_map": { "a": entry, "b": "y.safetensors" } });
        write(&path("m/model.safetensors.index.json"), &serde_json::to_vec(&index).expect("JSON"));
        let ran = run(root.path(), &["scan", "--json", "m"]);
        assert_eq!((ran.status, ran.kind("file").len(), ran.kind("error").len()), (Some(2), 1, 1), "{}", ran.out);
        assert!(ran.err.contains("m/model.safetensors.index.json: ") && ran.err.contains(entry), "{}", ran.err);
    }
}

/// A file of one-byte tensors.
fn bytes(names: &[&str]) -> Vec<u8> {
    let tensors: serde_json::Map<_, _> = (0..)
        .zip(names)
        .map(|(at, name)| {
            let info = serde_json::json!({ "dtype": "U8", "shape": [1], "data_offsets": [at, at + 1] });
            ((*name).to_owned(), info)
        })
        .collect();
    framed(&serde_json::to_vec(&tensors).expect("JSON"), names.len())
}

#[test]
fn every_bundle_has_its_outcome() {
    // Directory, exit status, bundles, tensors, warnings, errors, and what the first problem names.
    let index = "model.safetensors.index.json";
    for (name, status, count, tensors, warnings, errors, path, named) in [
        ("good", 0, 1, 4, 0, 0, "", &[][..]),
        ("missing", 3, 1, 2, 1, 0, index, &["`model-00002-of-00002.safetensors` is missing"]),
        ("stray", 0, 1, 8, 1, 0, "model.safetensors", &["not in the index"]),
        ("consolidated", 0, 1, 8, 1, 0, "consolidated.safetensors", &["not in the index"]),
        ("variants", 0, 2, 8, 0, 0, "", &[]),
        ("duplicate", 2, 1, 6, 0, 1, "", &["`m.a`", "`model-00001-of-00002.safetensors`", "`model-00002-of-00002."]),
        ("badindex", 2, 1, 2, 0, 1, index, &["invalid index: EOF"]),
        ("escape", 2, 1, 2, 0, 2, index, &["tensor `m.b`", "`../good/model-00001-of-00002.safetensors`"]),
    ] {
        let ran = run(&bundles(), &["scan", "--json", name]);
        let (total, lines) = (&ran.kind("total")[0], ran.err.lines().count());
        assert_eq!(ran.status, Some(status), "{name}: {}", ran.err);
        assert_eq!((total["bundles"].as_u64(), total["tensors"].as_u64()), (Some(count), Some(tensors)), "{name}");
        let problems = [ran.kind("warning"), ran.kind("error")].concat();
        assert_eq!((ran.kind("warning").len(), ran.kind("error").len()), (warnings, errors), "{name}: {}", ran.err);
        assert_eq!((lines, total["errors"].as_u64()), (problems.len(), Some(errors as u64)), "{name}: {}", ran.err);
        if let Some(problem) = problems.first() {
            let expected = Path::new(name).join(path);
            assert_eq!(problem["path"].as_str().map(Path::new), Some(&*expected), "{name}");
            let message = problem["message"].as_str().expect("a message");
            assert!(named.iter().all(|part| message.contains(part)), "{name}: {message}");
        }
        for error in ran.kind("error") {
            assert_eq!(error["status"], "SA_ERR_FORMAT", "{name}");
        }
    }
    // Each file has the index that lists it.
    let ran = run(&bundles(), &["scan", "--json", "variants", "stray"]);
    for file in ran.kind("file") {
        let path = file["path"].as_str().expect("a path");
        let expected = match path {
            "stray/model.safetensors" => None,
            _ if path.contains("fp16") => Some("variants/model.safetensors.index.fp16.json"),
            _ if path.contains("variants") => Some("variants/model.safetensors.index.json"),
            _ => Some("stray/model.safetensors.index.json"),
        };
        assert_eq!(file["index"].as_str(), expected, "{path}");
    }
    assert_eq!(ran.kind("total")[0]["bundles"], 3);
}

#[test]
fn shards_without_an_index_are_grouped_by_name() {
    let root = temporary_directory();
    let path = |name: &str| root.path().join(name);
    write(&path("m/x-00001-of-00004.safetensors"), &bytes(&["a"]));
    write(&path("m/x-00003-of-00004.safetensors"), &bytes(&["c"]));
    let ran = run(root.path(), &["scan", "m"]);
    let message = "safealign: warning: m: shard `x-00002-of-00004.safetensors` is missing (and 1 more)\n";
    assert_eq!((ran.status, ran.err.as_str()), (Some(3), message));
    write(&path("m/x-00002-of-00004.safetensors"), &bytes(&["b"]));
    write(&path("m/x-00004-of-00004.safetensors"), &bytes(&["d"]));
    // Other models of the same directory, and of other directories, have tensors of the same names.
    write(&path("m/y.safetensors"), &bytes(&["a"]));
    write(&path("m/x.fp16-00001-of-00001.safetensors"), &bytes(&["a"]));
    write(&path("n/x-00001-of-00001.safetensors"), &bytes(&["a"]));
    let ran = run(root.path(), &["scan", "."]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    write(&path("m/x-00004-of-00004.safetensors"), &bytes(&["a", "b"]));
    let ran = run(root.path(), &["scan", "."]);
    assert_eq!((ran.status, ran.err.lines().count()), (Some(2), 1));
    assert!(
        ran.err.contains("`a` is in `x-00001-of-00004.safetensors` and in `x-00004-of-00004.safetensors` (and 1 more)")
    );
}

#[test]
fn an_index_that_disagrees_with_its_shards_is_a_warning() {
    let root = temporary_directory();
    let path = |name: &str| root.path().join(name);
    write(&path("m/1.safetensors"), &bytes(&["a", "b"]));
    let index = |map: &str| format!(r#"{{"weight_map": {map}}}"#).into_bytes();
    let name = "m/model.safetensors.index.json";
    write(&path(name), &index(r#"{"a": "1.safetensors", "b": "1.safetensors"}"#));
    let ran = run(root.path(), &["scan", "m"]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    write(&path(name), &index(r#"{"a": "1.safetensors", "c": "1.safetensors", "d": "1.safetensors"}"#));
    let ran = run(root.path(), &["scan", "m"]);
    let lines: Vec<&str> = ran.err.lines().collect();
    assert_eq!((ran.status, lines.len()), (Some(0), 2));
    assert!(
        lines[0].contains(name) && lines[0].ends_with("`c` is not in `1.safetensors`, as the index says (and 1 more)")
    );
    assert!(lines[1].contains(name) && lines[1].ends_with("tensor `b` of `1.safetensors` is not in the index"));
}

#[test]
fn variants_are_compared_and_repaired_as_two_bundles() {
    let root = temporary_directory();
    copy_directory(&bundles().join("variants"), &root.path().join("a"));
    let ran = run(root.path(), &["repair", "a", "--output", "b"]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    assert!(ran.out.contains("before: 2 of 2 bundles affected") && ran.out.contains("after: 0 of 2"), "{}", ran.out);
    // With other file names the tensors are compared by name, within each variant.
    let (from, to) = ("model.fp16-00001-of-00002.safetensors", "other.fp16-00001-of-00002.safetensors");
    let (directory, index) = (root.path().join("b"), root.path().join("b/model.safetensors.index.fp16.json"));
    fs::rename(directory.join(from), directory.join(to)).expect("renames");
    let text = fs::read_to_string(&index).expect("reads").replace(from, to);
    fs::write(&index, text).expect("writes");
    let ran = run(root.path(), &["verify", "a", "b"]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""), "{}", ran.out);
    assert!(ran.out.starts_with("equal: 8 tensors"), "{}", ran.out);
}

#[test]
fn the_table_and_the_exit_status_match_the_files() {
    let root = temporary_directory();
    write(&root.path().join("good/x.safetensors"), &aligned());
    for index in 0..2 {
        write(&root.path().join(format!("bad{index}/x.safetensors")), &misaligned(1000 * (index + 1)));
    }
    let ran = run(root.path(), &["scan", "."]);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert!(lines[1].contains("bad1") && lines[2].contains("bad0"), "{}", ran.out);
    let bytes = lines[4].strip_prefix("2 of 3 bundles affected, ").expect("the total");
    assert!(bytes.ends_with(" kB would be copied"), "{}", ran.out);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    assert_eq!(run(root.path(), &["scan", "--check", "."]).status, Some(1));
    assert_eq!(run(root.path(), &["scan", "--check", "good"]).status, Some(0));
    // `--alignment` does not change which tensors are misaligned.
    let ran = run(root.path(), &["scan", "--check", "--alignment", "4096", "good"]);
    assert!(ran.out.contains("BELOW 4096") && ran.out.contains("0 of 1 bundle affected"), "{}", ran.out);
    assert_eq!(ran.status, Some(0));
    assert_eq!(run(root.path(), &["scan", "--alignment", "12", "good"]).status, Some(2));
}

#[test]
fn a_download_cache_is_searched_once() {
    let root = temporary_directory();
    let cache = root.path().join("models--a--b");
    write(&cache.join("blobs/1"), &misaligned(100));
    write(&cache.join("blobs/2"), &aligned());
    for revision in ["r1", "r2"] {
        let snapshot = cache.join("snapshots").join(revision);
        fs::create_dir_all(&snapshot).expect("creates");
        symlink("../../blobs/1", snapshot.join("model-1.safetensors")).expect("links");
        symlink("../../blobs/2", snapshot.join("model-2.safetensors")).expect("links");
    }
    let snapshot = cache.join("snapshots/r1");
    symlink("../../blobs/3", snapshot.join("dangling.safetensors")).expect("links");
    symlink("loop.safetensors", snapshot.join("loop.safetensors")).expect("links");
    symlink("../..", snapshot.join("up")).expect("links");
    fs::hard_link(cache.join("blobs/1"), cache.join("hard.safetensors")).expect("links");
    write(&snapshot.join("x.safetensors/inner.safetensors"), &misaligned(10));
    mknodat(CWD, snapshot.join("fifo.safetensors"), FileType::Fifo, Mode::RWXU, 0).expect("a FIFO");
    write(&snapshot.join("._model.safetensors"), b"x");
    write(&snapshot.join("more.safetensors.incomplete"), b"x");
    let ran = run(root.path(), &["scan", "--json", "."]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    assert_eq!(ran.kind("file").len(), 3, "{}", ran.out);
    let warnings: Vec<String> = ran.kind("warning").iter().map(|value| value["path"].to_string()).collect();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    for name in ["dangling", "loop", "fifo"] {
        assert!(warnings.iter().any(|path| path.contains(name)), "{name}: {warnings:?}");
    }
    // A FIFO given as an argument is an error and does not block.
    assert_eq!(run(&snapshot, &["scan", "fifo.safetensors"]).status, Some(2));
}

#[test]
fn a_broken_file_is_one_line_and_does_not_stop_the_rest() {
    let root = temporary_directory();
    write(&root.path().join("a\n\x1b[31m.safetensors"), b"<!DOCTYPE html>");
    write(&root.path().join("b.safetensors"), &misaligned(100));
    fs::set_permissions(root.path().join("b.safetensors"), Permissions::from_mode(0o444)).expect("chmod");
    let ran = run(root.path(), &["scan", ".", "missing"]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.out.contains("1 of 1 bundle affected"), "{}", ran.out);
    let lines: Vec<&str> = ran.err.lines().collect();
    assert_eq!(lines.len(), 2, "{}", ran.err);
    assert!(lines[0].starts_with("safealign: error: missing: no such file"), "{}", ran.err);
    assert!(lines[1].contains("HTML page") && !ran.err.contains('\x1b'), "{}", ran.err);
    let ran = run(root.path(), &["scan", "--json", "."]);
    assert_eq!(ran.kind("error")[0]["status"], "SA_ERR_TOO_LARGE");
    assert_eq!(ran.kind("error")[0]["reason"], "HEADER_TOO_LARGE");
}

#[test]
fn every_case_is_scanned_or_reported() {
    let ran = run(&cases(), &["scan", "--json", "."]);
    let text = fs::read(cases().join("manifest.json")).expect("the manifest");
    let manifest: Vec<serde_json::Value> = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(ran.status, Some(2));
    for case in manifest.iter().filter(|case| case["scan"] != "skip" && case["name"] != "dtype_unknown") {
        let file = format!("./{}", case["file"].as_str().expect("a file"));
        let kind = if case["open"] == "SA_OK" { "file" } else { "error" };
        let found = ran.json().into_iter().find(|value| value["path"] == file.as_str()).expect("is reported");
        // An unknown dtype is not an error by itself, but the file may also be truncated.
        if case["name"] != "dtype_unknown_oob" && kind == "error" {
            assert_eq!(found["status"], case["open"], "{file}");
        }
        assert_eq!(found["kind"], kind, "{file}");
        if case["copy_bytes"].is_u64() && kind == "file" {
            assert_eq!(found["misaligned_bytes"], case["copy_bytes"], "{file}");
        }
    }
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let root = temporary_directory();
    for index in 0..2000 {
        write(&root.path().join(format!("{index}.safetensors")), &misaligned(8));
    }
    let mut child = command()
        .args(["scan", "--json", "."])
        .current_dir(root.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut first = [0; 1];
    child.stdout.take().expect("a pipe").read_exact(&mut first).expect("reads");
    let output = child.wait_with_output().expect("ends");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn inspect_lists_draws_and_writes_an_svg() {
    let root = temporary_directory();
    let path = root.path().join("x.safetensors");
    write(&path, &misaligned(1000));
    let ran = run(root.path(), &["inspect", "x.safetensors"]);
    assert_eq!(ran.status, Some(0));
    assert!(ran.out.lines().any(|line| line.starts_with("! ") && line.contains("F32")), "{}", ran.out);
    let ran = run(root.path(), &["inspect", "--json", "x.safetensors"]);
    let tensors = ran.kind("tensor");
    assert_eq!(tensors.iter().map(|tensor| tensor["name"].as_str()).collect::<Vec<_>>(), ["a", "odd", "b"].map(Some));
    let misaligned = tensors.iter().filter(|tensor| tensor["misaligned"] == true).count() as u64;
    assert_eq!(ran.kind("file")[0]["misaligned_tensors"], misaligned);
    assert!(misaligned > 0);
    let ran = run(root.path(), &["inspect", "--map", "--svg", "out.svg", "x.safetensors"]);
    assert!(ran.out.contains("xxxx") && ran.out.contains("misaligned: copied by a loader"), "{}", ran.out);
    let svg = fs::read_to_string(root.path().join("out.svg")).expect("is written");
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
    // Control: after a repair nothing is marked.
    assert_eq!(run(root.path(), &["repair", "--in-place", "x.safetensors"]).status, Some(0));
    let ran = run(root.path(), &["inspect", "--map", "x.safetensors"]);
    assert!(!ran.out.contains("xx") && ran.out.contains("0 of 3 misaligned"), "{}", ran.out);
    let ran = run(&cases(), &["inspect", "trunc_tail.safetensors"]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.err.contains("trunc_tail.safetensors: tensor `w`"), "{}", ran.err);
}

#[test]
fn completions_and_manual_pages_are_generated() {
    let here = temporary_directory();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = run(here.path(), &["completions", shell]);
        assert!(ran.status == Some(0) && ran.out.contains("overlay"), "{shell}");
    }
    for (args, expected) in
        [(&["man"][..], "safealign\\-repair"), (&["man", "repair"], "in\\-place"), (&["--help"], "Exit status")]
    {
        let ran = run(here.path(), args);
        assert!(ran.status == Some(0) && ran.out.contains(expected), "{args:?}: {}", ran.out);
    }
    assert_eq!(run(here.path(), &["man", "nothing"]).status, Some(2));
    assert_eq!(run(here.path(), &["nothing"]).status, Some(2));
}

/// Uses `script`, if it is installed, to run the command on a terminal.
#[test]
fn colours_are_for_terminals_and_can_be_turned_off() {
    let scan = |variable: &str| {
        let program = format!("{} scan dir_shards", env!("CARGO_BIN_EXE_safealign"));
        let mut script = std::process::Command::new("script");
        script.args(["-qec", &program, "/dev/null"]).current_dir(cases());
        script.env_remove("NO_COLOR").env("TERM", "xterm").env(variable, "1").stdin(Stdio::null()).output()
    };
    let Ok(output) = scan("SAFEALIGN_NOTHING") else {
        eprintln!("skipped: `script` is not installed");
        return;
    };
    assert!(String::from_utf8_lossy(&output.stdout).contains("\x1b[31m"), "{output:?}");
    let output = scan("NO_COLOR").expect("runs");
    assert!(!output.stdout.contains(&0x1b), "{output:?}");
    assert!(!run(&cases(), &["scan", "dir_shards"]).out.contains('\x1b'));
}
