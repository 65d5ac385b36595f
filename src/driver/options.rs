#![forbid(unsafe_code)]
//! What a host may choose when it makes a driver; every value is checked before the engine is touched.

use core::time::Duration;

/// Choices of a host.
#[derive(Clone, Debug, PartialEq)]
pub struct DriverOptions {
    /// Requests that run at once, at most [`DriverOptions::MAX_LANES`]. An engine that takes fewer lowers it.
    pub max_lanes: u32,
    /// Tokens of one tick: prompt tokens, and one for each decoding lane, at most [`DriverOptions::MAX_TICK_TOKENS`].
    pub tick_tokens: u32,
    /// How long the prompts of a tick may take while others decode; zero leaves it to `tick_tokens`.
    ///
    /// It is held by the rate that was measured, so a first tick, or one whose prompt just became deep, may take longer.
    pub tick_target: Duration,
    /// Tokens granted to a lane in a tick. More than one costs less per token and makes stop strings be noticed later.
    pub decode_tokens: u16,
    /// How far accepted draft tokens may exceed a grant.
    pub draft_overshoot: u16,
    /// Tokens of a replayed tail that a lane feeds in a tick.
    pub replay_tokens: u16,
    /// Requests that may wait; one more is refused.
    pub queue_limit: usize,
    /// Waiting time that is worth one level of priority; zero makes priorities count for nothing.
    pub ageing: Duration,
    /// Room for this many tokens is kept for each running lane when another one is started.
    pub reserve_tokens: u32,
    /// A cached prefix shorter than this is computed again rather than leased.
    pub seed_min_tokens: u32,
    /// A request waits for the same prefix of another prompt under way when it is this long; 0 never waits.
    pub share_min_tokens: u32,
    /// Longest sequence of the engine; 0 when not known: then a prompt that is too long fails later, by itself.
    pub context_tokens: u64,
    /// Number of tokens of the engine; 0 is that of the tokenizer, or not known.
    pub vocab_size: u32,
    /// Bytes of the prefix cache that no plan may evict.
    pub protected_cache_bytes: u64,
}

impl Default for DriverOptions {
    /// 64 lanes, ticks of 512 tokens and about 200 ms, 1024 waiting requests, one level of priority for a second.
    fn default() -> Self {
        Self {
            max_lanes: 64,
            tick_tokens: 512,
            tick_target: Duration::from_millis(200),
            decode_tokens: 1,
            draft_overshoot: 8,
            replay_tokens: 8,
            queue_limit: 1024,
            ageing: Duration::from_secs(1),
            reserve_tokens: 64,
            seed_min_tokens: 16,
            share_min_tokens: 64,
            context_tokens: 0,
            vocab_size: 0,
            protected_cache_bytes: 0,
        }
    }
}

/// A value out of range. No driver was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("option {name} is {value}, must be {allowed}")]
pub struct DriverOptionsError {
    /// The field.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
    /// What it may be.
    pub allowed: &'static str,
}

impl DriverOptions {
    /// Most lanes.
    pub const MAX_LANES: u32 = 4096;
    /// Most tokens of a tick.
    pub const MAX_TICK_TOKENS: u32 = 1 << 20;

    /// Checks every value.
    ///
    /// # Errors
    /// The first field out of range.
    pub fn check(&self) -> Result<(), DriverOptionsError> {
        let within = |name, value: u64, most: u64, allowed| match value {
            0 => Err(DriverOptionsError { name, value, allowed }),
            value if value > most => Err(DriverOptionsError { name, value, allowed }),
            _ => Ok(()),
        };
        within("max_lanes", self.max_lanes.into(), Self::MAX_LANES.into(), "from 1 to 4096")?;
        within("tick_tokens", self.tick_tokens.into(), Self::MAX_TICK_TOKENS.into(), "from 1 to 2^20")?;
        within("decode_tokens", self.decode_tokens.into(), 4096, "from 1 to 4096")?;
        within("replay_tokens", self.replay_tokens.into(), 4096, "from 1 to 4096")?;
        within("queue_limit", self.queue_limit as u64, u64::MAX, "at least 1")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_out_of_range_is_named() {
        let base = DriverOptions::default;
        assert_eq!(base().check(), Ok(()));
        let cases = [
            ("max_lanes", DriverOptions { max_lanes: 0, ..base() }),
            ("max_lanes", DriverOptions { max_lanes: 4097, ..base() }),
            ("tick_tokens", DriverOptions { tick_tokens: 0, ..base() }),
            ("tick_tokens", DriverOptions { tick_tokens: (1 << 20) + 1, ..base() }),
            ("decode_tokens", DriverOptions { decode_tokens: 0, ..base() }),
            ("replay_tokens", DriverOptions { replay_tokens: 4097, ..base() }),
            ("queue_limit", DriverOptions { queue_limit: 0, ..base() }),
        ];
        for (name, options) in cases {
            assert_eq!(options.check().map_err(|error| error.name), Err(name));
        }
    }
}
