//! What leaves the cache for a plan, and what does not (T-60, T-64 .. T-68, T-142 .. T-145).

use ictus::engine::Engine;
use ictus::record::Status;
use ictus::record::constant::{admit_status, cache_class, tick_status};

use super::cached::*;
use super::host::*;

fn hundred_cells() -> Fake {
    fake(|options| options.descriptor.cells_total = 100)
}

/// Page 1, a byte per token, eight cells.
fn eight_cells(max_seqs: u32, copy_shares_cells: bool) -> Fake {
    fake(|options| {
        tokens_are_bytes(options);
        options.descriptor.cells_total = 8;
        options.descriptor.max_seqs = max_seqs;
        options.descriptor.copy_shares_cells = copy_shares_cells;
    })
}

/// TS-25 (T-60, T-68, T-142).
#[test]
fn ts_25_resting_state_goes_for_a_plan() {
    let mut h = hundred_cells();
    let staged = h.prompt(&span(0, 200));
    assert_eq!(no(&mut h, |plan| plan.admit(1, staged).prefill(1, 0, 200)), Status::NeedsReplan);
    assert_eq!(h.engine.lane_committed(1), None);
    publish(&mut h, &span(0, 64));
    let staged = h.prompt(&span(300, 390));
    let events = ok(&mut h, |plan| plan.admit(2, staged).prefill(2, 0, 90));
    assert_eq!(events.admit_results[0].status, admit_status::ADMITTED);
    assert_eq!(events.tick_status, tick_status::SHED);
    let staged = h.prompt(&span(0, 50));
    let status = no(&mut h, |plan| plan.evict_envelope(u64::MAX, 0).admit(3, staged).prefill(3, 0, 50));
    assert_eq!(status, Status::NeedsReplan);
}

/// TS-28 (T-66, T-68).
#[test]
fn ts_28_publishing_makes_room_only_afterwards() {
    let start = || {
        let mut h = hundred_cells();
        admit_whole(&mut h, 1, &span(0, 80), plain);
        let staged = h.prompt(&span(200, 260));
        (h, staged)
    };
    let (mut h, staged) = start();
    let events = ok(&mut h, |plan| plan.retire(1, false).admit(2, staged).prefill(2, 0, 60));
    assert_eq!((events.tick_status, events.evictions), (tick_status::OK, 0));
    let (mut h, staged) = start();
    assert_eq!(no(&mut h, |plan| plan.retire(1, true).admit(2, staged).prefill(2, 0, 60)), Status::NeedsReplan);
    ok(&mut h, |plan| plan.retire(1, true));
    let events = ok(&mut h, |plan| plan.admit(2, staged).prefill(2, 0, 60));
    assert_eq!(events.tick_status, tick_status::SHED);
}

/// TS-32 (T-68, S-55): an entry that exceeds the cap is skipped.
#[test]
fn ts_32_large_entry_is_skipped_under_a_small_cap() {
    let mut h = fake(|options| options.descriptor.cells_total = 96);
    publish(&mut h, &span(0, 64));
    publish(&mut h, &span(100, 116));
    assert_eq!(h.engine.cache_bytes(), 5120);
    let staged = h.prompt(&span(200, 240));
    let status = no(&mut h, |plan| plan.evict_envelope(u64::MAX, 2048).admit(1, staged).prefill(1, 0, 40));
    assert_eq!((status, h.engine.cache_bytes()), (Status::NeedsReplan, 5120));
    assert_eq!(h.engine.cache_evict(cache_class::RESIDENT, 0, 2048, 1536), Ok(1024));
    assert_eq!(h.engine.match_lengths(&span(0, 70)), [64], "the big one stays");
}

/// TS-33 (T-68, S-55).
#[test]
fn ts_33_without_its_class_nothing_is_evicted() {
    let mut h = hundred_cells();
    publish(&mut h, &span(0, 64));
    let staged = h.prompt(&span(200, 290));
    for classes in [0, cache_class::SHARED, cache_class::HOST_EXPORT] {
        let status = no(&mut h, |plan| plan.evict_envelope(classes, u64::MAX).admit(1, staged).prefill(1, 0, 90));
        assert_eq!(status, Status::NeedsReplan);
        assert_eq!(h.engine.cache_evict(classes & !cache_class::HOST_EXPORT, 0, u64::MAX, u64::MAX), Ok(0));
    }
    ok(&mut h, |plan| plan.evict_envelope(cache_class::RESIDENT, u64::MAX).admit(1, staged).prefill(1, 0, 90));
}

