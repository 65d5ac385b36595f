//! Rounds ahead on several devices: what the first one picks feeds all of them, whoever has the tokens' rows.

use ictus::backend::{Backend, KvType};
use ictus::executor::Executor;
use ictus::record::constant::tick_flag::CAPTURE_OK;
use ictus::record::{LaneAdmit, Status};
use ictus::runtime::ModelRuntime;
use ictus::testing::Harness;

use super::*;

type Host<B> = Harness<Executor<ModelRuntime<B>>>;

fn options() -> PagedOptions {
    model::options(KvType::F32, 64)
}

/// An engine with lanes 1 .. lanes, whose prompts are in: greedy, drawn, drawn widely.
fn host<B: Backend>(runtime: ModelRuntime<B>, lanes: u64, flags: u32) -> Host<B> {
    let mut host = Harness::with_engine(Executor::new(runtime)).with_plan_flags(flags);
    let mut plan = host.plan();
    for lane in 1..=lanes {
        let staged = host.prompt(&[lane as u32 * 60, 2, 3]);
        let admit = |admit: &mut LaneAdmit| admit.params.temperature = [0.0, 0.8, 1.5][lane as usize % 3];
        plan = plan.admit_with(admit, lane, staged).prefill(lane, 0, 3);
    }
    host.tick_ok(plan);
    host
}

fn spread(lanes: u64, flags: u32) -> Host<CudaGroup> {
    host(Weights::of_file(SMALL).spread(2, &options()), lanes, flags)
}

/// What lanes say in one tick of so many tokens each.
fn tick<B: Backend>(host: &mut Host<B>, lanes: u64, tokens: u16) -> Result<Vec<Vec<u32>>, Status> {
    let plan = (1..=lanes).fold(host.plan(), |plan, lane| plan.decode(lane, tokens));
    let events = host.tick(plan)?;
    Ok((1..=lanes).map(|lane| host.tokens_of(&events, lane)).collect())
}

/// What they say on one device, in ticks of one token each: nothing is ahead of anything.
fn one_by_one(weights: &Weights, lanes: u64, tokens: usize) -> Vec<Vec<u32>> {
    let mut host = host(weights.alone(&options()), lanes, 0);
    let mut said = vec![Vec::new(); lanes as usize];
    for _ in 0..tokens {
        let now = tick(&mut host, lanes, 1).expect("the plan runs");
        said.iter_mut().zip(now).for_each(|(said, now)| said.extend(now));
    }
    said
}

/// On two devices and three, with graphs and without, also where a table is cut unevenly: the tokens of one device, which several devices have.
#[test]
fn cuda_group_rounds_that_feed_each_other_pick_the_tokens_of_one_device() {
    let Some(_driver) = devices(3) else { return };
    let three = Weights::with_heads(&mut Random::new("cuda group ahead"), "tests/data/qwen3.gguf", 6, 3);
    let two = ["tests/data/gemma3.gguf", SMALL].map(Weights::of_file);
    for (count, weights, lanes) in [(2, &two[0], 2), (2, &two[1], 3), (3, &three, 2)] {
        let expected = one_by_one(weights, lanes, 8);
        let fed: std::collections::HashSet<u32> = expected.iter().flatten().copied().collect();
        assert!(fed.len() > 4, "{}: tokens of several devices: {fed:?}", weights.name);
        for flags in [0, CAPTURE_OK] {
            let said =
                tick(&mut host(weights.spread(count, &options()), lanes, flags), lanes, 8).expect("the plan runs");
            assert_eq!(said, expected, "{count} devices, {}, flags {flags}", weights.name);
        }
    }
}

