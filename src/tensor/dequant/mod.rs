#![forbid(unsafe_code)]
//! From stored elements to numbers: plain, scalar and exact, the truth that kernels are compared with.
//!
//! A row is a sequence of units (single elements, or quant blocks); each unit is decoded by one function whose documentation
//! has the picture of its bytes. All numbers are little-endian. In the pictures `d` is a scale and `m` a minimum, both f16 unless
//! said otherwise, and `q[i]` the stored integer of value `i`.
//!
//! # Invariants
//! Every value is its formula's real number, rounded to f32 once: products of a scale, its sub-scale and an integer have at most 24
//! significant bits, so only the addition of a minimum rounds. Order of evaluation and fused operations make no difference.
//!
//! # Source
//! The layouts are those of the ggml project's quantised types.

mod legacy;
mod nonlinear;
mod superblock;

use half::{bf16, f16};

use super::DType;

/// The bytes and the values of a row do not belong together; `out` is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{values} values of {dtype:?} do not take {bytes} bytes")]
pub struct RowSizeError {
    /// Element type.
    pub dtype: DType,
    /// Values asked for.
    pub values: usize,
    /// Bytes given.
    pub bytes: usize,
}

/// Decodes a row, or several rows that lie one after another.
///
/// # Shapes
/// `bytes`: `dtype.row_bytes(out.len())` bytes; `out`: whole units of values
/// # Errors
/// [`RowSizeError`] when the sizes differ; `out` is then unchanged.
pub fn dequantise_row(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), RowSizeError> {
    if dtype.row_bytes(out.len()) != Some(bytes.len()) {
        return Err(RowSizeError { dtype, values: out.len(), bytes: bytes.len() });
    }
    let unit: fn(&[u8], &mut [f32]) = match dtype {
        DType::F32 => |unit, out| out[0] = f32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]),
        DType::F16 => |unit, out| out[0] = half_at(unit, 0),
        DType::BF16 => |unit, out| out[0] = bf16::from_le_bytes([unit[0], unit[1]]).to_f32(),
        DType::Q4_0 => legacy::q4_0,
        DType::Q4_1 => legacy::q4_1,
        DType::Q5_0 => legacy::q5_0,
        DType::Q5_1 => legacy::q5_1,
        DType::Q8_0 => legacy::q8_0,
        DType::Q2_K => superblock::q2_k,
        DType::Q3_K => superblock::q3_k,
        DType::Q4_K => superblock::q4_k,
        DType::Q5_K => superblock::q5_k,
        DType::Q6_K => superblock::q6_k,
        DType::IQ4_NL => nonlinear::iq4_nl,
        DType::IQ4_XS => nonlinear::iq4_xs,
    };
    let units = bytes.chunks_exact(dtype.unit_bytes());
    for (block, values) in units.zip(out.chunks_exact_mut(dtype.unit_values())) {
        unit(block, values);
    }
    Ok(())
}

/// The f16 at byte `at`.
fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The two 4-bit integers of a byte, low one first.
fn nibbles(byte: u8) -> [i32; 2] {
    [i32::from(byte & 15), i32::from(byte >> 4)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_do_not_belong_together_are_refused_and_leave_the_output() {
        let mut out = [5.0; 32];
        for _ in 0..2 {
            let refused = dequantise_row(DType::Q8_0, &[0; 33], &mut out);
            assert_eq!(refused, Err(RowSizeError { dtype: DType::Q8_0, values: 32, bytes: 33 }));
            assert!(dequantise_row(DType::Q8_0, &[0; 34], &mut out[..31]).is_err());
            assert_eq!(out, [5.0; 32]);
        }
    }

    #[test]
    fn plain_elements_decode() {
        let mut out = [0.0; 2];
        dequantise_row(DType::F32, &[0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0], &mut out).unwrap();
        assert_eq!(out, [1.0, -2.0]);
        dequantise_row(DType::F16, &[0, 0x3c, 1, 0], &mut out).unwrap();
        assert_eq!(out, [1.0, 2.0_f32.powi(-24)]);
        dequantise_row(DType::BF16, &[0x80, 0x3f, 0x49, 0x40], &mut out).unwrap();
        assert_eq!(out, [1.0, 3.140625]);
    }
}
