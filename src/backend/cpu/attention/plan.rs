#![forbid(unsafe_code)]
//! Which rows go together, over which segments: the tasks of one attention operation.
//!
//! ```text
//! sequences in the order of their block tables
//! a run that begins with the same pages:    a task for each segment wholly inside them, of all rows of the run
//! the rest of each sequence:                a task for each tile of rows; a long one is cut by segments
//! ```
//! # Invariants
//! - Of every row and KV head, every segment that the row sees anything of is in exactly one task.
//! - A row whose segments are in several tasks has a place for the result of each, which are merged in ascending order when the last is
//!   there. So cutting and sharing change no bit.
//!
//! # Limits
//! Places for results take at most [`PLACES_BYTES`]; rows that would need more are in one task each.

use core::cmp::Reverse;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use super::{PAIRS, SEGMENT};
use crate::backend::{AttentionShape, Span};

/// Tasks per thread that work is cut into.
const TASKS_PER_THREAD: usize = 4;
/// Products that a task is worth handing over for.
const LEAST_PRODUCTS: usize = 1 << 17;
/// Most memory for results of segments.
const PLACES_BYTES: usize = 64 << 20;

/// A row of queries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Of the buffer.
    pub(super) index: usize,
    pub(super) position: usize,
    /// Its place for the first segment that it sees, when it is in several tasks. A place has all heads.
    pub(super) place: Option<usize>,
    /// Of the counters: one for each KV head.
    pub(super) counter: usize,
}

impl Row {
    /// Positions that it sees.
    #[inline(always)]
    pub(super) fn seen(&self, window: Option<usize>) -> Range<usize> {
        let end = self.position + 1;
        window.map_or(0, |window| end.saturating_sub(window.max(1)))..end
    }

    /// Segments that it sees anything of.
    #[inline(always)]
    pub(super) fn segments(&self, window: Option<usize>) -> Range<usize> {
        let seen = self.seen(window);
        seen.start / SEGMENT..seen.end.div_ceil(SEGMENT)
    }

    /// Whether it sees anything of them.
    #[inline(always)]
    pub(super) fn sees(&self, segments: &Range<usize>, window: Option<usize>) -> bool {
        let own = self.segments(window);
        own.start < segments.end && segments.start < own.end
    }
}

/// Some rows, some query heads of one KV head, some segments.
#[derive(Clone, Debug)]
pub(super) struct Task {
    /// Of [`Plan::rows`].
    pub(super) rows: Range<usize>,
    /// All of the same KV head.
    pub(super) heads: Range<usize>,
    pub(super) kv_head: usize,
    /// Whose block table is read.
    pub(super) span: usize,
    pub(super) segments: Range<usize>,
    /// Results go to places; otherwise the rows are whole in this task.
    pub(super) placed: bool,
    /// Positions times queries.
    cost: usize,
}

/// The tasks of an operation. Kept, so that its memory is.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) rows: Vec<Row>,
    pub(super) tasks: Vec<Task>,
    /// Tasks that each row and KV head waits for.
    pub(super) counters: Vec<AtomicU32>,
    /// Places for a segment's result of all heads of a row.
    pub(super) places: usize,
    /// Tasks run on all threads: no two sequences share a row, and it is worth handing over.
    pub(super) spread: bool,
    /// No two sequences share a row.
    disjoint: bool,
    /// Sequences with rows, in the order of their block tables.
    order: Vec<Sequence>,
}

#[derive(Clone, Copy, Debug)]
struct Sequence {
    span: usize,
    /// Of the plan.
    first_row: usize,
    /// Whole segments in common with the sequence before.
    common: usize,
    /// Whole segments that it shares with either neighbour.
    shared: usize,
}

/// What a plan is made for.
pub(super) struct Request<'a> {
    pub(super) spans: &'a [Span<'a>],
    pub(super) shape: &'a AttentionShape,
    pub(super) page_size_tokens: usize,
    pub(super) threads: usize,
    /// Whether there is memory for places.
    pub(super) places: bool,
}

impl Request<'_> {
    fn group(&self) -> usize {
        (self.shape.n_heads / self.shape.n_kv_heads).max(1)
    }

    /// Rows of a tile.
    fn tile(&self) -> usize {
        (PAIRS / self.group()).max(1)
    }

    /// Elements of a place.
    pub(super) fn place(&self) -> usize {
        place(self.shape)
    }

    /// Whether other sequences may be computed with it: its tile has room for them.
    fn may_share(&self, span: &Span<'_>) -> bool {
        self.places && span.start >= SEGMENT && 2 * span.rows <= self.tile()
    }

    /// Whole segments that two sequences have in the same pages, before the rows of either.
    fn common(&self, one: &Span<'_>, two: &Span<'_>) -> usize {
        if !self.may_share(one) || !self.may_share(two) {
            return 0;
        }
        let segments = one.start.min(two.start) / SEGMENT;
        let pages = (segments * SEGMENT).div_ceil(self.page_size_tokens);
        let equal = one.block_table.iter().zip(two.block_table).take(pages).take_while(|(one, two)| one == two).count();
        if equal == pages { segments } else { equal * self.page_size_tokens / SEGMENT }
    }
}

