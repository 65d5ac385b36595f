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

mod answers;
mod descriptor;
mod fake;
mod paged;

pub use crate::checkpoint::SamplingDefaults;
pub use answers::{Answer, Answers};
pub use descriptor::{Descriptor, SamplingSupport};
pub use fake::{CopyModel, FakeOptions, FakeRuntime, RecordedFeed};
pub use paged::{MemoryPlan, ModelRuntime, PagedError, PagedIdentity, PagedOptions};

use crate::record::Status;
use crate::record::constant::fault;
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

    /// The first `len` tokens as payload bytes.
    ///
    /// # Errors
    /// `Unsupported`, `UnknownSeq`, `OutOfBoundary`.
    fn seq_export(&mut self, sequence: SeqHandle, len: u64, encoding: u8) -> Result<Vec<u8>, RuntimeError>;

    /// Fills an empty sequence from a payload and returns the tokens it now holds.
    ///
    /// # Errors
    /// `Unsupported`, `UnknownSeq`, `OutOfBoundary`, `Capacity`; afterwards the content is undefined and the caller cuts it to 0.
    fn seq_import(&mut self, sequence: SeqHandle, payload: &[u8]) -> Result<u64, RuntimeError>;

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

    /// Says whether a step that answers nothing must be complete on return.
    fn sync_steps(&mut self, on: bool) {
        let _ = on;
    }

    /// The vocabulary, or none when it is not listed.
    fn vocabulary(&self) -> Option<&Vocabulary> {
        None
    }
}
