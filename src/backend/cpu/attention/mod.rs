//! Attention of rows over the pages of their sequence.
//!
//! ```text
//! plan      rows of queries to tasks: whose pages, which segments of 256 positions
//! task      for each segment:
//!               scores of all queries of the tile with the keys          (kernels: 16 positions at a time)
//!               their maximum m; weights e^(score - m); their sum l
//!               o = sum of weight * value                                (kernels: 16 dimensions at a time)
//!               merge (m, l, o) into the row's state, or lay it down for the last task of the row to merge
//!           out = o / l
//! write     new keys and values into pages
//! ```
//! A tile is all query heads of a KV head, of one row or of several: keys and values are read once for all of them. Rows of several
//! sequences are in one tile where these begin with the same pages.
//!
//! # Numerics
//! - Segments are cut at absolute positions and merged in ascending order. Which page holds a position is no part of the
//!   computation, nor is the number of rows, tasks or threads: a row's bits depend on its query and on the keys and values it sees.
//! - Inside a segment the order of every sum is that of `kernels`. Of a position that a row does not see, no value is read, and the score
//!   is thrown away before it can reach anything.
//!
//! # Limits
//! Memory of a thread is made with the pages; places for the results of segments are kept from operation to operation. Where they
//! cannot be had, rows are not cut and not shared.
//!
//! # Source
//! arXiv 1805.02867 (online softmax), 2205.14135 (merging of partial softmax sums)

mod kernels;
mod plan;
mod task;
mod wide;
mod write;

use core::ops::Range;
use std::sync::{Mutex, PoisonError};

pub(super) use self::write::{Part, Write};

use self::plan::{Plan, Request};
use self::task::Run;
use super::dispatch::Isa;
use super::memory::Aligned;
use super::pages::{Element, Layout, SIDE};
use super::shared::Shared;
use super::threads::Threads;
use crate::backend::{AttentionShape, BackendError, Span};

/// Positions of a segment.
const SEGMENT: usize = 256;
/// Blocks of positions of a segment.
const BLOCKS: usize = SEGMENT / SIDE;
/// Most queries of a tile: their scores of a segment stay in the first-level cache.
const PAIRS: usize = 24;

/// What attention keeps between operations.
pub(super) struct Attention {
    plan: Mutex<(Plan, Aligned<f32>)>,
    /// For each participant.
    scratch: Vec<Mutex<Aligned<f32>>>,
}

/// Elements of a participant's scratch: packed queries, scores, and keys or values of pages that are no whole blocks.
fn scratch_len(head_dim: usize) -> usize {
    PAIRS * (head_dim + SEGMENT) + (SIDE * head_dim).max(SIDE * SEGMENT)
}

/// One operation.
pub(super) struct Attend<'a, E> {
    pub(super) elements: &'a [E],
    pub(super) layout: Layout,
    /// `[rows, n_heads * head_dim]`
    pub(super) queries: &'a [f32],
    pub(super) shape: &'a AttentionShape,
    pub(super) spans: &'a [Span<'a>],
}

impl Attention {
    pub(super) fn new(threads: usize) -> Self {
        let scratch = (0..threads).map(|_| Mutex::new(Aligned::empty())).collect();
        Self { plan: Mutex::new((Plan::default(), Aligned::empty())), scratch }
    }

    /// Makes the memory that heads of this width need.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(super) fn reserve(&self, head_dim: usize) -> Result<(), BackendError> {
        let len = head_dim.checked_mul(PAIRS + SIDE).and_then(|len| len.checked_add(SEGMENT * (PAIRS + SIDE)));
        if len.is_none() {
            return Err(BackendError::OutOfMemory { bytes: u64::MAX });
        }
        for scratch in &self.scratch {
            let mut scratch = scratch.lock().unwrap_or_else(PoisonError::into_inner);
            if scratch.len() < scratch_len(head_dim) {
                *scratch = Aligned::zeroed(scratch_len(head_dim))?;
            }
        }
        Ok(())
    }

    /// Runs an operation; `out` is as the queries.
    pub(super) fn run<E: Element>(&self, isa: Isa, threads: &Threads, attend: &Attend<'_, E>, out: &mut [f32]) {
        let mut guard = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        let (plan, places) = &mut *guard;
        let mut request = Request {
            spans: attend.spans,
            shape: attend.shape,
            page_size_tokens: attend.layout.page_size_tokens,
            threads: threads.working(),
            places: true,
        };
        plan.make(&request);
        let needed = plan.places * request.place();
        if places.len() < needed {
            // Twice as much: sequences grow.
            match Aligned::zeroed(2 * needed) {
                Ok(memory) => *places = memory,
                Err(_) => {
                    request.places = false;
                    plan.make(&request);
                }
            }
        }
        let (plan, out, places) = (&*plan, Shared::new(out), Shared::new(places));
        let run = |participant: usize, task: usize| {
            let mut scratch = self.scratch[participant].lock().unwrap_or_else(PoisonError::into_inner);
            let task = &plan.tasks[task];
            isa.run(Run { attend, plan, task, out, places, scratch: &mut scratch });
        };
        if plan.spread {
            threads.run(plan.tasks.len(), &run);
        } else {
            (0..plan.tasks.len()).for_each(|task| run(0, task));
        }
    }
}

/// What both ranges have.
fn intersect(one: &Range<usize>, two: &Range<usize>) -> Range<usize> {
    one.start.max(two.start)..one.end.min(two.end)
}
