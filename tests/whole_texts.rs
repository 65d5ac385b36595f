//! Texts outside lanes: embeddings against the model's own rows, and stages by layers that compose to the bit.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/allocations.rs"]
mod allocations;
#[path = "common/gguf.rs"]
mod gguf;
#[path = "common/hf.rs"]
mod hf;
#[path = "common/lora.rs"]
mod lora;
#[path = "common/model.rs"]
mod model;
#[path = "common/naive.rs"]
mod naive;
#[path = "common/random.rs"]
mod random;

use std::collections::HashMap;

use gguf::{Value, tiny_llama};
use ictus::backend::cpu::CpuBackend;
use ictus::backend::{Backend, KvType};
use ictus::checkpoint::{Checkpoint, Embedding, Pooling};
use ictus::engine::{Engine, StageOutput};
use ictus::executor::Executor;
use ictus::record::Status;
use ictus::runtime::{Descriptor, ModelRuntime, PagedIdentity, PagedOptions, Runtime, RuntimeError, Stage, StageError};
use ictus::sample::argmax;
use ictus::tensor::{Bytes, DType, Tensor};
use lora::Lora;
use naive::Naive;
use random::Random;
use serde_json::json;

const FAMILIES: [&str; 6] = [
    "tests/data/llama-rope-scaled.gguf",
    "tests/data/llama-window.gguf",
    "tests/data/qwen2.gguf",
    "tests/data/qwen3.gguf",
    "tests/data/gemma3.gguf",
    "models/ictus-tiny.gguf",
];

fn open(path: &str) -> Checkpoint {
    Checkpoint::open(model::file(path)).expect("the model opens")
}

fn options(pass_rows: usize) -> PagedOptions {
    PagedOptions { pass_rows, ..model::options(KvType::F32, 64) }
}

/// A runtime whose rows of logits are its last hidden states: the output matrix is the identity, and the vocabulary is cut to its
/// width.
fn of_hidden_states<B: Backend>(
    backend: B,
    checkpoint: &Checkpoint,
    pooling: Pooling,
    normalised: bool,
) -> ModelRuntime<B> {
    let mut config = checkpoint.config().clone();
    let hidden = config.hidden;
    assert!(config.vocab >= hidden, "as many tokens as the stream is wide");
    config.vocab = hidden;
    let mut tensors: HashMap<String, Tensor> =
        checkpoint.tensors().map(|(name, tensor)| (name.to_owned(), tensor.clone())).collect();
    let embedding = tensors.get_mut("token_embd.weight").expect("there is one");
    let row_bytes = embedding.dtype.row_bytes(hidden).expect("whole units");
    embedding.data = embedding.data.slice(0..hidden * row_bytes).expect("the first rows");
    embedding.rows = hidden;
    let identity: Vec<f32> = (0..hidden * hidden).map(|i| if i / hidden == i % hidden { 1.0 } else { 0.0 }).collect();
    let output = Tensor { dtype: DType::F32, rows: hidden, cols: hidden, data: Bytes::from_f32(&identity) };
    tensors.insert("output.weight".to_owned(), output);
    let identity = PagedIdentity { embedding: Some(Embedding { pooling, normalised }), ..PagedIdentity::default() };
    ModelRuntime::new(backend, &config, &tensors, &options(0), identity).expect("it loads")
}

/// The hidden state behind each token.
fn states(runtime: &mut impl Runtime, ids: &[u32]) -> Vec<Vec<f32>> {
    let every: Vec<usize> = (0..ids.len()).collect();
    model::rows_at(runtime, ids, &every)
}

fn length(vector: &[f32]) -> f64 {
    vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt()
}

