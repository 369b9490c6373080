//! Writes files: in one call, or in pieces for tensors that do not all fit in memory.
//!
//! Whatever fails or is killed, the target is the old file or the new one, whole: the new file is written beside it,
//! its space reserved first, made durable, and renamed over it. So a file may be saved over while it is mapped.

#[cfg(target_os = "linux")]
mod direct;

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::dtype::Dtype;
use crate::error::{Error, Name, Result, Status};
use crate::layout::{LayoutOptions, Plan, TensorSpec};

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
    /// Zero bytes between tensors, in all.
    pub padding: u64,
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
            padding: plan.padding(),
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
/// The data goes from the caller's buffers to the file without a copy in between, but for a durable file of 512 MiB and more
/// on Linux: that goes past the page cache, which takes a copy and saves the time to write it back. A symbolic link at `path` is
/// replaced, not followed; the mode of a replaced file is kept, and a new file follows the umask.
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
        let pieces = plan.placements().iter().flat_map(|placement| {
            zeros(placement.padding_before).chain(std::iter::once(tensors[placement.input_index].data))
        });
        let mut pieces = std::iter::once(plan.header()).chain(pieces);
        let mut progress = options.progress;
        let direct = options.durability == Durability::Durable
            && write_directly(new_file.file(), &mut pieces, plan.file_size(), &mut progress)?;
        if !direct {
            write_pieces(new_file.file(), pieces, plan.file_size(), progress)?;
        }
        new_file.publish()?;
        Ok(WriteReport::of(&plan))
    };
    write().map_err(|error: Error| error.at(path))
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

/// A file written in pieces, in any order and from any thread. Dropped before [`Writer::finish`] has succeeded, it
/// leaves nothing behind and the target as it was.
pub struct Writer {
    path: PathBuf,
    plan: Plan,
    /// Position in the plan of each tensor, by its place in the caller's list.
    positions: Vec<u32>,
    /// The bytes of each tensor that have arrived, by its place in the caller's list.
    arrived: Vec<Mutex<Ranges>>,
    names: Vec<String>,
    /// `None` once published, or once publishing has failed.
    new_file: Option<AtomicFile>,
}

impl Writer {
    /// Lays out a file, reserves its space beside `path` and writes its header. The `progress` of the options is not
    /// called.
    pub fn open(
        path: &Path,
        tensors: &[TensorSpec],
        metadata: &[(&str, &str)],
        options: &WriteOptions,
    ) -> Result<Writer> {
        let open = || {
            let plan = Plan::new(tensors, metadata, &options.layout)?;
            let new_file = AtomicFile::like(path, options.durability, None)?;
            new_file.reserve(plan.file_size())?;
            new_file.file().write_all_at(plan.header(), 0).map_err(|error| Error::io("write", &error))?;
            let mut positions = vec![0; tensors.len()];
            for (position, placement) in plan.placements().iter().enumerate() {
                positions[placement.input_index] = position as u32;
            }
            let arrived = tensors.iter().map(|_| Mutex::default()).collect();
            let names = tensors.iter().map(|tensor| tensor.name.to_owned()).collect();
            Ok(Writer { path: path.to_owned(), plan, positions, arrived, names, new_file: Some(new_file) })
        };
        open().map_err(|error: Error| error.at(path))
    }

    /// The layout of the file.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Writes a whole tensor: the one at that place in the list given to [`Writer::open`].
    pub fn put(&self, index: usize, data: &[u8]) -> Result<()> {
        let put = || {
            let nbytes = self.nbytes(index)?;
            if data.len() as u64 != nbytes {
                return Err(self.invalid(index, format!("{} bytes, expected {nbytes}", data.len())));
            }
            self.write(index, 0, data)
        };
        put().map_err(|error: Error| error.at(&self.path))
    }

    /// Writes a piece of a tensor, `offset` bytes into it. Pieces may come in any order; one that comes twice
    /// counts once, and the later one stays.
    pub fn put_at(&self, index: usize, offset: u64, data: &[u8]) -> Result<()> {
        let put = || {
            let nbytes = self.nbytes(index)?;
            let end = offset.checked_add(data.len() as u64).filter(|&end| end <= nbytes);
            if end.is_none() {
                let message = format!("{} bytes at {offset} do not fit its {nbytes} bytes", data.len());
                return Err(self.invalid(index, message));
            }
            self.write(index, offset, data)
        };
        put().map_err(|error: Error| error.at(&self.path))
    }

    fn nbytes(&self, index: usize) -> Result<u64> {
        match self.positions.get(index) {
            Some(&position) => Ok(self.plan.placements()[position as usize].nbytes),
            None => Err(Error::new(
                Status::InvalidArgument,
                format!("tensor number {index} of {}: there is no such tensor", self.positions.len()),
            )),
        }
    }

    fn invalid(&self, index: usize, message: String) -> Error {
        Error::new(Status::InvalidArgument, format!("tensor {}: {message}", Name(&self.names[index])))
    }

    fn write(&self, index: usize, offset: u64, data: &[u8]) -> Result<()> {
        let start = self.plan.placements()[self.positions[index] as usize].offset;
        self.new_file()?.file().write_all_at(data, start + offset).map_err(|error| Error::io("write", &error))?;
        let mut arrived = self.arrived[index].lock().unwrap_or_else(PoisonError::into_inner);
        arrived.insert(offset, offset + data.len() as u64);
        Ok(())
    }

    fn new_file(&self) -> Result<&AtomicFile> {
        self.new_file.as_ref().ok_or_else(finished)
    }

    /// Puts the file in place. Fails, and changes nothing, where a byte of a tensor is missing: what is missing can
    /// still be put. After any other failure the new file is gone.
    pub fn finish(&mut self) -> Result<WriteReport> {
        let mut finish = || {
            self.new_file()?;
            for (index, arrived) in self.arrived.iter_mut().enumerate() {
                let nbytes = self.plan.placements()[self.positions[index] as usize].nbytes;
                let arrived = arrived.get_mut().unwrap_or_else(PoisonError::into_inner);
                if let Some((start, end)) = arrived.first_missing(nbytes) {
                    let message = format!("bytes {start} to {end} of its {nbytes} are missing");
                    return Err(self.invalid(index, message));
                }
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
    fn insert(&mut self, mut start: u64, mut end: u64) {
        if start == end {
            return;
        }
        // Those that touch the new one become one with it.
        let first = self.0.partition_point(|&(_, other_end)| other_end < start);
        let last = self.0.partition_point(|&(other_start, _)| other_start <= end);
        if first < last {
            start = start.min(self.0[first].0);
            end = end.max(self.0[last - 1].1);
        }
        self.0.splice(first..last, [(start, end)]);
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
