#![forbid(unsafe_code)]
//! The tensor files of a directory: one, or as many as an index names.

use std::collections::{BTreeMap, HashSet};
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use super::super::error::{CheckpointError, HfError};
use super::super::map::map;
use super::document::{Document, describe};
use super::safetensors;

/// Most shards of an index.
pub const MAX_SHARDS: u64 = 4096;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A tensor file.
pub(super) struct Shard {
    pub(super) path: PathBuf,
    /// In the order of the file.
    pub(super) tensors: Vec<safetensors::Found>,
}

/// Opens the single file when there is one, otherwise all that the index names, in name order.
pub(super) fn open(directory: &Path) -> Result<Vec<Shard>, CheckpointError> {
    let index_path = directory.join(INDEX);
    let single = directory.join(SINGLE);
    if single.exists() || !index_path.exists() {
        return Ok(vec![open_one(single)?]);
    }
    let at = |source| CheckpointError::Hf { path: index_path.clone(), source };
    let (_, document) = Document::read(&index_path)?;
    let files = parse_index(&document).map_err(at)?;
    let mut shards = Vec::new();
    for (file, mut promised) in files {
        let shard = open_one(directory.join(file))?;
        for found in &shard.tensors {
            if !promised.remove(found.name.as_str()) {
                return Err(at(HfError::Index { tensor: found.name.clone() }));
            }
        }
        if let Some(&missing) = promised.iter().next() {
            return Err(at(HfError::Index { tensor: missing.to_owned() }));
        }
        shards.push(shard);
    }
    Ok(shards)
}

fn open_one(path: PathBuf) -> Result<Shard, CheckpointError> {
    let bytes = map(&path).map_err(|source| CheckpointError::Read { path: path.clone(), source })?;
    match safetensors::parse(&bytes) {
        Ok(tensors) => Ok(Shard { path, tensors }),
        Err(source) => Err(CheckpointError::Hf { path, source: source.into() }),
    }
}

/// The tensors that each file is to hold.
fn parse_index(document: &Document) -> Result<BTreeMap<&str, HashSet<&str>>, HfError> {
    let wrong = || HfError::Form { key: "weight_map".to_owned(), expected: "an object" };
    let map = document.get("weight_map").and_then(Value::as_object).ok_or_else(wrong)?;
    let mut files: BTreeMap<&str, HashSet<&str>> = BTreeMap::new();
    for (tensor, file) in map {
        let refused = || HfError::ShardName {
            tensor: tensor.clone(),
            file: file.as_str().map_or_else(|| describe(file), str::to_owned),
        };
        let file = file.as_str().filter(|name| is_plain(name)).ok_or_else(refused)?;
        files.entry(file).or_default().insert(tensor);
    }
    if files.is_empty() || files.len() as u64 > MAX_SHARDS {
        return Err(HfError::TooManyShards { got: files.len() as u64, max: MAX_SHARDS });
    }
    Ok(files)
}

/// Whether a name is that of a file in the same directory, on every system.
fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let single = matches!(parts.next(), Some(Component::Normal(part)) if part == name) && parts.next().is_none();
    single && !name.contains(['/', '\\', ':', '\0']) && name.ends_with(".safetensors")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_of_tensor_files_are_followed() {
        assert!(is_plain("model-00001-of-00002.safetensors"));
        for name in [
            "",
            ".",
            "..",
            "../x.safetensors",
            "/x.safetensors",
            "a/x.safetensors",
            "./x.safetensors",
            "a\\x.safetensors",
            "c:x.safetensors",
            "x.safetensors/",
            "x\0.safetensors",
            "x.bin",
        ] {
            assert!(!is_plain(name), "{name:?}");
        }
    }
}
