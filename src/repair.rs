//! Rewrites a file so that every tensor can be mapped without a copy.
//!
//! Repair only runs on request, because rewriting a published file changes its hash. In place, the new file is complete
//! and has been compared with the old one before it replaces it.

mod copy;
mod page_cache;
mod refusal;
mod run;

use std::fs::{self, File, Metadata};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::atomic_file::{AtomicFile, Durability};
use crate::error::{Error, Name, Reason, Result, Status};
use crate::header::{Header, HeaderPadding};
use crate::layout::{Layout, LayoutOptions, Plan, TensorSpec, check_alignment};
use crate::scan::{self, ScanOptions, ScanReport};
use crate::source::{self, Identity};
use crate::writer::{Progress, WriteReport, report};

use copy::Job;
use page_cache::PageCache;
pub(crate) use refusal::room_in;
use run::Run;

/// Repair options.
pub struct RepairOptions<'a> {
    /// The layout of the new file. The bytes of every tensor stay the same.
    pub layout: LayoutOptions,
    pub durability: Durability,
    /// Read back every tensor and compare it with the source before the new file is put in place. On by default.
    pub verify: bool,
    /// Drop the bytes after the last tensor. Otherwise a file that has such bytes and needs repair is refused, because
    /// they may be data.
    pub drop_trailing: bool,
    /// Write a new layout even if the file needs no repair.
    pub force: bool,
    /// Check everything and report what would be done, but write nothing.
    pub dry_run: bool,
    /// Called with the bytes of the new file that are done, and the total. Breaking cancels.
    pub progress: Option<Progress<'a>>,
}

impl Default for RepairOptions<'_> {
    fn default() -> Self {
        RepairOptions {
            layout: LayoutOptions::default(),
            durability: Durability::Durable,
            verify: true,
            drop_trailing: false,
            force: false,
            dry_run: false,
            progress: None,
        }
    }
}

impl RepairOptions<'_> {
    /// Whether a file with this scan report needs repair, with these options.
    pub fn would_mend(&self, found: &ScanReport) -> bool {
        let is_gap = |error: &Error| error.reason() == Some(Reason::Hole);
        found.misaligned_tensors > 0
            || found.padding == HeaderPadding::Nul
            || (self.drop_trailing && found.trailing_bytes > 0)
            || (self.layout.layout == Layout::Compact
                && (found.gaps > 0 || found.nonconforming.as_ref().is_some_and(is_gap)))
    }
}

/// A repair outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Action {
    /// The file needed no repair and was not written.
    Untouched = 0,
    /// The file needed no repair: the destination is a copy of the source, byte for byte.
    Copied = 1,
    /// The file was written with a new layout.
    Rewritten = 2,
}

/// Describes a repair. Sizes are in bytes.
#[derive(Clone, Debug)]
pub struct RepairReport {
    pub action: Action,
    /// The source.
    pub before: ScanReport,
    /// The resulting file: at the destination, or in place.
    pub after: WriteReport,
    /// Bytes that were compared with the source.
    pub bytes_verified: u64,
}

/// Repairs a file: writes the repaired file to `destination`, or replaces the source if that is `None`.
///
/// Repaired are misaligned tensors, a header padded with NUL bytes, gaps (in the compact layout) and, with
/// [`RepairOptions::drop_trailing`], bytes after the last tensor. A file without any of these is copied byte for byte
/// to the destination, and is not written in place; [`RepairOptions::force`] writes a new layout. Metadata and its
/// order, mode and, if permitted, owner are kept. An existing file at the destination is replaced unless it is
/// read-only.
///
/// - [`Status::Refused`], with the alternative in the message: a symbolic link, a file with other hard links, an entry
///   of a cache that names files by their hash, a read-only file or directory, trailing bytes that would be lost, too
///   little free space, and a destination that is the source under any name.
/// - [`Status::Changed`]: the source was modified during the call, and nothing was replaced.
/// - [`Status::Unsupported`]: the file needs a new layout, and has a dtype that is not part of the format.
pub fn repair(source: &Path, destination: Option<&Path>, options: &mut RepairOptions) -> Result<RepairReport> {
    repair_how(source, destination, None, options)
}

/// As [`repair`], for a target that this library wrote and may replace. `sealed` is called with the finished file
/// before it is put in place.
pub(crate) fn repair_ours(
    source: &Path,
    target: &Path,
    sealed: Sealed,
    options: &mut RepairOptions,
) -> Result<RepairReport> {
    repair_how(source, Some(target), Some(sealed), options)
}

