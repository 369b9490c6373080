//! Writes the misaligned tensors of a model, aligned, into a file in a cache directory, and finds them there.
//!
//! The cache file is a valid safetensors file that holds only the tensors that a loader would have to copy. Opened with
//! [`OpenOptions::aligned_cache`](crate::map::OpenOptions::aligned_cache), a model is mapped from two files: each
//! tensor from where it is aligned. Its memory belongs to a file and can be evicted, unlike that of a copy.
//!
//! The metadata of the cache file records, for each source file, its size, modification time, device, inode and a hash
//! of its header. A cache file that does not match is an error. The data is not compared when a model is opened.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::bundle::{self, Bundle};
use crate::cache_file::{self, Identified, MAX_SOURCES_LEN, SOURCES, hex};
use crate::error::{Error, Name, Result, Status};
use crate::file_lock::FileLock;
use crate::header::Header;
use crate::layout::{LayoutOptions, Plan, TensorSpec, check_alignment};
use crate::map::OpenOptions;
use crate::repair::room_in;
use crate::source::{self, Identity};
use crate::writer::{Durability, Progress, Writer, WriterOptions, report};

/// Bytes that are copied at once.
const STEP: usize = 8 << 20;

/// How to write a cache file.
#[derive(Default)]
pub struct CacheOptions<'a> {
    /// Of the cache file.
    pub layout: LayoutOptions,
    pub durability: Durability,
    /// Called with the bytes of the cache file that are written and their total; breaking cancels.
    pub progress: Option<Progress<'a>>,
}

/// A cache file, as [`write`] leaves it. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheReport {
    /// The cache file, for [`OpenOptions::aligned_cache`](crate::map::OpenOptions::aligned_cache).
    pub path: PathBuf,
    /// Whether it was written by this call. Otherwise it was there already, and up to date.
    pub is_new: bool,
    pub file_size: u64,
    /// Tensors that it holds.
    pub tensors: u64,
    /// Their total size.
    pub tensor_bytes: u64,
}

/// A source file, open.
struct Source {
    path: PathBuf,
    file: File,
    identity: Identity,
    header: Header,
    misaligned: Vec<u32>,
}

/// Writes the misaligned tensors of the model at `source`, a file or a bundle, into a file in `directory`, which is
/// created where it is missing. The source is not changed.
///
/// The name of the cache file depends on the path of the source only: a stale cache file is replaced, and one that
/// is up to date is kept. Concurrent calls for the same source are serialised.
///
/// Errors: [`Status::Refused`] if `directory` is the directory of the source or has too little free space;
/// [`Status::Changed`] if the source was modified during the call; [`Status::Cancelled`]; [`Status::Unsupported`] for
/// an unknown dtype; [`Status::NoSpace`], [`Status::Io`], and those of opening the source. Whatever fails, the cache
/// file is the old one or the new one, complete.
pub fn write(source: &Path, directory: &Path, options: CacheOptions) -> Result<CacheReport> {
    check_alignment(options.layout.alignment)?;
    let real = fs::canonicalize(source).map_err(|error| Error::io("open", &error).at(source))?;
    let named = named_path(source, &real)?;
    let sources = files_of(&real, source)?.into_iter().map(Source::open).collect::<Result<Vec<Source>>>()?;
    fs::create_dir_all(directory).map_err(|error| Error::io("create", &error).at(directory))?;
    let directory = fs::canonicalize(directory).map_err(|error| Error::io("open", &error).at(directory))?;
    let is_of_source = |path: &Path| path.parent() == Some(&directory);
    if real == directory || is_of_source(&named) || sources.iter().any(|source| is_of_source(&source.path)) {
        let message = "is the directory of the source: use another directory for the aligned cache";
        return Err(Error::new(Status::Refused, message).at(&directory));
    }
    let (stem, hash) = (named.file_stem().unwrap_or_default().to_string_lossy(), hex(named.as_os_str().as_bytes()));
    let target = directory.join(format!("{stem}-{}.safetensors", &hash[..16]));
    let _lock = FileLock::wait(&target.with_extension("lock"))?;
    let current = sources
        .iter()
        .try_for_each(|source| cache_file::open(&target, &source.identified(), &source.misaligned).map(drop));
    let (is_new, file_size) = match current {
        Ok(()) => (false, fs::metadata(&target).map_err(|error| Error::io("stat", &error).at(&target))?.len()),
        Err(_) => (true, write_to(&target, &sources, options)?),
    };
    let sizes = sources.iter().flat_map(|source| source.tensors().map(|tensor| tensor.nbytes));
    let (tensors, tensor_bytes) = sizes.fold((0, 0), |(tensors, bytes), nbytes| (tensors + 1, bytes + nbytes));
    Ok(CacheReport { path: target, is_new, file_size, tensors, tensor_bytes })
}

/// The path of a source by its own name in its real directory: in a download cache, files of several snapshots are
/// links to one.
fn named_path(source: &Path, real: &Path) -> Result<PathBuf> {
    let Some(name) = source.file_name() else { return Ok(real.to_owned()) };
    let parent = source.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let parent = fs::canonicalize(parent).map_err(|error| Error::io("open", &error).at(source))?;
    Ok(parent.join(name))
}

