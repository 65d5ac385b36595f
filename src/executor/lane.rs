#![forbid(unsafe_code)]
//! One lane: a request that was admitted, and where it stands.
//!
//! A lane is its tokens and two marks in them. `history` is the whole prompt and, after it, every token produced; the
//! tokens before `committed` are the lane's so far, and the sequence holds the tokens before `fed`.
//!
//! ```text
//!   history   p p p p p p p p t t o o o o          p prompt, t replayed tail of the prompt, o produced
//!             0         |     |     |   |
//!                       fed <= committed            fed is committed, or one less: the pending input (E-1)
//!                             |     prompt_len
//!                             prefill_end           where prefill stops and decode takes over (T-48)
//! ```
//!
//! The phase of a lane follows from the marks, so the two cannot disagree:
//!
//! ```text
//!              prefill            decode: one tail token a step
//!   admit --> Prefilling -------> Replaying -----+
//!                 |  no tail                     |  last tail token
//!                 +---------------> Ready <------+
//!                                  |  ^  |
//!                     decode       |  |  |  commit
//!                     a token  <---+  |  +----<----+
//!                     |               |            |
//!                     +-- goes on ----+        RowPending      a HOST lane that was given its row
//!                     |                            ^
//!                     |           decode of HOST --+
//!                     v
//!                  Finished      end token, context full: refuses decode and commit, stays until retired
//!
//!   any phase -- retire --> gone          any phase -- fault --> gone, its tag marked until a retire or an admit (T-133)
//! ```
//!
//! # Invariants
//! - `fed <= committed <= fed + 1`, `committed <= history.len()`, and `history.len()` is the greater of `prompt_len` and
//!   `committed`: tokens are produced only once the whole prompt is committed.
//! - `committed` never exceeds the context (T-36, T-106).
//!
//! # Not here
//! Who owns the lanes and finds them by tag: `lanes.rs`. How the next token is picked: `recipe.rs` and `evaluate.rs`.

use super::recipe::Recipe;
use crate::record::RingRef;
use crate::runtime::SeqHandle;

/// Where a lane stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Prompt tokens before the replayed tail are missing.
    Prefilling,
    /// Tokens of the replayed tail are missing (T-97).
    Replaying,
    /// The next decode gives a token, or the row of a HOST lane.
    Ready,
    /// A HOST lane whose row waits for the token the host picks.
    RowPending,
    /// No decode will ever give a token again.
    Finished,
}

/// One admitted request.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    tag: u64,
    sequence: SeqHandle,
    history: Vec<u32>,
    prompt_len: usize,
    prefill_end: usize,
    committed: usize,
    fed: usize,
    recipe: Recipe,
    rng_counter: u64,
    row: Option<RingRef>,
    finished: bool,
    injected_fault: Option<u32>,
}

impl Lane {
    /// A cold lane on an empty sequence. The last `replay` prompt tokens, fewer than there are, are a tail to replay.
    pub(super) fn new(tag: u64, sequence: SeqHandle, prompt: &[u32], replay: usize, recipe: Recipe) -> Self {
        // Room for an answer as long as its prompt, so that a lane rarely grows its list.
        let mut history = Vec::with_capacity((prompt.len() * 2).max(512));
        history.extend_from_slice(prompt);
        Self {
            tag,
            sequence,
            history,
            prompt_len: prompt.len(),
            prefill_end: prompt.len().saturating_sub(replay),
            committed: 0,
            fed: 0,
            recipe,
            rng_counter: 0,
            row: None,
            finished: false,
            injected_fault: None,
        }
    }

    /// The host's name for it.
    pub(super) fn tag(&self) -> u64 {
        self.tag
    }

    /// Its sequence in the runtime.
    pub(super) fn sequence(&self) -> SeqHandle {
        self.sequence
    }

    /// How its tokens are picked.
    pub(super) fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Where it stands.
    pub(super) fn phase(&self) -> Phase {
        if self.finished {
            Phase::Finished
        } else if self.committed < self.prefill_end {
            Phase::Prefilling
        } else if self.committed < self.prompt_len {
            Phase::Replaying
        } else if self.row.is_some() {
            Phase::RowPending
        } else {
            Phase::Ready
        }
    }

    /// Number of prompt tokens.
    pub(super) fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// Where prefill stops: before the replayed tail.
    pub(super) fn prefill_end(&self) -> usize {
        self.prefill_end
    }

    /// Prompt tokens that prefill has brought in.
    pub(super) fn prefilled(&self) -> usize {
        self.committed.min(self.prefill_end)
    }

    /// Number of committed tokens.
    pub(super) fn committed_len(&self) -> usize {
        self.committed
    }

    /// The committed tokens.
    pub(super) fn committed(&self) -> &[u32] {
        self.history.get(..self.committed).unwrap_or_default()
    }

    /// Number of tokens the sequence holds.
    pub(super) fn fed_len(&self) -> usize {
        self.fed
    }

