//! A fake engine behind the link, and a way to look into it.
//!
//! What the link has no message for travels in a call that the fake runtime does not offer: `forward_stage` of a layer that no model has
//! carries a command and its answer, both JSON; `space_snapshot_boundary` of a space that there is not says which sequence is meant, since
//! its name is another one on the host's side.

use std::cell::{Cell, RefCell};

use ictus::engine::{Engine, EventsView, ExportSize, OpHandle, SeqHandle, StageOutput};
use ictus::executor::Executor;
use ictus::record::constant::op_state;
use ictus::record::view::Memory;
use ictus::record::{
    CacheKey, ExactnessCert, MatchCandidate, MatchResult, OpStatus, RingDesc, StateSpaceDesc, Status, StrategyGrant,
    StrategyRegistration, TickPlan, TokenRange, TokenRef,
};
use ictus::ring::Rings;
use ictus::runtime::{FakeRuntime, RecordedFeed, Runtime, RuntimeError};
use ictus::testing::EngineInspect;
use serde_json::{Value, json};

/// The layer of commands, and the space that names a sequence.
const COMMANDS: u32 = u32::MAX;
const NAMING: u32 = u32::MAX - 1;

/// The engine in the worker.
pub(crate) struct Probe {
    engine: Executor<FakeRuntime>,
    /// The sequence that was named last.
    named: Cell<u64>,
    /// What runs waits for its host: the pumps of a worker do nothing, those of the host are commands.
    held: bool,
}

impl Probe {
    pub(crate) fn new(engine: Executor<FakeRuntime>, held: bool) -> Self {
        Self { engine, named: Cell::new(0), held }
    }

    /// Does what a test asks of the inside.
    fn obey(&mut self, command: &Value) -> Value {
        let number = |name: &str| command[name].as_u64().unwrap_or_else(|| panic!("{name} of {command}"));
        let list = |name: &str| -> Vec<u32> {
            command[name].as_array().into_iter().flatten().map(|id| id.as_u64().expect("a number") as u32).collect()
        };
        let (named, engine) = (self.named.get(), &mut self.engine);
        let bits = |row: Vec<f32>| json!(row.into_iter().map(f32::to_bits).collect::<Vec<u32>>());
        match command["what"].as_str().expect("a command") {
            "audit" => json!(Executor::audit(engine).err().map(|error| error.to_string())),
            "digest" => json!(Executor::state_digest(engine)),
            "committed" => json!(Executor::lane_committed(engine, number("lane"))),
            "fault" => json!(Executor::inject_fault(engine, number("lane"), number("code") as u32)),
            "cache bytes" => json!(engine.cache_bytes()),
            "cache exported" => json!(engine.cache_exported_tokens()),
            "live sequences" => json!(engine.live_sequences()),
            "match lengths" => json!(engine.match_lengths(&list("tokens"))),
            "compat identity" => json!(engine.compat_identity()),
            "token for" => json!(engine.primitives().token_for(&list("tokens"))),
            "row for" => bits(engine.primitives().row_for(&list("tokens"))),
            "contents" => json!(engine.primitives().contents(named)),
            "cells used" => json!(engine.primitives().mem_counters().cells_used),
            "sequences of the runtime" => json!(engine.primitives().live_sequences()),
            "idle cells" => json!(engine.primitives().idle_cells()),
            "last sync" => json!(engine.primitives().last_sync()),
            "pump" => json!(Engine::pump(engine)),
            // Both sides count what was accepted from 1.
            "operation" => {
                let status = engine.op_poll(number("operation")).expect("known");
                json!([u64::from(status.state), status.bytes_moved])
            }
            "feeds" => {
                let feed = |feed: &RecordedFeed| json!([feed.step, feed.sequence, feed.len, feed.wants_row]);
                json!(engine.primitives().feeds()[number("from") as usize..].iter().map(feed).collect::<Vec<Value>>())
            }
            "script" => json!(engine.primitives_mut().script(named, &list("tokens"))),
            "plant row" => {
                let row: Vec<f32> = list("bits").into_iter().map(f32::from_bits).collect();
                json!(engine.primitives_mut().plant_row(named, &row))
            }
            "import" => {
                let bytes: Vec<u8> = list("bytes").into_iter().map(|byte| byte as u8).collect();
                json!(engine.primitives_mut().seq_import(named, &bytes).is_ok())
            }
            "fail" => json!(engine.primitives_mut().fail_next_step(match number("code") {
                FATAL => RuntimeError::Fatal,
                CAPACITY => RuntimeError::Capacity,
                UNSUPPORTED => RuntimeError::Unsupported,
                UNKNOWN_SEQ => RuntimeError::UnknownSeq,
                OUT_OF_BOUNDARY => RuntimeError::OutOfBoundary,
                code => RuntimeError::Fault(code as u32),
            })),
            "poison import" => json!(engine.primitives_mut().poison_next_import()),
            "poison export" => json!(engine.primitives_mut().poison_next_export()),
            other => panic!("no command is called {other}"),
        }
    }
}

