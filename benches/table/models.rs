//! The three models of the rows.

use safealign::dtype::Dtype;
use safealign::writer::Tensor;

/// A model in memory. All tensors share one buffer: it is their number and their size that counts.
pub struct Model {
    tensors: Vec<(String, Dtype, [u64; 2])>,
    bytes: Vec<u8>,
}

impl Model {
    fn new(tensors: Vec<(String, Dtype, [u64; 2])>) -> Model {
        let total: u64 = tensors.iter().map(nbytes).sum();
        let mut state = 1u64;
        let mut bytes = vec![0u8; total as usize];
        for word in bytes.chunks_exact_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word.copy_from_slice(&state.to_le_bytes());
        }
        Model { tensors, bytes }
    }

    /// **s** and **a**: 300 tensors of F32, BF16, U32 and U8, some of odd sizes.
    pub fn large_tensors(bytes: u64) -> Model {
        let count = 300;
        let per_tensor = bytes / count;
        let tensor = |number: u64| {
            let dtype = [Dtype::F32, Dtype::Bf16, Dtype::U32, Dtype::U8][number as usize % 4];
            let odd = if number.is_multiple_of(7) { 3 } else { 0 };
            let columns = 128;
            let rows = per_tensor / dtype.width() / columns;
            let name =
                format!("model.layers.{}.self_attn.{}.weight", number / 4, ["q", "k", "v", "o"][number as usize % 4]);
            (name, dtype, if odd > 0 { [1, rows * columns + odd] } else { [rows, columns] })
        };
        Model::new((0..count).map(tensor).collect())
    }

    /// That many tensors with names so short that a million fit a header.
    pub fn numbered(count: u64, rows: u64) -> Model {
        Model::new((0..count).map(|number| (format!("t{number}"), Dtype::Bf16, [rows, 33])).collect())
    }

    /// **b**: that many small tensors, named as mixture-of-experts models name them.
    pub fn experts(count: u64, rows: u64) -> Model {
        let tensor = |number: u64| {
            let name = format!(
                "model.layers.{}.mlp.experts.{}.{}.weight",
                number / 384,
                number / 3 % 128,
                ["gate_proj", "up_proj", "down_proj"][number as usize % 3]
            );
            (name, Dtype::Bf16, [rows, 33])
        };
        Model::new((0..count).map(tensor).collect())
    }

    pub fn tensors(&self) -> Vec<Tensor<'_>> {
        let mut rest = &self.bytes[..];
        let mut take = |len: u64| {
            let (now, later) = rest.split_at(len as usize);
            rest = later;
            now
        };
        self.tensors
            .iter()
            .map(|tensor| Tensor { name: &tensor.0, dtype: tensor.1, shape: &tensor.2, data: take(nbytes(tensor)) })
            .collect()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What a peer in another process needs to make the same model: a line a tensor.
    pub fn recipe(&self) -> String {
        let line = |(name, dtype, shape): &(String, Dtype, [u64; 2])| {
            format!("{name} {} {} {}\n", dtype.name(), shape[0], shape[1])
        };
        self.tensors.iter().map(line).collect()
    }
}

fn nbytes((_, dtype, shape): &(String, Dtype, [u64; 2])) -> u64 {
    dtype.nbytes(shape).expect("a size")
}
