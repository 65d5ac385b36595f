//! Rings: the host's own, and rings that the model keeps for hosts that want none of their own.
//!
//! The second kind is the same shared layout in memory of ours, with the host's end behind functions: stage a prompt, read tokens,
//! read a row. A host that maps its own segments needs none of these.

use core::ffi::c_void;
use std::sync::OnceLock;

use super::bundle::{Inside, ModelHandle, StatusCode, beside, status};
use super::guard::{Failure, Outcome, buffer, hand_over, list, out, plain, versioned};
use crate::record::constant::ring_id;
use crate::record::view::{Plain, record};
use crate::record::{RingDesc, RingRef, Status, TokenRef};
use crate::ring::{ControlWords, LayoutError, Mapping, Rings, Segment, SharedRing, segment_bytes, slot_bytes_for};

/// How large the rings are that a model keeps. Zero in a field means its default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RingShape {
    /// The writer's size of this record in bytes; at least 32.
    pub struct_size: u64,
    /// Slots of each token ring; 0 is 64. A slot is written anew after so many prompts or emits.
    pub token_slots: u32,
    /// Most tokens of a prompt; 0 is 8192.
    pub prompt_tokens: u32,
    /// Most tokens of an emit, at least the largest grant; 0 is 1024.
    pub emit_tokens: u32,
    /// Slots of the logits ring, which HOST lanes need: one for each lane whose row is pending. 0 is none.
    pub logits_slots: u32,
    /// Logits of a row: the size of the vocabulary. Needed with `logits_slots`.
    pub row_logits: u32,
    /// Zero; readers ignore it.
    pub _pad0: u32,
}
const _: () = assert!(size_of::<RingShape>() == 32);
record!(RingShape, min_prefix: 32);

/// Largest segment of a ring that a model keeps.
const MAX_RING_BYTES: usize = 1 << 30;

/// The host's end of control words that a model keeps. Any thread may use it, also while another one ticks.
#[derive(Debug, Default)]
pub(super) struct OwnedControl(OnceLock<(Segment, ControlWords)>);

impl OwnedControl {
    fn words(&self) -> Option<&ControlWords> {
        self.0.get().map(|(_, words)| words)
    }

    /// Another mapping of the segment, which is made by the first call.
    fn mapping(&self) -> Result<Mapping, LayoutError> {
        if let Some((segment, _)) = self.0.get() {
            return Ok(segment.mapping());
        }
        let segment = ControlWords::create();
        let words = ControlWords::open(segment.mapping())?;
        Ok(self.0.get_or_init(|| (segment, words)).0.mapping())
    }
}

/// Attaches shared rings: each descriptor is checked against its ring's header, and nothing is attached unless all fit. A ring
/// with the id of an attached one replaces it; the others stay.
///
/// `descs`: `count` records, one after the other, all of the same `struct_size`.
/// Owner: the mappings are the host's; the model uses them until it is released or they are replaced, and never unmaps them.
/// Threads: any; one at a time.
/// Codes: `ICTUS_ERR_RING_LAYOUT` (a ring is not as described), `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_REJECT_BAD_ALIGNMENT`,
/// `ICTUS_REJECT_BOUNDS` (descriptors). Nothing is attached then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_rings_attach(model: ModelHandle, descs: *const RingDesc, count: u32) -> StatusCode {
    status(model, "ictus_rings_attach", |inside| {
        let mut found = Vec::new();
        let mut at = descs;
        for _ in 0..count {
            // SAFETY: the caller promises `count` records of the size that they say.
            let desc = unsafe { versioned(at) }?;
            let stride = usize::try_from(desc.struct_size).map_err(|_| Status::RejectBounds)?;
            if found.first().is_some_and(|first: &RingDesc| first.struct_size != desc.struct_size) {
                return Err(Failure::new(Status::RejectBadStruct, "descriptors of different sizes"));
            }
            found.push(desc);
            at = at.wrapping_byte_add(stride);
        }
        let rings: Result<Vec<_>, LayoutError> = found.iter().map(open).collect();
        attach(inside, &found, rings?)
    })
}

