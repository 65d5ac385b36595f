#![forbid(unsafe_code)]
//! What `check` prints: one JSON object about the runtime, the machine, and a model when one is named (W-86).

use std::path::Path;

use ictus::checkpoint::{Checkpoint, SamplingDefaults};
use ictus::worker::frame::VERSION;
use ictus::{Model, ModelOptions};
use serde_json::{Map, Value, json};

use crate::line::{self, BadLine, Line};

/// The report, and whether the model, if one was named, can be read.
pub fn report(line: &Line) -> Result<(Value, bool), BadLine> {
    let capabilities = serde_json::from_str(&Model::capability_without_model()).unwrap_or(Value::Null);
    let mut report = json!({
        "runtime": { "id": "ictus", "version": env!("CARGO_PKG_VERSION"), "aliases": [] },
        "link_w": [VERSION],
        "available": true,
        "formats": [
            { "id": "gguf", "describe": "a GGUF file", "file": { "extensions": ["gguf"], "magic": "GGUF" } },
            {
                "id": "huggingface",
                "describe": "a folder with config.json, tokenizer.json and safetensors files",
                "directory": { "files": ["config.json", "tokenizer.json"], "extensions": ["safetensors"] },
            },
        ],
        "tokenizer": { "from": "library", "name": "ictus" },
        "devices": [{ "backend": "cpu", "name": processor_name(), "memory": memory_bytes(), "budget": 0 }],
        "capabilities": capabilities,
        "options": line::described(),
    });
    let mut readable = true;
    if let Some(path) = line.text("model") {
        let (model, reads) = model(path, line)?;
        report["model"] = model;
        readable = reads;
    }
    Ok((report, readable))
}

/// What is said of a model; no weights are read.
fn model(path: &str, line: &Line) -> Result<(Value, bool), BadLine> {
    let unreadable = |reason: String| json!({ "path": path, "reads": reason, "facts": reason, "sizing": reason });
    let checkpoint = match Checkpoint::open(Path::new(path)) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return Ok((unreadable(error.to_string()), false)),
    };
    let options = line.model_options(checkpoint.config().context_tokens)?;
    if checkpoint.vocabulary().is_none() {
        return Ok((unreadable("the model has no vocabulary".to_owned()), false));
    }
    if let Err(error) = Model::plan(path, &options) {
        return Ok((unreadable(error.to_string()), false));
    }
    let mut facts = json!({ "architecture": checkpoint.architecture() });
    if let Some(defaults) = checkpoint.sampling_defaults() {
        facts["sampling_defaults"] = sampling_defaults(&defaults);
    }
    let report = json!({ "path": path, "reads": true, "facts": facts, "sizing": sizing(&checkpoint, &options) });
    Ok((report, true))
}

fn sizing(checkpoint: &Checkpoint, options: &ModelOptions) -> Value {
    let config = checkpoint.config();
    // Two vectors for each head of each layer; single precision unless the line or the arithmetic says otherwise.
    let element = options
        .kv_type
        .map_or_else(|| if options.arithmetic == ictus::Arithmetic::Fast { 2 } else { 4 }, ictus::KvType::bytes);
    let budget = if options.memory_budget_bytes == 0 { memory_bytes() } else { options.memory_budget_bytes };
    json!({
        "budget_bytes": budget,
        "weight_bytes": checkpoint.tensor_bytes(),
        "kv_bytes_per_token": 2 * element * config.layers * config.n_kv_heads * config.head_dim,
        "trained_context": config.context_tokens,
    })
}

/// What a checkpoint claims, under the names of a generation configuration.
fn sampling_defaults(defaults: &SamplingDefaults) -> Value {
    let mut members = Map::new();
    let float = |value: f32| value.to_string().parse::<f64>().map_or(Value::Null, Value::from);
    let floats = [
        ("temperature", defaults.temperature),
        ("top_p", defaults.top_p),
        ("min_p", defaults.min_p),
        ("repetition_penalty", defaults.repetition_penalty),
    ];
    members.extend(floats.iter().filter_map(|(name, value)| Some(((*name).to_owned(), float((*value)?)))));
    members.extend(defaults.top_k.map(|top_k| ("top_k".to_owned(), top_k.into())));
    members.extend(defaults.do_sample.map(|do_sample| ("do_sample".to_owned(), do_sample.into())));
    Value::Object(members)
}

/// The value of the first line of a file of the kernel that begins with `name`.
fn kernel_says(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn processor_name() -> String {
    kernel_says("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Memory of the machine in bytes; 0 when the kernel does not say.
fn memory_bytes() -> u64 {
    let kib = kernel_says("/proc/meminfo", "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
