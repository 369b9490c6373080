//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use safealign::layout::{Layout, LayoutOptions};

#[derive(Parser)]
#[command(
    name = "safealign",
    version,
    about = "Finds safetensors files that loaders have to copy, and mends them",
    long_about = "Finds safetensors files that loaders have to copy, and mends them.\n\n\
        A loader that maps a file shares the mapping only with a tensor whose offset is a multiple of its dtype width. \
        It copies the others into memory that cannot be evicted. The model's output is the same either way, so nothing \
        shows it but this command.",
    after_help = "Two commands mend a folder of models:\n  \
        safealign scan models/                          what it costs now\n  \
        safealign repair models/ --output mended/       a mended copy; or --in-place\n\n\
        Exit status: 0 fine, 1 found or differs, 2 error. NO_COLOR is honoured.",
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Say which files a loader has to copy, and how much of them
    Scan(Scan),
    /// Write files anew so that every tensor maps without a copy
    Repair(Repair),
    /// Show what is in a file, and where
    Inspect(Inspect),
    /// Compare the tensors of two files or bundles, bit for bit
    Verify(Verify),
    /// Make a folder that loads in place of a bundle that must not change
    Overlay(Overlay),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man {
        /// A command, for its own page
        command: Option<String>,
    },
}

#[derive(Args)]
pub struct Scan {
    /// Files, folders (searched with their subfolders), whole caches of models
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Exit with 1 if any tensor is misaligned
    #[arg(long)]
    pub check: bool,
    /// Count the tensors that do not stand on a multiple of N bytes, too
    #[arg(long, value_name = "N", value_parser = alignment)]
    pub alignment: Option<u64>,
    /// List aligned files, too
    #[arg(long)]
    pub all: bool,
    /// One JSON object a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Repair {
    /// Files, or folders (searched with their subfolders)
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Replace the files that need it, each in one step
    #[arg(long, conflicts_with = "output")]
    pub in_place: bool,
    /// Write a mended copy into a folder: every file, those that need no repair as they are
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Check everything and say what would be done, without doing it
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub how: How,
    /// Lay out anew also files that need no repair
    #[arg(long)]
    pub force: bool,
    /// One JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// How files are written.
#[derive(Args)]
pub struct How {
    /// compact: no holes, every reader opens the file. padded: the order is kept and every tensor stands on a multiple
    /// of the alignment, but the reference reader (the safetensors package) refuses the file
    #[arg(long, value_enum, default_value = "compact")]
    pub layout: LayoutName,
    /// In bytes: a power of two from 8 to 2097152
    #[arg(long, value_name = "N", default_value_t = safealign::layout::DEFAULT_ALIGNMENT, value_parser = alignment)]
    pub alignment: u64,
    /// Do not compare the new file's tensors with the old one's before it is put in place
    #[arg(long)]
    pub no_verify: bool,
    /// Leave out bytes after the last tensor; without this, a misaligned file that has some is refused
    #[arg(long)]
    pub drop_trailing: bool,
    /// Do not wait until the file is on the disk; it is still replaced in one step
    #[arg(long)]
    pub no_sync: bool,
}

impl How {
    pub fn layout(&self) -> LayoutOptions {
        let layout = match self.layout {
            LayoutName::Compact => Layout::Compact,
            LayoutName::Padded => Layout::Padded,
        };
        LayoutOptions { layout, alignment: self.alignment }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub enum LayoutName {
    Compact,
    Padded,
}

#[derive(Args)]
pub struct Inspect {
    /// The file
    pub file: PathBuf,
    /// One JSON object a line: the file, then each tensor
    #[arg(long)]
    pub json: bool,
    /// Draw the layout instead of listing the tensors
    #[arg(long, conflicts_with = "json")]
    pub map: bool,
    /// Write the layout as an SVG picture
    #[arg(long, value_name = "OUT")]
    pub svg: Option<PathBuf>,
}

#[derive(Args)]
pub struct Verify {
    /// A file or a folder
    pub a: PathBuf,
    /// What it is compared with
    pub b: PathBuf,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// Misaligned files are written repaired, everything else is a symbolic link. Run again, it does only what is missing or
/// stale. For caches of downloads, whose files are named by their hash, and for read-only disks.
#[derive(Args)]
pub struct Overlay {
    /// The folder to be replaced, such as a snapshot in a cache
    pub bundle: PathBuf,
    /// The folder to make, which an engine is then pointed at
    pub output: PathBuf,
    #[command(flatten)]
    pub how: How,
    /// One JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// An alignment in bytes.
fn alignment(text: &str) -> Result<u64, String> {
    use safealign::layout::{MAX_ALIGNMENT, MIN_ALIGNMENT};
    let number: Option<u64> = text.parse().ok();
    number
        .filter(|number| number.is_power_of_two() && (MIN_ALIGNMENT..=MAX_ALIGNMENT).contains(number))
        .ok_or_else(|| format!("expected a power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}"))
}
