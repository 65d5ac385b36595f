//! Hugging Face directories that lie: each file in turn. Each ends in a typed error that names the file and the place.
#![allow(dead_code, reason = "this file uses a part of the shared helpers")]

#[path = "common/allocations.rs"]
mod allocations;
#[path = "common/hf.rs"]
mod hf;
#[path = "common/random.rs"]
mod random;

use std::time::{Duration, Instant};

use hf::{CONFIG, INDEX, SINGLE, TENSORS, config, directory, file, layout_error, open, put};
use ictus::checkpoint::{Checkpoint, CheckpointError, ConfigError, HfError};
use serde_json::{Value, json};
use tempfile::TempDir;

fn config_error(config: &Value) -> ConfigError {
    let folder = directory();
    put(&folder, CONFIG, config.to_string());
    let once = || match open(&folder) {
        Err(CheckpointError::Config { source, .. }) => source,
        other => panic!("{config}: not refused for its meaning: {other:?}"),
    };
    let first = once();
    assert_eq!(first, once());
    first
}

#[test]
fn the_tiny_directory_opens() {
    let checkpoint = open(&directory()).unwrap();
    assert_eq!((checkpoint.config().head_dim, checkpoint.tensors().len()), (2, 11));
}

#[test]
fn a_configuration_cut_anywhere_is_refused() {
    let folder = directory();
    let whole = config().to_string();
    for len in 0..whole.len() {
        put(&folder, CONFIG, &whole[..len]);
        assert!(matches!(layout_error(&folder, CONFIG), HfError::Json { .. }), "{len}");
    }
}

#[test]
fn absurd_numbers_are_refused_by_name() {
    for key in [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
    ] {
        let with = |value: &Value| {
            let mut config = config();
            config[key] = value.clone();
            config
        };
        for value in [json!(0), json!(-1), json!(1_000_000_000_000_000_000_u64), json!(u64::MAX), json!(i64::MIN)] {
            let refused = config_error(&with(&value));
            assert!(
                matches!(&refused, ConfigError::Range { key: named, .. } if named == key),
                "{key} {value}: {refused}"
            );
        }
        for value in [json!(4.0), json!(1e18), json!("4"), json!([4]), json!({}), json!(true)] {
            let refused = config_error(&with(&value));
            assert!(
                matches!(&refused, ConfigError::KeyType { key: named, .. } if named == key),
                "{key} {value}: {refused}"
            );
        }
        if !["num_key_value_heads", "head_dim"].contains(&key) {
            assert_eq!(config_error(&with(&Value::Null)), ConfigError::MissingKey { key: key.to_owned() });
        }
        // Possible sizes that the tensors do not have; a layer count must not make work before the second layer is missed.
        if key != "max_position_embeddings" {
            config_error(&with(&json!(3)));
            config_error(&with(&json!(0x7fff_ffff)));
        }
    }
    for (key, values) in [
        ("rms_norm_eps", [json!(0), json!(-1e-6), json!(1e300), json!("1e-6")]),
        ("rope_theta", [json!(0), json!(-1), json!(1e300), json!([])]),
        ("rope_scaling", [json!(1), json!("linear"), json!([]), json!(true)]),
        ("tie_word_embeddings", [json!(1), json!("true"), json!([]), json!({})]),
        ("eos_token_id", [json!(6), json!(-2), json!("2"), json!([1, 2, 6])]),
        ("model_type", [json!(1), json!("x"), json!([]), json!({})]),
    ] {
        for value in values {
            let mut config = config();
            config[key] = value.clone();
            let refused = config_error(&config).to_string();
            assert!(refused.contains(key) || key == "model_type", "{key} {value}: {refused}");
        }
    }
    for factor in [json!(0), json!(-2), json!(1e300), json!("8"), Value::Null] {
        let mut config = config();
        config["rope_scaling"] = json!({"rope_type": "linear", "factor": factor});
        assert!(config_error(&config).to_string().contains("rope_scaling.factor"));
    }
    let mut wide = config();
    wide["head_dim"] = json!(0x7fff_fffe);
    wide["rope_scaling"] = json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192});
    assert!(matches!(config_error(&wide), ConfigError::Range { key, .. } if key == "head_dim"));
}

