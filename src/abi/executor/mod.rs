//! Executors: a model for a host that owns its scheduler.
//!
//! An executor is a core: its own pool and coordinator, and two facades on it. The functions here are the one of
//! [`facade`](crate::facade); `ictus_executor_tick_host` gives the other one as a model. Tickets and waits are those of
//! [`capacity`](super::capacity), which take an executor as they take a model.
//!
//! # Invariants
//! - Every call may be made from any thread at any time; the executor itself has the locks.
//! - A run of decodes in the steady state allocates nothing here: lists are kept between calls.
//! - What the executor refuses, it refuses with evidence, which goes to the caller's record and to the status.

mod batch;
mod convert;
mod create;
mod records;

pub use batch::{ictus_executor_reserve, ictus_executor_run};
pub use create::{
    adopt_core, ictus_executor_create, ictus_executor_destroy, ictus_executor_open, ictus_executor_tick_host,
};
pub use records::{
    AdmissionRecord, ExecutorChoices, ExecutorInfo, ExecutorSeq, ExecutorStats, LatencyRecord, LogitsRecord,
    ReceiptRecord, RefusalRecord, RowRecord, WorkRecord,
};

use core::ffi::c_char;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::batch::Scratch;
use self::convert::{admission, ending, feature};
use super::bundle::{StatusCode, code, without_model};
use super::capacity::{BlockedRecord, status_of};
use super::guard::{Failure, Outcome, buffer, contain, hand_over_text, list, out, sized_out, versioned};
use super::handle;
use crate::capacity::{Capacity, Receipt, Refusal};
use crate::engine::Engine;
use crate::facade::{Logits, ModelExecutor, Seq};
use crate::open::Model;
use crate::record::Status;

/// What an `ictus_executor_t` points to: nothing that C could look at.
#[derive(Debug)]
pub struct OpaqueExecutor(());

/// Handle of an executor. NULL is none.
pub type ExecutorNumber = *mut OpaqueExecutor;

/// Gives the tick engine of a core, unless somebody has it.
type TickHosts = Box<dyn Fn() -> Option<Box<dyn Engine + Send>> + Send + Sync>;

/// What a handle of an executor stands for.
pub(super) struct ExecutorObject {
    executor: Arc<dyn ModelExecutor>,
    tick_hosts: TickHosts,
    model: Option<Model>,
    /// What an item wants that does not say.
    plain: Logits,
    scratches: Mutex<Vec<Scratch>>,
    last: Mutex<Option<(&'static str, Trouble)>>,
    /// A call panicked: no other one is made.
    broken: AtomicBool,
}

impl core::fmt::Debug for ExecutorObject {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ExecutorObject").field("broken", &self.broken).finish_non_exhaustive()
    }
}

/// Why a call failed.
#[derive(Debug)]
enum Trouble {
    /// It did not come to the executor.
    Before(Failure),
    /// The executor refused it.
    Refused(Box<Refusal>),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Before(failure)
    }
}

impl From<Status> for Trouble {
    fn from(status: Status) -> Self {
        Self::Before(status.into())
    }
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

impl Trouble {
    fn status(&self) -> Status {
        match self {
            Self::Before(failure) => failure.status,
            Self::Refused(refusal) => status_of(refusal),
        }
    }
}

/// No invariant spans two steps under any of these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ExecutorObject {
    /// The coordinator of the core.
    pub(super) fn capacity(&self) -> &Capacity {
        self.executor.capacity()
    }

    /// Runs the body of a call.
    fn call(&self, name: &'static str, body: impl FnOnce(&Self) -> Result<(), Trouble>) -> Result<(), Trouble> {
        let outcome = match self.broken.load(Ordering::Acquire) {
            true => Err(Failure::new(Status::Fatal, "the executor panicked before").into()),
            false => contain(|| body(self)).unwrap_or_else(|message| {
                self.broken.store(true, Ordering::Release);
                Err(Failure::new(Status::Fatal, format_args!("the executor panicked: {message}")).into())
            }),
        };
        outcome.map_err(|trouble| self.noted(name, trouble))
    }

