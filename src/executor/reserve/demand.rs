#![forbid(unsafe_code)]
//! What a plan needs: cells and sequences (T-60, T-61, T-64, T-65).
//!
//! Cells are counted in whole granules of the pool, as sequences grow; with a granule of 1 the sums are those of the rules. With
//! `cells(t)` the granules of *t* tokens, and a lane of *n* granted tokens feeding at most *n*, its pending one and all new ones but
//! the last:
//!
//! ```text
//!   growth   of each lane that prefills or decodes    cells(start + taken + granted) - cells(start)
//!            start: tokens it holds, or starts with   + a granule where it goes on in a partly filled page that others hold
//!   import   of each seed from an export              cells(keep), and once the most by which an entry is longer
//!   copy     of each seed from the pool               cells(keep), unless copies share
//!   back     of each takeover                         cells(entry) - cells(keep) come back
//!   last     of each publishing retire                the growth of its pending input
//!
//!   need = imports and copies + max(growth, longest import) + last - back
//! ```

use crate::executor::plan::{Party, Standing};
use crate::executor::state::State;
use crate::executor::validate::{Seed, Valid};
use crate::prefix::LeaseSource;
use crate::runtime::{Runtime, SeqGrowth, SeqHandle};

/// What has to be there before the plan runs.
#[derive(Debug)]
pub(super) struct Demand<'g> {
    /// Sequences that are made (T-67).
    pub(super) sequences: usize,
    /// Bytes of workspace of its steps.
    pub(super) workspace: u64,
    seeds: Seeds,
    /// Growth of sequences that exist.
    growths: &'g [SeqGrowth],
    /// Growth of the publishing lanes.
    last_tokens: &'g [SeqGrowth],
}

impl Demand<'_> {
    /// Cells to be free (T-65).
    ///
    /// With `leaving`, as the runtime counts them when those sequences are gone. Without, at least as many as it takes in any case: a sum,
    /// with a copy for every lane that goes on in a partly filled page.
    pub(super) fn cells<R: Runtime>(&self, leaving: Option<&[SeqHandle]>, state: &State<R>) -> u64 {
        let Seeds { cost, back, longest_import, growth, .. } = self.seeds;
        let busiest = cells_of(self.growths, leaving, state).saturating_add(growth).max(longest_import);
        let last = cells_of(self.last_tokens, leaving, state);
        cost.saturating_add(busiest).saturating_add(last).saturating_sub(back)
    }
}

/// Sums over the seeds.
#[derive(Clone, Copy, Debug, Default)]
struct Seeds {
    cost: u64,
    back: u64,
    longest_import: u64,
    sequences: usize,
    /// Growth of the sequences that are made or taken over.
    growth: u64,
}

/// The demand when the marked admits take over.
pub(super) fn demand<'g, R: Runtime>(
    valid: &Valid<'_>,
    state: &State<R>,
    takeovers: &[bool],
    (growths, last_tokens): (&'g mut Vec<SeqGrowth>, &'g mut Vec<SeqGrowth>),
) -> Demand<'g> {
    let mut seeds = Seeds::default();
    growths.clear();
    last_tokens.clear();
    for (number, admit) in valid.plan.admits.iter().enumerate() {
        let party = valid.plan.parties.get(admit.party).filter(|party| !party.rejected);
        let Some(party) = party else { continue };
        let seed = valid.seeds.get(number).copied().flatten();
        let takes = takeovers.get(number).copied().unwrap_or(false);
        let growth = growth(party, valid, state);
        add_admit(&mut seeds, seed, takes, growth, state, growths);
    }
    if state.descriptor.cells_total != 0 {
        list_lanes(valid, state, growths);
        list_last_tokens(valid, state, last_tokens);
    }
    let tokens = valid.chunks.iter().fold(valid.plan.decodes.len() as u64, |sum, chunk| sum + u64::from(chunk.take));
    Demand { sequences: seeds.sequences, workspace: state.workspace.of(tokens), seeds, growths, last_tokens }
}

