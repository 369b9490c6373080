//! Where each tensor stands in a file: pure arithmetic over names, dtypes and shapes.
//!
//! The format allows no holes in the data section and the reference reader refuses them, so by default alignment comes
//! from the order of the tensors and the padding of the header alone (see [`Layout`]).

use crate::dtype::{Dtype, overflows_from_the_left};
use crate::error::{Error, Name, Reason, Result, Status};
use crate::header::{self, METADATA_KEY, Shape};

/// The smallest alignment: the width of the widest dtype, in bytes.
pub const MIN_ALIGNMENT: u64 = 8;
/// The largest alignment: a huge page of x86-64, in bytes.
pub const MAX_ALIGNMENT: u64 = 2 << 20;
/// The alignment where none is asked for, in bytes: a cache line and an AVX-512 register.
pub const DEFAULT_ALIGNMENT: u64 = 64;

/// How tensors are made to stand on aligned offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Layout {
    /// No holes: every reader opens the file. Tensors are sorted, stably, by the largest power of two that divides
    /// their size (at most the alignment), largest first and empty ones before all. Each then starts on a multiple of
    /// that power, and so on a multiple of its dtype width; a tensor whose size is a multiple of the alignment starts
    /// on the alignment.
    #[default]
    Compact = 0,
    /// The caller's order, every tensor on a multiple of the alignment, zero bytes between. MLX and its forks read
    /// such a file; the reference reader (`safetensors` for Python and Rust) refuses it.
    Padded = 1,
}

/// Layout and alignment of a file to be written.
#[derive(Clone, Copy, Debug)]
pub struct LayoutOptions {
    pub layout: Layout,
    /// In bytes: a power of two from [`MIN_ALIGNMENT`] to [`MAX_ALIGNMENT`].
    pub alignment: u64,
}

impl Default for LayoutOptions {
    fn default() -> LayoutOptions {
        LayoutOptions { layout: Layout::Compact, alignment: DEFAULT_ALIGNMENT }
    }
}

/// A tensor to be written, without its data.
#[derive(Clone, Copy, Debug)]
pub struct TensorSpec<'a> {
    pub name: &'a str,
    pub dtype: Dtype,
    /// Elements in each dimension; empty for rank 0.
    pub shape: &'a [u64],
    /// Bytes; has to be what dtype and shape make.
    pub nbytes: u64,
}

/// Where one tensor stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Position of the tensor in the list that the plan was made from.
    pub input_index: usize,
    /// First byte, counted from the start of the file.
    pub offset: u64,
    /// Bytes of data.
    pub nbytes: u64,
    /// Zero bytes between the end of the tensor before (or of the header) and this one.
    pub gap_before: u64,
}

/// A laid-out file: its header, and its tensors in the order in which they are written.
///
/// The same input gives the same plan, byte for byte.
#[derive(Clone, Debug)]
pub struct Plan {
    header: Vec<u8>,
    placements: Vec<Placement>,
    file_size: u64,
}

impl Plan {
    /// Lays out a file.
    ///
    /// Refused is what nobody could read back: two tensors or two metadata entries of one name, a tensor called
    /// `__metadata__`, a NUL byte in a tensor's name, a size that is not what dtype and shape make,
    /// and a header of 100,000,000 bytes or more.
    pub fn new(tensors: &[TensorSpec], metadata: &[(&str, &str)], options: &LayoutOptions) -> Result<Plan> {
        check_alignment(options.alignment)?;
        check_metadata(metadata)?;
        for tensor in tensors {
            check_tensor(tensor)?;
        }
        if let Some(name) = header::first_duplicate(tensors.iter().map(|tensor| tensor.name)) {
            return Err(invalid(format!("tensor {}: two tensors have this name", Name(name))));
        }
        if u32::try_from(tensors.len()).is_err() {
            return Err(Error::new(Status::TooLarge, format!("{} tensors do not fit a header", tensors.len())));
        }
        let placements = place(tensors, options)?;
        let header = header::emit(
            placements.iter().map(|placement| {
                let tensor = &tensors[placement.input_index];
                header::Emitted {
                    name: tensor.name,
                    dtype: tensor.dtype,
                    shape: tensor.shape,
                    begin: placement.offset,
                    end: placement.offset + placement.nbytes,
                }
            }),
            metadata,
            options.alignment,
        )?;
        Plan::on(header, placements)
    }

