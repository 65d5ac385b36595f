#![forbid(unsafe_code)]
//! Growth, the device account, and the proof to retry (X-29 .. X-35).

use super::*;

/// A core of an account: ten pages of 10 bytes installed, twenty at most, 50 bytes static, so many bytes in its budget.
fn member(account: &DeviceAccount, budget: u64, ceiling: u64) -> Result<Ledger, Refusal> {
    let mut limits = Limits { block_bytes: 10, static_bytes: 50, ..Limits::default() };
    (limits.total[1], limits.max[1]) = (10, 40);
    (limits.total[2], limits.max[2]) = (0, 1000);
    limits.max[4] = budget;
    Ledger::with_account(limits, account, ceiling)
}

fn epochs(ledger: &Ledger) -> Vec<u64> {
    let now = ledger.capacity().now();
    Domain::ALL.iter().map(|&domain| now.seen(domain)).collect()
}

///
#[test]
fn xs_41_all_totals_of_one_growth_are_published_together() {
    let account = DeviceAccount::new(1000);
    let ledger = member(&account, 1000, u64::MAX).expect("room");
    let need = units([(Domain::Blocks, 12), (Domain::Workspace, 30)]);
    let evidence = blocked(claim(&ledger, need));
    assert_eq!(evidence.remedy, Remedy::Grow);
    let missing = ledger.missing(&evidence).expect("of this core");
    assert_eq!(missing, units([(Domain::Blocks, 2), (Domain::Workspace, 30)]));
    let (count, waker) = Count::pair();
    let mut wait = ledger.capacity().wait(evidence.ticket).expect("of this core");
    assert!(std::pin::Pin::new(&mut wait).poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    let before = (epochs(&ledger), ledger.capacity().now().resized());
    let growing = ledger.take_bytes(50, &evidence).expect("room");
    assert_eq!(ledger.capacity().memory().growing, 50);
    assert_eq!((epochs(&ledger), count.get()), (before.0.clone(), 0), "nothing is published yet");
    let receipt = growing.publish(&missing).expect("below the maximum");
    assert_eq!((receipt.gained, receipt.at.resized()), (missing, before.1 + 1));
    let mut after = before.0;
    after[1] += 1;
    after[2] += 1;
    assert_eq!((epochs(&ledger), count.get()), (after, 1));
    let memory = ledger.capacity().memory();
    assert_eq!((memory.growing, memory.own_claimed, account.claimed()), (0, 200, 200));
    memory.check().expect("in order");
    claim(&ledger, need).expect("it is there");
}

///
#[test]
fn xs_42_growth_that_fails_leaves_no_trace() {
    let account = DeviceAccount::new(1000);
    let ledger = member(&account, 1000, u64::MAX).expect("room");
    let evidence = blocked(claim(&ledger, blocks(12)));
    let before = (ledger.capacity().now(), ledger.capacity().memory());
    // The allocation fails: the bytes are dropped.
    let growing = ledger.take_bytes(20, &evidence).expect("room");
    assert_eq!(account.claimed(), 170);
    drop(growing);
    assert_eq!((ledger.capacity().now(), ledger.capacity().memory()), before);
    // More than can be installed cannot be published.
    let growing = ledger.take_bytes(20, &evidence).expect("room");
    assert_eq!(growing.publish(&blocks(31)).err(), Some(Bad::Bounds.into()));
    assert_eq!((ledger.capacity().now(), ledger.capacity().memory(), account.claimed()), (before.0, before.1, 150));
    // What cannot be proven unused stays claimed, and is seen.
    ledger.take_bytes(20, &evidence).expect("room").quarantine();
    let memory = ledger.capacity().memory();
    assert_eq!((memory.quarantined, memory.own_claimed, memory.growing, account.claimed()), (20, 170, 0, 170));
    memory.check().expect("in order");
    assert_eq!(ledger.capacity().now(), before.0);
}

///
#[test]
fn xs_42_who_was_refused_bytes_that_come_back_unused_hears_of_it() {
    let account = DeviceAccount::new(320);
    let (ledger, other) =
        (member(&account, 160, u64::MAX).expect("room"), member(&account, 1000, u64::MAX).expect("room"));
    let evidence = blocked(claim(&ledger, blocks(12)));
    let growing = ledger.take_bytes(10, &evidence).expect("room");
    // Of the own budget, and of the device.
    let budget = blocked(ledger.take_bytes(10, &evidence));
    let theirs = blocked(claim(&other, blocks(12)));
    let device = blocked(other.take_bytes(20, &theirs));
    assert_eq!((budget.of(Domain::Budget).is_some(), device.of(Domain::Device).is_some()), (true, true));
    drop(growing);
    assert_eq!(ledger.capacity().changed(&budget.ticket), Ok(true), "else it would wait for ever");
    assert_eq!(other.capacity().changed(&device.ticket), Ok(true));
    drop(other.take_bytes(20, &theirs).expect("as the news said"));
}

///
#[test]
fn xs_43_what_somebody_else_grew_is_not_grown_again() {
    let account = DeviceAccount::new(1000);
    let ledger = member(&account, 1000, u64::MAX).expect("room");
    let evidence = blocked(claim(&ledger, blocks(12)));
    let missing = ledger.missing(&evidence).expect("of this core");
    ledger.take_bytes(20, &evidence).expect("room").publish(&missing).expect("below the maximum");
    assert_eq!(ledger.missing(&evidence), Ok(NOTHING));
    // Nothing is missing of what is not listed as growth, nor of foreign evidence.
    claim(&ledger, blocks(12)).expect("it is there");
    let wait = blocked(claim(&ledger, blocks(1)));
    assert_eq!(ledger.missing(&wait).err(), Some(Bad::Policy.into()));
    let other = member(&account, 1000, u64::MAX).expect("room");
    assert_eq!(other.missing(&evidence).err(), Some(Bad::Foreign.into()));
}

///
#[test]
fn xs_44_the_ticket_watches_the_one_that_has_no_bytes() {
    let account = DeviceAccount::new(400);
    let first = member(&account, 155, u64::MAX).expect("room");
    let second = member(&account, 400, u64::MAX).expect("room");
    let third = member(&account, 400, u64::MAX);
    assert_eq!(third.err(), Some(Bad::Bounds.into()), "the account has only 100 left");
    // The own remainder is 5, that of the account 100.
    let evidence = blocked(claim(&first, blocks(11)));
    let own = blocked(first.take_bytes(10, &evidence));
    assert_eq!(own.remedy, Remedy::Wait);
    assert_eq!(own.ticket.watches(), Domain::Blocks.bit() | Domain::Budget.bit());
    assert_eq!(lacks(&own)[1], (Domain::Budget, Lack::Now, 10, 5));
    // The own remainder is 250.
    let evidence = blocked(claim(&second, blocks(21)));
    let shared = blocked(second.take_bytes(110, &evidence));
    assert_eq!(shared.ticket.watches(), Domain::Blocks.bit() | Domain::Device.bit());
    assert_eq!(lacks(&shared)[1], (Domain::Device, Lack::Now, 110, 100));
    assert!(matches!(first.take_bytes(156, &blocked(claim(&first, blocks(11)))), Err(Refusal::Never(_))));
    assert_eq!(account.claimed(), 300, "refusals took nothing");

    // A core that returns bytes moves its own budget, and the device of all.
    let mut limits = Limits { block_bytes: 10, ..Limits::default() };
    (limits.total[1], limits.max[1]) = (5, 40);
    let giver = Ledger::with_account(limits, &account, u64::MAX).expect("room");
    let receipt = giver.uninstall(&blocks(1), 10).expect("free");
    assert_eq!(receipt.freed, units([(Domain::Budget, 10), (Domain::Device, 10)]));
    assert_eq!(giver.uninstall(&blocks(5), 10).err(), Some(Bad::Bounds.into()), "four are left");
    assert_eq!(first.capacity().changed(&own.ticket), Ok(false), "another core's bytes are not of this budget");
    assert_eq!(second.capacity().changed(&shared.ticket), Ok(true));
    assert_eq!(giver.total(Domain::Blocks), 4);
}

///
#[test]
fn xs_46_a_core_that_raises_the_ceiling_by_leaving_moves_the_device_alone() {
    let account = DeviceAccount::new(1000);
    let waiter = member(&account, 1000, u64::MAX).expect("room");
    let mut small = Limits::default();
    small.total[1] = 0;
    let smallest = Ledger::with_account(small, &account, 200).expect("150 are claimed");
    assert_eq!(account.usable(), 200);
    assert_eq!(Ledger::with_account(small, &account, 149).err(), Some(Bad::Bounds.into()), "below live claims");
    let evidence = blocked(claim(&waiter, blocks(20)));
    let device = blocked(waiter.take_bytes(100, &evidence));
    assert_eq!(device.of(Domain::Device).map(|entry| (entry.free, entry.total)), Some((50, 200)));
    let budget = waiter.ticket(Domain::Budget.bit());
    drop(smallest);
    assert_eq!((waiter.capacity().changed(&device.ticket), waiter.capacity().changed(&budget)), (Ok(true), Ok(false)));
    waiter.take_bytes(100, &evidence).expect("room").publish(&blocks(10)).expect("below the maximum");
    // One that was no obstacle moves nothing when it leaves.
    let harmless = Ledger::with_account(small, &account, u64::MAX).expect("room");
    let device = waiter.ticket(Domain::Device.bit());
    drop(harmless);
    assert_eq!(waiter.capacity().changed(&device), Ok(false));
}

///
#[test]
fn xs_47_growth_of_other_domains_proves_nothing() {
    // The proof is the publication that raised a domain listed as growth: its number is in the receipt, and only then is it written
    // into the evidence of who grew it.
    let account = DeviceAccount::new(1000);
    let ledger = member(&account, 1000, u64::MAX).expect("room");
    let evidence = blocked(claim(&ledger, blocks(30)));
    assert_eq!(evidence.grew, 0);
    let other = blocked(claim(&ledger, units([(Domain::Workspace, 5)])));
    ledger.take_bytes(5, &other).expect("room").publish(&units([(Domain::Workspace, 5)])).expect("published");
    assert_eq!(ledger.capacity().changed(&evidence.ticket), Ok(false), "it watches pages");
    assert_eq!(blocked(claim(&ledger, blocks(30))).grew, 0);
    let growing = ledger.take_bytes(50, &evidence).expect("room");
    let receipt = growing.publish(&blocks(5)).expect("published");
    assert_eq!((receipt.at.resized(), ledger.capacity().changed(&evidence.ticket)), (2, Ok(true)));
    assert_eq!(lacks(&blocked(claim(&ledger, blocks(30)))), [(Domain::Blocks, Lack::Growth, 30, 15)]);
}

#[test]
fn accounts_of_a_core_alone_are_as_large_as_its_budget() {
    let ledger = core(2, 10, 10);
    let memory = ledger.capacity().memory();
    assert_eq!((memory.static_bytes, memory.resident, memory.resident_free, memory.own_claimed), (100, 160, 160, 260));
    memory.check().expect("in order");
    claim(&ledger, blocks(4)).expect("free");
    let memory = ledger.capacity().memory();
    assert_eq!((memory.in_use(), memory.blocks_free), (64, 6));
    let unbounded = Ledger::new(Limits { block_bytes: 16, static_bytes: 100, ..Limits::default() });
    claim(&unbounded, blocks(3)).expect("free");
    let memory = unbounded.capacity().memory();
    assert_eq!((memory.resident, memory.resident_free, memory.own_claimed), (48, 0, 148));
    memory.check().expect("in order");
    let mut limits = Limits { block_bytes: 16, ..Limits::default() };
    (limits.total[1], limits.max[1], limits.max[4]) = (10, 10, 3);
    Ledger::new(limits).capacity().memory().check().expect("what is installed is in the budget");
}
