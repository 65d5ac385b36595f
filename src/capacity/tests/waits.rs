#![forbid(unsafe_code)]
//! Tickets and waits (X-21 .. X-28).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::*;

fn poll(wait: &mut Wait, waker: &Waker) -> Poll<Result<Ticket, Refusal>> {
    Pin::new(wait).poll(&mut Context::from_waker(waker))
}

/// A full pool, and the evidence of who could not have a page.
fn full() -> (Ledger, Blocked) {
    let ledger = core(4, 4, 4);
    claim(&ledger, blocks(4)).expect("free");
    let evidence = blocked(claim(&ledger, blocks(1)));
    (ledger, evidence)
}

///
#[test]
fn xs_11_what_came_before_the_wait_is_not_missed() {
    let (_, waker) = Count::pair();
    // Before `wait` is called.
    let (ledger, evidence) = full();
    ledger.release(&blocks(1)).expect("claimed");
    let mut wait = ledger.capacity().wait(evidence.ticket).expect("of this core");
    assert!(poll(&mut wait, &waker).is_ready());
    // Between `wait` and the first poll.
    let (ledger, evidence) = full();
    let mut wait = ledger.capacity().wait(evidence.ticket).expect("of this core");
    ledger.release(&blocks(1)).expect("claimed");
    let Poll::Ready(Ok(fresh)) = poll(&mut wait, &waker) else { panic!("not ready") };
    assert_eq!((fresh.watches(), fresh.seen(Domain::Blocks)), (Domain::Blocks.bit(), 2), "a fresh ticket");
    assert_eq!(ledger.capacity().changed(&fresh), Ok(false));
    assert_eq!(poll(&mut wait, &waker), Poll::Ready(Err(Bad::Stale.into())), "it is single-use");
    // The same, blocking.
    let (ledger, evidence) = full();
    let wait = ledger.capacity().wait(evidence.ticket).expect("of this core");
    ledger.release(&blocks(1)).expect("claimed");
    assert!(wait.block(Some(Duration::ZERO)).expect("open").is_some());
}

#[test]
fn xs_12_parked_threads_are_woken_by_what_they_wait_for() {
    // One page for two threads: each takes it, gives it back, and parks when it is taken.
    const ROUNDS: usize = 100_000;
    let ledger = core(4, 1, 1);
    let turns = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    while let Err(refusal) = claim(&ledger, blocks(1)) {
                        let evidence = *refusal.blocked().expect("a page is short");
                        let wait = ledger.capacity().wait(evidence.ticket).expect("of this core");
                        let news = wait.block(Some(Duration::from_secs(20))).expect("open");
                        assert!(news.is_some(), "a wake-up was lost");
                    }
                    turns.fetch_add(1, Ordering::Relaxed);
                    ledger.release(&blocks(1)).expect("claimed");
                }
            });
        }
    });
    assert_eq!((turns.into_inner(), ledger.capacity().waiters()), (2 * ROUNDS, 0));
}

///
#[test]
fn xs_13_other_domains_wake_nobody() {
    let (ledger, evidence) = full();
    let (count, waker) = Count::pair();
    let mut wait = ledger.capacity().wait(evidence.ticket).expect("of this core");
    assert!(poll(&mut wait, &waker).is_pending());
    for _ in 0..1000 {
        for domain in [Domain::Slots, Domain::HostExport, Domain::Workspace] {
            let one = units([(domain, 1)]);
            claim(&ledger, one).expect("free");
            ledger.release(&one).expect("claimed");
        }
    }
    assert_eq!(ledger.capacity().changed(&evidence.ticket), Ok(false));
    assert!(ledger.capacity().now().released() >= 3000, "it is counted all the same");
    assert!(poll(&mut wait, &waker).is_pending());
    assert_eq!(count.get(), 0);
    ledger.release(&blocks(1)).expect("claimed");
    assert_eq!(count.get(), 1);
}

