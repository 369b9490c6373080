//! `safealign inspect`.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use safealign::header::{Header, TensorInfo};
use safealign::scan::{ScanOptions, ScanReport, read_header, report};
use safealign::writer::{self, Durability};

use crate::Outcome;
use crate::args::Inspect;
use crate::fields;
use crate::output::{self, Paint, Plain, Size, Table, count, json_line, shown, system_message};
use crate::picture::{Picture, Span};
use crate::report::{error_fields, notes, report_fields};

pub fn run(args: &Inspect) -> io::Result<Outcome> {
    let read = read_header(&args.file).and_then(|(header, size)| {
        let report = report(&header, size, &ScanOptions::default());
        Ok((header, report.map_err(|error| error.at(&args.file))?))
    });
    let mut out = BufWriter::new(io::stdout().lock());
    let (header, report) = match read {
        Ok(read) => read,
        Err(error) => {
            if args.json {
                json_line(&mut out, "error", error_fields(&args.file, &error))?;
                out.flush()?;
            }
            output::error(&error.to_string());
            return Ok(Outcome::Failed);
        }
    };
    if let Some(path) = &args.svg
        && let Err(message) = check_svg_path(path, &args.file)
    {
        output::error(&format!("{}: {message}", shown(path)));
        return Ok(Outcome::Failed);
    }
    if args.json {
        write_json(&mut out, args, &header, &report)?;
    } else {
        write_head(&mut out, args, &header, &report)?;
        if args.map {
            picture(&header, &report).draw(&mut out, Paint::for_stdout(), columns())?;
        } else {
            write_tensors(&mut out, &header)?;
        }
    }
    out.flush()?;
    if let Some(path) = &args.svg {
        let title = args.file.file_name().unwrap_or_default().to_string_lossy();
        let svg = picture(&header, &report).svg(&title);
        if let Err(error) = writer::replace(path, svg.as_bytes(), Durability::NotDurable) {
            output::error(&error.to_string());
            return Ok(Outcome::Failed);
        }
    }
    Ok(Outcome::Fine)
}

/// Refuses to replace anything but an SVG, above all the inspected file under any of its names.
fn check_svg_path(path: &Path, model: &Path) -> Result<(), String> {
    // This follows links: replacing a link to another kind of file would lose the link.
    let Ok(found) = fs::metadata(path) else { return Ok(()) };
    if fs::metadata(model).is_ok_and(|model| (model.dev(), model.ino()) == (found.dev(), found.ino())) {
        return Err("is the inspected file; use another name for `--svg OUT`".to_owned());
    }
    if !found.is_file() {
        return Err("already exists and is not a regular file; use another name for `--svg OUT`".to_owned());
    }
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(4096).read_to_end(&mut start));
    read.map_err(|error| system_message(&error))?;
    if start.is_empty() || is_svg(&start) {
        return Ok(());
    }
    Err("already exists and is not an SVG image; use another name for `--svg OUT`".to_owned())
}

/// Whether a file that starts with these bytes is an SVG: `svg` is the first element after declarations and comments.
fn is_svg(start: &[u8]) -> bool {
    let text = String::from_utf8_lossy(start);
    let mut text = text.trim_start_matches('\u{feff}').trim_start();
    loop {
        let end = match text {
            _ if text.starts_with("<?xml") => "?>",
            _ if text.starts_with("<!--") => "-->",
            _ if text.starts_with("<!DOCTYPE svg") => ">",
            _ => return text.starts_with("<svg"),
        };
        let Some((_, rest)) = text.split_once(end) else { return false };
        text = rest.trim_start();
    }
}

/// The width of the terminal in columns.
fn columns() -> usize {
    terminal_size::terminal_size().map_or(80, |(width, _)| usize::from(width.0))
}

/// The largest power of two that divides an offset, up to the largest alignment of a layout.
fn alignment_of(offset: u64) -> u64 {
    1 << offset.trailing_zeros().min(21)
}

fn dtype_of<'a>(header: &'a Header, index: usize, tensor: &TensorInfo<'a>) -> &'a str {
    tensor.dtype.map_or_else(|| header.unknown_dtype(index).unwrap_or("?"), |dtype| dtype.name())
}

