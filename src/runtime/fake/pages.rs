#![forbid(unsafe_code)]
//! The pool of a fake whose cells are handed out by the page, as those of a paged runtime are: block tables and reference counts of
//! [`crate::kv`], and nothing in the pages.
//!
//! # Invariants
//! Each sequence of the fake has one block table of its length. Copies share pages where the descriptor says that copies share cells.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::kv::{Growth, Handle, Sequences, SequencesShape};
use crate::runtime::{Descriptor, RuntimeError, SeqGrowth, SeqHandle};

/// Block tables beside the sequences of a fake.
#[derive(Debug)]
pub(super) struct Pages {
    tables: Sequences,
    handles: BTreeMap<SeqHandle, Handle>,
    granule: u64,
    shares: bool,
}

impl Pages {
    /// The pool that the descriptor speaks of; none when it is not bounded, or when its cells are handed out one by one.
    pub(super) fn of(descriptor: &Descriptor) -> Option<Self> {
        let granule = u64::from(descriptor.cell_granule_tokens);
        if granule < 2 || descriptor.cells_total == 0 {
            return None;
        }
        let shape = SequencesShape {
            pages: usize::try_from(descriptor.cells_total / granule).ok()?,
            page_size_tokens: usize::try_from(granule).ok()?,
            sequence_tokens: usize::try_from(descriptor.max_seq_len).unwrap_or(usize::MAX),
            sequences: 0,
        };
        let tables = Sequences::new(shape).ok()?;
        Some(Self { tables, handles: BTreeMap::new(), granule, shares: descriptor.copy_shares_cells })
    }

    /// Cells of all pages that are held.
    pub(super) fn cells_used(&self) -> u64 {
        self.tables.pool().pages_used() as u64 * self.granule
    }

    /// Cells of the distinct pages of these sequences.
    pub(super) fn held_by(&self, sequences: &[SeqHandle]) -> u64 {
        let tables = sequences.iter().filter_map(|&sequence| self.tables.table(self.handle(sequence)).ok());
        let mut pages: Vec<u32> = tables.flat_map(|table| table.pages()).copied().collect();
        pages.sort_unstable();
        pages.dedup();
        pages.iter().filter(|&&page| page != crate::kv::HOLE).count() as u64 * self.granule
    }

    pub(super) fn released_by(&self, sequences: &[SeqHandle]) -> u64 {
        let handles: Vec<Handle> = sequences.iter().map(|&sequence| self.handle(sequence)).collect();
        self.tables.pages_released(&handles) as u64 * self.granule
    }

    pub(super) fn cells_to_grow(&self, growths: &[SeqGrowth], leaving: &[SeqHandle]) -> u64 {
        let of = |growth: &SeqGrowth| {
            let tokens = Growth { handle: self.handle(growth.sequence), tokens: growth.tokens as usize };
            (growth.keep as usize, tokens)
        };
        let growths: Vec<(usize, Growth)> = growths.iter().map(of).collect();
        let leaving: Vec<Handle> = leaving.iter().map(|&sequence| self.handle(sequence)).collect();
        self.tables.pages_to_regrow(&growths, &leaving) as u64 * self.granule
    }

    pub(super) fn copies(&self, sequence: SeqHandle) -> u64 {
        self.tables.page_copies(self.handle(sequence))
    }

    /// Lets a sequence rest.
    pub(super) fn rest(&mut self, sequence: SeqHandle) {
        self.tables.rest(self.handle(sequence));
    }

    /// Cells that only resting sequences hold.
    pub(super) fn cells_resting(&self) -> u64 {
        self.tables.pool().pages_resting() as u64 * self.granule
    }

    pub(super) fn create(&mut self, sequence: SeqHandle) -> Result<(), RuntimeError> {
        self.handles.insert(sequence, self.tables.create()?);
        Ok(())
    }

    pub(super) fn free(&mut self, sequence: SeqHandle) {
        if let Some(handle) = self.handles.remove(&sequence) {
            self.tables.free(handle);
        }
    }

    pub(super) fn copy(&mut self, source: SeqHandle, target: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        let (source, target) = (self.handle(source), self.handle(target));
        if self.shares {
            return Ok(self.tables.share(source, target, len)?);
        }
        let needed = usize::try_from(len.div_ceil(self.granule)).map_err(|_| RuntimeError::Capacity)?;
        if needed > self.tables.pool().pages_free() + self.tables.pages_released(&[target]) {
            return Err(RuntimeError::Capacity);
        }
        self.tables.truncate(target, 0)?;
        Ok(self.tables.grow(&[Growth { handle: target, tokens: len as usize }], &mut Vec::new())?)
    }

    pub(super) fn truncate(&mut self, sequence: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        Ok(self.tables.truncate(self.handle(sequence), len)?)
    }

    /// All or none.
    pub(super) fn grow(&mut self, growths: &[(SeqHandle, usize)]) -> Result<(), RuntimeError> {
        let growths: Vec<Growth> =
            growths.iter().map(|&(sequence, tokens)| Growth { handle: self.handle(sequence), tokens }).collect();
        Ok(self.tables.grow(&growths, &mut Vec::new())?)
    }

    pub(super) fn punch(&mut self, sequence: SeqHandle, tokens: Range<u64>) -> Result<(), RuntimeError> {
        Ok(self.tables.punch(self.handle(sequence), tokens)?)
    }

    pub(super) fn fill(&mut self, sequence: SeqHandle, tokens: Range<u64>) -> Result<(), RuntimeError> {
        Ok(self.tables.fill(self.handle(sequence), tokens)?)
    }

    /// The block table of a sequence; 0 names none.
    fn handle(&self, sequence: SeqHandle) -> Handle {
        self.handles.get(&sequence).copied().unwrap_or(0)
    }
}
