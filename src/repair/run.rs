//! Ranges of bytes that are copied from one file to another.

/// A range of bytes: its offset in either file, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub from: u64,
    pub to: u64,
    pub len: u64,
}

/// The runs, with those joined that are adjacent in both files.
pub(super) fn merged(runs: impl Iterator<Item = Run>) -> Vec<Run> {
    let mut out: Vec<Run> = Vec::new();
    runs.for_each(|run| push(&mut out, run));
    out
}

/// Appends a run, joined with the last one if they are adjacent in both files.
pub(super) fn push(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        _ if run.len == 0 => {}
        Some(last) if last.from + last.len == run.from && last.to + last.len == run.to => last.len += run.len,
        _ => runs.push(run),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(from: u64, to: u64, len: u64) -> Run {
        Run { from, to, len }
    }

    #[test]
    fn runs_that_are_adjacent_in_both_files_are_joined() {
        let runs = [run(0, 100, 10), run(10, 110, 5), run(15, 120, 5), run(99, 125, 0), run(30, 125, 5)];
        assert_eq!(merged(runs.into_iter()), [run(0, 100, 15), run(15, 120, 5), run(30, 125, 5)]);
    }
}
