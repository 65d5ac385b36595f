//! Attention of rows over the pages of their sequence.
//!
//! ```text
//! for each segment of 256 positions that the rows may see:
//!     find the keys of its positions
//!     for each row, for each query head of the KV head:
//!         scores of the segment; their maximum m; weights e^(score - m); their sum l; o = sum of weight * value
//!         merge (m, l, o) into the row's state
//! out = o / l
//! ```
//! # Numerics
//! - Segments are cut at absolute positions and merged in ascending order. Which page holds a position is no part of the
//!   computation, nor is the number of rows: a row's bits depend on its query and on the keys and values it sees.
//! - A score is a vector of 8 sums over the dimensions, summed as `simd` says. The weights of a segment have 8 sums, position modulo 8;
//!   a position that the row does not see has score minus infinity and weight 0, and its key and value are not read.
//! - `o` adds positions in ascending order, one sum per dimension.
//!
//! # Source
//! arXiv 1805.02867 (online softmax), 2205.14135 (merging of partial softmax sums)

use core::ops::Range;

use super::math::exp;
use super::pages::{Element, Layout};
use super::shared::Shared;
use super::simd::{LANES, Op, Simd};
use crate::backend::{AttentionShape, Span};

/// Positions of a segment.
const SEGMENT: usize = 256;
/// Row states that one pass over a segment serves.
const STATES: usize = 32;
/// Most rows of a task.
pub(super) const TASK_ROWS: usize = 8;

/// Some rows of a span and some query heads of one KV head.
pub(super) struct Task<'a, E> {
    /// `[rows, n_heads * head_dim]`
    pub(super) queries: &'a [f32],
    pub(super) elements: &'a [E],
    pub(super) layout: Layout,
    pub(super) shape: &'a AttentionShape,
    pub(super) span: Span<'a>,
    /// Rows of the span.
    pub(super) rows: Range<usize>,
    /// Query heads, all of the same KV head.
    pub(super) heads: Range<usize>,
    /// As `queries`; nobody else writes these rows and heads.
    pub(super) out: Shared<'a, f32>,
}

/// Softmax so far: the largest score and the sum of weights relative to it. The weighted values are in the output.
#[derive(Clone, Copy)]
struct State {
    most: f32,
    sum: f32,
}

impl<E: Element> Op for Task<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // Rows and heads in parts whose states fit the array.
        let mut head = self.heads.start;
        while head < self.heads.end {
            let heads = head..self.heads.end.min(head + STATES);
            let row_step = (STATES / heads.len()).max(1);
            let mut row = self.rows.start;
            while row < self.rows.end {
                self.part(s, row..self.rows.end.min(row + row_step), heads.clone());
                row += row_step;
            }
            head = heads.end;
        }
    }
}