#[test]
fn embeddings_are_the_pooled_hidden_states() {
    let mut random = Random::new("embeddings");
    for path in FAMILIES {
        let checkpoint = open(path);
        let ids: Vec<u32> = (0..23).map(|_| random.below(checkpoint.config().hidden) as u32).collect();
        for pooling in [Pooling::Last, Pooling::Mean, Pooling::First] {
            let mut runtime = of_hidden_states(CpuBackend::new(2), &checkpoint, pooling, false);
            let states = states(&mut runtime, &ids);
            let expected: Vec<f64> = (0..states[0].len())
                .map(|i| match pooling {
                    Pooling::Last => f64::from(states[22][i]),
                    Pooling::First => f64::from(states[0][i]),
                    Pooling::Mean => states.iter().map(|state| f64::from(state[i])).sum::<f64>() / 23.0,
                })
                .collect();
            let vector = runtime.embed(&ids, 0).expect("an embedding");
            assert!(vector.iter().zip(&expected).all(|(&x, &y)| x == y as f32), "{path} {pooling:?}");
            assert_eq!(runtime.mem_counters().cells_used, 0, "its pages are free again");
            // Scaled to length 1 only where the model says so.
            let mut scaled = of_hidden_states(CpuBackend::new(1), &checkpoint, pooling, true);
            let unit = scaled.embed(&ids, 0).expect("an embedding");
            assert!((length(&unit) - 1.0).abs() < 1e-6 && (length(&vector) - 1.0).abs() > 1e-3);
            let factor = length(&vector);
            assert!(vector.iter().zip(&unit).all(|(&x, &y)| (f64::from(x) / factor - f64::from(y)).abs() < 1e-6));
        }
    }
}

/// Parts, threads, pages and lanes beside it change no bit of an embedding, and it changes none of theirs.
#[test]
fn embedding_disturbs_nobody_and_nobody_disturbs_it() {
    let mut random = Random::new("embeddings beside lanes");
    for (path, backend) in FAMILIES.into_iter().flat_map(|path| model::PROCESSORS.map(|backend| (path, backend))) {
        let checkpoint = open(path);
        let vocab = checkpoint.config().vocab;
        let ids: Vec<u32> = (0..40).map(|_| random.below(vocab) as u32).collect();
        let lane: Vec<u32> = (0..20).map(|_| random.below(vocab) as u32).collect();
        let mut plain = model::runtime(backend(1), &checkpoint, &options(0));
        let expected = plain.embed(&ids, 0).expect("an embedding");
        let row = model::rows_at(&mut plain, &lane, &[19]).remove(0);
        for pass_rows in [8, 13, 40] {
            let threads = random.between(1, 3);
            let changed =
                PagedOptions { page_size_tokens: *random.pick(&[1, 2, 16]), pool_pages: 120, ..options(pass_rows) };
            let mut runtime = model::runtime(backend(threads), &checkpoint, &changed);
            let sequence = runtime.seq_create().expect("a sequence");
            model::last_row(&mut runtime, sequence, &lane[..11]);
            let used = runtime.mem_counters();
            assert_eq!(runtime.embed(&ids, 0).expect("an embedding"), expected, "{path} {pass_rows}");
            assert_eq!(runtime.mem_counters(), used);
            assert_eq!(model::last_row(&mut runtime, sequence, &lane[11..]), row, "{path} {pass_rows}");
        }
    }
}

#[test]
fn embedding_uses_the_adapter() {
    let mut random = Random::new("embeddings with adapters");
    let checkpoint = open("models/ictus-tiny.gguf");
    let lora = Lora::random(&mut random, checkpoint.config(), 4, &[0, 1, 2, 3, 4, 5, 6]);
    let folder = tempfile::tempdir().expect("a folder");
    let path = lora.write_peft(folder.path());
    let mut engine = Executor::new(model::runtime(CpuBackend::new(1), &checkpoint, &options(0)));
    let ids = [5, 6, 7, 8];
    let plain = engine.embed(&ids).expect("an embedding");
    engine.lora_load(path.to_str().expect("UTF-8")).expect("it fits");
    assert_ne!(engine.embed(&ids).expect("an embedding"), plain);
    engine.lora_unload().expect("there is one");
    assert_eq!(engine.embed(&ids).expect("an embedding"), plain);
    let mut runtime = model::runtime(CpuBackend::new(1), &checkpoint, &options(0));
    assert_eq!(runtime.embed(&ids, 9), Err(RuntimeError::UnknownSeq), "no such adapter");
}

