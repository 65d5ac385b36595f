#![forbid(unsafe_code)]
//! The model runtime: a network on a backend, with its sequences in a pool of pages.
//!
//! ```text
//! step(feeds) -> check all feeds -> take pages for all -> walk the rows, part by part -> answer
//!                (refuse, nothing    (refuse, nothing
//!                 moved)              moved)
//! ```
//! A step's rows are those of all feeds in feed order, prefill and decode mixed. They are walked through the layers in parts
//! of at most `pass_rows`; a feed may be cut between two parts. Logits are computed only for rows that somebody wants.
//!
//! # Invariants
//! - Where a part begins, which feeds share it and where pages lie changes no bit of a row: rows meet only in attention, which
//!   reads the sequence's own keys by absolute position.
//! - An error before the first part moved nothing. An error after it is `Fatal`, and so is every step from then on.
//!
//! # Limits
//! All memory that grows with the model or the step is allocated when the runtime is made ([`MemoryPlan`]). Sequences are bounded by
//! the pool and `context_tokens`.
//!
//! # Not here
//! Exporting and importing of sequences: `Unsupported`.

mod plan;
mod step;

pub use plan::{MemoryPlan, PagedOptions};

use self::step::Rows;
use super::{Answers, Descriptor, Feed, MemCounters, Runtime, RuntimeError, SamplingSupport, SeqHandle, Vocabulary};
use crate::backend::{Backend, BackendError, KvShape};
use crate::checkpoint::ModelConfig;
use crate::kv::{KvError, Sequences, SequencesShape};
use crate::model::{self, ModelError, Network, TensorSource, Workspace};
use crate::sample::Scratch;

/// Why a runtime could not be made. Nothing is kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PagedError {
    /// The weights do not fit the configuration or the backend.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The backend could not make the pool or the activations.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The page tables could not be made.
    #[error(transparent)]
    Tables(#[from] KvError),
    /// The sizes do not fit 64 bits.
    #[error("the plan does not fit 64 bits")]
    PlanTooLarge,
}

/// What a runtime says of itself that does not follow from its numbers.
#[derive(Clone, Debug, Default)]
pub struct PagedIdentity {
    /// Identity of the weights.
    pub weights_identity: [u8; 32],
    /// Where it runs; informative.
    pub backend: String,
    /// Tokens that end a text (R-4).
    pub end_ids: Vec<u32>,
    /// What the checkpoint recommends for sampling.
    pub sampling_defaults: Option<super::SamplingDefaults>,
    /// The vocabulary, when it is listed (R-19).
    pub vocabulary: Option<Vocabulary>,
}

/// A model on a backend, with paged sequences.
pub struct ModelRuntime<B: Backend> {
    descriptor: Descriptor,
    end_ids: Vec<u32>,
    vocabulary: Option<Vocabulary>,
    plan: MemoryPlan,
    page_bytes: u64,
    backend: B,
    network: Box<dyn Network<B>>,
    work: Workspace<B>,
    pages: B::Pages,
    sequences: Sequences,
    rows: Rows,
    /// The backend failed in the middle of a step: sequences have cells that were never written.
    broken: bool,
    /// One row of logits, which a token is picked from.
    row: Vec<f32>,
    scratch: Scratch,
}

impl<B: Backend> ModelRuntime<B> {
    /// Loads the weights and allocates everything that [`MemoryPlan`] says.
    ///
    /// # Errors
    /// A [`PagedError`]; nothing is kept.
    pub fn new(
        backend: B,
        config: &ModelConfig,
        tensors: &dyn TensorSource,
        options: &PagedOptions,
        identity: PagedIdentity,
    ) -> Result<Self, PagedError> {
        let plan = MemoryPlan::new(config, options, 0).ok_or(PagedError::PlanTooLarge)?;
        let kv = options.kv_shape(config);
        let sequences = Sequences::new(SequencesShape {
            pages: options.pool_pages,
            page_size_tokens: kv.page_size_tokens,
            sequence_tokens: options.context_tokens,
            sequences: 0,
        })?;
        let network = model::load(&backend, config, tensors)?;
        let work = Workspace::new(&backend, &options.workspace_shape(config))?;
        let pages = backend.pages(&kv)?;
        let mut row = Vec::new();
        let out_of_memory = |_| BackendError::OutOfMemory { bytes: size_of::<f32>() as u64 * config.vocab as u64 };
        row.try_reserve_exact(config.vocab).map_err(out_of_memory)?;
        row.resize(config.vocab, 0.0);
        let mut end_ids = identity.end_ids.clone();
        end_ids.sort_unstable();
        Ok(Self {
            descriptor: describe(config, options, &kv, &identity),
            end_ids,
            vocabulary: identity.vocabulary,
            plan,
            page_bytes: kv.page_bytes().ok_or(PagedError::PlanTooLarge)?,
            backend,
            network,
            work,
            pages,
            sequences,
            rows: Rows::new(options.workspace_shape(config)),
            broken: false,
            row,
            scratch: Scratch::new(),
        })
    }

