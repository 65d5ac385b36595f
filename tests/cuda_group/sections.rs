//! Steps of several devices as sections: one copy to each device, one graph of all of them, and the bits of one device whatever becomes of it.

use ictus::backend::{Again, Backend, KvShape, KvType, Picked, Spread};
use ictus::executor::Executor;
use ictus::record::constant::tick_flag::CAPTURE_OK;
use ictus::record::{LaneAdmit, Status};
use ictus::runtime::{Answers, Feed, GraphCounts, Input, ModelRuntime, PagedOptions, SeqHandle, Want};
use ictus::sample::SampleRequest;
use ictus::testing::{Harness, PlanBuilder};

use super::*;

type Host<B> = Harness<Executor<ModelRuntime<B>>>;

/// An engine with `lanes` lanes whose prompts are in, 1 .. lanes, some drawn and some greedy; its plans have these flags from now on.
fn host<B: Backend>(runtime: ModelRuntime<B>, lanes: u64, flags: u32) -> Host<B> {
    let mut host = Harness::with_engine(Executor::new(runtime)).with_plan_flags(flags);
    let mut plan = host.plan();
    for lane in 1..=lanes {
        let staged = host.prompt(&[lane as u32 * 60, 2, 3]);
        let admit = |admit: &mut LaneAdmit| admit.params.temperature = if lane.is_multiple_of(2) { 1.5 } else { 0.0 };
        plan = plan.admit_with(admit, lane, staged).prefill(lane, 0, 3).decode(lane, 1);
    }
    host.tick_ok(plan);
    host
}

fn decode(plan: PlanBuilder, lanes: u64) -> PlanBuilder {
    (1..=lanes).fold(plan, |plan, lane| plan.decode(lane, 1))
}

/// A tick in which lanes decode a token each, and what it asked of the driver.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    hits: u32,
    misses: u32,
    launch_calls: u64,
    graph_launches: u64,
    to_device: u64,
    to_host: u64,
    allocations: u64,
    tokens: Vec<Vec<u32>>,
}

fn tick<B: Backend>(driver: &FakeDriver, host: &mut Host<B>, lanes: u64) -> Seen {
    let before = driver.statistics();
    let plan = host.plan();
    let events = host.tick_ok(decode(plan, lanes));
    let after = driver.statistics();
    Seen {
        hits: events.timings.graph_hits,
        misses: events.timings.graph_misses,
        launch_calls: after.launch_calls - before.launch_calls,
        graph_launches: after.graph_launches - before.graph_launches,
        to_device: after.copies_to_device - before.copies_to_device,
        to_host: after.copies_to_host - before.copies_to_host,
        allocations: after.allocations - before.allocations,
        tokens: (1..=lanes).map(|lane| host.tokens_of(&events, lane)).collect(),
    }
}

fn options() -> PagedOptions {
    model::options(KvType::F32, 64)
}

/// The small model on two devices, with its prompts in.
fn spread(lanes: u64, flags: u32) -> Host<CudaGroup> {
    host(Weights::of_file(SMALL).spread(2, &options()), lanes, flags)
}

/// What one device says in so many ticks.
fn alone(driver: &FakeDriver, weights: &Weights, lanes: u64, ticks: usize) -> Vec<Vec<Vec<u32>>> {
    let mut host = host(weights.alone(&options()), lanes, 0);
    (0..ticks).map(|_| tick(driver, &mut host, lanes).tokens).collect()
}

fn small_alone(driver: &FakeDriver, lanes: u64, ticks: usize) -> Vec<Vec<Vec<u32>>> {
    alone(driver, &Weights::of_file(SMALL), lanes, ticks)
}

