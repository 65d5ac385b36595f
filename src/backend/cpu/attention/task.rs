//! One task: a tile of queries over some segments.

use core::ops::Range;

use super::super::pages::{Element, SIDE};
use super::super::shared::Shared;
use super::super::simd::{Op, Simd};
use super::kernels::{Join, Merge, Next, Scores, Soften, State, Values};
use super::plan::{Plan, Row, Task, place};
use super::{Attend, BLOCKS, PAIRS, SEGMENT, intersect};

/// Strips of dimensions that all queries take before the next ones: their values of a segment stay near.
const STRIPS: usize = 4;
/// Blocks of positions that all queries take before the next ones.
const SCORE_BLOCKS: usize = 4;

/// Runs a task.
pub(super) struct Run<'a, E> {
    pub(super) attend: &'a Attend<'a, E>,
    pub(super) plan: &'a Plan,
    pub(super) task: &'a Task,
    /// As the queries. Nobody else writes the rows and heads of the task, if it is not `placed`.
    pub(super) out: Shared<'a, f32>,
    /// Places of the plan. Nobody else uses those of the rows, heads and segments of the task.
    pub(super) places: Shared<'a, f32>,
    pub(super) scratch: &'a mut [f32],
}

/// Memory of a task, cut into its parts.
struct Memory<'a, E> {
    /// Of each part of up to 6 queries, `[head_dim][queries]`.
    queries: &'a mut [f32],
    scores: &'a mut [[f32; SEGMENT]],
    /// Keys or values that do not lie in whole blocks.
    gathered: &'a mut [E],
}

/// The segment at hand, by query of the tile.
struct Segment {
    /// Its number.
    index: usize,
    /// Positions seen, from its start.
    seen: [Range<usize>; PAIRS],
    merges: [Merge; PAIRS],
    /// Where the weighted values go, in `out` or in the places.
    targets: [usize; PAIRS],
    /// Where the keys and values of its blocks lie that anybody sees, when blocks are whole in their page.
    keys: [usize; BLOCKS],
    values: [usize; BLOCKS],
    /// Where the keys of the next segment lie, where the task has one.
    next: Option<[usize; BLOCKS]>,
}

/// Runs `$call` for each part of the queries of `$run`: 12 where there are 32 registers, 6, 4, 3, 2, or 1, with as many sums of sixteen
/// lanes as registers hold and keep busy. A part goes over heads and rows, which may see different positions.
macro_rules! parts {
    ($run:expr, $wide:expr, |$first:ident, $rows:ident, $sums:ident| $call:expr) => {
        let pairs = $run.pairs();
        let mut $first = 0;
        while $first < pairs {
            let left = pairs - $first;
            // Known when it is compiled: of the other branch nothing is.
            if const { $wide } {
                match left {
                    12.. => parts!(12, 2, $first, $rows, $sums, $call),
                    6.. => parts!(6, 4, $first, $rows, $sums, $call),
                    4 => parts!(4, 4, $first, $rows, $sums, $call),
                    3 | 5 => parts!(3, 4, $first, $rows, $sums, $call),
                    2 => parts!(2, 4, $first, $rows, $sums, $call),
                    _ => parts!(1, 4, $first, $rows, $sums, $call),
                }
            } else {
                match left {
                    6.. => parts!(6, 1, $first, $rows, $sums, $call),
                    4 => parts!(4, 1, $first, $rows, $sums, $call),
                    3 | 5 => parts!(3, 2, $first, $rows, $sums, $call),
                    2 => parts!(2, 2, $first, $rows, $sums, $call),
                    _ => parts!(1, 4, $first, $rows, $sums, $call),
                }
            }
        }
    };
    ($r:literal, $n:literal, $first:ident, $rows:ident, $sums:ident, $call:expr) => {{
        const $rows: usize = $r;
        const $sums: usize = $n;
        $call;
        $first += $rows;
    }};
}

