//! Every file in the manifest has the status, the counts and the bytes that the manifest gives.

mod common;

use std::fmt::Write as _;

use safealign::error::Status;
use safealign::map::{File, OpenOptions, Origin, Unaligned};
use serde_json::Value;
use sha2::{Digest, Sha256};

fn manifest() -> Vec<Value> {
    let text = std::fs::read(common::cases().join("manifest.json")).expect("the manifest");
    serde_json::from_slice(&text).expect("JSON")
}

/// The first 16 hex digits of the SHA-256.
fn sha256_16(bytes: &[u8]) -> String {
    Sha256::digest(bytes)[..8].iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn check(case: &Value) -> Result<(), String> {
    let path = common::cases().join(case["file"].as_str().unwrap_or_default());
    for (mode, strict) in [("open", false), ("strict", true)] {
        let expected = case[mode].as_str().unwrap_or_default();
        let opened = File::open(&path, &OpenOptions { strict, ..OpenOptions::default() });
        let found = opened.as_ref().map_or_else(|error| error.status(), |_| Status::Ok);
        if found.name() != expected {
            return Err(format!("{mode}: {} instead of {expected}: {:?}", found.name(), opened.err()));
        }
        match opened {
            Ok(file) => check_content(case, &file)?,
            Err(error) => {
                let reason = error.reason().map(|reason| reason.name());
                if reason != case["reason"].as_str() {
                    return Err(format!("{mode}: reason {reason:?} instead of {}: {error}", case["reason"]));
                }
                if !error.to_string().contains(case["file"].as_str().unwrap_or("?")) {
                    return Err(format!("the message does not name the file: {error}"));
                }
            }
        }
    }
    Ok(())
}

fn check_content(case: &Value, file: &File) -> Result<(), String> {
    // A file that only some readers open has no hashes.
    let Some(hashes) = case["sha256_16"].as_object() else { return Ok(()) };
    if file.len() as u64 != case["tensors"].as_u64().unwrap_or(u64::MAX) || hashes.len() != file.len() {
        return Err(format!("{} tensors instead of {}", file.len(), case["tensors"]));
    }
    for (name, hash) in hashes {
        let view = file.map(name).map_err(|error| error.to_string())?;
        let found = sha256_16(common::bytes_of(&view));
        if hash.as_str() != Some(&found) {
            return Err(format!("{name}: {found} instead of {hash}"));
        }
        let width = view.info().dtype.map_or(1, |dtype| dtype.width()) as usize;
        if view.span().0.addr() % width != 0 {
            return Err(format!("{name}: not aligned in memory"));
        }
    }
    let stats = file.stats();
    let found = (stats.misaligned_tensors, stats.misaligned_bytes);
    let expected = (case["misaligned"].as_u64(), case["copy_bytes"].as_u64());
    if (Some(found.0), Some(found.1)) != expected || found != (stats.tensors_copied, stats.bytes_copied) {
        return Err(format!("{found:?} misaligned, {expected:?} expected: {stats:?}"));
    }
    Ok(())
}

#[test]
fn every_case_matches_the_manifest() {
    let cases = manifest();
    assert!(cases.len() >= 80, "only {} cases", cases.len());
    let wrong: Vec<String> =
        cases.iter().filter_map(|case| check(case).err().map(|wrong| format!("{}: {wrong}", case["name"]))).collect();
    assert!(wrong.is_empty(), "{} of {} cases are wrong:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn strict_opens_nothing_that_the_reference_refuses() {
    for case in manifest() {
        let strict = case["strict"] == "SA_OK";
        let bytes = std::fs::read(common::cases().join(case["file"].as_str().expect("a file"))).expect("the case");
        let reference = safetensors::SafeTensors::deserialize(&bytes);
        assert_eq!(reference.is_ok(), case["reference_open"] == "ok", "{}: {:?}", case["name"], reference.err());
        assert!(!strict || reference.is_ok(), "{}: strict opens it, the reference does not", case["name"]);
    }
}

#[test]
fn misaligned_tensors_are_refused_or_borrowed_on_request() {
    let path = common::cases().join("mlx_null_meta.safetensors");
    let open = |unaligned| File::open(&path, &OpenOptions { unaligned, ..OpenOptions::default() }).expect("opens");
    let (copying, refusing, borrowing) = (open(Unaligned::Copy), open(Unaligned::Error), open(Unaligned::Borrow));
    let mut misaligned = 0;
    for index in 0..copying.len() {
        let copied = copying.map_at(index).expect("maps");
        let borrowed = borrowing.map_at(index).expect("maps");
        assert_eq!((borrowed.origin(), common::bytes_of(&borrowed)), (Origin::Mapped, common::bytes_of(&copied)));
        let refused = refusing.map_at(index);
        assert_eq!(refused.is_err(), copied.origin() == Origin::Copied);
        if let Err(error) = refused {
            misaligned += 1;
            assert_eq!(error.status(), Status::Unaligned);
            assert!(error.message().contains(&format!("`{}`", copied.info().name)), "{error}");
        }
    }
    assert_eq!(misaligned, 2);
    assert_eq!(borrowing.stats().tensors_copied, 0);
}
