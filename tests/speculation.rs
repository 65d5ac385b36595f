//! Speculation, black box: the scenarios RS-1 .. RS-6 and RS-31 .. RS-34, TS-71, and the rules of drafts inside rounds.
//!
//! The copy model repeats what followed the last token the time before, so prompt lookup is right about it, and wrong where the
//! model is told to miss.

use std::collections::BTreeMap;
use std::time::Duration;

use ictus::engine::{Engine, PlanBuilder, StrategyBuilder};
use ictus::executor::Executor;
use ictus::record::constant::{
    admit_status, cert_domain, cert_mode, exactness, fault, finish, sampling, strategy_cap, tap_tensor, tick_flag,
    tick_status,
};
use ictus::record::{ExactnessCert, LaneAdmit, Status};
use ictus::runtime::{
    Answers, CopyModel, Descriptor, FakeOptions, FakeRuntime, Feed, Input, MemCounters, Runtime, RuntimeError,
    SeqHandle, Want,
};
use ictus::testing::{Events, Harness, register_prompt_lookup_with, register_strategy};

type Fake = Harness<Executor<FakeRuntime>>;

/// A prompt that says something twice.
const PROMPT: [u32; 9] = [10, 11, 12, 13, 14, 15, 10, 11, 12];
const ALWAYS: &str = "throughput_gate=0";

/// An engine over the copy model, with a vocabulary of 512.
fn copying(miss_every: usize, change: impl FnOnce(&mut FakeOptions)) -> Fake {
    Harness::with_engine(Executor::new(FakeRuntime::with(|options| {
        options.descriptor.vocab_size = 512;
        options.descriptor.verify_rows = true;
        options.end_ids = vec![511];
        options.copy_model = Some(CopyModel { miss_every });
        change(options);
    })))
}

/// The same with prompt lookup registered.
fn drafting(miss_every: usize, config: &str, change: impl FnOnce(&mut FakeOptions)) -> Fake {
    let mut h = copying(miss_every, change);
    register_strategy(&mut h, &StrategyBuilder::new("prompt-lookup").config(config))
        .expect("the runtime verifies drafts");
    h
}

fn admit(h: &mut Fake, lane: u64, prompt: &[u32], change: impl FnOnce(&mut LaneAdmit)) -> PlanBuilder {
    let staged = h.prompt(prompt);
    h.plan().admit_with(change, lane, staged).prefill(lane, 0, prompt.len() as u32)
}

/// Admits a lane and runs its prompt; its first token is still to come.
fn start(h: &mut Fake, lane: u64, prompt: &[u32], change: impl FnOnce(&mut LaneAdmit)) -> Events {
    let plan = admit(h, lane, prompt, change);
    h.tick_ok(plan)
}

fn decode(h: &mut Fake, lane: u64, grant: u16, overshoot: u16) -> (Vec<u32>, Events) {
    let plan = h.plan().decode_with_overshoot(lane, grant, overshoot);
    let events = h.tick_ok(plan);
    h.engine.audit().expect("the state holds together");
    (h.tokens_of(&events, lane), events)
}

/// Tokens of `ticks` decodes of `grant`, what was proposed and what was accepted.
fn run(h: &mut Fake, lane: u64, ticks: usize, grant: u16) -> (Vec<u32>, u32, u32) {
    let (mut tokens, mut proposed, mut accepted) = (Vec::new(), 0, 0);
    for _ in 0..ticks {
        let (more, events) = decode(h, lane, grant, 0);
        let spec = events.emit_for(lane).expect("the lane emits").spec;
        assert_eq!(spec.cert_id_in_effect, u32::from(spec.proposed > 0), "T-130");
        proposed += spec.proposed;
        accepted += spec.accepted;
        tokens.extend(more);
    }
    (tokens, proposed, accepted)
}

fn slot(admit: &mut LaneAdmit) {
    admit.strategy_slot = 1;
}

