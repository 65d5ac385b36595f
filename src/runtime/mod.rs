#![forbid(unsafe_code)]
//! The runtime: sequences of model state, and steps that extend them.
//!
//! A runtime knows nothing of lanes, plans, caches or grammars. The executor drives it through [`Runtime`]; one [`step`](Runtime::step)
//! takes a batch of feeds, and each feed says what it wants back. Rule ids R-1 .. R-22.
//!
//! # Invariants
//! - The answer to a feed is a function of its sequence's tokens and of the feed alone: the other feeds, the chunking and
//!   the thread count never change a bit of it (schedule invariance).
//! - Sequence handles ascend, are never reused and never 0.

mod adapters;
mod answers;
mod descriptor;
mod fake;
mod paged;
mod stage;

pub use crate::backend::GraphCounts;
pub use crate::checkpoint::{Embedding, Pooling, SamplingDefaults};
pub use adapters::{AdapterLoadError, LoadedAdapter};
pub use answers::{Answer, Answers};
pub use descriptor::{Descriptor, SamplingSupport, SpaceInfo, Workloads};
pub use fake::{CopyModel, FakeOptions, FakeRuntime, RecordedFeed};
pub use paged::{LazyVocabulary, MemoryPlan, ModelRuntime, PagedError, PagedIdentity, PagedOptions, SharedWeights};
pub use stage::{Stage, StageError, StageOutput};

use std::path::Path;

use std::ops::Range;

use crate::record::Status;
use crate::record::constant::{encoding, fault};
use crate::sample::SampleRequest;

/// Most tokens of a feed that wants every row.
pub const ROWS_MAX: usize = 8;

/// Names a sequence of one runtime; 0 is none.
pub type SeqHandle = u64;

/// Why a primitive failed. In a step it becomes a lane fault (T-132), elsewhere a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// Not offered by this runtime. Nothing moved.
    #[error("not supported by this runtime")]
    Unsupported,
    /// No such sequence. Nothing moved.
    #[error("unknown sequence")]
    UnknownSeq,
    /// The state cannot be cut, copied or exported there. Nothing moved.
    #[error("the state cannot be cut there")]
    OutOfBoundary,
    /// The pool or the slots are exhausted. Nothing moved.
    #[error("out of capacity")]
    Capacity,
    /// The lanes of the call fail with this code (`FAULT_*`); the runtime goes on.
    #[error("fault {0}")]
    Fault(u32),
    /// The runtime is broken and must be discarded.
    #[error("the runtime is broken")]
    Fatal,
}

impl RuntimeError {
    /// The fault code of the lanes of a failed step; none when the whole tick is fatal (T-132).
    pub fn fault_code(self) -> Option<u32> {
        match self {
            Self::Fault(code) => Some(code),
            Self::Capacity => Some(fault::OOM_TENTATIVE),
            Self::Unsupported | Self::UnknownSeq | Self::OutOfBoundary => Some(fault::INTERNAL),
            Self::Fatal => None,
        }
    }
}

impl From<RuntimeError> for Status {
    /// The status outside a step.
    fn from(error: RuntimeError) -> Self {
        match error {
            RuntimeError::Unsupported => Status::Unsupported,
            RuntimeError::UnknownSeq => Status::UnknownHandle,
            RuntimeError::OutOfBoundary => Status::OutOfBoundary,
            RuntimeError::Capacity => Status::NeedsReplan,
            RuntimeError::Fault(_) | RuntimeError::Fatal => Status::Fatal,
        }
    }
}

/// What a feed appends to its sequence.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Token ids, at least one, each below the vocabulary size.
    Tokens(&'a [u32]),
    /// Encoded media from an offset on; a text runtime answers `Unsupported`.
    Media {
        /// The encoded media.
        handle: u64,
        /// First placeholder to feed.
        offset: u32,
    },
    /// One token, which nobody has seen yet: what feed number `feed` of the step that was begun before picks for the same sequence
    /// ([`Runtime::step_begin`]). In no other step.
    Picked {
        /// Number of the feed.
        feed: usize,
    },
}

/// What a feed wants back.
#[derive(Clone, Copy, Debug)]
pub enum Want<'a> {
    /// Nothing: the step only extends the state.
    Nothing,
    /// The logits row after its last token.
    LastRow,
    /// One row per fed token, at most [`ROWS_MAX`]; only where `verify_rows` is set.
    EveryRow,
    /// A token picked from the row after its last token; only where [`SamplingSupport::serves`] the request.
    Token(SampleRequest<'a>),
}

