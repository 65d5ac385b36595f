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

mod adapt;
mod ahead;
mod plan;
mod step;
mod transfer;
mod vocabulary;
mod weights;
mod whole;

pub use plan::{MemoryPlan, PagedOptions};
pub use vocabulary::LazyVocabulary;
pub use weights::SharedWeights;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use self::ahead::BegunSteps;
use self::step::Rows;
use self::transfer::Payload;
use super::adapters::Adapters;
use super::{
    AdapterLoadError, Answers, Descriptor, Feed, GraphCounts, LoadedAdapter, MemCounters, Runtime, RuntimeError,
    SamplingSupport, SeqGrowth, SeqHandle, SpaceInfo, Stage, StageError, StageOutput, Vocabulary, Workloads,
};
use crate::backend::{Arithmetic, Backend, BackendError, KvShape};
use crate::checkpoint::{Embedding, ModelConfig};
use crate::kv::{Growth, KvError, Sequences, SequencesShape};
use crate::model::{self, Adapter, ModelError, Network, TensorSource, Workspace};
use crate::record::constant::encoding;

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
    /// Identity of the weights. The descriptor's differs from it where the backend rounds activations.
    pub weights_identity: [u8; 32],
    /// Where it runs; informative.
    pub backend: String,
    /// Tokens that end a text (R-4).
    pub end_ids: Vec<u32>,
    /// What the checkpoint recommends for sampling.
    pub sampling_defaults: Option<super::SamplingDefaults>,
    /// The vocabulary, when it is listed (R-19).
    pub vocabulary: Option<LazyVocabulary>,
    /// How it embeds a text; none for a model that is not made for it, say one that ranks.
    pub embedding: Option<Embedding>,
}