/// Errors of a step that are no faults, as numbers that no fault has.
const FATAL: u64 = 1 << 40;
const CAPACITY: u64 = FATAL + 1;
const UNSUPPORTED: u64 = FATAL + 2;
const UNKNOWN_SEQ: u64 = FATAL + 3;
const OUT_OF_BOUNDARY: u64 = FATAL + 4;

/// The fake runtime of the contract, with room for many lanes.
pub(crate) fn fake() -> Executor<FakeRuntime> {
    Executor::new(FakeRuntime::with(|options| {
        options.descriptor.max_batch = 256;
        options.descriptor.max_seq_len = 512;
        options.descriptor.vocab_size = 512;
        // What is published leaves again: a cache without a bound would be all that a long run measures.
        options.descriptor.cache_resident_cells = 4096;
        options.record = false;
    }))
}

/// Hands `$with` every call that the two sides of a link pass on as it is: those that change something, and those that only look.
macro_rules! passed_on {
    ($with:ident) => {
        $with! {
            changing {
                fn attach_ring(&mut self, ring: &RingDesc) -> Result<(), Status>;
                fn strategy_register(&mut self, source: &StrategyRegistration, memory: &dyn Memory) -> Result<&StrategyGrant, Status>;
                fn space_match(&mut self, space_id: u32, span: &[u32], media: &[[u8; 32]]) -> Result<&MatchResult, Status>;
                fn space_match_ref(&mut self, space_id: u32, span: &[u32], reference: &TokenRef, media: &[[u8; 32]]) -> Result<&MatchResult, Status>;
                fn seed_acquire(&mut self, span: &[u32], prefix_len: u64, class: u8) -> Result<u64, Status>;
                fn seed_acquire_ref(&mut self, span: &[u32], reference: &TokenRef, prefix_len: u64, class: u8) -> Result<u64, Status>;
                fn seed_release(&mut self, lease: u64) -> Result<(), Status>;
                fn seed_adopt(&mut self, sequence: SeqHandle, span: &[u32]) -> Result<u64, Status>;
                fn seq_fork(&mut self, parent: SeqHandle, flags: u32) -> Result<SeqHandle, Status>;
                fn create_sequence(&mut self) -> Result<SeqHandle, Status>;
                fn free_sequence(&mut self, sequence: SeqHandle) -> Result<(), Status>;
                fn publish_sequence(&mut self, sequence: SeqHandle, tokens: &[u32]) -> Result<(), Status>;
                fn unpublish(&mut self, tokens: &[u32]) -> Result<(), Status>;
                fn cache_evict(&mut self, classes: u64, quota: u64, cap: u64, target: u64) -> Result<u64, Status>;
                fn cache_evict_entries(&mut self, keys: &[CacheKey]) -> Result<(), Status>;
                fn space_export_size(&mut self, sequence: SeqHandle, space_id: u32, range: TokenRange, encoding: u8) -> Result<ExportSize, Status>;
                fn space_snapshot(&mut self, sequence: SeqHandle, space_id: u32, boundary: u64, bytes: u64, sizing: u64) -> Result<OpHandle, Status>;
                fn space_restore(&mut self, sequence: SeqHandle, space_id: u32, sealed: &[u8]) -> Result<OpHandle, Status>;
                fn space_trim(&mut self, sequence: SeqHandle, space_id: u32, len: u64) -> Result<(), Status>;
                fn space_demote(&mut self, sequence: SeqHandle, space_id: u32, range: TokenRange, encoding: u8, bytes: u64, sizing: u64) -> Result<OpHandle, Status>;
                fn space_promote(&mut self, sequence: SeqHandle, space_id: u32, range: TokenRange, sealed: &[u8]) -> Result<OpHandle, Status>;
                fn take_op_output(&mut self, op: OpHandle) -> Option<Vec<u8>>;
                fn op_cancel(&mut self, op: OpHandle) -> Result<(), Status>;
                fn grammar_create(&mut self, schema: &str) -> Result<u32, Status>;
                fn grammar_create_structural(&mut self, document: &str) -> Result<u32, Status>;
                fn grammar_create_regex(&mut self, pattern: &str) -> Result<u32, Status>;
                fn grammar_create_lark(&mut self, grammar: &str) -> Result<u32, Status>;
                fn grammar_free(&mut self, grammar: u32) -> Result<(), Status>;
                fn logit_bias_create(&mut self, tokens: &[i32], addends: &[f32]) -> Result<u32, Status>;
                fn logit_bias_free(&mut self, bias: u32) -> Result<(), Status>;
                fn lora_load(&mut self, path: &str) -> Result<(), Status>;
                fn lora_unload(&mut self) -> Result<(), Status>;
                fn adapter_load(&mut self, path: &str) -> Result<u64, Status>;
                fn adapter_unload(&mut self, adapter: u64) -> Result<(), Status>;
                fn adapter_bind(&mut self, lane_tag: u64, adapter: u64) -> Result<(), Status>;
                fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Status>;
            }
            looking {
                fn last_events(&self) -> Option<EventsView<'_>>;
                fn state_spaces(&self) -> &[StateSpaceDesc];
                fn kv_bits(&self) -> u32;
                fn capability_descriptor(&self) -> Option<&str>;
                fn strategy_certificates(&self) -> &[ExactnessCert];
                fn strategy_identities(&self) -> &[[u8; 32]];
                fn match_candidates(&self) -> &[MatchCandidate];
                fn match_spaces(&self) -> &[ictus::record::SpaceMatch];
                fn seed_lease_ticks(&self) -> Option<u64>;
                fn lane_sequence(&self, lane_tag: u64) -> Option<SeqHandle>;
                fn lora_id(&self) -> Option<[u8; 32]>;
                fn grammar_refusal(&self) -> Option<String>;
            }
        }
    };
}

