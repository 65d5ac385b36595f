//! A host that plans at random, and knows what must come of it.

use std::collections::{BTreeMap, BTreeSet};

use ictus::engine::{Engine, PlanBuilder};
use ictus::executor::Executor;
use ictus::record::constant::{admit_status, finish, sampling, sampling_flag, tick_flag, tick_status};
use ictus::record::view::Plain;
use ictus::record::{SamplingParams, Status, TokenRef};
use ictus::runtime::{FakeRuntime, Runtime, SamplingSupport};
use ictus::testing::{Events, Harness};

use super::lane::{Lane, Outcome};
use super::random::Random;

/// The engine that a host drives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) cells: u64,
    pub(crate) slots: u32,
    pub(crate) context: u64,
    pub(crate) vocab: u32,
    pub(crate) prefill_step: u32,
    /// How much the runtime picks itself: 0 nothing, 3 everything.
    pub(crate) support: u8,
}

/// What a host has seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) ticks: usize,
    pub(crate) admitted: usize,
    pub(crate) tokens: usize,
    pub(crate) refused: usize,
    pub(crate) replanned: usize,
    pub(crate) faults: usize,
    pub(crate) shed: usize,
    pub(crate) rows: usize,
    pub(crate) finished: usize,
    pub(crate) yields: usize,
}

const LANES_MAX: usize = 20;
const BATCH: usize = 8;
const BYTES: u64 = 4;

pub(crate) struct Host {
    h: Harness<Executor<FakeRuntime>>,
    shape: Shape,
    random: Random,
    key: u64,
    lanes: BTreeMap<u64, Lane>,
    faulted: BTreeSet<u64>,
    next_tag: u64,
    crowded: bool,
    pub(crate) stats: Stats,
}

/// A plan in the making.
#[derive(Clone, Debug, Default)]
struct Draft {
    admits: Vec<(u64, Lane, TokenRef, u32)>,
    commits: Vec<(u64, u32)>,
    prefills: Vec<(u64, usize)>,
    decodes: Vec<(u64, usize)>,
    retires: Vec<(u64, bool)>,
    budget: usize,
    flags: u32,
}

impl Host {
    pub(crate) fn new(shape: Shape, key: u64) -> Self {
        let fake = FakeRuntime::with(|options| {
            let descriptor = &mut options.descriptor;
            descriptor.vocab_size = shape.vocab;
            descriptor.max_seq_len = shape.context;
            descriptor.cells_total = shape.cells;
            descriptor.max_seqs = shape.slots;
            descriptor.max_batch = BATCH as u32;
            descriptor.kv_bytes_per_token = BYTES;
            descriptor.prefill_step_tokens = shape.prefill_step;
            descriptor.sampling = SamplingSupport {
                greedy: shape.support >= 1,
                draws: shape.support >= 2,
                logprobs: shape.support >= 2,
                shaping: shape.support >= 3,
            };
            // Two ids in the middle: hot lanes meet them, greedy ones too.
            options.end_ids = vec![7, 21];
            options.record = false;
        });
        let h = Harness::with_engine(Executor::new(fake)).with_max_decode_lanes(BATCH as u32);
        let (lanes, faulted) = (BTreeMap::new(), BTreeSet::new());
        let random = Random::from_key(key);
        Self { h, shape, random, key, lanes, faulted, next_tag: 0, crowded: false, stats: Stats::default() }
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.random.below(n) == 0
    }

    /// Plans, spoils a copy of the plan now and then, runs it, and compares.
    pub(crate) fn tick(&mut self) {
        let draft = self.draft();
        if self.one_in(4) {
            self.try_spoiled(&draft);
        }
        if !self.fits(&draft) {
            let status = self.refused(&draft, |_, plan| plan);
            assert_eq!(status, Status::NeedsReplan, "key {}: {draft:?}", self.key);
            self.stats.replanned += 1;
            self.crowded = true;
            return;
        }
        self.crowded = false;
        self.run(draft);
    }

