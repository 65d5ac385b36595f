#![forbid(unsafe_code)]
//! Rings whose host changes its mind all the time.

use core::cell::Cell;

use super::StageRings;
use crate::record::{RingRef, TokenRef};
use crate::ring::{MemoryRings, RingError, Rings};

/// In-memory rings whose two control words answer at random, each time they are asked.
#[derive(Clone, Debug)]
pub struct RestlessRings {
    rings: MemoryRings,
    /// State of the random numbers; 0 answers no always.
    mood: Cell<u64>,
}

impl RestlessRings {
    /// Rings that answer by this key.
    pub fn new(key: u64) -> Self {
        Self { rings: MemoryRings::new(), mood: Cell::new(key | 1) }
    }

    /// Rings that never ask for anything.
    pub fn calm() -> Self {
        Self { rings: MemoryRings::new(), mood: Cell::new(0) }
    }

    /// True about once in four times.
    fn whim(&self) -> bool {
        let mut mood = self.mood.get();
        // xorshift64: a state of 0 stays 0.
        mood ^= mood << 13;
        mood ^= mood >> 7;
        mood ^= mood << 17;
        self.mood.set(mood);
        mood != 0 && mood >> 62 == 0
    }
}

impl Rings for RestlessRings {
    fn read_tokens(&self, reference: &TokenRef, tokens: &mut Vec<u32>) -> Result<(), RingError> {
        self.rings.read_tokens(reference, tokens)
    }

    fn write_tokens(&mut self, tokens: &[u32]) -> Result<TokenRef, RingError> {
        self.rings.write_tokens(tokens)
    }

    fn write_logits_row(&mut self, row: &[f32]) -> Result<RingRef, RingError> {
        self.rings.write_logits_row(row)
    }

    fn read_logits_row(&self, reference: &RingRef, row: &mut Vec<f32>) -> Result<(), RingError> {
        self.rings.read_logits_row(reference, row)
    }

    fn yield_requested(&self) -> bool {
        self.whim()
    }

    fn latency_wanted(&self) -> bool {
        self.whim()
    }
}

impl StageRings for RestlessRings {
    fn stage_prompt(&mut self, tokens: &[u32]) -> TokenRef {
        StageRings::stage_prompt(&mut self.rings, tokens)
    }

    fn rings_digest(&self) -> u64 {
        self.rings.rings_digest()
    }
}
