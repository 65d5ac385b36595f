//! Adapters that lie: each is refused with the error that names what is wrong, twice, and leaves the runtime as it was.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/gguf.rs"]
mod gguf;
#[path = "common/lora.rs"]
mod lora;
#[path = "common/model.rs"]
mod model;
#[path = "common/random.rs"]
mod random;

use std::path::{Path, PathBuf};

use gguf::{Gguf, Value};
use ictus::backend::KvType;
use ictus::backend::cpu::CpuBackend;
use ictus::checkpoint::{AdapterError, AdapterFile, Checkpoint, ConfigError, HfError, LoraError, ModelConfig};
use ictus::record::Status;
use ictus::runtime::{AdapterLoadError, Runtime};
use lora::{Lora, safetensors};
use random::Random;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

struct Bench {
    checkpoint: Checkpoint,
    lora: Lora,
    folder: TempDir,
}

impl Bench {
    fn new(name: &str) -> Self {
        let checkpoint = Checkpoint::open(model::file("models/ictus-tiny.gguf")).expect("the model opens");
        let mut random = Random::new(name);
        let lora = Lora::random(&mut random, checkpoint.config(), 4, &[0, 3, 6]);
        Self { checkpoint, lora, folder: tempfile::tempdir().expect("a folder") }
    }

    fn config(&self) -> &ModelConfig {
        self.checkpoint.config()
    }

    fn gguf(&self, change: impl FnOnce(Gguf) -> Gguf) -> PathBuf {
        let path = self.folder.path().join("adapter.gguf");
        std::fs::write(&path, change(self.lora.gguf(self.config())).build()).expect("it can be written");
        path
    }

    fn peft(&self, change: impl FnOnce(&mut Json, &mut Tensors)) -> PathBuf {
        let (mut config, mut tensors) = (self.lora.peft_config(), self.lora.peft_tensors());
        change(&mut config, &mut tensors);
        let at = |name| self.folder.path().join(name);
        std::fs::write(at("adapter_config.json"), config.to_string()).expect("it can be written");
        std::fs::write(at("adapter_model.safetensors"), safetensors(&tensors)).expect("it can be written");
        self.folder.path().to_owned()
    }

    /// The reason of a refusal, the same both times.
    fn refused(&self, path: &Path) -> AdapterError {
        let once = || AdapterFile::open(path, self.config()).expect_err("it is refused");
        let first = once();
        assert_eq!(format!("{first:?}"), format!("{:?}", once()));
        first
    }

    #[track_caller]
    fn lora_error(&self, path: &Path) -> LoraError {
        match self.refused(path) {
            AdapterError::Lora { source, .. } => source,
            other => panic!("refused for another reason: {other:?}"),
        }
    }
}

/// Name, shape and values of the tensors of a file.
type Tensors = Vec<(String, Vec<u64>, Vec<f32>)>;

fn set(key: &'static str, value: Json) -> impl FnOnce(&mut Json, &mut Tensors) {
    move |config, _| config[key] = value
}

#[test]
fn good_files_are_taken() {
    let bench = Bench::new("good adapters");
    let from = |path: &Path| AdapterFile::open(path, bench.config()).expect("it fits").digest();
    let gguf = from(&bench.gguf(|file| file));
    assert_eq!(gguf, from(&bench.peft(|_, _| {})));
    assert_eq!(gguf, from(&bench.folder.path().join("adapter_model.safetensors")), "the file beside its document");
    assert_eq!(gguf, from(&bench.peft(set("target_modules", json!("all-linear")))), "a pattern is not looked into");
    assert_eq!(gguf, from(&bench.peft(set("rank_pattern", json!({"q_proj": 4})))), "ranks are those of the tensors");
    assert_ne!(gguf, from(&bench.peft(set("use_rslora", json!(true)))));
}

