#![forbid(unsafe_code)]
//! What can be configured of the fake runtime, and the defaults of the contract.

use core::time::Duration;

use crate::record::constant::encoding;
use crate::runtime::{Descriptor, SamplingSupport, SpaceInfo, Vocabulary, Workloads};

/// Options of the fake runtime; the default is that of the contract.
#[derive(Clone, Debug)]
pub struct FakeOptions {
    /// What it says of itself. `recurrent` is derived, the rest is taken as it is.
    pub descriptor: Descriptor,
    /// Tokens that end a text.
    pub end_ids: Vec<u32>,
    /// Repeats what the text said before.
    pub copy_model: Option<CopyModel>,
    /// The vocabulary it lists.
    pub vocabulary: Option<Vocabulary>,
    /// How long a step takes at least.
    pub step_delay: Duration,
    /// Steps can be begun ahead.
    pub steps_ahead: bool,
    /// Every so many feeds of steps that were begun have their token picked only when they are fed again; 0 is none.
    pub picks_again_every: u64,
    /// Keep a record of every feed. Long runs turn it off: the record only grows.
    pub record: bool,
}

impl Default for FakeOptions {
    fn default() -> Self {
        Self {
            descriptor: Descriptor {
                runtime_id: "fake".into(),
                runtime_version: "1".into(),
                weights_identity: [0xFA; 32],
                architecture: "fake".into(),
                backend: "cpu".into(),
                max_batch: 8,
                max_seqs: 0,
                max_seq_len: 4096,
                vocab_size: 32000,
                page_size_tokens: 16,
                cell_granule_tokens: 1,
                kv_bytes_per_token: 64,
                kv_bits: 0,
                activation_bits: 0,
                cells_total: 0,
                truncate_partial: true,
                copy_shares_cells: false,
                takeover_preferred: false,
                seed_min_tokens: 0,
                cache_resident_cells: 0,
                cache_exported_cells: 0,
                recurrent: false,
                export_encodings: vec![encoding::LOSSLESS],
                sampling: SamplingSupport { greedy: true, ..SamplingSupport::default() },
                verify_rows: false,
                verify_batches: true,
                prefill_step_tokens: 0,
                sampling_defaults: None,
                spaces: vec![SpaceInfo::paged_kv()],
                workloads: Workloads::default(),
            },
            end_ids: vec![31999],
            copy_model: None,
            vocabulary: None,
            step_delay: Duration::ZERO,
            steps_ahead: false,
            picks_again_every: 0,
            record: true,
        }
    }
}

/// Predicts what followed the latest earlier occurrence of the last token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyModel {
    /// Lists whose length is a multiple of this are hashed instead; 0 is never.
    pub miss_every: usize,
}

impl CopyModel {
    /// The copied token, or none when there is no earlier occurrence or this length misses.
    pub(super) fn predict(self, tokens: &[u32]) -> Option<u32> {
        if self.miss_every != 0 && tokens.len().is_multiple_of(self.miss_every) {
            return None;
        }
        let (last, earlier) = tokens.split_last()?;
        let at = earlier.iter().rposition(|token| token == last)?;
        tokens.get(at + 1).copied()
    }
}
