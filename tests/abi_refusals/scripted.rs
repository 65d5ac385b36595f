//! Functions of the C layer around an engine whose calls a test decides.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use ictus::abi::*;
use ictus::engine::{Engine, EventsView, ExportSize, OpHandle, SeqHandle};
use ictus::record::constant::op_state;
use ictus::record::view::{Memory, Plain};
use ictus::record::*;
use ictus::ring::Rings;

use crate::{empty_plan, fake, free, last_error, story, twice};

/// An engine whose calls a test decides.
#[derive(Default)]
struct Scripted {
    panics: bool,
    pumped: std::cell::Cell<u32>,
    output: Option<Vec<u8>>,
    polled: std::cell::Cell<u32>,
}

impl Engine for Scripted {
    fn tick(&mut self, _: &TickPlan, _: &dyn Memory, _: &mut dyn Rings) -> Result<EventsView<'_>, Status> {
        if self.panics {
            panic!("the model exploded");
        }
        Err(Status::NeedsReplan)
    }
    fn last_events(&self) -> Option<EventsView<'_>> {
        None
    }
    fn pump(&mut self) {
        self.pumped.set(self.pumped.get() + 1);
    }
    fn state_spaces(&self) -> &[StateSpaceDesc] {
        &[]
    }
    fn strategy_register(&mut self, _: &StrategyRegistration, _: &dyn Memory) -> Result<&StrategyGrant, Status> {
        Err(Status::RegistrationRefused)
    }
    fn space_match(&mut self, _: u32, _: &[u32], _: &[[u8; 32]]) -> Result<&MatchResult, Status> {
        Err(Status::Unsupported)
    }
    fn seed_acquire(&mut self, _: &[u32], _: u64, _: u8) -> Result<u64, Status> {
        Err(Status::SeedUnservable)
    }
    fn seed_release(&mut self, _: u64) -> Result<(), Status> {
        Err(Status::UnknownHandle)
    }
    fn seq_fork(&mut self, _: SeqHandle, _: u32) -> Result<SeqHandle, Status> {
        Err(Status::Unsupported)
    }
    fn create_sequence(&mut self) -> Result<SeqHandle, Status> {
        Ok(7)
    }
    fn cache_evict(&mut self, _: u64, _: u64, _: u64, _: u64) -> Result<u64, Status> {
        Ok(0)
    }
    fn space_export_size(&mut self, _: SeqHandle, _: u32, _: TokenRange, _: u8) -> Result<ExportSize, Status> {
        Ok(ExportSize { bytes: 5, sizing_gen: 3 })
    }
    fn space_snapshot(&mut self, sequence: SeqHandle, _: u32, _: u64, dst: u64, _: u64) -> Result<OpHandle, Status> {
        assert_eq!(sequence, 7);
        if dst < 5 {
            return Err(Status::BufferTooSmall);
        }
        self.output = Some(b"bytes".to_vec());
        self.pumped.set(0);
        Ok(11)
    }
    fn space_restore(&mut self, _: SeqHandle, _: u32, _: &[u8]) -> Result<OpHandle, Status> {
        Err(Status::Checksum)
    }
    fn space_trim(&mut self, _: SeqHandle, _: u32, _: u64) -> Result<(), Status> {
        Err(Status::OutOfBoundary)
    }
    fn space_demote(&mut self, _: SeqHandle, _: u32, _: TokenRange, _: u8, _: u64, _: u64) -> Result<OpHandle, Status> {
        Err(Status::Unsupported)
    }
    fn space_promote(&mut self, _: SeqHandle, _: u32, _: TokenRange, _: &[u8]) -> Result<OpHandle, Status> {
        Err(Status::Unsupported)
    }
    fn op_poll(&self, op: OpHandle) -> Result<OpStatus, Status> {
        if op != 11 {
            return Err(Status::UnknownHandle);
        }
        self.polled.set(self.polled.get() + 1);
        // Runs until it has been given two chances to finish.
        let state = if self.pumped.get() < 2 { op_state::RUNNING } else { op_state::DONE };
        Ok(OpStatus { struct_size: 24, state, bytes_moved: 5, ..OpStatus::zeroed() })
    }
    fn take_op_output(&mut self, op: OpHandle) -> Option<Vec<u8>> {
        self.output.take().filter(|_| op == 11)
    }
    fn op_cancel(&mut self, _: OpHandle) -> Result<(), Status> {
        Err(Status::UnknownHandle)
    }
}

/// a panic does not cross; the model is broken from then on, and can be released.
#[test]
fn panic_in_an_engine_is_fatal_for_its_model_alone() {
    let broken = adopt_engine(Box::new(Scripted { panics: true, ..Scripted::default() }));
    let other = fake();
    let plan = empty_plan(1);
    let mut events = null();
    // SAFETY: the pointers are locals.
    unsafe {
        assert_eq!(ictus_tick(broken, &raw const plan, &raw mut events), Status::Fatal.code());
        assert!(last_error(broken).contains("the model exploded"), "{}", last_error(broken));
        let mut spaces = Array::EMPTY;
        twice(Status::Fatal, || ictus_state_spaces(broken, &raw mut spaces));
        twice(Status::Fatal, || ictus_tick(broken, &raw const plan, &raw mut events));
        assert!(ictus_tick_sequence_create(broken).is_null() && events.is_null());
    }
    free(broken);
    assert_eq!(story(other, |_| ()).0.len(), 12);
    free(other);
}

/// bytes of an export that takes its time are in the destination before anybody is told that it is done.
#[test]
fn export_is_copied_before_it_is_reported_done() {
    let model = adopt_engine(Box::new(Scripted::default()));
    let (mut dst, mut op, mut status) = ([0xAAu8; 8], 0u64, OpStatus::zeroed());
    // SAFETY: the pointers are locals, and `dst` outlives the operation.
    unsafe {
        let sequence = ictus_tick_sequence_create(model);
        let (mut bytes, mut generation) = (0, 0);
        let range = TokenRange { start: 0, end: 16 };
        assert_eq!(ictus_space_export_size(sequence, 1, range, 0, &raw mut bytes, &raw mut generation), 0);
        assert_eq!((bytes, generation), (5, 3));
        let lend = |len: u64, dst: &mut [u8; 8]| Buf { ptr: dst.as_mut_ptr().cast::<c_void>(), len };
        let (small, enough) = (lend(4, &mut dst), lend(8, &mut dst));
        twice(Status::BufferTooSmall, || ictus_space_snapshot(sequence, 1, 16, small, 3, &raw mut op));
        assert_eq!((op, dst), (0, [0xAA; 8]), "no operation, nothing written");
        let nowhere = Buf { ptr: null_mut(), len: 8 };
        twice(Status::RejectBadStruct, || ictus_space_snapshot(sequence, 1, 16, nowhere, 3, &raw mut op));
        assert_eq!(ictus_space_snapshot(sequence, 1, 16, enough, 3, &raw mut op), 0);
        assert_eq!(op, 11);
        assert_eq!(ictus_op_poll(model, op, &raw mut status), 0);
        assert_eq!((status.state, status.struct_size, dst), (op_state::RUNNING, 24, [0xAA; 8]));
        assert_eq!(ictus_op_poll(model, op, &raw mut status), 0);
        assert_eq!((status.state, status.bytes_moved), (op_state::DONE, 5));
        assert_eq!(&dst, b"bytes\xAA\xAA\xAA");
    }
    free(model);
}
