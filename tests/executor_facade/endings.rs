//! Ends: closed, cancelled, preempted, cut, shut down.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use ictus::facade::{
    Admission, Bad, Chunk, Domain, End, FaultCode, FaultState, Logits, ModelExecutor, Out, Receipt, Refusal, Work,
};

use crate::host::{Host, bad, blocked, host, pool_with, prompt, short, text, token};

const BLOCKS: usize = Domain::Blocks.index();
const SLOTS: usize = Domain::Slots.index();

/// an id of an earlier incarnation reaches nothing.
#[test]
fn xs_22_old_names_reach_nothing() {
    let host = host(8, 1);
    let question = prompt(6, 1);
    let admission = Admission { tag: 77, ..Admission::of(&question, 16) };
    let old = host.executor.admit(&admission).expect("there is room");
    host.chunk(old, 0, 6, 6).expect("there is room");
    host.executor.close(old, End::Recompute).expect("it is idle");
    let said = text(&question, 3);
    let again = Admission { replayed: &said[..1], ..admission };
    let new = host.executor.admit(&again).expect("there is room");
    assert_ne!(old, new);
    for _ in 0..2 {
        assert_eq!(bad(host.executor.close(old, End::Failed)).0, Bad::Stale);
        assert_eq!(bad(host.chunk(old, 0, 6, 6)).0, Bad::Stale);
        assert_eq!(bad(host.executor.truncate(old, 0)).0, Bad::Stale);
    }
    assert_eq!(token(&host.chunk(new, 0, 7, 7).expect("there is room")), said[1]);
}

///
#[test]
fn xs_23_sequence_is_closed_once() {
    let host = Arc::new(host(8, 4));
    let (seq, _) = host.started(&prompt(40, 1), 64);
    let before = host.executor.capacity().now();
    let receipt = host.executor.close(seq, End::Failed).expect("it is open");
    assert_eq!((receipt.freed[BLOCKS], receipt.freed[SLOTS], receipt.decoding), (2, 1, true));
    assert_eq!(bad(host.executor.close(seq, End::Cancelled)).0, Bad::Stale);
    let now = host.executor.capacity().now();
    for domain in [Domain::Blocks, Domain::Slots] {
        assert_eq!(now.seen(domain), before.seen(domain) + 1, "{domain:?}");
    }
    for salt in 0..200 {
        let seq = host.admit(&prompt(4, salt), 8).expect("there is room");
        let barrier = Arc::new(Barrier::new(2));
        let threads = [End::Cancelled, End::Recompute].map(|end| {
            let (host, barrier) = (Arc::clone(&host), Arc::clone(&barrier));
            std::thread::spawn(move || {
                barrier.wait();
                host.executor.close(seq, end).map(|_| ())
            })
        });
        let outcomes = threads.map(|thread| thread.join().expect("it ends"));
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
        assert!(outcomes.iter().flat_map(|outcome| outcome.as_ref().err()).all(|r| *r == Refusal::bad(Bad::Stale)));
    }
    assert_eq!(host.free(), 8);
}

///
#[test]
fn xs_24_cancelled_run_gives_its_blocks_back_when_it_ends() {
    let host = Arc::new(host(4, 4));
    let seq = host.admit(&prompt(64, 1), 80).expect("there is room");
    let other = host.started(&prompt(5, 2), 16);
    host.slow_steps(Duration::from_millis(100));
    let runner = Arc::clone(&host);
    let running = std::thread::spawn(move || runner.chunk(seq, 0, 64, 64));
    host.wait_in_flight(seq);
    let receipt = host.executor.close(seq, End::Cancelled).expect("it is open");
    assert!(receipt.pending && receipt.freed == [0; 7]);
    assert_eq!(bad(host.executor.frontier(seq)).0, Bad::Stale, "its name is stale at once");
    assert_eq!(host.free(), 1, "its blocks are its own until the run ends");
    let wait = host.executor.capacity().wait(receipt.at).expect("it can be waited for");
    wait.block(Some(Duration::from_secs(10))).expect("it is not closed").expect("the run ends");
    let row = running.join().expect("it ends").expect("the run was submitted");
    let fault = row.out.expect_err("it was cancelled");
    assert_eq!((fault.code, row.ran.is_empty()), (FaultCode::Cancelled, true));
    assert_eq!(host.free(), 3);
    assert_eq!(host.executor.capacity().now().seen(Domain::Blocks), receipt.at.seen(Domain::Blocks) + 1);
    host.slow_steps(Duration::ZERO);
    assert_eq!(token(&host.decode(other.0, 5, other.1).expect("there is room")), text(&prompt(5, 2), 2)[1]);
    host.audit();
}

