#![forbid(unsafe_code)]
//! One engine, one pool, one ledger; two facades.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::info::{Info, bit};
use super::run::{Scratch, Workshop};
use super::stats::{CoreState, Counters, Stats};
use super::table::Table;
use super::tick_host::TickHost;
use super::turnstile::{Turn, Turnstile};
use super::{Admission, End, Fit, ModelExecutor, Row, Seq, Work};
use crate::capacity::{Bad, Blocked, Capacity, Domain, Feature, Ledger, NOTHING, Receipt, Refusal, Units};
use crate::executor::{Chores, Executor};
use crate::runtime::{Descriptor, ROWS_MAX, Runtime};

/// How a core serves its facade; 0 is the documented default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreOptions {
    /// Whether a batch may mix chunks, decodes and verifications.
    pub mixed: bool,
    /// Items of one batch; 0 is the runtime's.
    pub max_items: u32,
    /// Tokens of one batch of several items; 0 is one longest sequence and an item of each other.
    pub max_batch_tokens: u64,
    /// Bytes of workspace that every batch is charged, and every tick.
    pub workspace_bytes: u64,
    /// Bytes of workspace that a batch is charged per token, and a tick per prompt token and per lane that decodes.
    pub workspace_token_bytes: u64,
    /// Bytes that are there whatever is admitted; for [`Info`].
    pub static_bytes: u64,
}

impl Default for CoreOptions {
    fn default() -> Self {
        Self {
            mixed: true,
            max_items: 0,
            max_batch_tokens: 0,
            workspace_bytes: 0,
            workspace_token_bytes: 0,
            static_bytes: 0,
        }
    }
}

/// Why a core could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CoreError {
    /// More items than a step of the runtime takes.
    #[error("{items} items in a batch, the runtime takes {most}")]
    Items {
        /// Items asked for.
        items: u32,
        /// Most that the runtime takes.
        most: u32,
    },
    /// More workspace than can be installed.
    #[error("{bytes} bytes of workspace installed, at most {most} can be")]
    Arena {
        /// Bytes installed at first.
        bytes: u64,
        /// Most that can be installed.
        most: u64,
    },
    /// What a core has installed does not fit.
    #[error("what the core has installed exceeds its budget, or what the account has left")]
    Memory,
    /// The runtime has no vocabulary, or no room for a token.
    #[error("the runtime serves no token")]
    Empty,
}

/// One engine, one pool, one prefix cache, one [`Capacity`]: what a [`ModelExecutor`] and a tick host share. A copy is the same core.
#[derive(Debug)]
pub struct Core<R> {
    shared: Arc<Shared<R>>,
}

impl<R> Clone for Core<R> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

/// What the parts of a core share.
#[derive(Debug)]
pub(super) struct Shared<R> {
    pub(super) info: Info,
    pub(super) options: CoreOptions,
    pub(super) ledger: Ledger,
    pub(super) capacity: Capacity,
    pub(super) submission: Turnstile<Submission<R>>,
    pub(super) table: Mutex<Table>,
    /// A run has ended.
    pub(super) landed: Condvar,
    /// What the next submission does first.
    pub(super) chores: Chores,
    pub(super) counters: Counters,
    /// Lists of calls, used again.
    pub(super) scratches: Mutex<Vec<Scratch>>,
    pub(super) traits: Traits,
    /// The runtime is broken: nothing runs any more.
    pub(super) broken: AtomicBool,
    pub(super) prepared: AtomicBool,
    /// The tick host is out.
    pub(super) lent: AtomicBool,
}

/// What one submission at a time works with.
#[derive(Debug)]
pub(super) struct Submission<R> {
    pub(super) executor: Executor<R>,
    pub(super) workshop: Workshop,
}

/// The runtime panicked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Panicked;

/// What of the runtime decides how items are stepped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    /// Rows that one feed may want.
    pub(super) rows_max: usize,
    /// Plain greedy tokens are picked in the step.
    pub(super) picks: bool,
    pub(super) cuts: bool,
    /// Prefixes may be shared, and completed sequences left behind as entries.
    pub(super) reuses: bool,
    pub(super) vocab: u32,
    pub(super) block: u64,
}

