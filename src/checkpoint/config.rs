#![forbid(unsafe_code)]
//! The numbers of an architecture.

/// Families this crate computes; each is one file under `model`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// Llama 2 and 3, SmolLM2, Mistral.
    Llama,
    /// Qwen2 and Qwen2.5: bias on q, k and v.
    Qwen2,
    /// Qwen3: RMSNorm on each head of q and k.
    Qwen3,
    /// Gemma 3: sandwich norms, two rope bases, local layers.
    Gemma3,
}

/// Which two dimensions of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// `(2i, 2i + 1)`: llama weights in GGUF files.
    Interleaved,
    /// `(i, i + dims / 2)`: everything else.
    Halves,
}

/// How the rotation frequencies are stretched for long contexts.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// As trained.
    None,
    /// All positions divided by a factor.
    Linear {
        /// The factor.
        factor: f32,
    },
    /// Frequency `i` divided by `factors[i]`: what Llama 3.1 computes from its four numbers, and GGUF stores as `rope_freqs.weight`.
    Factors {
        /// One factor per pair, `dims / 2` of them.
        factors: Vec<f32>,
    },
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Pairing of dimensions.
    pub pairing: RopePairing,
    /// Rotated dimensions of a head; even, at most `head_dim`.
    pub dims: usize,
    /// Base of the frequencies.
    pub base: f32,
    /// Base of the frequencies in local layers, when it differs.
    pub local_base: Option<f32>,
    /// Scaling; local layers of Gemma 3 are never scaled.
    pub scaling: RopeScaling,
}

/// Layers that see only the last tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// A row at position p sees positions above `p - tokens`.
    pub tokens: usize,
    /// Layer `i` is global when `(i + 1) % period == 0`; 0 makes every layer local.
    pub period: usize,
}

/// The numbers of one model, checked: no size is 0, heads divide, sizes multiply without overflow.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Which family computes it.
    pub family: Family,
    /// The architecture's name in the file.
    pub architecture: String,
    /// Transformer layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward layer.
    pub ffn_hidden: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens in the vocabulary: rows of the embedding.
    pub vocab: usize,
    /// Longest sequence trained on, in tokens.
    pub context_tokens: usize,
    /// Epsilon of every RMSNorm.
    pub norm_epsilon: f32,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// Sliding window, when some layers have one.
    pub window: Option<SlidingWindow>,
}

impl ModelConfig {
    /// How many tokens back layer `layer` sees; none sees all.
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        let window = self.window?;
        let global = window.period != 0 && (layer + 1).is_multiple_of(window.period);
        (!global).then_some(window.tokens)
    }
}
