//! Ticks, prefixes and state over the link, beside the same engine in process (WS-10 .. WS-14, WS-16 .. WS-18, WS-26).

use ictus::executor::{Executor, ExecutorOptions};
use ictus::record::constant::{sampling, tick_flag};
use ictus::ring::Rings;
use ictus::runtime::{FakeOptions, FakeRuntime};
use ictus::testing::{Events, Harness};
use ictus::worker::message::Message;
use ictus::worker::payload::*;

use crate::host::{Host, admit, decode};

fn fake() -> Executor<FakeRuntime> {
    Executor::new(FakeRuntime::default())
}

/// Prompts that differ, of this many tokens.
fn prompt(salt: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|n| (n * 31 + salt * 7 + 1) % 1000).collect()
}

/// Events of an engine in this process, as they would be sent.
fn as_sent(events: &Events) -> TickEvents {
    TickEvents {
        plan_seq: events.plan_seq,
        tick_status: events.tick_status,
        admit_results: events.admit_results.iter().map(Into::into).collect(),
        emits: events.emits.iter().map(Into::into).collect(),
        faults: events.faults.iter().map(Into::into).collect(),
        ..TickEvents::default()
    }
}

/// W-44, W-45, W-66.
#[test]
fn ws_10_events_are_those_of_the_engine_in_process() {
    let mut host = Host::ready();
    let mut local = Harness::with_engine(fake());
    let text = prompt(1, 40);
    let plan = host.first_plan(7, &text, 4);
    let events = host.tick(plan);
    let staged = local.prompt(&text);
    let local_plan = local.plan().admit(7, staged).prefill(7, 0, 40).decode(7, 4);
    let local_events = local.tick_ok(local_plan);
    let expected = as_sent(&local_events);
    assert_eq!(events.admit_results, expected.admit_results);
    assert_eq!(events.faults, expected.faults);
    assert_eq!((events.plan_seq, events.tick_status), (expected.plan_seq, expected.tick_status));
    assert_eq!(events.emits.len(), 1);
    assert_eq!(events.emits[0].finish, expected.emits[0].finish);
    assert_eq!(host.tokens_of(&events, 7), local.tokens_of(&local_events, 7));
    assert_eq!(host.tokens_of(&events, 7).len(), 4);
    assert_eq!(host.ping(), Load { queue_depth: 0, mem: events.mem }, "W-66");
}

/// W-13, W-45: log-probabilities travel as bits, as many alternatives as were asked for.
#[test]
fn ws_10_logprobs_are_the_bits_of_the_engine_in_process() {
    let mut host = Host::ready();
    let mut local = Harness::with_engine(fake());
    let text = prompt(2, 20);
    let mut plan = host.first_plan(7, &text, 3);
    (plan.admits[0].want_logprobs, plan.admits[0].top_logprobs) = (true, 5);
    let events = host.tick(plan);
    let staged = local.prompt(&text);
    let local_plan = local.plan().admit_with(|admit| admit.want_logprobs = 6, 7, staged);
    let local_events = local.tick_ok(local_plan.prefill(7, 0, 20).decode(7, 3));
    assert_eq!(events.logprobs.len(), 3);
    for (sent, record) in events.logprobs.iter().zip(local_events.logprobs_for(7)) {
        assert_eq!(sent.logprob_bits, record.logprob.to_bits());
        assert_eq!((sent.top_ids.len(), record.n_top), (5, 5));
        assert_eq!(sent.top_ids[..], record.top_ids[..5]);
        let bits: Vec<u32> = record.top_logprobs[..5].iter().map(|value| value.to_bits()).collect();
        assert_eq!(sent.top_logprob_bits, bits);
    }
}

