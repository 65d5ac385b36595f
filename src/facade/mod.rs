#![forbid(unsafe_code)]
#![allow(
    clippy::result_large_err,
    reason = "a refusal is plain data without heap parts, so that evidence costs nothing where there is none (X-7)"
)]
//! The second facade: [`ModelExecutor`], for a host that owns its scheduler.
//!
//! The host queues requests, forms batches, waits for memory, picks victims and retries; the executor does none of that. It answers: yes,
//! this ran; or no, and here is what was short, and what to wait for. A [`Core`] is one engine, one pool, one prefix cache and one
//! [`Capacity`]; it serves this facade and a tick host at once.
//!
//! ```text
//!   host threads:  admit  reserve  truncate  close  ...     run  prepare  shutdown           a tick host: TickHost
//!                    |       |        |        |             |                                  |
//!                  table (one short lock) <------------------+                                  |
//!                    |                                       +------> turnstile <---------------+
//!                  ledger: claims, epochs                              |  one submission at a time, in order of arrival
//!                                                                    Executor: runtime, cache, lanes
//! ```
//!
//! A call of the first kind never waits for a step: it changes the table and the ledger, and what the pool has to do for it (give pages
//! back, cut a sequence) is put on a list that the next submission carries out before it does anything else. So the ledger is always
//! right, and the pool is right whenever somebody uses it.
//!
//! ```
//! use ictus::executor::Executor;
//! use ictus::facade::{Admission, Chunk, Core, CoreOptions, End, Logits, ModelExecutor, Out, Work};
//! use ictus::runtime::FakeRuntime;
//!
//! let core = Core::new(Executor::new(FakeRuntime::default()), CoreOptions::default())?;
//! let executor = core.executor();
//! let seq = executor.admit(&Admission::of(&[10, 20, 30], 64))?;
//! let (greedy, mut rows) = (Logits::greedy(), Vec::new());
//! let chunk = Chunk::new(0, 3, 3)?;
//! executor.run(&[Work::Prefill { seq, chunk, whole: false, logits: &greedy }], &mut rows)?;
//! assert_eq!(rows[0].out, Ok(Out::Tokens(vec![19927])));
//! executor.run(&[Work::Decode { seq, at: 3, token: 19927, logits: &greedy }], &mut rows)?;
//! assert_eq!(rows[0].out, Ok(Out::Tokens(vec![17910])));
//! executor.close(seq, End::Completed { prompt: 3, output: 2 })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | what |
//! |---|---|
//! | `seq.rs`, `work.rs`, `mask.rs`, `info.rs`, `stats.rs` | the plain data of the surface |
//! | `core.rs`, `bounds.rs`, `turnstile.rs` | a core, its bytes, and the order of its submissions |
//! | `table.rs` | the sequences |
//! | `admit.rs`, `close.rs`, `reserve.rs`, `grow.rs` | the calls, by area |
//! | `run/` | one batch: checked, claimed, stepped, published |
//! | `select.rs` | greedy selection |
//! | `tick_host.rs` | a tick engine on the same core |
//!
//! # Invariants
//! - `Err` proves that nothing of the call reached the runtime, and that every sequence is where it was (X-6).
//! - Order of locks: submission, table, list of chores, ledger, device account; wakers run when none is held (X-72).
//! - A row's bits are those that a tick would have given for the same tokens: the same steps of the same runtime compute both.
//! - A run of decodes allocates nothing in the steady state (X-46).
//!
//! # Limits
//! The pool of a runtime is made with it, so Blocks cannot grow: `GROW` is about the workspace. A run that is cancelled stops between steps,
//! not between layers: the runtime has no word for the latter. Whether other tick lanes hold blocks of a shared prefix is not known
//! to `frees`; the ledger knows it after the next submission.

mod admit;
mod bounds;
mod close;
mod core;
mod grow;
mod info;
mod mask;
mod reserve;
mod run;
mod select;
mod seq;
mod stats;
mod table;
mod tick_host;
mod turnstile;
mod work;

