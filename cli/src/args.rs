//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use safealign::layout::{Layout, LayoutOptions};
use safealign::repair::RepairOptions;
use safealign::writer::Durability;

#[derive(Parser)]
#[command(
    name = "safealign",
    version,
    about = "Find and repair safetensors files that loaders have to copy",
    long_about = "Find and repair safetensors files that loaders have to copy.\n\n\
        A loader that maps a file can use a tensor in place only if the tensor's offset in the file is a multiple of \
        its dtype width. It copies every other tensor into anonymous memory, which the system cannot evict. The \
        model's output does not change, so the copies are easy to miss.",
    after_help = "Examples:\n  \
        safealign scan models/                          report what a loader copies\n  \
        safealign repair models/ --output repaired/     write a repaired copy\n  \
        safealign repair models/ --in-place             replace the files that need repair\n\n\
        Exit status: 0 success, 1 misaligned tensors found (scan --check) or difference found (verify), 2 error, \
        3 shard missing (scan).\n\
        Set NO_COLOR to turn off colours.",
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Report which files have tensors that a loader has to copy
    ///
    /// Exits with 3 if a shard is missing.
    Scan(Scan),
    /// Rewrite files so that every tensor can be mapped without a copy
    Repair(Repair),
    /// Show the contents and the layout of a file
    Inspect(Inspect),
    /// Compare the tensors of two files or directories, byte for byte
    Verify(Verify),
    /// Create an aligned copy of a directory that must not be modified
    ///
    /// Writes repaired copies of the misaligned files, and symbolic links to everything else. A later run updates only
    /// what is missing or out of date. Use it for download caches, whose files are named by their hash, and for
    /// read-only disks.
    Overlay(Overlay),
    /// Print a completion script for a shell
    Completions {
        /// The shell to generate the script for
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man {
        /// Print the page of this subcommand
        command: Option<String>,
    },
}

#[derive(Args)]
pub struct Scan {
    /// Files, or directories to search recursively
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Exit with 1 if any tensor is misaligned
    #[arg(long)]
    pub check: bool,
    /// Also count the tensors whose offset is not a multiple of N bytes
    #[arg(long, value_name = "N", value_parser = alignment)]
    pub alignment: Option<u64>,
    /// Also list aligned files
    #[arg(long)]
    pub all: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Repair {
    /// Files, or directories to search recursively
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Replace the files that need repair, each atomically
    #[arg(long, conflicts_with = "output")]
    pub in_place: bool,
    /// Write a repaired copy to this directory; files that need no repair are copied unchanged
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Run all checks and print what would be done, but write nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub write: WriteArgs,
    /// Also rewrite files that need no repair
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// Options for writing files.
#[derive(Args)]
pub struct WriteArgs {
    /// Layout of the new file. `compact` has no gaps, and every reader accepts it; it may reorder tensors. `padded`
    /// keeps the order and starts every tensor at a multiple of the alignment; the reference reader (the safetensors
    /// package) rejects it
    #[arg(long, value_enum, default_value = "compact")]
    pub layout: LayoutName,
    /// Alignment in bytes: a power of two from 8 to 2097152
    #[arg(long, value_name = "N", default_value_t = safealign::layout::DEFAULT_ALIGNMENT, value_parser = alignment)]
    pub alignment: u64,
    /// Do not compare the tensors of the new file with the source before the file is published
    #[arg(long)]
    pub no_verify: bool,
    /// Drop the bytes after the last tensor; without this option, a misaligned file with such bytes is not repaired
    #[arg(long)]
    pub drop_trailing: bool,
    /// Do not sync the new file to disk; it is still replaced atomically
    #[arg(long)]
    pub no_sync: bool,
}

impl WriteArgs {
    /// The library's options for these arguments.
    pub fn repair_options(&self) -> RepairOptions<'static> {
        RepairOptions {
            layout: self.layout(),
            durability: self.durability(),
            verify: !self.no_verify,
            drop_trailing: self.drop_trailing,
            ..RepairOptions::default()
        }
    }

    pub fn durability(&self) -> Durability {
        if self.no_sync { Durability::NotDurable } else { Durability::Durable }
    }

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
    /// The file to inspect
    pub file: PathBuf,
    /// Print one JSON object per line: the file, then each tensor
    #[arg(long)]
    pub json: bool,
    /// Draw the layout in the terminal instead of listing the tensors
    #[arg(long, conflicts_with = "json")]
    pub map: bool,
    /// Write the layout as an SVG image to OUT
    #[arg(long, value_name = "OUT")]
    pub svg: Option<PathBuf>,
}

#[derive(Args)]
pub struct Verify {
    /// The first file or directory
    pub a: PathBuf,
    /// The second file or directory
    pub b: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Overlay {
    /// The source directory, such as a snapshot in a download cache
    pub bundle: PathBuf,
    /// The directory to create, to be loaded instead of the source
    pub output: PathBuf,
    #[command(flatten)]
    pub write: WriteArgs,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// Parses an alignment in bytes.
fn alignment(value: &str) -> Result<u64, String> {
    use safealign::layout::{MAX_ALIGNMENT, MIN_ALIGNMENT};
    let number: Option<u64> = value.parse().ok();
    number
        .filter(|number| number.is_power_of_two() && (MIN_ALIGNMENT..=MAX_ALIGNMENT).contains(number))
        .ok_or_else(|| format!("expected a power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}"))
}
