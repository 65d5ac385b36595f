#![forbid(unsafe_code)]
//! What the executor knows of sequences beside their tokens, and who owns which.
//!
//! A sequence is owned by exactly one of: a lane, the host (bare), an entry of the prefix cache (S-1). What must survive a change of
//! owner travels in [`Content`].
//!
//! # Invariants
//! Every sequence of the runtime has one owner; [`State::audit`](super::state::State) checks it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::lanes::LaneId;
use super::state::State;
use crate::capacity::Domain;
use crate::prefix::{Entry, EntryId, LeaseSource};
use crate::runtime::{Runtime, SeqHandle};

/// What a sequence carries from owner to owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content {
    /// Advanced by every step that feeds it, every cut, takeover and successful restore (S-3).
    pub(super) generation: u64,
    /// `TAINT_*` bits (S-5).
    pub(super) taint: u64,
    /// The adapter its state was computed with; 0 is the model alone.
    pub(super) adapter: u64,
}

impl Default for Content {
    fn default() -> Self {
        Self { generation: 1, taint: 0, adapter: 0 }
    }
}

impl Content {
    /// The same state in a new sequence: a fork, a seed or a checkpoint (S-5, S-11).
    pub(super) fn copied(self) -> Self {
        Self { generation: 1, ..self }
    }

    /// The same sequence after a cut or a takeover (S-3).
    pub(super) fn advanced(self) -> Self {
        Self { generation: self.generation + 1, ..self }
    }
}

/// A sequence that the host owns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bare {
    pub(super) content: Content,
    /// Tokens that the host declared by adopting, or that a fork inherited (S-4).
    pub(super) tokens: Arc<[u32]>,
    /// A fork that was not made PRIVATE: published, its entry is shared (S-15).
    pub(super) for_others: bool,
    /// The adopt lease on it (S-30).
    pub(super) lease: Option<u64>,
}

/// The bare sequences.
pub(super) type BareSequences = BTreeMap<SeqHandle, Bare>;

/// Who owns a sequence (S-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The host.
    Bare,
    /// A live lane.
    Lane(LaneId),
    /// An entry of the prefix cache, in the pool.
    Entry(EntryId),
}

impl<R: Runtime> State<R> {
    /// The owner of a sequence that is known to state calls (S-2); none for every other handle.
    pub(super) fn owner_of(&self, sequence: SeqHandle) -> Option<Owner> {
        if self.bare.contains_key(&sequence) {
            return Some(Owner::Bare);
        }
        let lane = self.lanes.owner(sequence).map(Owner::Lane);
        lane.or_else(|| self.cache.of_sequence(sequence).map(|entry| Owner::Entry(entry.id)))
    }

    /// What a known sequence carries.
    pub(super) fn content_of(&self, sequence: SeqHandle) -> Option<Content> {
        match self.owner_of(sequence)? {
            Owner::Bare => self.bare.get(&sequence).map(|bare| bare.content),
            Owner::Lane(lane) => self.lanes.get(lane).map(|lane| lane.content()),
            Owner::Entry(entry) => self.cache.get(entry).map(content_of_entry),
        }
    }

    /// What a sequence of a lane or of the host carries, to be changed; that of an entry rests.
    pub(super) fn content_mut(&mut self, sequence: SeqHandle) -> Option<&mut Content> {
        match self.owner_of(sequence)? {
            Owner::Bare => self.bare.get_mut(&sequence).map(|bare| &mut bare.content),
            Owner::Lane(lane) => self.lanes.get_mut(lane).map(|lane| lane.content_mut()),
            Owner::Entry(_) => None,
        }
    }

    /// The tokens that a known sequence is known to hold, from its start (S-4). It may hold more, and a lane knows one that is
    /// still to be fed.
    pub(super) fn known_tokens(&self, sequence: SeqHandle) -> Option<&[u32]> {
        match self.owner_of(sequence)? {
            Owner::Bare => self.bare.get(&sequence).map(|bare| &*bare.tokens),
            Owner::Lane(lane) => self.lanes.get(lane).map(|lane| lane.committed()),
            Owner::Entry(entry) => self.cache.get(entry).map(|entry| &*entry.tokens),
        }
    }
}

impl<R: Runtime> State<R> {
    /// The first `held` of the tokens that a known sequence is known to hold, for a fork to keep (S-11): forks of a sequence that
    /// does not move share one list.
    pub(super) fn inherited_tokens(&mut self, parent: SeqHandle, held: usize) -> Arc<[u32]> {
        let first = |tokens: &Arc<[u32]>| match tokens.get(..held) {
            Some(first) if first.len() < tokens.len() => Arc::from(first),
            _ => Arc::clone(tokens),
        };
        match self.owner_of(parent) {
            Some(Owner::Bare) => self.bare.get(&parent).map(|bare| first(&bare.tokens)),
            Some(Owner::Entry(entry)) => self.cache.get(entry).map(|entry| first(&entry.tokens)),
            Some(Owner::Lane(lane)) => self.lanes.get_mut(lane).map(|lane| lane.share_tokens(held)),
            None => None,
        }
        .unwrap_or_default()
    }

    /// Ends a lease: the pin or the claim that it held is lifted, the data stays (S-32, S-43).
    pub(super) fn end_lease(&mut self, lease: u64) {
        let source = self.cache.release(lease).map(|lease| lease.source);
        self.lift_claim(source);
    }

    /// Ends the leases whose time is over (T-21).
    pub(super) fn sweep_leases(&mut self) {
        while let Some(lease) = self.cache.pop_expired(self.tick_count) {
            self.lift_claim(Some(lease.source));
        }
    }

    fn lift_claim(&mut self, source: Option<LeaseSource>) {
        // An entry that nobody pins any more may be what settling waits for (S-57).
        self.cells_moved |= source.is_some();
        if let Some(LeaseSource::Entry(entry)) = source
            && self.cache.get(entry).is_some_and(|entry| entry.pins == 0 && entry.in_pool())
        {
            // Its last pin is gone: it may be evicted.
            self.freed |= Domain::Blocks.bit();
        }
        if let Some(LeaseSource::Sequence(sequence)) = source
            && let Some(bare) = self.bare.get_mut(&sequence)
        {
            bare.lease = None;
        }
    }

    /// Notes that others hold cells of this sequence: when its lane writes next, a resting entry may be left alone with one.
    pub(super) fn note_sharing(&mut self, sequence: SeqHandle) {
        if let Some(Owner::Lane(lane)) = self.owner_of(sequence)
            && let Some(lane) = self.lanes.get_mut(lane)
        {
            lane.note_sharing();
        }
    }
}

/// What the sequence of an entry carries.
pub(super) fn content_of_entry(entry: &Entry) -> Content {
    Content { generation: entry.generation, taint: entry.taint, adapter: entry.adapter }
}