/// In the worker: to the engine.
macro_rules! to_the_engine {
    (
        changing { $( fn $name:ident(&mut self $(, $arg:ident: $type:ty)*) $(-> $out:ty)?; )* }
        looking { $( fn $look:ident(&self $(, $shown:ident: $kind:ty)*) -> $seen:ty; )* }
    ) => {
        $( fn $name(&mut self $(, $arg: $type)*) $(-> $out)? { Engine::$name(&mut self.engine $(, $arg)*) } )*
        $( fn $look(&self $(, $shown: $kind)*) -> $seen { Engine::$look(&self.engine $(, $shown)*) } )*
    };
}

impl Engine for Probe {
    fn tick(&mut self, plan: &TickPlan, memory: &dyn Memory, rings: &mut dyn Rings) -> Result<EventsView<'_>, Status> {
        self.engine.tick(plan, memory, rings)
    }

    fn forward_stage(
        &mut self,
        tokens: &[u32],
        first: u32,
        end: u32,
        incoming: Option<&[u8]>,
    ) -> Result<StageOutput, Status> {
        if first != COMMANDS {
            return self.engine.forward_stage(tokens, first, end, incoming);
        }
        let command = serde_json::from_slice(incoming.expect("a command")).expect("JSON");
        Ok(StageOutput::Hidden(serde_json::to_vec(&self.obey(&command)).expect("JSON")))
    }

    fn space_snapshot_boundary(&self, sequence: SeqHandle, space_id: u32, cap: u64) -> Result<u64, Status> {
        if space_id != NAMING {
            return self.engine.space_snapshot_boundary(sequence, space_id, cap);
        }
        self.named.set(sequence);
        Ok(0)
    }

    fn pump(&mut self) {
        if !self.held {
            Engine::pump(&mut self.engine);
        }
    }

    fn op_poll(&self, op: OpHandle) -> Result<OpStatus, Status> {
        self.engine.op_poll(op)
    }

    passed_on! { to_the_engine }
}

/// The host's side of a probe: the engine as a host sees it, and its inside as an executor shows it.
pub(crate) struct Inspected {
    engine: RefCell<Box<dyn Engine + Send>>,
    /// As the [`Probe`] is.
    held: bool,
    /// The feeds of the runtime that were sent before.
    feeds: RefCell<Vec<RecordedFeed>>,
}

impl core::fmt::Debug for Inspected {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Inspected")
    }
}

impl Inspected {
    /// `engine` is a [`Probe`], behind a link or not, and `held` what it was made with.
    pub(crate) fn new(engine: impl Engine + Send + 'static, held: bool) -> Self {
        Self { engine: RefCell::new(Box::new(engine)), held, feeds: RefCell::default() }
    }

