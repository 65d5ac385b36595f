#![forbid(unsafe_code)]
//! The executor: an [`Engine`](crate::engine::Engine) over any [`Runtime`], one tick at a time.
//!
//! A tick is a pipeline. Each stage is a file or a folder, and a function from one type to the next:
//!
//! ```text
//!   TickPlan --decode plan--> Decoded --validate--> Valid --reserve--> Reserved
//!   plan.rs                   validate.rs           reserve/              |
//!                                                                         |  accepted: nothing is refused any more
//!             .-----------------------------------------------------------'
//!             v
//!          settle ----> Settled --prefill--> Prefilled --decode--> Finished --report--> events
//!          settle/               prefill.rs             decode.rs           report.rs
//! ```
//!
//! The stages of the first line borrow the engine shared: the compiler sees to it that a refused plan changes nothing (T-3).
//! The stages of the second line share a `Run`; they fail only when the runtime is broken, and then the engine is
//! (T-136).
//!
//! ```
//! use ictus::engine::{Engine, PlanBuilder};
//! use ictus::executor::Executor;
//! use ictus::ring::{MemoryRings, Rings};
//! use ictus::runtime::FakeRuntime;
//!
//! let mut engine = Executor::new(FakeRuntime::default());
//! let mut rings = MemoryRings::new();
//! let prompt = rings.stage_prompt(&[10, 20, 30]);
//! // One plan admits lane 7, runs its prompt, and grants it four tokens.
//! let (plan, memory) = PlanBuilder::new(1).admit(7, prompt).prefill(7, 0, 3).decode(7, 4).build();
//! let events = engine.tick(&plan, &memory, &mut rings)?;
//! let mut tokens = Vec::new();
//! rings.read_tokens(&events.emits[0].token_ref, &mut tokens)?;
//! assert_eq!(tokens, [19927, 17910, 10995, 14421]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Beside the stages lie the parts:
//!
//! | file | what |
//! |---|---|
//! | `lane.rs`, `lanes.rs` | one lane and its phases; all of them by tag |
//! | `recipe.rs`, `constraint.rs` | how a lane picks its tokens; the grammar it has borrowed |
//! | `step.rs`, `ahead.rs` | the two places where sequences grow: a step, and one that is begun while another is under way |
//! | `replay.rs`, `evaluate.rs` | parts of decode: replayed tails; an answer becomes a token |
//! | `draft.rs`, `verify.rs` | drafts inside rounds: proposed and fed; picked from and cut back |
//! | `draft_model.rs` | a second runtime that drafts |
//! | `speculation.rs` | registered strategies, the gate, the model that drafts |
//! | `pace.rs` | how long prefill steps may be |
//! | `sequences.rs` | who owns which sequence, and what it carries from owner to owner |
//! | `cache.rs`, `checkpoint.rs` | what the prefix cache decides, carried out; copies on runtimes that cannot cut |
//! | `guests.rs` | sequences of another facade in the same pool |
//! | `state.rs`, `events.rs` | what a tick leaves behind |
//! | `spaces.rs`, `transfers.rs` | what each kind of state allows; state operations at work |
//! | `trace.rs` | what a timeline is told |
//! | `capacity.rs`, `workspace.rs` | what the one coordinator is told; what steps are charged |
//! | `adapters.rs`, `capability.rs` | adapters by lane; what the engine says it can do |
//! | `engine/`, `inspect.rs` | the surface to the host, a file per area; the surface to tests |
//!
//! # Invariants
//! - A lane's tokens depend on its admit and its prompt alone: not on the order of a plan, on other lanes, on the chunking, or
//!   on where a tick was asked to end. What depends on the lane alone is asked of the runtime for the lane alone.
//! - A tag is looked up once per record, in constant time; no stage searches.
//! - A tick in the steady state, every lane decoding, allocates nothing.
//!
//! # Limits
//! Lanes per decode step: the runtime's `max_batch`. Tokens per lane: its `max_seq_len`. State: its cells and slots.
//!
//! # Not here
//! Media: the engine answers that it does not offer them.
//! Prefill and decode run in steps of their own; one step could take both.

