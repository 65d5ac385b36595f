//! A fake runtime with a vocabulary, and an engine over it.

use ictus::engine::{Engine, PlanBuilder};
use ictus::record::{LaneAdmit, Status};
use ictus::runtime::{FakeOptions, SamplingSupport, Vocabulary};
use ictus::testing::{Events, Harness};

use super::engine::{Under, under_test};

pub(crate) type Fake = Harness<Under>;

/// `<call>`, `</call>`, and the two end tokens.
pub(crate) const CALL: u32 = 290;
pub(crate) const CALL_END: u32 = 291;
pub(crate) const END: u32 = 292;
pub(crate) const STOP: u32 = 293;
/// Markers of a header: `<channel>`, `<message>`.
pub(crate) const CHANNEL: u32 = 294;
pub(crate) const MESSAGE: u32 = 295;

const VOCAB: usize = 300;

/// Picking in the runtime and in the executor: with masks in the step, and after it.
pub(crate) const SUPPORTS: [SamplingSupport; 3] = [
    SamplingSupport { greedy: true, draws: true, shaping: true, logprobs: true },
    SamplingSupport { greedy: true, draws: true, shaping: false, logprobs: false },
    SamplingSupport { greedy: false, draws: false, shaping: false, logprobs: false },
];

/// One token per byte, some words, and special tokens.
pub(crate) fn vocabulary() -> Vocabulary {
    let mut tokens: Vec<Box<[u8]>> = (0..=255u8).map(|byte| Box::from([byte])).collect();
    let words = ["true", "false", "null", "{\"", "\":", "\"}", "\",", "ok", "name", "value", "    ", "[1", "12", "0."];
    tokens.extend(words.map(|word| Box::from(word.as_bytes())));
    tokens.resize(VOCAB, Box::from([]));
    let named = ["<call>", "</call>", "<end>", "<stop>", "<channel>", "<message>"];
    let special: Vec<(String, u32)> = named.iter().zip(CALL..).map(|(text, id)| ((*text).to_owned(), id)).collect();
    for (text, id) in &special {
        tokens[*id as usize] = [b"\xff", text.as_bytes()].concat().into();
    }
    Vocabulary { tokens, special, end_ids: vec![END, STOP] }
}

/// What makes the fake one with a vocabulary.
pub(crate) fn speaking(options: &mut FakeOptions, support: SamplingSupport) {
    options.descriptor.vocab_size = VOCAB as u32;
    options.descriptor.sampling = support;
    options.end_ids = vec![END, STOP];
    options.vocabulary = Some(vocabulary());
}

/// An engine over the fake with a vocabulary.
pub(crate) fn engine(support: SamplingSupport) -> Fake {
    engine_with(support, |_| {})
}

/// The same, changed.
pub(crate) fn engine_with(support: SamplingSupport, change: impl FnOnce(&mut FakeOptions)) -> Fake {
    Harness::with_engine(under_test(|options| {
        speaking(options, support);
        change(options);
    }))
}

/// The text of tokens; special ones by their text.
pub(crate) fn text(tokens: &[u32]) -> String {
    let vocabulary = vocabulary();
    let bytes: Vec<u8> = tokens
        .iter()
        .flat_map(|&token| {
            let bytes = &vocabulary.tokens[token as usize];
            bytes.strip_prefix(b"\xff").unwrap_or(bytes).to_vec()
        })
        .collect();
    String::from_utf8(bytes).expect("grammars make whole characters")
}

/// The tokens of a text, byte by byte; the texts of special tokens are those tokens.
pub(crate) fn encode(text: &str) -> Vec<u32> {
    let special = vocabulary().special;
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        match special.iter().find_map(|(text, id)| Some((*id, rest.strip_prefix(text.as_str())?))) {
            Some((id, tail)) => {
                tokens.push(id);
                rest = tail;
            }
            None => {
                let (head, tail) = rest.split_at(c.len_utf8());
                tokens.extend(head.bytes().map(u32::from));
                rest = tail;
            }
        }
    }
    tokens
}

/// Runs a plan that must be accepted, and walks the invariants.
#[track_caller]
pub(crate) fn ok(h: &mut Fake, build: impl FnOnce(PlanBuilder) -> PlanBuilder) -> Events {
    let plan = build(h.plan());
    let events = h.tick_ok(plan);
    h.engine.audit().expect("the invariants hold");
    events
}

/// Runs a plan, twice, that must be refused and leave no trace.
#[track_caller]
pub(crate) fn no(h: &mut Fake, build: impl FnOnce(PlanBuilder) -> PlanBuilder) -> Status {
    let plan = build(h.plan());
    h.refused(plan)
}

/// Admits a lane with a grammar and runs its prompt, without decoding; the tokens of `script` are then the model's next ones.
#[track_caller]
pub(crate) fn admit(h: &mut Fake, lane: u64, prompt: &[u32], script: &[u32], change: impl FnOnce(&mut LaneAdmit)) {
    let staged = h.prompt(prompt);
    let mut replay = 0;
    let change = |admit: &mut LaneAdmit| {
        change(admit);
        replay = admit.decode_replay;
    };
    let plan = h.plan().admit_with(change, lane, staged);
    h.tick_ok(plan.prefill(lane, 0, prompt.len() as u32 - replay));
    h.engine.audit().expect("the invariants hold");
    let sequence = h.engine.lane_sequence(lane).expect("the lane is live");
    h.engine.primitives_mut().script(sequence, script);
}

/// Decodes a lane; gives its tokens and how it finished.
#[track_caller]
pub(crate) fn decode(h: &mut Fake, lane: u64, grant: u16) -> (Vec<u32>, u32) {
    let events = ok(h, |plan| plan.decode(lane, grant));
    let finish = events.emit_for(lane).expect("the lane emits").finish;
    (h.tokens_of(&events, lane), finish)
}
