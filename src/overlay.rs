//! Aligned twins of files that must not change: of a bundle as a folder that loads in its place, and of one file in a
//! cache for those who open it.

mod cache;
mod manifest;

use std::collections::BTreeMap;
use std::fs::{self, DirEntry, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, Status};
use crate::layout::LayoutOptions;
use crate::repair::{RepairOptions, repair_guarded};
use crate::scan::{self, ScanOptions};
use crate::writer::{Durability, Progress};

pub(crate) use cache::twin_of;
use manifest::{Entry, Lock, Manifest};

/// How to make an overlay.
#[derive(Default)]
pub struct OverlayOptions<'a> {
    /// Of the files that are written.
    pub layout: LayoutOptions,
    pub durability: Durability,
    /// Do not compare what was written with the source.
    pub skip_compare: bool,
    /// Leave out bytes after the last tensor. Without it, a misaligned file that has some is linked as it is, with a
    /// warning.
    pub drop_trailing: bool,
    /// Called with the bytes that are written and all there are to write; breaking cancels.
    pub progress: Option<Progress<'a>>,
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
    /// Files and folders that are links.
    pub linked: u64,
    /// What was there for files that the bundle no longer has.
    pub removed: u64,
    /// What could not be mended and was linked as it is, or left out: the path, and why.
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
    /// Make a folder of its own.
    Folder,
}

