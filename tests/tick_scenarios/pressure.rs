//! The tick engine and the one coordinator: why a plan lacked room, what wakes a host that waits for it, and what it is told of
//! (X-21 .. .. X-71).

use std::time::Duration;

use ictus::capacity::{Bad, Blocked, Demand, Domain, Lack, Ledger, NOTHING, Remedy, Ticket, Units};
use ictus::engine::Engine;
use ictus::record::Status;
use ictus::record::constant::shed_kind;

use super::cached::{lease, pool, publish};
use super::host::*;

fn small_pool(cells: u64, slots: u32) -> Fake {
    fake(|options| {
        pool(0, 0)(options);
        options.descriptor.cells_total = cells;
        options.descriptor.max_seqs = slots;
    })
}

fn evidence(h: &Fake) -> Blocked {
    *h.engine.last_blocked().expect("a plan was refused for want of room")
}

fn lacks(blocked: &Blocked) -> Vec<(Domain, Lack, u64, u64, u64)> {
    let entries = blocked.shortfalls().iter();
    entries.map(|entry| (entry.domain, entry.lack, entry.need, entry.free, entry.total)).collect()
}

fn moved(h: &Fake, ticket: &Ticket) -> bool {
    h.engine.capacity().expect("counted here").changed(ticket).expect("of this core")
}

fn blocks(count: u64) -> Units {
    let mut units = NOTHING;
    units[Domain::Blocks.index()] = count;
    units
}

/// The books say what the runtime and the executor say.
fn same_books(h: &Fake) {
    use ictus::runtime::Runtime;
    let memory = h.engine.capacity().expect("counted here").memory();
    let counters = h.engine.primitives().mem_counters();
    assert_eq!(memory.in_use(), counters.allocated_bytes, "what is allocated");
    assert_eq!(h.engine.ledger().used(Domain::Slots), h.engine.live_sequences() as u64);
    assert!(memory.blocks_evictable <= h.engine.cache_bytes());
    memory.check().expect("in order");
}

/// what a plan lacks is told as the coordinator tells it, and the plan's number is not used up.
#[test]
fn x_70_a_plan_without_room_leaves_its_evidence() {
    let mut h = small_pool(100, 2);
    admit_whole(&mut h, 1, &span(0, 80), plain);
    assert!(h.engine.last_blocked().is_none());
    let staged = h.prompt(&span(0, 50));
    assert_eq!(no(&mut h, |plan| plan.admit(2, staged).prefill(2, 0, 50)), Status::NeedsReplan);
    let blocked = evidence(&h);
    // 79 cells are held: one input is pending.
    assert_eq!((blocked.remedy, lacks(&blocked)), (Remedy::Wait, vec![(Domain::Blocks, Lack::Now, 50, 21, 100)]));
    assert_eq!(blocked.ticket.watches(), Domain::Blocks.bit());
    assert!(!moved(&h, &blocked.ticket));
    // A plan that another rule refuses leaves it; one that is accepted takes it away.
    assert_eq!(no(&mut h, |plan| plan.decode(77, 1)), Status::RejectUnknownLane);
    assert_eq!(evidence(&h), blocked);
    ok(&mut h, |plan| plan.decode(1, 1));
    assert!(h.engine.last_blocked().is_none());
    // Slots, alone and with pages; what a lane that leaves gives back counts.
    admit_whole(&mut h, 2, &[1, 2], plain);
    let (staged, other) = (h.prompt(&span(0, 60)), h.prompt(&[3]));
    assert_eq!(no(&mut h, |plan| plan.admit(3, other)), Status::NeedsReplan);
    assert_eq!(lacks(&evidence(&h)), [(Domain::Slots, Lack::Now, 1, 0, 2)]);
    let plan =
        |plan: ictus::engine::PlanBuilder| plan.retire(2, false).admit(3, staged).prefill(3, 0, 60).admit(4, other);
    assert_eq!(no(&mut h, plan), Status::NeedsReplan);
    assert_eq!(lacks(&evidence(&h)), [(Domain::Slots, Lack::Now, 2, 1, 2), (Domain::Blocks, Lack::Now, 60, 20, 100)]);
    // More than there is: waiting never helps, and a wait for it is refused.
    let staged = h.prompt(&span(0, 101));
    assert_eq!(no(&mut h, |plan| plan.retire(2, false).admit(3, staged).prefill(3, 0, 101)), Status::NeedsReplan);
    let never = evidence(&h);
    assert_eq!((lacks(&never)[0].1, never.ticket.watches()), (Lack::Never, 0));
    assert_eq!(h.engine.capacity().expect("here").wait(never.ticket).err(), Some(Bad::Policy.into()));
    same_books(&h);
}