    /// Retires everything and looks for what is left behind.
    pub(crate) fn drain(&mut self) {
        let draft = Draft {
            retires: self.lanes.keys().chain(&self.faulted).map(|&tag| (tag, false)).collect(),
            flags: tick_flag::DRAIN,
            ..Draft::default()
        };
        let events = self.run(draft);
        assert_eq!((events.mem.allocated_bytes, events.mem.pool_blocks_used), (0, 0), "key {}", self.key);
        assert_eq!(self.h.engine.primitives().live_sequences(), 0, "key {}", self.key);
        assert_eq!(self.h.engine.primitives().mem_counters().cells_used, 0, "key {}", self.key);
        assert_eq!(self.h.engine.live_sequences(), 0);
        assert_eq!(self.h.engine.audit(), Ok(()));
    }

    /// A legal plan, but for cells and slots.
    fn draft(&mut self) -> Draft {
        let mut draft = Draft { budget: 4096, ..Draft::default() };
        if self.one_in(6) {
            draft.budget = self.random.below(12);
        }
        for tag in self.faulted.clone() {
            if self.one_in(2) {
                draft.retires.push((tag, self.random.below(2) == 0));
            }
        }
        for (tag, finished) in self.lanes.iter().map(|(&tag, lane)| (tag, lane.finished)).collect::<Vec<_>>() {
            if self.one_in(if finished || self.crowded { 2 } else { 40 }) {
                draft.retires.push((tag, self.random.below(4) == 0));
            }
        }
        let leaving: BTreeSet<u64> = draft.retires.iter().map(|&(tag, _)| tag).collect();
        if self.random.below(3) > 0 && !self.crowded {
            for _ in 0..self.random.below(4) {
                if self.lanes.len() + draft.admits.len() < LANES_MAX {
                    self.draft_admit(&mut draft, &leaving);
                }
            }
        }
        self.draft_work(&mut draft, &leaving);
        if draft.admits.is_empty() && self.one_in(5) {
            draft.flags = tick_flag::DRAIN;
        }
        self.random.shuffle(&mut draft.decodes);
        self.random.shuffle(&mut draft.retires);
        draft
    }

