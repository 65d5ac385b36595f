//! The capability descriptor: its keys and types, what is true of whom, and what is known without a model.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/model.rs"]
mod model;

use ictus::engine::Engine;
use ictus::executor::{Executor, capability_without_model};
use ictus::runtime::{FakeOptions, FakeRuntime, Runtime, SamplingDefaults, Vocabulary};
use ictus::{Model, ModelOptions};
use serde_json::{Value, json};

fn descriptor(change: impl FnOnce(&mut FakeOptions)) -> Value {
    let engine = Executor::new(FakeRuntime::with(change));
    let text = engine.capability_descriptor().expect("an executor has one").to_owned();
    assert_eq!(engine.capability_descriptor(), Some(&*text), "identical on every call");
    serde_json::from_str(&text).expect("JSON")
}

/// Sections and keys of the contract; `state` and the rest of a load included.
const KEYS: &[(&str, &[&str])] = &[
    ("runtime", &["id", "version"]),
    ("load", &["paged_kv", "prefix_cache", "kv_bits", "activation_bits", "max_batch_size"]),
    ("workload", &["causal_generation", "embedding", "embedding_pooling", "speech_to_text"]),
    ("modalities", &["image_encode", "gemma_audio_encode", "whisper_transcribe", "whisper_translate"]),
    (
        "serving",
        &[
            "sequences",
            "host_logits",
            "prefix_seed",
            "round_granular",
            "multi_row_verification",
            "speculation_strategies",
            "park_lossless",
            "park_lossy",
            "tick_yield",
        ],
    ),
    ("state", &["legacy_save_load", "rollback", "shared_prefix_seed", "recurrent_snapshot"]),
    ("adaptation", &["lora_load", "lora_active_on_inference"]),
    ("ops", &["snapshot_restore", "seq_fork", "cache_evict_entries", "space_promote"]),
    ("sampling", &["logit_bias", "penalties", "top_logprobs_max", "grammar", "engine_argmax", "engine_draws"]),
    ("determinism", &["seed_reproducible", "batch_invariant"]),
    (
        "limits",
        &["max_seq_len", "max_seqs", "page_size_tokens", "cells_total", "cache_resident_cells", "cache_exported_cells"],
    ),
];

fn check_form(document: &Value) {
    let top = document.as_object().expect("an object");
    let mut names: Vec<&str> = top.keys().map(String::as_str).filter(|&name| name != "sampling_defaults").collect();
    let mut expected = vec!["descriptor_version", "architecture", "backend"];
    expected.extend(KEYS.iter().map(|(section, _)| *section));
    names.sort_unstable();
    expected.sort_unstable();
    assert_eq!(names, expected);
    check_what_is_acted_on(document);
    for (section, keys) in KEYS {
        let members = document[section].as_object().expect("a section");
        let mut names: Vec<&str> = members.keys().map(String::as_str).collect();
        let mut expected = keys.to_vec();
        names.sort_unstable();
        expected.sort_unstable();
        assert_eq!(names, expected, "{section}");
        for (key, value) in members {
            let fits = match value {
                Value::Bool(value) => *value,
                Value::String(text) => !text.is_empty(),
                Value::Number(_) | Value::Array(_) => true,
                _ => false,
            };
            assert!(fits, "{section}.{key} is {value}");
        }
    }
}

/// What a host of the link acts on (W-96): yes, or no with a reason; and numbers.
const ACTED_ON: [(&str, &[&str]); 6] = [
    ("workload", &["causal_generation", "embedding"]),
    ("modalities", &["image_encode", "gemma_audio_encode", "whisper_transcribe", "whisper_translate"]),
    ("serving", &["multi_row_verification", "park_lossless", "park_lossy", "round_granular", "tick_yield"]),
    ("state", &["rollback", "shared_prefix_seed"]),
    ("ops", &["space_promote"]),
    ("load", &["paged_kv", "prefix_cache"]),
];
const COUNTED: [(&str, &[&str]); 2] = [("load", &["kv_bits"]), ("limits", &["max_seq_len", "max_seqs", "cells_total"])];

fn check_what_is_acted_on(document: &Value) {
    for (section, keys) in ACTED_ON {
        for key in keys {
            let value = &document[section][key];
            assert!(*value == true || text_of(value), "{section}.{key} is {value}: neither yes nor a reason");
        }
    }
    for (section, keys) in COUNTED {
        for key in keys {
            assert!(document[section][key].is_u64(), "{section}.{key} is no number");
        }
    }
}

