#![forbid(unsafe_code)]
//! What a host asks of a batch, and what it gets back.

use core::ops::Range;
use std::sync::Arc;

use super::mask::TokenMask;
use super::seq::{Chunk, Seq};
use crate::capacity::Remedy;

/// What has to be free at an admission or a reservation, beside what is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Fit {
    /// What is taken, no more.
    #[default]
    Now,
    /// Blocks for the whole context.
    Input,
    /// Blocks for the ceiling.
    Ceiling,
}

/// A sequence to be admitted.
#[derive(Clone, Copy, Debug)]
pub struct Admission<'a> {
    /// The prompt as the product counts it; at least one token.
    pub prompt: &'a [u32],
    /// Outputs that are computed again after a preemption.
    pub replayed: &'a [u32],
    /// Longest total length that the sequence may reach, in tokens.
    pub ceiling: usize,
    /// What must be free now.
    pub fit: Fit,
    /// What a shortage is answered with: `Wait`, or `Recompute` for a host that looks for a victim.
    pub pressure: Remedy,
    /// It may start from a resident prefix.
    pub reuse: bool,
    /// False for warm-up and diagnostics, which enter no statistics.
    pub counted: bool,
    /// For logs only.
    pub tag: u64,
}

impl<'a> Admission<'a> {
    /// A counted request for this prompt, with nothing else asked for.
    pub fn of(prompt: &'a [u32], ceiling: usize) -> Self {
        Self {
            prompt,
            replayed: &[],
            ceiling,
            fit: Fit::Now,
            pressure: Remedy::Wait,
            reuse: false,
            counted: true,
            tag: 0,
        }
    }
}

/// What is wanted of a row.
#[derive(Clone, Debug)]
pub enum Logits {
    /// All of it.
    Full,
    /// A token of it.
    Greedy {
        /// Which tokens may be selected; none allows all.
        mask: Option<TokenMask>,
        /// Divides values above 0 and multiplies the others; finite and above 0, 1 is none.
        penalty: f32,
        /// The ids that are penalised; one that is named twice counts once.
        penalised: Arc<[u32]>,
    },
}

impl Logits {
    /// A plain greedy token.
    pub fn greedy() -> Self {
        Self::Greedy { mask: None, penalty: 1.0, penalised: Arc::from([]) }
    }
}

/// One item of a batch.
#[derive(Clone, Copy, Debug)]
pub enum Work<'a> {
    /// The next tokens of the admitted context.
    Prefill {
        /// The sequence.
        seq: Seq,
        /// Which tokens: they start at its frontier.
        chunk: Chunk,
        /// All of them or none: not to be narrowed.
        whole: bool,
        /// Wanted of the row behind the last token of the context; other chunks yield none.
        logits: &'a Logits,
    },
    /// One token behind the context.
    Decode {
        /// The sequence.
        seq: Seq,
        /// Its frontier.
        at: usize,
        /// The token.
        token: u32,
        /// Wanted of the row behind it.
        logits: &'a Logits,
    },
    /// Several tokens behind the context, a row behind each.
    Verify {
        /// The sequence.
        seq: Seq,
        /// Its frontier.
        at: usize,
        /// The tokens, at least one.
        tokens: &'a [u32],
        /// Wanted of each row.
        logits: &'a Logits,
    },
}

impl<'a> Work<'a> {
    /// The sequence.
    pub fn seq(&self) -> Seq {
        match *self {
            Self::Prefill { seq, .. } | Self::Decode { seq, .. } | Self::Verify { seq, .. } => seq,
        }
    }

    /// What is wanted of its rows.
    pub fn logits(&self) -> &'a Logits {
        match *self {
            Self::Prefill { logits, .. } | Self::Decode { logits, .. } | Self::Verify { logits, .. } => logits,
        }
    }

    /// Where it starts.
    pub(super) fn start(&self) -> usize {
        match *self {
            Self::Prefill { chunk, .. } => chunk.start(),
            Self::Decode { at, .. } | Self::Verify { at, .. } => at,
        }
    }

    /// Tokens that it computes.
    pub(super) fn width(&self) -> usize {
        match *self {
            Self::Prefill { chunk, .. } => chunk.len(),
            Self::Decode { .. } => 1,
            Self::Verify { tokens, .. } => tokens.len(),
        }
    }

    /// Which of the three it is.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Prefill { .. } => Kind::Prefill,
            Self::Decode { .. } => Kind::Decode,
            Self::Verify { .. } => Kind::Verify,
        }
    }
}

/// Kinds of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Prefill,
    Decode,
    Verify,
}

/// The outcome of one item of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The sequence.
    pub seq: Seq,
    /// Tokens that were committed; empty when the item failed.
    pub ran: Range<usize>,
    /// Failed claims of a chunk that was narrowed: at least 1 exactly when `ran` is shorter than planned.
    pub probes: u32,
    /// What came of it.
    pub out: Result<Out, Fault>,
}

/// What an item yields.
#[derive(Clone, Debug, PartialEq)]
pub enum Out {
    /// A chunk that does not end its context.
    Silent,
    /// Rows of logits.
    Logits {
        /// Number of rows.
        rows: usize,
        /// The rows in position order, each as long as the vocabulary.
        data: Vec<f32>,
    },
    /// Selected tokens in position order.
    Tokens(Vec<u32>),
    /// A row has no finite candidate. The sequence has advanced and lives.
    NoFinite,
}

/// Why an item failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code:?}, the sequence is {state:?} ({detail})")]
pub struct Fault {
    /// What went wrong.
    pub code: FaultCode,
    /// What is known of the sequence.
    pub state: FaultState,
    /// The runtime's code, where it gave one.
    pub detail: u32,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FaultCode {
    /// The runtime answered other than was asked.
    Contract,
    /// The host cancelled it while it ran.
    Cancelled,
    /// The runtime failed.
    Device,
    /// The pool lacked what was claimed of it: an accounting fault.
    Memory,
}

impl FaultCode {
    /// All codes.
    pub const ALL: [Self; 4] = [Self::Contract, Self::Cancelled, Self::Device, Self::Memory];
}

/// What is known of the sequence of an item that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FaultState {
    /// As before the call, and usable.
    Intact,
    /// Quiet and unusable: only close it as cancelled or failed.
    Lost,
    /// The device may still touch it.
    Held,
}

/// How a sequence ends (X-58 .. X-61).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The request is answered. The only end that records usage.
    Completed {
        /// Tokens of the prompt: those of the admission.
        prompt: usize,
        /// Tokens that the user got.
        output: usize,
    },
    /// The user does not want it any more.
    Cancelled,
    /// The host gave it up.
    Failed,
    /// Preempted: it will be admitted again, with what it said replayed.
    Recompute,
}
