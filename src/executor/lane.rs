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

use super::constraint::Constraint;
use super::draft::Drafting;
use super::recipe::Recipe;
use std::sync::{Arc, Weak};

use super::sequences::Content;
use crate::engine::LaneCost;
use crate::grammar::Refused;
use crate::record::RingRef;
use crate::runtime::SeqHandle;
use crate::sample::SampleRequest;

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
    content: Content,
    history: Vec<u32>,
    prompt_len: usize,
    prefill_end: usize,
    committed: usize,
    fed: usize,
    recipe: Recipe,
    /// How it speculates, if it does.
    drafting: Option<Box<Drafting>>,
    constraint: Option<Box<Constraint>>,
    rng_counter: u64,
    row: Option<RingRef>,
    finished: bool,
    injected_fault: Option<u32>,
    /// Others held cells of its sequence when it was last fed, seeded or forked.
    shares: bool,
    /// The list that the last fork was given, while some fork keeps it.
    shared_tokens: Option<Weak<[u32]>>,
    cost: LaneCost,
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
            content: Content::default(),
            history,
            prompt_len: prompt.len(),
            prefill_end: prompt.len().saturating_sub(replay),
            committed: 0,
            fed: 0,
            recipe,
            drafting: None,
            constraint: None,
            rng_counter: 0,
            row: None,
            finished: false,
            injected_fault: None,
            shares: false,
            shared_tokens: None,
            cost: LaneCost::default(),
        }
    }

    /// The same lane on a sequence that holds the first `fed` prompt tokens already and counts for the first `seeded` (T-78, T-81).
    ///
    /// `fed` is `seeded`, or one less when the seed covers the whole prompt.
    pub(super) fn seeded(mut self, seeded: usize, fed: usize, content: Content) -> Self {
        self.content = content;
        self.prefill_end = self.prefill_end.max(seeded);
        self.fed = fed;
        self.committed = seeded;
        self.shares = true;
        self.cost.seeded_tokens = fed as u64;
        self
    }

    /// The same lane, which speculates.
    pub(super) fn drafting_with(mut self, drafting: impl FnOnce(usize) -> Drafting) -> Self {
        self.drafting = Some(Box::new(drafting(self.history.capacity())));
        self
    }

    /// The same lane with a grammar that it has borrowed.
    pub(super) fn constrained(mut self, constraint: Option<Box<Constraint>>) -> Self {
        self.constraint = constraint;
        self
    }

    /// The host's name for it.
    pub(super) fn tag(&self) -> u64 {
        self.tag
    }

    /// Its sequence in the runtime.
    pub(super) fn sequence(&self) -> SeqHandle {
        self.sequence
    }

    /// What its sequence carries beside tokens.
    pub(super) fn content(&self) -> Content {
        self.content
    }

    /// What its sequence carries, to be changed.
    pub(super) fn content_mut(&mut self) -> &mut Content {
        &mut self.content
    }

    /// Notes that others hold cells of its sequence.
    pub(super) fn note_sharing(&mut self) {
        self.shares = true;
    }

    /// Whether this feed is the first since others held its cells: it may have left them alone with a copied one.
    pub(super) fn take_sharing(&mut self) -> bool {
        std::mem::take(&mut self.shares)
    }

    /// How its tokens are picked.
    pub(super) fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// How it speculates, if it does.
    pub(super) fn drafting(&self) -> Option<&Drafting> {
        self.drafting.as_deref()
    }

    /// How it speculates, to be changed, and its committed tokens.
    pub(super) fn drafting_mut(&mut self) -> Option<(&mut Drafting, &[u32])> {
        let committed = self.history.get(..self.committed).unwrap_or_default();
        self.drafting.as_deref_mut().map(|drafting| (drafting, committed))
    }

    /// The grammar that it has borrowed.
    pub(super) fn grammar(&self) -> Option<u32> {
        self.constraint.as_ref().map(|constraint| constraint.handle)
    }

    /// Makes the mask of the next token known, which [`Lane::request`] hands out. Free while the lane has not moved (R-66).
    pub(super) fn prepare_mask(&mut self) {
        if let Some(constraint) = &mut self.constraint {
            constraint.cursor.prepare();
        }
    }

    /// How the token after the first `known` known ones is to be picked; ids in `exempt` are not penalised (T-114).
    pub(super) fn request<'a>(&'a self, known: usize, exempt: &'a [u32]) -> SampleRequest<'a> {
        let request = self.recipe.request(self.known(0, known), self.draw_position(), exempt);
        SampleRequest { mask: self.constraint.as_ref().map(|constraint| constraint.cursor.mask()), ..request }
    }

    /// How the token behind the next one is to be picked, of a lane whose requests look at no token ([`Recipe::is_blind`]).
    pub(super) fn request_ahead<'a>(&'a self, exempt: &'a [u32]) -> SampleRequest<'a> {
        self.recipe.request(&[], self.draw_position().wrapping_add(1), exempt)
    }

    /// Moves its grammar over a produced token (T-107); answers whether the text is complete, which it never is without one.
    ///
    /// # Errors
    /// The grammar refuses the token (T-134).
    pub(super) fn accept(&mut self, token: u32) -> Result<bool, Refused> {
        match &mut self.constraint {
            Some(constraint) => constraint.cursor.accept(token),
            None => Ok(false),
        }
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

    /// The first `held` committed tokens, as a list that forks share as long as the lane does not move.
    pub(super) fn share_tokens(&mut self, held: usize) -> Arc<[u32]> {
        let tokens = self.history.get(..self.committed.min(held)).unwrap_or_default();
        let last = self.shared_tokens.as_ref().and_then(Weak::upgrade);
        // Known tokens are never rewritten, so an equal length is an equal list.
        last.filter(|last| last.len() == tokens.len()).unwrap_or_else(|| {
            let list: Arc<[u32]> = tokens.into();
            self.shared_tokens = Some(Arc::downgrade(&list));
            list
        })
    }

    /// The lane's end: its first `len` known tokens.
    pub(super) fn into_tokens(mut self, len: usize) -> Vec<u32> {
        self.history.truncate(len);
        self.history
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
    /// Marks never move back, and the caller keeps `fed <= committed <= fed + 1`. A sequence that was fed is another one (S-3).
    pub(super) fn advance(&mut self, fed: usize, committed: usize) {
        debug_assert!(self.fed <= fed && self.committed <= committed && fed <= committed && committed <= fed + 1);
        self.content.generation += u64::from(fed > self.fed);
        self.count_fed(fed);
        self.fed = fed;
        self.committed = committed;
    }

    /// Counts the tokens up to `fed` by where in the lane they stand.
    fn count_fed(&mut self, fed: usize) {
        let within = |start: usize, end: usize| (fed.clamp(start, end) - self.fed.clamp(start, end)) as u64;
        self.cost.prefill_tokens += within(0, self.prefill_end);
        self.cost.replayed_tokens += within(self.prefill_end, self.prompt_len);
        self.cost.decoded_tokens += within(self.prompt_len, usize::MAX);
    }

    /// What it has cost, pages left out: only the runtime knows them.
    pub(super) fn cost(&self) -> LaneCost {
        self.cost
    }

    /// What it has cost, to be added to.
    pub(super) fn cost_mut(&mut self) -> &mut LaneCost {
        &mut self.cost
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

    /// T-78, T-81: a seed moves both marks and, past it, the end of prefill.
    #[test]
    fn seeded_lane_starts_behind_its_seed() {
        let content = Content { taint: 1, ..Content::default() };
        let part = lane(&[1, 2, 3, 4], 0).seeded(2, 2, content);
        assert_eq!((part.phase(), part.prefilled(), part.content().taint), (Phase::Prefilling, 2, 1));
        let whole = lane(&[1, 2, 3, 4], 0).seeded(4, 3, content);
        assert_eq!((whole.phase(), whole.has_pending_input()), (Phase::Ready, true));
        let tail = lane(&[1, 2, 3, 4], 3).seeded(2, 2, content);
        assert_eq!((tail.phase(), tail.prefill_end()), (Phase::Replaying, 2), "a seed may reach into the tail");
    }

    /// S-3.
    #[test]
    fn generation_advances_with_every_step_that_feeds() {
        let mut lane = lane(&[1, 2, 3], 0);
        assert_eq!(lane.content().generation, 1);
        lane.advance(2, 3);
        assert_eq!(lane.content().generation, 2);
        lane.advance(2, 3);
        assert_eq!(lane.content().generation, 2, "nothing was fed");
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
