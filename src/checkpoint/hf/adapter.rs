#![forbid(unsafe_code)]
//! Adapters as PEFT saves them: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! Tensors are `base_model.model.NAME.lora_A.weight` and `...lora_B.weight`, where `NAME` is the module's in a Hugging Face model.
//! Of the document count `r`, `lora_alpha`, `use_rslora` and what would change the result in a way that is not computed here; where
//! `rank_pattern` gives modules ranks of their own, a rank is what the tensor has.
//!
//! # Source
//! The documents and names of the PEFT project.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::super::config::{ModelConfig, RopePairing};
use super::super::error::{CheckpointError, ConfigError};
use super::super::lora::{AdapterError, Factor, LoraError, MAX_RANK, Raw, RawFactor, ScaleRule};
use super::super::map::map;
use super::document::{Document, describe};
use super::safetensors::{self, Found};
use super::{Family, names};

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";

/// Modules whose matrices can be changed, by the last part of their names.
const MODULES: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

/// Members that must be absent, false, empty or null, and why.
const VARIANTS: &[(&str, &str)] = &[
    ("use_dora", "the magnitudes of DoRA are not computed"),
    ("use_qalora", "grouped adapters of quantised models are not computed"),
    ("lora_bias", "biases of the factors are not computed"),
    ("fan_in_fan_out", "transposed factors are not computed"),
    ("alpha_pattern", "scales that differ by module are not computed"),
    ("modules_to_save", "modules that are saved whole are not computed"),
    ("trainable_token_indices", "changes of the embedding are not computed"),
    ("target_parameters", "changes of parameters outside linear modules are not computed"),
    ("layer_replication", "layers that are used twice are not computed"),
    ("alora_invocation_tokens", "adapters that begin at certain tokens are not computed"),
    ("arrow_config", "routed adapters are not computed"),
];

/// Reads the directory, or the tensor file with its document beside it.
pub(crate) fn open(path: &Path, config: &ModelConfig) -> Result<Raw, AdapterError> {
    let (directory, tensors_path): (PathBuf, PathBuf) = match path.is_dir() {
        true => (path.to_owned(), path.join(TENSORS)),
        false => (path.parent().unwrap_or(Path::new("")).to_owned(), path.to_owned()),
    };
    let config_path = directory.join(CONFIG);
    let (_, document) = Document::read(&config_path).map_err(of_document)?;
    let Stated { scale, rank } = stated(&document).map_err(|refusal| refusal.at(&config_path))?;
    let bytes = map(&tensors_path).map_err(|source| AdapterError::Read { path: tensors_path.clone(), source })?;
    let found = safetensors::parse(&bytes)
        .map_err(|source| AdapterError::Hf { path: tensors_path.clone(), source: source.into() })?;
    let factors = found.into_iter().map(|found| factor(found, config.family)).collect::<Result<_, _>>();
    let factors = factors.map_err(|refusal| refusal.at(&tensors_path))?;
    Ok(Raw { pairing: Some(RopePairing::Halves), scale, stated_rank: rank, factors })
}

/// Why a file was refused, before its path is added.
enum Refusal {
    Config(ConfigError),
    Lora(LoraError),
}

