//! State operations over real models: what was moved out and in goes on with the same bits. On whichever backend `crate::engine` has.

use ictus::backend::{Arithmetic, KvType};
use ictus::checkpoint::Checkpoint;
use ictus::engine::{Engine, OpHandle, StageOutput};
use ictus::executor::{Executor, ExecutorOptions};
use ictus::record::constant::{encoding, op_state, taint};
use ictus::record::view::Plain;
use ictus::record::{CacheKey, LaneLogprob, Status, TokenRange};
use ictus::runtime::{ModelRuntime, Runtime, SeqHandle};
use ictus::testing::Harness;

use crate::engine::{FILES, Under, device, under};
use crate::model;

type Host = Harness<Executor<ModelRuntime<Under>>>;

const KV: u32 = 1;

/// Every operation of more than a few tokens takes several slices.
fn host(file: &str, kv_type: KvType, threads: usize) -> Host {
    let checkpoint = Checkpoint::open(model::file(file)).expect("the model opens");
    let runtime = model::runtime(under(Arithmetic::Exact, threads), &checkpoint, &model::options(kv_type, 128));
    let options = ExecutorOptions { op_slice_bytes: 20_000, ..ExecutorOptions::default() };
    Harness::with_engine(Executor::with_options(runtime, options))
}

fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|i| 3 + i * 11 % 90).collect()
}

/// Admits a lane on `tokens`, of which the leased sequence holds `held`, and decodes: tokens, and log-probabilities to the bit.
fn run(h: &mut Host, tag: u64, tokens: &[u32], lease: u64, held: u32, grant: u16) -> (Vec<u32>, Vec<u32>) {
    let staged = h.prompt(tokens);
    let with = |admit: &mut ictus::record::LaneAdmit| {
        admit.seed_handle = lease;
        admit.want_logprobs = 3;
    };
    let plan = h.plan().admit_with(with, tag, staged).prefill(tag, held, tokens.len() as u32 - held).decode(tag, grant);
    let events = h.tick_ok(plan);
    let bits = |logprob: &&LaneLogprob| logprob.logprob.to_bits();
    (h.tokens_of(&events, tag), events.logprobs_for(tag).iter().map(bits).collect())
}

fn finish(h: &mut Host, op: OpHandle) -> (Vec<u8>, usize) {
    let mut pumps = 0;
    while h.engine.op_poll(op).expect("known").state < op_state::DONE {
        h.engine.pump();
        pumps += 1;
    }
    assert_eq!(h.engine.op_poll(op).expect("known").state, op_state::DONE);
    (h.engine.take_op_output(op).expect("an output"), pumps)
}

fn snapshot(h: &mut Host, sequence: SeqHandle, end: u64) -> Vec<u8> {
    let sizing = h.engine.space_export_size(sequence, KV, TokenRange { start: 0, end }, 0).expect("held");
    let op = h.engine.space_snapshot(sequence, KV, end, sizing.bytes, sizing.sizing_gen).expect("sized");
    finish(h, op).0
}

/// S-65, S-75, S-33, promise 1: restored at any length, in another engine with other threads, a lane goes on with the same bits.
#[test]
fn snapshot_goes_on_with_the_same_bits_elsewhere() {
    let Some(_device) = device() else { return };
    for file in FILES {
        for kv_type in [KvType::F32, KvType::F16] {
            let mut cold = host(file, kv_type, 1);
            let expected = run(&mut cold, 1, &prompt(70), 0, 0, 6);
            let mut from = host(file, kv_type, 2);
            run(&mut from, 1, &prompt(70), 0, 0, 1);
            let sequence = from.engine.lane_sequence(1).expect("live");
            for held in [1, 16, 37, 69] {
                let sealed = snapshot(&mut from, sequence, held.into());
                let mut to = host(file, kv_type, 1);
                let bare = to.engine.create_sequence().expect("a slot");
                let op = to.engine.space_restore(bare, KV, &sealed).expect("its own model");
                finish(&mut to, op);
                let lease = to.engine.seed_adopt(bare, &prompt(held)).expect("bare");
                assert_eq!(run(&mut to, 1, &prompt(70), lease, held, 6), expected, "{file} {kv_type:?} at {held}");
            }
        }
    }
}

/// S-91, promise 1: a lossless demotion of a live lane frees memory, and the promoted lane goes on with the same bits.
#[test]
fn lossless_demotion_of_a_live_lane_changes_no_bit() {
    let Some(_device) = device() else { return };
    for file in FILES {
        let mut cold = host(file, KvType::F32, 1);
        let expected = run(&mut cold, 1, &prompt(70), 0, 0, 8);
        let mut h = host(file, KvType::F32, 1);
        let mut given = run(&mut h, 1, &prompt(70), 0, 0, 2);
        let sequence = h.engine.lane_sequence(1).expect("live");
        let used = h.engine.primitives().mem_counters().cells_used;
        let range = TokenRange { start: 16, end: 64 };
        let sizing = h.engine.space_export_size(sequence, KV, range, 0).expect("held");
        let op = h.engine.space_demote(sequence, KV, range, 0, sizing.bytes, sizing.sizing_gen).expect("whole pages");
        let (sealed, pumps) = finish(&mut h, op);
        assert!(pumps > 0 || sealed.len() < 20_000, "{file}: it took several slices");
        assert_eq!(h.engine.primitives().mem_counters().cells_used, used - 48);
        let plan = h.plan().decode(1, 1);
        assert_eq!(h.refused(plan), Status::RejectTransferLocked);
        // Somebody else uses the memory meanwhile, so the range comes back to other pages.
        run(&mut h, 2, &prompt(40), 0, 0, 1);
        let op = h.engine.space_promote(sequence, KV, range, &sealed).expect("its own range");
        finish(&mut h, op);
        let plan = h.plan().decode(1, 6);
        let events = h.tick_ok(plan);
        given.0.extend(h.tokens_of(&events, 1));
        given.1.extend(events.logprobs_for(1).iter().map(|logprob| logprob.logprob.to_bits()));
        assert_eq!(given, expected, "{file}");
    }
}

