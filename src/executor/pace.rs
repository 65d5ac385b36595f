#![forbid(unsafe_code)]
//! How long prefill steps may be (T-85 .. T-87, T-94).
//!
//! A long step makes everybody else wait. While somebody is waiting for latency, steps shrink to about 0.3 s at the rate that
//! prefill was measured to run at. By schedule invariance the length of a step never changes a token, only when it comes.

/// Aim for a step while latency is wanted, in seconds.
const SHORT_STEP_SECS: f64 = 0.3;
/// Step lengths are multiples of this many tokens while latency is wanted.
const STEP_QUANTUM_TOKENS: u32 = 128;
/// A full step at least this long is waited out, in seconds.
const LONG_STEP_SECS: f64 = 0.5;
/// Ticks with fewer prefill tokens say nothing about the rate.
const SAMPLE_TOKENS_MIN: u64 = 128;
/// Weight of the old rate when a new sample comes.
const OLD_WEIGHT: f64 = 0.7;

/// The measured prefill rate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Pace {
    secs_per_token: Option<f64>,
}

impl Pace {
    /// Most tokens of the next step, where `limit` is the runtime's own (0: no limit).
    ///
    /// A limit below the quantum stays the limit: a step is never longer than the runtime allows.
    pub(super) fn step_tokens(&self, limit: u32, latency_wanted: bool) -> u64 {
        if limit == 0 {
            return u64::MAX;
        }
        let short = self.secs_per_token.filter(|_| latency_wanted).map(|secs_per_token| {
            let quanta = (SHORT_STEP_SECS / secs_per_token / f64::from(STEP_QUANTUM_TOKENS)).floor();
            // A float converts by saturation, so a rate of 0 gives the limit.
            (quanta as u64).saturating_mul(u64::from(STEP_QUANTUM_TOKENS)).max(u64::from(STEP_QUANTUM_TOKENS))
        });
        u64::from(limit).min(short.unwrap_or(u64::MAX))
    }

    /// Whether steps that answer nothing must be complete on return, so that the tick notices the time they take.
    pub(super) fn waits_steps_out(&self, limit: u32, latency_wanted: bool) -> bool {
        latency_wanted || self.secs_per_token.is_none_or(|secs| secs * f64::from(limit) >= LONG_STEP_SECS)
    }

    /// Learns from a tick that ran `tokens` prefill tokens in `secs` seconds.
    pub(super) fn record(&mut self, tokens: u64, secs: f64) {
        if tokens < SAMPLE_TOKENS_MIN {
            return;
        }
        let sample = secs / tokens as f64;
        self.secs_per_token = Some(match self.secs_per_token {
            Some(rate) => OLD_WEIGHT * rate + (1.0 - OLD_WEIGHT) * sample,
            None => sample,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(secs_per_token: f64) -> Pace {
        Pace { secs_per_token: Some(secs_per_token) }
    }

    #[test]
    fn steps_shrink_only_while_latency_is_wanted_and_the_rate_is_known() {
        assert_eq!(known(0.001).step_tokens(0, true), u64::MAX, "0 never splits");
        assert_eq!(Pace::default().step_tokens(512, true), 512);
        assert_eq!(known(0.001).step_tokens(512, false), 512);
        assert_eq!(known(0.001).step_tokens(512, true), 256, "0.3 s are 300 tokens, two quanta");
        assert_eq!(known(1.0).step_tokens(512, true), 128, "at least one quantum");
        assert_eq!(known(1e-9).step_tokens(512, true), 512, "at most the limit");
        assert_eq!(known(1.0).step_tokens(64, true), 64, "a limit below the quantum holds");
        assert_eq!(known(0.0).step_tokens(512, true), 512);
    }

    #[test]
    fn steps_are_waited_out_when_long_unknown_or_latency_matters() {
        assert!(Pace::default().waits_steps_out(512, false));
        assert!(known(0.001).waits_steps_out(512, false), "0.512 s");
        assert!(!known(0.00002).waits_steps_out(512, false));
        assert!(known(0.00002).waits_steps_out(512, true));
    }

    #[test]
    fn rate_is_the_first_sample_then_moves_by_three_tenths() {
        let mut pace = Pace::default();
        pace.record(127, 100.0);
        assert_eq!(pace.secs_per_token, None, "too few tokens to say");
        pace.record(200, 2.0);
        assert_eq!(pace.secs_per_token, Some(0.01));
        pace.record(100_000, 2000.0);
        assert!((pace.secs_per_token.unwrap_or(0.0) - 0.013).abs() < 1e-12);
    }
}
