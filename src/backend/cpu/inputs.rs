#![forbid(unsafe_code)]
//! Rows of activations as exact products with codes meet them.
//!
//! A row is prepared once for all products that it goes into. Codes are converted to numbers where they stand in a dword, which multiplies
//! them by a power of two ([`Wide::BYTE_FACTORS`](super::simd::Wide)); activations are divided by it here. And what an offset is
//! multiplied by, the sum of the activations that share it, is the same for all outputs.
//!
//! # Numerics
//! Numbers below [`SMALLEST`] count as zeros, so that dividing is exact. The sum of 16 columns is that of the eight numbers
//! `x[i] + x[i + 8]`, as the lanes of a vector; that of 32 is the sum of both.

use super::simd::{LANES, Op, Simd};
use super::tile::BLOCK;

/// What a smaller number, or its negative, counts as a zero: divided by 2^24 it would not be exact.
const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);

/// 32 columns of a row.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct Prepared {
    /// Divided by the factors.
    x: [f32; BLOCK],
    /// Sums of the first half, of the second, and of both; and nothing.
    moments: [f32; 4],
}

/// Elements of a block of a prepared row.
pub(super) const PREPARED: usize = size_of::<Prepared>() / size_of::<f32>();

/// Prepares whole blocks.
pub(super) struct Prepare<'a> {
    /// A multiple of 32 numbers.
    pub(super) x: &'a [f32],
    /// As many blocks.
    pub(super) to: &'a mut [Prepared],
}

impl Op for Prepare<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (x, to) in self.x.as_chunks::<BLOCK>().0.iter().zip(self.to) {
            let mut large = *x;
            for x in &mut large {
                *x = if x.abs() < SMALLEST { 0.0 } else { *x };
            }
            let [a, b, c, d]: &[[f32; LANES]; 4] = bytemuck::cast_ref(&large);
            let first = s.sum(s.add(s.load(a), s.load(b)));
            let second = s.sum(s.add(s.load(c), s.load(d)));
            to.moments = [first, second, first + second, 0.0];
            for (four, to) in large.as_chunks::<4>().0.iter().zip(to.x.as_chunks_mut::<4>().0) {
                for j in 0..4 {
                    to[j] = four[j] * (1.0 / S::BYTE_FACTORS[j]);
                }
            }
        }
    }
}

/// What a block of weights meets of a row.
#[derive(Clone, Copy)]
pub(super) struct Input<'a> {
    pub(super) x: &'a [f32; BLOCK],
    /// As in [`Prepared`]; zeros where weights are no codes.
    moments: &'a [f32; 4],
}

impl<'a> Input<'a> {
    pub(super) const ZERO: Self = Self { x: &[0.0; BLOCK], moments: &[0.0; 4] };

    /// Block `block` of a prepared row.
    #[inline(always)]
    pub(super) fn prepared(row: &'a [f32], block: usize) -> Self {
        let block = row.get(block * PREPARED..).and_then(<[f32]>::first_chunk::<PREPARED>);
        match block.map(|block| block.split_at(BLOCK)) {
            Some((x, moments)) => Self {
                x: x.first_chunk().unwrap_or(Self::ZERO.x),
                moments: moments.first_chunk().unwrap_or(Self::ZERO.moments),
            },
            None => Self::ZERO,
        }
    }

    /// Block `block` of a row as it is; in `tail`, with zeros behind it, where the row ends before.
    #[inline(always)]
    pub(super) fn plain(row: &'a [f32], block: usize, tail: &'a mut [f32; BLOCK]) -> Self {
        let rest = row.get(block * BLOCK..).unwrap_or_default();
        let x = match rest.first_chunk() {
            Some(x) => x,
            None => {
                tail.iter_mut().zip(rest).for_each(|(to, x)| *to = *x);
                tail
            }
        };
        Self { x, ..Self::ZERO }
    }

    /// What the offset is multiplied by that `group` columns share: of half `half`, or of the whole block.
    #[inline(always)]
    pub(super) fn moment(&self, group: usize, half: usize) -> f32 {
        self.moments[if group == 16 { half & 1 } else { 2 }]
    }
}
