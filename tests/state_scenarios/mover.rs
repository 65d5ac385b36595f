//! A host that moves state: the executor over the fake runtime, and what every scenario does with it.

use ictus::engine::{Engine, ExportSize, OpHandle};
use ictus::executor::ExecutorOptions;
use ictus::record::constant::{encoding, op_state, space_id};
use ictus::record::{OpStatus, Status, TokenRange};
#[allow(unused_imports, reason = "a trait of the runtime, where that is in this process")]
use ictus::runtime::Runtime;
use ictus::runtime::{FakeOptions, SeqHandle};
use ictus::testing::{Events, Harness};

use super::engine::{Under, under_test, under_test_with};

pub(crate) type Host = Harness<Under>;

/// The space of a default runtime.
pub(crate) const KV: u32 = space_id::KV;

/// A host with these options of the fake.
pub(crate) fn host(change: impl FnOnce(&mut FakeOptions)) -> Host {
    Harness::with_engine(under_test(change))
}

/// A host whose operations move this many bytes at a time.
pub(crate) fn slow_host(op_slice_bytes: u64, change: impl FnOnce(&mut FakeOptions)) -> Host {
    let options = ExecutorOptions { op_slice_bytes, ..ExecutorOptions::default() };
    Harness::with_engine(under_test_with(options, change))
}

pub(crate) fn head_only(options: &mut FakeOptions) {
    options.descriptor.truncate_partial = false;
}

/// A prompt of `len` tokens that no other `from` shares.
pub(crate) fn span(from: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| from + i).collect()
}

/// A lane whose prompt is in but for its last token, which waits.
pub(crate) fn lane(h: &mut Host, tag: u64, prompt: &[u32]) -> SeqHandle {
    let staged = h.prompt(prompt);
    let plan = h.plan().admit(tag, staged).prefill(tag, 0, prompt.len() as u32);
    h.tick_ok(plan);
    h.engine.lane_sequence(tag).expect("the lane is live")
}

/// A lane that decodes some tokens, which must be accepted.
pub(crate) fn decode(h: &mut Host, tag: u64, tokens: u16) -> (Events, Vec<u32>) {
    let plan = h.plan().decode(tag, tokens);
    let events = h.tick_ok(plan);
    let tokens = h.tokens_of(&events, tag);
    (events, tokens)
}

pub(crate) fn empty_tick(h: &mut Host) -> Events {
    let plan = h.plan();
    h.tick_ok(plan)
}

pub(crate) fn range(start: u64, end: u64) -> TokenRange {
    TokenRange { start, end }
}

pub(crate) fn size(h: &mut Host, sequence: SeqHandle, end: u64, code: u8) -> Result<ExportSize, Status> {
    h.engine.space_export_size(sequence, KV, range(0, end), code)
}

/// Submits a snapshot with a fresh sizing.
pub(crate) fn snapshot(h: &mut Host, sequence: SeqHandle, end: u64) -> OpHandle {
    let sizing = size(h, sequence, end, encoding::LOSSLESS).expect("it can be sized");
    h.engine.space_snapshot(sequence, KV, end, sizing.bytes, sizing.sizing_gen).expect("it is submitted")
}

/// Submits a demotion with a fresh sizing.
pub(crate) fn demote(h: &mut Host, sequence: SeqHandle, start: u64, end: u64, code: u8) -> Result<OpHandle, Status> {
    let sizing = h.engine.space_export_size(sequence, KV, range(start, end), code)?;
    h.engine.space_demote(sequence, KV, range(start, end), code, sizing.bytes, sizing.sizing_gen)
}

/// The sealed bytes of the first `end` tokens.
pub(crate) fn export(h: &mut Host, sequence: SeqHandle, end: u64) -> Vec<u8> {
    let op = snapshot(h, sequence, end);
    finish(h, op)
}

/// Pumps until an operation is done, and takes its output.
pub(crate) fn finish(h: &mut Host, op: OpHandle) -> Vec<u8> {
    for _ in 0..10_000 {
        match poll(h, op).state {
            op_state::PENDING | op_state::RUNNING => h.engine.pump(),
            op_state::DONE => return h.engine.take_op_output(op).expect("an output"),
            other => panic!("state {other}: {:?}", poll(h, op)),
        }
    }
    panic!("the operation does not end");
}

pub(crate) fn poll(h: &Host, op: OpHandle) -> OpStatus {
    h.engine.op_poll(op).expect("the operation is known")
}

/// State and error of an operation.
pub(crate) fn state(h: &Host, op: OpHandle) -> (u8, Option<Status>) {
    let status = poll(h, op);
    (status.state, Status::from_code(status.error as i32).filter(|_| status.error != 0))
}

pub(crate) const DONE: (u8, Option<Status>) = (op_state::DONE, None);

pub(crate) fn failed(status: Status) -> (u8, Option<Status>) {
    (op_state::FAILED, Some(status))
}

/// Restores into a fresh bare sequence and finishes.
pub(crate) fn restore(h: &mut Host, sealed: &[u8]) -> SeqHandle {
    let sequence = h.engine.create_sequence().expect("a slot");
    let op = h.engine.space_restore(sequence, KV, sealed).expect("it is submitted");
    finish(h, op);
    sequence
}

/// Tries a call twice; it must be refused the same way and leave no trace.
#[track_caller]
pub(crate) fn refused<T>(h: &mut Host, mut call: impl FnMut(&mut Host) -> Result<T, Status>) -> Status {
    let before = h.engine.state_digest();
    let first = call(h).err().expect("it is refused");
    assert_eq!(h.engine.state_digest(), before, "a refusal with {first} leaves no trace");
    assert_eq!(call(h).err(), Some(first), "it is refused for the same reason");
    assert_eq!(h.engine.state_digest(), before, "a second refusal leaves no trace");
    first
}

/// The tokens of a sequence, as the fake has them.
pub(crate) fn contents(h: &Host, sequence: SeqHandle) -> Vec<u32> {
    h.engine.primitives().contents(sequence).expect("it is known").to_vec()
}

/// Tokens picked greedily after a list.
pub(crate) fn greedy_after(h: &Host, tokens: &[u32], count: usize) -> Vec<u32> {
    let mut all = tokens.to_vec();
    for _ in 0..count {
        all.push(h.engine.primitives().token_for(&all));
    }
    all.split_off(tokens.len())
}

pub(crate) fn cells(h: &Host) -> u64 {
    h.engine.primitives().mem_counters().cells_used
}

/// Taint bits in a header.
pub(crate) fn taint_of(sealed: &[u8]) -> u32 {
    ictus::transfer::read_header(sealed).expect("a header").taint_bits
}

/// The same envelope with these taint bits; the checksum covers the payload only.
pub(crate) fn tainted(sealed: &[u8], taint: u32) -> Vec<u8> {
    let mut sealed = sealed.to_vec();
    sealed[88..92].copy_from_slice(&taint.to_le_bytes());
    sealed
}

/// An envelope that claims to end at `end`.
pub(crate) fn ending_at(sealed: &[u8], end: u64) -> Vec<u8> {
    let mut sealed = sealed.to_vec();
    sealed[104..112].copy_from_slice(&end.to_le_bytes());
    sealed
}
