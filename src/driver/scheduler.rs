#![forbid(unsafe_code)]
//! The requests of a driver, and one tick after the other for them.
//!
//! ```text
//!   step:  expire -> admit (admission.rs) -> draft a plan (draft.rs) -> tick
//!                                                ^                       |
//!                                                |  refused: less of it  |  accepted: events (settle.rs)
//!                                                `--- ladder.rs ---------'
//! ```
//!
//! The scheduler does not own the engine: it is handed in for each step.
//!
//! # Invariants
//! - A request is in exactly one place: waiting, on a lane, or gone with its last event out.
//! - What the driver made in the engine (leases, grammars, bias lists) is held by a job or listed in `garbage`.
//! - One step runs at most one accepted tick, but for the probe of a broken agreement.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::chain::{Beginnings, chain};
use super::clock::Clock;
use super::event::{Event, EventKind, Failure, Finish, Piece, Stats};
use super::job::{Handles, Job, Live};
use super::lanes::{Lanes, Slot};
use super::options::DriverOptions;
use super::output::Output;
use super::pace::Pace;
use super::pool::Pool;
use super::rank::Rank;
use super::request::{Checked, Grammar, Limits, RequestId};
use crate::engine::{Engine, PlanBuilder};
use crate::record::Status;
use crate::record::constant::space_flag;
use crate::ring::{MemoryRingShape, MemoryRings};

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The engine ticked, or requests ended; there may be more to do.
    Worked,
    /// The engine refused every plan for now, because its host moves the state of a lane; try again later.
    Stalled,
    /// There is nothing to do until something is submitted.
    Idle,
}

/// Where a request is.
#[derive(Clone, Copy, Debug)]
enum Place {
    Waiting(Rank),
    Lane(Slot),
}

/// A lane to end with the next plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retire {
    pub(super) lane_tag: u64,
    pub(super) publish: bool,
}

/// Something of the engine's that nobody needs any more.
#[derive(Clone, Copy, Debug)]
pub(super) enum Garbage {
    Lease(u64),
    Grammar(u32),
    Bias(u32),
    /// An adapter that waits for the admit of a tag.
    Binding(u64),
}

/// The requests of a driver.
pub(super) struct Scheduler {
    pub(super) options: DriverOptions,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) limits: Limits,
    pub(super) rings: MemoryRings,
    pub(super) lanes: Lanes,
    pub(super) waiting: BTreeMap<Rank, Job>,
    places: HashMap<RequestId, Place>,
    deadlines: BTreeSet<(Duration, RequestId)>,
    grammars: HashSet<u32>,
    pub(super) retires: Vec<Retire>,
    pub(super) garbage: Vec<Garbage>,
    pub(super) events: VecDeque<Event>,
    pub(super) beginnings: Beginnings,
    pub(super) pool: Pool,
    pub(super) pace: Pace,
    /// The engine keeps published state and matches it.
    pub(super) caches: bool,
    /// The engine forks a live lane and publishes the copy.
    pub(super) forks: bool,
    /// No room was found while this much was used and this many lanes ran; until one of them changes, or the tick.
    pub(super) no_room: Option<(u64, usize, u64)>,
    /// A lane that shall give way to a request of a higher priority.
    pub(super) gives_way: Option<Slot>,
    /// Tokens of an emit, while they are booked.
    pub(super) emitted: Vec<u32>,
    pub(super) ticks: u64,
    pub(super) broken: bool,
}

impl core::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Scheduler")
            .field("waiting", &self.waiting.len())
            .field("lanes", &self.lanes.len())
            .field("ticks", &self.ticks)
            .finish_non_exhaustive()
    }
}

impl Scheduler {
    /// Learns what the engine takes. It ticks empty plans to find the most lanes of a plan, unless the wish is granted at once.
    ///
    /// # Errors
    /// `RejectBudget`: the engine takes no lane at all; another status of an empty plan.
    pub(super) fn new(engine: &mut dyn Engine, options: DriverOptions, clock: Arc<dyn Clock>) -> Result<Self, Status> {
        let lanes = most_lanes(engine, options.max_lanes)?;
        let shape = MemoryRingShape { token_slots: (lanes * 2).max(64), logits_slots: 1, ..MemoryRingShape::default() };
        let space = engine.state_spaces().first().copied();
        let caches = space.is_some_and(|space| space.flags & space_flag::NO_PREFIX_CACHE == 0);
        let mut pool = Pool::new(space.as_ref());
        if let Some(view) = engine.last_events() {
            pool.update(&view.record.mem);
        }
        Ok(Self {
            limits: Limits::new(&options, None),
            pace: Pace::new(options.tick_tokens, options.tick_target),
            clock,
            rings: MemoryRings::with_shape(shape),
            lanes: Lanes::new(lanes),
            waiting: BTreeMap::new(),
            places: HashMap::new(),
            deadlines: BTreeSet::new(),
            grammars: HashSet::new(),
            retires: Vec::new(),
            garbage: Vec::new(),
            events: VecDeque::new(),
            beginnings: Beginnings::default(),
            pool,
            caches,
            forks: caches,
            no_room: None,
            gives_way: None,
            emitted: Vec::new(),
            ticks: 0,
            broken: false,
            options,
        })
    }