/// W-49: a row for the host lies in the logits ring, and its commit names the row.
#[test]
fn ws_10_rows_of_host_lanes_come_through_the_ring() {
    let mut host = Host::ready();
    let mut local = Harness::with_engine(fake());
    let text = prompt(15, 20);
    let mut plan = host.first_plan(7, &text, 1);
    plan.admits[0].sampling = sampling::HOST;
    let events = host.tick(plan);
    let row = host.row(&events.emits[0].logits_row);
    let staged = local.prompt(&text);
    let local_plan = local.plan().admit_with(|admit| admit.sampling = sampling::HOST, 7, staged);
    let local_events = local.tick_ok(local_plan.prefill(7, 0, 20).decode(7, 1));
    let mut expected = Vec::new();
    local.rings.read_logits_row(&local_events.emits[0].logits_row, &mut expected).expect("it is there");
    let bits = |row: &[f32]| row.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
    assert_eq!(row.len(), 32_000);
    assert_eq!(bits(&row), bits(&expected));
    let nonce = events.emits[0].logits_row.generation;
    let mut plan = host.plan();
    plan.commits = vec![LaneCommit { lane_tag: 7, token_id: 5, logits_nonce: nonce }];
    plan.decodes = vec![decode(7, 1)];
    let events = host.tick(plan);
    assert_ne!(bits(&host.row(&events.emits[0].logits_row)), bits(&row));
    let mut stale = host.plan();
    stale.commits = vec![LaneCommit { lane_tag: 7, token_id: 5, logits_nonce: nonce }];
    let refused = host.ask(&Message::TickSubmit(stale));
    assert_eq!(refused, Message::TickResult(TickResult::Rejected { status: -112 }));
}

/// W-46, W-49.
#[test]
fn ws_11_partial_emits_are_the_emit_in_pieces() {
    let mut host = Host::ready();
    let mut plan = host.first_plan(7, &prompt(3, 20), 12);
    plan.flags = tick_flag::PARTIAL_EMITS;
    plan.admits.push(admit(8, host.prompt(&prompt(4, 10))));
    plan.prefills.push(LanePrefill { lane_tag: 8, token_offset: 0, token_count: 10 });
    plan.decodes.push(decode(8, 5));
    let events = host.tick(plan);
    let unasked = std::mem::take(&mut host.unasked);
    for (lane, count) in [(7, 12), (8, 5)] {
        let pieces = unasked.iter().filter_map(|message| match message {
            Message::TickEmit(emit) if emit.lane_tag == lane => Some(emit.tokens.clone()),
            _ => None,
        });
        let joined: Vec<u32> = pieces.flatten().collect();
        assert_eq!(joined, host.tokens_of(&events, lane));
        assert_eq!(joined.len(), count);
    }
    assert!(unasked.iter().all(|message| matches!(message, Message::TickEmit(_))));
    let slots: Vec<u64> = events.emits.iter().map(|emit| emit.token_ref.generation).collect();
    assert_eq!(slots, [1, 2], "one slot for each decode record");
    let mut plan = host.plan();
    plan.decodes = vec![decode(7, 4)];
    host.tick(plan);
    assert!(host.unasked.is_empty(), "without the flag there are none");
}

/// W-44.
#[test]
fn ws_12_refused_plan_leaves_everything_as_it_was() {
    let mut host = Host::ready();
    let mut undisturbed = Host::ready();
    let first = host.run(7, &prompt(5, 20), 4);
    assert_eq!(undisturbed.run(7, &prompt(5, 20), 4), first);
    for _ in 0..2 {
        let old = Plan { plan_seq: 1, decodes: vec![decode(7, 4)], max_decode_lanes: 8, ..Plan::default() };
        let refused = host.ask(&Message::TickSubmit(old));
        assert_eq!(refused, Message::TickResult(TickResult::Rejected { status: -106 }));
    }
    assert_eq!(host.go_on(7, 6), undisturbed.go_on(7, 6));
}

/// W-50, W-51.
#[test]
fn ws_13_published_prefix_is_matched_leased_and_started_from() {
    let mut host = Host::ready();
    let text = prompt(6, 64);
    let cold = host.run(7, &text, 8);
    host.retire(7, true);
    let span = host.prompt(&text);
    let found = host.matches(span.clone());
    assert_eq!((found.len(), found[0].space_id), (1, 1));
    let longest = found[0].candidates[0].prefix_len;
    assert!(longest >= 48, "whole pages of the prompt: {longest}");
    let start = 48;
    let SeedGrant::Granted { seed_handle, ttl_ms: 1000, ttl_ticks: Some(64) } = host.acquire(span.clone(), start)
    else {
        panic!("a lease")
    };
    let mut plan = host.plan();
    plan.admits = vec![LaneAdmit { seed_handle, ..admit(9, span.clone()) }];
    plan.prefills = vec![LanePrefill { lane_tag: 9, token_offset: 48, token_count: 16 }];
    plan.decodes = vec![decode(9, 8)];
    let events = host.tick(plan);
    assert_eq!(host.tokens_of(&events, 9), cold, "the same tokens as cold");
    host.send(&Message::SeedRelease(seed_handle));
    host.ping();
    host.retire(9, false);
    let unpublished = host.sync(SyncRequest::Unpublish { span });
    assert_eq!(unpublished, SyncOk::Unpublish);
}

