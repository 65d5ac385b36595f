//! Decode rounds that are begun ahead: what a host sees is what it sees of rounds that wait for each other, and the device never waits for the host.

#[path = "common/random.rs"]
#[expect(dead_code, reason = "not every test needs every kind of random number")]
mod random;

use std::cell::RefCell;
use std::rc::Rc;

use ictus::engine::{Engine, LaneCost};
use ictus::executor::Executor;
use ictus::record::LaneAdmit;
use ictus::record::constant::{finish, sampling};
use ictus::runtime::{
    Answers, Descriptor, FakeOptions, FakeRuntime, Feed, Input, MemCounters, RecordedFeed, Runtime, RuntimeError,
    SamplingSupport, SeqHandle, Want,
};
use ictus::testing::{Events, Harness, RestlessRings};
use random::Random;

const VOCAB: u32 = 40;

fn options(options: &mut FakeOptions) {
    options.descriptor.vocab_size = VOCAB;
    options.descriptor.max_seq_len = 40;
    options.descriptor.cells_total = 400;
    options.descriptor.cell_granule_tokens = 4;
    options.descriptor.page_size_tokens = 4;
    options.descriptor.copy_shares_cells = true;
    options.descriptor.sampling = SamplingSupport { greedy: true, draws: true, shaping: true, logprobs: true };
    options.end_ids = vec![3, 11];
}

/// What can be seen of a tick.
#[derive(Debug, PartialEq)]
struct Seen {
    events: String,
    tokens: Vec<Vec<u32>>,
    costs: Vec<Option<LaneCost>>,
    memory: MemCounters,
    lengths: Vec<u64>,
}

/// Lanes of all kinds come and go at random; plans grant up to six tokens, rings yield, steps fail.
fn run_host(fake: FakeRuntime, key: u64, may_fail: bool) -> (Vec<Seen>, Vec<RecordedFeed>) {
    let mut random = Random::from_key(key);
    let mut h = Harness::with_engine_and_rings(Executor::new(fake), RestlessRings::new(random.next()));
    let mut live: Vec<(u64, u32, bool)> = Vec::new();
    let mut all = Vec::new();
    for turn in 1..150u64 {
        let mut plan = h.plan();
        let mut staged = Vec::new();
        if live.len() < 5 {
            let len = 1 + random.below(9) as u32;
            let prompt: Vec<u32> = (0..len).map(|_| random.below(VOCAB as usize) as u32).collect();
            staged.push((turn, len, random.below(6), prompt));
        }
        for (tag, len, kind, prompt) in staged {
            let reference = h.prompt(&prompt);
            let admit = |admit: &mut LaneAdmit| {
                match kind {
                    0 | 1 => {}
                    2 => admit.want_logprobs = 3,
                    3 => admit.params.repeat_penalty = 1.3,
                    _ => {
                        admit.sampling = sampling::GPU_GUMBEL;
                        admit.params.temperature = 0.8;
                        admit.params.top_p = 1.0;
                    }
                }
                admit.rng_counter_base = tag << 8;
                admit.params.flags = 0;
            };
            plan = plan.admit_with(admit, tag, reference).prefill(tag, 0, len);
            live.push((tag, len, false));
        }
        let error = *random.pick(&[RuntimeError::Fault(9), RuntimeError::Capacity]);
        let (fails, after) = (random.below(25) == 0, random.below(6) as u64);
        if fails && may_fail {
            h.engine.primitives_mut().fail_step_after(after, error);
        }
        for (tag, ..) in live.iter().filter(|(.., done)| !done) {
            if random.below(8) > 0 {
                plan = plan.decode(*tag, random.below(7) as u16);
            }
        }
        live.retain(|(tag, _, done)| {
            let goes = *done || random.below(20) == 0;
            if goes && *tag != turn {
                plan = std::mem::replace(&mut plan, ictus::engine::PlanBuilder::new(0)).retire(*tag, false);
            }
            !goes || *tag == turn
        });
        let events = match h.tick(plan) {
            Ok(events) => events,
            Err(status) => {
                all.push(Seen {
                    events: status.to_string(),
                    tokens: vec![],
                    costs: vec![],
                    memory: h.engine.primitives().mem_counters(),
                    lengths: vec![],
                });
                continue;
            }
        };
        for fault in &events.faults {
            live.retain(|(tag, ..)| *tag != fault.lane_tag);
        }
        for emit in &events.emits {
            if emit.finish != finish::NONE
                && let Some(lane) = live.iter_mut().find(|(tag, ..)| *tag == emit.lane_tag)
            {
                lane.2 = true;
            }
        }
        all.push(seen(&h, &events, &live));
    }
    h.engine.audit().expect("nothing is left of what was taken back");
    let feeds = h.engine.primitives().feeds().to_vec();
    (all, feeds)
}

