//! Draws the layout of a file, in the terminal and as SVG.

use std::fmt::Write as _;
use std::io::{self, Write};

use crate::output::{Paint, Size};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Header,
    /// Adjacent aligned tensors alternate between `Even` and `Odd`, so that their boundaries are visible.
    Even,
    Odd,
    Misaligned,
    Gap,
    Trailing,
}

impl Kind {
    const ALL: [Kind; 6] = [Kind::Header, Kind::Even, Kind::Odd, Kind::Misaligned, Kind::Gap, Kind::Trailing];

    /// The character to draw without colours.
    fn symbol(self) -> char {
        match self {
            Kind::Header => 'H',
            Kind::Even => '=',
            Kind::Odd => '-',
            Kind::Misaligned => 'x',
            Kind::Gap => '.',
            Kind::Trailing => '~',
        }
    }

    fn terminal_colour(self) -> &'static str {
        match self {
            Kind::Header => "34",
            Kind::Even => "32",
            Kind::Odd => "36",
            Kind::Misaligned => "31",
            Kind::Gap => "90",
            Kind::Trailing => "33",
        }
    }

    /// Colours that colour-blind readers can distinguish: dark blue, two greens, orange, grey, yellow.
    fn svg_colour(self) -> &'static str {
        match self {
            Kind::Header => "#004488",
            Kind::Even => "#44aa99",
            Kind::Odd => "#88ccbb",
            Kind::Misaligned => "#d55e00",
            Kind::Gap => "#dddddd",
            Kind::Trailing => "#ddcc77",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Header => "header",
            Kind::Even | Kind::Odd => "tensors",
            Kind::Misaligned => "misaligned: copied by a loader",
            Kind::Gap => "gaps",
            Kind::Trailing => "after the last tensor",
        }
    }
}

/// A part of the file.
pub struct Span {
    start: u64,
    end: u64,
    kind: Kind,
    label: String,
}

impl Span {
    pub fn header(end: u64) -> Span {
        Span { start: 0, end, kind: Kind::Header, label: format!("header\n{}", Size(end)) }
    }

    pub fn gap(start: u64, end: u64) -> Span {
        Span { start, end, kind: Kind::Gap, label: format!("gap\n{}", Size(end - start)) }
    }

    pub fn trailing(start: u64, end: u64) -> Span {
        let label = format!("{}\n{}", Kind::Trailing.name(), Size(end - start));
        Span { start, end, kind: Kind::Trailing, label }
    }

    pub fn tensor(start: u64, end: u64, is_misaligned: bool, label: String) -> Span {
        Span { start, end, kind: if is_misaligned { Kind::Misaligned } else { Kind::Even }, label }
    }
}

/// The parts of a file in file order.
pub struct Picture {
    spans: Vec<Span>,
    size: u64,
}

/// The maximum number of rows in the terminal.
const ROWS: u64 = 16;
/// The dimensions of the image in SVG units.
const WIDTH: u64 = 1000;
const ROW_HEIGHT: u64 = 28;
const SVG_ROWS: u64 = 24;

impl Picture {
    pub fn new(mut spans: Vec<Span>, size: u64) -> Picture {
        let mut is_odd = false;
        for span in &mut spans {
            match span.kind {
                Kind::Even if is_odd => span.kind = Kind::Odd,
                _ => {}
            }
            is_odd = span.kind == Kind::Even;
        }
        Picture { spans, size }
    }

    fn kinds(&self) -> impl Iterator<Item = Kind> {
        Kind::ALL.into_iter().filter(|kind| self.spans.iter().any(|span| span.kind == *kind))
    }

    /// Draws a grid in reading order. Each cell shows the kind that most of its bytes have. The first cell is the
    /// header.
    pub fn draw(&self, out: &mut dyn Write, paint: Paint, columns: usize) -> io::Result<()> {
        let width = columns.saturating_sub(16).clamp(16, 120) as u64;
        let cells = (width * ROWS).min(self.size.max(1));
        let edge = |cell: u64| (u128::from(self.size) * u128::from(cell) / u128::from(cells)) as u64;
        let mut first = 0;
        for row in 0..cells.div_ceil(width) {
            write!(out, "{:>12}  ", edge(row * width))?;
            let mut line = String::new();
            let mut colour = None;
            for cell in row * width..((row + 1) * width).min(cells) {
                let (start, end) = (edge(cell), edge(cell + 1));
                while self.spans.get(first).is_some_and(|span| span.end <= start) {
                    first += 1;
                }
                let kind = if cell == 0 { Kind::Header } else { self.most(first, start, end) };
                if paint.0 && colour != Some(kind) {
                    let _ = write!(line, "\x1b[{}m", kind.terminal_colour());
                    colour = Some(kind);
                }
                line.push(if paint.0 && kind != Kind::Gap { '█' } else { kind.symbol() });
            }
            writeln!(out, "{line}{}", if paint.0 { "\x1b[0m" } else { "" })?;
        }
        writeln!(out)?;
        for kind in self.kinds() {
            let symbol = if paint.0 && kind != Kind::Gap { '█' } else { kind.symbol() };
            let bytes = self.spans.iter().filter(|span| span.kind == kind).map(|span| span.end - span.start).sum();
            let symbol = paint.with(kind.terminal_colour(), &symbol.to_string());
            writeln!(out, "  {symbol} {} ({})", kind.name(), Size(bytes))?;
        }
        writeln!(out, "  each cell is {}", Size(self.size.div_ceil(cells)))
    }

