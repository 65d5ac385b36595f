//! What every scenario needs: an executor over a fake runtime, and predictions of its tokens.

use ictus::engine::{Engine, PlanBuilder};
use ictus::record::constant::sampling;
use ictus::record::{LaneAdmit, Status};
use ictus::ring::{MemoryRingShape, MemoryRings};
#[allow(unused_imports, reason = "a trait of the runtime, where that is in this process")]
use ictus::runtime::Runtime;
use ictus::runtime::{FakeOptions, SamplingSupport};
use ictus::sample::{SampleRequest, Scratch, pick};
use ictus::testing::{Events, Harness};

use super::engine::{Under, under_test};

pub(crate) type Fake = Harness<Under>;

/// What makes an admit of a lane what it is.
pub(crate) type Change<'a> = &'a dyn Fn(&mut LaneAdmit);

/// Every way of sharing the picking between runtime and executor.
pub(crate) const SUPPORTS: [SamplingSupport; 4] = [
    SamplingSupport { greedy: false, draws: false, shaping: false, logprobs: false },
    SamplingSupport { greedy: true, draws: false, shaping: false, logprobs: false },
    SamplingSupport { greedy: true, draws: true, shaping: false, logprobs: true },
    SamplingSupport { greedy: true, draws: true, shaping: true, logprobs: true },
];

/// A fresh engine over the default fake, changed.
pub(crate) fn fake(change: impl FnOnce(&mut FakeOptions)) -> Fake {
    Harness::with_engine(under_test(change))
}

/// The same with rings of another shape.
pub(crate) fn fake_with_rings(shape: MemoryRingShape, change: impl FnOnce(&mut FakeOptions)) -> Fake {
    Harness::with_engine_and_rings(under_test(change), MemoryRings::with_shape(shape))
}

/// A vocabulary of 64 with end token 63: small enough that a temperature matters.
pub(crate) fn small(options: &mut FakeOptions) {
    options.descriptor.vocab_size = 64;
    options.end_ids = vec![63];
}

/// Runs a plan that must be accepted.
#[track_caller]
pub(crate) fn ok(h: &mut Fake, build: impl FnOnce(PlanBuilder) -> PlanBuilder) -> Events {
    let plan = build(h.plan());
    h.tick_ok(plan)
}

/// Runs a plan, twice, that must be refused and leave no trace.
#[track_caller]
pub(crate) fn no(h: &mut Fake, build: impl FnOnce(PlanBuilder) -> PlanBuilder) -> Status {
    let plan = build(h.plan());
    h.refused(plan)
}

/// Admits a lane, prefills its prompt whole and decodes `grant`; answers its tokens.
#[track_caller]
pub(crate) fn start(
    h: &mut Fake,
    lane: u64,
    prompt: &[u32],
    grant: u16,
    change: impl FnOnce(&mut LaneAdmit),
) -> Vec<u32> {
    let staged = h.prompt(prompt);
    let mut replay = 0;
    let change = |admit: &mut LaneAdmit| {
        change(admit);
        replay = admit.decode_replay;
    };
    let plan = h.plan().admit_with(change, lane, staged);
    let plan = plan.prefill(lane, 0, prompt.len() as u32 - replay).decode(lane, grant);
    let events = h.tick_ok(plan);
    h.tokens_of(&events, lane)
}

/// Decodes one lane; answers its tokens.
#[track_caller]
pub(crate) fn more(h: &mut Fake, lane: u64, grant: u16) -> Vec<u32> {
    let events = ok(h, |plan| plan.decode(lane, grant));
    h.tokens_of(&events, lane)
}

/// Admits a lane and prefills all of its prompt without decoding.
#[track_caller]
pub(crate) fn admit_whole(h: &mut Fake, lane: u64, prompt: &[u32], change: impl FnOnce(&mut LaneAdmit)) {
    let staged = h.prompt(prompt);
    ok(h, |plan| plan.admit_with(change, lane, staged).prefill(lane, 0, prompt.len() as u32));
}

/// The greedy tokens after a prompt, by the fake's own function.
pub(crate) fn greedy_after(h: &Fake, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut list = prompt.to_vec();
    for _ in 0..count {
        list.push(h.engine.primitives().token_for(&list));
    }
    list.split_off(prompt.len())
}

/// The tokens drawn after a prompt, from the fake's rows.
pub(crate) fn drawn_after(h: &Fake, prompt: &[u32], base: u64, count: usize, request: SampleRequest<'_>) -> Vec<u32> {
    let mut list = prompt.to_vec();
    for position in 0..count as u64 {
        let mut row = h.engine.primitives().row_for(&list);
        let request = SampleRequest { position: base.wrapping_add(position), ..request };
        let picked = pick(&mut row, &request, &mut Scratch::new()).expect("the row is finite");
        list.push(picked.token);
    }
    list.split_off(prompt.len())
}

/// An admit that draws as TS-16 does.
pub(crate) fn sampled(base: u64) -> impl Fn(&mut LaneAdmit) + Copy {
    move |admit| {
        admit.sampling = sampling::GPU_GUMBEL;
        admit.params.temperature = 0.9;
        admit.params.top_p = 0.95;
        admit.params.top_k = 40;
        admit.rng_counter_base = base;
    }
}

/// An admit that draws hot, with every cut off.
pub(crate) fn hot(base: u64) -> impl Fn(&mut LaneAdmit) + Copy {
    move |admit| {
        admit.sampling = sampling::GPU_GUMBEL;
        admit.params.temperature = 8.0;
        admit.params.top_p = 1.0;
        admit.rng_counter_base = base;
    }
}

/// The request of [`hot`].
pub(crate) const HOT: SampleRequest<'static> = SampleRequest {
    temperature: 8.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    position: 0,
    bias: &[],
    penalty: None,
    mask: None,
    logprobs: None,
};

/// An admit whose tokens the host picks.
pub(crate) fn by_host(admit: &mut LaneAdmit) {
    admit.sampling = sampling::HOST;
}

/// An admit like [`basic_admit`](ictus::testing::basic_admit).
pub(crate) fn plain(_: &mut LaneAdmit) {}

/// Length and wish of every feed since the `from`-th.
pub(crate) fn feeds(h: &Fake, from: usize) -> Vec<(usize, bool)> {
    h.engine.primitives().feeds()[from..].iter().map(|feed| (feed.len, feed.wants_row)).collect()
}

/// Number of feeds so far.
pub(crate) fn feed_count(h: &Fake) -> usize {
    h.engine.primitives().feeds().len()
}

/// The sequence of a live lane.
#[track_caller]
pub(crate) fn sequence(h: &Fake, lane: u64) -> u64 {
    h.engine.lane_sequence(lane).expect("the lane is live")
}

/// Cells that sequences hold.
pub(crate) fn cells(h: &Fake) -> u64 {
    h.engine.primitives().mem_counters().cells_used
}

/// `[from..to)` as tokens.
pub(crate) fn span(from: u32, to: u32) -> Vec<u32> {
    (from..to).collect()
}
