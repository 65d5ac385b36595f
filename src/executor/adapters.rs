#![forbid(unsafe_code)]
//! Which adapters are loaded, which lanes will have one.
//!
//! A lane gets its adapter when it is admitted: the one that its tag was bound to, else the default. It keeps that one for its
//! life, and its sequence carries it on (`Content::adapter`), into forks, seeds and the prefix cache. State of different adapters never
//! meets: the digest of the adapter is the scope of what is cached.
//!
//! # Invariants
//! The default and every bound adapter are loaded.

use std::collections::BTreeMap;

use crate::record::Status;
use crate::runtime::LoadedAdapter;

/// Adapters by handle, and who will have them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AdapterTable {
    /// How often each was loaded more than unloaded; at least once.
    loads: BTreeMap<u64, u32>,
    /// Of lanes whose tag is not bound; 0 is the model alone.
    default: u64,
    /// By tag, for the next admit of it.
    bound: BTreeMap<u64, u64>,
}

impl AdapterTable {
    /// Counts a load.
    pub(super) fn loaded(&mut self, adapter: LoadedAdapter) {
        let loads = self.loads.entry(adapter.handle).or_insert(0);
        *loads = loads.saturating_add(1);
    }

    /// Whether it is loaded; 0, the model alone, always is.
    pub(super) fn is_loaded(&self, adapter: u64) -> bool {
        adapter == 0 || self.loads.contains_key(&adapter)
    }

    /// Takes back one load; whether it was the last.
    ///
    /// # Errors
    /// `UnknownHandle`.
    pub(super) fn unload(&mut self, adapter: u64) -> Result<bool, Status> {
        let loads = self.loads.get_mut(&adapter).ok_or(Status::UnknownHandle)?;
        *loads -= 1;
        if *loads > 0 {
            return Ok(false);
        }
        self.loads.remove(&adapter);
        self.bound.retain(|_, &mut bound| bound != adapter);
        if self.default == adapter {
            self.default = 0;
        }
        Ok(true)
    }

    /// The adapter of lanes whose tag is not bound.
    pub(super) fn default_adapter(&self) -> u64 {
        self.default
    }

    /// Makes an adapter that is loaded the default; answers the one before.
    pub(super) fn set_default(&mut self, adapter: u64) -> u64 {
        std::mem::replace(&mut self.default, adapter)
    }

    /// Binds the next admit of a tag to an adapter that is loaded; 0 takes the word back.
    pub(super) fn bind(&mut self, lane_tag: u64, adapter: u64) {
        match adapter {
            0 => self.bound.remove(&lane_tag),
            adapter => self.bound.insert(lane_tag, adapter),
        };
    }

    /// The adapter that an admit of this tag would have.
    pub(super) fn of_admit(&self, lane_tag: u64) -> u64 {
        self.bound.get(&lane_tag).copied().unwrap_or(self.default)
    }

    /// As [`AdapterTable::of_admit`], for an admit that takes place: the word for the tag is used up.
    pub(super) fn take(&mut self, lane_tag: u64) -> u64 {
        self.bound.remove(&lane_tag).unwrap_or(self.default)
    }

    /// An adapter that is named and not loaded.
    pub(super) fn dangling(&self) -> Option<u64> {
        self.bound.values().copied().chain([self.default]).find(|&adapter| !self.is_loaded(adapter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_tag_are_used_once_and_end_with_the_adapter() {
        let mut table = AdapterTable::default();
        let of = |handle| LoadedAdapter { handle, digest: [handle as u8; 32] };
        table.loaded(of(1));
        table.loaded(of(2));
        table.loaded(of(2));
        table.bind(7, 1);
        table.bind(8, 2);
        assert_eq!((table.of_admit(7), table.take(7), table.of_admit(7)), (1, 1, 0));
        assert_eq!(table.set_default(2), 0);
        assert_eq!(table.of_admit(7), 2);
        assert_eq!((table.unload(2), table.of_admit(8)), (Ok(false), 2));
        assert_eq!((table.unload(2), table.of_admit(8), table.default_adapter()), (Ok(true), 0, 0));
        assert_eq!(table.unload(2), Err(Status::UnknownHandle));
        assert!(table.is_loaded(0) && table.is_loaded(1) && !table.is_loaded(2));
        assert_eq!(table.dangling(), None);
    }
}