/// T-146, P-10: the first step of a shape is launched on every device, the second captured, the others are one launch for all of them, whoever has the
/// tokens that are fed, and whatever the parity of their rounds.
#[test]
fn cuda_group_step_that_comes_again_is_one_launch() {
    let Some(driver) = devices(3) else { return };
    let three = Weights::with_heads(&mut Random::new("cuda group sections"), "tests/data/qwen3.gguf", 6, 3);
    let two = ["tests/data/gemma3.gguf", SMALL].map(Weights::of_file);
    for (count, weights, lanes) in [(2, &two[0], 2), (2, &two[1], 3), (2, &two[1], 1), (3, &three, 2)] {
        let what = format!("{count} devices, {}, {lanes} lanes", weights.name);
        let expected = alone(&driver, weights, lanes, 6);
        let (mut plain, mut graphed) = (
            host(weights.spread(count, &options()), lanes, 0),
            host(weights.spread(count, &options()), lanes, CAPTURE_OK),
        );
        for (number, expected) in expected.iter().enumerate() {
            let launched = tick(&driver, &mut plain, lanes);
            let seen = tick(&driver, &mut graphed, lanes);
            let what = format!("{what}, step {number}");
            assert_eq!((&launched.tokens, &seen.tokens), (expected, expected), "{what}");
            assert_eq!((launched.hits, launched.misses, launched.graph_launches), (0, 0, 0), "{what}");
            // One copy to each device, and one back.
            for seen in [&launched, &seen] {
                assert_eq!((seen.to_device, seen.to_host, seen.allocations), (u64::from(count), 1, 0), "{what}");
            }
            let counts = (seen.hits, seen.misses, seen.launch_calls, seen.graph_launches);
            match number {
                0 => assert_eq!(counts, (0, 1, launched.launch_calls, 0), "{what}"),
                1 => assert_eq!(counts, (0, 1, launched.launch_calls, 1), "{what}"),
                _ => assert_eq!(counts, (1, 0, 0, 1), "{what}"),
            }
        }
        drop((plain, graphed));
        let left = driver.statistics();
        assert_eq!((left.live_graphs, left.live_allocations, left.live_host_allocations), (0, 0, 0), "{left:?}");
    }
}

/// Prompts, lanes that decode, both at once, after a fork: one copy to each device for each part of a step.
#[test]
fn cuda_group_every_step_brings_all_of_it_in_one_copy_to_each_device() {
    let Some(driver) = devices(2) else { return };
    let options = PagedOptions {
        pool_pages: 128,
        context_tokens: 512,
        prefill_step_tokens: 8,
        pass_rows: 64,
        ..model::options(KvType::F16, 64)
    };
    let mut runtime = model::runtime(group(2), &open(SMALL), &options);
    let ids = prompt(200);
    let lanes: Vec<SeqHandle> = (0..3).map(|_| runtime.seq_create().expect("a sequence")).collect();
    let drawn = Want::Token(SampleRequest { temperature: 0.9, position: 3, bias: &[(7, 3.0)], ..Default::default() });
    let mut answers = Answers::new();
    let mut step = |runtime: &mut ModelRuntime<CudaGroup>, parts: u64, fed: &[(SeqHandle, usize)]| {
        let feed = |&(sequence, tokens): &(SeqHandle, usize)| Feed {
            sequence,
            input: Input::Tokens(&ids[..tokens]),
            want: drawn,
        };
        let feeds: Vec<Feed<'_>> = fed.iter().map(feed).collect();
        let before = driver.statistics();
        runtime.step(&feeds, &mut answers).expect("the step runs");
        let after = driver.statistics();
        assert_eq!(after.copies_to_device - before.copies_to_device, 2 * parts, "{fed:?}");
        assert_eq!(after.copies_to_host - before.copies_to_host, 1, "{fed:?}");
    };
    step(&mut runtime, 1, &[(lanes[0], 40)]);
    step(&mut runtime, 1, &[(lanes[0], 1), (lanes[1], 30)]);
    step(&mut runtime, 1, &[(lanes[0], 1), (lanes[1], 1)]);
    step(&mut runtime, 4, &[(lanes[2], 200)]);
    let fork = runtime.seq_create().expect("a sequence");
    runtime.seq_copy(lanes[0], fork, 35).expect("the source has it");
    step(&mut runtime, 1, &[(fork, 1), (lanes[1], 1)]);
}

