#![forbid(unsafe_code)]
//! The coordinator alone: claims, waits, growth, every order of steps, and random operations beside a plain model.

mod claims;
mod growth;

mod narrower;
mod order;
mod plain;

mod waits;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use super::*;

/// Units of some domains.
fn units<const N: usize>(of: [(Domain, u64); N]) -> Units {
    let mut units = NOTHING;
    for (domain, count) in of {
        units[domain.index()] = count;
    }
    units
}

/// A core with so many slots and pages, of which so many can be installed; everything else is without bound.
fn core(slots: u64, blocks: u64, most_blocks: u64) -> Ledger {
    let mut limits = Limits { block_bytes: 16, static_bytes: 100, ..Limits::default() };
    (limits.total[0], limits.max[0]) = (slots, slots);
    (limits.total[1], limits.max[1]) = (blocks, most_blocks);
    Ledger::new(limits)
}

fn blocks(count: u64) -> Units {
    units([(Domain::Blocks, count)])
}

fn claim(ledger: &Ledger, of: Units) -> Result<Receipt, Refusal> {
    ledger.claim(&Demand::of(of), Remedy::Wait)
}

fn blocked(answer: Result<impl std::fmt::Debug, Refusal>) -> Blocked {
    match answer {
        Err(Refusal::Blocked(blocked)) => blocked,
        other => panic!("not blocked: {other:?}"),
    }
}

fn lacks(blocked: &Blocked) -> Vec<(Domain, Lack, u64, u64)> {
    blocked.shortfalls().iter().map(|entry| (entry.domain, entry.lack, entry.need, entry.free)).collect()
}

/// A waker that counts.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Count {
    fn pair() -> (Arc<Self>, Waker) {
        let count = Arc::new(Self::default());
        (Arc::clone(&count), Waker::from(count))
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}