/// Tokens of one sequence in a step.
#[derive(Clone, Copy, Debug)]
pub struct Feed<'a> {
    /// The sequence; occurs once per step.
    pub sequence: SeqHandle,
    /// What to append.
    pub input: Input<'a>,
    /// What to answer.
    pub want: Want<'a>,
}

/// Memory of a runtime, now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemCounters {
    /// Bytes of model state held by sequences.
    pub allocated_bytes: u64,
    /// Cells held; a page counts as all its cells.
    pub cells_used: u64,
    /// Cells in the pool; 0 is unbounded.
    pub cells_total: u64,
}

/// How one sequence is to change: it keeps its first `keep` tokens and gets `tokens` more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeqGrowth {
    /// The sequence; occurs once in a list.
    pub sequence: SeqHandle,
    /// Tokens that it keeps, at most those it holds.
    pub keep: u64,
    /// Tokens that are appended then.
    pub tokens: u64,
}

/// The vocabulary as a runtime lists it.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    /// Bytes of each token; those of special tokens start with 0xFF, so that no text matches them.
    pub tokens: Vec<Box<[u8]>>,
    /// Text and id of the special tokens.
    pub special: Vec<(String, u32)>,
    /// The tokens that end a text; the first is the tokenizer's end token.
    pub end_ids: Vec<u32>,
}

/// Model primitives over sequences.
pub trait Runtime {
    /// What this runtime is and can do; constant.
    fn describe(&self) -> &Descriptor;

    /// Whether the token ends a text.
    fn is_eos(&self, token: u32) -> bool;

    /// A new empty sequence.
    ///
    /// # Errors
    /// `Capacity` when `max_seqs` exist.
    fn seq_create(&mut self) -> Result<SeqHandle, RuntimeError>;

    /// Releases a sequence; an unknown one is ignored.
    fn seq_free(&mut self, sequence: SeqHandle);

    /// Tokens a sequence holds; 0 for an unknown one.
    fn seq_len(&self, sequence: SeqHandle) -> u64;

    /// Cells that would become free if exactly these sequences were freed; one listed twice counts once.
    fn cells_released(&self, sequences: &[SeqHandle]) -> u64;

    /// Says that nobody works with a sequence until something changes it: it rests. Copying from it does not change it. An unknown one
    /// is ignored.
    fn seq_rest(&mut self, sequence: SeqHandle) {
        let _ = sequence;
    }

    /// Cells that only resting sequences hold: [`Runtime::cells_released`] of all of them, without a walk. None when the runtime does
    /// not count them.
    fn cells_resting(&self) -> Option<u64> {
        None
    }

    /// Cells that these sequences would take from the pool together, copies of partly filled shared pages among them.
    ///
    /// The sequences `leaving`, none of them among the growing ones, are gone by then. Never fewer than they would take; the default
    /// counts whole granules and knows nothing of sharing.
    fn cells_to_grow(&self, growths: &[SeqGrowth], leaving: &[SeqHandle]) -> u64 {
        let _ = leaving;
        let granule = u64::from(self.describe().cell_granule_tokens.max(1));
        let cells = |tokens: u64| tokens.div_ceil(granule).saturating_mul(granule);
        let grows = growths.iter().map(|growth| {
            let after = cells(growth.keep.saturating_add(growth.tokens));
            after.saturating_sub(cells(self.seq_len(growth.sequence)))
        });
        grows.fold(0, u64::saturating_add)
    }

    /// Makes `target` the first `len` tokens of `source`, replacing what it held.
    ///
    /// # Errors
    /// `UnknownSeq`, `OutOfBoundary`, `Capacity`; nothing moved.
    fn seq_copy(&mut self, source: SeqHandle, target: SeqHandle, len: u64) -> Result<(), RuntimeError>;

    /// Cuts a sequence to `len` tokens.
    ///
    /// # Errors
    /// `UnknownSeq`, `OutOfBoundary`; nothing moved.
    fn seq_truncate(&mut self, sequence: SeqHandle, len: u64) -> Result<(), RuntimeError>;