    /// Moves offsets that were counted from the data section to where the data section starts.
    fn on(header: Vec<u8>, mut placements: Vec<Placement>) -> Result<Plan> {
        let data_start = header.len() as u64;
        let data_len = placements.last().map_or(0, |last| last.offset + last.nbytes);
        // Readers count in signed 64-bit file offsets.
        let file_size =
            data_start.checked_add(data_len).filter(|&size| i64::try_from(size).is_ok()).ok_or_else(too_large)?;
        for placement in &mut placements {
            placement.offset += data_start;
        }
        Ok(Plan { header, placements, file_size })
    }

    /// The first bytes of the file: the 8-byte length, the JSON, the padding.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// The tensors in the order of the file.
    pub fn placements(&self) -> &[Placement] {
        &self.placements
    }

    /// Bytes of the whole file.
    pub fn file_size(&self) -> u64 {
        self.file_size
    }

    /// Where the data section starts, in bytes from the start of the file.
    pub fn data_start(&self) -> u64 {
        self.header.len() as u64
    }

    /// Zero bytes between tensors, in all. Zero in the compact layout.
    pub fn gap_bytes(&self) -> u64 {
        self.placements.iter().map(|placement| placement.gap_before).sum()
    }
}

/// Offsets from the start of the data section, in the order of the file.
fn place(tensors: &[TensorSpec], options: &LayoutOptions) -> Result<Vec<Placement>> {
    let mut order: Vec<u32> = (0..tensors.len() as u32).collect();
    if options.layout == Layout::Compact {
        order.sort_by_key(|&number| {
            let nbytes = tensors[number as usize].nbytes;
            let divides = nbytes.trailing_zeros().min(options.alignment.trailing_zeros());
            // false sorts before true: empty tensors come first.
            (nbytes != 0, std::cmp::Reverse(divides))
        });
    }
    let mut cursor: u64 = 0;
    let mut placements = Vec::with_capacity(tensors.len());
    for number in order {
        let nbytes = tensors[number as usize].nbytes;
        let offset = match options.layout {
            Layout::Compact => cursor,
            Layout::Padded => cursor.checked_next_multiple_of(options.alignment).ok_or_else(too_large)?,
        };
        placements.push(Placement { input_index: number as usize, offset, nbytes, gap_before: offset - cursor });
        cursor = offset.checked_add(nbytes).ok_or_else(too_large)?;
    }
    Ok(placements)
}

pub(crate) fn check_alignment(alignment: u64) -> Result<()> {
    if alignment.is_power_of_two() && (MIN_ALIGNMENT..=MAX_ALIGNMENT).contains(&alignment) {
        return Ok(());
    }
    Err(invalid(format!("alignment {alignment}: expected a power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}")))
}

fn check_metadata(metadata: &[(&str, &str)]) -> Result<()> {
    if let Some(key) = header::first_duplicate(metadata.iter().map(|&(key, _)| key)) {
        return Err(invalid(format!("metadata {}: two entries have this key", Name(key))));
    }
    Ok(())
}

pub(crate) fn check_tensor(tensor: &TensorSpec) -> Result<()> {
    let name = Name(tensor.name);
    if tensor.name == METADATA_KEY {
        return Err(invalid(format!("tensor {name}: the name is reserved for the metadata")));
    }
    if tensor.name.as_bytes().contains(&0) {
        return Err(invalid(format!("tensor {name}: the name has a NUL byte")).because(Reason::BadName));
    }
    match tensor.dtype.nbytes(tensor.shape) {
        Ok(0) if overflows_from_the_left(tensor.shape) => {
            let shape = Shape(tensor.shape);
            Err(invalid(format!("tensor {name}: the dimensions before the zero in {shape:?} overflow")))
        }
        Ok(expected) if expected == tensor.nbytes => Ok(()),
        Ok(expected) => Err(invalid(format!(
            "tensor {name}: {} bytes for {} {:?}, expected {expected}",
            tensor.nbytes,
            tensor.dtype.name(),
            Shape(tensor.shape),
        ))),
        Err(error) => {
            Err(invalid(format!("tensor {name}: {}", header::explain_size(error, tensor.dtype, tensor.shape))))
        }
    }
}

fn invalid(message: String) -> Error {
    Error::new(Status::InvalidArgument, message)
}

fn too_large() -> Error {
    Error::new(Status::TooLarge, "the file would be larger than a file can be")
}
