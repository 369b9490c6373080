//! `safealign scan`.

use std::io::{self, BufWriter, Write};

use safealign::error::Error;
use safealign::scan::ScanOptions;

use crate::Outcome;
use crate::args::Scan;
use crate::bundles::check_bundles;
use crate::fields;
use crate::find::{Found, Model, Want, find};
use crate::output::{Paint, Size, Table, count, json_line, shown};
use crate::report::{Scanned, Total, notes, report_fields, report_problems, scan_all, write_problems};

pub fn run(args: &Scan) -> io::Result<Outcome> {
    let options = args.alignment.map_or_else(ScanOptions::default, |alignment| ScanOptions { alignment });
    let mut found = find(&args.paths, Want::EachModelOnce);
    check_bundles(&mut found);
    let (scanned, failed) = scan_all(&found.files, &options);
    let total = Total::of(&scanned);
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        write_json(&mut out, args, &found, &scanned, &failed, &total)?;
    } else {
        write_table(&mut out, args, &scanned, &total)?;
    }
    out.flush()?;
    let failures = report_problems(&found, &failed);
    Ok(if failures > 0 {
        Outcome::Failed
    } else if found.missing_shards > 0 {
        Outcome::ShardMissing
    } else if args.check && total.misaligned_tensors > 0 {
        Outcome::Found
    } else {
        Outcome::Fine
    })
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
            "({} of {}, {} of {}, {} in total)",
            total.affected_files,
            count(total.files, "file"),
            total.misaligned_tensors,
            count(total.tensors, "tensor"),
            Size(total.bytes)
        )?;
    }
    Ok(())
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
        fields.insert("bundle".to_owned(), shown(model.directory()).into());
        fields.insert("index".to_owned(), model.index.as_deref().map(shown).into());
        if let Some(alignment) = args.alignment {
            fields.insert("alignment".to_owned(), alignment.into());
            fields.insert("tensors_below_alignment".to_owned(), report.tensors_below_alignment.into());
        }
        json_line(out, "file", fields)?;
    }
    write_problems(out, found, failed)?;
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
