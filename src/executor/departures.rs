#![forbid(unsafe_code)]
//! Entries of the cache on their way to host memory, slice by slice (S-56, S-99).
//!
//! An entry that leaves the pool is exported at once as far as the rules go: what is offered, what it counts for, and what was dropped to
//! make room for it never depend on how far its bytes are. They are copied in slices of `cache_slice_bytes`, by the tick in which it leaves,
//! at the end of later ticks, and when the host pumps. Meanwhile its sequence belongs to the departure.
//!
//! ```text
//!   leaves the pool --slice--> ... --slice--> payload handed to the entry, sequence freed
//!        |  pages that were copied go back to the pool slice by slice
//!        |-- somebody needs its cells or its slot: as much more is copied as that takes
//!        |-- a lane starts from it: the rest is copied now
//!        |-- it is dropped: nothing more is copied
//!        '-- the runtime fails: it is lost now, and the next report says so
//! ```
//!
//! # Invariants
//! - An entry departs exactly when its place says so; a departure owns one sequence, which nobody else does.
//! - Cells and slots of departures count as free wherever room is counted: [`State::with_room`] makes that true when it matters.

use std::collections::BTreeMap;
use std::ops::Range;

use super::cache::Loss;
use super::state::{AuditError, State};
use crate::prefix::{EntryId, Place};
use crate::record::constant::encoding;
use crate::runtime::{Runtime, RuntimeError, SeqHandle};

/// Bytes that are copied at least when somebody waits for the room.
const URGENT_BYTES: u64 = 256 << 10;

/// The entries that depart, in insertion order.
#[derive(Debug, Default)]
pub(super) struct Departures {
    under_way: BTreeMap<EntryId, Departure>,
    /// Bytes copied since the last slice ended.
    spent_bytes: u64,
}

/// One entry that departs.
struct Departure {
    sequence: SeqHandle,
    tokens: u64,
    token_bytes: u64,
    /// The next token to copy.
    next: u64,
    /// Tokens whose pages went back to the pool.
    released: u64,
    /// With room for all of it.
    payload: Vec<u8>,
}

impl core::fmt::Debug for Departure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Departure({} at {} of {}, {} released)", self.sequence, self.next, self.tokens, self.released)
    }
}

impl Departures {
    /// Whether none is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Their sequences.
    pub(super) fn sequences(&self) -> impl Iterator<Item = SeqHandle> {
        self.under_way.values().map(|departure| departure.sequence)
    }
}

impl<R: Runtime> State<R> {
    /// Exports an entry of the pool: all of it where a slice suffices, else its first slice. False, and nothing changed, when it cannot be
    /// exported.
    pub(super) fn depart(&mut self, id: EntryId) -> bool {
        let Some(entry) = self.cache.get(id) else { return false };
        let (sequence, tokens) = (entry.sequence, entry.tokens.len() as u64);
        let sized = self.runtime.export_bytes(sequence, 0..tokens, encoding::LOSSLESS);
        let token_bytes = self.runtime.payload_token_bytes(encoding::LOSSLESS);
        let (Ok(bytes), Some(token_bytes)) = (sized, token_bytes) else {
            return self.depart_whole(id, sequence, tokens);
        };
        let left = self.options.cache_slice_bytes.saturating_sub(self.departures.spent_bytes);
        if bytes <= left {
            // At once, so that a failure is one before anything was dropped (S-56).
            self.departures.spent_bytes = self.departures.spent_bytes.saturating_add(bytes);
            return self.depart_whole(id, sequence, tokens);
        }
        let mut payload = Vec::new();
        if !usize::try_from(bytes).is_ok_and(|bytes| payload.try_reserve_exact(bytes).is_ok()) {
            return false;
        }
        if self.cache.export_begun(id, bytes) != Some(sequence) {
            return false;
        }
        self.cells_moved = true;
        let departure = Departure { sequence, tokens, token_bytes, next: 0, released: 0, payload };
        self.departures.under_way.insert(id, departure);
        if left > 0 {
            self.copy_out(id, left);
        }
        true
    }

    /// Exports an entry through a runtime that only exports as a whole.
    fn depart_whole(&mut self, id: EntryId, sequence: SeqHandle, tokens: u64) -> bool {
        let Ok(payload) = self.runtime.seq_export(sequence, tokens, encoding::LOSSLESS) else { return false };
        if let Some(sequence) = self.cache.export_done(id, payload) {
            self.free_sequence(sequence);
        }
        true
    }

    /// Copies what is left of a slice, oldest entry first. A slice moves at least a token.
    pub(super) fn run_departures(&mut self) {
        let spent_bytes = std::mem::take(&mut self.departures.spent_bytes);
        let mut budget = self.options.cache_slice_bytes.saturating_sub(spent_bytes).max(u64::from(spent_bytes == 0));
        while budget > 0
            && let Some((&id, _)) = self.departures.under_way.first_key_value()
        {
            budget = budget.saturating_sub(self.copy_out(id, budget).max(1));
        }
        self.departures.spent_bytes = 0;
    }

