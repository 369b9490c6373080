//! Helpers of the tests, which build all test files.
#![allow(dead_code, reason = "each test program uses a part")]

use std::path::{Path, PathBuf};

use safealign::dtype::Dtype;
use safealign::map::View;
use safealign::writer::Tensor;

/// The bytes of a view. The test does not modify the file while it uses them.
pub fn bytes_of(view: &View) -> &[u8] {
    // SAFETY: the tests only replace files that are mapped, and do not write to a mapping while they use this slice.
    unsafe { view.bytes() }
}

/// The directory of cases, with its manifest.
pub fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

/// An empty directory, removed when the value is dropped.
pub fn temporary_directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// Bytes that differ from tensor to tensor.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// A tensor that owns its data.
pub struct Owned {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<u64>,
    pub data: Vec<u8>,
}

impl Owned {
    pub fn new(name: &str, dtype: Dtype, shape: &[u64]) -> Owned {
        let len = dtype.nbytes(shape).expect("a size") as usize;
        let seed = name.bytes().map(u64::from).sum::<u64>() + len as u64;
        Owned { name: name.to_owned(), dtype, shape: shape.to_vec(), data: bytes(len, seed) }
    }

    pub fn tensor(&self) -> Tensor<'_> {
        Tensor { name: &self.name, dtype: self.dtype, shape: &self.shape, data: &self.data }
    }
}

/// Sizes that misalign the next tensor: 3, 10, 1 and 6 bytes among others, rank 0, and empty ones.
pub fn hostile() -> Vec<Owned> {
    let mut tensors = vec![
        Owned::new("three", Dtype::U8, &[3]),
        Owned::new("ten", Dtype::F16, &[5]),
        Owned::new("one", Dtype::Bool, &[]),
        Owned::new("six", Dtype::Bf16, &[3]),
        Owned::new("empty", Dtype::F32, &[3, 0]),
        Owned::new("scalar", Dtype::F64, &[]),
        Owned::new("wide", Dtype::F32, &[16, 16]),
        Owned::new("odd.f32", Dtype::F32, &[3]),
        Owned::new("quarter", Dtype::F4, &[2, 3]),
        Owned::new("sixths", Dtype::F6E2M3, &[4]),
        Owned::new("名/\"quoted\"\n", Dtype::I64, &[2]),
        Owned::new("", Dtype::C64, &[3]),
    ];
    let each = Dtype::ALL.into_iter().map(|dtype| Owned::new(&format!("each.{}", dtype.name()), dtype, &[4, 5]));
    tensors.extend(each);
    tensors
}

/// A file as written without alignment: an unpadded header, then the tensors without gaps.
pub fn packed(tensors: &[Owned]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for tensor in tensors {
        let begin = data.len();
        data.extend_from_slice(&tensor.data);
        let info = serde_json::json!({
            "dtype": tensor.dtype.name(), "shape": tensor.shape, "data_offsets": [begin, data.len()],
        });
        header.insert(tensor.name.clone(), info);
    }
    framed(&serde_json::to_vec(&header).expect("JSON"), &data)
}

/// Length field, header, data.
pub fn framed(json: &[u8], data: &[u8]) -> Vec<u8> {
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(json);
    file.extend_from_slice(data);
    file
}