/// The same lane with and without drafts; answers tokens, proposed and accepted of the drafted one.
fn both_ways(
    miss_every: usize,
    config: &str,
    prompt: &[u32],
    (ticks, grant): (usize, u16),
    change: impl Fn(&mut LaneAdmit),
) -> (Vec<u32>, u32, u32) {
    let mut plain = copying(miss_every, |_| {});
    start(&mut plain, 1, prompt, &change);
    let (expected, none, _) = run(&mut plain, 1, ticks, grant);
    assert_eq!(none, 0, "nothing is proposed without a strategy");
    let mut h = drafting(miss_every, config, |_| {});
    start(&mut h, 1, prompt, |admit| {
        change(admit);
        slot(admit);
    });
    let (tokens, proposed, accepted) = run(&mut h, 1, ticks, grant);
    assert_eq!(tokens, expected, "drafts change no token (T-127)");
    (tokens, proposed, accepted)
}

/// RS-1, T-127: 64 equal tokens, and most proposals are right.
#[test]
fn rs_1_drafts_of_a_repetitive_text_are_accepted() {
    let mut h = copying(0, |_| {});
    let (granted, certificates) = register_prompt_lookup_with(&mut h, [1; 32], [2; 32], 0).expect("it is granted");
    assert_eq!((granted, certificates.len()), (1, 1));
    start(&mut h, 1, &PROMPT, slot);
    let (tokens, proposed, accepted) = run(&mut h, 1, 4, 16);
    assert!(proposed > 0 && accepted * 2 > proposed, "{accepted} of {proposed}");
    let mut plain = copying(0, |_| {});
    start(&mut plain, 1, &PROMPT, |_| {});
    assert_eq!((tokens, 0, 0), run(&mut plain, 1, 4, 16));
}

/// RS-2: drawn tokens.
#[test]
fn rs_2_drawn_tokens_are_those_without_drafts() {
    let (tokens, proposed, _) = both_ways(0, ALWAYS, &PROMPT, (3, 24), |admit| {
        admit.sampling = sampling::GPU_GUMBEL;
        (admit.params.temperature, admit.params.top_p) = (0.8, 0.95);
        admit.rng_counter_base = 77;
    });
    assert_eq!(tokens.len(), 72);
    assert!(proposed > 0);
}

/// RS-3, T-128: wrong drafts are cut off again.
#[test]
fn rs_3_wrong_drafts_are_cut_off() {
    let prompt: Vec<u32> = (0..24).map(|i| 20 + i % 6).collect();
    let (_, proposed, accepted) = both_ways(3, ALWAYS, &prompt, (4, 16), |_| {});
    assert!(accepted > 0 && accepted < proposed, "{accepted} of {proposed}");
}

/// RS-4: an end token inside a draft ends the lane.
#[test]
fn rs_4_end_token_in_a_draft_ends_the_lane() {
    for config in [None, Some(ALWAYS)] {
        let mut h = config.map_or_else(|| copying(0, |_| {}), |config| drafting(0, config, |_| {}));
        start(&mut h, 1, &[30, 31, 32, 33, 511, 40, 30, 31], |admit| {
            admit.params.flags = 0;
            admit.strategy_slot = u32::from(config.is_some());
        });
        let (tokens, events) = decode(&mut h, 1, 16, 0);
        let emit = events.emit_for(1).expect("the lane emits");
        assert_eq!((tokens, emit.finish), (vec![32, 33, 511], finish::EOS));
        assert_eq!(emit.spec.proposed > 0, config.is_some());
    }
}