/// Elements of a place: of each head the weighted values, and its [`super::kernels::State`].
pub(super) fn place(shape: &AttentionShape) -> usize {
    shape.n_heads * (shape.head_dim + 2)
}

impl Plan {
    /// Plans an operation anew.
    pub(super) fn make(&mut self, request: &Request<'_>) {
        self.rows.clear();
        self.tasks.clear();
        self.counters.clear();
        self.places = 0;
        self.find_common(request);
        self.list_rows(request);
        let target = self.target(request);
        self.share(request);
        for index in 0..self.order.len() {
            self.own(request, self.order[index], target);
        }
        for task in self.tasks.iter().filter(|task| task.placed) {
            for row in &self.rows[task.rows.clone()] {
                if row.sees(&task.segments, request.shape.window) {
                    *self.counters[row.counter + task.kv_head].get_mut() += 1;
                }
            }
        }
        if self.spread {
            // The longest first, so that no thread is left with one at the end; those of the same keys and values together.
            self.tasks.sort_unstable_by_key(|task| {
                (Reverse(task.cost), task.span, task.segments.start, task.kv_head, task.rows.start, task.heads.start)
            });
        }
    }

    /// Sorts the sequences by block table, where any two may have pages in common.
    fn find_common(&mut self, request: &Request<'_>) {
        let spans = request.spans;
        self.order.clear();
        self.disjoint = true;
        let (mut end, mut sharing) = (0, 0);
        for (index, span) in spans.iter().enumerate() {
            self.disjoint &= span.first_row >= end;
            end = span.first_row + span.rows;
            sharing += usize::from(request.may_share(span));
            if span.rows > 0 {
                self.order.push(Sequence { span: index, first_row: 0, common: 0, shared: 0 });
            }
        }
        if sharing < 2 {
            return;
        }
        self.order.sort_unstable_by(|one, two| {
            let tables = (spans[one.span].block_table, spans[two.span].block_table);
            tables.0.cmp(tables.1).then(one.span.cmp(&two.span))
        });
        let mut places = 0;
        for index in 1..self.order.len() {
            let (before, this) = (self.order[index - 1], self.order[index]);
            let span = &spans[this.span];
            let common = request.common(&spans[before.span], span);
            places += if common > 0 { span.rows * (span.start / SEGMENT + 2) } else { 0 };
            if common > 0 && places * request.place() * size_of::<f32>() <= PLACES_BYTES / 2 {
                self.order[index].common = common;
                self.order[index].shared = common;
                self.order[index - 1].shared = before.shared.max(common);
            }
        }
    }

    fn list_rows(&mut self, request: &Request<'_>) {
        for sequence in &mut self.order {
            let span = &request.spans[sequence.span];
            sequence.first_row = self.rows.len();
            self.rows.extend((0..span.rows).map(|row| Row {
                index: span.first_row + row,
                position: span.start + row,
                place: None,
                counter: 0,
            }));
        }
    }

    /// The cost that no task should be far above; decides whether tasks are spread.
    fn target(&mut self, request: &Request<'_>) -> usize {
        let positions: usize = self.rows.iter().map(|row| row.seen(request.shape.window).len()).sum();
        let total = positions * request.shape.n_heads;
        let least = LEAST_PRODUCTS / (2 * request.shape.head_dim).max(1);
        // Less than two such tasks are done before another thread has begun.
        self.spread = request.threads > 1 && self.disjoint && total > 2 * least;
        if self.spread { (total / (TASKS_PER_THREAD * request.threads)).max(least) } else { usize::MAX }
    }

