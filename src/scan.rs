//! Reports the layout of a file from its header: above all, which tensors a loader that maps has to copy.
//!
//! The output of a model is the same whether its tensors are mapped or copied, so the copies only show in memory use.

use std::path::Path;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::header::{Header, HeaderPadding, TensorInfo};
use crate::layout::{DEFAULT_ALIGNMENT, check_alignment};
use crate::source;

/// Scan options.
#[derive(Clone, Copy, Debug)]
pub struct ScanOptions {
    /// The alignment for [`ScanReport::tensors_below_alignment`], in bytes: a power of two from
    /// [`MIN_ALIGNMENT`](crate::layout::MIN_ALIGNMENT) to [`MAX_ALIGNMENT`](crate::layout::MAX_ALIGNMENT). Which
    /// tensors are misaligned does not depend on it.
    pub alignment: u64,
}

impl Default for ScanOptions {
    fn default() -> ScanOptions {
        ScanOptions { alignment: DEFAULT_ALIGNMENT }
    }
}

/// The layout of a file, from its header. Sizes are in bytes.
#[derive(Clone, Debug)]
pub struct ScanReport {
    pub file_size: u64,
    /// Size of the JSON header with its padding, without the 8-byte length.
    pub header_len: u64,
    /// Start of the data section, from the start of the file.
    pub data_start: u64,
    pub tensors: u64,
    /// Their total size.
    pub tensor_bytes: u64,
    /// Tensors that are not empty and whose absolute offset is not a multiple of their dtype width.
    pub misaligned_tensors: u64,
    /// Their total size: what a loader that maps has to copy.
    pub misaligned_bytes: u64,
    /// Tensors that are not empty and whose absolute offset is not a multiple of [`ScanOptions::alignment`]. A
    /// loader can map them, but not at that alignment.
    pub tensors_below_alignment: u64,
    /// Gaps before or between tensors.
    pub gaps: u64,
    /// Their total size.
    pub gap_bytes: u64,
    /// Bytes after the last tensor.
    pub trailing_bytes: u64,
    /// What is between the end of the JSON and the data section.
    pub padding: HeaderPadding,
    /// Why the reference reader would reject the file; `None` if it would open it.
    pub nonconforming: Option<Error>,
    /// One row for each dtype, most bytes first.
    pub dtypes: Vec<DtypeUse>,
}

impl ScanReport {
    /// Tensors with a dtype that is not part of the format. Their sizes cannot be checked, and they count as aligned.
    pub fn unknown_dtype_tensors(&self) -> u64 {
        self.dtypes.iter().filter(|row| row.dtype.is_none()).map(|row| row.tensors).sum()
    }
}

/// The tensors of one dtype in a file. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DtypeUse {
    /// As it is written in the header.
    pub name: String,
    /// `None` for a dtype that is not part of the format.
    pub dtype: Option<Dtype>,
    pub tensors: u64,
    pub bytes: u64,
    pub misaligned_tensors: u64,
    pub misaligned_bytes: u64,
}

/// Scans a file. Reads its 8-byte prefix and its header, never the data.
///
/// A dtype that is not part of the format is reported, not an error; everything but the sizes of those tensors is still
/// checked. A malformed or truncated file, and overlapping tensors, are errors.
pub fn scan(path: &Path, options: &ScanOptions) -> Result<ScanReport> {
    let scan = || {
        check_alignment(options.alignment)?;
        let (file, metadata) = source::open_regular(path)?;
        report(&source::read_header(&file, metadata.len())?, metadata.len(), options)
    };
    scan().map_err(|error: Error| error.at(path))
}

/// Reads the header of a file. Also returns the size of the file. The offsets are not checked; see [`Header::survey`].
pub fn read_header(path: &Path) -> Result<(Header, u64)> {
    let read = || {
        let (file, metadata) = source::open_regular(path)?;
        Ok((source::read_header(&file, metadata.len())?, metadata.len()))
    };
    read().map_err(|error: Error| error.at(path))
}

/// The report for a file of `file_size` bytes with this header.
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
        // The reference reader checks the dtypes while it parses, before any offset.
        nonconforming: header.require_known_dtypes().err().or(survey.nonconforming),
        dtypes,
    })
}

fn dtypes(header: &Header) -> Vec<DtypeUse> {
    let mut rows: Vec<DtypeUse> = Vec::new();
    // Indexed by the value of the dtype: most headers have few dtypes and many tensors.
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
