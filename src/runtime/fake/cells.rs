#![forbid(unsafe_code)]
//! Cells: one per token, with identity, so that copies can share them.

use std::collections::BTreeMap;

use super::sequence::Sequence;

/// Holders per cell; a cell without holders is free.
#[derive(Debug, Default)]
pub(super) struct Cells {
    holders: Vec<u32>,
    free: Vec<u32>,
}

impl Cells {
    /// Cells with a holder.
    pub(super) fn used(&self) -> u64 {
        (self.holders.len() - self.free.len()) as u64
    }

    /// A cell with one holder.
    pub(super) fn take(&mut self) -> u32 {
        if let Some(cell) = self.free.pop() {
            self.holders[cell as usize] = 1;
            return cell;
        }
        self.holders.push(1);
        (self.holders.len() - 1) as u32
    }

    /// One more holder for each.
    pub(super) fn hold(&mut self, cells: &[u32]) {
        for &cell in cells {
            self.holders[cell as usize] += 1;
        }
    }

    /// One holder less for each.
    pub(super) fn release(&mut self, cells: impl IntoIterator<Item = u32>) {
        for cell in cells {
            let holders = &mut self.holders[cell as usize];
            *holders -= 1;
            if *holders == 0 {
                self.free.push(cell);
            }
        }
    }

    /// Distinct cells of these sequences.
    pub(super) fn held_by<'s>(&self, sequences: impl Iterator<Item = &'s Sequence>) -> u64 {
        count(sequences).len() as u64
    }

    /// Cells whose every holder is among these sequences, each listed once.
    pub(super) fn released_by<'s>(&self, sequences: impl Iterator<Item = &'s Sequence>) -> u64 {
        count(sequences).into_iter().filter(|&(cell, held)| self.holders[cell as usize] == held).count() as u64
    }
}

/// How often each cell occurs.
fn count<'s>(sequences: impl Iterator<Item = &'s Sequence>) -> BTreeMap<u32, u32> {
    let mut counts = BTreeMap::new();
    for cell in sequences.flat_map(|sequence| sequence.cells()) {
        *counts.entry(*cell).or_insert(0) += 1;
    }
    counts
}
