//! Adapters that tests make: random factors, written as PEFT and as GGUF, and merged into the weights of a model.
//!
//! Independent of the crate's reader: names, orders of rows and scales are written down here a second time.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ictus::checkpoint::{Checkpoint, Family, ModelConfig, RopePairing};
use ictus::model::TensorSource;
use ictus::tensor::{Bytes, DType, Tensor, dequantise_row};
use serde_json::{Value as Json, json};

use super::gguf::{Gguf, TensorEntry, Value};
use super::random::Random;

/// Canonical name, name of the module, and whether the rows of heads are exchanged between the two orders.
pub(crate) const MATRICES: [(&str, &str, bool); 7] = [
    ("attn_q", "self_attn.q_proj", true),
    ("attn_k", "self_attn.k_proj", true),
    ("attn_v", "self_attn.v_proj", false),
    ("attn_output", "self_attn.o_proj", false),
    ("ffn_gate", "mlp.gate_proj", false),
    ("ffn_up", "mlp.up_proj", false),
    ("ffn_down", "mlp.down_proj", false),
];

/// The change of one matrix; rows of `b` in the order of Hugging Face.
#[derive(Clone)]
pub(crate) struct Factors {
    pub(crate) layer: usize,
    /// Index into [`MATRICES`].
    pub(crate) matrix: usize,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) rank: usize,
    pub(crate) a: Vec<f32>,
    pub(crate) b: Vec<f32>,
}

/// An adapter in no format.
#[derive(Clone)]
pub(crate) struct Lora {
    pub(crate) alpha: f32,
    pub(crate) root: bool,
    pub(crate) factors: Vec<Factors>,
}

fn shape(config: &ModelConfig, matrix: usize) -> (usize, usize) {
    let (wide, narrow) = (config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim);
    let (hidden, ffn) = (config.hidden, config.ffn_hidden);
    [(wide, hidden), (narrow, hidden), (narrow, hidden), (hidden, wide), (ffn, hidden), (ffn, hidden), (hidden, ffn)]
        [matrix]
}

impl Lora {
    /// Random factors of one rank for some of the matrices of every layer; they move logits by a fraction of their size.
    pub(crate) fn random(random: &mut Random, config: &ModelConfig, rank: usize, matrices: &[usize]) -> Self {
        let mut factors = Vec::new();
        for layer in 0..config.layers {
            for &matrix in matrices {
                let (outputs, inputs) = shape(config, matrix);
                let mut values = |count: usize, size: f32| {
                    (0..count).map(|_| ((random.below(2001) as f32) / 1000.0 - 1.0) * size).collect::<Vec<f32>>()
                };
                let a = values(rank * inputs, 1.0 / (inputs as f32).sqrt());
                let b = values(outputs * rank, 0.5 / (rank as f32).sqrt());
                factors.push(Factors { layer, matrix, inputs, outputs, rank, a, b });
            }
        }
        Self { alpha: 1.5 * rank as f32, root: false, factors }
    }

    pub(crate) fn scale(&self, rank: usize) -> f64 {
        let rank = rank as f64;
        f64::from(self.alpha) / if self.root { rank.sqrt() } else { rank }
    }