pub use self::bounds::CoreBounds;
pub use self::core::{Core, CoreError, CoreOptions};
pub use crate::capacity::{
    Bad, Blocked, Capacity, Domain, Feature, Lack, Memory, Receipt, Refusal, Remedy, Shortfall, Ticket, Units, Wait,
};
pub use info::Info;
pub use mask::TokenMask;
pub use select::select;
pub use seq::{Chunk, Seq};
pub use stats::{CoreState, Latency, Stats};
pub use tick_host::TickHost;
pub use work::{Admission, End, Fault, FaultCode, FaultState, Fit, Logits, Out, Row, Work};

/// An executor of batches whose host owns the scheduler.
///
/// Every method may be called from any thread. `run`, `grow`, `prepare` and `shutdown` may wait for a step; a host holds no lock of its own
/// across them, nor across a parked [`Wait`] (X-4). All others finish under short locks.
pub trait ModelExecutor: Send + Sync {
    /// What the core is.
    fn info(&self) -> &Info;

    /// What has happened.
    fn stats(&self) -> Stats;

    /// What it has, and how to wait for more.
    fn capacity(&self) -> &Capacity;

    /// Does cold work before the first request, leaving everything as it was (X-67).
    ///
    /// # Errors
    /// `Blocked` when there is no room for a sequence of one token, `Closed`, `Poisoned`.
    fn prepare(&self) -> Result<(), Refusal>;

    /// Admits a sequence: one slot, and the block of its first token (X-13 .. X-20).
    ///
    /// # Errors
    /// `Never`, `Blocked`, `Bounds`, `Policy`, `Closed`, `Exhausted`, `Poisoned`. Nothing is kept.
    fn admit(&self, admission: &Admission<'_>) -> Result<Seq, Refusal>;

    /// Makes one bounded attempt to install what a refusal lacked (X-29 .. X-33).
    ///
    /// # Errors
    /// `Foreign`, `Policy` when its remedy is not `Grow`, `Blocked` with what is missing now.
    fn grow(&self, blocked: Blocked) -> Result<Receipt, Refusal>;

    /// Claims the blocks that this work will need, and runs none of it (X-52).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    fn reserve(&self, work: &[Work<'_>], fit: Fit) -> Result<Receipt, Refusal>;

    /// Runs a batch in one pass: a row per item, in their order (X-36 .. X-51).
    ///
    /// `rows` is cleared first, also when the call is refused; its buffers are used again.
    ///
    /// # Errors
    /// `Bad` with the item's index, `Unsupported`, `Blocked`, `Never`. Nothing ran.
    fn run(&self, work: &[Work<'_>], rows: &mut Vec<Row>) -> Result<(), Refusal>;

    /// Committed tokens.
    ///
    /// # Errors
    /// `Stale`, `Foreign`.
    fn frontier(&self, seq: Seq) -> Result<usize, Refusal>;

    /// Cuts a sequence, and gives back what it does not need for `len` tokens (X-54).
    ///
    /// # Errors
    /// `Bounds` past the frontier, `Busy`, `Faulted`, `Unsupported`, `Stale`, `Foreign`.
    fn truncate(&self, seq: Seq, len: usize) -> Result<Receipt, Refusal>;

    /// What a sequence holds now: its slot, its own blocks, its run (X-53).
    ///
    /// # Errors
    /// `Stale`, `Foreign`.
    fn held(&self, seq: Seq) -> Result<Units, Refusal>;

    /// What closing all of these together would free (X-55).
    ///
    /// # Errors
    /// `Stale`, `Foreign`, with the index.
    fn frees(&self, seqs: &[Seq]) -> Result<Units, Refusal>;

    /// Ends a sequence, exactly once (X-58 .. X-61).
    ///
    /// # Errors
    /// `Stale`, `Foreign`, `Busy`, `Faulted`, `Frontier`, `Bounds`. The sequence stays open.
    fn close(&self, seq: Seq, end: End) -> Result<Receipt, Refusal>;

    /// Ends everything, once (X-68).
    ///
    /// # Errors
    /// `Poisoned`.
    fn shutdown(&self) -> Result<Receipt, Refusal>;
}
