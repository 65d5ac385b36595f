#![forbid(unsafe_code)]
//! What an application asks for: a prompt, how to answer it, and when to stop.
//!
//! Everything that can be wrong about a request without asking the engine is found when it is submitted ([`SubmitError`]); nothing is
//! kept of a refused one.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use super::options::DriverOptions;
use crate::record::SamplingParams;
use crate::record::constant::misc::MAX_TOP_LOGPROBS;
use crate::tokenizer::{EncodeError, EncodeOptions, Tokenizer};

/// Names a request of one driver; ascends from 1 and is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(super) u64);

impl RequestId {
    /// As a number, for logs and for C.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The request with this number, if there ever was one.
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What the answer continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Token ids.
    Tokens(Vec<u32>),
    /// Text, which the driver's tokenizer encodes.
    Text {
        /// The text.
        text: String,
        /// How it is encoded.
        options: EncodeOptions,
    },
}

/// What shapes the answer. A handle serves one unfinished request at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Grammar {
    /// Nothing.
    #[default]
    None,
    /// A grammar of the engine, which stays the host's.
    Handle(u32),
    /// A JSON schema; the driver compiles it when the request starts, and frees it.
    Schema(String),
    /// A structural tag document; as a schema.
    Structural(String),
}

/// How tokens are picked. The default is greedy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// At most 0 is greedy.
    pub temperature: f32,
    /// Number of candidates kept; 0 is off.
    pub top_k: u32,
    /// Nucleus mass; 1 is off.
    pub top_p: f32,
    /// Smallest kept probability relative to the best; 0 is off.
    pub min_p: f32,
    /// Divides positive and multiplies other logits of seen tokens; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted once for a token that was seen; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted for each time that a token was seen; 0 is off.
    pub frequency_penalty: f32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
        }
    }
}

impl Sampling {
    fn check(&self) -> Result<(), SubmitError> {
        let ranges = [
            ("temperature", self.temperature, 0.0, f32::MAX),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("repeat_penalty", self.repeat_penalty, 0.0, f32::MAX),
            ("presence_penalty", self.presence_penalty, f32::MIN, f32::MAX),
            ("frequency_penalty", self.frequency_penalty, f32::MIN, f32::MAX),
        ];
        // A NaN is within no range.
        match ranges.into_iter().find(|&(_, value, low, high)| !(low..=high).contains(&value)) {
            Some((name, value, _, _)) => Err(SubmitError::Sampling { name, value }),
            None => Ok(()),
        }
    }

    pub(super) fn record(&self, flags: u32) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature,
            top_p: self.top_p,
            min_p: self.min_p,
            top_k: self.top_k,
            freq_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            repeat_penalty: self.repeat_penalty,
            flags,
        }
    }
}

/// A prompt, how to answer it, and when to stop. Make one with [`Request::text`] or [`Request::tokens`] and change what differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What the answer continues.
    pub prompt: Prompt,
    /// How tokens are picked.
    pub sampling: Sampling,
    /// Position of the first draw; nearby positions give overlapping draws, so spread them with [`draw_base`].
    pub rng_counter_base: u64,
    /// Most tokens of the answer; at least 1.
    pub max_tokens: u64,
    /// Goes on after an end token.
    pub ignore_eos: bool,
    /// Higher is served sooner; each level is worth [`DriverOptions::ageing`] of waiting.
    pub priority: i16,
    /// Ends the request when it has not finished this long after it was submitted.
    pub deadline: Option<Duration>,
    /// Texts that end the answer; they need a tokenizer. Neither they nor what follows is delivered as text.
    pub stop_strings: Vec<String>,
    /// Tokens that end the answer. The token is delivered, its text is not.
    pub stop_tokens: Vec<u32>,
    /// What shapes the answer.
    pub grammar: Grammar,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Log-probability of each token, with this many alternatives; at most 20.
    pub logprobs: Option<u8>,
    /// Speculation strategy by its slot; 0 is none.
    pub strategy_slot: u32,
    /// Adapter of the engine; 0 is none.
    pub adapter: u64,
    /// Starts from cached state only when it was never rounded.
    pub deterministic: bool,
    /// Keeps the state in the prefix cache at the end.
    pub publish: bool,
    /// Writes control tokens out as text.
    pub show_special: bool,
}

