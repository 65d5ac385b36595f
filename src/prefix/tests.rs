#![forbid(unsafe_code)]
//! The rules of the cache one by one, as small cases.

use super::*;

const TEXT: Scope = Scope([0; 32]);
const SHAPE: CacheShape = CacheShape {
    page_size_tokens: 1,
    cuttable: true,
    bytes_per_token: 1,
    seed_min_tokens: 0,
    exported_tokens_max: 64,
    lease_ticks: 4,
};

/// `len` tokens that begin like every other such list.
fn line(len: u32) -> Vec<u32> {
    (0..len).collect()
}

/// `common` tokens of the line, then `own` ones of `who`.
fn branch(common: u32, own: u32, who: u32) -> Vec<u32> {
    (0..common).chain((0..own).map(|i| 1000 * who + i)).collect()
}

fn new(sequence: u64, tokens: Vec<u32>, now: u64) -> NewEntry {
    let held_tokens = tokens.len() as u64;
    NewEntry {
        scope: TEXT,
        sequence,
        tokens,
        prompt_len: 0,
        held_tokens,
        now,
        shared: false,
        taint: 0,
        generation: 1,
        adapter: 0,
    }
}

/// A cache with one entry per key, used at ticks 1, 2, ..., named by them.
fn cache(shape: CacheShape, keys: &[Vec<u32>]) -> (PrefixCache, Vec<EntryId>) {
    let mut cache = PrefixCache::new(shape);
    let ids = (1..).zip(keys).map(|(now, key)| cache.insert(new(now, key.clone(), now))).collect();
    (cache, ids)
}

fn export(cache: &mut PrefixCache, id: EntryId) {
    let sequence = cache.get(id).expect("it exists").sequence;
    assert_eq!(cache.export_done(id, vec![0; 10]), Some(sequence));
}

fn lens(cache: &PrefixCache, span: &[u32]) -> Vec<usize> {
    let mut found = Vec::new();
    cache.matches(&TEXT, span, &mut found);
    found.iter().map(|candidate| candidate.len).collect()
}

fn order(cache: &PrefixCache) -> Vec<EntryId> {
    cache.eviction_order().map(|entry| entry.id).collect()
}

/// S-40: below the shortest seed only a whole entry serves; `n` is whole pages of the span.
#[test]
fn short_seed_is_served_by_a_whole_entry_only() {
    let shape = CacheShape { seed_min_tokens: 4, ..SHAPE };
    let (cache, ids) = cache(shape, &[line(6), branch(0, 2, 1)]);
    assert_eq!(cache.find_seed(&TEXT, &line(6), 3, false), None);
    assert_eq!(cache.find_seed(&TEXT, &line(6), 4, false), Some(ids[0]));
    assert_eq!(cache.find_seed(&TEXT, &branch(0, 2, 1), 2, false), Some(ids[1]));
    assert_eq!(cache.find_seed(&TEXT, &line(6), 0, false), None);
    assert_eq!(cache.find_seed(&TEXT, &line(6), 7, false), None, "longer than the span");
    let (paged, _) = self::cache(CacheShape { page_size_tokens: 4, ..SHAPE }, &[line(8)]);
    assert_eq!(paged.find_seed(&TEXT, &line(8), 6, false), None, "no multiple of the page");
}

/// S-40, S-46: a head-only state serves whole, and only spans that go on.
#[test]
fn head_only_entry_serves_whole_to_longer_spans() {
    let (cache, ids) = cache(CacheShape { cuttable: false, ..SHAPE }, &[line(40)]);
    assert_eq!(cache.find_seed(&TEXT, &line(42), 40, false), Some(ids[0]));
    assert_eq!(cache.find_seed(&TEXT, &line(42), 32, false), None);
    assert_eq!(cache.find_seed(&TEXT, &line(40), 40, false), None);
    assert_eq!((lens(&cache, &line(40)), lens(&cache, &line(41))), (vec![], vec![40]));
    assert!(!cache.is_covered(ids[0]), "S-53: never");
}