/// a plan whose own policy keeps the room from it says so, and watches what evictions give back.
#[test]
fn x_70_what_the_policy_protects_does_not_count_as_free() {
    let mut h = small_pool(100, 0);
    publish(&mut h, &span(0, 64));
    let staged = h.prompt(&span(100, 190));
    let status = no(&mut h, |plan| plan.evict_envelope(u64::MAX, 0).admit(1, staged).prefill(1, 0, 90));
    assert_eq!(status, Status::NeedsReplan);
    let blocked = evidence(&h);
    assert_eq!(lacks(&blocked), [(Domain::Blocks, Lack::Now, 90, 36, 100)]);
    assert_eq!(h.engine.capacity().expect("here").memory().blocks_evictable, 64);
    h.engine.cache_evict(u64::MAX, 0, u64::MAX, u64::MAX).expect("it evicts");
    assert!(moved(&h, &blocked.ticket), "the entry has left");
    ok(&mut h, |plan| plan.admit(1, staged).prefill(1, 0, 90));
    same_books(&h);
}

/// XS-61: a tick that evicts, or retires, wakes who waits for pages, once.
#[test]
fn xs_61_an_eviction_in_a_tick_wakes_a_waiter_once() {
    let mut h = small_pool(100, 0);
    publish(&mut h, &span(0, 64));
    // Somebody else of the core needs all pages that are free, and those of the cache too.
    let ledger = h.engine.ledger().clone();
    let refusal =
        ledger.claim(&Demand { firm: true, ..Demand::of(blocks(90)) }, Remedy::Wait).expect_err("64 are cached");
    let ticket = refusal.blocked().expect("pages are short").ticket;
    let before = ticket.seen(Domain::Blocks);
    let staged = h.prompt(&span(100, 140));
    ok(&mut h, |plan| plan.admit(1, staged).prefill(1, 0, 40));
    let waiting = ledger.capacity().changed(&ticket).expect("of this core");
    assert!(waiting, "an entry left for the lane");
    assert_eq!(ledger.ticket(Domain::Blocks.bit()).seen(Domain::Blocks), before + 1, "one step for one tick");
    // A lane that leaves wakes; ticks that only decode do not.
    let parked = ledger.ticket(Domain::Blocks.bit());
    ok(&mut h, |plan| plan.decode(1, 1));
    ok(&mut h, |plan| plan.decode(1, 3));
    assert!(!moved(&h, &parked), "X-22");
    ok(&mut h, |plan| plan.retire(1, false));
    assert!(moved(&h, &parked));
    same_books(&h);
}

/// XS-61 with growth in the same tick: what was given back is told although more was taken.
#[test]
fn xs_61_a_tick_that_takes_more_than_it_gives_still_tells() {
    let mut h = small_pool(100, 0);
    admit_whole(&mut h, 1, &span(0, 10), plain);
    let parked = h.engine.ledger().ticket(Domain::Blocks.bit() | Domain::Slots.bit());
    let staged = h.prompt(&span(0, 60));
    ok(&mut h, |plan| plan.retire(1, false).admit(2, staged).prefill(2, 0, 60));
    let now = h.engine.ledger().ticket(Domain::Blocks.bit());
    for domain in [Domain::Blocks, Domain::Slots] {
        assert_eq!(now.seen(domain), parked.seen(domain) + 1, "{domain:?}");
    }
}

/// XS-62: what another part of the core holds keeps a plan out; when it lets go, the plan's own ticket wakes, and the same plan with the
/// same number is accepted.
#[test]
fn xs_62_a_plan_waits_for_what_another_holds() {
    let mut h = small_pool(100, 0);
    let ledger: Ledger = h.engine.ledger().clone();
    ledger.claim(&Demand::of(blocks(70)), Remedy::Wait).expect("all are free");
    let staged = h.prompt(&span(0, 40));
    let (plan, memory) = h.plan().admit(1, staged).prefill(1, 0, 40).build();
    let status = h.tick_record(&plan, &memory).expect_err("30 are free");
    assert_eq!(status, Status::NeedsReplan);
    let blocked = evidence(&h);
    assert_eq!(lacks(&blocked), [(Domain::Blocks, Lack::Now, 40, 30, 100)]);
    // The identical evidence, from the coordinator itself.
    let same = ledger.claim(&Demand { firm: true, ..Demand::of(blocks(40)) }, Remedy::Wait).expect_err("30 are free");
    assert_eq!(same.blocked(), Some(&blocked));
    let wait = h.engine.capacity().expect("here").wait(blocked.ticket).expect("of this core");
    let other = std::thread::spawn(move || {
        ledger.release(&blocks(70)).expect("claimed");
    });
    assert!(wait.block(Some(Duration::from_secs(20))).expect("open").is_some(), "it is woken");
    other.join().expect("no panic");
    h.tick_record(&plan, &memory).expect("the number was not used up");
    same_books(&h);
}

