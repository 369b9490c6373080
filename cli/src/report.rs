//! Scan results and errors of all commands: scanning, totals, notes, and JSON fields.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;

use rayon::prelude::*;
use safealign::error::{Error, Reason};
use safealign::header::HeaderPadding;
use safealign::scan::{ScanOptions, ScanReport, scan};
use serde_json::{Map, Value, json};

use crate::fields;
use crate::find::{Found, Model, Problem};
use crate::output::{self, Plain, Size, count, json_line, shown};

/// A file and its scan result.
pub struct Scanned<'a> {
    pub model: &'a Model,
    pub report: ScanReport,
}

/// Scans all files in parallel. The file with the most misaligned bytes comes first.
pub fn scan_all<'a>(files: &'a [Model], options: &ScanOptions) -> (Vec<Scanned<'a>>, Vec<(&'a Model, Error)>) {
    let reports: Vec<_> = files.par_iter().map(|model| (model, scan(&model.path, options))).collect();
    let (mut scanned, mut failed) = (Vec::new(), Vec::new());
    for (model, report) in reports {
        match report {
            Ok(report) => scanned.push(Scanned { model, report }),
            Err(error) => failed.push((model, error)),
        }
    }
    scanned.sort_by(|a, b| {
        let key = |scanned: &Scanned| std::cmp::Reverse(scanned.report.misaligned_bytes);
        key(a).cmp(&key(b)).then_with(|| a.model.path.cmp(&b.model.path))
    });
    (scanned, failed)
}

/// Totals over all files.
#[derive(Default)]
pub struct Total {
    pub files: u64,
    pub affected_files: u64,
    pub bundles: u64,
    pub affected_bundles: u64,
    pub tensors: u64,
    pub misaligned_tensors: u64,
    pub misaligned_bytes: u64,
    pub bytes: u64,
}

impl Total {
    pub fn of<'a>(scanned: &'a [Scanned<'a>]) -> Total {
        let is_affected = |scanned: &&Scanned| scanned.report.misaligned_tensors > 0;
        let bundle = |scanned: &'a Scanned| scanned.model.bundle();
        let bundles: BTreeSet<_> = scanned.iter().map(bundle).collect();
        let affected: BTreeSet<_> = scanned.iter().filter(is_affected).map(bundle).collect();
        let sum = |field: fn(&ScanReport) -> u64| scanned.iter().map(|scanned| field(&scanned.report)).sum();
        Total {
            files: scanned.len() as u64,
            affected_files: scanned.iter().filter(is_affected).count() as u64,
            bundles: bundles.len() as u64,
            affected_bundles: affected.len() as u64,
            tensors: sum(|report| report.tensors),
            misaligned_tensors: sum(|report| report.misaligned_tensors),
            misaligned_bytes: sum(|report| report.misaligned_bytes),
            bytes: sum(|report| report.file_size),
        }
    }

    /// `12 of 128 bundles affected, 59.3 GB would be copied`
    pub fn line(&self) -> String {
        let bundles = if self.bundles == 1 { "bundle" } else { "bundles" };
        format!(
            "{} of {} {bundles} affected, {} would be copied",
            self.affected_bundles,
            self.bundles,
            Size(self.misaligned_bytes)
        )
    }
}

/// Notes about a file other than its misaligned tensors.
pub fn notes(report: &ScanReport) -> String {
    let mut notes = Vec::new();
    if report.gaps > 0 {
        notes.push(format!("{} ({})", count(report.gaps, "gap"), Size(report.gap_bytes)));
    }
    if report.trailing_bytes > 0 {
        notes.push(format!("{} after the last tensor", Size(report.trailing_bytes)));
    }
    if report.padding == HeaderPadding::Nul {
        notes.push("header padded with NUL".to_owned());
    }
    if report.unknown_dtype_tensors() > 0 {
        let unknown = report.dtypes.iter().filter(|row| row.dtype.is_none());
        let names: Vec<String> = unknown.map(|row| Plain(&row.name).to_string()).collect();
        notes.push(format!("unknown dtype {}", names.join(", ")));
    }
    if report.nonconforming.is_some() {
        notes.push("rejected by the reference reader".to_owned());
    }
    notes.join("; ")
}

/// Prints each warning and error on its own line to standard error. Returns the number of errors.
pub fn report_problems(found: &Found, failed: &[(&Model, Error)]) -> usize {
    for (path, message) in &found.warnings {
        output::warning(&format!("{}: {message}", shown(path)));
    }
    for Problem { path, message, .. } in &found.errors {
        output::error(&format!("{}: {message}", shown(path)));
    }
    for (_, error) in failed {
        output::error(&error.to_string());
    }
    found.errors.len() + failed.len()
}

/// Writes the warnings and errors as JSON.
pub fn write_problems(out: &mut dyn Write, found: &Found, failed: &[(&Model, Error)]) -> io::Result<()> {
    for (path, message) in &found.warnings {
        json_line(out, "warning", fields! { path: shown(path), message: message })?;
    }
    for Problem { path, message, status } in &found.errors {
        json_line(out, "error", fields! { path: shown(path), message: message, status: status.name() })?;
    }
    for (model, error) in failed {
        json_line(out, "error", error_fields(&model.path, error))?;
    }
    Ok(())
}

/// The JSON fields of an error. The path is the one that the error names, such as a destination that could not be
/// written, and `path` if it names none.
pub fn error_fields(path: &Path, error: &Error) -> Map<String, Value> {
    let path = shown(error.path().unwrap_or(path));
    let reason = error.reason().map(Reason::name);
    fields! { path: path, message: error.message(), status: error.status().name(), reason: reason }
}

/// The JSON fields of a scan result.
pub fn report_fields(report: &ScanReport) -> Map<String, Value> {
    let padding = match report.padding {
        HeaderPadding::None => "none",
        HeaderPadding::Spaces => "spaces",
        HeaderPadding::Whitespace => "whitespace",
        HeaderPadding::Nul => "nul",
    };
    let dtypes: Vec<Value> = report
        .dtypes
        .iter()
        .map(|row| {
            json!({
                "dtype": row.name,
                "known": row.dtype.is_some(),
                "tensors": row.tensors,
                "bytes": row.bytes,
                "misaligned_tensors": row.misaligned_tensors,
                "misaligned_bytes": row.misaligned_bytes,
            })
        })
        .collect();
    let nonconforming = report
        .nonconforming
        .as_ref()
        .map(|error| json!({ "reason": error.reason().map(Reason::name), "message": error.message() }));
    fields! {
        file_size: report.file_size,
        header_len: report.header_len,
        data_start: report.data_start,
        header_padding: padding,
        tensors: report.tensors,
        tensor_bytes: report.tensor_bytes,
        misaligned_tensors: report.misaligned_tensors,
        misaligned_bytes: report.misaligned_bytes,
        gaps: report.gaps,
        gap_bytes: report.gap_bytes,
        trailing_bytes: report.trailing_bytes,
        nonconforming: nonconforming,
        dtypes: dtypes,
    }
}
