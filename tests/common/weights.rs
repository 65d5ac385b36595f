//! Random weights and activations of every element type.

use ictus::tensor::{Bytes, DType, Tensor, dequantise_row};

use super::Random;

pub(crate) fn uniform(random: &mut Random) -> f32 {
    (random.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
}

pub(crate) fn values(random: &mut Random, len: usize) -> Vec<f32> {
    (0..len).map(|_| uniform(random)).collect()
}

/// A tensor of any bytes whose scales are ordinary numbers, starting at an odd address.
pub(crate) fn tensor(random: &mut Random, dtype: DType, rows: usize, cols: usize) -> Tensor {
    let unit_bytes = dtype.unit_bytes();
    let len = rows * dtype.row_bytes(cols).expect("whole units");
    let mut bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
    let scales: &[usize] = match dtype {
        DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::IQ4_NL | DType::IQ4_XS => &[0],
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        _ => &[],
    };
    for unit in bytes.chunks_mut(unit_bytes) {
        let value = uniform(random);
        match dtype {
            DType::F32 => unit.copy_from_slice(&value.to_le_bytes()),
            DType::F16 => unit.copy_from_slice(&half::f16::from_f32(value).to_le_bytes()),
            DType::BF16 => unit.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes()),
            _ => {}
        }
        for &at in scales {
            let scale = half::f16::from_f32(uniform(random) / 16.0);
            unit[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    bytes.insert(0, 0);
    let data = Bytes::copy_aligned(&bytes).slice(1..len + 1).expect("inside");
    Tensor { dtype, rows, cols, data }
}

pub(crate) fn decoded(tensor: &Tensor) -> Vec<f32> {
    let mut out = vec![0.0; tensor.rows * tensor.cols];
    dequantise_row(tensor.dtype, tensor.data.as_slice(), &mut out).expect("whole rows");
    out
}

pub(crate) fn plain(rows: usize, cols: usize, values: &[f32]) -> Tensor {
    Tensor { dtype: DType::F32, rows, cols, data: Bytes::from_f32(values) }
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Columns to try for a type: what is whole units of it, with and without a rest.
pub(crate) fn columns(dtype: DType) -> &'static [usize] {
    match dtype.unit_values() {
        1 => &[1, 7, 8, 31, 33, 64, 101],
        32 => &[32, 96, 576],
        _ => &[256, 768],
    }
}
