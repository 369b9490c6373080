//! docs/cli.md documents all commands, options and JSON fields.

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use common::{cases, copy_directory, run, temporary_directory};
use serde_json::Value;

fn documentation() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cli.md");
    std::fs::read_to_string(path).expect("docs/cli.md")
}

fn keys(value: &Value, out: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            out.insert(name.clone());
            keys(value, out);
        }),
        Value::Array(values) => values.iter().for_each(|value| keys(value, out)),
        _ => {}
    }
}

#[test]
fn every_field_and_kind_is_in_the_schema() {
    let root = temporary_directory();
    copy_directory(&cases(), &root.path().join("all"));
    copy_directory(&cases().join("dir_shards"), &root.path().join("m"));
    let commands: [&[&str]; 10] = [
        &["scan", "all", "m"],
        &["scan", "--alignment", "64", "m"],
        &["inspect", "all/mlx_quant.safetensors"],
        &["inspect", "all/trunc_tail.safetensors"],
        &["repair", "all"],
        &["repair", "m", "--output", "out"],
        &["verify", "m", "out"],
        &["verify", "m", "all/mlx_quant.safetensors"],
        &["verify", "m", "missing"],
        &["overlay", "all", "overlay"],
    ];
    let (mut names, mut kinds) = (BTreeSet::new(), BTreeSet::new());
    for arguments in commands {
        let ran = run(root.path(), &[arguments, &["--json"]].concat());
        for value in ran.json() {
            kinds.insert(value["kind"].as_str().expect("a kind").to_owned());
            keys(&value, &mut names);
        }
    }
    let documentation = documentation();
    for kind in ["file", "tensor", "total", "proposal", "repair", "verify", "overlay", "warning", "error"] {
        assert!(kinds.remove(kind), "{kind} was not seen");
    }
    assert!(kinds.is_empty(), "{kinds:?}");
    let missing: Vec<_> = names.iter().filter(|name| !documentation.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/cli.md does not document {missing:?}");
}

#[test]
fn every_command_and_option_is_documented() {
    let here = temporary_directory();
    let documentation = documentation();
    for command in ["scan", "repair", "inspect", "verify", "overlay", "completions", "man"] {
        assert!(documentation.contains(&format!("`{command} ")), "{command}");
        let help = run(here.path(), &[command, "--help"]).out;
        for word in help.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-') {
            let is_option = word.starts_with("--") && word.len() > 2 && word != "--help";
            assert!(!is_option || documentation.contains(word), "{command} {word}");
        }
    }
}
