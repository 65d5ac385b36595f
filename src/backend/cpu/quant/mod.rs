#![forbid(unsafe_code)]
//! Weights to f32, 32 values at a time, in registers.
//!
//! Each type says how to decode one group of 32 values of its unit ([`Format::group`]); matrix products and embedding are generic
//! over that. The pictures of the bytes are in `tensor`.
//!
//! # Invariants
//! A decoded value has the bits that [`dequantise_row`](crate::tensor::dequantise_row) gives, in every instance: only the addition of a
//! minimum rounds, and it rounds once with or without a fused operation.

mod legacy;
mod nonlinear;
mod plain;
mod superblock;

use super::simd::{LANES, Simd, part};
use crate::tensor::DType;

pub(super) use legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(super) use nonlinear::{Iq4Nl, Iq4Xs};
pub(super) use plain::{Bf16, F16, F32};
pub(super) use superblock::{Q2K, Q3K, Q4K, Q5K, Q6K};

/// Values of a group.
pub(super) const GROUP: usize = 32;

/// A type of weight.
pub(super) trait Format {
    /// Values of a unit: whole groups. For single elements, as many as a group has.
    const VALUES: usize;
    /// Bytes of a unit.
    const BYTES: usize;

    /// Group `g < VALUES / 32` of the unit `block`, which has `BYTES` bytes.
    fn group<S: Simd>(s: S, block: &[u8], g: usize) -> [S::V; 4];
}

/// What a type of weight is chosen for: called with the one that belongs to an element type.
pub(super) trait FormatVisitor {
    /// What it answers.
    type Output;

    /// Called with the type.
    fn visit<F: Format>(self) -> Self::Output;
}

/// Calls the visitor with the format of `dtype`.
#[inline(always)]
pub(super) fn with_format<W: FormatVisitor>(dtype: DType, visitor: W) -> W::Output {
    match dtype {
        DType::F32 => visitor.visit::<F32>(),
        DType::F16 => visitor.visit::<F16>(),
        DType::BF16 => visitor.visit::<Bf16>(),
        DType::Q4_0 => visitor.visit::<Q4_0>(),
        DType::Q4_1 => visitor.visit::<Q4_1>(),
        DType::Q5_0 => visitor.visit::<Q5_0>(),
        DType::Q5_1 => visitor.visit::<Q5_1>(),
        DType::Q8_0 => visitor.visit::<Q8_0>(),
        DType::Q2_K => visitor.visit::<Q2K>(),
        DType::Q3_K => visitor.visit::<Q3K>(),
        DType::Q4_K => visitor.visit::<Q4K>(),
        DType::Q5_K => visitor.visit::<Q5K>(),
        DType::Q6_K => visitor.visit::<Q6K>(),
        DType::IQ4_NL => visitor.visit::<Iq4Nl>(),
        DType::IQ4_XS => visitor.visit::<Iq4Xs>(),
    }
}

/// Decodes a row.
///
/// # Shapes
/// `row`: whole units; `out`: as many values, and up to 31 more, which become 0
#[inline(always)]
pub(super) fn unpack_row<S: Simd, F: Format>(s: S, row: &[u8], out: &mut [f32]) {
    let (units, rest) = (row.chunks_exact(F::BYTES), row.len() % F::BYTES);
    let whole = row.len() / F::BYTES * F::VALUES;
    for (block, values) in units.zip(out.chunks_exact_mut(F::VALUES)) {
        for (g, values) in values.chunks_exact_mut(GROUP).enumerate() {
            let group = F::group(s, block, g);
            for (v, to) in group.into_iter().zip(values.as_chunks_mut().0) {
                s.store(v, to);
            }
        }
    }
    // Single elements may end inside a group.
    if let Some(tail) = out.get_mut(whole..) {
        tail.fill(0.0);
        if rest > 0 {
            let mut values = [0.0; GROUP];
            let group = F::group(s, &padded_unit(row, rest), 0);
            for (v, to) in group.into_iter().zip(values.as_chunks_mut().0) {
                s.store(v, to);
            }
            for (to, &value) in tail.iter_mut().zip(&values) {
                *to = value;
            }
        }
    }
}

/// The last `rest` bytes of a row of single elements, with zeros behind.
#[inline(always)]
pub(super) fn padded_unit(row: &[u8], rest: usize) -> [u8; 4 * GROUP] {
    let mut unit = [0; 4 * GROUP];
    for (to, &byte) in unit.iter_mut().zip(&row[row.len() - rest..]) {
        *to = byte;
    }
    unit
}

/// The f16 at byte `at`.
#[inline(always)]
fn half_at<S: Simd>(s: S, block: &[u8], at: usize) -> f32 {
    s.half(u16::from_le_bytes(*part(block, at)))
}

/// The low (`high = 0`) or high (`high = 1`) halves of 16 bytes.
#[inline(always)]
fn nibbles<S: Simd>(s: S, b: S::B, high: usize) -> S::B {
    let shifted = if high == 0 { b } else { s.shr_bytes(b, 4) };
    s.and(shifted, s.splat_byte(15))
}

/// `v * scale` for four vectors.
#[inline(always)]
fn scaled<S: Simd>(s: S, v: [[S::V; 2]; 2], scale: [f32; 2]) -> [S::V; 4] {
    let [first, second] = [s.splat(scale[0]), s.splat(scale[1])];
    [s.mul(v[0][0], first), s.mul(v[0][1], first), s.mul(v[1][0], second), s.mul(v[1][1], second)]
}

/// `v * scale + offset` for four vectors.
#[inline(always)]
fn scaled_from<S: Simd>(s: S, v: [[S::V; 2]; 2], scale: [f32; 2], offset: [f32; 2]) -> [S::V; 4] {
    let [first, second] = [s.splat(scale[0]), s.splat(scale[1])];
    let [low, high] = [s.splat(offset[0]), s.splat(offset[1])];
    [s.fma(v[0][0], first, low), s.fma(v[0][1], first, low), s.fma(v[1][0], second, high), s.fma(v[1][1], second, high)]
}

const _: () = assert!(GROUP == 4 * LANES);
