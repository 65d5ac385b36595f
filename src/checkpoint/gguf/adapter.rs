#![forbid(unsafe_code)]
//! Adapters in GGUF files.
//!
//! | key or tensor | what it says |
//! | --- | --- |
//! | `general.type` = `adapter`, `adapter.type` = `lora` | that it is one |
//! | `general.architecture` | the model's family |
//! | `adapter.lora.alpha` | `scale = alpha / rank`; 0 is a scale of 1 |
//! | `MATRIX.lora_a`, `MATRIX.lora_b` | the factors; rows of q and k in the order of GGUF models |
//!
//! # Source
//! The GGUF format description of the ggml project, and the names that its converter of adapters writes.

use std::path::Path;

use super::super::config::{ModelConfig, RopePairing};
use super::super::error::ConfigError;
use super::super::lora::{AdapterError, Factor, LoraError, Raw, RawFactor, ScaleRule};
use super::super::map::map;
use super::keys::family;
use super::{GgufFile, Metadata};
use crate::checkpoint::Family;

/// Why a file was refused, before its path is added.
enum Refusal {
    Config(ConfigError),
    Lora(LoraError),
}

impl From<ConfigError> for Refusal {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<LoraError> for Refusal {
    fn from(error: LoraError) -> Self {
        Self::Lora(error)
    }
}

/// Reads an adapter file.
pub(crate) fn open(path: &Path, config: &ModelConfig) -> Result<Raw, AdapterError> {
    let path = path.to_owned();
    let bytes = match map(&path) {
        Ok(bytes) => bytes,
        Err(source) => return Err(AdapterError::Read { path, source }),
    };
    let file = match GgufFile::parse(bytes) {
        Ok(file) => file,
        Err(source) => return Err(AdapterError::Gguf { path, source }),
    };
    read(&file, config).map_err(|refusal| match refusal {
        Refusal::Config(source) => AdapterError::Config { path, source },
        Refusal::Lora(source) => AdapterError::Lora { path, source },
    })
}

fn read(file: &GgufFile, config: &ModelConfig) -> Result<Raw, Refusal> {
    let metadata = file.metadata();
    expect(metadata, "general.type", "adapter")?;
    expect(metadata, "adapter.type", "lora")?;
    let architecture = metadata.text("general.architecture")?.unwrap_or_default();
    if family(architecture) != Some(config.family) {
        return Err(LoraError::Architecture { architecture: architecture.to_owned() }.into());
    }
    let activated = "adapter.alora.invocation_tokens";
    if metadata.get(activated).is_some() {
        let reason = "adapters that begin at certain tokens are not computed";
        return Err(LoraError::Variant { key: activated.to_owned(), got: "there".to_owned(), reason }.into());
    }
    let alpha = metadata.float("adapter.lora.alpha")?;
    let alpha = alpha.ok_or_else(|| ConfigError::MissingKey { key: "adapter.lora.alpha".to_owned() })? as f32;
    let mut factors = Vec::new();
    for info in file.tensors() {
        let (matrix, factor) = match (info.name.strip_suffix(".lora_a"), info.name.strip_suffix(".lora_b")) {
            (Some(matrix), _) => (matrix, Factor::A),
            (_, Some(matrix)) => (matrix, Factor::B),
            _ => {
                let reason = "a tensor that is no factor of a matrix would be left out";
                return Err(LoraError::Target { tensor: info.name.clone(), reason }.into());
            }
        };
        let tensor = file.tensor(info)?;
        factors.push(RawFactor { name: info.name.clone(), matrix: matrix.to_owned(), factor, tensor });
    }
    // Only llama files have another order than Hugging Face.
    let pairing = if config.family == Family::Llama { RopePairing::Interleaved } else { RopePairing::Halves };
    let scale = if alpha == 0.0 { ScaleRule::None } else { ScaleRule::Rank(alpha) };
    Ok(Raw { pairing: Some(pairing), scale, stated_rank: None, factors })
}

fn expect(metadata: &Metadata, key: &'static str, expected: &'static str) -> Result<(), Refusal> {
    match metadata.text(key)? {
        Some(text) if text == expected => Ok(()),
        got => Err(LoraError::Kind { key, got: got.unwrap_or("not there").to_owned(), expected }.into()),
    }
}
