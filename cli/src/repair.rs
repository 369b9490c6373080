//! `safealign repair`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use safealign::error::Status;
use safealign::repair::{Action, RepairOptions, RepairReport, repair};
use safealign::scan::ScanOptions;
use safealign::writer::Durability;

use crate::Outcome;
use crate::args::{How, Repair};
use crate::fields;
use crate::find::{Found, Model, Want, find, system};
use crate::interrupt::Interrupt;
use crate::output::{self, Plain, Size, json_line, shown};
use crate::scan::{Scanned, Total, complain, error_fields, json_complaints, report_fields, scan_all};

pub fn run(args: &Repair) -> io::Result<Outcome> {
    let mut found = find(&args.paths, if args.output.is_some() { Want::Everything } else { Want::EachModelOnce });
    if let Some(output) = &args.output
        && let Err(message) = check_output(&args.paths, output)
    {
        output::error(&message);
        return Ok(Outcome::Failed);
    }
    let (scanned, failed) = scan_all(&found.files, &ScanOptions::default());
    let before = Total::of(&scanned);
    if !args.json {
        say(&format!("before: {}", before.line()));
    }
    if !args.in_place && args.output.is_none() {
        return propose(args, &found, &scanned, &failed);
    }
    let failures = complain(&found, &failed);
    if args.json {
        json_complaints(&mut io::stdout(), &found, &failed)?;
    }
    let mut work = Work {
        args,
        bar: Bar::new(work_bytes(args, &scanned), args.dry_run),
        interrupt: Interrupt::catch()?,
        failures,
        left_bytes: 0,
        left_bundles: BTreeSet::new(),
    };
    // In the order of their paths, so that a bundle is done before the next begins.
    let mut models: Vec<&Scanned> = scanned.iter().collect();
    models.sort_by(|a, b| a.model.path.cmp(&b.model.path));
    for scanned in models {
        if work.interrupt.is_set() {
            break;
        }
        work.file(scanned);
    }
    let others = std::mem::take(&mut found.others);
    for other in others.iter().filter(|_| !args.dry_run) {
        if work.interrupt.is_set() {
            break;
        }
        if let Some(target) = target_of(args, &other.root, &other.below) {
            work.other(&other.path, &target);
        }
    }
    work.bar.finish();
    if work.interrupt.is_set() {
        output::error("interrupted: every file is either the old one or the new one, whole");
        return Ok(Outcome::Failed);
    }
    if !args.json && !args.dry_run {
        let after = Total {
            bundles: before.bundles,
            affected_bundles: work.left_bundles.len() as u64,
            misaligned_bytes: work.left_bytes,
            ..Total::default()
        };
        say(&format!("after: {}", after.line()));
    }
    Ok(if work.failures > 0 { Outcome::Failed } else { Outcome::Fine })
}

/// Standard output may be gone; the work goes on.
pub fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{}", Plain(line));
}

/// The options of the library for those of the command line.
pub fn options(how: &How) -> RepairOptions<'static> {
    RepairOptions {
        layout: how.layout(),
        durability: if how.no_sync { Durability::NotDurable } else { Durability::Durable },
        compare: !how.no_verify,
        drop_trailing: how.drop_trailing,
        ..RepairOptions::default()
    }
}

/// Says what would be done if it were said where to.
fn propose(
    args: &Repair,
    found: &Found,
    scanned: &[Scanned],
    failed: &[(&Model, safealign::error::Error)],
) -> io::Result<Outcome> {
    let mut out = io::stdout().lock();
    let mut any = false;
    for Scanned { model, report } in scanned.iter().filter(|scanned| is_work(args, scanned)) {
        any = true;
        if args.json {
            let mut fields = fields! { path: shown(&model.path) };
            fields.insert("before".to_owned(), report_fields(report).into());
            json_line(&mut out, "proposal", fields)?;
        } else {
            let notes = crate::scan::notes(report);
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
        writeln!(out, "nothing was changed: say --output DIR for a mended copy, or --in-place")?;
    }
    if args.json {
        json_complaints(&mut out, found, failed)?;
    }
    Ok(if complain(found, failed) > 0 { Outcome::Failed } else { Outcome::Fine })
}

/// Refuses an output folder that would be searched itself, or that the sources are in.
fn check_output(paths: &[PathBuf], output: &Path) -> Result<(), String> {
    // The folder need not exist yet; what of it exists has a real path.
    let existing = output.ancestors().find(|path| path.exists()).filter(|path| !path.as_os_str().is_empty());
    let real = |path: &Path| fs::canonicalize(path).map_err(|error| format!("{}: {}", shown(path), system(&error)));
    let mut real_output = real(existing.unwrap_or(Path::new(".")))?;
    real_output.push(output.strip_prefix(existing.unwrap_or(Path::new(""))).unwrap_or(output));
    for path in paths.iter().filter(|path| path.is_dir()) {
        if real_output.starts_with(real(path)?) {
            return Err(format!(
                "{}: the output folder is within {}, which it is a copy of",
                shown(output),
                shown(path)
            ));
        }
    }
    Ok(())
}

/// Where a file goes: with one argument straight into the output folder, with several into a folder for each that is
/// one. `None` in place.
fn target_of(args: &Repair, root: &Path, below: &Path) -> Option<PathBuf> {
    let output = args.output.as_ref()?;
    let folders = args.paths.iter().filter(|path| path.is_dir()).count();
    Some(match root.is_dir() && folders > 1 {
        true => {
            let name = fs::canonicalize(root).ok().and_then(|root| Some(root.file_name()?.to_owned()));
            output.join(name.unwrap_or_default()).join(below)
        }
        false => output.join(below),
    })
}

/// Whether a file would be laid out anew.
fn is_work(args: &Repair, scanned: &Scanned) -> bool {
    args.force || options(&args.how).would_mend(&scanned.report)
}

/// Bytes that will be written.
fn work_bytes(args: &Repair, scanned: &[Scanned]) -> u64 {
    let is_written = |scanned: &&Scanned| args.output.is_some() || is_work(args, scanned);
    scanned.iter().filter(is_written).map(|scanned| scanned.report.file_size).sum()
}

struct Work<'a> {
    args: &'a Repair,
    bar: Bar,
    interrupt: Interrupt,
    failures: usize,
    /// What is still misaligned, because it could not be mended: its bytes, and the bundles that it is in.
    left_bytes: u64,
    left_bundles: BTreeSet<PathBuf>,
}

