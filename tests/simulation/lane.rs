//! The model of one lane: a list of tokens, and how it goes on.

use ictus::record::constant::{finish, sampling, sampling_flag};
use ictus::record::{LaneAdmit, SamplingParams};
use ictus::runtime::FakeRuntime;
use ictus::sample::{Penalty, SampleRequest, Scratch, pick};

/// One running request as its host sees it.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(crate) prompt: Vec<u32>,
    pub(crate) committed: Vec<u32>,
    pub(crate) mode: u32,
    pub(crate) params: SamplingParams,
    pub(crate) base: u64,
    pub(crate) drawn: u64,
    pub(crate) replay: usize,
    pub(crate) logprobs: u8,
    pub(crate) bias: Vec<(u32, f32)>,
    /// The newest token has not been fed.
    pub(crate) pending: bool,
    /// Generation of the row that waits for its commit.
    pub(crate) row: Option<u64>,
    pub(crate) finished: bool,
    /// The fault that its next decode record will meet.
    pub(crate) doomed: Option<u32>,
}

/// What one decode record makes of a lane.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) tokens: Vec<u32>,
    pub(crate) finish: u32,
    /// A row for the host.
    pub(crate) row: bool,
}

impl Lane {
    pub(crate) fn is_host(&self) -> bool {
        self.mode == sampling::HOST
    }

    /// Prompt tokens that are prefilled; the rest is replayed.
    pub(crate) fn prefill_end(&self) -> usize {
        self.prompt.len() - self.replay
    }

    /// Tokens of its sequence (E-1).
    pub(crate) fn held(&self) -> u64 {
        (self.committed.len() - usize::from(self.pending)) as u64
    }

    /// Writes this lane into an admit.
    pub(crate) fn admit(&self, admit: &mut LaneAdmit, bias_handle: u32) {
        admit.sampling = self.mode;
        admit.params = self.params;
        admit.rng_counter_base = self.base;
        admit.decode_replay = self.replay as u32;
        admit.want_logprobs = self.logprobs;
        admit.logit_bias_handle = bias_handle;
    }

    /// Takes `count` prompt tokens; `decodes` says that this tick grants it tokens (T-89).
    pub(crate) fn prefill(&mut self, count: usize, decodes: bool) {
        let from = self.committed.len();
        self.committed.extend_from_slice(&self.prompt[from..from + count]);
        let completes = count > 0 && self.replay == 0 && self.committed.len() == self.prompt.len();
        self.pending = completes && !decodes;
    }

    /// Decodes with a grant; with `yields` the tick ends at the first boundary.
    pub(crate) fn decode(&mut self, grant: usize, yields: bool, fake: &FakeRuntime) -> Outcome {
        let mut outcome = Outcome::default();
        let mut left = grant;
        let mut passes = 0;
        while self.committed.len() < self.prompt.len() && left > 0 {
            if passes > 0 && yields {
                return outcome;
            }
            self.committed.push(self.prompt[self.committed.len()]);
            left -= 1;
            passes += 1;
            // The last unit spent on the last tail token holds it back (T-99).
            self.pending = left == 0 && self.committed.len() == self.prompt.len();
        }
        while left > 0 {
            let context = fake_context(fake);
            if self.committed.len() >= context {
                // A pending input stays where it is: nothing will be asked of its row.
                self.finished = true;
                outcome.finish = finish::LENGTH;
                break;
            }
            self.pending = false;
            if self.is_host() {
                outcome.row = true;
                break;
            }
            let token = self.next_token(fake);
            self.committed.push(token);
            outcome.tokens.push(token);
            self.drawn += 1;
            self.pending = true;
            left -= 1;
            outcome.finish = self.finish_after(token, context, fake);
            self.finished = outcome.finish != finish::NONE;
            if self.finished || yields {
                break;
            }
        }
        outcome
    }

    fn finish_after(&self, token: u32, context: usize, fake: &FakeRuntime) -> u32 {
        use ictus::runtime::Runtime;
        let ignores = self.params.flags & sampling_flag::IGNORE_EOS != 0;
        match (fake.is_eos(token) && !ignores, self.committed.len() >= context) {
            (true, _) => finish::EOS,
            (false, true) => finish::LENGTH,
            (false, false) => finish::NONE,
        }
    }

    fn next_token(&self, fake: &FakeRuntime) -> u32 {
        let request = SampleRequest {
            temperature: if self.mode == sampling::GPU_GUMBEL { self.params.temperature } else { 0.0 },
            top_k: self.params.top_k,
            top_p: self.params.top_p,
            min_p: self.params.min_p,
            position: self.base.wrapping_add(self.drawn),
            bias: &self.bias,
            penalty: Penalty::of(&self.params, &self.committed, &[]),
            mask: None,
            logprobs: None,
        };
        pick(&mut fake.row_for(&self.committed), &request, &mut Scratch::new()).expect("the row is finite").token
    }
}

pub(crate) fn fake_context(fake: &FakeRuntime) -> usize {
    use ictus::runtime::Runtime;
    fake.describe().max_seq_len as usize
}
