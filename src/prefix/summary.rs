#![forbid(unsafe_code)]
//! What the entries below a node of the index have in common, as far as a rule asks.

use super::entry::{Entry, EntryId};

/// Least and greatest of some entries; of no entries, what changes no least and no greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    /// Oldest entry in the pool.
    pub(super) pool_oldest: Option<EntryId>,
    /// Oldest exported entry.
    pub(super) export_oldest: Option<EntryId>,
    /// Tokens of the shortest exported entry.
    pub(super) export_shortest: usize,
    /// Tokens of the shortest entry.
    pub(super) shortest: usize,
    /// Last use and name of the entry used last (S-53).
    pub(super) latest: (u64, u64),
}

impl Default for Summary {
    fn default() -> Self {
        Self {
            pool_oldest: None,
            export_oldest: None,
            export_shortest: usize::MAX,
            shortest: usize::MAX,
            latest: (0, 0),
        }
    }
}

/// The older of two; none is younger than any.
pub(super) fn older(a: Option<EntryId>, b: Option<EntryId>) -> Option<EntryId> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (some, None) | (None, some) => some,
    }
}

impl Summary {
    pub(super) fn of(entry: &Entry) -> Self {
        let (id, tokens) = (entry.id, entry.tokens.len());
        let pool = entry.in_pool();
        Self {
            pool_oldest: pool.then_some(id),
            export_oldest: (!pool).then_some(id),
            export_shortest: if pool { usize::MAX } else { tokens },
            shortest: tokens,
            latest: (entry.last_use, entry.sequence),
        }
    }
}

impl FromIterator<Summary> for Summary {
    fn from_iter<I: IntoIterator<Item = Summary>>(summaries: I) -> Self {
        summaries.into_iter().fold(Self::default(), |a, b| Self {
            pool_oldest: older(a.pool_oldest, b.pool_oldest),
            export_oldest: older(a.export_oldest, b.export_oldest),
            export_shortest: a.export_shortest.min(b.export_shortest),
            shortest: a.shortest.min(b.shortest),
            latest: a.latest.max(b.latest),
        })
    }
}