    fn ask(&self, command: &Value) -> Value {
        let bytes = serde_json::to_vec(command).expect("JSON");
        let mut engine = self.engine.borrow_mut();
        match engine.forward_stage(&[], COMMANDS, 0, Some(&bytes)) {
            Ok(StageOutput::Hidden(answer)) => serde_json::from_slice(&answer).expect("JSON"),
            other => panic!("{command}: {other:?}"),
        }
    }

    fn number(&self, what: &str) -> u64 {
        self.ask(&json!({ "what": what })).as_u64().unwrap_or_else(|| panic!("{what}"))
    }

    /// The next command is about this sequence; answers whether there is one.
    fn name(&self, sequence: SeqHandle) -> bool {
        self.engine.borrow().space_snapshot_boundary(sequence, NAMING, 0).is_ok()
    }

    pub(crate) fn audit(&self) -> Result<(), String> {
        match self.ask(&json!({ "what": "audit" })).as_str() {
            None => Ok(()),
            Some(error) => Err(error.to_owned()),
        }
    }

    pub(crate) fn lane_committed(&self, lane_tag: u64) -> Option<Vec<u32>> {
        tokens(&self.ask(&json!({ "what": "committed", "lane": lane_tag })))
    }

    pub(crate) fn inject_fault(&mut self, lane_tag: u64, code: u32) -> bool {
        self.ask(&json!({ "what": "fault", "lane": lane_tag, "code": code })) == json!(true)
    }

    pub(crate) fn state_digest(&self) -> u64 {
        self.number("digest")
    }

    pub(crate) fn cache_bytes(&self) -> u64 {
        self.number("cache bytes")
    }

    pub(crate) fn cache_exported_tokens(&self) -> u64 {
        self.number("cache exported")
    }

    pub(crate) fn live_sequences(&self) -> usize {
        self.number("live sequences") as usize
    }

    pub(crate) fn match_lengths(&self, span: &[u32]) -> Vec<u64> {
        numbers(&self.ask(&json!({ "what": "match lengths", "tokens": span })))
    }

    pub(crate) fn compat_identity(&self) -> [u8; 32] {
        let bytes = numbers(&self.ask(&json!({ "what": "compat identity" })));
        core::array::from_fn(|at| bytes[at] as u8)
    }

    /// The runtime, to be looked at.
    pub(crate) fn primitives(&self) -> Inside<'_> {
        Inside(self)
    }

    /// The runtime, to be meddled with.
    pub(crate) fn primitives_mut(&mut self) -> Inside<'_> {
        Inside(self)
    }
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().expect("a list").iter().map(|number| number.as_u64().expect("a number")).collect()
}

fn tokens(value: &Value) -> Option<Vec<u32>> {
    (!value.is_null()).then(|| numbers(value).into_iter().map(|token| token as u32).collect())
}

/// The fake runtime of a probe. What an executor lends is leaked here: a test is short.
pub(crate) struct Inside<'i>(&'i Inspected);

/// What the fake counts.
pub(crate) struct Counters {
    pub(crate) cells_used: u64,
}

