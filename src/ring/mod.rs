#![deny(unsafe_code)]
//! The rings between host and engine (E-30 .. E-46).
//!
//! The host writes prompts into token-in; the engine writes emitted tokens into token-out and logits rows into logits. A
//! reference names a ring, a slot and the generation the slot must carry, so a recycled slot is noticed and never misread.

mod control;
mod mapping;
mod memory;
mod shared;
mod store;

pub use control::ControlWords;
pub use mapping::{Mapping, Segment};
pub use memory::{MemoryRingShape, MemoryRings};
pub use shared::{SharedRing, SharedRings, segment_bytes, slot_bytes_for};
pub use store::{ByPosition, Store, Word};

use crate::record::{RingRef, Status, TokenRef};

/// Why a ring could not serve a reference or take a payload (E-30).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// No ring with this id serves the call.
    #[error("unknown ring {0}")]
    UnknownRing(u32),
    /// The slot was recycled since the reference was made, or never written (`current` is then 0).
    #[error("stale generation {reference}, the slot carries {current}")]
    StaleGeneration {
        /// The generation the reference names.
        reference: u64,
        /// The generation the slot carries.
        current: u64,
    },
    /// The slot number, the payload length or the size of the payload is out of range; or the memory is gone, where it can go.
    #[error("out of bounds")]
    OutOfBounds,
}

/// Why memory cannot serve as a ring or as control words (E-42, E-46).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The base is null or not 8-byte aligned.
    #[error("the base is null or not 8-byte aligned")]
    Base,
    /// The segment is shorter than its shape asks, or longer than memory.
    #[error("the segment has the wrong length")]
    Length,
    /// No ring has this id.
    #[error("no ring has id {got}")]
    Id {
        /// The id.
        got: u32,
    },
    /// The ring of this id carries something else.
    #[error("kind {got} is not what this ring carries")]
    Kind {
        /// The kind.
        got: u32,
    },
    /// The ring of this id is written by the other side.
    #[error("role {got} is not the engine's in this ring")]
    Role {
        /// The role.
        got: u32,
    },
    /// A slot must be larger than its header and a multiple of 8 bytes.
    #[error("slots of {got} bytes cannot be laid out")]
    SlotBytes {
        /// The size.
        got: u32,
    },
    /// There must be a slot, and they must fit into memory.
    #[error("{got} slots cannot be laid out")]
    Slots {
        /// The number.
        got: u32,
    },
    /// The memory begins with something else.
    #[error("magic {got:#x}")]
    Magic {
        /// What it begins with.
        got: u64,
    },
    /// The header in memory says something else than the descriptor.
    #[error("the header of ring {ring_id} differs from its descriptor")]
    Header {
        /// The ring of the descriptor.
        ring_id: u32,
    },
}

impl From<LayoutError> for Status {
    fn from(_: LayoutError) -> Self {
        Status::RingLayout
    }
}

impl From<RingError> for Status {
    fn from(error: RingError) -> Self {
        match error {
            RingError::StaleGeneration { .. } => Status::RejectBadRefGeneration,
            RingError::UnknownRing(_) | RingError::OutOfBounds => Status::RejectBounds,
        }
    }
}

/// The engine's view of the three rings and of the two control words.
pub trait Rings {
    /// Copies all ids of a token slot to the end of `tokens`, which is unchanged on error (E-32).
    ///
    /// # Errors
    /// In this order: unknown ring, slot out of range, stale generation, payload length other than `count`.
    fn read_tokens(&self, reference: &TokenRef, tokens: &mut Vec<u32>) -> Result<(), RingError>;

    /// Writes `tokens`, possibly none, into the next slot of token-out (E-34).
    ///
    /// # Errors
    /// `OutOfBounds` when the slot cannot hold them or no such ring is attached (E-35, E-45); nothing is written.
    fn write_tokens(&mut self, tokens: &[u32]) -> Result<TokenRef, RingError>;

    /// Writes a row into the next slot of logits.
    ///
    /// # Errors
    /// As [`Rings::write_tokens`].
    fn write_logits_row(&mut self, row: &[f32]) -> Result<RingRef, RingError>;

    /// Copies a logits row to the end of `row`, which is unchanged on error (E-32).
    ///
    /// # Errors
    /// As [`Rings::read_tokens`], less the length check.
    fn read_logits_row(&self, reference: &RingRef, row: &mut Vec<f32>) -> Result<(), RingError>;

    /// Whether the host would rather have the tick return early (E-36).
    fn yield_requested(&self) -> bool {
        false
    }

    /// Whether latency-sensitive requests have been around lately (E-37).
    fn latency_wanted(&self) -> bool {
        false
    }
}
