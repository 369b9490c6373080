//! Helpers for the tests of the command.
#![allow(dead_code, reason = "each test program uses only some of them")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// The exit status and the output of a command.
pub struct Ran {
    pub status: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// The objects that `--json` printed, with the schema checked.
    pub fn json(&self) -> Vec<Value> {
        let object = |line: &str| {
            let value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            assert_eq!(value["schema"], "safealign/1");
            value
        };
        self.out.lines().map(object).collect()
    }

    pub fn kind(&self, kind: &str) -> Vec<Value> {
        self.json().into_iter().filter(|value| value["kind"] == kind).collect()
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Ran { status: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

pub fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_safealign"))
}

/// Runs the command in a directory.
pub fn run(directory: &Path, args: &[&str]) -> Ran {
    command().args(args).current_dir(directory).output().expect("runs").into()
}

pub fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/cases")
}

/// The directory of bundles with documented outcomes.
pub fn bundles() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/bundles")
}

pub fn temporary_directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// A file of F32 tensors with a tensor of 3 bytes between them, so that one is misaligned at any data offset.
pub fn misaligned(elements: usize) -> Vec<u8> {
    let wide = elements * 4;
    let spans = [("a", "F32", elements, wide), ("odd", "U8", 3, 3), ("b", "F32", elements, wide)];
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, dtype, count, nbytes) in spans {
        let info = serde_json::json!({ "dtype": dtype, "shape": [count], "data_offsets": [end, end + nbytes] });
        header.insert(name.to_owned(), info);
        end += nbytes;
    }
    // The map is sorted by name; the offsets define the order of the tensors.
    framed(&serde_json::to_vec(&header).expect("JSON"), end)
}

/// A file with one aligned tensor.
pub fn aligned() -> Vec<u8> {
    let mut json = br#"{"only":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#.to_vec();
    json.resize(120, b' ');
    framed(&json, 16)
}

pub fn framed(json: &[u8], data: usize) -> Vec<u8> {
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(json);
    file.extend((0..data).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8));
    file
}

pub fn write(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().expect("a directory")).expect("creates");
    fs::write(path, bytes).expect("writes");
}

/// Copies the files of a directory.
pub fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("creates");
    for entry in fs::read_dir(from).expect("lists") {
        let entry = entry.expect("an entry");
        if entry.path().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).expect("copies");
        }
    }
}

pub fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("lists").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
