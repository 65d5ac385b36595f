//! Entries in the pool: bytes, keys, the order of eviction (state.md, section 5).

use ictus::engine::Engine;
use ictus::identity::content_digest;
use ictus::record::constant::{cache_class, tick_status};
use ictus::record::{CacheKey, Status};

use super::cached::*;
use super::host::*;

/// SS-23 (T-67, T-68).
#[test]
fn ss_23_slot_of_an_entry_is_freed_within_the_envelope() {
    let start = || {
        let mut h = fake(|options| {
            tokens_are_bytes(options);
            options.descriptor.max_seqs = 2;
        });
        publish(&mut h, &span(0, 6));
        admit_whole(&mut h, 1, &span(10, 14), plain);
        assert_eq!(h.engine.live_sequences(), 2);
        h
    };
    let mut h = start();
    let staged = h.prompt(&span(20, 24));
    let status = no(&mut h, |plan| plan.evict_envelope(0, 0).admit(2, staged).prefill(2, 0, 4));
    assert_eq!((status, h.engine.live_sequences()), (Status::NeedsReplan, 2));
    let events = ok(&mut h, |plan| plan.admit(2, staged).prefill(2, 0, 4));
    assert_eq!((events.tick_status, losses(&events)), (tick_status::SHED, vec![(0, 6, 6)]));
    assert_eq!(h.engine.live_sequences(), 2);
    let mut h = start();
    let staged = h.prompt(&span(20, 24));
    let events = ok(&mut h, |plan| plan.retire(1, false).admit(2, staged).prefill(2, 0, 4));
    assert_eq!((events.tick_status, h.engine.cache_bytes()), (tick_status::OK, 6));
}

/// SS-26 (S-58).
#[test]
fn ss_26_eviction_by_key_wants_keys_of_this_engine() {
    let mut h = fake(tokens_are_bytes);
    publish(&mut h, &span(0, 6));
    let mine = h.engine.compat_identity();
    let digest = content_digest(&span(0, 6));
    let key = |compat_key, provenance_digest| CacheKey { compat_key, provenance_digest };
    for _ in 0..2 {
        let outcome = h.engine.cache_evict_entries(&[key(mine, digest), key([7; 32], digest)]);
        assert_eq!((outcome, h.engine.cache_bytes()), (Err(Status::IdentityMismatch), 6));
    }
    assert_eq!(h.engine.cache_evict_entries(&[key(mine, content_digest(&[1]))]), Ok(()));
    assert_eq!(h.engine.cache_bytes(), 6);
    let seed = lease(&mut h, &span(0, 6), 6);
    assert_eq!((h.engine.cache_evict_entries(&[key(mine, digest)]), h.engine.cache_bytes()), (Ok(()), 6), "leased");
    h.engine.seed_release(seed).expect("it is live");
    assert_eq!((h.engine.cache_evict_entries(&[key(mine, digest)]), h.engine.cache_bytes()), (Ok(()), 0));
    assert_eq!(cells(&h), 0);
}

/// SS-41 (S-51, S-54): a seed that is no real part is no use.
#[test]
fn ss_41_small_seed_does_not_keep_an_entry_young() {
    let mut h = fake(pool(32, 64));
    publish(&mut h, &span(0, 16));
    publish(&mut h, &span(20, 32));
    seed_and_drop(&mut h, &beyond(&span(0, 1)), 1);
    publish(&mut h, &span(40, 48));
    assert_eq!((h.engine.cache_bytes(), h.engine.cache_exported_tokens()), (20, 16));
    assert_eq!(h.engine.match_lengths(&beyond(&span(0, 16))), [16], "the older one left, and is offered");
}

/// S-54: a seed that is a real part is a use.
#[test]
fn real_seed_keeps_an_entry_young() {
    let mut h = fake(pool(32, 64));
    publish(&mut h, &span(0, 16));
    publish(&mut h, &span(20, 32));
    seed_and_drop(&mut h, &beyond(&span(0, 2)), 2);
    publish(&mut h, &span(40, 48));
    assert_eq!((h.engine.cache_bytes(), h.engine.cache_exported_tokens()), (24, 12));
}

