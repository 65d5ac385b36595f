#![forbid(unsafe_code)]
//! Fits tensors to the numbers of an architecture: the list of what each family computes with, and its shapes.
//!
//! A tensor that is missing, has another shape, or that the family would ignore is refused: a bias left out gives wrong
//! answers, not an error.
//!
//! # Invariants
//! Afterwards every required tensor is there with its shape; vectors are F32; data is aligned as [`Tensor`] promises.

use std::collections::HashSet;

use super::config::{Family, ModelConfig, RopeScaling};
use super::error::ConfigError;
use crate::tensor::{Bytes, DType, Tensor, dequantise_row};

/// Llama 3's frequency factors, as GGUF files store them.
const ROPE_FREQS: &str = "rope_freqs.weight";

/// A tensor as a file names it.
pub(super) struct Named {
    pub(super) name: String,
    pub(super) tensor: Tensor,
}

/// A tensor that a family computes with.
struct Slot {
    name: &'static str,
    rows: usize,
    cols: usize,
    required: bool,
}

impl Slot {
    const fn matrix(name: &'static str, rows: usize, cols: usize) -> Self {
        Self { name, rows, cols, required: true }
    }

    const fn vector(name: &'static str, cols: usize) -> Self {
        Self { name, rows: 1, cols, required: true }
    }
}

/// Tensors outside the layers. Without `output.weight` the embedding is the output matrix as well.
fn model_slots(config: &ModelConfig) -> Vec<Slot> {
    let mut output = Slot::matrix("output.weight", config.vocab, config.hidden);
    output.required = false;
    vec![
        Slot::matrix("token_embd.weight", config.vocab, config.hidden),
        Slot::vector("output_norm.weight", config.hidden),
        output,
    ]
}

/// Tensors of each layer; their names follow `blk.N.`.
fn layer_slots(config: &ModelConfig) -> Vec<Slot> {
    let (hidden, ffn) = (config.hidden, config.ffn_hidden);
    // `ModelConfig::check` has multiplied these.
    let (wide, narrow) = (config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim);
    let mut slots = vec![
        Slot::vector("attn_norm.weight", hidden),
        Slot::matrix("attn_q.weight", wide, hidden),
        Slot::matrix("attn_k.weight", narrow, hidden),
        Slot::matrix("attn_v.weight", narrow, hidden),
        Slot::matrix("attn_output.weight", hidden, wide),
        Slot::vector("ffn_norm.weight", hidden),
        Slot::matrix("ffn_gate.weight", ffn, hidden),
        Slot::matrix("ffn_up.weight", ffn, hidden),
        Slot::matrix("ffn_down.weight", hidden, ffn),
    ];
    match config.family {
        Family::Llama => {}
        Family::Qwen2 => slots.extend([
            Slot::vector("attn_q.bias", wide),
            Slot::vector("attn_k.bias", narrow),
            Slot::vector("attn_v.bias", narrow),
        ]),
        Family::Qwen3 | Family::Gemma3 => slots.extend([
            Slot::vector("attn_q_norm.weight", config.head_dim),
            Slot::vector("attn_k_norm.weight", config.head_dim),
        ]),
    }
    if config.family == Family::Gemma3 {
        slots
            .extend([Slot::vector("post_attention_norm.weight", hidden), Slot::vector("post_ffw_norm.weight", hidden)]);
    }
    slots
}

/// Takes the frequency factors out of the tensors and puts them into the configuration.
pub(super) fn take_rope_factors(config: &mut ModelConfig, tensors: &mut Vec<Named>) -> Result<(), ConfigError> {
    let Some(index) = tensors.iter().position(|named| named.name == ROPE_FREQS) else { return Ok(()) };
    if config.family != Family::Llama || config.rope.scaling != RopeScaling::None {
        return Err(ConfigError::UnknownTensor { tensor: ROPE_FREQS.to_owned() });
    }
    let Named { name, tensor } = tensors.remove(index);
    check_shape(&name, &tensor, 1, config.rope.dims / 2)?;
    config.rope.scaling = RopeScaling::Factors { factors: vector_values(&name, &tensor)? };
    Ok(())
}

