//! The element types of the format: names, sizes in bits, and the width that determines the alignment.

/// An element type, with the name that the format uses.
///
/// The list and the sizes are those of the reference implementation, `safetensors` 0.8.0 (`Dtype` in `tensor.rs`).
/// The values are those of `sa_dtype` in the C header and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Dtype {
    Bool = 1,
    U8 = 2,
    I8 = 3,
    F8E5M2 = 4,
    F8E4M3 = 5,
    F8E8M0 = 6,
    F8E4M3Fnuz = 7,
    F8E5M2Fnuz = 8,
    I16 = 9,
    U16 = 10,
    F16 = 11,
    Bf16 = 12,
    I32 = 13,
    U32 = 14,
    F32 = 15,
    I64 = 16,
    U64 = 17,
    F64 = 18,
    /// Two F32: real, imaginary.
    C64 = 19,
    F4 = 20,
    F6E2M3 = 21,
    F6E3M2 = 22,
}

impl Dtype {
    /// Every dtype, in the order of the values.
    pub const ALL: [Dtype; 22] = [
        Dtype::Bool,
        Dtype::U8,
        Dtype::I8,
        Dtype::F8E5M2,
        Dtype::F8E4M3,
        Dtype::F8E8M0,
        Dtype::F8E4M3Fnuz,
        Dtype::F8E5M2Fnuz,
        Dtype::I16,
        Dtype::U16,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::I32,
        Dtype::U32,
        Dtype::F32,
        Dtype::I64,
        Dtype::U64,
        Dtype::F64,
        Dtype::C64,
        Dtype::F4,
        Dtype::F6E2M3,
        Dtype::F6E3M2,
    ];

    /// The name as it is written in a header, such as `BF16`.
    pub const fn name(self) -> &'static str {
        let name = self.name_with_nul();
        name.split_at(name.len() - 1).0
    }

    /// The name with a NUL after it, for C.
    pub(crate) const fn name_with_nul(self) -> &'static str {
        match self {
            Dtype::Bool => "BOOL\0",
            Dtype::U8 => "U8\0",
            Dtype::I8 => "I8\0",
            Dtype::F8E5M2 => "F8_E5M2\0",
            Dtype::F8E4M3 => "F8_E4M3\0",
            Dtype::F8E8M0 => "F8_E8M0\0",
            Dtype::F8E4M3Fnuz => "F8_E4M3FNUZ\0",
            Dtype::F8E5M2Fnuz => "F8_E5M2FNUZ\0",
            Dtype::I16 => "I16\0",
            Dtype::U16 => "U16\0",
            Dtype::F16 => "F16\0",
            Dtype::Bf16 => "BF16\0",
            Dtype::I32 => "I32\0",
            Dtype::U32 => "U32\0",
            Dtype::F32 => "F32\0",
            Dtype::I64 => "I64\0",
            Dtype::U64 => "U64\0",
            Dtype::F64 => "F64\0",
            Dtype::C64 => "C64\0",
            Dtype::F4 => "F4\0",
            Dtype::F6E2M3 => "F6_E2M3\0",
            Dtype::F6E3M2 => "F6_E3M2\0",
        }
    }

    /// The dtype with that name. Case matters, as in the format.
    pub fn from_name(name: &str) -> Option<Dtype> {
        // A match instead of a search through `ALL`: the parser calls this for each tensor.
        Some(match name.as_bytes() {
            b"BOOL" => Dtype::Bool,
            b"U8" => Dtype::U8,
            b"I8" => Dtype::I8,
            b"F8_E5M2" => Dtype::F8E5M2,
            b"F8_E4M3" => Dtype::F8E4M3,
            b"F8_E8M0" => Dtype::F8E8M0,
            b"F8_E4M3FNUZ" => Dtype::F8E4M3Fnuz,
            b"F8_E5M2FNUZ" => Dtype::F8E5M2Fnuz,
            b"I16" => Dtype::I16,
            b"U16" => Dtype::U16,
            b"F16" => Dtype::F16,
            b"BF16" => Dtype::Bf16,
            b"I32" => Dtype::I32,
            b"U32" => Dtype::U32,
            b"F32" => Dtype::F32,
            b"I64" => Dtype::I64,
            b"U64" => Dtype::U64,
            b"F64" => Dtype::F64,
            b"C64" => Dtype::C64,
            b"F4" => Dtype::F4,
            b"F6_E2M3" => Dtype::F6E2M3,
            b"F6_E3M2" => Dtype::F6E3M2,
            _ => return None,
        })
    }

    /// The dtype with that value (see [`Dtype`]).
    pub fn from_number(number: i32) -> Option<Dtype> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        Dtype::ALL.get(index).copied()
    }

    /// Size of an element in bits: 4 or 6 for the packed formats.
    pub const fn bits(self) -> u32 {
        match self {
            Dtype::F4 => 4,
            Dtype::F6E2M3 | Dtype::F6E3M2 => 6,
            Dtype::Bool
            | Dtype::U8
            | Dtype::I8
            | Dtype::F8E5M2
            | Dtype::F8E4M3
            | Dtype::F8E8M0
            | Dtype::F8E4M3Fnuz
            | Dtype::F8E5M2Fnuz => 8,
            Dtype::I16 | Dtype::U16 | Dtype::F16 | Dtype::Bf16 => 16,
            Dtype::I32 | Dtype::U32 | Dtype::F32 => 32,
            Dtype::I64 | Dtype::U64 | Dtype::F64 | Dtype::C64 => 64,
        }
    }

    /// The dtype width in bytes: `bits / 8`, at least 1. The absolute offset of an aligned tensor is a multiple of it.
    pub const fn width(self) -> u64 {
        let width = self.bits() as u64 / 8;
        if width == 0 { 1 } else { width }
    }

    /// Size in bytes of a tensor with this dtype and shape, in checked arithmetic.
    ///
    /// A shape that contains a zero has zero bytes, however large the other dimensions are.
    pub fn nbytes(self, shape: &[u64]) -> Result<u64, SizeError> {
        let Some(count) = element_count(shape) else { return Err(SizeError::Overflow) };
        let bits = count.checked_mul(u64::from(self.bits())).ok_or(SizeError::Overflow)?;
        if bits % 8 == 0 { Ok(bits / 8) } else { Err(SizeError::PartialByte { bits }) }
    }
}

