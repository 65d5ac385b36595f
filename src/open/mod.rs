#![forbid(unsafe_code)]
//! A model file becomes an engine.
//!
//! ```text
//! path -> Checkpoint (mapped, checked) -> Tokenizer, ChatTemplate -> Model -> engine(): pool, activations -> dyn Engine
//! ```
//! A [`Model`] is immutable and shared: each engine made from it has its own pages, lanes and threads, and reads the same mapped
//! weights.
//!
//! # Limits
//! [`Model::plan`] says the bytes before anything is allocated; [`ModelOptions`] bounds them.
//!
//! # Not here
//! What an engine does with a plan: `executor`. Reading files: `checkpoint`.

mod error;
mod options;

pub use crate::runtime::MemoryPlan;
pub use error::Error;
pub use options::{Device, ModelOptions, OptionsError};

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use self::options::Resolved;
use crate::backend::BackendError;
use crate::backend::cpu::CpuBackend;
use crate::chat::{ChatError, ChatTemplate};
use crate::checkpoint::{Checkpoint, ModelConfig, SamplingDefaults};
use crate::engine::Engine;
use crate::executor::Executor;

use crate::runtime::{ModelRuntime, PagedIdentity, PagedOptions, Vocabulary};
use crate::tokenizer::Tokenizer;

/// How far opening has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the model that are ready.
    pub done_bytes: u64,
    /// All bytes; 0 while the files have not been read.
    pub total_bytes: u64,
}

impl Progress {
    /// Between 0 and 1.
    pub fn fraction(&self) -> f64 {
        if self.total_bytes == 0 { 0.0 } else { self.done_bytes as f64 / self.total_bytes as f64 }
    }
}

/// Told how far opening has come; breaking off ends it with [`Error::Cancelled`].
pub type OnProgress<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// An opened model: weights, tokenizer, templates. Cheap to clone; clones share everything.
#[derive(Clone, Debug)]
pub struct Model {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    options: Resolved,
}

impl Model {
    /// Opens a GGUF file or a Hugging Face directory.
    ///
    /// # Errors
    /// An [`Error`] of the layer that refused, with the place in it. Nothing is kept.
    pub fn open(path: impl AsRef<Path>, options: &ModelOptions) -> Result<Self, Error> {
        Self::open_with_progress(path, options, &mut |_| ControlFlow::Continue(()))
    }

    /// As [`Model::open`], telling how far it has come and stopping when told to.
    ///
    /// # Errors
    /// As there, and [`Error::Cancelled`].
    pub fn open_with_progress(
        path: impl AsRef<Path>,
        options: &ModelOptions,
        on_progress: OnProgress<'_>,
    ) -> Result<Self, Error> {
        let mut tell = |done_bytes, total_bytes| match on_progress(Progress { done_bytes, total_bytes }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Cancelled),
        };
        options.check()?;
        check_device(options.device)?;
        tell(0, 0)?;
        let checkpoint = Checkpoint::open(path)?;
        let resolved = options.resolve(checkpoint.config().context_tokens)?;
        let total_bytes = checkpoint.tensor_bytes();
        tell(0, total_bytes)?;
        let vocabulary = checkpoint.vocabulary().ok_or(Error::NoVocabulary)?;
        let tokenizer = Tokenizer::new(vocabulary)?;
        touch(&checkpoint, total_bytes, &mut tell)?;
        let inner = Inner { checkpoint, tokenizer, options: resolved };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What an engine of this model will take, from the file's description alone: no weight is read and no pool allocated.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn plan(path: impl AsRef<Path>, options: &ModelOptions) -> Result<MemoryPlan, Error> {
        options.check()?;
        check_device(options.device)?;
        let checkpoint = Checkpoint::open(path)?;
        let resolved = options.resolve(checkpoint.config().context_tokens)?;
        memory_plan(&checkpoint, &resolved)
    }

    /// What each engine of this model takes; the weights are shared between them.
    ///
    /// # Errors
    /// The sizes do not fit 64 bits.
    pub fn memory_plan(&self) -> Result<MemoryPlan, Error> {
        memory_plan(&self.inner.checkpoint, &self.inner.options)
    }

    /// A new engine: its own pool, lanes and threads, over the shared weights.
    ///
    /// # Errors
    /// Memory could not be had, or the backend does not take a tensor. Nothing is kept.
    pub fn engine(&self) -> Result<Box<dyn Engine + Send>, Error> {
        let inner = &*self.inner;
        let backend = CpuBackend::new(inner.options.threads);
        let identity = PagedIdentity {
            weights_identity: inner.checkpoint.weights_identity(),
            backend: "cpu".to_owned(),
            end_ids: inner.tokenizer.end_ids().collect(),
            sampling_defaults: inner.checkpoint.sampling_defaults(),
            vocabulary: Some(vocabulary(&inner.tokenizer)),
        };
        let options = paged_options(&inner.options);
        let runtime = ModelRuntime::new(backend, inner.checkpoint.config(), &inner.checkpoint, &options, identity)?;
        Ok(Box::new(Executor::new(runtime)))
    }

    /// The tokenizer of the model.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.inner.tokenizer
    }

    /// The chat template, compiled; none when the model has none.
    ///
    /// # Errors
    /// The template is not Jinja; everything else of the model works.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>, ChatError> {
        let source = self.inner.checkpoint.chat_template();
        source.map(|source| ChatTemplate::for_model(source, &self.inner.tokenizer)).transpose()
    }

    /// The numbers of the architecture.
    pub fn config(&self) -> &ModelConfig {
        self.inner.checkpoint.config()
    }

    /// The model's name in its file.
    pub fn name(&self) -> &str {
        self.inner.checkpoint.name()
    }

    /// Longest sequence an engine of this model takes, in tokens.
    pub fn context_tokens(&self) -> usize {
        self.inner.options.context_tokens
    }

    /// What the checkpoint recommends for sampling; never applied unasked.
    pub fn sampling_defaults(&self) -> Option<SamplingDefaults> {
        self.inner.checkpoint.sampling_defaults()
    }
}

