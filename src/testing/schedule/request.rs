#![forbid(unsafe_code)]
//! What a schedule is to answer, and what came of it.

use super::Below;
use crate::engine::basic_admit;
use crate::record::constant::sampling;
use crate::record::view::Plain;
use crate::record::{LaneAdmit, TokenRef};

/// A prompt, how to answer it, and how long.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Everything else of the admit; its tag, prompt, bias handle and replay are set by the schedule.
    pub admit: LaneAdmit,
    /// Bias to add, by token id.
    pub bias: Vec<(i32, f32)>,
    /// The strategy that a random schedule may name when it admits the request; 0 is none. Alone, a request never drafts.
    pub strategy_slot: u32,
    /// Path of the adapter that the lane has; none is the model alone.
    pub adapter: Option<String>,
    /// Tokens wanted; an end token or a full context may end the answer before.
    pub tokens: usize,
}

/// What came of a request, to the bit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transcript {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// `FINISH_*`.
    pub finish: u32,
    /// Per token: the bits of its log-probability, and ids and bits of the alternatives.
    pub logprobs: Vec<(u32, Vec<(u32, u32)>)>,
    /// Per token of a HOST lane: the bits of the row that it was picked from.
    pub rows: Vec<Vec<u32>>,
}

/// What happened in schedules, counted, so that a test can say that it was there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tokens that were drafted and verified.
    pub proposed: u64,
    /// Those that were right.
    pub accepted: u64,
    /// Lanes that started from a cached prefix.
    pub seeded: u64,
    /// Those of them that started from an exported one.
    pub imported: u64,
    /// Lanes that started on an adopted fork.
    pub adopted: u64,
    /// Those of them whose fork had been restored from a snapshot.
    pub restored: u64,
}

impl core::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.proposed += other.proposed;
        self.accepted += other.accepted;
        self.seeded += other.seeded;
        self.imported += other.imported;
        self.adopted += other.adopted;
        self.restored += other.restored;
    }
}

/// The requests as `slot` may draft for them: prompts say everything twice, so that there is something to look up. HOST lanes
/// never draft.
pub fn drafted(mut requests: Vec<Request>, slot: u32) -> Vec<Request> {
    for request in &mut requests {
        let half = request.prompt.len().div_ceil(2);
        request.prompt.truncate(half);
        request.prompt.extend_from_within(..);
        request.strategy_slot = if request.admit.sampling == sampling::HOST { 0 } else { slot };
    }
    requests
}

/// Requests of every sampling mode over a vocabulary: greedy, drawn, penalised, biased, with log-probabilities, and HOST.
pub fn random_requests(
    count: usize,
    vocab_size: u32,
    prompt_max: usize,
    tokens_max: usize,
    below: &mut Below<'_>,
) -> Vec<Request> {
    let mut requests: Vec<Request> = Vec::with_capacity(count);
    for number in 0..count {
        let prompt_len = 1 + below(prompt_max);
        let mut prompt: Vec<u32> = (0..prompt_len).map(|_| below(vocab_size as usize) as u32).collect();
        // Half of them begin as an earlier one does, so that one may start from what the other left.
        if number > 0 && below(2) == 0 {
            let earlier = &requests[below(number)].prompt;
            let common = below(earlier.len() + 1).min(prompt_len);
            prompt[..common].copy_from_slice(&earlier[..common]);
        }
        let mut admit = basic_admit(0, TokenRef::zeroed());
        let mut bias = Vec::new();
        // Every mode once, then whichever comes.
        match if number < 6 { number } else { below(6) } {
            0 => admit.params.flags = 0,
            1 => draw_at(&mut admit, 0.7 + below(10) as f32 / 5.0, below),
            2 => {
                draw_at(&mut admit, 1.0, below);
                admit.params.repeat_penalty = 1.5;
                admit.params.presence_penalty = 0.25;
                admit.params.freq_penalty = 0.125;
            }
            3 => bias = (0..3).map(|_| (below(vocab_size as usize) as i32, below(12) as f32)).collect(),
            4 => {
                draw_at(&mut admit, 0.9, below);
                admit.want_logprobs = 1 + below(5) as u8;
            }
            _ => admit.sampling = sampling::HOST,
        }
        requests.push(Request { prompt, admit, bias, strategy_slot: 0, adapter: None, tokens: 1 + below(tokens_max) });
    }
    requests
}

fn draw_at(admit: &mut LaneAdmit, temperature: f32, below: &mut Below<'_>) {
    admit.sampling = sampling::GPU_GUMBEL;
    admit.params.temperature = temperature;
    admit.params.top_p = 0.9 + below(2) as f32 / 10.0;
    admit.params.top_k = below(40) as u32;
    admit.rng_counter_base = below(1 << 20) as u64;
}
