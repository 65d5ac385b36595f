#![forbid(unsafe_code)]
//! What a runtime says of itself.

use crate::checkpoint::{Embedding, SamplingDefaults};
use crate::record::constant::{space_id, space_kind};
use crate::sample::SampleRequest;

/// Identity, limits and abilities of a runtime; read once and constant afterwards.
#[derive(Clone, Debug, PartialEq)]
pub struct Descriptor {
    /// Identity of the code.
    pub runtime_id: String,
    /// Version of the code.
    pub runtime_version: String,
    /// Identity of the weights.
    pub weights_identity: [u8; 32],
    /// Model architecture; informative.
    pub architecture: String,
    /// Where it runs; informative.
    pub backend: String,
    /// Feeds of one decode step.
    pub max_batch: u32,
    /// Sequences that can exist at once; 0 is unlimited.
    pub max_seqs: u32,
    /// Tokens per sequence.
    pub max_seq_len: u64,
    /// Length of a row; token ids are below it.
    pub vocab_size: u32,
    /// Tokens per page: the granularity of cache keys; 0 counts as 1.
    pub page_size_tokens: u32,
    /// Tokens by which a sequence's share of the pool grows: 1, or the page size of a paged pool.
    pub cell_granule_tokens: u32,
    /// Bytes of state per token; 0 counts as 1.
    pub kv_bytes_per_token: u64,
    /// Effective width of a key or value element in bits; 0 is unknown.
    pub kv_bits: u32,
    /// Width of an activation in products with quantised weights, in bits; 0 is unknown.
    pub activation_bits: u32,
    /// Cells in the pool; 0 is unbounded.
    pub cells_total: u64,
    /// Sequences can be cut, copied and exported at any length.
    pub truncate_partial: bool,
    /// A copy holds the source's cells instead of new ones.
    pub copy_shares_cells: bool,
    /// Seeded lanes should take their entry over (T-63).
    pub takeover_preferred: bool,
    /// Shortest partial seed worth taking.
    pub seed_min_tokens: u64,
    /// Cells that resting cache entries may hold; 0 is no bound.
    pub cache_resident_cells: u64,
    /// Tokens of exports the cache may hold; 0 is none.
    pub cache_exported_cells: u64,
    /// The state is a recurrence.
    pub recurrent: bool,
    /// Encodings `seq_export` offers.
    pub export_encodings: Vec<u8>,
    /// Which sampling a step serves itself.
    pub sampling: SamplingSupport,
    /// A feed may want every row.
    pub verify_rows: bool,
    /// Feeds that want every row run in one pass.
    pub verify_batches: bool,
    /// Most tokens of one prefill step; 0 never splits (T-85).
    pub prefill_step_tokens: u32,
    /// What the checkpoint recommends; reported, never applied.
    pub sampling_defaults: Option<SamplingDefaults>,
    /// The kinds of state that it keeps; the first is the one that pages and cells are counted in.
    pub spaces: Vec<SpaceInfo>,
    /// What it does beside feeding sequences.
    pub workloads: Workloads,
}

/// What a runtime does beside feeding sequences; the default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Workloads {
    /// Layers that [`Runtime::forward_stage`](super::Runtime::forward_stage) can be split by; 0 is not at all.
    pub layers: u32,
    /// How texts are embedded; none is not at all.
    pub embedding: Option<Embedding>,
    /// Sequences can be computed with adapters.
    pub adapters: bool,
}

/// A kind of state that a runtime keeps of each sequence (S-2, S-92).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceInfo {
    /// Its id.
    pub id: u32,
    /// `SPACE_KIND_*`.
    pub kind: u32,
    /// At most 31 characters.
    pub name: String,
    /// `SPACE_FLAG_*` bits.
    pub flags: u32,
    /// The state is recorded every so many tokens, and can be cut only there; 0 where the kind has no such places.
    pub interval_tokens: u32,
}

impl SpaceInfo {
    /// The one space of a runtime that keeps all keys and values in pages.
    pub fn paged_kv() -> Self {
        Self {
            id: space_id::KV,
            kind: space_kind::PAGED_TOKEN_KV,
            name: "kv.full".to_owned(),
            flags: 0,
            interval_tokens: 0,
        }
    }
}

/// Which requests a runtime serves inside a step. The executor serves the others from the row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SamplingSupport {
    /// Greedy picks.
    pub greedy: bool,
    /// Draws at a temperature.
    pub draws: bool,
    /// Bias, penalties and masks.
    pub shaping: bool,
    /// Log-probabilities.
    pub logprobs: bool,
}

impl SamplingSupport {
    /// Whether a feed may want a token for this request.
    pub fn serves(&self, request: &SampleRequest<'_>) -> bool {
        let shaped = !request.bias.is_empty() || request.penalty.is_some() || request.mask.is_some();
        let picks = if request.temperature > 0.0 { self.draws } else { self.greedy };
        picks && (self.shaping || !shaped) && (self.logprobs || request.logprobs.is_none())
    }
}