/// A model on a backend, with paged sequences.
pub struct ModelRuntime<B: Backend> {
    descriptor: Descriptor,
    config: ModelConfig,
    end_ids: Vec<u32>,
    vocabulary: Option<LazyVocabulary>,
    plan: MemoryPlan,
    page_bytes: u64,
    backend: B,
    network: Arc<dyn Network<B>>,
    work: Workspace<B>,
    pages: B::Pages,
    sequences: Sequences,
    adapters: Adapters<Adapter<B>>,
    rows: Rows,
    begun: BegunSteps,
    transfer: Payload,
    /// Entries of block tables that a walk may name ([`Backend::make_room_for_tables`]).
    table_entries: usize,
    may_capture: bool,
    /// The backend failed in the middle of a step: sequences have cells that were never written.
    broken: bool,
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
        Self::sharing(backend, config, tensors, options, identity, &SharedWeights::default())
    }

    /// As [`ModelRuntime::new`], with the weights that other runtimes hold: they are loaded only where nobody does.
    ///
    /// # Errors
    /// As there.
    pub fn sharing(
        backend: B,
        config: &ModelConfig,
        tensors: &dyn TensorSource,
        options: &PagedOptions,
        identity: PagedIdentity,
        weights: &SharedWeights<B>,
    ) -> Result<Self, PagedError> {
        let plan = MemoryPlan::new(config, options, 0).ok_or(PagedError::PlanTooLarge)?;
        let kv = options.kv_shape(config);
        let sequences = Sequences::new(SequencesShape {
            pages: options.pool_pages,
            page_size_tokens: kv.page_size_tokens,
            sequence_tokens: options.context_tokens,
            sequences: 0,
        })?;
        backend.make_ready(model::widest_input(config))?;
        let network = weights.get(&backend, config, tensors)?;
        let work = Workspace::new(&backend, &options.workspace_shape(config))?;
        let pages = backend.pages(&kv)?;
        let table_entries = backend.make_room_for_tables(options.resolved_pass_rows(), options.longest_table())?;
        let participants = backend.participants();
        let mut end_ids = identity.end_ids.clone();
        end_ids.sort_unstable();
        Ok(Self {
            descriptor: describe(config, options, &kv, &identity, &backend),
            config: config.clone(),
            end_ids,
            vocabulary: identity.vocabulary,
            plan,
            page_bytes: kv.page_bytes().ok_or(PagedError::PlanTooLarge)?,
            backend,
            network,
            work,
            pages,
            sequences,
            adapters: Adapters::default(),
            rows: Rows::new(options.workspace_shape(config), participants)?,
            begun: BegunSteps::default(),
            transfer: Payload::new(kv),
            table_entries,
            may_capture: false,
            broken: false,
        })
    }

    /// What this runtime says of itself whatever model it loads; what a model and options decide is 0 or empty.
    pub fn describe_code() -> Descriptor {
        describe_code()
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

/// Marks the identity of weights that are multiplied with rounded activations. Any nonzero byte would do.
const FAST_MARK: u8 = 0xA8;

/// What the code says of itself whatever it loads; what a model and options decide is 0 or empty.
fn describe_code() -> Descriptor {
    Descriptor {
        runtime_id: "ictus-paged".to_owned(),
        runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
        weights_identity: [0; 32],
        architecture: String::new(),
        backend: String::new(),
        max_batch: 0,
        max_seqs: 0,
        max_seq_len: 0,
        vocab_size: 0,
        page_size_tokens: 0,
        cell_granule_tokens: 0,
        kv_bytes_per_token: 0,
        kv_bits: 0,
        activation_bits: 0,
        cells_total: 0,
        truncate_partial: true,
        copy_shares_cells: true,
        takeover_preferred: false,
        seed_min_tokens: 0,
        cache_resident_cells: 0,
        cache_exported_cells: 0,
        recurrent: false,
        export_encodings: vec![encoding::LOSSLESS, encoding::Q8, encoding::Q4],
        sampling: SamplingSupport { greedy: true, draws: true, shaping: true, logprobs: true },
        verify_rows: true,
        verify_batches: true,
        prefill_step_tokens: 0,
        sampling_defaults: None,
        spaces: vec![SpaceInfo::paged_kv()],
        workloads: Workloads { layers: 0, embedding: None, adapters: true },
    }
}

fn describe<B: Backend>(
    config: &ModelConfig,
    options: &PagedOptions,
    kv: &KvShape,
    identity: &PagedIdentity,
    backend: &B,
) -> Descriptor {
    let arithmetic = backend.arithmetic();
    let said = [Some(identity.backend.clone()), backend.remark()].into_iter().flatten().filter(|said| !said.is_empty());
    let page_size = kv.page_size_tokens as u64;
    let code = describe_code();
    Descriptor {
        weights_identity: identity_with(arithmetic, identity.weights_identity),
        architecture: config.architecture.clone(),
        backend: said.collect::<Vec<String>>().join(", "),
        max_batch: options.max_lanes,
        cache_resident_cells: options.cache_resident_tokens,
        cache_exported_cells: options.cache_exported_tokens,
        max_seq_len: options.context_tokens as u64,
        vocab_size: config.vocab as u32,
        page_size_tokens: page_size as u32,
        cell_granule_tokens: page_size as u32,
        kv_bytes_per_token: kv.page_bytes().unwrap_or(0) / page_size,
        kv_bits: 8 * options.kv_type.bytes() as u32,
        activation_bits: arithmetic.activation_bits(),
        cells_total: options.pool_pages as u64 * page_size,
        prefill_step_tokens: options.prefill_step_tokens,
        sampling_defaults: identity.sampling_defaults,
        workloads: Workloads { layers: config.layers as u32, embedding: identity.embedding, ..code.workloads },
        ..code
    }
}

/// The identity of weights under an arithmetic, so that state computed by one is never taken for the other's: not by an envelope, not by
/// the bytes between two stages. Exact arithmetic is that of the weights themselves.
fn identity_with(arithmetic: Arithmetic, weights: [u8; 32]) -> [u8; 32] {
    match arithmetic {
        Arithmetic::Exact => weights,
        Arithmetic::Fast => weights.map(|byte| byte ^ FAST_MARK),
    }
}

impl From<KvError> for RuntimeError {
    fn from(error: KvError) -> Self {
        match error {
            KvError::UnknownSequence { .. } => Self::UnknownSeq,
            KvError::TooLong { .. } | KvError::PastEnd { .. } | KvError::Hole { .. } | KvError::CutsPage => {
                Self::OutOfBoundary
            }
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
        self.release(sequence);
    }

    fn seq_len(&self, sequence: SeqHandle) -> u64 {
        self.sequences.table(sequence).map_or(0, |table| table.len() as u64)
    }

    fn cells_released(&self, sequences: &[SeqHandle]) -> u64 {
        self.cells(self.sequences.pages_released(sequences))
    }

    fn seq_rest(&mut self, sequence: SeqHandle) {
        self.sequences.rest(sequence);
    }

    fn cells_resting(&self) -> Option<u64> {
        Some(self.cells(self.sequences.pool().pages_resting()))
    }

    fn cells_to_grow(&self, growths: &[SeqGrowth], leaving: &[SeqHandle]) -> u64 {
        let tokens = |count: u64| usize::try_from(count).unwrap_or(usize::MAX / 2);
        let growths: Vec<(usize, Growth)> = growths
            .iter()
            .map(|growth| (tokens(growth.keep), Growth { handle: growth.sequence, tokens: tokens(growth.tokens) }))
            .collect();
        self.cells(self.sequences.pages_to_regrow(&growths, leaving))
    }

    fn seq_copy(&mut self, source: SeqHandle, target: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        let (carried, inherited) = (self.sequences.mark(target), self.sequences.mark(source));
        self.sequences.share(source, target, len)?;
        self.adapters.pass_on(0, inherited);
        self.adapters.pass_on(carried, 0);
        Ok(())
    }

    fn seq_truncate(&mut self, sequence: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        Ok(self.sequences.truncate(sequence, len)?)
    }

    fn payload_token_bytes(&self, encoding: u8) -> Option<u64> {
        self.transfer.token_bytes(encoding)
    }

    fn export_bytes(&self, sequence: SeqHandle, tokens: Range<u64>, encoding: u8) -> Result<u64, RuntimeError> {
        self.size_export(sequence, tokens, encoding)
    }

    fn export_part(
        &mut self,
        sequence: SeqHandle,
        tokens: Range<u64>,
        encoding: u8,
        out: &mut [u8],
    ) -> Result<(), RuntimeError> {
        self.export_tokens(sequence, tokens, encoding, out)
    }

    fn import_begin(&mut self, sequence: SeqHandle, tokens: Range<u64>) -> Result<(), RuntimeError> {
        self.begin_import(sequence, tokens)
    }

    fn import_part(
        &mut self,
        sequence: SeqHandle,
        tokens: Range<u64>,
        encoding: u8,
        bytes: &[u8],
    ) -> Result<(), RuntimeError> {
        self.import_tokens(sequence, tokens, encoding, bytes)
    }

    fn import_end(&mut self, sequence: SeqHandle, _: Range<u64>) -> Result<u64, RuntimeError> {
        Ok(self.sequences.table(sequence)?.len() as u64)
    }

    fn range_release(&mut self, sequence: SeqHandle, tokens: Range<u64>) -> Result<(), RuntimeError> {
        Ok(self.sequences.punch(sequence, tokens)?)
    }

    fn page_copies(&self, sequence: SeqHandle) -> u64 {
        self.sequences.page_copies(sequence)
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
        if self.broken || !self.begun.is_empty() {
            return Err(RuntimeError::Fatal);
        }
        self.check(feeds)?;
        self.grow(feeds)?;
        let walked = self.walk(feeds, answers).and_then(|()| self.healthy());
        self.broken = walked.is_err();
        walked
    }

    fn steps_ahead(&self) -> bool {
        self.backend.picks_ahead()
    }

    fn step_begin(&mut self, feeds: &[Feed<'_>]) -> Result<(), RuntimeError> {
        self.begin_step(feeds)
    }

    fn step_end(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        self.end_step(feeds, answers)
    }

    fn allow_capture(&mut self, is_allowed: bool) {
        self.may_capture = is_allowed;
    }

    fn take_graph_counts(&mut self) -> GraphCounts {
        self.backend.take_graph_counts()
    }

    fn vocabulary(&self) -> Option<&Vocabulary> {
        self.vocabulary.as_ref().map(LazyVocabulary::get)
    }

    fn lists_vocabulary(&self) -> bool {
        self.vocabulary.is_some()
    }

    fn exempt_ids(&self) -> Vec<u32> {
        self.vocabulary.as_ref().map_or_else(Vec::new, |vocabulary| vocabulary.exempt_ids().to_vec())
    }

    fn adapter_load(&mut self, path: &Path) -> Result<LoadedAdapter, AdapterLoadError> {
        self.load_adapter(path)
    }

    fn adapter_unload(&mut self, adapter: u64) -> bool {
        self.adapters.unload(adapter)
    }

    fn adapter_bytes(&self) -> u64 {
        self.adapters.weights().map(Adapter::bytes).sum::<u64>() + self.work.adapter_bytes()
    }

    fn adapters(&self) -> Vec<LoadedAdapter> {
        self.adapters.list()
    }

    fn adapter_digest(&self, adapter: u64) -> Option<[u8; 32]> {
        self.adapters.digest(adapter)
    }

    fn seq_adapt(&mut self, sequence: SeqHandle, adapter: u64) -> Result<(), RuntimeError> {
        self.adapt_sequence(sequence, adapter)
    }

    fn seq_adapter(&self, sequence: SeqHandle) -> u64 {
        self.sequences.mark(sequence)
    }

    fn embed(&mut self, tokens: &[u32], adapter: u64) -> Result<Vec<f32>, RuntimeError> {
        self.embed_text(tokens, adapter)
    }

    fn forward_stage(&mut self, stage: &Stage<'_>) -> Result<StageOutput, StageError> {
        self.run_stage(stage)
    }
}

impl<B: Backend> ModelRuntime<B> {
    fn release(&mut self, sequence: SeqHandle) {
        let carried = self.sequences.mark(sequence);
        if self.sequences.free(sequence) {
            self.adapters.pass_on(carried, 0);
        }
    }

    /// Refuses what a backend computed that must be discarded.
    fn healthy(&self) -> Result<(), RuntimeError> {
        self.backend.health().map_err(|_| RuntimeError::Fatal)
    }

    fn cells(&self, pages: usize) -> u64 {
        pages as u64 * u64::from(self.descriptor.cell_granule_tokens)
    }
}
