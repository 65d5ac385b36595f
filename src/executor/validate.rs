#![forbid(unsafe_code)]
//! Stage 2, validate: the plan against the engine, record by record (T-18 .. T-58).
//!
//! The first failing check decides the status, so the order of the functions and of the lines is the contract (T-2). The
//! engine is borrowed shared: whatever happens here, nothing has changed (T-3). Between the header and the records the pipeline ends
//! leases whose time is over, whether the plan is refused later or not (T-21).

use std::collections::HashSet;
use std::ops::Range;

use super::constraint::{self, Constraint};
use super::lane::{Lane, Phase};
use super::lanes::LaneId;
use super::plan::{Decoded, Entry, Party, Standing};
use super::speculation::Speculation;
use super::state::State;
use super::tags::TagSet;
use crate::capacity::Domain;
use crate::prefix::LeaseSource;
use crate::record::constant::{sampling, tick_flag};
use crate::record::{LaneAdmit, LaneCommit, LaneDecode, LanePrefill, LaneRetire, Status};
use crate::ring::Rings;
use crate::runtime::Runtime;
use crate::speculate::Admission;

/// A plan that may run if there is room for it.
#[derive(Debug)]
pub(super) struct Valid<'s> {
    pub(super) plan: Decoded<'s>,
    pub(super) prompts: Prompts<'s>,
    /// One per admit, in plan order.
    pub(super) seeds: &'s [Option<Seed>],
    /// One per admit: how those fare that name a strategy.
    pub(super) admissions: &'s [Option<Admission>],
    /// The grammar of each admit, with its replayed tokens consumed.
    pub(super) constraints: &'s mut [Option<Box<Constraint>>],
    /// One per prefill record, in plan order.
    pub(super) chunks: &'s [Chunk],
}

/// The lease that an admit starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seed {
    pub(super) lease: u64,
    pub(super) source: LeaseSource,
    /// Prompt tokens that it covers.
    pub(super) len: u64,
    /// Tokens that the lane's sequence starts with: one less when all of the prompt is covered (T-61).
    pub(super) keep: u64,
}

/// The prompts of the admits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prompts<'s> {
    tokens: &'s [u32],
    ranges: &'s [Range<usize>],
}

impl<'s> Prompts<'s> {
    /// The prompt of an admit, by its place in the plan.
    pub(super) fn of(&self, admit: usize) -> &'s [u32] {
        self.ranges.get(admit).and_then(|range| self.tokens.get(range.clone())).unwrap_or_default()
    }
}

/// Prompt tokens that one lane runs in this tick, and those that the budget cut off (T-49, T-84).
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub(super) party: usize,
    pub(super) take: u32,
    pub(super) cut: u32,
    /// What the engine was short of where it was not the plan's budget, by [`Domain::code`].
    pub(super) short_of: u32,
}

/// Lists that are filled anew by every plan.
#[derive(Clone, Debug, Default)]
pub(super) struct ValidBuffers {
    tokens: Vec<u32>,
    ranges: Vec<Range<usize>>,
    seeds: Vec<Option<Seed>>,
    /// Leases that earlier admits of the plan use.
    leases: TagSet,
    chunks: Vec<Chunk>,
    admissions: Vec<Option<Admission>>,
    constraints: Vec<Option<Box<Constraint>>>,
    /// Grammars of the admits so far.
    grammars: HashSet<u32>,
}