/// RS-5, R-50, R-52.
#[test]
fn rs_5_registration_is_refused_for_what_the_runtime_cannot_do() {
    let refused = Err(Status::RegistrationRefused);
    let register = |h: &mut Fake, caps| {
        let before = h.engine.state_digest();
        let first = register_prompt_lookup_with(h, [0; 32], [0; 32], caps).map(|(slot, certs)| (slot, certs.len()));
        if first.is_err() {
            assert_eq!(register_prompt_lookup_with(h, [0; 32], [0; 32], caps).map(|_| (0, 0)), first, "twice");
            assert_eq!(h.engine.state_digest(), before, "a refusal leaves no trace");
        }
        first
    };
    assert_eq!(register(&mut copying(0, |options| options.descriptor.verify_rows = false), 0), refused);
    assert_eq!(register(&mut copying(0, |options| options.descriptor.truncate_partial = false), 0), refused);
    assert_eq!(register(&mut copying(0, |_| {}), 1), refused);
    let mut h = copying(0, |_| {});
    assert_eq!(register(&mut h, 0), Ok((1, 1)));
    let granted = h.engine.strategy_certificates();
    let ExactnessCert { cert_id, exactness, sampling_modes, param_domain, verification_shape_class, .. } = granted[0];
    assert_eq!((cert_id, exactness), (1, exactness::DISTRIBUTION_EXACT));
    assert_eq!(sampling_modes, cert_mode::GREEDY | cert_mode::GUMBEL);
    assert_eq!((granted[0].grammar_allowed, granted[0].logit_bias_allowed), (0, 0));
    assert_eq!((param_domain, verification_shape_class), (cert_domain::ANY, 1));
    assert_eq!(granted[0].admissible_host_identities.count, 0);
    let (registration, memory) = StrategyBuilder::new("prompt-lookup").build();
    let grant = h.engine.strategy_register(&registration, &memory).expect("again");
    assert_eq!((grant.strategy_slot, grant.state_spaces.count, grant.reserved_bytes), (1, 0, 0), "R-52, R-53");
    for unnamed in [StrategyBuilder::new("").without_id(), StrategyBuilder::new("tree-lookup")] {
        assert_eq!(register_strategy(&mut h, &unnamed).map(|_| ()), Err(Status::RegistrationRefused));
    }
    let no_models = StrategyBuilder::new("draft-model").draft_weights("draft.gguf");
    assert_eq!(
        register_strategy(&mut h, &no_models).map(|_| ()),
        Err(Status::RegistrationRefused),
        "nobody opens files"
    );
}

/// RS-6, R-54, T-30: a slot that was never granted.
#[test]
fn rs_6_slot_that_was_not_granted_is_refused() {
    let mut h = copying(0, |_| {});
    for slot in [1, 2, 9] {
        let plan = admit(&mut h, 1, &PROMPT, |admit| admit.strategy_slot = slot);
        assert_eq!(h.refused(plan), Status::RejectIllegalCombination, "slot {slot}, nothing granted");
    }
    let mut h = drafting(0, "", |_| {});
    for slot in [2, 3, 9, u32::MAX] {
        let plan = admit(&mut h, 1, &PROMPT, |admit| admit.strategy_slot = slot);
        assert_eq!(h.refused(plan), Status::RejectIllegalCombination, "slot {slot}");
    }
    let events = start(&mut h, 1, &PROMPT, slot);
    let result = events.admit_for(1).expect("the lane has a result");
    assert_eq!((result.cert_id, result.granted_class), (1, exactness::DISTRIBUTION_EXACT), "T-82");
}

/// RS-31, R-48, R-51, R-53: lanes keep the configuration they were admitted under.
#[test]
fn rs_31_new_configuration_is_for_lanes_admitted_later() {
    let mut h = drafting(0, "max_draft=2,throughput_gate=0", |_| {});
    let longest = |h: &mut Fake, lane| {
        let sequence = h.engine.lane_sequence(lane).expect("the lane lives");
        let before = h.engine.primitives().feeds().len();
        decode(h, lane, 40, 0);
        let feeds = &h.engine.primitives().feeds()[before..];
        feeds.iter().filter(|feed| feed.sequence == sequence).map(|feed| feed.len - 1).max()
    };
    start(&mut h, 1, &PROMPT, slot);
    assert_eq!(longest(&mut h, 1), Some(2));
    let again = StrategyBuilder::new("prompt-lookup").config("max_draft=6,throughput_gate=0");
    assert_eq!(register_strategy(&mut h, &again).map(|(slot, _)| slot), Ok(1));
    start(&mut h, 2, &PROMPT, slot);
    assert_eq!((longest(&mut h, 1), longest(&mut h, 2)), (Some(2), Some(6)));
}

/// What an admit asks for, and the status, certificate and class it gets.
type Floor = (fn(&mut LaneAdmit), u32, u32, u8);