/// S-67, S-91, SS-59: a lossy demotion shows: in the taint of the sequence, for good, and of all that is made from it.
#[test]
fn lossy_demotion_taints_the_lane_and_what_is_made_from_it() {
    let Some(_device) = device() else { return };
    for code in [encoding::Q8, encoding::Q4] {
        let mut h = host("tests/data/qwen3.gguf", KvType::F32, 1);
        run(&mut h, 1, &prompt(70), 0, 0, 2);
        let sequence = h.engine.lane_sequence(1).expect("live");
        let range = TokenRange { start: 0, end: 64 };
        let lossless = h.engine.space_export_size(sequence, KV, range, 0).expect("held").bytes;
        let sizing = h.engine.space_export_size(sequence, KV, range, code).expect("held");
        assert!(sizing.bytes * if code == encoding::Q8 { 3 } else { 5 } < lossless, "{} of {lossless}", sizing.bytes);
        let op =
            h.engine.space_demote(sequence, KV, range, code, sizing.bytes, sizing.sizing_gen).expect("whole pages");
        let (sealed, _) = finish(&mut h, op);
        let op = h.engine.space_promote(sequence, KV, range, &sealed).expect("its own range");
        finish(&mut h, op);
        let plan = h.plan().decode(1, 4);
        assert_eq!(h.tick_ok(plan).emits[0].n_tokens, 4, "the lane goes on");
        let fork = h.engine.seq_fork(sequence, 0).expect("a slot");
        for tainted in [sequence, fork] {
            let header = ictus::transfer::read_header(&snapshot(&mut h, tainted, 70)).expect("a header");
            assert_eq!((header.taint_bits, header.encoding), (taint::QUANTIZED_DEMOTION, encoding::LOSSLESS));
        }
    }
}

/// S-90: ticks of other lanes carry a long export along, and their tokens are those of a tick without one.
#[test]
fn other_lanes_go_on_while_an_export_runs() {
    let Some(_device) = device() else { return };
    let file = "models/ictus-tiny.gguf";
    let mut alone = host(file, KvType::F32, 1);
    let expected = run(&mut alone, 2, &prompt(20), 0, 0, 12).0;
    let mut h = host(file, KvType::F32, 1);
    run(&mut h, 1, &prompt(100), 0, 0, 1);
    let mut given = run(&mut h, 2, &prompt(20), 0, 0, 1).0;
    let sequence = h.engine.lane_sequence(1).expect("live");
    let sizing = h.engine.space_export_size(sequence, KV, TokenRange { start: 0, end: 100 }, 0).expect("held");
    let op = h.engine.space_snapshot(sequence, KV, 100, sizing.bytes, sizing.sizing_gen).expect("sized");
    let (mut completions, mut slices) = (0, 0);
    while given.len() < 12 {
        slices += usize::from(h.engine.op_poll(op).expect("known").state == op_state::RUNNING);
        let plan = h.plan().decode(2, 1);
        let events = h.tick_ok(plan);
        given.extend(h.tokens_of(&events, 2));
        completions += events.op_completions.len();
    }
    assert_eq!(given, expected);
    assert!(slices > 2, "the export was under way for several ticks: {slices}");
    let (sealed, _) = finish(&mut h, op);
    assert!(completions <= 1);
    assert!(sealed == snapshot(&mut h, sequence, 100), "and is the same as in one piece");
}

/// S-72, S-80, S-58: what was computed with rounded activations is not taken for exact state, nor the other way round.
#[test]
fn state_of_one_arithmetic_is_refused_by_the_other() {
    let Some(_device) = device() else { return };
    use Arithmetic::{Exact, Fast};
    let host = |file, arithmetic| {
        let checkpoint = Checkpoint::open(model::file(file)).expect("the model opens");
        Harness::with_engine(Executor::new(model::runtime(
            under(arithmetic, 1),
            &checkpoint,
            &model::options(KvType::F32, 128),
        )))
    };
    for file in FILES {
        for (made_by, taken_by) in [(Exact, Fast), (Fast, Exact)] {
            let mut from = host(file, made_by);
            run(&mut from, 1, &prompt(40), 0, 0, 1);
            let sequence = from.engine.lane_sequence(1).expect("live");
            let sealed = snapshot(&mut from, sequence, 33);
            let StageOutput::Hidden(stream) = from.engine.forward_stage(&prompt(8), 0, 1, None).expect("a stage")
            else {
                panic!("the first of several layers");
            };
            let mut other = host(file, taken_by);
            assert_ne!(other.engine.compat_identity(), from.engine.compat_identity());
            let bare = other.engine.create_sequence().expect("a slot");
            assert_eq!(other.engine.space_restore(bare, KV, &sealed), Err(Status::IdentityMismatch), "{file}");
            let layers = other.engine.n_layers();
            assert_eq!(other.engine.forward_stage(&prompt(8), 1, layers, Some(&stream)), Err(Status::RejectBadStruct));
            let mut key = CacheKey::zeroed();
            key.compat_key = from.engine.compat_identity();
            assert_eq!(other.engine.cache_evict_entries(&[key]), Err(Status::IdentityMismatch), "{file}");
            let mut same = host(file, made_by);
            let bare = same.engine.create_sequence().expect("a slot");
            let op = same.engine.space_restore(bare, KV, &sealed).expect("its own arithmetic");
            finish(&mut same, op);
        }
    }
}