/// The files of a model: of a bundle its shards, which are opened to check that they belong together.
fn files_of(real: &Path, source: &Path) -> Result<Vec<PathBuf>> {
    let is_bundle = real.is_dir() || source.file_name().is_some_and(bundle::names::is_index);
    if !is_bundle {
        return Ok(vec![real.to_owned()]);
    }
    let bundle = Bundle::open(source, &OpenOptions::default())?;
    let shards = bundle.shards().iter().filter_map(crate::map::File::path);
    shards.map(|path| fs::canonicalize(path).map_err(|error| Error::io("open", &error).at(path))).collect()
}

fn write_to(target: &Path, sources: &[Source], options: CacheOptions) -> Result<u64> {
    let mut owners: HashMap<&str, &Source> = HashMap::new();
    for source in sources {
        for tensor in source.tensors() {
            if let Some(other) = owners.insert(tensor.name, source) {
                let message = format!("tensor {}: is in {} too", Name(tensor.name), other.path.display());
                return Err(Error::new(Status::Format, message).at(&source.path));
            }
        }
    }
    let records = sources.iter().map(|source| source.identified().record()).collect::<Result<Vec<Value>>>()?;
    let records = Value::from(records).to_string();
    if records.len() > MAX_SOURCES_LEN {
        let message = format!("a bundle of {} shards is too large for one aligned cache", sources.len());
        return Err(Error::new(Status::TooLarge, message).at(target));
    }
    let metadata = [(SOURCES, records.as_str())];
    let specs: Vec<TensorSpec> = sources.iter().flat_map(Source::tensors).collect();
    let plan = Plan::new(&specs, &metadata, &options.layout).map_err(|error| error.at(target))?;
    let directory = target.parent().unwrap_or(Path::new("."));
    room_in(directory, plan.file_size(), "the aligned cache").map_err(|error| error.at(target))?;
    let mut progress = options.progress;
    let (layout, durability) = (options.layout, options.durability);
    let mut writer = Writer::open(target, &specs, &metadata, WriterOptions { layout, durability, progress: None })?;
    let total = plan.file_size();
    let (mut index, mut done) = (0, plan.data_start() + plan.gap_bytes());
    let mut buffer = vec![0; STEP];
    report(&mut progress, done, total).map_err(|error| error.at(target))?;
    for source in sources {
        for &tensor in &source.misaligned {
            let Some(tensor) = source.header.get(tensor as usize) else { continue };
            let start = source.header.data_start() + tensor.begin;
            let mut offset = 0;
            while offset < tensor.nbytes() {
                let piece = &mut buffer[..(tensor.nbytes() - offset).min(STEP as u64) as usize];
                let read = source.file.read_exact_at(piece, start + offset);
                read.map_err(|error| source::read_error(&error).at(&source.path))?;
                writer.put_at(index, offset, piece)?;
                offset += piece.len() as u64;
                done += piece.len() as u64;
                report(&mut progress, done, total).map_err(|error| error.at(target))?;
            }
            index += 1;
        }
    }
    sources.iter().try_for_each(Source::check_unchanged)?;
    writer.finish()?;
    Ok(total)
}

impl Source {
    fn open(path: PathBuf) -> Result<Source> {
        let open = |path: &Path| {
            let (file, found) = source::open_regular(path)?;
            let header = source::read_header(&file, found.len())?;
            header.require_known_dtypes()?;
            header.survey(found.len() - header.data_start())?;
            Ok((file, Identity::of(&found), header))
        };
        let (file, identity, header) = open(&path).map_err(|error: Error| error.at(&path))?;
        let misaligned = (0..).zip(header.iter()).filter(|(_, tensor)| header.is_misaligned(tensor));
        let misaligned = misaligned.map(|(index, _)| index).collect();
        Ok(Source { path, file, identity, header, misaligned })
    }

    fn identified(&self) -> Identified<'_> {
        Identified { path: &self.path, identity: &self.identity, file: &self.file, offset: 0, header: &self.header }
    }

    /// The tensors to be written.
    fn tensors(&self) -> impl Iterator<Item = TensorSpec<'_>> {
        self.misaligned.iter().filter_map(|&index| {
            let tensor = self.header.get(index as usize)?;
            let nbytes = tensor.nbytes();
            Some(TensorSpec { name: tensor.name, dtype: tensor.dtype?, shape: tensor.shape, nbytes })
        })
    }

    /// Fails if the file is not what it was when it was opened, or another file has its name.
    fn check_unchanged(&self) -> Result<()> {
        let same = |found: std::io::Result<fs::Metadata>| found.is_ok_and(|now| Identity::of(&now) == self.identity);
        if same(self.file.metadata()) && same(fs::metadata(&self.path)) {
            return Ok(());
        }
        let message = "the source was modified during the call: no aligned cache was written";
        Err(Error::new(Status::Changed, message).at(&self.path))
    }
}
