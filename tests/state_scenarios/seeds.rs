//! Matches and leases: which prefixes are offered, who may start from them, for how long (state.md, section 4).

use ictus::engine::Engine;
use ictus::identity::content_digest;
use ictus::record::Status;
use ictus::record::constant::{determinism, misc::ALL_SPACES, tier};

use super::cached::*;
use super::host::*;

/// The candidates of a match.
fn candidates(h: &mut Fake, span: &[u32]) -> Vec<(u64, [u8; 32], u32, u8)> {
    let result = h.engine.space_match(ALL_SPACES, span, &[[9; 32]]).expect("the space exists");
    assert_eq!(result.spaces.count, 1, "one space");
    let candidates = h.engine.match_candidates().iter();
    candidates.map(|c| (c.prefix_len, c.provenance_digest, c.taint_bits, c.resident_tier)).collect()
}

/// S-46: what a candidate says of itself; nothing is pinned by asking, media are ignored.
#[test]
fn match_names_length_content_and_tier() {
    let mut h = fake(|_| {});
    publish(&mut h, &span(0, 70));
    assert_eq!(candidates(&mut h, &span(0, 100)), [(64, content_digest(&span(0, 64)), 0, tier::GPU)]);
    // The span may end inside the entry, and the answer may be the whole span.
    assert_eq!(candidates(&mut h, &span(0, 33)), [(32, content_digest(&span(0, 32)), 0, tier::GPU)]);
    assert_eq!(candidates(&mut h, &span(0, 64)).len(), 1);
    assert_eq!(candidates(&mut h, &span(0, 15)), []);
    assert_eq!(candidates(&mut h, &[]), []);
    assert_eq!(h.engine.cache_evict(u64::MAX, 0, u64::MAX, 1), Ok(64 * 64), "nothing was pinned");
}

/// SS-24 (S-40): a head-only seed is a whole entry.
#[test]
fn ss_24_head_only_seeds_are_whole_entries() {
    let mut h = fake(|options| {
        tokens_are_bytes(options);
        options.descriptor.truncate_partial = false;
    });
    publish(&mut h, &span(0, 40));
    assert!(h.engine.seed_acquire(&span(0, 42), 40, 0).is_ok());
    for _ in 0..2 {
        assert_eq!(h.engine.seed_acquire(&span(0, 42), 32, 0), Err(Status::SeedUnservable));
        assert_eq!(h.engine.seed_acquire(&span(0, 40), 40, 0), Err(Status::SeedUnservable), "the span must be longer");
    }
}

/// SS-25 (S-46): a head-only entry serves only spans that go on after it.
#[test]
fn ss_25_head_only_entry_serves_longer_spans_only() {
    let mut h = fake(|options| options.descriptor.truncate_partial = false);
    publish(&mut h, &span(0, 64));
    assert!(h.engine.match_lengths(&span(0, 64)).is_empty());
    assert_eq!(h.engine.match_lengths(&span(0, 65)), [64]);
    assert!(h.engine.seed_acquire(&span(0, 65), 64, 0).is_ok());
}

/// SS-28 (S-43).
#[test]
fn ss_28_leases_live_64_ticks_by_default() {
    if super::engine::lacks("word of how long leases live before the first is granted") {
        return;
    }
    assert_eq!(fake(|_| {}).engine.seed_lease_ticks(), Some(64));
}

/// SS-30 (S-40): short partial seeds are not worth taking; whole entries always are.
#[test]
fn ss_30_partial_seeds_have_a_least_length() {
    let mut h = fake(|options| {
        tokens_are_bytes(options);
        options.descriptor.seed_min_tokens = 4;
    });
    publish(&mut h, &span(0, 6));
    publish(&mut h, &[50, 51]);
    assert_eq!(h.engine.seed_acquire(&span(0, 6), 3, 0), Err(Status::SeedUnservable));
    assert!(h.engine.seed_acquire(&span(0, 6), 4, 0).is_ok());
    assert!(h.engine.seed_acquire(&[50, 51, 52], 2, 0).is_ok());
}

/// S-40: lengths that no entry could serve.
#[test]
fn seeds_of_impossible_lengths_are_unservable() {
    let mut h = fake(|_| {});
    publish(&mut h, &span(0, 64));
    for len in [0, 1, 17, 80, 96, u64::MAX] {
        for _ in 0..2 {
            assert_eq!(h.engine.seed_acquire(&span(0, 90), len, 0), Err(Status::SeedUnservable), "{len}");
        }
    }
    assert_eq!(h.engine.seed_acquire(&span(0, 30), 32, 0), Err(Status::SeedUnservable), "longer than the span");
    assert_eq!(h.engine.seed_acquire(&span(1, 90), 16, 0), Err(Status::SeedUnservable), "other tokens");
}