/// RS-32, R-56, T-82: floors and required certificates.
#[test]
fn rs_32_lane_below_the_floor_is_rejected_alone() {
    let mut h = drafting(0, ALWAYS, |_| {});
    let floors: [Floor; 4] = [
        (|admit| admit.minimum_exactness = 2, admit_status::REJECTED, 0, 0),
        (
            |admit| (admit.minimum_exactness, admit.allow_approximate) = (2, 1),
            admit_status::ADMITTED,
            0,
            exactness::APPROXIMATE,
        ),
        (|admit| admit.required_cert_id = 101, admit_status::REJECTED, 0, 0),
        (|admit| admit.required_cert_id = 1, admit_status::ADMITTED, 1, exactness::DISTRIBUTION_EXACT),
    ];
    let mut plan = h.plan();
    for (tag, (change, ..)) in (1..).zip(floors) {
        let staged = h.prompt(&PROMPT);
        let change = |admit: &mut LaneAdmit| {
            slot(admit);
            change(admit);
        };
        plan = plan.admit_with(change, tag, staged).prefill(tag, 0, PROMPT.len() as u32).decode(tag, 8);
    }
    let events = h.tick_ok(plan);
    for (tag, (_, status, cert_id, class)) in (1..).zip(floors) {
        let result = events.admit_for(tag).expect("each admit has a result");
        assert_eq!((result.status, result.cert_id, result.granted_class), (status, cert_id, class), "lane {tag}");
        let rejected = status == admit_status::REJECTED;
        let code = if rejected { Status::RejectCertUnmatched as i32 as u32 } else { 0 };
        assert_eq!(result.reject_code, code);
        assert_eq!(h.engine.lane_sequence(tag).is_none(), rejected, "no lane");
        assert_eq!(events.emit_for(tag).is_none(), rejected, "its other records are ignored");
    }
    assert_eq!(h.tokens_of(&events, 2), h.tokens_of(&events, 4), "approximate in name only");
    assert_eq!(events.emit_for(2).map(|emit| emit.spec.cert_id_in_effect), Some(0));
    assert!(events.emit_for(2).is_some_and(|emit| emit.spec.proposed > 0));
    h.engine.audit().expect("the state holds together");
    // Without a slot neither counts.
    let plan = admit(&mut h, 9, &PROMPT, |admit| (admit.minimum_exactness, admit.required_cert_id) = (2, 77));
    let events = h.tick_ok(plan);
    let result = events.admit_for(9).expect("admitted");
    assert_eq!((result.status, result.granted_class), (admit_status::ADMITTED, exactness::SEED_PATH_INVARIANT));
}

/// what is ignored of a rejected lane takes no room either.
#[test]
fn rejected_lane_needs_no_room() {
    let mut h = drafting(0, ALWAYS, |options| {
        options.descriptor.max_seqs = 1;
        options.descriptor.cells_total = 20;
    });
    let (first, second) = (h.prompt(&PROMPT), h.prompt(&PROMPT));
    let below = |admit: &mut LaneAdmit| (admit.strategy_slot, admit.minimum_exactness) = (1, 2);
    let plan = h.plan().prefill_budget(9).admit_with(below, 1, first).prefill(1, 0, 9).decode(1, 100);
    let events = h.tick_ok(plan.admit(2, second).prefill(2, 0, 9).decode(2, 11));
    assert_eq!(events.tick_status, tick_status::OK);
    assert_eq!(events.admit_for(1).map(|result| result.status), Some(admit_status::REJECTED));
    assert_eq!(h.tokens_of(&events, 2).len(), 11);
}

/// RS-33, R-56: HOST lanes go by the name of their sampler.
#[test]
fn rs_33_host_lane_needs_a_strategy_for_hosts_and_a_listed_name() {
    let host = |name: [u8; 32]| {
        move |admit: &mut LaneAdmit| {
            slot(admit);
            (admit.sampling, admit.host_sampler_identity) = (sampling::HOST, name);
        }
    };
    let mut h = drafting(0, ALWAYS, |_| {});
    let plan = admit(&mut h, 1, &PROMPT, host([7; 32]));
    assert_eq!(h.refused(plan), Status::RejectHostRules);
    let mut h = copying(0, |_| {});
    register_strategy(&mut h, &StrategyBuilder::new("prompt-lookup").host_identities(&[[7; 32]])).expect("granted");
    let mut results = BTreeMap::new();
    for (tag, name) in [(1, [7; 32]), (2, [8; 32]), (3, [0; 32])] {
        let plan = admit(&mut h, tag, &PROMPT, host(name)).decode(tag, 1);
        let events = h.tick_ok(plan);
        let result = events.admit_for(tag).expect("a result");
        results.insert(tag, (result.status, result.cert_id, result.granted_class));
        assert_eq!(events.emits.len(), usize::from(tag == 1));
        assert!(events.emits.iter().all(|emit| emit.logits_row.generation != 0 && emit.spec.proposed == 0));
    }
    let rejected = (admit_status::REJECTED, 0, 0);
    assert_eq!(results[&1], (admit_status::ADMITTED, 2, exactness::DISTRIBUTION_EXACT));
    assert_eq!((results[&2], results[&3]), (rejected, rejected));
}

