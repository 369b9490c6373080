//! The header of a file: parsed, checked against the size of the data section, and written.
//!
//! No I/O. The rules are those of the [format](https://github.com/huggingface/safetensors#format). Where readers
//! differ, a comment says what the reference reader (`safetensors` 0.8.0) and MLX (0.32.4) do.

mod emit;
mod parse;

use std::fmt;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::dtype::{Dtype, SizeError, overflows_from_the_left};
use crate::error::{Error, Name, Reason, Result, Status};

pub(crate) use emit::{Emitted, emit};

/// Size in bytes of the length field before the JSON.
pub const PREFIX_LEN: u64 = 8;

/// Maximum size in bytes of a JSON header that is read. The reference reader rejects more; MLX also rejects this size.
pub const MAX_READ_LEN: u64 = 100_000_000;

/// The key of the metadata. It is reserved: no tensor may have this name.
pub const METADATA_KEY: &str = "__metadata__";

/// What is between the end of the JSON and the data section.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderPadding {
    /// Nothing.
    #[default]
    None,
    /// Spaces, as the format specifies.
    Spaces,
    /// White space of other kinds too. Every reader accepts it.
    Whitespace,
    /// NUL bytes. MLX opens the file, the reference reader rejects it.
    Nul,
}

/// A tensor as a header describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    pub name: &'a str,
    /// `None` for a dtype that is not part of the format; see [`Header::unknown_dtype`].
    pub dtype: Option<Dtype>,
    /// Sizes in elements; empty for a scalar.
    pub shape: &'a [u64],
    /// Offset of the first byte, from the start of the data section.
    pub begin: u64,
    /// Offset of the end, from the start of the data section.
    pub end: u64,
}

impl TensorInfo<'_> {
    /// Size of the data in bytes.
    pub fn nbytes(&self) -> u64 {
        self.end.saturating_sub(self.begin)
    }
}

/// A parsed header. Tensors are indexed in the order of their data in the file; tensors with the same offsets are in
/// the order of the JSON.
///
/// All names are in one buffer and all shapes in another, so that parsing takes few allocations.
pub struct Header {
    json_len: u64,
    padding: HeaderPadding,
    /// The names and the metadata strings, each followed by a NUL for C.
    texts: Texts,
    shapes: Vec<u64>,
    records: Vec<Record>,
    metadata: Vec<(Text, Text)>,
    /// By the index of the tensor.
    unknown_dtypes: Vec<(u32, Text)>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

/// The position of a string in [`Texts`]. A header has at most [`MAX_READ_LEN`] bytes, so 32 bits are enough.
#[derive(Clone, Copy, Default)]
struct Text {
    start: u32,
    len: u32,
}

#[derive(Default)]
struct Texts(String);

impl Texts {
    fn push(&mut self, text: &str) -> Text {
        let start = self.0.len() as u32;
        self.0.push_str(text);
        self.0.push('\0');
        Text { start, len: text.len() as u32 }
    }

