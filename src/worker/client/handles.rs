#![forbid(unsafe_code)]
//! Names that the host holds, and what they are in the worker of the moment.
//!
//! # Invariants
//! - A name is given once and never again, whatever worker stands behind it.
//! - What cannot be made again in a fresh worker (sequences, operations) is unknown there; what can (grammars, bias lists, leases) keeps
//!   its name.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Most names of sequences that are kept; the oldest go first.
const NAMES: usize = 1 << 16;

/// Names of things that die with their worker.
#[derive(Debug, Default)]
pub(super) struct Names {
    last: u64,
    remote: BTreeMap<u64, u64>,
    named: HashMap<u64, u64>,
}

impl Names {
    /// The name of what the worker calls `remote`.
    pub(super) fn name(&mut self, remote: u64) -> u64 {
        if let Some(&name) = self.named.get(&remote) {
            return name;
        }
        self.last += 1;
        self.bind(self.last, remote);
        self.last
    }

    /// Gives a name that exists to something of a fresh worker.
    pub(super) fn bind(&mut self, name: u64, remote: u64) {
        self.remote.insert(name, remote);
        self.named.insert(remote, name);
        if self.remote.len() > NAMES
            && let Some((_, remote)) = self.remote.pop_first()
        {
            self.named.remove(&remote);
        }
    }

    /// What the worker calls it; none when it is not known there.
    pub(super) fn remote(&self, name: u64) -> Option<u64> {
        self.remote.get(&name).copied()
    }

    /// The thing is gone.
    pub(super) fn forget(&mut self, name: u64) {
        if let Some(remote) = self.remote.remove(&name) {
            self.named.remove(&remote);
        }
    }

    /// The worker is gone.
    pub(super) fn clear(&mut self) {
        self.remote.clear();
        self.named.clear();
    }
}

/// What a grammar is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GrammarSource {
    Schema(String),
    Structural(String),
}

/// What a bias list is made from.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BiasSource {
    pub(super) tokens: Vec<i32>,
    pub(super) bits: Vec<u32>,
}

/// What a lease is of.
#[derive(Clone, Debug)]
pub(super) struct LeaseSource {
    /// The span, down to the leased prefix.
    pub(super) prefix: Vec<u32>,
    pub(super) determinism_class: u8,
    /// Not of a cached prefix but of a sequence, which dies with its worker.
    pub(super) adopted: bool,
    /// The last tick it serves, if the engine says.
    pub(super) expires_at: Option<u64>,
}

/// Something that is made again where it is missing.
#[derive(Debug)]
struct Made<S> {
    source: Arc<S>,
    remote: Option<u64>,
}

/// Names of things that are made again in a fresh worker.
#[derive(Debug)]
pub(super) struct Makings<S> {
    last: u64,
    made: BTreeMap<u64, Made<S>>,
}

impl<S> Default for Makings<S> {
    fn default() -> Self {
        Self { last: 0, made: BTreeMap::new() }
    }
}

impl<S> Makings<S> {
    /// A new name.
    pub(super) fn add(&mut self, source: S, remote: u64) -> u64 {
        self.last += 1;
        self.made.insert(self.last, Made { source: Arc::new(source), remote: Some(remote) });
        self.last
    }

    pub(super) fn source(&self, name: u64) -> Option<&Arc<S>> {
        self.made.get(&name).map(|made| &made.source)
    }

    /// What the worker calls it; none when it is not made there.
    pub(super) fn remote(&self, name: u64) -> Option<u64> {
        self.made.get(&name).and_then(|made| made.remote)
    }

    /// It is made in the worker.
    pub(super) fn made(&mut self, name: u64, remote: u64) {
        if let Some(made) = self.made.get_mut(&name) {
            made.remote = Some(remote);
        }
    }

    /// The name is given back; answers what the worker calls it, none at all when it is not known.
    pub(super) fn remove(&mut self, name: u64) -> Option<Option<u64>> {
        self.made.remove(&name).map(|made| made.remote)
    }

    /// Keeps what `keeps` says.
    pub(super) fn retain(&mut self, mut keeps: impl FnMut(&S) -> bool) {
        self.made.retain(|_, made| keeps(&made.source));
    }

    /// The worker is gone.
    pub(super) fn clear(&mut self) {
        self.made.values_mut().for_each(|made| made.remote = None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_never_given_twice() {
        let mut names = Names::default();
        assert_eq!((names.name(70), names.name(71), names.name(70)), (1, 2, 1));
        names.clear();
        assert_eq!(names.remote(1), None, "unknown in a fresh worker");
        assert_eq!(names.name(70), 3, "the same number there is something else");
        names.forget(3);
        assert_eq!((names.remote(3), names.name(70)), (None, 4));
    }

    #[test]
    fn makings_keep_their_names() {
        let mut makings = Makings::default();
        let name = makings.add("a", 5);
        makings.clear();
        assert_eq!((makings.remote(name), makings.source(name).map(|source| **source)), (None, Some("a")));
        makings.made(name, 9);
        assert_eq!((makings.remove(name), makings.remove(name)), (Some(Some(9)), None));
        assert_eq!(makings.add("b", 1), 2);
    }
}