/// A step whose devices meet an odd number of times, as nobody wants its rows, is the same program each time, and leaves the rows of one device behind.
#[test]
fn cuda_group_steps_of_odd_rounds_come_again() {
    let Some(_driver) = devices(2) else { return };
    let ids = prompt(16);
    fn rows<B: Backend>(mut runtime: ModelRuntime<B>, ids: &[u32]) -> (Vec<u32>, GraphCounts) {
        runtime.allow_capture(true);
        let sequence = runtime.seq_create().expect("a sequence");
        let mut answers = Answers::new();
        let mut step = |tokens: &[u32], want: Want<'_>| -> Vec<u32> {
            let feed = Feed { sequence, input: Input::Tokens(tokens), want };
            runtime.step(&[feed], &mut answers).expect("the step runs");
            answers.row(0).map(bits).unwrap_or_default()
        };
        step(&ids[..9], Want::Nothing);
        ids[9..15].iter().for_each(|&token| assert!(step(&[token], Want::Nothing).is_empty()));
        (step(&ids[15..], Want::LastRow), runtime.take_graph_counts())
    }
    let weights = Weights::of_file(SMALL);
    let alone = rows(weights.alone(&options()), &ids);
    assert_eq!(rows(weights.spread(2, &options()), &ids), alone);
    // The last step is another one.
    assert_eq!(alone.1, GraphCounts { hits: 4, misses: 2 + 1 });
}

/// A part of one round that picks, and so was launched before it ends, is one program: the round behind it in which nobody pushes is none.
#[test]
fn cuda_group_parts_of_odd_rounds_that_pick_are_one_program_each() {
    let Some(driver) = devices(2) else { return };
    let backend = group(2);
    let shape =
        KvShape { layers: 1, n_kv_heads: 2, head_dim: 16, page_size_tokens: 16, pages: 8, element: KvType::F32 };
    let _pages = backend.pages(&shape).expect("a pool");
    let mut random = Random::new("cuda group odd rounds");
    let (vocab, hidden, rows) = (300, 32, 3);
    let norm = weights::plain(1, hidden, &weights::values(&mut random, hidden));
    let table = weights::plain(vocab, hidden, &weights::values(&mut random, vocab * hidden));
    let norm = backend.vector(&norm).expect("a vector");
    let matrix = backend.matrix_in(&table, Spread::Parts { unit: 1 }).expect("a matrix");
    let [mut x, mut normed] = [(); 2].map(|()| backend.buffer(hidden));
    let mut logits = backend.buffer_in(vocab, Spread::Collected { unit: 1 });
    for buffer in [&mut x, &mut normed, &mut logits] {
        backend.resize(buffer, rows).expect("memory");
    }
    let mut part = |again: Option<Again>, values: &[f32]| {
        backend.write(&mut x, 0, values).expect("it works");
        let before = driver.statistics();
        if let Some(again) = again {
            backend.part_begin(again);
        }
        backend.rms_norm(&x, &norm, 1e-5, &mut normed);
        backend.linear(&normed, &matrix, None, &mut logits);
        let mut out = [Picked::NotServed; 3];
        let request = SampleRequest::default();
        backend.pick_rows(&mut logits, &[Some(&request); 3], &mut out).expect("it works");
        backend.part_end();
        backend.health().expect("the devices live");
        let counts = backend.take_graph_counts();
        (out, (counts.hits, counts.misses), driver.statistics().graph_launches - before.graph_launches)
    };
    for (number, expected) in [((0, 1), 0), ((0, 1), 1), ((1, 0), 1), ((1, 0), 1)].into_iter().enumerate() {
        let values = weights::values(&mut random, rows * hidden);
        let (alone, ..) = part(None, &values);
        assert!(alone.iter().all(|picked| matches!(picked, Picked::Done(Ok(_)))), "{alone:?}");
        let (picked, counts, graphs) = part(Some(Again::Keep), &values);
        assert_eq!(picked, alone, "part {number}");
        assert_eq!((counts, graphs), expected, "part {number}");
    }
}

