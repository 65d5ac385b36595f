//! Cells, slots and memory counters, as far as they need no cache.

use ictus::record::Status;
use ictus::record::constant::{finish, tick_status};

use super::host::*;

fn hundred_cells() -> Fake {
    fake(|options| options.descriptor.cells_total = 100)
}

/// TS-25 without its cache (T-60): what does not fit is for the host to plan again.
#[test]
fn plan_that_does_not_fit_needs_replanning() {
    let mut h = hundred_cells();
    let staged = h.prompt(&span(0, 200));
    assert_eq!(no(&mut h, |plan| plan.admit(1, staged).prefill(1, 0, 200)), Status::NeedsReplan);
    assert_eq!((h.engine.lane_committed(1), cells(&h)), (None, 0));
    admit_whole(&mut h, 1, &span(0, 90), plain);
    let staged = h.prompt(&span(0, 50));
    let status = no(&mut h, |plan| plan.evict_envelope(u64::MAX, 0).admit(2, staged).prefill(2, 0, 50));
    assert_eq!(status, Status::NeedsReplan);
    // The demand is what the budget lets through, so a smaller budget fits.
    ok(&mut h, |plan| plan.admit(2, staged).prefill_budget(9).prefill(2, 0, 50));
}

/// TS-28 without its cache (T-66): a lane that leaves makes room in the same plan, unless it publishes.
#[test]
fn lane_that_leaves_makes_room_for_one_that_comes() {
    let mut h = hundred_cells();
    admit_whole(&mut h, 1, &span(0, 80), plain);
    let staged = h.prompt(&span(100, 160));
    assert_eq!(no(&mut h, |plan| plan.retire(1, true).admit(2, staged).prefill(2, 0, 60)), Status::NeedsReplan);
    let events = ok(&mut h, |plan| plan.retire(1, false).admit(2, staged).prefill(2, 0, 60).decode(2, 3));
    assert_eq!((events.tick_status, events.evictions), (tick_status::OK, 0));
    assert_eq!(h.tokens_of(&events, 2), greedy_after(&h, &span(100, 160), 3));
    assert_eq!(cells(&h), 62);
}

/// TS-41 (T-60): the demand of a decode ends with the context.
#[test]
fn demand_of_a_decode_is_clamped_to_the_context() {
    let mut h = fake(|options| {
        options.descriptor.cells_total = 100;
        options.descriptor.max_seq_len = 100;
    });
    let staged = h.prompt(&span(0, 99));
    let events = ok(&mut h, |plan| plan.admit(1, staged).prefill(1, 0, 99).decode(1, 10));
    assert_eq!(h.tokens_of(&events, 1), greedy_after(&h, &span(0, 99), 1));
    assert_eq!(events.emits[0].finish, finish::LENGTH);
}

/// T-60, T-66: grants count, and an exact fit is legal.
#[test]
fn pool_is_used_to_its_last_cell() {
    let mut h = hundred_cells();
    admit_whole(&mut h, 1, &span(0, 80), plain);
    assert_eq!(cells(&h), 79, "one input is pending");
    assert_eq!(no(&mut h, |plan| plan.decode(1, 22)), Status::NeedsReplan);
    let events = ok(&mut h, |plan| plan.decode(1, 21));
    assert_eq!(h.tokens_of(&events, 1), greedy_after(&h, &span(0, 80), 21));
    assert_eq!(cells(&h), 100);
    assert_eq!(no(&mut h, |plan| plan.decode(1, 1)), Status::NeedsReplan);
    ok(&mut h, |plan| plan.decode(1, 0));
}

/// T-67: slots, freed by lanes that leave without publishing.
#[test]
fn slots_run_out_and_come_back() {
    let mut h = fake(|options| options.descriptor.max_seqs = 2);
    admit_whole(&mut h, 1, &[1, 2], plain);
    admit_whole(&mut h, 2, &[3, 4], plain);
    let staged = h.prompt(&[5, 6]);
    assert_eq!(no(&mut h, |plan| plan.admit(3, staged).prefill(3, 0, 2)), Status::NeedsReplan);
    let other = h.prompt(&[7, 8]);
    let status = no(&mut h, |plan| plan.retire(1, false).admit(3, staged).admit(4, other));
    assert_eq!(status, Status::NeedsReplan);
    let events = ok(&mut h, |plan| plan.retire(1, false).admit(3, staged).prefill(3, 0, 2).decode(3, 1).decode(2, 1));
    assert_eq!(events.emits.len(), 2);
}

/// TS-43 (T-26).
#[test]
fn empty_prompt_is_refused() {
    let mut h = fake(|_| {});
    let staged = h.prompt(&[]);
    assert_eq!(no(&mut h, |plan| plan.admit(1, staged)), Status::RejectIllegalCombination);
    assert_eq!(h.engine.lane_committed(1), None);
}

/// TS-65 (T-28, T-27, T-44).
#[test]
fn ids_and_modes_outside_their_range_are_refused() {
    let mut h = fake(|_| {});
    let staged = h.prompt(&[1, 2, 3]);
    let status = no(&mut h, |plan| plan.admit_with(|admit| admit.sampling = 3, 1, staged));
    assert_eq!(status, Status::RejectIllegalCombination);
    let foreign = h.prompt(&[1, 32000, 3]);
    assert_eq!(no(&mut h, |plan| plan.admit(1, foreign)), Status::RejectBounds);
    let events = ok(&mut h, |plan| plan.admit_with(by_host, 1, staged).prefill(1, 0, 3).decode(1, 1));
    let nonce = events.emits[0].logits_row.generation;
    assert_eq!(no(&mut h, |plan| plan.commit(1, 32000, nonce)), Status::RejectBounds);
    ok(&mut h, |plan| plan.commit(1, 31999, nonce));
}

/// TS-67 (T-46, T-58).
#[test]
fn tag_that_was_never_admitted_is_unknown() {
    let mut h = fake(|_| {});
    assert_eq!(no(&mut h, |plan| plan.prefill(5, 0, 1)), Status::RejectUnknownLane);
    assert_eq!(no(&mut h, |plan| plan.retire(5, false)), Status::RejectUnknownLane);
}

/// TS-76 without its cache (T-145).
#[test]
fn memory_counters_count_cells_and_whole_pages() {
    let mut h = fake(|options| {
        options.descriptor.page_size_tokens = 2;
        options.descriptor.kv_bytes_per_token = 4;
        options.descriptor.cells_total = 101;
    });
    let mem = ok(&mut h, |plan| plan).mem;
    assert_eq!((mem.pool_blocks_total, mem.pool_blocks_used, mem.allocated_bytes), (50, 0, 0));
    let staged = h.prompt(&[1, 2, 3]);
    let mem = ok(&mut h, |plan| plan.admit(1, staged).prefill(1, 0, 3).decode(1, 1)).mem;
    assert_eq!((mem.pool_blocks_total, mem.pool_blocks_used, mem.allocated_bytes), (50, 1, 12));
    assert_eq!((mem.host_retained_bytes, mem.pool_bytes_evictable, mem.tentative_bytes), (0, 0, 0));
    let mem = ok(&mut h, |plan| plan.retire(1, false)).mem;
    assert_eq!((mem.pool_blocks_used, mem.allocated_bytes), (0, 0));
}
