#![forbid(unsafe_code)]
//! Carrying out what the prefix cache decides: entries leave the pool, the cache settles, room is made, sequences are published.
//!
//! ```text
//!   in the pool --leave_pool--> exported, when the rules and the runtime let it    its sequence is copied, then freed (departures.rs)
//!                         \---> evicted                                            a loss
//!   exported ----drop_entry---> gone                                               a loss of tokens, not of pool bytes
//! ```
//! [`PrefixCache`](crate::prefix::PrefixCache) knows the rules and no sequence; the runtime knows sequences and no entry. They meet
//! here, and only here.
//!
//! # Invariants
//! - Each entry in the pool owns one sequence, which holds the entry's tokens; an exported one owns none (S-1).
//! - What is lost is listed once: by the tick that lost it, or by the next one when it was lost between two.

use super::sequences::{Bare, Content};
use super::state::State;
use crate::capacity::Domain;
use crate::prefix::{CacheShape, Entry, EntryId, Leaving, NewEntry, Scope};
use crate::record::Status;
use crate::record::constant::encoding;
use crate::runtime::{Descriptor, Runtime, RuntimeError, SeqHandle};

/// State that is gone: an evicted entry, or a dropped export, which held no bytes of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    pub(super) bytes: u64,
    pub(super) tokens: u64,
    /// The domain that it went for, by [`Domain::code`]; 0 where no plan lacked anything.
    pub(super) reason: u32,
}

/// What the rules of the cache take from the runtime and the options.
pub(super) fn cache_shape(descriptor: &Descriptor, lease_ticks: u64) -> CacheShape {
    CacheShape {
        page_size_tokens: descriptor.page_size_tokens.max(1) as usize,
        cuttable: descriptor.truncate_partial,
        bytes_per_token: descriptor.kv_bytes_per_token.max(1),
        seed_min_tokens: descriptor.seed_min_tokens,
        exported_tokens_max: descriptor.cache_exported_cells,
        lease_ticks,
    }
}

impl<R: Runtime> State<R> {
    /// What beside its tokens decides whether a state may serve a lane: what the adapter computes, whatever its handle is.
    pub(super) fn scope(&self, adapter: u64) -> Scope {
        Scope(self.runtime.adapter_digest(adapter).unwrap_or_default())
    }

    /// The entry leaves the pool: exported where that is possible and worth it, else evicted (S-56).
    pub(super) fn leave_pool(&mut self, id: EntryId, losses: &mut Vec<Loss>) {
        let lossless = self.descriptor.export_encodings.contains(&encoding::LOSSLESS);
        let mut drops = Vec::new();
        if lossless && self.cache.leaving(id, self.tick_count, &mut drops) == Leaving::Export && self.depart(id) {
            drops.into_iter().for_each(|drop| self.drop_entry(drop, losses));
            return;
        }
        self.drop_entry(id, losses);
    }

    /// The entry is gone, whichever tier it was in.
    pub(super) fn drop_entry(&mut self, id: EntryId, losses: &mut Vec<Loss>) {
        self.cancel_departure(id);
        let Some(entry) = self.cache.remove(id) else { return };
        if entry.in_pool() {
            self.free_sequence(entry.sequence);
        }
        losses.push(self.loss_of(&entry));
    }

    /// What is lost when an entry goes.
    pub(super) fn loss_of(&self, entry: &Entry) -> Loss {
        Loss {
            bytes: entry.pool_bytes(self.cache.shape().bytes_per_token),
            tokens: entry.tokens.len() as u64,
            reason: 0,
        }
    }

    /// Frees a sequence that nobody owns any more.
    pub(super) fn free_sequence(&mut self, sequence: SeqHandle) {
        self.runtime.seq_free(sequence);
        self.cells_moved = true;
        self.freed |= Domain::Slots.bit() | Domain::Blocks.bit();
    }

    /// Brings what rests in the cache within its bound, then drops exports that others serve as well (S-57).
    pub(super) fn settle_cache(&mut self, losses: &mut Vec<Loss>) {
        if std::mem::take(&mut self.cells_moved) {
            while self.rests_too_much() {
                let victim = self.cache.settling_victim(|entry| self.frees_cells(entry.sequence));
                let Some(victim) = victim else { break };
                self.leave_pool(victim, losses);
            }
            self.cells_moved = false;
        }
        while let Some(covered) = self.cache.next_covered_export() {
            self.drop_entry(covered, losses);
        }
    }

    /// Whether the sequence alone holds cells, those of departing entries aside.
    fn frees_cells(&self, sequence: SeqHandle) -> bool {
        if self.departures.is_empty() {
            return self.runtime.cells_released(&[sequence]) > 0;
        }
        let mut gone: Vec<SeqHandle> = self.departures.sequences().collect();
        let departing = self.runtime.cells_released(&gone);
        gone.push(sequence);
        self.runtime.cells_released(&gone) > departing
    }

