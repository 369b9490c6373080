//! The types that more than one section uses.

use std::ffi::{c_char, c_void};

use super::boundary::{Call, invalid};
use crate::dtype::Dtype;
use crate::error::{Error, Name, Result};
use crate::layout::{TensorSpec, check_tensor};
use crate::writer::Tensor;

/// Pass this as the length of a string that ends with a NUL. cbindgen.toml defines it for C.
pub const SA_NUL_TERMINATED: usize = usize::MAX;

/// An element type. The values never change; 0 is never valid.
///
/// Names and sizes are those of the safetensors reference implementation, version 0.8.0.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sa_dtype {
    SA_DTYPE_BOOL = 1,
    SA_DTYPE_U8 = 2,
    SA_DTYPE_I8 = 3,
    SA_DTYPE_F8_E5M2 = 4,
    SA_DTYPE_F8_E4M3 = 5,
    SA_DTYPE_F8_E8M0 = 6,
    SA_DTYPE_F8_E4M3FNUZ = 7,
    SA_DTYPE_F8_E5M2FNUZ = 8,
    SA_DTYPE_I16 = 9,
    SA_DTYPE_U16 = 10,
    SA_DTYPE_F16 = 11,
    SA_DTYPE_BF16 = 12,
    SA_DTYPE_I32 = 13,
    SA_DTYPE_U32 = 14,
    SA_DTYPE_F32 = 15,
    SA_DTYPE_I64 = 16,
    SA_DTYPE_U64 = 17,
    SA_DTYPE_F64 = 18,
    /// Two F32: real, imaginary.
    SA_DTYPE_C64 = 19,
    /// 4 bits per element, packed.
    SA_DTYPE_F4 = 20,
    /// 6 bits per element, packed.
    SA_DTYPE_F6_E2M3 = 21,
    /// 6 bits per element, packed.
    SA_DTYPE_F6_E3M2 = 22,
}

/// A tensor to be written. Borrowed for the call: the library keeps neither the struct nor what it points to.
///
/// Initialise it with `{0}` (in C++ `{}`), then set its fields. The reserved fields must be 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_tensor {
    /// UTF-8 without a NUL byte; not `__metadata__`; unique in the file. Null with `name_len` 0 for the empty name.
    pub name: *const c_char,
    /// Length of the name in bytes, or `SA_NUL_TERMINATED`.
    pub name_len: usize,
    /// An `sa_dtype`.
    pub dtype: i32,
    /// 0.
    pub reserved_0: i32,
    /// Number of dimensions; 0 for a scalar.
    pub rank: usize,
    /// `rank` sizes in elements; may be null if `rank` is 0.
    pub shape: *const u64,
    /// The elements in row-major order, little-endian, at any address. May be null if `nbytes` is 0. Ignored by
    /// `sa_plan_new` and `sa_writer_open`.
    pub data: *const c_void,
    /// Size of the data in bytes. It must match dtype and shape.
    pub nbytes: usize,
    /// 0.
    pub reserved: [u64; 3],
}

impl sa_tensor {
    pub(super) fn spec<'a>(&self, call: &'a Call) -> Result<TensorSpec<'a>> {
        let name = call.string(self.name, self.name_len, "tensors[].name")?;
        if (self.reserved_0, self.reserved) != (0, [0; 3]) {
            let message = "a reserved field of `sa_tensor` is not 0: initialise the struct with {0}";
            return Err(about(name, &invalid(message)));
        }
        let dtype = Dtype::from_number(self.dtype)
            .ok_or_else(|| about(name, &invalid(format!("`dtype` is {}, which is not an sa_dtype", self.dtype))))?;
        let shape = call.slice(self.shape, self.rank, "shape").map_err(|error| about(name, &error))?;
        Ok(TensorSpec { name, dtype, shape, nbytes: self.nbytes as u64 })
    }

    pub(super) fn tensor<'a>(&self, call: &'a Call) -> Result<Tensor<'a>> {
        let spec = self.spec(call)?;
        // Checked first: a wrong size must not make the library read beyond the data.
        check_tensor(&spec)?;
        let data = call.slice(self.data.cast(), self.nbytes, "data").map_err(|error| about(spec.name, &error))?;
        Ok(Tensor { name: spec.name, dtype: spec.dtype, shape: spec.shape, data })
    }
}

/// Says which tensor an argument belongs to.
fn about(name: &str, error: &Error) -> Error {
    invalid(format!("tensor {}: {}", Name(name), error.message()))
}

/// An entry of the metadata, to be written or as read. The struct never grows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sa_metadata {
    /// UTF-8, unique in the file. Null with `key_len` 0 for the empty key. As read: never null, followed by a NUL.
    pub key: *const c_char,
    /// Length of the key in bytes, or `SA_NUL_TERMINATED`. As read: without the NUL.
    pub key_len: usize,
    /// UTF-8, as `key`.
    pub value: *const c_char,
    /// Length of the value, as `key_len`.
    pub value_len: usize,
}

impl sa_metadata {
    /// An entry as read. Both strings are followed by a NUL in memory.
    pub(super) fn read(key: &str, value: &str) -> sa_metadata {
        sa_metadata {
            key: key.as_ptr().cast(),
            key_len: key.len(),
            value: value.as_ptr().cast(),
            value_len: value.len(),
        }
    }
}

/// The strings of a metadata array.
pub(super) fn metadata(call: &Call, metadata: *const sa_metadata, count: usize) -> Result<Vec<(&str, &str)>> {
    let strings = |entry: &sa_metadata| {
        let key = call.string(entry.key, entry.key_len, "metadata[].key")?;
        let value = call.string(entry.value, entry.value_len, "metadata[].value")?;
        Ok((key, value))
    };
    call.slice(metadata, count, "metadata")?.iter().map(strings).collect()
}

/// The specs of a tensor array.
pub(super) fn specs(call: &Call, tensors: *const sa_tensor, count: usize) -> Result<Vec<TensorSpec<'_>>> {
    call.slice(tensors, count, "tensors")?.iter().map(|tensor| tensor.spec(call)).collect()
}