    /// Whether nothing is to be done: no request, and nothing of one left in the engine.
    pub(super) fn is_idle(&self) -> bool {
        self.broken
            || (self.lanes.is_empty() && self.waiting.is_empty() && self.retires.is_empty() && self.garbage.is_empty())
    }

    /// Takes a request over. `submitted` is when the host asked.
    pub(super) fn enqueue(&mut self, id: RequestId, checked: Checked, submitted: Duration) {
        let Checked { request, tokens } = checked;
        let stats = Stats { prompt_tokens: tokens.len() as u64, ..Stats::default() };
        let page_tokens = usize::try_from(self.pool.page_tokens).unwrap_or(usize::MAX);
        let shares = self.forks && self.options.share_min_tokens > 0;
        let job = Job {
            id,
            rank: Rank::new(submitted, request.priority, self.options.ageing, id),
            prompt_len: tokens.len(),
            chain: if shares { chain(&tokens, page_tokens, request.adapter) } else { Box::default() },
            output: Output::new(&request, self.limits.words.clone()),
            expires: request.deadline.map(|deadline| submitted.saturating_add(deadline)),
            tokens,
            stats,
            submitted,
            handles: Handles::default(),
            started: false,
            out_of_memory: 0,
            request,
        };
        if self.broken {
            return self.finish(job, Finish::Failed(Failure::EngineFatal));
        }
        if let Grammar::Handle(handle) = job.request.grammar
            && !self.grammars.insert(handle)
        {
            let Job { id, mut stats, .. } = job;
            stats.total = self.clock.now().saturating_sub(submitted);
            return self.say_finished(id, Finish::Failed(Failure::GrammarInUse), stats);
        }
        if let Some(expires) = job.expires {
            self.deadlines.insert((expires, id));
        }
        if self.waiting.first_key_value().is_none_or(|(&first, _)| job.rank < first) {
            self.no_room = None;
        }
        self.wait(job);
    }

    /// Puts a job among the waiting ones.
    pub(super) fn wait(&mut self, job: Job) {
        self.places.insert(job.id, Place::Waiting(job.rank));
        self.waiting.insert(job.rank, job);
    }

    /// Notes that a job is on a lane.
    pub(super) fn place_on_lane(&mut self, id: RequestId, slot: Slot) {
        self.places.insert(id, Place::Lane(slot));
    }

    /// Ends a request, wherever it is. Answers whether it was there.
    pub(super) fn end(&mut self, id: RequestId, finish: Finish) -> bool {
        match self.places.get(&id).copied() {
            Some(Place::Waiting(rank)) => {
                if let Some(job) = self.waiting.remove(&rank) {
                    self.finish(job, finish);
                }
                true
            }
            Some(Place::Lane(slot)) => {
                self.leave(slot, finish);
                true
            }
            None => false,
        }
    }

    /// Ends the request on a lane, and the lane with the next plan.
    pub(super) fn leave(&mut self, slot: Slot, finish: Finish) {
        let Some(live) = self.take_off(slot) else { return };
        if !live.fresh {
            let failed = matches!(finish, Finish::Failed(_));
            let publish = self.caches && live.job.request.publish && !failed;
            self.retires.push(Retire { lane_tag: live.lane_tag, publish });
        }
        self.finish(live.job, finish);
    }

    /// Takes a job off its lane, its unused lease with it.
    pub(super) fn take_off(&mut self, slot: Slot) -> Option<Live> {
        let live = self.lanes.remove(slot)?;
        self.beginnings.remove(&live.job.chain, slot);
        if live.lease != 0 {
            self.garbage.push(Garbage::Lease(live.lease));
        }
        if live.fresh && live.job.request.adapter != 0 {
            self.garbage.push(Garbage::Binding(live.lane_tag));
        }
        Some(live)
    }

