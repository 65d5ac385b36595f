//! What a request answers when it runs alone, by plain ticks: whole prompt at once, one token a tick.

use std::collections::BTreeMap;

use ictus::driver::{Driver, EngineSource, Event, EventKind, Finish, Grammar, Prompt, Request, RequestId, Stats};
use ictus::engine::{Engine, PlanBuilder};
use ictus::record::constant::{finish, sampling, sampling_flag};
use ictus::record::{LaneAdmit, SamplingParams, TokenRef};
use ictus::ring::{MemoryRings, Rings};

/// Tokens, and why they end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<u32>,
    /// Bits of the log-probabilities.
    pub(crate) logprobs: Vec<u32>,
    pub(crate) finish: Finish,
}

fn admit(request: &Request, prompt: TokenRef, bias: u32, grammar: u32) -> impl FnOnce(&mut LaneAdmit) {
    let Request { sampling: how, rng_counter_base, ignore_eos, logprobs, .. } = *request;
    move |admit| {
        admit.prompt = prompt;
        admit.sampling = if how.temperature > 0.0 { sampling::GPU_GUMBEL } else { sampling::GPU_GREEDY };
        admit.params = SamplingParams {
            temperature: how.temperature,
            top_p: how.top_p,
            min_p: how.min_p,
            top_k: how.top_k,
            freq_penalty: how.frequency_penalty,
            presence_penalty: how.presence_penalty,
            repeat_penalty: how.repeat_penalty,
            flags: if ignore_eos { sampling_flag::IGNORE_EOS } else { 0 },
        };
        admit.rng_counter_base = rng_counter_base;
        admit.logit_bias_handle = bias;
        admit.grammar_handle = grammar;
        admit.want_logprobs = logprobs.map_or(0, |count| count + 1);
    }
}

/// Runs a request of tokens alone on a fresh engine.
pub(crate) fn alone(engine: &mut dyn Engine, request: &Request) -> Answer {
    let Prompt::Tokens(prompt) = &request.prompt else { panic!("a prompt of tokens") };
    let mut rings = MemoryRings::new();
    let (ids, addends): (Vec<i32>, Vec<f32>) = request.logit_bias.iter().map(|&(id, by)| (id as i32, by)).unzip();
    let bias = if ids.is_empty() { 0 } else { engine.logit_bias_create(&ids, &addends).expect("a bias list") };
    let grammar = match &request.grammar {
        Grammar::Schema(schema) => engine.grammar_create(schema).expect("a grammar"),
        _ => 0,
    };
    if request.adapter != 0 {
        engine.adapter_bind(7, request.adapter).expect("it is loaded");
    }
    let staged = rings.stage_prompt(prompt);
    let mut answer = Answer { tokens: Vec::new(), logprobs: Vec::new(), finish: Finish::MaxTokens };
    for plan_seq in 1.. {
        let mut plan = PlanBuilder::new(plan_seq).prefill_budget(u32::MAX).max_decode_lanes(1).decode(7, 1);
        if plan_seq == 1 {
            plan = plan.admit_with(admit(request, staged, bias, grammar), 7, staged).prefill(7, 0, prompt.len() as u32);
        }
        let (plan, arena) = plan.build();
        let events = engine.tick(&plan, &arena, &mut rings).expect("the plan is good");
        answer.logprobs.extend(events.logprobs.iter().map(|record| record.logprob.to_bits()));
        let emit = events.emits.first().copied().expect("it decodes");
        let before = answer.tokens.len();
        rings.read_tokens(&emit.token_ref, &mut answer.tokens).expect("fresh");
        let stop = answer.tokens[before..].iter().find(|token| request.stop_tokens.contains(token));
        if let Some(&stop) = stop {
            answer.finish = Finish::StopToken(stop);
        } else if emit.finish == finish::EOS {
            answer.finish = Finish::EndToken;
        } else if emit.finish == finish::GRAMMAR {
            answer.finish = Finish::Grammar;
        } else if emit.finish == finish::LENGTH {
            answer.finish = Finish::ContextFull;
        } else if (answer.tokens.len() as u64) < request.max_tokens {
            continue;
        }
        break;
    }
    answer
}

/// What a driver said of each request, and whether it kept to the rules of events.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    pub(crate) answers: BTreeMap<RequestId, Said>,
}

/// What was said of one request.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) started: bool,
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<u32>,
    pub(crate) text: String,
    pub(crate) finish: Option<Finish>,
    pub(crate) stats: Stats,
}

impl Transcript {
    /// Takes an event, which must come at a place where it may.
    #[track_caller]
    pub(crate) fn take(&mut self, event: Event) {
        let said = self.answers.entry(event.request).or_default();
        assert_eq!(said.finish, None, "request {}: nothing comes after the end", event.request);
        match event.kind {
            EventKind::Started { .. } => {
                assert!(!said.started && said.tokens.is_empty(), "request {}: starts once, first", event.request);
                said.started = true;
            }
            EventKind::Tokens(piece) => {
                assert!(said.started, "request {}: speaks after it started", event.request);
                assert!(!piece.tokens.is_empty() || !piece.text.is_empty(), "a piece says something");
                said.tokens.extend(piece.tokens);
                said.logprobs.extend(piece.logprobs.iter().map(|logprob| logprob.logprob.to_bits()));
                said.text.push_str(&piece.text);
            }
            EventKind::Finished { finish, stats } => {
                assert_eq!(stats.answer_tokens, said.tokens.len() as u64);
                assert_eq!(stats.first_token.is_some(), !said.tokens.is_empty());
                said.finish = Some(finish);
                said.stats = stats;
            }
        }
    }

    pub(crate) fn finish(&self, id: RequestId) -> Option<&Finish> {
        self.answers.get(&id)?.finish.as_ref()
    }

    /// Everything until the driver has nothing to do.
    pub(crate) fn drain<E: EngineSource>(&mut self, driver: &mut Driver<E>) {
        while let Some(event) = driver.poll() {
            self.take(event);
        }
        assert!(driver.is_idle(), "nothing is left to do");
    }
}

/// The request said what it says alone, or, when the host ended it, a beginning of that.
#[track_caller]
pub(crate) fn check(said: &Said, alone: &Answer) {
    match said.finish.as_ref().expect("it is over") {
        Finish::Cancelled | Finish::DeadlineExpired => {
            assert!(alone.tokens.starts_with(&said.tokens), "{said:?} of {alone:?}");
            assert!(alone.logprobs.starts_with(&said.logprobs));
        }
        finish => {
            assert_eq!((&said.tokens, finish), (&alone.tokens, &alone.finish), "{:?}", said.stats);
            assert_eq!(said.logprobs, alone.logprobs);
        }
    }
}
