#![forbid(unsafe_code)]
//! What the host attaches: rings, control words, buffers (W-31 .. W-41).
//!
//! # Invariants
//! - The rings are live together or not at all, and each is attached once.
//! - What is mapped cannot be cut short by the host; the rest is reached by position, and [`Attached::whole`] says when it is no more.
//! - A buffer is named by the host's number; an operation that writes to it keeps it until its end is told.

use core::ffi::c_void;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::buffer::Buffer;
use super::{Request, ServeError, ServerOptions, WorkerServer};
use crate::engine::Engine;
use crate::record::RingDesc;
use crate::record::constant::{control, ring_kind, ring_role};
use crate::ring::{ByPosition, ControlWords, SharedRing, SharedRings, Store, segment_bytes};
use crate::worker::memory::SharedMemory;
use crate::worker::message::Message;
use crate::worker::payload::{BufAttach, RingAck, RingAttach, RingKind, RingSpec};
use crate::worker::positioned::Unsealed;
use crate::worker::socket::receive_descriptor;

/// The tag that comes with the control segment.
const CONTROL_TAG: u64 = 0xC0;

/// Everything that the host has attached.
#[derive(Debug)]
pub(super) struct Attached {
    descriptors: OwnedFd,
    descriptor_limit: Duration,
    specs: [RingSpec; 3],
    /// Rings that wait for the others.
    waiting: Vec<SharedRing>,
    live: bool,
    rings: SharedRings,
    /// By its tag, the memory of rings and control words that is not mapped.
    unsealed: BTreeMap<u64, Arc<Unsealed>>,
    buffers: HashMap<u64, Arc<Buffer>>,
}

impl Attached {
    pub(super) fn new(options: &ServerOptions, descriptors: OwnedFd) -> Self {
        Self {
            descriptors,
            descriptor_limit: options.descriptor_limit,
            specs: options.ring_specs(),
            waiting: Vec::new(),
            live: false,
            rings: SharedRings::new(),
            unsealed: BTreeMap::new(),
            buffers: HashMap::new(),
        }
    }

    /// Whether all three rings are there.
    pub(super) fn is_live(&self) -> bool {
        self.live
    }

    pub(super) fn rings(&self) -> &SharedRings {
        &self.rings
    }

    pub(super) fn rings_mut(&mut self) -> &mut SharedRings {
        &mut self.rings
    }

    pub(super) fn buffer_of(&self, id: u64) -> Option<&Arc<Buffer>> {
        self.buffers.get(&id)
    }

    /// Forgets a buffer; one that is not known is nothing to forget (W-41).
    pub(super) fn release(&mut self, id: u64) {
        self.buffers.remove(&id);
    }

    /// The next descriptor, which has to come with this tag (W-33).
    fn descriptor(&self, what: &'static str, tag: u64) -> Result<OwnedFd, ServeError> {
        let received = receive_descriptor(self.descriptors.as_fd(), self.descriptor_limit);
        let (got, descriptor) = received.map_err(|error| ServeError::Descriptor { what, error })?;
        if got != tag {
            return Err(ServeError::Attach { what, reason: format!("tag {got} came for {tag}") });
        }
        Ok(descriptor)
    }

    /// The next descriptor as memory: `bytes` of an object that has them. It is mapped if the host cannot cut it short, and reached by
    /// position otherwise: hosts pass such objects, too.
    fn receive(&mut self, what: &'static str, tag: u64, bytes: u64) -> Result<(Store, *mut c_void), ServeError> {
        let descriptor = self.descriptor(what, tag)?;
        let wrong = |reason: String| ServeError::Attach { what, reason };
        let bytes = usize::try_from(bytes).map_err(|_| wrong(format!("{bytes} bytes cannot be mapped")))?;
        self.unsealed.remove(&tag);
        if SharedMemory::can_be_mapped(descriptor.as_fd()) {
            let memory = SharedMemory::map(descriptor, bytes).map_err(|error| wrong(error.to_string()))?;
            let mapping = memory.mapping();
            let base = mapping.base();
            return Ok((mapping.into(), base));
        }
        let object = Unsealed::new(descriptor, bytes).map_err(|error| wrong(error.to_string()))?;
        let object = Arc::new(object);
        self.unsealed.insert(tag, Arc::clone(&object));
        Ok((Store::Positioned(object as Arc<dyn ByPosition>), core::ptr::null_mut()))
    }

