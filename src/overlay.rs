//! Overlays: directories that load in place of a bundle, which is not changed.

mod manifest;

use std::collections::BTreeSet;
use std::fs::{self, DirEntry, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use crate::bundle::names;
use crate::error::{Error, Result, Status};
use crate::file_lock::FileLock;
use crate::layout::{LayoutOptions, check_alignment};
use crate::repair::{RepairOptions, repair_ours, room_in};
use crate::scan::{self, ScanOptions};
use crate::writer::{self, Durability, Progress};

use manifest::{Entry, Manifest};

/// How to make an overlay.
pub struct OverlayOptions<'a> {
    /// Of the files that are written.
    pub layout: LayoutOptions,
    pub durability: Durability,
    /// Read back every tensor and compare it with the source's. On by default.
    pub verify: bool,
    /// Leave out bytes after the last tensor. Without it, a misaligned file that has some is linked as it is, with a
    /// warning.
    pub drop_trailing: bool,
    /// Called with the bytes that are written and all there are to write; breaking cancels.
    pub progress: Option<Progress<'a>>,
}

impl Default for OverlayOptions<'_> {
    fn default() -> Self {
        OverlayOptions {
            layout: LayoutOptions::default(),
            durability: Durability::default(),
            verify: true,
            drop_trailing: false,
            progress: None,
        }
    }
}

/// What an overlay has. Sizes are in bytes.
#[derive(Clone, Debug, Default)]
pub struct OverlayReport {
    /// Files that were written repaired.
    pub written: u64,
    /// Bytes of those.
    pub bytes_written: u64,
    /// Repaired files that were there already and up to date.
    pub kept: u64,
    /// Bytes of those.
    pub bytes_kept: u64,
    /// Files and directories that are symbolic links.
    pub linked: u64,
    /// What was there for files that the bundle no longer has.
    pub removed: u64,
    /// Files that could not be repaired and were linked as they are, or left out: the path and the reason.
    pub warnings: Vec<(PathBuf, String)>,
}

/// What is to be done for one entry of a bundle.
enum Task {
    /// Write it repaired.
    Write,
    /// It is repaired already.
    Keep(u64),
    /// Link to it.
    Link,
    /// Create a directory.
    Directory,
}

/// Makes `output` a directory that loads in place of `bundle`: every misaligned file is written repaired, and
/// everything else (aligned files, configuration, tokenizer, index, subdirectories without misaligned files) is a
/// symbolic link. The bundle is not changed.
///
/// A second call only writes what is missing or stale: a manifest in `output` records the size and times of each
/// source, and what was written. It replaces and removes nothing but its own links and the files that it wrote and that
/// were not modified since. Concurrent calls are serialised.
///
/// [`Status::Refused`], with nothing changed: a directory with other content, also in the place of a link or a file of
/// the overlay, or one that is inside the bundle or contains it; too little free space.
pub fn overlay(bundle: &Path, output: &Path, options: &mut OverlayOptions) -> Result<OverlayReport> {
    check_alignment(options.layout.alignment)?;
    let real = fs::canonicalize(bundle).map_err(|error| Error::io("open", &error).at(bundle))?;
    if !real.is_dir() {
        return Err(Error::new(Status::InvalidArgument, "is not a directory").at(bundle));
    }
    // Before the directory is created: a refusal leaves nothing behind.
    let intended = real_path(output)?;
    if intended.starts_with(&real) || real.starts_with(&intended) {
        return refuse("is inside the bundle or contains it: choose another directory", output);
    }
    if intended.is_dir() {
        manifest_of(&intended, &real)?;
    }
    fs::create_dir_all(output).map_err(|error| Error::io("create", &error).at(output))?;
    let output = fs::canonicalize(output).map_err(|error| Error::io("open", &error).at(output))?;
    let _lock = FileLock::wait(&output.join(manifest::LOCK))?;
    let mut old = manifest_of(&output, &real)?.unwrap_or_else(|| Manifest::new(&real, &options.layout));
    if !old.is_laid_out_as(&options.layout) {
        // All that was written is stale, but known to be ours.
        old.entries.values_mut().for_each(Entry::outdate);
    }
    let mut work = Work { real, output, old, report: OverlayReport::default(), tasks: Vec::new() };
    work.survey(Path::new(""))?;
    work.check()?;
    work.carry_out(options)?;
    Ok(work.report)
}

/// The manifest of an output directory, if it is an overlay of that bundle; nothing, if it is empty.
fn manifest_of(output: &Path, bundle: &Path) -> Result<Option<Manifest>> {
    match Manifest::read(output)? {
        Some(manifest) if manifest.source == bundle => Ok(Some(manifest)),
        Some(manifest) => {
            refuse(&format!("is an overlay of {}: choose another directory", manifest.source.display()), output)
        }
        None if has_content(output)? => {
            refuse("has content that is not part of an overlay: choose an empty directory", output)
        }
        None => Ok(None),
    }
}

