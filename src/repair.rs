//! Writes a file anew so that every tensor maps without a copy, and touches nothing that need not or must not change.
//!
//! Repair never runs unasked: rewriting a published file changes its hash. In place, the old file stays whole until
//! the new one is complete, compared with it, and renamed over it.

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

/// How to repair.
pub struct RepairOptions<'a> {
    /// Of the new file. Every tensor keeps its bytes; their order changes where the layout asks for it.
    pub layout: LayoutOptions,
    pub durability: Durability,
    /// Read back every tensor of the new file by what its header says, and compare it with the source's, before the
    /// file is put in place. On by default.
    pub verify: bool,
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
            verify: true,
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
    pub bytes_verified: u64,
}

/// Repairs a file: into `destination`, or in place where that is `None`.
///
/// Mended are misaligned tensors, a header padded with NUL bytes, and (in the compact layout) holes; with
/// [`RepairOptions::drop_trailing`] also bytes after the last tensor. A file without any of these is left alone (the
/// same inode and time), or copied as it is where there is a destination; [`RepairOptions::force`] lays it out anew.
/// Metadata and its order, mode and, where permitted, owner are kept. A file that stands at the destination is
/// replaced, unless it is read-only.
///
/// [`Status::Refused`], with the way out in the message: a symbolic link, a file with other hard links, an entry of a
/// cache that names files by their content, a read-only file or folder, trailing bytes that would be lost, too little
/// free space, and a destination that is the source by any name: in place has to be asked for, by `None`.
/// [`Status::Changed`]: somebody wrote to the source meanwhile, and nothing was replaced.
/// [`Status::Unsupported`]: the file would have to be laid out anew, and has a dtype that the format does not know.
pub fn repair(source: &Path, destination: Option<&Path>, options: &mut RepairOptions) -> Result<RepairReport> {
    repair_how(source, destination, None, options)
}

/// As [`repair`], where what stands at the target is ours to replace. `sealed` is called with the finished file before
/// it gets its name.
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
    // Also where the file turns out to need nothing: a wrong option is wrong with every file.
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
                "{} bytes after the last tensor would be lost: keep the file as it is, or ask to drop them",
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
            Some(plan) => write_anew(&file, header, plan, (new_file, target), cache, options),
            None => copy_whole(&file, (new_file, target), after.file_size, cache, options),
        })?;
        Ok(RepairReport { action, before, after, bytes_verified })
    };
    repair().map_err(|error: Error| error.at(source))
}

/// Copies a file of any content with the guards of [`repair`], and compares it: for what else belongs to a bundle. Of
/// the options it takes `durability`, `verify`, `dry_run` and `progress`. Returns the bytes that were copied.
pub fn copy(source: &Path, destination: &Path, options: &mut RepairOptions) -> Result<u64> {
    let mut copy = || {
        let (file, found) = source::open_regular(source)?;
        let check = || {
            refusal::is_another(destination, &Identity::of(&found))?;
            // Under its own name, also a file that is named by its content may be copied.
            if source.file_name() != destination.file_name() {
                refusal::not_in_a_cache(destination)?;
            }
            may_stand_at(destination)?;
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

/// Where a new file goes, and what it is made of.
struct Place<'a, 's> {
    source: &'a Path,
    target: &'a Path,
    file: &'a File,
    found: &'a Metadata,
    /// Of the new file, in bytes.
    size: u64,
    /// As in [`repair_ours`].
    ours: Option<Sealed<'s>>,
}

type Sealed<'s> = &'s mut dyn FnMut(&Metadata) -> Result<()>;

impl Place<'_, '_> {
    /// Writes a new file, and puts it in place if the source has not changed.
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
        // Publishing consumes the new file; the pages can only be given up once they are on the disk.
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

/// A file that is not laid out anew, in the words of one that is.
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
    may_stand_at(destination)
}

/// Refuses to replace what is no file, or read-only. A link is replaced, not followed.
fn may_stand_at(destination: &Path) -> Result<()> {
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

/// Fails if the source is not what it was when it was opened, or another file has taken its name.
fn unchanged(path: &Path, file: &File, identity: &Identity) -> Result<()> {
    let same = |found: std::io::Result<fs::Metadata>| found.is_ok_and(|found| Identity::of(&found) == *identity);
    if same(file.metadata()) && same(fs::metadata(path)) { Ok(()) } else { Err(changed()) }
}

/// Takes header and plan, and lets each go when it has served: of a hundred thousand tensors they are large.
fn write_anew(
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
    // As a reader will see the file, not as the plan means it.
    let written = source::read_header(new_file.file(), total)?;
    let survey = written.survey(total - written.data_start())?;
    if survey.misaligned_tensors > 0 || survey.trailing_bytes > 0 {
        return Err(Error::new(Status::Internal, "the new layout is not the one that was planned"));
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

/// The tensor whose bytes stand at a place of a file, for a message.
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