    /// Whether the newest committed token waits to be fed.
    pub(super) fn has_pending_input(&self) -> bool {
        self.fed < self.committed
    }

    /// Number of tokens known, fed or not: the prompt and what was produced.
    pub(super) fn known_len(&self) -> usize {
        self.history.len()
    }

    /// Known tokens from `start` to `end`; none when that is no range of them.
    pub(super) fn known(&self, start: usize, end: usize) -> &[u32] {
        self.history.get(start..end).unwrap_or_default()
    }

    /// Position of the next draw (T-119).
    pub(super) fn draw_position(&self) -> u64 {
        self.recipe.rng_base.wrapping_add(self.rng_counter)
    }

    /// The row that waits for a commit.
    pub(super) fn row(&self) -> Option<RingRef> {
        self.row
    }

    /// Notes that the sequence now holds the first `fed` known tokens and the lane the first `committed`.
    ///
    /// Marks never move back, and the caller keeps `fed <= committed <= fed + 1`.
    pub(super) fn advance(&mut self, fed: usize, committed: usize) {
        debug_assert!(self.fed <= fed && self.committed <= committed && fed <= committed && committed <= fed + 1);
        self.fed = fed;
        self.committed = committed;
    }

    /// Commits a produced token, which becomes the pending input (T-75, T-107).
    pub(super) fn produce(&mut self, token: u32) {
        debug_assert_eq!(self.committed, self.history.len(), "tokens follow a whole prompt");
        self.history.push(token);
        self.committed += 1;
        self.rng_counter = self.rng_counter.wrapping_add(1);
        self.row = None;
    }

    /// Remembers the row that the host was given.
    pub(super) fn wait_for_commit(&mut self, row: RingRef) {
        self.row = Some(row);
    }

    /// Ends the lane's tokens.
    pub(super) fn finish(&mut self) {
        self.finished = true;
    }

    /// Makes the next decode entry fault with `code` (T-96).
    pub(super) fn inject_fault(&mut self, code: u32) {
        self.injected_fault = Some(code);
    }

    /// The injected fault, which is thereby used up.
    pub(super) fn take_injected_fault(&mut self) -> Option<u32> {
        self.injected_fault.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::view::Plain;

    fn lane(prompt: &[u32], replay: usize) -> Lane {
        Lane::new(7, 1, prompt, replay, Recipe::default())
    }

    #[test]
    fn lane_without_tail_goes_from_prefilling_to_ready() {
        let mut lane = lane(&[1, 2, 3], 0);
        assert_eq!((lane.phase(), lane.prefilled()), (Phase::Prefilling, 0));
        lane.advance(2, 2);
        assert_eq!((lane.phase(), lane.prefilled()), (Phase::Prefilling, 2));
        lane.advance(2, 3);
        assert_eq!((lane.phase(), lane.prefilled()), (Phase::Ready, 3));
        assert!(lane.has_pending_input());
        assert_eq!(lane.known(lane.fed_len(), 3), [3]);
    }

    #[test]
    fn lane_with_tail_replays_before_it_is_ready() {
        let mut lane = lane(&[1, 2, 3, 4, 5], 2);
        lane.advance(3, 3);
        assert_eq!((lane.phase(), lane.prefilled()), (Phase::Replaying, 3));
        lane.advance(4, 4);
        assert_eq!((lane.phase(), lane.prefilled()), (Phase::Replaying, 3), "the tail is not prefill (T-48)");
        lane.advance(4, 5);
        assert_eq!(lane.phase(), Phase::Ready);
        assert_eq!(lane.draw_position(), 0, "replayed tokens draw nothing (T-101)");
    }

    #[test]
    fn produced_tokens_follow_the_prompt_and_move_the_draw() {
        let mut lane = lane(&[1, 2], 0);
        lane.advance(2, 2);
        lane.produce(9);
        assert_eq!(lane.committed(), [1, 2, 9]);
        assert_eq!(lane.draw_position(), 1);
        lane.finish();
        assert_eq!(lane.phase(), Phase::Finished);
        assert!(lane.has_pending_input(), "a finished lane still holds its last token as pending (T-108)");
    }

    #[test]
    fn host_lane_waits_for_its_commit() {
        let mut lane = lane(&[1], 0);
        lane.advance(1, 1);
        lane.wait_for_commit(RingRef { generation: 5, ..RingRef::zeroed() });
        assert_eq!(lane.phase(), Phase::RowPending);
        lane.produce(4);
        assert_eq!((lane.phase(), lane.row().is_none()), (Phase::Ready, true));
        assert_eq!(lane.draw_position(), 1, "a committed token counts like a drawn one (T-120)");
    }

    #[test]
    fn draw_position_wraps() {
        let mut lane = Lane::new(1, 1, &[1], 0, Recipe { rng_base: u64::MAX, ..Recipe::default() });
        lane.advance(1, 1);
        assert_eq!(lane.draw_position(), u64::MAX);
        lane.produce(2);
        assert_eq!(lane.draw_position(), 0, "TS-77");
    }
}