///
#[test]
fn xs_25_run_in_flight_is_neither_preempted_nor_cut() {
    let host = Arc::new(host(8, 4));
    let question = prompt(40, 1);
    let (seq, next) = host.started(&question, 64);
    host.slow_steps(Duration::from_millis(100));
    let runner = Arc::clone(&host);
    let running = std::thread::spawn(move || runner.decode(seq, 40, next));
    host.wait_in_flight(seq);
    let before = host.memory();
    let ends = [End::Recompute, End::Completed { prompt: 40, output: 1 }];
    for end in ends {
        assert_eq!(bad(host.executor.close(seq, end)).0, Bad::Busy);
    }
    assert_eq!(bad(host.executor.truncate(seq, 40)).0, Bad::Busy);
    assert_eq!(host.executor.frees(&[seq]), Ok([0; 7]));
    assert_eq!(host.memory(), before);
    let row = running.join().expect("it ends").expect("it ran");
    assert_eq!(token(&row), text(&question, 2)[1]);
    host.executor.close(seq, ends[1]).expect("it is idle");
}

/// a cancel and the start of a run have an order, whichever it is: the whole batch is stale, or the close sees a run in flight.
///
/// Whoever closes has the turn to submit meanwhile, so no run lands before the close has returned. A bystander in the batch shows that a batch
/// is refused as a whole, and runs undisturbed when it is not.
#[test]
fn xs_26_cancel_and_run_have_an_order() {
    const ROUNDS: usize = 100_000;
    let host = Arc::new(host(8, 4));
    let question = prompt(5, 1);
    let (bystander, next) = host.started(&question, 16);
    let said = text(&question, 2);
    assert_eq!(next, said[0]);
    let barrier = Arc::new(Barrier::new(2));
    let raced = Arc::new(std::sync::Mutex::new(bystander));
    let closed = Arc::new(AtomicU32::new(0));
    let runner = {
        let (host, barrier, raced, closed) =
            (Arc::clone(&host), Arc::clone(&barrier), Arc::clone(&raced), Arc::clone(&closed));
        std::thread::spawn(move || {
            let mut rows = Vec::new();
            let mut outcomes = Vec::with_capacity(ROUNDS);
            let chunk = Chunk::new(0, 3, 3).expect("it is one");
            for round in 0..ROUNDS {
                barrier.wait();
                let seq = *raced.lock().expect("whole");
                let work = [
                    Work::Decode { seq: bystander, at: 5, token: next, logits: &host.greedy },
                    Work::Prefill { seq, chunk, whole: true, logits: &host.greedy },
                ];
                // Every eighth round the close is first, every other eighth the run; the others race.
                while round % 8 == 0 && closed.load(Ordering::Acquire) as usize <= round {
                    std::thread::yield_now();
                }
                let outcome = host.executor.run(&work, &mut rows);
                outcomes.push(outcome.map(|()| (rows[0].out.clone(), rows[1].out.clone())));
                if outcomes.last().is_some_and(Result::is_ok) {
                    host.executor.truncate(bystander, 5).expect("it is idle");
                }
                barrier.wait();
            }
            outcomes
        })
    };
    let mut receipts: Vec<Receipt> = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        let seq = host.admit(&[1, 2, 3], 4).expect("there is room");
        *raced.lock().expect("whole") = seq;
        let receipt = host.core.inspect(|_| {
            barrier.wait();
            if round % 8 == 4 {
                host.wait_in_flight(seq);
            }
            host.executor.close(seq, End::Cancelled).expect("it is open")
        });
        closed.store(round as u32 + 1, Ordering::Release);
        receipts.push(receipt);
        barrier.wait();
    }
    let (mut stale, mut pending) = (0, 0);
    for (outcome, receipt) in runner.join().expect("it ends").into_iter().zip(&receipts) {
        match outcome {
            Err(refusal) => {
                assert_eq!((refusal, receipt.pending), (Refusal::bad_at(Bad::Stale, 1), false));
                stale += 1;
            }
            Ok((beside, out)) => {
                assert_eq!(beside, Ok(Out::Tokens(vec![said[1]])));
                let fault = out.expect_err("it was cancelled");
                assert_eq!((fault.code, receipt.pending), (FaultCode::Cancelled, true));
                pending += 1;
            }
        }
    }
    println!("{stale} stale, {pending} pending");
    assert!(stale >= ROUNDS / 8 && pending >= ROUNDS / 8 && stale + pending == ROUNDS);
    host.close(bystander);
    assert_eq!(host.free(), 8);
    host.audit();
}