    /// Says the last of a request, and drops what it had in the engine.
    pub(super) fn finish(&mut self, mut job: Job, finish: Finish) {
        let mut finish = finish;
        if !matches!(finish, Finish::StopString(_)) {
            let mut piece = Piece::default();
            let stop = job.output.finish(&mut piece.text);
            if !piece.text.is_empty() {
                self.events.push_back(Event { request: job.id, kind: EventKind::Tokens(piece) });
            }
            finish = stop.unwrap_or(finish);
        }
        self.drop_handles(&job);
        self.places.remove(&job.id);
        if let Some(expires) = job.expires {
            self.deadlines.remove(&(expires, job.id));
        }
        job.stats.total = self.clock.now().saturating_sub(job.submitted);
        self.say_finished(job.id, finish, job.stats);
    }

    fn drop_handles(&mut self, job: &Job) {
        if let Grammar::Handle(handle) = job.request.grammar {
            self.grammars.remove(&handle);
        }
        if job.handles.grammar != 0 && !job.handles.grammar_borrowed {
            self.garbage.push(Garbage::Grammar(job.handles.grammar));
        }
        if job.handles.bias != 0 {
            self.garbage.push(Garbage::Bias(job.handles.bias));
        }
    }

    fn say_finished(&mut self, id: RequestId, finish: Finish, stats: Stats) {
        self.events.push_back(Event { request: id, kind: EventKind::Finished { finish, stats } });
    }

    /// Ends all requests. A lane goes with the next plan, if there is one.
    pub(super) fn end_all(&mut self, finish: &Finish) {
        for slot in self.lanes.order().to_vec() {
            self.leave(slot, finish.clone());
        }
        while let Some((_, job)) = self.waiting.pop_first() {
            self.finish(job, finish.clone());
        }
    }

    /// The engine is broken: everything ends with that.
    pub(super) fn break_down(&mut self) {
        self.end_all(&Finish::Failed(Failure::EngineFatal));
        self.broken = true;
        self.retires.clear();
        self.garbage.clear();
    }

    /// Ends what is past its deadline.
    fn expire(&mut self) {
        let Some(&(first, _)) = self.deadlines.first() else { return };
        let now = self.clock.now();
        if first > now {
            return;
        }
        while let Some(&(expires, id)) = self.deadlines.first()
            && expires <= now
        {
            self.deadlines.pop_first();
            self.end(id, Finish::DeadlineExpired);
        }
    }

    /// Gives back what nobody needs any more.
    pub(super) fn sweep(&mut self, engine: &mut dyn Engine) {
        for garbage in self.garbage.drain(..) {
            // What the engine does not know any more (an expired lease) is gone as well.
            let _ = match garbage {
                Garbage::Lease(lease) => engine.seed_release(lease),
                Garbage::Grammar(grammar) => engine.grammar_free(grammar),
                Garbage::Bias(bias) => engine.logit_bias_free(bias),
                Garbage::Binding(lane_tag) => engine.adapter_bind(lane_tag, 0),
            };
        }
    }

    /// One plan, one tick, and what comes of it.
    pub(super) fn step(&mut self, engine: &mut dyn Engine) -> Progress {
        if self.broken {
            return Progress::Idle;
        }
        let events = self.events.len();
        self.expire();
        self.sweep(engine);
        self.admit(engine);
        let progress = self.run(engine);
        self.sweep(engine);
        match progress {
            Progress::Idle if self.events.len() > events => Progress::Worked,
            progress => progress,
        }
    }
}

/// The most lanes that a plan of this engine may name, up to a wish. An empty plan asks (T-19).
fn most_lanes(engine: &mut dyn Engine, wish: u32) -> Result<u32, Status> {
    let mut rings = MemoryRings::new();
    let mut takes = |lanes: u32| {
        let (plan, arena) = PlanBuilder::new(next_plan_seq(engine)).max_decode_lanes(lanes).build();
        match engine.tick(&plan, &arena, &mut rings) {
            Ok(_) => Ok(true),
            Err(Status::RejectBudget) => Ok(false),
            Err(status) => Err(status),
        }
    };
    if takes(wish)? {
        return Ok(wish);
    }
    // What is known: `low` is taken, `high` is not.
    let (mut low, mut high) = (0, wish);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if takes(middle)? { low = middle } else { high = middle }
    }
    if low == 0 { Err(Status::RejectBudget) } else { Ok(low) }
}

/// A number that the next plan may carry (T-18), also when somebody else ticked in between.
pub(super) fn next_plan_seq(engine: &dyn Engine) -> u64 {
    engine.last_events().map_or(1, |view| view.record.plan_seq.saturating_add(1))
}
