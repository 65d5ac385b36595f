//! Block tables and spans of a walk, brought to the device once for all of its layers.
//!
//! # Invariants
//! Lists are found by where the host keeps them, so only between [`SpanLists::begin`] and [`SpanLists::end`], while the walk has them
//! borrowed: there one address means one content.
//!
//! # Limits
//! `[spans][longest block table]` words for each list, and those of [`Split`], in memory that [`SpanLists::reserve`] gets before the first step. Whoever
//! names more is refused: the runtime cuts its walks by that (`Backend::make_room_for_tables`).

use smallvec::SmallVec;

use super::driver::{At, Driver, Event, Memory, Pinned};
use super::launch::{SEGMENT, SpanList, SplitList};
use super::split::{Counts, Split};
use crate::backend::{BackendError, Span};

/// A list as the host has it: where it begins, and how long it is.
type Key = (usize, usize);

/// How tight lists are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// As they are.
    Exact,
    /// As long as other lists of about this size, so that launches have the same grids and find their lists at the same places. What is too much is
    /// empty: pages that nobody looks at, segments that nobody sees, tasks without rows. It changes no bit.
    Roomy,
}

/// Logical pages of the least table with room.
const ROOMY_PAGES: usize = 16;
/// Slots of the least list with room.
const ROOMY_SLOTS: usize = 16;