impl<E: Element> Task<'_, E> {
    /// Positions that a row of the span sees.
    #[inline(always)]
    fn seen(&self, row: usize) -> Range<usize> {
        let end = self.span.start + row + 1;
        self.shape.window.map_or(0, |window| end.saturating_sub(window.max(1)))..end
    }

    #[inline(always)]
    fn part<S: Simd>(&self, s: S, rows: Range<usize>, heads: Range<usize>) {
        let (first, end) = (self.seen(rows.start).start, self.seen(rows.end - 1).end);
        let kv_head = heads.start / (self.shape.n_heads / self.shape.n_kv_heads);
        let mut states = [State { most: f32::NEG_INFINITY, sum: 0.0 }; STATES];
        let mut keys = [0; SEGMENT];
        let mut start = first / SEGMENT * SEGMENT;
        while start < end {
            let positions = start.max(first)..end.min(start + SEGMENT);
            self.find_keys(kv_head, positions, &mut keys);
            for row in rows.clone() {
                let seen = self.seen(row);
                let seen = seen.start.max(start)..seen.end.min(start + SEGMENT);
                if seen.is_empty() {
                    continue;
                }
                // The first segment that a row sees anything of replaces its state.
                let fresh = seen.start == self.seen(row).start;
                for head in heads.clone() {
                    let state = &mut states[(row - rows.start) * heads.len() + head - heads.start];
                    let in_segment = seen.start - start..seen.end - start;
                    self.segment(s, row, head, &keys, in_segment, fresh, state);
                }
            }
            start += SEGMENT;
        }
        for row in rows.clone() {
            for head in heads.clone() {
                let sum = states[(row - rows.start) * heads.len() + head - heads.start].sum;
                // SAFETY: this row and head belong to this task, and no other part is in use.
                let out = unsafe { self.out.part(self.at(row, head), self.shape.head_dim) };
                for out in out {
                    *out /= sum;
                }
            }
        }
    }

    /// Where the keys of `positions` lie, by position in the segment.
    #[inline(always)]
    fn find_keys(&self, kv_head: usize, positions: Range<usize>, keys: &mut [usize; SEGMENT]) {
        let page_size = self.layout.page_size_tokens;
        let (mut page, mut slot) = (positions.start / page_size, positions.start % page_size);
        for position in positions {
            keys[position % SEGMENT] = self.layout.keys_at(self.span.block_table[page], kv_head, slot);
            slot += 1;
            if slot == page_size {
                (page, slot) = (page + 1, 0);
            }
        }
    }

    #[inline(always)]
    fn at(&self, row: usize, head: usize) -> usize {
        ((self.span.first_row + row) * self.shape.n_heads + head) * self.shape.head_dim
    }

    /// Takes the positions `seen` of the segment into the state and the output of a row's head.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "one step of a loop nest, inlined into it")]
    fn segment<S: Simd>(
        &self,
        s: S,
        row: usize,
        head: usize,
        keys: &[usize; SEGMENT],
        seen: Range<usize>,
        fresh: bool,
        state: &mut State,
    ) {
        let dim = self.shape.head_dim;
        let query = &self.queries[self.at(row, head)..][..dim];
        let mut weights = [0.0; SEGMENT];
        let new = self.weights(s, query, keys, seen.clone(), &mut weights);
        // SAFETY: this row and head belong to this task, and no other part is in use.
        let out = unsafe { self.out.part(self.at(row, head), dim) };
        let (old_scale, new_scale) = if fresh {
            *state = new;
            (0.0, 1.0)
        } else {
            let most = if new.most > state.most { new.most } else { state.most };
            let mut scales = [0.0; LANES];
            let differences = [state.most - most, new.most - most, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
            s.store(exp(s, s.load(&differences)), &mut scales);
            *state = State { most, sum: state.sum * scales[0] + new.sum * scales[1] };
            (scales[0], scales[1])
        };
        let merge = Merge { fresh, old_scale, new_scale };
        let weights = &weights[..seen.end];
        let mut at = 0;
        while at + 8 * LANES <= dim {
            self.values::<S, 8>(s, keys, &seen, weights, at, merge, out);
            at += 8 * LANES;
        }
        while at + LANES <= dim {
            self.values::<S, 1>(s, keys, &seen, weights, at, merge, out);
            at += LANES;
        }
        if at < dim {
            self.last_values(s, keys, &seen, weights, at, merge, out);
        }
    }

    /// Weights of the positions `seen`, their largest score, and the sum of the weights.
    #[inline(always)]
    fn weights<S: Simd>(
        &self,
        s: S,
        query: &[f32],
        keys: &[usize; SEGMENT],
        seen: Range<usize>,
        weights: &mut [f32; SEGMENT],
    ) -> State {
        let first = seen.start / LANES;
        let last = (seen.end - 1) / LANES;
        let scale = s.splat(self.shape.scale);
        let eights = &mut weights.as_chunks_mut::<LANES>().0[first..=last];
        let mut most = s.splat(f32::NEG_INFINITY);
        for (eight, scores) in (first..).zip(eights.iter_mut()) {
            let mut rows = [self.elements; LANES];
            for (lane, row) in rows.iter_mut().enumerate() {
                // Of a position that is not seen the key is not read: a seen one stands in, and its score is thrown away.
                let position = (eight * LANES + lane).clamp(seen.start, seen.end - 1);
                *row = &self.elements[keys[position]..][..query.len()];
            }
            s.store(s.mul(dot8(s, query, rows), scale), scores);
            if eight == first || eight == last {
                for (lane, score) in scores.iter_mut().enumerate() {
                    if !seen.contains(&(eight * LANES + lane)) {
                        *score = f32::NEG_INFINITY;
                    }
                }
            }
            most = s.max(most, s.load(scores));
        }
        let mut lanes = [0.0; LANES];
        s.store(most, &mut lanes);
        let most = lanes.iter().fold(f32::NEG_INFINITY, |most, &lane| if most > lane { most } else { lane });
        let mut sums = s.splat(0.0);
        for scores in eights {
            let weight = exp(s, s.sub(s.load(scores), s.splat(most)));
            sums = s.add(sums, weight);
            s.store(weight, scores);
        }
        State { most, sum: s.sum(sums) }
    }

    /// Weighted sums of `N` vectors of values from dimension `at` on, merged into the output.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "one step of a loop nest, inlined into it")]
    fn values<S: Simd, const N: usize>(
        &self,
        s: S,
        keys: &[usize; SEGMENT],
        seen: &Range<usize>,
        weights: &[f32],
        at: usize,
        merge: Merge,
        out: &mut [f32],
    ) {
        let offset = self.layout.values + at;
        let mut sums = [s.splat(0.0); N];
        for position in seen.clone() {
            let weight = s.splat(weights[position]);
            let row = &self.elements[keys[position] + offset..][..N * LANES];
            let row = row.as_chunks::<LANES>().0;
            for n in 0..N {
                sums[n] = s.fma(weight, E::load(s, &row[n]), sums[n]);
            }
        }
        let out = out[at..][..N * LANES].as_chunks_mut::<LANES>().0;
        for n in 0..N {
            let merged = merge.apply(s, s.load(&out[n]), sums[n]);
            s.store(merged, &mut out[n]);
        }
    }

    /// As [`Task::values`], for the last dimensions, which do not fill a vector.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "one step of a loop nest, inlined into it")]
    fn last_values<S: Simd>(
        &self,
        s: S,
        keys: &[usize; SEGMENT],
        seen: &Range<usize>,
        weights: &[f32],
        at: usize,
        merge: Merge,
        out: &mut [f32],
    ) {
        let len = out.len() - at;
        let offset = self.layout.values + at;
        let mut sums = s.splat(0.0);
        for position in seen.clone() {
            let row = &self.elements[keys[position] + offset..][..len];
            sums = s.fma(s.splat(weights[position]), E::load_part(s, row), sums);
        }
        let merged = merge.apply(s, super::simd::load_part(s, &out[at..]), sums);
        super::simd::store_part(s, merged, &mut out[at..]);
    }
}

