#![forbid(unsafe_code)]
//! How weights and activations lie on a backend of several devices: said here, once for all families.
//!
//! ```text
//! normed ─┬─ q, k, v by heads ── attention ── attended ═╗ collected ── output by rows ── delta ═╗ collected ── stream
//!         └─ gate, up by rows ── gate * up ═══ collected ── down by rows ── delta ══════════════╝
//! ```
//! Every matrix is cut by its outputs and every output is computed as one device computes it, so all bits are those of one device. Columns of
//! heads are cut between key and value heads, each with the query heads that read it.

use crate::backend::Spread;
use crate::checkpoint::ModelConfig;

/// Columns that nothing keeps together.
const SINGLE: usize = 1;

/// Query columns that read one key and value head.
fn query_unit(config: &ModelConfig) -> usize {
    config.head_dim * (config.n_heads / config.n_kv_heads.max(1)).max(1)
}

/// How the tensor of this canonical name is spread, with or without its layer: matrices by their outputs, biases with them, norms not at all.
pub fn of_tensor(config: &ModelConfig, name: &str) -> Spread {
    let part = name.strip_prefix("blk.").and_then(|name| Some(name.split_once('.')?.1)).unwrap_or(name);
    match part {
        "attn_q.weight" | "attn_q.bias" => Spread::Parts { unit: query_unit(config) },
        "attn_k.weight" | "attn_v.weight" | "attn_k.bias" | "attn_v.bias" => Spread::Parts { unit: config.head_dim },
        "attn_output.weight" | "ffn_gate.weight" | "ffn_up.weight" | "ffn_down.weight" | "token_embd.weight"
        | "output.weight" => Spread::Parts { unit: SINGLE },
        _ => Spread::Whole,
    }
}

/// How activations are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Activations {
    /// What norms, embeddings and sums give.
    pub(super) whole: Spread,
    pub(super) queries: Spread,
    /// Keys, and values.
    pub(super) keys: Spread,
    /// What the heads attend to.
    pub(super) attended: Spread,
    /// What goes into a product, a norm or a sum behind the product that made it.
    pub(super) collected: Spread,
    /// What is used up column by column.
    pub(super) columns: Spread,
}

impl Activations {
    /// Of query rows of `query` and key rows of `key` elements.
    pub(super) fn new(query: usize, key: usize, n_kv_heads: usize) -> Self {
        let heads = n_kv_heads.max(1);
        let unit = (query / heads).max(1);
        Self {
            whole: Spread::Whole,
            queries: Spread::Parts { unit },
            keys: Spread::Parts { unit: (key / heads).max(1) },
            attended: Spread::Collected { unit },
            collected: Spread::Collected { unit: SINGLE },
            columns: Spread::Parts { unit: SINGLE },
        }
    }
}
