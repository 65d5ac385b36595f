#![forbid(unsafe_code)]
//! Random operations, beside a model that nobody could get wrong: lists of who holds what, searched from the start each time.

use std::task::{Context, Poll};

use super::*;

/// Numbers from a key (SplitMix64).
struct Draws(u64);

impl Draws {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}

/// The domains that are drawn from, with what is installed and what can be.
const POOLS: [(Domain, u64, u64); 3] = [(Domain::Slots, 6, 6), (Domain::Blocks, 20, 30), (Domain::Workspace, 50, 80)];

/// What the rules say of the state.
#[derive(Default)]
struct Plain {
    held: Vec<Units>,
    measured: u64,
    evictable: u64,
    quarantined: Units,
    grown: Units,
    epochs: Units,
}

impl Plain {
    fn total(&self, domain: Domain) -> u64 {
        let installed = POOLS.iter().find(|pool| pool.0 == domain).map_or(0, |pool| pool.1);
        installed + self.grown[domain.index()] - self.quarantined[domain.index()]
    }

    fn max(&self, domain: Domain) -> u64 {
        POOLS.iter().find(|pool| pool.0 == domain).map_or(0, |pool| pool.2) - self.quarantined[domain.index()]
    }

    fn free(&self, domain: Domain) -> u64 {
        let held: u64 = self.held.iter().map(|units| units[domain.index()]).sum();
        let (measured, evictable) = if domain == Domain::Blocks { (self.measured, self.evictable) } else { (0, 0) };
        (self.total(domain) + evictable).saturating_sub(held + measured)
    }

    /// What is short of a claim and a fit, by the text of X-16.
    fn shortfalls(&self, claim: &Units, fit: &Units) -> Vec<(Domain, Lack)> {
        let mut found = Vec::new();
        for (domain, ..) in POOLS {
            let at = domain.index();
            let need = claim[at].max(fit[at]);
            let lack = if need > self.max(domain) {
                Some(Lack::Never)
            } else if need > self.total(domain) {
                Some(Lack::Growth)
            } else if claim[at] > self.free(domain) {
                Some(Lack::Now)
            } else if fit[at] > self.free(domain) {
                Some(Lack::Fit)
            } else {
                None
            };
            found.extend(lack.map(|lack| (domain, lack)));
        }
        if found.iter().any(|entry| entry.1 == Lack::Never) {
            found.retain(|entry| entry.1 == Lack::Never);
        }
        found
    }
}

fn draw_units(draws: &mut Draws, wide: bool) -> Units {
    let mut units = NOTHING;
    for (domain, total, max) in POOLS {
        if draws.next(3) > 0 {
            units[domain.index()] = draws.next(if wide { max + 3 } else { total / 3 + 1 });
        }
    }
    units
}

struct Sleeper {
    wait: Wait,
    ticket: Ticket,
    count: Arc<Count>,
}

fn check(ledger: &Ledger, plain: &Plain) {
    for (domain, ..) in POOLS {
        assert_eq!(
            (ledger.free(domain), ledger.total(domain)),
            (plain.free(domain), plain.total(domain)),
            "{domain:?}"
        );
        assert_eq!(ledger.capacity().now().seen(domain), plain.epochs[domain.index()] + 1, "{domain:?}");
    }
    ledger.capacity().memory().check().expect("in order");
    assert_eq!(ledger.capacity().accounting_faults(), 0);
}

/// Sleepers are awake exactly when a domain that they watch has moved since.
fn check_sleepers(ledger: &Ledger, sleepers: &mut Vec<Sleeper>) {
    let mut still = Vec::new();
    for mut sleeper in sleepers.drain(..) {
        let moved = ledger.capacity().changed(&sleeper.ticket).expect("of this core");
        assert_eq!(sleeper.count.get(), usize::from(moved), "woken once, and by what it watches");
        if !moved {
            still.push(sleeper);
            continue;
        }
        let waker = Waker::noop();
        let polled = std::pin::Pin::new(&mut sleeper.wait).poll(&mut Context::from_waker(waker));
        assert!(matches!(polled, Poll::Ready(Ok(_))));
    }
    *sleepers = still;
    assert_eq!(ledger.capacity().waiters(), sleepers.len());
}

fn start() -> Ledger {
    let mut limits = Limits { block_bytes: 8, static_bytes: 64, ..Limits::default() };
    for (domain, total, max) in POOLS {
        (limits.total[domain.index()], limits.max[domain.index()]) = (total, max);
    }
    Ledger::new(limits)
}

