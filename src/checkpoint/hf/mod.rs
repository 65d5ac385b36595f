#![forbid(unsafe_code)]
//! Hugging Face directories: `config.json`, `model.safetensors` or its shards, and what lies beside them.
//!
//! | file | what is taken |
//! | --- | --- |
//! | `config.json` | the numbers of the architecture |
//! | `model.safetensors`, else `model.safetensors.index.json` and the shards it names | tensors, under canonical names |
//! | `tokenizer.json` | its path |
//! | `generation_config.json` | sampling defaults, ends of generation |
//! | `1_Pooling/config.json`, `modules.json` | how a text is embedded |
//! | `chat_template.jinja`, else `tokenizer_config.json` | the chat template |
//!
//! All but the first two may be missing. Gemma 3 norms are stored less 1 and get it back here, so that a norm is always what to
//! multiply by.
//!
//! # Limits
//! JSON documents have at most [`MAX_DOCUMENT_BYTES`] and nest 128 deep; at most [`MAX_SHARDS`] shards, whose names are plain file
//! names: no document leads out of the directory (a symbolic link in it may, as in the cache of the Hugging Face tools).
//!
//! # Not here
//! Reading `tokenizer.json`: `tokenizer`.

mod adapter;
mod config;
mod document;
mod extras;
mod names;
mod safetensors;
mod shards;

pub use document::MAX_DOCUMENT_BYTES;
pub use shards::MAX_SHARDS;

pub(super) use adapter::open as open_adapter;

use std::collections::HashSet;
use std::path::Path;

use self::document::Document;
use self::safetensors::Found;
use self::shards::Shard;
use super::Parts;
use super::assemble::{Named, vector_values};
use super::config::Family;
use super::error::{CheckpointError, ConfigError, HfError};
use super::vocabulary::{HfVocabulary, Vocabulary};
use crate::tensor::{Bytes, DType, Tensor};

/// Reads a directory that has a `config.json`.
pub(super) fn open(directory: &Path) -> Result<Parts, CheckpointError> {
    let config_path = directory.join("config.json");
    let refused = |source| CheckpointError::Config { path: config_path.clone(), source };
    let (config_bytes, root) = Document::read(&config_path)?;
    let generation = Document::read_optional(&directory.join("generation_config.json"))?;
    let model = config::model_config(&root).map_err(refused)?;
    let tied = config::is_tied(&root, model.family).map_err(refused)?;
    let special = extras::special_tokens(&root, generation.as_ref(), model.vocab).map_err(refused)?;
    let sampling_defaults = match &generation {
        None => None,
        Some(generation) => extras::sampling_defaults(generation)
            .map_err(|source| CheckpointError::Config { path: directory.join("generation_config.json"), source })?,
    };
    let tokenizer_json = directory.join("tokenizer.json");
    let vocabulary = tokenizer_json
        .is_file()
        .then(|| Vocabulary::Hf(HfVocabulary { tokenizer_json: tokenizer_json.clone(), special }));
    let mut tensors = Vec::new();
    let mut seen = HashSet::new();
    for Shard { path, tensors: found } in shards::open(directory)? {
        let at = |source| CheckpointError::Config { path: path.clone(), source };
        for Found { name: file_name, tensor } in found {
            let Some(name) = names::canonical(&file_name, model.family).map_err(at)? else { continue };
            if tied && name == "output.weight" {
                continue;
            }
            if !seen.insert(name.clone()) {
                return Err(CheckpointError::Hf { path, source: HfError::DuplicateTensor { tensor: name } });
            }
            let tensor = tensor
                .map_err(|element_type| ConfigError::TensorType { tensor: file_name, element_type })
                .and_then(|tensor| finish(name, tensor, model.family));
            tensors.push(tensor.map_err(at)?);
        }
    }
    if !tied && !seen.contains("output.weight") {
        return Err(refused(ConfigError::MissingTensor { tensor: "output.weight".to_owned() }));
    }
    Ok(Parts {
        name: directory_name(directory),
        config: model,
        tensors,
        vocabulary,
        chat_template: extras::chat_template(directory)?,
        sampling_defaults,
        embedding: extras::embedding(directory)?,
        documents: vec![Bytes::copy_aligned(&config_bytes)],
    })
}

/// Gives Gemma 3 norms back their 1; the sum is of single precision, as the family's definition has it.
fn finish(name: String, tensor: Tensor, family: Family) -> Result<Named, ConfigError> {
    if family != Family::Gemma3 || tensor.rows != 1 || !name.ends_with("norm.weight") {
        return Ok(Named { name, tensor });
    }
    let mut values = vector_values(&name, &tensor)?;
    values.iter_mut().for_each(|value| *value += 1.0);
    Ok(Named { name, tensor: Tensor { dtype: DType::F32, data: Bytes::from_f32(&values), ..tensor } })
}

fn directory_name(directory: &Path) -> String {
    let full = std::fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    full.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