impl<E: Element> Op for Run<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let dim = self.attend.shape.head_dim;
        let scratch = core::mem::take(&mut self.scratch);
        let (queries, rest) = scratch.split_at_mut(PAIRS * dim);
        let (scores, gathered) = rest.split_at_mut(PAIRS * SEGMENT);
        let scores = scores.as_chunks_mut().0;
        let mut memory = Memory::<E> { queries, scores, gathered: bytemuck::cast_slice_mut(gathered) };
        self.pack::<S>(memory.queries);
        let mut states = [State::NONE; PAIRS];
        for index in self.task.segments.clone() {
            let mut segment = Segment {
                index,
                seen: [const { 0..0 }; PAIRS],
                merges: [Merge::FRESH; PAIRS],
                targets: [0; PAIRS],
                keys: [0; BLOCKS],
                values: [0; BLOCKS],
                next: None,
            };
            let union = self.look(&mut segment);
            if !union.is_empty() {
                self.find_blocks(&mut segment, &union);
                self.scores(s, &segment, union.clone(), &mut memory);
                self.soften(s, &mut segment, memory.scores, &mut states);
                self.values(s, &segment, union, &mut memory);
            }
        }
        if self.task.placed {
            self.settle(s);
        } else {
            self.divide(&states);
        }
    }
}

