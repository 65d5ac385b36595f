#![forbid(unsafe_code)]
//! The adapters of a runtime: who uses which, and when one can go.
//!
//! An adapter is named by a handle and known by its content: loading the same content again gives the same handle. Sequences
//! carry a handle; an adapter that was unloaded takes no new sequence and goes with the last one that has it.
//!
//! # Invariants
//! `sequences` counts the sequences that carry the handle. Handles ascend, are never reused and never 0.

use std::collections::BTreeMap;

use crate::backend::BackendError;
use crate::checkpoint::AdapterError;
use crate::model::ModelError;
use crate::record::Status;

/// A loaded adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedAdapter {
    /// Its name in the runtime; at least 1.
    pub handle: u64,
    /// Identity of what it computes.
    pub digest: [u8; 32],
}

/// Why an adapter could not be loaded. Nothing is kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterLoadError {
    /// The runtime computes without adapters.
    #[error("this runtime computes without adapters")]
    Unsupported,
    /// The file is no adapter of the model.
    #[error(transparent)]
    File(#[from] AdapterError),
    /// The backend did not take a factor.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Memory could not be had.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl From<&AdapterLoadError> for Status {
    fn from(error: &AdapterLoadError) -> Self {
        match error {
            AdapterLoadError::Unsupported => Status::Unsupported,
            AdapterLoadError::File(AdapterError::Read { .. }) => Status::UnknownHandle,
            AdapterLoadError::File(AdapterError::Lora { source, .. }) if source.is_variant() => Status::Unsupported,
            AdapterLoadError::File(_) => Status::RejectBadStruct,
            AdapterLoadError::Model(_) | AdapterLoadError::Backend(_) => Status::NeedsReplan,
        }
    }
}

#[derive(Debug)]
struct Entry<W> {
    digest: [u8; 32],
    weights: W,
    /// Sequences that carry it.
    sequences: usize,
    unloaded: bool,
}

/// Adapters by handle.
#[derive(Debug)]
pub(super) struct Adapters<W> {
    entries: BTreeMap<u64, Entry<W>>,
    last: u64,
}

impl<W> Default for Adapters<W> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), last: 0 }
    }
}

impl<W> Adapters<W> {
    /// The adapter with this content, to be used again.
    pub(super) fn revive(&mut self, digest: [u8; 32]) -> Option<LoadedAdapter> {
        let (&handle, entry) = self.entries.iter_mut().find(|(_, entry)| entry.digest == digest)?;
        entry.unloaded = false;
        Some(LoadedAdapter { handle, digest })
    }

    /// Takes an adapter in.
    pub(super) fn insert(&mut self, digest: [u8; 32], weights: W) -> LoadedAdapter {
        self.last += 1;
        self.entries.insert(self.last, Entry { digest, weights, sequences: 0, unloaded: false });
        LoadedAdapter { handle: self.last, digest }
    }

    /// All that are there, loaded or still carried.
    pub(super) fn weights(&self) -> impl Iterator<Item = &W> {
        self.entries.values().map(|entry| &entry.weights)
    }

    /// The weights of an adapter that a sequence carries.
    pub(super) fn get(&self, handle: u64) -> Option<&W> {
        self.entries.get(&handle).map(|entry| &entry.weights)
    }

    /// Its digest.
    pub(super) fn digest(&self, handle: u64) -> Option<[u8; 32]> {
        self.entries.get(&handle).map(|entry| entry.digest)
    }

    /// Those that new sequences may carry.
    pub(super) fn list(&self) -> Vec<LoadedAdapter> {
        let loaded = self.entries.iter().filter(|(_, entry)| !entry.unloaded);
        loaded.map(|(&handle, entry)| LoadedAdapter { handle, digest: entry.digest }).collect()
    }

    /// Whether new sequences may carry it; 0, the model alone, always.
    pub(super) fn is_loaded(&self, handle: u64) -> bool {
        handle == 0 || self.entries.get(&handle).is_some_and(|entry| !entry.unloaded)
    }

    /// A sequence that carried `from` now carries `to`.
    pub(super) fn pass_on(&mut self, from: u64, to: u64) {
        if let Some(entry) = self.entries.get_mut(&to) {
            entry.sequences += 1;
        }
        let Some(entry) = self.entries.get_mut(&from) else { return };
        entry.sequences = entry.sequences.saturating_sub(1);
        if entry.sequences == 0 && entry.unloaded {
            self.entries.remove(&from);
        }
    }

    /// Lets no new sequence carry it; whether it was loaded.
    pub(super) fn unload(&mut self, handle: u64) -> bool {
        let Some(entry) = self.entries.get_mut(&handle).filter(|entry| !entry.unloaded) else { return false };
        entry.unloaded = true;
        if entry.sequences == 0 {
            self.entries.remove(&handle);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unloaded_adapter_goes_with_its_last_sequence() {
        let mut adapters = Adapters::default();
        let one = adapters.insert([1; 32], "one").handle;
        adapters.pass_on(0, one);
        adapters.pass_on(0, one);
        assert!(adapters.unload(one) && !adapters.unload(one));
        assert!(!adapters.is_loaded(one) && adapters.get(one).is_some());
        adapters.pass_on(one, 0);
        assert!(adapters.get(one).is_some());
        adapters.pass_on(one, 0);
        assert!(adapters.get(one).is_none());
        assert_ne!(adapters.insert([1; 32], "again").handle, one, "handles are not reused");
    }

    #[test]
    fn content_that_is_still_there_is_found_again() {
        let mut adapters = Adapters::default();
        let one = adapters.insert([1; 32], "one");
        adapters.pass_on(0, one.handle);
        adapters.unload(one.handle);
        assert_eq!(adapters.revive([1; 32]), Some(one));
        assert!(adapters.is_loaded(one.handle) && adapters.revive([2; 32]).is_none());
    }
}
