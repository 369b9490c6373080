//! The header of a file: parsing, validation against the size of the data section, emission.
//!
//! Pure: bytes and numbers in, bytes and numbers out. The rules are those of the
//! [format text](https://github.com/huggingface/safetensors#format); where readers differ, the comment says which
//! reader does what (the reference implementation `safetensors` 0.8.0, and MLX 0.32.4).

mod emit;
mod parse;

use std::fmt;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::dtype::{Dtype, SizeError, overflows_from_the_left};
use crate::error::{Error, Name, Reason, Result, Status};

pub(crate) use emit::{Emitted, emit};

/// Bytes of the length field in front of the JSON.
pub const PREFIX_LEN: u64 = 8;

/// The longest JSON header that is read. The reference refuses more than this; MLX refuses this too.
pub const MAX_READ_LEN: u64 = 100_000_000;

/// The key that holds the metadata, and that no tensor may be called.
pub const METADATA_KEY: &str = "__metadata__";

/// What stands between the end of the JSON object and the data section.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderPadding {
    /// Nothing.
    #[default]
    None,
    /// Spaces only, as the format text says.
    Spaces,
    /// JSON white space of other kinds too; every reader accepts it.
    Whitespace,
    /// NUL bytes, which MLX accepts and the reference refuses.
    Nul,
}

/// A tensor as a header describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    pub name: &'a str,
    /// `None` for a dtype that the format does not know; see [`Header::unknown_dtype`].
    pub dtype: Option<Dtype>,
    /// Elements in each dimension; empty for rank 0.
    pub shape: &'a [u64],
    /// First byte, counted from the start of the data section.
    pub begin: u64,
    /// One past the last byte, counted from the start of the data section.
    pub end: u64,
}

impl TensorInfo<'_> {
    /// Bytes of data.
    pub fn nbytes(&self) -> u64 {
        self.end.saturating_sub(self.begin)
    }
}

/// A parsed header. Tensors are numbered in the order of their data in the file, and those at the same place in the
/// order of the JSON.
///
/// Names and shapes lie in one buffer each, so that a file with many tensors costs a few allocations and not several
/// a tensor.
pub struct Header {
    json_len: u64,
    padding: HeaderPadding,
    /// Every name and metadata text, each followed by a NUL, so that C can have it as it is.
    texts: Texts,
    shapes: Vec<u64>,
    records: Vec<Record>,
    metadata: Vec<(Text, Text)>,
    /// By the number of the tensor.
    unknown_dtypes: Vec<(u32, Text)>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

/// Where a text lies in [`Texts`]. A header has at most [`MAX_READ_LEN`] bytes, so 32 bits are enough.
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

/// Reads the length field. `file_len` is the size of the whole file in bytes.
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

/// Says what a file that is no safetensors file most likely is, by its first bytes.
fn hint(first: &[u8; 8]) -> &'static str {
    match first {
        b"version " => ": this looks like a git-lfs pointer, not the file that it stands for",
        [0x00, 0x05, 0x16, 0x07, ..] => ": this looks like an AppleDouble file (`._` twin), not a model",
        b"<!DOCTYP" | b"<!doctyp" | [b'<', ..] => ": this looks like an HTML page, not a model",
        [b'G', b'G', b'U', b'F', ..] => ": this looks like a GGUF file",
        [b'P', b'K', 3, 4, ..] => ": this looks like a zip archive, perhaps a PyTorch checkpoint",
        [0x80, 2..=5, ..] => ": this looks like a Python pickle, perhaps a PyTorch checkpoint",
        [0x1f, 0x8b, ..] => ": this looks like a gzip file",
        [b'{', ..] => ": this looks like JSON without the 8-byte header length",
        _ => "",
    }
}

/// How the tensors of a header lie in the data section: what [`Header::survey`] finds.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Tensors that are not empty and whose absolute offset is not a multiple of their dtype width.
    pub misaligned_tensors: u64,
    /// Bytes of those tensors.
    pub misaligned_bytes: u64,
    /// Holes before or between tensors.
    pub gaps: u64,
    /// Bytes in those holes.
    pub gap_bytes: u64,
    /// Bytes after the last tensor.
    pub trailing_bytes: u64,
    /// Why the reference reader would not open the file, where that is not an error for everyone.
    pub nonconforming: Option<Error>,
}

