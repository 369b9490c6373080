//! Says what a file costs a loader that maps it, from its header alone.
//!
//! Outputs of a model are the same whether its tensors were mapped or copied, so this is the only way to see it.

use std::path::Path;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::header::{Header, HeaderPadding, TensorInfo};
use crate::layout::{DEFAULT_ALIGNMENT, check_alignment};
use crate::source;

/// What to look for.
#[derive(Clone, Copy, Debug)]
pub struct ScanOptions {
    /// The alignment that [`ScanReport::tensors_below_alignment`] is about, in bytes: a power of two from
    /// [`MIN_ALIGNMENT`](crate::layout::MIN_ALIGNMENT) to [`MAX_ALIGNMENT`](crate::layout::MAX_ALIGNMENT). Which
    /// tensors are misaligned does not depend on it.
    pub alignment: u64,
}

impl Default for ScanOptions {
    fn default() -> ScanOptions {
        ScanOptions { alignment: DEFAULT_ALIGNMENT }
    }
}

/// What the header says of a file. Sizes are in bytes.
#[derive(Clone, Debug)]
pub struct ScanReport {
    pub file_size: u64,
    /// The JSON with its padding, without the 8-byte length.
    pub header_len: u64,
    /// Where the data section starts, from the start of the file.
    pub data_start: u64,
    pub tensors: u64,
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
    /// Tensors that are not empty and whose absolute offset is not a multiple of their dtype width.
    pub misaligned_tensors: u64,
    /// Bytes of those: what a loader that maps has to copy.
    pub misaligned_bytes: u64,
    /// Tensors that are not empty and whose absolute offset is not a multiple of [`ScanOptions::alignment`]. Loaders
    /// can map them, but not on that boundary.
    pub tensors_below_alignment: u64,
    /// Holes before or between tensors.
    pub gaps: u64,
    /// Bytes in those holes.
    pub gap_bytes: u64,
    /// Bytes after the last tensor.
    pub trailing_bytes: u64,
    /// What pads the header.
    pub padding: HeaderPadding,
    /// Why the reference reader would not open the file; `None` where it would.
    pub nonconforming: Option<Error>,
    /// What there is of each dtype, most bytes first.
    pub dtypes: Vec<DtypeUse>,
}

impl ScanReport {
    /// Tensors whose dtype the format does not know. Their sizes cannot be checked, and they count as aligned.
    pub fn unknown_dtype_tensors(&self) -> u64 {
        self.dtypes.iter().filter(|row| row.dtype.is_none()).map(|row| row.tensors).sum()
    }
}

/// What a file has of one dtype. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DtypeUse {
    /// As it stands in the header.
    pub name: String,
    /// `None` for a dtype that the format does not know.
    pub dtype: Option<Dtype>,
    pub tensors: u64,
    pub bytes: u64,
    pub misaligned_tensors: u64,
    pub misaligned_bytes: u64,
}

/// Scans a file. Reads its 8-byte prefix and its header, never the data.
///
/// An unknown dtype is reported and gone on from: everything but the sizes of those tensors is still checked. What
/// makes the file useless to everyone (malformed, cut short, overlapping tensors) is an error.
pub fn scan(path: &Path, options: &ScanOptions) -> Result<ScanReport> {
    let scan = || {
        check_alignment(options.alignment)?;
        let (file, metadata) = source::open_regular(path)?;
        report(&source::read_header(&file, metadata.len())?, metadata.len(), options)
    };
    scan().map_err(|error: Error| error.at(path))
}

/// Reads the header of a file, and its size. The offsets are not checked; see [`Header::survey`].
pub fn read_header(path: &Path) -> Result<(Header, u64)> {
    let read = || {
        let (file, metadata) = source::open_regular(path)?;
        Ok((source::read_header(&file, metadata.len())?, metadata.len()))
    };
    read().map_err(|error: Error| error.at(path))
}

/// What a header says of a file of `file_size` bytes.
pub fn report(header: &Header, file_size: u64, options: &ScanOptions) -> Result<ScanReport> {
    let survey = header.survey(file_size.saturating_sub(header.data_start()))?;
    let below = |tensor: &TensorInfo| {
        tensor.nbytes() > 0 && !(header.data_start() + tensor.begin).is_multiple_of(options.alignment)
    };
    let dtypes = dtypes(header);
    Ok(ScanReport {
        file_size,
        header_len: header.json_len(),
        data_start: header.data_start(),
        tensors: header.len() as u64,
        tensor_bytes: dtypes.iter().map(|row| row.bytes).sum(),
        misaligned_tensors: survey.misaligned_tensors,
        misaligned_bytes: survey.misaligned_bytes,
        tensors_below_alignment: header.iter().filter(below).count() as u64,
        gaps: survey.gaps,
        gap_bytes: survey.gap_bytes,
        trailing_bytes: survey.trailing_bytes,
        padding: header.padding(),
        // The reference meets the dtype when it parses, before any offset.
        nonconforming: header.require_known_dtypes().err().or(survey.nonconforming),
        dtypes,
    })
}

fn dtypes(header: &Header) -> Vec<DtypeUse> {
    let mut rows: Vec<DtypeUse> = Vec::new();
    // By the number of the dtype: most headers have few dtypes and many tensors.
    let mut known = [None::<usize>; Dtype::ALL.len() + 1];
    for (index, tensor) in header.iter().enumerate() {
        let name = match tensor.dtype {
            Some(dtype) => dtype.name(),
            None => header.unknown_dtype(index).unwrap_or(""),
        };
        let found = match tensor.dtype {
            Some(dtype) => known[dtype as usize],
            None => rows.iter().position(|row| row.dtype.is_none() && row.name == name),
        };
        let at = found.unwrap_or_else(|| {
            let (name, dtype) = (name.to_owned(), tensor.dtype);
            rows.push(DtypeUse { name, dtype, tensors: 0, bytes: 0, misaligned_tensors: 0, misaligned_bytes: 0 });
            rows.len() - 1
        });
        if let Some(dtype) = tensor.dtype {
            known[dtype as usize] = Some(at);
        }
        let row = &mut rows[at];
        row.tensors += 1;
        row.bytes += tensor.nbytes();
        if header.is_misaligned(&tensor) {
            row.misaligned_tensors += 1;
            row.misaligned_bytes += tensor.nbytes();
        }
    }
    rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    rows
}
