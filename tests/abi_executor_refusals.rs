//! Every bad argument of every executor function gets its status, twice, and leaves no trace; every refusal comes with its evidence.
//!
//! The core behind them is the real one over the fake runtime: what a refusal must leave alone is real.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "a test calls C functions in a row, all for one reason")]

use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut};

use ictus::abi::constant::executor::{
    admission_flag, bad, end, executor_fault, executor_state, feature, fit, logits, out, refusal, sequence_state, work,
};
use ictus::abi::constant::{domain, lack, remedy};
use ictus::abi::*;
use ictus::engine::PlanBuilder;
use ictus::executor::Executor;
use ictus::facade::{Core, CoreOptions};
use ictus::record::view::{Plain, Record};
use ictus::record::{Array, Status, TickPlan};
use ictus::runtime::FakeRuntime;

const VOCAB: u32 = 64;

/// A core with a pool of `blocks` blocks of 32 tokens, and a handle of it.
fn executor(blocks: u64, options: CoreOptions) -> (Core<FakeRuntime>, ExecutorNumber) {
    let fake = FakeRuntime::with(|options| {
        let descriptor = &mut options.descriptor;
        descriptor.vocab_size = VOCAB;
        descriptor.max_batch = 64;
        descriptor.max_seqs = 4;
        descriptor.page_size_tokens = 32;
        descriptor.cell_granule_tokens = 32;
        descriptor.cells_total = 32 * blocks;
        descriptor.copy_shares_cells = true;
        descriptor.verify_rows = true;
    });
    let core = Core::new(Executor::new(fake), options).expect("the options are legal");
    let handle = adopt_core(core.clone());
    (core, handle)
}

fn sized<T: Record>(set: impl FnOnce(&mut T, u64)) -> T {
    let mut record = T::zeroed();
    set(&mut record, size_of::<T>() as u64);
    record
}

fn refusal_record() -> RefusalRecord {
    sized(|record: &mut RefusalRecord, size| record.struct_size = size)
}

fn receipt_record() -> ReceiptRecord {
    sized(|record: &mut ReceiptRecord, size| record.struct_size = size)
}

fn admission(prompt: &[u32], ceiling: u64) -> AdmissionRecord {
    sized(|record: &mut AdmissionRecord, size| {
        record.struct_size = size;
        record.prompt = prompt.as_ptr();
        record.n_prompt = prompt.len() as u64;
        record.ceiling = ceiling;
    })
}

fn memory(executor: ExecutorNumber) -> [u64; 13] {
    let mut record = sized(|record: &mut MemoryRecord, size| record.struct_size = size);
    // SAFETY: the record is a local.
    assert_eq!(unsafe { ictus_capacity_memory(executor.cast(), &raw mut record) }, 0);
    let MemoryRecord { capacity, usable, device_claimed, own_claimed, static_bytes, resident, resident_free, .. } =
        record;
    let MemoryRecord { growing, quarantined, block_size, blocks_total, blocks_free, blocks_evictable, .. } = record;
    let pages = [block_size, blocks_total, blocks_free, blocks_evictable];
    let bytes =
        [capacity, usable, device_claimed, own_claimed, static_bytes, resident, resident_free, growing, quarantined];
    std::array::from_fn(|at| bytes.iter().chain(&pages).copied().nth(at).unwrap_or(0))
}

#[track_caller]
fn admit(executor: ExecutorNumber, prompt: &[u32], ceiling: u64) -> ExecutorSeq {
    let mut seq = ExecutorSeq::zeroed();
    let source = admission(prompt, ceiling);
    // SAFETY: both records are locals.
    assert_eq!(unsafe { ictus_executor_admit(executor, &raw const source, &raw mut seq, null_mut()) }, 0);
    seq
}

fn prefill(seq: ExecutorSeq, count: u64, total: u64) -> WorkRecord {
    WorkRecord { seq, count, total, kind: work::PREFILL, ..WorkRecord::zeroed() }
}

fn decode(seq: ExecutorSeq, start: u64, token: &u32) -> WorkRecord {
    WorkRecord { seq, start, count: 1, tokens: token, kind: work::DECODE, ..WorkRecord::zeroed() }
}

/// Runs a batch, with room for a token per item and eight besides.
fn run(executor: ExecutorNumber, items: &[WorkRecord], refused: &mut RefusalRecord) -> (i32, Vec<RowRecord>, Vec<u32>) {
    let mut rows = vec![RowRecord::zeroed(); items.len()];
    let mut tokens = vec![u32::MAX; items.len() + 8];
    let (n_rows, n_tokens) = (rows.len() as u64, tokens.len() as u64);
    let array = Array::over(items);
    // SAFETY: all lists are locals, as long as they are said to be.
    let status = unsafe {
        let (rows, tokens) = (rows.as_mut_ptr(), tokens.as_mut_ptr());
        ictus_executor_run(executor, array, rows, n_rows, tokens, n_tokens, null_mut(), 0, refused)
    };
    (status, rows, tokens)
}