/// Checks the records of a plan whose header passed [`check_header`].
///
/// # Errors
/// The first refusal in the order T-24 .. T-58.
pub(super) fn validate<'s, R: Runtime>(
    plan: Decoded<'s>,
    state: &State<R>,
    rings: &dyn Rings,
    buffers: &'s mut ValidBuffers,
) -> Result<Valid<'s>, Status> {
    for party in plan.parties.iter_mut() {
        party.standing = party.lane.and_then(|id| state.lanes.get(id).map(|lane| stand(id, lane)));
    }
    buffers.tokens.clear();
    buffers.ranges.clear();
    buffers.seeds.clear();
    buffers.leases.clear();
    buffers.admissions.clear();
    buffers.constraints.clear();
    buffers.grammars.clear();
    for admit in plan.admits {
        let standing = check_admit(admit, plan.parties, state, rings, buffers)?;
        let rejected = buffers.admissions.last() == Some(&Some(Admission::Rejected));
        // The lease of a rejected admit is not consumed.
        if rejected && let Some(seed) = buffers.seeds.last_mut() {
            *seed = None;
        }
        let party = party_mut(plan.parties, admit.party)?;
        party.rejected = rejected;
        party.standing = Some(standing).filter(|_| !rejected);
    }
    for commit in plan.commits {
        check_commit(commit, plan.parties, state)?;
    }
    buffers.chunks.clear();
    let mut budget = plan.header.prefill_token_budget;
    for prefill in plan.prefills {
        let take = check_prefill(prefill, plan.parties, budget)?;
        budget -= take;
        let ignored = party(plan.parties, prefill.party)?.rejected;
        let cut = if ignored { 0 } else { prefill.record.token_count - take };
        buffers.chunks.push(Chunk { party: prefill.party, take, cut, short_of: 0 });
    }
    for decode in plan.decodes {
        check_decode(decode, plan.parties)?;
    }
    for retire in plan.retires {
        check_retire(retire, plan.parties, state)?;
    }
    check_transfers(&plan, &buffers.seeds, state)?;
    fit_workspace(&mut buffers.chunks, plan.decodes.len() as u64, state);
    let prompts = Prompts { tokens: &buffers.tokens, ranges: &buffers.ranges };
    Ok(Valid {
        plan,
        prompts,
        seeds: &buffers.seeds,
        admissions: &buffers.admissions,
        constraints: &mut buffers.constraints,
        chunks: &buffers.chunks,
    })
}

fn stand(id: LaneId, lane: &Lane) -> Standing {
    Standing {
        lane: Some(id),
        host: lane.recipe().is_host(),
        finished: lane.phase() == Phase::Finished,
        row_nonce: lane.row().map(|row| row.generation),
        fed: lane.fed_len() as u64,
        decode_start: lane.committed_len() as u64,
        prefilled: lane.prefilled() as u64,
        prefill_end: lane.prefill_end() as u64,
    }
}

/// What holds for the whole plan (T-18 .. T-20).
///
/// # Errors
/// The first refusal in this order.
pub(super) fn check_header<R: Runtime>(plan: &Decoded<'_>, state: &State<R>) -> Result<(), Status> {
    let header = &plan.header;
    if state.plan_seq.is_some_and(|last| header.plan_seq <= last) {
        return Err(Status::RejectIllegalCombination);
    }
    if header.max_decode_lanes > state.descriptor.max_batch {
        return Err(Status::RejectBudget);
    }
    if header.flags & tick_flag::DRAIN != 0 && !plan.admits.is_empty() {
        return Err(Status::RejectIllegalCombination);
    }
    Ok(())
}

/// One admit (T-24 .. T-36): reads its prompt into `buffers` and says how the lane will stand.
fn check_admit<R: Runtime>(
    admit: &Entry<LaneAdmit>,
    parties: &[Party],
    state: &State<R>,
    rings: &dyn Rings,
    buffers: &mut ValidBuffers,
) -> Result<Standing, Status> {
    let record = &admit.record;
    if party(parties, admit.party)?.standing.is_some() {
        return Err(Status::RejectIllegalCombination);
    }
    let range = read_prompt(record, state, rings, &mut buffers.tokens)?;
    let prompt_len = range.len() as u64;
    if record.sampling > sampling::HOST {
        return Err(Status::RejectIllegalCombination);
    }
    if u64::from(record.decode_replay) >= prompt_len {
        return Err(Status::RejectBounds);
    }
    buffers.admissions.push(check_strategy(record, state)?);
    let prompt = buffers.tokens.get(range.clone()).unwrap_or_default();
    buffers.constraints.push(constraint::check(record, prompt, state, &mut buffers.grammars)?);
    if record.logit_bias_handle != 0 && state.bias.get(record.logit_bias_handle).is_none() {
        return Err(Status::RejectIllegalCombination);
    }
    let seed = match record.seed_handle {
        0 => None,
        _ => {
            let prompt = buffers.tokens.get(range.clone()).unwrap_or_default();
            Some(check_seed(record, prompt, state, &mut buffers.leases)?)
        }
    };
    if prompt_len > state.descriptor.max_seq_len {
        return Err(Status::RejectBudget);
    }
    buffers.ranges.push(range);
    buffers.seeds.push(seed);
    let (seeded, keep) = seed.map_or((0, 0), |seed| (seed.len, seed.keep));
    let prefill_end = (prompt_len - u64::from(record.decode_replay)).max(seeded);
    Ok(Standing {
        lane: None,
        host: record.sampling == sampling::HOST,
        finished: false,
        row_nonce: None,
        fed: keep,
        decode_start: prefill_end,
        prefilled: seeded,
        prefill_end,
    })
}