/// The real path of what need not exist yet.
fn real_path(path: &Path) -> Result<PathBuf> {
    let exists = |path: &&Path| path.as_os_str().is_empty() || path.exists();
    let existing = path.ancestors().find(exists).unwrap_or(Path::new(""));
    let place = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
    let real = fs::canonicalize(place).map_err(|error| Error::io("open", &error).at(path))?;
    Ok(real.join(path.strip_prefix(existing).unwrap_or(path)))
}

fn refuse<T>(message: &str, path: &Path) -> Result<T> {
    Err(Error::new(Status::Refused, message).at(path))
}

/// Whether a directory has anything that an overlay does not put there by itself.
fn has_content(directory: &Path) -> Result<bool> {
    let entries = fs::read_dir(directory).map_err(|error| Error::io("list", &error).at(directory))?;
    // The lock, and a manifest that another process is just making.
    let ours =
        |name: &[u8]| name == manifest::LOCK.as_bytes() || name.starts_with(b".safealign-") && name.ends_with(b".tmp");
    Ok(entries.flatten().any(|entry| !ours(entry.file_name().as_bytes())))
}

/// What is at a path of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Nothing,
    /// The link that an overlay makes there.
    Link,
    /// A file that the overlay wrote, as it wrote it.
    File,
    Directory,
    /// Something else: not ours to touch.
    Foreign,
}

struct Work {
    /// The bundle's real path.
    real: PathBuf,
    output: PathBuf,
    /// What the manifest says of the last time.
    old: Manifest,
    report: OverlayReport,
    /// Below the bundle; directories before their content.
    tasks: Vec<(PathBuf, Task)>,
}

impl Work {
    /// Decides about everything in a directory of the bundle; returns whether anything in it is to be written.
    fn survey(&mut self, directory: &Path) -> Result<bool> {
        let source = self.real.join(directory);
        let entries = fs::read_dir(&source).and_then(|entries| entries.collect::<std::io::Result<Vec<DirEntry>>>());
        let mut entries = entries.map_err(|error| Error::io("list", &error).at(&source))?;
        entries.sort_by_key(DirEntry::file_name);
        let mut any = false;
        for entry in entries {
            let name = entry.file_name();
            // A bundle may be an overlay itself.
            let is_record = directory.as_os_str().is_empty() && (name == manifest::MANIFEST || name == manifest::LOCK);
            if is_record || names::is_ignored(&name) {
                continue;
            }
            let (path, below) = (entry.path(), directory.join(&name));
            let is_real_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let found = match fs::metadata(&path) {
                Ok(found) => found,
                Err(error) => {
                    self.report.warnings.push((path, format!("left out: {}", Error::io("stat", &error))));
                    continue;
                }
            };
            if is_real_directory {
                let at = self.tasks.len();
                self.tasks.push((below.clone(), Task::Directory));
                if self.survey(&below)? {
                    any = true;
                } else {
                    // Nothing in it is to be written: one link is enough.
                    self.tasks.truncate(at);
                    self.tasks.push((below, Task::Link));
                }
                continue;
            }
            let task =
                if found.is_file() && names::is_model(&name) { self.task(&path, &below, &found) } else { Task::Link };
            any |= matches!(task, Task::Write | Task::Keep(_));
            self.tasks.push((below, task));
        }
        Ok(any)
    }

    fn task(&mut self, path: &Path, below: &Path, found: &Metadata) -> Task {
        let target = self.output.join(below);
        if self.standing(below) == Standing::File
            && let Ok(at) = fs::symlink_metadata(&target)
            && self.old.entries.get(below).is_some_and(|entry| entry.is_current(found, &at))
        {
            return Task::Keep(at.len());
        }
        match scan::scan(path, &ScanOptions::default()) {
            Ok(report) if report.misaligned_tensors == 0 => Task::Link,
            Ok(_) => Task::Write,
            Err(error) => {
                self.report.warnings.push((path.to_owned(), format!("linked as it is: {}", error.message())));
                Task::Link
            }
        }
    }