fn open(desc: &RingDesc) -> Result<SharedRing, LayoutError> {
    // SAFETY: the caller promises that the memory of a descriptor stays mapped while the ring is attached, and that both sides
    // keep to the protocol of E-41 (E-44).
    let mapping = unsafe { Mapping::foreign(desc.base, desc.len) }?;
    SharedRing::open(desc, mapping)
}

fn attach(inside: &mut Inside, descs: &[RingDesc], rings: Vec<SharedRing>) -> Outcome<()> {
    for desc in descs {
        inside.engine.attach_ring(desc)?;
    }
    // The host's end of a ring that is replaced has nobody to write to.
    if descs.iter().any(|desc| desc.ring_id == ring_id::TOKENS_IN) {
        inside.prompts = None;
    }
    inside.rings.attach(rings);
    Ok(())
}

/// Attaches the two control words by which any thread or process hurries a tick: a yield word and a latency word, in a segment of
/// at least 64 bytes that begins with `ICTUS_CONTROL_MAGIC`.
///
/// Owner: the segment is the host's; the model reads it until it is released or another is attached. Threads: any; one at a time.
/// Codes: `ICTUS_ERR_RING_LAYOUT`. The segment before stays then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_control_attach(model: ModelHandle, base: *mut c_void, len: u64) -> StatusCode {
    status(model, "ictus_control_attach", |inside| {
        // SAFETY: the caller promises that the segment stays mapped while it is attached (E-44).
        let mapping = unsafe { Mapping::foreign(base, len) }?;
        inside.rings.attach_control(ControlWords::open(mapping)?);
        Ok(())
    })
}

/// Makes rings and control words in memory of the model and attaches them, for a host that has none. `shape` may be NULL: all
/// defaults.
///
/// Owner: the model, until its release. May be called again; references into the rings before are stale then.
/// Threads: any; one at a time.
/// Codes: `ICTUS_REJECT_BAD_STRUCT` (`shape` too short), `ICTUS_REJECT_BOUNDS` (a ring of more than 2^30 bytes),
/// `ICTUS_ERR_RING_LAYOUT` (logits slots without logits). Nothing is attached then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_model_rings_create(model: ModelHandle, shape: *const RingShape) -> StatusCode {
    status(model, "ictus_model_rings_create", |inside| {
        let shape = match shape.is_null() {
            true => RingShape::zeroed(),
            // SAFETY: the caller's pointer, as the module's documentation asks.
            false => unsafe { versioned(shape) }?,
        };
        create(inside, &shape)
    })
}

fn create(inside: &mut Inside, shape: &RingShape) -> Outcome<()> {
    let or = |value: u32, default: u32| if value == 0 { default } else { value };
    let token_slots = or(shape.token_slots, 64);
    let mut kinds = vec![
        (ring_id::TOKENS_IN, token_slots, or(shape.prompt_tokens, 8192)),
        (ring_id::TOKENS_OUT, token_slots, or(shape.emit_tokens, 1024)),
    ];
    if shape.logits_slots != 0 {
        if shape.row_logits == 0 {
            return Err(Failure::new(Status::RingLayout, "logits slots without logits"));
        }
        kinds.push((ring_id::LOGITS, shape.logits_slots, shape.row_logits));
    }
    let (mut descs, mut rings, mut prompts) = (Vec::new(), Vec::new(), None);
    for (id, slots, words) in kinds {
        let payload_bytes = words.checked_mul(4).filter(|&bytes| bytes < 1 << 31).ok_or(Status::RejectBounds)?;
        let slot_bytes = slot_bytes_for(payload_bytes);
        if segment_bytes(slots, slot_bytes)? > MAX_RING_BYTES {
            return Err(Failure::new(Status::RejectBounds, "a ring of more than 2^30 bytes"));
        }
        let (segment, desc) = SharedRing::create(id, slots, slot_bytes)?;
        rings.push(SharedRing::open(&desc, segment.mapping())?);
        if id == ring_id::TOKENS_IN {
            prompts = Some(SharedRing::open(&desc, segment.mapping())?);
        }
        descs.push(desc);
    }
    let control = ControlWords::open(inside.control.mapping()?)?;
    attach(inside, &descs, rings)?;
    inside.rings.attach_control(control);
    inside.prompts = prompts;
    Ok(())
}

