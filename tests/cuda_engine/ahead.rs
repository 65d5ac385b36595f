//! Rounds of one tick on a device: each feeds the next one there, and the host is a step behind.

use ictus::backend::KvType;
use ictus::backend::cuda::CudaBackend;
use ictus::executor::Executor;
use ictus::record::constant::tick_flag::CAPTURE_OK;
use ictus::record::constant::{finish, sampling};
use ictus::record::{LaneAdmit, Status};
use ictus::runtime::{Answer, Answers, Feed, Input, ModelRuntime, PagedIdentity, Runtime, Want};
use ictus::sample::SampleRequest;
use ictus::testing::Harness;

use super::cuda_device::{Point, Setting, backend, simulated, test_device};
use super::{ILLEGAL_ADDRESS, SMALL, model};

pub(super) type Host = Harness<Executor<ModelRuntime<CudaBackend>>>;

fn checkpoint() -> ictus::checkpoint::Checkpoint {
    ictus::checkpoint::Checkpoint::open(model::file(SMALL)).expect("the model opens")
}

/// An engine with lanes 1 .. lanes, whose prompts are in; `end_ids` end a text.
fn host(lanes: u64, flags: u32, end_ids: &[u32], change: impl Fn(u64, &mut LaneAdmit)) -> Host {
    let identity = PagedIdentity { end_ids: end_ids.to_vec(), ..PagedIdentity::default() };
    let (checkpoint, options) = (checkpoint(), model::options(KvType::F32, 64));
    let runtime = ModelRuntime::new(backend(), checkpoint.config(), &checkpoint, &options, identity);
    let mut host = Harness::with_engine(Executor::new(runtime.expect("the model loads"))).with_plan_flags(flags);
    let mut plan = host.plan();
    for lane in 1..=lanes {
        let staged = host.prompt(&[lane as u32, 2, 3]);
        let admit = |admit: &mut LaneAdmit| {
            admit.params.flags = 0;
            change(lane, admit);
        };
        plan = plan.admit_with(admit, lane, staged).prefill(lane, 0, 3);
    }
    host.tick_ok(plan);
    host
}

/// What lanes say in one tick of so many tokens each.
fn tick(host: &mut Host, lanes: u64, tokens: u16) -> Result<Vec<Vec<u32>>, Status> {
    let plan = (1..=lanes).fold(host.plan(), |plan, lane| plan.decode(lane, tokens));
    let events = host.tick(plan)?;
    Ok((1..=lanes).map(|lane| host.tokens_of(&events, lane)).collect())
}

/// What they say in ticks of one token each: nothing is ahead of anything.
fn one_by_one(host: &mut Host, lanes: u64, tokens: usize) -> Vec<Vec<u32>> {
    let mut said = vec![Vec::new(); lanes as usize];
    for _ in 0..tokens {
        let now = tick(host, lanes, 1).expect("the plan runs");
        said.iter_mut().zip(now).for_each(|(said, now)| said.extend(now));
    }
    said
}

/// Lanes of every kind that can be ahead.
fn kinds(lane: u64, admit: &mut LaneAdmit) {
    match lane % 3 {
        0 => {}
        1 => {
            admit.sampling = sampling::GPU_GUMBEL;
            admit.params.temperature = 0.9;
            admit.params.top_p = 1.0;
            admit.rng_counter_base = lane << 20;
        }
        _ => admit.want_logprobs = 4,
    }
}

/// Promise 1, T-104: rounds that feed each other on the device pick the tokens of ticks of one token each; with graphs and without.
#[test]
fn cuda_rounds_that_feed_each_other_pick_the_same_tokens() {
    let Some(_device) = test_device() else { return };
    let expected = one_by_one(&mut host(4, 0, &[], kinds), 4, 11);
    for flags in [0, CAPTURE_OK] {
        let mut ahead = host(4, flags, &[], kinds);
        let mut said = tick(&mut ahead, 4, 8).expect("the plan runs");
        let more = tick(&mut ahead, 4, 3).expect("the plan runs");
        said.iter_mut().zip(more).for_each(|(said, more)| said.extend(more));
        assert_eq!(said, expected, "flags {flags}");
    }
}