#[test]
fn documents_that_say_something_else_are_refused() {
    let bench = Bench::new("adapter documents");
    for (key, value) in [
        ("use_dora", json!(true)),
        ("use_qalora", json!(true)),
        ("lora_bias", json!(true)),
        ("fan_in_fan_out", json!(true)),
        ("bias", json!("all")),
        ("bias", json!("lora_only")),
        ("alpha_pattern", json!({"q_proj": 3})),
        ("modules_to_save", json!(["lm_head"])),
        ("trainable_token_indices", json!([1])),
        ("layer_replication", json!([[0, 1]])),
    ] {
        let error = bench.lora_error(&bench.peft(set(key, value)));
        assert!(matches!(&error, LoraError::Variant { key: at, .. } if at == key), "{key}: {error:?}");
        assert!(error.is_variant() && error.to_string().contains("not computed"), "{error}");
    }
    for (value, expected) in [(json!("IA3"), "IA3"), (Json::Null, "not there")] {
        let error = bench.lora_error(&bench.peft(set("peft_type", value)));
        assert!(matches!(&error, LoraError::Kind { key: "peft_type", got, .. } if got == expected), "{error:?}");
    }
    for rank in [json!(0), json!(-1), json!(4097), json!(1_u64 << 40)] {
        let error = bench.lora_error(&bench.peft(set("r", rank)));
        assert!(matches!(&error, LoraError::Rank { place, .. } if place == "r"), "{error:?}");
    }
    let error = bench.lora_error(&bench.peft(set("r", json!(5))));
    assert!(matches!(&error, LoraError::Rank { got: 4, .. }), "the tensors have another one: {error:?}");
    for module in ["lm_head", "embed_tokens", "router"] {
        let error = bench.lora_error(&bench.peft(set("target_modules", json!(["q_proj", module]))));
        assert!(matches!(&error, LoraError::Target { tensor, .. } if tensor.ends_with(module)), "{error:?}");
    }
    for (key, value) in [("r", Json::Null), ("lora_alpha", Json::Null), ("lora_alpha", json!("x")), ("r", json!(1.5))] {
        let error = bench.refused(&bench.peft(set(key, value)));
        assert!(matches!(error, AdapterError::Config { .. }), "{key}: {error:?}");
    }
    let path = bench.peft(|_, _| {});
    std::fs::write(path.join("adapter_config.json"), "{").expect("it can be written");
    assert!(matches!(bench.refused(&path), AdapterError::Hf { source: HfError::Json { .. }, .. }));
    std::fs::remove_file(path.join("adapter_config.json")).expect("it is there");
    assert!(matches!(bench.refused(&path), AdapterError::Read { .. }));
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let bench = Bench::new("adapter tensors");
    let first = bench.lora.peft_tensors()[0].0.clone();
    // Renamed to what cannot be changed.
    for (name, reason) in [
        ("base_model.model.lm_head.lora_A.weight", "output matrix"),
        ("base_model.model.model.embed_tokens.lora_A.weight", "embedding"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", "embedding"),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", "DoRA"),
        ("base_model.model.model.layers.0.self_attn.r_proj.lora_A.weight", "no such module"),
        ("base_model.model.model.layers.0.input_layernorm.lora_A.weight", "vector"),
        ("base_model.model.model.layers.99.self_attn.q_proj.lora_A.weight", "fewer layers"),
        ("base_model.model.model.layers.00.self_attn.q_proj.lora_A.weight", "no such"),
        ("base_model.model.model.layers.0.self_attn.q_proj.weight", "left out"),
        ("model.layers.0.self_attn.q_proj.lora_A.weight", "no name"),
        ("", "no name"),
    ] {
        let error = bench.lora_error(&bench.peft(|_, tensors| tensors[0].0 = name.to_owned()));
        assert!(matches!(&error, LoraError::Target { tensor, .. } if tensor == name), "{name}: {error:?}");
        assert!(error.to_string().contains(reason), "{name}: {error}");
    }
    let error = bench.lora_error(&bench.peft(|_, tensors| drop(tensors.remove(1))));
    assert_eq!(error, LoraError::Alone { tensor: first.clone() });
    assert_eq!(bench.lora_error(&bench.peft(|_, tensors| tensors.clear())), LoraError::Empty);
    for (number, shape) in [(0, [4, 1]), (0, [2, 2]), (1, [1, 4]), (1, [8, 8])] {
        let error = bench.lora_error(&bench.peft(|_, tensors| {
            tensors[number].1 = shape.to_vec();
            tensors[number].2 = vec![0.5; (shape[0] * shape[1]) as usize];
        }));
        assert!(matches!(error, LoraError::Shape { .. } | LoraError::Rank { .. }), "{shape:?}: {error:?}");
    }
    let error = bench.lora_error(&bench.peft(|_, tensors| (tensors[0].1, tensors[0].2) = (vec![0, 4], vec![])));
    assert!(matches!(error, LoraError::Rank { got: 0, .. }), "{error:?}");
    for value in [f32::NAN, f32::INFINITY] {
        let error = bench.lora_error(&bench.peft(|_, tensors| tensors[0].2[3] = value));
        assert_eq!(error, LoraError::NotFinite { tensor: first.clone() });
    }
    let error = bench.refused(&bench.peft(set("lora_alpha", json!(1e39))));
    assert!(matches!(error, AdapterError::Config { source: ConfigError::Range { .. }, .. }), "{error:?}");
}