fn repair_how(
    source: &Path,
    destination: Option<&Path>,
    ours: Option<Sealed>,
    options: &mut RepairOptions,
) -> Result<RepairReport> {
    // First, so that an invalid option is an error for every file.
    check_alignment(options.layout.alignment)?;
    let repair = || {
        let (file, found) = source::open_regular(source)?;
        let identity = Identity::of(&found);
        let target = destination.unwrap_or(source);
        if ours.is_none()
            && let Some(destination) = destination
        {
            refusal::is_another(destination, &identity).map_err(|error| error.at(destination))?;
        }
        let header = source::read_header(&file, found.len())?;
        let before = scan::report(&header, found.len(), &ScanOptions::default())?;
        let rewrite = options.would_mend(&before) || options.force;
        if rewrite {
            header.require_known_dtypes()?;
        } else if destination.is_none() {
            return Ok(RepairReport { action: Action::Untouched, after: as_it_is(&before), before, bytes_verified: 0 });
        }
        if ours.is_none() {
            check_target(source, destination).map_err(|error| error.at(target))?;
        }
        if rewrite && before.trailing_bytes > 0 && !options.drop_trailing {
            let message = format!(
                "{} bytes after the last tensor would be lost; use `drop_trailing` (`--drop-trailing`) to drop them",
                before.trailing_bytes
            );
            return refusal::refuse(message);
        }
        let plan = if rewrite { Some(planned(&header, &options.layout)?) } else { None };
        let (action, after) = match &plan {
            Some(plan) => (Action::Rewritten, WriteReport::of(plan)),
            None => (Action::Copied, as_it_is(&before)),
        };
        refusal::room_for(target, after.file_size).map_err(|error| error.at(target))?;
        if options.dry_run {
            return Ok(RepairReport { action, before, after, bytes_verified: 0 });
        }
        let place = Place { source, target, file: &file, found: &found, size: after.file_size, ours };
        let bytes_verified = place.fill(options, |new_file, cache, options| match plan {
            Some(plan) => write_new_layout(&file, header, plan, (new_file, target), cache, options),
            None => copy_whole(&file, (new_file, target), after.file_size, cache, options),
        })?;
        Ok(RepairReport { action, before, after, bytes_verified })
    };
    repair().map_err(|error: Error| error.at(source))
}

/// Copies any file, with the checks of [`repair`], and compares the copy. For the other files of a bundle. Uses only
/// the options `durability`, `verify`, `dry_run` and `progress`. Returns the size of the file in bytes.
pub fn copy(source: &Path, destination: &Path, options: &mut RepairOptions) -> Result<u64> {
    let mut copy = || {
        let (file, found) = source::open_regular(source)?;
        let check = || {
            refusal::is_another(destination, &Identity::of(&found))?;
            // A copy with the same name is still named by its hash.
            if source.file_name() != destination.file_name() {
                refusal::not_in_a_cache(destination)?;
            }
            may_be_replaced(destination)?;
            refusal::room_for(destination, found.len())
        };
        check().map_err(|error| error.at(destination))?;
        if !options.dry_run {
            let place =
                Place { source, target: destination, file: &file, found: &found, size: found.len(), ours: None };
            place.fill(options, |new_file, cache, options| {
                copy_whole(&file, (new_file, destination), found.len(), cache, options)
            })?;
        }
        Ok(found.len())
    };
    copy().map_err(|error: Error| error.at(source))
}

/// A new file and its source.
struct Place<'a, 's> {
    source: &'a Path,
    target: &'a Path,
    file: &'a File,
    found: &'a Metadata,
    /// Size of the new file in bytes.
    size: u64,
    /// As in [`repair_ours`].
    ours: Option<Sealed<'s>>,
}

type Sealed<'s> = &'s mut dyn FnMut(&Metadata) -> Result<()>;

impl Place<'_, '_> {
    /// Writes the new file, and puts it in place if the source was not modified.
    fn fill<'o, T>(
        self,
        options: &mut RepairOptions<'o>,
        write: impl FnOnce(&AtomicFile, &mut PageCache, &mut RepairOptions<'o>) -> Result<T>,
    ) -> Result<T> {
        let Place { source, target, file, found, size, ours } = self;
        let at_target = |error: Error| error.at(target);
        let new_file = AtomicFile::like(target, options.durability, Some(found)).map_err(at_target)?;
        new_file.reserve(size).map_err(at_target)?;
        let mut cache = PageCache::new(file, found.len(), options.durability == Durability::Durable);
        let written = write(&new_file, &mut cache, options)?;
        unchanged(source, file, &Identity::of(found))?;
        if let Some(sealed) = ours {
            let made = new_file.file().metadata().map_err(|error| at_target(Error::io("stat", &error)))?;
            sealed(&made)?;
        }
        // Publishing consumes the new file, and its pages can only be dropped once they are on the disk.
        let kept = new_file.file().try_clone().map_err(|error| Error::io("dup", &error))?;
        new_file.publish().map_err(at_target)?;
        cache.done(&kept);
        Ok(written)
    }
}

