//! Writes a file anew so that every tensor maps without a copy, and touches nothing that need not or must not change.
//!
//! Repair never runs unasked: rewriting a published file changes its hash. In place, the old file stays whole until
//! the new one is complete, compared with it, and renamed over it.

mod cache;
mod copy;
mod guard;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{Error, Name, Reason, Result, Status};
use crate::header::{Header, HeaderPadding};
use crate::layout::{Layout, LayoutOptions, Plan, TensorSpec};
use crate::scan::{self, ScanOptions, ScanReport};
use crate::source;
use crate::writer::{Draft, Durability, Progress, WriteReport, report};

use cache::PageCache;
use copy::{Job, Run};
pub(crate) use guard::Identity;

/// How to repair.
pub struct RepairOptions<'a> {
    /// Of the new file. Every tensor keeps its bytes; their order changes where the layout asks for it.
    pub layout: LayoutOptions,
    pub durability: Durability,
    /// Read back every tensor of the new file by what its header says, and compare it with the source's, before the
    /// file is put in place. On by default.
    pub compare: bool,
    /// Leave out the bytes after the last tensor. Without it a file that has some is refused where it would have to be
    /// written anew: they are somebody's data.
    pub drop_trailing: bool,
    /// Lay the file out anew even where nothing is wrong with it.
    pub force: bool,
    /// Check everything, say what would be done, and do nothing.
    pub dry_run: bool,
    /// Called with the bytes of the new file that are done and all there are; breaking cancels.
    pub progress: Option<Progress<'a>>,
}

impl Default for RepairOptions<'_> {
    fn default() -> Self {
        RepairOptions {
            layout: LayoutOptions::default(),
            durability: Durability::Durable,
            compare: true,
            drop_trailing: false,
            force: false,
            dry_run: false,
            progress: None,
        }
    }
}

impl RepairOptions<'_> {
    /// Whether a repair with these options would find something to mend in a file of which a scan said that.
    pub fn would_mend(&self, found: &ScanReport) -> bool {
        let is_hole = |error: &Error| error.reason() == Some(Reason::Hole);
        found.misaligned_tensors > 0
            || found.padding == HeaderPadding::Nul
            || (self.drop_trailing && found.trailing_bytes > 0)
            || (self.layout.layout == Layout::Compact
                && (found.gaps > 0 || found.nonconforming.as_ref().is_some_and(is_hole)))
    }
}

/// What came of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Action {
    /// Nothing was wrong: the file was not written to.
    Untouched = 0,
    /// Nothing was wrong: the destination is the source, byte for byte.
    Copied = 1,
    /// The tensors were laid out anew.
    Rewritten = 2,
}

/// What a repair did. Sizes are in bytes.
#[derive(Clone, Debug)]
pub struct RepairReport {
    pub action: Action,
    /// The source, as it was.
    pub before: ScanReport,
    /// The file as it is now: at the destination, or in place.
    pub after: WriteReport,
    /// Bytes that were compared with the source's.
    pub bytes_compared: u64,
}

/// Repairs a file: into `destination`, or in place where that is `None`.
///
/// Mended are misaligned tensors, a header padded with NUL bytes, and (in the compact layout) holes; with
/// [`RepairOptions::drop_trailing`] also bytes after the last tensor. A file without any of these is left alone (the
/// same inode and time), or copied as it is where there is a destination; [`RepairOptions::force`] lays it out anew.
/// Metadata and its order, mode and, where permitted, owner are kept. A file that stands at the destination is replaced.
///
/// [`Status::Refused`], with the way out in the message: a symbolic link, a file with other hard links, an entry of a
/// cache that names files by their content, a read-only file or folder, trailing bytes that would be lost, and too
/// little free space. A destination that is the source by another name is no way around that.
/// [`Status::Changed`]: somebody wrote to the source meanwhile, and nothing was replaced.
pub fn repair(source: &Path, destination: Option<&Path>, options: &mut RepairOptions) -> Result<RepairReport> {
    repair_guarded(source, destination, true, options)
}

/// As [`repair`]; without `guarded`, what is at the destination is ours to replace.
pub(crate) fn repair_guarded(
    source: &Path,
    destination: Option<&Path>,
    guarded: bool,
    options: &mut RepairOptions,
) -> Result<RepairReport> {
    let mut repair = || {
        let (file, found) = source::open_regular(source)?;
        let identity = Identity::of(&found);
        let header = source::read_header(&file, found.len())?;
        header.require_known_dtypes()?;
        let before = scan::report(&header, found.len(), &ScanOptions::default())?;
        let rewrite = options.would_mend(&before) || options.force;
        let target = destination.unwrap_or(source);
        let in_place = match destination {
            None => true,
            Some(path) => guard::at(path)?.is_some_and(|found| identity.same_file(&found)),
        };
        if !rewrite && in_place {
            return Ok(RepairReport { action: Action::Untouched, after: as_it_is(&before), before, bytes_compared: 0 });
        }
        if guarded {
            check_target(source, destination, &identity).map_err(|error| error.at(target))?;
        }
        if rewrite && before.trailing_bytes > 0 && !options.drop_trailing {
            let message = format!(
                "{} bytes after the last tensor would be lost: keep the file as it is, or ask to drop them",
                before.trailing_bytes
            );
            return guard::refuse(message);
        }
        let specs: Vec<TensorSpec> = specs(&header);
        let metadata: Vec<(&str, &str)> = header.metadata().collect();
        let plan = if rewrite { Some(Plan::new(&specs, &metadata, &options.layout)?) } else { None };
        let (action, after) = match &plan {
            Some(plan) => (Action::Rewritten, WriteReport::of(plan)),
            None => (Action::Copied, as_it_is(&before)),
        };
        guard::room_for(target, after.file_size).map_err(|error| error.at(target))?;
        if options.dry_run {
            return Ok(RepairReport { action, before, after, bytes_compared: 0 });
        }
        let draft = Draft::like(target, options.durability, Some(&found)).map_err(|error| error.at(target))?;
        draft.reserve(after.file_size).map_err(|error| error.at(target))?;
        let mut cache = PageCache::new(&file, before.file_size, options.durability == Durability::Durable);
        let bytes_compared = match &plan {
            Some(plan) => write_anew(&file, &header, plan, &draft, &mut cache, options)?,
            None => copy_whole(&file, &draft, after.file_size, &mut cache, options)?,
        };
        unchanged(source, &file, &identity)?;
        // The draft goes with its publishing; the pages can only be given up once they are on the disk.
        let written = draft.file().try_clone().map_err(|error| Error::io("dup", &error))?;
        draft.publish().map_err(|error| error.at(target))?;
        cache.done(&written);
        Ok(RepairReport { action, before, after, bytes_compared })
    };
    repair().map_err(|error: Error| error.at(source))
}

