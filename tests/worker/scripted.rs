//! An engine whose operations end when the test says so (WS-18).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use ictus::engine::{Engine, EventsView, ExportSize, OpHandle, SeqHandle};
use ictus::record::constant::op_state;
use ictus::record::view::Memory;
use ictus::record::{
    MatchResult, OpStatus, StateSpaceDesc, Status, StrategyGrant, StrategyRegistration, TickPlan, TokenRange,
};
use ictus::ring::Rings;
use ictus::worker::message::Message;
use ictus::worker::payload::*;

use crate::host::Host;

/// What a test and its engine share.
#[derive(Clone, Default)]
struct Strings {
    finish: Arc<AtomicBool>,
    pumps: Arc<AtomicU64>,
}

#[derive(Default)]
struct Slow {
    strings: Strings,
    ops: u64,
}

type Refused<T> = Result<T, Status>;

impl Engine for Slow {
    fn tick(&mut self, _: &TickPlan, _: &dyn Memory, _: &mut dyn Rings) -> Refused<EventsView<'_>> {
        Err(Status::Fatal)
    }
    fn last_events(&self) -> Option<EventsView<'_>> {
        None
    }
    fn pump(&mut self) {
        self.strings.pumps.fetch_add(1, SeqCst);
    }
    fn state_spaces(&self) -> &[StateSpaceDesc] {
        &[]
    }
    fn strategy_register(&mut self, _: &StrategyRegistration, _: &dyn Memory) -> Refused<&StrategyGrant> {
        Err(Status::Unsupported)
    }
    fn space_match(&mut self, _: u32, _: &[u32], _: &[[u8; 32]]) -> Refused<&MatchResult> {
        Err(Status::Unsupported)
    }
    fn seed_acquire(&mut self, _: &[u32], _: u64, _: u8) -> Refused<u64> {
        Err(Status::Unsupported)
    }
    fn seed_release(&mut self, _: u64) -> Refused<()> {
        Err(Status::Unsupported)
    }
    fn seq_fork(&mut self, _: SeqHandle, _: u32) -> Refused<SeqHandle> {
        Err(Status::Unsupported)
    }
    fn cache_evict(&mut self, _: u64, _: u64, _: u64, _: u64) -> Refused<u64> {
        Err(Status::Unsupported)
    }
    fn space_export_size(&mut self, _: SeqHandle, _: u32, _: TokenRange, _: u8) -> Refused<ExportSize> {
        Err(Status::Unsupported)
    }
    fn space_snapshot(&mut self, _: SeqHandle, _: u32, _: u64, _: u64, _: u64) -> Refused<OpHandle> {
        self.ops += 1;
        Ok(self.ops)
    }
    fn space_restore(&mut self, _: SeqHandle, _: u32, _: &[u8]) -> Refused<OpHandle> {
        Err(Status::Unsupported)
    }
    fn space_trim(&mut self, _: SeqHandle, _: u32, _: u64) -> Refused<()> {
        Err(Status::Unsupported)
    }
    fn space_demote(&mut self, _: SeqHandle, _: u32, _: TokenRange, _: u8, _: u64, _: u64) -> Refused<OpHandle> {
        Err(Status::Unsupported)
    }
    fn space_promote(&mut self, _: SeqHandle, _: u32, _: TokenRange, _: &[u8]) -> Refused<OpHandle> {
        Err(Status::Unsupported)
    }
    fn op_poll(&self, op: OpHandle) -> Refused<OpStatus> {
        if op == 0 || op > self.ops {
            return Err(Status::UnknownHandle);
        }
        let state = if self.strings.finish.load(SeqCst) { op_state::DONE } else { op_state::RUNNING };
        let struct_size = size_of::<OpStatus>() as u64;
        Ok(OpStatus { struct_size, state, _pad0: [0; 3], error: 0, bytes_moved: op * 10 })
    }
    fn take_op_output(&mut self, op: OpHandle) -> Option<Vec<u8>> {
        // Two of them do not fit the buffer.
        Some(vec![op as u8; if op > 14 { 2000 } else { 1000 }])
    }
    fn op_cancel(&mut self, _: OpHandle) -> Refused<()> {
        Err(Status::Unsupported)
    }
}

