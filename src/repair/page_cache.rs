//! Drops the pages that a long copy read and wrote from the page cache, so that copying a large bundle does not evict
//! everything else.

use std::fs::File;

use super::run::Run;
use crate::error::{Error, Result};

/// Smaller files stay in the cache: they take little memory, and are often used next.
const DROP_FROM: u64 = 256 << 20;
/// Files that are larger than this fraction of memory are dropped while they are copied, others at the end: waiting for
/// the disk during the copy takes time.
const PART_OF_MEMORY: u64 = 16;
/// Size of a region in bytes. One page of each region is checked for whether the source is in memory.
const REGION: u64 = 16 << 20;
/// Number of windows that may be in writeback at once.
const BEHIND: usize = 8;
/// Smaller pieces of the source are not dropped one by one.
const WORTH: u64 = 256 << 10;

pub(super) struct PageCache<'a> {
    source: &'a File,
    /// Whether each region of the source was in memory before. Such a region is in use, and stays. Empty if nothing is
    /// to be dropped.
    was_cached: Vec<bool>,
    /// Whether to drop pages during the copy.
    during_copy: bool,
    /// Start and end of the ranges that were written, the latest last.
    written: std::collections::VecDeque<(u64, u64)>,
    /// Whether to wait for the disk, which limits the number of dirty pages.
    wait: bool,
}

impl<'a> PageCache<'a> {
    /// For a source of `size` bytes. `wait` is whether the caller waits for the disk.
    pub(super) fn new(source: &'a File, size: u64, wait: bool) -> PageCache<'a> {
        let mut was_cached = Vec::new();
        if size >= DROP_FROM {
            // The middle, which read-ahead has not reached yet.
            let middle = |at: u64| (at * REGION + REGION / 2).min(size - 1);
            was_cached.extend((0..size.div_ceil(REGION)).map(|at| is_cached(source, middle(at))));
        }
        let during_copy = size >= DROP_FROM && size > memory() / PART_OF_MEMORY;
        PageCache { source, was_cached, during_copy, written: Default::default(), wait }
    }

    /// Call this when runs are done and their bytes are no longer needed.
    pub(super) fn finished(&mut self, target: &File, runs: &[Run]) -> Result<()> {
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Ok(()) };
        if !self.during_copy {
            return Ok(());
        }
        for run in runs.iter().filter(|run| run.len >= WORTH && !self.keep(run.from)) {
            drop_pages(self.source, run.from, run.len);
        }
        let (start, end) = (first.to, last.to + last.len);
        write_back(target, start, end - start, false)?;
        self.written.push_back((start, end));
        if self.written.len() > BEHIND
            && let Some((start, end)) = self.written.pop_front()
        {
            if self.wait {
                write_back(target, start, end - start, true)?;
            }
            // Dirty pages stay.
            drop_pages(target, start, end - start);
        }
        Ok(())
    }

    /// Drops the rest. With `wait`, the new file must be on the disk.
    pub(super) fn done(&self, target: &File) {
        if self.was_cached.is_empty() {
            return;
        }
        for (at, _) in self.was_cached.iter().enumerate().filter(|(_, cached)| !**cached) {
            drop_pages(self.source, at as u64 * REGION, REGION);
        }
        // The advice would start writeback of dirty pages.
        if self.wait || self.during_copy {
            drop_pages(target, 0, u64::MAX);
        }
    }

    fn keep(&self, at: u64) -> bool {
        self.was_cached.get((at / REGION) as usize).copied().unwrap_or(false)
    }
}

/// Drops clean pages; pages that are mapped stay. A length of `u64::MAX` is the entire file.
#[cfg(target_os = "linux")]
fn drop_pages(file: &File, start: u64, len: u64) {
    let len = std::num::NonZeroU64::new(len).filter(|len| len.get() != u64::MAX);
    // It is only advice: errors are ignored.
    let _ = rustix::fs::fadvise(file, start, len, rustix::fs::Advice::DontNeed);
}

/// Starts writeback of dirty pages and, with `wait`, waits for it.
#[cfg(target_os = "linux")]
fn write_back(file: &File, start: u64, len: u64, wait: bool) -> Result<()> {
    use std::os::fd::AsRawFd;
    let (Ok(start), Ok(len)) = (start.try_into(), len.try_into()) else { return Ok(()) };
    let flags = match wait {
        false => libc::SYNC_FILE_RANGE_WRITE,
        true => libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER,
    };
    // SAFETY: takes numbers only, and the descriptor is open.
    if unsafe { libc::sync_file_range(file.as_raw_fd(), start, len, flags) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        // A write error is reported only once: the fsync before the rename would not report it again.
        Some(libc::EIO | libc::ENOSPC | libc::EDQUOT) => Err(Error::io("write back", &error)),
        _ => Ok(()),
    }
}

/// Size of the system's memory in bytes.
#[cfg(target_os = "linux")]
fn memory() -> u64 {
    let found = rustix::system::sysinfo();
    (found.totalram as u64).saturating_mul(u64::from(found.mem_unit))
}

#[cfg(target_os = "linux")]
fn is_cached(file: &File, at: u64) -> bool {
    let mut byte = [0];
    let mut bytes = [std::io::IoSliceMut::new(&mut byte)];
    rustix::io::preadv2(file, &mut bytes, at, rustix::io::ReadWriteFlags::NOWAIT).is_ok_and(|count| count == 1)
}

#[cfg(not(target_os = "linux"))]
fn drop_pages(_file: &File, _start: u64, _len: u64) {}

#[cfg(not(target_os = "linux"))]
fn write_back(_file: &File, _start: u64, _len: u64, _wait: bool) -> Result<()> {
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn memory() -> u64 {
    u64::MAX
}

#[cfg(not(target_os = "linux"))]
fn is_cached(_file: &File, _at: u64) -> bool {
    true
}
