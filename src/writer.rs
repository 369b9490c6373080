//! Writes files: in one call, or in pieces for tensors that do not all fit in memory.
//!
//! Whatever fails, the target is the old file or the new one, complete: the new file is written beside it, with its
//! space reserved first, made durable, and renamed over it. So a file may be replaced while it is mapped.

#[cfg(target_os = "linux")]
mod direct;

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::dtype::Dtype;
use crate::error::{Error, Name, Result, Status};
use crate::layout::{LayoutOptions, Placement, Plan, TensorSpec};

use crate::atomic_file::AtomicFile;
pub use crate::atomic_file::{Durability, free_space_in, replace};

/// Called with the bytes done and the bytes in all; breaking cancels.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// A tensor to be written, with its data.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    pub name: &'a str,
    pub dtype: Dtype,
    /// Elements in each dimension; empty for rank 0.
    pub shape: &'a [u64],
    /// The elements in row-major order, little-endian.
    pub data: &'a [u8],
}

impl<'a> Tensor<'a> {
    /// The tensor without its data.
    pub fn spec(&self) -> TensorSpec<'a> {
        TensorSpec { name: self.name, dtype: self.dtype, shape: self.shape, nbytes: self.data.len() as u64 }
    }
}

/// How to write.
#[derive(Default)]
pub struct WriteOptions<'a> {
    pub layout: LayoutOptions,
    pub durability: Durability,
    pub progress: Option<Progress<'a>>,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteReport {
    /// Bytes of the file.
    pub file_size: u64,
    /// Where the data section starts, in bytes.
    pub data_start: u64,
    /// Zero bytes between tensors; 0 in the compact layout.
    pub gap_bytes: u64,
    /// Number of tensors.
    pub tensors: u64,
    /// Tensors that do not stand at the place in the order that they were given in.
    pub tensors_moved: u64,
}

impl WriteReport {
    pub(crate) fn of(plan: &Plan) -> WriteReport {
        let moved = |(position, placement): &(usize, &crate::layout::Placement)| *position != placement.input_index;
        WriteReport {
            file_size: plan.file_size(),
            data_start: plan.data_start(),
            gap_bytes: plan.gap_bytes(),
            tensors: plan.placements().len() as u64,
            tensors_moved: plan.placements().iter().enumerate().filter(moved).count() as u64,
        }
    }
}

/// Bytes that have to be free to write files one after the other: of each the size, and the size of the file that it
/// replaces, which stays until the new one is whole.
pub fn space_needed(files: impl IntoIterator<Item = (u64, u64)>) -> u64 {
    let (mut most, mut taken) = (0, 0i128);
    for (new, old) in files {
        most = most.max(taken + i128::from(new));
        taken += i128::from(new) - i128::from(old);
    }
    u64::try_from(most).unwrap_or(u64::MAX)
}

/// Writes a file whose tensors all stand on multiples of their dtype width.
///
/// The data goes from the caller's buffers to the file without a copy in between, but for a durable file of 512 MiB and
/// more on Linux: that goes past the page cache, which takes a copy and saves the time to write it back. A symbolic
/// link at `path` is replaced, not followed; the mode of a replaced file is kept, and a new file follows the umask.
pub fn write_aligned(
    path: &Path,
    tensors: &[Tensor],
    metadata: &[(&str, &str)],
    options: WriteOptions,
) -> Result<WriteReport> {
    let write = || {
        let specs: Vec<TensorSpec> = tensors.iter().map(Tensor::spec).collect();
        let plan = Plan::new(&specs, metadata, &options.layout)?;
        let new_file = AtomicFile::like(path, options.durability, None)?;
        new_file.reserve(plan.file_size())?;
        write_contents(&new_file, &plan, tensors, options.durability, options.progress)?;
        new_file.publish()?;
        Ok(WriteReport::of(&plan))
    };
    write().map_err(|error: Error| error.at(path))
}

