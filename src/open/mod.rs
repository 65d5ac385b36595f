#![forbid(unsafe_code)]
//! A model file becomes an engine.
//!
//! ```text
//! path -> Checkpoint (mapped, checked) -> Tokenizer, ChatTemplate -> Model -> engine(): pool, activations -> dyn Engine
//! ```
//! A [`Model`] is immutable and shared: each engine made from it has its own pages, lanes and threads. The weights are laid out for the
//! first engine, and all that live at the same time compute with them.
//!
//! # Limits
//! [`Model::plan`] says the bytes before anything is allocated; [`ModelOptions`] bounds them.
//!
//! # Not here
//! What an engine does with a plan: `executor`. Reading files: `checkpoint`.

mod draft;
mod error;
mod options;
mod place;
pub mod sizing;
mod worker;

pub use crate::backend::cpu::{HostThreads, InstructionSet};
pub use crate::backend::{Arithmetic, KvType};
pub use crate::runtime::MemoryPlan;
pub use error::Error;
pub use options::{Device, ModelOptions, OptionsError};
pub use worker::WorkerOptions;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::draft::DraftFiles;
use self::options::Resolved;
use self::place::{Devices, Place};
use crate::backend::Backend;
use crate::backend::cpu::CpuBackend;
#[cfg(feature = "cuda")]
use crate::backend::cuda::{CudaBackend, CudaGroup};
use crate::chat::{ChatError, ChatTemplate};
use crate::checkpoint::{Checkpoint, ModelConfig, SamplingDefaults};
use crate::engine::Engine;
use crate::executor::{DraftModel, Executor, ExecutorOptions, capability_without_model};
use crate::facade::{Core, CoreBounds, CoreOptions};
use crate::grammar::SharedCompiler;