impl Request {
    /// Answers a prompt of tokens greedily with at most 256 tokens.
    pub fn tokens(prompt: impl Into<Vec<u32>>) -> Self {
        Self::of(Prompt::Tokens(prompt.into()))
    }

    /// Answers a text greedily with at most 256 tokens. What the model wants around a text is put there; control tokens written in
    /// it are plain text.
    pub fn text(prompt: impl Into<String>) -> Self {
        let options = EncodeOptions { add_special: true, parse_special: false };
        Self::of(Prompt::Text { text: prompt.into(), options })
    }

    fn of(prompt: Prompt) -> Self {
        Self {
            prompt,
            sampling: Sampling::default(),
            rng_counter_base: 0,
            max_tokens: 256,
            ignore_eos: false,
            priority: 0,
            deadline: None,
            stop_strings: Vec::new(),
            stop_tokens: Vec::new(),
            grammar: Grammar::None,
            logit_bias: Vec::new(),
            logprobs: None,
            strategy_slot: 0,
            adapter: 0,
            deterministic: true,
            publish: true,
            show_special: false,
        }
    }
}

/// Spreads small numbers over the positions of draws, so that requests with different seeds do not share draws.
pub fn draw_base(seed: u64) -> u64 {
    seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

/// A tokenizer that several threads read, wherever it lives.
#[derive(Clone)]
pub(super) struct Words(pub(super) Arc<dyn AsRef<Tokenizer> + Send + Sync>);

impl Words {
    pub(super) fn tokenizer(&self) -> &Tokenizer {
        (*self.0).as_ref()
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Words")
    }
}

/// Why a request was not taken. Nothing is kept of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// As many requests wait as may.
    #[error("{limit} requests wait already")]
    QueueFull {
        /// The limit.
        limit: usize,
    },
    /// The driver has ended, or its engine is broken.
    #[error("the driver has ended")]
    Closed,
    /// The prompt has no tokens.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// The prompt leaves no room for an answer.
    #[error("the prompt has {tokens} tokens, the context {context_tokens}")]
    TooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens of the context.
        context_tokens: u64,
    },
    /// An id outside the vocabulary.
    #[error("token {token} is not below {vocab_size}")]
    UnknownToken {
        /// The id.
        token: u32,
        /// Size of the vocabulary.
        vocab_size: u32,
    },
    /// A text without a tokenizer: prompt or stop string.
    #[error("texts need a tokenizer, and the driver has none")]
    NoTokenizer,
    /// The tokenizer refuses the text.
    #[error("the prompt cannot be encoded")]
    Encode(#[from] EncodeError),
    /// A number out of range, or no number.
    #[error("{name} is {value}")]
    Sampling {
        /// The field.
        name: &'static str,
        /// Its value.
        value: f32,
    },
    /// A count out of range.
    #[error("{name} is {value}, must be {allowed}")]
    OutOfRange {
        /// The field.
        name: &'static str,
        /// Its value.
        value: u64,
        /// What it may be.
        allowed: &'static str,
    },
}

/// A request that can run as far as one can tell without the engine.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) request: Request,
    /// The prompt.
    pub(super) tokens: Vec<u32>,
}

/// What requests are checked against.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub(super) context_tokens: u64,
    pub(super) vocab_size: Option<u32>,
    pub(super) words: Option<Words>,
}

impl Limits {
    pub(super) fn new(options: &DriverOptions, words: Option<Words>) -> Self {
        let of_words = words.as_ref().and_then(|words| u32::try_from(words.tokenizer().vocab_size()).ok());
        let vocab_size = Some(options.vocab_size).filter(|&size| size != 0).or(of_words);
        Self { context_tokens: options.context_tokens, vocab_size, words }
    }