mod adapters;
mod ahead;
mod cache;
mod capability;
mod capacity;
mod checkpoint;
mod constraint;
mod decode;
mod departures;
mod draft;
mod draft_model;
mod engine;
mod evaluate;
mod events;
mod guests;
mod inspect;
mod lane;
mod lanes;
mod pace;
mod plan;
mod prefill;
mod recipe;
mod replay;
mod report;
mod reserve;
mod run;
mod sequences;
mod settle;
mod spaces;
mod speculation;
mod state;
mod step;
mod tags;
mod trace;
mod transfers;
mod validate;
mod verify;
mod workspace;

use std::time::Instant;

use crate::capacity::{self as coordinator, Domain, Ledger};
use crate::grammar::{Grammars, Limits, SharedCompiler};
use crate::record::constant::tick_flag;
use crate::record::view::Memory;
use crate::record::{Status, TickPlan};
use crate::ring::Rings;
use crate::runtime::Runtime;
use crate::timeline::Timeline;

pub use capability::capability_without_model;
pub use draft_model::DraftModel;
use engine::Grant;
use events::Events;
pub(crate) use guests::{Chore, Chores, Resident, TickEvents};
use run::{Job, Run, StepBuffers};
pub use state::AuditError;
use state::State;

/// How an executor behaves; the host chooses once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorOptions {
    /// Accepted ticks that a seed lease lives (S-43).
    pub seed_ttl_ticks: u64,
    /// Bytes of state operations that a submission, a pump or a tick moves before it goes on (S-90); at least one token moves. With 0 a
    /// submission moves nothing.
    pub op_slice_bytes: u64,
    /// Bytes of entries of the cache on their way to host memory that a pump or a tick copies before it goes on (S-99); at least one token.
    pub cache_slice_bytes: u64,
    /// Seal exports with XXH3-64 instead of FNV-1a-64: many times as fast, and read only by engines that take both (S-72).
    pub op_fast_checksum: bool,
    /// What grammars may cost.
    pub grammar_limits: Limits,
}

impl Default for ExecutorOptions {
    fn default() -> Self {
        let grammar_limits = Limits::default();
        let slice = 4 << 20;
        Self {
            seed_ttl_ticks: 64,
            op_slice_bytes: slice,
            cache_slice_bytes: slice,
            op_fast_checksum: false,
            grammar_limits,
        }
    }
}

/// An engine over a runtime.
#[derive(Debug)]
pub struct Executor<R> {
    state: State<R>,
    /// Opens draft models; none where there are no files.
    draft_models: Option<Box<dyn crate::speculate::DraftModels>>,
    grant: Grant,
    events: Events,
    buffers: Buffers,
    matches: engine::Matches,
    /// What this engine can do, as JSON.
    capability: String,
    /// Why the last registration of a strategy was refused.
    strategy_refusal: Option<String>,
    /// Why the last adapter was refused.
    adapter_refusal: Option<String>,
    timeline: Option<Box<Timeline>>,
}

/// Lists that the stages fill anew in every tick; what they hold between ticks means nothing.
#[derive(Debug, Default)]
struct Buffers {
    plan: plan::PlanBuffers,
    valid: validate::ValidBuffers,
    reserve: reserve::ReserveBuffers,
    jobs: Vec<Job>,
    steps: StepBuffers,
}

impl<R: Runtime> Executor<R> {
    /// An engine without lanes, with the default options.
    pub fn new(runtime: R) -> Self {
        Self::with_options(runtime, ExecutorOptions::default())
    }

