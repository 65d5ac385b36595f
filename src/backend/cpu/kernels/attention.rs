//! Causal attention of one row and one query head over the pages of its sequence.
//!
//! ```text
//! for each segment of SEGMENT positions that holds a visible key, in order
//!   score[p] = scale * (q . k[p]);   m = max score;   w[p] = e^(score[p] - m)
//!   part = (m, sum of w[p], sum of w[p] v[p])
//!   state = merge(state, part)
//! out = state.values / state.sum
//! ```
//!
//! # Numerics
//! Segments are cut at absolute positions and merged in order, and positions inside one are added in order, so the result depends on
//! the query, the keys and the values alone: not on pages, chunks, other rows or threads. A masked key is not looked at.
//!
//! # Source
//! Online softmax: arXiv 1805.02867

use std::ops::Range;

use super::exp::exp;
use crate::backend::cpu::memory::{Pages, Part, Stored};
use crate::backend::cpu::simd::{Simd, per_isa, sum_lanes};
use crate::backend::{AttentionShape, Span};

/// Positions of a segment.
const SEGMENT: usize = 256;

/// One row and one head of an attention.
#[derive(Clone, Copy)]
pub(in super::super) struct HeadJob<'a> {
    pub(in super::super) query: &'a [f32],
    pub(in super::super) pages: &'a Pages,
    pub(in super::super) layer: usize,
    pub(in super::super) shape: &'a AttentionShape,
    pub(in super::super) span: &'a Span<'a>,
    pub(in super::super) head: usize,
    pub(in super::super) position: usize,
}

