//! `safealign repair`.

mod destination;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use safealign::error::{Error, Reason, Status};
use safealign::repair::{Action, RepairOptions, RepairReport, copy, repair};
use safealign::scan::{ScanOptions, ScanReport};

use crate::Outcome;
use crate::args::Repair;
use crate::fields;
use crate::find::{Found, Model, Want, find};
use crate::interrupt::Interrupt;
use crate::output::{self, Plain, Size, json_line, print_line, shown};
use crate::progress::Bar;
use crate::report::{Scanned, Total, error_fields, notes, report_fields, report_problems, scan_all, write_problems};
use destination::{check_free_space, check_output, create_directory, create_parent, destination_of, remove_duplicates};

pub fn run(args: &Repair) -> io::Result<Outcome> {
    let want = match args {
        Repair { output: Some(_), .. } => Want::Everything,
        Repair { in_place: true, .. } => Want::ToReplace,
        _ => Want::EachModelOnce,
    };
    let mut found = find(&args.paths, want);
    if let Some(output) = &args.output
        && let Err(message) = check_output(&args.paths, output)
    {
        return fail(args, &message);
    }
    if let Err(message) = remove_duplicates(args, &mut found) {
        return fail(args, &message);
    }
    let (scanned, failed) = scan_all(&found.files, &ScanOptions::default());
    let before = Total::of(&scanned);
    if !args.json {
        print_line(&format!("before: {}", before.line()));
    }
    if !args.in_place && args.output.is_none() {
        return print_proposal(args, &found, &scanned, &failed);
    }
    let failures = report_problems(&found, &failed);
    if args.json {
        write_problems(&mut io::stdout(), &found, &failed)?;
    }
    if let Err(message) = check_free_space(args, &scanned, &found.others) {
        return fail(args, &message);
    }
    let mut work = Work {
        args,
        bar: Bar::new(bytes_to_write(args, &scanned), args.dry_run),
        interrupt: Interrupt::catch()?,
        failures,
        written: 0,
        remaining_bytes: 0,
        remaining_bundles: BTreeSet::new(),
    };
    // In path order, so that each bundle is finished before the next one starts.
    let mut models: Vec<&Scanned> = scanned.iter().collect();
    models.sort_by(|a, b| a.model.path.cmp(&b.model.path));
    for scanned in models {
        if work.interrupt.is_set() {
            break;
        }
        work.file(scanned);
    }
    for other in &found.others {
        if work.interrupt.is_set() {
            break;
        }
        if let Some(target) = destination_of(args, &other.root, &other.below) {
            work.other(&other.path, &target);
        }
    }
    for directory in &found.empty {
        if args.dry_run || work.interrupt.is_set() {
            break;
        }
        let target = destination_of(args, &directory.root, &directory.below);
        if let Some(Err(message)) = target.map(|target| create_directory(&target)) {
            work.no_directory(&directory.path, &message);
        }
    }
    work.bar.finish();
    if work.interrupt.is_set() {
        output::error("interrupted: every file is complete, either the old version or the new one");
        return Ok(Outcome::Failed);
    }
    if !args.json && !args.dry_run && (work.written > 0 || work.failures == 0) {
        let after = Total {
            bundles: before.bundles,
            affected_bundles: work.remaining_bundles.len() as u64,
            misaligned_bytes: work.remaining_bytes,
            ..Total::default()
        };
        print_line(&format!("after: {}", after.line()));
    }
    Ok(if work.failures > 0 { Outcome::Failed } else { Outcome::Fine })
}

/// Reports an error that ends the command before anything is written.
fn fail(args: &Repair, message: &str) -> io::Result<Outcome> {
    if args.json {
        json_line(&mut io::stdout(), "error", fields! { message: message })?;
    }
    output::error(message);
    Ok(Outcome::Failed)
}