impl Work<'_> {
    fn file(&mut self, Scanned { model, report: before }: &Scanned) {
        let target = target_of(self.args, &model.root, &model.below);
        let no_folder = target.as_deref().and_then(|target| folder_for(target, self.args.dry_run).err());
        if let Some(message) = no_folder {
            self.fail(&message);
            return;
        }
        let (bar, interrupt) = (&self.bar, &self.interrupt);
        let start = bar.position();
        let mut progress = |done, _| {
            bar.set(start + done);
            if interrupt.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let mut options = RepairOptions {
            force: self.args.force,
            dry_run: self.args.dry_run,
            progress: Some(&mut progress),
            ..options(&self.args.how)
        };
        match repair(&model.path, target.as_deref(), &mut options) {
            Ok(report) => self.done(model, target.as_deref(), &report),
            Err(error) if error.status() == Status::Cancelled => {}
            Err(error) => {
                self.left_bytes += before.misaligned_bytes;
                if before.misaligned_tensors > 0 {
                    self.left_bundles.insert(model.folder().to_owned());
                }
                if self.args.json {
                    let _ = json_line(&mut io::stdout(), "error", error_fields(&shown(&model.path), &error));
                }
                self.fail(&error.to_string());
            }
        }
    }

    fn done(&self, model: &Model, target: Option<&Path>, report: &RepairReport) {
        let RepairReport { action, before, after, bytes_compared } = report;
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
                bytes_compared: bytes_compared,
            };
            fields.insert("before".to_owned(), report_fields(before).into());
            let after = fields! {
                file_size: after.file_size,
                data_start: after.data_start,
                padding: after.padding,
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
                if *bytes_compared > 0 { " compared" } else { "" },
            ),
            Action::Copied => format!("{}{to}: {would}{action} as it is, nothing to repair", shown(&model.path)),
            Action::Untouched => format!("{}: {action}, nothing to repair", shown(&model.path)),
        };
        self.bar.say(&text);
    }

    /// Copies a file that is no model, so that the output is a whole bundle.
    fn other(&mut self, source: &Path, target: &Path) {
        let copied = folder_for(target, false).and_then(|()| self.copy(source, target));
        if let Err(message) = copied {
            self.fail(&message);
        }
    }

    fn copy(&self, source: &Path, target: &Path) -> Result<(), String> {
        let about = |path: &Path, error: &io::Error| format!("{}: {}", shown(path), system(error));
        let folder = target.parent().unwrap_or(Path::new("."));
        let mut from = File::open(source).map_err(|error| about(source, &error))?;
        let mut builder = tempfile::Builder::new();
        let draft = builder.prefix(".safealign-").suffix(".tmp").tempfile_in(folder);
        let mut draft = draft.map_err(|error| about(target, &error))?;
        let mut buffer = vec![0; 1 << 20];
        loop {
            let count = from.read(&mut buffer).map_err(|error| about(source, &error))?;
            if count == 0 {
                break;
            }
            if self.interrupt.is_set() {
                return Ok(());
            }
            draft.write_all(&buffer[..count]).map_err(|error| about(target, &error))?;
        }
        let permissions = from.metadata().map_err(|error| about(source, &error))?.permissions();
        draft.as_file().set_permissions(permissions).map_err(|error| about(target, &error))?;
        draft.persist(target).map_err(|error| about(target, &error.error))?;
        Ok(())
    }

    fn fail(&mut self, message: &str) {
        self.failures += 1;
        self.bar.hide(|| output::error(message));
    }
}

/// Makes the folder that a file goes to.
fn folder_for(target: &Path, dry_run: bool) -> Result<(), String> {
    let Some(folder) = target.parent().filter(|_| !dry_run) else { return Ok(()) };
    fs::create_dir_all(folder).map_err(|error| format!("{}: {}", shown(folder), system(&error)))
}

/// A bar with rate and time left on a terminal; elsewhere nothing, and the lines speak for themselves.
pub struct Bar(Option<ProgressBar>);

impl Bar {
    pub fn new(bytes: u64, is_hidden: bool) -> Bar {
        if is_hidden || bytes == 0 || !io::stderr().is_terminal() {
            return Bar(None);
        }
        let template = "{bar:30} {decimal_bytes} of {decimal_total_bytes}  {decimal_bytes_per_sec}  {eta} left";
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        Bar(Some(ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr()).with_style(style)))
    }

    /// Sets how many bytes there are.
    pub fn of(&self, bytes: u64) {
        if let Some(bar) = &self.0 {
            bar.set_length(bytes);
        }
    }

    fn position(&self) -> u64 {
        self.0.as_ref().map_or(0, ProgressBar::position)
    }

    pub fn set(&self, done: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(done);
        }
    }

    /// Does something to the terminal that the bar has to make room for.
    fn hide(&self, act: impl FnOnce()) {
        match &self.0 {
            Some(bar) => bar.suspend(act),
            None => act(),
        }
    }

    pub fn say(&self, line: &str) {
        self.hide(|| say(line));
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
