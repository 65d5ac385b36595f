#![forbid(unsafe_code)]
//! The `tokenizer.ggml.*` keys.

use super::super::error::ConfigError;
use super::super::vocabulary::{GgufVocabulary, SpecialTokens, token_id};
use super::metadata::Metadata;
use super::value::Value;

/// Reads the vocabulary of a model whose embedding has `vocab` rows; none when the file has no tokenizer.
///
/// # Errors
/// `KeyType`, `MissingKey` for a tokenizer without tokens, `VocabularySize`, `SpecialToken`.
pub(crate) fn vocabulary(metadata: &Metadata, vocab: usize) -> Result<Option<GgufVocabulary>, ConfigError> {
    let text = |name: &str| metadata.text(&key(name)).map(|text| text.map(str::to_owned));
    let flag = |name: &str| metadata.flag(&key(name));
    let Some(model) = text("model")? else { return Ok(None) };
    if model == "none" || model == "no_vocab" {
        return Ok(None);
    }
    let tokens = metadata.strings(&key("tokens"))?.ok_or_else(|| ConfigError::MissingKey { key: key("tokens") })?;
    let scores = metadata.floats(&key("scores"))?;
    let types = metadata.integers(&key("token_type"))?;
    for (name, count) in [
        ("tokens", Some(tokens.len())),
        ("scores", scores.as_ref().map(Vec::len)),
        ("token_type", types.as_ref().map(Vec::len)),
    ] {
        if let Some(got) = count.filter(|&count| count != vocab) {
            return Err(ConfigError::VocabularySize { key: key(name), got: got as u64, expected: vocab as u64 });
        }
    }
    Ok(Some(GgufVocabulary {
        model,
        pre: text("pre")?,
        tokens,
        scores,
        types,
        merges: metadata.strings(&key("merges"))?,
        special: special(metadata, vocab)?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_sep: flag("add_sep_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
        has_charsmap: metadata.get(&key("precompiled_charsmap")).is_some(),
    }))
}

fn special(metadata: &Metadata, vocab: usize) -> Result<SpecialTokens, ConfigError> {
    let id = |name: &str| {
        let key = key(name);
        match metadata.get(&key) {
            // The signed form of "none"; everything else has to be an integer of 0 or more.
            Some((_, Value::Signed(-1))) => Ok(None),
            _ => match metadata.integer(&key)? {
                Some(id) => token_id(&key, i64::try_from(id).unwrap_or(i64::MAX), vocab),
                None => Ok(None),
            },
        }
    };
    let special = SpecialTokens {
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        eot: id("eot_token_id")?,
        eom: id("eom_token_id")?,
        unknown: id("unknown_token_id")?,
        // Spelled like this in the format.
        separator: id("seperator_token_id")?,
        padding: id("padding_token_id")?,
        mask: id("mask_token_id")?,
        ends: Vec::new(),
    };
    Ok(special.with_ends(&[]))
}

fn key(name: &str) -> String {
    format!("tokenizer.ggml.{name}")
}
