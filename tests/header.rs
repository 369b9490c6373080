//! The committed C header is the one that the source makes.

use std::fs;
use std::path::Path;

/// The sections of the header, in its order.
const SECTIONS: [&str; 11] =
    ["status", "types", "info", "write", "plan", "writer", "file", "view", "scan", "repair", "overlay"];

/// The header as it should be.
fn generate() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for section in SECTIONS {
        builder = builder.with_src(root.join(format!("src/capi/{section}.rs")));
    }
    let mut out = Vec::new();
    builder.generate().expect("cbindgen").write(&mut out);
    without_safety(&String::from_utf8(out).expect("UTF-8"))
}

/// Leaves out the `# Safety` part that ends a comment: it speaks to Rust.
fn without_safety(header: &str) -> String {
    let mut out: Vec<&str> = Vec::new();
    let mut skipping = false;
    for line in header.lines() {
        let text = line.trim_start();
        if text == "* # Safety" {
            skipping = true;
            if out.last().is_some_and(|before| before.trim() == "*") {
                out.pop();
            }
        }
        if text == "*/" {
            skipping = false;
        }
        if !skipping {
            out.push(line.trim_end());
        }
    }
    out.join("\n") + "\n"
}

#[test]
fn the_header_is_the_one_that_the_source_makes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/safealign.h");
    let expected = generate();
    if std::env::var_os("SAFEALIGN_WRITE_HEADER").is_some() {
        fs::write(&path, &expected).expect("write the header");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "include/safealign.h is not what src/capi makes; run:\n    SAFEALIGN_WRITE_HEADER=1 cargo test --test header"
    );
}

#[test]
fn the_version_is_told_once() {
    let version = format!(
        "{}.{}.{}",
        safealign::capi::SA_VERSION_MAJOR,
        safealign::capi::SA_VERSION_MINOR,
        safealign::capi::SA_VERSION_PATCH
    );
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
}