    fn get(&self, text: Text) -> &str {
        &self.0[text.start as usize..][..text.len as usize]
    }
}

#[derive(Clone, Copy)]
struct Record {
    begin: u64,
    end: u64,
    name: Text,
    shape_start: u32,
    rank: u32,
    dtype: Option<Dtype>,
}

/// Reads the length field. `file_len` is the size of the file in bytes.
pub fn read_prefix(prefix: &[u8], file_len: u64) -> Result<u64> {
    let Some(bytes) = prefix.first_chunk::<8>().filter(|_| file_len >= PREFIX_LEN) else {
        return Err(Error::new(
            Status::Truncated,
            format!("{file_len} bytes, too short for the 8-byte header length: an incomplete download"),
        )
        .because(Reason::FileTooSmall));
    };
    let json_len = u64::from_le_bytes(*bytes);
    let hint = hint(bytes);
    if json_len > MAX_READ_LEN {
        return Err(Error::new(
            Status::TooLarge,
            format!("the header length reads {json_len} bytes, above the limit of {MAX_READ_LEN}{hint}"),
        )
        .because(Reason::HeaderTooLarge));
    }
    if json_len == 0 {
        return Err(Error::format(Reason::HeaderEmpty, "the header length is 0"));
    }
    if json_len > file_len - PREFIX_LEN {
        return Err(Error::new(
            Status::Truncated,
            format!(
                "the header takes 8 + {json_len} bytes but the file has only {file_len}{}",
                if hint.is_empty() { ": an incomplete download" } else { hint },
            ),
        )
        .because(Reason::HeaderTruncated));
    }
    Ok(json_len)
}

/// What a file that is not a safetensors file most likely is, by its first bytes.
fn hint(first: &[u8; 8]) -> &'static str {
    match first {
        b"version " => ": this looks like a git-lfs pointer, not the file itself",
        [0x00, 0x05, 0x16, 0x07, ..] => ": this looks like an AppleDouble file (`._*`), not a model",
        b"<!DOCTYP" | b"<!doctyp" | [b'<', ..] => ": this looks like an HTML page, not a model",
        [b'G', b'G', b'U', b'F', ..] => ": this looks like a GGUF file",
        [b'P', b'K', 3, 4, ..] => ": this looks like a zip archive, perhaps a PyTorch checkpoint",
        [0x80, 2..=5, ..] => ": this looks like a Python pickle, perhaps a PyTorch checkpoint",
        [0x1f, 0x8b, ..] => ": this looks like a gzip file",
        [b'{', ..] => ": this looks like JSON without the 8-byte header length",
        _ => "",
    }
}

/// The layout of the data section, as found by [`Header::survey`].
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Tensors that are not empty and whose absolute offset is not a multiple of their dtype width.
    pub misaligned_tensors: u64,
    /// Their total size in bytes.
    pub misaligned_bytes: u64,
    /// Gaps before or between tensors.
    pub gaps: u64,
    /// Their total size in bytes.
    pub gap_bytes: u64,
    /// Bytes after the last tensor.
    pub trailing_bytes: u64,
    /// Why the reference reader would reject a file that other readers open.
    pub nonconforming: Option<Error>,
}

impl Header {
    /// Parses the JSON header: all bytes between the length field and the data section.
    ///
    /// These are errors: bytes that are not UTF-8, JSON that is not an object, trailing content other than white space
    /// or NUL, a duplicate key in an object (after unescaping), a NUL in a tensor's name, metadata that is not a map
    /// from strings to strings, and a tensor without one of the three fields or with a field of another type. Offsets
    /// and sizes are checked by [`Header::survey`], which takes the size of the data section.
    pub fn parse(json: &[u8]) -> Result<Header> {
        let text = std::str::from_utf8(json).map_err(|error| {
            Error::format(
                Reason::HeaderNotUtf8,
                format!("the header is not UTF-8: invalid byte at {} of {}", error.valid_up_to(), json.len()),
            )
        })?;
        let object = text.trim_end_matches([' ', '\n', '\r', '\t', '\0']);
        let padding = padding_kind(&text.as_bytes()[object.len()..]);

        parse::object(object)?.finish(json.len() as u64, padding)
    }

    /// Size of the JSON header with its padding, in bytes.
    pub fn json_len(&self) -> u64 {
        self.json_len
    }

    /// Start of the data section, in bytes from the start of the file.
    pub fn data_start(&self) -> u64 {
        PREFIX_LEN + self.json_len
    }

    pub fn padding(&self) -> HeaderPadding {
        self.padding
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The tensor with that index.
    pub fn get(&self, index: usize) -> Option<TensorInfo<'_>> {
        self.records.get(index).map(|record| self.info(record))
    }