    /// The tasks of runs of sequences that begin with the same pages.
    fn share(&mut self, request: &Request<'_>) {
        let last = self.order.iter().map(|sequence| sequence.common).max().unwrap_or(0);
        for segment in 0..last {
            let mut first = 0;
            while first < self.order.len() {
                let mut end = first + 1;
                while end < self.order.len() && self.order[end].common > segment {
                    end += 1;
                }
                if end - first > 1 {
                    let rows_end = self.order.get(end).map_or(self.rows.len(), |next| next.first_row);
                    let rows = self.order[first].first_row..rows_end;
                    let span = self.order[first].span;
                    for start in rows.clone().step_by(request.tile()) {
                        let tile = start..rows.end.min(start + request.tile());
                        self.push(request, tile, span, segment..segment + 1, true);
                    }
                }
                first = end;
            }
        }
        for index in 0..self.order.len() {
            let sequence = self.order[index];
            if sequence.shared > 0 {
                let rows = request.spans[sequence.span].rows;
                self.give_places(request, sequence.first_row..sequence.first_row + rows);
            }
        }
    }

    /// The tasks of a sequence behind what it shares.
    fn own(&mut self, request: &Request<'_>, sequence: Sequence, target: usize) {
        let window = request.shape.window;
        let rows = sequence.first_row..sequence.first_row + request.spans[sequence.span].rows;
        for start in rows.clone().step_by(request.tile()) {
            let tile = start..rows.end.min(start + request.tile());
            let (first, last) = (self.rows[tile.start], self.rows[tile.end - 1]);
            let segments = first.segments(window).start.max(sequence.shared)..last.segments(window).end;
            let positions = last.position + 1 - first.seen(window).start.max(sequence.shared * SEGMENT);
            let cost = positions * tile.len() * request.group().min(PAIRS);
            let mut parts = cost.div_ceil(target).min(segments.len()).max(1);
            let bytes = (self.places + tile.len() * segments.len()) * request.place() * size_of::<f32>();
            if !request.places || bytes > PLACES_BYTES {
                parts = 1;
            }
            let placed = parts > 1 || sequence.shared > 0;
            if placed && sequence.shared == 0 {
                self.give_places(request, tile.clone());
            }
            for part in 0..parts {
                let cut = |part: usize| segments.start + segments.len() * part / parts;
                self.push(request, tile.clone(), sequence.span, cut(part)..cut(part + 1), placed);
            }
        }
    }

    fn give_places(&mut self, request: &Request<'_>, rows: Range<usize>) {
        for row in &mut self.rows[rows] {
            row.place = Some(self.places);
            row.counter = self.counters.len();
            self.places += row.segments(request.shape.window).len();
            self.counters.extend((0..request.shape.n_kv_heads).map(|_| AtomicU32::new(0)));
        }
    }

    /// A task for each KV head, or for parts of its query heads.
    fn push(&mut self, request: &Request<'_>, rows: Range<usize>, span: usize, segments: Range<usize>, placed: bool) {
        let group = request.group();
        let window = request.shape.window;
        let seen = self.rows[rows.clone()].iter().filter(|row| row.sees(&segments, window)).count();
        if seen == 0 {
            return;
        }
        for kv_head in 0..request.shape.n_kv_heads {
            for first in (0..group).step_by(PAIRS) {
                let heads = kv_head * group + first..kv_head * group + group.min(first + PAIRS);
                let cost = seen * heads.len() * segments.len() * SEGMENT;
                self.tasks.push(Task {
                    rows: rows.clone(),
                    heads,
                    kv_head,
                    span,
                    segments: segments.clone(),
                    placed,
                    cost,
                });
            }
        }
    }

    /// Counts a task off; whether it was the last of the row and KV head, whose results are then all there.
    pub(super) fn is_last(&self, row: &Row, kv_head: usize) -> bool {
        self.counters[row.counter + kv_head].fetch_sub(1, Ordering::AcqRel) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(n_heads: usize, n_kv_heads: usize, window: Option<usize>) -> AttentionShape {
        AttentionShape { n_heads, n_kv_heads, head_dim: 64, scale: 1.0, window }
    }

    /// Every segment that a row sees is in one task for each of its heads, and it waits for as many tasks as have it.
    fn check(request: &Request<'_>) -> Plan {
        let mut plan = Plan::default();
        plan.make(request);
        let (heads, group) = (request.shape.n_heads, request.group());
        for (at, row) in plan.rows.iter().enumerate() {
            for head in 0..heads {
                let mine = |task: &&Task| {
                    let seen = row.sees(&task.segments, request.shape.window);
                    task.rows.contains(&at) && task.heads.contains(&head) && seen
                };
                for segment in row.segments(request.shape.window) {
                    let count = plan.tasks.iter().filter(mine).filter(|task| task.segments.contains(&segment)).count();
                    assert_eq!(count, 1, "row {row:?} head {head} segment {segment}");
                }
                let tasks: Vec<&Task> = plan.tasks.iter().filter(mine).collect();
                assert!(tasks.len() == 1 || row.place.is_some());
                assert!(tasks.iter().all(|task| task.placed == row.place.is_some()));
                assert!(
                    tasks
                        .iter()
                        .all(|task| task.kv_head == head / group && task.rows.len() * task.heads.len() <= PAIRS)
                );
                if row.place.is_some() && group <= PAIRS {
                    let waits = plan.counters[row.counter + head / group].load(Ordering::Relaxed);
                    assert_eq!(waits as usize, tasks.len());
                }
            }
        }
        plan
    }

    fn request<'a>(spans: &'a [Span<'a>], shape: &'a AttentionShape, threads: usize) -> Request<'a> {
        Request { spans, shape, page_size_tokens: 16, threads, places: true }
    }