fn check_device(device: Device) -> Result<(), Error> {
    match device {
        Device::Cpu => Ok(()),
        Device::Cuda => {
            let reason = "this build has no CUDA backend".to_owned();
            Err(Error::Backend(BackendError::NoDevice { reason }))
        }
    }
}

fn paged_options(resolved: &Resolved) -> PagedOptions {
    PagedOptions {
        kv_type: resolved.kv_type,
        page_size_tokens: resolved.page_size_tokens,
        pool_pages: resolved.pool_pages,
        context_tokens: resolved.context_tokens,
        max_lanes: resolved.max_lanes,
        prefill_step_tokens: resolved.prefill_step_tokens,
        pass_rows: 0,
    }
}

fn memory_plan(checkpoint: &Checkpoint, resolved: &Resolved) -> Result<MemoryPlan, Error> {
    MemoryPlan::new(checkpoint.config(), &paged_options(resolved), checkpoint.tensor_bytes()).ok_or(Error::PlanTooLarge)
}

/// Reads one byte of every memory page of the weights, so that a slow disk shows its progress here and not in the first tick.
fn touch(
    checkpoint: &Checkpoint,
    total_bytes: u64,
    tell: &mut dyn FnMut(u64, u64) -> Result<(), Error>,
) -> Result<(), Error> {
    const MEMORY_PAGE_BYTES: usize = 4096;
    const TELL_EVERY_BYTES: usize = 16 << 20;
    let mut done_bytes = 0;
    for (_, tensor) in checkpoint.tensors() {
        for part in tensor.data.as_slice().chunks(TELL_EVERY_BYTES) {
            let sum = part.iter().step_by(MEMORY_PAGE_BYTES).fold(0u8, |sum, &byte| sum ^ byte);
            std::hint::black_box(sum);
            done_bytes += part.len() as u64;
            tell(done_bytes, total_bytes)?;
        }
    }
    Ok(())
}

/// The vocabulary as a runtime lists it: control tokens begin with a byte that no text has (R-19).
fn vocabulary(tokenizer: &Tokenizer) -> Vocabulary {
    let token = |id: u32| {
        let bytes = tokenizer.token_bytes(id).unwrap_or_default();
        if tokenizer.is_control(id) { [b"\xff", bytes].concat().into() } else { bytes.into() }
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Vocabulary {
        tokens: (0..tokenizer.vocab_size() as u32).map(token).collect(),
        special: tokenizer.control_tokens().map(|(id, bytes)| (text(bytes), id)).collect(),
        end_ids: tokenizer.end_ids().collect(),
    }
}
