//! What C says becomes what Rust takes, and back.

use core::time::Duration;

use super::records::{DriverChoices, DriverEvent, DriverRequest};
use crate::abi::constant::{driver_event, driver_finish, driver_flag, request_flag, text_flag};
use crate::abi::guard::{Buffer, Failure, Outcome, list, text};
use crate::driver::{
    self as core_driver, DriverOptions, Event, EventKind, Finish, Grammar, Prompt, Request, Sampling, SubmitError,
};
use crate::record::constant::{misc::MAX_TOP_LOGPROBS, sampling_flag};
use crate::record::view::Plain;
use crate::record::{LaneLogprob, SamplingParams, Status};
use crate::tokenizer::EncodeOptions;

impl From<SubmitError> for Failure {
    fn from(error: SubmitError) -> Self {
        let status = match &error {
            SubmitError::QueueFull { .. } => Status::Busy,
            SubmitError::Closed => Status::Fatal,
            SubmitError::EmptyPrompt => Status::RejectIllegalCombination,
            SubmitError::TooLong { .. } => Status::RejectBudget,
            SubmitError::NoTokenizer => Status::Unsupported,
            _ => Status::RejectBounds,
        };
        Self::because(status, &error)
    }
}

/// The options as the Rust API takes them.
pub(super) fn choices(source: &DriverChoices) -> Outcome<DriverOptions> {
    let base = DriverOptions::default();
    if source.flags & !driver_flag::ALL != 0 {
        return Err(Failure::new(Status::RejectBounds, format_args!("flags are {:#x}", source.flags)));
    }
    let or = |value: u32, default: u32| if value == 0 { default } else { value };
    let short = |value: u16, default: u16| if value == 0 { default } else { value };
    let time = |value: u64, default: Duration| if value == 0 { default } else { Duration::from_nanos(value) };
    let options = DriverOptions {
        max_lanes: or(source.max_lanes, base.max_lanes),
        tick_tokens: or(source.tick_tokens, base.tick_tokens),
        tick_target: match source.tick_target_ns {
            u64::MAX => Duration::ZERO,
            target => time(target, base.tick_target),
        },
        decode_tokens: short(source.decode_tokens, base.decode_tokens),
        draft_overshoot: short(source.draft_overshoot, base.draft_overshoot),
        replay_tokens: short(source.replay_tokens, base.replay_tokens),
        queue_limit: if source.queue_limit == 0 { base.queue_limit } else { source.queue_limit as usize },
        ageing: time(source.ageing_ns, base.ageing),
        reserve_tokens: or(source.reserve_tokens, base.reserve_tokens),
        seed_min_tokens: or(source.seed_min_tokens, base.seed_min_tokens),
        share_min_tokens: match source.share_min_tokens {
            u32::MAX => 0,
            tokens => or(tokens, base.share_min_tokens),
        },
        protected_cache_bytes: source.protected_cache_bytes,
        ..base
    };
    options.check().map_err(|error| Failure::because(Status::RejectBounds, &error))?;
    Ok(options)
}

