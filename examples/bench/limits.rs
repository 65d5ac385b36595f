//! What this machine can do at all: read bandwidth, f32 multiply-adds, int8 dot products.

use std::hint::black_box;
use std::time::Instant;

/// The limits, all threads together; 0 where the instructions are missing.
#[derive(Clone, Copy)]
pub struct Limits {
    pub read_gbs: f64,
    pub int8_gops: f64,
    pub fma_gflops: f64,
}

/// Peak resident memory of this process in bytes; 0 where the system does not tell.
pub fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)).and_then(|number| number.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Resident memory of this process by kind, in bytes: the file's pages, memory of its own, and what of that lies in huge pages.
pub fn memory() -> serde_json::Value {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    };
    let [resident, anonymous, huge] = ["Rss:", "Anonymous:", "AnonHugePages:"].map(|name| bytes(name).unwrap_or(0));
    serde_json::json!({ "resident_bytes": resident, "file_bytes": resident.saturating_sub(anonymous),
        "anonymous_bytes": anonymous, "huge_bytes": huge })
}

pub fn measure(threads: usize) -> Limits {
    let rounded = |x: f64| (x * 10.0).round() / 10.0;
    Limits {
        read_gbs: rounded(read_gbs(threads)),
        int8_gops: rounded(best(threads, kernels::int8_gop)),
        fma_gflops: rounded(best(threads, kernels::fma_gflop)),
    }
}

/// Best of five: billions of operations per second when every thread runs `work`, which answers the billions it did.
fn best(threads: usize, work: fn() -> f64) -> f64 {
    let once = |_| {
        let started = Instant::now();
        let done: f64 = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            workers.into_iter().map(|worker| worker.join().unwrap_or(0.0)).sum()
        });
        done / started.elapsed().as_secs_f64()
    };
    (0..5).map(once).fold(0.0, f64::max)
}

/// Reads 1 GiB from memory, each thread four streams of its part.
fn read_gbs(threads: usize) -> f64 {
    const WORDS: usize = 1 << 27;
    let buffer = vec![1u64; WORDS];
    let part = WORDS / threads / 4;
    let once = |_| {
        let started = Instant::now();
        std::thread::scope(|scope| {
            for thread in buffer.chunks(part * 4).take(threads) {
                scope.spawn(move || {
                    let streams: Vec<&[u64]> = thread.chunks_exact(part).collect();
                    let [a, b, c, d] = streams[..] else { return };
                    let mut sums = [0u64; 32];
                    let chunks = a.chunks_exact(8).zip(b.chunks_exact(8)).zip(c.chunks_exact(8).zip(d.chunks_exact(8)));
                    for ((a, b), (c, d)) in chunks {
                        for i in 0..8 {
                            sums[i] = sums[i].wrapping_add(a[i]);
                            sums[8 + i] = sums[8 + i].wrapping_add(b[i]);
                            sums[16 + i] = sums[16 + i].wrapping_add(c[i]);
                            sums[24 + i] = sums[24 + i].wrapping_add(d[i]);
                        }
                    }
                    black_box(sums);
                });
            }
        });
        (part * 4 * threads * 8) as f64 / 1e9 / started.elapsed().as_secs_f64()
    };
    (0..5).map(once).fold(0.0, f64::max)
}

#[cfg(target_arch = "x86_64")]
mod kernels {
    use core::arch::x86_64::*;
    use std::hint::black_box;

    const ROUNDS: usize = 20_000_000;

    /// Int8 dot products of the widest kind that the processor has.
    pub fn int8_gop() -> f64 {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni") {
            // SAFETY: AVX-512 and VNNI were detected above.
            unsafe { dot512() };
            // 64 products and 64 additions each.
            ROUNDS as f64 * 128.0 / 1e9
        } else {
            int8_gop_256()
        }
    }

    /// Fused multiply-adds of the widest kind that the processor has.
    pub fn fma_gflop() -> f64 {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: AVX-512 was detected above.
            unsafe { fma512() };
            ROUNDS as f64 * 32.0 / 1e9
        } else {
            fma_gflop_256()
        }
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn dot512() {
        let (x, y) = (black_box(_mm512_set1_epi8(1)), black_box(_mm512_set1_epi8(2)));
        let mut sums = [_mm512_setzero_si512(); 10];
        for _ in 0..ROUNDS / 10 {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, x, y);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f")]
    fn fma512() {
        let (x, y) = (black_box(_mm512_set1_ps(0.5)), black_box(_mm512_set1_ps(1.0)));
        let mut sums = [_mm512_setzero_ps(); 10];
        for _ in 0..ROUNDS / 10 {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, x, y);
            }
        }
        black_box(sums);
    }

    /// Ten independent chains of `maddubs` + `madd`, the widening int8 dot product.
    fn int8_gop_256() -> f64 {
        if !is_x86_feature_detected!("avx2") {
            return 0.0;
        }
        #[target_feature(enable = "avx2")]
        fn run() {
            let (x, y, ones) = (black_box(_mm256_set1_epi8(1)), black_box(_mm256_set1_epi8(2)), _mm256_set1_epi16(1));
            let mut sums = [_mm256_setzero_si256(); 10];
            for _ in 0..ROUNDS / 10 {
                for sum in &mut sums {
                    // The operand depends on the sum, so that the product cannot be hoisted.
                    let moved = _mm256_xor_si256(y, *sum);
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, moved), ones));
                }
            }
            black_box(sums);
        }
        // SAFETY: AVX2 was detected above.
        unsafe { run() };
        // 32 products and 32 additions each.
        ROUNDS as f64 * 64.0 / 1e9
    }

    /// Ten independent chains of fused multiply-adds.
    fn fma_gflop_256() -> f64 {
        if !is_x86_feature_detected!("fma") || !is_x86_feature_detected!("avx") {
            return 0.0;
        }
        #[target_feature(enable = "avx,fma")]
        fn run() {
            let (x, y) = (black_box(_mm256_set1_ps(0.5)), black_box(_mm256_set1_ps(1.0)));
            let mut sums = [_mm256_setzero_ps(); 10];
            for _ in 0..ROUNDS / 10 {
                for sum in &mut sums {
                    *sum = _mm256_fmadd_ps(*sum, x, y);
                }
            }
            black_box(sums);
        }
        // SAFETY: AVX and FMA were detected above.
        unsafe { run() };
        ROUNDS as f64 * 16.0 / 1e9
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod kernels {
    pub fn int8_gop() -> f64 {
        0.0
    }

    pub fn fma_gflop() -> f64 {
        0.0
    }
}