/// How the weighted values of a segment join those of the segments before.
#[derive(Clone, Copy)]
struct Merge {
    /// There is nothing before: what the output holds is not read as a number.
    fresh: bool,
    old_scale: f32,
    new_scale: f32,
}

impl Merge {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, old: S::V, new: S::V) -> S::V {
        if self.fresh { new } else { s.fma(new, s.splat(self.new_scale), s.mul(old, s.splat(self.old_scale))) }
    }
}

/// Products of a query with eight keys.
#[inline(always)]
fn dot8<S: Simd, E: Element>(s: S, query: &[f32], rows: [&[E]; LANES]) -> S::V {
    let mut sums = [s.splat(0.0); LANES];
    let (vectors, tail) = query.as_chunks::<LANES>();
    let mut keys = [rows[0].as_chunks::<LANES>().0; LANES];
    for lane in 0..LANES {
        keys[lane] = &rows[lane].as_chunks::<LANES>().0[..vectors.len()];
    }
    for i in 0..vectors.len() {
        let query = s.load(&vectors[i]);
        for lane in 0..LANES {
            sums[lane] = s.fma(query, E::load(s, &keys[lane][i]), sums[lane]);
        }
    }
    if !tail.is_empty() {
        let query = super::simd::load_part(s, tail);
        for lane in 0..LANES {
            let key = E::load_part(s, &rows[lane][LANES * vectors.len()..]);
            sums[lane] = s.fma(query, key, sums[lane]);
        }
    }
    s.sum8(sums)
}