impl Fit {
    /// Logical pages of a list's tables: at least 1.
    fn width(self, spans: &[Span<'_>]) -> usize {
        let longest = spans.iter().map(|span| span.block_table.len()).max().unwrap_or(0);
        match self {
            Self::Exact => longest.max(1),
            Self::Roomy => longest.max(ROOMY_PAGES).next_power_of_two(),
        }
    }

    /// How much there is said to be of what spans share.
    fn counts(self, counts: Counts) -> Counts {
        let power = |n: usize| if n == 0 { 0 } else { n.next_power_of_two() };
        match self {
            Self::Exact => counts,
            Self::Roomy => Counts {
                tasks: power(counts.tasks),
                most_members: power(counts.most_members),
                slots: a_quarter_more(counts.slots.max(ROOMY_SLOTS)),
                segments: a_quarter_more(counts.segments),
                ..counts
            },
        }
    }
}

/// The next of the numbers 1 .. 8, 10, 12, 14, 16, 20, 24, 28, 32, 40 ...
fn a_quarter_more(n: usize) -> usize {
    n.next_multiple_of((n.next_power_of_two() / 8).max(1))
}

/// Words of a span: what it is, its place in the split, and those of a row.
const SPAN_WORDS: usize = 3 + 2 + 3;
/// Words of a task.
const TASK_WORDS: usize = 4;
/// Entries of the block tables of a list that there is room for, at most, but for one longer table.
const TABLE_ENTRIES: usize = 4 << 20;
/// Lists that a walk names at once: all rows, and those that are wanted.
const WALK_LISTS: usize = 2;

/// Entries of block tables that a list has room for in walks of at most `spans` rows with tables of at most `longest` entries.
pub(super) fn table_entries(spans: usize, longest: usize) -> usize {
    spans.saturating_mul(longest).min(TABLE_ENTRIES).max(longest)
}

/// Words of all lists of such a walk.
pub(super) fn walk_words(spans: usize, longest: usize, page_size_tokens: usize) -> usize {
    let entries = table_entries(spans, longest);
    // A task has a segment of at least two spans.
    let tasks = entries.saturating_mul(page_size_tokens) / SEGMENT / 2;
    let words =
        entries.saturating_add(tasks.saturating_mul(TASK_WORDS)).saturating_add(SPAN_WORDS.saturating_mul(spans));
    words.saturating_mul(WALK_LISTS)
}

pub(super) struct SpanLists {
    pinned: Pinned,
    device: Memory,
    /// Behind the newest copy.
    copied: Event,
    was_copied: bool,
    lists: SmallVec<[(Key, SpanList); 2]>,
    /// Of each list.
    splits: Vec<Split>,
}

fn key_of(spans: &[Span<'_>]) -> Key {
    (spans.as_ptr().addr(), spans.len())
}

/// Lays a list out in `target` from word `used` on, which goes to `all`, and moves `used` behind it.
fn lay_out(
    spans: &[Span<'_>],
    split: &Split,
    fit: Fit,
    target: &mut [u32],
    all: At<u32>,
    used: &mut usize,
) -> SpanList {
    let width = fit.width(spans);
    let (table, records) = (*used, *used + spans.len() * width);
    for (span, row) in spans.iter().zip(target[table..records].chunks_exact_mut(width)) {
        let (pages, rest) = row.split_at_mut(span.block_table.len());
        pages.copy_from_slice(span.block_table);
        rest.fill(u32::MAX); // nobody may look there
    }
    *used = records + 3 * spans.len();
    for (span, record) in spans.iter().zip(target[records..*used].chunks_exact_mut(3)) {
        // Positions and rows stay within 32 bits: pools are no larger.
        record.copy_from_slice(&[span.first_row, span.rows, span.start].map(|n| n as u32));
    }
    let counts = fit.counts(split.counts);
    let mut place = |words: &[u32], len: usize| {
        let at = *used;
        *used += len;
        let (filled, rest) = target[at..*used].split_at_mut(words.len());
        filled.copy_from_slice(words);
        rest.fill(0); // tasks of nobody
        all.from(at).first(len)
    };
    let mut whole = |words: &[u32]| place(words, words.len());
    let (members, parts) = (whole(split.members.as_flattened()), whole(split.parts.as_flattened()));
    let tasks = place(split.tasks.as_flattened(), TASK_WORDS * counts.tasks);
    SpanList {
        table: all.from(table),
        spans: all.from(records),
        count: spans.len(),
        width,
        most_rows: spans.iter().map(|span| span.rows).max().unwrap_or(0),
        rows: spans.iter().map(|span| span.first_row + span.rows).max().unwrap_or(0),
        split: SplitList { members, parts, tasks, counts },
    }
}

impl SpanLists {
    pub(super) fn new(driver: &Driver, words: usize) -> Result<Self, BackendError> {
        let bytes = words.max(1).saturating_mul(size_of::<u32>());
        let (pinned, device) = (driver.pinned(bytes)?, driver.memory(bytes)?);
        Ok(Self {
            pinned,
            device,
            copied: driver.event()?,
            was_copied: false,
            lists: SmallVec::new(),
            splits: Vec::new(),
        })
    }

    /// Makes room for so many words.
    pub(super) fn reserve(&mut self, driver: &Driver, words: usize) -> Result<(), BackendError> {
        if words.saturating_mul(size_of::<u32>()) > self.pinned.len() {
            let splits = core::mem::take(&mut self.splits);
            *self = Self { splits, ..Self::new(driver, words)? };
        }
        Ok(())
    }

    /// Finds out what spans share, for pages of so many tokens.
    pub(super) fn split(&mut self, lists: &[&[Span<'_>]], page_size_tokens: usize) {
        if self.splits.len() < lists.len() {
            self.splits.resize_with(lists.len(), Split::default);
        }
        lists.iter().zip(&mut self.splits).for_each(|(spans, split)| split.make(spans, page_size_tokens));
    }

    /// Words of lists that were split.
    pub(super) fn words(&self, lists: &[&[Span<'_>]], fit: Fit) -> usize {
        let words = |(spans, split): (&&[Span<'_>], &Split)| {
            let padding = TASK_WORDS * (fit.counts(split.counts).tasks - split.counts.tasks);
            spans.len() * (fit.width(spans) + 3) + split.words() + padding
        };
        lists.iter().zip(&self.splits).map(words).sum()
    }

    /// Lays lists that were split out in `target`, which has as many words as they need and goes to `all`; those of before are forgotten.
    pub(super) fn lay_out(&mut self, lists: &[&[Span<'_>]], fit: Fit, target: &mut [u32], all: At<u32>) {
        let mut used = 0;
        self.lists.clear();
        for (&spans, split) in lists.iter().zip(&self.splits) {
            self.lists.push((key_of(spans), lay_out(spans, split, fit, target, all, &mut used)));
        }
    }

    /// Brings lists to the device, for pages of so many tokens; those of before are forgotten.
    ///
    /// # Errors
    /// `OutOfMemory` where there is no room for them.
    pub(super) fn begin(
        &mut self,
        driver: &Driver,
        lists: &[&[Span<'_>]],
        page_size_tokens: usize,
    ) -> Result<(), BackendError> {
        self.split(lists, page_size_tokens);
        let bytes = self.words(lists, Fit::Exact) * size_of::<u32>();
        if bytes > self.pinned.len() {
            return Err(BackendError::OutOfMemory { bytes: bytes as u64 });
        }
        if self.was_copied {
            driver.wait_for(&self.copied)?;
        }
        // SAFETY: the only copy that reads this memory is the one below, and the newest of those was waited for.
        let target: &mut [u32] = bytemuck::cast_slice_mut(unsafe { self.pinned.part(0, bytes) });
        let (mut used, all) = (0, self.device.at());
        self.lists.clear();
        for (&spans, split) in lists.iter().zip(&self.splits) {
            self.lists.push((key_of(spans), lay_out(spans, split, Fit::Exact, target, all, &mut used)));
        }
        // SAFETY: the bytes are written again only behind `copied`, by the wait above.
        unsafe { driver.upload(self.device.at(), &self.pinned, 0, bytes) }?;
        driver.note(&self.copied)?;
        self.was_copied = true;
        Ok(())
    }

    /// As [`SpanLists::begin`], with room made where there is none; not in a step.
    pub(super) fn begin_growing(
        &mut self,
        driver: &Driver,
        lists: &[&[Span<'_>]],
        page_size_tokens: usize,
    ) -> Result<(), BackendError> {
        self.split(lists, page_size_tokens);
        self.reserve(driver, self.words(lists, Fit::Exact))?;
        self.begin(driver, lists, page_size_tokens)
    }

    /// The walk that brought the lists is over.
    pub(super) fn end(&mut self) {
        self.lists.clear();
    }

    /// A list that the walk brought.
    pub(super) fn find(&self, spans: &[Span<'_>]) -> Option<SpanList> {
        let key = key_of(spans);
        self.lists.iter().find(|(of, _)| *of == key).map(|(_, list)| *list)
    }
}