#[test]
fn gguf_files_that_lie_are_refused() {
    let bench = Bench::new("GGUF adapters");
    for (key, value, expected) in [
        ("general.type", Value::text("model"), "general.type"),
        ("adapter.type", Value::text("control_vector"), "adapter.type"),
    ] {
        let error = bench.lora_error(&bench.gguf(|file| file.key(key, value)));
        assert!(matches!(&error, LoraError::Kind { key, .. } if *key == expected), "{error:?}");
        let error = bench.lora_error(&bench.gguf(|file| file.without_key(key)));
        assert!(matches!(&error, LoraError::Kind { got, .. } if got == "not there"), "{error:?}");
    }
    for architecture in ["qwen3", "mamba", ""] {
        let error = bench.lora_error(&bench.gguf(|file| file.key("general.architecture", Value::text(architecture))));
        assert_eq!(error, LoraError::Architecture { architecture: architecture.to_owned() });
    }
    let activated = "adapter.alora.invocation_tokens";
    let error = bench.lora_error(&bench.gguf(|file| file.key(activated, Value::Array(vec![Value::U32(1)]))));
    assert!(matches!(&error, LoraError::Variant { key, .. } if key == activated), "{error:?}");
    let error = bench.refused(&bench.gguf(|file| file.without_key("adapter.lora.alpha")));
    assert!(matches!(error, AdapterError::Config { source: ConfigError::MissingKey { .. }, .. }), "{error:?}");
    let error = bench.lora_error(&bench.gguf(|file| file.key("adapter.lora.alpha", Value::F32(f32::INFINITY))));
    assert!(matches!(error, LoraError::Scale { .. }), "{error:?}");
    let rename = |name: &'static str| {
        move |mut file: Gguf| {
            file.tensors[0].name = name.to_owned();
            file
        }
    };
    for name in ["token_embd.weight.lora_a", "output.weight.lora_a", "blk.0.attn_norm.weight.lora_a", "x"] {
        let error = bench.lora_error(&bench.gguf(rename(name)));
        assert!(matches!(&error, LoraError::Target { tensor, .. } if tensor == name), "{name}: {error:?}");
    }
    let good = std::fs::read(bench.gguf(|file| file)).expect("it can be read");
    for len in (0..good.len()).step_by(97) {
        let path = bench.folder.path().join("short.gguf");
        std::fs::write(&path, &good[..len]).expect("it can be written");
        assert!(!matches!(bench.refused(&path), AdapterError::Read { .. }), "{len} bytes");
    }
}

/// Whatever byte is changed, reading ends in an adapter or a typed error.
#[test]
fn changed_bytes_never_panic() {
    let bench = Bench::new("changed adapters");
    let mut random = Random::new("changed bytes");
    let gguf = std::fs::read(bench.gguf(|file| file)).expect("it can be read");
    let folder = bench.peft(|_, _| {});
    let tensors_path = folder.join("adapter_model.safetensors");
    let tensors = std::fs::read(&tensors_path).expect("it can be read");
    let header = 8 + u64::from_le_bytes(tensors[..8].try_into().expect("8 bytes")) as usize;
    let (mut taken, mut refused) = (0, 0);
    for round in 0..1500 {
        let (path, mut bytes, most) = match round % 2 {
            0 => (bench.folder.path().join("changed.gguf"), gguf.clone(), 1500),
            _ => (tensors_path.clone(), tensors.clone(), header),
        };
        for _ in 0..random.between(1, 3) {
            let at = random.below(most.min(bytes.len()));
            bytes[at] = random.below(256) as u8;
        }
        std::fs::write(&path, &bytes).expect("it can be written");
        match AdapterFile::open(&path, bench.config()) {
            Ok(_) => taken += 1,
            Err(_) => refused += 1,
        }
    }
    println!("{taken} taken, {refused} refused");
    assert!(refused > 500);
}

/// Through the runtime: a status for each kind of refusal, and nothing is kept.
#[test]
fn refusals_have_statuses_and_leave_the_runtime() {
    let bench = Bench::new("adapter statuses");
    let options = model::options(KvType::F32, 64);
    let mut runtime = model::runtime(CpuBackend::new(1), &bench.checkpoint, &options);
    let mut status = |path: &Path| {
        let error = runtime.adapter_load(path).expect_err("it is refused");
        assert!(matches!(error, AdapterLoadError::File(_)));
        assert!(runtime.adapters().is_empty());
        Status::from(&error)
    };
    assert_eq!(status(Path::new("/nowhere")), Status::UnknownHandle);
    assert_eq!(status(&bench.peft(set("use_dora", json!(true)))), Status::Unsupported);
    assert_eq!(status(&bench.peft(set("r", json!(5)))), Status::RejectBadStruct);
    assert_eq!(status(&bench.gguf(|file| file.key("general.type", Value::text("model")))), Status::RejectBadStruct);
    let good = bench.peft(|_, _| {});
    assert_eq!(runtime.adapter_load(&good).expect("it fits").handle, 1);
}