/// W-50, W-51, W-61.
#[test]
fn ws_14_stale_span_is_an_empty_list_and_a_refusal() {
    let mut host = Host::ready();
    let text = prompt(7, 64);
    host.run(7, &text, 2);
    host.retire(7, true);
    let good = host.prompt(&text);
    let stale = TokenRef { generation: good.generation + 7, ..good.clone() };
    let shorter = TokenRef { count: good.count - 1, ..good.clone() };
    let outside = TokenRef { index: 64, ..good.clone() };
    let foreign = TokenRef { ring_id: 3, ..good.clone() };
    for bad in [stale, shorter, outside, foreign] {
        assert_eq!(host.matches(bad.clone()), [], "{bad:?}");
        assert_eq!(host.acquire(bad.clone(), 48), SeedGrant::Refused { status: -103 });
        let SyncOk::CreateSequence { sequence } = host.sync(SyncRequest::CreateSequence) else { panic!("a sequence") };
        for request in [
            SyncRequest::PublishSequence { sequence, span: bad.clone() },
            SyncRequest::AdoptSequence { sequence, span: bad.clone() },
            SyncRequest::Unpublish { span: bad.clone() },
        ] {
            assert_eq!(host.sync_result(request), SyncResult::Err { status: -103 });
        }
    }
    assert!(!host.matches(good).is_empty());
}

/// Runs a lane, sizes and exports its first tokens, and answers the sequence, the sealed bytes and what the op said.
fn park(host: &mut Host, lane_tag: u64, buffer: u64) -> (Vec<u8>, OpComplete) {
    let SyncOk::LaneSequence { sequence } = host.sync(SyncRequest::LaneSequence { lane_tag }) else { panic!("live") };
    let boundary = SyncRequest::SnapshotBoundary { sequence, space_id: 1, cap: u64::MAX };
    let SyncOk::SnapshotBoundary { boundary } = host.sync(boundary) else { panic!("a boundary") };
    let range = TokenRange { start: 0, end: boundary };
    let size = SyncRequest::ExportSize { sequence, space_id: 1, range, encoding: 0 };
    let SyncOk::ExportSize { required_bytes, sizing_gen } = host.sync(size) else { panic!("a size") };
    let memory = host.buffer(buffer, required_bytes as usize);
    let op = StateOp::Snapshot { sequence, space_id: 1, boundary_pos: boundary, buf_id: buffer, sizing_gen };
    let OpAccepted::Accepted { op_handle } = host.submit(op) else { panic!("accepted") };
    let done = host.done(op_handle);
    let mut sealed = vec![0; required_bytes as usize];
    assert!(memory.copy_out(0, &mut sealed));
    (sealed, done)
}

/// A buffer with these bytes, restored into a fresh sequence.
fn restore(host: &mut Host, buffer: u64, sealed: &[u8]) -> (u64, OpAccepted) {
    let memory = host.buffer(buffer, sealed.len());
    assert!(memory.copy_in(0, sealed));
    let SyncOk::CreateSequence { sequence } = host.sync(SyncRequest::CreateSequence) else { panic!("a sequence") };
    (sequence, host.submit(StateOp::Restore { sequence, space_id: 1, buf_id: buffer }))
}

