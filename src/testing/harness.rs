#![forbid(unsafe_code)]
//! An engine with its rings, driven plan by plan.

use super::{EngineInspect, Events, StageRings};
use crate::engine::{Engine, PlanBuilder};
use crate::record::view::Memory;
use crate::record::{Status, TickPlan, TokenRef};
use crate::ring::MemoryRings;

/// An engine, its rings and the number of the next plan.
#[derive(Debug)]
pub struct Harness<E, R = MemoryRings> {
    /// The engine under test.
    pub engine: E,
    /// Its rings, host end and engine end.
    pub rings: R,
    /// The number that the next plan gets; starts at 1.
    pub next_seq: u64,
    /// What plans say of themselves; 8 unless changed.
    pub max_decode_lanes: u32,
    /// `TICK_FLAG_*` of all plans; 0 unless changed.
    pub plan_flags: u32,
}

impl<E: Engine> Harness<E> {
    /// An engine with in-memory rings of the default shape.
    pub fn with_engine(engine: E) -> Self {
        Self::with_engine_and_rings(engine, MemoryRings::new())
    }
}

impl<E: Engine, R: StageRings> Harness<E, R> {
    /// An engine with these rings.
    pub fn with_engine_and_rings(engine: E, rings: R) -> Self {
        Self { engine, rings, next_seq: 1, max_decode_lanes: 8, plan_flags: 0 }
    }

    /// Changes how many decode records plans allow themselves.
    pub fn with_max_decode_lanes(mut self, lanes: u32) -> Self {
        self.max_decode_lanes = lanes;
        self
    }

    /// Changes the flags that plans have.
    pub fn with_plan_flags(mut self, flags: u32) -> Self {
        self.plan_flags = flags;
        self
    }

    /// A plan with the next number, which is used up even if the plan is refused.
    pub fn plan(&mut self) -> PlanBuilder {
        let plan = PlanBuilder::new(self.next_seq).max_decode_lanes(self.max_decode_lanes).flags(self.plan_flags);
        self.next_seq += 1;
        plan
    }

    /// Runs a plan.
    ///
    /// # Errors
    /// The status of the engine.
    pub fn tick(&mut self, plan: PlanBuilder) -> Result<Events, Status> {
        let (plan, memory) = plan.build();
        self.tick_record(&plan, &memory)
    }

    /// Runs a plan given as a record, whose arrays lie in `memory`.
    ///
    /// # Errors
    /// The status of the engine.
    pub fn tick_record(&mut self, plan: &TickPlan, memory: &dyn Memory) -> Result<Events, Status> {
        let view = self.engine.tick(plan, memory, &mut self.rings)?;
        Ok(Events::of(&view))
    }

    /// Runs a plan that must be accepted.
    ///
    /// # Panics
    /// When it is not.
    #[track_caller]
    pub fn tick_ok(&mut self, plan: PlanBuilder) -> Events {
        match self.tick(plan) {
            Ok(events) => events,
            Err(status) => panic!("the plan was refused: {status}"),
        }
    }

    /// Runs a plan that must be refused.
    ///
    /// # Panics
    /// When it is accepted.
    #[track_caller]
    pub fn tick_err(&mut self, plan: PlanBuilder) -> Status {
        match self.tick(plan) {
            Ok(events) => panic!("the plan was accepted: {events:?}"),
            Err(status) => status,
        }
    }

    /// Stages a prompt.
    pub fn prompt(&mut self, tokens: &[u32]) -> TokenRef {
        self.rings.stage_prompt(tokens)
    }

    /// The ids behind a reference.
    ///
    /// # Panics
    /// When the slot is stale or the reference is wrong.
    #[track_caller]
    pub fn rings_tokens(&self, reference: &TokenRef) -> Vec<u32> {
        let mut tokens = Vec::new();
        match self.rings.read_tokens(reference, &mut tokens) {
            Ok(()) => tokens,
            Err(error) => panic!("the reference cannot be read: {error}"),
        }
    }

    /// The tokens a lane emitted in a tick.
    ///
    /// # Panics
    /// When it has no emit, or the emit's count and its reference differ (T-140).
    #[track_caller]
    pub fn tokens_of(&self, events: &Events, lane_tag: u64) -> Vec<u32> {
        let Some(emit) = events.emit_for(lane_tag) else { panic!("lane {lane_tag} has no emit: {events:?}") };
        let tokens = self.rings_tokens(&emit.token_ref);
        assert_eq!(tokens.len(), emit.n_tokens as usize, "T-140: the count of the emit");
        tokens
    }
}

impl<E: EngineInspect, R: StageRings> Harness<E, R> {
    /// The committed tokens of a live lane.
    ///
    /// # Panics
    /// When the lane is not live.
    #[track_caller]
    pub fn committed(&self, lane_tag: u64) -> Vec<u32> {
        match self.engine.lane_committed(lane_tag) {
            Some(tokens) => tokens,
            None => panic!("lane {lane_tag} is not live"),
        }
    }

    /// Runs a plan that must be refused, twice, and answers the status.
    ///
    /// # Panics
    /// When it is accepted, when the two refusals differ, or when one leaves a trace: in the engine, in the rings or in the
    /// events of the tick before (T-3).
    #[track_caller]
    pub fn refused(&mut self, plan: PlanBuilder) -> Status {
        let (plan, memory) = plan.build();
        self.refused_record(&plan, &memory)
    }

    /// As [`Harness::refused`], for a plan given as a record.
    ///
    /// # Panics
    /// As there.
    #[track_caller]
    pub fn refused_record(&mut self, plan: &TickPlan, memory: &dyn Memory) -> Status {
        let before = self.trace();
        let mut attempt = || match self.tick_record(plan, memory) {
            Ok(events) => panic!("the plan was accepted: {events:?}"),
            Err(status) => (status, self.trace()),
        };
        let (first, after) = attempt();
        assert_eq!(after, before, "a refusal with {first} leaves no trace");
        let (second, after) = attempt();
        assert_eq!(second, first, "the same plan is refused for the same reason");
        assert_eq!(after, before, "a second refusal with {first} leaves no trace");
        assert!(first.is_plan_rejection(), "{first} is a plan rejection");
        first
    }

    /// Everything that a refused plan must leave alone (T-3).
    fn trace(&self) -> (u64, u64, String) {
        let events = self.engine.last_events().map(|view| Events::of(&view));
        (self.engine.state_digest(), self.rings.rings_digest(), format!("{events:?}"))
    }
}
