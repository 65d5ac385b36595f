//! Every refusal has its status, the first failing check decides (T-2), and a refused plan leaves no trace (T-3).
//!
//! A plan that would run is given every defect alone, then every two defects together. The list below is in the order of the
//! contract, so of two defects the one that stands higher must name the status. Each plan is sent twice, the whole state of
//! engine, rings and events is compared around it, and at last the plan without defect runs.

use ictus::engine::{Engine, basic_admit};
use ictus::executor::Executor;
use ictus::record::constant::{sampling, tick_flag};
use ictus::record::{Array, LaneAdmit, LaneCommit, LaneDecode, LanePrefill, LaneRetire, RecordArena, Status, TickPlan};
use ictus::ring::MemoryRings;
use ictus::runtime::FakeRuntime;
use ictus::testing::{Events, Harness, PlanBuilder, StageRings};

/// How an admit differs from a plain one.
type Change = fn(&mut LaneAdmit);

type Host = Harness<Executor<FakeRuntime>, MemoryRings>;

const VOCAB: u32 = 64;
const CONTEXT: usize = 40;

/// Ready to decode.
const READY: u64 = 1;
/// HOST, its row waits.
const ROW: u64 = 2;
/// Its context is full.
const FULL: u64 = 3;
/// Faulted.
const FAULTED: u64 = 4;
/// Four of its eight prefill tokens are in; two more are a tail.
const FILLING: u64 = 5;
/// HOST, without a row.
const NO_ROW: u64 = 6;
/// HOST, its context is full.
const HOST_FULL: u64 = 7;
/// HOST, its row waits.
const ROW_TOO: u64 = 8;
/// Faulted.
const FAULTED_TOO: u64 = 9;
/// Admitted by the plan.
const NEW: u64 = 50;

/// An engine with a lane in every phase.
fn scene() -> Host {
    let fake = FakeRuntime::with(|options| {
        options.descriptor.vocab_size = VOCAB;
        options.descriptor.max_seq_len = CONTEXT as u64;
        options.descriptor.cells_total = 130;
        options.descriptor.max_seqs = 9;
    });
    let mut host = Harness::with_engine(Executor::new(fake));
    let as_host = |admit: &mut LaneAdmit| admit.sampling = sampling::HOST;
    let lanes: [(u64, usize, Change); 9] = [
        (READY, 3, |_| {}),
        (ROW, 3, as_host),
        (FULL, CONTEXT - 1, |_| {}),
        (FAULTED, 2, |_| {}),
        (FAULTED_TOO, 2, |_| {}),
        (FILLING, 10, |admit| admit.decode_replay = 2),
        (NO_ROW, 3, as_host),
        (HOST_FULL, CONTEXT, as_host),
        (ROW_TOO, 3, as_host),
    ];
    for (tag, len, change) in lanes {
        let prompt = host.prompt(&vec![tag as u32; len]);
        let mut plan = host.plan().admit_with(change, tag, prompt);
        plan = plan.prefill(tag, 0, if tag == FILLING { 4 } else { len as u32 });
        if ![FILLING, NO_ROW].contains(&tag) {
            plan = plan.decode(tag, 1);
        }
        if [FAULTED, FAULTED_TOO].contains(&tag) {
            host.tick_ok(plan);
            host.engine.inject_fault(tag, 1);
            plan = host.plan().decode(tag, 1);
        }
        host.tick_ok(plan);
    }
    assert_eq!(host.engine.live_sequences(), 7, "all but the faulted ones are live");
    host.engine.audit().expect("the scene is sound");
    host
}

/// A plan in the making. The record that a defect of lane records spoils is the first of its list.
struct Draft {
    plan_seq: u64,
    flags: u32,
    max_decode_lanes: u32,
    prompt: Vec<u32>,
    prompt_generation: u64,
    prompt_ring: u32,
    admits: Vec<LaneAdmit>,
    commits: Vec<LaneCommit>,
    prefills: Vec<LanePrefill>,
    decodes: Vec<LaneDecode>,
    retires: Vec<LaneRetire>,
    /// Tags of further admits, their prompt length, and how they are changed.
    more: Vec<(u64, usize, Change)>,
    spoil: Vec<fn(&mut TickPlan)>,
}

fn commit(lane_tag: u64, logits_nonce: u64) -> LaneCommit {
    LaneCommit { lane_tag, token_id: 1, _pad0: 0, logits_nonce }
}

