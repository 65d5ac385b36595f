//! Both facades on one core, and what a core is after long use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ictus::executor::Executor;
use ictus::facade::{Admission, Core, CoreOptions, CoreState, Domain, End, Feature, Fit, Logits, Work};
use ictus::ring::Rings;
use ictus::testing::Harness;

use crate::host::{Host, blocked, host, pool, pool_with, prompt, short, text, token};

/// a tick host and another one run side by side, and both get the bits of a run alone.
#[test]
fn xs_64_ticks_and_runs_take_turns() {
    let host = Arc::new(Host::over(pool_with(64, 0, |options| options.end_ids.clear())));
    let memory = host.memory();
    let mut ticking = Harness::with_engine(host.core.tick_host().expect("nobody else ticks"));
    assert!(host.core.tick_host().is_none(), "one tick host at a time");
    let done = Arc::new(AtomicBool::new(false));
    let (runner, ended) = (Arc::clone(&host), Arc::clone(&done));
    let running = std::thread::spawn(move || {
        let mut runs = 0;
        for salt in 0.. {
            if ended.load(Ordering::Relaxed) && salt > 20 {
                break;
            }
            let question = prompt(20 + salt as usize % 30, salt);
            let said = text(&question, 12);
            let (seq, first) = runner.started(&question, 64);
            assert_eq!(first, said[0]);
            for (at, pair) in said.windows(2).enumerate() {
                let row = runner.decode(seq, question.len() + at, pair[0]).expect("there is room");
                assert_eq!(token(&row), pair[1]);
                runs += 1;
            }
            runner.close(seq);
        }
        runs
    });
    let mut ticks = 0;
    for lane in 0..60u64 {
        let question = prompt(20 + lane as usize % 20, 900 + lane as u32);
        let staged = ticking.prompt(&question);
        let plan = ticking.plan().admit(lane, staged).prefill(lane, 0, question.len() as u32).decode(lane, 1);
        let mut events = ticking.tick_ok(plan);
        let mut said = Vec::new();
        for _ in 0..15 {
            let reference = events.emits[0].token_ref;
            ticking.rings.read_tokens(&reference, &mut said).expect("it was just written");
            let plan = ticking.plan().decode(lane, 1);
            events = ticking.tick_ok(plan);
            ticks += 1;
        }
        assert_eq!(said, text(&question, said.len()), "lane {lane}");
        let plan = ticking.plan().retire(lane, false);
        ticking.tick_ok(plan);
    }
    done.store(true, Ordering::Relaxed);
    let runs = running.join().expect("it ends");
    assert!(runs > 100 && ticks == 900, "{runs} runs, {ticks} ticks");
    assert_eq!((host.memory(), host.executor.stats().accounting_faults), (memory, 0));
    host.audit();
    drop(ticking);
    assert!(host.core.tick_host().is_some(), "the handle came back");
}

/// a tick that makes room wakes who waits for it here, and a close here wakes who waits there.
#[test]
fn xs_62_room_made_by_one_facade_wakes_the_other() {
    let host = host(4, 0);
    let mut ticking = Harness::with_engine(host.core.tick_host().expect("nobody else ticks"));
    let question = prompt(100, 1);
    let staged = ticking.prompt(&question);
    let plan = ticking.plan().admit(1, staged).prefill(1, 0, 100);
    ticking.tick_ok(plan);
    let refused = blocked(host.admit(&prompt(4, 2), 8));
    assert_eq!(short(&refused), [Domain::Blocks]);
    let wait = host.executor.capacity().wait(refused.ticket).expect("it can be waited for");
    let parked = std::thread::spawn(move || wait.block(Some(std::time::Duration::from_secs(10))));
    let plan = ticking.plan().retire(1, false);
    ticking.tick_ok(plan);
    assert!(matches!(parked.join().expect("it ends"), Ok(Some(_))), "woken by the tick");
    let (seq, _) = host.started(&prompt(90, 3), 96);
    let staged = ticking.prompt(&question);
    let plan = ticking.plan().admit(2, staged).prefill(2, 0, 100);
    assert_eq!(ticking.tick(plan).expect_err("no room"), ictus::record::Status::NeedsReplan);
    ticking.next_seq -= 1;
    let evidence = *ictus::engine::Engine::last_blocked(&ticking.engine).expect("it lacked room");
    assert_eq!(short(&evidence), [Domain::Blocks]);
    assert_eq!(host.executor.capacity().changed(&evidence.ticket), Ok(false));
    host.close(seq);
    assert_eq!(host.executor.capacity().changed(&evidence.ticket), Ok(true));
    let staged = ticking.prompt(&question);
    let plan = ticking.plan().admit(2, staged).prefill(2, 0, 100);
    ticking.tick_ok(plan);
    assert_eq!(host.free(), 0);
}

/// warm-up leaves nothing behind, and neither does long use.
#[test]
fn xs_65_long_use_leaves_nothing_behind() {
    let host = Host::with(Executor::new(pool(16, 8)), CoreOptions::default());
    let before = host.memory();
    for _ in 0..2 {
        host.executor.prepare().expect("there is room");
        assert_eq!(host.memory(), before);
    }
    let stats = host.executor.stats();
    assert_eq!((stats.admissions, stats.rows, stats.state), (0, [0; 3], CoreState::Ready));
    let full = Logits::Full;
    for round in 0..2000u32 {
        let question = prompt(1 + round as usize % 60, round % 7);
        let counted = round % 5 != 0;
        let fit = [Fit::Now, Fit::Input, Fit::Ceiling][round as usize % 3];
        let admission =
            Admission { fit, counted, reuse: round % 2 == 0, tag: 1, ..Admission::of(&question, question.len() + 4) };
        let seq = host.executor.admit(&admission).expect("there is room");
        let at = host.executor.frontier(seq).expect("it is open");
        let row = host.chunk(seq, at, question.len() - at, question.len()).expect("there is room");
        let said = text(&question, 2);
        assert_eq!(token(&row), said[0]);
        host.one(Work::Decode { seq, at: question.len(), token: said[0], logits: &full }).expect("there is room");
        let end = match round % 4 {
            0 => End::Completed { prompt: question.len(), output: 2 },
            1 => End::Cancelled,
            2 => End::Failed,
            _ => End::Recompute,
        };
        host.executor.close(seq, end).expect("it is idle");
    }
    host.core.inspect(|executor| {
        use ictus::engine::Engine;
        executor.cache_evict(u64::MAX, 0, u64::MAX, u64::MAX).expect("it can be emptied");
        assert_eq!(executor.primitives().live_sequences(), 0);
    });
    assert_eq!(host.memory(), before);
    assert_eq!(host.executor.stats().admissions, 1600);
    host.audit();
}

/// what a core says of itself, and what it refuses to be.
#[test]
fn core_says_what_it_is() {
    let host = host(16, 8);
    let info = host.executor.info();
    assert_eq!((info.max_sequences, info.block_tokens, info.blocks, info.vocab), (8, 32, 16, 64));
    assert!(info.has(Feature::Mixed) && info.has(Feature::Reuse) && !info.has(Feature::Grow));
    assert!(info.absent.iter().all(|(feature, why)| !info.has(*feature) && !why.is_empty()));
    let options = CoreOptions { max_items: 65, ..CoreOptions::default() };
    assert!(Core::new(Executor::new(pool(4, 4)), options).is_err());
}