    /// Writes `adapter_config.json` and `adapter_model.safetensors` into a folder.
    pub(crate) fn write_peft(&self, folder: &Path) -> PathBuf {
        std::fs::create_dir_all(folder).expect("the folder can be made");
        let mut config = self.peft_config();
        config["target_modules"] = json!(["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]);
        std::fs::write(folder.join("adapter_config.json"), config.to_string()).expect("it can be written");
        std::fs::write(folder.join("adapter_model.safetensors"), safetensors(&self.peft_tensors())).expect("it can");
        folder.to_owned()
    }

    pub(crate) fn peft_config(&self) -> Json {
        let rank = self.factors[0].rank;
        json!({
            "peft_type": "LORA", "r": rank, "lora_alpha": self.alpha, "use_rslora": self.root, "bias": "none",
            "use_dora": false, "fan_in_fan_out": false, "modules_to_save": null, "rank_pattern": {},
            "alpha_pattern": {}, "task_type": "CAUSAL_LM", "lora_dropout": 0.05, "inference_mode": true,
        })
    }

    pub(crate) fn peft_tensors(&self) -> Vec<(String, Vec<u64>, Vec<f32>)> {
        let mut tensors = Vec::new();
        for f in &self.factors {
            let module = format!("base_model.model.model.layers.{}.{}", f.layer, MATRICES[f.matrix].1);
            let (rank, inputs, outputs) = (f.rank as u64, f.inputs as u64, f.outputs as u64);
            tensors.push((format!("{module}.lora_A.weight"), vec![rank, inputs], f.a.clone()));
            tensors.push((format!("{module}.lora_B.weight"), vec![outputs, rank], f.b.clone()));
        }
        tensors
    }

    /// A GGUF file for models of this configuration; llama's q and k have their rows as GGUF files do.
    pub(crate) fn gguf(&self, config: &ModelConfig) -> Gguf {
        let architecture = match config.family {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Gemma3 => "gemma3",
            other => panic!("{other:?} has no name here"),
        };
        let mut file = Gguf::new()
            .key("general.type", Value::text("adapter"))
            .key("general.architecture", Value::text(architecture))
            .key("adapter.type", Value::text("lora"))
            .key("adapter.lora.alpha", Value::F32(self.alpha));
        for f in &self.factors {
            let (name, _, by_heads) = MATRICES[f.matrix];
            let b = match by_heads && config.family == Family::Llama {
                true => interleaved(&f.b, f.rank, config.head_dim),
                false => f.b.clone(),
            };
            let name = format!("blk.{}.{name}.weight", f.layer);
            file.tensors.push(entry(format!("{name}.lora_a"), &[f.inputs, f.rank], &f.a));
            file.tensors.push(entry(format!("{name}.lora_b"), &[f.rank, f.outputs], &b));
        }
        file
    }

    /// The model's weights with the change added, summed in double precision and rounded once.
    pub(crate) fn merged(&self, checkpoint: &Checkpoint) -> Merged {
        let config = checkpoint.config();
        let mut tensors: HashMap<String, Tensor> =
            checkpoint.tensors().map(|(name, tensor)| (name.to_owned(), tensor.clone())).collect();
        for f in &self.factors {
            let (name, _, by_heads) = MATRICES[f.matrix];
            let name = format!("blk.{}.{name}.weight", f.layer);
            let base = &tensors[&name];
            let mut values = vec![0.0f32; base.rows * base.cols];
            dequantise_row(base.dtype, base.data.as_slice(), &mut values).expect("whole rows");
            let b = match by_heads && config.rope.pairing == RopePairing::Interleaved {
                true => interleaved(&f.b, f.rank, config.head_dim),
                false => f.b.clone(),
            };
            let scale = self.scale(f.rank);
            for (row, values) in values.chunks_mut(f.inputs).enumerate() {
                for (col, value) in values.iter_mut().enumerate() {
                    let product = |r: usize| f64::from(b[row * f.rank + r]) * f64::from(f.a[r * f.inputs + col]);
                    let change: f64 = (0..f.rank).map(product).sum();
                    *value = (f64::from(*value) + scale * change) as f32;
                }
            }
            let (rows, cols) = (base.rows, base.cols);
            let merged = Tensor { dtype: DType::F32, rows, cols, data: Bytes::from_f32(&values) };
            tensors.insert(name, merged);
        }
        Merged(tensors)
    }
}

/// A model's tensors with an adapter merged in.
pub(crate) struct Merged(HashMap<String, Tensor>);

impl TensorSource for Merged {
    fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.0.get(name)
    }
}

/// Rows of each head, halves to neighbours.
fn interleaved(values: &[f32], cols: usize, head_dim: usize) -> Vec<f32> {
    let mut out = values.to_vec();
    for head in 0..values.len() / (head_dim * cols) {
        for i in 0..head_dim / 2 {
            for half in 0..2 {
                let from = (head * head_dim + half * head_dim / 2 + i) * cols;
                let to = (head * head_dim + 2 * i + half) * cols;
                out[to..to + cols].copy_from_slice(&values[from..from + cols]);
            }
        }
    }
    out
}

fn entry(name: String, dims: &[usize], values: &[f32]) -> TensorEntry {
    let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    TensorEntry { name, dims: dims.iter().map(|&dim| dim as u64).collect(), kind: 0, offset: None, data }
}

/// A safetensors file of F32 tensors.
pub(crate) fn safetensors(tensors: &[(String, Vec<u64>, Vec<f32>)]) -> Vec<u8> {
    let mut header = json!({});
    let mut data: Vec<u8> = Vec::new();
    for (name, shape, values) in tensors {
        let begin = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        header[name] = json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]});
    }
    let header = header.to_string();
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(data);
    out
}