/// A capture that fails, wherever it does, is nobody's fault: the step is launched on all devices, its program is not tried again, others are.
#[test]
fn cuda_group_capture_that_fails_changes_nothing() {
    let Some(driver) = devices(2) else { return };
    let unsupported = 900;
    let expected = small_alone(&driver, 2, 5);
    for (point, nth) in [
        (Point::Capture, 1),
        (Point::Capture, 2),
        (Point::Capture, 3),
        (Point::Capture, 4),
        (Point::Launch, 1),
        (Point::Launch, 9),
        (Point::Copy, 4),
    ] {
        let mut host = spread(2, CAPTURE_OK);
        for (step, expected) in expected.iter().enumerate() {
            if step == 1 {
                driver.inject(point, nth, unsupported);
            }
            let seen = tick(&driver, &mut host, 2);
            driver.inject(point, 0, 0);
            assert_eq!(&seen.tokens, expected, "{point:?} {nth}, step {step}");
            assert_eq!((seen.hits, seen.misses, seen.graph_launches), (0, 1, 0), "{point:?} {nth}, step {step}");
        }
        assert_eq!(driver.statistics().live_graphs, 0, "{point:?} {nth}");
        let other = [0, 1, 2].map(|_| tick(&driver, &mut host, 1));
        assert_eq!(other.map(|seen| (seen.hits, seen.graph_launches)), [(0, 0), (0, 1), (1, 1)], "{point:?} {nth}");
    }
}

/// Where devices are out of each other's reach nothing says that a graph may copy between them: this driver refuses, and steps are launched.
#[test]
fn cuda_group_without_reach_has_no_graphs() {
    let Some(driver) = devices(2) else { return };
    let expected = small_alone(&driver, 2, 5);
    driver.set(Setting::Peers, 0);
    let mut host = spread(2, CAPTURE_OK);
    for (step, expected) in expected.iter().enumerate() {
        let seen = tick(&driver, &mut host, 2);
        assert_eq!((&seen.tokens, seen.hits, seen.misses, seen.graph_launches), (expected, 0, 1, 0), "step {step}");
    }
    assert_eq!(driver.statistics().live_graphs, 0);
}

/// A device that is lost under a capture or a graph: the tick is fatal, the engine stays so, and the next one works.
#[test]
fn cuda_group_fault_in_a_graph_ends_the_engine() {
    let Some(driver) = devices(2) else { return };
    // An odd and an even one: launches of both devices are met.
    for (step, nth) in [(1, 7), (2, 7), (2, 8), (2, 40)] {
        let mut lost = spread(2, CAPTURE_OK);
        for _ in 0..step {
            tick(&driver, &mut lost, 2);
        }
        driver.inject(Point::Run, nth, ILLEGAL_ADDRESS);
        for _ in 0..2 {
            let plan = lost.plan();
            assert_eq!(lost.tick_err(decode(plan, 2)), Status::Fatal, "step {step}, launch {nth}");
        }
        driver.inject(Point::Run, 0, 0);
        drop(lost);
        assert_eq!(driver.statistics().live_contexts, 0, "step {step}, launch {nth}");
        let mut next = spread(2, CAPTURE_OK);
        let hits: Vec<u32> = (0..3).map(|_| tick(&driver, &mut next, 2).hits).collect();
        assert_eq!(hits, [0, 0, 1]);
    }
}

/// Nothing in a graph of several devices, nor around it, rests on the order in which the driver happens to work.
#[test]
fn cuda_group_graphs_do_not_depend_on_the_driver_s_order() {
    let Some(driver) = devices(2) else { return };
    let expected = small_alone(&driver, 3, 5);
    for (order, seed, strict) in
        [(0, 0, 1), (1, 0, 0), (1, 0, 1), (2, 1, 0), (2, 2, 1), (2, 3, 0), (2, 4, 1), (2, 5, 0)]
    {
        for flags in [0, CAPTURE_OK] {
            driver.reset();
            driver.set(Setting::Devices, 2);
            driver.set(Setting::Order, order);
            driver.set(Setting::Seed, seed);
            driver.set(Setting::Strict, strict);
            let what = format!("order {order}, seed {seed}, strict {strict}, flags {flags}");
            let mut host = spread(3, flags);
            let seen: Vec<Seen> = (0..5).map(|_| tick(&driver, &mut host, 3)).collect();
            let graphs: u64 = seen.iter().map(|seen| seen.graph_launches).sum();
            assert_eq!(graphs, if flags == 0 { 0 } else { 4 }, "{what}");
            let tokens: Vec<_> = seen.into_iter().map(|seen| seen.tokens).collect();
            assert_eq!(tokens, expected, "{what}");
            assert_eq!(driver.statistics().unwritten_reads, 0, "{what}: {}", driver.error_text());
        }
    }
}
