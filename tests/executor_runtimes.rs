//! The executor over runtimes that are not what they should be, and over one that hands its pool out in pages.

#[path = "common/random.rs"]
#[expect(dead_code, reason = "not every test needs every kind of random number")]
mod random;

use ictus::engine::Engine;
use ictus::executor::Executor;
use ictus::record::constant::{fault, finish, sampling, tick_status};
use ictus::record::{LaneAdmit, Status};
use ictus::ring::{MemoryRingShape, MemoryRings};
use ictus::runtime::{
    Answers, Descriptor, FakeRuntime, Feed, MemCounters, Runtime, RuntimeError, SamplingSupport, SeqHandle, Vocabulary,
};
use ictus::sample::{Logprobs, Pick};
use ictus::testing::Harness;
use ictus::testing::schedule::{assert_schedule_invariance, random_requests};
use random::Random;

/// The fake, seen through a lens.
struct Bent<L> {
    fake: FakeRuntime,
    descriptor: Descriptor,
    lens: L,
    /// Newest sequence; handles ascend from 1.
    newest: SeqHandle,
}

/// What a lens changes.
trait Lens {
    /// Changes the answers of step `step`, or lets it fail.
    fn answers(&mut self, step: u64, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        let _ = (step, feeds, answers);
        Ok(())
    }

    /// Counts cells in granules of this many tokens.
    fn granule(&self) -> u64 {
        1
    }
}

impl<L: Lens> Bent<L> {
    fn new(lens: L, change: impl FnOnce(&mut Descriptor)) -> Self {
        let mut descriptor = FakeRuntime::default().describe().clone();
        change(&mut descriptor);
        descriptor.cell_granule_tokens = lens.granule() as u32;
        let fake = FakeRuntime::with(|options| {
            options.descriptor = descriptor.clone();
            // The pool is counted here, in granules.
            options.descriptor.cells_total = 0;
            options.end_ids = vec![descriptor.vocab_size - 1];
        });
        Self { fake, descriptor, lens, newest: 0 }
    }

    fn cells(&self, sequence: SeqHandle, more: usize) -> u64 {
        (self.fake.seq_len(sequence) + more as u64).next_multiple_of(self.lens.granule())
    }

    fn cells_used(&self) -> u64 {
        // A freed one holds nothing.
        (1..=self.newest).map(|sequence| self.cells(sequence, 0)).sum()
    }
}

impl<L: Lens> Runtime for Bent<L> {
    fn describe(&self) -> &Descriptor {
        &self.descriptor
    }
    fn is_eos(&self, token: u32) -> bool {
        self.fake.is_eos(token)
    }
    fn seq_create(&mut self) -> Result<SeqHandle, RuntimeError> {
        self.newest = self.fake.seq_create()?;
        Ok(self.newest)
    }
    fn seq_free(&mut self, sequence: SeqHandle) {
        self.fake.seq_free(sequence);
    }
    fn seq_len(&self, sequence: SeqHandle) -> u64 {
        self.fake.seq_len(sequence)
    }
    fn cells_released(&self, sequences: &[SeqHandle]) -> u64 {
        sequences.iter().map(|&sequence| self.cells(sequence, 0)).sum()
    }
    fn seq_copy(&mut self, source: SeqHandle, target: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        // The copy takes granules of its own, and gives back what the target held.
        let after = self.cells_used() + len.next_multiple_of(self.lens.granule()) - self.cells(target, 0);
        if self.descriptor.cells_total != 0 && after > self.descriptor.cells_total {
            return Err(RuntimeError::Capacity);
        }
        self.fake.seq_copy(source, target, len)
    }
    fn seq_truncate(&mut self, sequence: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        self.fake.seq_truncate(sequence, len)
    }
    fn seq_export(&mut self, sequence: SeqHandle, len: u64, encoding: u8) -> Result<Vec<u8>, RuntimeError> {
        self.fake.seq_export(sequence, len, encoding)
    }
    fn seq_import(&mut self, sequence: SeqHandle, payload: &[u8]) -> Result<u64, RuntimeError> {
        self.fake.seq_import(sequence, payload)
    }
    fn mem_counters(&self) -> MemCounters {
        MemCounters {
            cells_used: self.cells_used(),
            cells_total: self.descriptor.cells_total,
            ..self.fake.mem_counters()
        }
    }
    fn step(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        let grows = |feed: &Feed<'_>| {
            let ictus::runtime::Input::Tokens(tokens) = feed.input else { return 0 };
            self.cells(feed.sequence, tokens.len()) - self.cells(feed.sequence, 0)
        };
        let growth: u64 = feeds.iter().map(grows).sum();
        if self.descriptor.cells_total != 0 && self.cells_used() + growth > self.descriptor.cells_total {
            return Err(RuntimeError::Capacity);
        }
        self.fake.step(feeds, answers)?;
        let step = self.fake.steps();
        self.lens.answers(step, feeds, answers)
    }
    fn vocabulary(&self) -> Option<&Vocabulary> {
        self.fake.vocabulary()
    }
}