/// The strategy that an admit names, and how it fares with it (T-30, R-56). A HOST lane needs one made for hosts.
fn check_strategy<R: Runtime>(record: &LaneAdmit, state: &State<R>) -> Result<Option<Admission>, Status> {
    if record.strategy_slot == 0 {
        return Ok(None);
    }
    let slot = state.speculation.registry().slot(record.strategy_slot).ok_or(Status::RejectIllegalCombination)?;
    if record.sampling == sampling::HOST && !slot.host_compatible() {
        return Err(Status::RejectHostRules);
    }
    Ok(Some(Speculation::admission(slot, record)))
}

/// The seed of an admit (T-34, T-35).
///
/// A head-only runtime cannot cut the last token off again, whichever kind of seed covers the whole prompt. The state must have
/// been computed with the adapter that the lane runs with.
fn check_seed<R: Runtime>(
    record: &LaneAdmit,
    prompt: &[u32],
    state: &State<R>,
    used: &mut TagSet,
) -> Result<Seed, Status> {
    let lease = state.cache.lease(record.seed_handle).ok_or(Status::RejectStaleSeed)?;
    let (prefix, scope) = match lease.source {
        LeaseSource::Entry(entry) => {
            state.cache.get(entry).map(|entry| (entry.tokens.get(..lease.prefix_tokens), entry.scope))
        }
        LeaseSource::Sequence(sequence) => {
            state.bare.get(&sequence).map(|bare| (Some(&*bare.tokens), state.scope(bare.content.adapter)))
        }
    }
    .ok_or(Status::RejectStaleSeed)?;
    let serves = lease.expires_at >= state.tick_count
        && lease.determinism_class == record.determinism_class
        && prefix.is_some_and(|prefix| prompt.starts_with(prefix))
        && scope == state.scope(state.adapter_of(record.lane_tag));
    if !used.insert(record.seed_handle) || !serves {
        return Err(Status::RejectStaleSeed);
    }
    let len = lease.prefix_tokens as u64;
    let whole = lease.prefix_tokens == prompt.len();
    if whole && !state.descriptor.truncate_partial {
        return Err(Status::RejectIllegalCombination);
    }
    Ok(Seed { lease: lease.handle, source: lease.source, len, keep: len - u64::from(whole) })
}

/// Reads a prompt to the end of `tokens` and says where it lies (T-25 .. T-27).
fn read_prompt<R: Runtime>(
    record: &LaneAdmit,
    state: &State<R>,
    rings: &dyn Rings,
    tokens: &mut Vec<u32>,
) -> Result<Range<usize>, Status> {
    let start = tokens.len();
    rings.read_tokens(&record.prompt, tokens)?;
    let prompt = tokens.get(start..).unwrap_or_default();
    if prompt.is_empty() {
        return Err(Status::RejectIllegalCombination);
    }
    if prompt.iter().any(|&token| token >= state.descriptor.vocab_size) {
        return Err(Status::RejectBounds);
    }
    Ok(start..tokens.len())
}

/// One commit (T-40 .. T-44).
fn check_commit<R: Runtime>(commit: &Entry<LaneCommit>, parties: &[Party], state: &State<R>) -> Result<(), Status> {
    let standing = party(parties, commit.party)?.standing.ok_or(Status::RejectUnknownLane)?;
    if !standing.host || standing.finished {
        return Err(Status::RejectIllegalCombination);
    }
    let nonce = standing.row_nonce.ok_or(Status::RejectHostRules)?;
    if commit.record.logits_nonce != nonce {
        return Err(Status::RejectStaleNonce);
    }
    if commit.record.token_id >= state.descriptor.vocab_size {
        return Err(Status::RejectBounds);
    }
    Ok(())
}

