//! Models as tests drive them: open a file, feed tokens, get rows.

use std::path::{Path, PathBuf};

use ictus::backend::cpu::CpuBackend;
use ictus::backend::{Arithmetic, Backend, KvType};
use ictus::checkpoint::Checkpoint;
use ictus::runtime::{
    Answer, Answers, Feed, Input, ModelRuntime, PagedIdentity, PagedOptions, Runtime, SeqHandle, Want,
};
use ictus::sample::SampleRequest;

/// A file of the project; an absolute path stays what it is.
pub(crate) fn file(name: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Options for one or a few sequences of up to `tokens` tokens.
pub(crate) fn options(kv_type: KvType, tokens: usize) -> PagedOptions {
    PagedOptions {
        kv_type,
        page_size_tokens: 16,
        pool_pages: 4 * tokens.div_ceil(16),
        context_tokens: tokens,
        max_lanes: 8,
        prefill_step_tokens: 512,
        pass_rows: 0,
        cache_resident_tokens: 0,
        cache_exported_tokens: 0,
    }
}

/// The processor with rounded activations.
pub(crate) fn fast(threads: usize) -> CpuBackend {
    CpuBackend::new(threads).with_arithmetic(Arithmetic::Fast)
}

/// The processor in each of its arithmetics, with so many threads.
pub(crate) const PROCESSORS: [fn(usize) -> CpuBackend; 2] = [CpuBackend::new, fast];

/// A runtime over the checkpoint.
pub(crate) fn runtime<B: Backend>(backend: B, checkpoint: &Checkpoint, options: &PagedOptions) -> ModelRuntime<B> {
    let identity = PagedIdentity { embedding: checkpoint.embedding(), ..PagedIdentity::default() };
    ModelRuntime::new(backend, checkpoint.config(), checkpoint, options, identity).expect("the model loads")
}

/// Feeds tokens to one sequence and answers the row after the last one.
pub(crate) fn last_row(runtime: &mut impl Runtime, sequence: SeqHandle, tokens: &[u32]) -> Vec<f32> {
    let mut answers = Answers::new();
    let feed = Feed { sequence, input: Input::Tokens(tokens), want: Want::LastRow };
    runtime.step(&[feed], &mut answers).expect("the step runs");
    answers.row(0).expect("a row was wanted").to_vec()
}

/// The rows after some positions of one prompt, positions ascending.
pub(crate) fn rows_at(runtime: &mut impl Runtime, ids: &[u32], positions: &[usize]) -> Vec<Vec<f32>> {
    let sequence = runtime.seq_create().expect("a sequence");
    let mut from = 0;
    let mut rows = Vec::new();
    for &position in positions {
        rows.push(last_row(runtime, sequence, &ids[from..=position]));
        from = position + 1;
    }
    runtime.seq_free(sequence);
    rows
}

/// `count` tokens picked greedily after a prompt, one by one, each from its own step.
pub(crate) fn greedy(runtime: &mut impl Runtime, ids: &[u32], count: usize) -> Vec<u32> {
    let sequence = runtime.seq_create().expect("a sequence");
    let mut answers = Answers::new();
    let mut input = ids.to_vec();
    let mut picked = Vec::new();
    while picked.len() < count {
        let want = Want::Token(SampleRequest::default());
        let feed = Feed { sequence, input: Input::Tokens(&input), want };
        runtime.step(&[feed], &mut answers).expect("the step runs");
        let [Answer::Picked(pick)] = answers.as_slice() else { panic!("a token was wanted") };
        picked.push(pick.token);
        input = vec![pick.token];
    }
    runtime.seq_free(sequence);
    picked
}

/// The largest difference of two rows.
pub(crate) fn max_difference(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "rows of one vocabulary");
    a.iter()
        .zip(b)
        .map(|(&a, &b)| (f64::from(a) - b).abs())
        .fold(0.0, |most, d| if d > most || d.is_nan() { d } else { most })
}
