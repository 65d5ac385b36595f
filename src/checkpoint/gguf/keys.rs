#![forbid(unsafe_code)]
//! From the keys of a GGUF file to the numbers of an architecture.
//!
//! Keys are `<architecture>.<name>`. What Gemma 3 files leave to the architecture: every sixth layer is global, local layers rotate
//! with base 10 000 and are not scaled, and the 27B model (62 layers) scales attention by hidden / n_heads.
//! A window of a Llama (Mistral) holds in every layer; of a Qwen it is refused, as the file cannot say which layers have it.
//!
//! # Not here
//! `rope_freqs.weight`, which is a tensor: `assemble`.

use super::super::config::{Family, ModelConfig, RopeConfig, RopePairing, RopeScaling, SlidingWindow};
use super::super::error::ConfigError;
use super::super::pooling::{Embedding, Pooling};
use super::super::sampling::SamplingDefaults;
use super::metadata::Metadata;
use super::value::Value;

/// Base of local layers where a Gemma 3 file does not state it.
const GEMMA3_LOCAL_BASE: f32 = 10_000.0;
/// Every so many layers one is global, in Gemma 3.
const GEMMA3_PERIOD: usize = 6;
/// Layers of Gemma 3 27B.
const GEMMA3_27B_LAYERS: usize = 62;

/// Reads the numbers; `vocab` is the number of rows of the embedding. The result is not checked yet.
pub(crate) fn model_config(metadata: &Metadata, vocab: usize) -> Result<ModelConfig, ConfigError> {
    let architecture = metadata
        .text("general.architecture")?
        .ok_or_else(|| ConfigError::MissingKey { key: "general.architecture".to_owned() })?;
    let family =
        family(architecture).ok_or_else(|| ConfigError::Architecture { architecture: architecture.to_owned() })?;
    let keys = Keys { metadata, architecture };
    keys.refuse_unserved()?;
    let layers = keys.size("block_count")?;
    let hidden = keys.size("embedding_length")?;
    let n_heads = keys.size("attention.head_count")?;
    let n_kv_heads = keys.optional_size("attention.head_count_kv")?.unwrap_or(n_heads);
    let head_dim = keys.head_dim(hidden, n_heads)?;
    let window = keys.window(family, layers)?;
    let scale_width = if family == Family::Gemma3 && layers == GEMMA3_27B_LAYERS {
        hidden.checked_div(n_heads).unwrap_or(head_dim)
    } else {
        head_dim
    };
    Ok(ModelConfig {
        family,
        architecture: architecture.to_owned(),
        layers,
        hidden,
        ffn_hidden: keys.size("feed_forward_length")?,
        n_heads,
        n_kv_heads,
        head_dim,
        vocab,
        context_tokens: keys.size("context_length")?,
        norm_epsilon: keys.required_float("attention.layer_norm_rms_epsilon")?,
        attention_scale: 1.0 / (scale_width as f32).sqrt(),
        rope: keys.rope(family, head_dim, window.is_some())?,
        window,
    })
}

/// The family that computes an architecture of this name.
pub(super) fn family(architecture: &str) -> Option<Family> {
    match architecture {
        "llama" => Some(Family::Llama),
        "qwen2" => Some(Family::Qwen2),
        "qwen3" => Some(Family::Qwen3),
        "gemma3" => Some(Family::Gemma3),
        _ => None,
    }
}

/// What the file recommends for sampling: the `general.sampling.*` keys; none when it has none of them.
pub(crate) fn sampling_defaults(metadata: &Metadata) -> Result<Option<SamplingDefaults>, ConfigError> {
    let float =
        |name: &str| metadata.float(&format!("general.sampling.{name}")).map(|value| value.map(|value| value as f32));
    let top_k = metadata.integer("general.sampling.top_k")?.and_then(|value| u32::try_from(value).ok());
    let defaults = SamplingDefaults {
        temperature: float("temp")?,
        top_p: float("top_p")?,
        top_k,
        min_p: float("min_p")?,
        repetition_penalty: float("penalty_repeat")?,
        do_sample: None,
    };
    Ok((defaults != SamplingDefaults::default()).then_some(defaults))
}

/// How the model embeds a text: `pooling_type` is 0 none, 1 mean, 2 first token, 3 last token, 4 a rank instead of a vector. The
/// format has no word for scaling to length 1.
pub(crate) fn embedding(metadata: &Metadata, architecture: &str) -> Result<Option<Embedding>, ConfigError> {
    let pooling = match metadata.integer(&format!("{architecture}.pooling_type"))? {
        None | Some(0) => Pooling::default(),
        Some(1) => Pooling::Mean,
        Some(2) => Pooling::First,
        Some(3) => Pooling::Last,
        Some(_) => return Ok(None),
    };
    Ok(Some(Embedding { pooling, normalised: false }))
}