impl<R: Runtime + Send + 'static> Core<R> {
    /// A core around an executor, which it takes over: its lanes go on under [`Core::tick_host`].
    ///
    /// # Errors
    /// An option out of range; the executor is gone.
    pub fn new(executor: Executor<R>, options: CoreOptions) -> Result<Self, CoreError> {
        let descriptor = executor.descriptor().clone();
        if descriptor.vocab_size == 0 || descriptor.max_seq_len == 0 || descriptor.max_batch == 0 {
            return Err(CoreError::Empty);
        }
        if options.max_items > descriptor.max_batch {
            return Err(CoreError::Items { items: options.max_items, most: descriptor.max_batch });
        }
        let traits = Traits {
            rows_max: if descriptor.verify_rows { ROWS_MAX } else { 1 },
            // A row that the step could not pick from is asked for again, which takes a cut.
            picks: descriptor.sampling.greedy && descriptor.truncate_partial,
            cuts: descriptor.truncate_partial,
            reuses: descriptor.truncate_partial && descriptor.copy_shares_cells,
            vocab: descriptor.vocab_size,
            block: u64::from(descriptor.cell_granule_tokens.max(1)),
        };
        let mut executor =
            executor.waking_later().charging_workspace(options.workspace_bytes, options.workspace_token_bytes);
        let ledger = executor.ledger().clone();
        let capacity = ledger.capacity().clone();
        let info = describe(&descriptor, &options, &traits, &ledger);
        // Part of the coordinator's number; 0 would be no core.
        let core = (capacity.id().get() as u32).max(1);
        let shared = Shared {
            info,
            options,
            chores: executor.admit_guests(),
            ledger,
            capacity,
            submission: Turnstile::new(Submission { executor, workshop: Workshop::default() }),
            table: Mutex::new(Table::new(core)),
            landed: Condvar::new(),
            counters: Counters::default(),
            scratches: Mutex::default(),
            traits,
            broken: AtomicBool::new(false),
            prepared: AtomicBool::new(false),
            lent: AtomicBool::new(false),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The facade for hosts that own their scheduler.
    pub fn executor(&self) -> Arc<dyn ModelExecutor> {
        Arc::clone(&self.shared) as Arc<dyn ModelExecutor>
    }

    /// The engine for a host that ticks; none while another handle is out, because a plan's number and its lanes are one host's.
    pub fn tick_host(&self) -> Option<TickHost<R>> {
        let free = !self.shared.lent.swap(true, Ordering::AcqRel);
        free.then(|| TickHost::new(Arc::clone(&self.shared)))
    }

    /// Looks at the executor, or tells its runtime something, while no step runs. Moving sequences breaks the core.
    pub fn inspect<T>(&self, look: impl FnOnce(&mut Executor<R>) -> T) -> T {
        let mut turn = self.shared.submit();
        let seen = look(&mut turn.executor);
        let woken = turn.executor.settle_guests(&NOTHING, 0);
        drop(turn);
        drop(woken);
        seen
    }
}

impl<R> Shared<R> {
    /// A panic under this lock leaves numbers that the ledger does not know of; they stay counted as used.
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Runtime> Shared<R> {
    /// A turn to submit, with all chores done: the pool has what the ledger says.
    pub(super) fn submit(&self) -> Turn<'_, Submission<R>> {
        let mut turn = self.submission.enter();
        turn.executor.do_chores();
        turn
    }

    /// Work on the engine that may run code of the runtime: one that panics is broken from then on, and nothing runs any more.
    ///
    /// # Errors
    /// It panicked; what it was changing is half changed.
    pub(super) fn contain<T>(
        &self,
        inside: &mut Submission<R>,
        work: impl FnOnce(&mut Submission<R>) -> T,
    ) -> Result<T, Panicked> {
        catch_unwind(AssertUnwindSafe(|| work(inside))).map_err(|payload| {
            // Dropping a payload runs code of whoever panicked, which may panic again.
            std::mem::forget(payload);
            inside.executor.break_down();
            self.broken.store(true, Ordering::Release);
            Panicked
        })
    }

    /// Does the chores now if nobody submits; whoever does so will.
    pub(super) fn tidy(&self) {
        if let Some(mut turn) = self.submission.try_enter() {
            let woken = turn.executor.settle_guests(&NOTHING, 0);
            drop(turn);
            drop(woken);
        }
    }

    /// Refuses what comes after shutdown, or after the runtime broke.
    pub(super) fn check_open(&self, table: &Table) -> Result<(), Refusal> {
        if table.closing {
            return Err(Refusal::bad(Bad::Closed));
        }
        if self.broken.load(Ordering::Acquire) { Err(Refusal::bad(Bad::Poisoned)) } else { Ok(()) }
    }

    /// Refuses a call from inside a step, as in a callback: it would wait for the step that waits for it.
    pub(super) fn check_outside(&self) -> Result<(), Refusal> {
        if self.submission.is_entered_here() { Err(Refusal::bad(Bad::Busy)) } else { Ok(()) }
    }

    fn state(&self) -> CoreState {
        let table = self.table();
        match (table.closing, self.broken.load(Ordering::Acquire), table.in_flight) {
            (true, ..) => CoreState::Closing,
            (_, true, _) => CoreState::Faulted,
            (_, _, 0) => CoreState::Ready,
            _ => CoreState::Busy,
        }
    }
}

impl<R: Runtime + Send + 'static> ModelExecutor for Shared<R> {
    fn info(&self) -> &Info {
        &self.info
    }

    fn stats(&self) -> Stats {
        let waiters = self.capacity.waiters() as u64;
        self.counters.read(self.state(), waiters, self.capacity.accounting_faults())
    }

    fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    fn prepare(&self) -> Result<(), Refusal> {
        self.check_outside().and_then(|()| self.warm_up()).inspect_err(|refusal| self.counters.refused(refusal))
    }

    fn admit(&self, admission: &Admission<'_>) -> Result<Seq, Refusal> {
        self.admit_one(admission).inspect_err(|refusal| self.counters.refused(refusal))
    }

    fn grow(&self, blocked: Blocked) -> Result<Receipt, Refusal> {
        self.check_outside()
            .and_then(|()| self.grow_once(&blocked))
            .inspect_err(|refusal| self.counters.refused(refusal))
    }

    fn reserve(&self, work: &[Work<'_>], fit: Fit) -> Result<Receipt, Refusal> {
        self.reserve_blocks(work, fit).inspect_err(|refusal| self.counters.refused(refusal))
    }

    fn run(&self, work: &[Work<'_>], rows: &mut Vec<Row>) -> Result<(), Refusal> {
        self.check_outside()
            .and_then(|()| self.run_batch(work, rows))
            .inspect_err(|refusal| self.counters.refused(refusal))
    }

    fn frontier(&self, seq: Seq) -> Result<usize, Refusal> {
        self.frontier_of(seq)
    }

    fn truncate(&self, seq: Seq, len: usize) -> Result<Receipt, Refusal> {
        self.cut(seq, len).inspect_err(|refusal| self.counters.refused(refusal))
    }

    fn held(&self, seq: Seq) -> Result<Units, Refusal> {
        self.held_by(seq)
    }

    fn frees(&self, seqs: &[Seq]) -> Result<Units, Refusal> {
        self.freed_by(seqs)
    }

    fn close(&self, seq: Seq, end: End) -> Result<Receipt, Refusal> {
        self.end(seq, end).inspect_err(|refusal| self.counters.refused(refusal))
    }

    fn shutdown(&self) -> Result<Receipt, Refusal> {
        self.check_outside().and_then(|()| self.end_all())
    }
}

fn describe(descriptor: &Descriptor, options: &CoreOptions, traits: &Traits, ledger: &Ledger) -> Info {
    let max_items = if options.max_items == 0 { descriptor.max_batch } else { options.max_items };
    let all = descriptor.max_seq_len.saturating_add(u64::from(max_items));
    let reasons = [
        (Feature::Mixed, options.mixed, "the core was made to keep kinds apart"),
        (Feature::Verify, true, ""),
        (Feature::Truncate, traits.cuts, "the state of this model cannot be cut"),
        (Feature::GreedyDevice, traits.picks, "the runtime picks no tokens"),
        (
            Feature::Grow,
            ledger.total(Domain::Workspace) != u64::MAX,
            "the pool is made with the runtime, and nothing bounds the workspace",
        ),
        (Feature::Export, false, "state leaves through the operations of the tick engine"),
        (Feature::Reuse, traits.reuses, "sequences of this runtime share no pages"),
    ];
    let offered = reasons.iter().filter(|(_, has, _)| *has);
    Info {
        max_sequences: if descriptor.max_seqs == 0 { u64::MAX } else { descriptor.max_seqs.into() },
        max_tokens: descriptor.max_seq_len,
        max_items: max_items.into(),
        max_batch_tokens: if options.max_batch_tokens == 0 { all } else { options.max_batch_tokens },
        block_tokens: traits.block,
        blocks: if descriptor.cells_total == 0 { u64::MAX } else { descriptor.cells_total / traits.block },
        vocab: descriptor.vocab_size,
        kv_bits: descriptor.kv_bits,
        device: descriptor.backend.clone(),
        architecture: descriptor.architecture.clone(),
        features: offered.fold(0, |bits, &(feature, ..)| bits | bit(feature)),
        absent: reasons.iter().filter(|(_, has, _)| !has).map(|&(feature, _, why)| (feature, why)).collect(),
        static_bytes: options.static_bytes,
        token_bytes: descriptor.kv_bytes_per_token.max(1),
        sequence_bytes: 0,
        workspace_bytes: options.workspace_bytes,
        workspace_token_bytes: options.workspace_token_bytes,
    }
}
