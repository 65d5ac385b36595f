//! Other kinds of spaces: S-92, S-93, SS-61.

use ictus::engine::Engine;
use ictus::record::Status;
use ictus::record::constant::{encoding, space_flag, space_kind};
use ictus::runtime::{FakeOptions, SpaceInfo};

use super::mover::*;

fn space_of_kind(kind: u32, interval_tokens: u32) -> impl FnOnce(&mut FakeOptions) {
    move |options| {
        options.descriptor.export_encodings = vec![encoding::LOSSLESS, encoding::Q8];
        options.descriptor.spaces = vec![SpaceInfo { kind, interval_tokens, ..SpaceInfo::paged_kv() }];
    }
}

fn bare_of_64(h: &mut Host) -> u64 {
    let parent = lane(h, 1, &span(100, 65));
    h.engine.seq_fork(parent, 0).expect("a slot")
}

/// SS-61, S-92: a recurrence is exported as it is, at the places where it was recorded.
#[test]
fn ss_61_recurrent_space_keeps_to_its_recorded_places() {
    let mut h = host(space_of_kind(space_kind::RECURRENT_BLOB, 32));
    let bare = bare_of_64(&mut h);
    let space = h.engine.state_spaces()[0];
    assert_eq!((space.snapshot_cadence, space.snapshot_interval_tokens), (2, 32));
    assert_eq!(refused(&mut h, |h| size(h, bare, 32, encoding::Q8)), Status::Unsupported);
    assert_eq!(refused(&mut h, |h| size(h, bare, 17, encoding::LOSSLESS)), Status::OutOfBoundary);
    assert_eq!(h.engine.space_snapshot_boundary(bare, KV, 40), Ok(32));
    assert_eq!(refused(&mut h, |h| h.engine.space_snapshot(bare, KV, 17, 9999, 1)), Status::OutOfBoundary);
    let sealed = export(&mut h, bare, 32);
    let header = ictus::transfer::read_header(&sealed).expect("a header");
    assert_eq!(
        (header.space_kind, header.range.start, header.range.end),
        (space_kind::RECURRENT_BLOB, 32, 32),
        "a position"
    );
    assert_eq!(refused(&mut h, |h| h.engine.space_trim(bare, KV, 17)), Status::OutOfBoundary);
    assert_eq!(refused(&mut h, |h| h.engine.space_trim(bare, KV, 999)), Status::RejectBounds);
    assert_eq!(h.engine.space_trim(bare, KV, 32), Ok(()));
    let restored = restore(&mut h, &sealed);
    assert_eq!(contents(&h, restored), span(100, 32));
    let mut pages = host(|_| {});
    let other = pages.engine.create_sequence().expect("a slot");
    assert_eq!(pages.engine.space_restore(other, KV, &sealed), Err(Status::EnvelopeMismatch), "another kind");
}

/// SS-61, S-92: a ring is exported anywhere, lossy if need be, and cut at recorded places only.
#[test]
fn ss_61_ring_space_is_cut_at_recorded_places_only() {
    let mut h = host(space_of_kind(space_kind::RING_KV, 32));
    let bare = bare_of_64(&mut h);
    assert_eq!(export(&mut h, bare, 41).len(), 136 + 41 * 4);
    assert!(size(&mut h, bare, 41, encoding::Q8).is_ok());
    assert_eq!(refused(&mut h, |h| h.engine.space_trim(bare, KV, 17)), Status::OutOfBoundary);
    assert_eq!(refused(&mut h, |h| h.engine.space_export_size(bare, KV, range(16, 32), 0)), Status::Unsupported);
    assert_eq!(h.engine.space_trim(bare, KV, 32), Ok(()));
}

/// SS-61, S-92, S-93: a space without operations stays advertised, refuses them, and leaves no seed servable.
#[test]
fn ss_61_space_without_operations_makes_seeds_unservable() {
    for (kind, flags) in [(space_kind::PAGED_TOKEN_KV, space_flag::OPS_UNAVAILABLE), (space_kind::ENCODER_CACHE, 0)] {
        let mut h = host(|options| {
            options.descriptor.page_size_tokens = 1;
            let name = "second".to_owned();
            options.descriptor.spaces.push(SpaceInfo { id: 2, kind, name, flags, interval_tokens: 0 });
        });
        let bare = bare_of_64(&mut h);
        assert_eq!(h.engine.state_spaces().iter().map(|space| space.space_id).collect::<Vec<_>>(), [1, 2]);
        let sealed = export(&mut h, bare, 16);
        let empty = h.engine.create_sequence().expect("a slot");
        let refusals = [
            refused(&mut h, |h| h.engine.space_export_size(bare, 2, range(0, 16), 0)),
            refused(&mut h, |h| h.engine.space_snapshot(bare, 2, 16, 999, 1)),
            refused(&mut h, |h| h.engine.space_snapshot_boundary(bare, 2, 16)),
            refused(&mut h, |h| h.engine.space_demote(bare, 2, range(0, 16), 0, 999, 1)),
            refused(&mut h, |h| h.engine.space_promote(bare, 2, range(0, 16), &sealed)),
            refused(&mut h, |h| h.engine.space_restore(empty, 2, &sealed)),
            refused(&mut h, |h| h.engine.space_trim(bare, 2, 16)),
        ];
        assert_eq!(refusals, [Status::Unsupported; 7]);
        let plan = h.plan().retire(1, true);
        h.tick_ok(plan);
        let seed = h.engine.seed_acquire(&span(100, 65), 64, 0);
        match flags {
            0 => assert!(seed.is_ok(), "an encoder's cache is no part of a seed"),
            _ => assert_eq!(seed, Err(Status::SeedUnservable)),
        }
    }
}

/// S-92: a space without a prefix cache still starts lanes from adopted sequences.
#[test]
fn space_without_a_prefix_cache_takes_adopted_sequences() {
    let mut h = host(|options| options.descriptor.spaces[0].flags = space_flag::NO_PREFIX_CACHE);
    let bare = bare_of_64(&mut h);
    let plan = h.plan().retire(1, true);
    h.tick_ok(plan);
    assert_eq!(refused(&mut h, |h| h.engine.seed_acquire(&span(100, 65), 64, 0)), Status::SeedUnservable);
    let lease = h.engine.seed_adopt(bare, &span(100, 64)).expect("it is bare");
    let staged = h.prompt(&span(100, 70));
    let plan = h.plan().admit_with(|admit| admit.seed_handle = lease, 2, staged).prefill(2, 64, 6).decode(2, 1);
    let events = h.tick_ok(plan);
    assert_eq!(h.tokens_of(&events, 2), greedy_after(&h, &span(100, 70), 1));
}
