//! `safealign scan`.

use std::collections::BTreeSet;
use std::io::{self, BufWriter, Write};

use rayon::prelude::*;
use safealign::error::{Error, Reason};
use safealign::header::HeaderPadding;
use safealign::scan::{ScanOptions, ScanReport, scan};
use serde_json::{Map, Value, json};

use crate::Outcome;
use crate::args::Scan;
use crate::fields;
use crate::find::{Found, Model, Want, find};
use crate::output::{self, Paint, Plain, Size, Table, count, json_line, shown};

/// A file and what was found in it.
pub struct Scanned<'a> {
    pub model: &'a Model,
    pub report: ScanReport,
}

/// Scans every file, on all processors; the dearest first.
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

/// Sums over files.
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
    pub fn of(scanned: &[Scanned]) -> Total {
        let is_affected = |scanned: &&Scanned| scanned.report.misaligned_tensors > 0;
        let bundles: BTreeSet<_> = scanned.iter().map(|scanned| scanned.model.folder()).collect();
        let affected: BTreeSet<_> = scanned.iter().filter(is_affected).map(|scanned| scanned.model.folder()).collect();
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

pub fn run(args: &Scan) -> io::Result<Outcome> {
    let options = args.alignment.map_or_else(ScanOptions::default, |alignment| ScanOptions { alignment });
    let found = find(&args.paths, Want::EachModelOnce);
    let (scanned, failed) = scan_all(&found.files, &options);
    let total = Total::of(&scanned);
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        write_json(&mut out, args, &found, &scanned, &failed, &total)?;
    } else {
        write_table(&mut out, args, &scanned, &total)?;
    }
    out.flush()?;
    let failures = complain(&found, &failed);
    Ok(if failures > 0 {
        Outcome::Failed
    } else if args.check && total.misaligned_tensors > 0 {
        Outcome::Found
    } else {
        Outcome::Fine
    })
}

/// Says on standard error what went wrong, a line each; how many failures there were.
pub fn complain(found: &Found, failed: &[(&Model, Error)]) -> usize {
    for (path, message) in &found.warnings {
        output::warning(&format!("{}: {message}", shown(path)));
    }
    for (path, message) in &found.errors {
        output::error(&format!("{}: {message}", shown(path)));
    }
    for (_, error) in failed {
        output::error(&error.to_string());
    }
    found.errors.len() + failed.len()
}

fn write_table(out: &mut dyn Write, args: &Scan, scanned: &[Scanned], total: &Total) -> io::Result<()> {
    let paint = Paint::for_stdout();
    let below = args.alignment.map(|alignment| format!("BELOW {alignment}"));
    let mut columns = vec![("COPIED", true), ("SIZE", true), ("MISALIGNED", true)];
    columns.extend(below.as_deref().map(|heading| (heading, true)));
    columns.extend([("FILE", false), ("NOTES", false)]);
    let mut table = Table::new(&columns);
    let mut shown_files = 0;
    for Scanned { model, report } in scanned {
        let is_affected = report.misaligned_tensors > 0;
        let is_below = args.alignment.is_some() && report.tensors_below_alignment > 0;
        let notes = notes(report);
        if !(is_affected || is_below || !notes.is_empty() || args.all || scanned.len() == 1) {
            continue;
        }
        shown_files += 1;
        let mut cells = vec![
            Size(report.misaligned_bytes).to_string(),
            Size(report.file_size).to_string(),
            format!("{} of {}", report.misaligned_tensors, report.tensors),
        ];
        if below.is_some() {
            cells.push(report.tensors_below_alignment.to_string());
        }
        cells.extend([shown(&model.path), notes]);
        table.row(cells, is_affected);
    }
    if shown_files > 0 {
        table.write(out, paint)?;
        writeln!(out)?;
    }
    let line = total.line();
    writeln!(out, "{}", if total.affected_bundles > 0 { paint.bold(&line) } else { line })?;
    if total.files > 0 {
        writeln!(
            out,
            "({} of {}, {} of {}, {} in all)",
            total.affected_files,
            count(total.files, "file"),
            total.misaligned_tensors,
            count(total.tensors, "tensor"),
            Size(total.bytes)
        )?;
    }
    Ok(())
}

/// What is odd about a file besides misalignment.
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
        notes.push("the reference reader refuses it".to_owned());
    }
    notes.join("; ")
}

fn write_json(
    out: &mut dyn Write,
    args: &Scan,
    found: &Found,
    scanned: &[Scanned],
    failed: &[(&Model, Error)],
    total: &Total,
) -> io::Result<()> {
    for Scanned { model, report } in scanned {
        let mut fields = report_fields(report);
        fields.insert("path".to_owned(), shown(&model.path).into());
        fields.insert("bundle".to_owned(), shown(model.folder()).into());
        if let Some(alignment) = args.alignment {
            fields.insert("alignment".to_owned(), alignment.into());
            fields.insert("tensors_below_alignment".to_owned(), report.tensors_below_alignment.into());
        }
        json_line(out, "file", fields)?;
    }
    json_complaints(out, found, failed)?;
    let fields = fields! {
        files: total.files,
        affected_files: total.affected_files,
        bundles: total.bundles,
        affected_bundles: total.affected_bundles,
        tensors: total.tensors,
        misaligned_tensors: total.misaligned_tensors,
        misaligned_bytes: total.misaligned_bytes,
        bytes: total.bytes,
        errors: found.errors.len() + failed.len(),
    };
    json_line(out, "total", fields)
}

/// What went wrong, as JSON.
pub fn json_complaints(out: &mut dyn Write, found: &Found, failed: &[(&Model, Error)]) -> io::Result<()> {
    for (path, message) in &found.warnings {
        json_line(out, "warning", fields! { path: shown(path), message: message })?;
    }
    for (path, message) in &found.errors {
        json_line(out, "error", fields! { path: shown(path), message: message, status: "SA_ERR_IO" })?;
    }
    for (model, error) in failed {
        json_line(out, "error", error_fields(&shown(&model.path), error))?;
    }
    Ok(())
}

/// An error as JSON.
pub fn error_fields(path: &str, error: &Error) -> Map<String, Value> {
    let reason = error.reason().map(Reason::name);
    fields! { path: path, message: error.message(), status: error.status().name(), reason: reason }
}

/// A scan as JSON.
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