    /// The bytes that were allocated, by what they are for; mapped weights are the caller's to count.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// The bookkeeping of pages and sequences.
    pub fn sequences(&self) -> &Sequences {
        &self.sequences
    }
}

fn describe(config: &ModelConfig, options: &PagedOptions, kv: &KvShape, identity: &PagedIdentity) -> Descriptor {
    let page_size = kv.page_size_tokens as u64;
    Descriptor {
        runtime_id: "ictus-paged".to_owned(),
        runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
        weights_identity: identity.weights_identity,
        architecture: config.architecture.clone(),
        backend: identity.backend.clone(),
        max_batch: options.max_lanes,
        max_seqs: 0,
        max_seq_len: options.context_tokens as u64,
        vocab_size: config.vocab as u32,
        page_size_tokens: page_size as u32,
        cell_granule_tokens: page_size as u32,
        kv_bytes_per_token: kv.page_bytes().unwrap_or(0) / page_size,
        kv_bits: 8 * options.kv_type.bytes() as u32,
        cells_total: options.pool_pages as u64 * page_size,
        truncate_partial: true,
        copy_shares_cells: true,
        takeover_preferred: false,
        seed_min_tokens: 0,
        cache_resident_cells: 0,
        cache_exported_cells: 0,
        recurrent: false,
        export_encodings: Vec::new(),
        sampling: SamplingSupport { greedy: true, draws: true, shaping: true, logprobs: true },
        verify_rows: true,
        verify_batches: true,
        prefill_step_tokens: options.prefill_step_tokens,
        sampling_defaults: identity.sampling_defaults,
    }
}

impl From<KvError> for RuntimeError {
    fn from(error: KvError) -> Self {
        match error {
            KvError::UnknownSequence { .. } => Self::UnknownSeq,
            KvError::TooLong { .. } | KvError::PastEnd { .. } => Self::OutOfBoundary,
            KvError::OutOfPages { .. } | KvError::OutOfSequences { .. } | KvError::OutOfMemory => Self::Capacity,
            KvError::Repeated { .. } => Self::Fault(crate::record::constant::fault::INTERNAL),
        }
    }
}

impl<B: Backend> Runtime for ModelRuntime<B> {
    fn describe(&self) -> &Descriptor {
        &self.descriptor
    }

    fn is_eos(&self, token: u32) -> bool {
        self.end_ids.binary_search(&token).is_ok()
    }

    fn seq_create(&mut self) -> Result<SeqHandle, RuntimeError> {
        Ok(self.sequences.create()?)
    }

    fn seq_free(&mut self, sequence: SeqHandle) {
        self.sequences.free(sequence);
    }

    fn seq_len(&self, sequence: SeqHandle) -> u64 {
        self.sequences.table(sequence).map_or(0, |table| table.len() as u64)
    }

    fn cells_released(&self, sequences: &[SeqHandle]) -> u64 {
        self.cells(self.sequences.pages_released(sequences))
    }

    fn seq_copy(&mut self, source: SeqHandle, target: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        Ok(self.sequences.share(source, target, len)?)
    }

    fn seq_truncate(&mut self, sequence: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        Ok(self.sequences.truncate(sequence, len)?)
    }

    fn seq_export(&mut self, _: SeqHandle, _: u64, _: u8) -> Result<Vec<u8>, RuntimeError> {
        Err(RuntimeError::Unsupported)
    }

    fn seq_import(&mut self, _: SeqHandle, _: &[u8]) -> Result<u64, RuntimeError> {
        Err(RuntimeError::Unsupported)
    }

    fn mem_counters(&self) -> MemCounters {
        let used = self.sequences.pool().pages_used();
        MemCounters {
            allocated_bytes: used as u64 * self.page_bytes,
            cells_used: self.cells(used),
            cells_total: self.descriptor.cells_total,
        }
    }

    fn step(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        answers.clear(self.descriptor.vocab_size as usize);
        if self.broken {
            return Err(RuntimeError::Fatal);
        }
        self.check(feeds)?;
        self.grow(feeds)?;
        let walked = self.walk(feeds, answers);
        self.broken = walked.is_err();
        walked
    }

    fn vocabulary(&self) -> Option<&Vocabulary> {
        self.vocabulary.as_ref()
    }
}

impl<B: Backend> ModelRuntime<B> {
    fn cells(&self, pages: usize) -> u64 {
        pages as u64 * u64::from(self.descriptor.cell_granule_tokens)
    }
}
