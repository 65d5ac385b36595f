#![forbid(unsafe_code)]
//! What is asked of the books.

use super::domain::{DOMAINS, NOTHING, Units};

/// What an operation takes, and what has to be free for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Units that are taken.
    pub claim: Units,
    /// Units that have to be free and are not taken; below the claim, the claim counts.
    pub fit: Units,
    /// Units that this operation gives back before it takes any: they count as free, and only what is taken beyond them is claimed.
    pub returns: Units,
    /// Cached pages that may be evicted do not count as free.
    pub firm: bool,
    /// What is taken is an upper bound, and goes back at the end of a submission: what of it was not needed is news only for those who were
    /// refused meanwhile.
    pub provisional: bool,
}

impl Demand {
    /// Takes this and needs nothing besides.
    pub const fn of(claim: Units) -> Self {
        Self { claim, fit: NOTHING, returns: NOTHING, firm: false, provisional: false }
    }

    /// Takes `claim` when `fit` is free.
    pub const fn fitting(claim: Units, fit: Units) -> Self {
        Self { claim, fit, returns: NOTHING, firm: false, provisional: false }
    }
}

/// What is certain at the end of a submission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// What the pool says of itself now, by domain; none stays as it was.
    pub measured: [Option<u64>; DOMAINS],
    /// Claims that became pages of the pool, or were not needed.
    pub back: Units,
    /// Domains of which something was given back in between, whatever the sum says: their epochs advance.
    pub freed: u8,
    /// Cached pages that may be evicted, under the core's policy.
    pub evictable: Option<u64>,
}

/// What a core has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// What is installed; `u64::MAX` is without bound.
    pub total: Units,
    /// What can be installed; at least `total`. Of the budget: the ceiling of the core's device bytes.
    pub max: Units,
    /// Bytes of a page.
    pub block_bytes: u64,
    /// Bytes that never change: weights, tables.
    pub static_bytes: u64,
}

impl Default for Limits {
    /// No bounds.
    fn default() -> Self {
        Self { total: [u64::MAX; DOMAINS], max: [u64::MAX; DOMAINS], block_bytes: 0, static_bytes: 0 }
    }
}
