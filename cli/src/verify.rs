//! `safealign verify`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safealign::error::{Error, Result as Checked};
use safealign::header::{Header, TensorInfo};
use safealign::scan::read_header;

use crate::Outcome;
use crate::args::Verify;
use crate::fields;
use crate::find::{Want, find};
use crate::output::{self, Plain, Size, count, json_line, shown, system_message};

/// Number of bytes to compare at a time.
const STEP: u64 = 1 << 20;

/// The tensors of a file or directory.
struct Side {
    files: Vec<Opened>,
    /// `None` if two files of a bundle have a tensor of that name.
    tensors: BTreeMap<Key, Option<(usize, usize)>>,
}

/// A tensor of a file or directory.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// The directory of the bundle relative to the root, and its set ([`Model::bundle`](crate::find::Model::bundle)).
    directory: PathBuf,
    set: String,
    name: String,
}

struct Opened {
    path: PathBuf,
    /// The path relative to the root.
    below: PathBuf,
    set: String,
    file: File,
    header: Header,
}

pub fn run(args: &Verify) -> io::Result<Outcome> {
    let outcome = open(&args.a).and_then(|a| Ok((open(&args.b)?, a))).and_then(|(b, a)| compare(&a, &b));
    let mut out = io::stdout().lock();
    match outcome {
        Ok(Verdict::Equal { tensors, bytes }) => {
            if args.json {
                json_line(&mut out, "verify", fields! { equal: true, tensors: tensors, bytes: bytes })?;
            } else {
                let tensors = count(tensors, "tensor");
                io::Write::write_all(&mut out, format!("equal: {tensors}, {}\n", Size(bytes)).as_bytes())?;
            }
            Ok(Outcome::Fine)
        }
        Ok(Verdict::Differ(difference)) => {
            if args.json {
                json_line(&mut out, "verify", fields! { equal: false, difference: difference })?;
            } else {
                io::Write::write_all(&mut out, format!("different: {}\n", Plain(&difference)).as_bytes())?;
            }
            Ok(Outcome::Found)
        }
        Err(message) => {
            if args.json {
                json_line(&mut out, "error", fields! { message: message })?;
            }
            output::error(&message);
            Ok(Outcome::Failed)
        }
    }
}

enum Verdict {
    Equal { tensors: u64, bytes: u64 },
    Differ(String),
}

fn open(root: &Path) -> Result<Side, String> {
    let found = find(&[root.to_owned()], Want::EveryName);
    if let Some(problem) = found.errors.first() {
        return Err(format!("{}: {}", shown(&problem.path), problem.message));
    }
    let mut files = Vec::new();
    for model in found.files {
        let opened = open_file(&model.path).map_err(|error| error.to_string())?;
        let file =
            File::open(&model.path).map_err(|error| format!("{}: {}", shown(&model.path), system_message(&error)))?;
        files.push(Opened { below: model.below, set: model.set, path: model.path, file, header: opened });
    }
    if files.is_empty() {
        return Err(format!("{}: no safetensors files found", shown(root)));
    }
    let mut tensors = BTreeMap::new();
    for (at, opened) in files.iter().enumerate() {
        let directory = opened.below.parent().unwrap_or(Path::new(""));
        for (index, tensor) in opened.header.iter().enumerate() {
            let (directory, set) = (directory.to_owned(), opened.set.clone());
            let key = Key { directory, set, name: tensor.name.to_owned() };
            tensors.entry(key).and_modify(|place| *place = None).or_insert(Some((at, index)));
        }
    }
    Ok(Side { files, tensors })
}

/// Reads a header and checks its offsets.
fn open_file(path: &Path) -> Checked<Header> {
    let (header, size) = read_header(path)?;
    let survey = header.survey(size.saturating_sub(header.data_start()));
    survey.map_err(|error: Error| error.at(path))?;
    Ok(header)
}