    /// An engine without lanes.
    pub fn with_options(runtime: R, options: ExecutorOptions) -> Self {
        let state = State::new(runtime, options);
        let capability = capability::capability(&state.descriptor, state.runtime.lists_vocabulary());
        Self {
            state,
            draft_models: None,
            grant: Grant::default(),
            events: Events::none(),
            buffers: Buffers::default(),
            matches: engine::Matches::default(),
            capability,
            strategy_refusal: None,
            adapter_refusal: None,
            timeline: None,
        }
    }

    /// Shares the compiler of grammars with other engines of the same vocabulary and limits. Called before there is a grammar.
    pub fn with_grammar_compiler(mut self, compiler: SharedCompiler) -> Self {
        self.state.grammars = Grammars::new(self.state.options.grammar_limits.clone(), compiler);
        self
    }

    /// Runs one plan: the pipeline of the module's picture.
    fn run_plan(&mut self, plan: &TickPlan, memory: &dyn Memory, rings: &mut dyn Rings) -> Result<(), Status> {
        let started = Instant::now();
        if self.state.broken {
            return Err(Status::Fatal);
        }
        let Self { state, events, buffers, timeline, .. } = self;

        let decoded = plan::decode(plan, memory, &state.lanes, &mut buffers.plan)?;
        validate::check_header(&decoded, state)?;
        state.sweep_leases();
        let valid = validate::validate(decoded, state, rings, &mut buffers.valid)?;
        let reserved = reserve::reserve(valid, state, &mut buffers.reserve)?;

        let partial_emit = reserved.partial_emit();
        let claimed = reserved.claimed;
        state.draft_cells = reserved.draft_cells;
        let timeline = timeline.as_deref_mut();
        let mut run = Run { state, rings, events, steps: &mut buffers.steps, partial_emit, timeline };
        run.trace_start(started);
        run.state.runtime.allow_capture(plan.flags & tick_flag::CAPTURE_OK != 0);
        // What guests did between two ticks is in neither.
        run.state.runtime.take_graph_counts();
        let outcome = settle::settle(reserved, &mut buffers.jobs, &mut run)
            .inspect(|_| run.trace_phase("settle"))
            .and_then(|settled| prefill::prefill(settled, &mut run))
            .inspect(|_| run.trace_phase("prefill"))
            .and_then(|prefilled| decode::decode(prefilled, &mut run))
            .inspect(|_| run.trace_phase("decode"))
            .map(|finished| report::report(finished, started, &mut run));
        run.state.broken = outcome.is_err();
        run.state.runtime.allow_capture(false);
        // A run has ended, and its scratch memory is free again, whether or not it went well (X-21).
        run.state.restate(&claimed, Domain::Workspace.bit() | Domain::Flight.bit());
        if outcome.is_err() {
            run.state.ledger.close();
        }
        Ok(outcome?)
    }

    /// The coordinator of this core, for whoever claims beside the ticks; as long as there is another holder, ticks claim what they need.
    pub fn ledger(&self) -> &Ledger {
        &self.state.ledger
    }

    /// What a coordinator of a core with this runtime counts; bytes that never change are not among it.
    pub fn limits(&self) -> coordinator::Limits {
        capacity::limits(&self.state.descriptor)
    }

    /// Counts on this coordinator instead of one of its own. Called before there is a lane.
    pub fn with_ledger(mut self, ledger: Ledger) -> Self {
        self.state.ledger = ledger;
        self.state.restate(&coordinator::NOTHING, 0);
        self
    }

    /// Charges every step so many bytes of workspace, and so many for each of its tokens.
    pub fn charging_workspace(mut self, step_bytes: u64, token_bytes: u64) -> Self {
        self.state.workspace = workspace::WorkspaceCost { step_bytes, token_bytes };
        self
    }

    /// Leaves whom a call has made ready to its caller, who wakes them when it holds no lock (X-26).
    pub fn waking_later(mut self) -> Self {
        self.state.wakes_later = true;
        self
    }

    /// Those who waited for what the last calls gave back.
    pub fn take_woken(&mut self) -> coordinator::Woken {
        std::mem::take(&mut self.state.woken)
    }
}
