//! `safealign repair`.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use safealign::error::{Reason, Status};
use safealign::repair::{Action, RepairOptions, RepairReport, copy, repair};
use safealign::scan::{ScanOptions, ScanReport};
use safealign::writer::{Durability, free_space_in, space_needed};

use crate::Outcome;
use crate::args::{How, Repair};
use crate::fields;
use crate::find::{Found, Model, Other, Want, find, system};
use crate::interrupt::Interrupt;
use crate::output::{self, Plain, Size, json_line, shown};
use crate::scan::{Scanned, Total, complain, error_fields, json_complaints, report_fields, scan_all};

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
    if let Err(message) = one_source_each(args, &mut found) {
        return fail(args, &message);
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
    if let Err(message) = room_for(args, &scanned, &found.others) {
        return fail(args, &message);
    }
    let mut work = Work {
        args,
        bar: Bar::new(work_bytes(args, &scanned), args.dry_run),
        interrupt: Interrupt::catch()?,
        failures,
        written: 0,
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
    for other in &found.others {
        if work.interrupt.is_set() {
            break;
        }
        if let Some(target) = target_of(args, &other.root, &other.below) {
            work.other(&other.path, &target);
        }
    }
    for folder in &found.empty {
        if args.dry_run || work.interrupt.is_set() {
            break;
        }
        let made = target_of(args, &folder.root, &folder.below).map(|target| make_folder(&target));
        if let Some(Err(message)) = made {
            work.no_folder(&folder.path, &message);
        }
    }
    work.bar.finish();
    if work.interrupt.is_set() {
        output::error("interrupted: every file is either the old one or the new one, whole");
        return Ok(Outcome::Failed);
    }
    if !args.json && !args.dry_run && (work.written > 0 || work.failures == 0) {
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

/// Ends before anything is done.
fn fail(args: &Repair, message: &str) -> io::Result<Outcome> {
    if args.json {
        json_line(&mut io::stdout(), "error", fields! { message: message })?;
    }
    output::error(message);
    Ok(Outcome::Failed)
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

/// Drops what is given twice, and fails if two sources would be written to one place, or one into a file: before
/// anything is written, since the later would replace the earlier.
fn one_source_each(args: &Repair, found: &mut Found) -> Result<(), String> {
    let mut sources: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    let mut collision = None;
    let mut is_first = |path: &Path, root: &Path, below: &Path| {
        let Some(target) = target_of(args, root, below) else { return true };
        match sources.entry(target) {
            Entry::Vacant(place) => {
                place.insert(path.to_owned());
                true
            }
            Entry::Occupied(place) => {
                let same = fs::canonicalize(place.get()).ok() == fs::canonicalize(path).ok();
                if !same && collision.is_none() {
                    collision = Some((place.get().clone(), path.to_owned(), place.key().clone()));
                }
                false
            }
        }
    };
    found.files.retain(|model| is_first(&model.path, &model.root, &model.below));
    found.others.retain(|other| is_first(&other.path, &other.root, &other.below));
    let folders = found.empty.iter().filter_map(|folder| target_of(args, &folder.root, &folder.below));
    let folders: Vec<PathBuf> = folders.collect();
    // A file where another source, or an empty folder, needs a folder.
    let within = || {
        let inner = sources.iter().map(|(target, source)| (target, source, 1));
        let empty = folders.iter().zip(&found.empty).map(|(target, folder)| (target, &folder.path, 0));
        inner.chain(empty).find_map(|(target, source, skip)| {
            let above = target.ancestors().skip(skip).find_map(|above| sources.get_key_value(above))?;
            Some((above.1.clone(), source.clone(), above.0.clone()))
        })
    };
    match collision.or_else(within) {
        None => Ok(()),
        Some((one, other, target)) => Err(format!(
            "{} and {} would both be written to {}: nothing was written, give each an output of its own",
            shown(&one),
            shown(&other),
            shown(&target)
        )),
    }
}

/// Fails where the file system of the output has too little room for all that will be written there.
fn room_for(args: &Repair, scanned: &[Scanned], others: &[Other]) -> Result<(), String> {
    // In place, every file needs room for itself only, and is checked on its own.
    if args.output.is_none() {
        return Ok(());
    }
    let mut models: Vec<&Scanned> = scanned.iter().collect();
    models.sort_by(|a, b| a.model.path.cmp(&b.model.path));
    let models = models.iter().map(|scanned| (&scanned.model.root, &scanned.model.below, scanned.report.file_size));
    let others = others.iter().map(|other| {
        let size = fs::metadata(&other.path).map_or(0, |found| found.len());
        (&other.root, &other.below, size)
    });
    // By the file system, which folders and links below the output may change.
    let mut disks: BTreeMap<u64, (PathBuf, Vec<(u64, u64)>)> = BTreeMap::new();
    for (root, below, size) in models.chain(others) {
        let Some(target) = target_of(args, root, below) else { continue };
        let old = fs::symlink_metadata(&target).ok().filter(|found| found.is_file() && found.nlink() == 1);
        let exists = |folder: &&Path| !folder.as_os_str().is_empty() && folder.is_dir();
        let folder = target.ancestors().skip(1).find(exists).unwrap_or(Path::new("."));
        let Ok(disk) = fs::metadata(folder) else { continue };
        let (_, files) = disks.entry(disk.dev()).or_insert_with(|| (folder.to_owned(), Vec::new()));
        files.push((size, old.map_or(0, |found| found.len())));
    }
    for (folder, files) in disks.into_values() {
        let needed = space_needed(files);
        if let Some(free) = free_space_in(&folder).filter(|free| *free < needed) {
            return Err(format!(
                "{}: {needed} bytes are needed, {free} are free, {} are missing: nothing was written, free some space or \
                 choose another disk",
                shown(&folder),
                needed - free
            ));
        }
    }
    Ok(())
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
    /// Files that are in place now, as they should be.
    written: usize,
    /// What is still misaligned, because it could not be mended: its bytes, and the bundles that it is in.
    left_bytes: u64,
    left_bundles: BTreeSet<PathBuf>,
}

impl Work<'_> {
    fn file(&mut self, Scanned { model, report: before }: &Scanned) {
        let target = target_of(self.args, &model.root, &model.below);
        let no_folder = target.as_deref().and_then(|target| folder_for(target, self.args.dry_run).err());
        if let Some(message) = no_folder {
            self.left(model, before);
            self.no_folder(&model.path, &message);
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
            Ok(report) => {
                self.written += 1;
                self.done(model, target.as_deref(), &report);
            }
            Err(error) if error.status() == Status::Cancelled => {}
            Err(error) => {
                self.left(model, before);
                if self.args.json {
                    let _ = json_line(&mut io::stdout(), "error", error_fields(&shown(&model.path), &error));
                }
                self.fail(&error.to_string());
            }
        }
    }

    /// That file could not be mended.
    fn left(&mut self, model: &Model, before: &ScanReport) {
        self.left_bytes += before.misaligned_bytes;
        if before.misaligned_tensors > 0 {
            self.left_bundles.insert(model.folder().to_owned());
        }
    }

    fn done(&self, model: &Model, target: Option<&Path>, report: &RepairReport) {
        let RepairReport { action, before, after, bytes_compared } = report;
        if let Some(error) = before.nonconforming.as_ref().filter(|error| error.reason() == Some(Reason::UnknownDtype))
        {
            let message =
                format!("{}: nothing to repair, as far as can be told: {}", shown(&model.path), error.message());
            if self.args.json {
                let fields = fields! { path: shown(&model.path), message: error.message() };
                let _ = json_line(&mut io::stdout(), "warning", fields);
            }
            self.bar.hide(|| output::warning(&message));
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
        if let Err(message) = folder_for(target, self.args.dry_run) {
            self.no_folder(source, &message);
            return;
        }
        let interrupt = &self.interrupt;
        let mut progress = |_, _| if interrupt.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let mut options =
            RepairOptions { dry_run: self.args.dry_run, progress: Some(&mut progress), ..options(&self.args.how) };
        match copy(source, target, &mut options) {
            Err(error) if error.status() != Status::Cancelled => {
                if self.args.json {
                    let _ = json_line(&mut io::stdout(), "error", error_fields(&shown(source), &error));
                }
                self.fail(&error.to_string());
            }
            _ => {}
        }
    }

    /// There is no folder for what is at that path.
    fn no_folder(&mut self, path: &Path, message: &str) {
        if self.args.json {
            let _ = json_line(&mut io::stdout(), "error", fields! { path: shown(path), message: message });
        }
        self.fail(message);
    }

    fn fail(&mut self, message: &str) {
        self.failures += 1;
        self.bar.hide(|| output::error(message));
    }
}

/// Makes the folder that a file goes to.
fn folder_for(target: &Path, dry_run: bool) -> Result<(), String> {
    target.parent().filter(|_| !dry_run).map_or(Ok(()), make_folder)
}

fn make_folder(folder: &Path) -> Result<(), String> {
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
