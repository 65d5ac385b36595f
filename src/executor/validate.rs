#![forbid(unsafe_code)]
//! Stage 2, validate: the plan against the engine, record by record (T-18 .. T-58).
//!
//! The first failing check decides the status, so the order of the functions and of the lines is the contract (T-2). The
//! engine is borrowed shared: whatever happens here, nothing has changed (T-3).

use std::ops::Range;

use super::lane::{Lane, Phase};
use super::lanes::LaneId;
use super::plan::{Decoded, Entry, Party, Standing};
use super::state::State;
use crate::record::constant::{sampling, tick_flag};
use crate::record::{LaneAdmit, LaneCommit, LaneDecode, LanePrefill, LaneRetire, Status};
use crate::ring::Rings;
use crate::runtime::Runtime;

/// A plan that may run if there is room for it.
#[derive(Debug)]
pub(super) struct Valid<'s> {
    pub(super) plan: Decoded<'s>,
    pub(super) prompts: Prompts<'s>,
    /// One per prefill record, in plan order.
    pub(super) chunks: &'s [Chunk],
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
}

/// Lists that are filled anew by every plan.
#[derive(Clone, Debug, Default)]
pub(super) struct ValidBuffers {
    tokens: Vec<u32>,
    ranges: Vec<Range<usize>>,
    chunks: Vec<Chunk>,
}

/// Checks the plan.
///
/// # Errors
/// The first refusal in the order T-18 .. T-58.
pub(super) fn validate<'s, R: Runtime>(
    plan: Decoded<'s>,
    state: &State<R>,
    rings: &dyn Rings,
    buffers: &'s mut ValidBuffers,
) -> Result<Valid<'s>, Status> {
    check_header(&plan, state)?;
    for party in plan.parties.iter_mut() {
        party.standing = party.lane.and_then(|id| state.lanes.get(id).map(|lane| stand(id, lane)));
    }
    buffers.tokens.clear();
    buffers.ranges.clear();
    for admit in plan.admits {
        let standing = check_admit(admit, plan.parties, state, rings, buffers)?;
        party_mut(plan.parties, admit.party)?.standing = Some(standing);
    }
    for commit in plan.commits {
        check_commit(commit, plan.parties, state)?;
    }
    buffers.chunks.clear();
    let mut budget = plan.header.prefill_token_budget;
    for prefill in plan.prefills {
        let take = check_prefill(prefill, plan.parties, budget)?;
        budget -= take;
        buffers.chunks.push(Chunk { party: prefill.party, take, cut: prefill.record.token_count - take });
    }
    for decode in plan.decodes {
        check_decode(decode, plan.parties)?;
    }
    for retire in plan.retires {
        check_retire(retire, plan.parties, state)?;
    }
    let prompts = Prompts { tokens: &buffers.tokens, ranges: &buffers.ranges };
    Ok(Valid { plan, prompts, chunks: &buffers.chunks })
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
fn check_header<R: Runtime>(plan: &Decoded<'_>, state: &State<R>) -> Result<(), Status> {
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
///
/// Grammars, strategies and seeds are not served: no handle of theirs exists, so a nonzero one gets the status of an unknown
/// one (T-30, T-31, T-34).
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
    let no_grammar = record.grammar_handle == 0 && record.grammar_replay == 0;
    let known_bias = record.logit_bias_handle == 0 || state.bias.get(record.logit_bias_handle).is_some();
    if record.strategy_slot != 0 || !no_grammar || !known_bias {
        return Err(Status::RejectIllegalCombination);
    }
    if record.seed_handle != 0 {
        return Err(Status::RejectStaleSeed);
    }
    if prompt_len > state.descriptor.max_seq_len {
        return Err(Status::RejectBudget);
    }
    buffers.ranges.push(range);
    let prefill_end = prompt_len - u64::from(record.decode_replay);
    Ok(Standing {
        lane: None,
        host: record.sampling == sampling::HOST,
        finished: false,
        row_nonce: None,
        fed: 0,
        decode_start: prefill_end,
        prefilled: 0,
        prefill_end,
    })
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
    let standing = party_mut(parties, prefill.party)?.standing.as_mut().ok_or(Status::RejectUnknownLane)?;
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

/// One decode (T-50 .. T-54). A grant of 0 is legal for a lane that is not HOST (T-55).
fn check_decode(decode: &Entry<LaneDecode>, parties: &[Party]) -> Result<(), Status> {
    let party = party(parties, decode.party)?;
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

/// The party of an entry. Stage 1 made it, so it is there; were it not, the lane would be unknown.
fn party(parties: &[Party], index: usize) -> Result<&Party, Status> {
    parties.get(index).ok_or(Status::RejectUnknownLane)
}

fn party_mut(parties: &mut [Party], index: usize) -> Result<&mut Party, Status> {
    parties.get_mut(index).ok_or(Status::RejectUnknownLane)
}
