#![forbid(unsafe_code)]
//! What lies beside the weights: special tokens, sampling defaults, the chat template.

use std::path::Path;

use serde_json::Value;

use super::super::error::{CheckpointError, ConfigError, HfError};
use super::super::pooling::{Embedding, Pooling};
use super::super::sampling::SamplingDefaults;
use super::super::vocabulary::{SpecialTokens, token_id};
use super::config::text_part;
use super::document::{Document, describe, read_bounded};

/// Special tokens: what `generation_config.json` says, else `config.json`, else its part on the language model.
pub(super) fn special_tokens(
    root: &Document,
    generation: Option<&Document>,
    vocab: usize,
) -> Result<SpecialTokens, ConfigError> {
    let text = text_part(root)?;
    let first = |name: &str| {
        let documents = [generation, Some(root), Some(&text)];
        let stated = documents.into_iter().flatten().find(|document| document.get(name).is_some());
        stated.map_or(Ok(Vec::new()), |document| ids(document, name, vocab))
    };
    let ends = first("eos_token_id")?;
    let special = SpecialTokens {
        bos: first("bos_token_id")?.first().copied(),
        eos: ends.first().copied(),
        padding: first("pad_token_id")?.first().copied(),
        ..SpecialTokens::default()
    };
    Ok(special.with_ends(&ends))
}

/// One id or a list of them.
fn ids(document: &Document, name: &str, vocab: usize) -> Result<Vec<u32>, ConfigError> {
    let key = document.key(name);
    let wrong = |value: &Value| ConfigError::KeyType {
        key: key.clone(),
        expected: "a token or a list of tokens",
        got: describe(value),
    };
    let values = match document.get(name) {
        Some(Value::Array(values)) => values.as_slice(),
        Some(value) => core::slice::from_ref(value),
        None => &[],
    };
    let mut found = Vec::new();
    for value in values {
        let id = value.as_i64().ok_or_else(|| wrong(value))?;
        found.extend(token_id(&key, id, vocab)?);
    }
    Ok(found)
}

/// What the checkpoint recommends: the members of these names.
pub(super) fn sampling_defaults(generation: &Document) -> Result<Option<SamplingDefaults>, ConfigError> {
    let top_k = match generation.integer("top_k")? {
        None => None,
        Some(value) => Some(u32::try_from(value).map_err(|_| ConfigError::Range {
            key: generation.key("top_k"),
            got: value.to_string(),
            expected: "0 or more, of 32 bits",
        })?),
    };
    let defaults = SamplingDefaults {
        temperature: generation.number("temperature")?,
        top_p: generation.number("top_p")?,
        top_k,
        min_p: generation.number("min_p")?,
        repetition_penalty: generation.number("repetition_penalty")?,
        do_sample: generation.flag("do_sample")?,
    };
    Ok((defaults != SamplingDefaults::default()).then_some(defaults))
}

/// How a text is embedded, as the sentence-transformers project writes it down; the last token where nothing is written.
///
/// None for a pooling that is not computed here.
pub(super) fn embedding(directory: &Path) -> Result<Option<Embedding>, CheckpointError> {
    let path = directory.join("1_Pooling").join("config.json");
    let Some(document) = Document::read_optional(&path)? else { return Ok(Some(Embedding::default())) };
    let modes = |source| CheckpointError::Config { path: path.clone(), source };
    let pooling = match pooling_modes(&document).map_err(modes)?.as_slice() {
        ["mean" | "mean_tokens"] => Pooling::Mean,
        ["cls" | "cls_token"] => Pooling::First,
        [] | ["lasttoken"] => Pooling::Last,
        _ => return Ok(None),
    };
    Ok(Some(Embedding { pooling, normalised: has_normalise(&directory.join("modules.json"))? }))
}

/// The modes that are switched on: one text, or a member for each.
fn pooling_modes(document: &Document) -> Result<Vec<&'static str>, ConfigError> {
    const MODES: [&str; 9] = [
        "cls",
        "mean",
        "lasttoken",
        "cls_token",
        "mean_tokens",
        "max_tokens",
        "mean_sqrt_len_tokens",
        "weightedmean_tokens",
        "max",
    ];
    let stated = document.text("pooling_mode")?;
    let mut on = Vec::new();
    for mode in MODES {
        let named = stated == Some(mode);
        if named || document.flag(&format!("pooling_mode_{mode}"))?.unwrap_or(false) {
            on.push(mode);
        }
    }
    // A mode of another name is one that is not computed.
    if stated.is_some_and(|stated| !MODES.contains(&stated)) {
        on.push("max");
    }
    Ok(on)
}

/// Whether the list of modules has one that scales to length 1.
fn has_normalise(path: &Path) -> Result<bool, CheckpointError> {
    if !path.exists() {
        return Ok(false);
    }
    let modules: Value = serde_json::from_slice(&read_bounded(path)?)
        .map_err(|source| CheckpointError::Hf { path: path.to_owned(), source: HfError::Json { source } })?;
    let kinds = modules.as_array().into_iter().flatten().filter_map(|module| module.get("type")?.as_str());
    Ok(kinds.into_iter().any(|kind| kind.ends_with(".Normalize")))
}

/// The chat template: a file of its own, or a member of `tokenizer_config.json` that is a string or a list of named ones.
pub(super) fn chat_template(directory: &Path) -> Result<Option<String>, CheckpointError> {
    let path = directory.join("chat_template.jinja");
    if path.exists() {
        let text = String::from_utf8(read_bounded(&path)?).map_err(|_| {
            let source = HfError::Form { key: "the template".to_owned(), expected: "UTF-8" };
            CheckpointError::Hf { path, source }
        })?;
        return Ok(Some(text));
    }
    let path = directory.join("tokenizer_config.json");
    let Some(config) = Document::read_optional(&path)? else { return Ok(None) };
    match config.get("chat_template") {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(named)) => Ok(default_template(named)),
        Some(_) => {
            let source = HfError::Form { key: "chat_template".to_owned(), expected: "a string or a list of templates" };
            Err(CheckpointError::Hf { path, source })
        }
    }
}

fn default_template(named: &[Value]) -> Option<String> {
    let default = named.iter().find(|entry| entry.get("name").and_then(Value::as_str) == Some("default"))?;
    default.get("template")?.as_str().map(str::to_owned)
}
