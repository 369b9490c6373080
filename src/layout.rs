//! Computes the offset of each tensor in a file, from names, dtypes and shapes. Pure arithmetic, no I/O.
//!
//! The format does not allow gaps in the data section, and the reference reader rejects them. The default layout
//! therefore aligns tensors by their order and by the padding of the header alone (see [`Layout`]).

use crate::dtype::{Dtype, overflows_from_the_left};
use crate::error::{Error, Name, Reason, Result, Status};
use crate::header::{self, METADATA_KEY, Shape};

/// The smallest alignment: the width of the widest dtype, in bytes.
pub const MIN_ALIGNMENT: u64 = 8;
/// The largest alignment: a huge page of x86-64, in bytes.
pub const MAX_ALIGNMENT: u64 = 2 << 20;
/// The default alignment, in bytes: a cache line, and an AVX-512 register.
pub const DEFAULT_ALIGNMENT: u64 = 64;

/// The data layout of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Layout {
    /// No gaps, so every reader opens the file. Tensors are sorted, stably, by the largest power of two that divides
    /// their size in bytes (at most the alignment), largest first; empty tensors come before all others. Every tensor
    /// then starts at a multiple of that power, hence at a multiple of its dtype width. A tensor whose size is a
    /// multiple of the alignment starts at a multiple of the alignment.
    #[default]
    Compact = 0,
    /// The caller's order, with every tensor at a multiple of the alignment and zero bytes in the gaps. MLX and its
    /// forks open such a file; the reference reader (the `safetensors` package) rejects it.
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
    /// Sizes in elements; empty for a scalar.
    pub shape: &'a [u64],
    /// Size of the data in bytes. It must match dtype and shape.
    pub nbytes: u64,
}

/// The position of a tensor in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Index of the tensor in the list that the plan was made from.
    pub input_index: usize,
    /// Offset of the tensor, in bytes from the start of the file.
    pub offset: u64,
    /// Size of the tensor in bytes.
    pub nbytes: u64,
    /// Zero bytes between the end of the previous tensor, or of the header, and this one.
    pub gap_before: u64,
}

/// A computed file layout: the header, and the tensors in the order of the file.
///
/// The same input gives the same plan, byte for byte.
#[derive(Clone, Debug)]
pub struct Plan {
    header: Vec<u8>,
    placements: Vec<Placement>,
    file_size: u64,
}

impl Plan {
    /// Computes a file layout.
    ///
    /// These are errors, because readers would reject the file: duplicate tensor names or metadata keys, a tensor named
    /// `__metadata__`, a NUL byte in a tensor's name, a size that does not match dtype and shape, and a header of
    /// 100,000,000 bytes or more.
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
            return Err(Error::new(Status::TooLarge, format!("{} tensors do not fit in a header", tensors.len())));
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

    /// Takes offsets from the start of the data section.
    fn on(header: Vec<u8>, mut placements: Vec<Placement>) -> Result<Plan> {
        let data_start = header.len() as u64;
        let data_len = placements.last().map_or(0, |last| last.offset + last.nbytes);
        // Readers use signed 64-bit file offsets.
        let file_size =
            data_start.checked_add(data_len).filter(|&size| i64::try_from(size).is_ok()).ok_or_else(too_large)?;
        for placement in &mut placements {
            placement.offset += data_start;
        }
        Ok(Plan { header, placements, file_size })
    }

    /// The first bytes of the file: the 8-byte length, the JSON and its padding.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// The tensors in the order of the file.
    pub fn placements(&self) -> &[Placement] {
        &self.placements
    }

    /// Size of the file in bytes.
    pub fn file_size(&self) -> u64 {
        self.file_size
    }

    /// Start of the data section, in bytes from the start of the file.
    pub fn data_start(&self) -> u64 {
        self.header.len() as u64
    }

    /// Zero bytes in gaps between tensors; 0 in the compact layout.
    pub fn gap_bytes(&self) -> u64 {
        self.placements.iter().map(|placement| placement.gap_before).sum()
    }
}

/// Offsets from the start of the data section, in the order of the file.
fn place(tensors: &[TensorSpec], options: &LayoutOptions) -> Result<Vec<Placement>> {
    let mut order: Vec<u32> = (0..tensors.len() as u32).collect();
    if options.layout == Layout::Compact {
        order.sort_by_key(|&index| {
            let nbytes = tensors[index as usize].nbytes;
            let divides = nbytes.trailing_zeros().min(options.alignment.trailing_zeros());
            // `false` sorts before `true`: empty tensors come first.
            (nbytes != 0, std::cmp::Reverse(divides))
        });
    }
    let mut cursor: u64 = 0;
    let mut placements = Vec::with_capacity(tensors.len());
    for index in order {
        let nbytes = tensors[index as usize].nbytes;
        let offset = match options.layout {
            Layout::Compact => cursor,
            Layout::Padded => cursor.checked_next_multiple_of(options.alignment).ok_or_else(too_large)?,
        };
        placements.push(Placement { input_index: index as usize, offset, nbytes, gap_before: offset - cursor });
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
    Error::new(Status::TooLarge, "the file would be larger than 2^63 - 1 bytes")
}