/// The product of a shape, which is 1 for rank 0; `None` if it does not fit in 64 bits.
fn element_count(shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1u64, |count, &dimension| count.checked_mul(dimension))
}

/// Whether the product of the dimensions before the first zero overflows. The reference reader multiplies from the
/// left, and rejects such a tensor although it is empty.
pub(crate) fn overflows_from_the_left(shape: &[u64]) -> bool {
    shape.iter().try_fold(1u64, |count, &dimension| count.checked_mul(dimension)).is_none()
}

/// Why a dtype and a shape have no size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeError {
    /// The size does not fit in 64 bits.
    Overflow,
    /// A packed dtype, and a total size that is not a multiple of 8 bits.
    PartialByte { bits: u64 },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_round_trip() {
        for (index, dtype) in Dtype::ALL.into_iter().enumerate() {
            assert_eq!(dtype as i32, index as i32 + 1);
            assert_eq!(Dtype::from_number(dtype as i32), Some(dtype));
            assert_eq!(Dtype::from_name(dtype.name()), Some(dtype));
        }
        for number in [0, -1, 23, i32::MIN, i32::MAX] {
            assert_eq!(Dtype::from_number(number), None);
        }
        assert_eq!(Dtype::from_name("f32"), None);
    }

    #[test]
    fn names_and_bits_are_those_of_the_reference() {
        for dtype in Dtype::ALL {
            let theirs: safetensors::Dtype = serde_json::from_value(dtype.name().into()).unwrap();
            assert_eq!(theirs.bitsize() as u32, dtype.bits(), "{}", dtype.name());
        }
    }

    #[test]
    fn sizes_are_checked() {
        assert_eq!(Dtype::F32.nbytes(&[2, 3]), Ok(24));
        assert_eq!(Dtype::F32.nbytes(&[]), Ok(4));
        assert_eq!(Dtype::F4.nbytes(&[2, 3]), Ok(3));
        assert_eq!(Dtype::F4.nbytes(&[3]), Err(SizeError::PartialByte { bits: 12 }));
        assert_eq!(Dtype::F6E2M3.nbytes(&[4]), Ok(3));
        assert_eq!(Dtype::F32.nbytes(&[1 << 32, 1 << 32]), Err(SizeError::Overflow));
        assert_eq!(Dtype::F32.nbytes(&[(1 << 62) + 2]), Err(SizeError::Overflow));
        for shape in [[0, 1 << 63, 1 << 63], [1 << 63, 0, 1 << 63], [1 << 63, 1 << 63, 0]] {
            assert_eq!(Dtype::F32.nbytes(&shape), Ok(0));
        }
    }
}
