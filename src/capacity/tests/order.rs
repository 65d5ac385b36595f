#![forbid(unsafe_code)]
//! Every order of steps (XS-12, XS-21): the real coordinator, driven by small machines whose steps are what one thread does under
//! one hold of the lock, or between two.
//!
//! An operation is atomic under the lock, so threads differ only in the order of their holds and of what lies between: the decision of
//! a refusal, the registration of a wait, the look before parking, and the wakers that a publication calls after it. The search
//! runs all orders, from the start each time, and takes no step of a machine that is parked and was not woken. A machine that is parked
//! when nothing else can go has lost its wake-up.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};

use super::super::shared::Woken;
use super::*;

/// What a thread does next.
enum Next {
    Claim,
    /// Refused: registers.
    Subscribe(Ticket),
    /// Registered: looks, and parks when there is no news.
    Look(Wait),
    Parked(Wait),
    Release,
    /// Has released; its wakers have not been called.
    Wake(Woken),
    Done,
}

struct Flag(AtomicBool, AtomicUsize);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

/// A thread that takes units, gives them back, and does so a number of times.
struct Machine {
    want: Units,
    rounds: u32,
    next: Next,
    flag: Arc<Flag>,
}

impl Machine {
    fn new(want: Units, rounds: u32) -> Self {
        let flag = Arc::new(Flag(AtomicBool::new(false), AtomicUsize::new(0)));
        Self { want, rounds, next: Next::Claim, flag }
    }

    fn can_go(&self) -> bool {
        match self.next {
            Next::Done => false,
            Next::Parked(_) => self.flag.0.load(Ordering::SeqCst),
            _ => true,
        }
    }

    fn step(&mut self, ledger: &Ledger) {
        self.next = match std::mem::replace(&mut self.next, Next::Done) {
            Next::Claim => match claim(ledger, self.want) {
                Ok(receipt) => {
                    assert_eq!(receipt.gained, self.want);
                    Next::Release
                }
                Err(refusal) => Next::Subscribe(blocked(Err::<(), _>(refusal)).ticket),
            },
            Next::Subscribe(ticket) => Next::Look(ledger.capacity().wait(ticket).expect("of this core")),
            Next::Look(mut wait) | Next::Parked(mut wait) => {
                self.flag.0.store(false, Ordering::SeqCst);
                let waker = Waker::from(Arc::clone(&self.flag));
                match Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)) {
                    Poll::Pending => Next::Parked(wait),
                    Poll::Ready(answer) => {
                        answer.expect("open");
                        Next::Claim
                    }
                }
            }
            Next::Release => {
                let (answer, woken) = ledger.shared().collect(|inner| inner.book.release(&self.want));
                assert_eq!(answer.expect("claimed").freed, self.want);
                Next::Wake(woken)
            }
            Next::Wake(woken) => {
                drop(woken);
                self.rounds -= 1;
                if self.rounds > 0 { Next::Claim } else { Next::Done }
            }
            Next::Done => Next::Done,
        };
    }
}

/// Runs one order: at each place with a choice, the next number of `choices`, or the first. Answers how many could go at each place.
fn run(make: &dyn Fn() -> (Ledger, Vec<Machine>), choices: &[usize]) -> Vec<usize> {
    let (ledger, mut machines) = make();
    let total = ledger.total(Domain::Blocks);
    let mut widths = Vec::new();
    loop {
        let ready: Vec<usize> = (0..machines.len()).filter(|&machine| machines[machine].can_go()).collect();
        if ready.is_empty() {
            break;
        }
        let choice = choices.get(widths.len()).copied().unwrap_or(0);
        widths.push(ready.len());
        machines[ready[choice]].step(&ledger);
        let held = ledger.used(Domain::Blocks);
        assert!(held <= total, "{choices:?}: {held} of {total} are held");
    }
    for machine in &machines {
        assert!(matches!(machine.next, Next::Done), "{choices:?}: a wake-up was lost");
    }
    assert_eq!((ledger.used(Domain::Blocks), ledger.used(Domain::Slots)), (0, 0), "{choices:?}");
    assert_eq!((ledger.capacity().waiters(), ledger.capacity().accounting_faults()), (0, 0), "{choices:?}");
    widths
}

/// Runs all orders; answers how many there are.
fn every_order(make: &dyn Fn() -> (Ledger, Vec<Machine>)) -> usize {
    let mut choices = Vec::new();
    let mut orders = 0;
    loop {
        let widths = run(make, &choices);
        orders += 1;
        choices.resize(widths.len(), 0);
        // The next order: the last place where another choice is left.
        while let Some(last) = choices.pop() {
            if last + 1 < widths[choices.len()] {
                choices.push(last + 1);
                break;
            }
        }
        if choices.is_empty() {
            return orders;
        }
    }
}

/// every order of the steps of two and three threads.
#[test]
fn xs_12_no_order_of_steps_loses_a_wake_up() {
    let one_page = || (core(9, 1, 1), vec![Machine::new(blocks(1), 2), Machine::new(blocks(1), 1)]);
    let orders = every_order(&one_page);
    assert!(orders > 100, "{orders}");
    let three = || {
        let machines = vec![Machine::new(blocks(1), 1), Machine::new(blocks(2), 1), Machine::new(blocks(1), 1)];
        (core(9, 2, 2), machines)
    };
    let more = every_order(&three);
    assert!(more > 10_000, "{more}");
    let two_domains = || {
        let both = units([(Domain::Slots, 1), (Domain::Blocks, 1)]);
        (
            core(1, 1, 1),
            vec![Machine::new(both, 1), Machine::new(blocks(1), 1), Machine::new(units([(Domain::Slots, 1)]), 1)],
        )
    };
    let mixed = every_order(&two_domains);
    assert!(mixed > 10_000, "{mixed}");
    println!("{orders}, {more} and {mixed} orders");
}

#[test]
fn the_search_finds_a_wake_up_that_is_lost() {
    // A coordinator whose publications tell nobody: the search must notice, or it proves nothing.
    let deaf = || (core(9, 1, 1), vec![Machine::new(blocks(1), 1), Machine::new(blocks(1), 1)]);
    let found = std::panic::catch_unwind(|| {
        let (ledger, mut machines) = deaf();
        machines[0].step(&ledger);
        machines[1].step(&ledger);
        machines[1].step(&ledger);
        machines[1].step(&ledger);
        assert!(!machines[1].can_go(), "it is parked");
        // The release, whose wakers are thrown away unheard.
        let (_, woken) = ledger.shared().collect(|inner| inner.book.release(&blocks(1)));
        std::mem::forget(woken);
        assert!(machines[1].can_go(), "a wake-up was lost");
    });
    assert!(found.is_err());
}
