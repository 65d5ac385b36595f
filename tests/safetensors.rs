//! Hugging Face directories, read: the committed ones against the GGUF files with the same weights, and directories that
//! the `safetensors` crate writes here.

use std::collections::BTreeMap;
use std::path::Path;

use ictus::checkpoint::{Checkpoint, CheckpointError, ConfigError, Family, RopePairing, RopeScaling, Vocabulary};
use ictus::tensor::{DType, Tensor, dequantise_row};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

fn data(name: &str) -> Checkpoint {
    Checkpoint::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    let mut out = vec![0.0; tensor.rows * tensor.cols];
    dequantise_row(tensor.dtype, tensor.data.as_slice(), &mut out).unwrap();
    out
}

/// Rows of a head that pairs `2i, 2i + 1`, put in the order of one that pairs `i, i + dims / 2`.
fn halves(values: &[f32], cols: usize, head_dim: usize) -> Vec<f32> {
    let rows: Vec<_> = values.chunks(cols).collect();
    let place = |row: usize| {
        let (head, i) = (row / head_dim, row % head_dim);
        let half = head_dim / 2;
        head * head_dim + if i < half { 2 * i } else { 2 * (i - half) + 1 }
    };
    (0..rows.len()).flat_map(|row| rows[place(row)].to_vec()).collect()
}

