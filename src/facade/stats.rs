#![forbid(unsafe_code)]
//! What has happened: counters that only rise, and how long rows took.
//!
//! Counters are single words that threads add to; a snapshot is not one moment. Uncounted sequences add to none of the product's.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::work::{FaultCode, Kind};
use crate::capacity::Refusal;

/// Powers of two of nanoseconds that a histogram tells apart.
const BUCKETS: usize = 48;

/// How long something took, in powers of two of nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Samples that took `2^i .. 2^(i + 1)` nanoseconds, shorter ones in the first, longer ones in the last.
    pub counts: [u64; BUCKETS],
    /// Sum of all samples in nanoseconds.
    pub total_ns: u64,
}

impl Latency {
    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Mean in nanoseconds; 0 without samples.
    pub fn mean_ns(&self) -> f64 {
        match self.samples() {
            0 => 0.0,
            samples => self.total_ns as f64 / samples as f64,
        }
    }

    /// Samples per second of the time they took; 0 without samples.
    pub fn per_second(&self) -> f64 {
        match (self.samples(), self.total_ns) {
            (0, _) | (_, 0) => 0.0,
            (samples, total_ns) => samples as f64 * 1e9 / total_ns as f64,
        }
    }
}

/// What a core is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum CoreState {
    /// Not yet able to serve. A core that was made is past it.
    Loading,
    /// Able to serve.
    #[default]
    Ready,
    /// Able to serve, with runs in flight.
    Busy,
    /// Its runtime is broken: nothing runs any more.
    Faulted,
    /// Shut down, or about to be.
    Closing,
}

impl CoreState {
    /// Whether it takes work.
    pub fn serves(self) -> bool {
        matches!(self, Self::Ready | Self::Busy)
    }
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stats {
    /// What it is doing.
    pub state: CoreState,
    /// Counted sequences admitted.
    pub admissions: u64,
    /// Calls that were blocked.
    pub blocked: u64,
    /// Calls whose demand can never be met.
    pub never: u64,
    /// Calls for what is not offered.
    pub unsupported: u64,
    /// Calls that were wrong.
    pub bad: u64,
    /// Batches that were submitted.
    pub runs: u64,
    /// Rows answered for chunks, for decodes, for verifications.
    pub rows: [u64; 3],
    /// Tokens of chunks that ran.
    pub prefill_tokens: u64,
    /// Tokens of decodes and verifications that ran.
    pub decode_tokens: u64,
    /// Chunks that were cut short.
    pub narrowings: u64,
    /// Growths that were published.
    pub growths: u64,
    /// Entries of the cache that left the pool to make room for a batch.
    pub evictions: u64,
    /// Items that failed, by [`FaultCode`].
    pub faults: [u64; 4],
    /// Rows that held a value that is not finite.
    pub non_finite_rows: u64,
    /// Sequences that completed.
    pub completed: u64,
    /// Prompt tokens of completed sequences.
    pub prompt_tokens: u64,
    /// Output tokens of completed sequences, as their host counted them.
    pub output_tokens: u64,
    /// Waits that are parked now.
    pub waiters: u64,
    /// Units whose owner was in doubt.
    pub accounting_faults: u64,
    /// How long batches took that held a chunk, per row of a chunk.
    pub prefill: Latency,
    /// How long batches took that held a decode, per row of a decode.
    pub decode: Latency,
}

/// The counters of a core.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) admissions: AtomicU64,
    blocked: AtomicU64,
    never: AtomicU64,
    unsupported: AtomicU64,
    bad: AtomicU64,
    pub(super) runs: AtomicU64,
    rows: [AtomicU64; 3],
    prefill_tokens: AtomicU64,
    decode_tokens: AtomicU64,
    pub(super) narrowings: AtomicU64,
    pub(super) growths: AtomicU64,
    pub(super) evictions: AtomicU64,
    faults: [AtomicU64; 4],
    pub(super) non_finite_rows: AtomicU64,
    completed: AtomicU64,
    prompt_tokens: AtomicU64,
    output_tokens: AtomicU64,
    pub(super) doubts: AtomicU64,
    prefill: Histogram,
    decode: Histogram,
}