fn decode(lane_tag: u64, max_new_tokens: u16) -> LaneDecode {
    LaneDecode { lane_tag, max_new_tokens, overshoot: 0, _pad1: 0 }
}

fn retire(lane_tag: u64) -> LaneRetire {
    LaneRetire { lane_tag, publish_to_cache: 0, _pad0: [0; 7] }
}

impl Draft {
    /// A plan that runs: one record of each kind.
    fn good(host: &Host, row_nonce: u64) -> Self {
        let plan_seq = host.next_seq;
        Self {
            plan_seq,
            flags: 0,
            max_decode_lanes: 8,
            prompt: vec![1, 2, 3],
            prompt_generation: 0,
            prompt_ring: 0,
            admits: vec![basic_admit(NEW, ictus::record::view::Plain::zeroed())],
            commits: vec![commit(ROW, row_nonce)],
            prefills: vec![LanePrefill { lane_tag: FILLING, token_offset: 4, token_count: 2 }],
            decodes: vec![decode(READY, 1)],
            retires: vec![retire(FAULTED_TOO)],
            more: Vec::new(),
            spoil: Vec::new(),
        }
    }

    /// The plan and its memory; prompts are staged on the way.
    fn build(mut self, host: &mut Host) -> (TickPlan, RecordArena) {
        let mut reference = host.prompt(&self.prompt);
        reference.generation += self.prompt_generation;
        reference.ring_id += self.prompt_ring;
        self.admits[0].prompt = reference;
        for (tag, len, change) in self.more {
            let mut admit = basic_admit(tag, host.prompt(&vec![9; len]));
            change(&mut admit);
            self.admits.push(admit);
        }
        let mut arena = RecordArena::new();
        let (mut plan, _) =
            PlanBuilder::new(self.plan_seq).flags(self.flags).max_decode_lanes(self.max_decode_lanes).build();
        plan.admits = arena.push_records(&self.admits);
        plan.commits = arena.push_records(&self.commits);
        plan.prefills = arena.push_records(&self.prefills);
        plan.decodes = arena.push_records(&self.decodes);
        plan.retires = arena.push_records(&self.retires);
        plan.shed_policy.victim_lanes = arena.push_records(&[READY]);
        for spoil in self.spoil {
            spoil(&mut plan);
        }
        (plan, arena)
    }
}

/// Something wrong with a plan.
struct Defect {
    name: &'static str,
    status: Status,
    /// Letters of what it spoils; defects that spoil the same thing do not go together.
    spoils: &'static str,
    apply: fn(&mut Draft),
}

const fn defect(name: &'static str, status: Status, spoils: &'static str, apply: fn(&mut Draft)) -> Defect {
    Defect { name, status, spoils, apply }
}

fn outside(array: &mut Array) {
    array.data = array.data.wrapping_byte_add(1 << 20);
}

/// An empty array may not be misaligned either (A-11).
fn crooked(array: &mut Array) {
    array.data = array.data.wrapping_byte_add(4);
    array.count = 0;
}

