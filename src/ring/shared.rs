#![forbid(unsafe_code)]
//! Rings in memory that two processes share (E-40 .. E-45).
//!
//! ```text
//!   0  magic u64
//!   8  ring id u32, slot_bytes u32
//!  16  slots u32, zero up to 64
//!  64  slot 0: generation u64 | payload length in bytes u32 | zero u32 | payload ...
//!  64 + slot_bytes  slot 1 ...
//! ```
//!
//! A slot is a sequence lock. The writer takes the generation away, writes, and puts the new one up; a reader copies
//! the payload between two looks at the generation. So a reader sees a whole payload or staleness.
//!
//! # Invariants
//! - A [`SharedRing`] exists only over memory whose size and header fit its shape (E-42).
//! - One side writes a ring, from one cursor (E-31).
//!
//! # Limits
//! What a slot holds; a longer payload is `OutOfBounds` and writes nothing (E-35).

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::fence;

use super::control::ControlWords;
use super::mapping::Segment;
use super::store::{Store, Word};
use super::{LayoutError, RingError, Rings};
use crate::record::constant::misc::RING_MAGIC;
use crate::record::constant::ring_layout::{HEADER_BYTES, SLOT_HEADER_BYTES};
use crate::record::constant::{ring_id, ring_kind, ring_role};
use crate::record::{RingDesc, RingRef, TokenRef};

/// Bytes of a segment with `slots` slots of `slot_bytes` (E-40).
///
/// # Errors
/// `SlotBytes` when a slot is not larger than its header or not a multiple of 8; `Slots` when there is none or they are too many
/// to address.
pub fn segment_bytes(slots: u32, slot_bytes: u32) -> Result<usize, LayoutError> {
    if slot_bytes as usize <= SLOT_HEADER_BYTES || !slot_bytes.is_multiple_of(8) {
        return Err(LayoutError::SlotBytes { got: slot_bytes });
    }
    let bytes = (slots as usize).checked_mul(slot_bytes as usize).and_then(|bytes| bytes.checked_add(HEADER_BYTES));
    match bytes {
        Some(bytes) if slots > 0 && isize::try_from(bytes).is_ok() => Ok(bytes),
        _ => Err(LayoutError::Slots { got: slots }),
    }
}

/// The smallest legal `slot_bytes` for payloads of up to `payload_bytes` (E-40).
pub const fn slot_bytes_for(payload_bytes: u32) -> u32 {
    let header = SLOT_HEADER_BYTES as u32;
    let least = if payload_bytes == 0 { 1 } else { payload_bytes };
    (header + least).next_multiple_of(8)
}

/// What a ring carries and who writes it, by its id; none for an id that is no ring's.
const fn nature(id: u32) -> Option<(u32, u32)> {
    match id {
        ring_id::TOKENS_IN => Some((ring_kind::TOKENS, ring_role::ENGINE_READS)),
        ring_id::TOKENS_OUT => Some((ring_kind::TOKENS, ring_role::ENGINE_WRITES)),
        ring_id::LOGITS => Some((ring_kind::LOGITS, ring_role::ENGINE_WRITES)),
        _ => None,
    }
}

/// One end of one ring.
#[derive(Debug)]
pub struct SharedRing {
    store: Store,
    id: u32,
    slots: u32,
    slot_bytes: u32,
    next_index: u32,
    next_generation: u64,
}

impl SharedRing {
    /// Lays out an empty ring in a segment of its own, as the host does.
    ///
    /// # Errors
    /// `Id`, `SlotBytes`, `Slots`.
    pub fn create(id: u32, slots: u32, slot_bytes: u32) -> Result<(Segment, RingDesc), LayoutError> {
        let (kind, role) = nature(id).ok_or(LayoutError::Id { got: id })?;
        let segment = Segment::new(segment_bytes(slots, slot_bytes)?);
        write_header(&segment.mapping().into(), id, slots, slot_bytes);
        let desc = RingDesc {
            struct_size: size_of::<RingDesc>() as u64,
            ring_id: id,
            kind,
            role,
            slots,
            slot_bytes,
            _pad0: 0,
            base: segment.base(),
            len: segment.len_bytes() as u64,
        };
        Ok((segment, desc))
    }