    /// Keeps what failed for whoever asks; the caller gets a copy of what it needs.
    fn noted(&self, name: &'static str, trouble: Trouble) -> Trouble {
        let copy = match &trouble {
            Trouble::Before(failure) => Trouble::Before(failure.status.into()),
            Trouble::Refused(refusal) => Trouble::Refused(refusal.clone()),
        };
        *lock(&self.last) = Some((name, trouble));
        copy
    }
}

/// A call on an executor that the executor may refuse.
///
/// # Safety
/// `refusal`, when not NULL, is valid as [`sized_out`] asks.
unsafe fn call(
    executor: ExecutorNumber,
    name: &'static str,
    refusal: *mut RefusalRecord,
    body: impl FnOnce(&ExecutorObject) -> Result<(), Trouble>,
) -> StatusCode {
    code(handle::executor(executor.addr()).and_then(|object| {
        let target = match refusal.is_null() {
            true => None,
            // SAFETY: the promise of this function.
            false => Some(unsafe { sized_out(refusal) }.inspect_err(|&status| {
                object.noted(name, status.into());
            })?),
        };
        let outcome = object.call(name, body);
        if let Some(target) = target {
            target.set(match &outcome {
                Err(Trouble::Refused(refusal)) => RefusalRecord::of(refusal, target.bytes()),
                _ => RefusalRecord::none(target.bytes()),
            });
        }
        outcome.map_err(|trouble| trouble.status())
    }))
}

/// A call that the executor answers in any case.
fn ask(executor: ExecutorNumber, name: &'static str, body: impl FnOnce(&ExecutorObject) -> Outcome<()>) -> StatusCode {
    // SAFETY: nothing is pointed to.
    unsafe { call(executor, name, core::ptr::null_mut(), |object| Ok(body(object)?)) }
}

/// A call that answers with a receipt.
///
/// # Safety
/// As [`call`]; `receipt` likewise.
unsafe fn receive(
    executor: ExecutorNumber,
    name: &'static str,
    (receipt, refusal): (*mut ReceiptRecord, *mut RefusalRecord),
    body: impl FnOnce(&ExecutorObject) -> Result<Receipt, Trouble>,
) -> StatusCode {
    let body = |object: &ExecutorObject| {
        let target = match receipt.is_null() {
            true => None,
            // SAFETY: the promise of this function.
            false => Some(unsafe { sized_out(receipt) }?),
        };
        let answer = body(object)?;
        if let Some(target) = target {
            target.set(ReceiptRecord::of(&answer, target.bytes()));
        }
        Ok(())
    };
    // SAFETY: the promise of this function.
    unsafe { call(executor, name, refusal, body) }
}

/// What the executor is. Set `info->struct_size` before the call.
///
/// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_REJECT_BAD_STRUCT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_executor_info(executor: ExecutorNumber, info: *mut ExecutorInfo) -> StatusCode {
    ask(executor, "ictus_executor_info", |object| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let target = unsafe { sized_out(info) }?;
        target.set(ExecutorInfo::of(object.executor.info(), target.bytes()));
        Ok(())
    })
}

/// Why a feature (`ICTUS_FEATURE_*`) is not offered; empty for one that is.
///
/// `*bytes`: the length without the NUL that follows, also when it does not fit into `capacity`.
/// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_REJECT_BOUNDS` (no feature), `ICTUS_ERR_BUFFER_TOO_SMALL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_executor_absent(
    executor: ExecutorNumber,
    feature: u32,
    text: *mut c_char,
    capacity: u64,
    bytes: *mut u64,
) -> StatusCode {
    ask(executor, "ictus_executor_absent", |object| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let text = unsafe { buffer(text.cast::<u8>(), capacity) }?;
        // SAFETY: as above.
        let bytes = unsafe { out(bytes) }?;
        let wanted = self::feature(feature)?;
        let absent = object.executor.info().absent.iter().find(|(feature, _)| *feature == wanted);
        Ok(hand_over_text(absent.map_or("", |(_, why)| why).as_bytes(), &text, bytes)?)
    })
}