/// A pool of pages.
struct Pages(u64);

impl Lens for Pages {
    fn granule(&self) -> u64 {
        self.0
    }
}

/// Answers that do not fit what was asked, from the second step on.
struct Wrong(fn(&mut Answers));

impl Lens for Wrong {
    fn answers(&mut self, step: u64, _: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        if step > 1 {
            answers.clear(32_000);
            (self.0)(answers);
        }
        Ok(())
    }
}

fn pick(token: u32) -> Pick {
    Pick { token, logprobs: None }
}

const NO_LOGPROBS: Logprobs = Logprobs { logprob: 0.0, n_top: 0, top_ids: [0; 20], top_logprobs: [0.0; 20] };

/// Admits a lane, then decodes it over a runtime that answers wrong.
fn decode_over(wrong: fn(&mut Answers), change: fn(&mut LaneAdmit)) -> Result<u32, Status> {
    let mut host = Harness::with_engine(Executor::new(Bent::new(Wrong(wrong), |_| {})));
    let prompt = host.prompt(&[1, 2, 3]);
    let plan = host.plan().admit_with(change, 7, prompt).prefill(7, 0, 3);
    host.tick_ok(plan);
    let plan = host.plan().decode(7, 1);
    let status = host.tick(plan).map(|events| events.tick_status);
    if status == Err(Status::Fatal) {
        assert!(host.engine.last_events().is_none(), "a fatal tick has no events (T-136)");
        for _ in 0..2 {
            let plan = host.plan();
            assert_eq!(host.tick_err(plan), Status::Fatal, "every later call is fatal");
        }
        assert_eq!(host.engine.create_sequence(), Err(Status::Fatal));
        assert_eq!(host.engine.logit_bias_create(&[1], &[1.0]), Err(Status::Fatal));
    }
    status
}

///
#[test]
fn answers_that_do_not_fit_what_was_asked_are_fatal() {
    let row = |admit: &mut LaneAdmit| admit.want_logprobs = 1;
    let token = |_: &mut LaneAdmit| {};
    let host = |admit: &mut LaneAdmit| admit.sampling = sampling::HOST;
    // too few, too many, of another kind, beyond the vocabulary.
    assert_eq!(decode_over(|_| {}, token), Err(Status::Fatal));
    assert_eq!(decode_over(|a| a.push_nothing(), token), Err(Status::Fatal));
    assert_eq!(decode_over(|a| a.push_nothing(), row), Err(Status::Fatal));
    assert_eq!(decode_over(|a| a.push_pick(pick(32_000)), token), Err(Status::Fatal));
    assert_eq!(decode_over(|a| a.push_pick(pick(5)), row), Err(Status::Fatal));
    assert_eq!(decode_over(|a| a.push_pick(pick(5)), host), Err(Status::Fatal));
    let twice = |a: &mut Answers| (0..2).for_each(|_| a.push_pick(pick(5)));
    assert_eq!(decode_over(twice, token), Err(Status::Fatal));
    let unasked = |a: &mut Answers| a.push_pick(Pick { token: 5, logprobs: Some(NO_LOGPROBS) });
    assert_eq!(decode_over(unasked, token), Err(Status::Fatal));
    assert_eq!(decode_over(|a| _ = a.push_rows(0), row), Err(Status::Fatal));
    assert_eq!(decode_over(|a| _ = a.push_rows(2), row), Err(Status::Fatal));
    assert_eq!(decode_over(|a| _ = a.push_rows(1), token), Err(Status::Fatal));
    let short = |a: &mut Answers| {
        a.clear(100);
        a.push_rows(1);
    };
    assert_eq!(decode_over(short, row), Err(Status::Fatal));
    // The right ones are not.
    assert_eq!(decode_over(|a| a.push_pick(pick(5)), token), Ok(tick_status::OK));
    assert_eq!(decode_over(|a| _ = a.push_rows(1), row), Ok(tick_status::OK));
    assert_eq!(decode_over(|a| _ = a.push_rows(1), host), Ok(tick_status::OK));
}