fn planned(header: &Header, layout: &LayoutOptions) -> Result<Plan> {
    Plan::new(&specs(header), &header.metadata().collect::<Vec<_>>(), layout)
}

fn specs(header: &Header) -> Vec<TensorSpec<'_>> {
    let known = header.iter().filter_map(|tensor| {
        Some(TensorSpec { name: tensor.name, dtype: tensor.dtype?, shape: tensor.shape, nbytes: tensor.nbytes() })
    });
    let mut specs = Vec::with_capacity(header.len());
    specs.extend(known);
    specs
}

/// The report of a file that keeps its layout.
fn as_it_is(found: &ScanReport) -> WriteReport {
    WriteReport {
        file_size: found.file_size,
        data_start: found.data_start,
        gap_bytes: found.gap_bytes,
        tensors: found.tensors,
        tensors_moved: 0,
    }
}

fn check_target(source: &Path, destination: Option<&Path>) -> Result<()> {
    let Some(destination) = destination else {
        let found = refusal::at(source)?.ok_or_else(changed)?;
        return refusal::may_replace(source, &found);
    };
    if !refusal::at(destination)?.is_some_and(|found| found.is_symlink()) {
        refusal::not_in_a_cache(destination)?;
    }
    may_be_replaced(destination)
}

/// Fails if there is something other than a regular file at the destination, or a read-only file. A link is replaced,
/// not followed.
fn may_be_replaced(destination: &Path) -> Result<()> {
    match refusal::at(destination)? {
        Some(found) if !found.is_symlink() => {
            source::require_regular(found.file_type())?;
            refusal::may_write(destination, &found)
        }
        _ => Ok(()),
    }
}

fn changed() -> Error {
    Error::new(Status::Changed, "the source was modified during the call: nothing was replaced")
}

/// Fails if the source was modified since it was opened, or if another file was renamed over it.
fn unchanged(path: &Path, file: &File, identity: &Identity) -> Result<()> {
    let same = |found: std::io::Result<fs::Metadata>| found.is_ok_and(|found| Identity::of(&found) == *identity);
    if same(file.metadata()) && same(fs::metadata(path)) { Ok(()) } else { Err(changed()) }
}

/// Takes header and plan by value, to free each as soon as possible: for a hundred thousand tensors they are large.
fn write_new_layout(
    file: &File,
    header: Header,
    plan: Plan,
    (new_file, target_path): (&AtomicFile, &Path),
    cache: &mut PageCache,
    options: &mut RepairOptions,
) -> Result<u64> {
    let write_error = |error| Error::io("write", &error).at(target_path);
    new_file.file().write_all_at(plan.header(), 0).map_err(write_error)?;
    let (total, in_place) = (plan.file_size(), plan.data_start() + plan.gap_bytes());
    let copy = copy::planned(&plan, &header);
    drop(plan);
    // Read the header back, so that the check does not rely on the plan.
    let written = source::read_header(new_file.file(), total)?;
    let survey = written.survey(total - written.data_start())?;
    if survey.misaligned_tensors > 0 || survey.trailing_bytes > 0 {
        return Err(Error::new(Status::Internal, "the new layout does not match the plan"));
    }
    let compare = if options.verify { copy::paired(&written, &header)? } else { Vec::new() };
    drop((written, header));
    let tensor_at = |at: u64| tensor_at(new_file.file(), total, at).unwrap_or_default();
    let (source, target) = (file, new_file.file());
    let (tensor_at, copy, compare) = (&tensor_at, &copy[..], &compare[..]);
    let job = Job { source, target, target_path, copy, compare, tensor_at, done: in_place, total };
    report(&mut options.progress, job.done, job.total)?;
    job.run(cache, &mut options.progress)?;
    Ok(compare.iter().map(|run| run.len).sum())
}

/// The tensor at an offset of a file, for a message.
fn tensor_at(file: &File, size: u64, at: u64) -> Option<String> {
    let header = source::read_header(file, size).ok()?;
    let at = at.checked_sub(header.data_start())?;
    let found = header.iter().find(|tensor| (tensor.begin..tensor.end).contains(&at))?;
    Some(format!("tensor {}", Name(found.name)))
}

fn copy_whole(
    file: &File,
    (new_file, target_path): (&AtomicFile, &Path),
    size: u64,
    cache: &mut PageCache,
    options: &mut RepairOptions,
) -> Result<u64> {
    let whole = [Run { from: 0, to: 0, len: size }];
    let compare: &[Run] = if options.verify { &whole } else { &[] };
    let job = Job {
        source: file,
        target: new_file.file(),
        target_path,
        copy: &whole,
        compare,
        tensor_at: &|_| "the file".to_owned(),
        done: 0,
        total: size,
    };
    report(&mut options.progress, 0, size)?;
    job.run(cache, &mut options.progress)?;
    Ok(if options.verify { size } else { 0 })
}
