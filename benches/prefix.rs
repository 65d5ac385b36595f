//! What the prefix cache costs at a thousand and at ten thousand entries; each bench asserts its result.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use ictus::prefix::{CacheShape, EntryId, Leaving, NewEntry, PrefixCache, Scope};

const SCOPE: Scope = Scope([0; 32]);
/// Tokens of the longest key and of the span that is matched.
const LONG_TOKENS: usize = 32 * 1024;
/// Tokens that every second key begins with.
const COMMON_TOKENS: usize = 512;

/// Fixed ids, spread over a vocabulary of 2^17.
fn tokens(count: usize, key: u32) -> Vec<u32> {
    let mut x = key.wrapping_mul(2_654_435_761);
    let next = |_| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        x >> 15
    };
    (0..count).map(next).collect()
}

/// A key of 1024 tokens: of the odd ones the first half is the same, and that of the long key.
fn key(number: u32) -> Vec<u32> {
    let mut key = if number % 2 == 1 { tokens(LONG_TOKENS, 0)[..COMMON_TOKENS].to_vec() } else { Vec::new() };
    key.extend(tokens(1024 - key.len(), number + 1));
    key
}

fn new_entry(sequence: u64, tokens: Vec<u32>) -> NewEntry {
    NewEntry {
        scope: SCOPE,
        sequence,
        prompt_len: 0,
        held_tokens: tokens.len() as u64,
        tokens,
        now: sequence,
        shared: false,
        taint: 0,
        generation: 1,
        adapter: 0,
    }
}

/// One entry of 32 768 tokens, and others of 1024; a tenth of these is exported.
fn cache(entries: u32) -> PrefixCache {
    let mut cache = PrefixCache::new(CacheShape {
        page_size_tokens: 16,
        cuttable: true,
        bytes_per_token: 1,
        seed_min_tokens: 16,
        exported_tokens_max: u64::MAX,
        lease_ticks: 64,
    });
    cache.insert(new_entry(1, tokens(LONG_TOKENS, 0)));
    for number in 1..entries {
        let id = cache.insert(new_entry(u64::from(number) + 1, key(number)));
        if number % 10 == 0 {
            cache.export_done(id, vec![0; 8]).expect("it was in the pool");
        }
    }
    assert_eq!(cache.len(), entries as usize);
    cache
}

fn prefix(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("prefix");
    for entries in [1_000, 10_000] {
        let mut cache = cache(entries);
        let mut found = Vec::new();
        let span = tokens(LONG_TOKENS, 0);
        group.bench_function(format!("match 32k tokens, {entries} entries"), |bencher| {
            bencher.iter(|| {
                cache.matches(&SCOPE, black_box(&span), &mut found);
                assert_eq!((found[0].len, found[1].len, found.len()), (LONG_TOKENS, COMMON_TOKENS, 2));
            });
        });
        group.bench_function(format!("match nothing, {entries} entries"), |bencher| {
            let span = tokens(LONG_TOKENS, u32::MAX);
            bencher.iter(|| {
                cache.matches(&SCOPE, black_box(&span), &mut found);
                assert!(found.is_empty());
            });
        });
        group.bench_function(format!("insert and remove 1k tokens, {entries} entries"), |bencher| {
            bencher.iter_batched(
                || new_entry(u64::MAX, key(entries + 1)),
                |new| {
                    let id = cache.insert(new);
                    assert!(cache.remove(id).is_some());
                },
                BatchSize::SmallInput,
            );
        });
        group.bench_function(format!("insert, choose a victim, evict, settle, {entries} entries"), |bencher| {
            let mut chosen: Vec<EntryId> = Vec::new();
            bencher.iter_batched(
                || new_entry(0, key(entries + 1)),
                |new| {
                    // No entry was used longer ago, so it is its own victim and the cache stays as it is.
                    let id = cache.insert(new);
                    assert!(cache.choose_evictions(u64::MAX, true, &mut chosen, |_, chosen| !chosen.is_empty()));
                    let victim = chosen[0];
                    let mut drops = Vec::new();
                    assert_eq!((victim, cache.leaving(victim, 0, &mut drops)), (id, Leaving::Export));
                    assert_eq!(cache.remove(victim).map(|entry| entry.id), Some(victim));
                    assert_eq!(cache.next_covered_export(), None);
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, prefix);
criterion_main!(benches);
