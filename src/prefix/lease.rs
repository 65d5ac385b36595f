#![forbid(unsafe_code)]
//! Seed leases: the promise to keep a prefix for so many ticks.
//!
//! All leases live equally long and `now` never falls, so the order of handles is the order of expiry: the sweep looks at the first
//! lease only.
//!
//! # Invariants
//! An entry's pins are the leases on it.

use std::collections::BTreeMap;

use super::PrefixCache;
use super::entry::{EntryId, Scope};
use super::store::Store;

/// What a lease promises to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseSource {
    /// A prefix of a cache entry, which the lease pins (S-42).
    Entry(EntryId),
    /// A whole bare sequence (S-30).
    Sequence(u64),
}

/// A seed lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its handle.
    pub handle: u64,
    /// What it promises to keep.
    pub source: LeaseSource,
    /// Tokens of the prefix.
    pub prefix_tokens: usize,
    /// `DETERMINISM_*` that it was asked with.
    pub determinism_class: u8,
    /// Last tick count at whose validation it serves (S-43).
    pub expires_at: u64,
}

/// No entry serves the seed (S-40). Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no entry serves {len} tokens of the span")]
pub struct Unservable {
    /// Tokens asked for.
    pub len: u64,
}

#[derive(Debug, Default)]
pub(super) struct Leases {
    live: BTreeMap<u64, Lease>,
    last_handle: u64,
}

impl Leases {
    fn add(&mut self, source: LeaseSource, prefix_tokens: usize, determinism_class: u8, expires_at: u64) -> u64 {
        self.last_handle += 1;
        let handle = self.last_handle;
        self.live.insert(handle, Lease { handle, source, prefix_tokens, determinism_class, expires_at });
        handle
    }

    pub(super) fn audit(&self, store: &Store) -> Result<(), String> {
        let mut pins: BTreeMap<EntryId, u32> = BTreeMap::new();
        for lease in self.live.values() {
            if let LeaseSource::Entry(id) = lease.source {
                *pins.entry(id).or_default() += 1;
            }
        }
        match store
            .slab
            .iter()
            .map(|stored| &stored.entry)
            .find(|entry| pins.get(&entry.id).copied().unwrap_or(0) != entry.pins)
        {
            Some(entry) => Err(format!("entry {} has {} pins, not those of its leases", entry.id.as_u64(), entry.pins)),
            None => Ok(()),
        }
    }
}

impl PrefixCache {
    /// Leases the first `len` tokens of `span` at tick count `now` and pins the entry that serves them (S-40 .. S-43); only an
    /// untainted one when `untainted` is set (S-94).
    ///
    /// # Errors
    /// No entry serves it; nothing changed.
    pub fn acquire(
        &mut self,
        scope: &Scope,
        span: &[u32],
        len: u64,
        determinism_class: u8,
        untainted: bool,
        now: u64,
    ) -> Result<u64, Unservable> {
        let unservable = Unservable { len };
        let prefix = usize::try_from(len).map_err(|_| unservable)?;
        let id = self.find_seed(scope, span, prefix, untainted).ok_or(unservable)?;
        self.store.pin(id);
        Ok(self.leases.add(LeaseSource::Entry(id), prefix, determinism_class, self.expiry(now)))
    }

    /// Leases a bare sequence of `len` tokens at tick count `now` (S-30); the caller has checked that it is free.
    pub fn adopt(&mut self, sequence: u64, len: usize, determinism_class: u8, now: u64) -> u64 {
        self.leases.add(LeaseSource::Sequence(sequence), len, determinism_class, self.expiry(now))
    }

    /// A lease that is neither released nor consumed nor swept. It serves a tick only if `expires_at >= now` (S-43).
    pub fn lease(&self, handle: u64) -> Option<&Lease> {
        self.leases.live.get(&handle)
    }

    /// Live leases.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.live.values()
    }

    /// Ends a lease, released or consumed, and takes its pin away (S-44, S-45).
    pub fn release(&mut self, handle: u64) -> Option<Lease> {
        let lease = self.leases.live.remove(&handle)?;
        if let LeaseSource::Entry(id) = lease.source {
            self.store.unpin(id);
        }
        Some(lease)
    }

    /// Ends the next lease whose time is over at tick count `now`; the caller asks until none is left (S-43, T-21). Pins are
    /// taken away here; the claim on a bare sequence is the caller's to lift.
    pub fn pop_expired(&mut self, now: u64) -> Option<Lease> {
        let (&handle, lease) = self.leases.live.first_key_value()?;
        if lease.expires_at >= now {
            return None;
        }
        self.release(handle)
    }

    fn expiry(&self, now: u64) -> u64 {
        now.saturating_add(self.shape.lease_ticks)
    }
}
