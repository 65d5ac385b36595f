#![forbid(unsafe_code)]
//! How many prompt tokens a tick may run while others decode.
//!
//! Prompt tokens and decoding lanes share the tokens of a tick. Where a time is wished for, the rate of the last prompts says how many
//! tokens that is; the rate is averaged as the engine's own (T-94), so one odd tick does not swing it.

use core::time::Duration;

use super::clock::nanoseconds;

/// The rate of prompts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    tick_tokens: u32,
    target_ns: u64,
    ns_per_token: Option<f64>,
}

/// Fewest prompt tokens of a tick, so that prompts always get on.
const TOKENS_MIN: u32 = 16;
/// A sample of fewer tokens says more about the step than about the tokens.
const SAMPLE_MIN: u32 = 16;

impl Pace {
    pub(super) fn new(tick_tokens: u32, target: Duration) -> Self {
        Self { tick_tokens, target_ns: nanoseconds(target), ns_per_token: None }
    }

    /// Prompt tokens beside so many decoding lanes.
    pub(super) fn budget(&self, decoding: usize) -> u32 {
        if decoding == 0 {
            return self.tick_tokens;
        }
        let least = TOKENS_MIN.min(self.tick_tokens);
        let lanes = u32::try_from(decoding).unwrap_or(u32::MAX);
        // Many lanes never squeeze the prompts out.
        let shared = self.tick_tokens.saturating_sub(lanes).max(self.tick_tokens / 4);
        let timed = match self.ns_per_token {
            Some(rate) if self.target_ns > 0 && rate > 0.0 => (self.target_ns as f64 / rate) as u32,
            _ => u32::MAX,
        };
        shared.min(timed).max(least)
    }

    /// Learns from a tick.
    pub(super) fn record(&mut self, tokens: u32, prefill_ns: u64) {
        if tokens < SAMPLE_MIN {
            return;
        }
        let sample = prefill_ns as f64 / f64::from(tokens);
        self.ns_per_token = Some(self.ns_per_token.map_or(sample, |rate| 0.7 * rate + 0.3 * sample));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_follows_the_rate_within_its_bounds() {
        let mut pace = Pace::new(512, Duration::from_millis(100));
        assert_eq!(pace.budget(0), 512);
        assert_eq!(pace.budget(4), 508, "no rate is known yet");
        assert_eq!(pace.budget(1000), 128);
        pace.record(512, 512_000_000);
        assert_eq!(pace.budget(4), 100);
        assert_eq!(pace.budget(0), 512, "nobody waits for a token");
        pace.record(15, u64::MAX);
        assert_eq!(pace.budget(4), 100, "too few tokens to tell");
        pace.record(512, u64::MAX);
        assert_eq!(pace.budget(4), 16, "prompts get on all the same");
        assert_eq!(Pace::new(8, Duration::ZERO).budget(100), 8);
    }
}