/// RS-34, R-57: what the engine does not offer is refused; other hashes get no certificates.
#[test]
fn rs_34_registry_refuses_what_is_not_offered_and_certifies_the_first_pair() {
    let mut h = copying(0, |_| {});
    let lookup = || StrategyBuilder::new("prompt-lookup");
    let foreign = [
        lookup().capability(99),
        lookup().capability(strategy_cap::PROPOSAL_TREE),
        lookup().tap(999, tap_tensor::HIDDEN),
        lookup().architecture("other"),
        lookup().kernel_caps(1 << 7),
    ];
    let before = h.engine.state_digest();
    for strategy in &foreign {
        for _ in 0..2 {
            assert_eq!(
                register_strategy(&mut h, strategy).map(|_| ()),
                Err(Status::RegistrationRefused),
                "{strategy:?}"
            );
            assert_eq!(h.engine.state_digest(), before);
        }
    }
    let own = lookup().architecture("other").architecture("fake");
    assert_eq!(register_strategy(&mut h, &own).map(|(slot, certs)| (slot, certs.len())), Ok((1, 1)));
    for (implementation, configuration, certificates) in [(0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, 1)] {
        let granted = register_prompt_lookup_with(&mut h, [implementation; 32], [configuration; 32], 0);
        assert_eq!(granted.map(|(slot, certs)| (slot, certs.len())), Ok((1, certificates)));
    }
    register_prompt_lookup_with(&mut h, [5; 32], [5; 32], 0).expect("granted without certificates");
    let events = start(&mut h, 1, &PROMPT, slot);
    assert_eq!(events.admit_for(1).map(|result| result.status), Some(admit_status::REJECTED));
}

/// a tap into a layer that the model has is no reason to refuse.
#[test]
fn rs_34_taps_are_refused_past_the_last_layer_only() {
    let mut h = copying(0, |options| options.descriptor.workloads.layers = 5);
    let tapping =
        |layer| StrategyBuilder::new("prompt-lookup").tap(0, tap_tensor::EMBED).tap(layer, tap_tensor::HIDDEN);
    assert_eq!(register_strategy(&mut h, &tapping(5)).map(|_| ()), Err(Status::RegistrationRefused));
    assert_eq!(register_strategy(&mut h, &tapping(4)).map(|(slot, certs)| (slot, certs.len())), Ok((1, 1)));
}

/// TS-71, T-125, T-129, T-130: grant and overshoot bound a draft.
#[test]
fn ts_71_overshoot_lets_a_draft_exceed_the_grant() {
    let mut h = drafting(0, ALWAYS, |_| {});
    start(&mut h, 1, &PROMPT, slot);
    let (tokens, events) = decode(&mut h, 1, 1, 0);
    let spec = events.emit_for(1).expect("the lane emits").spec;
    assert_eq!((tokens.len(), spec.proposed, spec.accepted, spec.cert_id_in_effect), (1, 0, 0, 0));
    let (tokens, events) = decode(&mut h, 1, 1, 4);
    let spec = events.emit_for(1).expect("the lane emits").spec;
    assert_eq!((tokens.len(), spec.proposed, spec.accepted, spec.cert_id_in_effect), (5, 4, 4, 1));
    // A round starts only while grant remains: what the overshoot leaves is not decoded for.
    let (tokens, events) = decode(&mut h, 1, 2, 40);
    assert_eq!((tokens.len(), events.emit_for(1).map(|emit| emit.spec.proposed)), (5, Some(4)));
}

