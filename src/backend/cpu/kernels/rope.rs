#![forbid(unsafe_code)]
//! Rotary embedding: each pair of a head is turned by its angle.
//!
//! # Numerics
//! The angle is `position * frequency` in f64, so that large positions keep their digits; sine and cosine are rounded to f32.
//!
//! # Source
//! arXiv 2104.09864

use crate::backend::RopeTable;
use crate::checkpoint::RopePairing;

/// Turns all heads of one row to `position`; `turns` is scratch.
pub(in super::super) fn rope(
    row: &mut [f32],
    head_dim: usize,
    table: &RopeTable,
    position: usize,
    turns: &mut Vec<(f32, f32)>,
) {
    turns.clear();
    turns.extend(table.frequencies.iter().map(|frequency| {
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        (sin as f32, cos as f32)
    }));
    let pairs = turns.len();
    for head in row.chunks_exact_mut(head_dim) {
        match table.pairing {
            RopePairing::Interleaved => {
                for (pair, &(sin, cos)) in head.as_chunks_mut::<2>().0.iter_mut().zip(&*turns) {
                    *pair = [pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos];
                }
            }
            RopePairing::Halves => {
                let (first, second) = head.split_at_mut(pairs);
                for ((a, b), &(sin, cos)) in first.iter_mut().zip(second).zip(&*turns) {
                    (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                }
            }
        }
    }
}
