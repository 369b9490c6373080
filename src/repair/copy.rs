//! Copies ranges of bytes from one file to another and compares them, with bounded memory use.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::page_cache::PageCache;
use super::run::{Run, merged, push};
use crate::error::{Error, Name, Result, Status};
use crate::header::Header;
use crate::layout::Plan;
use crate::source;
use crate::writer::{Progress, report};

/// Bytes between two progress reports. The pages are dropped in pieces of this size.
const WINDOW: u64 = 16 << 20;
/// Bytes that are copied and then compared, while they are in the CPU cache.
const STEP: u64 = BUFFER as u64;
/// Size of a buffer in bytes. Copying uses one, comparing two.
const BUFFER: usize = 256 << 10;
/// From this size on, a separate system call is faster than the buffer.
const SMALL: u64 = 64 << 10;

/// The runs of a plan in the order of the new file. Runs that are adjacent in both files are joined. `source` is the
/// header that the plan was made from.
pub(super) fn planned(plan: &Plan, source: &Header) -> Vec<Run> {
    let runs = plan.placements().iter().filter_map(|placement| {
        let tensor = source.get(placement.input_index)?;
        Some(Run { from: source.data_start() + tensor.begin, to: placement.offset, len: placement.nbytes })
    });
    merged(runs)
}

/// The same runs, but from the two headers: tensors are paired by name, and offsets are those of the written header.
/// The data is compared by these runs, so that an error in the plan is found.
pub(super) fn paired(written: &Header, source: &Header) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for tensor in written.iter() {
        let original = source.find(tensor.name).and_then(|index| source.get(index));
        let same = original.filter(|original| {
            original.dtype == tensor.dtype && original.shape == tensor.shape && original.nbytes() == tensor.nbytes()
        });
        let Some(original) = same else {
            let message =
                format!("tensor {}: the written header differs from the header of the source", Name(tensor.name));
            return Err(Error::new(Status::Internal, message));
        };
        let (from, to) = (source.data_start() + original.begin, written.data_start() + tensor.begin);
        push(&mut runs, Run { from, to, len: tensor.nbytes() });
    }
    if written.len() != source.len() || !written.metadata().eq(source.metadata()) {
        return Err(Error::new(Status::Internal, "the written header has other tensors or metadata than the source"));
    }
    Ok(runs)
}

/// What to copy and compare.
pub(super) struct Job<'a> {
    pub source: &'a File,
    pub target: &'a File,
    /// For error messages.
    pub target_path: &'a Path,
    /// In the order of `to`.
    pub copy: &'a [Run],
    /// In the order of `to`. Empty if nothing is to be compared.
    pub compare: &'a [Run],
    /// Names the tensor at an offset of the new file, for an error message.
    pub tensor_at: &'a dyn Fn(u64) -> String,
    /// Bytes written before, and the total: for the progress.
    pub done: u64,
    pub total: u64,
}

impl Job<'_> {
    /// Copies and compares everything.
    pub(super) fn run(&self, cache: &mut PageCache, progress: &mut Option<Progress>) -> Result<()> {
        let mut copier = Copier { in_kernel: true, buffer: Vec::new() };
        let mut comparer = Comparer { ours: Vec::new(), theirs: Vec::new() };
        let mut to_compare = Cutter::new(self.compare);
        let mut to_copy = Cutter::new(self.copy);
        let (mut piece, mut window) = (Vec::new(), Vec::new());
        let mut done = self.done;
        let mut reported = done;
        let step = if self.compare.is_empty() { WINDOW } else { STEP };
        while let Some(end) = to_copy.take(step, &mut piece) {
            copier.copy(self, &piece)?;
            while let Some(run) = to_compare.before(end) {
                comparer.compare(self, run)?;
            }
            for run in &piece {
                done += run.len;
                push(&mut window, *run);
            }
            if done - reported >= WINDOW || to_copy.is_empty() {
                cache.finished(self.target, &window).map_err(|error| error.at(self.target_path))?;
                window.clear();
                reported = done;
                report(progress, done.min(self.total), self.total)?;
            }
        }
        // Nothing is left, unless the written header differs from the plan. Then the comparison finds it.
        while let Some(run) = to_compare.before(u64::MAX) {
            comparer.compare(self, run)?;
        }
        Ok(())
    }
}