    /// Whether all that is attached is there still, as far as it was touched.
    ///
    /// # Errors
    /// `Cut`: the host has cut short what it lent.
    pub(super) fn whole(&self) -> Result<(), ServeError> {
        let cut = self.unsealed.iter().find(|(_, object)| object.has_failed());
        cut.map_or(Ok(()), |(&tag, _)| {
            Err(ServeError::Cut { what: if tag == CONTROL_TAG { "control segment" } else { "ring" } })
        })
    }

    /// Takes a buffer, in place of one with the same number (W-40).
    pub(super) fn buffer(&mut self, attach: &BufAttach) -> Result<(), ServeError> {
        let what = "buffer";
        let descriptor = self.descriptor(what, attach.buf_id)?;
        let buffer = Buffer::new(descriptor, attach.len);
        let buffer = buffer.map_err(|error| ServeError::Attach { what, reason: error.to_string() })?;
        self.buffers.insert(attach.buf_id, Arc::new(buffer));
        Ok(())
    }

    /// Opens an announced ring (W-34). The engine is asked before anything counts as attached.
    fn ring(
        &mut self,
        attach: &RingAttach,
        accept: &mut dyn FnMut(&RingDesc) -> Result<(), crate::record::Status>,
    ) -> Result<(), ServeError> {
        let what = "ring";
        let wrong = |reason: String| ServeError::Attach { what, reason };
        let id = attach.ring_id;
        let spec = self.specs.iter().find(|spec| spec.ring_id == id).cloned();
        let spec = spec.ok_or_else(|| wrong(format!("no ring {id} was offered")))?;
        if attach.layout != spec {
            return Err(wrong(format!("another layout than ring {id} was offered with")));
        }
        if self.live || self.waiting.iter().any(|ring| ring.id() == id) {
            return Err(wrong(format!("ring {id} is attached")));
        }
        let layout = |error| ServeError::Layout { what, error };
        let bytes = segment_bytes(spec.slots, spec.slot_bytes).map_err(layout)?;
        let (memory, base) = self.receive(what, id.into(), bytes as u64)?;
        let kind = match spec.kind {
            RingKind::Tokens => ring_kind::TOKENS,
            RingKind::Logits => ring_kind::LOGITS,
        };
        let reads = id == crate::record::constant::ring_id::TOKENS_IN;
        let desc = RingDesc {
            struct_size: size_of::<RingDesc>() as u64,
            ring_id: id,
            kind,
            role: if reads { ring_role::ENGINE_READS } else { ring_role::ENGINE_WRITES },
            slots: spec.slots,
            slot_bytes: spec.slot_bytes,
            _pad0: 0,
            base,
            len: bytes as u64,
        };
        let ring = SharedRing::open(&desc, memory).map_err(layout)?;
        accept(&desc).map_err(|status| wrong(status.to_string()))?;
        self.waiting.push(ring);
        if self.waiting.len() == self.specs.len() {
            self.rings.attach(self.waiting.drain(..));
            self.live = true;
        }
        Ok(())
    }

    /// Opens announced control words, in place of those before (W-37).
    fn control(&mut self, bytes: u32) -> Result<(), ServeError> {
        let what = "control segment";
        let needed = u64::from(bytes).max(control::BYTES as u64);
        let (memory, _) = self.receive(what, CONTROL_TAG, needed)?;
        let words = ControlWords::open(memory).map_err(|error| ServeError::Layout { what, error })?;
        self.rings.attach_control(words);
        Ok(())
    }
}

impl<E: Engine + ?Sized> WorkerServer<E> {
    pub(super) fn attach_ring(&mut self, request: Request, attach: RingAttach) -> Result<(), ServeError> {
        self.attached.ring(&attach, &mut |desc| self.engine.attach_ring(desc))?;
        let ack = RingAck { ring_id: attach.ring_id, generation_base: 1 };
        self.link.reply(request.seq, &Message::RingAck(ack))
    }

    pub(super) fn attach_control(&mut self, request: Request, bytes: u32) -> Result<(), ServeError> {
        self.attached.control(bytes)?;
        self.link.reply(request.seq, &Message::ControlAck(bytes))
    }
}
