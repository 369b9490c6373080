//! The committed C header is the one that is generated from the source.

use std::fs;
use std::path::Path;

/// The sections of the header, in its order.
const SECTIONS: [&str; 13] = [
    "status",
    "types",
    "info",
    "write",
    "plan",
    "writer",
    "file",
    "view",
    "bundle",
    "scan",
    "repair",
    "aligned_cache",
    "overlay",
];

/// The header as it should be; with `is_grown`, that of a library built with `--cfg safealign_grown`.
fn generate(is_grown: bool) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for section in SECTIONS {
        builder = builder.with_src(root.join(format!("src/capi/{section}.rs")));
    }
    let mut out = Vec::new();
    builder.generate().expect("cbindgen").write(&mut out);
    anonymous_in_c(&without_safety(&with_growth(&String::from_utf8(out).expect("UTF-8"), is_grown)))
}

/// The header as cbindgen makes it, with the fields that `--cfg safealign_grown` appends to each struct, or without
/// them.
fn with_growth(header: &str, is_grown: bool) -> String {
    let mut out = String::new();
    let mut rest = header;
    while let Some((before, from)) = rest.split_once("#if defined(SAFEALIGN_GROWN)\n") {
        // The field is the last of its struct; cbindgen puts the semicolon behind the condition.
        let (field, after) = from.split_once("\n#endif\n  ;\n").expect("the condition holds one field");
        out.push_str(before);
        if is_grown {
            out.push_str(field);
            out.push_str(";\n");
        }
        rest = after;
    }
    out + rest
}

/// Leaves the enums without a tag in C before C23, where their names are those of integers: in C++ a name cannot be
/// both, which `-Wc++-compat` warns about.
fn anonymous_in_c(header: &str) -> String {
    const HAS_TYPE: &str = "#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L";
    let mut out = String::new();
    let mut rest = header;
    while let Some((before, from)) = rest.split_once("\nenum sa_") {
        let (name, after) = from.split_once('\n').expect("the name ends its line");
        let (condition, body) = after.split_once(" {\n").expect("an enum has a body");
        assert_eq!(condition, format!("{HAS_TYPE}\n  : int32_t\n#endif // {}\n", &HAS_TYPE[4..]));
        out.push_str(&format!("{before}\n{HAS_TYPE}\nenum sa_{name} : int32_t {{\n#else\nenum {{\n#endif\n"));
        rest = body;
    }
    out + rest
}

/// Removes the `# Safety` section at the end of a comment, which is for Rust.
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
fn the_header_is_generated_from_the_source() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/safealign.h");
    let expected = generate(false);
    if std::env::var_os("SAFEALIGN_WRITE_HEADER").is_some() {
        fs::write(&path, &expected).expect("write the header");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "include/safealign.h is not what src/capi makes; run:\n    SAFEALIGN_WRITE_HEADER=1 cargo test --test header"
    );
}

/// scripts/abi.sh compiles programs against this header.
#[test]
fn the_grown_header_has_one_more_field_in_each_struct() {
    let (plain, grown) = (generate(false), generate(true));
    if let Some(directory) = std::env::var_os("SAFEALIGN_GROWN_HEADER") {
        fs::create_dir_all(&directory).expect("create");
        fs::write(Path::new(&directory).join("safealign.h"), &grown).expect("write");
    }
    let fields = |header: &str| header.matches("uint64_t grown;").count();
    assert_eq!((fields(&plain), fields(&grown)), (0, plain.matches("size_t struct_size;").count()));
    assert!(fields(&grown) > 10 && !grown.contains("SAFEALIGN_GROWN"));
}

#[test]
fn the_version_is_the_same_everywhere() {
    let version = format!(
        "{}.{}.{}",
        safealign::capi::SA_VERSION_MAJOR,
        safealign::capi::SA_VERSION_MINOR,
        safealign::capi::SA_VERSION_PATCH
    );
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
}
