#![forbid(unsafe_code)]
//! What is claimed, refused, released and quarantined (X-15 .. ).

use super::*;

/// All that can be seen of a coordinator.
fn seen(ledger: &Ledger) -> (Ticket, Memory, Vec<u64>) {
    let capacity = ledger.capacity();
    (capacity.now(), capacity.memory(), Domain::ALL.iter().map(|&domain| ledger.used(domain)).collect())
}

/// evidence is data: it can be copied, and has no heap part that would be shared.
#[test]
fn x_7_evidence_is_plain_data() {
    fn plain<T: Copy + Send + Sync + 'static>() -> bool {
        !std::mem::needs_drop::<T>()
    }
    assert!(plain::<Refusal>() && plain::<Blocked>() && plain::<Ticket>() && plain::<Receipt>());
}

///
#[test]
fn xs_4_the_impossible_alone_is_listed() {
    let ledger = core(2, 10, 10);
    claim(&ledger, units([(Domain::Slots, 2)])).expect("free");
    let before = seen(&ledger);
    for _ in 0..2 {
        let refusal = claim(&ledger, units([(Domain::Slots, 1), (Domain::Blocks, 11)])).expect_err("too much");
        let Refusal::Never(evidence) = refusal else { panic!("{refusal:?}") };
        assert_eq!(lacks(&evidence), [(Domain::Blocks, Lack::Never, 11, 10)]);
        assert_eq!(evidence.ticket.watches(), 0, "waiting never helps");
        assert_eq!(ledger.capacity().wait(evidence.ticket).err(), Some(Bad::Policy.into()), "X-25");
    }
    assert_eq!(seen(&ledger), before);
}

///
#[test]
fn xs_7_remedies_follow_from_what_is_installed() {
    let ledger = core(4, 10, 20);
    let grow = blocked(claim(&ledger, blocks(11)));
    assert_eq!((grow.remedy, lacks(&grow)), (Remedy::Grow, vec![(Domain::Blocks, Lack::Growth, 11, 10)]));
    assert!(matches!(claim(&ledger, blocks(21)), Err(Refusal::Never(_))));
    claim(&ledger, blocks(6)).expect("free");
    let wait = blocked(claim(&ledger, blocks(5)));
    assert_eq!((wait.remedy, lacks(&wait)), (Remedy::Wait, vec![(Domain::Blocks, Lack::Now, 5, 4)]));
    let victim = blocked(ledger.claim(&Demand::of(blocks(5)), Remedy::Recompute));
    assert_eq!(victim.remedy, Remedy::Recompute, "X-17: the host asked for a victim");
    for pressure in [Remedy::Grow, Remedy::Quiesce] {
        assert_eq!(ledger.claim(&Demand::of(blocks(1)), pressure).err(), Some(Bad::Policy.into()));
    }
}

///
#[test]
fn xs_5_xs_6_a_refusal_takes_nothing_of_the_domains_that_had_enough() {
    let ledger = core(2, 4, 4);
    claim(&ledger, units([(Domain::Slots, 1), (Domain::Blocks, 3)])).expect("free");
    let short = blocked(claim(&ledger, units([(Domain::Slots, 1), (Domain::Blocks, 2)])));
    assert_eq!(lacks(&short), [(Domain::Blocks, Lack::Now, 2, 1)]);
    assert_eq!(short.ticket.watches(), Domain::Blocks.bit());
    claim(&ledger, units([(Domain::Slots, 1), (Domain::Blocks, 1)])).expect("the slot is still free");
    let full = blocked(claim(&ledger, units([(Domain::Slots, 1)])));
    assert_eq!(full.ticket.watches(), Domain::Slots.bit());
    ledger.release(&blocks(4)).expect("claimed");
    assert_eq!(ledger.capacity().changed(&full.ticket), Ok(false), "pages are no slot");
    ledger.release(&units([(Domain::Slots, 1)])).expect("claimed");
    assert_eq!(ledger.capacity().changed(&full.ticket), Ok(true));
}