use crate::runtime::{LazyVocabulary, ModelRuntime, PagedIdentity, PagedOptions, SharedWeights, Vocabulary};
use crate::speculate::Drafter;
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
    /// The file, wherever the host goes meanwhile.
    #[cfg_attr(not(feature = "worker"), expect(dead_code, reason = "a worker alone opens it again"))]
    path: PathBuf,
    /// As the host chose them; a worker is told the same.
    asked: ModelOptions,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    options: Resolved,
    executor: ExecutorOptions,
    /// Where it runs, and the weights there; one for all engines.
    place: Place,
    /// One for all engines: they have the same words and limits.
    grammars: SharedCompiler,
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
        let devices = Devices::of(options);
        let place = Place::find(&devices)?;
        tell(0, 0)?;
        let checkpoint = Checkpoint::open(&path)?;
        devices.check(checkpoint.config())?;
        let resolved = options.resolve(checkpoint.config(), place::weights_bytes(&devices, &checkpoint))?;
        check_budget(&checkpoint, &resolved, options.memory_budget_bytes)?;
        let total_bytes = checkpoint.tensor_bytes();
        tell(0, total_bytes)?;
        let vocabulary = checkpoint.vocabulary().ok_or(Error::NoVocabulary)?;
        let tokenizer = Tokenizer::new(vocabulary)?;
        touch(&checkpoint, total_bytes, &mut tell)?;
        let executor = options.of_executor();
        let grammars = SharedCompiler::default();
        let path = std::path::absolute(&path).unwrap_or_else(|_| path.as_ref().to_owned());
        let asked = options.clone();
        let inner = Inner { path, asked, checkpoint, tokenizer, options: resolved, executor, place, grammars };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What an engine of this model will take, from the file's description alone: no weight is read and no pool allocated.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn plan(path: impl AsRef<Path>, options: &ModelOptions) -> Result<MemoryPlan, Error> {
        options.check()?;
        let devices = Devices::of(options);
        Place::find(&devices)?;
        let checkpoint = Checkpoint::open(path)?;
        devices.check(checkpoint.config())?;
        let resolved = options.resolve(checkpoint.config(), place::weights_bytes(&devices, &checkpoint))?;
        memory_plan(&checkpoint, &resolved)
    }

    /// What an engine of this model takes. Further ones take it less the weights, which all that live at the same time share.
    ///
    /// # Errors
    /// The sizes do not fit 64 bits.
    pub fn memory_plan(&self) -> Result<MemoryPlan, Error> {
        memory_plan(&self.inner.checkpoint, &self.inner.options)
    }

    /// [`Model::memory_plan`] by device, in the order of their numbers; one for the processor. Tables, which are the host's, are in the first.
    ///
    /// # Errors
    /// As there.
    pub fn device_plans(&self) -> Result<Vec<MemoryPlan>, Error> {
        let Inner { checkpoint, options, .. } = &*self.inner;
        place::plans(options, checkpoint, &paged_options(options)).ok_or(Error::PlanTooLarge)
    }

    /// A new engine: its own pool, lanes and threads, over the shared weights.
    ///
    /// # Errors
    /// Memory could not be had, or the backend does not take a tensor. Nothing is kept.
    pub fn engine(&self) -> Result<Box<dyn Engine + Send>, Error> {
        match &self.inner.place {
            Place::Cpu(weights) => self.engine_on(self.cpu_runtime(weights)?),
            #[cfg(feature = "cuda")]
            Place::Cuda(weights) => self.engine_on(self.cuda_runtime(weights)?),
            #[cfg(feature = "cuda")]
            Place::CudaGroup(weights) => self.engine_on(self.cuda_group_runtime(weights)?),
        }
    }

    fn engine_on<B: Backend>(&self, runtime: ModelRuntime<B>) -> Result<Box<dyn Engine + Send>, Error> {
        Ok(Box::new(self.executor_on(runtime, &CoreBounds::default())?))
    }

    fn executor_on<B: Backend>(
        &self,
        runtime: ModelRuntime<B>,
        bounds: &CoreBounds,
    ) -> Result<Executor<ModelRuntime<B>>, Error> {
        let executor = Executor::with_options(runtime, self.inner.executor.clone());
        let ledger = bounds.ledger(executor.limits(), self.static_bytes()?)?;
        let drafts = Box::new(DraftFiles::new(self.clone()));
        let executor = executor.with_ledger(ledger).with_draft_models(drafts);
        Ok(executor.with_grammar_compiler(self.inner.grammars.clone()))
    }

    /// What an engine takes beside its pool: weights, activations, tables.
    fn static_bytes(&self) -> Result<u64, Error> {
        let plan = self.memory_plan()?;
        Ok(plan.total_bytes().saturating_sub(plan.kv_pool_bytes))
    }

    /// A core of its own, over the shared weights: a [`ModelExecutor`](crate::facade::ModelExecutor) for a host that owns its scheduler,
    /// and a tick engine beside it for whoever asks. On the processor; [`Model::cuda_core`] is the one on a device.
    ///
    /// # Errors
    /// As [`Model::engine`], an option out of range, and `NoDevice` for a model that was opened on another device.
    pub fn core(&self, options: CoreOptions) -> Result<Core<ModelRuntime<CpuBackend>>, Error> {
        self.core_within(options, &CoreBounds::default())
    }

    /// As [`Model::core`], within bounds, and counted with other cores where they share an account. Weights that cores of one model share are
    /// counted in each.
    ///
    /// # Errors
    /// As [`Model::core`], and what is installed does not fit the bounds.
    pub fn core_within(
        &self,
        options: CoreOptions,
        bounds: &CoreBounds,
    ) -> Result<Core<ModelRuntime<CpuBackend>>, Error> {
        match &self.inner.place {
            Place::Cpu(weights) => self.core_on(self.cpu_runtime(weights)?, options, bounds),
            #[cfg(feature = "cuda")]
            Place::Cuda(_) | Place::CudaGroup(_) => {
                Err(place::no_device("the model was opened on a CUDA device").into())
            }
        }
    }

    /// As [`Model::core`], of a model that was opened on a CUDA device.
    ///
    /// # Errors
    /// As there.
    #[cfg(feature = "cuda")]
    pub fn cuda_core(&self, options: CoreOptions) -> Result<Core<ModelRuntime<CudaBackend>>, Error> {
        self.cuda_core_within(options, &CoreBounds::default())
    }

    /// As [`Model::core_within`], of a model that was opened on a CUDA device.
    ///
    /// # Errors
    /// As there.
    #[cfg(feature = "cuda")]
    pub fn cuda_core_within(
        &self,
        options: CoreOptions,
        bounds: &CoreBounds,
    ) -> Result<Core<ModelRuntime<CudaBackend>>, Error> {
        match &self.inner.place {
            Place::Cuda(weights) => self.core_on(self.cuda_runtime(weights)?, options, bounds),
            _ => Err(place::no_device("the model was not opened on one CUDA device").into()),
        }
    }

    /// As [`Model::core`], of a model that was opened on several CUDA devices.
    ///
    /// # Errors
    /// As there.
    #[cfg(feature = "cuda")]
    pub fn cuda_group_core(&self, options: CoreOptions) -> Result<Core<ModelRuntime<CudaGroup>>, Error> {
        self.cuda_group_core_within(options, &CoreBounds::default())
    }

    /// As [`Model::core_within`], of a model that was opened on several CUDA devices. Bytes are those of all devices together.
    ///
    /// # Errors
    /// As there.
    #[cfg(feature = "cuda")]
    pub fn cuda_group_core_within(
        &self,
        options: CoreOptions,
        bounds: &CoreBounds,
    ) -> Result<Core<ModelRuntime<CudaGroup>>, Error> {
        match &self.inner.place {
            Place::CudaGroup(weights) => self.core_on(self.cuda_group_runtime(weights)?, options, bounds),
            _ => Err(place::no_device("the model was not opened on several CUDA devices").into()),
        }
    }

    fn core_on<B: Backend>(
        &self,
        runtime: ModelRuntime<B>,
        options: CoreOptions,
        bounds: &CoreBounds,
    ) -> Result<Core<ModelRuntime<B>>, Error> {
        let static_bytes = self.static_bytes()?;
        Ok(Core::new(self.executor_on(runtime, bounds)?, CoreOptions { static_bytes, ..options })?)
    }

    /// Where its engines run.
    pub fn device(&self) -> Device {
        self.inner.options.devices.kind
    }

    /// Numbers of the CUDA devices that its engines run on; none for the processor.
    pub fn device_indices(&self) -> &[u32] {
        &self.inner.options.devices.indices
    }

    /// A drafter over a runtime of its own; `reserved_bytes` is what it takes.
    fn as_drafter(&self, reserved_bytes: u64) -> Result<Box<dyn Drafter>, Error> {
        match &self.inner.place {
            Place::Cpu(weights) => Ok(Box::new(DraftModel::new(self.cpu_runtime(weights)?, reserved_bytes))),
            #[cfg(feature = "cuda")]
            Place::Cuda(weights) => Ok(Box::new(DraftModel::new(self.cuda_runtime(weights)?, reserved_bytes))),
            #[cfg(feature = "cuda")]
            Place::CudaGroup(weights) => {
                Ok(Box::new(DraftModel::new(self.cuda_group_runtime(weights)?, reserved_bytes)))
            }
        }
    }

    /// What engines of this build can do, whatever model they run: the part of the capability descriptor that no model decides, as JSON
    /// (R-91).
    pub fn capability_without_model() -> String {
        capability_without_model(&ModelRuntime::<CpuBackend>::describe_code())
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

/// A model stands for its tokenizer wherever one is shared.
impl AsRef<Tokenizer> for Model {
    fn as_ref(&self) -> &Tokenizer {
        self.tokenizer()
    }
}

impl Model {
    /// A runtime on the processor: its own pool and threads, over the shared weights.
    fn cpu_runtime(&self, weights: &SharedWeights<CpuBackend>) -> Result<ModelRuntime<CpuBackend>, Error> {
        let Resolved { threads, host_threads, arithmetic, devices, .. } = &self.inner.options;
        let backend = match host_threads {
            Some(host) => CpuBackend::on_host_threads(*threads, host.clone()),
            None => CpuBackend::new(*threads),
        };
        let set = devices.instruction_set();
        let backend = backend.on_instruction_set(set)?.with_arithmetic(*arithmetic);
        self.runtime_on(backend, format!("cpu {}", set.name()), weights)
    }

    /// A runtime on the device: its own pool and stream, over the shared weights.
    #[cfg(feature = "cuda")]
    fn cuda_runtime(&self, weights: &SharedWeights<CudaBackend>) -> Result<ModelRuntime<CudaBackend>, Error> {
        let backend = CudaBackend::new(self.device_indices().first().copied().unwrap_or(0))?;
        let backend = backend.with_arithmetic(self.inner.options.arithmetic);
        let name = place::name_of(core::iter::once(backend.info()));
        self.runtime_on(backend, name, weights)
    }

    /// A runtime on several devices: its own pool and streams, over the shared weights.
    #[cfg(feature = "cuda")]
    fn cuda_group_runtime(&self, weights: &SharedWeights<CudaGroup>) -> Result<ModelRuntime<CudaGroup>, Error> {
        let backend = CudaGroup::new(self.device_indices())?.with_arithmetic(self.inner.options.arithmetic);
        let name = place::name_of(backend.infos());
        self.runtime_on(backend, name, weights)
    }

    fn runtime_on<B: Backend>(
        &self,
        backend: B,
        name: String,
        weights: &SharedWeights<B>,
    ) -> Result<ModelRuntime<B>, Error> {
        let inner = &*self.inner;
        let identity = PagedIdentity {
            weights_identity: inner.checkpoint.weights_identity(),
            backend: name,
            end_ids: inner.tokenizer.end_ids().collect(),
            sampling_defaults: inner.checkpoint.sampling_defaults(),
            vocabulary: Some(lazy_vocabulary(self)),
            embedding: inner.checkpoint.embedding(),
        };
        let (options, checkpoint) = (paged_options(&inner.options), &inner.checkpoint);
        let runtime = ModelRuntime::sharing(backend, checkpoint.config(), checkpoint, &options, identity, weights)?;
        // All that is needed of the file has been copied.
        checkpoint.release();
        Ok(runtime)
    }
}

/// Refuses a plan that exceeds the budget, if there is one.
fn check_budget(checkpoint: &Checkpoint, resolved: &Resolved, budget_bytes: u64) -> Result<(), Error> {
    let needed_bytes = memory_plan(checkpoint, resolved)?.total_bytes();
    match budget_bytes {
        0 => Ok(()),
        budget_bytes if needed_bytes <= budget_bytes => Ok(()),
        budget_bytes => Err(Error::OverBudget { needed_bytes, budget_bytes }),
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
        cache_resident_tokens: resolved.cache_resident_tokens,
        cache_exported_tokens: resolved.cache_exported_tokens,
    }
}

/// The plans of all devices together.
fn memory_plan(checkpoint: &Checkpoint, resolved: &Resolved) -> Result<MemoryPlan, Error> {
    let plans = place::plans(resolved, checkpoint, &paged_options(resolved));
    let sum = plans.and_then(|plans| plans.into_iter().map(Some).reduce(|sum, plan| sum?.with(&plan?)).flatten());
    sum.ok_or(Error::PlanTooLarge)
}

/// Has the weights in memory, so that a slow disk shows its progress here and not in the first tick.
fn touch(
    checkpoint: &Checkpoint,
    total_bytes: u64,
    tell: &mut dyn FnMut(u64, u64) -> Result<(), Error>,
) -> Result<(), Error> {
    const TELL_EVERY_BYTES: usize = 16 << 20;
    let mut done_bytes = 0;
    for (_, tensor) in checkpoint.tensors() {
        let len = tensor.data.len();
        for start in (0..len).step_by(TELL_EVERY_BYTES) {
            let part = start..len.min(start + TELL_EVERY_BYTES);
            done_bytes += part.len() as u64;
            tensor.data.fetch(part);
            tell(done_bytes, total_bytes)?;
        }
    }
    Ok(())
}

/// The vocabulary of a model, listed when a grammar asks for it.
fn lazy_vocabulary(model: &Model) -> LazyVocabulary {
    let tokenizer = &model.inner.tokenizer;
    let exempt_ids = tokenizer.control_tokens().map(|(id, _)| id).chain(tokenizer.end_ids()).collect();
    let model = model.clone();
    LazyVocabulary::new(exempt_ids, move || vocabulary(model.tokenizer()))
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
