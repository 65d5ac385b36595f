#![forbid(unsafe_code)]
//! From `config.json` to the numbers of an architecture.
//!
//! Members that the file leaves out have the defaults of the family's published configuration class; Gemma 3 files leave out most.
//! A member that changes the results and that no family here computes is refused by name unless it is neutral.
//!
//! # Source
//! Configuration classes of the transformers project; Llama 3.1's frequency scaling as its model card's code has it.

use super::super::config::{Family, MAX_HEAD_DIM, ModelConfig, RopeConfig, RopePairing, RopeScaling, SlidingWindow};
use super::super::error::ConfigError;
use super::document::{Document, describe};

/// Defaults of Gemma 3.
mod gemma3 {
    pub(super) const VOCAB: usize = 262_208;
    pub(super) const HEADS: usize = 8;
    pub(super) const KV_HEADS: usize = 4;
    pub(super) const HEAD_DIM: usize = 256;
    pub(super) const CONTEXT_TOKENS: usize = 131_072;
    pub(super) const EPSILON: f32 = 1e-6;
    pub(super) const BASE: f32 = 1e6;
    pub(super) const LOCAL_BASE: f32 = 1e4;
    pub(super) const WINDOW_TOKENS: usize = 4096;
    pub(super) const PERIOD: usize = 6;
    pub(super) const ATTENTION_WIDTH: f32 = 256.0;
}

/// Width of a head in Qwen3 where the file does not say.
const QWEN3_HEAD_DIM: usize = 128;
/// Window of Qwen where it is switched on and the file does not say.
const QWEN_WINDOW_TOKENS: usize = 4096;
/// Layers of Qwen without a window where it is switched on and the file does not say.
const QWEN_GLOBAL_LAYERS: usize = 28;

/// Reads the numbers. The result is not checked yet.
pub(super) fn model_config(root: &Document) -> Result<ModelConfig, ConfigError> {
    let text = text_part(root)?;
    let architecture = text.text("model_type")?.ok_or_else(|| text.missing("model_type"))?.to_owned();
    let family = match &*architecture {
        "llama" | "mistral" => Family::Llama,
        "qwen2" => Family::Qwen2,
        "qwen3" => Family::Qwen3,
        "gemma3_text" => Family::Gemma3,
        _ => return Err(ConfigError::Architecture { architecture }),
    };
    for document in [root, &text] {
        refuse_unserved(document, family)?;
    }
    let gemma = family == Family::Gemma3;
    let or = |name: &str, gemma_default: usize| match text.size(name)? {
        Some(size) => Ok(size),
        None if gemma => Ok(gemma_default),
        None => Err(text.missing(name)),
    };
    let layers = text.required_size("num_hidden_layers")?;
    let hidden = text.required_size("hidden_size")?;
    let n_heads = or("num_attention_heads", gemma3::HEADS)?;
    let n_kv_heads = match text.size("num_key_value_heads")? {
        None if architecture == "llama" => n_heads,
        stated => stated.map_or_else(|| or("num_key_value_heads", gemma3::KV_HEADS), Ok)?,
    };
    let head_dim = head_dim(&text, family, hidden, n_heads)?;
    let window = window(&text, &architecture, family, layers)?;
    let scale_width = match text.positive("query_pre_attn_scalar")? {
        Some(width) if gemma => width,
        _ if gemma => gemma3::ATTENTION_WIDTH,
        _ => head_dim as f32,
    };
    Ok(ModelConfig {
        family,
        layers,
        hidden,
        ffn_hidden: text.required_size("intermediate_size")?,
        n_heads,
        n_kv_heads,
        head_dim,
        vocab: or("vocab_size", gemma3::VOCAB)?,
        context_tokens: or("max_position_embeddings", gemma3::CONTEXT_TOKENS)?,
        norm_epsilon: match text.positive("rms_norm_eps")? {
            None if gemma => gemma3::EPSILON,
            stated => stated.ok_or_else(|| text.missing("rms_norm_eps"))?,
        },
        attention_scale: 1.0 / scale_width.sqrt(),
        rope: rope(&text, family, head_dim, window.is_some())?,
        window,
        architecture,
    })
}

/// Whether the embedding is the output matrix as well.
pub(super) fn is_tied(root: &Document, family: Family) -> Result<bool, ConfigError> {
    let stated = match text_part(root)?.flag("tie_word_embeddings")? {
        None => root.flag("tie_word_embeddings")?,
        stated => stated,
    };
    Ok(stated.unwrap_or(family == Family::Gemma3))
}