/// What files say of pooling.
#[test]
fn pooling_is_the_models_own() {
    let with = |pooling: Option<u32>| {
        let file = pooling.map_or_else(tiny_llama, |kind| tiny_llama().key("llama.pooling_type", Value::U32(kind)));
        Checkpoint::from_gguf_bytes(Bytes::copy_aligned(&file.build())).expect("it opens").embedding()
    };
    let of = |pooling| Some(Embedding { pooling, normalised: false });
    assert_eq!(with(None), of(Pooling::Last), "what a causal model has seen whole");
    assert_eq!(
        [0, 1, 2, 3].map(|kind| with(Some(kind))),
        [of(Pooling::Last), of(Pooling::Mean), of(Pooling::First), of(Pooling::Last)]
    );
    assert_eq!([4, 77].map(|kind| with(Some(kind))), [None, None], "a rank, and what nobody knows");

    let folder = hf::directory();
    let read = |folder: &tempfile::TempDir| hf::open(folder).expect("it opens").embedding();
    assert_eq!(read(&folder), of(Pooling::Last));
    std::fs::create_dir(folder.path().join("1_Pooling")).expect("a folder");
    for (config, expected) in [
        (json!({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}), of(Pooling::Mean)),
        (json!({"pooling_mode_lasttoken": true}), of(Pooling::Last)),
        (json!({"pooling_mode_cls_token": true}), of(Pooling::First)),
        (json!({"pooling_mode": "mean"}), of(Pooling::Mean)),
        (json!({"pooling_mode": "weightedmean"}), None),
        (json!({"pooling_mode_max_tokens": true}), None),
        (json!({"pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true}), None),
    ] {
        std::fs::write(folder.path().join("1_Pooling/config.json"), config.to_string()).expect("it can be written");
        assert_eq!(read(&folder), expected, "{config}");
    }
    let modules = json!([{"type": "x.models.Pooling"}, {"idx": 2, "type": "sentence_transformers.models.Normalize"}]);
    std::fs::write(folder.path().join("1_Pooling/config.json"), r#"{"pooling_mode_lasttoken": true}"#)
        .expect("written");
    std::fs::write(folder.path().join("modules.json"), modules.to_string()).expect("it can be written");
    assert_eq!(read(&folder), Some(Embedding { pooling: Pooling::Last, normalised: true }));
    std::fs::write(folder.path().join("modules.json"), "[").expect("it can be written");
    assert!(hf::open(&folder).is_err(), "a document that does not parse");
}

fn hidden(output: Result<StageOutput, StageError>) -> Vec<u8> {
    match output.expect("the stage runs") {
        StageOutput::Hidden(bytes) => bytes,
        StageOutput::Token(token) => panic!("an inner stage gives token {token}"),
    }
}

fn stages_compose<B: Backend>(random: &mut Random, path: &str, backend: impl Fn() -> B) {
    let checkpoint = open(path);
    let vocab = checkpoint.config().vocab;
    let tokens: Vec<u32> = (0..30).map(|_| random.below(vocab) as u32).collect();
    // Each stage in an engine of its own, with parts of another length.
    let mut engines: Vec<ModelRuntime<B>> =
        [0, 8, 13].map(|pass_rows| model::runtime(backend(), &checkpoint, &options(pass_rows))).into();
    let row = model::rows_at(&mut engines[0], &tokens, &[29]).remove(0);
    let expected = StageOutput::Token(argmax(&row));
    let layers = engines[0].describe().workloads.layers;
    assert_eq!(layers as usize, checkpoint.config().layers);
    let mut run = |engine: usize, first, end, incoming: Option<&[u8]>| {
        let stage = Stage { tokens: &tokens, adapter: 0, first, end, incoming };
        engines[engine].forward_stage(&stage)
    };
    assert_eq!(run(0, 0, layers, None), Ok(expected.clone()), "{path}: all layers at once");
    for cut in 0..=layers {
        let bytes = match run(0, 0, cut, None).expect("the stage runs") {
            StageOutput::Hidden(bytes) => bytes,
            whole => {
                assert_eq!((cut, whole), (layers, expected.clone()));
                continue;
            }
        };
        assert!(!bytes.is_empty());
        assert_eq!(run(1, cut, layers, Some(&bytes)), Ok(expected.clone()), "{path}: cut at {cut}");
        for second in cut..layers {
            let middle = hidden(run(1, cut, second, Some(&bytes)));
            assert_eq!(run(2, second, layers, Some(&middle)), Ok(expected.clone()), "{path}: {cut}, {second}");
        }
    }
    for engine in engines {
        assert_eq!(engine.mem_counters().cells_used, 0, "pages are free again");
    }
}

/// ES-11, E-11: for every split into two and three stages, for every family, on two backends.
#[test]
fn es_11_stages_compose_to_the_bit() {
    let mut random = Random::new("stages");
    for path in FAMILIES {
        for backend in model::PROCESSORS {
            stages_compose(&mut random, path, || backend(2));
        }
    }
    stages_compose(&mut random, "tests/data/gemma3.gguf", Naive::default);
}

/// ES-11, E-11: out of range, and bytes that are not those of the stage before; through the engine's surface.
#[test]
fn es_11_stages_that_do_not_fit_are_refused() {
    let checkpoint = open("models/ictus-tiny.gguf");
    let mut engine = Executor::new(model::runtime(CpuBackend::new(1), &checkpoint, &options(0)));
    let n = engine.n_layers();
    let tokens = [5, 6, 7];
    let Ok(StageOutput::Hidden(bytes)) = engine.forward_stage(&tokens, 0, 1, None) else { panic!("an inner stage") };
    let vocab = checkpoint.config().vocab as u32;
    let long = vec![1; 65];
    let before = engine.state_digest();
    for _ in 0..2 {
        let mut refused = |tokens: &[u32], first, end, incoming: Option<&[u8]>, status| {
            assert_eq!(engine.forward_stage(tokens, first, end, incoming), Err(status), "{first}..{end}");
        };
        refused(&tokens, 0, n + 1, None, Status::RejectBounds);
        refused(&tokens, 2, 1, Some(&bytes), Status::RejectBounds);
        refused(&[], 0, n, None, Status::RejectBounds);
        refused(&[vocab], 0, n, None, Status::RejectBounds);
        refused(&long, 0, n, None, Status::RejectBounds);
        refused(&tokens, 1, n, None, Status::RejectBadStruct);
        refused(&tokens, 2, n, Some(&bytes), Status::RejectBadStruct);
        refused(&tokens, 0, n, Some(&bytes), Status::RejectBadStruct);
        refused(&[5, 6, 8], 1, n, Some(&bytes), Status::RejectBadStruct);
        refused(&[5, 6], 1, n, Some(&bytes), Status::RejectBadStruct);
        for len in [0, 7, bytes.len() - 1] {
            refused(&tokens, 1, n, Some(&bytes[..len]), Status::RejectBadStruct);
        }
        for at in (0..bytes.len()).step_by(5) {
            let mut changed = bytes.clone();
            changed[at] ^= 0x40;
            refused(&tokens, 1, n, Some(&changed), Status::RejectBadStruct);
        }
        assert_eq!(engine.embed(&[]), Err(Status::RejectBounds));
        assert_eq!(engine.embed(&[vocab]), Err(Status::RejectBounds));
        assert_eq!(engine.embed(&long), Err(Status::RejectBounds));
        assert_eq!(engine.state_digest(), before);
    }
    assert!(matches!(engine.forward_stage(&tokens, 1, n, Some(&bytes)), Ok(StageOutput::Token(_))));
}

/// No room in the pool is no harm: nothing moved.
#[test]
fn texts_without_room_need_a_replan() {
    let checkpoint = open("models/ictus-tiny.gguf");
    let small = PagedOptions { pool_pages: 2, ..options(0) };
    let mut engine = Executor::new(model::runtime(CpuBackend::new(1), &checkpoint, &small));
    let tokens = [7; 40];
    let before = engine.state_digest();
    for _ in 0..2 {
        assert_eq!(engine.embed(&tokens), Err(Status::NeedsReplan));
        assert_eq!(engine.forward_stage(&tokens, 0, 1, None), Err(Status::NeedsReplan));
        assert_eq!(engine.state_digest(), before);
    }
    assert!(engine.embed(&tokens[..32]).is_ok());
}

/// The code's descriptor is that of every load, but for what a load decides.
#[test]
fn code_describes_itself_without_a_model() {
    let checkpoint = open("models/ictus-tiny.gguf");
    let code: Descriptor = ModelRuntime::<CpuBackend>::describe_code();
    let loaded = model::runtime(CpuBackend::new(1), &checkpoint, &options(0));
    let loaded = loaded.describe();
    assert_eq!((&code.runtime_id, &code.runtime_version), (&loaded.runtime_id, &loaded.runtime_version));
    assert_eq!((code.verify_rows, code.sampling), (loaded.verify_rows, loaded.sampling));
    assert_eq!((&code.export_encodings, &code.spaces), (&loaded.export_encodings, &loaded.spaces));
    assert!(code.workloads.adapters && loaded.workloads.adapters);
}