///
#[test]
fn xs_14_xs_15_foreign_and_regressed_tickets_are_refused() {
    let (ledger, evidence) = full();
    let (other, _) = full();
    for _ in 0..2 {
        assert_eq!(other.capacity().changed(&evidence.ticket), Err(Bad::Foreign.into()));
        assert_eq!(other.capacity().wait(evidence.ticket).err(), Some(Bad::Foreign.into()));
    }
    assert_ne!(ledger.capacity().id(), other.capacity().id());
    // One watched epoch is ahead of what was seen, one behind.
    let now = ledger.capacity().now();
    let forged = units([(Domain::Slots, 0), (Domain::Blocks, 9)]);
    let watch = Domain::Slots.bit() | Domain::Blocks.bit();
    let forged = Ticket::from_parts(now.core().get(), watch, forged, 0, 0).expect("a ticket");
    assert_eq!(ledger.capacity().changed(&forged), Err(Bad::Regressed.into()), "not true");
    assert_eq!(ledger.capacity().wait(forged).err(), Some(Bad::Regressed.into()));
    assert_eq!(ledger.capacity().changed(&forged.watching(Domain::Slots.bit())), Ok(true));
    assert_eq!(Ticket::from_parts(0, 1, NOTHING, 0, 0).err(), Some(Bad::Bounds.into()));
    assert_eq!(Ticket::from_parts(1, 128, NOTHING, 0, 0).err(), Some(Bad::Bounds.into()));
}

///
#[test]
fn xs_16_a_union_keeps_the_older_observation() {
    let id = core(1, 1, 1).capacity().id().get();
    let ticket = |watch: &[(Domain, u64)]| {
        let mut seen = [77; DOMAINS];
        let set = watch.iter().fold(0, |set, (domain, _)| set | domain.bit());
        watch.iter().for_each(|&(domain, epoch)| seen[domain.index()] = epoch);
        Ticket::from_parts(id, set, seen, 0, 0).expect("a ticket")
    };
    let a = ticket(&[(Domain::Blocks, 5)]);
    let b = ticket(&[(Domain::Blocks, 3), (Domain::Slots, 2)]);
    for union in [Ticket::union(&a, &b), Ticket::union(&b, &a)] {
        let union = union.expect("of one core");
        assert_eq!(union.watches(), Domain::Blocks.bit() | Domain::Slots.bit());
        assert_eq!((union.seen(Domain::Blocks), union.seen(Domain::Slots)), (3, 2));
    }
    let (_, other) = full();
    assert_eq!(Ticket::union(&a, &other.ticket).err(), Some(Bad::Foreign.into()));
}

///
#[test]
fn xs_17_dropped_waits_leave_nothing() {
    let (ledger, evidence) = full();
    let (count, waker) = Count::pair();
    for _ in 0..10_000 {
        let mut wait = ledger.capacity().wait(evidence.ticket).expect("of this core");
        assert!(poll(&mut wait, &waker).is_pending());
        assert_eq!(ledger.capacity().waiters(), 1);
    }
    assert_eq!(ledger.capacity().waiters(), 0);
    assert_eq!(ledger.shared().read(|inner| inner.places()), 1, "one place serves them all");
    ledger.release(&blocks(4)).expect("claimed");
    assert_eq!(count.get(), 0, "nobody is there to be woken");
    assert_eq!(Arc::strong_count(&count), 2, "no waker is kept");
}

