//! Where repaired files and copies are written, and the checks of these destinations.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use safealign::writer::{free_space_in, space_needed};

use crate::args::Repair;
use crate::find::{Found, Other};
use crate::output::{shown, system_message};
use crate::report::Scanned;

/// Fails if the output directory is inside a source directory.
pub fn check_output(paths: &[PathBuf], output: &Path) -> Result<(), String> {
    // The directory need not exist yet. Only the part that exists has a canonical path.
    let existing = output.ancestors().find(|path| path.exists()).filter(|path| !path.as_os_str().is_empty());
    let real =
        |path: &Path| fs::canonicalize(path).map_err(|error| format!("{}: {}", shown(path), system_message(&error)));
    let mut real_output = real(existing.unwrap_or(Path::new(".")))?;
    real_output.push(output.strip_prefix(existing.unwrap_or(Path::new(""))).unwrap_or(output));
    for path in paths.iter().filter(|path| path.is_dir()) {
        if real_output.starts_with(real(path)?) {
            return Err(format!(
                "{}: the output directory is inside the source directory {}; use `--output DIR` with another directory",
                shown(output),
                shown(path)
            ));
        }
    }
    Ok(())
}

/// The destination of a file, or `None` if it is repaired in place. With several source directories, each gets a
/// directory of its own in the output.
pub fn destination_of(args: &Repair, root: &Path, below: &Path) -> Option<PathBuf> {
    let output = args.output.as_ref()?;
    let directories = args.paths.iter().filter(|path| path.is_dir()).count();
    Some(match root.is_dir() && directories > 1 {
        true => {
            let name = fs::canonicalize(root).ok().and_then(|root| Some(root.file_name()?.to_owned()));
            output.join(name.unwrap_or_default()).join(below)
        }
        false => output.join(below),
    })
}

/// Removes duplicate sources. Fails if two sources have the same destination, or if the destination of one would have
/// to be a directory and a file at once. This runs before anything is written, because the later file would replace
/// the earlier one.
pub fn remove_duplicates(args: &Repair, found: &mut Found) -> Result<(), String> {
    let mut sources: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    let mut collision = None;
    let mut is_first = |path: &Path, root: &Path, below: &Path| {
        let Some(target) = destination_of(args, root, below) else { return true };
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
    let directories = found.empty.iter().filter_map(|empty| destination_of(args, &empty.root, &empty.below));
    let directories: Vec<PathBuf> = directories.collect();
    // A file at a path where another source requires a directory.
    let within = || {
        let inner = sources.iter().map(|(target, source)| (target, source, 1));
        let empty = directories.iter().zip(&found.empty).map(|(target, empty)| (target, &empty.path, 0));
        inner.chain(empty).find_map(|(target, source, skip)| {
            let above = target.ancestors().skip(skip).find_map(|above| sources.get_key_value(above))?;
            Some((above.1.clone(), source.clone(), above.0.clone()))
        })
    };
    match collision.or_else(within) {
        None => Ok(()),
        Some((one, other, target)) => Err(format!(
            "{} and {} have the same destination {}; nothing was written; use a separate `--output DIR` for each",
            shown(&one),
            shown(&other),
            shown(&target)
        )),
    }
}

/// Fails if a file system of the output has too little free space for everything that will be written to it.
pub fn check_free_space(args: &Repair, scanned: &[Scanned], others: &[Other]) -> Result<(), String> {
    // In place, the library checks the space for each file on its own.
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
    // Grouped by file system: directories and links below the output can be on different ones.
    let mut disks: BTreeMap<u64, (PathBuf, Vec<(u64, u64)>)> = BTreeMap::new();
    for (root, below, size) in models.chain(others) {
        let Some(target) = destination_of(args, root, below) else { continue };
        let old = fs::symlink_metadata(&target).ok().filter(|found| found.is_file() && found.nlink() == 1);
        let exists = |directory: &&Path| !directory.as_os_str().is_empty() && directory.is_dir();
        let directory = target.ancestors().skip(1).find(exists).unwrap_or(Path::new("."));
        let Ok(disk) = fs::metadata(directory) else { continue };
        let (_, files) = disks.entry(disk.dev()).or_insert_with(|| (directory.to_owned(), Vec::new()));
        files.push((size, old.map_or(0, |found| found.len())));
    }
    for (directory, files) in disks.into_values() {
        let needed = space_needed(files);
        if let Some(free) = free_space_in(&directory).filter(|free| *free < needed) {
            return Err(format!(
                "{}: {needed} bytes are needed, {free} are free, {} are missing; nothing was written; free some space \
                 or use `--output DIR` on another file system",
                shown(&directory),
                needed - free
            ));
        }
    }
    Ok(())
}

/// Creates the parent directory of a destination.
pub fn create_parent(target: &Path, dry_run: bool) -> Result<(), String> {
    target.parent().filter(|_| !dry_run).map_or(Ok(()), create_directory)
}

pub fn create_directory(directory: &Path) -> Result<(), String> {
    fs::create_dir_all(directory).map_err(|error| format!("{}: {}", shown(directory), system_message(&error)))
}