    fn draft_admit(&mut self, draft: &mut Draft, leaving: &BTreeSet<u64>) {
        // A faulted tag may come again, a new one always.
        let again = self.faulted.iter().copied().find(|tag| !leaving.contains(tag));
        let again = again.filter(|tag| draft.admits.iter().all(|(other, ..)| other != tag));
        let tag = match again {
            Some(tag) if self.one_in(3) => tag,
            _ => {
                self.next_tag += 1;
                // Tags are opaque: 0 and large ones are as good as any.
                (self.next_tag - 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
            }
        };
        let lane = self.random_lane();
        let bias = if lane.bias.is_empty() {
            0
        } else {
            let (ids, addends): (Vec<i32>, Vec<f32>) = lane.bias.iter().map(|&(id, x)| (id as i32, x)).unzip();
            self.h.engine.logit_bias_create(&ids, &addends).expect("bias is offered")
        };
        let staged = self.h.prompt(&lane.prompt);
        draft.admits.push((tag, lane, staged, bias));
    }

    fn random_lane(&mut self) -> Lane {
        let context = self.shape.context as usize;
        let len = if self.one_in(12) { context - self.random.below(3) } else { 1 + self.random.below(context / 2) };
        let vocab = self.shape.vocab as usize;
        let prompt: Vec<u32> = (0..len).map(|_| self.random.below(vocab) as u32).collect();
        let mode = *self.random.pick(&[
            sampling::GPU_GREEDY,
            sampling::GPU_GREEDY,
            sampling::GPU_GUMBEL,
            sampling::GPU_GUMBEL,
            sampling::HOST,
        ]);
        let mut params = SamplingParams::zeroed();
        params.temperature = *self.random.pick(&[0.0, 0.7, 8.0, 8.0]);
        params.top_p = *self.random.pick(&[1.0, 0.9, 0.0]);
        params.top_k = *self.random.pick(&[0, 0, 1, 20]);
        params.min_p = *self.random.pick(&[0.0, 0.05]);
        if self.one_in(4) {
            params.repeat_penalty = 1.3;
            params.freq_penalty = 0.2;
        }
        params.flags = if self.one_in(2) { sampling_flag::IGNORE_EOS } else { 0 };
        let bias = if self.one_in(6) { vec![(self.random.below(vocab) as u32, 12.0)] } else { vec![] };
        Lane {
            replay: if self.one_in(4) { self.random.below(len) } else { 0 },
            logprobs: if mode != sampling::HOST && self.one_in(4) { 1 + self.random.below(4) as u8 } else { 0 },
            base: if self.one_in(10) { u64::MAX - 1 } else { self.random.next() },
            committed: Vec::new(),
            drawn: 0,
            pending: false,
            row: None,
            finished: false,
            doomed: None,
            prompt,
            mode,
            params,
            bias,
        }
    }

    /// Commits, prefills and decodes for the lanes that stay, in the order of the budget (T-49).
    fn draft_work(&mut self, draft: &mut Draft, leaving: &BTreeSet<u64>) {
        let mut lanes: Vec<(u64, Lane)> = self.lanes.iter().map(|(&tag, lane)| (tag, lane.clone())).collect();
        lanes.extend(draft.admits.iter().map(|(tag, lane, ..)| (*tag, lane.clone())));
        lanes.retain(|(tag, _)| !leaving.contains(tag));
        self.random.shuffle(&mut lanes);
        let mut budget = draft.budget;
        for (tag, lane) in lanes {
            let mut stands = lane.committed.len();
            let rest = lane.prefill_end().saturating_sub(stands);
            if (rest > 0 || self.one_in(20)) && stands <= lane.prefill_end() && self.random.below(5) > 0 {
                let count = if self.random.below(3) > 0 { rest } else { self.random.below(rest + 1) };
                draft.prefills.push((tag, count));
                let taken = count.min(budget);
                budget -= taken;
                stands += taken;
            }
            let mut has_row = lane.row.is_some();
            if has_row && self.random.below(4) > 0 {
                draft.commits.push((tag, self.random.below(self.shape.vocab as usize) as u32));
                has_row = false;
            }
            let ready = stands >= lane.prefill_end() && !lane.finished && !has_row;
            if ready && draft.decodes.len() < BATCH && self.random.below(6) > 0 {
                let grant = if lane.is_host() { 1 } else { *self.random.pick(&[0, 1, 1, 2, 3, 8, 30]) };
                draft.decodes.push((tag, grant));
            }
        }
    }

    /// Whether cells and slots suffice (T-60, T-65 .. T-67, without a cache).
    fn fits(&self, draft: &Draft) -> bool {
        let publishes: BTreeMap<u64, bool> = draft.retires.iter().copied().collect();
        let leaves = |tag: &u64| self.lanes.contains_key(tag) && !publishes[tag];
        let gone = publishes.keys().filter(|tag| leaves(tag)).count();
        let slots = self.shape.slots as usize;
        if slots != 0 && draft.admits.len() + self.lanes.len() > slots + gone {
            return false;
        }
        if self.shape.cells == 0 {
            return true;
        }
        let mut need = 0;
        let mut budget = draft.budget;
        for &(_, count) in &draft.prefills {
            let taken = count.min(budget);
            budget -= taken;
            need += taken as u64;
        }
        for (tag, grant) in &draft.decodes {
            // A live lane counts from what it has now, an admitted one from its prompt (T-60).
            let live = self.lanes.get(tag).map(|lane| lane.committed.len());
            let admitted = draft.admits.iter().find(|(other, ..)| other == tag).map(|(_, lane, ..)| lane.prefill_end());
            let from = live.or(admitted).unwrap_or(0);
            need += (*grant as u64).min(self.shape.context.saturating_sub(from as u64));
        }
        need += publishes.iter().filter(|&(tag, &publishes)| publishes && self.has_pending(*tag)).count() as u64;
        let used: u64 = self.lanes.values().map(Lane::held).sum();
        let released: u64 = publishes.keys().filter(|tag| leaves(tag)).map(|tag| self.lanes[tag].held()).sum();
        self.shape.cells - used + released >= need
    }

    fn has_pending(&self, tag: u64) -> bool {
        self.lanes.get(&tag).is_some_and(|lane| lane.pending)
    }

    fn plan(&self, draft: &Draft, number: u64) -> PlanBuilder {
        let mut plan = PlanBuilder::new(number).max_decode_lanes(BATCH as u32);
        plan = plan.prefill_budget(draft.budget as u32).flags(draft.flags);
        for (tag, lane, staged, bias) in &draft.admits {
            plan = plan.admit_with(|admit| lane.admit(admit, *bias), *tag, *staged);
        }
        for &(tag, token) in &draft.commits {
            plan = plan.commit(tag, token, self.lanes[&tag].row.unwrap_or(0));
        }
        for &(tag, count) in &draft.prefills {
            let offset = self.lanes.get(&tag).map_or(0, |lane| lane.committed.len());
            plan = plan.prefill(tag, offset as u32, count as u32);
        }
        for &(tag, grant) in &draft.decodes {
            plan = plan.decode(tag, grant as u16);
        }
        for &(tag, publish) in &draft.retires {
            plan = plan.retire(tag, publish);
        }
        plan
    }

    fn refused(&mut self, draft: &Draft, spoil: impl FnOnce(u64, PlanBuilder) -> PlanBuilder) -> Status {
        let number = self.h.next_seq;
        let plan = spoil(number, self.plan(draft, number));
        self.stats.refused += 1;
        self.h.refused(plan)
    }

    /// Spoils one thing whose status is known, wherever it stands in the order of checks.
    fn try_spoiled(&mut self, draft: &Draft) {
        const STRANGER: u64 = 0xDEAD_BEEF;
        let live = self.lanes.iter().find(|(tag, _)| draft.retires.iter().all(|(other, _)| other != *tag));
        let live = live.map(|(&tag, lane)| (tag, lane.clone()));
        let (expected, status) = match self.random.below(9) {
            // The first plan may carry any number.
            0 if self.stats.ticks > 0 => {
                (Status::RejectIllegalCombination, self.refused(draft, |number, _| PlanBuilder::new(number - 1)))
            }
            1 => (Status::RejectBudget, self.refused(draft, |_, plan| plan.max_decode_lanes(BATCH as u32 + 1))),
            2 => (Status::RejectUnknownLane, self.refused(draft, |_, plan| plan.retire(STRANGER, false))),
            3 => (Status::RejectUnknownLane, self.refused(draft, |_, plan| plan.prefill(STRANGER, 0, 1))),
            4 => {
                let (tag, expected) =
                    (*draft.retires.first().map_or(&STRANGER, |(tag, _)| tag), Status::RejectDuplicateLane);
                (expected, self.refused(draft, |_, plan| plan.retire(tag, true).retire(tag, false)))
            }
            5 if draft.flags == 0 => {
                let mut stale = self.h.prompt(&[1]);
                stale.generation += 1;
                let expected = Status::RejectBadRefGeneration;
                (expected, self.refused(draft, |_, plan| plan.admit(STRANGER, stale)))
            }
            6 if draft.flags == 0 => {
                let foreign = self.h.prompt(&[0, self.shape.vocab]);
                (Status::RejectBounds, self.refused(draft, |_, plan| plan.admit(STRANGER, foreign)))
            }
            7 => match live {
                Some((tag, lane)) if lane.row.is_some() && !commits(draft, tag) => {
                    let nonce = lane.row.unwrap_or(0) + 1;
                    (Status::RejectStaleNonce, self.refused(draft, |_, plan| plan.commit(tag, 0, nonce)))
                }
                Some((tag, lane)) if !lane.is_host() => {
                    (Status::RejectIllegalCombination, self.refused(draft, |_, plan| plan.commit(tag, 0, 1)))
                }
                _ => return,
            },
            8 => match live {
                Some((tag, lane)) if draft.prefills.iter().all(|(other, _)| *other != tag) => {
                    let offset = lane.committed.len() as u32 + 1;
                    (Status::RejectIllegalCombination, self.refused(draft, |_, plan| plan.prefill(tag, offset, 1)))
                }
                _ => return,
            },
            _ => return,
        };
        assert_eq!(status, expected, "key {}: {draft:?}", self.key);
    }

    /// Runs an accepted plan and compares everything it answers with the model.
    fn run(&mut self, draft: Draft) -> Events {
        // Only where all prefill work fits one step, which takes a batch of lanes: then a yield cuts no prompt.
        let one_step = self.shape.prefill_step == 0 && draft.prefills.len() <= BATCH;
        let yields = one_step && self.one_in(5);
        self.h.rings.set_yield(yields);
        self.stats.yields += usize::from(yields);
        self.doom(&draft);
        let plan = self.plan(&draft, self.h.next_seq);
        self.h.next_seq += 1;
        let events = match self.h.tick(plan) {
            Ok(events) => events,
            Err(status) => panic!("key {}: refused with {status}: {draft:?}", self.key),
        };
        self.stats.ticks += 1;
        self.settle(&draft, &events);
        let shed = self.prefill(&draft);
        let (outcomes, faults) = self.decode(&draft, yields);
        self.compare(&draft, &events, &shed, &outcomes, &faults);
        events
    }

    /// Dooms a lane now and then: its next decode record faults (T-96).
    fn doom(&mut self, draft: &Draft) {
        let Some(&(tag, _)) = draft.decodes.first() else { return };
        if self.one_in(25)
            && let Some(lane) = self.lanes.get_mut(&tag)
        {
            lane.doomed = Some(3);
            self.h.engine.inject_fault(tag, 3);
        }
    }

    fn settle(&mut self, draft: &Draft, events: &Events) {
        for (tag, _) in &draft.retires {
            self.faulted.remove(tag);
            self.lanes.remove(tag);
        }
        for &(tag, token) in &draft.commits {
            let lane = self.lanes.get_mut(&tag).expect("only live lanes are committed to");
            lane.committed.push(token);
            lane.pending = true;
            lane.row = None;
            lane.drawn += 1;
        }
        let results: Vec<_> = events.admit_results.iter().map(|result| (result.lane_tag, result.status)).collect();
        let expected: Vec<_> = draft.admits.iter().map(|(tag, ..)| (*tag, admit_status::ADMITTED)).collect();
        assert_eq!(results, expected, "key {}", self.key);
        for (tag, lane, _, bias) in &draft.admits {
            self.faulted.remove(tag);
            self.lanes.insert(*tag, lane.clone());
            self.stats.admitted += 1;
            // The lane has its copy (E-12).
            if *bias != 0 {
                assert_eq!(self.h.engine.logit_bias_free(*bias), Ok(()));
            }
        }
    }

    /// Prefills the model; answers what the budget cut off.
    fn prefill(&mut self, draft: &Draft) -> Vec<(u64, u64)> {
        let mut budget = draft.budget;
        let mut shed = Vec::new();
        for &(tag, count) in &draft.prefills {
            let taken = count.min(budget);
            budget -= taken;
            if taken < count {
                shed.push((tag, (count - taken) as u64));
            }
            let decodes = draft.decodes.iter().any(|&(other, grant)| other == tag && grant > 0);
            let lane = self.lanes.get_mut(&tag).expect("only live lanes are prefilled");
            if taken > 0 {
                lane.prefill(taken, decodes);
            }
        }
        shed
    }

    fn decode(&mut self, draft: &Draft, yields: bool) -> (BTreeMap<u64, Outcome>, Vec<(u64, u32)>) {
        let mut outcomes = BTreeMap::new();
        let mut faults = Vec::new();
        for &(tag, grant) in &draft.decodes {
            let lane = self.lanes.get_mut(&tag).expect("only live lanes are decoded");
            if let Some(code) = lane.doomed {
                faults.push((tag, code));
                self.lanes.remove(&tag);
                self.faulted.insert(tag);
            } else {
                outcomes.insert(tag, lane.decode(grant, yields, self.h.engine.primitives()));
            }
        }
        (outcomes, faults)
    }

    fn compare(
        &mut self,
        draft: &Draft,
        events: &Events,
        shed: &[(u64, u64)],
        outcomes: &BTreeMap<u64, Outcome>,
        faults: &[(u64, u32)],
    ) {
        let key = self.key;
        let seen: Vec<_> = events.faults.iter().map(|fault| (fault.lane_tag, fault.code)).collect();
        assert_eq!(seen, faults, "key {key}");
        let seen: Vec<_> = events.shed_entries.iter().map(|entry| (entry.lane_tag, entry.tokens)).collect();
        assert_eq!((seen.as_slice(), events.shed_chunks as usize), (shed, shed.len()), "key {key}");
        let status = match (faults.is_empty(), shed.is_empty()) {
            (false, _) => tick_status::LANE_ERRORS,
            (true, false) => tick_status::SHED,
            (true, true) => tick_status::OK,
        };
        assert_eq!(events.tick_status, status, "key {key}");
        let order: Vec<u64> = events.emits.iter().map(|emit| emit.lane_tag).collect();
        let expected: Vec<u64> =
            draft.decodes.iter().map(|&(tag, _)| tag).filter(|tag| outcomes.contains_key(tag)).collect();
        assert_eq!(order, expected, "key {key}: emits in plan order");
        for emit in &events.emits {
            let outcome = &outcomes[&emit.lane_tag];
            let lane = self.lanes.get_mut(&emit.lane_tag).expect("it has an emit");
            let context = || format!("key {key}, lane {}: {lane:?}", emit.lane_tag);
            assert_eq!(emit.finish, outcome.finish, "{}", context());
            assert_eq!(emit.logits_row.generation != 0, outcome.row, "{}", context());
            if lane.is_host() {
                assert_eq!(emit.n_tokens, 0, "{}", context());
                lane.row = outcome.row.then_some(emit.logits_row.generation);
            } else {
                let tokens = self.h.rings_tokens(&emit.token_ref);
                assert_eq!(tokens, outcome.tokens, "{}", context());
            }
            self.stats.tokens += outcome.tokens.len();
            self.stats.rows += usize::from(outcome.row);
            self.stats.finished += usize::from(outcome.finish != finish::NONE);
        }
        self.stats.faults += faults.len();
        self.stats.shed += shed.len();
        self.compare_logprobs(events, outcomes);
        self.compare_state(events);
    }

    /// Round by round, ascending tags (T-105, T-122).
    fn compare_logprobs(&self, events: &Events, outcomes: &BTreeMap<u64, Outcome>) {
        let rounds = outcomes.values().map(|outcome| outcome.tokens.len()).max().unwrap_or(0);
        let mut expected = Vec::new();
        for round in 0..rounds {
            for (tag, outcome) in outcomes {
                let wanted = self.lanes.get(tag).map_or(0, |lane| lane.logprobs);
                if wanted > 0 && round < outcome.tokens.len() {
                    expected.push((*tag, u32::from(wanted) - 1));
                }
            }
        }
        let seen: Vec<_> = events.logprobs.iter().map(|record| (record.lane_tag, record.n_top)).collect();
        assert_eq!(seen, expected, "key {}", self.key);
        assert!(events.logprobs.iter().all(|record| record.logprob <= 0.0));
    }

    /// Tokens, cells and counters of everything that lives.
    fn compare_state(&self, events: &Events) {
        let key = self.key;
        for (&tag, lane) in &self.lanes {
            assert_eq!(self.h.committed(tag), lane.committed, "key {key}, lane {tag}");
            let sequence = self.h.engine.lane_sequence(tag).expect("it is live");
            let held = self.h.engine.primitives().contents(sequence).map(<[u32]>::len);
            assert_eq!(held, Some(lane.held() as usize), "key {key}, lane {tag}: E-1, {lane:?}");
        }
        for &tag in &self.faulted {
            assert_eq!(self.h.engine.lane_committed(tag), None, "key {key}");
        }
        let cells: u64 = self.lanes.values().map(Lane::held).sum();
        let mem = events.mem;
        assert_eq!(mem.allocated_bytes, cells * BYTES, "key {key}");
        assert_eq!((mem.pool_blocks_total, mem.pool_blocks_used), (self.shape.cells / 16, cells / 16), "key {key}");
        assert_eq!(self.h.engine.live_sequences(), self.lanes.len(), "key {key}");
        assert_eq!(self.h.engine.audit(), Ok(()), "key {key}");
    }
}

fn commits(draft: &Draft, tag: u64) -> bool {
    draft.commits.iter().any(|&(other, _)| other == tag)
}