fn compare(a: &Side, b: &Side) -> Result<Verdict, String> {
    let paths = |side: &Side| side.files.iter().map(|opened| opened.below.clone()).collect::<Vec<_>>();
    // Files with the same names are compared in pairs, so that two of them may have a tensor of the same name.
    let by_file = paths(a) == paths(b) || (a.files.len() == 1 && b.files.len() == 1);
    let (mut tensors, mut bytes) = (0, 0);
    if by_file {
        for (a, b) in a.files.iter().zip(&b.files) {
            for (index, tensor) in a.header.iter().enumerate() {
                let Some(other) = b.header.find(tensor.name) else { return Ok(missing(tensor.name, &b.path)) };
                if let Some(difference) = differ((a, index), (b, other))? {
                    return Ok(Verdict::Differ(difference));
                }
                (tensors, bytes) = (tensors + 1, bytes + tensor.nbytes());
            }
            if let Some(extra) = b.header.iter().find(|tensor| a.header.find(tensor.name).is_none()) {
                return Ok(missing(extra.name, &a.path));
            }
        }
        return Ok(Verdict::Equal { tensors, bytes });
    }
    for (key, place) in &a.tensors {
        let ambiguous =
            || Err(format!("tensor `{}` is in two files of one directory; compare the files one at a time", key.name));
        let Some((at, index)) = *place else { return ambiguous() };
        let a = &a.files[at];
        let (b, other) = match b.tensors.get(key) {
            None => return Ok(Verdict::Differ(format!("tensor `{}` is only in {}", key.name, shown(&a.path)))),
            Some(None) => return ambiguous(),
            Some(Some((at, other))) => (&b.files[*at], *other),
        };
        if let Some(difference) = differ((a, index), (b, other))? {
            return Ok(Verdict::Differ(difference));
        }
        tensors += 1;
        bytes += a.header.get(index).map_or(0, |tensor| tensor.nbytes());
    }
    if let Some(key) = b.tensors.keys().find(|key| !a.tensors.contains_key(*key)) {
        let at = b.tensors.get(key).copied().flatten().map_or_else(String::new, |(at, _)| shown(&b.files[at].path));
        return Ok(Verdict::Differ(format!("tensor `{}` is only in {at}", key.name)));
    }
    Ok(Verdict::Equal { tensors, bytes })
}

fn missing(name: &str, path: &Path) -> Verdict {
    Verdict::Differ(format!("tensor `{name}` is not in {}", shown(path)))
}

/// The first difference between two tensors, if there is one.
fn differ(a: (&Opened, usize), b: (&Opened, usize)) -> Result<Option<String>, String> {
    let (Some(ours), Some(theirs)) = (a.0.header.get(a.1), b.0.header.get(b.1)) else {
        return Err("internal error: tensor index out of range".to_owned());
    };
    let kind = |side: (&Opened, usize), tensor: &TensorInfo| {
        let unknown = || side.0.header.unknown_dtype(side.1).unwrap_or("?").to_owned();
        let dtype = tensor.dtype.map_or_else(unknown, |dtype| dtype.name().to_owned());
        format!("{dtype} {:?}, {} bytes", tensor.shape, tensor.nbytes())
    };
    let (kind_a, kind_b) = (kind(a, &ours), kind(b, &theirs));
    if kind_a != kind_b {
        let (a, b) = (shown(&a.0.path), shown(&b.0.path));
        return Ok(Some(format!("tensor `{}`: {kind_a} in {a}, {kind_b} in {b}", ours.name)));
    }
    let mut buffers = [Vec::new(), Vec::new()];
    let mut done = 0;
    while done < ours.nbytes() {
        let count = STEP.min(ours.nbytes() - done) as usize;
        for ((opened, tensor), buffer) in [(a.0, &ours), (b.0, &theirs)].into_iter().zip(&mut buffers) {
            buffer.resize(count, 0);
            let at = opened.header.data_start() + tensor.begin + done;
            let read = opened.file.read_exact_at(buffer, at);
            read.map_err(|error| format!("{}: read: {}", shown(&opened.path), system_message(&error)))?;
        }
        let [ours_now, theirs_now] = &buffers;
        if ours_now != theirs_now {
            let first = ours_now.iter().zip(theirs_now).position(|(a, b)| a != b).unwrap_or(0);
            return Ok(Some(format!(
                "tensor `{}`: byte {} of {} is {:#04x} in {}, {:#04x} in {}",
                ours.name,
                done + first as u64,
                ours.nbytes(),
                ours_now[first],
                shown(&a.0.path),
                theirs_now[first],
                shown(&b.0.path),
            )));
        }
        done += count as u64;
    }
    Ok(None)
}