impl<E: Element> Run<'_, E> {
    fn rows(&self) -> &[Row] {
        &self.plan.rows[self.task.rows.clone()]
    }

    fn pairs(&self) -> usize {
        self.task.rows.len() * self.task.heads.len()
    }

    /// Row and head of a query of the tile.
    fn pair(&self, pair: usize) -> (&Row, usize) {
        let heads = self.task.heads.len();
        (&self.rows()[pair / heads], self.task.heads.start + pair % heads)
    }

    /// Where a row's head lies in queries and output.
    fn at(&self, row: &Row, head: usize) -> usize {
        (row.index * self.attend.shape.n_heads + head) * self.attend.shape.head_dim
    }

    /// Where the place of a row's head for a segment begins.
    fn place(&self, row: &Row, head: usize, segment: usize) -> usize {
        let shape = self.attend.shape;
        let first = row.segments(shape.window).start;
        let place = row.place.unwrap_or(0) + segment - first;
        place * self::place(shape) + head * (shape.head_dim + 2)
    }

    /// Lays the queries of each part side by side.
    fn pack<S: Simd>(&self, packed: &mut [f32]) {
        let dim = self.attend.shape.head_dim;
        parts!(self, S::HOLDS_MANY, |first, R, _N| {
            let part = packed[first * dim..][..R * dim].as_chunks_mut::<R>().0;
            for r in 0..R {
                let (row, head) = self.pair(first + r);
                let query = &self.attend.queries[self.at(row, head)..][..dim];
                for (packed, &x) in part.iter_mut().zip(query) {
                    packed[r] = x;
                }
            }
        });
    }

    /// Finds what each query sees of the segment; the positions that any does.
    fn look(&self, segment: &mut Segment) -> Range<usize> {
        let start = segment.index * SEGMENT;
        let mut union = Range { start: SEGMENT, end: 0 };
        for pair in 0..self.pairs() {
            let (row, head) = self.pair(pair);
            let seen = intersect(&row.seen(self.attend.shape.window), &(start..start + SEGMENT));
            if seen.is_empty() {
                continue;
            }
            segment.seen[pair] = seen.start - start..seen.end - start;
            union = union.start.min(seen.start - start)..union.end.max(seen.end - start);
            segment.targets[pair] =
                if self.task.placed { self.place(row, head, segment.index) } else { self.at(row, head) };
        }
        union
    }

    /// Where a position lies: the head of its page, and its slot.
    fn slot(&self, position: usize) -> (usize, usize) {
        let layout = &self.attend.layout;
        let table = self.attend.spans[self.task.span].block_table;
        let page = table[position / layout.page_size_tokens];
        (layout.head_at(page, self.task.kv_head), position % layout.page_size_tokens)
    }

    /// Whether blocks of positions are whole in their page.
    fn whole_blocks(&self) -> bool {
        self.attend.layout.page_size_tokens.is_multiple_of(SIDE)
    }

    /// Finds where whole blocks of the segment lie, and those of the next one.
    ///
    /// A page is too short for the processor to see what comes, and the next one may lie anywhere. So keys of a segment ask for its values,
    /// and its values for the keys of the next one.
    fn find_blocks(&self, segment: &mut Segment, union: &Range<usize>) {
        if !self.whole_blocks() {
            return;
        }
        let layout = &self.attend.layout;
        let start = segment.index * SEGMENT;
        for block in union.start / SIDE..union.end.div_ceil(SIDE) {
            let (head, slot) = self.slot(start + block * SIDE);
            segment.keys[block] = head + layout.key(slot).0;
            segment.values[block] = head + layout.value(slot, 0).start;
        }
        let next = start + SEGMENT;
        let sees = self.rows().iter().any(|row| row.position + 1 >= next + SEGMENT);
        if segment.index + 1 < self.task.segments.end && sees {
            segment.next = Some(core::array::from_fn(|block| {
                let (head, slot) = self.slot(next + block * SIDE);
                head + layout.key(slot).0
            }));
        }
    }

    /// Whether what is wanted next is asked for: in pages of one block, where the keys and the values of a block lie alike.
    fn asks_ahead(&self) -> bool {
        self.attend.layout.page_size_tokens == SIDE
    }

    fn scores<S: Simd>(&self, s: S, segment: &Segment, union: Range<usize>, memory: &mut Memory<'_, E>) {
        let dim = self.attend.shape.head_dim;
        let start = segment.index * SEGMENT;
        let blocks = union.start / SIDE..union.end.div_ceil(SIDE);
        if self.whole_blocks() {
            let elements = self.attend.elements;
            for first in blocks.clone().step_by(SCORE_BLOCKS) {
                let some = first..blocks.end.min(first + SCORE_BLOCKS);
                let Memory { queries, scores, .. } = memory;
                let keys =
                    Keys { elements, at: &segment.keys, ahead: Some(&segment.values).filter(|_| self.asks_ahead()) };
                self.score_blocks(s, segment, &keys, some, queries, scores);
            }
            return;
        }
        for block in blocks {
            for position in intersect(&union, &(block * SIDE..block * SIDE + SIDE)) {
                let (head, slot) = self.slot(start + position);
                let (first, stride) = self.attend.layout.key(slot);
                let key = self.attend.elements[head + first..].iter().step_by(stride);
                let to = memory.gathered[position % SIDE..].iter_mut().step_by(SIDE);
                for (to, &x) in to.zip(key).take(dim) {
                    *to = x;
                }
            }
            let Memory { queries, scores, gathered } = memory;
            let keys = Keys { elements: gathered, at: &[0; BLOCKS], ahead: None };
            self.score_blocks(s, segment, &keys, block..block + 1, queries, scores);
        }
    }

    /// Scores of all queries with some blocks.
    fn score_blocks<S: Simd>(
        &self,
        s: S,
        segment: &Segment,
        keys: &Keys<'_, E>,
        group: Range<usize>,
        queries: &[f32],
        scores: &mut [[f32; SEGMENT]],
    ) {
        let dim = self.attend.shape.head_dim;
        let scale = self.attend.shape.scale;
        parts!(self, S::HOLDS_MANY, |first, R, N| {
            let seen = union(&segment.seen[first..first + R]);
            let blocks = intersect(&group, &(seen.start / SIDE..seen.end.div_ceil(SIDE)));
            let queries = queries[first * dim..][..R * dim].as_chunks::<R>().0;
            if let Some(scores) = scores[first..].first_chunk_mut::<R>() {
                for block in blocks.clone().step_by(N) {
                    // Where there are fewer than `N` left, the last one is computed again.
                    let blocks: [_; N] = core::array::from_fn(|n| (block + n).min(blocks.end - 1));
                    // The first queries fetch for all.
                    let ahead = keys.ahead.filter(|_| first == 0);
                    let ahead = ahead.map(|at| blocks.map(|block| keys.elements.as_ptr().wrapping_add(at[block])));
                    let keys = blocks.map(|block| keys.elements[keys.at[block]..][..dim * SIDE].as_chunks().0);
                    s.run(Scores { queries, keys, scale, scores: &mut *scores, blocks, ahead });
                }
            }
        });
    }

    /// Scores to weights, and the weights' sums into the states.
    fn soften<S: Simd>(&self, s: S, segment: &mut Segment, scores: &mut [[f32; SEGMENT]], states: &mut [State; PAIRS]) {
        let dim = self.attend.shape.head_dim;
        for pair in 0..self.pairs() {
            let seen = segment.seen[pair].clone();
            if seen.is_empty() {
                continue;
            }
            let new = s.run(Soften { scores: &mut scores[pair], seen });
            if self.task.placed {
                // SAFETY: the place of this row, head and segment is this task's, and no other slice of it is in use.
                let state = unsafe { self.places.part(segment.targets[pair] + dim, 2) };
                state.copy_from_slice(&[new.most, new.sum]);
            } else if segment.index == self.pair(pair).0.segments(self.attend.shape.window).start {
                states[pair] = new;
            } else {
                segment.merges[pair] = s.run(Next { state: &mut states[pair], new });
            }
        }
    }

    fn values<S: Simd>(&self, s: S, segment: &Segment, seen: Range<usize>, memory: &mut Memory<'_, E>) {
        let dim = self.attend.shape.head_dim;
        let layout = &self.attend.layout;
        let start = segment.index * SEGMENT;
        let strips = if self.whole_blocks() { dim / SIDE } else { 0 };
        if strips > 0 {
            for first in (0..strips).step_by(STRIPS) {
                let some = first..strips.min(first + STRIPS);
                let values =
                    Strips { elements: self.attend.elements, at: &segment.values, stride: layout.strip(), whole: true };
                self.value_strips(s, segment, &values, some, memory.scores);
            }
        }
        for strip in strips..dim.div_ceil(SIDE) {
            for position in seen.clone() {
                let (head, slot) = self.slot(start + position);
                let place = layout.value(slot, strip * SIDE);
                let value = &self.attend.elements[head + place.start..head + place.end];
                memory.gathered[position * SIDE..][..value.len()].copy_from_slice(value);
            }
            let at = core::array::from_fn(|block| block * SIDE * SIDE);
            let values = Strips { elements: memory.gathered, at: &at, stride: 0, whole: false };
            self.value_strips(s, segment, &values, strip..strip + 1, memory.scores);
        }
    }

    /// Weighted values of all queries, of some strips of dimensions.
    fn value_strips<S: Simd>(
        &self,
        s: S,
        segment: &Segment,
        values: &Strips<'_, E>,
        strips: Range<usize>,
        weights: &[[f32; SEGMENT]],
    ) {
        parts!(self, S::HOLDS_MANY, |first, R, N| {
            if let Some(weights) = weights[first..].first_chunk::<R>() {
                for strip in strips.clone().step_by(N) {
                    let count = N.min(strips.end - strip);
                    self.value_tile::<S, R, N>(s, segment, first, values, strip..strip + count, weights);
                }
            }
        });
    }

    /// Weighted values of `R` queries and up to `N` strips, merged into where they go.
    fn value_tile<S: Simd, const R: usize, const N: usize>(
        &self,
        s: S,
        segment: &Segment,
        first: usize,
        values: &Strips<'_, E>,
        strips: Range<usize>,
        weights: &[[f32; SEGMENT]; R],
    ) {
        let dim = self.attend.shape.head_dim;
        let seen = &segment.seen[first..first + R];
        let common = seen.iter().fold(0..SEGMENT, |common, seen| intersect(&common, seen));
        // Where there are fewer than `N`, the last one is computed again.
        let offsets: [_; N] = core::array::from_fn(|n| (strips.start + n).min(strips.end - 1) * values.stride);
        let mut sums = [[[0.0; SIDE]; N]; R];
        // What not all of them see is taken by each alone: before the common positions and behind them.
        let cut = if common.is_empty() { SEGMENT } else { common.start };
        for r in 0..R {
            let positions = seen[r].start..seen[r].end.min(cut);
            self.alone(s, values, &offsets, positions, &weights[r], &mut sums[r]);
        }
        if !common.is_empty() {
            let (elements, blocks, positions) = (values.elements, values.at, common.clone());
            let ahead = segment.next.as_ref().filter(|_| first == 0 && values.whole && self.asks_ahead());
            s.run(Values { weights, elements, blocks, strips: offsets, positions, ahead, sums: &mut sums });
            for r in 0..R {
                self.alone(s, values, &offsets, common.end..seen[r].end, &weights[r], &mut sums[r]);
            }
        }
        let target = if self.task.placed { self.places } else { self.out };
        for r in 0..R {
            if seen[r].is_empty() {
                continue;
            }
            let dims = strips.start * SIDE..dim.min(strips.end * SIDE);
            // SAFETY: where this row and head, and in a place this segment, go is this task's, and no other slice of it is in use.
            let to = unsafe { target.part(segment.targets[first + r] + dims.start, dims.len()) };
            let new = &sums[r].as_flattened()[..to.len()];
            let merge = segment.merges[first + r];
            if merge.fresh {
                to.copy_from_slice(new);
            } else {
                s.run(Join { merge, old: to, new });
            }
        }
    }

    /// Weighted values of one query.
    #[inline(never)]
    fn alone<S: Simd>(
        &self,
        s: S,
        values: &Strips<'_, E>,
        strips: &[usize],
        positions: Range<usize>,
        weights: &[f32; SEGMENT],
        sums: &mut [[f32; SIDE]],
    ) {
        if positions.is_empty() {
            return;
        }
        for (&strip, sums) in strips.iter().zip(sums) {
            s.run(Values {
                weights: core::array::from_ref(weights),
                elements: values.elements,
                blocks: values.at,
                strips: [strip],
                positions: positions.clone(),
                ahead: None,
                sums: core::array::from_mut(core::array::from_mut(sums)),
            });
        }
    }

    /// The output is relative to the sums of weights.
    fn divide(&self, states: &[State; PAIRS]) {
        for (pair, state) in states.iter().enumerate().take(self.pairs()) {
            let (row, head) = self.pair(pair);
            // SAFETY: this row and head are this task's, and no other slice of it is in use.
            let out = unsafe { self.out.part(self.at(row, head), self.attend.shape.head_dim) };
            for out in out {
                *out /= state.sum;
            }
        }
    }

    /// Counts the task off for each of its rows, and merges the places of those that are complete.
    fn settle<S: Simd>(&self, s: S) {
        let shape = self.attend.shape;
        let group = shape.n_heads / shape.n_kv_heads;
        for row in self.rows() {
            if row.sees(&self.task.segments, shape.window) && self.plan.is_last(row, self.task.kv_head) {
                for head in self.task.kv_head * group..(self.task.kv_head + 1) * group {
                    self.merge(s, row, head);
                }
            }
        }
    }

    /// Merges a row's places of a head.
    fn merge<S: Simd>(&self, s: S, row: &Row, head: usize) {
        let dim = self.attend.shape.head_dim;
        // SAFETY: all tasks of this row and KV head are done but this one, which was counted off last: its output is nobody else's.
        let out = unsafe { self.out.part(self.at(row, head), dim) };
        let mut state = State::NONE;
        for (index, segment) in row.segments(self.attend.shape.window).enumerate() {
            // SAFETY: as for the output; those who wrote this place have counted themselves off before.
            let place = unsafe { self.places.part(self.place(row, head, segment), dim + 2) };
            let (values, new) = place.split_at(dim);
            let new = State { most: new[0], sum: new[1] };
            if index == 0 {
                state = new;
                out.copy_from_slice(values);
                continue;
            }
            let merge = s.run(Next { state: &mut state, new });
            s.run(Join { merge, old: &mut *out, new: values });
        }
        for out in out {
            *out /= state.sum;
        }
    }
}

/// Keys of a segment.
struct Keys<'a, E> {
    elements: &'a [E],
    /// Of each block of positions.
    at: &'a [usize; BLOCKS],
    /// Of each block, what is wanted when all scores are there.
    ahead: Option<&'a [usize; BLOCKS]>,
}

/// Values of a segment.
struct Strips<'a, E> {
    elements: &'a [E],
    /// Of each block of positions.
    at: &'a [usize; BLOCKS],
    /// From strip to strip.
    stride: usize,
    /// Whether they lie in the pages so; otherwise they are gathered.
    whole: bool,
}

/// The positions that any of them sees.
fn union(seen: &[Range<usize>]) -> Range<usize> {
    let seen = seen.iter().filter(|seen| !seen.is_empty());
    let all = seen.fold(Range { start: SEGMENT, end: 0 }, |all, seen| all.start.min(seen.start)..all.end.max(seen.end));
    if all.is_empty() { 0..0 } else { all }
}
