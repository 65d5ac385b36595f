//! What this machine can do at all: read bandwidth, f32 multiply-adds, int8 dot products.
//!
//! Every figure is the best of many rounds, each a few milliseconds long, so that some are over before anybody else on the machine gets in
//! between. Threads wait for each other before and behind a round; its time is that from before the first begins until the last has ended.

use std::hint::black_box;
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::Instant;

use ictus::InstructionSet;

/// The limits, all threads together; 0 where the instruction set has nothing that was measured.
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

/// The limits of so many threads with these instructions.
pub fn measure(threads: usize, set: InstructionSet) -> Limits {
    let rounded = |x: f64| (x * 10.0).round() / 10.0;
    let computing =
        |kernel: Option<kernels::Kernel>| kernel.map_or(0.0, |kernel| best(threads, 24, || move |_| kernel()));
    Limits {
        read_gbs: rounded(read_gbs(threads)),
        int8_gops: rounded(computing(kernels::int8_gop(set))),
        fma_gflops: rounded(computing(kernels::fma_gflop(set))),
    }
}

/// Most that all threads together did in a second, over so many rounds. `worker` runs once in each thread and makes what it does in a round,
/// which answers how much that was.
fn best<W: FnMut(usize) -> f64>(threads: usize, rounds: usize, worker: impl Fn() -> W + Sync) -> f64 {
    let (gate, done) = (Barrier::new(threads + 1), Mutex::new(0.0));
    let lock = || done.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut work = worker();
                for round in 0..rounds {
                    gate.wait(); // All are ready.
                    gate.wait(); // The clock runs.
                    let amount = work(round);
                    *lock() += amount;
                    gate.wait();
                }
            });
        }
        let rate = |_| {
            gate.wait();
            *lock() = 0.0;
            let started = Instant::now();
            gate.wait();
            gate.wait();
            *lock() / started.elapsed().as_secs_f64()
        };
        (0..rounds).map(rate).fold(0.0, f64::max)
    })
}

/// 64 bytes.
type Line = [u64; 8];

/// Reads memory that no cache holds: 1 GiB in all, 64 MiB a thread at least, an eighth of it in a round. Each thread owns what it reads, as
/// one stream and as four, round by round, because processors differ in which is faster.
fn read_gbs(threads: usize) -> f64 {
    let lines = ((1 << 24) / threads).max(1 << 20);
    best(threads, 32, || {
        let buffer: Vec<Line> = vec![[1; 8]; lines];
        move |round| {
            let part = lines / 8;
            let part = &buffer[round % 8 * part..][..part];
            // Streams that are a power of two apart meet in the same bank of the memory, which halves what they read, so these are not.
            let stream = part.len() / 4 - 577;
            let read = if round % 2 == 0 { one_stream(part) } else { four_streams(&part[..4 * stream], stream) };
            (read * size_of::<Line>()) as f64 / 1e9
        }
    })
}

/// Lines that it read: all of them.
fn one_stream(lines: &[Line]) -> usize {
    let mut sum = [0; 8];
    lines.iter().for_each(|line| mix(&mut sum, line));
    black_box(sum);
    lines.len()
}

/// The same, four lines at a time, `stream` lines apart.
fn four_streams(lines: &[Line], stream: usize) -> usize {
    let mut sum = [0; 8];
    let streams: Vec<&[Line]> = lines.chunks_exact(stream).collect();
    if let [a, b, c, d] = streams[..] {
        for ((a, b), (c, d)) in a.iter().zip(b).zip(c.iter().zip(d)) {
            [a, b, c, d].into_iter().for_each(|line| mix(&mut sum, line));
        }
    }
    black_box(sum);
    lines.len()
}

/// One sum for all streams: it stays in registers, and its additions are far faster than memory.
#[inline(always)]
fn mix(sum: &mut Line, line: &Line) {
    for (sum, word) in sum.iter_mut().zip(line) {
        *sum ^= word;
    }
}

#[cfg(target_arch = "x86_64")]
mod kernels {
    use core::arch::asm;
    use core::arch::x86_64::*;
    use std::hint::black_box;

    use ictus::InstructionSet;

    /// Answers the billions of operations that it did.
    pub type Kernel = fn() -> f64;

    const ROUNDS: usize = 20_000_000;