    /// Lays out an empty ring in zeroed memory and opens the host's end of it.
    ///
    /// # Errors
    /// `Id`, `SlotBytes`, `Slots`; `Length` when the memory is too short.
    pub fn lay_out(id: u32, slots: u32, slot_bytes: u32, store: impl Into<Store>) -> Result<Self, LayoutError> {
        let store = store.into();
        nature(id).ok_or(LayoutError::Id { got: id })?;
        if store.len_bytes() < segment_bytes(slots, slot_bytes)? {
            return Err(LayoutError::Length);
        }
        write_header(&store, id, slots, slot_bytes);
        Ok(Self { store, id, slots, slot_bytes, next_index: 0, next_generation: 1 })
    }

    /// Opens the ring that `desc` describes in `store`, which must be the memory it names; the cursor starts over (E-43).
    ///
    /// # Errors
    /// Which of descriptor, memory and header do not fit each other (E-42); nothing is changed.
    pub fn open(desc: &RingDesc, store: impl Into<Store>) -> Result<Self, LayoutError> {
        let store = store.into();
        let (kind, role) = nature(desc.ring_id).ok_or(LayoutError::Id { got: desc.ring_id })?;
        if desc.kind != kind {
            return Err(LayoutError::Kind { got: desc.kind });
        }
        if desc.role != role {
            return Err(LayoutError::Role { got: desc.role });
        }
        if store.len_bytes() < segment_bytes(desc.slots, desc.slot_bytes)? {
            return Err(LayoutError::Length);
        }
        let header = |offset| store.get(offset, Acquire).unwrap_or(0);
        if header(0) != RING_MAGIC {
            return Err(LayoutError::Magic { got: header(0) });
        }
        // The upper half of the third word is padding, which a reader ignores.
        if header(8) != pair(desc.ring_id, desc.slot_bytes) || header(16) as u32 != desc.slots {
            return Err(LayoutError::Header { ring_id: desc.ring_id });
        }
        let RingDesc { ring_id, slots, slot_bytes, .. } = *desc;
        Ok(Self { store, id: ring_id, slots, slot_bytes, next_index: 0, next_generation: 1 })
    }

    /// The ring's id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Bytes that a slot can carry.
    pub fn payload_bytes(&self) -> usize {
        (self.slot_bytes as usize).saturating_sub(SLOT_HEADER_BYTES)
    }

    fn slot_offset(&self, index: u32) -> usize {
        HEADER_BYTES + index as usize * self.slot_bytes as usize
    }

    /// Stores a payload at the cursor and moves the cursor on (E-31, E-41); answers slot and generation.
    ///
    /// # Errors
    /// `OutOfBounds` when the payload is larger than a slot, and nothing is written; or when memory that is not mapped is gone.
    pub fn write<T: Word>(&mut self, payload: &[T]) -> Result<(u32, u64), RingError> {
        let bytes = size_of_val(payload);
        if bytes > self.payload_bytes() {
            return Err(RingError::OutOfBounds);
        }
        let offset = self.slot_offset(self.next_index);
        let gone = RingError::OutOfBounds;
        self.store.set(offset, 0, Relaxed).ok_or(gone)?;
        // Whoever sees a word of the new payload below sees the 0 above.
        fence(Release);
        self.store.fill(offset + 8, [bytes as u32, 0], payload).ok_or(gone)?;
        self.store.set(offset, self.next_generation, Release).ok_or(gone)?;
        let written = (self.next_index, self.next_generation);
        self.next_index = (self.next_index + 1) % self.slots;
        self.next_generation += 1;
        Ok(written)
    }