/// S-41: an entry in the pool beats an older exported one; within a tier the oldest is taken.
#[test]
fn pool_beats_export_and_then_age_decides() {
    let (mut cache, ids) = cache(SHAPE, &[branch(8, 1, 1), branch(8, 1, 2), branch(8, 1, 3)]);
    export(&mut cache, ids[0]);
    assert_eq!(cache.find_seed(&TEXT, &line(8), 8, false), Some(ids[1]));
    export(&mut cache, ids[1]);
    export(&mut cache, ids[2]);
    assert_eq!(cache.find_seed(&TEXT, &line(8), 8, false), Some(ids[0]));
}

/// S-42, S-44, S-45: a lease pins its entry out of every decision; it ends once.
#[test]
fn leased_entry_is_in_no_decision_until_the_lease_ends() {
    let (mut cache, ids) = cache(SHAPE, &[line(6)]);
    let lease = cache.acquire(&TEXT, &line(6), 6, 0, false, 1).expect("it serves");
    assert_eq!((cache.get(ids[0]).expect("it exists").pins, cache.evictable_bytes()), (1, 0));
    assert_eq!((order(&cache), cache.settling_victim(|_| true)), (vec![], None));
    export(&mut cache, ids[0]);
    let mut drops = vec![ids[0]];
    cache.begin_shortage(1, &mut drops);
    assert_eq!(drops, []);
    assert_eq!(cache.release(lease).map(|lease| lease.source), Some(LeaseSource::Entry(ids[0])));
    assert!(cache.release(lease).is_none() && cache.release(99).is_none());
    assert_eq!(cache.exports_by_worth().count(), 1);
    assert_eq!(cache.adopt(7, 3, 0, 1), lease + 1, "handles are not used again");
}

/// S-43, T-21: a lease serves through `expires_at`, and the first later tick sweeps it; the data stays.
#[test]
fn lease_is_swept_by_the_first_tick_after_its_last() {
    let (mut cache, ids) = cache(SHAPE, &[line(6)]);
    let lease = cache.acquire(&TEXT, &line(6), 6, 1, false, 10).expect("it serves");
    assert_eq!(cache.lease(lease).map(|lease| (lease.expires_at, lease.determinism_class)), Some((14, 1)));
    assert_eq!(cache.pop_expired(14), None);
    assert_eq!(cache.pop_expired(15).map(|lease| lease.prefix_tokens), Some(6));
    assert_eq!((cache.pop_expired(15), cache.lease(lease)), (None, None));
    assert_eq!(cache.get(ids[0]).map(|entry| entry.pins), Some(0));
}

/// S-46, S-51, SS-49: whole pages, one candidate per length, the longest first; an export serves only its real parts.
#[test]
fn candidates_are_whole_pages_longest_first() {
    let (mut cache, ids) = cache(SHAPE, &[branch(8, 8, 1), branch(8, 0, 0)]);
    export(&mut cache, ids[0]);
    assert_eq!(lens(&cache, &branch(8, 8, 1)), [16, 8]);
    let mut found = Vec::new();
    cache.matches(&TEXT, &line(8), &mut found);
    assert_eq!(found.iter().map(|c| (c.len, c.entry, c.in_pool)).collect::<Vec<_>>(), [(8, ids[1], true)]);
    cache.matches(&TEXT, &line(1), &mut found);
    assert_eq!(found.iter().map(|c| (c.len, c.entry)).collect::<Vec<_>>(), [(1, ids[1])]);
    cache.remove(ids[1]);
    assert_eq!((lens(&cache, &line(1)), lens(&cache, &line(2))), (vec![], vec![2]));
    let (paged, _) = self::cache(CacheShape { page_size_tokens: 16, ..SHAPE }, &[line(40)]);
    assert_eq!(lens(&paged, &line(39)), [32]);
}

/// S-47, S-49, S-53, S-96, SS-56: equal keys coexist at double bytes; the newer covers the older, and not the other way round.
#[test]
fn equal_keys_coexist_and_the_newer_covers_the_older() {
    let (cache, ids) = cache(SHAPE, &[line(6), line(6)]);
    let mut found = Vec::new();
    cache.exact(&TEXT, &line(6), &mut found);
    assert_eq!((found, cache.resident_bytes(), lens(&cache, &line(6))), (ids.clone(), 12, vec![6]));
    assert_eq!((cache.is_covered(ids[0]), cache.is_covered(ids[1])), (true, false));
}