/// TS-42 (T-143).
#[test]
fn ts_42_eviction_is_reported_with_its_size() {
    let mut h = hundred_cells();
    publish(&mut h, &span(0, 64));
    let staged = h.prompt(&span(200, 290));
    let events = ok(&mut h, |plan| plan.admit(1, staged).prefill(1, 0, 90));
    assert_eq!(losses(&events), [(0, 4096, 64)]);
}

/// TS-44 (T-68): one walk, for cells and slots.
#[test]
fn ts_44_walk_serves_cells_and_slots_together() {
    let mut h = eight_cells(2, false);
    publish(&mut h, &span(0, 4));
    publish(&mut h, &span(10, 14));
    let refs = [h.prompt(&[90, 91]), h.prompt(&[92, 93])];
    let both = |bytes: u64| {
        move |plan: ictus::testing::PlanBuilder| {
            let plan = plan.evict_envelope(u64::MAX, bytes).admit(1, refs[0]).admit(2, refs[1]);
            plan.prefill(1, 0, 2).prefill(2, 0, 2)
        }
    };
    assert_eq!(no(&mut h, both(4)), Status::NeedsReplan);
    assert_eq!((h.engine.cache_bytes(), cells(&h)), (8, 8));
    let events = ok(&mut h, both(8));
    assert_eq!(losses(&events), [(0, 4, 4), (0, 4, 4)]);
    assert_eq!((events.admit_results.len(), h.engine.cache_bytes()), (2, 0));
}

/// TS-45 (T-69, S-42).
#[test]
fn ts_45_leased_entry_stays() {
    let mut h = eight_cells(2, false);
    publish(&mut h, &span(0, 4));
    publish(&mut h, &span(10, 14));
    lease(&mut h, &beyond(&span(0, 4)), 4);
    let refs = [h.prompt(&[90, 91]), h.prompt(&[92, 93])];
    let status = no(&mut h, |plan| plan.admit(1, refs[0]).admit(2, refs[1]).prefill(1, 0, 2).prefill(2, 0, 2));
    assert_eq!((status, h.engine.cache_bytes()), (Status::NeedsReplan, 8));
    assert_eq!(h.engine.match_lengths(&beyond(&span(10, 14))), [4]);
}

/// TS-46 (U of T-60, T-72): the pending input of a publishing retire needs a cell.
#[test]
fn ts_46_publishing_retire_needs_a_cell_for_its_pending_token() {
    let mut h = eight_cells(0, false);
    start(&mut h, 1, &[1, 2, 3], 1, plain);
    assert_eq!(cells(&h), 3);
    let staged = h.prompt(&span(50, 60));
    let plan = |count: u32| {
        move |plan: ictus::testing::PlanBuilder| plan.retire(1, true).admit(2, staged).prefill(2, 0, count)
    };
    assert_eq!(no(&mut h, plan(5)), Status::NeedsReplan);
    assert_eq!((h.committed(1).len(), cells(&h)), (4, 3));
    ok(&mut h, plan(4));
    assert_eq!((cells(&h), h.engine.cache_bytes()), (8, 4));
}

/// T-60, T-66, T-72: the cell for the last token of a publishing lane may come from one that retires in silence beside it, wherever the two
/// stand in the plan. The simulation found the token left out.
#[test]
fn last_token_of_a_publishing_lane_finds_the_cells_of_a_silent_one() {
    let mut h = eight_cells(0, false);
    admit_whole(&mut h, 2, &span(50, 55), plain);
    admit_whole(&mut h, 1, &[1, 2, 3, 4], plain);
    ok(&mut h, |plan| plan.decode(1, 1));
    assert_eq!(cells(&h), 8);
    ok(&mut h, |plan| plan.retire(1, true).retire(2, false));
    assert_eq!((cells(&h), h.engine.cache_bytes()), (5, 5));
}

