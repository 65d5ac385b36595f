#![forbid(unsafe_code)]
//! Picking a token from a row of logits.
//!
//! The order is fixed (T-112): mask, bias, penalties, log-probabilities, then greedy or a draw. A draw is a pure function of
//! the row and of a position (T-119), so a lane draws the same tokens whatever else the schedule does.

use crate::record::constant::misc::MAX_TOP_LOGPROBS;

/// How one token is to be picked: everything but the row.
#[derive(Clone, Copy, Debug, Default)]
pub struct SampleRequest<'a> {
    /// At most 0 (or NaN) picks greedily (T-115).
    pub temperature: f32,
    /// Candidates kept; 0 is off (T-117).
    pub top_k: u32,
    /// Nucleus mass; 1.0 is off (T-117).
    pub top_p: f32,
    /// Smallest kept probability relative to the best; 0 is off (T-117).
    pub min_p: f32,
    /// Position of the draw (T-119).
    pub position: u64,
    /// Addends by token id; an id listed twice is added twice (E-12).
    pub bias: &'a [(u32, f32)],
    /// Penalties over the recent tokens; none when they are off.
    pub penalty: Option<Penalty<'a>>,
    /// Allowed tokens, one bit per id, lowest bit first; ids past its end are not allowed. None allows all.
    pub mask: Option<&'a [u32]>,
    /// Number of alternatives wanted beside the log-probability of the token (T-122); none asks for nothing.
    pub logprobs: Option<u32>,
}

/// Penalties of one lane (T-113).
#[derive(Clone, Copy, Debug)]
pub struct Penalty<'a> {
    /// Divides positive and multiplies other logits; 1.0 is off.
    pub repeat: f32,
    /// Subtracted once per distinct token.
    pub presence: f32,
    /// Subtracted per occurrence.
    pub frequency: f32,
    /// The last tokens of the lane, at most 64.
    pub window: &'a [u32],
    /// Ids that are never penalised, ascending (T-114).
    pub exempt: &'a [u32],
}

/// What was picked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pick {
    /// The token.
    pub token: u32,
    /// Its log-probability and the alternatives, when asked for.
    pub logprobs: Option<Logprobs>,
}

/// The log-probability of a picked token (T-122).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logprobs {
    /// Natural logarithm of the probability of the token.
    pub logprob: f32,
    /// Number of alternatives.
    pub n_top: u32,
    /// Their ids, best first.
    pub top_ids: [u32; MAX_TOP_LOGPROBS],
    /// Their log-probabilities, descending.
    pub top_logprobs: [f32; MAX_TOP_LOGPROBS],
}