/// T-124: a runtime that verifies one lane at a time drafts for one lane.
#[test]
fn several_lanes_draft_only_where_they_are_verified_together() {
    for (batches, other_grant, drafts) in [(true, 4, true), (false, 4, false), (false, 0, true)] {
        let mut h = drafting(0, ALWAYS, |options| options.descriptor.verify_batches = batches);
        start(&mut h, 1, &PROMPT, slot);
        start(&mut h, 2, &PROMPT, |_| {});
        let plan = h.plan().decode(1, 8).decode(2, other_grant);
        let events = h.tick_ok(plan);
        assert_eq!(events.emit_for(1).is_some_and(|emit| emit.spec.proposed > 0), drafts, "{batches} {other_grant}");
        assert_eq!(events.emit_for(2).map(|emit| emit.spec.proposed), Some(0), "a lane without a slot never drafts");
    }
}

/// The fake, but slow, stubborn or stiff about drafts.
struct Bent {
    fake: FakeRuntime,
    /// Time that each row of a verified draft takes.
    row_delay: Duration,
    /// Does not answer every row, although it says so.
    declines: bool,
    /// What the next cut answers.
    cut_fails: Option<RuntimeError>,
}

impl Runtime for Bent {
    fn describe(&self) -> &Descriptor {
        self.fake.describe()
    }
    fn is_eos(&self, token: u32) -> bool {
        self.fake.is_eos(token)
    }
    fn seq_create(&mut self) -> Result<SeqHandle, RuntimeError> {
        self.fake.seq_create()
    }
    fn seq_free(&mut self, sequence: SeqHandle) {
        self.fake.seq_free(sequence);
    }
    fn seq_len(&self, sequence: SeqHandle) -> u64 {
        self.fake.seq_len(sequence)
    }
    fn cells_released(&self, sequences: &[SeqHandle]) -> u64 {
        self.fake.cells_released(sequences)
    }
    fn seq_copy(&mut self, source: SeqHandle, target: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        self.fake.seq_copy(source, target, len)
    }
    fn seq_truncate(&mut self, sequence: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        self.cut_fails.take().map_or_else(|| self.fake.seq_truncate(sequence, len), Err)
    }
    fn seq_export(&mut self, sequence: SeqHandle, len: u64, encoding: u8) -> Result<Vec<u8>, RuntimeError> {
        self.fake.seq_export(sequence, len, encoding)
    }
    fn seq_import(&mut self, sequence: SeqHandle, payload: &[u8]) -> Result<u64, RuntimeError> {
        self.fake.seq_import(sequence, payload)
    }
    fn mem_counters(&self) -> MemCounters {
        self.fake.mem_counters()
    }
    fn step(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        for feed in feeds.iter().filter(|feed| matches!(feed.want, Want::EveryRow)) {
            if self.declines {
                return Err(RuntimeError::Unsupported);
            }
            let Input::Tokens(tokens) = feed.input else { continue };
            std::thread::sleep(self.row_delay * tokens.len() as u32);
        }
        self.fake.step(feeds, answers)
    }
}

/// An engine over a bent runtime, with prompt lookup, and lane 1 at the end of [`PROMPT`].
fn bent(miss_every: usize, config: &str, change: impl FnOnce(&mut Bent)) -> Harness<Executor<Bent>> {
    let fake = FakeRuntime::with(|options| {
        options.descriptor.vocab_size = 512;
        options.descriptor.verify_rows = true;
        options.copy_model = Some(CopyModel { miss_every });
    });
    let mut runtime = Bent { fake, row_delay: Duration::ZERO, declines: false, cut_fails: None };
    change(&mut runtime);
    let mut h = Harness::with_engine(Executor::new(runtime));
    register_strategy(&mut h, &StrategyBuilder::new("prompt-lookup").config(config)).expect("granted");
    let staged = h.prompt(&PROMPT);
    let plan = h.plan().admit_with(slot, 1, staged).prefill(1, 0, PROMPT.len() as u32);
    h.tick_ok(plan);
    h
}

