//! The sequences of the runtime and what they hold of the pool (R-5 .., S-91, S-96): lists of tokens, and granules of cells
//! with an identity.
//!
//! A granule is a page of a model, and one cell of the fake runtime. A sequence holds whole granules. One that grows in a partly filled
//! granule which others hold too takes another one for a copy first.

use std::collections::{BTreeMap, BTreeSet};

use ictus::record::constant::encoding;
use ictus::runtime::RuntimeError;

use super::{Model, Seq};

/// Stands where a granule was given back (S-91).
pub(super) const HOLE: u32 = u32::MAX;

/// What one sequence is to grow by: it keeps so many tokens and gets so many more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    pub(super) seq: u64,
    pub(super) keep: usize,
    pub(super) more: usize,
}

impl Model {
    /// Granules of this many tokens.
    pub(super) fn granules(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.shape.granule)
    }

    /// Cells of this many tokens.
    pub(super) fn cells(&self, tokens: usize) -> u64 {
        (self.granules(tokens) * self.shape.granule) as u64
    }

    ///
    pub(super) fn seq_create(&mut self) -> Result<u64, RuntimeError> {
        if self.shape.slots != 0 && self.seqs.len() >= self.shape.slots {
            return Err(RuntimeError::Capacity);
        }
        let handle = self.next_seq;
        self.next_seq += 1;
        self.seqs.push(Seq {
            handle,
            tokens: vec![],
            granules: vec![],
            generation: 1,
            taint: 0,
            sizings: vec![],
            holes: vec![],
            copies: 0,
            adapter: 0,
        });
        Ok(handle)
    }

    ///
    pub(super) fn seq_free(&mut self, handle: u64) {
        self.seqs.retain(|seq| seq.handle != handle);
    }

    /// Distinct cells that sequences hold.
    pub(crate) fn cells_used(&self) -> u64 {
        let granules: BTreeSet<u32> = self.seqs.iter().flat_map(Seq::held).collect();
        (granules.len() * self.shape.granule) as u64
    }

    /// Cells whose every holder is among these.
    pub(super) fn cells_released(&self, handles: &[u64]) -> u64 {
        let (listed, others): (Vec<&Seq>, Vec<&Seq>) = self.seqs.iter().partition(|seq| handles.contains(&seq.handle));
        let kept: BTreeSet<u32> = others.iter().flat_map(|seq| seq.held()).collect();
        let held: BTreeSet<u32> = listed.iter().flat_map(|seq| seq.held()).collect();
        (held.difference(&kept).count() * self.shape.granule) as u64
    }

    /// How many sequences other than those that leave hold a granule.
    fn holders(&self, granule: u32, leaving: &[u64]) -> usize {
        let stays = |seq: &&Seq| !leaving.contains(&seq.handle);
        self.seqs.iter().filter(stays).filter(|seq| seq.granules.contains(&granule)).count()
    }

    /// Cells that it takes for these sequences to grow together when those that leave are gone; as things stand, before any is cut.
    pub(super) fn cells_to_grow(&self, growths: &[Growth], leaving: &[u64]) -> u64 {
        let mut taken = 0;
        // Partly filled granules that others hold too, and how many of these sequences go on in each.
        let mut open: BTreeMap<u32, usize> = BTreeMap::new();
        for growth in growths {
            let seq = self.seq(growth.seq);
            let kept = self.granules(growth.keep);
            // What a cut gives back counts where whole pages are counted; single cells are summed as T-60 has it.
            let cut = if self.shape.granule > 1 { &seq.granules[kept..] } else { &[] };
            let freed = cut.iter().filter(|&&granule| self.holders(granule, leaving) == 1).count();
            taken += (self.granules(growth.keep + growth.more) - kept).saturating_sub(freed);
            if growth.more > 0 && !growth.keep.is_multiple_of(self.shape.granule) {
                *open.entry(seq.granules[kept - 1]).or_default() += 1;
            }
        }
        // Each that goes on copies the granule, but the last of all who hold it keeps it.
        let copied = open.iter().map(|(&granule, &growing)| growing.min(self.holders(granule, leaving) - 1));
        ((taken + copied.sum::<usize>()) * self.shape.granule) as u64
    }

    ///
    fn room_for(&self, cells: u64) -> Result<(), RuntimeError> {
        match self.shape.cells != 0 && self.cells_used() + cells > self.shape.cells {
            true => Err(RuntimeError::Capacity),
            false => Ok(()),
        }
    }

    /// Whether a state of this length can be cut there.
    pub(super) fn cuttable_at(&self, held: usize, len: usize) -> bool {
        len == 0 || len == held || (self.shape.cuts && len <= held)
    }

    /// R-9, into an empty sequence.
    pub(super) fn seq_copy(&mut self, source: u64, target: u64, len: usize) -> Result<(), RuntimeError> {
        self.planned.copy()?;
        let from = self.seq(source).clone();
        if !self.shape.shares {
            self.planned.pages(self.granules(len) as u64)?;
        }
        if !self.cuttable_at(from.tokens.len(), len) {
            return Err(RuntimeError::OutOfBoundary);
        }
        let granules = if self.shape.shares {
            from.granules[..self.granules(len)].to_vec()
        } else {
            self.room_for(self.cells(len))?;
            self.new_granules(self.granules(len))
        };
        let onto = self.seq_mut(target);
        onto.tokens = from.tokens[..len].to_vec();
        onto.granules = granules;
        onto.adapter = from.adapter;
        Ok(())
    }

    /// R-10; the generation advances (S-3).
    pub(super) fn seq_truncate(&mut self, handle: u64, len: usize) -> Result<(), RuntimeError> {
        if !self.cuttable_at(self.seq(handle).tokens.len(), len) {
            return Err(RuntimeError::OutOfBoundary);
        }
        let kept = self.granules(len);
        let seq = self.seq_mut(handle);
        seq.tokens.truncate(len);
        seq.granules.truncate(kept);
        seq.holes.retain(|hole| hole.end <= len as u64);
        seq.generation += 1;
        Ok(())
    }

    /// R-12, of a whole entry: the bytes are the model's business only in operations.
    pub(super) fn seq_export(&mut self) -> Result<(), RuntimeError> {
        self.planned.part()
    }

    /// into an empty sequence; after an error it holds something.
    pub(super) fn seq_import(&mut self, handle: u64, tokens: &[u32]) -> Result<(), RuntimeError> {
        self.import_begin(handle, 0, tokens.len())?;
        self.import_part(handle, 0, tokens)?;
        self.import_end()
    }

    /// Takes the room for tokens from `start` to `end`: of an empty sequence, or of a hole.
    pub(super) fn import_begin(&mut self, handle: u64, start: usize, end: usize) -> Result<(), RuntimeError> {
        let (count, first) = (self.granules(end - start), start / self.shape.granule);
        self.planned.pages(count as u64)?;
        let seq = self.seq(handle);
        let empty = seq.tokens.is_empty();
        if !empty && seq.granules[first..first + count].iter().any(|&granule| granule != HOLE) {
            return Err(RuntimeError::OutOfBoundary);
        }
        self.room_for(self.cells(end - start))?;
        let fresh = self.new_granules(count);
        let seq = self.seq_mut(handle);
        if empty {
            (seq.tokens, seq.granules) = (vec![0; end], fresh);
        } else {
            seq.granules[first..first + count].copy_from_slice(&fresh);
        }
        Ok(())
    }

    pub(super) fn import_part(&mut self, handle: u64, start: usize, tokens: &[u32]) -> Result<(), RuntimeError> {
        self.planned.part()?;
        self.seq_mut(handle).tokens[start..start + tokens.len()].copy_from_slice(tokens);
        Ok(())
    }

    pub(super) fn import_end(&mut self) -> Result<(), RuntimeError> {
        match std::mem::take(&mut self.planned.import_end) {
            true => Err(RuntimeError::Fatal),
            false => Ok(()),
        }
    }

    /// Gives the granules of a range back (S-91).
    pub(super) fn range_release(&mut self, handle: u64, start: usize, end: usize) -> Result<(), RuntimeError> {
        self.planned.part()?;
        let (first, past) = (start / self.shape.granule, self.granules(end));
        self.seq_mut(handle).granules[first..past].fill(HOLE);
        Ok(())
    }

    fn new_granules(&mut self, count: usize) -> Vec<u32> {
        let first = self.next_granule;
        self.next_granule += count as u32;
        (first..self.next_granule).collect()
    }

    /// One step: a planned failure first, then capacity over the whole call, then the feeds.
    pub(super) fn step(&mut self, feeds: &[(u64, Vec<u32>)]) -> Result<(), RuntimeError> {
        self.planned.step()?;
        let growth = |(seq, tokens): &(u64, Vec<u32>)| Growth {
            seq: *seq,
            keep: self.seq(*seq).tokens.len(),
            more: tokens.len(),
        };
        let growths: Vec<Growth> = feeds.iter().map(growth).collect();
        let cells = self.cells_to_grow(&growths, &[]);
        self.planned.pages(cells / self.shape.granule as u64)?;
        self.room_for(cells)?;
        for (handle, tokens) in feeds {
            let held = self.seq(*handle).tokens.len();
            let open = !held.is_multiple_of(self.shape.granule);
            let last = self.seq(*handle).granules.last().copied().unwrap_or(HOLE);
            if open && self.holders(last, &[]) > 1 {
                let copy = self.new_granules(1)[0];
                let seq = self.seq_mut(*handle);
                *seq.granules.last_mut().expect("an open granule") = copy;
                seq.copies += 1;
            }
            let more = self.granules(held + tokens.len()) - self.granules(held);
            let fresh = self.new_granules(more);
            let seq = self.seq_mut(*handle);
            seq.tokens.extend(tokens);
            seq.granules.extend(fresh);
            seq.generation += 1;
        }
        Ok(())
    }

    /// Payload bytes of a token as it is.
    pub(crate) fn lossless_bytes(&self) -> u64 {
        self.shape.token_bytes(encoding::LOSSLESS).expect("every runtime offers it")
    }
}

impl Seq {
    /// The granules that it holds.
    fn held(&self) -> impl Iterator<Item = u32> {
        self.granules.iter().copied().filter(|&granule| granule != HOLE)
    }
}