/// The second step is launched before anything of the first was computed, and nothing is waited for: so its tokens cannot have come from the host.
#[test]
fn cuda_step_is_begun_before_the_one_that_feeds_it_has_run() {
    let Some(driver) = simulated() else { return };
    let mut runtime = model::runtime(backend(), &checkpoint(), &model::options(KvType::F32, 64));
    let prompts = [[1, 2, 3, 4], [9, 8, 7, 6]];
    let expected = prompts.map(|prompt| model::greedy(&mut runtime, &prompt, 3));
    let mut answers = Answers::new();
    let sequences = prompts.map(|prompt| {
        let sequence = runtime.seq_create().expect("a sequence");
        let feed = Feed { sequence, input: Input::Tokens(&prompt[..3]), want: Want::Nothing };
        runtime.step(&[feed], &mut answers).expect("the step runs");
        sequence
    });
    runtime.allow_capture(true);
    let want = || Want::Token(SampleRequest::default());
    let tokens = |step: usize, lane: usize| match step {
        0 => prompts[lane][3],
        _ => expected[lane][step - 1],
    };
    let before = driver.statistics();
    let first = prompts.map(|prompt| [prompt[3]]);
    let feed = |lane: usize| Feed { sequence: sequences[lane], input: Input::Tokens(&first[lane]), want: want() };
    runtime.step_begin(&[feed(0), feed(1)]).expect("it begins");
    // In another order: feeds name their sources.
    let picked =
        |lane: usize, feed: usize| Feed { sequence: sequences[lane], input: Input::Picked { feed }, want: want() };
    runtime.step_begin(&[picked(1, 1), picked(0, 0)]).expect("it begins");
    let begun = driver.statistics();
    assert_eq!(begun.synchronisations, before.synchronisations, "nothing is waited for");
    assert_eq!(begun.launches, before.launches, "nothing has run");
    assert!(begun.launch_calls > before.launch_calls);
    assert!(runtime.step_begin(&[picked(0, 1)]).is_err(), "two are under way");
    for (step, order) in [(0, [0, 1]), (1, [1, 0])] {
        let ids = order.map(|lane| [tokens(step, lane)]);
        let feed = |at: usize| Feed { sequence: sequences[order[at]], input: Input::Tokens(&ids[at]), want: want() };
        runtime.step_end(&[feed(0), feed(1)], &mut answers).expect("it ends");
        for (answer, lane) in answers.as_slice().iter().zip(order) {
            let Answer::Picked(pick) = answer else { panic!("{answer:?}") };
            assert_eq!(pick.token, expected[lane][step], "step {step}, lane {lane}");
        }
    }
    assert!(sequences.iter().all(|&sequence| runtime.seq_len(sequence) == 5));
    assert!(runtime.step_end(&[], &mut answers).is_err(), "none is under way");
}

/// Of a tick of several rounds each waits once, and brings lists and requests to the device in one copy, as often as there are rounds.
#[test]
fn cuda_rounds_of_a_tick_wait_once_each_and_are_one_graph_each() {
    let Some(driver) = simulated() else { return };
    let mut host = host(3, CAPTURE_OK, &[], kinds);
    let mut seen = Vec::new();
    for _ in 0..6 {
        let before = driver.statistics();
        let plan = (1..=3).fold(host.plan(), |plan, lane| plan.decode(lane, 5));
        let events = host.tick_ok(plan);
        let after = driver.statistics();
        seen.push((
            (events.timings.graph_hits, events.timings.graph_misses),
            after.launch_calls - before.launch_calls,
            after.copies - before.copies,
            after.synchronisations - before.synchronisations,
            after.allocations - before.allocations,
        ));
    }
    println!("{seen:?}");
    // To the device and back. Beside the wait for the answer, the arena's half is waited for, whose copy is done.
    let last = seen[5];
    assert_eq!((last.0, last.1, last.2, last.4), ((5, 0), 0, 10, 0), "{seen:?}");
    assert!(last.3 <= 10, "{seen:?}");
}