/// T-124, R-44, R-45: ticks that drafts make slower are run without them, and tokens stay as they are.
#[test]
fn gate_closes_where_drafts_are_slow() {
    let drafted = |row_delay| {
        let mut h = bent(0, "gate_reprobe=100", |runtime| runtime.row_delay = row_delay);
        let mut drafted = Vec::new();
        let mut tokens = Vec::new();
        for _ in 0..16 {
            let plan = h.plan().decode(1, 5);
            let events = h.tick_ok(plan);
            drafted.push(events.emit_for(1).is_some_and(|emit| emit.spec.proposed > 0));
            tokens.extend(h.tokens_of(&events, 1));
        }
        (drafted, tokens)
    };
    let (slow, tokens) = drafted(Duration::from_millis(3));
    assert_eq!(slow[..3], [true, true, false], "two probes, and one of the other way");
    assert!(!slow[3..].contains(&true), "{slow:?}");
    assert_eq!(tokens, drafted(Duration::ZERO).1);
}

/// registering again forgets what was measured.
#[test]
fn registration_resets_the_gate() {
    let mut h = bent(0, "gate_reprobe=100", |runtime| runtime.row_delay = Duration::from_millis(3));
    let mut drafts = |register: bool| {
        if register {
            register_strategy(&mut h, &StrategyBuilder::new("prompt-lookup").config("gate_reprobe=100"))
                .expect("again");
        }
        let plan = h.plan().decode(1, 5);
        let events = h.tick_ok(plan);
        events.emit_for(1).is_some_and(|emit| emit.spec.proposed > 0)
    };
    let before: Vec<bool> = (0..6).map(|_| drafts(false)).collect();
    assert_eq!(before, [true, true, false, false, false, false]);
    assert!(drafts(true), "a fresh probe");
}

/// T-126: a runtime that says it verifies drafts and then does not is broken.
#[test]
fn runtime_that_declines_to_verify_is_fatal() {
    let mut h = bent(0, ALWAYS, |runtime| runtime.declines = true);
    let plan = h.plan().decode(1, 8);
    assert_eq!(h.tick_err(plan), Status::Fatal);
}

/// T-128: a cut that fails is the fault of its lane, or of the engine.
#[test]
fn failed_cut_faults_the_lane() {
    // The model misses at lengths that are multiples of 10: the first draft starts at 9.
    let mut h = bent(10, ALWAYS, |runtime| runtime.cut_fails = Some(RuntimeError::OutOfBoundary));
    let plan = h.plan().decode(1, 8);
    let events = h.tick_ok(plan);
    let faults: Vec<(u64, u32)> = events.faults.iter().map(|fault| (fault.lane_tag, fault.code)).collect();
    assert_eq!((faults, events.emits.len()), (vec![(1, fault::INTERNAL)], 0));
    assert!(h.engine.lane_sequence(1).is_none());
    h.engine.audit().expect("the state holds together");
    let mut h = bent(10, ALWAYS, |runtime| runtime.cut_fails = Some(RuntimeError::Fatal));
    let plan = h.plan().decode(1, 8);
    assert_eq!(h.tick_err(plan), Status::Fatal);
}

/// T-125: the context bounds a draft, and the lane ends where it ends without one.
#[test]
fn context_bounds_a_draft() {
    for config in ["", ALWAYS] {
        let mut h = drafting(0, config, |options| options.descriptor.max_seq_len = 14);
        start(&mut h, 1, &PROMPT, |admit| admit.strategy_slot = u32::from(!config.is_empty()));
        let (tokens, events) = decode(&mut h, 1, 30, 30);
        let emit = events.emit_for(1).expect("the lane emits");
        assert_eq!((tokens, emit.finish), (vec![13, 14, 15, 10, 11], finish::LENGTH));
        assert_eq!(h.committed(1).len(), 14);
    }
}

/// T-125: drafts take spare cells only, handed out in feed order; grants are never short of them.
#[test]
fn drafts_take_only_spare_cells() {
    for spare in 0..=7u64 {
        let mut h = drafting(0, "max_draft=3,throughput_gate=0", |options| {
            // Two prompts, and grants of one each behind their pending tokens.
            options.descriptor.cells_total = 2 * 8 + 2 + spare;
        });
        start(&mut h, 1, &PROMPT, slot);
        start(&mut h, 2, &PROMPT, slot);
        let plan = h.plan().decode_with_overshoot(2, 1, 9).decode_with_overshoot(1, 1, 9);
        let events = h.tick_ok(plan);
        let proposed = [2, 1].map(|lane| events.emit_for(lane).map_or(99, |emit| emit.spec.proposed));
        let first = spare.min(3) as u32;
        assert_eq!(proposed, [first, (spare as u32 - first).min(3)], "{spare} spare cells");
        h.engine.audit().expect("the state holds together");
    }
}