/// Prints what would be done, if neither `--output` nor `--in-place` is given.
fn print_proposal(
    args: &Repair,
    found: &Found,
    scanned: &[Scanned],
    failed: &[(&Model, Error)],
) -> io::Result<Outcome> {
    let mut out = io::stdout().lock();
    let mut any = false;
    for Scanned { model, report } in scanned.iter().filter(|scanned| needs_rewrite(args, scanned)) {
        any = true;
        if args.json {
            let mut fields = fields! { path: shown(&model.path) };
            fields.insert("before".to_owned(), report_fields(report).into());
            json_line(&mut out, "proposal", fields)?;
        } else {
            let notes = notes(report);
            let notes = if notes.is_empty() { notes } else { format!("; {notes}") };
            writeln!(
                out,
                "would repair {}: {} of {} tensors are misaligned, {} would be copied{notes}",
                Plain(&shown(&model.path)),
                report.misaligned_tensors,
                report.tensors,
                Size(report.misaligned_bytes),
            )?;
        }
    }
    if any && !args.json {
        writeln!(
            out,
            "nothing was changed; use `--output DIR` to write a repaired copy, or `--in-place` to replace the files"
        )?;
    }
    if args.json {
        write_problems(&mut out, found, failed)?;
    }
    Ok(if report_problems(found, failed) > 0 { Outcome::Failed } else { Outcome::Fine })
}

/// Whether a file would be rewritten.
fn needs_rewrite(args: &Repair, scanned: &Scanned) -> bool {
    args.force || args.write.repair_options().would_mend(&scanned.report)
}

/// The number of bytes that will be written.
fn bytes_to_write(args: &Repair, scanned: &[Scanned]) -> u64 {
    let is_written = |scanned: &&Scanned| args.output.is_some() || needs_rewrite(args, scanned);
    scanned.iter().filter(is_written).map(|scanned| scanned.report.file_size).sum()
}

struct Work<'a> {
    args: &'a Repair,
    bar: Bar,
    interrupt: Interrupt,
    failures: usize,
    /// Files that were written, or needed no repair.
    written: usize,
    /// Misaligned bytes in files that could not be repaired, and the bundles of these files.
    remaining_bytes: u64,
    remaining_bundles: BTreeSet<(PathBuf, String)>,
}