/// Bytes for so many sequences of so many tokens each, run in batches of `batch_tokens`.
///
/// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_REJECT_BOUNDS` (they do not fit 64 bits).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_executor_estimate(
    executor: ExecutorNumber,
    sequences: u64,
    tokens_each: u64,
    batch_tokens: u64,
    bytes: *mut u64,
) -> StatusCode {
    ask(executor, "ictus_executor_estimate", |object| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let target = unsafe { out(bytes) }?;
        let bytes = object.executor.info().estimate(sequences, tokens_each, batch_tokens);
        target.set(bytes.ok_or(Status::RejectBounds)?);
        Ok(())
    })
}

/// What has happened so far. Set `stats->struct_size` before the call.
///
/// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_REJECT_BAD_STRUCT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_executor_stats(executor: ExecutorNumber, stats: *mut ExecutorStats) -> StatusCode {
    ask(executor, "ictus_executor_stats", |object| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let target = unsafe { sized_out(stats) }?;
        target.set(ExecutorStats::of(&object.executor.stats(), target.bytes()));
        Ok(())
    })
}

/// Copies the text of the last failed call on the executor, empty when there was none.
///
/// `*bytes`: the length without the NUL that follows, also when it does not fit into `capacity`.
/// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_ERR_BUFFER_TOO_SMALL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_executor_last_error(
    executor: ExecutorNumber,
    text: *mut c_char,
    capacity: u64,
    bytes: *mut u64,
) -> StatusCode {
    code(handle::executor(executor.addr()).and_then(|object| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let text = unsafe { buffer(text.cast::<u8>(), capacity) }?;
        // SAFETY: as above.
        let bytes = unsafe { out(bytes) }?;
        let said = match &*lock(&object.last) {
            Some((name, Trouble::Before(failure))) => format!("{name}: {failure}"),
            Some((name, Trouble::Refused(refusal))) => format!("{name}: {refusal} [{}]", status_of(refusal)),
            None => String::new(),
        };
        hand_over_text(said.as_bytes(), &text, bytes)
    }))
}

/// Does cold work before the first request, and leaves everything as it was; once.
///
/// It waits for steps under way. `refusal` may be NULL; else set its `struct_size`.
/// Threads: any. Codes: as `ictus_executor_run`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_executor_prepare(executor: ExecutorNumber, refusal: *mut RefusalRecord) -> StatusCode {
    let body = |object: &ExecutorObject| Ok(object.executor.prepare()?);
    // SAFETY: the caller's pointer, as the module's documentation asks.
    unsafe { call(executor, "ictus_executor_prepare", refusal, body) }
}

/// Admits a sequence: one slot, and the block of its first token. It waits for nobody.
///
/// `refusal` may be NULL; else set its `struct_size`: it is written by every call that found the executor, with `ICTUS_REFUSAL_NONE` where
/// the executor refused nothing. Owner: `*seq` is data; the sequence lives until it is closed.
/// Threads: any. Codes: `ICTUS_NEEDS_REPLAN` (blocked: the refusal says what is short, and its ticket what to wait for),
/// `ICTUS_REJECT_BUDGET` (never), `ICTUS_REJECT_BOUNDS` (a token, a length, a number), `ICTUS_REJECT_ILLEGAL_COMBINATION` (a pressure other than to
/// wait or to recompute), `ICTUS_ERR_UNKNOWN_HANDLE` (no such executor, or shut down), `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_ERR_FATAL` (broken).
/// Nothing is kept then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_executor_admit(
    executor: ExecutorNumber,
    source: *const AdmissionRecord,
    seq: *mut ExecutorSeq,
    refusal: *mut RefusalRecord,
) -> StatusCode {
    let body = |object: &ExecutorObject| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let source = unsafe { versioned(source) }?;
        // SAFETY: as above.
        let target = unsafe { out(seq) }?;
        // SAFETY: as above; so are the lists of the record.
        let admitted = object.executor.admit(&unsafe { admission(&source) }?)?;
        target.set(admitted.into());
        Ok(())
    };
    // SAFETY: as above.
    unsafe { call(executor, "ictus_executor_admit", refusal, body) }
}

