#![forbid(unsafe_code)]
//! What is read next, asked for while rows of `x` meet what was read before.
//!
//! Only the first rows that meet a row group of weights wait for memory. Those behind them find it in the cache, and memory is idle. So each pass of some
//! rows over a row group asks for a share of the next one, spread evenly over the pass.

use core::ops::Range;

use super::simd::Simd;

/// Bytes of a line of the cache.
const LINE: usize = 64;
/// Fewer rows of `x` wait for memory all the time, and nothing is gained.
const LEAST_ROWS: usize = 5;

/// What a pass asks for.
#[derive(Clone, Copy)]
pub(super) struct Prefetch<'a> {
    bytes: &'a [u8],
    /// Bytes a step.
    step: usize,
}

impl<'a> Prefetch<'a> {
    /// The share that rows `pass` of `rows` have in `next`; they take `steps` steps.
    #[inline(always)]
    pub(super) fn share(next: &'a [u8], pass: Range<usize>, rows: usize, steps: usize) -> Self {
        if rows < LEAST_ROWS {
            return Self { bytes: &[], step: 0 };
        }
        let at = |row: usize| next.len() * row.min(rows) / rows;
        let bytes = next.get(at(pass.start)..at(pass.end)).unwrap_or_default();
        Self { bytes, step: bytes.len().div_ceil(steps.max(1)) }
    }

    /// Asks for what goes with step `index`.
    #[inline(always)]
    pub(super) fn step<S: Simd>(&self, s: S, index: usize) {
        let rest = self.bytes.get(index * self.step..).unwrap_or_default();
        let mut at = 0;
        while at < self.step.min(rest.len()) {
            s.prefetch(rest.as_ptr().wrapping_add(at));
            at += LINE;
        }
    }
}