impl Work<'_> {
    fn file(&mut self, scanned: &Scanned) {
        let Scanned { model, report: before } = scanned;
        let target = destination_of(self.args, &model.root, &model.below);
        let failed = target.as_deref().and_then(|target| create_parent(target, self.args.dry_run).err());
        if let Some(message) = failed {
            self.not_repaired(model, before);
            self.no_directory(&model.path, &message);
            return;
        }
        if let Err(error) = self.check_trailing_bytes(scanned) {
            self.not_repaired(model, before);
            self.report_error(&model.path, &error);
            return;
        }
        let (bar, interrupt) = (&self.bar, &self.interrupt);
        let start = bar.position();
        let mut progress = |done, _| {
            bar.set_position(start + done);
            if interrupt.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let mut options = RepairOptions {
            force: self.args.force,
            dry_run: self.args.dry_run,
            progress: Some(&mut progress),
            ..self.args.write.repair_options()
        };
        match repair(&model.path, target.as_deref(), &mut options) {
            Ok(report) => {
                self.written += 1;
                self.done(model, target.as_deref(), &report);
            }
            Err(error) if error.status() == Status::Cancelled => {}
            Err(error) => {
                self.not_repaired(model, before);
                self.report_error(&model.path, &error);
            }
        }
    }

    /// Refuses to lose bytes after the last tensor. The library checks this as well, but cannot name the option.
    fn check_trailing_bytes(&self, scanned: &Scanned) -> Result<(), Error> {
        let bytes = scanned.report.trailing_bytes;
        if bytes == 0 || self.args.write.drop_trailing || !needs_rewrite(self.args, scanned) {
            return Ok(());
        }
        let message = format!("{bytes} bytes after the last tensor would be lost; use `--drop-trailing` to drop them");
        Err(Error::new(Status::Refused, message).at(&scanned.model.path))
    }

    /// Counts a file that could not be repaired.
    fn not_repaired(&mut self, model: &Model, before: &ScanReport) {
        self.remaining_bytes += before.misaligned_bytes;
        if before.misaligned_tensors > 0 {
            let (directory, set) = model.bundle();
            self.remaining_bundles.insert((directory.to_owned(), set.to_owned()));
        }
    }

    fn done(&self, model: &Model, target: Option<&Path>, report: &RepairReport) {
        let RepairReport { action, before, after, bytes_verified } = report;
        if let Some(error) = before.nonconforming.as_ref().filter(|error| error.reason() == Some(Reason::UnknownDtype))
        {
            let message =
                format!("{}: no repair needed in the tensors of known dtypes: {}", shown(&model.path), error.message());
            if self.args.json {
                let fields = fields! { path: shown(&model.path), message: error.message() };
                let _ = json_line(&mut io::stdout(), "warning", fields);
            }
            self.bar.suspend(|| output::warning(&message));
        }
        let action = match action {
            Action::Untouched => "untouched",
            Action::Copied => "copied",
            Action::Rewritten => "rewritten",
        };
        if self.args.json {
            let mut fields = fields! {
                path: shown(&model.path),
                destination: target.map(shown),
                action: action,
                dry_run: self.args.dry_run,
                bytes_verified: bytes_verified,
            };
            fields.insert("before".to_owned(), report_fields(before).into());
            let after = fields! {
                file_size: after.file_size,
                data_start: after.data_start,
                gap_bytes: after.gap_bytes,
                tensors: after.tensors,
                tensors_moved: after.tensors_moved,
            };
            fields.insert("after".to_owned(), after.into());
            let _ = json_line(&mut io::stdout(), "repair", fields);
            return;
        }
        let would = if self.args.dry_run { "would be " } else { "" };
        let to = target.map_or_else(String::new, |target| format!(" -> {}", shown(target)));
        let text = match report.action {
            Action::Rewritten => format!(
                "{}{to}: {would}{action}, {} of {} tensors were misaligned, {} of them moved, {}{}",
                shown(&model.path),
                before.misaligned_tensors,
                before.tensors,
                after.tensors_moved,
                Size(after.file_size),
                if *bytes_verified > 0 { " compared" } else { "" },
            ),
            Action::Copied => format!("{}{to}: {would}{action} unchanged, no repair needed", shown(&model.path)),
            Action::Untouched => format!("{}: {action}, no repair needed", shown(&model.path)),
        };
        self.bar.print_line(&text);
    }

    /// Copies a file without tensors, so that the output is a complete bundle.
    fn other(&mut self, source: &Path, target: &Path) {
        if let Err(message) = create_parent(target, self.args.dry_run) {
            self.no_directory(source, &message);
            return;
        }
        let interrupt = &self.interrupt;
        let mut progress = |_, _| if interrupt.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let mut options = RepairOptions {
            dry_run: self.args.dry_run,
            progress: Some(&mut progress),
            ..self.args.write.repair_options()
        };
        match copy(source, target, &mut options) {
            Err(error) if error.status() != Status::Cancelled => {
                self.report_error(source, &error);
            }
            _ => {}
        }
    }

    /// Reports that the destination directory of a source could not be created.
    fn no_directory(&mut self, path: &Path, message: &str) {
        if self.args.json {
            let _ = json_line(&mut io::stdout(), "error", fields! { path: shown(path), message: message });
        }
        self.fail(message);
    }

    fn report_error(&mut self, source: &Path, error: &Error) {
        if self.args.json {
            let _ = json_line(&mut io::stdout(), "error", error_fields(source, error));
        }
        self.fail(&error.to_string());
    }

    fn fail(&mut self, message: &str) {
        self.failures += 1;
        self.bar.suspend(|| output::error(message));
    }
}
