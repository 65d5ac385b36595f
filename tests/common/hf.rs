//! A tiny Hugging Face directory, written by the formats' descriptions so that tests can make it lie.

use ictus::checkpoint::{Checkpoint, CheckpointError, HfError};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::allocations;

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// A name and a shape for every tensor of the tiny llama.
pub(crate) const TENSORS: &[(&str, &[u64])] = &[
    ("model.embed_tokens.weight", &[6, 4]),
    ("model.norm.weight", &[4]),
    ("model.layers.0.input_layernorm.weight", &[4]),
    ("model.layers.0.self_attn.q_proj.weight", &[4, 4]),
    ("model.layers.0.self_attn.k_proj.weight", &[2, 4]),
    ("model.layers.0.self_attn.v_proj.weight", &[2, 4]),
    ("model.layers.0.self_attn.o_proj.weight", &[4, 4]),
    ("model.layers.0.post_attention_layernorm.weight", &[4]),
    ("model.layers.0.mlp.gate_proj.weight", &[6, 4]),
    ("model.layers.0.mlp.up_proj.weight", &[6, 4]),
    ("model.layers.0.mlp.down_proj.weight", &[4, 6]),
];

pub(crate) fn config() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "vocab_size": 6,
        "rms_norm_eps": 1e-6, "rope_theta": 5000.0, "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": 2,
    })
}

/// A BF16 file by the format's description, with its header as a value that a test can change first.
pub(crate) fn file(tensors: &[(&str, &[u64])], change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut header = json!({"__metadata__": {"format": "pt"}});
    let mut end = 0;
    for (name, shape) in tensors {
        let begin = end;
        end += 2 * shape.iter().product::<u64>();
        header[*name] = json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]});
    }
    change(&mut header);
    with_header(&header.to_string(), end as usize)
}

pub(crate) fn with_header(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend([0x80, 0x3f].repeat(data_bytes / 2));
    out
}

pub(crate) fn directory() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    put(&folder, CONFIG, config().to_string());
    put(&folder, SINGLE, file(TENSORS, |_| {}));
    folder
}

pub(crate) fn put(folder: &TempDir, name: &str, bytes: impl AsRef<[u8]>) {
    std::fs::write(folder.path().join(name), bytes).unwrap();
}

/// Opens, and holds the reader to what the files justify.
pub(crate) fn open(folder: &TempDir) -> Result<Checkpoint, CheckpointError> {
    let (result, allocated) = allocations::allocated_bytes(|| Checkpoint::open(folder.path()));
    let files = std::fs::read_dir(folder.path()).unwrap();
    let bytes: u64 = files.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(allocated <= (128 << 10) + 64 * bytes, "{allocated} bytes allocated for files of {bytes}");
    if let Ok(checkpoint) = &result {
        checkpoint.weights_identity();
    }
    result
}

pub(crate) fn layout_error(folder: &TempDir, file: &str) -> HfError {
    let once = || match open(folder) {
        Err(CheckpointError::Hf { path, source }) => {
            assert_eq!(path, folder.path().join(file));
            source
        }
        other => panic!("not refused for its layout: {other:?}"),
    };
    let first = once();
    assert_eq!(format!("{first:?}"), format!("{:?}", once()));
    first
}