    /// Every tensor, in the order of the data in the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = TensorInfo<'_>> {
        self.records.iter().map(|record| self.info(record))
    }

    fn info(&self, record: &Record) -> TensorInfo<'_> {
        TensorInfo {
            name: self.texts.get(record.name),
            dtype: record.dtype,
            shape: &self.shapes[record.shape_start as usize..][..record.rank as usize],
            begin: record.begin,
            end: record.end,
        }
    }

    /// The index of the tensor with that name.
    pub fn find(&self, name: &str) -> Option<usize> {
        let hash = self.hasher.hash_one(name.as_bytes());
        self.index
            .find(hash, |&index| self.texts.get(self.records[index as usize].name) == name)
            .map(|&index| index as usize)
    }

    /// The dtype string of a tensor with a dtype that is not part of the format.
    pub fn unknown_dtype(&self, index: usize) -> Option<&str> {
        let index = u32::try_from(index).ok()?;
        let found = self.unknown_dtypes.binary_search_by_key(&index, |&(at, _)| at).ok()?;
        Some(self.texts.get(self.unknown_dtypes[found].1))
    }

    /// Number of metadata entries.
    pub fn metadata_len(&self) -> usize {
        self.metadata.len()
    }

    /// A metadata entry, key and value, in the order of the header. In memory, each is followed by a NUL byte.
    pub fn metadata_at(&self, index: usize) -> Option<(&str, &str)> {
        self.metadata.get(index).map(|&(key, value)| (self.texts.get(key), self.texts.get(value)))
    }

    /// Every metadata entry, in the order of the header.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.metadata.iter().map(|&(key, value)| (self.texts.get(key), self.texts.get(value)))
    }

    /// Fails if a tensor has a dtype that is not part of the format.
    pub fn require_known_dtypes(&self) -> Result<()> {
        match self.unknown_dtypes.first() {
            None => Ok(()),
            Some(&(index, dtype)) => Err(Error::new(
                Status::Unsupported,
                format!(
                    "tensor {}: unknown dtype {}",
                    Name(self.texts.get(self.records[index as usize].name)),
                    Name(self.texts.get(dtype)),
                ),
            )
            .because(Reason::UnknownDtype)),
        }
    }

    /// Checks every offset and size against a data section of `data_len` bytes, and reports the layout.
    ///
    /// These are errors: reversed offsets, sizes that do not match dtype and shape, overlaps, and tensors that end
    /// after the data section. What only the reference reader rejects (gaps, trailing bytes, NUL padding) is returned
    /// in [`Survey::nonconforming`]. The size of a tensor with an unknown dtype is not checked, and it counts as
    /// aligned.
    pub fn survey(&self, data_len: u64) -> Result<Survey> {
        let mut survey = Survey::default();
        let mut nonconforming: Option<(Reason, String)> = None;
        let mut cut: Option<TensorInfo> = None;
        let mut covered = 0;
        let mut previous: Option<TensorInfo> = None;
        // What the reference reader requires of the next offset. It sorts the tensors by (begin, end).
        let mut expected = 0;
        if self.padding == HeaderPadding::Nul {
            nonconforming = Some((Reason::HeaderTrailingNul, "the header is padded with NUL bytes".to_owned()));
        }
        for tensor in self.iter() {
            self.check_size(&tensor)?;
            if tensor.begin < covered && tensor.end > tensor.begin {
                return Err(overlap(&tensor, previous.as_ref()));
            }
            if tensor.end > data_len {
                cut.get_or_insert(tensor);
            }
            if tensor.begin != expected && nonconforming.is_none() {
                nonconforming = Some((
                    Reason::Hole,
                    format!(
                        "tensor {}: offsets [{}, {}], expected a start at {expected}: \
                         the reference reader rejects gaps",
                        Name(tensor.name),
                        tensor.begin,
                        tensor.end,
                    ),
                ));
            }
            if tensor.begin == tensor.end && nonconforming.is_none() && overflows_from_the_left(tensor.shape) {
                nonconforming = Some((
                    Reason::SizeOverflow,
                    format!(
                        "tensor {}: the product of the dimensions before the zero in {:?} overflows, \
                         which the reference reader rejects",
                        Name(tensor.name),
                        Shape(tensor.shape),
                    ),
                ));
            }
            expected = tensor.end;
            if tensor.begin > covered {
                survey.gaps += 1;
                survey.gap_bytes += tensor.begin - covered;
            }
            if tensor.end > covered {
                covered = tensor.end;
                previous = Some(tensor);
            }
        }
        if let Some(tensor) = cut {
            return Err(Error::new(
                Status::Truncated,
                format!(
                    "tensor {}: ends at byte {} of the data section, which has {data_len}: an incomplete download",
                    Name(tensor.name),
                    tensor.end,
                ),
            )
            .because(Reason::Truncated));
        }
        for tensor in self.iter().filter(|tensor| self.is_misaligned(tensor)) {
            survey.misaligned_tensors += 1;
            survey.misaligned_bytes += tensor.nbytes();
        }
        survey.trailing_bytes = data_len - covered;
        if survey.trailing_bytes > 0 && nonconforming.is_none() {
            nonconforming = Some((
                Reason::TrailingBytes,
                format!("{} bytes after the last tensor, which the reference reader rejects", survey.trailing_bytes),
            ));
        }
        survey.nonconforming =
            nonconforming.map(|(reason, message)| Error::new(Status::Nonconforming, message).because(reason));
        Ok(survey)
    }

    /// Whether a loader that maps has to copy the tensor: it is not empty, and its absolute offset is not a multiple of
    /// its dtype width.
    pub fn is_misaligned(&self, tensor: &TensorInfo) -> bool {
        let width = tensor.dtype.map_or(1, Dtype::width);
        tensor.begin != tensor.end && !(self.data_start() % width + tensor.begin % width).is_multiple_of(width)
    }

    fn check_size(&self, tensor: &TensorInfo) -> Result<()> {
        let &TensorInfo { begin, end, shape, .. } = tensor;
        let name = Name(tensor.name);
        if end < begin {
            return Err(Error::format(
                Reason::OffsetsReversed,
                format!("tensor {name}: offsets [{begin}, {end}] are reversed"),
            ));
        }
        let Some(dtype) = tensor.dtype else { return Ok(()) };
        match dtype.nbytes(shape) {
            Ok(nbytes) if nbytes == end - begin => Ok(()),
            Ok(nbytes) => Err(Error::format(
                Reason::SizeMismatch,
                format!(
                    "tensor {name}: offsets [{begin}, {end}] hold {} bytes, expected {nbytes} for {} {:?}",
                    end - begin,
                    dtype.name(),
                    Shape(shape),
                ),
            )),
            Err(error) => {
                let reason = match error {
                    SizeError::Overflow => Reason::SizeOverflow,
                    SizeError::PartialByte { .. } => Reason::SubbyteSize,
                };
                Err(Error::format(reason, format!("tensor {name}: {}", explain_size(error, dtype, shape))))
            }
        }
    }
}

