#![forbid(unsafe_code)]
//! The numbers of an architecture.

use super::error::ConfigError;

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
    /// Layers below this one are global whatever the period says (Qwen2); 0 in all other families.
    pub first_layer: usize,
}

impl SlidingWindow {
    /// Whether layer `layer` sees only the last tokens.
    pub fn is_local(&self, layer: usize) -> bool {
        let global = self.period != 0 && (layer + 1).is_multiple_of(self.period);
        layer >= self.first_layer && !global
    }

    /// The window whose local layers are those that `local` marks: all, all from some layer on, or all but every n-th.
    ///
    /// None when no layer is local. `Err` when the marks follow no such rule.
    pub(super) fn from_marks(tokens: usize, local: &[bool]) -> Result<Option<Self>, ()> {
        let Some(first_local) = local.iter().position(|&mark| mark) else { return Ok(None) };
        let first_global = local.iter().position(|&mark| !mark).unwrap_or(0);
        let candidates = [
            Self { tokens, period: 0, first_layer: first_local },
            Self { tokens, period: first_global + 1, first_layer: 0 },
        ];
        let fits = |window: &Self| local.iter().enumerate().all(|(layer, &mark)| window.is_local(layer) == mark);
        candidates.into_iter().find(fits).map(Some).ok_or(())
    }
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
    /// Factor of the attention scores: 1 / sqrt(head_dim), but for Gemma 3 27B 1 / sqrt(hidden / n_heads).
    pub attention_scale: f32,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// Sliding window, when some layers have one.
    pub window: Option<SlidingWindow>,
}

/// Most layers accepted.
pub const MAX_LAYERS: usize = 1 << 12;
/// Widest layer accepted, in elements.
pub const MAX_WIDTH: usize = 1 << 24;
/// Widest head accepted, in elements.
pub const MAX_HEAD_DIM: usize = 1 << 16;
/// Largest vocabulary accepted, in tokens.
pub const MAX_VOCAB: usize = 1 << 24;
/// Longest context accepted, in tokens.
pub const MAX_CONTEXT_TOKENS: usize = (1 << 31) - 1;

impl ModelConfig {
    /// How many tokens back layer `layer` sees; none sees all.
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        self.window.filter(|window| window.is_local(layer)).map(|window| window.tokens)
    }

    /// Checks every number; a configuration that passes can be computed with without overflow.
    ///
    /// # Errors
    /// `Range`, `NotDivisible` or `Overflow`, naming the number.
    pub fn check(&self) -> Result<(), ConfigError> {
        let sizes = [
            ("layers", self.layers, MAX_LAYERS),
            ("hidden", self.hidden, MAX_WIDTH),
            ("ffn_hidden", self.ffn_hidden, MAX_WIDTH),
            ("n_heads", self.n_heads, MAX_WIDTH),
            ("n_kv_heads", self.n_kv_heads, MAX_WIDTH),
            ("head_dim", self.head_dim, MAX_HEAD_DIM),
            ("vocab", self.vocab, MAX_VOCAB),
            ("context_tokens", self.context_tokens, MAX_CONTEXT_TOKENS),
        ];
        for (name, size, max) in sizes {
            if size == 0 || size > max {
                return Err(range(name, size, "a size from 1 to the most that is accepted"));
            }
        }
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            return Err(ConfigError::NotDivisible {
                dividend: "n_heads",
                dividend_value: self.n_heads as u64,
                divisor: "n_kv_heads",
                divisor_value: self.n_kv_heads as u64,
            });
        }
        self.check_products()?;
        self.check_rope()?;
        for (name, value) in [("norm_epsilon", self.norm_epsilon), ("attention_scale", self.attention_scale)] {
            if !(value.is_finite() && value > 0.0) {
                return Err(range(name, value, "positive and finite"));
            }
        }
        match self.window {
            Some(window) if window.tokens == 0 => Err(range("window.tokens", 0, "at least 1")),
            _ => Ok(()),
        }
    }

    fn check_products(&self) -> Result<(), ConfigError> {
        for (product, heads) in [("n_heads x head_dim", self.n_heads), ("n_kv_heads x head_dim", self.n_kv_heads)] {
            if heads.checked_mul(self.head_dim).is_none_or(|width| width > MAX_WIDTH) {
                return Err(ConfigError::Overflow { product });
            }
        }
        // The largest amount that is ever computed: keys and values in F32 of a whole context.
        let cells = [self.layers, self.n_kv_heads, self.head_dim, 2 * size_of::<f32>()];
        let bytes = cells.iter().try_fold(self.context_tokens as u64, |all, &size| all.checked_mul(size as u64));
        if bytes.is_none_or(|bytes| i64::try_from(bytes).is_err()) {
            return Err(ConfigError::Overflow { product: "context_tokens x layers x n_kv_heads x head_dim" });
        }
        Ok(())
    }

    fn check_rope(&self) -> Result<(), ConfigError> {
        let rope = &self.rope;
        if rope.dims == 0 || !rope.dims.is_multiple_of(2) || rope.dims > self.head_dim {
            return Err(range("rope.dims", rope.dims, "even, positive and at most head_dim"));
        }
        let positive = |name, value: f32| {
            if value.is_finite() && value > 0.0 { Ok(()) } else { Err(range(name, value, "positive and finite")) }
        };
        positive("rope.base", rope.base)?;
        rope.local_base.map_or(Ok(()), |base| positive("rope.local_base", base))?;
        match &rope.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => positive("rope.scaling.factor", *factor),
            RopeScaling::Factors { factors } if factors.len() != rope.dims / 2 => {
                Err(range("the number of rope factors", factors.len(), "half of rope.dims"))
            }
            RopeScaling::Factors { factors } => {
                factors.iter().try_for_each(|&factor| positive("a rope factor", factor))
            }
        }
    }
}