/// The keys of one architecture.
struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn optional_size(&self, name: &str) -> Result<Option<usize>, ConfigError> {
        let key = self.key(name);
        match self.metadata.integer(&key)? {
            None => Ok(None),
            Some(value @ 1..=0x7fff_ffff) => Ok(Some(value as usize)),
            Some(value) => {
                Err(ConfigError::Range { key, got: value.to_string(), expected: "a size from 1 to 2147483647" })
            }
        }
    }

    fn size(&self, name: &str) -> Result<usize, ConfigError> {
        self.optional_size(name)?.ok_or_else(|| ConfigError::MissingKey { key: self.key(name) })
    }

    /// A positive finite float.
    fn float(&self, name: &str) -> Result<Option<f32>, ConfigError> {
        let key = self.key(name);
        match self.metadata.float(&key)? {
            None => Ok(None),
            Some(value) if value > 0.0 && (value as f32).is_finite() => Ok(Some(value as f32)),
            Some(value) => Err(ConfigError::Range { key, got: format!("{value:?}"), expected: "positive and finite" }),
        }
    }

    fn required_float(&self, name: &str) -> Result<f32, ConfigError> {
        self.float(name)?.ok_or_else(|| ConfigError::MissingKey { key: self.key(name) })
    }

    /// Settings that change the results and that no family here computes, unless they are at their neutral value.
    fn refuse_unserved(&self) -> Result<(), ConfigError> {
        let neutral = [
            ("expert_count", 0.0),
            ("attention.clamp_kqv", 0.0),
            ("attention.max_alibi_bias", 0.0),
            ("attn_logit_softcapping", 0.0),
            ("final_logit_softcapping", 0.0),
            ("logit_scale", 1.0),
            ("embedding_scale", 1.0),
            ("residual_scale", 1.0),
            ("rope.scaling.attn_factor", 1.0),
        ];
        for (name, neutral) in neutral {
            let key = self.key(name);
            let value = match self.metadata.get(&key) {
                None => continue,
                Some((_, Value::Unsigned(value))) => value as f64,
                Some((_, Value::Signed(value))) => value as f64,
                Some((_, Value::Float(value))) => value,
                Some(_) => f64::NAN,
            };
            if value != neutral && value != 0.0 {
                return Err(ConfigError::Unsupported { key, value: value.to_string() });
            }
        }
        Ok(())
    }

    fn head_dim(&self, hidden: usize, n_heads: usize) -> Result<usize, ConfigError> {
        let stated = self.optional_size("attention.key_length")?;
        let value = self.optional_size("attention.value_length")?;
        match (stated, value) {
            (Some(key), Some(value)) if key != value => {
                let key = self.key("attention.value_length");
                Err(ConfigError::Unsupported { key, value: value.to_string() })
            }
            (Some(head_dim), _) | (None, Some(head_dim)) => Ok(head_dim),
            (None, None) if hidden.is_multiple_of(n_heads) => Ok(hidden / n_heads),
            (None, None) => Err(ConfigError::NotDivisible {
                dividend: "embedding_length",
                dividend_value: hidden as u64,
                divisor: "attention.head_count",
                divisor_value: n_heads as u64,
            }),
        }
    }

    fn window(&self, family: Family, layers: usize) -> Result<Option<SlidingWindow>, ConfigError> {
        let key = self.key("attention.sliding_window");
        let tokens = match self.metadata.integer(&key)? {
            None | Some(0) => return Ok(None),
            Some(tokens @ 1..=0x7fff_ffff) => tokens as usize,
            Some(got) => {
                return Err(ConfigError::Range {
                    key,
                    got: got.to_string(),
                    expected: "a window of at most 2147483647",
                });
            }
        };
        if matches!(family, Family::Qwen2 | Family::Qwen3) {
            // The format does not say which layers have it, and they differ in these families.
            return Err(ConfigError::Unsupported { key, value: tokens.to_string() });
        }
        let key = self.key("attention.sliding_window_pattern");
        let default_period = if family == Family::Gemma3 { GEMMA3_PERIOD } else { 0 };
        if let Some((_, Value::Array(_))) = self.metadata.get(&key) {
            let local = self.metadata.flags(&key)?.unwrap_or_default();
            if local.len() != layers {
                let expected = "one mark per layer";
                return Err(ConfigError::Range { key, got: format!("{} marks", local.len()), expected });
            }
            let marks = |()| ConfigError::Unsupported { key, value: "irregular".to_owned() };
            return SlidingWindow::from_marks(tokens, &local).map_err(marks);
        }
        let period = match self.metadata.integer(&key)? {
            None => default_period,
            // A period of 1 makes every layer global.
            Some(1) => return Ok(None),
            Some(period) => {
                usize::try_from(period).map_err(|_| ConfigError::Unsupported { key, value: period.to_string() })?
            }
        };
        Ok(Some(SlidingWindow { tokens, period, first_layer: 0 }))
    }

    fn rope(&self, family: Family, head_dim: usize, local: bool) -> Result<RopeConfig, ConfigError> {
        let local_base = match family {
            Family::Gemma3 if local => Some(self.float("rope.freq_base_swa")?.unwrap_or(GEMMA3_LOCAL_BASE)),
            _ => None,
        };
        Ok(RopeConfig {
            pairing: if family == Family::Llama { RopePairing::Interleaved } else { RopePairing::Halves },
            dims: self.optional_size("rope.dimension_count")?.unwrap_or(head_dim),
            base: self.float("rope.freq_base")?.unwrap_or(10_000.0),
            local_base,
            scaling: self.scaling()?,
        })
    }

    fn scaling(&self) -> Result<RopeScaling, ConfigError> {
        let key = self.key("rope.scaling.type");
        let kind = self.metadata.text(&key)?;
        // Files from before there were kinds state only this factor.
        let factor = match self.float("rope.scaling.factor")? {
            None => self.float("rope.scale_linear")?,
            stated => stated,
        };
        match (kind, factor) {
            (Some("none"), _) | (None | Some("linear"), None) => Ok(RopeScaling::None),
            (None | Some("linear"), Some(1.0)) => Ok(RopeScaling::None),
            (None | Some("linear"), Some(factor)) => Ok(RopeScaling::Linear { factor }),
            (Some(kind), _) => Err(ConfigError::Unsupported { key, value: kind.to_owned() }),
        }
    }
}
