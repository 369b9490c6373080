//! Formatting of sizes, tables, colours, messages and JSON.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The value of the `schema` field of every JSON object.
pub const SCHEMA: &str = "safealign/1";

/// Prints an error as one line to standard error, with control characters escaped. The same message is printed only
/// once: a full disk or a read-only directory can fail many files in the same way.
pub fn error(message: &str) {
    static PRINTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if PRINTED.lock().unwrap_or_else(PoisonError::into_inner).insert(message.to_owned()) {
        print("error", message);
    }
}

pub fn warning(message: &str) {
    print("warning", message);
}

fn print(kind: &str, message: &str) {
    // If standard error is closed, there is nowhere to report it.
    let _ = writeln!(io::stderr(), "safealign: {kind}: {}", Plain(message));
}

/// Prints a line to standard output. Errors are ignored: if standard output is closed, the work still continues.
pub fn print_line(line: &str) {
    let _ = writeln!(io::stdout(), "{}", Plain(line));
}

/// The message of a system error, in lower case like all other messages.
pub fn system_message(error: &io::Error) -> String {
    let mut message = error.to_string();
    if message.as_bytes().get(1).is_some_and(u8::is_ascii_lowercase) {
        message[..1].make_ascii_lowercase();
    }
    message
}

/// Writes a JSON object on one line and adds the fields `schema` and `kind`.
pub fn json_line(
    out: &mut dyn Write,
    kind: &str,
    mut fields: serde_json::Map<String, serde_json::Value>,
) -> io::Result<()> {
    fields.insert("schema".to_owned(), SCHEMA.into());
    fields.insert("kind".to_owned(), kind.into());
    serde_json::to_writer(&mut *out, &fields)?;
    out.write_all(b"\n")
}

/// Builds the fields of a JSON object.
#[macro_export]
macro_rules! fields {
    ($($name:ident: $value:expr),* $(,)?) => {{
        let mut fields = serde_json::Map::new();
        $(fields.insert(stringify!($name).to_owned(), serde_json::json!($value));)*
        fields
    }};
}

/// A path as a string, for messages and JSON. Bytes that are not UTF-8 become U+FFFD.
pub fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A string with its control characters escaped, because they could control the terminal.
pub struct Plain<'a>(pub &'a str);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| match character.is_control() {
            true => write!(out, "{}", character.escape_default()),
            false => write!(out, "{character}"),
        })
    }
}

/// A size in decimal units: `59.3 GB`.
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
        if self.0 < 1000 {
            return out.pad(&format!("{} B", self.0));
        }
        let mut value = self.0 as f64 / 1000.0;
        let mut unit = 0;
        // 999.95 would be shown as 1000.0.
        while value >= 999.95 && unit + 1 < UNITS.len() {
            value /= 1000.0;
            unit += 1;
        }
        out.pad(&format!("{value:.1} {}", UNITS[unit]))
    }
}

/// `1 file`, `2 files`.
pub fn count(number: u64, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

/// Whether to use colours: only on a terminal, and not if NO_COLOR is set.
#[derive(Clone, Copy)]
pub struct Paint(pub bool);

impl Paint {
    pub fn for_stdout() -> Paint {
        let disabled = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Paint(io::stdout().is_terminal() && !disabled && !dumb)
    }

    pub fn red(self, text: &str) -> String {
        self.with("31", text)
    }

    pub fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A table of strings. Numbers are right-aligned, and the last column has no width limit.
pub struct Table {
    /// The heading, and whether the column is right-aligned.
    columns: Vec<(String, bool)>,
    rows: Vec<(Vec<String>, bool)>,
}

impl Table {
    pub fn new(columns: &[(&str, bool)]) -> Table {
        let columns = columns.iter().map(|(heading, right)| ((*heading).to_owned(), *right)).collect();
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row. A marked row is red.
    pub fn row(&mut self, cells: Vec<String>, marked: bool) {
        let cells = cells.iter().map(|cell| Plain(cell).to_string()).collect();
        self.rows.push((cells, marked));
    }

    pub fn write(&self, out: &mut dyn Write, paint: Paint) -> io::Result<()> {
        let width = |at: usize| {
            let cells = self.rows.iter().map(|(cells, _)| cells[at].chars().count());
            cells.chain([self.columns[at].0.chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |cells: &mut dyn Iterator<Item = &String>| {
            let mut line = String::new();
            for ((cell, width), (_, right)) in cells.zip(&widths).zip(&self.columns) {
                let padding = " ".repeat(width - cell.chars().count().min(*width));
                let cell = if *right { padding + cell } else { cell.clone() + &padding };
                line.push_str(&cell);
                line.push_str("  ");
            }
            line.trim_end().to_owned()
        };
        writeln!(out, "{}", paint.bold(&line(&mut self.columns.iter().map(|(heading, _)| heading))))?;
        for (cells, marked) in &self.rows {
            let text = line(&mut cells.iter());
            writeln!(out, "{}", if *marked { paint.red(&text) } else { text })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_one_decimal_and_never_1000() {
        for (size, shown) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (59_300_000_000, "59.3 GB"),
            (999_949_999, "999.9 MB"),
            (999_950_000, "1.0 GB"),
            (u64::MAX, "18446.7 PB"),
        ] {
            assert_eq!(Size(size).to_string(), shown);
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(Plain("a\x1b[31m\nb").to_string(), "a\\u{1b}[31m\\nb");
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&[("SIZE", true), ("FILE", false)]);
        table.row(vec!["1.0 kB".into(), "a".into()], true);
        table.row(vec!["7 B".into(), "é\n".into()], false);
        let mut out = Vec::new();
        table.write(&mut out, Paint(false)).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "  SIZE  FILE\n1.0 kB  a\n   7 B  é\\n\n");
    }
}