/// Makes one bounded attempt to install what a refusal with `ICTUS_REMEDY_GROW` lacked; a receipt that gained nothing says that somebody
/// else has grown it.
///
/// It trusts no number of `blocked`, and may wait for steps under way. `receipt` and `refusal` may be NULL; else set their `struct_size`.
/// Threads: any. Codes: `ICTUS_NEEDS_REPLAN` (nothing could be installed), `ICTUS_REJECT_BUDGET` (never),
/// `ICTUS_REJECT_ILLEGAL_COMBINATION` (another remedy), `ICTUS_ERR_IDENTITY_MISMATCH` (of another executor), `ICTUS_REJECT_BOUNDS` (no evidence).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_executor_grow(
    executor: ExecutorNumber,
    blocked: *const BlockedRecord,
    receipt: *mut ReceiptRecord,
    refusal: *mut RefusalRecord,
) -> StatusCode {
    let body = |object: &ExecutorObject| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let blocked = unsafe { versioned(blocked) }?.blocked()?;
        Ok(object.executor.grow(blocked)?)
    };
    // SAFETY: as above.
    unsafe { receive(executor, "ictus_executor_grow", (receipt, refusal), body) }
}

/// Tokens of a sequence that are committed.
///
/// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (the executor, or a sequence that is closed), `ICTUS_ERR_IDENTITY_MISMATCH` (of another executor),
/// `ICTUS_REJECT_BAD_STRUCT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_executor_frontier(
    executor: ExecutorNumber,
    seq: ExecutorSeq,
    tokens: *mut u64,
) -> StatusCode {
    let body = |object: &ExecutorObject| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let target = unsafe { out(tokens) }?;
        target.set(object.executor.frontier(seq.into())? as u64);
        Ok(())
    };
    // SAFETY: nothing else is pointed to.
    unsafe { call(executor, "ictus_executor_frontier", core::ptr::null_mut(), body) }
}

/// Cuts a sequence to `tokens`, and gives back what it does not need for them; at its frontier, what was reserved.
///
/// `receipt` and `refusal` may be NULL; else set their `struct_size`.
/// Threads: any. Codes: those of `ictus_executor_frontier`; `ICTUS_REJECT_BOUNDS` (past the frontier), `ICTUS_EBUSY` (a run has it),
/// `ICTUS_REJECT_ILLEGAL_COMBINATION` (it has faulted), `ICTUS_ERR_OP_UNSUPPORTED` (the state of this model cannot be cut).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_executor_truncate(
    executor: ExecutorNumber,
    seq: ExecutorSeq,
    tokens: u64,
    receipt: *mut ReceiptRecord,
    refusal: *mut RefusalRecord,
) -> StatusCode {
    let body = |object: &ExecutorObject| {
        // More than memory has is past any frontier.
        let len = usize::try_from(tokens).unwrap_or(usize::MAX);
        Ok(object.executor.truncate(seq.into(), len)?)
    };
    // SAFETY: the caller's pointers, as the module's documentation asks.
    unsafe { receive(executor, "ictus_executor_truncate", (receipt, refusal), body) }
}

/// What a sequence holds now, into 7 amounts by domain, from `ICTUS_DOMAIN_SLOTS` on: its slot, its own blocks, its run.
///
/// Threads: any. Codes: as `ictus_executor_frontier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_executor_held(
    executor: ExecutorNumber,
    seq: ExecutorSeq,
    units: *mut u64,
) -> StatusCode {
    let body = |object: &ExecutorObject| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let target = unsafe { out(units.cast::<[u64; 7]>()) }?;
        target.set(object.executor.held(seq.into())?);
        Ok(())
    };
    // SAFETY: nothing else is pointed to.
    unsafe { call(executor, "ictus_executor_held", core::ptr::null_mut(), body) }
}