/// All defects, in the order in which the contract checks for them.
const DEFECTS: &[Defect] = &[
    defect("T-10", Status::RejectBadStruct, "", |d| d.spoil.push(|plan| plan.struct_size = 151)),
    defect("T-11 admits", Status::RejectBadStride, "", |d| d.spoil.push(|plan| plan.admits.elem_size = 135)),
    defect("T-11 commits", Status::RejectBadAlignment, "", |d| {
        d.spoil.push(|plan| crooked(&mut plan.commits));
    }),
    defect("T-11 prefills", Status::RejectBounds, "", |d| d.spoil.push(|plan| outside(&mut plan.prefills))),
    defect("T-11 decodes", Status::RejectBadStride, "", |d| d.spoil.push(|plan| plan.decodes.elem_size = 8)),
    defect("T-11 retires", Status::RejectBadAlignment, "", |d| {
        d.spoil.push(|plan| crooked(&mut plan.retires));
    }),
    defect("T-11 victims", Status::RejectBounds, "", |d| {
        d.spoil.push(|plan| outside(&mut plan.shed_policy.victim_lanes));
    }),
    defect("T-12 admits", Status::RejectDuplicateLane, "", |d| d.more.extend([(60, 1, (|_| {}) as Change); 2])),
    defect("T-12 commits", Status::RejectDuplicateLane, "", |d| d.commits.extend([commit(ROW_TOO, 0); 2])),
    defect("T-12 prefills", Status::RejectDuplicateLane, "", |d| {
        d.prefills.extend([LanePrefill { lane_tag: 61, token_offset: 0, token_count: 0 }; 2]);
    }),
    defect("T-12 decodes", Status::RejectDuplicateLane, "", |d| d.decodes.extend([decode(62, 0); 2])),
    defect("T-12 retires", Status::RejectDuplicateLane, "", |d| d.retires.extend([retire(63); 2])),
    defect("T-13 admit and retire", Status::RejectIllegalCombination, "", |d| {
        d.more.push((65, 1, |_| {}));
        d.retires.push(retire(65));
    }),
    defect("T-13 admit and commit", Status::RejectIllegalCombination, "", |d| {
        d.more.push((66, 1, |_| {}));
        d.commits.push(commit(66, 0));
    }),
    defect("T-13 commit and retire", Status::RejectIllegalCombination, "", |d| {
        d.commits.push(commit(67, 0));
        d.retires.push(retire(67));
    }),
    defect("T-13 decode and retire", Status::RejectIllegalCombination, "", |d| {
        d.decodes.push(decode(68, 1));
        d.retires.push(retire(68));
    }),
    defect("T-13 prefill and retire", Status::RejectIllegalCombination, "", |d| {
        d.prefills.push(LanePrefill { lane_tag: 69, token_offset: 0, token_count: 0 });
        d.retires.push(retire(69));
    }),
    defect("T-14", Status::RejectHostRules, "", |d| {
        d.more.push((64, 1, |admit| admit.sampling = sampling::HOST));
        d.decodes.push(decode(64, 2));
    }),
    defect("T-15", Status::RejectBudget, "l", |d| d.max_decode_lanes = 0),
    defect("T-18", Status::RejectIllegalCombination, "", |d| d.plan_seq -= 1),
    defect("T-19", Status::RejectBudget, "l", |d| d.max_decode_lanes = 9),
    defect("T-20", Status::RejectIllegalCombination, "", |d| d.flags = tick_flag::DRAIN),
    defect("T-24", Status::RejectIllegalCombination, "", |d| d.admits[0].lane_tag = READY),
    defect("T-25 stale", Status::RejectBadRefGeneration, "r", |d| d.prompt_generation = 7),
    defect("T-25 ring", Status::RejectBounds, "r", |d| d.prompt_ring = 8),
    defect("T-26", Status::RejectIllegalCombination, "xy", |d| d.prompt.clear()),
    defect("T-27", Status::RejectBounds, "x", |d| d.prompt.push(VOCAB)),
    defect("T-28", Status::RejectIllegalCombination, "", |d| d.admits[0].sampling = 3),
    defect("T-29", Status::RejectBounds, "", |d| d.admits[0].decode_replay = 1000),
    defect("T-30", Status::RejectIllegalCombination, "", |d| d.admits[0].strategy_slot = 1),
    defect("T-31", Status::RejectIllegalCombination, "", |d| d.admits[0].grammar_handle = 1),
    defect("T-32", Status::RejectIllegalCombination, "", |d| d.admits[0].grammar_replay = 1),
    defect("T-33", Status::RejectIllegalCombination, "", |d| d.admits[0].logit_bias_handle = 99),
    defect("T-34", Status::RejectStaleSeed, "", |d| d.admits[0].seed_handle = 5),
    defect("T-36", Status::RejectBudget, "y", |d| d.prompt.extend([1; CONTEXT])),
    defect("T-40", Status::RejectUnknownLane, "c", |d| d.commits[0].lane_tag = 99),
    defect("T-40 faulted", Status::RejectUnknownLane, "c", |d| d.commits[0].lane_tag = FAULTED),
    defect("T-41 not host", Status::RejectIllegalCombination, "c", |d| d.commits[0].lane_tag = READY),
    defect("T-41 finished", Status::RejectIllegalCombination, "c", |d| d.commits[0].lane_tag = HOST_FULL),
    defect("T-42", Status::RejectHostRules, "c", |d| d.commits[0].lane_tag = NO_ROW),
    defect("T-43", Status::RejectStaleNonce, "", |d| d.commits[0].logits_nonce += 1),
    defect("T-44", Status::RejectBounds, "", |d| d.commits[0].token_id = VOCAB),
    defect("T-46", Status::RejectUnknownLane, "", |d| d.prefills[0].lane_tag = 98),
    defect("T-47", Status::RejectIllegalCombination, "", |d| d.prefills[0].token_offset = 3),
    defect("T-48", Status::RejectBounds, "", |d| d.prefills[0].token_count = 6),
    defect("T-50", Status::RejectUnknownLane, "d", |d| d.decodes[0].lane_tag = 97),
    defect("T-51", Status::RejectIllegalCombination, "d", |d| d.decodes[0].lane_tag = FULL),
    defect("T-52", Status::RejectHostRules, "d", |d| d.decodes[0] = decode(NO_ROW, 2)),
    defect("T-53", Status::RejectHostRules, "d", |d| d.decodes[0] = decode(ROW_TOO, 1)),
    defect("T-54", Status::RejectIllegalCombination, "d", |d| d.decodes[0].lane_tag = FILLING),
    defect("T-58", Status::RejectUnknownLane, "", |d| d.retires.push(retire(96))),
    defect("T-66", Status::NeedsReplan, "", |d| {
        d.more.push((70, CONTEXT, |_| {}));
        d.prefills.push(LanePrefill { lane_tag: 70, token_offset: 0, token_count: CONTEXT as u32 });
    }),
    defect("T-67", Status::NeedsReplan, "", |d| d.more.extend([71, 72, 73].map(|tag| (tag, 1, (|_| {}) as Change)))),
];

