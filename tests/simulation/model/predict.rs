//! What a tick must answer.

use ictus::record::constant::{shed_kind, tick_status};

use super::Loss;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Emit {
    pub(crate) tag: u64,
    pub(crate) tokens: Vec<u32>,
    pub(crate) finish: u32,
    /// Generation and content of the row of a HOST lane.
    pub(crate) row: Option<(u64, Vec<f32>)>,
    /// Proposed, accepted, certificate (T-130).
    pub(crate) drafts: (u32, u32, u32),
}

/// The events of an accepted tick, timings left out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Predicted {
    pub(crate) admitted: Vec<u64>,
    pub(crate) emits: Vec<Emit>,
    /// Tag and code.
    pub(crate) faults: Vec<(u64, u32)>,
    pub(crate) losses: Vec<Loss>,
    /// Tag, value, ids of the alternatives; in emission order (T-105, T-122).
    pub(crate) logprobs: Vec<(u64, f32, Vec<u32>)>,
    /// Handle, state, error, bytes of what ended since the last tick (T-144).
    pub(crate) completions: Vec<(u64, u8, u32, u64)>,
    /// Tokens as the partial callback sees them (T-105, T-107).
    pub(crate) partial: Vec<(u64, u32)>,
}

impl Predicted {
    /// T-142.
    pub(crate) fn status(&self) -> u32 {
        match (self.faults.is_empty(), self.losses.is_empty()) {
            (false, _) => tick_status::LANE_ERRORS,
            (true, false) => tick_status::SHED,
            (true, true) => tick_status::OK,
        }
    }

    /// T-143.
    pub(crate) fn chunks(&self) -> usize {
        self.losses.iter().filter(|loss| loss.kind == shed_kind::PREFILL_CHUNK).count()
    }
}