/// Writes header and data of a planned file. `tensors` are those that the plan was made from.
pub(crate) fn write_contents(
    new_file: &AtomicFile,
    plan: &Plan,
    tensors: &[Tensor],
    durability: Durability,
    mut progress: Option<Progress>,
) -> Result<()> {
    let pieces = plan
        .placements()
        .iter()
        .flat_map(|placement| zeros(placement.gap_before).chain(std::iter::once(tensors[placement.input_index].data)));
    let mut pieces = std::iter::once(plan.header()).chain(pieces);
    let direct = durability == Durability::Durable
        && write_directly(new_file.file(), &mut pieces, plan.file_size(), &mut progress)?;
    if direct { Ok(()) } else { write_pieces(new_file.file(), pieces, plan.file_size(), progress) }
}

/// Writes a file past the page cache, if it is large enough for that to pay and its file system can.
#[cfg(target_os = "linux")]
fn write_directly(
    file: &File,
    pieces: &mut dyn Iterator<Item = &[u8]>,
    total: u64,
    progress: &mut Option<Progress>,
) -> Result<bool> {
    if total < direct::SMALLEST { Ok(false) } else { direct::write_pieces(file, pieces, total, progress) }
}

#[cfg(not(target_os = "linux"))]
fn write_directly<'a>(
    _file: &File,
    _pieces: &mut dyn Iterator<Item = &'a [u8]>,
    _total: u64,
    _progress: &mut Option<Progress>,
) -> Result<bool> {
    Ok(false)
}

/// That many zero bytes, in slices.
fn zeros<'a>(mut count: u64) -> impl Iterator<Item = &'a [u8]> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    std::iter::from_fn(move || {
        let take = count.min(ZEROS.len() as u64);
        count -= take;
        (take > 0).then(|| &ZEROS[..take as usize])
    })
}

/// Pieces in one `writev`: what Linux and macOS take at most.
const MAX_PIECES: usize = 1024;
/// Bytes between two reports of progress, and in one `writev`.
const STEP: usize = 16 << 20;

/// Writes slices one after the other, as many in a call as the system takes.
fn write_pieces<'a>(
    mut file: &File,
    pieces: impl Iterator<Item = &'a [u8]>,
    total: u64,
    mut progress: Option<Progress>,
) -> Result<()> {
    let mut pieces = pieces.filter(|piece| !piece.is_empty());
    let mut rest: &[u8] = &[];
    let mut batch: Vec<IoSlice> = Vec::with_capacity(MAX_PIECES);
    let mut done = 0;
    loop {
        batch.clear();
        let mut room = STEP;
        while batch.len() < MAX_PIECES && room > 0 {
            if rest.is_empty() {
                match pieces.next() {
                    Some(piece) => rest = piece,
                    None => break,
                }
            }
            let (now, later) = rest.split_at(rest.len().min(room));
            batch.push(IoSlice::new(now));
            room -= now.len();
            rest = later;
        }
        if batch.is_empty() {
            return Ok(());
        }
        let mut unwritten = &mut batch[..];
        while !unwritten.is_empty() {
            match file.write_vectored(unwritten) {
                Ok(0) => return Err(Error::io("write", &io::ErrorKind::WriteZero.into())),
                Ok(count) => IoSlice::advance_slices(&mut unwritten, count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("write", &error)),
            }
        }
        done += (STEP - room) as u64;
        report(&mut progress, done, total)?;
    }
}

/// Tells the caller how far it is, and stops where the caller says so.
pub(crate) fn report(progress: &mut Option<Progress>, done: u64, total: u64) -> Result<()> {
    match progress.as_mut().map(|progress| progress(done, total)) {
        Some(ControlFlow::Break(())) => {
            Err(Error::new(Status::Cancelled, format!("cancelled after {done} of {total} bytes")))
        }
        _ => Ok(()),
    }
}

/// As [`Progress`], owned by the writer.
pub type OwnedProgress<'a> = Box<dyn FnMut(u64, u64) -> ControlFlow<()> + Send + 'a>;

/// How to write a file in pieces.
#[derive(Default)]
pub struct WriterOptions<'a> {
    pub layout: LayoutOptions,
    pub durability: Durability,
    /// Called by `put` and `put_at`, on the thread that calls them, after each piece, with the bytes written so far and
    /// the size of the file; breaking cancels. Concurrent calls are serialised.
    pub progress: Option<OwnedProgress<'a>>,
}

