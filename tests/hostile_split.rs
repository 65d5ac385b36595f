//! Split GGUF files whose shards are missing, renamed, repeated or of different sets; and paths that are no model files.
#![allow(dead_code, reason = "this file uses a part of the shared helpers")]

#[path = "common/gguf.rs"]
mod gguf;

use std::path::{Path, PathBuf};

use gguf::{Gguf, Value, tiny_llama};
use ictus::checkpoint::{Checkpoint, CheckpointError, ConfigError, GgufError, SplitError};
use tempfile::TempDir;

/// The tiny llama in `count` shards: all keys in the first, tensors dealt out in turn.
fn shards(count: u16) -> Vec<Gguf> {
    let whole = tiny_llama();
    let total = whole.tensors.len();
    (0..count)
        .map(|number| {
            let mut shard = if number == 0 { whole.clone() } else { Gguf::new() };
            shard.tensors = whole.tensors.iter().skip(number.into()).step_by(count.into()).cloned().collect();
            shard
                .key("split.no", Value::U16(number))
                .key("split.count", Value::U16(count))
                .key("split.tensors.count", Value::I32(total as i32))
        })
        .collect()
}

fn path_of(folder: &TempDir, number: usize, count: usize) -> PathBuf {
    folder.path().join(format!("model-{number:05}-of-{count:05}.gguf"))
}

fn write(shards: &[Gguf]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (index, shard) in shards.iter().enumerate() {
        std::fs::write(path_of(&folder, index + 1, shards.len()), shard.build()).unwrap();
    }
    folder
}

/// The error of the set and the shard that it names, the same twice.
fn split_error(path: &Path) -> (PathBuf, SplitError) {
    let once = || match Checkpoint::open(path) {
        Err(CheckpointError::Split { path, source }) => (path, source),
        other => panic!("not refused as a set: {other:?}"),
    };
    let first = once();
    assert_eq!(first, once());
    first
}

#[test]
fn any_shard_opens_the_whole_model() {
    let folder = write(&shards(3));
    let whole = Checkpoint::from_gguf_bytes(ictus::tensor::Bytes::copy_aligned(&tiny_llama().build())).unwrap();
    for number in 1..=3 {
        let checkpoint = Checkpoint::open(path_of(&folder, number, 3)).unwrap();
        assert_eq!(checkpoint.config(), whole.config());
        assert_eq!(checkpoint.tensors().len(), whole.tensors().len());
        for (name, tensor) in whole.tensors() {
            assert_eq!(checkpoint.tensor(name).unwrap().data.as_slice(), tensor.data.as_slice(), "{name}");
        }
    }
}