/// Splits a list of runs into pieces.
struct Cutter<'a> {
    runs: &'a [Run],
    /// Bytes of the first run that were taken already.
    used: u64,
}

impl<'a> Cutter<'a> {
    fn new(runs: &'a [Run]) -> Cutter<'a> {
        Cutter { runs, used: 0 }
    }

    fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    fn cut(&mut self, most: u64) -> Option<Run> {
        let run = self.runs.first()?;
        let len = most.min(run.len - self.used);
        let piece = Run { from: run.from + self.used, to: run.to + self.used, len };
        self.used += len;
        if self.used == run.len {
            self.runs = &self.runs[1..];
            self.used = 0;
        }
        Some(piece)
    }

    /// Fills `out` with runs of at most `room` bytes in total, and returns where they end; `None` if there are none.
    fn take(&mut self, mut room: u64, out: &mut Vec<Run>) -> Option<u64> {
        out.clear();
        while room > 0 {
            let Some(run) = self.cut(room) else { break };
            room -= run.len;
            out.push(run);
        }
        out.last().map(|run| run.to + run.len)
    }

    /// The next piece that ends at or before that offset of the new file.
    fn before(&mut self, end: u64) -> Option<Run> {
        let run = self.runs.first()?;
        match end.checked_sub(run.to + self.used) {
            None | Some(0) => None,
            Some(room) => self.cut(room),
        }
    }
}

struct Copier {
    in_kernel: bool,
    buffer: Vec<u8>,
}

impl Copier {
    /// Small runs that are adjacent in the new file are collected in the buffer, to save system calls.
    fn copy(&mut self, job: &Job, runs: &[Run]) -> Result<()> {
        let mut start = 0;
        self.buffer.clear();
        for run in runs {
            let follows = run.to == start + self.buffer.len() as u64;
            if !follows || run.len >= SMALL || self.buffer.len() + run.len as usize > BUFFER {
                self.flush(job, start)?;
            }
            if run.len >= SMALL {
                self.large(job, *run)?;
                continue;
            }
            if self.buffer.is_empty() {
                start = run.to;
            }
            let at = self.buffer.len();
            self.buffer.resize(at + run.len as usize, 0);
            read(job.source, &mut self.buffer[at..], run.from)?;
        }
        self.flush(job, start)
    }

    fn flush(&mut self, job: &Job, start: u64) -> Result<()> {
        let written = job.target.write_all_at(&self.buffer, start);
        written.map_err(|error| Error::io("write", &error).at(job.target_path))?;
        self.buffer.clear();
        Ok(())
    }

    fn large(&mut self, job: &Job, mut run: Run) -> Result<()> {
        while run.len > 0 && self.in_kernel {
            match in_kernel(job, run)? {
                Some(count) => run = Run { from: run.from + count, to: run.to + count, len: run.len - count },
                // Not supported between these two files.
                None => self.in_kernel = false,
            }
        }
        while run.len > 0 {
            let count = run.len.min(BUFFER as u64);
            self.buffer.resize(count as usize, 0);
            read(job.source, &mut self.buffer, run.from)?;
            self.flush(job, run.to)?;
            run = Run { from: run.from + count, to: run.to + count, len: run.len - count };
        }
        Ok(())
    }
}

/// Copies within the kernel, as much as one call does; `None` if it cannot.
#[cfg(target_os = "linux")]
fn in_kernel(job: &Job, run: Run) -> Result<Option<u64>> {
    use rustix::io::Errno;
    let (mut from, mut to) = (run.from, run.to);
    let len = usize::try_from(run.len).unwrap_or(usize::MAX);
    let copy = || rustix::fs::copy_file_range(job.source, Some(&mut from), job.target, Some(&mut to), len);
    match rustix::io::retry_on_intr(copy) {
        // The end of the source, or a file system that reports a failure in this way. Reading shows which.
        Ok(0) => Ok(None),
        Ok(count) => Ok(Some(count as u64)),
        Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::BADF) => Ok(None),
        // A full disk concerns the target; other failures may concern either file.
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
            Err(Error::io("write", &error.into()).at(job.target_path))
        }
        Err(error) => Err(Error::io("copy", &error.into())),
    }
}

