//! Random schemas on a real model: what it says fits them.

use std::time::{Duration, Instant};

use ictus::engine::{Engine, PlanBuilder};
use ictus::grammar::{Compiler, Limits, Source, Tokens};
use ictus::record::constant::{finish, sampling};
use ictus::record::{LaneAdmit, TokenRef};
use ictus::ring::{MemoryRings, Rings};
use ictus::tokenizer::{EncodeOptions, Tokenizer};
use ictus::{Model, ModelOptions};
use serde_json::Value;

use super::judge::judge;
use super::models;
use super::random::Random;
use super::schemas;

/// Schemas, one lane each, unless `ICTUS_SCHEMAS` says how many.
const SCHEMAS: usize = 40;
/// Lanes that decode together.
const LANES: usize = 8;
/// Most tokens of a document: the schemas bound every value, and blanks are all that a model may repeat.
const TOKENS: usize = 2000;

/// One document in the making.
struct Lane {
    tag: u64,
    grammar: u32,
    schema: Value,
    tokens: Vec<u32>,
    finish: u32,
}

/// A model with a host around it.
struct Host {
    engine: Box<dyn Engine + Send>,
    rings: MemoryRings,
    plan_seq: u64,
    lanes: Vec<Lane>,
    /// Time of the ticks and tokens made in them.
    spent: (Duration, u64),
}

impl Host {
    fn tick(&mut self, build: impl FnOnce(PlanBuilder) -> PlanBuilder) {
        self.plan_seq += 1;
        let (plan, memory) = build(PlanBuilder::new(self.plan_seq).max_decode_lanes(LANES as u32)).build();
        let started = Instant::now();
        let events = self.engine.tick(&plan, &memory, &mut self.rings).expect("the plan is accepted");
        assert!(events.faults.is_empty(), "no lane faults: {:?}", events.faults);
        let emits: Vec<(u64, TokenRef, u32)> =
            events.emits.iter().map(|emit| (emit.lane_tag, emit.token_ref, emit.finish)).collect();
        self.spent.0 += started.elapsed();
        for (tag, reference, finish) in emits {
            let lane = self.lanes.iter_mut().find(|lane| lane.tag == tag).expect("the lane is known");
            let before = lane.tokens.len();
            self.rings.read_tokens(&reference, &mut lane.tokens).expect("the emit is readable");
            lane.finish = finish;
            self.spent.1 += (lane.tokens.len() - before) as u64;
        }
    }

    /// Admits a lane for a schema and makes its first token.
    fn start(&mut self, tag: u64, schema: Value, prompt: &[u32], random: &mut Random) {
        let engine = &mut self.engine;
        let grammar = engine.grammar_create(&schema.to_string());
        let grammar = grammar.unwrap_or_else(|_| panic!("{schema}: {:?}", engine.grammar_refusal()));
        self.lanes.push(Lane { tag, grammar, schema, tokens: Vec::new(), finish: finish::NONE });
        let staged = self.rings.stage_prompt(prompt);
        let base = random.next();
        let change = move |admit: &mut LaneAdmit| {
            admit.grammar_handle = grammar;
            admit.params.flags = 0;
            admit.rng_counter_base = base;
            // Every second one is drawn, with penalties and log-probabilities.
            if tag.is_multiple_of(2) {
                admit.sampling = sampling::GPU_GUMBEL;
                admit.params.temperature = 0.8;
                admit.params.top_p = 0.95;
                admit.params.freq_penalty = 0.2;
                admit.want_logprobs = 2;
            }
        };
        let count = prompt.len() as u32;
        self.tick(|plan| plan.admit_with(change, tag, staged).prefill(tag, 0, count).decode(tag, 1));
    }
}

/// A prompt, the same for all: what is wanted is that the grammar holds, not that the document makes sense.
fn prompt(tokenizer: &Tokenizer) -> Vec<u32> {
    let text = "<|im_start|>user\nAn example in JSON, please.<|im_end|>\n<|im_start|>assistant\n";
    tokenizer.encode(text, EncodeOptions { add_special: false, parse_special: true }).expect("it encodes")
}

