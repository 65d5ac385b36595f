//! Steps as CUDA graphs: when one is captured and launched again, that it changes no bit, and what happens when it cannot be had.

use ictus::backend::KvType;
use ictus::backend::cuda::CudaBackend;
use ictus::checkpoint::Checkpoint;
use ictus::executor::Executor;
use ictus::record::Status;
use ictus::record::constant::tick_flag::CAPTURE_OK;
use ictus::runtime::{
    Answers, Feed, GraphCounts, Input, ModelRuntime, PagedOptions, ROWS_MAX, Runtime, SeqHandle, Want,
};
use ictus::testing::{Events, Harness, PlanBuilder};

use super::cuda_device::{FakeDriver, Point, Setting, backend, simulated, test_device};
use super::lora::Lora;
use super::random::Random;
use super::{ILLEGAL_ADDRESS, SMALL, model};

type Host = Harness<Executor<ModelRuntime<CudaBackend>>>;

fn checkpoint() -> Checkpoint {
    Checkpoint::open(model::file(SMALL)).expect("the model opens")
}

/// An engine with `lanes` lanes whose prompts are in, 1 .. lanes; its plans have these flags from now on.
fn host(lanes: u64, flags: u32) -> Host {
    let runtime = model::runtime(backend(), &checkpoint(), &model::options(KvType::F32, 64));
    let mut host = Harness::with_engine(Executor::new(runtime)).with_plan_flags(flags);
    let mut plan = host.plan();
    for lane in 1..=lanes {
        let staged = host.prompt(&[lane as u32, 2, 3]);
        plan = plan.admit(lane, staged).prefill(lane, 0, 3).decode(lane, 1);
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
    kernels: u64,
    copies: u64,
    allocations: u64,
    tokens: Vec<Vec<u32>>,
}

fn tick(driver: &FakeDriver, host: &mut Host, lanes: u64) -> Seen {
    let before = driver.statistics();
    let plan = host.plan();
    let events = host.tick_ok(decode(plan, lanes));
    let after = driver.statistics();
    Seen {
        hits: events.timings.graph_hits,
        misses: events.timings.graph_misses,
        launch_calls: after.launch_calls - before.launch_calls,
        graph_launches: after.graph_launches - before.graph_launches,
        kernels: after.launches - before.launches,
        copies: after.copies - before.copies,
        allocations: after.allocations - before.allocations,
        tokens: tokens(host, &events, lanes),
    }
}

fn tokens(host: &Host, events: &Events, lanes: u64) -> Vec<Vec<u32>> {
    (1..=lanes).map(|lane| host.tokens_of(events, lane)).collect()
}

/// T-146, P-10: the first step of a shape is launched, the second captured, the others are one launch each, with the tokens of the plain ones.
#[test]
fn cuda_step_that_comes_again_is_one_launch() {
    let Some(driver) = simulated() else { return };
    let (mut plain, mut graphed) = (host(3, 0), host(3, CAPTURE_OK));
    for number in 0..6 {
        let expected = tick(&driver, &mut plain, 3);
        let seen = tick(&driver, &mut graphed, 3);
        assert_eq!((seen.kernels, &seen.tokens), (expected.kernels, &expected.tokens), "step {number}");
        assert_eq!((expected.hits, expected.misses, expected.graph_launches), (0, 0, 0), "step {number}");
        assert_eq!((seen.allocations, expected.allocations), (0, 0), "step {number}");
        let counts = (seen.hits, seen.misses, seen.launch_calls, seen.graph_launches);
        match number {
            0 => assert_eq!(counts, (0, 1, expected.launch_calls, 0)),
            1 => assert_eq!(counts, (0, 1, expected.launch_calls, 1)),
            _ => {
                assert_eq!(counts, (1, 0, 0, 1), "step {number}");
                // To the device and back.
                assert_eq!(seen.copies, 2, "step {number}");
            }
        }
        if number == 5 {
            println!("calls of a step: {} launches, {} copies; {seen:?}", expected.launch_calls, expected.copies);
        }
    }
    drop((plain, graphed));
    let left = driver.statistics();
    assert_eq!((left.live_graphs, left.live_allocations, left.live_host_allocations), (0, 0, 0), "{left:?}");
}

/// `CAPTURE_OK`: without it nothing is captured; what was captured before is of use all the same.
#[test]
fn cuda_graphs_are_captured_only_where_the_plan_permits() {
    let Some(driver) = simulated() else { return };
    let mut host = host(3, 0);
    let counts = |host: &mut Host, flags, lanes| {
        host.plan_flags = flags;
        let seen = tick(&driver, host, lanes);
        (seen.hits, seen.misses, seen.graph_launches, driver.statistics().live_graphs)
    };
    for _ in 0..3 {
        assert_eq!(counts(&mut host, 0, 2), (0, 0, 0, 0));
    }
    assert_eq!(counts(&mut host, CAPTURE_OK, 2), (0, 1, 0, 0));
    assert_eq!(counts(&mut host, 0, 2), (0, 0, 0, 0), "seen once, and not permitted");
    assert_eq!(counts(&mut host, CAPTURE_OK, 2), (0, 1, 1, 2));
    assert_eq!(counts(&mut host, 0, 2), (1, 0, 1, 2));
    for _ in 0..2 {
        assert_eq!(counts(&mut host, 0, 3), (0, 0, 0, 2), "another shape");
    }
    assert_eq!(counts(&mut host, CAPTURE_OK, 2), (1, 0, 1, 2));
}

/// A capture that fails, wherever it does, is nobody's fault: the step is launched, its program is not tried again, others are.
#[test]
fn cuda_capture_that_fails_changes_nothing() {
    let Some(driver) = simulated() else { return };
    let unsupported = 900;
    let mut plain = host(2, 0);
    let expected: Vec<_> = (0..5).map(|_| tick(&driver, &mut plain, 2).tokens).collect();
    drop(plain);
    for (point, nth) in [
        (Point::Capture, 1),
        (Point::Capture, 2),
        (Point::Capture, 3),
        (Point::Capture, 4),
        (Point::Launch, 1),
        (Point::Launch, 9),
    ] {
        let mut host = host(2, CAPTURE_OK);
        let seen: Vec<Seen> = (0..5)
            .map(|step| {
                if step == 1 {
                    driver.inject(point, nth, unsupported);
                }
                let seen = tick(&driver, &mut host, 2);
                driver.inject(point, 0, 0);
                seen
            })
            .collect();
        for (step, (seen, expected)) in seen.iter().zip(&expected).enumerate() {
            assert_eq!(&seen.tokens, expected, "{point:?} {nth}, step {step}");
            assert_eq!((seen.hits, seen.misses, seen.graph_launches), (0, 1, 0), "{point:?} {nth}, step {step}");
        }
        assert_eq!(driver.statistics().live_graphs, 0, "{point:?} {nth}");
        let other = [0, 1, 2].map(|_| tick(&driver, &mut host, 1));
        assert_eq!(other.map(|seen| (seen.hits, seen.graph_launches)), [(0, 0), (0, 1), (1, 1)], "{point:?} {nth}");
    }
}

/// A graph that cannot be launched any more is given up, and the step is launched.
#[test]
fn cuda_graph_that_cannot_be_launched_is_given_up() {
    let Some(driver) = simulated() else { return };
    let (mut plain, mut graphed) = (host(2, 0), host(2, CAPTURE_OK));
    for step in 0..6 {
        let expected = tick(&driver, &mut plain, 2);
        driver.inject(Point::Capture, u64::from(step == 3), 2);
        let seen = tick(&driver, &mut graphed, 2);
        assert_eq!(seen.tokens, expected.tokens, "step {step}");
        let launched = [0, 1, 1, 0, 0, 0];
        assert_eq!(seen.graph_launches, launched[step], "step {step}");
    }
    assert_eq!(driver.statistics().live_graphs, 0);
}

/// A device that is lost under a capture or a graph: the tick is fatal, the engine stays so, and the next one works.
#[test]
fn cuda_fault_in_a_graph_ends_the_engine() {
    let Some(driver) = simulated() else { return };
    for step in [1, 2] {
        let mut lost = host(2, CAPTURE_OK);
        for _ in 0..step {
            tick(&driver, &mut lost, 2);
        }
        driver.inject(Point::Run, 7, ILLEGAL_ADDRESS);
        for _ in 0..2 {
            let plan = lost.plan();
            assert_eq!(lost.tick_err(decode(plan, 2)), Status::Fatal, "step {step}");
        }
        driver.inject(Point::Run, 0, 0);
        drop(lost);
        assert_eq!(driver.statistics().live_contexts, 0, "step {step}");
        let mut next = host(2, CAPTURE_OK);
        let hits: Vec<u32> = (0..3).map(|_| tick(&driver, &mut next, 2).hits).collect();
        assert_eq!(hits, [0, 0, 1]);
    }
}

/// Nothing in a graph, nor what is brought to it, rests on the order in which the driver happens to work, and no copy is read before it is done.
#[test]
fn cuda_graphs_do_not_depend_on_the_driver_s_order() {
    let Some(driver) = simulated() else { return };
    let tokens = |flags| {
        let mut host = host(3, flags);
        let seen: Vec<Seen> = (0..4).map(|_| tick(&driver, &mut host, 3)).collect();
        let graphs: u64 = seen.iter().map(|seen| seen.graph_launches).sum();
        (seen.into_iter().map(|seen| seen.tokens).collect::<Vec<_>>(), graphs)
    };
    let (expected, _) = tokens(0);
    let orders = [(1, 0, 0), (1, 0, 1), (2, 1, 0), (2, 2, 1), (2, 3, 0)];
    for (order, seed, strict) in orders {
        driver.reset();
        driver.set(Setting::Order, order);
        driver.set(Setting::Seed, seed);
        driver.set(Setting::Strict, strict);
        let (seen, graphs) = tokens(CAPTURE_OK);
        assert_eq!((&seen, graphs), (&expected, 3), "order {order}, seed {seed}, strict {strict}");
        assert_eq!(driver.statistics().unwritten_reads, 0, "{}", driver.error_text());
    }
}

/// Programs that are remembered are bounded, the one not used for longest goes first.
#[test]
fn cuda_graphs_are_bounded() {
    let Some(driver) = simulated() else { return };
    let mut host = host(1, CAPTURE_OK);
    // The tables of a lane that grows make other programs as they get wider; so do lanes that come.
    let mut most = 0;
    for lanes in 1..=8 {
        if lanes > 1 {
            let staged = host.prompt(&[lanes as u32, 2, 3]);
            let plan = host.plan();
            host.tick_ok(plan.admit(lanes, staged).prefill(lanes, 0, 3).decode(lanes, 1));
        }
        for only in 1..=lanes {
            tick(&driver, &mut host, only);
        }
        most = most.max(driver.statistics().live_graphs);
    }
    // Shapes of 1 to 8 lanes; a graph and an executable one each.
    assert!(most > 2 && most <= 16, "{most}");
}

/// One token for each of some sequences; the bits of the rows behind them.
fn step<R: Runtime>(runtime: &mut R, feeds: &[(SeqHandle, u32)]) -> Vec<Vec<u32>> {
    let tokens: Vec<[u32; 1]> = feeds.iter().map(|&(_, token)| [token]).collect();
    let feed = |i: usize| Feed { sequence: feeds[i].0, input: Input::Tokens(&tokens[i]), want: Want::LastRow };
    let feeds: Vec<Feed<'_>> = (0..feeds.len()).map(feed).collect();
    let mut answers = Answers::new();
    runtime.step(&feeds, &mut answers).expect("the step runs");
    let bits = |row: &[f32]| row.iter().map(|value| value.to_bits()).collect();
    (0..feeds.len()).map(|row| bits(answers.row(row).expect("a row"))).collect()
}

fn fed<R: Runtime>(runtime: &mut R, tokens: usize, adapter: u64) -> SeqHandle {
    let sequence = runtime.seq_create().expect("a sequence");
    runtime.seq_adapt(sequence, adapter).expect("an empty sequence takes an adapter");
    let ids: Vec<u32> = (0..tokens as u32).map(|i| 3 + i * 7 % 40).collect();
    let feed = Feed { sequence, input: Input::Tokens(&ids), want: Want::Nothing };
    runtime.step(&[feed], &mut Answers::new()).expect("the step runs");
    sequence
}

/// Sequences of unlike lengths, one of which goes past a segment of attention and past the width of its table, beside one with an adapter
/// that is loaded on the way: the rows have the same bits with graphs and without.
#[test]
fn cuda_rows_have_the_same_bits_in_a_graph() {
    let Some(_device) = test_device() else { return };
    let checkpoint = checkpoint();
    let options = PagedOptions { pool_pages: 64, context_tokens: 512, ..model::options(KvType::F16, 64) };
    let lora = Lora::random(&mut Random::new("cuda graphs"), checkpoint.config(), 2, &[0, 2, 3, 6]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = lora.write_peft(folder.path());
    let run = |may_capture: bool| {
        let mut runtime = model::runtime(backend(), &checkpoint, &options);
        runtime.allow_capture(may_capture);
        let (long, short) = (fed(&mut runtime, 250, 0), fed(&mut runtime, 9, 0));
        let mut rows = Vec::new();
        for token in 0..12 {
            rows.extend(step(&mut runtime, &[(long, token + 1), (short, token + 5)]));
        }
        let loaded = runtime.adapter_load(&file).expect("the adapter fits");
        let adapted = fed(&mut runtime, 5, loaded.handle);
        for token in 0..4 {
            rows.extend(step(&mut runtime, &[(short, token + 1), (adapted, token + 5)]));
            // In another order the adapter is another row's.
            rows.extend(step(&mut runtime, &[(adapted, token + 2), (short, token + 3)]));
        }
        (rows, runtime.take_graph_counts())
    };
    let (expected, none) = run(false);
    let (rows, counts) = run(true);
    assert!(expected == rows, "bits differ");
    assert_eq!(none, GraphCounts::default());
    println!("{counts:?}");
    // Six steps before the end of the segment and six behind it; then the same program in both orders.
    assert_eq!(counts, GraphCounts { hits: 4 + 4 + 6, misses: 2 + 2 + 2 });
}

/// Parts of one step, none of which the host waits for: what one brings to the device is not overwritten by the ones behind it.
#[test]
fn cuda_parts_of_a_step_keep_what_they_brought() {
    let Some(_device) = test_device() else { return };
    let checkpoint = checkpoint();
    let options = PagedOptions {
        pool_pages: 256,
        pass_rows: ROWS_MAX,
        prefill_step_tokens: 8,
        ..model::options(KvType::F16, 64)
    };
    let run = |may_capture: bool| {
        let mut runtime = model::runtime(backend(), &checkpoint, &options);
        runtime.allow_capture(may_capture);
        let parent = fed(&mut runtime, 5, 0);
        let forks: Vec<SeqHandle> = (0..5 * ROWS_MAX).map(|_| runtime.seq_create().expect("a sequence")).collect();
        forks.iter().for_each(|&fork| runtime.seq_copy(parent, fork, 5).expect("pages are shared"));
        let ids: Vec<[u32; 1]> = (0..forks.len() as u32).map(|i| [3 + i % 40]).collect();
        for _ in 0..3 {
            let feed = |i: usize| Feed { sequence: forks[i], input: Input::Tokens(&ids[i]), want: Want::Nothing };
            let feeds: Vec<Feed<'_>> = (0..forks.len()).map(feed).collect();
            runtime.step(&feeds, &mut Answers::new()).expect("the step runs");
        }
        let last: Vec<(SeqHandle, u32)> = forks.iter().step_by(7).map(|&fork| (fork, 9)).collect();
        (step(&mut runtime, &last), runtime.take_graph_counts())
    };
    let (expected, _) = run(false);
    let (rows, counts) = run(true);
    println!("{counts:?}");
    assert!(expected == rows, "bits differ");
    assert!(counts.hits >= 10, "parts run as graphs: {counts:?}");
}

/// Many short lanes beside a long block table: nothing is got in a step, which would have to wait for the device.
#[test]
fn cuda_block_tables_get_no_memory_in_a_step() {
    let Some(driver) = simulated() else { return };
    let checkpoint = checkpoint();
    let options = PagedOptions {
        page_size_tokens: 1,
        pool_pages: 600,
        context_tokens: 256,
        max_lanes: 128,
        ..model::options(KvType::F16, 64)
    };
    let mut runtime = model::runtime(backend(), &checkpoint, &options);
    let parent = fed(&mut runtime, 200, 0);
    let forks: Vec<SeqHandle> = (0..100).map(|_| runtime.seq_create().expect("a sequence")).collect();
    forks.iter().for_each(|&fork| runtime.seq_copy(parent, fork, 200).expect("pages are shared"));
    let before = driver.statistics();
    let feeds: Vec<(SeqHandle, u32)> = forks.iter().map(|&fork| (fork, 7)).collect();
    let rows = step(&mut runtime, &feeds);
    let after = driver.statistics();
    assert!(rows.iter().all(|row| *row == rows[0]), "forks that are fed the same");
    let got = (after.allocations - before.allocations, after.live_host_allocations - before.live_host_allocations);
    assert_eq!(got, (0, 0));
}
