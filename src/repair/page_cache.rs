//! Leaves the page cache as it was found: what a long copy read and wrote is given up as it goes, so that a bundle of
//! 95 GB does not push everything else out of memory.

use std::fs::File;

use super::run::Run;
use crate::error::{Error, Result};

/// Smaller files are left in the cache, as by any copy: they take little, and are often used next.
const POLITE_FROM: u64 = 256 << 20;
/// Files that take a larger part of memory are given up while they are copied, others when they are done: waiting for
/// the disk as one goes costs time that only the large ones are worth.
const PART_OF_MEMORY: u64 = 16;
/// One look at whether the source is in memory for as many bytes.
const REGION: u64 = 16 << 20;
/// Windows that may be on their way to the disk at once.
const BEHIND: usize = 8;
/// A piece of the source that is worth a call of its own.
const WORTH: u64 = 256 << 10;

pub(super) struct PageCache<'a> {
    source: &'a File,
    /// Whether each region of the source was in memory beforehand: then somebody uses it, and it stays. Empty where
    /// nothing is to be given up at all.
    was_cached: Vec<bool>,
    /// Whether to give up while copying already.
    as_it_goes: bool,
    /// What was written, the latest last: start and end.
    written: std::collections::VecDeque<(u64, u64)>,
    /// Whether to wait for the disk, which is what keeps dirty pages few.
    wait: bool,
}

impl<'a> PageCache<'a> {
    /// For a source of that many bytes. `wait` is whether the disk is waited for anyway.
    pub(super) fn new(source: &'a File, size: u64, wait: bool) -> PageCache<'a> {
        let mut was_cached = Vec::new();
        if size >= POLITE_FROM {
            // The middle: reading ahead has not been there yet.
            let middle = |at: u64| (at * REGION + REGION / 2).min(size - 1);
            was_cached.extend((0..size.div_ceil(REGION)).map(|at| is_cached(source, middle(at))));
        }
        let as_it_goes = size >= POLITE_FROM && size > memory() / PART_OF_MEMORY;
        PageCache { source, was_cached, as_it_goes, written: Default::default(), wait }
    }

    /// Those runs are done: their bytes are not needed any more.
    pub(super) fn finished(&mut self, target: &File, runs: &[Run]) -> Result<()> {
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Ok(()) };
        if !self.as_it_goes {
            return Ok(());
        }
        for run in runs.iter().filter(|run| run.len >= WORTH && !self.keep(run.from)) {
            give_up(self.source, run.from, run.len);
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
            // Pages that are still dirty stay.
            give_up(target, start, end - start);
        }
        Ok(())
    }

    /// Gives up the rest. The new file is on the disk, if that is waited for.
    pub(super) fn done(&self, target: &File) {
        if self.was_cached.is_empty() {
            return;
        }
        for (at, _) in self.was_cached.iter().enumerate().filter(|(_, cached)| !**cached) {
            give_up(self.source, at as u64 * REGION, REGION);
        }
        // Of dirty pages the advice would start the writing that nobody wants to wait for.
        if self.wait || self.as_it_goes {
            give_up(target, 0, u64::MAX);
        }
    }

    fn keep(&self, at: u64) -> bool {
        self.was_cached.get((at / REGION) as usize).copied().unwrap_or(false)
    }
}

/// Drops clean pages; those that somebody has mapped stay. `u64::MAX` is the whole file.
#[cfg(target_os = "linux")]
fn give_up(file: &File, start: u64, len: u64) {
    let len = std::num::NonZeroU64::new(len).filter(|len| len.get() != u64::MAX);
    // Only advice: what does not work is not done.
    let _ = rustix::fs::fadvise(file, start, len, rustix::fs::Advice::DontNeed);
}

/// Sends dirty pages on their way to the disk, and if asked waits until they are there.
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
        // A failed write is told once: the fsync before the rename would not hear of it again.
        Some(libc::EIO | libc::ENOSPC | libc::EDQUOT) => Err(Error::io("write back", &error)),
        _ => Ok(()),
    }
}

/// Bytes of memory that the system has.
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
fn give_up(_file: &File, _start: u64, _len: u64) {}

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