/// Writes a prompt into the token-in ring that the model keeps, for an admit or a span to name.
///
/// `*reference` is good until the slot is written anew. Threads: any; one at a time.
/// Codes: `ICTUS_ERR_OP_UNSUPPORTED` (no such ring, or the host attached its own), `ICTUS_REJECT_BOUNDS` (longer than a slot),
/// `ICTUS_REJECT_BAD_STRUCT`. Nothing is written then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_model_stage_prompt(
    model: ModelHandle,
    tokens: *const u32,
    n_tokens: u64,
    reference: *mut TokenRef,
) -> StatusCode {
    status(model, "ictus_model_stage_prompt", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let tokens = unsafe { list(tokens, n_tokens) }?;
        // SAFETY: as above.
        let reference = unsafe { out(reference) }?;
        let ring = inside.prompts.as_mut().ok_or(Status::Unsupported)?;
        let count = u32::try_from(tokens.len()).map_err(|_| Status::RejectBounds)?;
        let (index, generation) = ring.write(tokens)?;
        reference.set(TokenRef { ring_id: ring.id(), index, count, _pad0: 0, generation });
        Ok(())
    })
}

/// Copies the tokens of a reference from an attached token ring: those of an emit, or a staged prompt.
///
/// `*n_tokens` is their number, written also when the buffer is too small. Threads: any; one at a time.
/// Codes: `ICTUS_REJECT_BAD_REF_GENERATION` (the slot was written anew), `ICTUS_REJECT_BOUNDS` (no such ring or slot),
/// `ICTUS_ERR_BUFFER_TOO_SMALL`. `tokens` is as before then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_model_read_tokens(
    model: ModelHandle,
    reference: *const TokenRef,
    tokens: *mut u32,
    capacity: u64,
    n_tokens: *mut u64,
) -> StatusCode {
    status(model, "ictus_model_read_tokens", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let reference = unsafe { plain(reference) }?;
        // SAFETY: as above.
        let target = unsafe { buffer(tokens, capacity) }?;
        // SAFETY: as above.
        let n_tokens = unsafe { out(n_tokens) }?;
        let mut read = Vec::new();
        inside.rings.read_tokens(&reference, &mut read)?;
        Ok(hand_over(&read, &target, n_tokens)?)
    })
}

/// Copies a row from the attached logits ring: the pending one of a HOST lane.
///
/// `*n_logits` is its length, written also when the buffer is too small. Threads: any; one at a time.
/// Codes: as `ictus_model_read_tokens`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_model_read_logits(
    model: ModelHandle,
    reference: *const RingRef,
    logits: *mut f32,
    capacity: u64,
    n_logits: *mut u64,
) -> StatusCode {
    status(model, "ictus_model_read_logits", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let reference = unsafe { plain(reference) }?;
        // SAFETY: as above.
        let target = unsafe { buffer(logits, capacity) }?;
        // SAFETY: as above.
        let n_logits = unsafe { out(n_logits) }?;
        let mut read = Vec::new();
        inside.rings.read_logits_row(&reference, &mut read)?;
        Ok(hand_over(&read, &target, n_logits)?)
    })
}

/// Raises (nonzero) or clears the yield word of the rings that the model keeps: while it is raised a tick ends at the nearest
/// boundary between steps.
///
/// Threads: any, at any time, also while another one ticks. Codes: `ICTUS_ERR_OP_UNSUPPORTED` (the model keeps no rings).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_model_set_yield(model: ModelHandle, on: u32) -> StatusCode {
    beside(model, |bundle| {
        bundle.control().words().ok_or(Status::Unsupported)?.set_yield(on != 0);
        Ok(())
    })
}

/// Raises (nonzero) or clears the latency word of the rings that the model keeps: while it is raised prefill steps are short.
///
/// Threads: any, at any time, also while another one ticks. Codes: `ICTUS_ERR_OP_UNSUPPORTED` (the model keeps no rings).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_model_set_latency(model: ModelHandle, on: u32) -> StatusCode {
    beside(model, |bundle| {
        bundle.control().words().ok_or(Status::Unsupported)?.set_latency(on != 0);
        Ok(())
    })
}
