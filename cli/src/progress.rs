//! The progress bar.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::print_line;

/// A progress bar with rate and time left. It is only drawn if standard error is a terminal.
pub struct Bar(Option<ProgressBar>);

impl Bar {
    pub fn new(bytes: u64, is_hidden: bool) -> Bar {
        if is_hidden || bytes == 0 || !io::stderr().is_terminal() {
            return Bar(None);
        }
        let template = "{bar:30} {decimal_bytes} of {decimal_total_bytes}  {decimal_bytes_per_sec}  {eta} left";
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        Bar(Some(ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr()).with_style(style)))
    }

    /// Sets the total size in bytes.
    pub fn set_total(&self, bytes: u64) {
        if let Some(bar) = &self.0 {
            bar.set_length(bytes);
        }
    }

    pub fn position(&self) -> u64 {
        self.0.as_ref().map_or(0, ProgressBar::position)
    }

    pub fn set_position(&self, done: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(done);
        }
    }

    /// Hides the bar while `act` writes to the terminal.
    pub fn suspend(&self, act: impl FnOnce()) {
        match &self.0 {
            Some(bar) => bar.suspend(act),
            None => act(),
        }
    }

    /// Prints a line to standard output, above the bar.
    pub fn print_line(&self, line: &str) {
        self.suspend(|| print_line(line));
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
