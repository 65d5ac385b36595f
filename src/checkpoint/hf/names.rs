#![forbid(unsafe_code)]
//! From the tensor names of Hugging Face files to the canonical ones.

use super::super::config::Family;
use super::super::error::ConfigError;

/// Names in a layer that are the same for all families.
const LAYER: &[(&str, &str)] = &[
    ("input_layernorm.weight", "attn_norm.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("self_attn.q_proj.bias", "attn_q.bias"),
    ("self_attn.k_proj.bias", "attn_k.bias"),
    ("self_attn.v_proj.bias", "attn_v.bias"),
    ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
];

/// The norms around the feed-forward layer: what other families call `post_attention_layernorm` stands in front of it.
const PLAIN_NORMS: &[(&str, &str)] = &[("post_attention_layernorm.weight", "ffn_norm.weight")];

/// Gemma 3 has a norm behind attention, and one on each side of the feed-forward layer.
const GEMMA3_NORMS: &[(&str, &str)] = &[
    ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
    ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
];

/// Parts of a Gemma 3 that sees: not computed here.
const VISION: &[&str] =
    &["vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."];

/// The canonical name; none for a tensor that has no part in the language model or follows from the numbers.
///
/// # Errors
/// `UnknownTensor` for every other name: a tensor that is left out would make wrong answers.
pub(super) fn canonical(name: &str, family: Family) -> Result<Option<String>, ConfigError> {
    let mut plain = name.to_owned();
    if family == Family::Gemma3 {
        if VISION.iter().any(|prefix| name.starts_with(prefix)) {
            return Ok(None);
        }
        if let Some(rest) = name.strip_prefix("language_model.") {
            plain = rest.to_owned();
        } else if let Some(rest) = name.strip_prefix("model.language_model.") {
            plain = format!("model.{rest}");
        }
    }
    let found = match &*plain {
        "model.embed_tokens.weight" => Some("token_embd.weight".to_owned()),
        "model.norm.weight" => Some("output_norm.weight".to_owned()),
        "lm_head.weight" => Some("output.weight".to_owned()),
        name if name.ends_with(".rotary_emb.inv_freq") => return Ok(None),
        name => layer_name(name, family),
    };
    found.map(Some).ok_or_else(|| ConfigError::UnknownTensor { tensor: name.to_owned() })
}

fn layer_name(name: &str, family: Family) -> Option<String> {
    let (number, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let norms = if family == Family::Gemma3 { GEMMA3_NORMS } else { PLAIN_NORMS };
    let (_, canonical) = LAYER.iter().chain(norms).find(|(theirs, _)| *theirs == rest)?;
    Some(format!("blk.{number}.{canonical}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_norm_has_another_place_in_gemma() {
        let name = "model.layers.3.post_attention_layernorm.weight";
        assert_eq!(canonical(name, Family::Llama).unwrap().as_deref(), Some("blk.3.ffn_norm.weight"));
        assert_eq!(canonical(name, Family::Gemma3).unwrap().as_deref(), Some("blk.3.post_attention_norm.weight"));
    }

    #[test]
    fn names_of_a_gemma_that_sees_lose_their_prefix() {
        for name in ["language_model.model.norm.weight", "model.language_model.norm.weight", "model.norm.weight"] {
            assert_eq!(canonical(name, Family::Gemma3).unwrap().as_deref(), Some("output_norm.weight"));
        }
        assert_eq!(canonical("vision_tower.x", Family::Gemma3).unwrap(), None);
        assert!(canonical("vision_tower.x", Family::Llama).is_err());
    }

    #[test]
    fn unknown_names_are_refused() {
        for name in ["", "model.layers..mlp.up_proj.weight", "model.layers.-1.mlp.up_proj.weight", "token_embd.weight"]
        {
            let refused = Err(ConfigError::UnknownTensor { tensor: name.to_owned() });
            assert_eq!(canonical(name, Family::Llama), refused);
        }
    }
}