impl Refusal {
    fn at(self, path: &Path) -> AdapterError {
        let path = path.to_owned();
        match self {
            Self::Config(source) => AdapterError::Config { path, source },
            Self::Lora(source) => AdapterError::Lora { path, source },
        }
    }
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

/// A document could not be read: there are two ways for that.
fn of_document(error: CheckpointError) -> AdapterError {
    match error {
        CheckpointError::Hf { path, source } => AdapterError::Hf { path, source },
        CheckpointError::Read { path, source } => AdapterError::Read { path, source },
        CheckpointError::Config { path, source } => AdapterError::Config { path, source },
        other => AdapterError::Read { path: PathBuf::new(), source: std::io::Error::other(other) },
    }
}

/// What the document says of all factors.
struct Stated {
    scale: ScaleRule,
    /// None where modules have ranks of their own.
    rank: Option<usize>,
}

fn stated(document: &Document) -> Result<Stated, Refusal> {
    match document.text("peft_type")? {
        Some("LORA") => {}
        got => {
            let got = got.unwrap_or("not there").to_owned();
            return Err(LoraError::Kind { key: "peft_type", got, expected: "LORA" }.into());
        }
    }
    for &(key, reason) in VARIANTS {
        match document.get(key) {
            Some(value) if !is_neutral(value) => {
                return Err(LoraError::Variant { key: key.to_owned(), got: describe(value), reason }.into());
            }
            _ => {}
        }
    }
    match document.text("bias")? {
        None | Some("none") => {}
        Some(got) => {
            let reason = "biases that were trained are not computed";
            return Err(LoraError::Variant { key: "bias".to_owned(), got: got.to_owned(), reason }.into());
        }
    }
    check_modules(document)?;
    let rank = document.integer("r")?.ok_or_else(|| document.missing("r"))?;
    let rank = usize::try_from(rank).ok().filter(|rank| (1..=MAX_RANK).contains(rank)).ok_or_else(|| {
        let expected = format!("1 to {MAX_RANK} expected");
        LoraError::Rank { place: "r".to_owned(), got: rank.max(0) as u64, expected }
    })?;
    let alpha = document.number("lora_alpha")?.ok_or_else(|| document.missing("lora_alpha"))?;
    let root = document.flag("use_rslora")?.unwrap_or(false);
    let own_ranks = document.get("rank_pattern").is_some_and(|pattern| !is_neutral(pattern));
    Ok(Stated {
        scale: if root { ScaleRule::RootOfRank(alpha) } else { ScaleRule::Rank(alpha) },
        rank: (!own_ranks).then_some(rank),
    })
}

/// Whether a member says nothing: false, or a list or an object of nothing.
fn is_neutral(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(values) => values.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

/// A list names modules that can be changed; a pattern names what the tensors say.
fn check_modules(document: &Document) -> Result<(), Refusal> {
    let Some(Value::Array(modules)) = document.get("target_modules") else { return Ok(()) };
    for module in modules {
        let name = module.as_str().unwrap_or_default();
        let last = name.rsplit('.').next().unwrap_or_default();
        if !MODULES.contains(&last) {
            let reason = match last {
                "lm_head" => "changes of the output matrix are not computed",
                "embed_tokens" => "changes of the embedding are not computed",
                _ => "this model has no such module",
            };
            return Err(LoraError::Target { tensor: format!("target_modules: {name}"), reason }.into());
        }
    }
    Ok(())
}

fn factor(found: Found, family: Family) -> Result<RawFactor, Refusal> {
    let Found { name, tensor } = found;
    let refused = |reason| Refusal::Lora(LoraError::Target { tensor: name.clone(), reason });
    let plain = name.strip_prefix("base_model.model.").ok_or_else(|| refused("no name of an adapter's tensor"))?;
    let (module, factor) = match (plain.strip_suffix(".lora_A.weight"), plain.strip_suffix(".lora_B.weight")) {
        (Some(module), _) => (module, Factor::A),
        (_, Some(module)) => (module, Factor::B),
        _ if plain.contains("lora_magnitude_vector") => return Err(refused("the magnitudes of DoRA are not computed")),
        _ if plain.contains("lora_embedding_") => return Err(refused("changes of the embedding are not computed")),
        _ => return Err(refused("a tensor that is no factor of a matrix would be left out")),
    };
    let matrix = match names::canonical(&format!("{module}.weight"), family) {
        Ok(Some(matrix)) => matrix,
        _ => return Err(refused("this model has no such module")),
    };
    let tensor = tensor.map_err(|element_type| ConfigError::TensorType { tensor: name.clone(), element_type })?;
    Ok(RawFactor { matrix, factor, tensor, name })
}