/// Adds what one admit needs; an adopted sequence grows as one that is there already.
fn add_admit<R: Runtime>(
    sums: &mut Seeds,
    seed: Option<Seed>,
    takes: bool,
    growth: u64,
    state: &State<R>,
    growths: &mut Vec<SeqGrowth>,
) {
    let cells = |tokens: u64| cells(tokens, state);
    let grows = |from: u64| cells(from.saturating_add(growth)).saturating_sub(cells(from));
    let Some(seed) = seed else {
        sums.sequences += 1;
        sums.growth = sums.growth.saturating_add(grows(0));
        return;
    };
    let entry = match seed.source {
        LeaseSource::Sequence(sequence) => {
            growths.push(SeqGrowth { sequence, keep: seed.keep, tokens: growth });
            return;
        }
        LeaseSource::Entry(entry) => state.cache.get(entry),
    };
    let Some(entry) = entry else { return };
    sums.growth = sums.growth.saturating_add(grows(seed.keep));
    let beyond = cells(entry.held_tokens).saturating_sub(cells(seed.keep));
    if takes {
        sums.back = sums.back.saturating_add(beyond);
        return;
    }
    sums.sequences += 1;
    if !entry.in_pool() {
        sums.cost = sums.cost.saturating_add(cells(seed.keep));
        sums.longest_import = sums.longest_import.max(beyond);
    } else if !state.descriptor.copy_shares_cells {
        sums.cost = sums.cost.saturating_add(cells(seed.keep));
    } else if growth > 0 && !seed.keep.is_multiple_of(granule(state)) {
        // The entry holds the page that the lane goes on in.
        sums.growth = sums.growth.saturating_add(granule(state));
    }
}

/// Lists the growth of the live lanes.
fn list_lanes<R: Runtime>(valid: &Valid<'_>, state: &State<R>, growths: &mut Vec<SeqGrowth>) {
    for party in valid.plan.parties.iter() {
        let lane = party.standing.and_then(|standing| Some((standing, state.lanes.get(standing.lane?)?)));
        if let Some((standing, lane)) = lane {
            let tokens = growth(party, valid, state);
            growths.push(SeqGrowth { sequence: lane.sequence(), keep: standing.fed, tokens });
        }
    }
}

/// Lists the pending inputs of the publishing retires, which are fed before the state is kept (U of T-60).
fn list_last_tokens<R: Runtime>(valid: &Valid<'_>, state: &State<R>, last_tokens: &mut Vec<SeqGrowth>) {
    for retire in valid.plan.retires.iter().filter(|retire| retire.record.publish_to_cache != 0) {
        let standing = valid.plan.parties.get(retire.party).and_then(|party| party.standing);
        let lane = standing.and_then(|standing| state.lanes.get(standing.lane?));
        if let Some(lane) = lane.filter(|lane| lane.has_pending_input()) {
            last_tokens.push(SeqGrowth { sequence: lane.sequence(), keep: lane.fed_len() as u64, tokens: 1 });
        }
    }
}

/// Most tokens that one lane feeds in this tick (P and D of T-60).
fn growth<R: Runtime>(party: &Party, valid: &Valid<'_>, state: &State<R>) -> u64 {
    let Some(Standing { decode_start, .. }) = party.standing else { return 0 };
    let taken = party.prefill.and_then(|chunk| valid.chunks.get(chunk as usize)).map_or(0, |chunk| chunk.take);
    let decode = party.decode.and_then(|decode| valid.plan.decodes.get(decode as usize));
    let grant = decode.map_or(0, |decode| u64::from(decode.record.max_new_tokens));
    u64::from(taken) + grant.min(state.descriptor.max_seq_len.saturating_sub(decode_start))
}

/// Cells that sequences which exist grow by.
fn cells_of<R: Runtime>(growths: &[SeqGrowth], leaving: Option<&[SeqHandle]>, state: &State<R>) -> u64 {
    let granule = granule(state);
    if let Some(leaving) = leaving.filter(|_| granule > 1) {
        return state.runtime.cells_to_grow(growths, leaving);
    }
    let mut sum: u64 = 0;
    for &SeqGrowth { keep, tokens, .. } in growths {
        let open = tokens > 0 && !keep.is_multiple_of(granule);
        let grows = cells(keep.saturating_add(tokens), state).saturating_sub(cells(keep, state));
        sum = sum.saturating_add(grows).saturating_add(if open { granule } else { 0 });
    }
    sum
}

fn granule<R: Runtime>(state: &State<R>) -> u64 {
    u64::from(state.descriptor.cell_granule_tokens.max(1))
}

fn cells<R: Runtime>(tokens: u64, state: &State<R>) -> u64 {
    tokens.div_ceil(granule(state)).saturating_mul(granule(state))
}