/// From the third step on, the second feed fails alone.
struct OneFails;

impl Lens for OneFails {
    fn answers(&mut self, step: u64, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        if step > 2 {
            answers.clear(32_000);
            for index in 0..feeds.len() {
                match index {
                    1 => answers.push_fault(fault::STRATEGY),
                    _ => answers.push_pick(pick(5)),
                }
            }
        }
        Ok(())
    }
}

#[test]
fn feed_that_fails_alone_faults_its_lane_alone() {
    let mut host = Harness::with_engine(Executor::new(Bent::new(OneFails, |_| {})));
    for tag in [1, 2] {
        let prompt = host.prompt(&[1, 2, 3]);
        let plan = host.plan().admit(tag, prompt).prefill(tag, 0, 3);
        host.tick_ok(plan);
    }
    let plan = host.plan().decode(1, 3).decode(2, 3);
    let events = host.tick_ok(plan);
    assert_eq!(events.tick_status, tick_status::LANE_ERRORS);
    assert_eq!(events.faults.iter().map(|f| (f.lane_tag, f.code)).collect::<Vec<_>>(), [(2, fault::STRATEGY)]);
    assert_eq!(events.emits.iter().map(|emit| (emit.lane_tag, emit.n_tokens)).collect::<Vec<_>>(), [(1, 3)]);
    host.engine.audit().expect("the engine is sound");
    assert_eq!(host.engine.live_sequences(), 1);
}

/// An engine over `pages` pages of 16 tokens.
fn paged(pages: u64, change: impl FnOnce(&mut Descriptor)) -> Executor<Bent<Pages>> {
    Executor::new(Bent::new(Pages(16), |descriptor| {
        descriptor.vocab_size = 64;
        descriptor.cells_total = pages * 16;
        change(descriptor);
    }))
}

#[test]
fn lane_takes_whole_pages_and_not_one_more() {
    // 16 prompt tokens fill a page; the first token comes from the prompt's row and is not fed; so one page holds them, but
    // the contract counts the granted token as well (T-60).
    for (prompt_len, grant, pages) in
        [(15, 1, 1), (16, 0, 1), (16, 1, 2), (16, 17, 3), (31, 1, 2), (1, 15, 1), (1, 16, 2)]
    {
        for room in [pages - 1, pages] {
            // An unbounded pool is none of the cases.
            if room == 0 {
                continue;
            }
            let mut host = Harness::with_engine(paged(room, |_| {}));
            let prompt = host.prompt(&vec![3; prompt_len]);
            let plan = host.plan().admit(1, prompt).prefill(1, 0, prompt_len as u32).decode(1, grant);
            match room < pages {
                true => assert_eq!(host.refused(plan), Status::NeedsReplan, "{prompt_len} + {grant} in {room}"),
                false => {
                    assert_eq!(host.tick_ok(plan).tick_status, tick_status::OK, "{prompt_len} + {grant} in {room}")
                }
            }
        }
    }
}

#[test]
fn page_of_a_lane_is_used_to_its_end_before_another_is_asked_for() {
    let mut host = Harness::with_engine(paged(1, |_| {}));
    let prompt = host.prompt(&[3; 4]);
    let plan = host.plan().admit(1, prompt).prefill(1, 0, 4).decode(1, 1);
    host.tick_ok(plan);
    // 4 tokens are fed and a fifth is pending: 12 more feeds fit.
    for _ in 0..12 {
        let plan = host.plan().decode(1, 1);
        assert_eq!(host.tick_ok(plan).tick_status, tick_status::OK);
    }
    let plan = host.plan().decode(1, 1);
    assert_eq!(host.refused(plan), Status::NeedsReplan);
    let prompt = host.prompt(&[3; 4]);
    let plan = host.plan().retire(1, false).admit(2, prompt).prefill(2, 0, 4).decode(2, 12);
    assert_eq!(host.tick_ok(plan).tick_status, tick_status::OK, "the page of the leaving lane is room (T-66)");
}