/// Every key of `part` is in `whole` with the same value, but for those named.
fn assert_within(part: &Value, whole: &Value, but: &[&str], path: &str) {
    for (key, value) in part.as_object().expect("an object") {
        let path = format!("{path}/{key}");
        if but.contains(&&*path) {
            continue;
        }
        match value {
            Value::Object(_) => assert_within(value, &whole[key], but, &path),
            value => assert_eq!(value, &whole[key], "{path}"),
        }
    }
}

fn text_of(value: &Value) -> bool {
    value.is_string()
}

/// RS-29, W-96.
#[test]
fn rs_29_descriptor_of_the_fake() {
    let plain = descriptor(|_| {});
    check_form(&plain);
    assert!(plain.get("sampling_defaults").is_none());
    assert_eq!(plain["architecture"], "fake");
    assert_eq!(plain["runtime"], json!({"id": "fake", "version": "1"}));
    for (section, key) in [
        ("workload", "embedding"),
        ("workload", "speech_to_text"),
        ("modalities", "image_encode"),
        ("serving", "multi_row_verification"),
        ("serving", "park_lossy"),
        ("serving", "tick_yield"),
        ("state", "recurrent_snapshot"),
        ("adaptation", "lora_load"),
        ("sampling", "grammar"),
        ("sampling", "engine_draws"),
    ] {
        let why_not = plain[section][key].as_str().unwrap_or_else(|| panic!("{section}.{key} is no reason"));
        assert!(why_not.starts_with("fake "), "in the runtime's name: {why_not}");
    }
    assert_eq!(plain["serving"]["speculation_strategies"], json!([]));
    assert_eq!((&plain["state"]["rollback"], &plain["sampling"]["engine_argmax"]), (&json!(true), &json!(true)));

    let loaded = descriptor(|options| {
        options.descriptor.sampling_defaults =
            Some(SamplingDefaults { temperature: Some(0.6), top_k: Some(20), ..SamplingDefaults::default() });
        options.descriptor.truncate_partial = false;
        options.descriptor.verify_rows = true;
        options.vocabulary = Some(Vocabulary::default());
    });
    check_form(&loaded);
    assert_eq!(loaded["sampling_defaults"], json!({"temperature": 0.6, "top_k": 20}));
    assert!(text_of(&loaded["state"]["rollback"]) && text_of(&loaded["state"]["shared_prefix_seed"]));
    assert_eq!((&loaded["state"]["recurrent_snapshot"], &loaded["sampling"]["grammar"]), (&json!(true), &json!(true)));
    // a head-only runtime verifies nothing.
    assert!(text_of(&loaded["serving"]["multi_row_verification"]));
    assert_eq!(loaded["serving"]["speculation_strategies"], json!([]));

    let fake = FakeRuntime::with(|options| options.descriptor.verify_rows = true);
    let code: Value = serde_json::from_str(&capability_without_model(fake.describe())).expect("JSON");
    assert_eq!(code["serving"]["multi_row_verification"], json!(true));
    let r_90 = ["/serving/multi_row_verification", "/serving/speculation_strategies"];
    assert_within(&code, &loaded, &r_90, "");
    let cuttable = descriptor(|options| options.descriptor.verify_rows = true);
    assert_within(&code, &cuttable, &[], "");
    assert_eq!(cuttable["serving"]["speculation_strategies"], json!(["prompt-lookup"]));
}

/// R-91, W-96: a loaded model says what was known before, and what the model adds.
#[test]
fn descriptor_of_a_model_adds_to_what_is_known_without_one() {
    let code: Value = serde_json::from_str(&Model::capability_without_model()).expect("JSON");
    for path in ["models/ictus-tiny.gguf", "tests/data/hf-qwen3"] {
        let model = Model::open(model::file(path), &ModelOptions::default()).expect("it opens");
        let engine = model.engine().expect("an engine");
        let loaded: Value = serde_json::from_str(engine.capability_descriptor().expect("one")).expect("JSON");
        check_form(&loaded);
        assert_within(&code, &loaded, &[], "");
        assert_eq!(loaded["architecture"], model.config().architecture);
        assert_eq!(loaded["workload"]["embedding"], true);
        assert_eq!(loaded["workload"]["embedding_pooling"], json!(["last"]));
        assert_eq!(loaded["limits"]["max_seq_len"], model.context_tokens());
        assert_eq!(loaded["load"]["kv_bits"], engine.kv_bits());
        assert_eq!(loaded["adaptation"]["lora_load"], true);
        assert_eq!(loaded["serving"]["tick_yield"], true);
        assert_eq!(loaded.get("sampling_defaults").is_some(), model.sampling_defaults().is_some(), "{path}");
    }
}
