//! A runtime that panics inside a step: nothing stays in flight, and nothing runs any more.

use std::sync::Arc;
use std::time::Duration;

use ictus::facade::{Bad, CoreState, Domain, End, FaultCode, FaultState, Seq, Work};
use ictus::record::Status;
use ictus::testing::Harness;

use crate::host::{Host, bad, host, pool_with, prompt, text, token};

const BLOCKS: usize = Domain::Blocks.index();
const FLIGHT: usize = Domain::Flight.index();

/// X-62 .. X-64: what it had not answered is held, its blocks are nobody's, and who waits for the end of the run is woken.
///
/// It once left its sequences in flight for ever: they could neither run nor be closed, and a shutdown waited for them.
#[test]
fn xs_60_a_runtime_that_panics_leaves_nothing_in_flight() {
    let host = Arc::new(host(8, 8));
    let started: Vec<(Seq, u32)> = (0..2).map(|salt| host.started(&prompt(40, salt), 64)).collect();
    let (idle, _) = host.started(&prompt(5, 7), 16);
    let (cancelled, next) = host.started(&prompt(20, 8), 32);
    let seen = host.executor.capacity().now();
    host.core.inspect(|executor| executor.primitives_mut().panic_next_step());
    let mut work: Vec<Work<'_>> =
        started.iter().map(|&(seq, token)| Work::Decode { seq, at: 40, token, logits: &host.greedy }).collect();
    work.push(Work::Decode { seq: cancelled, at: 20, token: next, logits: &host.greedy });
    let mut rows = Vec::new();
    host.executor.run(&work, &mut rows).expect("it was submitted");
    assert_eq!(rows.len(), 3);
    for row in &rows {
        let fault = row.out.as_ref().expect_err("the runtime panicked");
        assert_eq!((fault.code, fault.state, row.ran.len()), (FaultCode::Device, FaultState::Held, 0));
        assert_eq!(host.executor.held(row.seq).expect("it is open")[FLIGHT], 0);
    }
    let now = host.executor.capacity().now();
    assert_eq!(now.seen(Domain::Flight), seen.seen(Domain::Flight) + 1, "the run has ended");
    let stats = host.executor.stats();
    assert_eq!((stats.state, stats.faults[FaultCode::Device as usize]), (CoreState::Faulted, 3));
    // Nothing runs any more, in either facade; admission and growth say so too.
    for _ in 0..2 {
        assert_eq!(bad(host.decode(idle, 5, 1)).0, Bad::Poisoned);
        assert_eq!(bad(host.admit(&prompt(3, 1), 8)).0, Bad::Poisoned);
        assert_eq!(bad(host.executor.prepare()).0, Bad::Poisoned);
        assert_eq!(bad(host.executor.close(started[0].0, End::Recompute)).0, Bad::Faulted);
        assert_eq!(bad(host.executor.truncate(started[0].0, 40)).0, Bad::Faulted);
    }
    let mut ticking = Harness::with_engine(host.core.tick_host().expect("nobody else ticks"));
    let plan = ticking.plan();
    assert_eq!(ticking.tick(plan).expect_err("it is broken"), Status::Fatal);
    // What the device may still touch is nobody's; what is certain comes free.
    let total = host.memory().blocks_total;
    let receipt = host.executor.close(started[0].0, End::Failed).expect("it can be given up");
    assert!(receipt.pending && receipt.freed == [0; 7]);
    assert_eq!(host.memory().blocks_total, total - 2);
    assert_eq!(host.executor.close(idle, End::Failed).map(|receipt| receipt.freed[BLOCKS]), Ok(1));
    let receipt = host.executor.shutdown().expect("nothing is waited for");
    assert!(receipt.pending, "two are still held");
    assert_eq!(host.executor.shutdown(), Ok(receipt));
    let memory = host.memory();
    assert_eq!((memory.blocks_total, memory.quarantined), (total - 5, 5 * memory.block_size));
    assert_eq!(host.executor.stats().accounting_faults, 0);
}

/// one that is cancelled while the step that will panic runs is stale at once, and its blocks go to quarantine.
#[test]
fn xs_60_cancelled_in_a_step_that_panics() {
    let host = Arc::new(Host::over(pool_with(4, 4, |options| options.step_delay = Duration::from_millis(50))));
    let seq = host.admit(&prompt(40, 1), 64).expect("there is room");
    host.core.inspect(|executor| executor.primitives_mut().panic_step_after(0));
    let runner = Arc::clone(&host);
    let running = std::thread::spawn(move || runner.chunk(seq, 0, 40, 40));
    host.wait_in_flight(seq);
    let receipt = host.executor.close(seq, End::Cancelled).expect("it is open");
    assert!(receipt.pending);
    let row = running.join().expect("no panic leaves a run").expect("it was submitted");
    assert_eq!(row.out.map_err(|fault| fault.state), Err(FaultState::Held));
    assert_eq!(host.memory().blocks_total, 2, "two blocks are out of circulation");
    assert_eq!(bad(host.executor.frontier(seq)).0, Bad::Stale);
}

/// a warm-up that panics breaks the core as a run does.
#[test]
fn warm_up_that_panics_breaks_the_core() {
    let host = host(4, 4);
    host.core.inspect(|executor| executor.primitives_mut().panic_next_step());
    for _ in 0..2 {
        assert_eq!(bad(host.executor.prepare()).0, Bad::Poisoned);
    }
    assert_eq!(host.executor.stats().state, CoreState::Faulted);
}

/// rows of earlier steps of the same call stand. A verification of many rows goes on in further steps.
#[test]
fn xs_60_rows_that_were_answered_before_the_panic_stand() {
    let host = Host::over(pool_with(8, 8, |options| options.descriptor.verify_rows = false));
    let question = prompt(5, 1);
    let said = text(&question, 4);
    let (decoding, next) = host.started(&prompt(5, 2), 32);
    let (verified, _) = host.started(&question, 32);
    let seen = host.executor.capacity().now();
    host.core.inspect(|executor| executor.primitives_mut().panic_step_after(1));
    let work = [
        Work::Decode { seq: decoding, at: 5, token: next, logits: &host.greedy },
        Work::Verify { seq: verified, at: 5, tokens: &said[..3], logits: &host.greedy },
    ];
    let mut rows = Vec::new();
    host.executor.run(&work, &mut rows).expect("it was submitted");
    assert_eq!(token(&rows[0]), text(&prompt(5, 2), 2)[1]);
    assert_eq!(rows[1].out.as_ref().map_err(|fault| fault.state), Err(FaultState::Held));
    assert_eq!(host.executor.frontier(decoding), Ok(6));
    assert_eq!(host.executor.capacity().changed(&seen), Ok(true));
}