/// W-94: what one worker parks, another resumes, to the same tokens.
#[test]
fn ws_15_parked_lane_goes_on_in_another_server() {
    let mut first = Host::ready();
    let text = prompt(8, 64);
    let mut committed = text.clone();
    committed.extend(first.run(7, &text, 9));
    let (sealed, done) = park(&mut first, 7, 1);
    assert_eq!((done.state, done.error, done.bytes_moved), (2, 0, sealed.len() as u64));
    let undisturbed = first.go_on(7, 12);

    let mut second = Host::ready();
    let (sequence, OpAccepted::Accepted { op_handle }) = restore(&mut second, 5, &sealed) else { panic!("accepted") };
    assert_eq!(second.done(op_handle).state, 2);
    let tokens = u64::from_le_bytes(sealed[104..112].try_into().expect("eight bytes"));
    let held = second.prompt(&committed[..tokens as usize]);
    second.sync(SyncRequest::PublishSequence { sequence, span: held });
    let span = second.prompt(&committed);
    let found = second.matches(span.clone());
    let prefix_len = found[0].candidates[0].prefix_len.min(tokens) / 16 * 16;
    let SeedGrant::Granted { seed_handle, .. } = second.acquire(span.clone(), prefix_len) else { panic!("a lease") };
    let mut plan = second.plan();
    plan.admits = vec![LaneAdmit { seed_handle, ..admit(9, span) }];
    let token_count = (committed.len() as u64 - prefix_len) as u32;
    plan.prefills = vec![LanePrefill { lane_tag: 9, token_offset: prefix_len as u32, token_count }];
    plan.decodes = vec![decode(9, 12)];
    let events = second.tick(plan);
    assert_eq!(second.tokens_of(&events, 9), undisturbed);
}

/// W-56.
#[test]
fn ws_16_malformed_envelopes_are_refused() {
    let mut host = Host::ready();
    host.run(7, &prompt(9, 64), 3);
    let (sealed, _) = park(&mut host, 7, 1);
    let mut endless = sealed.clone();
    endless[120..128].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut longer = sealed.clone();
    longer[120..128].copy_from_slice(&(sealed.len() as u64 - 136 + 1).to_le_bytes());
    let mut flipped = sealed.clone();
    *flipped.last_mut().expect("not empty") ^= 1;
    let refused = |host: &mut Host, bytes: &[u8]| match restore(host, 9, bytes).1 {
        OpAccepted::Rejected { status } => status,
        accepted => panic!("{accepted:?}"),
    };
    assert_eq!(refused(&mut host, &endless), -124);
    assert_eq!(refused(&mut host, &longer), -124);
    assert_eq!(refused(&mut host, &sealed[..135]), -124);
    assert_eq!(refused(&mut host, &flipped), -125);
    let unknown = host.submit(StateOp::Restore { sequence: 1, space_id: 1, buf_id: 999 });
    assert_eq!(unknown, OpAccepted::Rejected { status: -129 });
    let spare = [&sealed[..], &[0xEE; 100]].concat();
    let (_, OpAccepted::Accepted { op_handle }) = restore(&mut host, 9, &spare) else { panic!("accepted") };
    assert_eq!(host.done(op_handle).state, 2, "what lies behind the envelope is nobody's business");
}

/// W-74: an object claims a terabyte and holds a page of it. The worker neither takes memory for the rest nor dies.
#[test]
fn ws_16_bytes_that_nobody_wrote_are_refused() {
    let mut host = Host::ready();
    host.run(7, &prompt(9, 64), 3);
    let (sealed, _) = park(&mut host, 7, 1);
    for bytes in [1usize << 30, 1 << 40] {
        let memory = host.buffer(9, bytes);
        let mut claimed = sealed.clone();
        claimed[120..128].copy_from_slice(&(bytes as u64 - 136).to_le_bytes());
        assert!(memory.copy_in(0, &claimed));
        let SyncOk::CreateSequence { sequence } = host.sync(SyncRequest::CreateSequence) else { panic!("a slot") };
        for _ in 0..2 {
            let answer = host.submit(StateOp::Restore { sequence, space_id: 1, buf_id: 9 });
            assert_eq!(answer, OpAccepted::Rejected { status: -124 }, "{bytes} bytes");
        }
        assert_eq!(host.sync(SyncRequest::FreeSequence { sequence }), SyncOk::FreeSequence);
    }
    // The same bytes in an object that has them.
    let (_, OpAccepted::Accepted { op_handle }) = restore(&mut host, 9, &sealed) else { panic!("accepted") };
    assert_eq!(host.done(op_handle).state, 2);
    assert_eq!(host.go_on(7, 3).len(), 3, "the lane has noticed nothing");
}

