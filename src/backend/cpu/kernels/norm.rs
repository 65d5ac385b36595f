//! RMSNorm: `out = x / sqrt(mean(x^2) + epsilon) * weight`.
//!
//! # Numerics
//! The squares are summed in eight lanes, in ascending order, then `sum_lanes`. Groups do not meet.
//!
//! # Source
//! arXiv 1910.07467

use crate::backend::cpu::simd::{Simd, per_isa, sum_lanes};

per_isa! {
    /// Norms each group of `weight.len()` elements of a row in place.
    fn rms_norm = rms_norm_row(row: &mut [f32], weight: &[f32], epsilon: f32)
}

#[inline(always)]
fn rms_norm_row<S: Simd>(row: &mut [f32], weight: &[f32], epsilon: f32) {
    for group in row.chunks_exact_mut(weight.len()) {
        let (eights, rest) = group.as_chunks::<8>();
        let mut sums = S::zero();
        for eight in eights {
            let x = S::load(eight);
            sums = S::mul_add(x, x, sums);
        }
        let tail: f32 = rest.iter().map(|x| x * x).sum();
        let mean = (sum_lanes(S::lanes(sums)) + tail) / weight.len() as f32;
        let scale = 1.0 / (mean + epsilon).sqrt();
        for (x, weight) in group.iter_mut().zip(weight) {
            *x = *x * scale * weight;
        }
    }
}
