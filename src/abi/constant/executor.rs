#![forbid(unsafe_code)]
//! Constants of executors.

/// Bits of an executor's options.
pub mod executor_flag {
    /// Chunks, decodes and verifications are not mixed in one batch.
    pub const UNMIXED: u32 = 1;
    /// All of them.
    pub(in crate::abi) const ALL: u32 = UNMIXED;
}

/// Bits of an admission.
pub mod admission_flag {
    /// It may start from a resident prefix.
    pub const REUSE: u32 = 1;
    /// Warm-up or diagnosis, which enters no statistics.
    pub const UNCOUNTED: u32 = 2;
    /// All of them.
    pub(in crate::abi) const ALL: u32 = REUSE | UNCOUNTED;
}

/// What has to be free beside what is taken.
pub mod fit {
    use crate::facade::Fit;

    /// What is taken, no more.
    pub const NOW: u32 = Fit::Now as u32;
    /// Blocks for the whole context.
    pub const INPUT: u32 = Fit::Input as u32;
    /// Blocks for the ceiling.
    pub const CEILING: u32 = Fit::Ceiling as u32;
}

/// Kinds of items.
pub mod work {
    /// The next tokens of the admitted context.
    pub const PREFILL: u32 = 0;
    /// One token behind the context.
    pub const DECODE: u32 = 1;
    /// Several tokens behind the context, a row behind each.
    pub const VERIFY: u32 = 2;
}

/// What is wanted of a row.
pub mod logits {
    /// A token of it.
    pub const GREEDY: u32 = 0;
    /// All of it.
    pub const FULL: u32 = 1;
}

/// What an item yields.
pub mod out {
    /// Nothing: a chunk that does not end its context.
    pub const SILENT: u32 = 0;
    /// Rows of logits.
    pub const LOGITS: u32 = 1;
    /// Selected tokens.
    pub const TOKENS: u32 = 2;
    /// A row has no finite candidate; the sequence has advanced and lives.
    pub const NO_FINITE: u32 = 3;
    /// It failed.
    pub const FAULT: u32 = 4;
}

/// Why a call was refused.
pub mod refusal {
    /// It was not, or not by the executor.
    pub const NONE: u32 = 0;
    /// Something is short for the time being.
    pub const BLOCKED: u32 = 1;
    /// More was asked for than can ever be there.
    pub const NEVER: u32 = 2;
    /// A mode that is not offered.
    pub const UNSUPPORTED: u32 = 3;
    /// The call was wrong.
    pub const BAD: u32 = 4;
}

/// What was wrong with a call.
pub mod bad {
    use crate::capacity::Bad;

    /// An id, a length, a chunk or a count out of range.
    pub const BOUNDS: u32 = Bad::Bounds as u32;
    /// Not at the frontier, or in the wrong state for it.
    pub const FRONTIER: u32 = Bad::Frontier as u32;
    /// A sequence twice in a batch.
    pub const DUPLICATE: u32 = Bad::Duplicate as u32;
    /// An old generation, or a sequence that is closed.
    pub const STALE: u32 = Bad::Stale as u32;
    /// Of another executor, or of the tick engine.
    pub const FOREIGN: u32 = Bad::Foreign as u32;
    /// A run is in flight on the sequence.
    pub const BUSY: u32 = Bad::Busy as u32;
    /// The sequence has faulted.
    pub const FAULTED: u32 = Bad::Faulted as u32;
    /// A value of a policy that means nothing here.
    pub const POLICY: u32 = Bad::Policy as u32;
    /// The executor shuts down.
    pub const CLOSED: u32 = Bad::Closed as u32;
    /// An epoch is lower than what was seen.
    pub const REGRESSED: u32 = Bad::Regressed as u32;
    /// A counter cannot count any further.
    pub const EXHAUSTED: u32 = Bad::Exhausted as u32;
    /// The runtime broke, or a panic left the books in doubt.
    pub const POISONED: u32 = Bad::Poisoned as u32;
}

/// Modes, as numbers; a set of them has the bit `1 << n` of each.
pub mod feature {
    use crate::capacity::Feature;

    /// Kinds of work mixed in one batch.
    pub const MIXED: u32 = Feature::Mixed as u32;
    /// Several tokens verified in one pass.
    pub const VERIFY: u32 = Feature::Verify as u32;
    /// State that can be cut.
    pub const TRUNCATE: u32 = Feature::Truncate as u32;
    /// Tokens selected inside the step.
    pub const GREEDY_DEVICE: u32 = Feature::GreedyDevice as u32;
    /// Memory that grows.
    pub const GROW: u32 = Feature::Grow as u32;
    /// State that leaves for host memory.
    pub const EXPORT: u32 = Feature::Export as u32;
    /// Starts from resident prefixes.
    pub const REUSE: u32 = Feature::Reuse as u32;
    /// So many items in a batch.
    pub const ITEMS: u32 = Feature::Items as u32;
    /// So many tokens in a batch.
    pub const TOKENS: u32 = Feature::Tokens as u32;
}

/// How a sequence ends.
pub mod end {
    /// The request is answered; the only end that records usage.
    pub const COMPLETED: u32 = 0;
    /// The user does not want it any more.
    pub const CANCELLED: u32 = 1;
    /// The host gave it up.
    pub const FAILED: u32 = 2;
    /// Preempted: it will be admitted again, with what it said replayed.
    pub const RECOMPUTE: u32 = 3;
}

/// Why an item failed.
pub mod executor_fault {
    use crate::facade::FaultCode;

    /// The runtime answered other than was asked.
    pub const CONTRACT: u32 = FaultCode::Contract as u32;
    /// The host cancelled it while it ran.
    pub const CANCELLED: u32 = FaultCode::Cancelled as u32;
    /// The runtime failed.
    pub const DEVICE: u32 = FaultCode::Device as u32;
    /// The pool lacked what was claimed of it.
    pub const MEMORY: u32 = FaultCode::Memory as u32;
}

/// What is known of the sequence of an item that failed.
pub mod sequence_state {
    use crate::facade::FaultState;

    /// As before the call, and usable.
    pub const INTACT: u32 = FaultState::Intact as u32;
    /// Quiet and unusable: only to be closed as cancelled or failed.
    pub const LOST: u32 = FaultState::Lost as u32;
    /// The device may still touch it.
    pub const HELD: u32 = FaultState::Held as u32;
}

/// What an executor is doing.
pub mod executor_state {
    use crate::facade::CoreState;

    /// Not yet able to serve.
    pub const LOADING: u32 = CoreState::Loading as u32;
    /// Able to serve.
    pub const READY: u32 = CoreState::Ready as u32;
    /// Able to serve, with runs in flight.
    pub const BUSY: u32 = CoreState::Busy as u32;
    /// Its runtime is broken: nothing runs any more.
    pub const FAULTED: u32 = CoreState::Faulted as u32;
    /// Shut down, or about to be.
    pub const CLOSING: u32 = CoreState::Closing as u32;
}