#[test]
fn documents_that_are_no_objects_or_nest_too_deep_are_refused() {
    let folder = directory();
    for name in [CONFIG, "generation_config.json", "tokenizer_config.json"] {
        let folder = directory();
        for text in ["[]", "1", "null", "\"x\""] {
            put(&folder, name, text);
            assert!(matches!(layout_error(&folder, name), HfError::Form { .. }), "{name} {text}");
        }
        for text in ["", "{", "{\"a\":}", &*"[".repeat(1_000_000), &*"{\"a\":".repeat(1_000_000)] {
            put(&folder, name, text);
            assert!(matches!(layout_error(&folder, name), HfError::Json { .. }), "{name}");
        }
    }
    put(&folder, "chat_template.jinja", b"\xff");
    assert!(matches!(layout_error(&folder, "chat_template.jinja"), HfError::Form { .. }));
}

#[test]
fn a_document_of_any_size_is_read_up_to_its_bound() {
    let folder = directory();
    let file = std::fs::File::create(folder.path().join("tokenizer_config.json")).unwrap();
    // A sparse file: a terabyte that takes no space.
    file.set_len(1 << 40).unwrap();
    let error = match Checkpoint::open(folder.path()) {
        Err(CheckpointError::Hf { source, .. }) => source,
        other => panic!("{other:?}"),
    };
    assert!(matches!(error, HfError::TooLarge { got, .. } if got == 1 << 40), "{error}");
}

/// A directory of two shards with an index.
fn sharded() -> (TempDir, Value) {
    let folder = directory();
    std::fs::remove_file(folder.path().join(SINGLE)).unwrap();
    let (first, second) = TENSORS.split_at(5);
    let mut map = json!({});
    for (name, tensors) in [("a.safetensors", first), ("b.safetensors", second)] {
        put(&folder, name, file(tensors, |_| {}));
        tensors.iter().for_each(|(tensor, _)| map[*tensor] = json!(name));
    }
    let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
    put(&folder, INDEX, index.to_string());
    (folder, index)
}

#[test]
fn an_index_leads_nowhere_but_to_files_beside_it() {
    let (folder, index) = sharded();
    assert!(open(&folder).is_ok());
    let outside = folder.path().parent().unwrap().join("outside.safetensors");
    for name in [
        "../outside.safetensors",
        "/etc/passwd",
        "sub/a.safetensors",
        "./a.safetensors",
        "..",
        "",
        "a.bin",
        "..\\a.safetensors",
        "a.safetensors\0",
    ] {
        let mut index = index.clone();
        index["weight_map"]["model.norm.weight"] = json!(name);
        put(&folder, INDEX, index.to_string());
        let error = layout_error(&folder, INDEX);
        assert!(
            matches!(&error, HfError::ShardName { tensor, file } if tensor == "model.norm.weight" && file == name),
            "{error}"
        );
    }
    let absolute = outside.display().to_string();
    let mut index = index.clone();
    index["weight_map"]["model.norm.weight"] = json!(absolute);
    put(&folder, INDEX, index.to_string());
    assert!(matches!(layout_error(&folder, INDEX), HfError::ShardName { .. }));
}