/// A request as the Rust API takes it.
///
/// # Safety
/// The pointers of `source` that are not NULL are valid for the counts beside them, texts up to their NULs.
pub(super) unsafe fn asked(source: &DriverRequest) -> Outcome<Request> {
    let out_of_range = |what: &str, value: i64| Failure::new(Status::RejectBounds, format_args!("{what} is {value}"));
    if source.flags & !request_flag::ALL != 0 {
        return Err(out_of_range("flags", source.flags.into()));
    }
    if source.text_flags & !text_flag::ALL != 0 {
        return Err(out_of_range("text_flags", source.text_flags.into()));
    }
    if source.params.flags & !sampling_flag::IGNORE_EOS != 0 {
        return Err(out_of_range("params.flags", source.params.flags.into()));
    }
    // SAFETY: the promise of this function.
    let stop_tokens = unsafe { list(source.stop_tokens, source.n_stop_tokens) }?.to_vec();
    // SAFETY: as above.
    let bias_tokens = unsafe { list(source.bias_tokens, source.n_bias) }?;
    // SAFETY: as above.
    let bias_values = unsafe { list(source.bias_values, source.n_bias) }?;
    let priority = i16::try_from(source.priority).map_err(|_| out_of_range("priority", source.priority.into()))?;
    let most = MAX_TOP_LOGPROBS as u32 + 1;
    let wanted =
        Some(source.want_logprobs).filter(|&wanted| wanted <= most).and_then(|wanted| u8::try_from(wanted).ok());
    let wanted = wanted.ok_or_else(|| out_of_range("want_logprobs", source.want_logprobs.into()))?;
    Ok(Request {
        // SAFETY: as above.
        prompt: unsafe { prompt(source) }?,
        sampling: sampling(&source.params),
        rng_counter_base: source.rng_counter_base,
        max_tokens: if source.max_tokens == 0 { 256 } else { source.max_tokens },
        ignore_eos: source.params.flags & sampling_flag::IGNORE_EOS != 0,
        priority,
        deadline: Some(source.deadline_ns).filter(|&deadline| deadline != 0).map(Duration::from_nanos),
        // SAFETY: as above.
        stop_strings: unsafe { stop_strings(source) }?,
        stop_tokens,
        // SAFETY: as above.
        grammar: unsafe { grammar(source) }?,
        logit_bias: bias_tokens.iter().copied().zip(bias_values.iter().copied()).collect(),
        logprobs: wanted.checked_sub(1),
        strategy_slot: source.strategy_slot,
        adapter: source.adapter,
        deterministic: source.flags & request_flag::BEST_EFFORT == 0,
        publish: source.flags & request_flag::NO_PUBLISH == 0,
        show_special: source.text_flags & text_flag::SHOW_SPECIAL != 0,
    })
}

/// # Safety
/// As [`asked`].
unsafe fn prompt(source: &DriverRequest) -> Outcome<Prompt> {
    match (source.prompt_tokens.is_null(), source.prompt_text.is_null()) {
        (false, true) => {
            // SAFETY: the promise of this function.
            let tokens = unsafe { list(source.prompt_tokens, source.n_prompt_tokens) }?;
            Ok(Prompt::Tokens(tokens.to_vec()))
        }
        (true, false) => {
            // SAFETY: the promise of this function.
            let bytes = unsafe { list(source.prompt_text.cast::<u8>(), source.prompt_bytes) }?;
            let text = str::from_utf8(bytes).map_err(|error| Failure::new(Status::RejectBadStruct, error))?;
            let options = EncodeOptions {
                add_special: source.text_flags & text_flag::ADD_SPECIAL != 0,
                parse_special: source.text_flags & text_flag::PARSE_SPECIAL != 0,
            };
            Ok(Prompt::Text { text: text.to_owned(), options })
        }
        _ => Err(Failure::new(Status::RejectBadStruct, "one of the two prompts is needed")),
    }
}

/// # Safety
/// As [`asked`].
unsafe fn stop_strings(source: &DriverRequest) -> Outcome<Vec<String>> {
    // SAFETY: the promise of this function.
    let pointers = unsafe { list(source.stop_strings, source.n_stop_strings) }?;
    let mut stops = Vec::new();
    for &pointer in pointers {
        // SAFETY: the promise of this function.
        stops.push(unsafe { text(pointer) }?.to_owned());
    }
    Ok(stops)
}

/// # Safety
/// As [`asked`].
unsafe fn grammar(source: &DriverRequest) -> Outcome<Grammar> {
    let given = [!source.grammar_schema.is_null(), !source.grammar_tags.is_null(), source.grammar_handle != 0];
    match given {
        [false, false, false] => Ok(Grammar::None),
        [false, false, true] => Ok(Grammar::Handle(source.grammar_handle)),
        // SAFETY: the promise of this function.
        [true, false, false] => Ok(Grammar::Schema(unsafe { text(source.grammar_schema) }?.to_owned())),
        // SAFETY: as above.
        [false, true, false] => Ok(Grammar::Structural(unsafe { text(source.grammar_tags) }?.to_owned())),
        _ => Err(Failure::new(Status::RejectBadStruct, "more than one grammar")),
    }
}

/// The numbers as they are; a `repeat_penalty` of 0 is 1, and one of `top_p` is taken for a field that was not filled in.
fn sampling(params: &SamplingParams) -> Sampling {
    Sampling {
        temperature: params.temperature,
        top_k: params.top_k,
        top_p: if params.top_p == 0.0 { 1.0 } else { params.top_p },
        min_p: params.min_p,
        repeat_penalty: if params.repeat_penalty == 0.0 { 1.0 } else { params.repeat_penalty },
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.freq_penalty,
    }
}