/// S-48, T-145: bytes are those of the tokens held in the pool; an export holds its payload in host memory instead.
#[test]
fn bytes_are_of_tokens_held_where_they_are_held() {
    let mut cache = PrefixCache::new(CacheShape { bytes_per_token: 0, ..SHAPE });
    let id = cache.insert(NewEntry { held_tokens: 7, ..new(1, line(6), 1) });
    assert_eq!((cache.resident_bytes(), cache.evictable_bytes(), cache.host_bytes()), (7, 7, 0));
    export(&mut cache, id);
    assert_eq!((cache.resident_bytes(), cache.host_bytes(), cache.exported_tokens()), (0, 10, 6));
    assert!(cache.of_sequence(1).is_none(), "S-1: an export keeps the name alone");
}

/// S-51, T-80: a seed of an eighth is a use, a shorter one is counted only.
#[test]
fn seed_below_an_eighth_is_counted_but_no_use() {
    let (mut cache, ids) = cache(SHAPE, &[line(16)]);
    cache.seeded(ids[0], 1, 5);
    let standing = |cache: &PrefixCache| cache.get(ids[0]).map(|entry| (entry.seeded, entry.last_use));
    assert_eq!(standing(&cache), Some((1, 1)));
    cache.seeded(ids[0], 2, 6);
    assert_eq!(standing(&cache), Some((2, 6)));
}

/// S-52, S-54, S-98, SS-48: shared prefixes leave after all others; inside a group least recent use, then age.
#[test]
fn shared_prefixes_leave_last() {
    let keys: Vec<Vec<u32>> = (1..=5).map(|who| branch(0, 4, who)).collect();
    let (mut cache, ids) = cache(SHAPE, &keys);
    cache.seeded(ids[0], 4, 1);
    cache.seeded(ids[0], 4, 1);
    cache.seeded(ids[1], 4, 9);
    let marked = cache.insert(NewEntry { shared: true, ..new(6, branch(0, 4, 6), 0) });
    assert_eq!(order(&cache), [ids[2], ids[3], ids[4], ids[1], marked, ids[0]]);
    let mut chosen = Vec::new();
    assert!(!cache.choose_evictions(100, false, &mut chosen, |_, _| false));
    assert_eq!(chosen, [ids[2], ids[3], ids[4], ids[1]]);
}

/// S-53, S-95: the lengths of the scenarios SS-38, SS-39 and SS-40.
#[test]
fn entry_is_covered_by_what_serves_it() {
    let covered = |keys: &[Vec<u32>], shape: CacheShape| {
        let (cache, ids) = cache(shape, keys);
        ids.into_iter().map(|id| cache.is_covered(id)).collect::<Vec<_>>()
    };
    assert_eq!(covered(&[line(6), line(9), line(12)], SHAPE), [true, true, false], "turns that grow");
    assert_eq!(covered(&[line(16), branch(15, 3, 1)], SHAPE), [true, false], "all but an eighth, used later");
    assert_eq!(covered(&[branch(15, 3, 1), line(16)], SHAPE), [false, false], "3 of 18 tokens are more than an eighth");
    assert_eq!(covered(&[line(16), branch(8, 8, 1)], SHAPE), [false, false], "half in common");
    assert_eq!(covered(&[line(6), line(56)], SHAPE), [false, false], "6 tokens are no real part of 56");
    assert_eq!(covered(&[line(6), line(48)], SHAPE), [true, false]);
    assert_eq!(covered(&[line(6), line(9)], CacheShape { seed_min_tokens: 7, ..SHAPE }), [false, false]);
}