/// claim and fit.
#[test]
fn xs_8_what_has_to_fit_is_not_taken() {
    let ledger = core(4, 5, 10);
    let demand = Demand::fitting(blocks(1), blocks(9));
    // More than is installed: growth, and the stronger of the two is told.
    assert_eq!(lacks(&blocked(ledger.claim(&demand, Remedy::Wait))), [(Domain::Blocks, Lack::Growth, 9, 5)]);
    let ledger = core(4, 10, 10);
    claim(&ledger, blocks(5)).expect("free");
    let short = blocked(ledger.claim(&demand, Remedy::Wait));
    assert_eq!(lacks(&short), [(Domain::Blocks, Lack::Fit, 9, 5)]);
    assert_eq!(ledger.used(Domain::Blocks), 5, "nothing was taken");
    let receipt = ledger.claim(&Demand::of(blocks(1)), Remedy::Wait).expect("one is free");
    assert_eq!(receipt.gained, blocks(1));
    // Two fits may pass one after the other.
    let ledger = core(4, 10, 10);
    let demand = Demand::fitting(blocks(1), blocks(8));
    ledger.claim(&demand, Remedy::Wait).expect("ten are free");
    ledger.claim(&demand, Remedy::Wait).expect("nine are free");
    assert_eq!(ledger.used(Domain::Blocks), 2);
}

/// free count and take are one hold of the lock.
#[test]
fn xs_10_as_many_claims_pass_as_there_are_units() {
    let ledger = core(7, 100, 100);
    let barrier = std::sync::Barrier::new(28);
    let passed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..28 {
            scope.spawn(|| {
                barrier.wait();
                match claim(&ledger, units([(Domain::Slots, 1), (Domain::Blocks, 2)])) {
                    Ok(_) => drop(passed.fetch_add(1, Ordering::SeqCst)),
                    Err(refusal) => assert_eq!(lacks(&blocked(Err::<(), _>(refusal)))[0].0, Domain::Slots),
                }
            });
        }
    });
    assert_eq!(passed.into_inner(), 7);
    assert_eq!((ledger.used(Domain::Slots), ledger.used(Domain::Blocks)), (7, 14));
}

///
#[test]
fn xs_34_a_refused_batch_says_how_many_items_would_have_fitted() {
    let ledger = core(8, 6, 100);
    claim(&ledger, blocks(2)).expect("free");
    let step = units([(Domain::Workspace, 1000)]);
    let items = [blocks(1); 6];
    let short = blocked(ledger.claim_batch(&step, &items, Remedy::Wait));
    assert_eq!((short.fits, lacks(&short)), (4, vec![(Domain::Blocks, Lack::Now, 6, 4)]));
    assert_eq!((ledger.used(Domain::Workspace), ledger.used(Domain::Blocks)), (0, 2), "nothing was taken");
    let receipt = ledger.claim_batch(&step, &items[..4], Remedy::Wait).expect("as it said");
    assert_eq!(receipt.gained, units([(Domain::Workspace, 1000), (Domain::Blocks, 4)]));
    let none = blocked(ledger.claim_batch(&step, &items[..1], Remedy::Wait));
    assert_eq!(none.fits, 0);
}

///
#[test]
fn flight_alone_asks_for_quiet_and_is_no_pressure() {
    let mut limits = Limits::default();
    (limits.total[6], limits.max[6], limits.total[1], limits.max[1]) = (1, 1, 4, 4);
    let ledger = Ledger::new(limits);
    let run = units([(Domain::Flight, 1), (Domain::Blocks, 1)]);
    claim(&ledger, run).expect("free");
    let second = blocked(claim(&ledger, run));
    assert_eq!((second.remedy, lacks(&second)), (Remedy::Quiesce, vec![(Domain::Flight, Lack::Now, 1, 0)]));
    claim(&ledger, blocks(3)).expect("free");
    assert_eq!(blocked(claim(&ledger, run)).remedy, Remedy::Wait, "pages are short too");
}

/// what is given back first, and what is cached.
#[test]
fn what_an_operation_gives_back_first_is_not_taken_twice() {
    let ledger = core(8, 10, 10);
    ledger.settle(&Settlement { measured: measured(9), evictable: Some(3), ..Settlement::default() }).expect("told");
    assert_eq!(ledger.free(Domain::Blocks), 4);
    let firm = Demand { claim: blocks(6), returns: blocks(5), firm: true, ..Demand::default() };
    let receipt = ledger.claim(&firm, Remedy::Wait).expect("one is free, five come back");
    assert_eq!((receipt.gained, ledger.claimed(Domain::Blocks)), (blocks(1), 1));
    let short = blocked(ledger.claim(&firm, Remedy::Wait));
    assert_eq!(lacks(&short), [(Domain::Blocks, Lack::Now, 6, 5)], "cached pages do not count where the claim is firm");
    // At the end the pool says what it has, and the claim is returned: what it holds now is measured.
    ledger.settle(&Settlement { measured: measured(10), back: blocks(1), ..Settlement::default() }).expect("told");
    assert_eq!((ledger.used(Domain::Blocks), ledger.claimed(Domain::Blocks)), (10, 0));
}