/// The part that describes the language model: `text_config` of a Gemma 3 that can see, otherwise all.
pub(super) fn text_part(root: &Document) -> Result<Document, ConfigError> {
    match root.text("model_type")? {
        Some("gemma3") => root.object("text_config")?.ok_or_else(|| root.missing("text_config")),
        _ => Ok(root.clone()),
    }
}

fn refuse_unserved(document: &Document, family: Family) -> Result<(), ConfigError> {
    let refuse = |name: &str, value: String| Err(ConfigError::Unsupported { key: document.key(name), value });
    for name in ["attention_bias", "mlp_bias", "use_bidirectional_attention"] {
        if document.flag(name)? == Some(true) {
            return refuse(name, "true".to_owned());
        }
    }
    for name in ["quantization_config", "final_logit_softcapping", "attn_logit_softcapping"] {
        if let Some(value) = document.get(name) {
            return refuse(name, describe(value));
        }
    }
    if let Some(factor) = document.number("partial_rotary_factor")?.filter(|&factor| factor != 1.0) {
        return refuse("partial_rotary_factor", factor.to_string());
    }
    let (names, served): (_, &[&str]) = match family {
        Family::Gemma3 => (["hidden_activation", "hidden_act"], &["gelu_pytorch_tanh"]),
        _ => (["hidden_act", "hidden_activation"], &["silu", "swish"]),
    };
    for name in names {
        if let Some(kind) = document.text(name)?.filter(|kind| !served.contains(kind)) {
            return refuse(name, kind.to_owned());
        }
    }
    Ok(())
}

fn head_dim(text: &Document, family: Family, hidden: usize, n_heads: usize) -> Result<usize, ConfigError> {
    match (text.size("head_dim")?, family) {
        (Some(head_dim), _) => Ok(head_dim),
        (None, Family::Gemma3) => Ok(gemma3::HEAD_DIM),
        (None, Family::Qwen3) => Ok(QWEN3_HEAD_DIM),
        (None, _) if hidden.is_multiple_of(n_heads) => Ok(hidden / n_heads),
        (None, _) => Err(ConfigError::NotDivisible {
            dividend: "hidden_size",
            dividend_value: hidden as u64,
            divisor: "num_attention_heads",
            divisor_value: n_heads as u64,
        }),
    }
}

fn window(
    text: &Document,
    architecture: &str,
    family: Family,
    layers: usize,
) -> Result<Option<SlidingWindow>, ConfigError> {
    let stated = text.size("sliding_window");
    match family {
        Family::Llama if architecture == "mistral" => {
            Ok(stated?.map(|tokens| SlidingWindow { tokens, period: 0, first_layer: 0 }))
        }
        Family::Llama => Ok(None),
        Family::Qwen2 | Family::Qwen3 => {
            if !text.flag("use_sliding_window")?.unwrap_or(false) {
                return Ok(None);
            }
            let tokens = stated?.unwrap_or(QWEN_WINDOW_TOKENS);
            if let Some(window) = window_of_types(text, tokens, layers)? {
                return Ok(window);
            }
            let first_layer = match text.integer("max_window_layers")? {
                None => QWEN_GLOBAL_LAYERS,
                Some(count) => usize::try_from(count).map_err(|_| ConfigError::Range {
                    key: text.key("max_window_layers"),
                    got: count.to_string(),
                    expected: "0 or more",
                })?,
            };
            Ok((first_layer < layers).then_some(SlidingWindow { tokens, period: 0, first_layer }))
        }
        Family::Gemma3 => {
            let tokens = stated?.unwrap_or(gemma3::WINDOW_TOKENS);
            if let Some(window) = window_of_types(text, tokens, layers)? {
                return Ok(window);
            }
            let pattern = match text.size("sliding_window_pattern")? {
                None => text.size("_sliding_window_pattern")?,
                stated => stated,
            };
            let period = pattern.unwrap_or(gemma3::PERIOD);
            // A period of 1 makes every layer global.
            Ok((period > 1).then_some(SlidingWindow { tokens, period, first_layer: 0 }))
        }
    }
}

