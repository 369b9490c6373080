//! The best that the machine can do: plain I/O without a format.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The time of a piece of work.
pub fn timed<T>(work: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    let made = work();
    let elapsed = start.elapsed();
    drop(made);
    elapsed
}

/// The same bytes by one `write` for every 4 MiB.
pub fn write(path: &Path, bytes: &[u8], sync: bool) -> io::Result<()> {
    let mut file = File::create(path)?;
    for piece in bytes.chunks(4 << 20) {
        file.write_all(piece)?;
    }
    if sync { file.sync_all() } else { Ok(()) }
}

/// The header's JSON read and passed over by `serde_json`, without keeping a value.
pub fn skip_json(path: &Path) {
    let header = header(path);
    let skipped: serde::de::IgnoredAny = serde_json::from_slice(&header).expect("JSON");
    std::hint::black_box(skipped);
}

/// The header's bytes.
pub fn header(path: &Path) -> Vec<u8> {
    use std::io::Read;
    let mut file = File::open(path).expect("opens");
    let mut prefix = [0; 8];
    file.read_exact(&mut prefix).expect("reads");
    let mut header = vec![0; u64::from_le_bytes(prefix) as usize];
    file.read_exact(&mut header).expect("reads");
    header
}

/// `cp` without sharing blocks.
pub fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("--reflink=never").arg(from).arg(to).status().expect("cp");
    assert!(status.success());
}