#[test]
fn accepted_plan_never_runs_out_of_pages() {
    // A lane that the pool fails faults, and the schedule allows no fault: so what is accepted fits.
    let mut random = Random::new("accepted_plan_never_runs_out_of_pages");
    let mut below = |bound: usize| random.below(bound);
    for sampling in [SamplingSupport::default(), SamplingSupport { greedy: true, ..SamplingSupport::default() }] {
        let requests = random_requests(8, 64, 60, 40, &mut below);
        let make = || {
            paged(8, |descriptor| {
                descriptor.sampling = sampling;
                descriptor.max_seq_len = 110;
                descriptor.prefill_step_tokens = 24;
            })
        };
        assert_schedule_invariance(make, &requests, 4, 6, &mut below);
    }
}

#[test]
fn lane_with_a_full_context_is_not_fed() {
    // The pool has a cell less than the two lanes have tokens: feeding the full one's last token would overdraw it (T-60).
    let fake = FakeRuntime::with(|options| {
        options.descriptor.max_seq_len = 4;
        options.descriptor.cells_total = 4;
    });
    let mut host = Harness::with_engine(Executor::new(fake));
    for (tag, tokens) in [(1, 4), (2, 1)] {
        let prompt = host.prompt(&vec![3; tokens as usize]);
        let plan = host.plan().admit(tag, prompt).prefill(tag, 0, tokens);
        host.tick_ok(plan);
    }
    let plan = host.plan().decode(2, 1);
    host.tick_ok(plan);
    let plan = host.plan().decode(1, 1);
    let events = host.tick_ok(plan);
    let emits: Vec<_> = events.emits.iter().map(|emit| (emit.lane_tag, emit.n_tokens, emit.finish)).collect();
    assert_eq!(emits, [(1, 0, finish::LENGTH)], "{events:?}");
    host.engine.audit().expect("the engine is sound");
}

#[test]
fn faulted_lane_leaves_no_logprobs() {
    let shape = MemoryRingShape { emit_tokens: 4, ..MemoryRingShape::default() };
    let engine = Executor::new(FakeRuntime::default());
    let mut host = Harness::with_engine_and_rings(engine, MemoryRings::with_shape(shape));
    for tag in [1, 2] {
        let prompt = host.prompt(&[1, 2, 3]);
        let plan = host.plan().admit_with(|admit| admit.want_logprobs = 1, tag, prompt).prefill(tag, 0, 3);
        host.tick_ok(plan);
    }
    // The first lane's five tokens do not fit its slot (T-141): it has no emit, and no log-probabilities to go with one.
    let plan = host.plan().decode(1, 5).decode(2, 3);
    let events = host.tick_ok(plan);
    assert_eq!(events.faults.iter().map(|f| (f.lane_tag, f.code)).collect::<Vec<_>>(), [(1, fault::REF_SPAN_OOB)]);
    assert_eq!(events.logprobs.iter().map(|record| record.lane_tag).collect::<Vec<_>>(), [2, 2, 2]);
}

#[test]
fn yield_ends_prefill_after_a_step_of_any_length() {
    let engine = Executor::new(FakeRuntime::with(|options| options.descriptor.prefill_step_tokens = 2));
    let mut host = Harness::with_engine(engine);
    host.rings.set_yield(true);
    let prompt = host.prompt(&[3; 10]);
    let plan = host.plan().admit(1, prompt).prefill(1, 0, 10).decode(1, 4);
    let events = host.tick_ok(plan);
    assert_eq!(host.committed(1).len(), 2, "T-91: between steps, never before the first");
    assert_eq!(events.shed_entries.iter().map(|entry| (entry.lane_tag, entry.tokens)).collect::<Vec<_>>(), [(1, 8)]);
    assert_eq!(events.emits.iter().map(|emit| emit.n_tokens).collect::<Vec<_>>(), [0]);
}

/// E-14.
#[test]
fn engine_moves_to_another_thread() {
    let mut host = Harness::with_engine(Executor::new(FakeRuntime::default()));
    let prompt = host.prompt(&[10, 20, 30]);
    let plan = host.plan().admit(1, prompt).prefill(1, 0, 3).decode(1, 1);
    host.tick_ok(plan);
    let there = std::thread::spawn(move || {
        let plan = host.plan().decode(1, 1);
        let events = host.tick_ok(plan);
        host.tokens_of(&events, 1)
    });
    assert_eq!(there.join().expect("the other thread ends well"), [17910]);
}