/// Where the parts of an event go.
pub(super) struct Target {
    pub(super) tokens: Buffer<u32>,
    pub(super) text: Buffer<u8>,
    pub(super) text_wanted: bool,
    pub(super) logprobs: Buffer<LaneLogprob>,
}

impl Target {
    pub(super) fn fill(&self, event: &Event) -> Result<(), Status> {
        let EventKind::Tokens(piece) = &event.kind else { return Ok(()) };
        self.tokens.fill(&piece.tokens)?;
        if self.text_wanted || !piece.text.is_empty() {
            self.text.fill(&[piece.text.as_bytes(), &[0]].concat())?;
        }
        let records = piece.logprobs.iter().map(|logprob| {
            let mut record = LaneLogprob::zeroed();
            record.lane_tag = event.request.get();
            record.logprob = logprob.logprob;
            record.n_top = logprob.top.len() as u32;
            let slots = record.top_ids.iter_mut().zip(&mut record.top_logprobs);
            for ((id, value), &(top_id, top_value)) in slots.zip(&logprob.top) {
                (*id, *value) = (top_id, top_value);
            }
            record
        });
        self.logprobs.fill(&records.collect::<Vec<_>>())
    }
}

/// An event without its lists; the reader's size of the record is not filled in.
pub(super) fn record_of(event: &Event) -> DriverEvent {
    let mut record = DriverEvent::zeroed();
    record.request = event.request.get();
    match &event.kind {
        EventKind::Started { cached_tokens } => {
            record.kind = driver_event::STARTED;
            record.cached_tokens = *cached_tokens;
        }
        EventKind::Tokens(piece) => {
            record.kind = driver_event::TOKENS;
            record.n_tokens = piece.tokens.len() as u64;
            record.text_bytes = piece.text.len() as u64;
            record.n_logprobs = piece.logprobs.len() as u64;
        }
        EventKind::Finished { finish, stats } => {
            let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            record.kind = driver_event::FINISHED;
            (record.finish, record.status, record.detail) = reason(finish);
            record.cached_tokens = stats.cached_tokens;
            record.queued_ns = stats.queued.map_or(u64::MAX, nanoseconds);
            record.first_token_ns = stats.first_token.map_or(u64::MAX, nanoseconds);
            record.total_ns = nanoseconds(stats.total);
            record.prompt_tokens = stats.prompt_tokens;
            record.answer_tokens = stats.answer_tokens;
            record.prefill_tokens = stats.prefill_tokens;
            record.replayed_tokens = stats.replayed_tokens;
            record.drafted_tokens = stats.drafted_tokens;
            record.accepted_tokens = stats.accepted_tokens;
            record.preemptions = stats.preemptions;
        }
    }
    record
}

/// Why a request is over, what the engine said of it, and the detail.
fn reason(finish: &Finish) -> (u32, i32, u32) {
    use core_driver::Failure;
    let failed = |status: Status, detail| (driver_finish::FAILED, status.code(), detail);
    match finish {
        Finish::EndToken => (driver_finish::END_TOKEN, 0, 0),
        Finish::StopToken(token) => (driver_finish::STOP_TOKEN, 0, *token),
        Finish::StopString(place) => (driver_finish::STOP_STRING, 0, u32::try_from(*place).unwrap_or(u32::MAX)),
        Finish::Grammar => (driver_finish::GRAMMAR, 0, 0),
        Finish::MaxTokens => (driver_finish::MAX_TOKENS, 0, 0),
        Finish::ContextFull => (driver_finish::CONTEXT_FULL, 0, 0),
        Finish::Cancelled => (driver_finish::CANCELLED, 0, 0),
        Finish::DeadlineExpired => (driver_finish::DEADLINE, 0, 0),
        Finish::Failed(failure) => match failure {
            Failure::Rejected(status) | Failure::Grammar(status) | Failure::Bias(status) | Failure::Adapter(status) => {
                failed(*status, 0)
            }
            Failure::Fault { code } => (driver_finish::FAULT, 0, *code),
            Failure::NoRoom => failed(Status::NeedsReplan, 0),
            Failure::GrammarInUse => failed(Status::Busy, 0),
            Failure::EngineFatal => failed(Status::Fatal, 0),
            Failure::Closed => (driver_finish::CLOSED, 0, 0),
        },
    }
}