    /// The kind of most bytes from `start` to `end`. `first` is the index of a span that starts at or before `start`.
    fn most(&self, first: usize, start: u64, end: u64) -> Kind {
        let mut bytes = [0; Kind::ALL.len()];
        for span in self.spans[first.min(self.spans.len())..].iter().take_while(|span| span.start < end) {
            bytes[span.kind as usize] += span.end.min(end).saturating_sub(span.start.max(start));
        }
        // If two kinds have the same number of bytes, the first one in `Kind::ALL` is used.
        let most = Kind::ALL.into_iter().rev().max_by_key(|kind| bytes[*kind as usize]);
        most.unwrap_or(Kind::Gap)
    }

    /// Draws the file as an SVG image: rows of equal size, each part with its description as a tooltip.
    pub fn svg(&self, title: &str) -> String {
        let rows = SVG_ROWS.min(self.spans.len() as u64 * 2).max(1);
        let row_bytes = self.size.div_ceil(rows).max(1);
        let legend: Vec<Kind> = self.kinds().filter(|kind| *kind != Kind::Odd).collect();
        let top = 56;
        let height = top + rows * ROW_HEIGHT + 40;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-10 0 {} {height}\" \
             font-family=\"sans-serif\" font-size=\"14\" role=\"img\">\n<title>{}</title>\n\
             <rect x=\"-10\" width=\"{}\" height=\"{height}\" fill=\"white\"/>\n\
             <text y=\"24\" font-weight=\"bold\">{}</text>\n<text y=\"44\">{}</text>\n",
            WIDTH + 20,
            escaped(title),
            WIDTH + 20,
            escaped(title),
            Size(self.size),
        );
        for span in &self.spans {
            let _ = write!(out, "<g fill=\"{}\"><title>{}</title>", span.kind.svg_colour(), escaped(&span.label));
            let mut start = span.start;
            while start < span.end {
                let row = start / row_bytes;
                let end = span.end.min((row + 1) * row_bytes);
                let place = |byte: u64| (byte - row * row_bytes) as f64 * WIDTH as f64 / row_bytes as f64;
                let _ = write!(
                    out,
                    "<rect x=\"{:.2}\" y=\"{}\" width=\"{:.2}\" height=\"{}\" stroke=\"white\" \
                     stroke-width=\"0.4\"/>",
                    place(start),
                    top + row * ROW_HEIGHT,
                    (place(end) - place(start)).max(0.5),
                    ROW_HEIGHT - 4,
                );
                start = end;
            }
            out.push_str("</g>\n");
        }
        let mut x = 0;
        for kind in legend {
            let y = top + rows * ROW_HEIGHT + 10;
            let _ = writeln!(
                out,
                "<rect x=\"{x}\" y=\"{y}\" width=\"14\" height=\"14\" fill=\"{}\"/>\
                 <text x=\"{}\" y=\"{}\">{}</text>",
                kind.svg_colour(),
                x + 20,
                y + 12,
                kind.name(),
            );
            x += 50 + 8 * kind.name().len();
        }
        out + "</svg>\n"
    }
}

/// Escapes a string for XML. Characters that XML does not allow are removed.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push(character),
            '\u{fffe}' | '\u{ffff}' => {}
            character if character.is_control() => {}
            character => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture() -> Picture {
        let spans = vec![
            Span::header(100),
            Span::tensor(100, 400, false, "a<b>&\u{1}".to_owned()),
            Span::gap(400, 500),
            Span::tensor(500, 800, true, "b".to_owned()),
            Span::tensor(800, 900, false, "c".to_owned()),
            Span::tensor(900, 950, false, "d".to_owned()),
            Span::trailing(950, 1000),
        ];
        Picture::new(spans, 1000)
    }

    #[test]
    fn each_part_is_drawn_in_proportion() {
        let mut out = Vec::new();
        picture().draw(&mut out, Paint(false), 80).unwrap();
        let text = String::from_utf8(out).unwrap();
        let drawn: String = text.lines().take(16).filter_map(|line| line.get(14..)).collect();
        let count = |symbol| drawn.chars().filter(|drawn| *drawn == symbol).count();
        assert_eq!(drawn.len(), 1000);
        let counts = ['H', '=', '.', 'x', '-', '~'].map(count);
        assert_eq!(counts, [100, 400, 100, 300, 50, 50], "{text}");
        assert!(text.contains("x misaligned: copied by a loader (300 B)"), "{text}");
    }

    #[test]
    fn an_svg_is_well_formed_and_escaped() {
        let svg = picture().svg("m & <n>");
        assert!(svg.contains("<title>m &amp; &lt;n&gt;</title>") && svg.contains("a&lt;b&gt;&amp;<"), "{svg}");
        assert_eq!(svg.matches("<g ").count(), 7);
        assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
        assert!(svg.contains(Kind::Misaligned.svg_colour()));
    }
}
