//! What the bookkeeping of pages costs, alone and beside ten thousand other sequences; each bench asserts its result.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use ictus::kv::{Growth, Handle, Sequences, SequencesShape};

const PAGE_SIZE_TOKENS: usize = 16;
/// Tokens of the sequence that is forked.
const LONG_TOKENS: usize = 32 * 1024;
/// Forks that exist together.
const FORKS: usize = 64;

/// A pool with one long sequence, and others of one page each.
fn pool(others: usize) -> (Sequences, Handle) {
    let shape =
        SequencesShape { pages: 1 << 16, page_size_tokens: PAGE_SIZE_TOKENS, sequence_tokens: 1 << 20, sequences: 0 };
    let mut kv = Sequences::new(shape).expect("memory");
    let long = kv.create().expect("a slot");
    let mut growths = vec![Growth { handle: long, tokens: LONG_TOKENS }];
    growths.extend((0..others).map(|_| Growth { handle: kv.create().expect("a slot"), tokens: 1 }));
    kv.grow(&growths, &mut Vec::new()).expect("pages");
    assert_eq!(kv.pool().pages_used(), LONG_TOKENS / PAGE_SIZE_TOKENS + others);
    (kv, long)
}

fn bookkeeping(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("kv");
    for others in [0, 10_000] {
        let (mut kv, long) = pool(others);
        let used = kv.pool().pages_used();
        group.bench_function(format!("fork 32k tokens, {others} others"), |bencher| {
            bencher.iter_custom(|forks| {
                let mut forked = Vec::with_capacity(FORKS);
                let mut time = Duration::ZERO;
                for _ in 0..forks.div_ceil(FORKS as u64) {
                    let start = Instant::now();
                    for _ in 0..FORKS {
                        let target = kv.create().expect("a slot");
                        kv.share(long, target, LONG_TOKENS as u64).expect("it is held");
                        forked.push(target);
                    }
                    time += start.elapsed();
                    assert_eq!(kv.pool().pages_used(), used, "a fork takes no page");
                    forked.drain(..).for_each(|target| assert!(kv.free(target)));
                }
                time.mul_f64(forks as f64 / (forks.div_ceil(FORKS as u64) * FORKS as u64) as f64)
            });
        });
        group.bench_function(format!("create, grow by one, free, {others} others"), |bencher| {
            let mut copies = Vec::new();
            bencher.iter(|| {
                let handle = kv.create().expect("a slot");
                kv.grow(&[Growth { handle, tokens: 1 }], &mut copies).expect("a page");
                assert!(kv.free(black_box(handle)));
            });
            assert!(copies.is_empty());
            assert_eq!(kv.pool().pages_used(), used);
        });
        group.bench_function(format!("pages released by 32k tokens, {others} others"), |bencher| {
            bencher.iter(|| assert_eq!(kv.pages_released(black_box(&[long])), LONG_TOKENS / PAGE_SIZE_TOKENS));
        });
    }
    group.finish();
}

criterion_group!(benches, bookkeeping);
criterion_main!(benches);
