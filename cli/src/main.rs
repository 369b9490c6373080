//! The `safealign` command: finds and repairs safetensors files that loaders have to copy.

mod args;
mod bundles;
mod find;
mod inspect;
mod interrupt;
mod output;
mod overlay;
mod picture;
mod progress;
mod repair;
mod report;
mod scan;
mod verify;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Command};

/// The result of a command. The value is the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Fine = 0,
    /// `scan --check` found misaligned tensors, or `verify` found a difference.
    Found = 1,
    Failed = 2,
    /// `scan` found that a shard is missing.
    ShardMissing = 3,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match run(cli.command) {
        Ok(outcome) => outcome,
        // The reader closed the pipe, as in `safealign scan | head`. This is not an error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Outcome::Fine,
        Err(error) => {
            output::error(&format!("standard output: {}", output::system_message(&error)));
            Outcome::Failed
        }
    };
    ExitCode::from(outcome as u8)
}

fn run(command: Command) -> io::Result<Outcome> {
    match command {
        Command::Scan(args) => scan::run(&args),
        Command::Repair(args) => repair::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Overlay(args) => overlay::run(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "safealign", &mut script);
            io::stdout().write_all(&script)?;
            Ok(Outcome::Fine)
        }
        Command::Man { command } => man(command.as_deref()),
    }
}

/// Writes the manual page of the command, or of one of its subcommands.
fn man(name: Option<&str>) -> io::Result<Outcome> {
    let mut root = Cli::command();
    root.build();
    let page = match name {
        None => root,
        Some(name) => match root.find_subcommand(name) {
            Some(found) => found.clone(),
            None => {
                output::error(&format!("unknown command `{name}`; use `safealign --help` to list the commands"));
                return Ok(Outcome::Failed);
            }
        },
    };
    let mut out = Vec::new();
    clap_mangen::Man::new(page).render(&mut out)?;
    io::stdout().write_all(&out)?;
    Ok(Outcome::Fine)
}