/// The second step is launched on both devices before anything of the first was computed, and nothing is waited for: so its tokens cannot have come from
/// the host.
#[test]
fn cuda_group_step_is_begun_before_the_one_that_feeds_it_has_run() {
    let Some(driver) = devices(2) else { return };
    let weights = Weights::of_file(SMALL);
    let expected = model::greedy(&mut weights.alone(&options()), &[1, 200, 3, 4], 3);
    let mut runtime = weights.spread(2, &options());
    let sequence = runtime.seq_create().expect("a sequence");
    let want = Want::Token(SampleRequest::default());
    let mut answers = Answers::new();
    let prompt = Feed { sequence, input: Input::Tokens(&[1, 200, 3]), want: Want::Nothing };
    runtime.step(&[prompt], &mut answers).expect("the step runs");
    runtime.allow_capture(true);
    let before = driver.statistics();
    let first = Feed { sequence, input: Input::Tokens(&[4]), want };
    let picked = Feed { sequence, input: Input::Picked { feed: 0 }, want };
    runtime.step_begin(&[first]).expect("it begins");
    runtime.step_begin(&[picked]).expect("it begins");
    let begun = driver.statistics();
    assert_eq!(begun.synchronisations, before.synchronisations, "nothing is waited for");
    assert_eq!(begun.launches, before.launches, "nothing has run");
    assert!(begun.launch_calls > before.launch_calls);
    for (step, &token) in expected.iter().enumerate() {
        runtime.step_end(&[picked], &mut answers).expect("it ends");
        let Answer::Picked(pick) = answers.as_slice()[0] else { panic!("{:?}", answers.as_slice()) };
        assert_eq!(pick.token, token, "step {step}");
        if step == 0 {
            runtime.step_begin(&[picked]).expect("it begins");
        }
    }
}

/// A tick of several rounds brings lists to each device in one copy a round, and is one graph a round.
#[test]
fn cuda_group_rounds_of_a_tick_are_one_graph_each() {
    let Some(driver) = devices(2) else { return };
    let mut host = spread(3, CAPTURE_OK);
    let mut seen = Vec::new();
    for _ in 0..6 {
        let before = driver.statistics();
        let plan = (1..=3).fold(host.plan(), |plan, lane| plan.decode(lane, 5));
        let events = host.tick_ok(plan);
        let after = driver.statistics();
        seen.push((
            (events.timings.graph_hits, events.timings.graph_misses),
            after.launch_calls - before.launch_calls,
            after.copies_to_device - before.copies_to_device,
            after.copies_to_host - before.copies_to_host,
            after.allocations - before.allocations,
        ));
    }
    assert_eq!(seen[5], ((5, 0), 0, 2 * 5, 5, 0), "{seen:?}");
}

/// A device that fails with steps under way, whichever it is: the tick says so, and every later one.
#[test]
fn cuda_group_fault_with_steps_under_way_is_fatal() {
    let Some(driver) = devices(2) else { return };
    let expected = one_by_one(&Weights::of_file(SMALL), 2, 6);
    for point in [Point::Run, Point::Launch, Point::Copy, Point::Sync] {
        for nth in [1, 2, 5, 90, 91, 151] {
            let mut host = spread(2, 0);
            driver.inject(point, nth, ILLEGAL_ADDRESS);
            let ended = tick(&mut host, 2, 6);
            driver.inject(point, 0, 0);
            // The host waits once a round; between devices there are more than 91 copies, and fewer than 151.
            let met = match point {
                Point::Run | Point::Launch => true,
                Point::Copy => nth < 151,
                _ => nth < 6,
            };
            assert_eq!(ended, if met { Err(Status::Fatal) } else { Ok(expected.clone()) }, "{point:?} {nth}");
            if met {
                assert_eq!(tick(&mut host, 2, 1), Err(Status::Fatal), "{point:?} {nth}: it stays so");
            }
            drop(host);
            assert_eq!(driver.statistics().live_contexts, 0, "{point:?} {nth}");
        }
    }
}

/// Nothing rests on the order in which the driver happens to do what it may do in any order.
#[test]
fn cuda_group_rounds_ahead_do_not_depend_on_the_driver_s_order_or_on_peers() {
    let Some(driver) = devices(2) else { return };
    let expected = one_by_one(&Weights::of_file(SMALL), 3, 7);
    // What a device does before it may, while a graph of all of them still runs, is met by few orders: by two of these.
    let orders = (1..=16).map(|seed| (Setting::Seed, seed));
    for (setting, value) in orders.chain([(Setting::Order, 1), (Setting::Strict, 1), (Setting::Peers, 0)]) {
        for flags in [CAPTURE_OK, 0] {
            if flags == 0 && value > 4 {
                continue;
            }
            driver.reset();
            driver.set(Setting::Devices, 2);
            if matches!(setting, Setting::Seed) {
                driver.set(Setting::Order, 2);
            }
            driver.set(setting, value);
            let said = tick(&mut spread(3, flags), 3, 7);
            assert_eq!(said.as_ref(), Ok(&expected), "{setting:?} {value}, flags {flags}");
            assert_eq!(driver.statistics().unwritten_reads, 0, "{setting:?} {value}: {}", driver.error_text());
        }
    }
}