fn overlap(tensor: &TensorInfo, previous: Option<&TensorInfo>) -> Error {
    let before = previous.map_or_else(String::new, |other| {
        format!(" overlap tensor {} at [{}, {}]", Name(other.name), other.begin, other.end)
    });
    Error::format(
        Reason::Overlap,
        format!("tensor {}: offsets [{}, {}]{before}", Name(tensor.name), tensor.begin, tensor.end),
    )
}

/// Why a dtype and a shape have no size, for a message.
pub(crate) fn explain_size(error: SizeError, dtype: Dtype, shape: &[u64]) -> String {
    match error {
        SizeError::Overflow => format!("the size of {} {:?} overflows", dtype.name(), Shape(shape)),
        SizeError::PartialByte { bits } => {
            format!("{} {:?} takes {bits} bits, not a whole number of bytes", dtype.name(), Shape(shape))
        }
    }
}

/// A shape for a message; a long one is shortened.
pub(crate) struct Shape<'a>(pub &'a [u64]);

impl fmt::Debug for Shape<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 8;
        let mut list = out.debug_list();
        list.entries(&self.0[..self.0.len().min(MOST)]);
        if self.0.len() > MOST { list.finish_non_exhaustive() } else { list.finish() }
    }
}

fn padding_kind(tail: &[u8]) -> HeaderPadding {
    if tail.is_empty() {
        HeaderPadding::None
    } else if tail.contains(&0) {
        HeaderPadding::Nul
    } else if tail.iter().all(|&byte| byte == b' ') {
        HeaderPadding::Spaces
    } else {
        HeaderPadding::Whitespace
    }
}

/// The first string that occurs twice.
pub(crate) fn first_duplicate<'a>(strings: impl ExactSizeIterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = hashbrown::HashSet::with_capacity(strings.len());
    let mut strings = strings;
    strings.find(|string| !seen.insert(*string))
}