    /// Copies all that is left of an entry, if it departs.
    pub(super) fn finish_departure(&mut self, id: EntryId) {
        while self.departures.under_way.contains_key(&id) {
            self.copy_out(id, u64::MAX);
        }
    }

    /// Stops copying an entry that is dropped.
    pub(super) fn cancel_departure(&mut self, id: EntryId) {
        if let Some(departure) = self.departures.under_way.remove(&id) {
            self.free_sequence(departure.sequence);
        }
    }

    /// Asks the runtime for cells or a slot, and when it has none, copies departing entries until it has, or none departs.
    ///
    /// # Errors
    /// The runtime's; `ask` must change nothing when it answers `Capacity`.
    pub(super) fn with_room<T>(
        &mut self,
        mut ask: impl FnMut(&mut R) -> Result<T, RuntimeError>,
    ) -> Result<T, RuntimeError> {
        loop {
            let answer = ask(&mut self.runtime);
            let oldest = self.departures.under_way.first_key_value().map(|(&id, _)| id);
            match (answer, oldest) {
                (Err(RuntimeError::Capacity), Some(id)) => {
                    self.copy_out(id, self.options.cache_slice_bytes.max(URGENT_BYTES));
                }
                (answer, _) => return answer,
            }
        }
    }

    /// Has the runtime hold free cells for so many tokens, as far as departing entries can give them back.
    pub(super) fn have_room_for(&mut self, tokens: u64) {
        let granule = u64::from(self.descriptor.cell_granule_tokens.max(1));
        let cells = tokens.next_multiple_of(granule);
        // Short of them, whoever needs them says so.
        let _ = self.with_room(|runtime| {
            let counters = runtime.mem_counters();
            let free = counters.cells_total.saturating_sub(counters.cells_used);
            if counters.cells_total == 0 || free >= cells { Ok(()) } else { Err(RuntimeError::Capacity) }
        });
    }

    /// Copies about `budget` bytes of a departing entry and at least a token; answers the bytes.
    fn copy_out(&mut self, id: EntryId, budget: u64) -> u64 {
        let Some(mut departure) = self.departures.under_way.remove(&id) else { return 0 };
        let tokens = (budget / departure.token_bytes.max(1)).max(1);
        let range = departure.next..departure.tokens.min(departure.next.saturating_add(tokens));
        let bytes = departure.token_bytes * (range.end - range.start);
        self.departures.spent_bytes = self.departures.spent_bytes.saturating_add(bytes);
        if self.copy_tokens(&mut departure, range).is_err() {
            self.lose(id, &departure);
        } else if departure.next == departure.tokens {
            self.runtime.seq_free(departure.sequence);
            self.cache.export_arrived(id, departure.payload);
        } else {
            self.departures.under_way.insert(id, departure);
        }
        bytes
    }

    /// Copies these tokens, and gives the pages back that are whole now.
    fn copy_tokens(&mut self, departure: &mut Departure, range: Range<u64>) -> Result<(), RuntimeError> {
        let start = departure.payload.len();
        // Of memory that was reserved when the entry left, and counted then.
        departure.payload.resize(start + (departure.token_bytes * (range.end - range.start)) as usize, 0);
        let out = departure.payload.get_mut(start..).unwrap_or_default();
        self.runtime.export_part(departure.sequence, range.clone(), encoding::LOSSLESS, out)?;
        departure.next = range.end;
        let page = self.cache.shape().page_size_tokens as u64;
        let whole = departure.next - departure.next % page;
        if departure.next < departure.tokens && whole > departure.released {
            // One that cannot give a part back does so at the end.
            if self.runtime.range_release(departure.sequence, departure.released..whole).is_ok() {
                departure.released = whole;
            }
            self.runtime.seq_rest(departure.sequence);
        }
        Ok(())
    }

    /// The runtime could not export it: it is evicted after all. One that is leased stays without a payload: whoever starts from it
    /// computes its tokens (T-79).
    fn lose(&mut self, id: EntryId, departure: &Departure) {
        self.free_sequence(departure.sequence);
        if self.cache.get(id).is_some_and(|entry| entry.pins > 0) {
            self.cache.export_arrived(id, Vec::new());
            return;
        }
        self.cache.remove(id);
        let bytes = departure.tokens.saturating_mul(self.cache.shape().bytes_per_token);
        self.losses.push(Loss { bytes, tokens: departure.tokens, reason: 0 });
    }

    /// Departures and the places of entries agree, and each has its sequence.
    pub(super) fn audit_departures(&self) -> Result<(), AuditError> {
        let departs = |place: &Place| matches!(place, Place::Departing { .. });
        let count = self.cache.entries().iter().filter(|entry| departs(&entry.place)).count();
        for (id, departure) in &self.departures.under_way {
            let entry = self.cache.get(*id);
            let known = entry.is_some_and(|entry| departs(&entry.place) && entry.sequence == departure.sequence);
            let held = self.runtime.seq_len(departure.sequence);
            if !known || count != self.departures.under_way.len() || held != departure.tokens {
                return Err(AuditError::Departure { sequence: departure.sequence });
            }
        }
        if count == self.departures.under_way.len() { Ok(()) } else { Err(AuditError::Departure { sequence: 0 }) }
    }
}
