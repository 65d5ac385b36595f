//! Block tables and spans of a walk, and how attention splits them, brought to the device once for all of its layers.
//!
//! # Invariants
//! Lists are found by where the host keeps them, so only between [`SpanLists::begin`] and [`SpanLists::end`], while the walk has them
//! borrowed: there one address means one content.
//!
//! # Limits
//! `[spans][longest block table]` words for each list, and those of [`Split`]. The memory is kept, and grows where a walk needs more.

use cudarc::driver::CudaEvent;
use smallvec::SmallVec;

use super::driver::{At, Driver, Memory, Pinned};
use super::launch::{SpanList, SplitList};
use super::split::Split;
use crate::backend::{BackendError, Span};

/// A list as the host has it: where it begins, and how long it is.
type Key = (usize, usize);

pub(super) struct SpanLists {
    pinned: Pinned,
    device: Memory,
    /// Behind the newest copy.
    copied: CudaEvent,
    was_copied: bool,
    lists: SmallVec<[(Key, SpanList); 2]>,
    /// Of each list.
    splits: Vec<Split>,
}

fn key_of(spans: &[Span<'_>]) -> Key {
    (spans.as_ptr().addr(), spans.len())
}

/// Logical pages of the longest block table; at least 1.
fn width_of(spans: &[Span<'_>]) -> usize {
    spans.iter().map(|span| span.block_table.len()).max().unwrap_or(0).max(1)
}

impl SpanLists {
    pub(super) fn new(driver: &Driver, words: usize) -> Result<Self, BackendError> {
        let bytes = words.max(1) * size_of::<u32>();
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
        if words * size_of::<u32>() > self.pinned.len() {
            *self = Self::new(driver, words)?;
        }
        Ok(())
    }

    /// Brings lists to the device, for pages of so many tokens; those of before are forgotten.
    pub(super) fn begin(
        &mut self,
        driver: &Driver,
        lists: &[&[Span<'_>]],
        page_size_tokens: usize,
    ) -> Result<(), BackendError> {
        self.lists.clear();
        if self.splits.len() < lists.len() {
            self.splits.resize_with(lists.len(), Split::default);
        }
        let mut words = 0;
        for (&spans, split) in lists.iter().zip(&mut self.splits) {
            split.make(spans, page_size_tokens);
            words += spans.len() * (width_of(spans) + 3) + split.words();
        }
        if words * size_of::<u32>() > self.pinned.len() {
            let splits = core::mem::take(&mut self.splits);
            self.reserve(driver, words.next_power_of_two())?;
            self.splits = splits;
        }
        if self.was_copied {
            driver.wait_for(&self.copied)?;
        }
        let bytes = words * size_of::<u32>();
        // SAFETY: the only copy that reads this memory is the one below, and the newest of those was waited for.
        let target: &mut [u32] = bytemuck::cast_slice_mut(unsafe { self.pinned.part(0, bytes) });
        let all: At<u32> = self.device.at();
        let mut used = 0;
        for (&spans, split) in lists.iter().zip(&self.splits) {
            let width = width_of(spans);
            let (table, records) = (used, used + spans.len() * width);
            for (span, row) in spans.iter().zip(target[table..records].chunks_exact_mut(width)) {
                let (pages, rest) = row.split_at_mut(span.block_table.len());
                pages.copy_from_slice(span.block_table);
                rest.fill(u32::MAX); // nobody may look there
            }
            used = records + 3 * spans.len();
            for (span, record) in spans.iter().zip(target[records..used].chunks_exact_mut(3)) {
                // Positions and rows stay within 32 bits: pools are no larger.
                record.copy_from_slice(&[span.first_row, span.rows, span.start].map(|n| n as u32));
            }
            let mut place = |words: &[u32]| {
                let at = used;
                used += words.len();
                target[at..used].copy_from_slice(words);
                all.from(at).first(words.len())
            };
            let split = SplitList {
                members: place(split.members.as_flattened()),
                parts: place(split.parts.as_flattened()),
                tasks: place(split.tasks.as_flattened()),
                counts: split.counts,
            };
            let list = SpanList {
                table: all.from(table),
                spans: all.from(records),
                count: spans.len(),
                width,
                most_rows: spans.iter().map(|span| span.rows).max().unwrap_or(0),
                rows: spans.iter().map(|span| span.first_row + span.rows).max().unwrap_or(0),
                split,
            };
            self.lists.push((key_of(spans), list));
        }
        // SAFETY: the bytes are written again only behind `copied`, by the wait above.
        unsafe { driver.upload(self.device.at(), &self.pinned, 0, bytes) }?;
        driver.note(&self.copied)?;
        self.was_copied = true;
        Ok(())
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