/// Sends the plan twice; it is refused alike and leaves no trace.
fn refused(host: &mut Host, draft: Draft, name: &str) -> Status {
    let (plan, arena) = draft.build(host);
    let trace = |host: &Host| {
        let events = host.engine.last_events().map(|view| format!("{:?}", Events::of(&view)));
        (host.engine.state_digest(), host.rings.rings_digest(), host.engine.primitives().steps(), events)
    };
    let before = trace(host);
    let mut tick = || match host.engine.tick(&plan, &arena, &mut host.rings) {
        Ok(_) => panic!("{name}: the plan was accepted"),
        Err(status) => status,
    };
    let (first, second) = (tick(), tick());
    assert_eq!(first, second, "{name}: the second refusal differs");
    assert!(trace(host) == before, "{name}: the refusal left a trace (T-3)");
    first
}

fn row_nonce(host: &mut Host) -> u64 {
    // The first HOST decode of the scene wrote the first row (E-31).
    let mut row = Vec::new();
    let reference = ictus::record::RingRef { ring_id: 3, index: 0, generation: 1 };
    ictus::ring::Rings::read_logits_row(&host.rings, &reference, &mut row).expect("the row is in the first slot");
    reference.generation
}

#[test]
fn every_defect_alone_has_its_status_and_the_plan_without_it_still_runs() {
    for defect in DEFECTS {
        let mut host = scene();
        let nonce = row_nonce(&mut host);
        let mut draft = Draft::good(&host, nonce);
        (defect.apply)(&mut draft);
        assert_eq!(refused(&mut host, draft, defect.name), defect.status, "{}", defect.name);

        let (plan, arena) = Draft::good(&host, nonce).build(&mut host);
        let events = host.engine.tick(&plan, &arena, &mut host.rings);
        let emits = events.map(|events| events.emits.len());
        assert_eq!(emits, Ok(1), "{}: the good plan after the refusal", defect.name);
        host.engine.audit().expect("the engine is sound");
    }
}

#[test]
fn of_two_defects_the_first_in_the_order_of_the_contract_decides() {
    let mut host = scene();
    let nonce = row_nonce(&mut host);
    let mut pairs = 0;
    for (rank, first) in DEFECTS.iter().enumerate() {
        for second in &DEFECTS[rank + 1..] {
            if first.spoils.chars().any(|letter| second.spoils.contains(letter)) {
                continue;
            }
            for (one, other) in [(first, second), (second, first)] {
                let mut draft = Draft::good(&host, nonce);
                (one.apply)(&mut draft);
                (other.apply)(&mut draft);
                let name = format!("{} and {}", one.name, other.name);
                assert_eq!(refused(&mut host, draft, &name), first.status, "T-2: {name}");
                pairs += 1;
            }
        }
    }
    assert!(pairs > 2000, "only {pairs} pairs");
}