/// The window that `layer_types` describes; the outer none when there is no such member.
fn window_of_types(
    text: &Document,
    tokens: usize,
    layers: usize,
) -> Result<Option<Option<SlidingWindow>>, ConfigError> {
    let key = || text.key("layer_types");
    let Some(types) = text.array("layer_types")? else { return Ok(None) };
    if types.len() != layers {
        let expected = "one entry per layer";
        return Err(ConfigError::Range { key: key(), got: format!("{} entries", types.len()), expected });
    }
    let mut local = Vec::with_capacity(layers);
    for value in types {
        match value.as_str() {
            Some("sliding_attention") => local.push(true),
            Some("full_attention") => local.push(false),
            _ => return Err(ConfigError::Unsupported { key: key(), value: describe(value) }),
        }
    }
    let irregular = |()| ConfigError::Unsupported { key: key(), value: "an irregular pattern".to_owned() };
    SlidingWindow::from_marks(tokens, &local).map(Some).map_err(irregular)
}

fn rope(text: &Document, family: Family, dims: usize, local: bool) -> Result<RopeConfig, ConfigError> {
    let gemma = family == Family::Gemma3;
    let parameters = text.object("rope_parameters")?;
    // Newer files have everything in rope_parameters; those with two kinds of layers, once per kind.
    let of_kind = |kind: &str| match &parameters {
        Some(parameters) => parameters.object(kind),
        None => Ok(None),
    };
    let (global, sliding) = (of_kind("full_attention")?.or(parameters.clone()), of_kind("sliding_attention")?);
    let base_in = |document: &Option<Document>| match document {
        Some(document) => document.positive("rope_theta"),
        None => Ok(None),
    };
    let base = match base_in(&global)? {
        None => text.positive("rope_theta")?,
        stated => stated,
    };
    let base = base.unwrap_or(if gemma { gemma3::BASE } else { 10_000.0 });
    let local_base = match base_in(&sliding)? {
        None => text.positive("rope_local_base_freq")?,
        stated => stated,
    };
    if let Some(sliding) = &sliding
        && scaling(sliding, dims, base)? != RopeScaling::None
    {
        return Err(ConfigError::Unsupported { key: sliding.key("rope_type"), value: "scaled".to_owned() });
    }
    let scaled = match text.object("rope_scaling")? {
        None => global,
        stated => stated,
    };
    Ok(RopeConfig {
        pairing: RopePairing::Halves,
        dims,
        base,
        local_base: (gemma && local).then_some(local_base.unwrap_or(gemma3::LOCAL_BASE)),
        scaling: scaled.map_or(Ok(RopeScaling::None), |document| scaling(&document, dims, base))?,
    })
}

fn scaling(document: &Document, dims: usize, base: f32) -> Result<RopeScaling, ConfigError> {
    let name = if document.get("rope_type").is_some() { "rope_type" } else { "type" };
    match document.text(name)? {
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => match document.required_positive("factor")? {
            1.0 => Ok(RopeScaling::None),
            factor => Ok(RopeScaling::Linear { factor }),
        },
        Some("llama3") => llama3_factors(document, dims, base),
        Some(kind) => Err(ConfigError::Unsupported { key: document.key(name), value: kind.to_owned() }),
    }
}

/// Llama 3.1's scaling: wavelengths below `original / high_freq_factor` stay, those above `original / low_freq_factor` are stretched
/// by `factor`, and between them the frequency goes over linearly in `original / wavelength`.
fn llama3_factors(document: &Document, dims: usize, base: f32) -> Result<RopeScaling, ConfigError> {
    // Checked here already because the list of factors is made now.
    if dims > MAX_HEAD_DIM {
        let expected = "a width that is accepted";
        return Err(ConfigError::Range { key: "head_dim".to_owned(), got: dims.to_string(), expected });
    }
    let factor = f64::from(document.required_positive("factor")?);
    let low = f64::from(document.required_positive("low_freq_factor")?);
    let high = f64::from(document.required_positive("high_freq_factor")?);
    let original = document.required_size("original_max_position_embeddings")? as f64;
    if low >= high {
        return Err(ConfigError::Range {
            key: document.key("low_freq_factor"),
            got: low.to_string(),
            expected: "below high_freq_factor",
        });
    }
    let stretch = |pair: usize| {
        let wavelength = core::f64::consts::TAU * f64::from(base).powf((2 * pair) as f64 / dims as f64);
        let turns = original / wavelength;
        // 0 where the frequency is divided by the factor, 1 where it stays.
        let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 / ((1.0 - kept) / factor + kept)) as f32
    };
    Ok(RopeScaling::Factors { factors: (0..dims / 2).map(stretch).collect() })
}