/// S-53, S-94: a taint must add nothing to that of what it covers; a clean seed is asked for alone.
#[test]
fn tainted_entry_covers_no_clean_one_and_serves_no_clean_seed() {
    let (mut cache, ids) = cache(SHAPE, &[line(6)]);
    let tainted = cache.insert(NewEntry { taint: 2, ..new(2, line(8), 2) });
    assert_eq!((cache.is_covered(ids[0]), lens(&cache, &line(8))), (false, vec![8, 6]));
    assert_eq!(cache.find_seed(&TEXT, &line(8), 8, false), Some(tainted));
    assert_eq!(cache.find_seed(&TEXT, &line(8), 8, true), None);
    assert_eq!(cache.acquire(&TEXT, &line(8), 8, 1, true, 1), Err(Unservable { len: 8 }));
    let worse = cache.insert(NewEntry { taint: 2 | 4, ..new(3, line(4), 3) });
    assert_eq!((cache.is_covered(worse), cache.is_covered(tainted)), (true, false));
}

/// S-55, T-68: an entry that would exceed the cap is skipped, and the walk ends when there is enough.
#[test]
fn eviction_skips_what_would_exceed_the_cap() {
    let (cache, ids) = cache(SHAPE, &[branch(0, 6, 1), branch(0, 9, 2), branch(0, 3, 3), branch(0, 1, 4)]);
    let mut chosen = Vec::new();
    assert!(cache.choose_evictions(10, true, &mut chosen, |bytes, _| bytes >= 9));
    assert_eq!(chosen, [ids[0], ids[2]]);
    assert!(cache.choose_evictions(10, true, &mut chosen, |_, _| true) && chosen.is_empty());
    assert!(!cache.choose_evictions(5, true, &mut chosen, |bytes, _| bytes >= 5));
    assert_eq!(chosen, [ids[2], ids[3]]);
}

/// S-56, SS-35, SS-36: exports worth no more make room, least first; when that is not enough, nothing is dropped.
#[test]
fn export_makes_room_from_what_is_worth_no_more() {
    let keys: Vec<Vec<u32>> = (1..=4).map(|who| branch(0, 6, who)).collect();
    let (mut cache, ids) = cache(CacheShape { exported_tokens_max: 12, ..SHAPE }, &keys);
    let mut drops = Vec::new();
    for id in &ids[..2] {
        assert_eq!((cache.leaving(*id, 9, &mut drops), &*drops), (Leaving::Export, &[][..]));
        export(&mut cache, *id);
    }
    assert_eq!((cache.leaving(ids[2], 9, &mut drops), &*drops), (Leaving::Export, &[ids[0]][..]));
    let lease = cache.acquire(&TEXT, &branch(0, 6, 1), 6, 0, false, 9).expect("it serves");
    assert_eq!((cache.leaving(ids[2], 9, &mut drops), &*drops), (Leaving::Export, &[ids[1]][..]));
    cache.seeded(ids[1], 6, 9);
    assert_eq!((cache.leaving(ids[2], 9, &mut drops), &*drops), (Leaving::Evict, &[][..]));
    cache.release(lease);
    cache.seeded(ids[0], 6, 9);
    assert_eq!(cache.leaving(ids[2], 9, &mut drops), Leaving::Evict, "both are worth more");
    let whole = cache.insert(NewEntry { held_tokens: 7, ..new(9, branch(0, 6, 9), 9) });
    assert_eq!(cache.leaving(whole, 9, &mut drops), Leaving::Evict, "its sequence is longer than its key");
}

/// S-57: the first entry that is covered or frees a cell leaves, else the first at all; covered exports go once something changed.
#[test]
fn settling_takes_the_covered_first_and_sweeps_exports() {
    let (mut cache, ids) = cache(SHAPE, &[branch(0, 6, 1), line(6), line(8), branch(0, 6, 4)]);
    assert_eq!(cache.settling_victim(|_| false), Some(ids[1]), "covered");
    assert_eq!(cache.settling_victim(|entry| entry.sequence == 1), Some(ids[0]));
    assert_eq!(cache.next_covered_export(), None);
    export(&mut cache, ids[1]);
    assert_eq!(cache.next_covered_export(), None, "nothing was inserted or used since the last settling");
    cache.seeded(ids[3], 6, 5);
    assert_eq!(cache.next_covered_export(), Some(ids[1]));
    assert!(cache.remove(ids[1]).is_some());
    assert_eq!(cache.next_covered_export(), None);
    let (plain, ids) = self::cache(SHAPE, &[branch(0, 6, 1), branch(0, 6, 2)]);
    assert_eq!(plain.settling_victim(|_| false), Some(ids[0]));
}