    /// Int8 dot products, as wide as these instructions have them; none where the processor lacks them.
    pub fn int8_gop(set: InstructionSet) -> Option<Kernel> {
        match set {
            _ if !set.is_available() => None,
            // SAFETY: the processor has it.
            InstructionSet::Avx512Vnni => Some(|| unsafe { dot_vnni() }),
            // SAFETY: as above.
            InstructionSet::Avx512 => Some(|| unsafe { dot_512() }),
            // SAFETY: as above.
            InstructionSet::Avx2 => Some(|| unsafe { dot_256() }),
            _ => None,
        }
    }

    /// Fused multiply-adds, likewise.
    pub fn fma_gflop(set: InstructionSet) -> Option<Kernel> {
        match set {
            _ if !set.is_available() => None,
            // SAFETY: as above.
            InstructionSet::Avx512Vnni | InstructionSet::Avx512 => Some(|| unsafe { fma_512() }),
            // SAFETY: as above.
            InstructionSet::Avx2 => Some(|| unsafe { fma_256() }),
            _ => None,
        }
    }

    /// Ten independent chains, here as below: more than the latency of an instruction times those that begin in a cycle.
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn dot_vnni() -> f64 {
        let (x, y) = (black_box(_mm512_set1_epi8(1)), black_box(_mm512_set1_epi8(2)));
        let mut sums = [_mm512_setzero_si512(); 10];
        for _ in 0..ROUNDS / 10 {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, x, y);
            }
        }
        black_box(sums);
        // 64 products and 64 additions each.
        ROUNDS as f64 * 128.0 / 1e9
    }

    /// `maddubs`, `madd` and an addition: the widening dot product of who has no single instruction for it.
    #[target_feature(enable = "avx512f,avx512bw")]
    fn dot_512() -> f64 {
        let (x, mut y) = (black_box(_mm512_set1_epi8(1)), black_box(_mm512_set1_epi8(2)));
        let ones = _mm512_set1_epi16(1);
        let mut sums = [_mm512_setzero_si512(); 10];
        for _ in 0..ROUNDS / 10 {
            for sum in &mut sums {
                // SAFETY: no instruction; the compiler takes the operand for another one, and computes the product again.
                unsafe { asm!("/* {0} */", inout(zmm_reg) y, options(pure, nomem, nostack, preserves_flags)) };
                *sum = _mm512_add_epi32(*sum, _mm512_madd_epi16(_mm512_maddubs_epi16(x, y), ones));
            }
        }
        black_box(sums);
        ROUNDS as f64 * 128.0 / 1e9
    }

    #[target_feature(enable = "avx2")]
    fn dot_256() -> f64 {
        let (x, mut y) = (black_box(_mm256_set1_epi8(1)), black_box(_mm256_set1_epi8(2)));
        let ones = _mm256_set1_epi16(1);
        let mut sums = [_mm256_setzero_si256(); 10];
        for _ in 0..ROUNDS / 10 {
            for sum in &mut sums {
                // SAFETY: as above.
                unsafe { asm!("/* {0} */", inout(ymm_reg) y, options(pure, nomem, nostack, preserves_flags)) };
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), ones));
            }
        }
        black_box(sums);
        // 32 products and 32 additions each.
        ROUNDS as f64 * 64.0 / 1e9
    }

    #[target_feature(enable = "avx512f")]
    fn fma_512() -> f64 {
        let (x, y) = (black_box(_mm512_set1_ps(0.5)), black_box(_mm512_set1_ps(1.0)));
        let mut sums = [_mm512_setzero_ps(); 10];
        for _ in 0..ROUNDS / 10 {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, x, y);
            }
        }
        black_box(sums);
        ROUNDS as f64 * 32.0 / 1e9
    }

    #[target_feature(enable = "avx,fma")]
    fn fma_256() -> f64 {
        let (x, y) = (black_box(_mm256_set1_ps(0.5)), black_box(_mm256_set1_ps(1.0)));
        let mut sums = [_mm256_setzero_ps(); 10];
        for _ in 0..ROUNDS / 10 {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, x, y);
            }
        }
        black_box(sums);
        ROUNDS as f64 * 16.0 / 1e9
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod kernels {
    use ictus::InstructionSet;

    pub type Kernel = fn() -> f64;

    pub fn int8_gop(_: InstructionSet) -> Option<Kernel> {
        None
    }

    pub fn fma_gflop(_: InstructionSet) -> Option<Kernel> {
        None
    }
}