/// The call answers with the status, and does so again; memory stays as it was.
#[track_caller]
fn twice(executor: ExecutorNumber, expected: Status, mut call: impl FnMut() -> i32) {
    let before = memory(executor);
    for _ in 0..2 {
        assert_eq!(Status::from_code(call()), Some(expected));
        assert_eq!(memory(executor), before);
    }
}

/// A pointer to `value` off its alignment. It is refused before it is used.
fn off<T>(value: &T) -> *mut T {
    (&raw const *value).cast_mut().wrapping_byte_add(1)
}

fn last_error(executor: ExecutorNumber) -> String {
    let (mut text, mut bytes) = ([0 as c_char; 512], 0u64);
    // SAFETY: 512 bytes are there.
    assert_eq!(unsafe { ictus_executor_last_error(executor, text.as_mut_ptr(), 512, &raw mut bytes) }, 0);
    String::from_utf8(text[..bytes as usize].iter().map(|&byte| byte as u8).collect()).expect("UTF-8")
}

/// A call by name, and the code it answers.
type Call = (&'static str, Box<dyn Fn() -> i32>);

/// All functions on an executor, with arguments that are well-formed.
fn calls_on(executor: ExecutorNumber) -> Vec<Call> {
    fn kept<T>(value: T) -> *mut T {
        Box::leak(Box::new(value))
    }
    macro_rules! calls {
        ($($name:ident($($argument:expr),*);)*) => {
            // SAFETY: the arguments are NULL or outlive the call.
            vec![$((stringify!($name), Box::new(move || unsafe { $name(executor, $($argument),*) }) as Box<dyn Fn() -> i32>)),*]
        };
    }
    let seq = ExecutorSeq { core: 7, slot: 0, generation: 1 };
    calls! {
        ictus_executor_info(kept(sized(|record: &mut ExecutorInfo, size| record.struct_size = size)));
        ictus_executor_absent(feature::GROW, null_mut(), 0, kept(0));
        ictus_executor_estimate(1, 1, 1, kept(0));
        ictus_executor_stats(kept(sized(|record: &mut ExecutorStats, size| record.struct_size = size)));
        ictus_executor_last_error(null_mut(), 0, kept(0));
        ictus_executor_prepare(null_mut());
        ictus_executor_admit(kept(admission(&[1], 2)), kept(ExecutorSeq::zeroed()), null_mut());
        ictus_executor_grow(kept(BlockedRecord::zeroed()), null_mut(), null_mut());
        ictus_executor_reserve(Array::EMPTY, fit::NOW, null_mut(), null_mut());
        ictus_executor_run(Array::EMPTY, null_mut(), 0, null_mut(), 0, null_mut(), 0, null_mut());
        ictus_executor_frontier(seq, kept(0));
        ictus_executor_truncate(seq, 0, null_mut(), null_mut());
        ictus_executor_held(seq, kept([0u64; 7]).cast());
        ictus_executor_frees(null(), 0, kept([0u64; 7]).cast());
        ictus_executor_close(seq, end::FAILED, 0, 0, null_mut(), null_mut());
        ictus_executor_tick_host(kept(null_mut()));
        ictus_executor_shutdown(null_mut(), null_mut());
        ictus_executor_destroy();
    }
}

#[test]
fn handles_that_name_no_executor_are_unknown() {
    let (core, released) = executor(4, CoreOptions::default());
    // SAFETY: a handle is a number.
    assert_eq!(unsafe { ictus_executor_destroy(released) }, 0);
    drop(core);
    let model = adopt_engine(Box::new(Executor::new(FakeRuntime::default())));
    for handle in [null_mut(), released, model.cast(), std::ptr::without_provenance_mut(40)] {
        for (name, call) in calls_on(handle) {
            for _ in 0..2 {
                assert_eq!(Status::from_code(call()), Some(Status::UnknownHandle), "{name} on {handle:?}");
            }
        }
    }
    let (_core, executor) = executor(4, CoreOptions::default());
    let mut number = null_mut();
    // SAFETY: handles are numbers, and the output is a local.
    unsafe {
        // An executor is no model, and no account.
        assert_eq!(ictus_model_free(executor.cast()), Status::UnknownHandle.code());
        assert_eq!(ictus_executor_create(executor.cast(), null(), &raw mut number), Status::UnknownHandle.code());
        assert_eq!(ictus_account_free(executor.cast()), Status::UnknownHandle.code());
        // An engine without a model file has no weights to share.
        assert_eq!(ictus_executor_create(model, null(), &raw mut number), Status::Unsupported.code());
        assert_eq!(ictus_executor_destroy(executor), 0);
        assert_eq!(ictus_model_free(model), 0);
    }
    assert!(number.is_null());
}

#[test]
fn bad_pointers_sizes_and_numbers_are_refused() {
    use Status::{RejectBadAlignment, RejectBadStride, RejectBadStruct, RejectBounds};
    let (_core, executor) = executor(8, CoreOptions::default());
    let seq = admit(executor, &[1, 2, 3], 64);
    let prompt = [1u32, 2, 3];
    let good = admission(&prompt, 8);
    let mut target = ExecutorSeq::zeroed();
    let none: *mut RefusalRecord = null_mut();
    let admit_with = |source: *const AdmissionRecord, target: *mut ExecutorSeq, refused: *mut RefusalRecord| {
        // SAFETY: what is not refused before it is used is a local.
        unsafe { ictus_executor_admit(executor, source, target, refused) }
    };
    twice(executor, RejectBadStruct, || admit_with(null(), &raw mut target, none));
    twice(executor, RejectBadStruct, || admit_with(&raw const good, null_mut(), none));
    twice(executor, RejectBadAlignment, || admit_with(off(&good), &raw mut target, none));
    twice(executor, RejectBadAlignment, || admit_with(&raw const good, off(&target), none));
    let small = RefusalRecord { struct_size: 423, ..RefusalRecord::zeroed() };
    twice(executor, RejectBadStruct, || admit_with(&raw const good, &raw mut target, (&raw const small).cast_mut()));
    twice(executor, RejectBadAlignment, || admit_with(&raw const good, &raw mut target, off(&small)));
    for (source, expected) in [
        (AdmissionRecord { struct_size: 71, ..good }, RejectBadStruct),
        (AdmissionRecord { fit: 3, ..good }, RejectBounds),
        (AdmissionRecord { pressure: 4, ..good }, RejectBounds),
        (AdmissionRecord { flags: admission_flag::REUSE | 4, ..good }, RejectBounds),
        (AdmissionRecord { prompt: null(), ..good }, RejectBadStruct),
        (AdmissionRecord { prompt: off(&prompt[0]), ..good }, RejectBadAlignment),
        (AdmissionRecord { n_prompt: u64::MAX, ..good }, RejectBounds),
        (AdmissionRecord { replayed: null(), n_replayed: 1, ..good }, RejectBadStruct),
        (AdmissionRecord { n_prompt: 0, ..good }, RejectBounds),
        (AdmissionRecord { ceiling: u64::MAX, ..good }, RejectBounds),
        (AdmissionRecord { pressure: remedy::GROW, ..good }, Status::RejectIllegalCombination),
    ] {
        twice(executor, expected, || admit_with(&raw const source, &raw mut target, none));
    }
    assert_eq!(target, ExecutorSeq::zeroed(), "outputs are written on success only");

    let token = 5u32;
    let wanted = sized(|record: &mut LogitsRecord, size| record.struct_size = size);
    let item = prefill(seq, 3, 3);
    let shaped = |record: LogitsRecord| (record, item);
    let mut refused = refusal_record();
    for (item, expected) in [
        (WorkRecord { kind: 3, ..item }, RejectBounds),
        (WorkRecord { count: 0, ..item }, RejectBounds),
        (WorkRecord { total: 2, ..item }, RejectBounds),
        (WorkRecord { start: u64::MAX, ..item }, RejectBounds),
        (WorkRecord { count: 2, ..decode(seq, 3, &token) }, RejectBounds),
        (WorkRecord { count: 0, ..decode(seq, 3, &token) }, RejectBounds),
        (WorkRecord { tokens: null(), ..decode(seq, 3, &token) }, RejectBadStruct),
        (WorkRecord { tokens: off(&token), ..decode(seq, 3, &token) }, RejectBadAlignment),
        (WorkRecord { kind: work::VERIFY, count: u64::MAX, ..decode(seq, 3, &token) }, RejectBounds),
    ] {
        twice(executor, expected, || run(executor, &[item], &mut refused).0);
        assert_eq!(refused.kind, refusal::NONE, "it did not come to the executor");
    }
    let mask = [1u8; 4];
    for ((record, item), expected) in [
        (shaped(LogitsRecord { struct_size: 47, ..wanted }), RejectBadStruct),
        (shaped(LogitsRecord { kind: 2, ..wanted }), RejectBounds),
        (shaped(LogitsRecord { mask: mask.as_ptr(), n_mask: u64::MAX, ..wanted }), RejectBounds),
        (shaped(LogitsRecord { n_penalised: 1, ..wanted }), RejectBadStruct),
        (shaped(LogitsRecord { kind: logits::FULL, mask: mask.as_ptr(), ..wanted }), Status::RejectIllegalCombination),
        (shaped(LogitsRecord { penalty: f32::NAN, ..wanted }), Status::RejectIllegalCombination),
        (shaped(LogitsRecord { penalty: -1.0, ..wanted }), Status::RejectIllegalCombination),
    ] {
        let item = WorkRecord { logits: &raw const record, ..item };
        twice(executor, expected, || run(executor, &[item], &mut refused).0);
    }
    let badly_placed = WorkRecord { logits: off(&wanted), ..item };
    twice(executor, RejectBadAlignment, || run(executor, &[badly_placed], &mut refused).0);

    // Arrays and buffers.
    let items = [item, item];
    let run_array = |array: Array, room: u64| {
        let (mut rows, mut tokens) = ([RowRecord::zeroed(); 2], [0u32; 2]);
        // SAFETY: the lists are locals; a bad array is refused before it is read.
        unsafe {
            ictus_executor_run(executor, array, rows.as_mut_ptr(), room, tokens.as_mut_ptr(), 2, null_mut(), 0, none)
        }
    };
    let good = Array::over(&items[..1]);
    twice(executor, RejectBadStride, || run_array(Array { elem_size: 63, ..good }, 2));
    twice(executor, RejectBadAlignment, || run_array(Array { data: null(), ..good }, 2));
    twice(executor, RejectBadAlignment, || run_array(Array { data: good.data.wrapping_byte_add(4), ..good }, 2));
    twice(executor, Status::BufferTooSmall, || run_array(Array::over(&items), 1));
    // SAFETY: what is not refused before it is used is a local.
    unsafe {
        let mut row = RowRecord::zeroed();
        twice(executor, Status::BufferTooSmall, || {
            ictus_executor_run(executor, good, &raw mut row, 1, null_mut(), 0, null_mut(), 0, none)
        });
        twice(executor, RejectBadStruct, || {
            ictus_executor_run(executor, good, null_mut(), 1, null_mut(), 0, null_mut(), 0, none)
        });
        twice(executor, RejectBounds, || {
            ictus_executor_run(executor, good, &raw mut row, u64::MAX, null_mut(), 0, null_mut(), 0, none)
        });
        let full = LogitsRecord { kind: logits::FULL, ..wanted };
        let item = [WorkRecord { logits: &raw const full, ..item }];
        let mut values = [0f32; VOCAB as usize];
        twice(executor, Status::BufferTooSmall, || {
            let room = u64::from(VOCAB) - 1;
            let (row, values) = (&raw mut row, values.as_mut_ptr());
            ictus_executor_run(executor, Array::over(&item), row, 1, null_mut(), 0, values, room, none)
        });

        // Everything else that has a pointer, a size or a number.
        let (mut number, mut units) = (0u64, [0u64; 7]);
        let receipt = ReceiptRecord { struct_size: 215, ..ReceiptRecord::zeroed() };
        let short = (&raw const receipt).cast_mut();
        twice(executor, RejectBadStruct, || ictus_executor_info(executor, null_mut()));
        let info = ExecutorInfo { struct_size: 175, ..ExecutorInfo::zeroed() };
        twice(executor, RejectBadStruct, || ictus_executor_info(executor, (&raw const info).cast_mut()));
        let stats = ExecutorStats { struct_size: 991, ..ExecutorStats::zeroed() };
        twice(executor, RejectBadStruct, || ictus_executor_stats(executor, (&raw const stats).cast_mut()));
        twice(executor, RejectBadAlignment, || ictus_executor_stats(executor, off(&stats)));
        twice(executor, RejectBounds, || ictus_executor_absent(executor, 9, null_mut(), 0, &raw mut number));
        twice(executor, RejectBadStruct, || ictus_executor_absent(executor, 0, null_mut(), 0, null_mut()));
        twice(executor, RejectBadStruct, || ictus_executor_estimate(executor, 1, 1, 1, null_mut()));
        twice(executor, RejectBounds, || ictus_executor_estimate(executor, u64::MAX, u64::MAX, 1, &raw mut number));
        twice(executor, RejectBadStruct, || ictus_executor_last_error(executor, null_mut(), 0, null_mut()));
        twice(executor, RejectBadStruct, || ictus_executor_frontier(executor, seq, null_mut()));
        twice(executor, RejectBadStruct, || ictus_executor_held(executor, seq, null_mut()));
        twice(executor, RejectBadAlignment, || ictus_executor_held(executor, seq, off(&units[0])));
        twice(executor, RejectBadStruct, || ictus_executor_frees(executor, &raw const seq, 1, null_mut()));
        twice(executor, RejectBadStruct, || ictus_executor_frees(executor, null(), 1, units.as_mut_ptr()));
        twice(executor, RejectBounds, || ictus_executor_frees(executor, &raw const seq, u64::MAX, units.as_mut_ptr()));
        twice(executor, RejectBounds, || ictus_executor_reserve(executor, good, 3, null_mut(), none));
        twice(executor, RejectBadStruct, || ictus_executor_reserve(executor, good, 0, short, none));
        twice(executor, RejectBadStruct, || ictus_executor_truncate(executor, seq, 0, short, none));
        twice(executor, RejectBounds, || ictus_executor_truncate(executor, seq, u64::MAX, null_mut(), none));
        twice(executor, RejectBounds, || ictus_executor_close(executor, seq, 4, 0, 0, null_mut(), none));
        twice(executor, RejectBadStruct, || ictus_executor_close(executor, seq, end::FAILED, 0, 0, short, none));
        twice(executor, RejectBadStruct, || ictus_executor_shutdown(executor, short, none));
        twice(executor, RejectBadStruct, || ictus_executor_grow(executor, null(), null_mut(), none));
        twice(executor, RejectBadStruct, || ictus_executor_tick_host(executor, null_mut()));
        let mut frontier = 9u64;
        assert_eq!(ictus_executor_frontier(executor, seq, &raw mut frontier), 0);
        assert_eq!((frontier, number, units), (0, 0, [0; 7]), "nothing ran, nothing was written");
        assert_eq!(ictus_executor_destroy(executor), 0);
    }
    assert!(Status::from_code(run(executor, &[item], &mut refused).0) == Some(Status::UnknownHandle));
}

/// Evidence that comes back from a host is checked as everything else is.
#[test]
fn evidence_with_numbers_that_name_nothing_is_refused() {
    let (_core, executor) = executor(2, CoreOptions::default());
    let prompt = [1u32; 40];
    let mut refused = refusal_record();
    let mut seq = ExecutorSeq::zeroed();
    let source = AdmissionRecord { fit: fit::CEILING, ..admission(&prompt, 80) };
    // SAFETY: all records are locals.
    unsafe {
        assert_eq!(
            ictus_executor_admit(executor, &raw const source, &raw mut seq, &raw mut refused),
            Status::RejectBudget.code()
        );
    }
    assert_eq!((refused.kind, refused.blocked.n_short), (refusal::NEVER, 1));
    assert_eq!((refused.blocked.short_of[0].lack, refused.blocked.ticket.watch), (lack::NEVER, 0));
    let good = refused.blocked;
    let mut width = 0u64;
    // SAFETY: all records are locals.
    let narrower = |record: &BlockedRecord, width: *mut u64| unsafe { ictus_blocked_narrower(record, 100, width) };
    let with = |change: fn(&mut BlockedRecord)| {
        let mut record = good;
        change(&mut record);
        record
    };
    for (record, expected) in [
        (with(|record| record.struct_size = 399), Status::RejectBadStruct),
        (with(|record| record.n_short = 8), Status::RejectBounds),
        (with(|record| record.remedy = 4), Status::RejectBounds),
        (with(|record| record.short_of[0].domain = 0), Status::RejectBounds),
        (with(|record| record.short_of[0].domain = 8), Status::RejectBounds),
        (with(|record| record.short_of[0].lack = 4), Status::RejectBounds),
        (with(|record| record.ticket.core = 0), Status::RejectBounds),
        (with(|record| record.ticket.watch = 128), Status::RejectBounds),
    ] {
        twice(executor, expected, || narrower(&record, &raw mut width));
        // SAFETY: all records are locals.
        twice(executor, expected, || unsafe {
            ictus_executor_grow(executor, &raw const record, null_mut(), null_mut())
        });
    }
    twice(executor, Status::RejectBadStruct, || narrower(&good, null_mut()));
    assert_eq!((narrower(&good, &raw mut width), width), (0, 66));
    // SAFETY: as above.
    unsafe {
        // Not the remedy; then another core's.
        let refused = refusal_record();
        let call =
            |record: &BlockedRecord| ictus_executor_grow(executor, record, null_mut(), (&raw const refused).cast_mut());
        twice(executor, Status::RejectIllegalCombination, || call(&good));
        let foreign = with(|record| record.ticket.core ^= 1 << 40);
        twice(executor, Status::IdentityMismatch, || call(&foreign));
        assert_eq!(ictus_executor_destroy(executor), 0);
    }
}

/// what the executor refuses, C hears with the same status and evidence, in every kind.
#[test]
fn every_refusal_comes_with_its_evidence() {
    let (_core, executor) = executor(4, CoreOptions { mixed: false, ..CoreOptions::default() });
    let prompt = [3u32; 40];
    let first = admit(executor, &prompt, 64);
    let mut refused = refusal_record();
    assert_eq!(run(executor, &[prefill(first, 40, 40)], &mut refused).0, 0);
    let second = admit(executor, &prompt, 64);
    let (token, foreign) = (1u32, ExecutorSeq { core: first.core ^ 1, ..first });
    let stale = ExecutorSeq { generation: 900, ..first };
    for (items, status, why, at) in [
        (vec![decode(first, 39, &token)], Status::OutOfBoundary, bad::FRONTIER, 0),
        (vec![decode(first, 40, &token), decode(first, 40, &token)], Status::RejectDuplicateLane, bad::DUPLICATE, 1),
        (vec![decode(first, 40, &token), decode(stale, 40, &token)], Status::UnknownHandle, bad::STALE, 1),
        (vec![decode(foreign, 40, &token)], Status::IdentityMismatch, bad::FOREIGN, 0),
        (vec![decode(first, 40, &VOCAB)], Status::RejectBounds, bad::BOUNDS, 0),
    ] {
        twice(executor, status, || run(executor, &items, &mut refused).0);
        assert_eq!((refused.kind, refused.why, refused.at), (refusal::BAD, why, at));
        assert_eq!(refused.blocked.struct_size, 0);
    }
    let mixed = [decode(first, 40, &token), prefill(second, 40, 40)];
    twice(executor, Status::Unsupported, || run(executor, &mixed, &mut refused).0);
    assert_eq!((refused.kind, refused.feature), (refusal::UNSUPPORTED, feature::MIXED));
    assert!(last_error(executor).starts_with("ictus_executor_run: "), "{}", last_error(executor));

    // Short of a block: both need one, one is there... none is, once a third has it.
    let third = admit(executor, &[5], 2);
    let whole = [WorkRecord { whole: 1, ..prefill(second, 40, 40) }];
    twice(executor, Status::NeedsReplan, || run(executor, &whole, &mut refused).0);
    let blocked = refused.blocked;
    assert_eq!((refused.kind, blocked.remedy, blocked.n_short, blocked.fits), (refusal::BLOCKED, remedy::WAIT, 1, 0));
    assert_eq!((blocked.short_of[0].domain, blocked.short_of[0].lack), (domain::BLOCKS, lack::NOW));
    assert_eq!((blocked.short_of[0].need, blocked.short_of[0].free, blocked.short_of[0].total), (1, 0, 4));
    assert_eq!(blocked.ticket.watch, 1 << (domain::BLOCKS - 1));
    let (mut moved, mut receipt) = (7u32, receipt_record());
    // SAFETY: all records are locals.
    unsafe {
        assert_eq!(ictus_capacity_changed(executor.cast(), &raw const blocked.ticket, &raw mut moved), 0);
        assert_eq!(moved, 0, "it is not moved by its own refusal");
        let code = ictus_executor_close(executor, third, end::CANCELLED, 0, 0, &raw mut receipt, &raw mut refused);
        assert_eq!((code, refused.kind), (0, refusal::NONE));
        assert_eq!((receipt.freed[domain::BLOCKS as usize - 1], receipt.decoding), (1, 0));
        assert_eq!(ictus_capacity_changed(executor.cast(), &raw const blocked.ticket, &raw mut moved), 0);
        assert_eq!(moved, 1);
    }
    let (code, rows, tokens) = run(executor, &whole, &mut refused);
    assert_eq!((code, rows[0].kind, rows[0].ran_end, rows[0].count, rows[0].first), (0, out::TOKENS, 40, 1, 0));
    assert!(tokens[0] < VOCAB && tokens[1] == u32::MAX);
    // Usage that cannot be leaves the sequence open.
    // SAFETY: as above.
    unsafe {
        let complete = |prompt, output| {
            ictus_executor_close(executor, first, end::COMPLETED, prompt, output, null_mut(), null_mut())
        };
        twice(executor, Status::RejectBounds, || complete(39, 1));
        assert_eq!(complete(40, 1), 0);
        assert_eq!(complete(40, 1), Status::UnknownHandle.code());
        assert_eq!(ictus_executor_shutdown(executor, &raw mut receipt, null_mut()), 0);
        assert_eq!((receipt.pending, receipt.freed[domain::SLOTS as usize - 1]), (0, 1));
        let source = admission(&prompt, 64);
        let mut seq = ExecutorSeq::zeroed();
        let code = ictus_executor_admit(executor, &raw const source, &raw mut seq, &raw mut refused);
        assert_eq!((code, refused.why), (Status::UnknownHandle.code(), bad::CLOSED));
        assert_eq!(ictus_executor_destroy(executor), 0);
    }
}

/// a runtime that panics is a fault in the row, in C too; the process lives, and the executor can be released.
#[test]
fn xs_60_panic_of_the_runtime_is_a_row_and_no_end_of_the_process() {
    let (core, executor) = executor(4, CoreOptions::default());
    let seq = admit(executor, &[1, 2, 3], 8);
    core.inspect(|executor| executor.primitives_mut().panic_next_step());
    let mut refused = refusal_record();
    let (code, rows, _) = run(executor, &[prefill(seq, 3, 3)], &mut refused);
    assert_eq!((code, rows[0].kind), (0, out::FAULT));
    assert_eq!((rows[0].fault, rows[0].state), (executor_fault::DEVICE, sequence_state::HELD));
    let (code, ..) = run(executor, &[prefill(seq, 3, 3)], &mut refused);
    assert_eq!((Status::from_code(code), refused.why), (Some(Status::Fatal), bad::POISONED));
    let mut stats = sized(|record: &mut ExecutorStats, size| record.struct_size = size);
    // SAFETY: the record is a local.
    unsafe {
        assert_eq!(ictus_executor_stats(executor, &raw mut stats), 0);
        assert_eq!((stats.state, stats.faults[executor_fault::DEVICE as usize]), (executor_state::FAULTED, 1));
        assert_eq!(ictus_executor_destroy(executor), 0);
    }
}

/// What the callback of a tick calls.
struct Inside {
    executor: ExecutorNumber,
    codes: Vec<i32>,
}

/// whoever is inside a step would wait for itself; calls that wait for nobody are answered.
#[test]
fn calls_from_inside_a_step_are_busy() {
    unsafe extern "C" fn emitted(user: *mut c_void, _: u64, _: *const u32, _: u32) {
        // SAFETY: the plan names a local of the test.
        let inside = unsafe { &mut *user.cast::<Inside>() };
        let executor = inside.executor;
        let mut seq = ExecutorSeq::zeroed();
        let source = admission(&[4], 2);
        // SAFETY: all records are locals.
        inside.codes = unsafe {
            vec![
                ictus_executor_admit(executor, &raw const source, &raw mut seq, null_mut()),
                ictus_executor_run(executor, Array::EMPTY, null_mut(), 0, null_mut(), 0, null_mut(), 0, null_mut()),
                ictus_executor_prepare(executor, null_mut()),
                ictus_executor_shutdown(executor, null_mut(), null_mut()),
                ictus_executor_destroy(executor),
                ictus_executor_close(executor, seq, end::CANCELLED, 0, 0, null_mut(), null_mut()),
            ]
        };
    }
    let (_core, executor) = executor(8, CoreOptions::default());
    let mut inside = Inside { executor, codes: Vec::new() };
    let mut model: ModelHandle = null_mut();
    let mut staged = ictus::record::TokenRef::zeroed();
    // SAFETY: the outputs are locals.
    unsafe {
        assert_eq!(ictus_executor_tick_host(executor, &raw mut model), 0);
        let mut again: ModelHandle = null_mut();
        twice(executor, Status::Busy, || ictus_executor_tick_host(executor, &raw mut again));
        assert_eq!(ictus_model_rings_create(model, null()), 0);
        assert_eq!(ictus_model_stage_prompt(model, [1, 2, 3].as_ptr(), 3, &raw mut staged), 0);
    }
    let (mut plan, _arena): (TickPlan, _) = PlanBuilder::new(1).admit(1, staged).prefill(1, 0, 3).decode(1, 1).build();
    plan.flags |= ictus::record::constant::tick_flag::PARTIAL_EMITS;
    plan.on_partial_emit = Some(emitted);
    plan.partial_emit_user = (&raw mut inside).cast();
    let mut events = null();
    // SAFETY: the plan and its arena are locals.
    unsafe {
        assert_eq!(ictus_tick(model, &raw const plan, &raw mut events), 0);
        let busy = Status::Busy.code();
        assert_eq!(inside.codes, [0, busy, busy, busy, busy, 0]);
        assert_eq!(ictus_model_free(model), 0);
        assert_eq!(ictus_executor_tick_host(executor, &raw mut model), 0, "the handle came back");
        assert_eq!(ictus_executor_destroy(executor), 0);
        assert_eq!(ictus_model_free(model), 0);
    }
}

#[test]
fn accounts_are_handles_like_the_others() {
    let (mut account, mut claimed, mut usable) = (null_mut(), 7u64, 7u64);
    // SAFETY: the outputs are locals.
    unsafe {
        assert_eq!(ictus_account_create(100, null_mut()), Status::RejectBadStruct.code());
        assert_eq!(ictus_account_create(100, &raw mut account), 0);
        assert_eq!(ictus_account_level(account, null_mut(), &raw mut usable), Status::RejectBadStruct.code());
        assert_eq!(ictus_account_level(account, &raw mut claimed, &raw mut usable), 0);
        assert_eq!((claimed, usable), (0, 100));
        assert_eq!(ictus_account_free(account), 0);
        for handle in [null_mut(), account] {
            let level = ictus_account_level(handle, &raw mut claimed, &raw mut usable);
            assert_eq!(
                (level, ictus_account_free(handle)),
                (Status::UnknownHandle.code(), Status::UnknownHandle.code())
            );
        }
    }
}

/// a core that does not fit its budget or its account is not made; two that do count in one.
#[test]
fn executors_of_a_model_keep_to_their_account() {
    let path = std::ffi::CString::new(concat!(env!("CARGO_MANIFEST_DIR"), "/models/ictus-tiny.gguf")).expect("a path");
    let mut model_options = sized(|record: &mut OpenOptions, size| record.struct_size = size);
    (model_options.threads, model_options.context_tokens, model_options.pool_tokens) = (1, 64, 64);
    let mut options = sized(|record: &mut ExecutorChoices, size| record.struct_size = size);
    let (mut account, mut claimed, mut usable) = (null_mut(), 0u64, 0u64);
    let open = |options: &ExecutorChoices| {
        let (mut executor, mut text): (ExecutorNumber, _) = (null_mut(), [0 as c_char; 256]);
        // SAFETY: all records are locals.
        let code = unsafe {
            let (path, out) = (path.as_ptr(), &raw mut executor);
            ictus_executor_open(path, &raw const model_options, options, text.as_mut_ptr(), 256, out)
        };
        assert_eq!(code != 0, text[0] != 0, "a failure is explained");
        (Status::from_code(code), executor)
    };
    // SAFETY: the outputs are locals.
    unsafe {
        assert_eq!(ictus_account_create(u64::MAX, &raw mut account), 0);
        options.account = account;
        let (status, first) = open(&options);
        assert_eq!(status, Some(Status::Ok));
        assert_eq!(ictus_account_level(account, &raw mut claimed, &raw mut usable), 0);
        let of_one = claimed;
        assert!(of_one > 0 && usable == u64::MAX);
        for (change, expected) in [
            (ExecutorChoices { budget_bytes: of_one - 1, ..options }, Status::RejectBudget),
            (ExecutorChoices { ceiling_bytes: 2 * of_one - 1, ..options }, Status::RejectBudget),
            (ExecutorChoices { max_items: 5000, ..options }, Status::RejectBounds),
            (ExecutorChoices { arena_bytes: 2, arena_max_bytes: 1, ..options }, Status::RejectBounds),
            (ExecutorChoices { flags: 2, ..options }, Status::RejectBounds),
            (ExecutorChoices { struct_size: 87, ..options }, Status::RejectBadStruct),
            (ExecutorChoices { account: first.cast(), ..options }, Status::UnknownHandle),
        ] {
            for _ in 0..2 {
                assert_eq!(open(&change), (Some(expected), null_mut()), "{change:?}");
            }
        }
        let (status, second) = open(&ExecutorChoices { ceiling_bytes: 2 * of_one, ..options });
        assert_eq!(status, Some(Status::Ok));
        assert_eq!(ictus_account_level(account, &raw mut claimed, &raw mut usable), 0);
        assert_eq!((claimed, usable), (2 * of_one, 2 * of_one));
        // One that departs raises the ceiling again, and the other one hears of the device alone.
        let mut before = TicketRecord::zeroed();
        assert_eq!(ictus_capacity_now(first.cast(), &raw mut before), 0);
        assert_eq!(ictus_executor_destroy(second), 0);
        let mut after = TicketRecord::zeroed();
        assert_eq!(ictus_capacity_now(first.cast(), &raw mut after), 0);
        let moved: Vec<usize> = (0..7).filter(|&at| after.seen[at] != before.seen[at]).collect();
        assert_eq!(moved, [domain::DEVICE as usize - 1]);
        assert_eq!(ictus_account_level(account, &raw mut claimed, &raw mut usable), 0);
        assert_eq!((claimed, usable), (of_one, u64::MAX));
        assert_eq!(ictus_account_free(account), 0);
        assert_eq!(ictus_executor_destroy(first), 0);
    }
}