    fn standing(&self, below: &Path) -> Standing {
        // What lies behind a link is not in the output, whatever it is.
        for ancestor in below.ancestors().skip(1).filter(|ancestor| !ancestor.as_os_str().is_empty()) {
            if !fs::symlink_metadata(self.output.join(ancestor)).is_ok_and(|found| found.is_dir()) {
                return Standing::Nothing;
            }
        }
        let target = self.output.join(below);
        match fs::symlink_metadata(&target) {
            Ok(found) if found.is_dir() => Standing::Directory,
            Ok(found) if found.is_symlink() => {
                let ours = fs::read_link(&target).is_ok_and(|to| to == self.real.join(below));
                if ours { Standing::Link } else { Standing::Foreign }
            }
            Ok(found) => {
                let ours = found.is_file() && self.old.entries.get(below).is_some_and(|entry| entry.wrote(&found));
                if ours { Standing::File } else { Standing::Foreign }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Standing::Nothing,
            Err(_) => Standing::Foreign,
        }
    }

    /// Refuses, before anything is touched, if something that is not ours is in the way.
    fn check(&self) -> Result<()> {
        for (below, task) in &self.tasks {
            match (self.standing(below), task) {
                (Standing::Foreign, _) => return self.in_the_way(below),
                (Standing::File, Task::Directory) => return self.in_the_way(below),
                (Standing::Directory, Task::Link | Task::Write) => self.check_directory(below)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Refuses a directory that a link or a file is to replace, unless the overlay made it and its content.
    fn check_directory(&self, directory: &Path) -> Result<()> {
        if !self.old.folders.contains(directory) {
            return self.in_the_way(directory);
        }
        for below in self.names_in(directory)? {
            match self.standing(&below) {
                Standing::Directory => self.check_directory(&below)?,
                Standing::Foreign => return self.in_the_way(&below),
                Standing::Nothing | Standing::Link | Standing::File => {}
            }
        }
        Ok(())
    }

    fn in_the_way<T>(&self, below: &Path) -> Result<T> {
        refuse("is not what the overlay put there: move it elsewhere", &self.output.join(below))
    }

    /// The content of a directory of the output, as paths below the output.
    fn names_in(&self, directory: &Path) -> Result<Vec<PathBuf>> {
        let path = self.output.join(directory);
        let entries = fs::read_dir(&path).and_then(|entries| entries.collect::<std::io::Result<Vec<DirEntry>>>());
        let entries = entries.map_err(|error| Error::io("list", &error).at(&path))?;
        Ok(entries.iter().map(|entry| directory.join(entry.file_name())).collect())
    }

    /// Makes room for a link, a file or a directory: removes what is ours, and nothing else.
    fn clear(&self, below: &Path) -> Result<()> {
        let target = self.output.join(below);
        let removed = match self.standing(below) {
            Standing::Nothing => return Ok(()),
            Standing::Link | Standing::File => fs::remove_file(&target),
            Standing::Directory if self.old.folders.contains(below) => {
                self.names_in(below)?.iter().try_for_each(|inner| self.clear(inner))?;
                fs::remove_dir(&target)
            }
            Standing::Directory | Standing::Foreign => return self.in_the_way(below),
        };
        removed.map_err(|error| Error::io("remove", &error).at(&target))
    }

    fn carry_out(&mut self, options: &mut OverlayOptions) -> Result<()> {
        let tasks = std::mem::take(&mut self.tasks);
        let size = |below: &Path| fs::metadata(self.real.join(below)).map_or(0, |found| found.len());
        let writes = || tasks.iter().filter(|(_, task)| matches!(task, Task::Write)).map(|(below, _)| below);
        let total = writes().map(|below| size(below)).sum();
        let replaced = |below: &Path| match self.standing(below) {
            Standing::File => fs::symlink_metadata(self.output.join(below)).map_or(0, |found| found.len()),
            _ => 0,
        };
        let needed = writer::space_needed(writes().map(|below| (size(below), replaced(below))));
        room_in(&self.output, needed, "the files to be written").map_err(|error| error.at(&self.output))?;

        let all = |wanted: fn(&Task) -> bool| {
            let these = tasks.iter().filter(move |(_, task)| wanted(task));
            these.map(|(below, _)| below.clone()).collect::<BTreeSet<PathBuf>>()
        };
        let kept = all(|task| matches!(task, Task::Keep(_)));
        let links = all(|task| matches!(task, Task::Link));
        let folders = all(|task| matches!(task, Task::Directory));
        // What is ours stays known while it changes, also if this run is killed.
        let mut manifest = Manifest::new(&self.real, &options.layout);
        manifest.entries = self.old.entries.clone();
        let stale = manifest.entries.iter_mut().filter(|(below, _)| !kept.contains(*below));
        stale.for_each(|(_, entry)| entry.outdate());
        manifest.links = &self.old.links | &links;
        manifest.folders = &self.old.folders | &folders;
        manifest.write(&self.output, Durability::NotDurable)?;
        self.remove_gone(&all(|_| true), &folders);
        let mut made = kept;
        let mut linked = links;
        let mut done = 0;
        for (below, task) in &tasks {
            let (source, target) = (self.real.join(below), self.output.join(below));
            match task {
                Task::Directory => self.make_directory(below)?,
                Task::Keep(size) => {
                    self.report.kept += 1;
                    self.report.bytes_kept += size;
                }
                Task::Link => {
                    self.link(below)?;
                    self.report.linked += 1;
                }
                Task::Write => {
                    let before = fs::metadata(&source).map_err(|error| Error::io("stat", &error).at(&source))?;
                    match self.write(below, &before, &mut manifest, options, done, total) {
                        Ok(size) => {
                            let at = fs::metadata(&target).map_err(|error| Error::io("stat", &error).at(&target))?;
                            manifest.entries.insert(below.clone(), Entry::of(&before, &at));
                            self.old.entries.insert(below.clone(), Entry::of(&before, &at));
                            manifest.write(&self.output, Durability::NotDurable)?;
                            made.insert(below.clone());
                            self.report.written += 1;
                            self.report.bytes_written += size;
                        }
                        // That file's own trouble; the rest of the bundle is still of use.
                        Err(error) if is_of_the_file(error.status()) && error.path() == Some(&source) => {
                            let message = format!("linked as it is: {}", error.message());
                            self.report.warnings.push((source.clone(), message));
                            self.link(below)?;
                            linked.insert(below.clone());
                            self.report.linked += 1;
                        }
                        Err(error) => return Err(error),
                    }
                    done += before.size();
                }
            }
        }
        manifest.entries.retain(|below, _| made.contains(below));
        manifest.links = linked;
        manifest.folders = folders;
        manifest.write(&self.output, options.durability)
    }

    fn write(
        &self,
        below: &Path,
        found: &Metadata,
        manifest: &mut Manifest,
        options: &mut OverlayOptions,
        done: u64,
        total: u64,
    ) -> Result<u64> {
        if !matches!(self.standing(below), Standing::Link | Standing::File) {
            self.clear(below)?;
        }
        // What is at the target is a link or a stale file of ours, which the rename replaces. Both are known
        // before that, whenever this process may be killed.
        let mut sealed = |made: &Metadata| {
            let entry = Entry::of(found, made).replacing(self.old.entries.get(below));
            manifest.entries.insert(below.to_owned(), entry);
            manifest.write(&self.output, Durability::NotDurable)
        };
        let mut progress = options.progress.as_mut().map(|progress| move |now, _| progress(done + now, total));
        let mut options = RepairOptions {
            layout: options.layout,
            durability: options.durability,
            verify: options.verify,
            drop_trailing: options.drop_trailing,
            progress: progress.as_mut().map(|progress| progress as _),
            ..RepairOptions::default()
        };
        let report = repair_ours(&self.real.join(below), &self.output.join(below), &mut sealed, &mut options)?;
        Ok(report.after.file_size)
    }

    /// Creates a directory where nothing, a directory or a link of ours is.
    fn make_directory(&self, below: &Path) -> Result<()> {
        if self.standing(below) == Standing::Directory {
            return Ok(());
        }
        self.clear(below)?;
        let target = self.output.join(below);
        fs::create_dir(&target).map_err(|error| Error::io("create", &error).at(&target))
    }

    /// Creates a link where nothing, or something of ours is.
    fn link(&self, below: &Path) -> Result<()> {
        if self.standing(below) == Standing::Link {
            return Ok(());
        }
        self.clear(below)?;
        let target = self.output.join(below);
        symlink(self.real.join(below), &target).map_err(|error| Error::io("link", &error).at(&target))
    }

    /// Takes away what an earlier run made and the bundle no longer has, or has as something else.
    fn remove_gone(&mut self, all: &BTreeSet<PathBuf>, folders: &BTreeSet<PathBuf>) {
        let old = self.old.entries.keys().chain(&self.old.links);
        for below in old.filter(|below| !all.contains(*below)) {
            let target = self.output.join(below);
            match self.standing(below) {
                Standing::Link | Standing::File => self.report.removed += u64::from(fs::remove_file(&target).is_ok()),
                Standing::Foreign | Standing::Directory => {
                    let message = "is gone from the bundle, and not what the overlay put there: left where it is";
                    self.report.warnings.push((target, message.to_owned()));
                }
                Standing::Nothing => {}
            }
        }
        // The inner ones first; one with other content stays.
        for below in self.old.folders.iter().rev().filter(|below| !folders.contains(*below)) {
            if self.standing(below) == Standing::Directory {
                let _ = fs::remove_dir(self.output.join(below));
            }
        }
    }
}

/// Whether that failure is about one file's content, and not about the disk or the output.
fn is_of_the_file(status: Status) -> bool {
    matches!(status, Status::Refused | Status::Unsupported | Status::InvalidArgument | Status::TooLarge)
}