    /// The largest exportable length up to `cap`.
    fn seq_boundary(&self, sequence: SeqHandle, cap: u64) -> u64 {
        let len = self.seq_len(sequence);
        match (self.describe().truncate_partial, len <= cap) {
            (true, _) => len.min(cap),
            (false, true) => len,
            (false, false) => 0,
        }
    }

    /// The first `len` tokens as payload bytes: [`Runtime::export_bytes`] and one [`Runtime::export_part`].
    ///
    /// # Errors
    /// `Unsupported`, `UnknownSeq`, `OutOfBoundary`; `Capacity` when the host has no memory for the bytes.
    fn seq_export(&mut self, sequence: SeqHandle, len: u64, encoding: u8) -> Result<Vec<u8>, RuntimeError> {
        let bytes = self.export_bytes(sequence, 0..len, encoding)?;
        let bytes = usize::try_from(bytes).map_err(|_| RuntimeError::Capacity)?;
        let mut payload = Vec::new();
        payload.try_reserve_exact(bytes).map_err(|_| RuntimeError::Capacity)?;
        payload.resize(bytes, 0);
        self.export_part(sequence, 0..len, encoding, &mut payload)?;
        Ok(payload)
    }

    /// Fills an empty sequence from a lossless payload and returns the tokens it now holds.
    ///
    /// # Errors
    /// `Unsupported`, `UnknownSeq`, `OutOfBoundary`, `Capacity`; afterwards the content is undefined and the caller cuts it to 0.
    fn seq_import(&mut self, sequence: SeqHandle, payload: &[u8]) -> Result<u64, RuntimeError> {
        let token = self.payload_token_bytes(encoding::LOSSLESS).ok_or(RuntimeError::Unsupported)?.max(1);
        if !(payload.len() as u64).is_multiple_of(token) {
            return Err(RuntimeError::OutOfBoundary);
        }
        let tokens = payload.len() as u64 / token;
        self.import_begin(sequence, 0..tokens)?;
        self.import_part(sequence, 0..tokens, encoding::LOSSLESS, payload)?;
        self.import_end(sequence, 0..tokens)
    }

    /// Bytes that a payload takes per token; none for an encoding that is not offered. Payloads are token after token, so that any
    /// range of tokens is a part of the bytes.
    fn payload_token_bytes(&self, encoding: u8) -> Option<u64> {
        let _ = encoding;
        None
    }

    /// Bytes of an export of `tokens`, found without exporting (S-97). The cut rule is that of a copy: a head-only runtime exports
    /// nothing or all.
    ///
    /// # Errors
    /// `Unsupported`, `UnknownSeq`, `OutOfBoundary` past the end, or when part of it was released.
    fn export_bytes(&self, sequence: SeqHandle, tokens: Range<u64>, encoding: u8) -> Result<u64, RuntimeError> {
        let _ = (sequence, tokens, encoding);
        Err(RuntimeError::Unsupported)
    }

    /// Writes the payload of `tokens`, a part of what [`Runtime::export_bytes`] allowed, over all of `out`.
    ///
    /// # Errors
    /// `Unsupported`, `UnknownSeq`, `OutOfBoundary`, `Fatal`; what `out` holds is then unspecified.
    fn export_part(
        &mut self,
        sequence: SeqHandle,
        tokens: Range<u64>,
        encoding: u8,
        out: &mut [u8],
    ) -> Result<(), RuntimeError> {
        let _ = (sequence, tokens, encoding, out);
        Err(RuntimeError::Unsupported)
    }

    /// Takes the room for an import of `tokens`: into an empty sequence from 0 on, or into exactly a range that was released. What the
    /// tokens hold is undefined until the parts have come; the caller lets nobody read them.
    ///
    /// # Errors
    /// `Unsupported`, `UnknownSeq`, `OutOfBoundary`, `Capacity`; nothing moved.
    fn import_begin(&mut self, sequence: SeqHandle, tokens: Range<u64>) -> Result<(), RuntimeError> {
        let _ = (sequence, tokens);
        Err(RuntimeError::Unsupported)
    }

    /// Reads the payload of `tokens`, a part of a range that was begun.
    ///
    /// # Errors
    /// `Unsupported`, `UnknownSeq`, `OutOfBoundary` when the bytes are not those of so many tokens, `Fatal`; the content is then
    /// undefined and the caller cuts or releases it.
    fn import_part(
        &mut self,
        sequence: SeqHandle,
        tokens: Range<u64>,
        encoding: u8,
        bytes: &[u8],
    ) -> Result<(), RuntimeError> {
        let _ = (sequence, tokens, encoding, bytes);
        Err(RuntimeError::Unsupported)
    }