/// W-74: an object without seals that is cut short after it was announced is refused, in both directions; nobody dies of it.
#[test]
fn ws_16_buffer_that_was_cut_short_is_refused() {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    let mut host = Host::ready();
    host.run(7, &prompt(9, 64), 3);
    let (sealed, _) = park(&mut host, 7, 1);
    let object = memfd_create("unsealed", MemfdFlags::CLOEXEC).expect("an object");
    assert_eq!(rustix::io::pwrite(&object, &sealed, 0), Ok(sealed.len()));
    host.send(&Message::BufAttach(BufAttach { buf_id: 9, len: sealed.len() as u64, generation: 1 }));
    host.pass_descriptor(9, &object);
    let SyncOk::CreateSequence { sequence } = host.sync(SyncRequest::CreateSequence) else { panic!("a slot") };
    ftruncate(&object, 200).expect("cut");
    for _ in 0..2 {
        let answer = host.submit(StateOp::Restore { sequence, space_id: 1, buf_id: 9 });
        assert_eq!(answer, OpAccepted::Rejected { status: -124 });
    }
    let SyncOk::LaneSequence { sequence } = host.sync(SyncRequest::LaneSequence { lane_tag: 7 }) else {
        panic!("live")
    };
    let range = TokenRange { start: 0, end: 64 };
    let size = SyncRequest::ExportSize { sequence, space_id: 1, range, encoding: 0 };
    let SyncOk::ExportSize { sizing_gen, .. } = host.sync(size) else { panic!("a size") };
    let op = StateOp::Snapshot { sequence, space_id: 1, boundary_pos: 64, buf_id: 9, sizing_gen };
    let OpAccepted::Accepted { op_handle } = host.submit(op) else { panic!("accepted") };
    let done = host.done(op_handle);
    assert_eq!((done.state, done.error as i32), (3, -121), "W-58");
    assert_eq!(host.go_on(7, 3).len(), 3);
}

/// W-41, W-57, W-67.
#[test]
fn ws_17_drain_tells_every_end_first_and_released_buffers_are_gone_after() {
    // One byte in a slice: the export goes on for long.
    let slow = ExecutorOptions { op_slice_bytes: 1, ..ExecutorOptions::default() };
    let mut host = Host::of(move || Box::new(Executor::with_options(FakeRuntime::default(), slow)));
    host.start();
    host.run(7, &prompt(10, 64), 3);
    let SyncOk::LaneSequence { sequence } = host.sync(SyncRequest::LaneSequence { lane_tag: 7 }) else {
        panic!("live")
    };
    let range = TokenRange { start: 0, end: 64 };
    let size = SyncRequest::ExportSize { sequence, space_id: 1, range, encoding: 0 };
    let SyncOk::ExportSize { required_bytes, sizing_gen } = host.sync(size) else { panic!("a size") };
    let memory = host.buffer(3, required_bytes as usize);
    let op = StateOp::Snapshot { sequence, space_id: 1, boundary_pos: 64, buf_id: 3, sizing_gen };
    let submitted = host.send(&Message::StateOpSubmit(op));
    host.send(&Message::BufRelease(3));
    let drain = host.send(&Message::DrainReq);
    let Message::StateOpAccepted(OpAccepted::Accepted { op_handle }) = host.reply_to(submitted) else {
        panic!("accepted")
    };
    assert!(host.unasked.is_empty(), "W-57: the end does not come before the acceptance");
    assert_eq!(host.reply_to(drain), Message::Drained);
    let ends: Vec<Message> = std::mem::take(&mut host.unasked);
    let [Message::StateOpDone(done)] = &ends[..] else { panic!("one end before DRAINED: {ends:?}") };
    assert_eq!((done.op, done.state, done.error, done.bytes_moved), (op_handle, 2, 0, required_bytes));
    let mut magic = [0; 8];
    assert!(memory.copy_out(0, &mut magic) && magic != [0; 8], "the bytes are there");
    let op = StateOp::Restore { sequence, space_id: 1, buf_id: 3 };
    assert_eq!(host.submit(op), OpAccepted::Rejected { status: -129 }, "the buffer is gone");
    assert_eq!(host.ping().queue_depth, 0);
}

