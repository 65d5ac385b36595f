#![forbid(unsafe_code)]
//! What becomes of a request: it starts, it says tokens, it finishes.
//!
//! # Invariants
//! A request has at most one [`EventKind::Started`], before all tokens, and exactly one [`EventKind::Finished`], after everything else.

use core::time::Duration;

use super::request::RequestId;
use crate::record::{LaneLogprob, Status};

/// Something that happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The request.
    pub request: RequestId,
    /// What happened.
    pub kind: EventKind,
}

/// What happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum EventKind {
    /// The engine has admitted it.
    Started {
        /// Tokens of its prompt that came from the prefix cache.
        cached_tokens: u64,
    },
    /// It said something.
    Tokens(Piece),
    /// It is over.
    Finished {
        /// Why.
        finish: Finish,
        /// What it took.
        stats: Stats,
    },
}

/// What a request said in a tick.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// The tokens, the one that ends the answer among them; none when only text that was held back comes out.
    pub tokens: Vec<u32>,
    /// The text that became certain, in whole characters; without a tokenizer always empty.
    pub text: String,
    /// One per token when they were asked for.
    pub logprobs: Vec<TokenLogprob>,
}

/// How probable a token was.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Alternatives, best first: id and logarithm.
    pub top: Vec<(u32, f32)>,
}

impl From<&LaneLogprob> for TokenLogprob {
    fn from(record: &LaneLogprob) -> Self {
        let top = record.top_ids.iter().copied().zip(record.top_logprobs).take(record.n_top as usize);
        Self { logprob: record.logprob, top: top.collect() }
    }
}

/// Why a request is over.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Finish {
    /// The model said an end token.
    EndToken,
    /// It said one of the stop tokens.
    StopToken(u32),
    /// Its text came to one of the stop strings, named by its place in the request.
    StopString(usize),
    /// The grammar is complete.
    Grammar,
    /// It said as many tokens as it may.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// The host wanted it to end.
    Cancelled,
    /// Its deadline passed.
    DeadlineExpired,
    /// It could not go on.
    Failed(Failure),
}

/// Why a request could not go on. What it said before was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The engine refuses it, alone in a plan.
    #[error("the engine refuses the request: {0}")]
    Rejected(Status),
    /// Its lane faulted.
    #[error("its lane faulted with code {code}")]
    Fault {
        /// `FAULT_*`.
        code: u32,
    },
    /// It does not fit into the memory of the engine, although nothing else runs.
    #[error("it does not fit into the pool, although nothing else runs")]
    NoRoom,
    /// The engine does not take its grammar.
    #[error("the grammar is refused: {0}")]
    Grammar(Status),
    /// Another unfinished request uses its grammar handle.
    #[error("the grammar is in use by another request")]
    GrammarInUse,
    /// The engine does not take its bias list.
    #[error("the bias list is refused: {0}")]
    Bias(Status),
    /// The engine does not take its adapter.
    #[error("the adapter is refused: {0}")]
    Adapter(Status),
    /// The engine is broken.
    #[error("the engine is broken")]
    EngineFatal,
    /// The driver ended before the request did.
    #[error("the driver has ended")]
    Closed,
}

/// What a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// From submission to its first admission; none when it never ran.
    pub queued: Option<Duration>,
    /// From submission to its first token.
    pub first_token: Option<Duration>,
    /// From submission to its end.
    pub total: Duration,
    /// Tokens of its prompt.
    pub prompt_tokens: u64,
    /// Tokens of its answer.
    pub answer_tokens: u64,
    /// Prompt tokens that were computed, those after a preemption included.
    pub prefill_tokens: u64,
    /// Tokens that came from the prefix cache.
    pub cached_tokens: u64,
    /// Tokens of its own answer that were fed again after a preemption.
    pub replayed_tokens: u64,
    /// Draft tokens proposed.
    pub drafted_tokens: u64,
    /// Draft tokens kept.
    pub accepted_tokens: u64,
    /// How often it gave its place up.
    pub preemptions: u32,
}