///
#[test]
fn xs_18_shutdown_resolves_parked_waits() {
    let (ledger, evidence) = full();
    let (count, waker) = Count::pair();
    let mut pending = ledger.capacity().wait(evidence.ticket).expect("of this core");
    assert!(poll(&mut pending, &waker).is_pending());
    let parked = ledger.capacity().wait(evidence.ticket).expect("of this core");
    let thread = std::thread::spawn(move || parked.block(None));
    while ledger.capacity().waiters() < 2 {
        std::thread::yield_now();
    }
    let started = Instant::now();
    ledger.close();
    assert_eq!(thread.join().expect("no panic"), Err(Bad::Closed.into()));
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(poll(&mut pending, &waker), Poll::Ready(Err(Bad::Closed.into())));
    assert_eq!(count.get(), 1);
    assert_eq!(claim(&ledger, blocks(1)).err(), Some(Bad::Closed.into()));
    let late = ledger.capacity().wait(ledger.capacity().now()).expect("it answers");
    assert_eq!(late.block(None), Err(Bad::Closed.into()));
    assert_eq!(ledger.release(&blocks(4)).expect("what is held goes back").freed, blocks(4));
    // A core that is gone is closed too.
    let (ledger, evidence) = full();
    let wait = ledger.capacity().wait(evidence.ticket).expect("of this core");
    drop(ledger);
    assert_eq!(wait.block(None), Err(Bad::Closed.into()));
}

///
#[test]
fn xs_19_a_panic_under_the_lock_poisons() {
    let (ledger, evidence) = full();
    let (count, waker) = Count::pair();
    let mut wait = ledger.capacity().wait(evidence.ticket).expect("of this core");
    assert!(poll(&mut wait, &waker).is_pending());
    let before = ledger.capacity().memory();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        ledger.shared().with(|_| -> Result<(), Refusal> { panic!("injected") })
    }));
    assert!(panicked.is_err());
    assert_eq!(count.get(), 1, "parked waits wake");
    let poisoned = Refusal::from(Bad::Poisoned);
    assert_eq!(poll(&mut wait, &waker), Poll::Ready(Err(poisoned)));
    for _ in 0..2 {
        assert_eq!(claim(&ledger, blocks(1)).err(), Some(poisoned));
        assert_eq!(ledger.release(&blocks(1)).err(), Some(poisoned));
        assert_eq!(ledger.settle(&Settlement::default()).err(), Some(poisoned));
        assert_eq!(ledger.capacity().changed(&evidence.ticket), Err(poisoned));
        assert_eq!(ledger.capacity().wait(evidence.ticket).err(), Some(poisoned));
    }
    assert_eq!(ledger.capacity().memory(), before, "the level is still readable");
}