/// TS-47 (T-66): cells that two hold are free when both go.
#[test]
fn ts_47_shared_cells_are_freed_by_their_last_holder() {
    let mut h = eight_cells(0, true);
    publish(&mut h, &span(0, 4));
    let seed = lease(&mut h, &beyond(&span(0, 4)), 4);
    let staged = h.prompt(&beyond(&span(0, 4)));
    ok(&mut h, |plan| plan.admit_with(|admit| admit.seed_handle = seed, 1, staged));
    assert_eq!(cells(&h), 4);
    let other = h.prompt(&span(50, 60));
    let status = no(&mut h, |plan| plan.evict_envelope(0, 0).retire(1, false).admit(2, other).prefill(2, 0, 5));
    assert_eq!(status, Status::NeedsReplan);
    assert_eq!(no(&mut h, |plan| plan.admit(2, other).prefill(2, 0, 5)), Status::NeedsReplan);
    assert_eq!((cells(&h), h.engine.cache_bytes()), (4, 4));
    let events = ok(&mut h, |plan| plan.retire(1, false).admit(2, other).prefill(2, 0, 5));
    assert_eq!((losses(&events), cells(&h)), (vec![(0, 4, 4)], 5));
}

/// TS-59 (T-68).
#[test]
fn ts_59_protected_bytes_stay() {
    let mut h = hundred_cells();
    publish(&mut h, &span(0, 64));
    assert_eq!(h.engine.cache_evict(u64::MAX, u64::MAX, u64::MAX, u64::MAX), Ok(0));
    let staged = h.prompt(&span(200, 290));
    let status = no(&mut h, |plan| plan.protected_quota(u64::MAX).admit(1, staged).prefill(1, 0, 90));
    assert_eq!(status, Status::NeedsReplan);
    ok(&mut h, |plan| plan.protected_quota(0).admit(1, staged).prefill(1, 0, 90));
}

/// TS-76 (T-145).
#[test]
fn ts_76_memory_counters_tell_pool_and_host() {
    let mut h = fake(|options| {
        options.descriptor.page_size_tokens = 2;
        options.descriptor.kv_bytes_per_token = 4;
        options.descriptor.cells_total = 101;
        options.descriptor.cache_resident_cells = 1;
        options.descriptor.cache_exported_cells = 64;
    });
    let mem = publish(&mut h, &span(0, 6)).mem;
    assert_eq!((mem.pool_blocks_total, mem.pool_blocks_used, mem.allocated_bytes), (50, 0, 0));
    assert_eq!((mem.host_retained_bytes, mem.pool_bytes_evictable), (6 * 4, 0));
    admit_whole(&mut h, 1, &span(20, 24), plain);
    let mem = ok(&mut h, |plan| plan).mem;
    assert_eq!((mem.pool_blocks_used, mem.allocated_bytes, mem.tentative_bytes), (1, 12, 0));
}

/// T-145: evictable are the unpinned entries in the pool.
#[test]
fn evictable_bytes_are_those_of_unpinned_entries() {
    let mut h = fake(tokens_are_bytes);
    publish(&mut h, &span(0, 6));
    let mem = publish(&mut h, &span(10, 20)).mem;
    assert_eq!((mem.pool_bytes_evictable, mem.host_retained_bytes), (16, 0));
    lease(&mut h, &beyond(&span(0, 6)), 6);
    assert_eq!(ok(&mut h, |plan| plan).mem.pool_bytes_evictable, 10);
}

/// T-68: no more goes than it takes, whatever order the questions are asked in.
#[test]
fn walk_stops_as_soon_as_the_demand_fits() {
    for need in 1..=64 {
        let mut h = fake(|options| {
            tokens_are_bytes(options);
            options.descriptor.cells_total = 64;
        });
        // Sixteen entries of four fill the pool.
        for number in 0..16 {
            publish(&mut h, &span(number * 10, number * 10 + 4));
        }
        let staged = h.prompt(&span(500, 600));
        let events = ok(&mut h, |plan| plan.admit(1, staged).prefill(1, 0, need));
        assert_eq!(losses(&events).len() as u32, need.div_ceil(4), "{need} cells");
        assert!(events.shed_entries.iter().all(|entry| entry.tokens == 4));
        h.engine.audit().expect("the engine is sound");
    }
}

/// T-70, T-74, T-5: entries that are chosen leave before the retires publish, and the cache settles after them.
#[test]
fn settling_follows_the_retires_of_every_tick() {
    let mut h = fake(pool(8, 0));
    publish(&mut h, &span(0, 6));
    admit_whole(&mut h, 1, &span(20, 26), plain);
    admit_whole(&mut h, 2, &span(40, 46), plain);
    let events = ok(&mut h, |plan| plan.retire(1, true).retire(2, true));
    assert_eq!(losses(&events), [(0, 6, 6), (0, 6, 6)]);
    assert_eq!(h.engine.match_lengths(&beyond(&span(40, 46))), [6], "the last one stays");
    assert_eq!(losses(&ok(&mut h, |plan| plan)), []);
}
