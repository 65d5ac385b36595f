#![forbid(unsafe_code)]
//! What a lane has cost.

/// Counts of one lane since it was admitted.
///
/// They reconcile with the events: a lane that is not HOST has emitted `answered_steps + draft_accepted` tokens, less those steps whose
/// answer only ended the lane (`FINISH_LENGTH` without a token) and those accepted tokens behind an end token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCost {
    /// Prompt tokens that were fed, but for those of the replayed tail.
    pub prefill_tokens: u64,
    /// Prompt tokens that a seed brought in: nothing was fed for them.
    pub seeded_tokens: u64,
    /// Tokens of the replayed tail that were fed.
    pub replayed_tokens: u64,
    /// Produced tokens that were fed, rejected drafts not counted.
    pub decoded_tokens: u64,
    /// Steps that were asked for the lane's next token or row.
    pub answered_steps: u64,
    /// Tokens that were drafted.
    pub draft_proposed: u64,
    /// Drafted tokens that were kept.
    pub draft_accepted: u64,
    /// Time that drafting took; a round's time is divided evenly among the lanes that drafted in it.
    pub draft_ns: u64,
    /// Pages that its sequence holds now, shared ones included.
    pub pages: u64,
    /// Pages that were copied for it because somebody else held them too.
    pub page_copies: u64,
}