/// SS-34 (S-51): an export serves seeds that are a real part of it.
#[test]
fn ss_34_export_serves_real_parts_only() {
    let key = span(0, 16);
    let common = |len: usize| beyond(&key[..len]);
    let mut h = fake(pool(1, 64));
    publish(&mut h, &key);
    assert_eq!(h.engine.cache_exported_tokens(), 16);
    assert!(h.engine.match_lengths(&common(1)).is_empty());
    assert_eq!(h.engine.seed_acquire(&common(1), 1, 0), Err(Status::SeedUnservable));
    assert_eq!(h.engine.match_lengths(&common(2)), [2]);
    let seed = lease(&mut h, &common(2), 2);
    seeded(&mut h, 1, &common(2), seed, 2, 3);
    let mut h = fake(pool(64, 64));
    publish(&mut h, &key);
    assert_eq!(h.engine.match_lengths(&common(1)), [1]);
}

/// SS-49 (S-41, S-46, S-51): the pool's entry is preferred.
#[test]
fn ss_49_entries_in_the_pool_beat_exported_ones() {
    let mut h = fake(pool(8, 64));
    publish(&mut h, &span(0, 16));
    publish(&mut h, &span(0, 8));
    assert_eq!((h.engine.cache_bytes(), h.engine.cache_exported_tokens()), (8, 16));
    let tiers = |found: Vec<(u64, [u8; 32], u32, u8)>| found.iter().map(|c| (c.0, c.3)).collect::<Vec<_>>();
    assert_eq!(tiers(candidates(&mut h, &span(0, 20))), [(16, tier::HOST), (8, tier::GPU)]);
    assert_eq!(tiers(candidates(&mut h, &beyond(&span(0, 8)))), [(8, tier::GPU)]);
    assert_eq!(tiers(candidates(&mut h, &beyond(&span(0, 1)))), [(1, tier::GPU)]);
    // S-41: and so does the seed: nothing is imported for it.
    let seed = lease(&mut h, &beyond(&span(0, 8)), 8);
    seeded(&mut h, 1, &beyond(&span(0, 8)), seed, 8, 1);
    assert_eq!(cells(&h), 8 + 2, "shared");
}

/// SS-52 (S-42, S-44, S-59).
#[test]
fn ss_52_unpublishing_drops_exactly_these_tokens_unless_leased() {
    let mut h = fake(tokens_are_bytes);
    publish(&mut h, &[1, 2, 3]);
    h.engine.unpublish(&[1, 2]).expect("nothing has these tokens");
    assert_eq!(h.engine.cache_bytes(), 3);
    let seed = lease(&mut h, &[1, 2, 3], 3);
    h.engine.unpublish(&[1, 2, 3]).expect("it is pinned");
    assert_eq!(h.engine.cache_bytes(), 3);
    assert_eq!(h.engine.seed_release(seed), Ok(()));
    assert_eq!(h.engine.seed_release(seed), Err(Status::UnknownHandle));
    h.engine.unpublish(&[1, 2, 3]).expect("it goes");
    assert_eq!((h.engine.cache_bytes(), h.engine.live_sequences(), cells(&h)), (0, 0, 0));
}

/// SS-55 (S-42, S-60): a lease outlasts a shortage of host memory.
#[test]
fn ss_55_leased_export_survives_a_shortage_and_seeds() {
    let mut h = fake(pool(1, 64));
    publish(&mut h, &span(0, 16));
    publish(&mut h, &span(20, 36));
    let seed = lease(&mut h, &span(0, 20), 16);
    assert_eq!(h.engine.cache_evict(4, 0, u64::MAX, 0), Ok(0));
    assert_eq!(h.engine.cache_exported_tokens(), 16);
    assert!(h.engine.match_lengths(&span(20, 40)).is_empty());
    seeded(&mut h, 1, &span(0, 20), seed, 16, 2);
}

/// S-94: a deterministic lease says so; the classes must agree (T-34).
#[test]
fn untainted_state_serves_both_classes() {
    let mut h = fake(|_| {});
    publish(&mut h, &span(0, 64));
    for class in [determinism::BEST_EFFORT, determinism::DETERMINISTIC] {
        let seed = h.engine.seed_acquire(&span(0, 70), 64, class).expect("no taint");
        let staged = h.prompt(&span(0, 70));
        let change = |wanted: u8| {
            move |admit: &mut ictus::record::LaneAdmit| {
                admit.seed_handle = seed;
                admit.determinism_class = wanted;
            }
        };
        assert_eq!(no(&mut h, |plan| plan.admit_with(change(1 - class), 1, staged)), Status::RejectStaleSeed);
        ok(&mut h, |plan| plan.admit_with(change(class), 1, staged).prefill(1, 64, 6).decode(1, 1));
        ok(&mut h, |plan| plan.retire(1, false));
    }
}
