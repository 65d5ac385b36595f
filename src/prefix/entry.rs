#![forbid(unsafe_code)]
//! One entry of the cache.

use std::sync::Arc;

/// What beside its tokens decides whether a cached state may serve: adapter and media.
///
/// A digest, made by the executor; zero is plain text on the model alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope(pub [u8; 32]);

/// Names an entry; ids ascend in insertion order and none is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// How many entries had been inserted with this one.
    pub(super) serial: u64,
    /// Where it lies.
    pub(super) slot: u32,
}

impl EntryId {
    /// Insertions up to this one: 1 for the first entry of a cache.
    pub fn as_u64(self) -> u64 {
        self.serial
    }
}

/// Where the state of an entry lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the pool, owned as the sequence of the entry's name.
    Pool,
    /// On the way to host memory, where it will take this many bytes: exported as far as the rules go, and its sequence is no longer
    /// the entry's.
    Departing {
        /// Of the payload.
        bytes: u64,
    },
    /// In host memory: a lossless export of exactly the key.
    Exported(Vec<u8>),
}

/// An entry as it enters the cache.
#[derive(Clone, Debug)]
pub struct NewEntry {
    /// What beside the tokens the state depends on.
    pub scope: Scope,
    /// The sequence that the entry takes over.
    pub sequence: u64,
    /// The key; at least one token, and no longer than the sequence.
    pub tokens: Vec<u32>,
    /// How much of the key was the publisher's prompt; 0 is unknown.
    pub prompt_len: usize,
    /// Tokens that the sequence holds: more than the key when it could not be cut (T-73).
    pub held_tokens: u64,
    /// Tick of insertion.
    pub now: u64,
    /// A copy made for others was published (S-15).
    pub shared: bool,
    /// `TAINT_*` bits of the state (S-5).
    pub taint: u64,
    /// The sequence's content generation (S-3); carried, not read.
    pub generation: u64,
    /// The adapter of the state; carried, not read: `scope` has its identity.
    pub adapter: u64,
}

/// A cached state and its key (S-47).
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its id: ascends in insertion order.
    pub id: EntryId,
    /// What beside the tokens the state depends on.
    pub scope: Scope,
    /// Its name: the handle of its sequence, kept when it is exported (S-1).
    pub sequence: u64,
    /// The key.
    pub tokens: Arc<[u32]>,
    /// How much of the key was the publisher's prompt; 0 is unknown.
    pub prompt_len: usize,
    /// Tokens that the sequence holds, or the payload.
    pub held_tokens: u64,
    /// Leases on it (S-42).
    pub pins: u32,
    /// Tick of the last use.
    pub last_use: u64,
    /// Lanes that it seeded.
    pub seeded: u64,
    /// Published from a copy made for others (S-15).
    pub shared: bool,
    /// `TAINT_*` bits of the state (S-5).
    pub taint: u64,
    /// The sequence's content generation (S-3).
    pub generation: u64,
    /// The adapter of the state.
    pub adapter: u64,
    /// Where the state lies.
    pub place: Place,
    /// Content digest of the key (S-81).
    pub digest: [u8; 32],
}

impl Entry {
    /// Whether the state lies in the pool.
    pub fn in_pool(&self) -> bool {
        matches!(self.place, Place::Pool)
    }

    /// Whether it leaves after all entries that are not (S-52).
    pub fn is_shared_prefix(&self) -> bool {
        self.shared || self.seeded >= 2
    }

    /// Bytes it holds in the pool, 0 when exported, at `bytes_per_token` (S-48).
    pub fn pool_bytes(&self, bytes_per_token: u64) -> u64 {
        if self.in_pool() { self.held_tokens.saturating_mul(bytes_per_token) } else { 0 }
    }

    /// Bytes it holds in host memory, or has reserved there (S-48).
    pub fn host_bytes(&self) -> u64 {
        match &self.place {
            Place::Pool => 0,
            Place::Departing { bytes } => *bytes,
            Place::Exported(payload) => payload.len() as u64,
        }
    }

    /// The payload of an exported entry, when all of it is there.
    pub fn payload(&self) -> Option<&[u8]> {
        match &self.place {
            Place::Pool | Place::Departing { .. } => None,
            Place::Exported(payload) => Some(payload),
        }
    }
}