/// An end token in the middle: its lane is cut back, and what it said is what it said before; its pages are those of its tokens.
#[test]
fn cuda_lane_that_ends_in_the_middle_is_cut_back() {
    let Some(_device) = test_device() else { return };
    let plain = one_by_one(&mut host(3, 0, &[], |_, _| {}), 3, 8);
    let end = plain[1][3];
    let place = |said: &[u32]| said.iter().position(|&token| token == end).map_or(8, |at| at + 1);
    for flags in [0, CAPTURE_OK] {
        let mut ahead = host(3, flags, &[end], |_, _| {});
        let plan = (1..=3).fold(ahead.plan(), |plan, lane| plan.decode(lane, 8));
        let events = ahead.tick_ok(plan);
        for lane in 1..=3 {
            let said = &plain[lane as usize - 1];
            assert_eq!(ahead.tokens_of(&events, lane), said[..place(said)], "lane {lane}");
            let ended = events.emit_for(lane).expect("it emits").finish;
            assert_eq!(ended == finish::EOS, place(said) < 8 || said[7] == end, "lane {lane}");
        }
        ahead.engine.audit().expect("sequences hold what their lanes say");
    }
}

/// A draw that the device leaves to the host is picked by the host, round by round; its neighbours wait with it and say the same.
#[test]
fn cuda_draws_of_the_host_make_rounds_wait() {
    let Some(_device) = test_device() else { return };
    let cold = |lane: u64, admit: &mut LaneAdmit| {
        kinds(lane, admit);
        if lane == 1 {
            admit.params.temperature = 0.004;
        }
    };
    let expected = one_by_one(&mut host(3, CAPTURE_OK, &[], cold), 3, 6);
    assert_eq!(tick(&mut host(3, CAPTURE_OK, &[], cold), 3, 6), Ok(expected));
}

/// A device that fails with steps under way: the tick says so, and every later one.
#[test]
fn cuda_fault_with_steps_under_way_is_fatal() {
    let Some(driver) = simulated() else { return };
    for point in [Point::Run, Point::Launch, Point::Copy, Point::Sync] {
        for nth in [1, 2, 5, 9, 90] {
            let mut host = host(2, 0, &[], |_, _| {});
            driver.inject(point, nth, ILLEGAL_ADDRESS);
            let ended = tick(&mut host, 2, 6);
            driver.inject(point, 0, 0);
            let met = nth < 6 || matches!(point, Point::Run | Point::Launch);
            assert!(ended == Err(Status::Fatal) || !met, "{point:?} {nth}: {ended:?}");
            if ended.is_err() {
                assert_eq!(tick(&mut host, 2, 1), Err(Status::Fatal), "{point:?} {nth}: it stays so");
            }
            drop(host);
            assert_eq!(driver.statistics().live_contexts, 0, "{point:?} {nth}");
        }
    }
}

/// Nothing rests on the order in which the driver happens to do what it may do in any order.
#[test]
fn cuda_rounds_ahead_do_not_depend_on_the_driver_s_order() {
    let Some(driver) = simulated() else { return };
    let expected = one_by_one(&mut host(3, 0, &[], kinds), 3, 7);
    for (setting, value) in [(Setting::Order, 1), (Setting::Seed, 1), (Setting::Seed, 2), (Setting::Strict, 1)] {
        for flags in [0, CAPTURE_OK] {
            driver.reset();
            if matches!(setting, Setting::Seed) {
                driver.set(Setting::Order, 2);
            }
            driver.set(setting, value);
            assert_eq!(tick(&mut host(3, flags, &[], kinds), 3, 7).as_ref(), Ok(&expected), "{setting:?} {value}");
        }
    }
}