#[test]
fn a_missing_shard_is_named() {
    let folder = write(&shards(3));
    let missing = path_of(&folder, 3, 3);
    std::fs::remove_file(&missing).unwrap();
    match Checkpoint::open(path_of(&folder, 1, 3)) {
        Err(CheckpointError::Read { path, source }) => {
            assert_eq!((path, source.kind()), (missing, std::io::ErrorKind::NotFound));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_shard_under_many_names_goes_in_no_circle() {
    let folder = write(&shards(3));
    std::fs::copy(path_of(&folder, 1, 3), path_of(&folder, 2, 3)).unwrap();
    let expected = (path_of(&folder, 2, 3), SplitError::Number { expected: 1, got: 0 });
    assert_eq!(split_error(&path_of(&folder, 1, 3)), expected);
    assert_eq!(split_error(&path_of(&folder, 2, 3)), expected);
}

#[test]
fn a_link_to_itself_ends_in_an_error() {
    #[cfg(unix)]
    {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::os::unix::fs::symlink(&path, &path).unwrap();
        assert!(matches!(Checkpoint::open(&path), Err(CheckpointError::Read { .. })));
    }
}

#[test]
fn shards_of_different_sets_are_refused() {
    let mut mixed = shards(3);
    mixed[1] = mixed[1].clone().key("split.count", Value::U16(4));
    let folder = write(&mixed);
    let expected = (path_of(&folder, 2, 3), SplitError::Count { expected: 3, got: 4 });
    assert_eq!(split_error(&path_of(&folder, 1, 3)), expected);

    let mut repeated = shards(2);
    let again = repeated[0].tensors[0].clone();
    repeated[1].tensors.push(again);
    let (_, error) = split_error(&path_of(&write(&repeated), 1, 2));
    assert_eq!(error, SplitError::DuplicateTensor { tensor: "token_embd.weight".to_owned() });

    let mut short = shards(2);
    let lost = short[1].tensors.pop().unwrap();
    let (_, error) = split_error(&path_of(&write(&short), 1, 2));
    assert!(matches!(error, SplitError::TensorCount { expected: 11, got: 10 }), "{error} without {}", lost.name);
}

#[test]
fn numbers_of_shards_that_cannot_be_are_refused() {
    for value in [Value::U64(u64::MAX), Value::I32(-2), Value::text("3"), Value::U32(100_000)] {
        let mut wrong = shards(2);
        wrong[0] = wrong[0].clone().key("split.count", value);
        let folder = write(&wrong);
        let (_, error) = split_error(&path_of(&folder, 1, 2));
        assert_eq!(error, SplitError::Key { key: "split.count" });
    }
    let mut unnumbered = shards(2);
    unnumbered[1] = unnumbered[1].clone().without_key("split.no");
    let (_, error) = split_error(&path_of(&write(&unnumbered), 1, 2));
    assert_eq!(error, SplitError::Key { key: "split.no" });
}

#[test]
fn a_shard_needs_the_name_that_leads_to_the_others() {
    let folder = write(&shards(2));
    for name in ["model.gguf", "model-00001-of-00003.gguf", "model-1-of-00002.gguf", "model-0000x-of-00002.gguf"] {
        let path = folder.path().join(name);
        std::fs::copy(path_of(&folder, 1, 2), &path).unwrap();
        assert_eq!(split_error(&path), (path, SplitError::Name { count: 2 }));
    }
}

#[test]
fn a_file_that_says_it_is_alone_needs_no_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("any.name");
    let alone = tiny_llama().key("split.no", Value::U16(0)).key("split.count", Value::U16(1));
    std::fs::write(&path, alone.build()).unwrap();
    assert!(Checkpoint::open(&path).is_ok());
}

#[test]
fn a_broken_shard_is_named() {
    let folder = write(&shards(2));
    let broken = path_of(&folder, 2, 2);
    let bytes = std::fs::read(&broken).unwrap();
    std::fs::write(&broken, &bytes[..20]).unwrap();
    match Checkpoint::open(path_of(&folder, 1, 2)) {
        Err(CheckpointError::Gguf { path, source: GgufError::Truncated { place, .. } }) => {
            assert_eq!((path, &*place), (broken, "the header"));
        }
        other => panic!("{other:?}"),
    }
    let mut unmodelled = shards(2);
    unmodelled[0] = unmodelled[0].clone().without_key("llama.block_count");
    match Checkpoint::open(path_of(&write(&unmodelled), 1, 2)) {
        Err(CheckpointError::Config { source: ConfigError::MissingKey { key }, .. }) => {
            assert_eq!(key, "llama.block_count");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn paths_that_are_no_model_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(Checkpoint::open(folder.path()), Err(CheckpointError::NotACheckpoint { .. })));
    let absent = folder.path().join("absent.gguf");
    assert!(matches!(Checkpoint::open(&absent), Err(CheckpointError::Read { path, .. }) if path == absent));
    let empty = folder.path().join("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    assert!(matches!(Checkpoint::open(&empty), Err(CheckpointError::Gguf { source: GgufError::Magic { .. }, .. })));
    // Neither endless nor waiting for a writer.
    #[cfg(unix)]
    assert!(matches!(Checkpoint::open("/dev/zero"), Err(CheckpointError::Read { .. })));
}
