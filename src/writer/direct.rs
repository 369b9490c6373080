//! Large durable files, past the page cache: nothing of them has to be written back at the end, and nothing else is
//! pushed out of memory by them.
//!
//! The disk takes whole blocks from aligned memory only, so the bytes go through two buffers: one is filled while the
//! other is written.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use memmap2::MmapMut;
use rustix::fs::OFlags;

use super::{Progress, report};
use crate::error::{Error, Result};

/// From here on it pays; below, the page cache is as fast.
pub(super) const SMALLEST: u64 = 512 << 20;
/// Bytes of a buffer.
const BUFFER: usize = 8 << 20;
/// What offsets and lengths have to be a multiple of: no disk has larger blocks, and a page is as large.
const BLOCK: usize = 4096;

/// Writes slices one after the other from the start of the file, past the page cache. False, with nothing taken of
/// them, where the file system cannot.
pub(super) fn write_pieces(
    file: &File,
    pieces: &mut dyn Iterator<Item = &[u8]>,
    total: u64,
    progress: &mut Option<Progress>,
) -> Result<bool> {
    let Ok(plain) = rustix::fs::fcntl_getfl(file) else { return Ok(false) };
    if rustix::fs::fcntl_setfl(file, plain | OFlags::DIRECT).is_err() {
        return Ok(false);
    }
    // Not every file system that takes the flag also takes the write; this one is written over.
    let possible = MmapMut::map_anon(BLOCK).and_then(|block| file.write_all_at(&block, 0)).is_ok();
    let written = if possible { pass_through(file, pieces, total, progress).map(Some) } else { Ok(None) };
    // The tail of the file is no whole block.
    rustix::fs::fcntl_setfl(file, plain).map_err(|error| Error::io("fcntl", &error.into()))?;
    let Some(Written { bytes, tail }) = written? else { return Ok(false) };
    file.write_all_at(&tail, bytes).map_err(|error| Error::io("write", &error))?;
    report(progress, total, total)?;
    Ok(true)
}

/// How far it came.
#[derive(Default)]
struct Written {
    /// Bytes that are in place.
    bytes: u64,
    /// The bytes that follow, less than a block.
    tail: Vec<u8>,
}

/// A buffer on its way to the disk.
struct Filled {
    buffer: MmapMut,
    len: usize,
    offset: u64,
}

fn pass_through(
    file: &File,
    pieces: &mut dyn Iterator<Item = &[u8]>,
    total: u64,
    progress: &mut Option<Progress>,
) -> Result<Written> {
    let (to_disk, filled) = sync_channel::<Filled>(1);
    let (back, empty) = sync_channel::<MmapMut>(2);
    for _ in 0..2 {
        let buffer = MmapMut::map_anon(BUFFER).map_err(|error| Error::io("memory", &error))?;
        let _ = back.send(buffer);
    }
    std::thread::scope(|scope| {
        let disk = scope.spawn(move || write_filled(file, &filled, &back));
        let taken = fill(pieces, total, progress, &to_disk, &empty);
        drop(to_disk);
        let written = disk.join().unwrap_or_else(|_| Err(std::io::Error::other("the writing thread panicked")));
        // A disk that failed is why the filling ended, so it comes first.
        written.map_err(|error| Error::io("write", &error))?;
        taken
    })
}

/// The side of the disk: writes what comes, until no more comes or a write fails.
fn write_filled(file: &File, filled: &Receiver<Filled>, back: &SyncSender<MmapMut>) -> std::io::Result<()> {
    for Filled { buffer, len, offset } in filled {
        file.write_all_at(&buffer[..len], offset)?;
        // Nobody waits for the last ones.
        let _ = back.send(buffer);
    }
    Ok(())
}

/// The side of the caller: fills buffers with the slices. Whole blocks go to the disk, the rest is the tail.
fn fill(
    pieces: &mut dyn Iterator<Item = &[u8]>,
    total: u64,
    progress: &mut Option<Progress>,
    to_disk: &SyncSender<Filled>,
    empty: &Receiver<MmapMut>,
) -> Result<Written> {
    let mut written = Written::default();
    let mut rest: &[u8] = &[];
    // The other side hangs up only when a write has failed, which it says itself.
    while let Ok(mut buffer) = empty.recv() {
        let mut len = 0;
        while len < BUFFER {
            if rest.is_empty() {
                match pieces.next() {
                    Some(piece) => rest = piece,
                    None => break,
                }
            }
            let (now, later) = rest.split_at(rest.len().min(BUFFER - len));
            buffer[len..len + now.len()].copy_from_slice(now);
            len += now.len();
            rest = later;
        }
        let whole = len / BLOCK * BLOCK;
        written.tail = buffer[whole..len].to_vec();
        let at_the_end = len < BUFFER;
        if whole > 0 && to_disk.send(Filled { buffer, len: whole, offset: written.bytes }).is_err() {
            break;
        }
        written.bytes += whole as u64;
        report(progress, written.bytes, total)?;
        if at_the_end {
            break;
        }
    }
    Ok(written)
}