fn assert_same_weights(directory: &Checkpoint, file: &Checkpoint) {
    assert_eq!(directory.tensors().len(), file.tensors().len());
    for (name, theirs) in file.tensors() {
        let ours = directory.tensor(name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!((ours.rows, ours.cols), (theirs.rows, theirs.cols), "{name}");
        let mut expected = values(theirs);
        let paired = name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight");
        if paired && file.config().rope.pairing == RopePairing::Interleaved {
            expected = halves(&expected, theirs.cols, file.config().head_dim);
        }
        assert_eq!(values(ours), expected, "{name}");
    }
}

#[test]
fn a_llama_directory_says_what_its_gguf_twin_says() {
    let (directory, file) = (data("hf-llama"), data("llama-rope-scaled.gguf"));
    let (ours, theirs) = (directory.config(), file.config());
    assert_eq!((ours.family, ours.rope.pairing), (Family::Llama, RopePairing::Halves));
    assert_eq!((ours.layers, ours.hidden, ours.ffn_hidden), (theirs.layers, theirs.hidden, theirs.ffn_hidden));
    assert_eq!((ours.n_heads, ours.n_kv_heads, ours.head_dim), (theirs.n_heads, theirs.n_kv_heads, theirs.head_dim));
    assert_eq!((ours.vocab, ours.norm_epsilon), (theirs.vocab, theirs.norm_epsilon));
    // The file's factors were computed by another program from the same four numbers.
    let (RopeScaling::Factors { factors }, RopeScaling::Factors { factors: expected }) =
        (&ours.rope.scaling, &theirs.rope.scaling)
    else {
        panic!("no factors")
    };
    assert_eq!(factors.len(), expected.len());
    for (factor, expected) in factors.iter().zip(expected) {
        assert!((factor / expected - 1.0).abs() < 1e-6, "{factor} {expected}");
    }
    assert_same_weights(&directory, &file);
    let Some(Vocabulary::Hf(vocabulary)) = directory.vocabulary() else { panic!("no vocabulary") };
    assert!(vocabulary.tokenizer_json.ends_with("hf-llama/tokenizer.json"));
    assert_eq!((vocabulary.special.bos, vocabulary.special.eos), (Some(285), Some(286)));
    assert_eq!(directory.name(), "hf-llama");
    assert_eq!(directory.sampling_defaults().unwrap().do_sample, Some(false));
}

#[test]
fn a_sharded_qwen3_directory_says_what_its_gguf_twin_says() {
    let (directory, file) = (data("hf-qwen3"), data("qwen3.gguf"));
    assert_same_weights(&directory, &file);
    let (mut ours, theirs) = (directory.config().clone(), file.config());
    assert_eq!(ours.context_tokens, theirs.context_tokens);
    ours.architecture.clone_from(&theirs.architecture);
    assert_eq!(&ours, theirs);
    assert!(directory.tensor("output.weight").is_none(), "the embedding is tied");
}

/// A directory that is written from its parts.
struct Directory {
    config: Value,
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    files: Vec<(&'static str, String)>,
}

impl Directory {
    /// One layer, hidden 4, two heads of 2, one key-value head, six tokens.
    fn new(model_type: &str) -> Self {
        let config = json!({
            "model_type": model_type, "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2, "max_position_embeddings": 64,
            "vocab_size": 6, "rms_norm_eps": 1e-6, "rope_theta": 5000.0, "tie_word_embeddings": true,
        });
        let mut directory = Self { config, tensors: BTreeMap::new(), files: Vec::new() };
        directory.add("model.embed_tokens.weight", &[6, 4]);
        directory.add("model.norm.weight", &[4]);
        directory.layer(0, model_type);
        directory
    }

    fn layer(&mut self, index: usize, model_type: &str) {
        let mut add = |name: &str, shape: &[usize]| self.add(&format!("model.layers.{index}.{name}"), shape);
        for (name, shape) in [
            ("input_layernorm.weight", &[4][..]),
            ("self_attn.q_proj.weight", &[4, 4]),
            ("self_attn.k_proj.weight", &[2, 4]),
            ("self_attn.v_proj.weight", &[2, 4]),
            ("self_attn.o_proj.weight", &[4, 4]),
            ("post_attention_layernorm.weight", &[4]),
            ("mlp.gate_proj.weight", &[6, 4]),
            ("mlp.up_proj.weight", &[6, 4]),
            ("mlp.down_proj.weight", &[4, 6]),
        ] {
            add(name, shape);
        }
        if model_type == "qwen2" {
            add("self_attn.q_proj.bias", &[4]);
            add("self_attn.k_proj.bias", &[2]);
            add("self_attn.v_proj.bias", &[2]);
        }
        if model_type == "qwen3" || model_type.starts_with("gemma3") {
            add("self_attn.q_norm.weight", &[2]);
            add("self_attn.k_norm.weight", &[2]);
        }
        if model_type.starts_with("gemma3") {
            add("pre_feedforward_layernorm.weight", &[4]);
            add("post_feedforward_layernorm.weight", &[4]);
        }
    }

    fn layers(mut self, count: usize, model_type: &str) -> Self {
        (1..count).for_each(|index| self.layer(index, model_type));
        self.with("num_hidden_layers", json!(count))
    }

    fn add(&mut self, name: &str, shape: &[usize]) {
        let count = shape.iter().product();
        let values = (0..count).map(|i: usize| (i % 5) as f32 * 0.125 + name.len() as f32).collect();
        self.tensors.insert(name.to_owned(), (shape.to_vec(), values));
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    fn open(&self) -> Result<Checkpoint, CheckpointError> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), self.config.to_string()).unwrap();
        for (name, text) in &self.files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = self
            .tensors
            .iter()
            .map(|(name, (shape, values))| {
                (name.clone(), shape.clone(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
            })
            .collect();
        let views = bytes
            .iter()
            .map(|(name, shape, bytes)| (name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
        let file = safetensors::serialize(views, None).unwrap();
        std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
        Checkpoint::open(folder.path())
    }
}

fn config_error(directory: &Directory) -> ConfigError {
    match directory.open() {
        Err(CheckpointError::Config { source, .. }) => source,
        other => panic!("not refused for its configuration: {other:?}"),
    }
}

#[test]
fn every_family_opens_from_a_directory() {
    for (model_type, family) in [
        ("llama", Family::Llama),
        ("mistral", Family::Llama),
        ("qwen2", Family::Qwen2),
        ("qwen3", Family::Qwen3),
        ("gemma3_text", Family::Gemma3),
    ] {
        let checkpoint = Directory::new(model_type).open().unwrap();
        assert_eq!(checkpoint.config().family, family, "{model_type}");
        assert_eq!(checkpoint.config().rope.pairing, RopePairing::Halves);
        assert_eq!(checkpoint.config().rope.base, 5000.0);
        assert!(checkpoint.vocabulary().is_none(), "no tokenizer.json was written");
    }
}

#[test]
fn gemma_norms_get_their_one_back_and_nothing_else_does() {
    let directory = Directory::new("gemma3_text");
    let checkpoint = directory.open().unwrap();
    for (ours, theirs, plus) in [
        ("output_norm.weight", "model.norm.weight", 1.0),
        ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight", 1.0),
        ("blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight", 1.0),
        ("blk.0.post_attention_norm.weight", "model.layers.0.post_attention_layernorm.weight", 1.0),
        ("blk.0.ffn_norm.weight", "model.layers.0.pre_feedforward_layernorm.weight", 1.0),
        ("blk.0.post_ffw_norm.weight", "model.layers.0.post_feedforward_layernorm.weight", 1.0),
        ("token_embd.weight", "model.embed_tokens.weight", 0.0),
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight", 0.0),
    ] {
        let expected: Vec<f32> = directory.tensors[theirs].1.iter().map(|value| value + plus).collect();
        assert_eq!(values(checkpoint.tensor(ours).unwrap()), expected, "{ours}");
    }
    let llama = Directory::new("llama");
    let norm = values(llama.open().unwrap().tensor("output_norm.weight").unwrap());
    assert_eq!(norm, llama.tensors["model.norm.weight"].1);
}

#[test]
fn windows_follow_the_family() {
    let windows = |directory: Directory| {
        let checkpoint = directory.open().unwrap();
        let config = checkpoint.config();
        (0..config.layers).map(|layer| config.window_of(layer)).collect::<Vec<_>>()
    };
    let w = Some(8);
    let directory = |kind: &str, layers| Directory::new(kind).layers(layers, kind).with("sliding_window", json!(8));
    assert_eq!(windows(directory("mistral", 2)), [w, w]);
    assert_eq!(windows(directory("mistral", 1).with("sliding_window", Value::Null)), [None]);
    assert_eq!(windows(directory("llama", 2)), [None, None]);
    assert_eq!(windows(directory("qwen2", 2)), [None, None]);
    let used = |kind| directory(kind, 3).with("use_sliding_window", json!(true));
    assert_eq!(windows(used("qwen2").with("max_window_layers", json!(2))), [None, None, w]);
    assert_eq!(windows(used("qwen3").with("max_window_layers", json!(3))), [None, None, None]);
    assert_eq!(windows(used("qwen2")), [None, None, None], "28 layers have none by default");
    let gemma = || directory("gemma3_text", 7);
    assert_eq!(windows(gemma()), [w, w, w, w, w, None, w]);
    assert_eq!(windows(gemma().with("sliding_window_pattern", json!(3))), [w, w, None, w, w, None, w]);
    let types = |marks: &str| {
        let name = |mark| if mark == 'l' { "sliding_attention" } else { "full_attention" };
        json!(marks.chars().map(name).collect::<Vec<_>>())
    };
    assert_eq!(windows(gemma().with("layer_types", types("lglglgl"))), [w, None, w, None, w, None, w]);
    assert_eq!(windows(gemma().with("layer_types", types("ggggggg"))), [None; 7]);
    assert_eq!(windows(used("qwen3").with("layer_types", types("ggl"))), [None, None, w]);
    let irregular = config_error(&gemma().with("layer_types", types("llglgll")));
    assert!(matches!(irregular, ConfigError::Unsupported { key, .. } if key == "layer_types"));
}

#[test]
fn rope_scalings_are_computed_or_refused_by_name() {
    let scaled = |value: Value| Directory::new("llama").with("rope_scaling", value);
    let scaling = |directory: Directory| directory.open().unwrap().config().rope.scaling.clone();
    assert_eq!(scaling(scaled(Value::Null)), RopeScaling::None);
    assert_eq!(scaling(scaled(json!({"rope_type": "default"}))), RopeScaling::None);
    assert_eq!(scaling(scaled(json!({"type": "linear", "factor": 4}))), RopeScaling::Linear { factor: 4.0 });
    for kind in ["yarn", "longrope", "dynamic", "su", "surprise"] {
        let refused = config_error(&scaled(json!({"rope_type": kind, "factor": 2.0})));
        let expected = ConfigError::Unsupported { key: "rope_scaling.rope_type".to_owned(), value: kind.to_owned() };
        assert_eq!(refused, expected);
    }
    let missing = config_error(&scaled(json!({"rope_type": "llama3", "factor": 8.0})));
    assert_eq!(missing, ConfigError::MissingKey { key: "rope_scaling.low_freq_factor".to_owned() });
}

#[test]
fn llama3_factors_by_hand() {
    let four = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192
    });
    // Heads of 8 at base 500000: wavelengths 2 pi 500000^(i/4) = 6.28, 167, 4443 and 118144 tokens.
    let mut directory = Directory::new("llama").with("rope_theta", json!(500_000.0)).with("head_dim", json!(8));
    directory = directory.with("rope_scaling", four);
    for (name, shape) in [("q_proj", [16, 4]), ("k_proj", [8, 4]), ("v_proj", [8, 4]), ("o_proj", [4, 16])] {
        directory.add(&format!("model.layers.0.self_attn.{name}.weight"), &shape);
    }
    let RopeScaling::Factors { factors } = directory.open().unwrap().config().rope.scaling.clone() else { panic!() };
    assert_eq!((factors[0], factors[1], factors[3]), (1.0, 1.0, 8.0));
    // In between: 8192 / 4442.88 = 1.84385 turns, (1.84385 - 1) / 3 = 0.28128 kept, 1 / (0.71872 / 8 + 0.28128) = 2.6946.
    assert!((factors[2] - 2.6946).abs() < 2e-4, "{factors:?}");
}

#[test]
fn newer_files_put_rope_into_one_member_per_kind_of_layer() {
    let mut directory = Directory::new("gemma3_text").with(
        "rope_parameters",
        json!({
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        }),
    );
    directory.config.as_object_mut().unwrap().remove("rope_theta");
    let rope = directory.open().unwrap().config().rope.clone();
    assert_eq!((rope.base, rope.local_base, rope.scaling), (1e6, Some(2e4), RopeScaling::Linear { factor: 8.0 }));
}

#[test]
fn a_gemma_that_sees_opens_as_its_language_model() {
    let mut directory = Directory::new("gemma3_text").with("query_pre_attn_scalar", json!(64));
    directory.config = json!({
        "model_type": "gemma3", "text_config": directory.config, "eos_token_id": [1, 3], "vision_config": {},
    });
    let tensors = std::mem::take(&mut directory.tensors);
    directory.tensors = tensors.into_iter().map(|(name, tensor)| (format!("language_model.{name}"), tensor)).collect();
    directory.add("vision_tower.vision_model.embeddings.patch_embedding.weight", &[2, 3, 2, 2]);
    directory.add("multi_modal_projector.mm_input_projection_weight", &[4, 4]);
    directory.files.push(("tokenizer.json", "{}".to_owned()));
    let checkpoint = directory.open().unwrap();
    assert_eq!(checkpoint.config().attention_scale, 0.125);
    assert_eq!(checkpoint.tensors().len(), 2 + 13);
    assert_eq!(checkpoint.vocabulary().unwrap().special().ends, [1, 3]);
}

#[test]
fn what_would_change_the_results_is_refused_by_name() {
    for (key, value) in [
        ("attention_bias", json!(true)),
        ("mlp_bias", json!(true)),
        ("quantization_config", json!({"quant_method": "gptq"})),
        ("partial_rotary_factor", json!(0.5)),
        ("hidden_act", json!("gelu")),
        ("final_logit_softcapping", json!(30.0)),
    ] {
        let refused = config_error(&Directory::new("llama").with(key, value));
        assert!(matches!(&refused, ConfigError::Unsupported { key: named, .. } if named == key), "{refused:?}");
    }
    let mixture = config_error(&Directory::new("mixtral"));
    assert_eq!(mixture, ConfigError::Architecture { architecture: "mixtral".to_owned() });
    let mut biased = Directory::new("llama");
    biased.add("model.layers.0.self_attn.q_proj.bias", &[4]);
    assert_eq!(config_error(&biased), ConfigError::UnknownTensor { tensor: "blk.0.attn_q.bias".to_owned() });
}

#[test]
fn the_output_matrix_is_there_exactly_when_it_is_not_tied() {
    let mut untied = Directory::new("llama").with("tie_word_embeddings", json!(false));
    assert_eq!(config_error(&untied), ConfigError::MissingTensor { tensor: "output.weight".to_owned() });
    untied.add("lm_head.weight", &[6, 4]);
    assert!(untied.open().unwrap().tensor("output.weight").is_some());
    let mut tied = Directory::new("llama");
    tied.add("lm_head.weight", &[6, 4]);
    assert!(tied.open().unwrap().tensor("output.weight").is_none());
}

#[test]
fn what_lies_beside_the_weights_is_read() {
    let mut directory = Directory::new("llama").with("bos_token_id", json!(1)).with("eos_token_id", json!(2));
    let generation = json!({"temperature": 0.5, "top_k": 20, "top_p": 0.75, "do_sample": true, "eos_token_id": [4, 2]});
    directory.files.push(("generation_config.json", generation.to_string()));
    directory.files.push(("tokenizer.json", "{}".to_owned()));
    let named = json!({"chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]});
    directory.files.push(("tokenizer_config.json", named.to_string()));
    let checkpoint = directory.open().unwrap();
    let defaults = checkpoint.sampling_defaults().unwrap();
    assert_eq!((defaults.temperature, defaults.top_k, defaults.top_p), (Some(0.5), Some(20), Some(0.75)));
    assert_eq!((defaults.min_p, defaults.do_sample), (None, Some(true)));
    let special = checkpoint.vocabulary().unwrap().special();
    assert_eq!((special.bos, special.eos, &*special.ends), (Some(1), Some(4), &[2, 4][..]));
    assert_eq!(checkpoint.chat_template(), Some("d"));
    directory.files.push(("chat_template.jinja", "j".to_owned()));
    assert_eq!(directory.open().unwrap().chat_template(), Some("j"));
}

#[test]
fn the_identity_follows_the_weights() {
    let mut directory = Directory::new("llama");
    let first = directory.open().unwrap().weights_identity();
    assert_eq!(first, directory.open().unwrap().weights_identity());
    directory.tensors.get_mut("model.norm.weight").unwrap().1[3] += 1.0;
    assert_ne!(first, directory.open().unwrap().weights_identity());
}

#[test]
fn vectors_are_brought_to_single_precision() {
    let checkpoint = data("hf-qwen3");
    assert_eq!(checkpoint.tensor("output_norm.weight").unwrap().dtype, DType::F32);
    assert_eq!(checkpoint.tensor("blk.0.attn_q.weight").unwrap().dtype, DType::BF16);
}