fn seen(h: &Harness<Executor<FakeRuntime>, RestlessRings>, events: &Events, live: &[(u64, u32, bool)]) -> Seen {
    let tokens = events.emits.iter().map(|emit| h.rings_tokens(&emit.token_ref)).collect();
    let told = (&events.admit_results, &events.logprobs, &events.faults, &events.mem, events.tick_status);
    let ends: Vec<_> = events.emits.iter().map(|emit| (emit.lane_tag, emit.n_tokens, emit.finish)).collect();
    Seen {
        events: format!("{told:?} {ends:?}"),
        tokens,
        costs: live.iter().map(|(tag, ..)| h.engine.lane_cost(*tag)).collect(),
        memory: h.engine.primitives().mem_counters(),
        lengths: (1..200).map(|sequence| h.engine.primitives().seq_len(sequence)).collect(),
    }
}

/// T-104 .. T-110, T-132, E-1: whatever a host does, rounds ahead give it the same events, costs, memory and sequences, and the runtime
/// is asked for the same steps.
#[test]
fn rounds_ahead_are_seen_as_rounds_that_wait() {
    let mut random = Random::new("rounds_ahead_are_seen_as_rounds_that_wait");
    for _ in 0..40 {
        let key = random.next();
        let (expected, fed) = run_host(FakeRuntime::with(options), key, true);
        let ahead = FakeRuntime::with(|fake| {
            options(fake);
            fake.steps_ahead = true;
        });
        let (seen, fed_ahead) = run_host(ahead, key, true);
        for (turn, (seen, expected)) in seen.iter().zip(&expected).enumerate() {
            assert_eq!(seen, expected, "ICTUS_RNG={key}, turn {turn}");
        }
        assert_eq!(fed_ahead, fed, "ICTUS_RNG={key}");
    }
}

/// the same where the runtime has to be asked again for some of its tokens.
#[test]
fn tokens_that_are_picked_later_change_nothing() {
    let mut random = Random::new("tokens_that_are_picked_later_change_nothing");
    for round in 0..40 {
        let key = random.next();
        // A step that feeds again would count for the failures that are planted.
        let (expected, _) = run_host(FakeRuntime::with(options), key, false);
        let again = FakeRuntime::with(|fake| {
            options(fake);
            fake.steps_ahead = true;
            fake.picks_again_every = 1 + round % 9;
        });
        let (seen, _) = run_host(again, key, false);
        for (turn, (seen, expected)) in seen.iter().zip(&expected).enumerate() {
            assert_eq!(seen, expected, "ICTUS_RNG={key}, turn {turn}");
        }
    }
}

/// What a runtime was asked, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Step(usize),
    /// Feeds, and how many of them feed what the step before picks.
    Begin(usize, usize),
    /// Feeds that are wanted, and those in vain.
    End(usize, usize),
    Cut(SeqHandle, u64),
}

/// The fake, and a list of what it is asked.
struct Watched {
    fake: FakeRuntime,
    asked: Rc<RefCell<Vec<Asked>>>,
}

impl Runtime for Watched {
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
        self.asked.borrow_mut().push(Asked::Cut(sequence, len));
        self.fake.seq_truncate(sequence, len)
    }
    fn mem_counters(&self) -> MemCounters {
        self.fake.mem_counters()
    }
    fn step(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        self.asked.borrow_mut().push(Asked::Step(feeds.len()));
        self.fake.step(feeds, answers)
    }
    fn steps_ahead(&self) -> bool {
        self.fake.steps_ahead()
    }
    fn step_begin(&mut self, feeds: &[Feed<'_>]) -> Result<(), RuntimeError> {
        let picked = feeds.iter().filter(|feed| matches!(feed.input, Input::Picked { .. })).count();
        self.asked.borrow_mut().push(Asked::Begin(feeds.len(), picked));
        self.fake.step_begin(feeds)
    }
    fn step_end(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        let vain = feeds.iter().filter(|feed| matches!(feed.want, Want::Nothing)).count();
        self.asked.borrow_mut().push(Asked::End(feeds.len() - vain, vain));
        self.fake.step_end(feeds, answers)
    }
}

/// An engine that begins rounds ahead, with these lanes, prefilled; and what its runtime was asked since then.
fn watched(lanes: u64, change: impl Fn(u64, &mut LaneAdmit)) -> (Harness<Executor<Watched>>, Rc<RefCell<Vec<Asked>>>) {
    let fake = FakeRuntime::with(|fake| {
        options(fake);
        fake.steps_ahead = true;
        fake.end_ids = vec![VOCAB - 1];
    });
    let asked = Rc::new(RefCell::default());
    let mut h = Harness::with_engine(Executor::new(Watched { fake, asked: Rc::clone(&asked) }));
    for tag in 1..=lanes {
        let prompt = h.prompt(&[tag as u32, 5, 6]);
        let admit = |admit: &mut LaneAdmit| {
            admit.params.flags = 0;
            change(tag, admit);
        };
        let plan = h.plan().admit_with(admit, tag, prompt).prefill(tag, 0, 3);
        h.tick_ok(plan);
    }
    asked.borrow_mut().clear();
    (h, asked)
}

