//! Other libraries. Those that are not Rust run as separate programs that read one command per line, run it, and print
//! its time in nanoseconds by their own clock.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A program that runs commands.
pub struct Peer {
    pub name: String,
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peer {
    fn start(name: &str, mut command: Command) -> Option<Peer> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let (to, from) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        Some(Peer { name: name.to_owned(), child, to, from })
    }

    /// Sends a command and returns the number that comes back.
    pub fn ask(&mut self, command: &str) -> u64 {
        writeln!(self.to, "{command}").expect("the peer listens");
        let mut answer = String::new();
        self.from.read_line(&mut answer).expect("the peer answers");
        answer.trim().parse().unwrap_or_else(|_| panic!("{}: {command}: {answer:?}", self.name))
    }

    pub fn time(&mut self, command: &str, path: &Path) -> Duration {
        Duration::from_nanos(self.ask(&format!("{command} {}", path.display())))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = writeln!(self.to, "quit");
        let _ = self.child.wait();
    }
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers")
}

/// Python's `safetensors`, in the Python that `scripts/bench.sh` made.
pub fn python() -> Option<Peer> {
    let mut command = Command::new(std::env::var_os("SAFEALIGN_BENCH_PYTHON")?);
    command.arg(directory().join("python_peer.py"));
    Peer::start("Python safetensors", command)
}

/// MLX, through the program that `scripts/bench.sh` built.
pub fn mlx() -> Option<Peer> {
    Peer::start("MLX", Command::new(std::env::var_os("SAFEALIGN_BENCH_MLX")?))
}

/// The crate's way to open a file: map it and read its metadata.
pub fn open_with_crate(path: &Path) -> (memmap2::Mmap, safetensors::tensor::Metadata) {
    let file = std::fs::File::open(path).expect("opens");
    // SAFETY: the file is this program's own, and nothing changes it.
    let map = unsafe { memmap2::Mmap::map(&file) }.expect("maps");
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&map).expect("opens");
    (map, metadata)
}