///
#[test]
fn xs_27_preemption_frees_and_says_what_it_ended() {
    let host = host(4, 8);
    let waiting = host.admit(&prompt(64, 1), 80).expect("there is room");
    let (decoding, _) = host.started(&prompt(64, 2), 80);
    for (victim, decodes) in [(waiting, false), (decoding, true)] {
        while host.admit(&prompt(1, 3), 2).is_ok() {}
        let refused = blocked(host.admit(&prompt(1, 4), 2));
        let receipt = host.executor.close(victim, End::Recompute).expect("it is idle");
        assert_eq!((receipt.decoding, receipt.pending), (decodes, false));
        assert_eq!(host.executor.capacity().changed(&refused.ticket), Ok(true));
    }
}

/// Sequences that start from a prefix which another one left behind, and the whole blocks of it.
fn sharing(host: &Host, sequences: u32) -> Vec<ictus::facade::Seq> {
    let stem = prompt(64, 1);
    let (seq, _) = host.started(&stem, 80);
    host.executor.close(seq, End::Completed { prompt: 64, output: 1 }).expect("it is idle");
    (0..sequences)
        .map(|last| {
            let question: Vec<u32> = stem.iter().copied().chain([last, last + 1]).collect();
            let admission = Admission { reuse: true, ..Admission::of(&question, 80) };
            let seq = host.executor.admit(&admission).expect("there is room");
            assert_eq!(host.executor.frontier(seq), Ok(64), "X-19");
            let row = host.chunk(seq, 64, 2, 66).expect("there is room");
            assert_eq!(token(&row), text(&question, 1)[0], "the bits of a start from nothing");
            seq
        })
        .collect()
}

/// who holds nothing alone frees nothing.
#[test]
fn xs_28_victim_of_shared_blocks_frees_none() {
    let host = host(6, 8);
    let sharers = sharing(&host, 2);
    for &seq in &sharers {
        // Down to the prefix: nothing of its own is left.
        host.executor.truncate(seq, 64).expect("it is idle");
    }
    host.executor.truncate(sharers[0], 64).expect("it is idle");
    while host.admit(&prompt(1, 3), 2).is_ok_and(|_| host.free() > 0) {}
    let frees = host.executor.frees(&sharers[..1]).expect("it is open");
    assert_eq!(frees[BLOCKS], 0);
    let ticket = host.executor.capacity().now();
    host.executor.close(sharers[0], End::Recompute).expect("it is idle");
    assert_eq!(host.executor.capacity().now().seen(Domain::Blocks), ticket.seen(Domain::Blocks), "a useless victim");
    host.audit();
}