/// W-48: the end of an operation is told before the result that lists it, once.
#[test]
fn operation_that_ends_in_a_tick_is_told_before_its_result() {
    let slow = ExecutorOptions { op_slice_bytes: 64, ..ExecutorOptions::default() };
    let mut host = Host::of(move || Box::new(Executor::with_options(FakeRuntime::default(), slow)));
    host.start();
    let text = prompt(12, 64);
    host.run(7, &text, 3);
    host.run(8, &text, 3);
    let SyncOk::LaneSequence { sequence } = host.sync(SyncRequest::LaneSequence { lane_tag: 7 }) else {
        panic!("live")
    };
    let range = TokenRange { start: 0, end: 64 };
    let size = SyncRequest::ExportSize { sequence, space_id: 1, range, encoding: 0 };
    let SyncOk::ExportSize { required_bytes, sizing_gen } = host.sync(size) else { panic!("a size") };
    host.buffer(1, required_bytes as usize);
    let op = StateOp::Snapshot { sequence, space_id: 1, boundary_pos: 64, buf_id: 1, sizing_gen };
    let OpAccepted::Accepted { op_handle } = host.submit(op) else { panic!("accepted") };
    let mut listed = false;
    for _ in 0..500 {
        let mut plan = host.plan();
        plan.decodes = vec![decode(8, 1)];
        let events = host.tick(plan);
        if events.op_completions.iter().any(|complete| complete.op == op_handle) {
            listed = true;
            break;
        }
    }
    assert!(listed);
    let told =
        host.unasked.iter().filter(|message| matches!(message, Message::StateOpDone(done) if done.op == op_handle));
    assert_eq!(told.count(), 1);
}

/// W-59: the end of an operation tells whether it could be stopped.
#[test]
fn cancelled_operation_ends_as_cancelled() {
    let slow = ExecutorOptions { op_slice_bytes: 1, ..ExecutorOptions::default() };
    let mut host = Host::of(move || Box::new(Executor::with_options(FakeRuntime::default(), slow)));
    host.start();
    host.run(7, &prompt(13, 512), 3);
    let SyncOk::LaneSequence { sequence } = host.sync(SyncRequest::LaneSequence { lane_tag: 7 }) else {
        panic!("live")
    };
    let range = TokenRange { start: 0, end: 512 };
    let size = SyncRequest::ExportSize { sequence, space_id: 1, range, encoding: 0 };
    let SyncOk::ExportSize { required_bytes, sizing_gen } = host.sync(size) else { panic!("a size") };
    host.buffer(1, required_bytes as usize);
    let op = StateOp::Snapshot { sequence, space_id: 1, boundary_pos: 512, buf_id: 1, sizing_gen };
    // There is no time to finish between the two.
    let submitted = host.send_together(&[Message::StateOpSubmit(op), Message::OpCancel(1)]);
    let Message::StateOpAccepted(OpAccepted::Accepted { op_handle }) = host.reply_to(submitted[0]) else {
        panic!("accepted")
    };
    assert_eq!(op_handle, 1);
    assert_eq!(host.done(op_handle).state, 4);
}

/// W-60.
#[test]
fn lane_that_is_not_live_has_no_sequence_and_evictions_follow_the_policy() {
    let mut host = Host::ready();
    for _ in 0..2 {
        let asked = host.sync_result(SyncRequest::LaneSequence { lane_tag: 7 });
        assert_eq!(asked, SyncResult::Err { status: -129 });
    }
    host.run(7, &prompt(14, 64), 2);
    host.retire(7, true);
    let none = Shed { evictable_cache_classes: 0, ..crate::host::everything() };
    let evict = |policy| SyncRequest::CacheEvict { bytes_target: u64::MAX, policy };
    assert_eq!(host.sync(evict(none)), SyncOk::CacheEvict { bytes_freed: 0 });
    let SyncOk::CacheEvict { bytes_freed } = host.sync(evict(crate::host::everything())) else { panic!("evicted") };
    assert!(bytes_freed > 0);
}

/// W-38.
#[test]
fn ws_26_raised_yield_word_ends_a_tick_early_and_loses_nothing() {
    let options = FakeOptions { step_delay: std::time::Duration::from_millis(2), ..FakeOptions::default() };
    let mut host = Host::of(move || Box::new(Executor::new(FakeRuntime::new(options))));
    host.start();
    let text = prompt(11, 20);
    let plan = host.first_plan(7, &text, 64);
    host.control.as_ref().expect("attached").set_yield(true);
    let events = host.tick(plan);
    let mut tokens = host.tokens_of(&events, 7);
    assert!(tokens.len() < 64, "the tick ended early: {} tokens", tokens.len());
    host.control.as_ref().expect("attached").set_yield(false);
    let left = 64 - tokens.len() as u16;
    tokens.extend(host.go_on(7, left));
    let mut undisturbed = Host::ready();
    assert_eq!(tokens, undisturbed.run(7, &text, 64));
}
