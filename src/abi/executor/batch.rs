//! Batches across the boundary: an array of items in, a row per item out.
//!
//! # Invariants
//! - Room for all that the items may yield is checked before anything runs.
//! - Lists are kept between calls, so that a steady run allocates nothing here.

use super::convert::{fit, item, logits, row, yields};
use super::records::{ReceiptRecord, RefusalRecord, RowRecord, WorkRecord};
use super::{ExecutorNumber, ExecutorObject, Trouble, call, lock, receive};
use crate::abi::bundle::StatusCode;
use crate::abi::guard::{Buffer, Outcome, buffer};
use crate::facade::{Logits, Out, Row, Work};
use crate::record::view::Unbounded;
use crate::record::{Array, Status};

/// Lists of calls that are kept, at most.
const SCRATCHES_MAX: usize = 16;

/// Lists of one call.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    work: Vec<Work<'static>>,
    logits: Vec<Logits>,
    /// Of each item, where its logits are; past the end it is the plain greedy token.
    places: Vec<usize>,
    rows: Vec<Row>,
}

impl ExecutorObject {
    /// A batch from C, and the lists of rows, for the length of `body`.
    ///
    /// # Safety
    /// The array is readable as it says; so are the lists of its items and of their logits.
    unsafe fn with_work(
        &self,
        array: &Array,
        body: impl FnOnce(&[Work<'_>], &mut Vec<Row>) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        let mut scratch = lock(&self.scratches).pop().unwrap_or_default();
        // SAFETY: the promise of this function.
        let outcome = unsafe { scratch.fill(array) }.map(|records| {
            let Scratch { work: spare, logits, places, rows } = &mut scratch;
            let mut work: Vec<Work<'_>> = std::mem::take(spare);
            let listed = || -> Outcome<()> {
                for (record, place) in records.zip(places.iter()) {
                    let wanted = logits.get(*place).unwrap_or(&self.plain);
                    // SAFETY: as above.
                    work.push(unsafe { item(&record, wanted) }?);
                }
                Ok(())
            };
            let outcome = listed().map_err(Trouble::from).and_then(|()| body(&work, rows));
            work.clear();
            // Collecting from a vector's own iterator keeps its memory.
            *spare = work.into_iter().map_while(|_| None).collect();
            outcome
        });
        scratch.logits.clear();
        let mut kept = lock(&self.scratches);
        if kept.len() < SCRATCHES_MAX {
            kept.push(scratch);
        }
        outcome?
    }
}

impl Scratch {
    /// Lists what the items want of their rows; items that name the same record one after another share it.
    ///
    /// # Safety
    /// As [`ExecutorObject::with_work`], while `'a` lasts.
    unsafe fn fill<'a>(&mut self, array: &Array) -> Outcome<impl Iterator<Item = WorkRecord> + use<'a>> {
        /// What C memory is read through.
        struct Trusted;
        impl Trusted {
            /// # Safety
            /// As [`Unbounded::new`].
            const unsafe fn memory<'a>() -> &'a Unbounded<'a> {
                // SAFETY: the promise of this function.
                const { &unsafe { Unbounded::new() } }
            }
        }
        // SAFETY: the caller promises it for `'a`.
        let records = array.elements::<WorkRecord>(unsafe { Trusted::memory::<'a>() })?;
        self.logits.clear();
        self.places.clear();
        let mut last = core::ptr::null();
        for record in records.clone() {
            if record.logits.is_null() {
                self.places.push(usize::MAX);
                continue;
            }
            if record.logits != last {
                // SAFETY: as above.
                self.logits.push(unsafe { logits(record.logits) }?);
                last = record.logits;
            }
            self.places.push(self.logits.len() - 1);
        }
        Ok(records)
    }
}

/// Claims the blocks that a batch will need, and runs none of it. `fit`: what has to be free besides (`ICTUS_FIT_*`).
///
/// `work`: an array of `ictus_work_t`. `receipt` and `refusal` may be NULL; else set their `struct_size`.
/// Threads: any. Codes: as `ictus_executor_run`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_executor_reserve(
    executor: ExecutorNumber,
    work: Array,
    fit: u32,
    receipt: *mut ReceiptRecord,
    refusal: *mut RefusalRecord,
) -> StatusCode {
    let body = |object: &ExecutorObject| {
        let fit = self::fit(fit)?;
        let mut reserved = Err(Status::Fatal.into());
        let reserve = |work: &[Work<'_>], _: &mut Vec<Row>| {
            reserved = object.executor.reserve(work, fit).map_err(Trouble::from);
            Ok(())
        };
        // SAFETY: the caller's array, as the module's documentation asks.
        unsafe { object.with_work(&work, reserve) }?;
        reserved
    };
    // SAFETY: the caller's pointers, as the module's documentation asks.
    unsafe { receive(executor, "ictus_executor_reserve", (receipt, refusal), body) }
}

/// Runs a batch in one pass. `rows` gets one row per item, in their order.
///
/// `work`: an array of `ictus_work_t`. Tokens go to `tokens`, values of logits to `logits`, each row's behind those of the row before; a row says
/// where. Room is needed for a row per item, and per row that an item may yield (1 of a decode or of a chunk that ends its context, one
/// per token of a verification) for a token where one is selected, or for `vocab` values where all are wanted.
/// `refusal` may be NULL; else set its `struct_size`. It waits for steps under way.
/// Threads: any; runs of different sequences may be under way at once. After `ICTUS_STATUS_OK` trouble is a row's own: `ICTUS_OUT_FAULT`.
/// Codes: those of `ictus_executor_admit`; `ICTUS_ERR_BUFFER_TOO_SMALL`, `ICTUS_ERR_OUT_OF_BOUNDARY` (an item does not start at the frontier of its
/// sequence), `ICTUS_REJECT_DUPLICATE_LANE`, `ICTUS_ERR_IDENTITY_MISMATCH` (a sequence of another executor), `ICTUS_ERR_OP_UNSUPPORTED` (the mixture, or
/// so many), `ICTUS_EBUSY` (called from inside one of its own steps), the statuses of arrays. Nothing ran then, and every sequence is where
/// it was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_executor_run(
    executor: ExecutorNumber,
    work: Array,
    rows: *mut RowRecord,
    row_capacity: u64,
    tokens: *mut u32,
    token_capacity: u64,
    logits: *mut f32,
    logit_capacity: u64,
    refusal: *mut RefusalRecord,
) -> StatusCode {
    let body = |object: &ExecutorObject| {
        let target = Target {
            // SAFETY: the caller's pointer, as the module's documentation asks.
            rows: unsafe { buffer(rows, row_capacity) }?,
            // SAFETY: as above.
            tokens: unsafe { buffer(tokens, token_capacity) }?,
            // SAFETY: as above.
            logits: unsafe { buffer(logits, logit_capacity) }?,
        };
        let run = |work: &[Work<'_>], rows: &mut Vec<Row>| {
            target.check(work, object.executor.info().vocab as usize)?;
            object.executor.run(work, rows)?;
            Ok(target.fill(rows)?)
        };
        // SAFETY: as above.
        unsafe { object.with_work(&work, run) }
    };
    // SAFETY: as above.
    unsafe { call(executor, "ictus_executor_run", refusal, body) }
}

/// Where the rows of a run go.
struct Target {
    rows: Buffer<RowRecord>,
    tokens: Buffer<u32>,
    logits: Buffer<f32>,
}

impl Target {
    /// Whether there is room for all that the items may yield.
    fn check(&self, work: &[Work<'_>], vocab: usize) -> Result<(), Status> {
        let (mut tokens, mut values) = (0usize, 0usize);
        for item in work {
            let (of_tokens, of_values) = yields(item, vocab);
            tokens = tokens.saturating_add(of_tokens);
            values = values.saturating_add(of_values);
        }
        let fits = self.rows.holds(work.len()) && self.tokens.holds(tokens) && self.logits.holds(values);
        if fits { Ok(()) } else { Err(Status::BufferTooSmall) }
    }

    fn fill(&self, rows: &[Row]) -> Result<(), Status> {
        let (mut tokens, mut values) = (0, 0);
        for (source, at) in rows.iter().zip(0..) {
            let mut record = row(source);
            match &source.out {
                Ok(Out::Tokens(given)) => {
                    record.first = tokens as u64;
                    self.tokens.put(tokens, given)?;
                    tokens += given.len();
                }
                Ok(Out::Logits { data, .. }) => {
                    record.first = values as u64;
                    self.logits.put(values, data)?;
                    values += data.len();
                }
                _ => {}
            }
            self.rows.put(at, &[record])?;
        }
        Ok(())
    }
}
