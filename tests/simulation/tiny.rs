//! The tiny models: as runtimes on pages, and as an oracle that says what follows a text.
//!
//! The oracle is a runtime of its own that feeds a whole text to an empty sequence in one step, on one page, whenever it is asked: no
//! chunks, no other lanes, nothing shared or kept. What it answers it remembers by the text.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;

use ictus::backend::KvType;
use ictus::backend::cpu::CpuBackend;
use ictus::checkpoint::Checkpoint;
use ictus::runtime::{Answers, Feed, Input, LoadedAdapter, ModelRuntime, PagedIdentity, PagedOptions, Runtime, Want};

use super::lora::Lora;
use super::random::Random;
use super::shape::{ADAPTERS, END_IDS, Shape};

/// One model of every family, and the one that examples use.
pub(crate) const FILES: [&str; 6] = [
    "tests/data/llama-rope-scaled.gguf",
    "tests/data/llama-window.gguf",
    "tests/data/qwen2.gguf",
    "tests/data/qwen3.gguf",
    "tests/data/gemma3.gguf",
    "models/ictus-tiny.gguf",
];

/// The longest text of a simulated engine.
pub(crate) const CONTEXT_MAX: usize = 64;

/// Texts that the oracle remembers.
const REMEMBERED_MAX: usize = 50_000;

/// Tokens, and the adapter that they are computed with.
type Text = (Vec<u32>, Option<usize>);

/// A model file, opened.
pub(crate) struct Tiny {
    checkpoint: Checkpoint,
    pub(crate) vocab: u32,
    /// Layers x heads x width of a head: numbers that a token has as keys, and again as values.
    pub(crate) vectors: usize,
    pub(crate) head_dim: usize,
    oracle: RefCell<ModelRuntime<CpuBackend>>,
    remembered: RefCell<HashMap<Text, Rc<[f32]>>>,
    adapters: Vec<(PathBuf, LoadedAdapter)>,
    /// The files of the adapters lie there.
    _folder: tempfile::TempDir,
}

impl std::fmt::Debug for Tiny {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.checkpoint.config().architecture)
    }
}

thread_local! {
    static OPENED: RefCell<HashMap<usize, Rc<Tiny>>> = RefCell::new(HashMap::new());
}

impl Tiny {
    /// The model with this number, opened once per thread.
    pub(crate) fn get(number: usize) -> Rc<Self> {
        OPENED
            .with(|opened| Rc::clone(opened.borrow_mut().entry(number).or_insert_with(|| Rc::new(Self::open(number)))))
    }

    fn open(number: usize) -> Self {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(FILES[number]);
        let checkpoint = Checkpoint::open(path).expect("the model is committed");
        let config = checkpoint.config();
        let (vocab, vectors, head_dim) = (config.vocab as u32, config.layers * config.n_kv_heads, config.head_dim);
        let options = PagedOptions {
            kv_type: KvType::F32,
            page_size_tokens: CONTEXT_MAX,
            pool_pages: 1,
            context_tokens: CONTEXT_MAX,
            max_lanes: 1,
            prefill_step_tokens: CONTEXT_MAX as u32,
            pass_rows: CONTEXT_MAX,
            cache_resident_tokens: 0,
            cache_exported_tokens: 0,
        };
        let oracle = ModelRuntime::new(CpuBackend::new(1), config, &checkpoint, &options, PagedIdentity::default());
        let mut oracle = oracle.expect("the model loads");
        let folder = tempfile::tempdir().expect("a folder");
        let adapter = |name: usize| {
            let mut random = Random::from_key(name as u64);
            let lora = Lora::random(&mut random, config, 2 + name, &[0, 1, 2, 3, 4, 5, 6]);
            let path = lora.write_peft(&folder.path().join(name.to_string()));
            let loaded = oracle.adapter_load(&path).expect("the adapter fits");
            (path, loaded)
        };
        let adapters = (0..ADAPTERS).map(adapter).collect();
        Self {
            vocab,
            vectors,
            head_dim,
            oracle: RefCell::new(oracle),
            remembered: RefCell::new(HashMap::new()),
            adapters,
            _folder: folder,
            checkpoint,
        }
    }

    /// A runtime as the shape says.
    pub(crate) fn runtime(&self, shape: &Shape) -> ModelRuntime<CpuBackend> {
        let options = PagedOptions {
            kv_type: KvType::F32,
            page_size_tokens: shape.page,
            pool_pages: shape.cells as usize / shape.page,
            context_tokens: shape.context,
            max_lanes: shape.batch as u32,
            prefill_step_tokens: shape.prefill_step as u32,
            pass_rows: 0,
            cache_resident_tokens: shape.resident,
            cache_exported_tokens: shape.exported,
        };
        let identity = PagedIdentity { end_ids: END_IDS.to_vec(), ..PagedIdentity::default() };
        let backend = CpuBackend::new(shape.threads);
        ModelRuntime::new(backend, self.checkpoint.config(), &self.checkpoint, &options, identity)
            .expect("the model loads")
    }

    pub(crate) fn adapter_path(&self, name: usize) -> String {
        self.adapters[name].0.to_str().expect("a readable path").to_owned()
    }

    pub(crate) fn adapter_digest(&self, name: usize) -> [u8; 32] {
        self.adapters[name].1.digest
    }

    /// The row of logits after a text, with one of the adapters or none.
    pub(crate) fn row_after(&self, tokens: &[u32], adapter: Option<usize>) -> Vec<f32> {
        let text = (tokens.to_vec(), adapter);
        if let Some(row) = self.remembered.borrow().get(&text) {
            return row.to_vec();
        }
        let mut oracle = self.oracle.borrow_mut();
        let sequence = oracle.seq_create().expect("nobody else has one");
        let adapted = oracle.seq_adapt(sequence, adapter.map_or(0, |name| self.adapters[name].1.handle));
        adapted.expect("it is loaded");
        let mut answers = Answers::new();
        let feed = Feed { sequence, input: Input::Tokens(tokens), want: Want::LastRow };
        oracle.step(&[feed], &mut answers).expect("the text fits");
        oracle.seq_free(sequence);
        let row = answers.row(0).expect("a row was wanted").to_vec();
        let mut remembered = self.remembered.borrow_mut();
        if remembered.len() >= REMEMBERED_MAX {
            remembered.clear();
        }
        remembered.insert(text, row.as_slice().into());
        row
    }
}