/// One prefill (T-46 .. T-49): how many of its tokens the budget lets through.
fn check_prefill(prefill: &Entry<LanePrefill>, parties: &mut [Party], budget_left: u32) -> Result<u32, Status> {
    let record = &prefill.record;
    let party = party_mut(parties, prefill.party)?;
    if party.rejected {
        return Ok(0);
    }
    let standing = party.standing.as_mut().ok_or(Status::RejectUnknownLane)?;
    if u64::from(record.token_offset) != standing.prefilled {
        return Err(Status::RejectIllegalCombination);
    }
    if u64::from(record.token_offset) + u64::from(record.token_count) > standing.prefill_end {
        return Err(Status::RejectBounds);
    }
    let take = record.token_count.min(budget_left);
    standing.prefilled += u64::from(take);
    Ok(take)
}

/// Cuts prompts, the last one first, to what the workspace has room for; a lane whose prompt is cut does not decode in this tick.
fn fit_workspace<R: Runtime>(chunks: &mut [Chunk], decodes: u64, state: &State<R>) {
    let Some(room) = state.workspace.prompt_tokens(&state.ledger, decodes) else { return };
    let planned = chunks.iter().fold(0, |sum: u64, chunk| sum + u64::from(chunk.take));
    let mut over = planned.saturating_sub(room);
    for chunk in chunks.iter_mut().rev() {
        let given = u32::try_from(over).unwrap_or(u32::MAX).min(chunk.take);
        if given > 0 {
            chunk.take -= given;
            chunk.cut += given;
            chunk.short_of = Domain::Workspace.code();
            over -= u64::from(given);
        }
    }
}

/// One decode (T-50 .. T-54). A grant of 0 is legal for a lane that is not HOST (T-55).
fn check_decode(decode: &Entry<LaneDecode>, parties: &[Party]) -> Result<(), Status> {
    let party = party(parties, decode.party)?;
    if party.rejected {
        return Ok(());
    }
    let standing = party.standing.ok_or(Status::RejectUnknownLane)?;
    if standing.finished {
        return Err(Status::RejectIllegalCombination);
    }
    if standing.host && decode.record.max_new_tokens != 1 {
        return Err(Status::RejectHostRules);
    }
    if standing.host && standing.row_nonce.is_some() && party.commit.is_none() {
        return Err(Status::RejectHostRules);
    }
    if standing.prefilled != standing.prefill_end {
        return Err(Status::RejectIllegalCombination);
    }
    Ok(())
}

/// One retire (T-58).
fn check_retire<R: Runtime>(retire: &Entry<LaneRetire>, parties: &[Party], state: &State<R>) -> Result<(), Status> {
    let live = party(parties, retire.party)?.standing.is_some();
    if !live && !state.faulted.contains(&retire.record.lane_tag) {
        return Err(Status::RejectUnknownLane);
    }
    Ok(())
}

/// Lanes whose sequence is on its way in or out are left alone (S-90); one with a demoted range is fed and published no more until it is
/// promoted, but may be retired without (S-91).
fn check_transfers<R: Runtime>(plan: &Decoded<'_>, seeds: &[Option<Seed>], state: &State<R>) -> Result<(), Status> {
    if state.transfers.is_idle() {
        return Ok(());
    }
    for seed in seeds.iter().flatten() {
        // An adopted sequence becomes the lane's own.
        if let LeaseSource::Sequence(sequence) = seed.source
            && state.transfers.claims(sequence)
        {
            return Err(Status::RejectTransferLocked);
        }
    }
    for party in plan.parties.iter() {
        let lane = party.standing.and_then(|standing| standing.lane).and_then(|id| state.lanes.get(id));
        let Some(sequence) = lane.map(|lane| lane.sequence()) else { continue };
        let works = party.commit.is_some() || party.prefill.is_some() || party.decode.is_some();
        let retire = party.retire.and_then(|retire| plan.retires.get(retire as usize));
        let publishes = retire.is_some_and(|retire| retire.record.publish_to_cache != 0);
        let claimed = (works || retire.is_some()) && state.transfers.claims(sequence);
        if claimed || ((works || publishes) && state.transfers.has_holes(sequence)) {
            return Err(Status::RejectTransferLocked);
        }
    }
    Ok(())
}

/// The party of an entry. Stage 1 made it, so it is there; were it not, the lane would be unknown.
fn party(parties: &[Party], index: usize) -> Result<&Party, Status> {
    parties.get(index).ok_or(Status::RejectUnknownLane)
}

fn party_mut(parties: &mut [Party], index: usize) -> Result<&mut Party, Status> {
    parties.get_mut(index).ok_or(Status::RejectUnknownLane)
}
