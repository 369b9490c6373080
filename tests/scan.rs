//! Scanning: the counts, and that only the header is read.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use common::{framed, temporary_directory};
use safealign::error::{Reason, Status};
use safealign::header::HeaderPadding;
use safealign::scan::{ScanOptions, ScanReport, scan};
use serde_json::Value;

fn scanned(bytes: &[u8]) -> safealign::error::Result<ScanReport> {
    let root = temporary_directory();
    let path = root.path().join("x.safetensors");
    fs::write(&path, bytes).expect("writes");
    scan(&path, &ScanOptions::default())
}

#[test]
fn the_scan_of_every_case_matches_the_manifest() {
    let text = fs::read(common::cases().join("manifest.json")).expect("the manifest");
    let cases: Vec<Value> = serde_json::from_slice(&text).expect("JSON");
    for case in &cases {
        let path = common::cases().join(case["file"].as_str().expect("a file"));
        let found = scan(&path, &ScanOptions::default());
        let name = &case["name"];
        if case["open"] == "SA_OK" {
            let report = found.expect("scans");
            // The file that only MLX opens has no counts.
            if case["tensors"].is_u64() {
                let found = (report.tensors, report.misaligned_tensors, report.misaligned_bytes);
                let expected = ["tensors", "misaligned", "copy_bytes"].map(|field| case[field].as_u64());
                assert_eq!([Some(found.0), Some(found.1), Some(found.2)], expected, "{name}");
            }
            assert_eq!(report.nonconforming.is_none(), case["reference_open"] == "ok", "{name}");
            let reason = report.nonconforming.and_then(|error| error.reason()).map(Reason::name);
            assert_eq!(reason, case["reason"].as_str(), "{name}");
            let rows = report.dtypes.iter();
            assert_eq!(rows.clone().map(|row| row.tensors).sum::<u64>(), report.tensors, "{name}");
            assert_eq!(rows.map(|row| row.misaligned_bytes).sum::<u64>(), report.misaligned_bytes, "{name}");
        } else if *name == "dtype_unknown" {
            let report = found.expect("scans");
            assert_eq!((report.unknown_dtype_tensors(), report.tensors), (1, 1));
            assert_eq!(report.nonconforming.and_then(|error| error.reason()), Some(Reason::UnknownDtype));
            assert!(report.dtypes[0].dtype.is_none() && !report.dtypes[0].name.is_empty());
        } else if *name == "dtype_unknown_oob" {
            assert_eq!(found.expect_err("too short").reason(), Some(Reason::Truncated));
        } else {
            let error = found.expect_err("refused");
            assert_eq!(Some(error.status().name()), case["open"].as_str(), "{name}: {error}");
        }
    }
}

#[test]
fn gaps_trailing_bytes_and_padding_are_counted() {
    let json = br#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[1,4]},"b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}}"#;
    let mut header = json.to_vec();
    header.extend([0; 5]);
    let report = scanned(&framed(&header, &[7; 23])).expect("scans");
    assert_eq!((report.gaps, report.gap_bytes, report.trailing_bytes), (2, 9, 3));
    assert_eq!((report.padding, report.header_len), (HeaderPadding::Nul, header.len() as u64));
    assert_eq!((report.file_size, report.data_start), (8 + header.len() as u64 + 23, 8 + header.len() as u64));
    assert_eq!(report.tensor_bytes, 11);
    assert_eq!(report.nonconforming.and_then(|error| error.reason()), Some(Reason::HeaderTrailingNul));
    // Control: the same tensors without gaps.
    let json = br#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"F32","shape":[2],"data_offsets":[3,11]}}"#;
    let report = scanned(&framed(json, &[7; 11])).expect("scans");
    assert_eq!((report.gaps, report.trailing_bytes, report.padding), (0, 0, HeaderPadding::None));
    assert!(report.nonconforming.is_none());
}

#[test]
fn tensors_below_an_alignment_are_not_misaligned() {
    let json = br#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}"#;
    let mut header = json.to_vec();
    header.resize(128 - 8, b' ');
    let root = temporary_directory();
    let path = root.path().join("x.safetensors");
    fs::write(&path, framed(&header, &[1; 16])).expect("writes");
    for (alignment, below) in [(8, 0), (16, 1), (128, 1), (256, 2)] {
        let report = scan(&path, &ScanOptions { alignment }).expect("scans");
        assert_eq!((report.misaligned_tensors, report.tensors_below_alignment), (0, below), "{alignment}");
    }
    for alignment in [0, 4, 7, 24, 4 << 20] {
        let error = scan(&path, &ScanOptions { alignment }).expect_err("refused");
        assert_eq!(error.status(), Status::InvalidArgument);
    }
}

/// Bytes that this thread has read, by any system call.
#[cfg(target_os = "linux")]
fn bytes_read() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/io").expect("the counters");
    let line = text.lines().find_map(|line| line.strip_prefix("rchar: "));
    line.and_then(|number| number.parse().ok()).expect("a number")
}

#[cfg(target_os = "linux")]
#[test]
fn only_the_header_of_50_gib_is_read() {
    const DATA: u64 = 50 << 30;
    let root = temporary_directory();
    let path = root.path().join("huge.safetensors");
    let json = format!(r#"{{"a":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{DATA}]}}}}"#, DATA / 4);
    let file = File::create(&path).expect("creates");
    file.set_len(8 + json.len() as u64 + DATA).expect("a sparse file");
    file.write_all_at(&framed(json.as_bytes(), &[]), 0).expect("writes");
    // What reading the counter itself reads; both counts have about as many digits.
    let (before, after) = (bytes_read(), bytes_read());
    let own = after - before;
    let before = bytes_read();
    let report = scan(&path, &ScanOptions::default()).expect("scans");
    let read = bytes_read() - before - own;
    assert_eq!((report.misaligned_tensors, report.misaligned_bytes), (1, DATA));
    let header = 8 + json.len() as u64;
    assert!((header..header + 16).contains(&read), "{read} bytes were read for a header of {header}");
    // Control: the counter counts what is read.
    let before = bytes_read();
    file.read_exact_at(&mut vec![0; 1 << 20], header).expect_err("opened for writing only");
    File::open(&path).expect("opens").read_exact_at(&mut vec![0; 1 << 20], header).expect("reads");
    assert!(bytes_read() - before > 1 << 20);
}
