#![forbid(unsafe_code)]
//! Whoever guesses with more than the lane's own text: a second model, say.

use core::fmt::Debug;

use super::DRAFT_MAX;

/// A lane that wants a draft.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'h> {
    /// Names the lane as long as it lives.
    pub lane: u64,
    /// Everything it has committed.
    pub history: &'h [u32],
    /// Tokens wanted, between 1 and [`DRAFT_MAX`].
    pub limit: usize,
    /// The answer: its first `drafted` tokens count.
    pub draft: [u32; DRAFT_MAX],
    /// How many tokens the answer has, at most `limit`; 0 is no draft.
    pub drafted: usize,
}

impl<'h> Ask<'h> {
    /// A question without an answer yet.
    pub fn new(lane: u64, history: &'h [u32], limit: usize) -> Self {
        Self { lane, history, limit: limit.min(DRAFT_MAX), draft: [0; DRAFT_MAX], drafted: 0 }
    }
}

/// Why a draft model cannot draft for an engine. Nothing is kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DraftModelError {
    /// The file is no model that can be opened.
    #[error("the draft model does not open: {reason}")]
    Open {
        /// What the layer that refused it says.
        reason: String,
    },
    /// Its tokens are not those of the engine's model.
    #[error("token {token} is another one in the draft model")]
    Vocabulary {
        /// The first token that differs; one of them may not have it at all.
        token: u32,
    },
}

/// Whoever can open draft models, because it knows files and tokenizers.
pub trait DraftModels: Debug + Send {
    /// The model at `path`, to draft for the lanes of this engine.
    ///
    /// # Errors
    /// A [`DraftModelError`].
    fn open(&mut self, path: &str) -> Result<Box<dyn Drafter>, DraftModelError>;
}

/// Proposes drafts, for several lanes at once.
///
/// A drafter that cannot, for want of memory or for anything else, proposes nothing: that costs speed, and is no error.
pub trait Drafter: Debug + Send {
    /// Answers each ask. Afterwards the drafter may keep what it computed for the lane until told to forget it.
    fn propose(&mut self, asks: &mut [Ask<'_>]);

    /// Frees what is kept for a lane; one that was never asked about is ignored.
    fn forget(&mut self, lane: u64);

    /// Bytes it takes, all of them planned.
    fn reserved_bytes(&self) -> u64;

    /// Lanes it keeps something for.
    fn lanes(&self) -> usize;
}
