#![forbid(unsafe_code)]
//! From parsed shards to the parts of a checkpoint.

use std::path::PathBuf;

use super::super::Parts;
use super::super::assemble::Named;
use super::super::error::ConfigError;
use super::super::vocabulary::Vocabulary;
use super::{GgufFile, keys, vocabulary};

const EMBEDDING: &str = "token_embd.weight";

/// Reads the model from its shards; keys count in the first shard only.
pub(crate) fn read(shards: Vec<(PathBuf, GgufFile)>) -> Result<Parts, ConfigError> {
    let metadata = match shards.first() {
        Some((_, first)) => first.metadata(),
        None => return Err(ConfigError::MissingTensor { tensor: EMBEDDING.to_owned() }),
    };
    let embedding = shards.iter().flat_map(|(_, shard)| shard.tensors()).find(|info| info.name == EMBEDDING);
    let vocab = embedding
        .map(|info| usize::try_from(info.rows()).unwrap_or(usize::MAX))
        .ok_or_else(|| ConfigError::MissingTensor { tensor: EMBEDDING.to_owned() });
    // An unknown architecture is the more helpful thing to hear, and so comes first.
    let config = keys::model_config(metadata, *vocab.as_ref().unwrap_or(&1))?;
    let vocab = vocab?;
    let mut tensors = Vec::new();
    for (_, shard) in &shards {
        for info in shard.tensors() {
            tensors.push(Named { name: info.name.clone(), tensor: shard.tensor(info)? });
        }
    }
    Ok(Parts {
        name: metadata.text("general.name")?.unwrap_or_default().to_owned(),
        vocabulary: vocabulary::vocabulary(metadata, vocab)?.map(|found| Vocabulary::Gguf(Box::new(found))),
        chat_template: metadata.text("tokenizer.chat_template")?.map(str::to_owned),
        sampling_defaults: keys::sampling_defaults(metadata)?,
        embedding: keys::embedding(metadata, &config.architecture)?,
        documents: shards.iter().map(|(_, shard)| shard.header()).collect(),
        config,
        tensors,
    })
}