/// S-57, S-42: a covered export under a lease stays, and goes at the first settling after the lease.
#[test]
fn covered_export_goes_when_its_lease_has_ended() {
    let (mut cache, ids) = cache(SHAPE, &[line(6)]);
    export(&mut cache, ids[0]);
    let lease = cache.acquire(&TEXT, &line(6), 6, 0, false, 1).expect("it serves");
    cache.insert(new(2, line(8), 2));
    assert_eq!(cache.next_covered_export(), None);
    cache.release(lease);
    cache.insert(new(3, branch(0, 5, 3), 3));
    assert_eq!(cache.next_covered_export(), Some(ids[0]));
}

/// S-58, S-59: by digest and by exact key, in either tier; a longer or shorter key is another one.
#[test]
fn entries_are_found_by_digest_and_by_exact_key() {
    let (mut cache, ids) = cache(SHAPE, &[line(3), line(4), line(3)]);
    export(&mut cache, ids[0]);
    let mut found = Vec::new();
    cache.of_digest(&crate::identity::content_digest(&line(3)), &mut found);
    assert_eq!(found, [ids[0], ids[2]]);
    cache.exact(&TEXT, &line(2), &mut found);
    assert_eq!(found, []);
    cache.exact(&TEXT, &line(4), &mut found);
    assert_eq!(found, [ids[1]]);
}

/// S-60: a shortage lasts 64 ticks, in which leaving means eviction.
#[test]
fn shortage_lasts_sixty_four_ticks() {
    let (mut cache, ids) = cache(SHAPE, &[branch(0, 6, 1), branch(0, 6, 2)]);
    export(&mut cache, ids[0]);
    let mut drops = Vec::new();
    cache.begin_shortage(100, &mut drops);
    assert_eq!(drops, [ids[0]]);
    for (now, leaving) in [(101, Leaving::Evict), (164, Leaving::Evict), (165, Leaving::Export)] {
        assert_eq!(cache.leaving(ids[1], now, &mut drops), leaving, "tick {now}");
    }
}

/// Entries of another adapter or other media do not exist for a span.
#[test]
fn scopes_do_not_serve_or_cover_each_other() {
    let (mut cache, ids) = cache(SHAPE, &[line(6)]);
    let other = Scope([1; 32]);
    let id = cache.insert(NewEntry { scope: other, ..new(2, line(8), 2) });
    assert!(!cache.is_covered(ids[0]));
    assert_eq!(lens(&cache, &line(8)), [6]);
    assert_eq!(cache.find_seed(&other, &line(8), 8, false), Some(id));
    assert_eq!(cache.find_seed(&TEXT, &line(8), 8, false), None);
}

/// S-95: two thousand keys, each beginning with the one before; every answer is on one path.
#[test]
fn long_chain_of_keys_is_answered_without_recursion() {
    let keys: Vec<Vec<u32>> = (1..=2000).map(line).collect();
    let shape = CacheShape { exported_tokens_max: u64::MAX, ..SHAPE };
    let (mut cache, ids) = cache(shape, &keys[..]);
    assert_eq!(lens(&cache, &line(2000)).len(), 2000);
    assert_eq!(cache.find_seed(&TEXT, &line(2000), 5, false), Some(ids[4]));
    assert!(cache.is_covered(ids[17]));
    ids[..1900].iter().for_each(|&id| export(&mut cache, id));
    let mut dropped = 0;
    while let Some(id) = cache.next_covered_export() {
        assert!(cache.remove(id).is_some());
        dropped += 1;
    }
    assert_eq!(dropped, 1900, "each goes on in a longer one");
    cache.audit().expect("the invariants hold");
}