///
#[test]
fn xs_29_shared_blocks_are_freed_together() {
    let host = host(8, 8);
    let sharers = sharing(&host, 2);
    let frees = |seqs: &[ictus::facade::Seq]| host.executor.frees(seqs).expect("they are open")[BLOCKS];
    assert_eq!((frees(&sharers[..1]), frees(&sharers[1..]), frees(&sharers)), (1, 1, 4));
    assert_eq!(frees(&[sharers[0], sharers[0]]), 1, "one that is named twice counts once");
    let free = host.free();
    host.close(sharers[0]);
    host.close(sharers[1]);
    assert_eq!(host.free() - free, 4);
    host.audit();
}

/// what a model cannot do it refuses before anything changes.
#[test]
fn xs_53_write_into_a_shared_block_copies_it() {
    let host = host(8, 8);
    let sharers = sharing(&host, 2);
    let stem = prompt(64, 1);
    host.executor.truncate(sharers[0], 40).expect("it is idle");
    assert_eq!(host.executor.held(sharers[0]).expect("it is open")[BLOCKS], 0);
    // It is back in its prompt, and computes the rest of it.
    let question: Vec<u32> = stem.iter().copied().chain([0, 1]).collect();
    let row = host.chunk(sharers[0], 40, 26, 66).expect("there is room");
    assert_eq!(token(&row), text(&question, 1)[0]);
    assert_eq!(host.executor.held(sharers[0]).expect("it is open")[BLOCKS], 2);
    let other: Vec<u32> = stem.iter().copied().chain([1, 2]).collect();
    let said = text(&other, 2);
    assert_eq!(token(&host.decode(sharers[1], 66, said[0]).expect("there is room")), said[1], "unchanged");
    host.audit();

    let uncut = Host::over(pool_with(8, 4, |options| options.descriptor.truncate_partial = false));
    let (seq, _) = uncut.started(&prompt(40, 1), 64);
    let before = uncut.memory();
    assert!(matches!(uncut.executor.truncate(seq, 39), Err(Refusal::Unsupported(_))));
    assert_eq!((uncut.memory(), uncut.executor.frontier(seq)), (before, Ok(40)));
    uncut.executor.truncate(seq, 40).expect("nothing is cut");
}

///
#[test]
fn xs_58_usage_that_cannot_be_leaves_the_sequence_open() {
    let host = host(8, 4);
    let (seq, next) = host.started(&prompt(10, 1), 16);
    host.decode(seq, 10, next).expect("there is room");
    for (prompt, output) in [(9, 1), (11, 1), (10, 3), (10, usize::MAX)] {
        let end = End::Completed { prompt, output };
        assert_eq!(bad(host.executor.close(seq, end)).0, Bad::Bounds, "{end:?}");
    }
    assert_eq!(host.executor.stats().completed, 0);
    host.executor.close(seq, End::Completed { prompt: 10, output: 2 }).expect("that is what was said");
    let early = host.admit(&prompt(10, 2), 16).expect("there is room");
    assert_eq!(bad(host.executor.close(early, End::Completed { prompt: 10, output: 0 })).0, Bad::Frontier);
}

/// what the device may still touch is nobody's.
#[test]
fn xs_60_blocks_in_doubt_are_never_handed_out_again() {
    let host = host(6, 4);
    let (seq, next) = host.started(&prompt(64, 1), 80);
    let (idle, _) = host.started(&prompt(5, 2), 16);
    host.core.inspect(|executor| executor.primitives_mut().fail_next_step(ictus::runtime::RuntimeError::Fatal));
    let row = host.decode(seq, 64, next).expect("it was submitted");
    assert_eq!(row.out.map_err(|fault| fault.state), Err(FaultState::Held));
    assert_eq!(bad(host.decode(idle, 5, 1)).0, Bad::Poisoned, "nothing runs any more");
    assert_eq!(bad(host.executor.close(seq, End::Recompute)).0, Bad::Faulted);
    let receipt = host.executor.close(seq, End::Failed).expect("it can be given up");
    assert!(receipt.pending && receipt.freed == [0; 7]);
    let memory = host.memory();
    assert!(memory.quarantined > 0);
    assert_eq!(host.executor.close(idle, End::Failed).map(|receipt| receipt.freed[BLOCKS]), Ok(1));
    assert_eq!(host.memory().blocks_total, 6 - 3, "three blocks are out of circulation");
}