impl Inside<'_> {
    pub(crate) fn token_for(&self, list: &[u32]) -> u32 {
        let token = self.0.ask(&json!({ "what": "token for", "tokens": list }));
        token.as_u64().expect("a token") as u32
    }

    pub(crate) fn row_for(&self, list: &[u32]) -> Vec<f32> {
        let bits = self.0.ask(&json!({ "what": "row for", "tokens": list }));
        numbers(&bits).into_iter().map(|bits| f32::from_bits(bits as u32)).collect()
    }

    pub(crate) fn contents(&self, sequence: SeqHandle) -> Option<&'static [u32]> {
        let known = self.0.name(sequence);
        let held = known.then(|| tokens(&self.0.ask(&json!({ "what": "contents" })))).flatten();
        held.map(|held| &*held.leak())
    }

    pub(crate) fn mem_counters(&self) -> Counters {
        Counters { cells_used: self.0.number("cells used") }
    }

    pub(crate) fn live_sequences(&self) -> usize {
        self.0.number("sequences of the runtime") as usize
    }

    pub(crate) fn idle_cells(&self) -> &'static [u64] {
        numbers(&self.0.ask(&json!({ "what": "idle cells" }))).leak()
    }

    pub(crate) fn last_sync(&self) -> Option<bool> {
        self.0.ask(&json!({ "what": "last sync" })).as_bool()
    }

    pub(crate) fn feeds(&self) -> &'static [RecordedFeed] {
        let mut known = self.0.feeds.borrow_mut();
        let fresh = self.0.ask(&json!({ "what": "feeds", "from": known.len() }));
        let feed = |feed: &Value| {
            let number = |at: usize| feed[at].as_u64().expect("a number");
            let wants_row = feed[3] == json!(true);
            RecordedFeed { step: number(0), sequence: number(1), len: number(2) as usize, wants_row }
        };
        known.extend(fresh.as_array().expect("a list").iter().map(feed));
        known.clone().leak()
    }

    pub(crate) fn script(&self, sequence: SeqHandle, list: &[u32]) {
        assert!(self.0.name(sequence), "known");
        self.0.ask(&json!({ "what": "script", "tokens": list }));
    }

    pub(crate) fn plant_row(&self, sequence: SeqHandle, row: &[f32]) {
        assert!(self.0.name(sequence), "known");
        let bits: Vec<u32> = row.iter().map(|value| value.to_bits()).collect();
        self.0.ask(&json!({ "what": "plant row", "bits": bits }));
    }

    pub(crate) fn seq_import(&self, sequence: SeqHandle, bytes: &[u8]) -> Result<(), RuntimeError> {
        assert!(self.0.name(sequence), "known");
        let done = self.0.ask(&json!({ "what": "import", "bytes": bytes })) == json!(true);
        if done { Ok(()) } else { Err(RuntimeError::Capacity) }
    }

    pub(crate) fn fail_next_step(&self, error: RuntimeError) {
        let code = match error {
            RuntimeError::Fault(code) => u64::from(code),
            RuntimeError::Capacity => CAPACITY,
            RuntimeError::Unsupported => UNSUPPORTED,
            RuntimeError::UnknownSeq => UNKNOWN_SEQ,
            RuntimeError::OutOfBoundary => OUT_OF_BOUNDARY,
            _ => FATAL,
        };
        self.0.ask(&json!({ "what": "fail", "code": code }));
    }

    pub(crate) fn poison_next_import(&self) {
        self.0.ask(&json!({ "what": "poison import" }));
    }

    pub(crate) fn poison_next_export(&self) {
        self.0.ask(&json!({ "what": "poison export" }));
    }
}

/// On the host's side: to whatever is in the cell.
macro_rules! to_the_cell {
    (
        changing { $( fn $name:ident(&mut self $(, $arg:ident: $type:ty)*) $(-> $out:ty)?; )* }
        looking { $( fn $look:ident(&self $(, $shown:ident: $kind:ty)*) -> $seen:ty; )* }
    ) => {
        $( fn $name(&mut self $(, $arg: $type)*) $(-> $out)? { self.engine.get_mut().$name($($arg),*) } )*
        $( fn $look(&self $(, $shown: $kind)*) -> $seen {
            // SAFETY: nobody borrows the cell mutably while what is lent here lives: the test is one thread, and the calls that do borrow
            // it end before they return.
            unsafe { (*self.engine.as_ptr()).$look($($shown),*) }
        } )*
    };
}

impl Engine for Inspected {
    fn tick(&mut self, plan: &TickPlan, memory: &dyn Memory, rings: &mut dyn Rings) -> Result<EventsView<'_>, Status> {
        self.engine.get_mut().tick(plan, memory, rings)
    }

    fn space_snapshot_boundary(&self, sequence: SeqHandle, space_id: u32, cap: u64) -> Result<u64, Status> {
        self.engine.borrow().space_snapshot_boundary(sequence, space_id, cap)
    }

    fn pump(&mut self) {
        if self.held {
            self.ask(&json!({ "what": "pump" }));
        }
        // What ended meanwhile is told.
        self.engine.get_mut().pump();
    }

    fn op_poll(&self, op: OpHandle) -> Result<OpStatus, Status> {
        let mut status = self.engine.borrow().op_poll(op)?;
        // How far an operation is that runs has no message.
        if self.held && status.state < op_state::DONE {
            let inside = numbers(&self.ask(&json!({ "what": "operation", "operation": op })));
            (status.state, status.bytes_moved) = (inside[0] as u8, inside[1]);
        }
        Ok(status)
    }

    passed_on! { to_the_cell }
}

impl EngineInspect for Inspected {
    fn lane_committed(&self, lane_tag: u64) -> Option<Vec<u32>> {
        Self::lane_committed(self, lane_tag)
    }

    fn inject_fault(&mut self, lane_tag: u64, code: u32) {
        Self::inject_fault(self, lane_tag, code);
    }

    fn state_digest(&self) -> u64 {
        Self::state_digest(self)
    }

    fn audit(&self) {
        Self::audit(self).expect("the engine is sound");
    }
}