per_isa! {
    /// Computes one head of one row.
    fn attend = attend_head(job: &HeadJob<'_>, out: &mut [f32])
}

#[inline(always)]
fn attend_head<S: Simd>(job: &HeadJob<'_>, out: &mut [f32]) {
    match job.pages.stored() {
        Stored::F32(stored) => walk::<S, f32>(job, stored, out),
        Stored::F16(stored) => walk::<S, u16>(job, stored, out),
    }
}

/// A stored element.
trait Element: Copy {
    fn eight<S: Simd>(from: &[Self; 8]) -> S::V;
    fn one<S: Simd>(self) -> f32;
}

impl Element for f32 {
    #[inline(always)]
    fn eight<S: Simd>(from: &[f32; 8]) -> S::V {
        S::load(from)
    }

    #[inline(always)]
    fn one<S: Simd>(self) -> f32 {
        self
    }
}

impl Element for u16 {
    #[inline(always)]
    fn eight<S: Simd>(from: &[u16; 8]) -> S::V {
        S::halves(from)
    }

    #[inline(always)]
    fn one<S: Simd>(self) -> f32 {
        S::half(self)
    }
}

#[inline(always)]
fn walk<S: Simd, E: Element>(job: &HeadJob<'_>, stored: &[E], out: &mut [f32]) {
    let first = job.shape.window.map_or(0, |window| (job.position + 1).saturating_sub(window));
    let end = job.position + 1;
    let (mut most, mut sum) = (f32::NEG_INFINITY, 0.0f32);
    out.fill(0.0);
    let mut scores = [0.0f32; SEGMENT];
    let mut start = first;
    while start < end {
        let stop = end.min((start / SEGMENT + 1) * SEGMENT);
        let scores = &mut scores[..stop - start];
        score::<S, E>(job, stored, start..stop, scores);
        let segment_most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let new_most = most.max(segment_most);
        // A state without keys has the weight e^(-inf) = 0; the first segment must not subtract infinities.
        let kept = if most == f32::NEG_INFINITY { 0.0 } else { exp(most - new_most) };
        sum *= kept;
        out.iter_mut().for_each(|out| *out *= kept);
        let mut segment_sum = 0.0f32;
        for score in scores.iter_mut() {
            *score = exp(*score - new_most);
            segment_sum += *score;
        }
        sum += segment_sum;
        add_values::<S, E>(job, stored, start..stop, scores, out);
        most = new_most;
        start = stop;
    }
    let scale = 1.0 / sum;
    out.iter_mut().for_each(|out| *out *= scale);
}

/// Runs of positions that lie in one page: the first position, and where its element begins in the pool.
#[inline(always)]
fn runs(job: &HeadJob<'_>, part: Part, positions: Range<usize>) -> impl Iterator<Item = (Range<usize>, usize)> {
    let shape = *job.pages.shape();
    let group = job.shape.n_heads / job.shape.n_kv_heads;
    let (page_size, dim) = (shape.page_size_tokens, job.shape.head_dim);
    let head_start = job.head / group * page_size * dim;
    let (pages, layer, table) = (job.pages, job.layer, job.span.block_table);
    let mut start = positions.start;
    std::iter::from_fn(move || {
        if start >= positions.end {
            return None;
        }
        let stop = positions.end.min((start / page_size + 1) * page_size);
        let page = pages.page_start(layer, part, table[start / page_size]);
        let run = (start..stop, page + head_start + start % page_size * dim);
        start = stop;
        Some(run)
    })
}

#[inline(always)]
fn score<S: Simd, E: Element>(job: &HeadJob<'_>, stored: &[E], positions: Range<usize>, scores: &mut [f32]) {
    let dim = job.shape.head_dim;
    let first = positions.start;
    for (run, element) in runs(job, Part::Keys, positions) {
        let keys = &stored[element..][..run.len() * dim];
        let scores = &mut scores[run.start - first..run.end - first];
        let mut fours = keys.chunks_exact(4 * dim);
        let mut done = 0;
        for four in &mut fours {
            let dots = dot::<S, E, 4>(job.query, [0, 1, 2, 3].map(|i| &four[i * dim..][..dim]));
            for (score, dot) in scores[done..].iter_mut().zip(dots) {
                *score = dot * job.shape.scale;
            }
            done += 4;
        }
        for (score, key) in scores[done..].iter_mut().zip(fours.remainder().chunks_exact(dim)) {
            *score = dot::<S, E, 1>(job.query, [key])[0] * job.shape.scale;
        }
    }
}

/// `N` dot products, each with one accumulator, so that its bits do not depend on `N`.
#[inline(always)]
fn dot<S: Simd, E: Element, const N: usize>(query: &[f32], keys: [&[E]; N]) -> [f32; N] {
    let (eights, rest) = query.as_chunks::<8>();
    let mut acc = [S::zero(); N];
    for (step, query) in eights.iter().enumerate() {
        let query = S::load(query);
        for n in 0..N {
            acc[n] = S::mul_add(query, E::eight::<S>(&keys[n].as_chunks::<8>().0[step]), acc[n]);
        }
    }
    core::array::from_fn(|n| {
        let tail = rest.iter().zip(keys[n].as_chunks::<8>().1);
        sum_lanes(S::lanes(acc[n])) + tail.map(|(query, key)| query * key.one::<S>()).sum::<f32>()
    })
}

/// `out += sum of w[p] v[p]`, in the order of positions.
#[inline(always)]
fn add_values<S: Simd, E: Element>(
    job: &HeadJob<'_>,
    stored: &[E],
    positions: Range<usize>,
    weights: &[f32],
    out: &mut [f32],
) {
    let dim = job.shape.head_dim;
    let first = positions.start;
    for (run, element) in runs(job, Part::Values, positions) {
        let values = &stored[element..][..run.len() * dim];
        let weights = &weights[run.start - first..run.end - first];
        let (eights, rest) = out.as_chunks_mut::<8>();
        for (step, out) in eights.iter_mut().enumerate() {
            let mut acc = S::load(out);
            for (weight, value) in weights.iter().zip(values.chunks_exact(dim)) {
                acc = S::mul_add(S::splat(*weight), E::eight::<S>(&value.as_chunks::<8>().0[step]), acc);
            }
            *out = S::lanes(acc);
        }
        let tail = dim - rest.len();
        for (i, out) in rest.iter_mut().enumerate() {
            for (weight, value) in weights.iter().zip(values.chunks_exact(dim)) {
                *out += weight * value[tail + i].one::<S>();
            }
        }
    }
}