    /// Whether the cells that only entries hold exceed the bound; departing ones hold none.
    fn rests_too_much(&self) -> bool {
        let bound = self.descriptor.cache_resident_cells;
        if bound == 0 {
            return false;
        }
        let mut gone: Vec<SeqHandle> = self.departures.sequences().collect();
        let departing = if gone.is_empty() { 0 } else { self.runtime.cells_released(&gone) };
        if let Some(cells) = self.runtime.cells_resting() {
            return cells.saturating_sub(departing) > bound;
        }
        let granule = u64::from(self.descriptor.cell_granule_tokens.max(1));
        let tokens = self.cache.resident_bytes() / self.cache.shape().bytes_per_token;
        let most = tokens.saturating_add((granule - 1).saturating_mul(self.cache.pool_len() as u64));
        gone.extend(self.pool_sequences());
        most > bound && self.runtime.cells_released(&gone).saturating_sub(departing) > bound
    }

    /// The sequences of all entries in the pool.
    pub(super) fn pool_sequences(&self) -> Vec<SeqHandle> {
        self.cache.entries().iter().filter(|entry| entry.in_pool()).map(|entry| entry.sequence).collect()
    }

    /// A new empty sequence, which nobody owns yet; resting entries other than that of `spared` leave the pool for its slot (S-21).
    ///
    /// # Errors
    /// `NeedsReplan` when nothing can leave; other errors of the runtime.
    pub(super) fn make_sequence(&mut self, spared: Option<SeqHandle>) -> Result<SeqHandle, Status> {
        let made = self.with_room(R::seq_create);
        if made != Err(RuntimeError::Capacity) || self.descriptor.max_seqs == 0 {
            return Ok(made?);
        }
        let victim = self.cache.eviction_order().find(|entry| Some(entry.sequence) != spared).map(|entry| entry.id);
        let mut losses = std::mem::take(&mut self.losses);
        if let Some(victim) = victim {
            self.leave_pool(victim, &mut losses);
        }
        // Also what the runtime failed to export meanwhile.
        losses.append(&mut self.losses);
        self.losses = losses;
        Ok(self.with_room(R::seq_create)?)
    }

    /// Length of the key under which `held` tokens can be published: whole pages of a runtime that cuts, all of one that does
    /// not (S-50, T-73).
    pub(super) fn key_len(&self, held: usize) -> usize {
        match self.descriptor.truncate_partial {
            true => held / self.cache.shape().page_size_tokens * self.cache.shape().page_size_tokens,
            false => held,
        }
    }

    /// Makes a sequence an entry under its first `tokens`, used now; a longer sequence is cut to them, and stays whole when the cut
    /// fails (T-73). The caller's claim on the sequence ends.
    pub(super) fn enter_cache(&mut self, sequence: SeqHandle, tokens: Vec<u32>, entry: Entering) {
        let mut content = entry.content;
        let key_len = tokens.len() as u64;
        let mut held_tokens = self.runtime.seq_len(sequence);
        if held_tokens > key_len && self.runtime.seq_truncate(sequence, key_len).is_ok() {
            content = content.advanced();
            held_tokens = key_len;
        }
        self.cells_moved = true;
        self.runtime.seq_rest(sequence);
        self.cache.insert(NewEntry {
            scope: self.scope(content.adapter),
            sequence,
            tokens,
            prompt_len: entry.prompt_len,
            held_tokens,
            now: self.tick_count,
            shared: entry.shared,
            taint: content.taint,
            generation: content.generation,
            adapter: content.adapter,
        });
    }

    /// Publishes a bare sequence under the tokens that the host says it holds (S-50).
    ///
    /// # Errors
    /// `UnknownHandle`, `Busy`, `OutOfBoundary`; the sequence stays the host's.
    pub(super) fn publish_bare(&mut self, sequence: SeqHandle, tokens: &[u32]) -> Result<(), Status> {
        let bare = self.bare.get(&sequence).ok_or(Status::UnknownHandle)?;
        if bare.lease.is_some() {
            return Err(Status::Busy);
        }
        self.transfers.check_whole(sequence)?;
        let held = self.runtime.seq_len(sequence);
        let claimed = tokens.len() as u64;
        if claimed > held || (claimed != held && !self.descriptor.truncate_partial) {
            return Err(Status::OutOfBoundary);
        }
        let key = tokens.get(..self.key_len(tokens.len())).unwrap_or_default().to_vec();
        let cut = !key.is_empty() && (key.len() as u64) < held;
        if cut {
            self.runtime.seq_truncate(sequence, key.len() as u64)?;
        }
        let Some(Bare { content, for_others, .. }) = self.bare.remove(&sequence) else { return Ok(()) };
        let content = if cut { content.advanced() } else { content };
        match key.is_empty() {
            true => self.free_sequence(sequence),
            false => self.enter_cache(sequence, key, Entering { content, prompt_len: 0, shared: for_others }),
        }
        let mut losses = std::mem::take(&mut self.losses);
        self.settle_cache(&mut losses);
        // Also what the runtime failed to export meanwhile.
        losses.append(&mut self.losses);
        self.losses = losses;
        Ok(())
    }
}

/// What an entry starts with beside its sequence and its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entering {
    pub(super) content: Content,
    /// How much of the key was the publisher's prompt; 0 is unknown.
    pub(super) prompt_len: usize,
    /// Published from a copy made for others (S-52).
    pub(super) shared: bool,
}
