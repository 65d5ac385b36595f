#![forbid(unsafe_code)]
//! A runtime whose steps cost next to nothing over real block tables, to measure what sharing of pages costs.

use super::free_runtime::{FreeRuntime, answer};
use crate::kv::{Growth, KvError, Sequences, SequencesShape};
use crate::runtime::{Answers, Descriptor, Feed, Input, MemCounters, Runtime, RuntimeError, SeqGrowth, SeqHandle};

/// The bookkeeping of a paged runtime without the pages: block tables and reference counts are those of [`crate::kv`], the picks
/// those of [`FreeRuntime`].
#[derive(Debug)]
pub struct FreePagedRuntime {
    descriptor: Descriptor,
    sequences: Sequences,
    growths: Vec<Growth>,
    copies: Vec<(u32, u32)>,
}

impl FreePagedRuntime {
    /// A runtime for this many lanes over a pool of `pages` pages.
    ///
    /// # Errors
    /// The tables of the pool cannot be had.
    pub fn new(max_batch: u32, pages: usize, page_size_tokens: usize) -> Result<Self, KvError> {
        let sequence_tokens = pages.saturating_mul(page_size_tokens);
        let sequences = Sequences::new(SequencesShape { pages, page_size_tokens, sequence_tokens, sequences: 0 })?;
        let descriptor = Descriptor {
            runtime_id: "free-paged".to_owned(),
            max_seq_len: sequence_tokens as u64,
            page_size_tokens: page_size_tokens as u32,
            cell_granule_tokens: page_size_tokens as u32,
            cells_total: sequence_tokens as u64,
            truncate_partial: true,
            copy_shares_cells: true,
            export_encodings: Vec::new(),
            ..FreeRuntime::new(max_batch).describe().clone()
        };
        Ok(Self { descriptor, sequences, growths: Vec::new(), copies: Vec::new() })
    }

    /// The block tables.
    pub fn sequences(&self) -> &Sequences {
        &self.sequences
    }

    fn cells(&self, pages: usize) -> u64 {
        pages as u64 * u64::from(self.descriptor.cell_granule_tokens)
    }
}

impl Runtime for FreePagedRuntime {
    fn describe(&self) -> &Descriptor {
        &self.descriptor
    }

    fn is_eos(&self, _: u32) -> bool {
        false
    }

    fn seq_create(&mut self) -> Result<SeqHandle, RuntimeError> {
        Ok(self.sequences.create()?)
    }

    fn seq_free(&mut self, sequence: SeqHandle) {
        self.sequences.free(sequence);
    }

    fn seq_len(&self, sequence: SeqHandle) -> u64 {
        self.sequences.table(sequence).map_or(0, |table| table.len() as u64)
    }

    fn cells_released(&self, sequences: &[SeqHandle]) -> u64 {
        self.cells(self.sequences.pages_released(sequences))
    }

    fn cells_to_grow(&self, growths: &[SeqGrowth], leaving: &[SeqHandle]) -> u64 {
        let growth = |growth: &SeqGrowth| {
            let tokens = Growth { handle: growth.sequence, tokens: growth.tokens as usize };
            (growth.keep as usize, tokens)
        };
        let growths: Vec<(usize, Growth)> = growths.iter().map(growth).collect();
        self.cells(self.sequences.pages_to_regrow(&growths, leaving))
    }

    fn seq_copy(&mut self, source: SeqHandle, target: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        Ok(self.sequences.share(source, target, len)?)
    }

    fn seq_truncate(&mut self, sequence: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        Ok(self.sequences.truncate(sequence, len)?)
    }

    fn mem_counters(&self) -> MemCounters {
        let cells_used = self.cells(self.sequences.pool().pages_used());
        let allocated_bytes = cells_used * self.descriptor.kv_bytes_per_token;
        MemCounters { allocated_bytes, cells_used, cells_total: self.descriptor.cells_total }
    }

    fn step(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        self.growths.clear();
        for feed in feeds {
            let Input::Tokens(tokens) = feed.input else { return Err(RuntimeError::Unsupported) };
            self.growths.push(Growth { handle: feed.sequence, tokens: tokens.len() });
        }
        self.copies.clear();
        self.sequences.grow(&self.growths, &mut self.copies)?;
        answers.clear(self.descriptor.vocab_size as usize);
        for (feed, growth) in feeds.iter().zip(&self.growths) {
            answer(feed, growth.tokens, self.seq_len(feed.sequence), answers);
        }
        Ok(())
    }
}
