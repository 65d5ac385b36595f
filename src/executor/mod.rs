#![forbid(unsafe_code)]
//! The executor: an [`Engine`](crate::engine::Engine) over any [`Runtime`], one tick at a time.
//!
//! A tick is a pipeline. Each stage is a file, and a function from one type to the next:
//!
//! ```text
//!   TickPlan --decode plan--> Decoded --validate--> Valid --reserve--> Reserved
//!   plan.rs                   validate.rs           reserve.rs            |
//!                                                                         |  accepted: nothing is refused any more
//!             .-----------------------------------------------------------'
//!             v
//!          settle ----> Settled --prefill--> Prefilled --decode--> Finished --report--> events
//!          settle.rs             prefill.rs             decode.rs           report.rs
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
//! | `recipe.rs` | how a lane picks its tokens |
//! | `step.rs` | the one place where sequences grow |
//! | `replay.rs`, `evaluate.rs` | parts of decode: replayed tails; an answer becomes a token |
//! | `pace.rs` | how long prefill steps may be |
//! | `state.rs`, `events.rs` | what a tick leaves behind |
//! | `engine.rs`, `inspect.rs` | the surface to the host, and to tests |
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
//! Prefix cache and seeds, state operations, grammars, speculation, media: the engine answers that it does not offer them.
//! Prefill and decode run in steps of their own; one step could take both.

mod decode;
mod engine;
mod evaluate;
mod events;
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
mod settle;
mod state;
mod step;
mod tags;
mod validate;

use std::time::Instant;

use crate::record::view::Memory;
use crate::record::{StateSpaceDesc, Status, TickPlan};
use crate::ring::Rings;
use crate::runtime::{Runtime, SeqHandle};

use events::Events;
use run::{Job, Run, StepBuffers};
pub use state::AuditError;
use state::State;

/// An engine over a runtime.
#[derive(Debug)]
pub struct Executor<R> {
    state: State<R>,
    events: Events,
    spaces: [StateSpaceDesc; 1],
    buffers: Buffers,
}

/// Lists that the stages fill anew in every tick; what they hold between ticks means nothing.
#[derive(Debug, Default)]
struct Buffers {
    plan: plan::PlanBuffers,
    valid: validate::ValidBuffers,
    leaving: Vec<SeqHandle>,
    jobs: Vec<Job>,
    steps: StepBuffers,
}

impl<R: Runtime> Executor<R> {
    /// An engine without lanes.
    pub fn new(runtime: R) -> Self {
        let state = State::new(runtime);
        let spaces = [engine::kv_space(&state.descriptor)];
        Self { state, events: Events::none(), spaces, buffers: Buffers::default() }
    }

    /// Runs one plan: the pipeline of the module's picture.
    fn run_plan(&mut self, plan: &TickPlan, memory: &dyn Memory, rings: &mut dyn Rings) -> Result<(), Status> {
        let started = Instant::now();
        if self.state.broken {
            return Err(Status::Fatal);
        }
        let Self { state, events, buffers, .. } = self;

        let decoded = plan::decode(plan, memory, &state.lanes, &mut buffers.plan)?;
        let valid = validate::validate(decoded, state, rings, &mut buffers.valid)?;
        let reserved = reserve::reserve(valid, state, &mut buffers.leaving)?;

        let partial_emit = reserved.partial_emit();
        let mut run = Run { state, rings, events, steps: &mut buffers.steps, partial_emit };
        let outcome = settle::settle(reserved, &mut buffers.jobs, &mut run)
            .and_then(|settled| prefill::prefill(settled, &mut run))
            .and_then(|prefilled| decode::decode(prefilled, &mut run))
            .map(|finished| report::report(finished, started, &mut run));
        run.state.broken = outcome.is_err();
        Ok(outcome?)
    }
}