#[derive(Debug)]
struct Histogram {
    counts: [AtomicU64; BUCKETS],
    total_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BUCKETS], total_ns: AtomicU64::new(0) }
    }
}

impl Histogram {
    fn add(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = (ns.max(1).ilog2() as usize).min(BUCKETS - 1);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Relaxed);
        }
        self.total_ns.fetch_add(ns, Relaxed);
    }

    fn read(&self) -> Latency {
        let counts = core::array::from_fn(|bucket| self.counts.get(bucket).map_or(0, |count| count.load(Relaxed)));
        Latency { counts, total_ns: self.total_ns.load(Relaxed) }
    }
}

impl Counters {
    /// Counts a call that was refused.
    pub(super) fn refused(&self, refusal: &Refusal) {
        let counter = match refusal {
            Refusal::Blocked(_) => &self.blocked,
            Refusal::Never(_) => &self.never,
            Refusal::Unsupported(_) => &self.unsupported,
            _ => &self.bad,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Counts a row of a counted sequence that committed so many tokens.
    pub(super) fn row(&self, kind: Kind, tokens: u64, took: Duration) {
        let (rows, sum, histogram) = match kind {
            Kind::Prefill => (&self.rows[0], &self.prefill_tokens, &self.prefill),
            Kind::Decode => (&self.rows[1], &self.decode_tokens, &self.decode),
            Kind::Verify => (&self.rows[2], &self.decode_tokens, &self.decode),
        };
        rows.fetch_add(1, Relaxed);
        sum.fetch_add(tokens, Relaxed);
        histogram.add(took);
    }

    pub(super) fn fault(&self, code: FaultCode) {
        self.faults[code as usize].fetch_add(1, Relaxed);
    }

    /// Records the usage of a sequence that completed.
    pub(super) fn completed(&self, prompt: usize, output: usize) {
        self.completed.fetch_add(1, Relaxed);
        self.prompt_tokens.fetch_add(prompt as u64, Relaxed);
        self.output_tokens.fetch_add(output as u64, Relaxed);
    }

    pub(super) fn read(&self, state: CoreState, waiters: u64, accounting_faults: u64) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        Stats {
            state,
            admissions: get(&self.admissions),
            blocked: get(&self.blocked),
            never: get(&self.never),
            unsupported: get(&self.unsupported),
            bad: get(&self.bad),
            runs: get(&self.runs),
            rows: [get(&self.rows[0]), get(&self.rows[1]), get(&self.rows[2])],
            prefill_tokens: get(&self.prefill_tokens),
            decode_tokens: get(&self.decode_tokens),
            narrowings: get(&self.narrowings),
            growths: get(&self.growths),
            evictions: get(&self.evictions),
            faults: core::array::from_fn(|code| self.faults.get(code).map_or(0, get)),
            non_finite_rows: get(&self.non_finite_rows),
            completed: get(&self.completed),
            prompt_tokens: get(&self.prompt_tokens),
            output_tokens: get(&self.output_tokens),
            waiters,
            accounting_faults: accounting_faults.saturating_add(get(&self.doubts)),
            prefill: self.prefill.read(),
            decode: self.decode.read(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X-66, XS-69: the half of the statistics.
    #[test]
    fn xs_69_rates_without_samples_are_zero() {
        let counters = Counters::default();
        let stats = counters.read(CoreState::Ready, 0, 0);
        assert_eq!((stats.prefill.mean_ns(), stats.decode.per_second()), (0.0, 0.0));
        counters.row(Kind::Decode, 1, Duration::from_nanos(1000));
        counters.row(Kind::Decode, 1, Duration::from_nanos(3000));
        counters.row(Kind::Decode, 1, Duration::MAX);
        let decode = counters.read(CoreState::Ready, 0, 0).decode;
        assert_eq!((decode.counts[9], decode.counts[11], decode.counts[47], decode.samples()), (1, 1, 1, 3));
    }
}