#[test]
fn an_index_that_does_not_fit_its_shards_is_refused() {
    let (folder, index) = sharded();
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut index = index.clone();
        change(&mut index);
        put(&folder, INDEX, index.to_string());
        layout_error(&folder, INDEX)
    };
    let moved = changed(&|index| index["weight_map"]["model.norm.weight"] = json!("b.safetensors"));
    assert!(matches!(moved, HfError::Index { tensor } if tensor == "model.norm.weight"));
    let unlisted = changed(&|index| drop(index["weight_map"].as_object_mut().unwrap().remove("model.norm.weight")));
    assert!(matches!(unlisted, HfError::Index { tensor } if tensor == "model.norm.weight"));
    let promised = changed(&|index| index["weight_map"]["more"] = json!("b.safetensors"));
    assert!(matches!(promised, HfError::Index { tensor } if tensor == "more"));
    let number = changed(&|index| index["weight_map"]["more"] = json!(3));
    assert!(matches!(number, HfError::ShardName { tensor, .. } if tensor == "more"));
    for map in [json!({}), json!([]), Value::Null, json!("x")] {
        let error = changed(&|index| index["weight_map"] = map.clone());
        assert!(matches!(error, HfError::TooManyShards { got: 0, .. } | HfError::Form { .. }), "{error}");
    }
    let many = changed(&|index| {
        for i in 0..5000 {
            index["weight_map"][format!("t{i}")] = json!(format!("{i}.safetensors"));
        }
    });
    assert!(matches!(many, HfError::TooManyShards { got: 5002, .. }));
}

#[test]
fn missing_files_are_named() {
    let (folder, _) = sharded();
    let gone = folder.path().join("b.safetensors");
    std::fs::remove_file(&gone).unwrap();
    assert!(matches!(open(&folder), Err(CheckpointError::Read { path, .. }) if path == gone));
    std::fs::remove_file(folder.path().join(INDEX)).unwrap();
    let single = folder.path().join(SINGLE);
    assert!(matches!(open(&folder), Err(CheckpointError::Read { path, .. }) if path == single));
    std::fs::remove_file(folder.path().join(CONFIG)).unwrap();
    assert!(matches!(open(&folder), Err(CheckpointError::NotACheckpoint { .. })));
}

#[test]
fn the_same_tensor_in_two_shards_is_refused() {
    let (folder, mut index) = sharded();
    // Two names that mean one tensor are possible in Gemma 3 only.
    let mut config = config();
    config["model_type"] = json!("gemma3_text");
    put(&folder, CONFIG, config.to_string());
    put(&folder, "c.safetensors", file(&[("language_model.model.norm.weight", &[4])], |_| {}));
    index["weight_map"]["language_model.model.norm.weight"] = json!("c.safetensors");
    put(&folder, INDEX, index.to_string());
    let error = layout_error(&folder, "c.safetensors");
    assert!(matches!(&error, HfError::DuplicateTensor { tensor } if tensor == "output_norm.weight"), "{error}");
}

/// How long the random test runs.
const FUZZ_TIME: Duration = Duration::from_secs(3);

#[test]
fn random_changes_of_bytes_are_survived() {
    let mut random = random::Random::new("random_changes_of_bytes_are_survived");
    let (folder, _) = sharded();
    put(&folder, "generation_config.json", json!({"temperature": 0.5, "top_k": 7, "eos_token_id": [1, 2]}).to_string());
    put(&folder, "tokenizer_config.json", json!({"chat_template": [{"name": "default", "template": "x"}]}).to_string());
    let names = [CONFIG, INDEX, "a.safetensors", "b.safetensors", "generation_config.json", "tokenizer_config.json"];
    let start = Instant::now();
    let (mut opened, mut refused) = (0_u32, 0_u32);
    while start.elapsed() < FUZZ_TIME {
        let name = *random.pick(&names);
        let whole = std::fs::read(folder.path().join(name)).unwrap();
        let mut changed = whole.clone();
        for _ in 0..random.between(1, 3) {
            let at = random.below(changed.len());
            match random.below(5) {
                0 => changed[at] ^= 1 << random.below(8),
                1 => changed[at] = random.next() as u8,
                2 => changed[at] = *random.pick(b"0123456789-.eE\"[]{},:"),
                3 => drop(changed.remove(at)),
                _ => changed.insert(at, *random.pick(b"0123456789-.eE\"[]{},:")),
            }
        }
        put(&folder, name, &changed);
        match open(&folder) {
            Ok(_) => opened += 1,
            Err(_) => refused += 1,
        }
        put(&folder, name, &whole);
    }
    println!("{opened} opened, {refused} refused");
    assert!(opened > 0 && refused > 0, "changes of weights are no errors, most others are");
}