fn specs(header: &Header) -> Vec<TensorSpec<'_>> {
    let known = header.iter().filter_map(|tensor| {
        Some(TensorSpec { name: tensor.name, dtype: tensor.dtype?, shape: tensor.shape, nbytes: tensor.nbytes() })
    });
    known.collect()
}

/// A file that is not laid out anew, in the words of one that is.
fn as_it_is(found: &ScanReport) -> WriteReport {
    WriteReport {
        file_size: found.file_size,
        data_start: found.data_start,
        padding: found.gap_bytes,
        tensors: found.tensors,
        tensors_moved: 0,
    }
}

fn check_target(source: &Path, destination: Option<&Path>, identity: &Identity) -> Result<()> {
    let Some(destination) = destination else {
        let found = guard::at(source)?.ok_or_else(changed)?;
        return guard::may_replace(source, &found);
    };
    let Some(found) = guard::at(destination)? else { return guard::not_in_a_cache(destination) };
    if identity.same_file(&found) {
        return guard::may_replace(destination, &found);
    }
    if found.is_symlink() {
        // A dangling link, or one to another file, is replaced; one to the source stands for the source.
        return match fs::metadata(destination) {
            Ok(behind) if identity.same_file(&behind) => guard::may_replace(destination, &found),
            _ => Ok(()),
        };
    }
    source::require_regular(found.file_type())?;
    guard::not_in_a_cache(destination)?;
    guard::may_write(destination, &found)
}

fn changed() -> Error {
    Error::new(Status::Changed, "somebody changed the file while it was read: nothing was replaced")
}

/// Fails if the source is not what it was when it was opened, or another file has taken its name.
fn unchanged(path: &Path, file: &File, identity: &Identity) -> Result<()> {
    let same = |found: std::io::Result<fs::Metadata>| found.is_ok_and(|found| Identity::of(&found) == *identity);
    if same(file.metadata()) && same(fs::metadata(path)) { Ok(()) } else { Err(changed()) }
}

fn write_anew(
    file: &File,
    header: &Header,
    plan: &Plan,
    draft: &Draft,
    cache: &mut PageCache,
    options: &mut RepairOptions,
) -> Result<u64> {
    draft.file().write_all_at(plan.header(), 0).map_err(|error| Error::io("write", &error))?;
    // As a reader will see the file, not as the plan means it.
    let written = source::read_header(draft.file(), plan.file_size())?;
    let survey = written.survey(plan.file_size() - written.data_start())?;
    if survey.misaligned_tensors > 0 || survey.trailing_bytes > 0 {
        return Err(Error::new(Status::Internal, "the new layout is not the one that was planned"));
    }
    let compare = if options.compare { copy::paired(&written, header)? } else { Vec::new() };
    let tensor_at = |at: u64| {
        let holds = |tensor: &crate::header::TensorInfo| {
            (tensor.begin..tensor.end).contains(&(at - written.data_start().min(at)))
        };
        written.iter().find(holds).map_or_else(String::new, |tensor| format!("tensor {}", Name(tensor.name)))
    };
    let job = Job {
        source: file,
        target: draft.file(),
        copy: &copy::planned(plan, header),
        compare: &compare,
        tensor_at: &tensor_at,
        done: plan.data_start() + plan.padding(),
        total: plan.file_size(),
    };
    report(&mut options.progress, job.done, job.total)?;
    job.run(cache, &mut options.progress)?;
    Ok(compare.iter().map(|run| run.len).sum())
}

fn copy_whole(
    file: &File,
    draft: &Draft,
    size: u64,
    cache: &mut PageCache,
    options: &mut RepairOptions,
) -> Result<u64> {
    let whole = [Run { from: 0, to: 0, len: size }];
    let compare: &[Run] = if options.compare { &whole } else { &[] };
    let job = Job {
        source: file,
        target: draft.file(),
        copy: &whole,
        compare,
        tensor_at: &|_| "the file".to_owned(),
        done: 0,
        total: size,
    };
    report(&mut options.progress, 0, size)?;
    job.run(cache, &mut options.progress)?;
    Ok(if options.compare { size } else { 0 })
}
