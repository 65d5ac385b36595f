#![forbid(unsafe_code)]
//! One request on its way: waiting, or on a lane.
//!
//! ```text
//!            submit            admitted               end
//!   (host) ---------> waiting ----------> on a lane -------> finished
//!                        ^                    |
//!                        `--------------------'   preempted: what it said is a tail to replay
//! ```

use core::time::Duration;

use super::event::{Finish, Piece, Stats, TokenLogprob};
use super::output::Output;
use super::rank::Rank;
use super::request::{Grammar, Request, RequestId};
use crate::record::constant::{determinism, exactness, sampling, sampling_flag};
use crate::record::view::Plain;
use crate::record::{LaneAdmit, TokenRef};

/// Handles of the engine that go with a request while it lives.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Handles {
    /// 0 is none.
    pub(super) grammar: u32,
    /// The grammar is the host's.
    pub(super) grammar_borrowed: bool,
    /// 0 is none.
    pub(super) bias: u32,
    /// They were made.
    pub(super) ready: bool,
}

/// A request with its answer so far.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: RequestId,
    pub(super) request: Request,
    pub(super) rank: Rank,
    /// Prompt, then what it said.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_len: usize,
    /// Hash of the first page of the prompt, of the first two, and so on.
    pub(super) chain: Box<[u64]>,
    pub(super) output: Output,
    pub(super) stats: Stats,
    pub(super) submitted: Duration,
    pub(super) expires: Option<Duration>,
    pub(super) handles: Handles,
    pub(super) started: bool,
    /// How often its lane faulted for want of memory.
    pub(super) out_of_memory: u32,
}

impl Job {
    /// Tokens of the answer.
    pub(super) fn said(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// The record that admits it, from the start or with what it said as a tail to replay (T-97, T-119).
    pub(super) fn admit(&self, lane_tag: u64, prompt: TokenRef, lease: u64) -> LaneAdmit {
        let request = &self.request;
        let replay = u32::try_from(self.said()).unwrap_or(u32::MAX);
        let mut admit = LaneAdmit::zeroed();
        admit.lane_tag = lane_tag;
        admit.prompt = prompt;
        admit.seed_handle = lease;
        admit.sampling = if request.sampling.temperature > 0.0 { sampling::GPU_GUMBEL } else { sampling::GPU_GREEDY };
        admit.params = request.sampling.record(if request.ignore_eos { sampling_flag::IGNORE_EOS } else { 0 });
        admit.logit_bias_handle = self.handles.bias;
        admit.rng_counter_base = request.rng_counter_base.wrapping_add(u64::from(replay));
        admit.grammar_handle = self.handles.grammar;
        admit.strategy_slot = request.strategy_slot;
        admit.determinism_class = self.determinism();
        admit.minimum_exactness = exactness::APPROXIMATE;
        admit.want_logprobs = request.logprobs.map_or(0, |alternatives| alternatives + 1);
        admit.grammar_replay = if self.handles.grammar == 0 { 0 } else { replay };
        admit.decode_replay = replay;
        admit
    }

    /// `DETERMINISM_*`.
    pub(super) fn determinism(&self) -> u8 {
        if self.request.deterministic { determinism::DETERMINISTIC } else { determinism::BEST_EFFORT }
    }

    /// Whether the grammar is one that the driver makes.
    pub(super) fn makes_grammar(&self) -> bool {
        matches!(self.request.grammar, Grammar::Schema(_) | Grammar::Structural(_))
    }

    /// Takes what the engine said in a tick, and answers the piece to deliver and why it is over, if it is. What follows the end is
    /// dropped: a grant of several tokens, or drafts, may run past it.
    pub(super) fn take(
        &mut self,
        tokens: &[u32],
        logprobs: &mut Vec<TokenLogprob>,
        ends: Option<Finish>,
    ) -> (Piece, Option<Finish>) {
        let mut piece = Piece::default();
        let mut finish = None;
        for (at, &token) in tokens.iter().enumerate() {
            let last = at + 1 == tokens.len();
            self.tokens.push(token);
            finish = self.output.take(token, ends.clone().filter(|_| last), &mut piece);
            if finish.is_some() {
                break;
            }
        }
        // A full context ends a lane without a token (T-106).
        let finish = finish.or(ends);
        logprobs.truncate(piece.tokens.len());
        piece.logprobs = std::mem::take(logprobs);
        self.stats.answer_tokens = self.output.said();
        (piece, finish)
    }
}

/// A job on a lane.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) job: Job,
    pub(super) lane_tag: u64,
    /// Admitted by the plan that is being made, and not before.
    pub(super) fresh: bool,
    /// The prompt in the ring, while fresh.
    pub(super) staged: TokenRef,
    /// The lease that the admit uses; 0 is none.
    pub(super) lease: u64,
    /// Tokens that the lease covers.
    pub(super) seeded: u32,
    /// Prompt tokens that the engine has.
    pub(super) prefilled: u32,
    /// Where prefill ends and the tail to replay begins.
    pub(super) prefill_end: u32,
    /// Tokens of the tail that are still to be fed.
    pub(super) replay_left: u32,
    /// It has said something on this lane, so its whole prompt is in its state.
    pub(super) spoke: bool,
    /// Rank for prompts: that of the best job that waits for this one.
    pub(super) prefill_rank: Rank,
    /// Log-probabilities of the tick, until they are delivered.
    pub(super) logprobs: Vec<TokenLogprob>,
}

impl Live {
    /// A job that the next plan may admit, starting from a lease of `seeded` tokens.
    pub(super) fn new(job: Job, lane_tag: u64, staged: TokenRef, lease: u64, seeded: u32) -> Self {
        let prefill_rank = job.rank;
        let mut live = Self {
            job,
            lane_tag,
            fresh: true,
            staged,
            lease,
            seeded,
            prefilled: 0,
            prefill_end: 0,
            replay_left: 0,
            spoke: false,
            prefill_rank,
            logprobs: Vec::new(),
        };
        live.seed(lease, seeded);
        live
    }

    /// Starts from this lease instead.
    pub(super) fn seed(&mut self, lease: u64, seeded: u32) {
        let known = u32::try_from(self.job.tokens.len()).unwrap_or(u32::MAX);
        let said = u32::try_from(self.job.said()).unwrap_or(u32::MAX);
        self.lease = lease;
        self.seeded = seeded;
        self.prefilled = seeded;
        self.prefill_end = known.saturating_sub(said).max(seeded);
        self.replay_left = known - self.prefill_end;
    }

    /// Prompt tokens that are still to be run.
    pub(super) fn prefill_left(&self) -> u32 {
        self.prefill_end.saturating_sub(self.prefilled)
    }

    /// Tokens that its sequence holds for certain.
    pub(super) fn fed_at_least(&self) -> u32 {
        let pending = u32::from(self.prefill_left() == 0 && !self.spoke);
        self.prefilled.saturating_sub(pending)
    }
}