/// T-127: penalties, bias and log-probabilities are those of rounds without drafts, to the bit; callbacks come token by token.
#[test]
fn shaped_lanes_draft_and_stay_as_they_are() {
    let transcript = |slot: u32| {
        let mut h = drafting(4, "throughput_gate=0,max_draft=6", |_| {});
        let bias = h.engine.logit_bias_create(&[13, 200], &[2.0, 9.0]).expect("a bias");
        let prompt: Vec<u32> = (0..30).map(|i| 20 + i % 5).collect();
        start(&mut h, 1, &prompt, |admit| {
            (admit.strategy_slot, admit.logit_bias_handle, admit.want_logprobs) = (slot, bias, 4);
            admit.sampling = sampling::GPU_GUMBEL;
            (admit.params.temperature, admit.params.repeat_penalty) = (0.3, 1.05);
        });
        let mut all = Vec::new();
        let mut proposed = 0;
        for _ in 0..6 {
            let (tokens, events) = decode(&mut h, 1, 9, 0);
            let logprobs: Vec<_> =
                events.logprobs_for(1).into_iter().map(|record| (record.logprob.to_bits(), record.top_ids)).collect();
            assert_eq!(logprobs.len(), tokens.len());
            proposed += events.emits[0].spec.proposed;
            all.push((tokens, logprobs));
        }
        (all, proposed)
    };
    let ((plain, none), (drafted, proposed)) = (transcript(0), transcript(1));
    assert_eq!(plain, drafted);
    assert!(none == 0 && proposed > 0, "{proposed} proposed");
}

extern "C" fn hear(user: *mut core::ffi::c_void, lane: u64, tokens: *const u32, count: u32) {
    assert_eq!(count, 1, "one token a call (T-107)");
    // SAFETY: the test handed out its list and does not touch it during the tick.
    let heard = unsafe { &mut *user.cast::<Vec<(u64, u32)>>() };
    // SAFETY: one token is valid for the call.
    heard.push((lane, unsafe { *tokens }));
}

/// T-127, T-105: each token of a verified draft has a callback of its own, lane after lane.
#[test]
fn callbacks_hear_every_token_of_a_draft() {
    let mut h = drafting(0, ALWAYS, |_| {});
    start(&mut h, 9, &PROMPT, slot);
    start(&mut h, 4, &PROMPT, slot);
    let mut heard: Vec<(u64, u32)> = Vec::new();
    let plan = h.plan().flags(tick_flag::PARTIAL_EMITS).partial_emit(hear, (&raw mut heard).cast());
    let events = h.tick_ok(plan.decode(9, 5).decode(4, 5));
    let told = |lane| heard.iter().filter(|heard| heard.0 == lane).map(|heard| heard.1).collect::<Vec<_>>();
    for lane in [4, 9] {
        assert_eq!(told(lane), h.tokens_of(&events, lane));
    }
    let lanes: Vec<u64> = heard.iter().map(|heard| heard.0).collect();
    assert_eq!(lanes[..10], [4, 4, 4, 4, 4, 9, 9, 9, 9, 9], "ascending tag, all tokens of a lane together");
}

/// T-126: lanes without a draft go along in the same step, HOST lanes among them.
#[test]
fn one_step_verifies_all_lanes_of_a_round() {
    let mut h = drafting(0, ALWAYS, |_| {});
    start(&mut h, 1, &PROMPT, slot);
    start(&mut h, 2, &[1, 2, 3], slot);
    start(&mut h, 3, &PROMPT, |admit| admit.sampling = sampling::HOST);
    let before = h.engine.primitives().steps();
    let plan = h.plan().decode(1, 5).decode(2, 1).decode(3, 1);
    let events = h.tick_ok(plan);
    assert_eq!(h.engine.primitives().steps() - before, 1);
    let tokens = [1, 2, 3].map(|lane| events.emit_for(lane).map_or(99, |emit| emit.n_tokens));
    assert_eq!(tokens, [5, 1, 0]);
    assert_ne!(events.emit_for(3).map(|emit| emit.logits_row.generation), Some(0));
}
