#![forbid(unsafe_code)]
//! Rings in this process's own memory (E-38).
//!
//! # Invariants
//! A slot's buffer is kept and reused, so a ring that has gone round once writes without allocating.

use super::{RingError, Rings};
use crate::record::constant::ring_id;
use crate::record::{RingRef, TokenRef};

/// One ring of payloads of `T`.
#[derive(Clone, Debug, PartialEq)]
struct Ring<T> {
    slots: Vec<Slot<T>>,
    slot_len: usize,
    index: u32,
    generation: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct Slot<T> {
    // 0 until first written (E-31).
    generation: u64,
    payload: Vec<T>,
}

impl<T: Copy> Ring<T> {
    fn new(slots: u32, slot_len: usize) -> Self {
        let slots = (0..slots.max(1)).map(|_| Slot { generation: 0, payload: Vec::new() }).collect();
        Self { slots, slot_len, index: 0, generation: 1 }
    }

    /// Stores `payload` at the cursor and moves the cursor on (E-31); answers slot and generation.
    fn write(&mut self, payload: &[T]) -> Result<(u32, u64), RingError> {
        let slot = self.slots.get_mut(self.index as usize).ok_or(RingError::OutOfBounds)?;
        if payload.len() > self.slot_len {
            return Err(RingError::OutOfBounds);
        }
        slot.payload.clear();
        slot.payload.extend_from_slice(payload);
        slot.generation = self.generation;
        let written = (self.index, self.generation);
        self.index = (self.index + 1) % self.slots.len() as u32;
        self.generation += 1;
        Ok(written)
    }

    fn read(&self, index: u32, generation: u64) -> Result<&[T], RingError> {
        let slot = self.slots.get(index as usize).ok_or(RingError::OutOfBounds)?;
        if slot.generation != generation || generation == 0 {
            return Err(RingError::StaleGeneration { reference: generation, current: slot.generation });
        }
        Ok(&slot.payload)
    }
}

/// How many slots the rings have, and how much fits into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRingShape {
    /// Slots of each token ring.
    pub token_slots: u32,
    /// Most ids of a prompt.
    pub prompt_tokens: usize,
    /// Most ids of an emit.
    pub emit_tokens: usize,
    /// Slots of the logits ring.
    pub logits_slots: u32,
    /// Most logits of a row.
    pub row_logits: usize,
}

impl Default for MemoryRingShape {
    /// 64 slots for tokens, 16 for rows, and no bound on what they hold (E-38).
    fn default() -> Self {
        Self {
            token_slots: 64,
            prompt_tokens: usize::MAX,
            emit_tokens: usize::MAX,
            logits_slots: 16,
            row_logits: usize::MAX,
        }
    }
}

/// The three rings and the two control words, for a host in the same process.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryRings {
    tokens_in: Ring<u32>,
    tokens_out: Ring<u32>,
    logits: Ring<f32>,
    yields: bool,
    latency: bool,
}

impl Default for MemoryRings {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryRings {
    /// Rings of the default shape (E-38).
    pub fn new() -> Self {
        Self::with_shape(MemoryRingShape::default())
    }

    /// Rings of a given shape; a ring has at least one slot.
    pub fn with_shape(shape: MemoryRingShape) -> Self {
        Self {
            tokens_in: Ring::new(shape.token_slots, shape.prompt_tokens),
            tokens_out: Ring::new(shape.token_slots, shape.emit_tokens),
            logits: Ring::new(shape.logits_slots, shape.row_logits),
            yields: false,
            latency: false,
        }
    }

    /// Writes a prompt into token-in.
    ///
    /// # Errors
    /// `OutOfBounds` when a slot cannot hold it; nothing is written.
    pub fn try_stage_prompt(&mut self, tokens: &[u32]) -> Result<TokenRef, RingError> {
        let written = self.tokens_in.write(tokens)?;
        Ok(token_ref(ring_id::TOKENS_IN, written, tokens))
    }

    /// Writes a prompt into token-in.
    ///
    /// # Panics
    /// When a slot cannot hold it, which rings of unbounded slots never do; see [`MemoryRings::try_stage_prompt`].
    pub fn stage_prompt(&mut self, tokens: &[u32]) -> TokenRef {
        match self.try_stage_prompt(tokens) {
            Ok(reference) => reference,
            Err(_) => panic!("a slot of token-in holds fewer than {} tokens", tokens.len()),
        }
    }

    /// Fixes what [`Rings::yield_requested`] answers.
    pub fn set_yield(&mut self, on: bool) {
        self.yields = on;
    }

    /// Fixes what [`Rings::latency_wanted`] answers.
    pub fn set_latency(&mut self, on: bool) {
        self.latency = on;
    }
}

fn token_ref(ring_id: u32, (index, generation): (u32, u64), tokens: &[u32]) -> TokenRef {
    TokenRef { ring_id, index, count: u32::try_from(tokens.len()).unwrap_or(u32::MAX), _pad0: 0, generation }
}

impl Rings for MemoryRings {
    fn read_tokens(&self, reference: &TokenRef, tokens: &mut Vec<u32>) -> Result<(), RingError> {
        let ring = match reference.ring_id {
            ring_id::TOKENS_IN => &self.tokens_in,
            ring_id::TOKENS_OUT => &self.tokens_out,
            other => return Err(RingError::UnknownRing(other)),
        };
        let payload = ring.read(reference.index, reference.generation)?;
        if payload.len() as u64 != u64::from(reference.count) {
            return Err(RingError::OutOfBounds);
        }
        tokens.extend_from_slice(payload);
        Ok(())
    }

    fn write_tokens(&mut self, tokens: &[u32]) -> Result<TokenRef, RingError> {
        let written = self.tokens_out.write(tokens)?;
        Ok(token_ref(ring_id::TOKENS_OUT, written, tokens))
    }

    fn write_logits_row(&mut self, row: &[f32]) -> Result<RingRef, RingError> {
        let (index, generation) = self.logits.write(row)?;
        Ok(RingRef { ring_id: ring_id::LOGITS, index, generation })
    }

    fn read_logits_row(&self, reference: &RingRef, row: &mut Vec<f32>) -> Result<(), RingError> {
        if reference.ring_id != ring_id::LOGITS {
            return Err(RingError::UnknownRing(reference.ring_id));
        }
        row.extend_from_slice(self.logits.read(reference.index, reference.generation)?);
        Ok(())
    }

    fn yield_requested(&self) -> bool {
        self.yields
    }

    fn latency_wanted(&self) -> bool {
        self.latency
    }
}