/// what was claimed as an upper bound and not needed is no news, but for who was refused because of it.
#[test]
fn x_22_bounds_that_were_not_reached_wake_only_who_was_refused() {
    let ledger = core(8, 10, 10);
    let bound = Demand { provisional: true, ..Demand::of(blocks(6)) };
    let end = Settlement { measured: measured(2), back: blocks(6), ..Settlement::default() };
    let before = ledger.ticket(Domain::Blocks.bit());
    ledger.claim(&bound, Remedy::Wait).expect("free");
    ledger.settle(&end).expect("told");
    assert_eq!(ledger.capacity().changed(&before), Ok(false));
    ledger.claim(&bound, Remedy::Wait).expect("free");
    let refused = blocked(claim(&ledger, blocks(5)));
    ledger.settle(&end).expect("told");
    assert_eq!(ledger.capacity().changed(&refused.ticket), Ok(true), "it would fit now");
    // Once: who was refused before the next bound was taken is not woken by it again.
    claim(&ledger, blocks(8)).expect("free");
    let parked = blocked(claim(&ledger, blocks(1)));
    ledger.claim(&Demand { returns: blocks(1), ..bound }, Remedy::Wait).expect_err("full");
    ledger.release(&blocks(8)).expect("claimed");
    assert_eq!(ledger.capacity().changed(&parked.ticket), Ok(true));
    let parked = ledger.ticket(Domain::Blocks.bit());
    ledger.claim(&bound, Remedy::Wait).expect("free");
    ledger.settle(&end).expect("told");
    assert_eq!(ledger.capacity().changed(&parked), Ok(false));
}

/// So many pages are in use, says the pool.
fn measured(count: u64) -> [Option<u64>; DOMAINS] {
    let mut measured = [None; DOMAINS];
    measured[Domain::Blocks.index()] = Some(count);
    measured
}

///
#[test]
fn epochs_move_by_one_for_what_comes_free_and_for_nothing_else() {
    let ledger = core(8, 10, 10);
    let epoch = |domain| ledger.capacity().now().seen(domain);
    let settle = |count, evictable, freed| {
        let settlement =
            Settlement { measured: measured(count), evictable: Some(evictable), freed, ..Settlement::default() };
        ledger.settle(&settlement).expect("told")
    };
    assert_eq!((epoch(Domain::Blocks), epoch(Domain::Flight)), (1, 1), "X-21: they start at 1");
    claim(&ledger, blocks(2)).expect("free");
    settle(3, 0, 0);
    assert_eq!(epoch(Domain::Blocks), 1, "claims and growth of what is used free nothing");
    settle(1, 0, Domain::Flight.bit());
    assert_eq!((epoch(Domain::Blocks), epoch(Domain::Flight)), (2, 2), "two pages at once are one step");
    settle(5, 0, Domain::Blocks.bit());
    assert_eq!(epoch(Domain::Blocks), 3, "something was freed in between, although more is used");
    settle(5, 1, 0);
    assert_eq!(epoch(Domain::Blocks), 4, "a cached page may go now");
    settle(5, 0, 0);
    assert_eq!(epoch(Domain::Blocks), 4, "a cached page is pinned");
    let receipt = ledger.free_measured(&blocks(2)).expect("measured");
    assert_eq!((receipt.freed, epoch(Domain::Blocks), ledger.used(Domain::Blocks)), (blocks(2), 5, 5));
    let receipt = ledger.retire(&blocks(1), &blocks(2)).expect("claimed and measured");
    assert_eq!(
        (receipt.freed, epoch(Domain::Blocks), ledger.used(Domain::Blocks)),
        (blocks(3), 6, 2),
        "one step for both"
    );
    let released = ledger.capacity().now().released();
    ledger.release(&NOTHING).expect("nothing");
    assert_eq!((epoch(Domain::Blocks), ledger.capacity().now().released()), (6, released));
}