/// A round is begun before the one in front of it is waited for, and fed by it; lanes whose grant ends are left out, so nothing is in vain.
#[test]
fn next_round_is_begun_before_this_one_is_waited_for() {
    let (mut h, asked) = watched(3, |_, _| {});
    let plan = h.plan().decode(3, 4).decode(1, 4).decode(2, 2);
    let events = h.tick_ok(plan);
    assert!(events.emits.iter().all(|emit| emit.finish == finish::NONE));
    let expected = [
        Asked::Begin(3, 0),
        Asked::Begin(3, 3),
        Asked::End(3, 0),
        Asked::Begin(2, 2),
        Asked::End(3, 0),
        Asked::Begin(2, 2),
        Asked::End(2, 0),
        Asked::End(2, 0),
    ];
    assert_eq!(*asked.borrow(), expected);
    asked.borrow_mut().clear();
    let plan = h.plan().decode(1, 1).decode(2, 1);
    h.tick_ok(plan);
    assert_eq!(*asked.borrow(), [Asked::Step(2)], "one token each: there is nothing to be ahead of");
}

/// An end token in the middle: what was begun behind it is cut off, and the other lanes go on with what was begun.
#[test]
fn lane_that_ends_is_cut_back_and_the_others_go_on() {
    let (mut h, asked) = watched(2, |_, _| {});
    h.engine.primitives_mut().fake.script(1, &[7, VOCAB - 1]);
    let plan = h.plan().decode(1, 4).decode(2, 4);
    let events = h.tick_ok(plan);
    assert_eq!(h.tokens_of(&events, 1), [7, VOCAB - 1]);
    assert_eq!(events.emit_for(1).map(|emit| emit.finish), Some(finish::EOS));
    assert_eq!(events.emit_for(2).map(|emit| emit.n_tokens), Some(4));
    let expected = [
        Asked::Begin(2, 0),
        Asked::Begin(2, 2),
        Asked::End(2, 0),
        Asked::Begin(2, 2),
        Asked::End(2, 0),
        Asked::Begin(1, 1),
        Asked::End(1, 1),
        Asked::Cut(1, 4),
        Asked::End(1, 0),
    ];
    assert_eq!(*asked.borrow(), expected);
    assert_eq!(h.engine.primitives().seq_len(1), 4, "three of the prompt and the token before the end token");
}

/// A round with a lane whose request depends on the newest token waits, as a whole, until that is known.
#[test]
fn rounds_with_a_lane_that_looks_back_wait() {
    for kind in 0..2 {
        let (mut h, asked) = watched(2, |tag, admit| match (tag, kind) {
            (2, 0) => admit.params.repeat_penalty = 1.2,
            (2, _) => admit.sampling = sampling::HOST,
            _ => {}
        });
        let plan = h.plan().decode(1, 3).decode(2, 1);
        h.tick_ok(plan);
        // The second round has one lane, and is ahead.
        let expected = [Asked::Step(2), Asked::Begin(1, 0), Asked::Begin(1, 1), Asked::End(1, 0), Asked::End(1, 0)];
        assert_eq!(*asked.borrow(), expected, "kind {kind}");
    }
}

/// T-109: a tick that is asked to end takes the whole step back that was begun.
#[test]
fn tick_that_is_asked_to_end_takes_its_step_back() {
    let (mut h, asked) = watched(2, |_, _| {});
    h.rings.set_yield(true);
    let plan = h.plan().decode(1, 4).decode(2, 4);
    let events = h.tick_ok(plan);
    assert!(events.emits.iter().all(|emit| emit.n_tokens == 1));
    let expected = [
        Asked::Begin(2, 0),
        Asked::Begin(2, 2),
        Asked::End(2, 0),
        Asked::End(0, 2),
        Asked::Cut(1, 3),
        Asked::Cut(2, 3),
    ];
    let shown: Vec<Asked> = asked.borrow().clone();
    assert_eq!(shown.len(), expected.len(), "{shown:?}");
    assert_eq!(shown[..4], expected[..4]);
    assert_eq!(events.tick_status, 0, "yielding is no status of its own");
}

/// A word that stays raised (E-36) costs one step in vain, not one a tick; when it is lowered, rounds are begun ahead again.
#[test]
fn ticks_that_are_asked_to_end_one_after_another_begin_nothing_ahead() {
    let (mut h, asked) = watched(2, |_, _| {});
    h.rings.set_yield(true);
    let plan = h.plan().decode(1, 4).decode(2, 4);
    h.tick_ok(plan);
    for _ in 0..2 {
        asked.borrow_mut().clear();
        let plan = h.plan().decode(1, 4).decode(2, 4);
        let events = h.tick_ok(plan);
        assert!(events.emits.iter().all(|emit| emit.n_tokens == 1));
        assert_eq!(*asked.borrow(), [Asked::Step(2)]);
    }
    h.rings.set_yield(false);
    asked.borrow_mut().clear();
    let plan = h.plan().decode(1, 3).decode(2, 3);
    h.tick_ok(plan);
    // The first round is run before the word is looked at.
    let expected = [Asked::Step(2), Asked::Begin(2, 0), Asked::Begin(2, 2), Asked::End(2, 0), Asked::End(2, 0)];
    assert_eq!(*asked.borrow(), expected);
}