fn write_head(out: &mut dyn Write, args: &Inspect, header: &Header, report: &ScanReport) -> io::Result<()> {
    let paint = Paint::for_stdout();
    writeln!(out, "{}", paint.bold(&Plain(&shown(&args.file)).to_string()))?;
    writeln!(
        out,
        "{}, {}, data starts at byte {}",
        Size(report.file_size),
        count(report.tensors, "tensor"),
        report.data_start
    )?;
    let misaligned = format!(
        "{} of {} misaligned, {} would be copied",
        report.misaligned_tensors,
        report.tensors,
        Size(report.misaligned_bytes)
    );
    writeln!(out, "{}", if report.misaligned_tensors > 0 { paint.red(&misaligned) } else { misaligned })?;
    let notes = notes(report);
    if !notes.is_empty() {
        writeln!(out, "{notes}")?;
    }
    if let Some(error) = &report.nonconforming {
        writeln!(out, "{}", Plain(error.message()))?;
    }
    for (key, value) in header.metadata() {
        // Some values are complete configuration files.
        let value = match value.char_indices().nth(200) {
            Some((cut, _)) => format!("{}... ({} bytes)", &value[..cut], value.len()),
            None => value.to_owned(),
        };
        writeln!(out, "  {}: {}", Plain(key), Plain(&value))?;
    }
    writeln!(out)
}

fn write_tensors(out: &mut dyn Write, header: &Header) -> io::Result<()> {
    let mut table = Table::new(&[
        ("", false),
        ("OFFSET", true),
        ("SIZE", true),
        ("ALIGNED TO", true),
        ("DTYPE", false),
        ("SHAPE", false),
        ("NAME", false),
    ]);
    for (index, tensor) in header.iter().enumerate() {
        let is_misaligned = header.is_misaligned(&tensor);
        let offset = header.data_start() + tensor.begin;
        let cells = vec![
            if is_misaligned { "!" } else { "" }.to_owned(),
            offset.to_string(),
            Size(tensor.nbytes()).to_string(),
            if tensor.nbytes() == 0 { "-".to_owned() } else { alignment_of(offset).to_string() },
            dtype_of(header, index, &tensor).to_owned(),
            format!("{:?}", tensor.shape),
            tensor.name.to_owned(),
        ];
        table.row(cells, is_misaligned);
    }
    table.write(out, Paint::for_stdout())
}

fn write_json(out: &mut dyn Write, args: &Inspect, header: &Header, report: &ScanReport) -> io::Result<()> {
    let mut fields = report_fields(report);
    fields.insert("path".to_owned(), shown(&args.file).into());
    // Pairs, because JSON objects have no order, and a repair keeps the order of the file.
    let metadata: Vec<_> = header.metadata().map(|(key, value)| [key, value]).collect();
    fields.insert("metadata".to_owned(), serde_json::json!(metadata));
    json_line(out, "file", fields)?;
    for (index, tensor) in header.iter().enumerate() {
        let offset = header.data_start() + tensor.begin;
        let fields = fields! {
            name: tensor.name,
            dtype: dtype_of(header, index, &tensor),
            shape: tensor.shape,
            offset: offset,
            nbytes: tensor.nbytes(),
            aligned_to: if tensor.nbytes() == 0 { None } else { Some(alignment_of(offset)) },
            misaligned: header.is_misaligned(&tensor),
        };
        json_line(out, "tensor", fields)?;
    }
    Ok(())
}

/// The parts of the file, in file order, for drawing.
fn picture(header: &Header, report: &ScanReport) -> Picture {
    let mut spans = vec![Span::header(report.data_start)];
    let mut covered = report.data_start;
    for (index, tensor) in header.iter().enumerate().filter(|(_, tensor)| tensor.nbytes() > 0) {
        let (start, end) = (header.data_start() + tensor.begin, header.data_start() + tensor.end);
        if start > covered {
            spans.push(Span::gap(covered, start));
        }
        let label = format!(
            "{}\n{} {:?}\n{} at byte {start}",
            Plain(tensor.name),
            Plain(dtype_of(header, index, &tensor)),
            tensor.shape,
            Size(tensor.nbytes()),
        );
        spans.push(Span::tensor(start, end, header.is_misaligned(&tensor), label));
        covered = end;
    }
    if covered < report.file_size {
        spans.push(Span::trailing(covered, report.file_size));
    }
    Picture::new(spans, report.file_size)
}