/// while others may claim, an accepted plan's demand is claimed until its end, drafts and all; afterwards the books hold what the
/// pool does.
#[test]
fn x_69_a_shared_core_claims_what_a_plan_needs() {
    let mut h = small_pool(100, 0);
    let ledger = h.engine.ledger().clone();
    assert!(ledger.is_shared());
    admit_whole(&mut h, 1, &span(0, 30), plain);
    assert_eq!((ledger.claimed(Domain::Blocks), ledger.used(Domain::Blocks)), (0, 29), "what is left is measured");
    ok(&mut h, |plan| plan.decode(1, 20));
    assert_eq!((ledger.claimed(Domain::Blocks), ledger.used(Domain::Blocks)), (0, 49));
    // A lane that leaves makes room in the same plan, and so does an entry that goes.
    ledger.claim(&Demand::of(blocks(40)), Remedy::Wait).expect("51 are free");
    let staged = h.prompt(&span(0, 60));
    assert_eq!(no(&mut h, |plan| plan.admit(2, staged).prefill(2, 0, 60)), Status::NeedsReplan);
    ok(&mut h, |plan| plan.retire(1, false).admit(2, staged).prefill(2, 0, 60));
    assert_eq!((ledger.claimed(Domain::Blocks), ledger.used(Domain::Blocks)), (40, 99));
    ok(&mut h, |plan| plan.retire(2, true));
    let staged = h.prompt(&span(200, 250));
    ok(&mut h, |plan| plan.admit(3, staged).prefill(3, 0, 50));
    assert_eq!((h.engine.cache_bytes(), ledger.claimed(Domain::Blocks)), (0, 40), "the entry went, the claim stays");
    assert_eq!(h.engine.ledger().capacity().accounting_faults(), 0);
}

/// each call that gives room back moves its domain, and no other call does.
#[test]
fn x_21_calls_between_ticks_move_what_they_give_back() {
    let mut h = small_pool(100, 0);
    publish(&mut h, &span(0, 32));
    let epoch = |h: &Fake, domain| h.engine.ledger().ticket(0).seen(domain);
    let state = |h: &Fake| (epoch(h, Domain::Slots), epoch(h, Domain::Blocks));
    let start = state(&h);
    let sequence = h.engine.create_sequence().expect("a slot is free");
    assert_eq!(state(&h), start, "taking moves nothing");
    h.engine.free_sequence(sequence).expect("it is bare");
    assert_eq!(state(&h), (start.0 + 1, start.1 + 1));
    let lease = lease(&mut h, &span(0, 32), 16);
    assert_eq!(state(&h), (start.0 + 1, start.1 + 1), "a pin takes");
    assert_eq!(h.engine.capacity().expect("here").memory().blocks_evictable, 0, "it is pinned");
    h.engine.seed_release(lease).expect("it is live");
    assert_eq!(state(&h), (start.0 + 1, start.1 + 2), "an entry may go again");
    let parent = h.engine.create_sequence().expect("a slot is free");
    let fork = h.engine.seq_fork(parent, 0).expect("a slot is free");
    let before = state(&h);
    h.engine.free_sequence(fork).expect("it is bare");
    assert_eq!(state(&h).0, before.0 + 1);
    h.engine.unpublish(&span(0, 31)).expect("nothing or something");
    h.engine.cache_evict(u64::MAX, 0, u64::MAX, u64::MAX).expect("it evicts");
    assert!(state(&h).1 > before.1);
    same_books(&h);
}

/// entries that leave for a plan say what it lacked; those that the cache drops by itself say nothing.
#[test]
fn x_71_evictions_say_what_was_short() {
    let reasons = |events: &ictus::testing::Events| -> Vec<u32> {
        let entries = events.shed_entries.iter().filter(|entry| entry.kind == shed_kind::CACHE_EVICTION);
        entries.map(|entry| entry.reason).collect()
    };
    let mut h = small_pool(100, 0);
    publish(&mut h, &span(0, 64));
    let staged = h.prompt(&span(100, 190));
    let events = ok(&mut h, |plan| plan.admit(1, staged).prefill(1, 0, 90));
    assert_eq!(reasons(&events), [Domain::Blocks.code()]);
    let mut h = small_pool(0, 1);
    publish(&mut h, &span(0, 32));
    let staged = h.prompt(&[1, 2]);
    let events = ok(&mut h, |plan| plan.admit(1, staged).prefill(1, 0, 2));
    assert_eq!(reasons(&events), [Domain::Slots.code()]);
    let mut h = fake(pool(20, 0));
    publish(&mut h, &span(0, 16));
    admit_whole(&mut h, 1, &span(50, 66), plain);
    let events = ok(&mut h, |plan| plan.retire(1, true));
    assert_eq!(reasons(&events), [0], "nobody lacked anything (S-57)");
}