    /// Copies the payload of a slot to the end of `out`, which is unchanged on error (E-32, E-41).
    ///
    /// # Errors
    /// `OutOfBounds` for a slot out of range; `StaleGeneration`; `OutOfBounds` for a payload that is not `count` words, or
    /// with no count not whole words, or longer than a slot, and when memory that is not mapped is gone.
    pub fn read<T: Word>(
        &self,
        index: u32,
        generation: u64,
        count: Option<u32>,
        out: &mut Vec<T>,
    ) -> Result<(), RingError> {
        if index >= self.slots {
            return Err(RingError::OutOfBounds);
        }
        let offset = self.slot_offset(index);
        let gone = RingError::OutOfBounds;
        let stale = |current| RingError::StaleGeneration { reference: generation, current };
        let seen = self.store.get(offset, Acquire).ok_or(gone)?;
        if seen != generation || generation == 0 {
            return Err(stale(seen));
        }
        let start = out.len();
        let copied = self.copy(offset, count, out);
        // The payload above was read before the generation below.
        fence(Acquire);
        let result = match self.store.get(offset, Relaxed) {
            Some(seen) if seen == generation => copied,
            Some(seen) => Err(stale(seen)),
            None => Err(gone),
        };
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    fn copy<T: Word>(&self, offset: usize, count: Option<u32>, out: &mut Vec<T>) -> Result<(), RingError> {
        let bytes = self.store.get_half(offset + 8).ok_or(RingError::OutOfBounds)? as usize;
        let whole = bytes.is_multiple_of(4) && bytes <= self.payload_bytes();
        if !whole || count.is_some_and(|count| bytes / 4 != count as usize) {
            return Err(RingError::OutOfBounds);
        }
        self.store.append(offset + SLOT_HEADER_BYTES, bytes / 4, out).ok_or(RingError::OutOfBounds)
    }
}

fn write_header(store: &Store, id: u32, slots: u32, slot_bytes: u32) {
    let header = [RING_MAGIC, pair(id, slot_bytes), pair(slots, 0)];
    for (number, value) in header.into_iter().enumerate() {
        // The length was checked; memory that is gone is noticed by whoever opens the ring.
        let _ = store.set(number * 8, value, Release);
    }
}

/// Two u32 as they lie in one little-endian word.
const fn pair(first: u32, second: u32) -> u64 {
    first as u64 | (second as u64) << 32
}

/// The engine's end of the attached rings and of the control words.
///
/// What is not attached answers as E-45 says, and the control words read as off.
#[derive(Debug, Default)]
pub struct SharedRings {
    tokens_in: Option<SharedRing>,
    tokens_out: Option<SharedRing>,
    logits: Option<SharedRing>,
    control: Option<ControlWords>,
}

impl SharedRings {
    /// Nothing attached.
    pub fn new() -> Self {
        Self::default()
    }

    /// Attaches opened rings; one with the id of an attached ring replaces it, the others stay (E-42).
    pub fn attach(&mut self, rings: impl IntoIterator<Item = SharedRing>) {
        for ring in rings {
            let place = match ring.id() {
                ring_id::TOKENS_IN => &mut self.tokens_in,
                ring_id::TOKENS_OUT => &mut self.tokens_out,
                _ => &mut self.logits,
            };
            *place = Some(ring);
        }
    }

    /// Attaches control words in place of earlier ones.
    pub fn attach_control(&mut self, control: ControlWords) {
        self.control = Some(control);
    }
}

impl Rings for SharedRings {
    fn read_tokens(&self, reference: &TokenRef, tokens: &mut Vec<u32>) -> Result<(), RingError> {
        let ring = match reference.ring_id {
            ring_id::TOKENS_IN => self.tokens_in.as_ref(),
            ring_id::TOKENS_OUT => self.tokens_out.as_ref(),
            _ => None,
        };
        let ring = ring.ok_or(RingError::UnknownRing(reference.ring_id))?;
        ring.read(reference.index, reference.generation, Some(reference.count), tokens)
    }

    fn write_tokens(&mut self, tokens: &[u32]) -> Result<TokenRef, RingError> {
        let ring = self.tokens_out.as_mut().ok_or(RingError::OutOfBounds)?;
        let count = u32::try_from(tokens.len()).map_err(|_| RingError::OutOfBounds)?;
        let (index, generation) = ring.write(tokens)?;
        Ok(TokenRef { ring_id: ring_id::TOKENS_OUT, index, count, _pad0: 0, generation })
    }

    fn write_logits_row(&mut self, row: &[f32]) -> Result<RingRef, RingError> {
        let (index, generation) = self.logits.as_mut().ok_or(RingError::OutOfBounds)?.write(row)?;
        Ok(RingRef { ring_id: ring_id::LOGITS, index, generation })
    }

    fn read_logits_row(&self, reference: &RingRef, row: &mut Vec<f32>) -> Result<(), RingError> {
        let ring = if reference.ring_id == ring_id::LOGITS { self.logits.as_ref() } else { None };
        let ring = ring.ok_or(RingError::UnknownRing(reference.ring_id))?;
        ring.read(reference.index, reference.generation, None, row)
    }

    fn yield_requested(&self) -> bool {
        self.control.as_ref().is_some_and(ControlWords::yield_requested)
    }

    fn latency_wanted(&self) -> bool {
        self.control.as_ref().is_some_and(ControlWords::latency_wanted)
    }
}