fn range(key: &str, got: impl core::fmt::Display, expected: &'static str) -> ConfigError {
    ConfigError::Range { key: key.to_owned(), got: got.to_string(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ModelConfig {
        ModelConfig {
            family: Family::Llama,
            architecture: "llama".to_owned(),
            layers: 2,
            hidden: 64,
            ffn_hidden: 96,
            n_heads: 8,
            n_kv_heads: 2,
            head_dim: 8,
            vocab: 100,
            context_tokens: 128,
            norm_epsilon: 1e-5,
            attention_scale: 0.25,
            rope: RopeConfig {
                pairing: RopePairing::Halves,
                dims: 8,
                base: 1e4,
                local_base: None,
                scaling: RopeScaling::None,
            },
            window: None,
        }
    }

    #[test]
    fn a_changed_number_is_refused_under_its_name() {
        assert_eq!(config().check(), Ok(()));
        type Change = fn(&mut ModelConfig);
        let cases: [(&str, Change); 14] = [
            ("layers", |c| c.layers = 0),
            ("layers", |c| c.layers = MAX_LAYERS + 1),
            ("hidden", |c| c.hidden = MAX_WIDTH + 1),
            ("head_dim", |c| c.head_dim = MAX_HEAD_DIM + 1),
            ("vocab", |c| c.vocab = usize::MAX),
            ("context_tokens", |c| c.context_tokens = MAX_CONTEXT_TOKENS + 1),
            ("rope.dims", |c| c.rope.dims = 10),
            ("rope.dims", |c| c.rope.dims = 7),
            ("rope.base", |c| c.rope.base = f32::NAN),
            ("rope.local_base", |c| c.rope.local_base = Some(0.0)),
            ("the number of rope factors", |c| c.rope.scaling = RopeScaling::Factors { factors: vec![1.0; 3] }),
            ("a rope factor", |c| c.rope.scaling = RopeScaling::Factors { factors: vec![1.0, 1.0, 0.0, 1.0] }),
            ("window.tokens", |c| c.window = Some(SlidingWindow { tokens: 0, period: 0, first_layer: 0 })),
            ("norm_epsilon", |c| c.norm_epsilon = 0.0),
        ];
        for (name, change) in cases {
            let mut changed = config();
            change(&mut changed);
            assert!(matches!(changed.check(), Err(ConfigError::Range { key, .. }) if key == name), "{name}");
        }
    }

    #[test]
    fn products_that_overflow_are_refused() {
        let mut wide = config();
        (wide.n_heads, wide.head_dim, wide.rope.dims) = (1 << 20, 1 << 8, 8);
        assert_eq!(wide.check(), Err(ConfigError::Overflow { product: "n_heads x head_dim" }));
        let mut long = config();
        (long.layers, long.context_tokens) = (MAX_LAYERS, MAX_CONTEXT_TOKENS);
        (long.n_heads, long.n_kv_heads, long.head_dim) = (1 << 16, 1 << 16, 1 << 8);
        let product = "context_tokens x layers x n_kv_heads x head_dim";
        assert_eq!(long.check(), Err(ConfigError::Overflow { product }));
        let mut odd = config();
        odd.n_kv_heads = 3;
        assert!(matches!(odd.check(), Err(ConfigError::NotDivisible { dividend_value: 8, divisor_value: 3, .. })));
    }

    #[test]
    fn marks_become_the_rule_that_makes_them() {
        let marks = |text: &str| text.bytes().map(|mark| mark == b'l').collect::<Vec<_>>();
        let rule = |period, first_layer| Ok(Some(SlidingWindow { tokens: 4, period, first_layer }));
        assert_eq!(SlidingWindow::from_marks(4, &marks("lllll")), rule(0, 0));
        assert_eq!(SlidingWindow::from_marks(4, &marks("gglll")), rule(0, 2));
        assert_eq!(SlidingWindow::from_marks(4, &marks("llgll")), rule(3, 0));
        assert_eq!(SlidingWindow::from_marks(4, &marks("lglgl")), rule(2, 0));
        assert_eq!(SlidingWindow::from_marks(4, &marks("ggg")), Ok(None));
        assert_eq!(SlidingWindow::from_marks(4, &[]), Ok(None));
        for irregular in ["llggll", "glgll", "llglll"] {
            assert_eq!(SlidingWindow::from_marks(4, &marks(irregular)), Err(()), "{irregular}");
        }
    }
}