impl Header {
    /// Parses the JSON header: all bytes between the length field and the data section.
    ///
    /// Refused are: bytes that are not UTF-8, JSON that is not an object, trailing content other than white space or
    /// NUL, a key that stands twice in one object (after unescaping), a NUL in a tensor's name, metadata that is not
    /// string to string, tensor infos without the three fields or with fields of another type. Offsets and sizes are
    /// checked by [`Header::survey`], which needs the size of the data section.
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

    /// Bytes of the JSON header, its padding included.
    pub fn json_len(&self) -> u64 {
        self.json_len
    }

    /// Where the data section starts in the file, in bytes.
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

    /// The tensor of that number.
    pub fn get(&self, index: usize) -> Option<TensorInfo<'_>> {
        self.records.get(index).map(|record| self.info(record))
    }

    /// Every tensor, in the order of the data.
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

    /// The number of the tensor of that name.
    pub fn find(&self, name: &str) -> Option<usize> {
        let hash = self.hasher.hash_one(name.as_bytes());
        self.index
            .find(hash, |&index| self.texts.get(self.records[index as usize].name) == name)
            .map(|&index| index as usize)
    }

    /// The dtype string of a tensor whose dtype the format does not know.
    pub fn unknown_dtype(&self, index: usize) -> Option<&str> {
        let number = u32::try_from(index).ok()?;
        let found = self.unknown_dtypes.binary_search_by_key(&number, |&(at, _)| at).ok()?;
        Some(self.texts.get(self.unknown_dtypes[found].1))
    }

    /// Number of metadata entries.
    pub fn metadata_len(&self) -> usize {
        self.metadata.len()
    }

    /// A metadata entry, in the order of the header: key, value. In memory each is followed by a NUL byte.
    pub fn metadata_at(&self, index: usize) -> Option<(&str, &str)> {
        self.metadata.get(index).map(|&(key, value)| (self.texts.get(key), self.texts.get(value)))
    }

    /// Every metadata entry, in the order of the header.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.metadata.iter().map(|&(key, value)| (self.texts.get(key), self.texts.get(value)))
    }

    /// Refuses a dtype that the format does not know.
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

    /// Checks every offset and size against a data section of `data_len` bytes, and measures the layout.
    ///
    /// Refused are reversed offsets, sizes that disagree with dtype and shape, overlaps, and tensors that end after the
    /// data section. What other readers open and the reference does not (holes, trailing bytes, NUL padding) comes
    /// back in [`Survey::nonconforming`]. A tensor of unknown dtype has no size to compare, and counts as aligned.
    pub fn survey(&self, data_len: u64) -> Result<Survey> {
        let mut survey = Survey::default();
        let mut nonconforming: Option<(Reason, String)> = None;
        let mut cut: Option<TensorInfo> = None;
        let mut covered = 0;
        let mut previous: Option<TensorInfo> = None;
        // What the reference compares each offset with: it takes the tensors in order of (begin, end).
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
                        "tensor {}: offsets [{}, {}] do not follow on {expected}, \
                         as the reference reader wants it: it allows no holes",
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
                         which the reference reader refuses",
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
                format!("{} bytes after the last tensor, which the reference reader refuses", survey.trailing_bytes),
            ));
        }
        survey.nonconforming =
            nonconforming.map(|(reason, message)| Error::new(Status::Nonconforming, message).because(reason));
        Ok(survey)
    }

    /// Whether an mmap loader has to copy the tensor: it is not empty, and its absolute offset is not a multiple of
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
                format!("tensor {name}: offsets [{begin}, {end}] end before they begin"),
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

/// Why a dtype and a shape have no size, in the words of a message.
pub(crate) fn explain_size(error: SizeError, dtype: Dtype, shape: &[u64]) -> String {
    match error {
        SizeError::Overflow => format!("the size of {} {:?} overflows", dtype.name(), Shape(shape)),
        SizeError::PartialByte { bits } => {
            format!("{} {:?} takes {bits} bits, not a whole number of bytes", dtype.name(), Shape(shape))
        }
    }
}

/// A shape for a message; a long one is cut.
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

/// The first text that stands twice.
pub(crate) fn first_duplicate<'a>(texts: impl ExactSizeIterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = hashbrown::HashSet::with_capacity(texts.len());
    let mut texts = texts;
    texts.find(|text| !seen.insert(*text))
}