fn snapshot() -> StateOp {
    StateOp::Snapshot { sequence: 1, space_id: 1, boundary_pos: 1, buf_id: 1, sizing_gen: 1 }
}

/// W-55, W-57, W-58, W-72.
#[test]
fn ws_18_window_is_sixteen_and_each_operation_ends_once() {
    let strings = Strings::default();
    let shared = strings.clone();
    let mut host = Host::of(move || Box::new(Slow { strings: shared, ops: 0 }));
    host.start();
    let memory = host.buffer(1, 1000);
    for op in 1..=16 {
        assert_eq!(host.submit(snapshot()), OpAccepted::Accepted { op_handle: op });
    }
    assert_eq!(host.ping().queue_depth, 16);
    let beyond = StateOp::Restore { sequence: 1, space_id: 1, buf_id: 99 };
    for op in [snapshot(), beyond] {
        assert_eq!(host.submit(op), OpAccepted::Rejected { status: -120 }, "before anything else is looked at");
    }
    assert!(host.unasked.is_empty());
    strings.finish.store(true, SeqCst);
    // Nothing is sent to the worker: it notices by itself.
    for op in 1..=16 {
        let done = host.done(op);
        let expected = if op > 14 { (3, (-121i32) as u32) } else { (2, 0) };
        assert_eq!((done.state, done.error, done.bytes_moved), (expected.0, expected.1, op * 10), "operation {op}");
    }
    let mut byte = [0];
    assert!(memory.copy_out(999, &mut byte) && byte == [14], "what did not fit was not written");
    assert_eq!(host.ping().queue_depth, 0);
    assert!(host.unasked.is_empty(), "each end was told once");
    // An idle engine is not pumped.
    let pumps = strings.pumps.load(SeqCst);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(strings.pumps.load(SeqCst), pumps);
}

/// W-44: what the engine answers is what is sent, and the link lives on.
#[test]
fn ws_12_fatal_tick_is_a_rejection() {
    let mut host = Host::of(|| Box::new(Slow::default()));
    host.start();
    let plan = host.plan();
    for _ in 0..2 {
        let result = host.ask(&Message::TickSubmit(plan.clone()));
        assert_eq!(result, Message::TickResult(TickResult::Rejected { status: -1 }));
    }
}

/// W-62, W-65: what an engine does not offer is its typed refusal, and a cancel outside a transcription is ignored.
#[test]
fn what_the_engine_does_not_offer_is_unsupported() {
    let mut host = Host::of(|| Box::new(Slow::default()));
    host.start();
    let path = || "/nowhere".to_owned();
    let transcribe = SyncRequest::Transcribe {
        audio_path: path(),
        language: None,
        translate: false,
        timestamps: true,
        prompt: None,
        stream: true,
    };
    let asked = [
        transcribe,
        SyncRequest::MediaProbe { image_path: path() },
        SyncRequest::MediaEncode { image_path: path() },
        SyncRequest::MediaRelease { media_handle: 1 },
        SyncRequest::MediaBind { lane_tag: 1, media_handle: 1, token_offset: 0 },
        SyncRequest::Embed { tokens: vec![1] },
        SyncRequest::LoraLoad { adapter_path: path() },
        SyncRequest::CreateGrammar { json_schema: "{}".to_owned() },
        SyncRequest::ForwardStage { tokens: vec![1], start_layer: 0, end_layer: 1, hidden_in: None },
    ];
    for request in asked {
        assert_eq!(host.sync_result(request.clone()), SyncResult::Err { status: -127 }, "{request:?}");
    }
    let registered = host.ask(&Message::StrategyRegister(Registration::default()));
    assert_eq!(registered, Message::StrategyGrant(ictus::worker::payload::StrategyGrant::Refused { status: -127 }));
    // Behind a cancel that comes too late, everything is answered.
    host.send(&Message::TranscribeCancel);
    host.ping();
    assert_eq!(host.sync(SyncRequest::LoraId), SyncOk::LoraId { id: None });
    assert_eq!(host.sync(SyncRequest::Capabilities), SyncOk::Capabilities { json: String::new() });
}
