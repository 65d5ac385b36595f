//! Both facades on one core, and what a core is after long use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ictus::capacity::Ledger;
use ictus::executor::Executor;
use ictus::facade::{Admission, Chunk, Core, CoreOptions, CoreState, Domain, End, Feature, Fit, Logits, Work};
use ictus::record::constant::{op_state, shed_kind, tick_status};
use ictus::record::{Status, TokenRange};
use ictus::ring::Rings;
use ictus::testing::Harness;

use crate::host::{Host, blocked, host, pool, pool_with, prompt, short, text, token};

const WORKSPACE: usize = Domain::Workspace.index();
const EXPORT: usize = Domain::HostExport.index();

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

/// what nobody runs or closes stays, whatever else comes and goes.
#[test]
fn x_12_idle_sequences_stay_as_they_are() {
    let host = Host::over(pool_with(8, 0, |options| options.end_ids.clear()));
    let question = prompt(40, 1);
    let (waiting, next) = host.started(&question, 64);
    let untouched = host.admit(&question, 64).expect("there is room");
    let held = [waiting, untouched].map(|seq| host.executor.held(seq));
    let mut ticking = Harness::with_engine(host.core.tick_host().expect("nobody else ticks"));
    for round in 0..300u32 {
        // Room is made for others by eviction, never by taking it from these.
        let other = prompt(70, 10 + round);
        let (seq, _) = host.started(&other, 96);
        host.executor.close(seq, End::Completed { prompt: 70, output: 1 }).expect("it is idle");
        let staged = ticking.prompt(&other);
        let plan = ticking.plan().admit(round.into(), staged).prefill(round.into(), 0, 70);
        ticking.tick_ok(plan);
        let plan = ticking.plan().retire(round.into(), true);
        ticking.tick_ok(plan);
    }
    assert_eq!([waiting, untouched].map(|seq| host.executor.held(seq)), held);
    assert_eq!([waiting, untouched].map(|seq| host.executor.frontier(seq)), [Ok(40), Ok(0)]);
    let said = text(&question, 2);
    assert_eq!(token(&host.decode(waiting, 40, next).expect("there is room")), said[1]);
    assert_eq!(token(&host.chunk(untouched, 0, 40, 40).expect("there is room")), said[0]);
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

/// A core whose workspace takes 40 bytes, one for each token.
fn narrow() -> Host {
    let executor = Executor::new(pool_with(32, 0, |options| options.end_ids.clear()));
    let mut limits = executor.limits();
    (limits.total[WORKSPACE], limits.max[WORKSPACE]) = (40, 40);
    let executor = executor.with_ledger(Ledger::new(limits));
    Host::with(executor, CoreOptions { workspace_token_bytes: 1, ..CoreOptions::default() })
}

/// X-69 .. X-71: a tick that lacks workspace runs a head of its prompts, says what was short, and leaves decodes as they are.
#[test]
fn xs_63_tick_narrowed_by_workspace_says_so() {
    let host = narrow();
    let memory = host.memory();
    let mut ticking = Harness::with_engine(host.core.tick_host().expect("nobody else ticks"));
    let (short_one, long_one) = (prompt(10, 1), prompt(64, 2));
    let staged = ticking.prompt(&short_one);
    let plan = ticking.plan().admit(1, staged).prefill(1, 0, 10).decode(1, 1);
    let events = ticking.tick_ok(plan);
    assert!(events.shed_entries.is_empty() && events.shed_chunks == 0, "ten tokens and a decode fit");
    // 64 tokens beside two decodes: 38 run. The lane may not decode yet, though its plan thought it would.
    let staged = ticking.prompt(&long_one);
    let plan = ticking.plan().admit(2, staged).prefill(2, 0, 64).decode(1, 1).decode(2, 1);
    let events = ticking.tick_ok(plan);
    let [shed] = events.shed_entries[..] else { panic!("one entry: {:?}", events.shed_entries) };
    assert_eq!((shed.lane_tag, shed.kind, shed.reason), (2, shed_kind::PREFILL_CHUNK, Domain::Workspace.code()));
    assert_eq!((shed.tokens, events.shed_chunks, events.tick_status), (64 - 38, 1, tick_status::SHED));
    let mut said = Vec::new();
    let first = events.emit_for(1).expect("it decoded").token_ref;
    ticking.rings.read_tokens(&first, &mut said).expect("it was just written");
    assert_eq!(said, [text(&short_one, 2)[1]]);
    assert_eq!(events.emit_for(2).map_or(0, |emit| emit.n_tokens), 0);
    // The rest, and the tokens of a run alone.
    let plan = ticking.plan().prefill(2, 38, 26).decode(2, 1);
    let events = ticking.tick_ok(plan);
    assert!(events.shed_entries.is_empty());
    let emitted = events.emit_for(2).expect("it decoded").token_ref;
    said.clear();
    ticking.rings.read_tokens(&emitted, &mut said).expect("it was just written");
    assert_eq!(said, [text(&long_one, 1)[0]]);
    // A run beside it claims all of the workspace, and gives it back before the tick has its turn.
    let plan = ticking.plan().retire(1, false).retire(2, false);
    ticking.tick_ok(plan);
    assert_eq!(host.memory(), memory, "workspace comes back with every tick");
    let chunk = Chunk::new(0, 40, 40).expect("it is one");
    let seq = host.admit(&prompt(40, 3), 48).expect("there is room");
    host.slow_steps(std::time::Duration::from_millis(50));
    let host = Arc::new(host);
    let runner = Arc::clone(&host);
    let running = std::thread::spawn(move || {
        runner.one(Work::Prefill { seq, chunk, whole: true, logits: &runner.greedy }).map(|row| token(&row))
    });
    host.wait_in_flight(seq);
    let staged = ticking.prompt(&short_one);
    let plan = ticking.plan().admit(3, staged).prefill(3, 0, 10);
    ticking.tick_ok(plan);
    assert_eq!(running.join().expect("it ends"), Ok(text(&prompt(40, 3), 1)[0]));
}

/// the same shortage, in both facades: a chunk that ran less, and the domain that was short.
#[test]
fn x_70_both_facades_narrow_by_the_same_number() {
    let host = narrow();
    let question = prompt(64, 2);
    let seq = host.admit(&question, 64).expect("there is room");
    let row = host.chunk(seq, 0, 64, 64).expect("a head of it fits");
    assert!(row.probes >= 1 && (1..=40).contains(&row.ran.len()), "{row:?}");
    let mut ticking = Harness::with_engine(host.core.tick_host().expect("nobody else ticks"));
    let staged = ticking.prompt(&question);
    let plan = ticking.plan().admit(1, staged).prefill(1, 0, 64);
    let events = ticking.tick_ok(plan);
    assert_eq!((events.shed_entries[0].tokens, events.shed_entries[0].reason), (24, Domain::Workspace.code()));
    // One token alone that does not fit is no chunk that could be cut.
    let host = {
        let executor = Executor::new(pool(8, 4));
        let mut limits = executor.limits();
        (limits.total[WORKSPACE], limits.max[WORKSPACE]) = (40, 40);
        let executor = executor.with_ledger(Ledger::new(limits));
        Host::with(executor, CoreOptions { workspace_token_bytes: 50, ..CoreOptions::default() })
    };
    let mut ticking = Harness::with_engine(host.core.tick_host().expect("nobody else ticks"));
    for _ in 0..2 {
        let staged = ticking.prompt(&question);
        let plan = ticking.plan().admit(1, staged).prefill(1, 0, 64);
        assert_eq!(ticking.tick(plan).expect_err("no room"), Status::NeedsReplan);
        ticking.next_seq -= 1;
        let evidence = *ictus::engine::Engine::last_blocked(&ticking.engine).expect("it lacked room");
        assert_eq!((short(&evidence), evidence.short[0].need), (vec![Domain::Workspace], 50));
    }
}

/// an export that does not fit the host is an operation that failed; one that fits waits for nobody.
#[test]
fn x_70_export_that_does_not_fit_the_host_fails() {
    use ictus::engine::Engine;
    let executor = Executor::new(pool_with(32, 0, |options| options.end_ids.clear()));
    let mut limits = executor.limits();
    (limits.total[EXPORT], limits.max[EXPORT]) = (1000, 1000);
    let host = Host::with(executor.with_ledger(Ledger::new(limits)), CoreOptions::default());
    let mut ticking = Harness::with_engine(host.core.tick_host().expect("nobody else ticks"));
    let question = prompt(400, 1);
    let staged = ticking.prompt(&question);
    let plan = ticking.plan().admit(1, staged).prefill(1, 0, 400).decode(1, 1);
    ticking.tick_ok(plan);
    let engine = &mut ticking.engine;
    let sequence = engine.lane_sequence(1).expect("it lives");
    let (space, seen) = (engine.state_spaces()[0].space_id, host.executor.capacity().now());
    let export = |engine: &mut ictus::facade::TickHost<ictus::runtime::FakeRuntime>, boundary: u64| {
        let range = TokenRange { start: 0, end: boundary };
        let sized = engine.space_export_size(sequence, space, range, 0).expect("it can be exported");
        let op =
            engine.space_snapshot(sequence, space, boundary, sized.bytes, sized.sizing_gen).expect("it is checked");
        (op, engine.op_poll(op).expect("it is known"), sized.bytes)
    };
    for _ in 0..2 {
        let (op, status, bytes) = export(engine, 384);
        assert!(bytes > 1000);
        assert_eq!((status.state, status.bytes_moved), (op_state::FAILED, 0));
        assert_eq!(status.error, Status::RejectBudget.code() as u32);
        assert_eq!(engine.take_op_output(op), None);
    }
    assert_eq!(host.executor.capacity().now().seen(Domain::HostExport), seen.seen(Domain::HostExport));
    // A part of it fits; then no second one does, until the first is taken.
    let (first, status, bytes) = export(engine, 192);
    assert_eq!((status.state, bytes <= 1000), (op_state::DONE, true));
    let (_, status, _) = export(engine, 192);
    assert_eq!(status.state, op_state::FAILED);
    assert_eq!(engine.take_op_output(first).map(|sealed| sealed.len() as u64), Some(bytes));
    assert_eq!(host.executor.capacity().now().seen(Domain::HostExport), seen.seen(Domain::HostExport) + 1);
    let (_, status, _) = export(engine, 192);
    assert_eq!(status.state, op_state::DONE);
    // The lane goes on as if nothing had been asked.
    let plan = ticking.plan().decode(1, 1);
    let events = ticking.tick_ok(plan);
    let mut said = Vec::new();
    ticking.rings.read_tokens(&events.emits[0].token_ref, &mut said).expect("it was just written");
    assert_eq!(said, [text(&question, 2)[1]]);
}
