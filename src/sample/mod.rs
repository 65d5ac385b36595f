//! Picking a token from a row of logits.
//!
//! The order is fixed (T-112): mask, bias, penalties, log-probabilities, then greedy or a draw. A draw is a pure function of
//! the row and of a position (T-119), so a lane draws the same tokens whatever else the schedule does.
//!
//! ```
//! use ictus::sample::{SampleRequest, Scratch, pick};
//!
//! let mut row = [0.5, 2.0, 1.0];
//! let picked = pick(&mut row, &SampleRequest { bias: &[(2, 3.0)], ..Default::default() }, &mut Scratch::new());
//! assert_eq!(picked.map(|pick| pick.token), Ok(2));
//! ```
//!
//! # Invariants
//! - The token is a function of the row and of the request alone. Every sum has a fixed order, nothing depends on a thread
//!   count, and no function of the platform's math library decides which token is picked.
//! - A picked token is below the row's length, or 0.
//!
//! # Limits
//! Nothing here allocates once a [`Scratch`] has served a row of the same length.
//!
//! # Not here
//! Which requests a runtime serves itself: `runtime`. What a failed pick does to its lane: `executor`.

mod draw;
mod filter;
mod logprob;
mod penalty;
mod shape;
mod wide;

pub use draw::{argmax, draw, exp, probabilities, uniform};
pub use filter::{Candidate, Cuts};
pub use logprob::{LogprobParts, Logprobs, logprobs};
pub use penalty::{PENALTY_WINDOW, Penalty};
pub use shape::{add_bias, apply_mask, row_is_finite};

use std::collections::TryReserveError;

use self::draw::{Survey, draw_below, survey};
use self::logprob::logprobs_below;
use crate::record::constant::fault;

/// How one token is to be picked: everything but the row.
#[derive(Clone, Copy, Debug)]
pub struct SampleRequest<'a> {
    /// At most 0 (or NaN) picks greedily (T-115).
    pub temperature: f32,
    /// Candidates kept; 0 is off (T-117).
    pub top_k: u32,
    /// Nucleus mass; 1.0 is off, 0.0 keeps only the best (T-117).
    pub top_p: f32,
    /// Smallest kept probability relative to the best; 0 is off (T-117).
    pub min_p: f32,
    /// Position of the draw (T-119).
    pub position: u64,
    /// Addends by token id; an id listed twice is added twice (E-12).
    pub bias: &'a [(u32, f32)],
    /// Penalties over the recent tokens; none when they are off.
    pub penalty: Option<Penalty<'a>>,
    /// Allowed tokens, one bit per id, lowest bit first; ids past its end are not allowed (R-64). None allows all.
    pub mask: Option<&'a [u32]>,
    /// Number of alternatives wanted beside the log-probability of the token (T-122); none asks for nothing.
    pub logprobs: Option<u32>,
}

impl Default for SampleRequest<'_> {
    /// Greedy, with every cut off and nothing else asked for.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            position: 0,
            bias: &[],
            penalty: None,
            mask: None,
            logprobs: None,
        }
    }
}

impl SampleRequest<'_> {
    /// Whether anything is done to the row before a token is looked for.
    pub fn shapes(&self) -> bool {
        self.mask.is_some() || !self.bias.is_empty() || self.penalty.is_some()
    }
}

/// What was picked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pick {
    /// The token.
    pub token: u32,
    /// Its log-probability and the alternatives, when asked for.
    pub logprobs: Option<Logprobs>,
}

/// Why no token could be picked. The lane of the row faults; its neighbours do not notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// The model's row holds a NaN or an infinity ([`row_is_finite`]).
    #[error("the row of logits is not finite")]
    NotFinite,
    /// The mask allows no token of the row (R-64).
    #[error("the mask allows no token")]
    NothingAllowed,
}

impl SampleError {
    /// The fault code of the lane (`FAULT_*`).
    pub const fn fault_code(self) -> u32 {
        match self {
            Self::NotFinite => fault::INTERNAL,
            Self::NothingAllowed => fault::GRAMMAR_OVERFLOW,
        }
    }
}

/// Buffers of [`pick`], reused from row to row.
#[derive(Debug, Default)]
pub struct Scratch {
    weights: Vec<f32>,
    candidates: Vec<Candidate>,
}

impl Scratch {
    /// Empty buffers, which grow with the first draw.
    pub fn new() -> Self {
        Self::default()
    }

    /// Buffers for every draw of rows of `vocab` logits: [`Scratch::bytes`].
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn with_room(vocab: usize) -> Result<Self, TryReserveError> {
        let mut scratch = Self::default();
        scratch.weights.try_reserve_exact(vocab)?;
        scratch.candidates.try_reserve_exact(vocab)?;
        Ok(scratch)
    }

    /// Bytes that a draw of a row of `vocab` logits may need.
    pub const fn bytes(vocab: usize) -> u64 {
        vocab as u64 * (size_of::<f32>() + size_of::<Candidate>()) as u64
    }
}

/// Picks a token from a model's row (T-112).
///
/// Afterwards the row is shaped: masked, biased and penalised.
///
/// # Errors
/// `NotFinite` when the row was not finite before anything was applied to it; `NothingAllowed` when the mask is empty.
pub fn pick(row: &mut [f32], request: &SampleRequest<'_>, scratch: &mut Scratch) -> Result<Pick, SampleError> {
    let mut seen = survey(row);
    if !seen.is_finite {
        return Err(SampleError::NotFinite);
    }
    if let Some(mask) = request.mask
        && !apply_mask(row, mask)
    {
        return Err(SampleError::NothingAllowed);
    }
    add_bias(row, request.bias);
    if let Some(penalty) = &request.penalty {
        penalty.apply(row);
    }
    if request.shapes() {
        seen = survey(row);
    }
    Ok(pick_below(row, &seen, request, scratch))
}

/// Picks a token from a row that was sound and is shaped already, as [`pick`] leaves it: what a device does that shapes a row and cannot finish it.
pub fn pick_shaped(row: &[f32], request: &SampleRequest<'_>, scratch: &mut Scratch) -> Pick {
    pick_below(row, &survey(row), request, scratch)
}

/// The pick from a shaped row, of which `seen` is a look.
fn pick_below(row: &[f32], seen: &Survey, request: &SampleRequest<'_>, scratch: &mut Scratch) -> Pick {
    let token = if request.temperature > 0.0 {
        let cuts = Cuts { top_k: request.top_k, min_p: request.min_p, top_p: request.top_p };
        draw_below(row, seen.best, request.temperature, cuts, uniform(request.position), scratch)
    } else {
        seen.lowest(row)
    };
    // Of the shaped row, before temperature (T-112).
    Pick { token, logprobs: request.logprobs.map(|k| logprobs_below(row, seen.best, token, k)) }
}