/// Makes `output` a bundle that loads in place of `bundle`, without a change to that: every misaligned file is written
/// repaired, everything else (aligned files, configuration, tokenizer, index, folders without misaligned files) is a
/// symbolic link.
///
/// Run again, it does only what is missing or stale: a manifest in `output` records size and time of each source. A
/// folder with other content is refused ([`Status::Refused`]), as is one within the bundle or around it. Two at once: the
/// second waits for the first.
pub fn overlay(bundle: &Path, output: &Path, options: &mut OverlayOptions) -> Result<OverlayReport> {
    let real = fs::canonicalize(bundle).map_err(|error| Error::io("open", &error).at(bundle))?;
    if !real.is_dir() {
        return Err(Error::new(Status::InvalidArgument, "is not a folder").at(bundle));
    }
    // Before the folder is made: a refusal leaves nothing behind.
    let intended = real_path(output)?;
    if intended.starts_with(&real) || real.starts_with(&intended) {
        return refuse("is within the bundle or around it: choose a folder elsewhere", output);
    }
    fs::create_dir_all(output).map_err(|error| Error::io("create", &error).at(output))?;
    let output = fs::canonicalize(output).map_err(|error| Error::io("open", &error).at(output))?;
    let _lock = Lock::of(&output.join(manifest::LOCK))?;
    let manifest = match Manifest::read(&output)? {
        // Another layout was asked for: all that was written is stale, but known to be ours.
        Some(mut manifest) if manifest.source == real => {
            if !manifest.is_laid_out_as(&options.layout) {
                manifest.entries.values_mut().for_each(Entry::outdate);
            }
            manifest
        }
        Some(manifest) => {
            let message = format!("is an overlay of {}: choose another folder", manifest.source.display());
            return refuse(&message, &output);
        }
        None if has_content(&output)? => {
            return refuse("has content that is not an overlay's: choose an empty folder", &output);
        }
        None => Manifest::new(&real, &options.layout),
    };
    let mut work = Work { real, output, old: manifest, report: OverlayReport::default(), tasks: Vec::new() };
    work.survey(Path::new(""))?;
    work.carry_out(options)?;
    Ok(work.report)
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

/// Whether a folder has anything that an overlay does not put there by itself.
fn has_content(folder: &Path) -> Result<bool> {
    let entries = fs::read_dir(folder).map_err(|error| Error::io("list", &error).at(folder))?;
    Ok(entries.flatten().any(|entry| entry.file_name() != manifest::LOCK))
}

struct Work {
    /// The bundle's real path.
    real: PathBuf,
    output: PathBuf,
    /// What the manifest says of the last time.
    old: Manifest,
    report: OverlayReport,
    /// Below the bundle; folders before what is in them.
    tasks: Vec<(PathBuf, Task)>,
}

impl Work {
    /// Decides about everything in a folder of the bundle; whether anything in it is to be written.
    fn survey(&mut self, folder: &Path) -> Result<bool> {
        let source = self.real.join(folder);
        let entries = fs::read_dir(&source).and_then(|entries| entries.collect::<std::io::Result<Vec<DirEntry>>>());
        let mut entries = entries.map_err(|error| Error::io("list", &error).at(&source))?;
        entries.sort_by_key(DirEntry::file_name);
        let mut any = false;
        for entry in entries {
            let name = entry.file_name();
            if name.as_bytes().starts_with(b"._") || name.as_bytes().ends_with(b".incomplete") {
                continue;
            }
            let (path, below) = (entry.path(), folder.join(&name));
            let is_real_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let found = match fs::metadata(&path) {
                Ok(found) => found,
                Err(error) => {
                    self.report.warnings.push((path, format!("left out: {}", Error::io("stat", &error))));
                    continue;
                }
            };
            if is_real_folder {
                let at = self.tasks.len();
                self.tasks.push((below.clone(), Task::Folder));
                if self.survey(&below)? {
                    any = true;
                } else {
                    // Nothing in it is ours: a link to the whole does.
                    self.tasks.truncate(at);
                    self.tasks.push((below, Task::Link));
                }
                continue;
            }
            let task = if found.is_file() && is_model(&path) { self.task(&path, &below, &found) } else { Task::Link };
            any |= matches!(task, Task::Write | Task::Keep(_));
            self.tasks.push((below, task));
        }
        Ok(any)
    }

    fn task(&mut self, path: &Path, below: &Path, found: &Metadata) -> Task {
        let target = self.output.join(below);
        let is_there = fs::symlink_metadata(&target).ok().filter(|at| at.is_file());
        if let Some(at) = is_there.filter(|at| self.old.entries.get(below) == Some(&Entry::of(found, at))) {
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

    fn carry_out(&mut self, options: &mut OverlayOptions) -> Result<()> {
        let tasks = std::mem::take(&mut self.tasks);
        let size = |below: &Path| fs::metadata(self.real.join(below)).map_or(0, |found| found.len());
        let total = tasks.iter().filter(|(_, task)| matches!(task, Task::Write)).map(|(below, _)| size(below)).sum();
        let mut manifest = Manifest::new(&self.real, &options.layout);
        // Files that are kept stay known, also if this run is killed.
        for (below, _) in tasks.iter().filter(|(_, task)| matches!(task, Task::Keep(_))) {
            let entry = self.old.entries.get(below).cloned();
            manifest.entries.extend(entry.map(|entry| (below.clone(), entry)));
        }
        let all: BTreeMap<&Path, ()> = tasks.iter().map(|(below, _)| (below.as_path(), ())).collect();
        self.report.removed = self.remove_gone(&all);
        manifest.links = tasks.iter().filter(|(_, task)| matches!(task, Task::Link)).map(|(p, _)| p.clone()).collect();
        manifest.write(&self.output)?;
        let mut done = 0;
        for (below, task) in &tasks {
            let (source, target) = (self.real.join(below), self.output.join(below));
            match task {
                Task::Folder => make_folder(&target)?,
                Task::Keep(size) => {
                    self.report.kept += 1;
                    self.report.bytes_kept += size;
                }
                Task::Link => {
                    link(&source, &target)?;
                    self.report.linked += 1;
                }
                Task::Write => {
                    let before = fs::metadata(&source).map_err(|error| Error::io("stat", &error).at(&source))?;
                    match self.write(&source, &target, options, done, total) {
                        Ok(size) => {
                            let at = fs::metadata(&target).map_err(|error| Error::io("stat", &error).at(&target))?;
                            manifest.entries.insert(below.clone(), Entry::of(&before, &at));
                            manifest.write(&self.output)?;
                            self.report.written += 1;
                            self.report.bytes_written += size;
                        }
                        // That file's own trouble; the rest of the bundle is still of use.
                        Err(error) if is_of_the_file(error.status()) && error.path() == Some(&source) => {
                            let message = format!("linked as it is: {}", error.message());
                            self.report.warnings.push((source.clone(), message));
                            link(&source, &target)?;
                            self.report.linked += 1;
                        }
                        Err(error) => return Err(error),
                    }
                    done += before.size();
                }
            }
        }
        Ok(())
    }

    fn write(&self, source: &Path, target: &Path, options: &mut OverlayOptions, done: u64, total: u64) -> Result<u64> {
        let mut progress = options.progress.as_mut().map(|progress| move |now, _| progress(done + now, total));
        let mut options = RepairOptions {
            layout: options.layout,
            durability: options.durability,
            compare: !options.skip_compare,
            drop_trailing: options.drop_trailing,
            progress: progress.as_mut().map(|progress| progress as _),
            ..RepairOptions::default()
        };
        // What stands at the target is a link or a stale file of ours, which the rename replaces.
        Ok(repair_guarded(source, Some(target), false, &mut options)?.after.file_size)
    }

    /// Takes away what an earlier run made and the bundle no longer has, or has as something else.
    fn remove_gone(&self, all: &BTreeMap<&Path, ()>) -> u64 {
        let old = self.old.entries.keys().chain(&self.old.links);
        let gone = old.filter(|below| !all.contains_key(below.as_path())).map(|below| self.output.join(below));
        gone.filter(|target| {
            let is_ours = fs::symlink_metadata(target).is_ok_and(|found| found.is_file() || found.is_symlink());
            is_ours && fs::remove_file(target).is_ok()
        })
        .count() as u64
    }
}

/// Whether that failure is about one file's content, and not about the disk or the output.
fn is_of_the_file(status: Status) -> bool {
    matches!(status, Status::Refused | Status::Unsupported | Status::InvalidArgument | Status::TooLarge)
}

/// A folder where nothing, a folder or a link of ours is.
fn make_folder(target: &Path) -> Result<()> {
    if fs::symlink_metadata(target).is_ok_and(|found| found.is_symlink()) {
        fs::remove_file(target).map_err(|error| Error::io("remove", &error).at(target))?;
    }
    fs::create_dir_all(target).map_err(|error| Error::io("create", &error).at(target))
}

/// A link where nothing, a link or a file of ours is.
fn link(source: &Path, target: &Path) -> Result<()> {
    if fs::read_link(target).is_ok_and(|to| to == source) {
        return Ok(());
    }
    if fs::symlink_metadata(target).is_ok() {
        let removed = match fs::symlink_metadata(target) {
            Ok(found) if found.is_dir() => fs::remove_dir_all(target),
            _ => fs::remove_file(target),
        };
        removed.map_err(|error| Error::io("remove", &error).at(target))?;
    }
    symlink(source, target).map_err(|error| Error::io("link", &error).at(target))
}

fn is_model(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("safetensors"))
}
