#![forbid(unsafe_code)]
//! The sequences of the facade: who exists, how far each is, and the blocks that each holds.
//!
//! ```text
//!   blocks of a sequence   | shared ........ | own: real ........... | claimed ..... |
//!                            a resident       pages of the pool,       promised, and in no pool yet
//!                            prefix, whole    "measured" there         (admission's first block, reserve)
//!                            blocks
//! ```
//!
//! # Invariants
//! - A slot is used again, a generation never (X-8).
//! - `held` counts the own blocks, `real` those of them that are pages: `real <= held`. The ledger has `held - real` claimed for them, and one
//!   unit of Slots for the sequence.
//! - `tokens` holds the context, then what was fed behind it; it is lent to the run while one is in flight.
//! - One lock holds all of it: the start of a run and a close of the same sequence have an order (X-11).

use super::seq::Seq;
use crate::capacity::{Bad, Receipt, Refusal, Remedy};
use crate::runtime::SeqHandle;

/// What may be done with a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Idle,
    /// A run has it.
    InFlight,
    /// Quiet and unusable.
    Lost,
    /// The device may still touch it.
    Held,
}

/// One sequence.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// 0 when the slot is empty.
    pub(super) generation: u64,
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_len: usize,
    pub(super) context_len: usize,
    pub(super) ceiling: usize,
    /// Committed tokens.
    pub(super) frontier: usize,
    pub(super) shared: u64,
    pub(super) held: u64,
    pub(super) real: u64,
    /// The entry whose blocks are shared; 0 is none.
    pub(super) origin: u64,
    /// The runtime's sequence; 0 before the first run.
    pub(super) handle: SeqHandle,
    pub(super) phase: Phase,
    /// Closed while a run had it: stale for everybody, and gone when the run ends.
    pub(super) ended: bool,
    /// Its host looks for a victim when it is short, instead of waiting.
    pub(super) recomputes: bool,
    pub(super) counted: bool,
    /// The call that named it last.
    pub(super) named_in: u64,
}

impl Slot {
    /// Blocks to be claimed for a length of `end`, `block` tokens each.
    pub(super) fn lacks(&self, end: usize, block: u64) -> u64 {
        blocks(end, block).saturating_sub(self.shared).saturating_sub(self.held)
    }

    /// What a shortage is answered with.
    pub(super) fn pressure(&self) -> Remedy {
        if self.recomputes { Remedy::Recompute } else { Remedy::Wait }
    }

    /// Whether the whole context is committed.
    pub(super) fn decodes(&self) -> bool {
        self.frontier >= self.context_len
    }
}

/// Blocks of `block` tokens that hold so many tokens.
pub(super) fn blocks(tokens: usize, block: u64) -> u64 {
    (tokens as u64).div_ceil(block)
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) core: u32,
    pub(super) slots: Vec<Slot>,
    vacant: Vec<u32>,
    generation: u64,
    /// Calls that named sequences.
    calls: u64,
    pub(super) live: usize,
    pub(super) in_flight: usize,
    /// Shut down, or about to be.
    pub(super) closing: bool,
    /// What shutting down said.
    pub(super) closed: Option<Result<Receipt, Refusal>>,
}

impl Table {
    pub(super) fn new(core: u32) -> Self {
        Self { core, ..Self::default() }
    }

    /// The slot of a live sequence.
    ///
    /// # Errors
    /// `Foreign`, `Stale` (X-9).
    pub(super) fn find(&self, seq: Seq) -> Result<usize, Bad> {
        if seq.core != self.core {
            return Err(Bad::Foreign);
        }
        match self.slots.get(seq.slot as usize) {
            Some(slot) if slot.generation == seq.generation && seq.generation != 0 && !slot.ended => {
                Ok(seq.slot as usize)
            }
            _ => Err(Bad::Stale),
        }
    }

    /// Fills a slot; its name.
    ///
    /// # Errors
    /// `Exhausted` when generations, or slots, are.
    pub(super) fn insert(&mut self, slot: Slot) -> Result<Seq, Bad> {
        let generation = self.generation.checked_add(1).ok_or(Bad::Exhausted)?;
        let at = match self.vacant.pop() {
            Some(at) => at,
            None => {
                let at = u32::try_from(self.slots.len()).map_err(|_| Bad::Exhausted)?;
                self.slots.push(Slot::default());
                // So that emptying a slot never allocates.
                self.vacant.reserve(self.slots.len());
                at
            }
        };
        self.generation = generation;
        self.live += 1;
        if let Some(place) = self.slots.get_mut(at as usize) {
            *place = Slot { generation, ..slot };
        }
        Ok(Seq { core: self.core, slot: at, generation })
    }

    /// Empties a slot; what was in it.
    pub(super) fn vacate(&mut self, at: usize) -> Slot {
        let gone = self.slots.get_mut(at).map(std::mem::take).unwrap_or_default();
        if gone.generation != 0 {
            self.vacant.push(at as u32);
            self.live -= 1;
        }
        gone
    }

    /// The number of a new call, to notice what it names twice.
    pub(super) fn begin_call(&mut self) -> u64 {
        self.calls += 1;
        self.calls
    }

    /// Marks a slot as named by a call; false when it was already.
    pub(super) fn name(&mut self, at: usize, call: u64) -> bool {
        self.slots.get_mut(at).is_none_or(|slot| std::mem::replace(&mut slot.named_in, call) != call)
    }

    /// The names of all live sequences.
    pub(super) fn names(&self) -> Vec<Seq> {
        let named = self.slots.iter().zip(0..).filter(|(slot, _)| slot.generation != 0 && !slot.ended);
        named.map(|(slot, at)| Seq { core: self.core, slot: at, generation: slot.generation }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_used_again_and_generations_are_not() {
        let mut table = Table::new(7);
        let first = table.insert(Slot::default()).expect("a slot");
        let second = table.insert(Slot::default()).expect("a slot");
        assert_eq!(table.find(first), Ok(0));
        table.vacate(0);
        let third = table.insert(Slot::default()).expect("a slot");
        assert_eq!((third.slot, third.generation), (first.slot, second.generation + 1));
        assert_eq!((table.find(first), table.find(third)), (Err(Bad::Stale), Ok(0)));
        assert_eq!(table.find(Seq { core: 8, ..third }), Err(Bad::Foreign));
        assert_eq!(table.find(Seq::default()), Err(Bad::Foreign));
        table.vacate(0);
        table.vacate(0);
        assert_eq!((table.live, table.find(third)), (1, Err(Bad::Stale)), "a slot empties once");
        table.generation = u64::MAX;
        assert_eq!(table.insert(Slot::default()), Err(Bad::Exhausted));
    }
}