/// The text of a lane, without its end token, fits its schema.
fn check(lane: &Lane, tokenizer: &Tokenizer) {
    let end = lane.tokens.last().is_some_and(|&token| tokenizer.end_ids().any(|id| id == token));
    let said = &lane.tokens[..lane.tokens.len() - usize::from(end)];
    let bytes: Vec<u8> = said.iter().flat_map(|&id| tokenizer.token_bytes(id).expect("a token").to_vec()).collect();
    let text = String::from_utf8(bytes).expect("grammars make whole characters");
    let ended = [finish::GRAMMAR, finish::EOS].contains(&lane.finish);
    assert!(ended, "lane {} ends with {} after {} tokens: {text}\n{}", lane.tag, lane.finish, said.len(), lane.schema);
    let document: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    if let Err(reason) = judge(&document, &lane.schema) {
        panic!("{reason}\n{document}\n{}", lane.schema);
    }
}

/// How long each token keeps a cursor busy: its acceptance, and the mask after it.
struct Masks {
    compiler: Compiler,
    times: Vec<Duration>,
}

impl Masks {
    fn new(tokenizer: &Tokenizer) -> Self {
        let bytes = |id: u32| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            if tokenizer.is_control(id) { [b"\xff", bytes].concat().into() } else { bytes.into() }
        };
        let tokens: Vec<Box<[u8]>> = (0..tokenizer.vocab_size() as u32).map(bytes).collect();
        let end_ids: Vec<u32> = tokenizer.end_ids().collect();
        let tokens = Tokens { tokens: &tokens, special: &[], end_ids: &end_ids };
        Self { compiler: Compiler::new(&tokens, Limits::default()).expect("a vocabulary"), times: Vec::new() }
    }

    /// Goes over a text again, as the engine did.
    fn measure(&mut self, lane: &Lane) {
        let source = Source::schema(&lane.schema.to_string(), &Limits::default()).expect("it parsed before");
        let mut cursor = self.compiler.compile(source).expect("it compiled before").cursor();
        for &token in &lane.tokens {
            let started = Instant::now();
            cursor.accept(token).expect("it was accepted before");
            cursor.prepare();
            self.times.push(started.elapsed());
        }
    }

    fn report(&mut self) -> String {
        self.times.sort_unstable();
        let at = |part: f64| self.times[((self.times.len() - 1) as f64 * part) as usize];
        format!("mask per token: median {:?}, p99 {:?}, greatest {:?}", at(0.5), at(0.99), at(1.0))
    }
}

/// R-60 .. R-66 on a vocabulary of 49 152: random schemas, greedy and drawn, give documents that fit.
#[test]
fn real_model_speaks_documents_that_fit_random_schemas() {
    let Some(path) = models::find(models::SMOLLM2) else { return };
    let mut random = Random::new("real_model_speaks_documents_that_fit_random_schemas");
    let model = Model::open(&path, &ModelOptions::default()).expect("the model opens");
    let tokenizer = model.tokenizer();
    let engine = model.engine().expect("an engine");
    let mut host =
        Host { engine, rings: MemoryRings::new(), plan_seq: 0, lanes: Vec::new(), spent: Default::default() };
    let mut compiled = Duration::ZERO;
    let mut masks = Masks::new(tokenizer);
    let prompt = prompt(tokenizer);
    let wanted = std::env::var("ICTUS_SCHEMAS").ok().and_then(|count| count.parse().ok()).unwrap_or(SCHEMAS);
    let (mut next, mut done) = (0, 0);
    while done < wanted {
        while next < wanted && host.lanes.len() < LANES {
            next += 1;
            let schema = schemas::draw(&mut random, schemas::Extent::Bounded);
            let started = Instant::now();
            host.start(next as u64, schema, &prompt, &mut random);
            compiled += started.elapsed();
        }
        let (ended, going): (Vec<Lane>, Vec<Lane>) = std::mem::take(&mut host.lanes)
            .into_iter()
            .partition(|lane| lane.finish != finish::NONE || lane.tokens.len() >= TOKENS);
        host.lanes = going;
        for lane in ended {
            check(&lane, tokenizer);
            masks.measure(&lane);
            host.tick(|plan| plan.retire(lane.tag, false));
            host.engine.grammar_free(lane.grammar).expect("the lane returned it");
            done += 1;
        }
        let tags: Vec<u64> = host.lanes.iter().map(|lane| lane.tag).collect();
        if !tags.is_empty() {
            host.tick(|plan| tags.iter().fold(plan, |plan, &tag| plan.decode(tag, 8)));
        }
    }
    let (time, tokens) = host.spent;
    println!("{done} documents, {tokens} tokens in {time:?}; admitted and compiled in {compiled:?}");
    println!("{}", masks.report());
}
