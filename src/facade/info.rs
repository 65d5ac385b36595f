#![forbid(unsafe_code)]
//! What a core is: limits, abilities, and what its memory goes to. Constant.

use crate::capacity::Feature;

/// Limits and abilities of a core; it never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Sequences that can exist at once; `u64::MAX` is no bound but the pool's.
    pub max_sequences: u64,
    /// Tokens of one sequence.
    pub max_tokens: u64,
    /// Items of one batch.
    pub max_items: u64,
    /// Tokens of one batch of several items; a single item is never too wide.
    pub max_batch_tokens: u64,
    /// Tokens per block.
    pub block_tokens: u64,
    /// Blocks of the pool; `u64::MAX` is no bound.
    pub blocks: u64,
    /// Length of a row; ids are below it.
    pub vocab: u32,
    /// Width of a key or value element in bits; 0 is unknown.
    pub kv_bits: u32,
    /// Where it runs.
    pub device: String,
    /// Architecture of the model.
    pub architecture: String,
    /// What is offered: bit `Feature as u32`.
    pub features: u32,
    /// What is not offered, and why.
    pub absent: Vec<(Feature, &'static str)>,
    /// Bytes that are there whatever is admitted: weights and tables, as far as the core was told.
    pub static_bytes: u64,
    /// Bytes of state per token.
    pub token_bytes: u64,
    /// Bytes of state per sequence that do not depend on its length.
    pub sequence_bytes: u64,
    /// Bytes that every batch takes.
    pub workspace_bytes: u64,
    /// Bytes that a batch takes per token.
    pub workspace_token_bytes: u64,
}

impl Info {
    /// Whether a feature is offered.
    pub fn has(&self, feature: Feature) -> bool {
        self.features & bit(feature) != 0
    }

    /// Bytes for so many sequences of so many tokens each, run in batches of `batch_tokens`; none when that does not fit 64 bits.
    pub fn estimate(&self, sequences: u64, tokens_each: u64, batch_tokens: u64) -> Option<u64> {
        let workspace = self.workspace_token_bytes.checked_mul(batch_tokens)?.checked_add(self.workspace_bytes)?;
        let tokens = self.token_bytes.checked_mul(sequences)?.checked_mul(tokens_each)?;
        let fixed = self.sequence_bytes.checked_mul(sequences)?;
        self.static_bytes.checked_add(workspace)?.checked_add(tokens)?.checked_add(fixed)
    }
}

/// The bit of a feature in [`Info::features`].
pub(super) const fn bit(feature: Feature) -> u32 {
    1 << feature as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// XS-69, the half of the estimate.
    #[test]
    fn xs_69_estimate_is_checked() {
        let info = Info {
            max_sequences: 4,
            max_tokens: 64,
            max_items: 8,
            max_batch_tokens: 64,
            block_tokens: 16,
            blocks: 4,
            vocab: 32,
            kv_bits: 32,
            device: "cpu".into(),
            architecture: "fake".into(),
            features: bit(Feature::Mixed),
            absent: Vec::new(),
            static_bytes: 1000,
            token_bytes: 10,
            sequence_bytes: 7,
            workspace_bytes: 100,
            workspace_token_bytes: 3,
        };
        assert!(info.has(Feature::Mixed) && !info.has(Feature::Verify));
        assert_eq!(info.estimate(2, 50, 20), Some(1000 + 100 + 3 * 20 + 10 * 2 * 50 + 7 * 2));
        assert_eq!(info.estimate(0, 0, 0), Some(1100));
        for (sequences, tokens, batch) in [(u64::MAX, 2, 0), (2, u64::MAX, 0), (0, 0, u64::MAX), (u64::MAX / 10, 1, 0)]
        {
            assert_eq!(info.estimate(sequences, tokens, batch), None, "{sequences} {tokens} {batch}");
        }
    }
}