/// XS-64, the half of the tick: after every tick the level is that of the counters, and at the end all is back.
#[test]
fn xs_64_the_books_agree_with_the_counters_after_every_tick() {
    let mut h = fake(|options| {
        pool(40, 0)(options);
        options.descriptor.cells_total = 200;
        options.descriptor.max_seqs = 6;
    });
    let ledger = h.engine.ledger().clone();
    let mut random = 7u64;
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let (mut live, mut next, mut refused) = (Vec::new(), 0, 0);
    for step in 0..10_000 {
        let mut plan = h.plan();
        if draw(3) == 0 {
            next += 1;
            let length = 1 + draw(60);
            let staged = h.prompt(&span((next * 100 % 30_000) as u32, (next * 100 % 30_000 + length) as u32));
            plan = plan.admit(next, staged).prefill(next, 0, length as u32);
        }
        let leaves = (!live.is_empty() && draw(4) == 0).then(|| draw(live.len() as u64) as usize);
        for (place, &lane) in live.iter().enumerate() {
            plan = match leaves {
                Some(leaving) if leaving == place => plan.retire(lane, draw(2) == 0),
                _ => plan.decode(lane, draw(3) as u16),
            };
        }
        let admitted = plan.build();
        let admits = admitted.0.admits.count > 0;
        match h.tick_record(&admitted.0, &admitted.1) {
            Ok(events) => {
                if let Some(leaving) = leaves {
                    live.remove(leaving);
                }
                if admits {
                    live.push(next);
                }
                assert_eq!(events.mem.pool_blocks_used, ledger.used(Domain::Blocks), "step {step}");
            }
            Err(Status::NeedsReplan) => {
                refused += 1;
                let blocked = evidence(&h);
                assert!(!blocked.shortfalls().is_empty());
                assert!(blocked.shortfalls().iter().all(|entry| entry.need > entry.free), "step {step}: {blocked:?}");
                // The longest lane gives way.
                if let Some(lane) = (!live.is_empty()).then(|| live.remove(0)) {
                    ok(&mut h, |plan| plan.retire(lane, false));
                    assert!(blocked.ticket.watches() == 0 || moved(&h, &blocked.ticket), "step {step}: H-4");
                }
            }
            Err(status) => panic!("step {step}: {status}"),
        }
        same_books(&h);
        assert_eq!(ledger.claimed(Domain::Blocks), 0, "step {step}: claims end with the tick");
    }
    assert!(refused > 100, "{refused} plans lacked room");
    for lane in live {
        ok(&mut h, |plan| plan.retire(lane, false));
    }
    h.engine.cache_evict(u64::MAX, 0, u64::MAX, u64::MAX).expect("it evicts");
    assert_eq!((ledger.used(Domain::Blocks), ledger.used(Domain::Slots)), (0, 0), "pages in are pages out");
    assert_eq!(ledger.capacity().accounting_faults(), 0);
}

/// X-28, XS-18: an engine that is broken tells who waits, and one that is gone does too.
#[test]
fn x_25_waits_end_with_the_engine() {
    let mut h = small_pool(100, 0);
    admit_whole(&mut h, 1, &[1, 2, 3], plain);
    let capacity = h.engine.capacity().expect("here").clone();
    let wait = capacity.wait(capacity.now().watching(Domain::Slots.bit())).expect("of this core");
    h.engine.primitives_mut().fail_next_step(ictus::runtime::RuntimeError::Fatal);
    let plan = h.plan().decode(1, 1);
    assert_eq!(h.tick_err(plan), Status::Fatal);
    assert_eq!(wait.block(Some(Duration::from_secs(20))), Err(Bad::Closed.into()));
    let h = small_pool(100, 0);
    let capacity = h.engine.capacity().expect("here").clone();
    let wait = capacity.wait(capacity.now()).expect("of this core");
    drop(h);
    assert_eq!(wait.block(Some(Duration::from_secs(20))), Err(Bad::Closed.into()));
}