///
#[test]
fn xs_20_a_waker_may_call_the_coordinator() {
    struct Nosy(Ledger, AtomicUsize);
    impl Wake for Nosy {
        fn wake(self: Arc<Self>) {
            claim(&self.0, blocks(1)).expect("a page has just come free");
            self.0.release(&blocks(1)).expect("claimed");
            drop(self.0.capacity().wait(self.0.capacity().now()).expect("of this core"));
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (ledger, evidence) = full();
    let nosy = Arc::new(Nosy(ledger.clone(), AtomicUsize::new(0)));
    let mut wait = ledger.capacity().wait(evidence.ticket).expect("of this core");
    assert!(poll(&mut wait, &Waker::from(Arc::clone(&nosy))).is_pending());
    ledger.release(&blocks(1)).expect("claimed");
    assert_eq!(nosy.1.load(Ordering::SeqCst), 1);
}

///
#[test]
fn a_waker_that_panics_keeps_nobody_asleep() {
    struct Sore;
    impl Wake for Sore {
        fn wake(self: Arc<Self>) {
            panic!("injected");
        }
    }
    let (ledger, evidence) = full();
    let (count, waker) = Count::pair();
    let mut first = ledger.capacity().wait(evidence.ticket).expect("of this core");
    let mut second = ledger.capacity().wait(evidence.ticket).expect("of this core");
    assert!(poll(&mut first, &Waker::from(Arc::new(Sore))).is_pending());
    assert!(poll(&mut second, &waker).is_pending());
    ledger.release(&blocks(1)).expect("claimed");
    assert_eq!(count.get(), 1);
    claim(&ledger, blocks(1)).expect("nothing is poisoned");
}

///
#[test]
fn x_26_who_holds_another_lock_wakes_after_it() {
    let (ledger, evidence) = full();
    let (count, waker) = Count::pair();
    let mut wait = ledger.capacity().wait(evidence.ticket).expect("of this core");
    assert!(poll(&mut wait, &waker).is_pending());
    let mut woken = Woken::default();
    ledger.retire_quietly(&blocks(1), &NOTHING, &mut woken).expect("claimed");
    let settlement = Settlement { back: blocks(1), ..Settlement::default() };
    ledger.settle_quietly(&settlement, &mut woken).expect("claimed");
    assert_eq!((count.get(), woken.is_empty()), (0, false), "ready, and not woken yet");
    woken.wake();
    assert_eq!(count.get(), 1);
    assert!(poll(&mut wait, &waker).is_ready());
}

///
#[test]
fn xs_21_a_refusal_does_not_move_its_own_ticket() {
    let ledger = core(4, 10, 10);
    claim(&ledger, blocks(8)).expect("free");
    // What was taken provisionally goes back first, then the evidence is made.
    let taken = claim(&ledger, blocks(2)).expect("free").gained;
    let refused = claim(&ledger, blocks(1)).is_err();
    assert!(refused);
    ledger.release(&taken).expect("claimed");
    let evidence = blocked(claim(&ledger, blocks(3)));
    assert_eq!(ledger.capacity().changed(&evidence.ticket), Ok(false));
    // A batch takes nothing before it knows that all of it fits, so there is nothing to give back.
    let batch = blocked(ledger.claim_batch(&NOTHING, &[blocks(1); 5], Remedy::Wait));
    assert_eq!((batch.fits, ledger.capacity().changed(&batch.ticket)), (2, Ok(false)));
    assert_eq!(batch.ticket.seen(Domain::Blocks), evidence.ticket.seen(Domain::Blocks));
}

#[test]
fn a_wait_gives_up_when_its_time_is_over() {
    let (ledger, evidence) = full();
    let started = Instant::now();
    let wait = ledger.capacity().wait(evidence.ticket).expect("of this core");
    assert_eq!(wait.block(Some(Duration::from_millis(20))), Ok(None));
    assert!(started.elapsed() >= Duration::from_millis(20));
    assert_eq!(ledger.capacity().waiters(), 0);
}

///
#[test]
fn a_descriptor_is_readable_when_there_is_news() {
    use std::io::Read;
    use std::os::fd::AsFd;
    let (ledger, evidence) = full();
    let wait = ledger.capacity().wait(evidence.ticket).expect("of this core");
    let mut polled = wait.descriptor().expect("a descriptor is free");
    assert_eq!(polled.take(), Ok(None));
    // Its twin reads in a thread of its own until there is news: end of file.
    let twin = polled.as_fd().try_clone_to_owned().expect("a descriptor is free");
    let reader = std::thread::spawn(move || std::fs::File::from(twin).read(&mut [0]).expect("readable"));
    assert!(!reader.is_finished());
    ledger.release(&blocks(1)).expect("claimed");
    assert_eq!(reader.join().expect("no panic"), 0);
    assert!(polled.take().expect("open").is_some());
    assert_eq!(polled.take().err(), Some(Bad::Stale.into()));
    // News that were there before.
    let wait = ledger.capacity().wait(evidence.ticket).expect("of this core");
    let mut polled = wait.descriptor().expect("a descriptor is free");
    let twin = polled.as_fd().try_clone_to_owned().expect("a descriptor is free");
    assert_eq!(std::fs::File::from(twin).read(&mut [0]).expect("readable"), 0);
    assert!(polled.take().expect("open").is_some());
    // One that is dropped deregisters.
    claim(&ledger, blocks(1)).expect("free");
    let wait = ledger.capacity().wait(ledger.capacity().now()).expect("of this core");
    let polled = wait.descriptor().expect("a descriptor is free");
    assert_eq!(ledger.capacity().waiters(), 1);
    drop(polled);
    assert_eq!(ledger.capacity().waiters(), 0);
}