    /// Checks a request and encodes its prompt.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn check(&self, mut request: Request) -> Result<Checked, SubmitError> {
        const STOPS_MAX: usize = 64;
        const STOP_BYTES_MAX: usize = 4096;
        request.sampling.check()?;
        let within = |name, value: u64, low: u64, high: u64, allowed| match (low..=high).contains(&value) {
            true => Ok(()),
            false => Err(SubmitError::OutOfRange { name, value, allowed }),
        };
        within("max_tokens", request.max_tokens, 1, u64::MAX, "at least 1")?;
        within("logprobs", request.logprobs.unwrap_or(0).into(), 0, MAX_TOP_LOGPROBS as u64, "at most 20")?;
        within("stop_strings", request.stop_strings.len() as u64, 0, STOPS_MAX as u64, "at most 64")?;
        for stop in &request.stop_strings {
            within("bytes of a stop string", stop.len() as u64, 1, STOP_BYTES_MAX as u64, "from 1 to 4096")?;
        }
        if let Some(&(_, value)) = request.logit_bias.iter().find(|(_, addend)| addend.is_nan()) {
            return Err(SubmitError::Sampling { name: "logit_bias", value });
        }
        if !request.stop_strings.is_empty() && self.words.is_none() {
            return Err(SubmitError::NoTokenizer);
        }
        let tokens = match std::mem::replace(&mut request.prompt, Prompt::Tokens(Vec::new())) {
            Prompt::Tokens(tokens) => tokens,
            Prompt::Text { text, options } => {
                let words = self.words.as_ref().ok_or(SubmitError::NoTokenizer)?;
                words.tokenizer().encode(&text, options)?
            }
        };
        self.check_tokens(&tokens)?;
        request.stop_tokens.sort_unstable();
        Ok(Checked { request, tokens })
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<(), SubmitError> {
        if tokens.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        let too_many = self.context_tokens != 0 && tokens.len() as u64 > self.context_tokens;
        if too_many || u32::try_from(tokens.len()).is_err() {
            return Err(SubmitError::TooLong { tokens: tokens.len(), context_tokens: self.context_tokens });
        }
        if let Some(vocab_size) = self.vocab_size
            && let Some(&token) = tokens.iter().find(|&&token| token >= vocab_size)
        {
            return Err(SubmitError::UnknownToken { token, vocab_size });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        let options = DriverOptions { context_tokens: 8, vocab_size: 10, ..DriverOptions::default() };
        Limits::new(&options, None)
    }

    #[test]
    fn each_bad_request_is_refused_for_what_is_wrong_with_it() {
        let good = || Request::tokens([1, 2, 3]);
        let sampling = |change: fn(&mut Sampling)| {
            let mut request = good();
            change(&mut request.sampling);
            request
        };
        assert_eq!(limits().check(good()).expect("it is good").tokens, [1, 2, 3]);
        let named = |error: SubmitError| match error {
            SubmitError::Sampling { name, .. } | SubmitError::OutOfRange { name, .. } => name.to_owned(),
            other => format!("{other:?}"),
        };
        let cases = [
            ("EmptyPrompt", Request::tokens([])),
            ("TooLong { tokens: 9, context_tokens: 8 }", Request::tokens([1; 9])),
            ("UnknownToken { token: 10, vocab_size: 10 }", Request::tokens([1, 10])),
            ("NoTokenizer", Request::text("x")),
            ("NoTokenizer", Request { stop_strings: vec!["x".into()], ..good() }),
            ("bytes of a stop string", Request { stop_strings: vec![String::new()], ..good() }),
            ("stop_strings", Request { stop_strings: vec!["x".into(); 65], ..good() }),
            ("max_tokens", Request { max_tokens: 0, ..good() }),
            ("logprobs", Request { logprobs: Some(21), ..good() }),
            ("logit_bias", Request { logit_bias: vec![(1, f32::NAN)], ..good() }),
            ("temperature", sampling(|sampling| sampling.temperature = f32::NAN)),
            ("temperature", sampling(|sampling| sampling.temperature = -1.0)),
            ("top_p", sampling(|sampling| sampling.top_p = 1.5)),
            ("min_p", sampling(|sampling| sampling.min_p = f32::INFINITY)),
            ("repeat_penalty", sampling(|sampling| sampling.repeat_penalty = f32::INFINITY)),
            ("presence_penalty", sampling(|sampling| sampling.presence_penalty = f32::NAN)),
            ("frequency_penalty", sampling(|sampling| sampling.frequency_penalty = f32::NEG_INFINITY)),
        ];
        for (expected, request) in cases {
            for _ in 0..2 {
                let refused = limits().check(request.clone()).map(|checked| checked.tokens).expect_err(expected);
                assert_eq!(named(refused), expected);
            }
        }
    }
}
