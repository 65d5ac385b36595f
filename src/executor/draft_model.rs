#![forbid(unsafe_code)]
//! A model that drafts: a second runtime, which guesses greedily what the lanes of the first one will say.
//!
//! ```text
//!   lane       h h h h h h p            p pending: the target has not said what follows
//!   drafter    h h h h x x              x guessed last time, and not what the lane came to say
//!              h h h h | h h p          cut to what both share, then fed what is missing ...
//!                             d1 d2 d3  ... and each guess in turn, for the next one
//! ```
//! Each lane has a sequence of its own here, made when it is first asked about and freed with the lane. All lanes of a round are
//! guessed for in the same steps.
//!
//! # Invariants
//! - A sequence holds the tokens listed for it.
//! - Whatever fails here, fails to a round without drafts: nothing of the lane depends on it.
//!
//! # Limits
//! Its memory is that of its runtime, planned when that was made. When its pool is full, everything it holds is dropped and built
//! again as lanes ask.

use std::collections::BTreeMap;

use crate::runtime::{Answer, Answers, Descriptor, Feed, Input, Runtime, RuntimeError, SeqHandle, Want};
use crate::sample::{SampleRequest, argmax};
use crate::speculate::{Ask, Drafter};

/// Tokens of a lane's text that are fed at once where the runtime has no limit of its own.
const CATCH_UP_TOKENS: usize = 512;

/// What is held for one lane.
#[derive(Debug)]
struct Held {
    sequence: SeqHandle,
    /// The tokens of the sequence.
    tokens: Vec<u32>,
    /// How many of them the lane has committed, at least.
    agreed: usize,
}

impl Held {
    /// Tokens that the sequence shares with the history. At least the last one of the history is to be fed, for what follows it.
    fn shared(&self, history: &[u32]) -> usize {
        let rest = self.tokens.iter().zip(history).skip(self.agreed);
        let shared = self.agreed + rest.take_while(|(held, said)| held == said).count();
        shared.min(history.len().saturating_sub(1))
    }
}

/// Drafts with a runtime of its own.
pub struct DraftModel<R> {
    runtime: R,
    descriptor: Descriptor,
    reserved_bytes: u64,
    lanes: BTreeMap<u64, Held>,
    answers: Answers,
    feeds: Vec<Feed<'static>>,
    /// Asks that go on in this step.
    going: Vec<usize>,
    broken: bool,
}

impl<R> core::fmt::Debug for DraftModel<R> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let id = &self.descriptor.runtime_id;
        f.debug_struct("DraftModel").field("runtime", id).field("lanes", &self.lanes).finish_non_exhaustive()
    }
}

impl<R: Runtime> DraftModel<R> {
    /// Drafts with `runtime`, which takes `reserved_bytes` in all.
    pub fn new(runtime: R, reserved_bytes: u64) -> Self {
        let descriptor = runtime.describe().clone();
        Self {
            runtime,
            descriptor,
            reserved_bytes,
            lanes: BTreeMap::new(),
            answers: Answers::new(),
            feeds: Vec::new(),
            going: Vec::new(),
            broken: false,
        }
    }

    /// The runtime.
    pub fn runtime(&self) -> &R {
        &self.runtime
    }

