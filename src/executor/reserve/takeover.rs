#![forbid(unsafe_code)]
//! Which admits take their entry over instead of copying from it (T-62, T-63, T-69).

use crate::executor::state::State;
use crate::executor::validate::{Seed, Valid};
use crate::prefix::{Entry, LeaseSource};
use crate::runtime::Runtime;

/// Marks the admits that take over because the runtime prefers it: one flag per admit (T-63).
pub(super) fn prefer<R: Runtime>(valid: &Valid<'_>, state: &State<R>, takeovers: &mut Vec<bool>) {
    let preferred = state.descriptor.takeover_preferred;
    takeovers.clear();
    takeovers.extend(valid.seeds.iter().map(|seed| preferred && seed.is_some_and(|seed| continues(&seed, state))));
}

/// Marks every admit that may take over; whether there was one more (T-69).
pub(super) fn force<R: Runtime>(valid: &Valid<'_>, state: &State<R>, takeovers: &mut [bool]) -> bool {
    let mut more = false;
    for (seed, takes) in valid.seeds.iter().zip(takeovers) {
        let may = !*takes && seed.is_some_and(|seed| possible(&seed, state).is_some());
        *takes |= may;
        more |= may;
    }
    more
}

/// The entry that a seed may take over, if it may (T-62).
fn possible<'s, R: Runtime>(seed: &Seed, state: &'s State<R>) -> Option<&'s Entry> {
    let LeaseSource::Entry(entry) = seed.source else { return None };
    let entry = state.cache.get(entry)?;
    let cuttable = state.descriptor.truncate_partial;
    let may = !state.descriptor.copy_shares_cells
        && entry.pins == 1
        && entry.in_pool()
        && (cuttable || entry.held_tokens == seed.keep)
        && !entry.shared
        && (cuttable || entry.seeded == 0);
    may.then_some(entry)
}

/// Whether a seed continues its entry, and takes away no more than it keeps. One that stops inside the entry's prompt is a branch.
fn continues<R: Runtime>(seed: &Seed, state: &State<R>) -> bool {
    possible(seed, state).is_some_and(|entry| {
        let page = state.cache.shape().page_size_tokens;
        let prompt_pages = (entry.prompt_len / page * page) as u64;
        seed.keep >= prompt_pages && entry.held_tokens - seed.keep.min(entry.held_tokens) <= seed.keep
    })
}
