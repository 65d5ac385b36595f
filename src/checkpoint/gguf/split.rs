#![forbid(unsafe_code)]
//! Models split into several GGUF files: `name-00001-of-00003.gguf` and so on.
//!
//! Each shard states its number (`split.no`, from 0) and the size of the set (`split.count`); the first also holds the model's keys
//! and the number of all tensors (`split.tensors.count`). Any shard may be opened: the first is found by its name, and the
//! names of all others follow from it, so a set cannot lead in a circle: a shard under another's name has the wrong number.

use std::path::{Path, PathBuf};

use super::super::error::{CheckpointError, SplitError};
use super::super::map::map;
use super::GgufFile;

const COUNT: &str = "split.count";
const NUMBER: &str = "split.no";
const TENSORS: &str = "split.tensors.count";

/// Opens a file, and the other shards when it is one of a set; the first shard comes first.
pub(crate) fn open_all(path: &Path) -> Result<Vec<(PathBuf, GgufFile)>, CheckpointError> {
    let opened = open(path)?;
    let at = |source| CheckpointError::Split { path: path.to_owned(), source };
    let count = match opened.metadata().get(COUNT) {
        None => 1,
        Some(_) => number(&opened, COUNT).map_err(at)?,
    };
    if count <= 1 {
        return Ok(vec![(path.to_owned(), opened)]);
    }
    let prefix = prefix(path, count).map_err(at)?;
    let mut shards = Vec::new();
    let mut names = std::collections::HashSet::new();
    for index in 0..count {
        let path = path.with_file_name(format!("{prefix}-{:05}-of-{count:05}.gguf", index + 1));
        let at = |source| CheckpointError::Split { path: path.clone(), source };
        let shard = open(&path)?;
        check_place(&shard, index, count).map_err(at)?;
        for info in shard.tensors() {
            if !names.insert(info.name.clone()) {
                return Err(at(SplitError::DuplicateTensor { tensor: info.name.clone() }));
            }
        }
        shards.push((path, shard));
    }
    check_total(&shards, names.len() as u64).map_err(at)?;
    Ok(shards)
}

fn open(path: &Path) -> Result<GgufFile, CheckpointError> {
    let bytes = map(path).map_err(|source| CheckpointError::Read { path: path.to_owned(), source })?;
    GgufFile::parse(bytes).map_err(|source| CheckpointError::Gguf { path: path.to_owned(), source })
}

fn number(file: &GgufFile, key: &'static str) -> Result<u64, SplitError> {
    match file.metadata().integer(key) {
        // Shard numbers have five digits in the names.
        Ok(Some(number @ 0..=99_999)) => Ok(number),
        _ => Err(SplitError::Key { key }),
    }
}

/// The part of the name in front of `-00001-of-00003.gguf`.
fn prefix(path: &Path, count: u64) -> Result<String, SplitError> {
    let prefix = path.file_name().and_then(|name| name.to_str()).and_then(|name| {
        let (prefix, number) = name.strip_suffix(&format!("-of-{count:05}.gguf"))?.rsplit_once('-')?;
        let digits = number.len() == 5 && number.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| prefix.to_owned())
    });
    prefix.ok_or(SplitError::Name { count })
}

fn check_place(shard: &GgufFile, index: u64, count: u64) -> Result<(), SplitError> {
    let got = number(shard, COUNT)?;
    if got != count {
        return Err(SplitError::Count { expected: count, got });
    }
    let got = number(shard, NUMBER)?;
    if got != index { Err(SplitError::Number { expected: index, got }) } else { Ok(()) }
}

fn check_total(shards: &[(PathBuf, GgufFile)], got: u64) -> Result<(), SplitError> {
    let Some((_, first)) = shards.first() else { return Ok(()) };
    match first.metadata().integer(TENSORS) {
        Ok(None) => Ok(()),
        Ok(Some(expected)) if expected == got => Ok(()),
        Ok(Some(expected)) => Err(SplitError::TensorCount { expected, got }),
        Err(_) => Err(SplitError::Key { key: TENSORS }),
    }
}