    /// Answers as many asks as one step of the runtime takes.
    fn propose_batch(&mut self, asks: &mut [Ask<'_>]) -> Result<(), RuntimeError> {
        self.going.clear();
        for (number, ask) in asks.iter_mut().enumerate() {
            let room = self.descriptor.max_seq_len.saturating_sub(ask.history.len() as u64) + 1;
            ask.limit = ask.limit.min(usize::try_from(room).unwrap_or(usize::MAX));
            // The last guess is not fed.
            let fits = ask.history.len() as u64 + ask.limit.max(1) as u64 <= self.descriptor.max_seq_len + 1;
            if ask.limit > 0 && fits && !ask.history.is_empty() {
                self.catch_up(ask)?;
                self.going.push(number);
            }
        }
        while !self.going.is_empty() {
            self.guess(asks)?;
            let runtime = &self.runtime;
            self.going.retain(|&number| {
                asks.get(number).is_some_and(|ask| {
                    let last = ask.drafted.checked_sub(1).and_then(|last| ask.draft.get(last));
                    ask.drafted < ask.limit && last.is_some_and(|&last| !runtime.is_eos(last))
                })
            });
        }
        Ok(())
    }

    /// Brings a lane's sequence near the end of its history: what is left fits a step.
    fn catch_up(&mut self, ask: &Ask<'_>) -> Result<(), RuntimeError> {
        let held = match self.lanes.entry(ask.lane) {
            std::collections::btree_map::Entry::Occupied(held) => held.into_mut(),
            std::collections::btree_map::Entry::Vacant(place) => {
                let sequence = self.runtime.seq_create()?;
                place.insert(Held { sequence, tokens: Vec::with_capacity(ask.history.len() * 2), agreed: 0 })
            }
        };
        let shared = held.shared(ask.history);
        if shared < held.tokens.len() {
            self.runtime.seq_truncate(held.sequence, shared as u64)?;
            held.tokens.truncate(shared);
        }
        held.agreed = shared;
        let step_tokens = match self.descriptor.prefill_step_tokens as usize {
            0 => CATCH_UP_TOKENS,
            tokens => tokens,
        };
        while ask.history.len() - held.tokens.len() > step_tokens {
            let next = ask.history.get(held.tokens.len()..held.tokens.len() + step_tokens).unwrap_or_default();
            let feed = Feed { sequence: held.sequence, input: Input::Tokens(next), want: Want::Nothing };
            self.runtime.step(&[feed], &mut self.answers)?;
            held.tokens.extend_from_slice(next);
            held.agreed = held.tokens.len();
        }
        Ok(())
    }

    /// One step for all asks that go on: each is fed what its sequence lacks, and gets one guess more.
    fn guess(&mut self, asks: &mut [Ask<'_>]) -> Result<(), RuntimeError> {
        let Self { runtime, descriptor, lanes, answers, feeds: spare, going, .. } = self;
        let picks = descriptor.sampling.greedy;
        let mut feeds: Vec<Feed<'_>> = std::mem::take(spare);
        for &number in going.iter() {
            let ask = asks.get(number).ok_or(RuntimeError::Fatal)?;
            let held = lanes.get(&ask.lane).ok_or(RuntimeError::UnknownSeq)?;
            let tokens = match ask.drafted.checked_sub(1) {
                None => ask.history.get(held.tokens.len()..),
                Some(last) => ask.draft.get(last..=last),
            };
            let want = if picks { Want::Token(SampleRequest::default()) } else { Want::LastRow };
            feeds.push(Feed { sequence: held.sequence, input: Input::Tokens(tokens.unwrap_or_default()), want });
        }
        let outcome = runtime.step(&feeds, answers);
        for (feed, &number) in feeds.iter().zip(going.iter()).filter(|_| outcome.is_ok()) {
            let held = asks.get(number).and_then(|ask| lanes.get_mut(&ask.lane));
            if let (Some(held), Input::Tokens(tokens)) = (held, feed.input) {
                held.tokens.extend_from_slice(tokens);
            }
        }
        *spare = recycle(feeds);
        outcome?;
        for (&number, answer) in going.iter().zip(answers.as_slice()) {
            let token = match answer {
                Answer::Picked(pick) => Some(pick.token),
                &Answer::Rows { first, .. } => answers.row(first).map(argmax),
                _ => None,
            };
            let ask = asks.get_mut(number).ok_or(RuntimeError::Fatal)?;
            match (token, ask.draft.get_mut(ask.drafted)) {
                (Some(token), Some(place)) => {
                    *place = token;
                    ask.drafted += 1;
                }
                _ => ask.limit = ask.drafted,
            }
        }
        Ok(())
    }

    /// Gives everything back that is held.
    fn drop_all(&mut self) {
        for (_, held) in std::mem::take(&mut self.lanes) {
            self.runtime.seq_free(held.sequence);
        }
    }
}

impl<R: Runtime + Send> Drafter for DraftModel<R> {
    fn propose(&mut self, asks: &mut [Ask<'_>]) {
        if self.broken {
            return;
        }
        for batch in asks.chunks_mut(self.descriptor.max_batch.max(1) as usize) {
            if let Err(error) = self.propose_batch(batch) {
                // Guesses of the failed batch may be half done; whatever is written is as good a draft as any.
                self.broken = error == RuntimeError::Fatal;
                self.drop_all();
            }
        }
    }

    fn forget(&mut self, lane: u64) {
        if let Some(held) = self.lanes.remove(&lane) {
            self.runtime.seq_free(held.sequence);
        }
    }

    fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    fn lanes(&self) -> usize {
        self.lanes.len()
    }
}

/// The memory of a list whose borrows have ended, for the next step.
fn recycle(mut feeds: Vec<Feed<'_>>) -> Vec<Feed<'static>> {
    feeds.clear();
    feeds.into_iter().map_while(|_| None).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{CopyModel, FakeRuntime};

    fn drafter(change: impl FnOnce(&mut crate::runtime::FakeOptions)) -> DraftModel<FakeRuntime> {
        DraftModel::new(
            FakeRuntime::with(|options| {
                options.descriptor.vocab_size = 64;
                options.end_ids = vec![63];
                options.copy_model = Some(CopyModel::default());
                change(options);
            }),
            0,
        )
    }

    fn asked(drafter: &mut DraftModel<FakeRuntime>, lane: u64, history: &[u32], limit: usize) -> Vec<u32> {
        let mut asks = [Ask::new(lane, history, limit)];
        drafter.propose(&mut asks);
        asks[0].draft[..asks[0].drafted].to_vec()
    }

    fn greedy(fake: &FakeRuntime, history: &[u32], count: usize) -> Vec<u32> {
        let mut list = history.to_vec();
        for _ in 0..count {
            list.push(fake.token_for(&list));
        }
        list.split_off(history.len())
    }

    /// Whatever the lane came to say, the guesses are those that the drafting model makes of the whole history.
    #[test]
    fn guesses_are_greedy_continuations_of_the_whole_history() {
        for picks in [true, false] {
            let mut drafter = drafter(|options| options.descriptor.sampling.greedy = picks);
            let mut history: Vec<u32> = (0..20).map(|i| i * 7 % 13).collect();
            for round in 0..40u32 {
                let limit = 1 + round as usize % 7;
                let expected = greedy(drafter.runtime(), &history, limit);
                assert_eq!(asked(&mut drafter, 5, &history, limit), expected, "round {round}");
                // Some guesses were right, then the lane says something else; sometimes all were, or none.
                history.extend(&expected[..round as usize % (limit + 1)]);
                history.push(round % 11);
            }
        }
    }

    /// A long history is fed in steps, several lanes share a step, and what was fed is not fed again.
    #[test]
    fn text_is_fed_once_and_in_steps() {
        let mut drafter = drafter(|options| options.descriptor.prefill_step_tokens = 8);
        let history: Vec<u32> = (0..30).map(|i| i % 9).collect();
        let mut asks = [Ask::new(1, &history, 3), Ask::new(2, &history[..5], 2)];
        drafter.propose(&mut asks);
        assert_eq!([asks[0].drafted, asks[1].drafted], [3, 2]);
        let feeds = |drafter: &DraftModel<FakeRuntime>| {
            drafter.runtime().feeds().iter().map(|feed| (feed.step, feed.len)).collect::<Vec<_>>()
        };
        assert_eq!(feeds(&drafter), [(0, 8), (1, 8), (2, 8), (3, 6), (3, 5), (4, 1), (4, 1), (5, 1)]);
        let mut longer = history.clone();
        longer.extend(&asks[0].draft[..3]);
        longer.push(1);
        asked(&mut drafter, 1, &longer, 1);
        assert_eq!(feeds(&drafter)[8..], [(6, 2)], "the guess that was not fed, and the token after it");
    }

    /// A full pool drops what is held, and drafting goes on.
    #[test]
    fn full_pool_costs_a_draft_and_nothing_else() {
        let mut drafter = drafter(|options| options.descriptor.cells_total = 20);
        let history: Vec<u32> = (0..10).map(|i| i % 4).collect();
        assert_eq!(asked(&mut drafter, 1, &history, 4).len(), 4);
        assert_eq!(asked(&mut drafter, 2, &history, 4).len(), 0, "13 cells are held, 10 more are wanted");
        assert_eq!(drafter.lanes(), 0);
        assert_eq!(asked(&mut drafter, 2, &history, 4).len(), 4);
        drafter.forget(2);
        drafter.forget(2);
        assert_eq!((drafter.lanes(), drafter.runtime().live_sequences()), (0, 0));
    }

    #[test]
    fn context_and_end_token_bound_a_draft() {
        let mut short = drafter(|options| options.descriptor.max_seq_len = 12);
        let history: Vec<u32> = (0..10).map(|i| i % 4).collect();
        assert_eq!(asked(&mut short, 1, &history, 7).len(), 3, "ten and two guesses are fed, the third is not");
        assert_eq!(asked(&mut short, 1, &[history.clone(), vec![1, 2, 3]].concat(), 7).len(), 0);
        let mut ends = drafter(|_| {});
        assert_eq!(asked(&mut ends, 1, &[5, 6, 63, 8, 5], 4), [6, 63]);
    }

    #[test]
    fn broken_model_drafts_no_more() {
        let mut drafter = drafter(|_| {});
        drafter.runtime.fail_next_step(RuntimeError::Fatal);
        for _ in 0..2 {
            assert_eq!(asked(&mut drafter, 1, &[1, 2, 3], 4).len(), 0);
        }
        let mut faulty = DraftModel::new(FakeRuntime::default(), 0);
        faulty.runtime.fail_next_step(RuntimeError::Fault(3));
        assert_eq!(asked(&mut faulty, 1, &[1, 2, 3], 2).len(), 0);
        assert_eq!(asked(&mut faulty, 1, &[1, 2, 3], 2).len(), 2, "a fault costs one draft");
    }
}