    #[test]
    fn one_row_far_behind_is_cut_by_segments_for_several_threads_only() {
        let table: Vec<u32> = (0..200).collect();
        let spans = [Span { first_row: 0, rows: 1, start: 2047, block_table: &table }];
        for window in [None, Some(512)] {
            let shape = shape(9, 3, window);
            assert_eq!(check(&request(&spans, &shape, 1)).tasks.len(), 3);
            let cut = check(&request(&spans, &shape, 2));
            assert!(cut.tasks.len() >= if window.is_none() { 9 } else { 6 }, "{window:?}: {}", cut.tasks.len());
            let whole = Request { places: false, ..request(&spans, &shape, 2) };
            assert_eq!(check(&whole).tasks.len(), 3, "no memory, no cut");
        }
    }

    #[test]
    fn little_work_stays_with_the_caller_however_many_rows_it_has() {
        let table: Vec<u32> = (0..200).collect();
        let shape = shape(9, 3, None);
        let spread = |lanes: usize, start: usize| {
            let spans: Vec<Span<'_>> =
                (0..lanes).map(|lane| Span { first_row: lane, rows: 1, start, block_table: &table }).collect();
            check(&request(&spans, &shape, 2)).spread
        };
        assert!(!spread(1, 0) && !spread(1, 127) && !spread(128, 0), "the first tokens of few lanes and of many");
        assert!(spread(1, 511) && spread(32, 63), "more work, of one lane or of many");
    }

    #[test]
    fn segments_of_shared_pages_are_tasks_of_all_their_rows() {
        // Pages 0 .. 64 are common to all, 64 .. 96 to the first two.
        let tables: Vec<Vec<u32>> = (0..4u32)
            .map(|lane| {
                let branch = if lane < 2 { 64 } else { 1000 * lane + 64 };
                (0..64).chain(branch..branch + 32).chain(1000 * lane + 96..1000 * lane + 104).collect()
            })
            .collect();
        // The order in which they come does not matter.
        let spans: Vec<Span<'_>> = [2, 0, 3, 1]
            .iter()
            .enumerate()
            .map(|(row, &lane)| Span { first_row: row, rows: 1, start: 1600, block_table: &tables[lane] })
            .collect();
        for threads in [1, 2] {
            let shape = shape(9, 3, None);
            let plan = check(&request(&spans, &shape, threads));
            let of = |segment: usize| {
                let tasks = plan.tasks.iter().filter(move |task| task.segments.contains(&segment) && task.kv_head == 0);
                let mut rows: Vec<usize> = tasks.map(|task| task.rows.len()).collect();
                rows.sort_unstable();
                rows
            };
            assert_eq!([of(0), of(3)], [[4], [4]]);
            assert_eq!([of(4), of(5)], [[1, 1, 2], [1, 1, 2]]);
            assert_eq!(of(6), [1, 1, 1, 1], "not whole in the pages");
        }
    }

    #[test]
    fn plans_of_any_spans_have_every_segment_once() {
        let tables: Vec<Vec<u32>> =
            (0..3).map(|lane| (0..300).map(|page| page + lane * (page / 40) * 300).collect()).collect();
        for (rows, start) in [(1, 0), (1, 255), (1, 256), (5, 700), (40, 650), (300, 3)] {
            for window in [None, Some(1), Some(100), Some(600)] {
                for (n_heads, n_kv_heads) in [(1, 1), (9, 3), (60, 2)] {
                    let spans: Vec<Span<'_>> = tables
                        .iter()
                        .enumerate()
                        .map(|(lane, table)| Span {
                            first_row: lane * rows,
                            rows,
                            start: start + lane,
                            block_table: table,
                        })
                        .collect();
                    for threads in [1, 2, 16] {
                        let shape = shape(n_heads, n_kv_heads, window);
                        assert!(check(&request(&spans, &shape, threads)).disjoint);
                    }
                }
            }
        }
    }
}