#[cfg(not(target_os = "linux"))]
fn in_kernel(_job: &Job, _run: Run) -> Result<Option<u64>> {
    Ok(None)
}

fn read(file: &File, bytes: &mut [u8], at: u64) -> Result<()> {
    file.read_exact_at(bytes, at).map_err(|error| source::read_error(&error))
}

struct Comparer {
    ours: Vec<u8>,
    theirs: Vec<u8>,
}

impl Comparer {
    fn compare(&mut self, job: &Job, mut run: Run) -> Result<()> {
        while run.len > 0 {
            let count = run.len.min(BUFFER as u64);
            self.ours.resize(count as usize, 0);
            self.theirs.resize(count as usize, 0);
            read(job.source, &mut self.theirs, run.from)?;
            let read_back = job.target.read_exact_at(&mut self.ours, run.to);
            read_back.map_err(|error| Error::io("read back", &error).at(job.target_path))?;
            if self.ours != self.theirs {
                let differs = self.ours.iter().zip(&self.theirs).position(|(a, b)| a != b).unwrap_or(0) as u64;
                let message = format!(
                    "{}: the written data differs from the source at byte {} of the source",
                    (job.tensor_at)(run.to + differs),
                    run.from + differs
                );
                return Err(Error::new(Status::Io, message).at(job.target_path));
            }
            run = Run { from: run.from + count, to: run.to + count, len: run.len - count };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(from: u64, to: u64, len: u64) -> Run {
        Run { from, to, len }
    }

    #[test]
    fn windows_cut_runs_and_compares_stay_within_them() {
        let runs = [run(0, 100, 10), run(50, 110, 10)];
        let (mut copy, mut compare) = (Cutter::new(&runs), Cutter::new(&runs));
        let mut window = Vec::new();
        assert_eq!(copy.take(15, &mut window), Some(115));
        assert_eq!(window, [run(0, 100, 10), run(50, 110, 5)]);
        assert_eq!(compare.before(115), Some(run(0, 100, 10)));
        assert_eq!(compare.before(115), Some(run(50, 110, 5)));
        assert_eq!(compare.before(115), None);
        assert_eq!(copy.take(15, &mut window), Some(120));
        assert_eq!(compare.before(u64::MAX), Some(run(55, 115, 5)));
        assert_eq!((copy.take(15, &mut window), compare.before(u64::MAX)), (None, None));
    }

    #[test]
    fn a_difference_is_found_and_named() {
        let (source, target) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let bytes: Vec<u8> = (0..300_000u32).map(|number| (number % 251) as u8).collect();
        source.write_all_at(&bytes, 0).unwrap();
        let copy = [run(0, 7, 299_990), run(299_990, 299_997, 4), run(299_996, 300_001, 4)];
        let name = |at: u64| format!("tensor at {at}");
        let mut job = Job {
            source: &source,
            target: &target,
            target_path: Path::new("target"),
            copy: &copy,
            compare: &copy,
            tensor_at: &name,
            done: 0,
            total: 9,
        };
        job.run(&mut PageCache::new(&source, 0, true), &mut None).unwrap();
        let mut back = vec![0; 300_005];
        target.read_exact_at(&mut back, 0).unwrap();
        assert_eq!(back[7..299_997], bytes[..299_990]);
        assert_eq!(back[300_001..], bytes[299_996..]);
        // Control: the comparison reads the files, not the copied buffer.
        let other = [run(1, 7, 299_990)];
        job.compare = &other;
        let error = job.run(&mut PageCache::new(&source, 0, true), &mut None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "target: tensor at 7: the written data differs from the source at byte 1 of the source"
        );
    }
}