/// A file written in pieces, in any order and from any thread. Dropped before [`Writer::finish`] has succeeded, it
/// discards the unfinished file and leaves the target as it was.
pub struct Writer<'a> {
    path: PathBuf,
    plan: Plan,
    /// Position in the plan of each tensor, by its index in the caller's list.
    positions: Vec<u32>,
    /// The bytes of each tensor that have arrived, by its index in the caller's list.
    arrived: Vec<Mutex<Ranges>>,
    names: Vec<String>,
    /// The indices, sorted by name.
    by_name: Vec<u32>,
    /// Bytes of tensors that have not arrived.
    missing: AtomicU64,
    progress: Option<Mutex<OwnedProgress<'a>>>,
    /// `None` once published, or once publishing has failed.
    new_file: Option<AtomicFile>,
}

/// Bytes of a tensor that have not been written yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Index of the tensor in the list given to [`Writer::open`].
    pub index: usize,
    /// Where they start, in bytes from the start of the tensor.
    pub offset: u64,
    pub nbytes: u64,
}

impl<'a> Writer<'a> {
    /// Lays out a file, reserves its space beside `path` and writes its header.
    pub fn open(
        path: &Path,
        tensors: &[TensorSpec],
        metadata: &[(&str, &str)],
        options: WriterOptions<'a>,
    ) -> Result<Writer<'a>> {
        let open = || {
            let plan = Plan::new(tensors, metadata, &options.layout)?;
            let new_file = AtomicFile::like(path, options.durability, None)?;
            new_file.reserve(plan.file_size())?;
            new_file.file().write_all_at(plan.header(), 0).map_err(|error| Error::io("write", &error))?;
            let mut positions = vec![0; tensors.len()];
            for (position, placement) in plan.placements().iter().enumerate() {
                positions[placement.input_index] = position as u32;
            }
            let names: Vec<String> = tensors.iter().map(|tensor| tensor.name.to_owned()).collect();
            let mut by_name: Vec<u32> = (0..tensors.len() as u32).collect();
            by_name.sort_unstable_by_key(|&index| names[index as usize].as_str());
            Ok(Writer {
                path: path.to_owned(),
                plan,
                positions,
                arrived: tensors.iter().map(|_| Mutex::default()).collect(),
                names,
                by_name,
                missing: AtomicU64::new(tensors.iter().map(|tensor| tensor.nbytes).sum()),
                progress: options.progress.map(Mutex::new),
                new_file: Some(new_file),
            })
        };
        open().map_err(|error: Error| error.at(path))
    }

    /// The layout of the file.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The index of the tensor of that name in the list given to [`Writer::open`].
    pub fn find(&self, name: &str) -> Result<usize> {
        let found = self.by_name.binary_search_by(|&index| self.names[index as usize].as_str().cmp(name));
        found.map(|at| self.by_name[at] as usize).map_err(|_| {
            let message = format!("tensor {}: not found among {} tensors", Name(name), self.names.len());
            Error::new(Status::NotFound, message).at(&self.path)
        })
    }

    /// Where the tensor with that index in the list given to [`Writer::open`] is located in the file.
    pub fn placement(&self, index: usize) -> Result<Placement> {
        match self.positions.get(index) {
            Some(&position) => Ok(self.plan.placements()[position as usize]),
            None => {
                let message =
                    format!("tensor index {index} is out of range: there are {} tensors", self.positions.len());
                Err(Error::new(Status::NotFound, message).at(&self.path))
            }
        }
    }

    /// Bytes of tensors that have not been written yet.
    pub fn bytes_missing(&self) -> u64 {
        self.missing.load(Ordering::Relaxed)
    }

    /// The first range that has not been written yet, in the order of the list given to [`Writer::open`].
    pub fn first_missing(&self) -> Option<Missing> {
        if self.bytes_missing() == 0 {
            return None;
        }
        self.arrived.iter().enumerate().find_map(|(index, arrived)| {
            let nbytes = self.plan.placements()[self.positions[index] as usize].nbytes;
            let (start, end) = arrived.lock().unwrap_or_else(PoisonError::into_inner).first_missing(nbytes)?;
            Some(Missing { index, offset: start, nbytes: end - start })
        })
    }

    /// Writes a whole tensor: the one with that index in the list given to [`Writer::open`].
    pub fn put(&self, index: usize, data: &[u8]) -> Result<()> {
        let put = || {
            let nbytes = self.placement(index)?.nbytes;
            if data.len() as u64 != nbytes {
                return Err(self.invalid(index, format!("{} bytes, expected {nbytes}", data.len())));
            }
            self.write(index, 0, data)
        };
        put().map_err(|error: Error| error.at(&self.path))
    }

    /// Writes a piece of a tensor, `offset` bytes from the start of the tensor. Pieces may come in any order; where two
    /// overlap, the one that was written last stays.
    pub fn put_at(&self, index: usize, offset: u64, data: &[u8]) -> Result<()> {
        let put = || {
            let nbytes = self.placement(index)?.nbytes;
            let end = offset.checked_add(data.len() as u64).filter(|&end| end <= nbytes);
            if end.is_none() {
                let message = format!("{} bytes at {offset} do not fit its {nbytes} bytes", data.len());
                return Err(self.invalid(index, message));
            }
            self.write(index, offset, data)
        };
        put().map_err(|error: Error| error.at(&self.path))
    }

    fn invalid(&self, index: usize, message: String) -> Error {
        Error::new(Status::InvalidArgument, format!("tensor {}: {message}", Name(&self.names[index])))
    }

    fn write(&self, index: usize, offset: u64, data: &[u8]) -> Result<()> {
        let start = self.plan.placements()[self.positions[index] as usize].offset;
        self.new_file()?.file().write_all_at(data, start + offset).map_err(|error| Error::io("write", &error))?;
        let mut arrived = self.arrived[index].lock().unwrap_or_else(PoisonError::into_inner);
        let new = arrived.insert(offset, offset + data.len() as u64);
        drop(arrived);
        self.missing.fetch_sub(new, Ordering::Relaxed);
        if let Some(progress) = &self.progress {
            let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
            // Read under the lock: what is reported never decreases.
            let total = self.plan.file_size();
            report(&mut Some(&mut **progress), total - self.bytes_missing(), total)?;
        }
        Ok(())
    }

    fn new_file(&self) -> Result<&AtomicFile> {
        self.new_file.as_ref().ok_or_else(finished)
    }

    /// Puts the file in place. Fails, and changes nothing, where a byte of a tensor is missing
    /// ([`Status::InvalidArgument`]): what is missing can still be written. After any other failure the new file is
    /// gone.
    pub fn finish(&mut self) -> Result<WriteReport> {
        let mut finish = || {
            self.new_file()?;
            if let Some(Missing { index, offset, nbytes }) = self.first_missing() {
                let size = self.placement(index)?.nbytes;
                let message = format!("bytes {offset} to {} of its {size} are missing", offset + nbytes);
                return Err(self.invalid(index, message));
            }
            self.new_file.take().ok_or_else(finished)?.publish()?;
            Ok(WriteReport::of(&self.plan))
        };
        finish().map_err(|error: Error| error.at(&self.path))
    }
}