    /// Ends an import whose parts have all come; answers the tokens that the sequence now holds.
    ///
    /// # Errors
    /// Any; the content is then undefined and the caller cuts or releases it.
    fn import_end(&mut self, sequence: SeqHandle, tokens: Range<u64>) -> Result<u64, RuntimeError> {
        let _ = (sequence, tokens);
        Err(RuntimeError::Unsupported)
    }

    /// Gives the memory of a range back while the sequence keeps its length (S-91): whole pages, or up to the end of the sequence.
    /// Until an import fills the range the sequence can neither be fed nor copied nor exported across it.
    ///
    /// # Errors
    /// `Unsupported`, `UnknownSeq`, `OutOfBoundary` when the range cuts a page or overlaps a released one; nothing moved.
    fn range_release(&mut self, sequence: SeqHandle, tokens: Range<u64>) -> Result<(), RuntimeError> {
        let _ = (sequence, tokens);
        Err(RuntimeError::Unsupported)
    }

    /// Pages that were copied for a sequence because another one held them too; 0 where pages are not shared.
    fn page_copies(&self, sequence: SeqHandle) -> u64 {
        let _ = sequence;
        0
    }

    /// Memory now.
    fn mem_counters(&self) -> MemCounters;

    /// Appends the input of each feed to its sequence and answers what each wants, in feed order (R-15 .. R-17).
    ///
    /// `answers` is cleared first. It then holds one answer per feed.
    ///
    /// # Errors
    /// Any. Nothing moved when the error was found before work started, which includes every `Unsupported`, `UnknownSeq` and
    /// `Capacity`.
    fn step(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError>;

    /// Whether steps can be begun ([`Runtime::step_begin`]); constant. Only where sequences can be cut anywhere (`truncate_partial`).
    fn steps_ahead(&self) -> bool {
        false
    }

    /// Begins a step of feeds that all want a token, and does not wait for it: what [`Runtime::step`] does up to the answers. Sequences are as
    /// long as after the step. At most two steps are begun and not ended; the second one feeds [`Input::Picked`] alone, the first one
    /// none.
    ///
    /// Until all begun steps have ended, sequences are neither fed nor copied nor exported; those of a begun step are not cut. They may be freed.
    ///
    /// # Errors
    /// Those of [`Runtime::step`], with which the step was not begun, and nothing moved but for `Fatal`. `Unsupported` also when these feeds
    /// cannot be begun: then they can be stepped.
    fn step_begin(&mut self, feeds: &[Feed<'_>]) -> Result<(), RuntimeError> {
        let _ = feeds;
        Err(RuntimeError::Unsupported)
    }

    /// Waits for the step that was begun first, and answers it. `feeds` are those of its beginning, with the tokens that [`Input::Picked`]
    /// stood for. One whose answer nobody wants any more wants [`Want::Nothing`], and nothing else of it is looked at; its sequence, if it is still
    /// there, is the caller's to cut. A step of which nothing is wanted leaves no trace.
    ///
    /// `answers` is cleared first, and as after [`Runtime::step`] then; [`Answer::Again`] is possible too.
    ///
    /// # Errors
    /// Those of [`Runtime::step`]; the step is over, and what its sequences hold behind what they held before it is unspecified.
    fn step_end(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        let _ = (feeds, answers);
        Err(RuntimeError::Unsupported)
    }

    /// Says whether a step that answers nothing must be complete on return.
    fn sync_steps(&mut self, on: bool) {
        let _ = on;
    }

    /// Says whether steps from now on may be captured as graphs; not before it is said (the plan's flag `CAPTURE_OK`). No answer depends
    /// on it.
    fn allow_capture(&mut self, is_allowed: bool) {
        let _ = is_allowed;
    }

    /// Graphs that were launched again, and parts of steps that might have been one and were not, since this was last asked (T-146).
    fn take_graph_counts(&mut self) -> GraphCounts {
        GraphCounts::default()
    }

    /// The vocabulary, or none when it is not listed.
    fn vocabulary(&self) -> Option<&Vocabulary> {
        None
    }

    /// Whether there is a [`vocabulary`](Self::vocabulary), without listing it.
    fn lists_vocabulary(&self) -> bool {
        self.vocabulary().is_some()
    }

    /// The special and end tokens of the vocabulary, which penalties leave alone (T-114); empty without one.
    fn exempt_ids(&self) -> Vec<u32> {
        self.vocabulary().map_or_else(Vec::new, |vocabulary| {
            vocabulary.special.iter().map(|&(_, id)| id).chain(vocabulary.end_ids.iter().copied()).collect()
        })
    }

    /// Loads an adapter. The same content gives the same handle, as long as it is there.
    ///
    /// # Errors
    /// An [`AdapterLoadError`]; nothing is kept.
    fn adapter_load(&mut self, path: &Path) -> Result<LoadedAdapter, AdapterLoadError> {
        let _ = path;
        Err(AdapterLoadError::Unsupported)
    }

    /// Lets no new sequence carry an adapter; it goes with the last one that does. False when it is not loaded.
    fn adapter_unload(&mut self, adapter: u64) -> bool {
        let _ = adapter;
        false
    }

    /// Bytes that adapters take: those that are loaded, those that a sequence still carries, and the room to compute with them.
    fn adapter_bytes(&self) -> u64 {
        0
    }

    /// The adapters that new sequences may carry.
    fn adapters(&self) -> Vec<LoadedAdapter> {
        Vec::new()
    }

    /// The digest of an adapter that a sequence carries, unloaded or not; none when no sequence could.
    fn adapter_digest(&self, adapter: u64) -> Option<[u8; 32]> {
        self.adapters().into_iter().find(|loaded| loaded.handle == adapter).map(|loaded| loaded.digest)
    }

    /// Says with which adapter an empty sequence will be computed; 0 is the model alone. Copies inherit it.
    ///
    /// # Errors
    /// `UnknownSeq` (no such sequence, adapter not loaded), `OutOfBoundary` (the sequence has tokens), `Unsupported`; nothing changed.
    fn seq_adapt(&mut self, sequence: SeqHandle, adapter: u64) -> Result<(), RuntimeError> {
        let _ = sequence;
        if adapter == 0 { Ok(()) } else { Err(RuntimeError::Unsupported) }
    }

    /// The adapter that a sequence carries; 0 is none.
    fn seq_adapter(&self, sequence: SeqHandle) -> u64 {
        let _ = sequence;
        0
    }

    /// Embeds a text, as [`Workloads::embedding`] says: the pooled hidden states behind the last norm.
    ///
    /// No sequence changes; the pages that it takes are free again on return.
    ///
    /// # Errors
    /// `Unsupported`, `UnknownSeq` (adapter), `OutOfBoundary` (longer than the context), `Fault` (no tokens, or foreign ones),
    /// `Capacity`; nothing changed.
    fn embed(&mut self, tokens: &[u32], adapter: u64) -> Result<Vec<f32>, RuntimeError> {
        let _ = (tokens, adapter);
        Err(RuntimeError::Unsupported)
    }

    /// Runs some of the layers over a token list (E-11).
    ///
    /// No sequence changes; the pages that it takes are free again on return.
    ///
    /// # Errors
    /// A [`StageError`]; nothing changed.
    fn forward_stage(&mut self, stage: &Stage<'_>) -> Result<StageOutput, StageError> {
        let _ = stage;
        Err(StageError::Runtime(RuntimeError::Unsupported))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T-132: each error as a status outside a step, and as a fault of the step's lanes.
    #[test]
    fn errors_are_statuses_outside_a_step_and_faults_inside() {
        let table = [
            (RuntimeError::Unsupported, Status::Unsupported, Some(fault::INTERNAL)),
            (RuntimeError::UnknownSeq, Status::UnknownHandle, Some(fault::INTERNAL)),
            (RuntimeError::OutOfBoundary, Status::OutOfBoundary, Some(fault::INTERNAL)),
            (RuntimeError::Capacity, Status::NeedsReplan, Some(fault::OOM_TENTATIVE)),
            (RuntimeError::Fault(3), Status::Fatal, Some(3)),
            (RuntimeError::Fatal, Status::Fatal, None),
        ];
        for (error, status, code) in table {
            assert_eq!((Status::from(error), error.fault_code()), (status, code), "{error:?}");
        }
    }
}
