//! Writes the JSON header.

use super::{MAX_READ_LEN, METADATA_KEY, PREFIX_LEN};
use crate::dtype::Dtype;
use crate::error::{Error, Reason, Result, Status};

/// A tensor for [`emit`]: name, dtype, shape, and its offsets in the data section.
pub(crate) struct Emitted<'a> {
    pub name: &'a str,
    pub dtype: Dtype,
    pub shape: &'a [u64],
    pub begin: u64,
    pub end: u64,
}

/// Writes the header with its length field, padded with spaces so that it ends at a multiple of `alignment`.
/// The keys are in the order of the input, so the same input gives the same bytes.
pub(crate) fn emit<'a>(
    tensors: impl ExactSizeIterator<Item = Emitted<'a>>,
    metadata: &[(&str, &str)],
    alignment: u64,
) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(128 + tensors.len() * 128);
    out.extend_from_slice(&[0; PREFIX_LEN as usize]);
    out.push(b'{');
    if !metadata.is_empty() {
        push_string(&mut out, METADATA_KEY);
        out.extend_from_slice(b":{");
        for (index, (key, value)) in metadata.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            push_string(&mut out, key);
            out.push(b':');
            push_string(&mut out, value);
        }
        out.push(b'}');
    }
    for tensor in tensors {
        if out.len() > PREFIX_LEN as usize + 1 {
            out.push(b',');
        }
        push_string(&mut out, tensor.name);
        out.extend_from_slice(b":{\"dtype\":\"");
        out.extend_from_slice(tensor.dtype.name().as_bytes());
        out.extend_from_slice(b"\",\"shape\":");
        push_numbers(&mut out, tensor.shape);
        out.extend_from_slice(b",\"data_offsets\":");
        push_numbers(&mut out, &[tensor.begin, tensor.end]);
        out.push(b'}');
    }
    out.push(b'}');
    let padded = (out.len() as u64).next_multiple_of(alignment);
    let json_len = padded - PREFIX_LEN;
    // MLX also rejects a header of exactly this length.
    if json_len >= MAX_READ_LEN {
        return Err(Error::new(
            Status::TooLarge,
            format!("the header would have {json_len} bytes; readers reject {MAX_READ_LEN} and more"),
        )
        .because(Reason::HeaderTooLarge));
    }
    out.resize(padded as usize, b' ');
    out[..PREFIX_LEN as usize].copy_from_slice(&json_len.to_le_bytes());
    Ok(out)
}

fn push_string(out: &mut Vec<u8>, string: &str) {
    // Cannot fail: there is no I/O, and every str can be written as a JSON string.
    let _ = serde_json::to_writer(out, string);
}

fn push_numbers(out: &mut Vec<u8>, numbers: &[u64]) {
    let _ = serde_json::to_writer(out, numbers);
}
