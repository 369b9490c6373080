//! The table of docs/performance.md: each row against its floor and every peer, in one run, taking turns.
//!
//! `scripts/bench.sh` runs it with the peers in place; `cargo bench` alone leaves out those that are not there. Figures
//! are medians; a ratio is the median of the ratios of the turns, each of which runs the floor and the others one after
//! the other, so that what slows the machine down slows down all of them.

mod floors;
mod memory;
mod models;
mod peers;
mod plot;
mod report;
mod rows;

use std::path::PathBuf;

/// What to run, from the command line and the environment.
pub struct Settings {
    /// A directory in memory.
    pub memory: PathBuf,
    /// A directory on the disk.
    pub disk: PathBuf,
    pub turns: usize,
    /// Runs only rows whose name contains this.
    pub only: Option<String>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    // A measurement of memory needs a process of its own: this program, called again.
    if let Some(("--memory", rest)) = arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return memory::child(rest);
    }
    let directory = |variable: &str, default: &str| {
        let root = std::env::var_os(variable).map_or_else(|| PathBuf::from(default), PathBuf::from);
        tempfile::Builder::new().prefix("safealign-bench-").tempdir_in(root).expect("a directory for the files")
    };
    let memory = directory("SAFEALIGN_BENCH_MEMORY", "/dev/shm");
    let disk = directory("SAFEALIGN_BENCH_DISK", env!("CARGO_TARGET_TMPDIR"));
    let turns = std::env::var("SAFEALIGN_BENCH_TURNS").ok().and_then(|turns| turns.parse().ok()).unwrap_or(7);
    let settings = Settings {
        memory: memory.path().to_owned(),
        disk: disk.path().to_owned(),
        turns,
        only: arguments.first().cloned(),
    };
    if settings.only.as_deref() == Some("plot") {
        return plot::run(&settings);
    }
    let rows = rows::run(&settings);
    report::print(&rows);
    if let Some(path) = std::env::var_os("SAFEALIGN_BENCH_JSON") {
        report::json(&rows, path.as_ref());
    }
}