/// Checks all tensors against the configuration, which has been checked, and brings vectors to F32.
pub(super) fn fit(config: &ModelConfig, tensors: Vec<Named>) -> Result<Vec<Named>, ConfigError> {
    let (model, layer) = (model_slots(config), layer_slots(config));
    let mut fitted = Vec::with_capacity(tensors.len());
    for Named { name, tensor } in tensors {
        if is_ignored(&name) {
            continue;
        }
        let slot = match layer_name(&name) {
            Some((index, rest)) if index < config.layers => layer.iter().find(|slot| slot.name == rest),
            Some(_) => None,
            None => model.iter().find(|slot| slot.name == name),
        };
        let Some(slot) = slot else { return Err(ConfigError::UnknownTensor { tensor: name }) };
        let tensor = fit_one(slot, &name, tensor)?;
        fitted.push(Named { name, tensor });
    }
    check_complete(config, &model, &layer, &fitted)?;
    Ok(fitted)
}

fn fit_one(slot: &Slot, name: &str, tensor: Tensor) -> Result<Tensor, ConfigError> {
    check_shape(name, &tensor, slot.rows, slot.cols)?;
    if slot.rows == 1 {
        let values = vector_values(name, &tensor)?;
        return Ok(Tensor { dtype: DType::F32, data: Bytes::from_f32(&values), ..tensor });
    }
    let bytes = tensor.data.as_slice();
    let alignment = if tensor.dtype == DType::F32 { 4 } else { 2 };
    if (bytes.as_ptr() as usize).is_multiple_of(alignment) {
        return Ok(tensor);
    }
    Ok(Tensor { data: Bytes::copy_aligned(bytes), ..tensor })
}

fn check_shape(name: &str, tensor: &Tensor, rows: usize, cols: usize) -> Result<(), ConfigError> {
    if (tensor.rows, tensor.cols) == (rows, cols) {
        return Ok(());
    }
    Err(ConfigError::TensorShape {
        tensor: name.to_owned(),
        rows: rows as u64,
        cols: cols as u64,
        got_rows: tensor.rows as u64,
        got_cols: tensor.cols as u64,
    })
}

/// The values of a vector; refused when it is quantised.
pub(super) fn vector_values(name: &str, tensor: &Tensor) -> Result<Vec<f32>, ConfigError> {
    let refused = || ConfigError::VectorType { tensor: name.to_owned(), dtype: tensor.dtype };
    if !matches!(tensor.dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Err(refused());
    }
    let mut values = vec![0.0; tensor.cols];
    dequantise_row(tensor.dtype, tensor.data.as_slice(), &mut values).map_err(|_| refused())?;
    Ok(values)
}

fn check_complete(config: &ModelConfig, model: &[Slot], layer: &[Slot], fitted: &[Named]) -> Result<(), ConfigError> {
    let names: HashSet<&str> = fitted.iter().map(|named| &*named.name).collect();
    let present = |name: String| {
        if names.contains(&*name) { Ok(()) } else { Err(ConfigError::MissingTensor { tensor: name }) }
    };
    for slot in model.iter().filter(|slot| slot.required) {
        present(slot.name.to_owned())?;
    }
    for index in 0..config.layers {
        for slot in layer {
            present(format!("blk.{index}.{}", slot.name))?;
        }
    }
    Ok(())
}

/// Splits `blk.N.rest`; N in its shortest form, so that no layer has two names.
pub(super) fn layer_name(name: &str) -> Option<(usize, &str)> {
    let (number, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let index: usize = number.parse().ok()?;
    (index.to_string() == number).then_some((index, rest))
}

/// Tables that follow from the numbers; old files carry them.
fn is_ignored(name: &str) -> bool {
    name.ends_with(".attn_rot_embd.weight") || name.ends_with(".rotary_emb.inv_freq")
}