fn finished() -> Error {
    Error::new(Status::InvalidArgument, "the writer is finished: there is nothing left to write to")
}

/// Disjoint ranges of bytes, sorted, with a gap between any two.
#[derive(Default)]
struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Adds a range. Returns how many of its bytes were not there.
    fn insert(&mut self, mut start: u64, mut end: u64) -> u64 {
        if start == end {
            return 0;
        }
        let len = end - start;
        // Those that touch the new one become one with it.
        let first = self.0.partition_point(|&(_, other_end)| other_end < start);
        let last = self.0.partition_point(|&(other_start, _)| other_start <= end);
        let common = |&(other_start, other_end): &(u64, u64)| end.min(other_end).saturating_sub(start.max(other_start));
        let known: u64 = self.0[first..last].iter().map(common).sum();
        if first < last {
            start = start.min(self.0[first].0);
            end = end.max(self.0[last - 1].1);
        }
        self.0.splice(first..last, [(start, end)]);
        len - known
    }

    /// The first range of `0..len` that is not there.
    fn first_missing(&self, len: u64) -> Option<(u64, u64)> {
        let covered = match self.0.first() {
            Some(&(0, end)) => end,
            _ => 0,
        };
        if covered >= len {
            return None;
        }
        let next = self.0.iter().map(|&(start, _)| start).find(|&start| start > covered);
        Some((covered, next.unwrap_or(len)))
    }
}