fn one_claim(ledger: &Ledger, plain: &mut Plain, sleepers: &mut Vec<Sleeper>, draws: &mut Draws) {
    let wide = draws.next(3) == 0;
    let (claim, fit) = (draw_units(draws, wide), draw_units(draws, wide));
    let expected = plain.shortfalls(&claim, &fit);
    match ledger.claim(&Demand::fitting(claim, fit), Remedy::Wait) {
        Ok(receipt) => {
            assert_eq!((expected, receipt.gained), (vec![], claim));
            plain.held.push(claim);
        }
        Err(refusal) => {
            let evidence = refusal.blocked().expect("something is short");
            let told: Vec<_> = evidence.shortfalls().iter().map(|entry| (entry.domain, entry.lack)).collect();
            assert_eq!(told, expected);
            assert_eq!(ledger.capacity().changed(&evidence.ticket), Ok(false));
            if evidence.ticket.watches() != 0 {
                let (count, waker) = Count::pair();
                let mut wait = ledger.capacity().wait(evidence.ticket).expect("of this core");
                assert!(std::pin::Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)).is_pending());
                sleepers.push(Sleeper { wait, ticket: evidence.ticket, count });
            }
        }
    }
}

/// Returns what one holder holds, or puts it into quarantine for a while.
fn one_return(ledger: &Ledger, plain: &mut Plain, draws: &mut Draws) {
    if plain.held.is_empty() {
        return;
    }
    let holder = draws.next(plain.held.len() as u64) as usize;
    let units = plain.held.swap_remove(holder);
    if draws.next(8) == 0 {
        ledger.quarantine(&units, &NOTHING).expect("claimed");
        (0..DOMAINS).for_each(|at| plain.quarantined[at] += units[at]);
        return;
    }
    assert_eq!(ledger.release(&units).expect("claimed").freed, units);
    (0..DOMAINS).for_each(|at| plain.epochs[at] += u64::from(units[at] > 0));
}

/// The pool says that it holds other pages than before; some of the claims became real.
fn one_settlement(ledger: &Ledger, plain: &mut Plain, draws: &mut Draws) {
    let before = plain.measured;
    let claimed: u64 = plain.held.iter().map(|units| units[1]).sum();
    let room = plain.total(Domain::Blocks).saturating_sub(claimed);
    let measured = draws.next(room + 1);
    let evictable = draws.next(measured + 1);
    let mut settlement = Settlement { evictable: Some(evictable), ..Settlement::default() };
    settlement.measured[1] = Some(measured);
    settlement.freed = if draws.next(4) == 0 { Domain::Flight.bit() | Domain::Slots.bit() } else { 0 };
    ledger.settle(&settlement).expect("told");
    plain.epochs[0] += u64::from(settlement.freed != 0);
    plain.epochs[1] += u64::from(measured < before || evictable > plain.evictable);
    (plain.measured, plain.evictable) = (measured, evictable);
}

fn one_growth(ledger: &Ledger, plain: &mut Plain, draws: &mut Draws) {
    let room = 30 - 20 - plain.grown[1];
    let gained = blocks(draws.next(room + 1));
    let evidence = Blocked::on(Remedy::Grow, &[], &ledger.capacity().now());
    let growing = ledger.take_bytes(gained[1] * 8, &evidence).expect("the account has no bound");
    if draws.next(2) == 0 {
        return drop(growing);
    }
    growing.publish(&gained).expect("below the maximum");
    plain.grown[1] += gained[1];
    plain.epochs[1] += u64::from(gained[1] > 0);
}

fn one_end_of_quarantine(ledger: &Ledger, plain: &mut Plain) {
    let units = plain.quarantined;
    ledger.lift_quarantine(&units).expect("in quarantine");
    (0..DOMAINS).for_each(|at| plain.epochs[at] += u64::from(units[at] > 0));
    plain.quarantined = NOTHING;
}

fn random_operations(key: u64) {
    let (mut draws, ledger, mut plain, mut sleepers) = (Draws(key), start(), Plain::default(), Vec::new());
    for _ in 0..400 {
        match draws.next(12) {
            0..=4 => one_claim(&ledger, &mut plain, &mut sleepers, &mut draws),
            5..=7 => one_return(&ledger, &mut plain, &mut draws),
            8 | 9 => one_settlement(&ledger, &mut plain, &mut draws),
            10 => one_growth(&ledger, &mut plain, &mut draws),
            _ => one_end_of_quarantine(&ledger, &mut plain),
        }
        check(&ledger, &plain);
        check_sleepers(&ledger, &mut sleepers);
    }
}

#[test]
fn coordinator_matches_a_plain_model_under_random_operations() {
    let keys: Vec<u64> = match std::env::var("ICTUS_RNG").ok().and_then(|key| key.parse().ok()) {
        Some(key) => vec![key],
        None => (0..300).collect(),
    };
    for key in keys {
        let outcome = std::panic::catch_unwind(|| random_operations(key));
        assert!(outcome.is_ok(), "ICTUS_RNG={key} replays it");
    }
}