///
#[test]
fn xs_60_quarantine_lowers_what_can_ever_be_there() {
    let ledger = core(8, 10, 10);
    claim(&ledger, blocks(4)).expect("free");
    let before = ledger.capacity().now();
    ledger.quarantine(&blocks(3), &NOTHING).expect("claimed");
    assert_eq!(ledger.quarantine(&blocks(2), &NOTHING).err(), Some(Bad::Bounds.into()), "so many are not claimed");
    let now = ledger.capacity().now();
    assert_eq!(now, before, "nothing came free");
    let memory = ledger.capacity().memory();
    assert_eq!((memory.quarantined, memory.blocks_total, memory.blocks_free), (48, 7, 6));
    memory.check().expect("in order");
    assert!(matches!(claim(&ledger, blocks(8)), Err(Refusal::Never(_))), "X-20: not an endless wait");
    assert_eq!(lacks(&blocked(claim(&ledger, blocks(7)))), [(Domain::Blocks, Lack::Now, 7, 6)]);
    ledger.lift_quarantine(&blocks(3)).expect("in quarantine");
    assert_eq!(ledger.capacity().changed(&before), Ok(true));
    assert_eq!(ledger.lift_quarantine(&blocks(1)).err(), Some(Bad::Bounds.into()));
    ledger.settle(&Settlement { measured: measured(4), ..Settlement::default() }).expect("told");
    ledger.quarantine(&NOTHING, &blocks(4)).expect("measured");
    assert_eq!((ledger.total(Domain::Blocks), ledger.used(Domain::Blocks)), (6, 1));
    ledger.lift_quarantine(&blocks(4)).expect("in quarantine");
    claim(&ledger, blocks(9)).expect("all are back");
}

///
#[test]
fn doubt_frees_nothing_and_is_counted() {
    let ledger = core(8, 10, 10);
    claim(&ledger, blocks(3)).expect("free");
    let given_back = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ledger.release(&blocks(5))));
    assert_eq!(given_back.is_err(), cfg!(debug_assertions), "X-28: debug builds assert");
    assert_eq!(ledger.capacity().accounting_faults(), 1);
    // The lock was free by then: nothing is poisoned, and the three are out of circulation.
    assert_eq!(ledger.total(Domain::Blocks), 7);
    claim(&ledger, blocks(7)).expect("the others are there");
    blocked(claim(&ledger, blocks(1)));
}

///
#[test]
fn counters_that_are_at_their_end_refuse_before_anything_changes() {
    let ledger = core(8, u64::MAX - 1, u64::MAX - 1);
    claim(&ledger, blocks(5)).expect("free");
    ledger
        .shared()
        .with(|inner| {
            inner.book.epochs[Domain::Blocks.index()] = u64::MAX;
            Ok(())
        })
        .expect("not poisoned");
    let before = seen(&ledger);
    for _ in 0..2 {
        assert_eq!(ledger.release(&blocks(1)).err(), Some(Bad::Exhausted.into()));
        assert_eq!(ledger.free_measured(&blocks(1)).err(), Some(Bad::Exhausted.into()));
        let settlement = Settlement { measured: measured(0), ..Settlement::default() };
        assert_eq!(ledger.settle(&settlement).err(), Some(Bad::Exhausted.into()));
    }
    assert_eq!(seen(&ledger), before);
    claim(&ledger, units([(Domain::Workspace, u64::MAX)])).expect("without bound");
    let more = claim(&ledger, units([(Domain::Workspace, 1)]));
    assert!(more.is_err(), "{more:?}");
}

///
#[test]
fn xs_57_each_inequality_is_checked() {
    // The example of the rule: 24 / 22 / 17 / 15 / 8 / 6 / 2 / - / 1.
    let whole = Memory {
        capacity: 24,
        usable: 22,
        device_claimed: 17,
        own_claimed: 15,
        static_bytes: 8,
        resident: 6,
        resident_free: 2,
        growing: 99,
        quarantined: 1,
        block_size: 1,
        blocks_total: 6,
        blocks_free: 2,
        blocks_evictable: 4,
    };
    whole.check().expect("in order");
    assert_eq!((whole.available(), whole.used(), whole.in_use()), (7, 15, 4));
    let broken: [fn(&mut Memory); 8] = [
        |memory| memory.usable = 25,
        |memory| memory.device_claimed = 23,
        |memory| memory.own_claimed = 18,
        |memory| memory.resident_free = 7,
        |memory| memory.static_bytes = 9,
        |memory| memory.static_bytes = u64::MAX,
        |memory| memory.blocks_evictable = 5,
        |memory| memory.blocks_free = u64::MAX,
    ];
    for (number, breaks) in broken.into_iter().enumerate() {
        let mut memory = whole;
        breaks(&mut memory);
        assert_eq!(memory.check().err(), Some(Bad::Bounds.into()), "number {number}");
    }
}
