//! What a test would take if nothing but the machine's limits held it up.
//!
//! ```text
//! a step     reads every weight once, and the keys and values that each lane sees; multiplies each row with every weight
//! a prompt   the same for one lane; only its last row meets the head
//! ```
//! The least time is that of reading or that of computing, whichever is longer. Products of quantised weights count at the rate of f32
//! multiply-adds on the exact path, and of int8 dot products on the fast one; attention at that of f32 on both.

use std::path::Path;

use ictus::backend::KvType;
use ictus::checkpoint::{Checkpoint, ModelConfig};

use crate::host::Failure;
use crate::limits::Limits;

/// What a model makes a step do.
pub struct Work {
    config: ModelConfig,
    /// Bytes of the weights that a step reads: all, but for an embedding that is not the head as well.
    weight_bytes: f64,
    /// Weights of the layers' matrices.
    layer_weights: f64,
    /// Weights of the head.
    head_weights: f64,
    kv_element_bytes: f64,
}

/// Least seconds, and what they are spent on.
pub struct Least {
    pub seconds: f64,
    pub limit: &'static str,
}

impl Work {
    pub fn of(path: &Path, kv_type: KvType) -> Result<Self, Failure> {
        let checkpoint = Checkpoint::open(path)?;
        let config = checkpoint.config().clone();
        let tied = checkpoint.tensor("output.weight").is_none();
        let (mut weight_bytes, mut layer_weights) = (0.0, 0.0);
        for (name, tensor) in checkpoint.tensors() {
            if name != "token_embd.weight" || tied {
                weight_bytes += tensor.data.len() as f64;
            }
            if name.starts_with("blk.") && tensor.rows > 1 {
                layer_weights += tensor.rows as f64 * tensor.cols as f64;
            }
        }
        let head_weights = config.vocab as f64 * config.hidden as f64;
        let kv_element_bytes = kv_type.bytes() as f64;
        Ok(Self { config, weight_bytes, layer_weights, head_weights, kv_element_bytes })
    }

    /// Positions that a token sees behind `depth` others, over all layers.
    fn seen(&self, depth: f64) -> f64 {
        let window = |layer| self.config.window_of(layer).map_or(f64::INFINITY, |window| window as f64);
        (0..self.config.layers).map(|layer| (depth + 1.0).min(window(layer))).sum()
    }

    /// Bytes of the keys and values at so many positions of a layer.
    fn kv_bytes(&self, positions: f64) -> f64 {
        positions * 2.0 * (self.config.n_kv_heads * self.config.head_dim) as f64 * self.kv_element_bytes
    }

    /// Operations of attention to so many positions of a layer.
    fn attention_ops(&self, positions: f64) -> f64 {
        positions * 4.0 * (self.config.n_heads * self.config.head_dim) as f64
    }

    fn least(limits: &Limits, fast: bool, bytes: f64, matrix_ops: f64, attention_ops: f64) -> Least {
        let (rate, name) = if fast { (limits.int8_gops, "int8") } else { (limits.fma_gflops, "fma") };
        let computing = matrix_ops / (rate * 1e9) + attention_ops / (limits.fma_gflops * 1e9);
        let reading = bytes / (limits.read_gbs * 1e9);
        let limit = if reading > computing { "read" } else { name };
        Least { seconds: reading.max(computing), limit }
    }

    /// A prompt of `tokens` tokens and the token behind it.
    pub fn prompt(&self, limits: &Limits, fast: bool, tokens: usize) -> Least {
        let seen: f64 = (0..tokens).map(|depth| self.seen(depth as f64)).sum();
        let matrix_ops = 2.0 * (tokens as f64 * self.layer_weights + self.head_weights);
        Self::least(limits, fast, self.weight_bytes, matrix_ops, self.attention_ops(seen))
    }

    /// `steps` steps of `lanes` lanes that begin behind `depth` tokens each, `shared` of them the same ones for all.
    pub fn steps(&self, limits: &Limits, fast: bool, lanes: usize, depth: usize, shared: usize, steps: usize) -> Least {
        let (lanes, steps) = (lanes as f64, steps as f64);
        let seen = self.seen(depth as f64 + steps / 2.0);
        let common = if shared == 0 { 0.0 } else { self.seen(shared as f64 - 1.0) };
        let bytes = self.weight_bytes + self.kv_bytes(common + lanes * (seen - common).max(0.0));
        let matrix_ops = 2.0 * lanes * (self.layer_weights + self.head_weights);
        let least = Self::least(limits, fast, bytes, matrix_ops, lanes * self.attention_ops(seen));
        Least { seconds: least.seconds * steps, ..least }
    }
}