/// What closing all of these sequences together would free, into 7 amounts by domain, from `ICTUS_DOMAIN_SLOTS` on.
///
/// What sequences share counts only where the last of them is named too; one that a run has, or that has faulted, counts nothing.
/// Threads: any. Codes: as `ictus_executor_frontier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_executor_frees(
    executor: ExecutorNumber,
    seqs: *const ExecutorSeq,
    n_seqs: u64,
    units: *mut u64,
) -> StatusCode {
    let body = |object: &ExecutorObject| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let seqs = unsafe { list(seqs, n_seqs) }?;
        // SAFETY: as above.
        let target = unsafe { out(units.cast::<[u64; 7]>()) }?;
        let seqs: Vec<Seq> = seqs.iter().map(|&seq| seq.into()).collect();
        target.set(object.executor.frees(&seqs)?);
        Ok(())
    };
    // SAFETY: nothing else is pointed to.
    unsafe { call(executor, "ictus_executor_frees", core::ptr::null_mut(), body) }
}

/// Ends a sequence, exactly once. `end`: `ICTUS_END_*`; `prompt` and `output` are the tokens of an answer that is complete, else not looked at.
///
/// A sequence that a run has may be cancelled or failed: `receipt->pending` is nonzero then, nothing is freed yet, and its ticket can be waited on.
/// `receipt` and `refusal` may be NULL; else set their `struct_size`.
/// Threads: any. Codes: those of `ictus_executor_frontier`; `ICTUS_EBUSY` (a run has it), `ICTUS_REJECT_ILLEGAL_COMBINATION` (it has faulted),
/// `ICTUS_ERR_OUT_OF_BOUNDARY` (its prompt is not done), `ICTUS_REJECT_BOUNDS` (no end, or a usage that cannot be). It stays open then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_executor_close(
    executor: ExecutorNumber,
    seq: ExecutorSeq,
    end: u32,
    prompt: u64,
    output: u64,
    receipt: *mut ReceiptRecord,
    refusal: *mut RefusalRecord,
) -> StatusCode {
    let body = |object: &ExecutorObject| Ok(object.executor.close(seq.into(), ending(end, prompt, output)?)?);
    // SAFETY: the caller's pointers, as the module's documentation asks.
    unsafe { receive(executor, "ictus_executor_close", (receipt, refusal), body) }
}

/// Ends everything, once: waits resolve, idle sequences are closed as cancelled, running ones are waited for. A second call says the same.
///
/// `receipt` and `refusal` may be NULL; else set their `struct_size`.
/// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_EBUSY` (called from inside one of its own steps), `ICTUS_ERR_FATAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_executor_shutdown(
    executor: ExecutorNumber,
    receipt: *mut ReceiptRecord,
    refusal: *mut RefusalRecord,
) -> StatusCode {
    let body = |object: &ExecutorObject| Ok(object.executor.shutdown()?);
    // SAFETY: the caller's pointers, as the module's documentation asks.
    unsafe { receive(executor, "ictus_executor_shutdown", (receipt, refusal), body) }
}

/// A narrower width to try instead of `tokens`; 0 for a width of one. A pure function of the evidence.
///
/// Threads: any. Codes: `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_REJECT_BOUNDS` (no evidence).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_blocked_narrower(
    blocked: *const BlockedRecord,
    tokens: u64,
    narrower: *mut u64,
) -> StatusCode {
    without_model(|| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let blocked = unsafe { versioned(blocked) }?.blocked()?;
        // SAFETY: as above.
        let target = unsafe { out(narrower) }?;
        let tokens = usize::try_from(tokens).map_err(|_| Status::RejectBounds)?;
        target.set(blocked.narrower(tokens).unwrap_or(0) as u64);
        Ok(())
    })
}