/// a waker may call anything.
#[test]
fn xs_20_waker_admits_and_closes() {
    struct Calls {
        executor: Arc<dyn ModelExecutor>,
        done: AtomicU32,
    }
    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            let seq = self.executor.admit(&Admission::of(&[1, 2, 3], 4)).expect("a slot came free");
            let (greedy, mut rows) = (Logits::greedy(), Vec::new());
            let chunk = Chunk::new(0, 3, 3).expect("it is one");
            let work = Work::Prefill { seq, chunk, whole: false, logits: &greedy };
            self.executor.run(&[work], &mut rows).expect("nobody holds anything");
            self.executor.close(seq, End::Cancelled).expect("it is open");
            self.done.fetch_add(1, Ordering::SeqCst);
        }
    }
    for cancel_in_flight in [false, true] {
        let host = Arc::new(host(8, 1));
        let seq = host.admit(&prompt(40, 1), 64).expect("there is room");
        let refused = blocked(host.admit(&prompt(4, 2), 8));
        assert_eq!(short(&refused), [Domain::Slots]);
        let calls = Arc::new(Calls { executor: Arc::clone(&host.executor), done: AtomicU32::new(0) });
        let waker = Waker::from(Arc::clone(&calls));
        let mut wait = host.executor.capacity().wait(refused.ticket).expect("it can be waited for");
        let poll = std::pin::Pin::new(&mut wait).poll(&mut Context::from_waker(&waker));
        assert!(matches!(poll, Poll::Pending));
        if cancel_in_flight {
            host.slow_steps(Duration::from_millis(50));
            let runner = Arc::clone(&host);
            let running = std::thread::spawn(move || runner.chunk(seq, 0, 40, 40));
            host.wait_in_flight(seq);
            host.close(seq);
            running.join().expect("no deadlock").expect("it was submitted");
        } else {
            host.close(seq);
        }
        assert_eq!(calls.done.load(Ordering::SeqCst), 1);
        assert_eq!(host.free(), 8);
    }
}

///
#[test]
fn xs_18_shutdown_ends_everything_once() {
    let host = Arc::new(host(4, 4));
    let (running_seq, next) = host.started(&prompt(40, 1), 64);
    host.started(&prompt(5, 2), 16);
    let refused = blocked(host.admit(&prompt(1, 3), 2).and_then(|_| host.admit(&prompt(1, 3), 2)));
    let wait = host.executor.capacity().wait(refused.ticket).expect("it can be waited for");
    let parked = std::thread::spawn(move || wait.block(Some(Duration::from_secs(10))));
    host.slow_steps(Duration::from_millis(50));
    let runner = Arc::clone(&host);
    let running = std::thread::spawn(move || runner.decode(running_seq, 40, next));
    host.wait_in_flight(running_seq);
    let receipt = host.executor.shutdown().expect("once");
    assert_eq!(
        running.join().expect("it ends").expect("it ran").out,
        Ok(Out::Tokens(vec![text(&prompt(40, 1), 2)[1]]))
    );
    assert_eq!(parked.join().expect("it ends"), Err(Refusal::bad(Bad::Closed)));
    assert_eq!((receipt.freed[BLOCKS], receipt.pending, host.free()), (4, false, 4));
    assert_eq!(host.executor.shutdown(), Ok(receipt));
    assert_eq!(bad(host.admit(&prompt(1, 3), 2)).0, Bad::Closed);
}