/// SS-48 (S-52, S-54, S-55): shared prefixes leave last, and only with their class bit.
#[test]
fn ss_48_shared_prefixes_leave_last() {
    let mut h = fake(tokens_are_bytes);
    publish(&mut h, &span(0, 10));
    (0..7).for_each(|_| seed_and_drop(&mut h, &beyond(&span(0, 10)), 10));
    publish(&mut h, &span(100, 110));
    publish(&mut h, &span(200, 210));
    publish(&mut h, &span(300, 310));
    seed_and_drop(&mut h, &beyond(&span(300, 310)), 10);
    let offered =
        |h: &Fake| [0, 100, 200, 300].map(|from| h.engine.match_lengths(&beyond(&span(from, from + 10))).len());
    assert_eq!(h.engine.cache_evict(!cache_class::HOST_EXPORT, 0, u64::MAX, 20), Ok(20));
    assert_eq!(offered(&h), [1, 0, 0, 1]);
    assert_eq!(h.engine.cache_evict(cache_class::RESIDENT, 0, u64::MAX, u64::MAX), Ok(10));
    assert_eq!(offered(&h), [1, 0, 0, 0]);
    assert_eq!(h.engine.cache_evict(cache_class::RESIDENT | cache_class::SHARED, 0, u64::MAX, u64::MAX), Ok(10));
    assert_eq!((offered(&h), cells(&h)), ([0; 4], 0));
}

/// S-15, S-52: a published fork that was not private is a shared prefix from the start.
#[test]
fn published_fork_is_shared_unless_private() {
    for (flags, freed) in [(0, 0), (ictus::record::constant::fork_flag::PRIVATE, 6)] {
        let mut h = fake(tokens_are_bytes);
        let child = bare(&mut h, &span(0, 6), flags);
        h.engine.publish_sequence(child, &span(0, 6)).expect("it holds them");
        assert_eq!(h.engine.cache_evict(cache_class::RESIDENT, 0, u64::MAX, u64::MAX), Ok(freed));
    }
}

/// SS-56 (S-49, S-53): where copies do not share, the same key may lie there twice; the newer one outlives the older.
#[test]
fn ss_56_same_key_twice_is_two_entries_without_sharing() {
    let mut h = fake(|options| {
        tokens_are_bytes(options);
        options.descriptor.cache_resident_cells = 12;
        options.descriptor.cache_exported_cells = 64;
    });
    publish(&mut h, &span(0, 6));
    publish(&mut h, &span(0, 6));
    assert_eq!((h.engine.cache_bytes(), h.engine.live_sequences()), (12, 2));
    let events = publish(&mut h, &span(10, 16));
    assert_eq!(losses(&events), [(0, 6, 6)], "covered, so not exported");
    assert_eq!((h.engine.cache_bytes(), h.engine.cache_exported_tokens()), (12, 0));
    assert_eq!(h.engine.match_lengths(&beyond(&span(0, 6))), [6]);
}

/// S-55: the answer is what left the pool; caps, quotas and targets.
#[test]
fn eviction_keeps_to_cap_quota_and_target() {
    let filled = || {
        let mut h = fake(tokens_are_bytes);
        for from in [0, 100, 200] {
            publish(&mut h, &span(from, from + 10));
        }
        h
    };
    let all = cache_class::RESIDENT | cache_class::SHARED;
    for (classes, quota, max, target, freed) in [
        (all, 0, u64::MAX, 1, 10),
        (all, 0, u64::MAX, 11, 20),
        (all, 0, 15, u64::MAX, 10),
        (all, 0, 9, u64::MAX, 0),
        (all, 15, u64::MAX, u64::MAX, 10),
        (all, u64::MAX, u64::MAX, u64::MAX, 0),
        (all, 0, u64::MAX, 0, 0),
        (cache_class::SHARED, 0, u64::MAX, u64::MAX, 0),
        (0, 0, u64::MAX, u64::MAX, 0),
    ] {
        let mut h = filled();
        assert_eq!(h.engine.cache_evict(classes, quota, max, target), Ok(freed), "{classes} {quota} {max} {target}");
        assert_eq!((h.engine.cache_bytes(), cells(&h)), (30 - freed, 30 - freed));
        h.engine.audit().expect("the engine is sound");
    }
}
