#![forbid(unsafe_code)]
//! Lanes begin: on an empty sequence, or on state that is there already (T-76 .. T-82).
//!
//! ```text
//!   cold        a new sequence
//!   adopted     the bare sequence itself
//!   takeover    the entry's sequence, cut; the entry is gone
//!   copy        a new sequence, the first tokens of an entry in the pool
//!   import      a new sequence from an exported entry, whole, then cut; when that fails its tokens are fed again
//! ```

use crate::capacity::Domain;
use crate::executor::draft::Drafting;
use crate::executor::lane::Lane;
use crate::executor::recipe::Recipe;
use crate::executor::run::{Fatal, Run};
use crate::executor::sequences::{Content, content_of_entry};
use crate::executor::validate::{Seed, Valid};
use crate::prefix::{EntryId, LeaseSource};
use crate::record::constant::{admit_status, exactness};
use crate::record::{AdmitResult, LaneAdmit, Status};
use crate::runtime::{Answers, Feed, Input, Runtime, SeqHandle, Want};
use crate::speculate::Admission;

/// The sequence a lane starts on, and what it carries.
#[derive(Clone, Copy)]
struct Start {
    sequence: SeqHandle,
    content: Content,
}

/// Starts the lanes, in plan order. Every admit that passed validation is admitted (T-82), but those whose strategy covers them with no
/// certificate (R-56).
///
/// # Errors
/// The runtime refuses what was counted, or is broken. The lanes that have begun stand; every sequence has an owner or is gone.
pub(super) fn admit<R: Runtime>(valid: &mut Valid<'_>, takeovers: &[bool], run: &mut Run<'_, R>) -> Result<(), Fatal> {
    // Entries are taken over before anything is copied: what they give up is counted as room.
    let mut taken: Vec<Option<Start>> = Vec::new();
    let begun = take_over_all(valid, takeovers, &mut taken, run).and_then(|()| begin_all(valid, &mut taken, run));
    if begun.is_err() {
        taken.into_iter().flatten().for_each(|start| run.state.runtime.seq_free(start.sequence));
    }
    begun
}

/// Takes the entries over that the reserve stage marked: one start per admit that does.
fn take_over_all<R: Runtime>(
    valid: &Valid<'_>,
    takeovers: &[bool],
    taken: &mut Vec<Option<Start>>,
    run: &mut Run<'_, R>,
) -> Result<(), Fatal> {
    for (number, &takes) in takeovers.iter().enumerate() {
        let seed = valid.seeds.get(number).copied().flatten().filter(|_| takes);
        let tag = valid.plan.admits.get(number).map_or(0, |admit| admit.record.lane_tag);
        taken.push(seed.map(|seed| take_over(&seed, tag, run)).transpose()?);
    }
    Ok(())
}

/// Begins the lanes; a start that became a lane is out of `taken`.
fn begin_all<R: Runtime>(
    valid: &mut Valid<'_>,
    taken: &mut [Option<Start>],
    run: &mut Run<'_, R>,
) -> Result<(), Fatal> {
    for (number, admit) in valid.plan.admits.iter().enumerate() {
        let record = &admit.record;
        let constraint = valid.constraints.get_mut(number).and_then(Option::take);
        let admission = valid.admissions.get(number).copied().flatten();
        run.events.admit_results.push(admit_result(record.lane_tag, admission));
        if admission == Some(Admission::Rejected) {
            continue;
        }
        let seed = valid.seeds.get(number).copied().flatten();
        let prompt = valid.prompts.of(number);
        let start = match (taken.get_mut(number).and_then(Option::take), seed) {
            (Some(start), _) => start,
            (None, Some(seed)) => start_from(&seed, prompt, record.lane_tag, run)?,
            (None, None) => start_cold(record.lane_tag, run)?,
        };
        if let Some(seed) = seed {
            run.state.end_lease(seed.lease);
        }
        run.state.adapters.take(record.lane_tag);
        let lane = make_lane(record, prompt, start, seed, run).constrained(constraint);
        if let Some(grammar) = lane.grammar() {
            run.state.grammars.borrow(grammar);
        }
        run.state.faulted.remove(&record.lane_tag);
        let id = run.state.lanes.insert(speculating(lane, record, admission, run));
        let party = valid.plan.parties.get_mut(admit.party);
        party.and_then(|party| party.standing.as_mut()).ok_or(Fatal)?.lane = Some(id);
    }
    Ok(())
}

/// What the host is told of an admit (T-82, R-56).
fn admit_result(lane_tag: u64, admission: Option<Admission>) -> AdmitResult {
    let admitted = AdmitResult {
        lane_tag,
        status: admit_status::ADMITTED,
        reject_code: 0,
        cert_id: 0,
        granted_class: exactness::SEED_PATH_INVARIANT,
        _pad0: [0; 3],
    };
    match admission {
        None => admitted,
        Some(Admission::Certified { cert_id, class }) => AdmitResult { cert_id, granted_class: class, ..admitted },
        Some(Admission::Approximate) => AdmitResult { granted_class: exactness::APPROXIMATE, ..admitted },
        Some(Admission::Rejected) => AdmitResult {
            status: admit_status::REJECTED,
            // The status as the record's unsigned field carries it.
            reject_code: Status::RejectCertUnmatched as i32 as u32,
            granted_class: 0,
            ..admitted
        },
    }
}

/// An empty sequence.
fn start_cold<R: Runtime>(lane_tag: u64, run: &mut Run<'_, R>) -> Result<Start, Fatal> {
    let sequence = run.state.with_room(R::seq_create).map_err(|_| Fatal)?;
    let adapter = run.state.adapter_of(lane_tag);
    if run.state.runtime.seq_adapt(sequence, adapter).is_err() {
        return Err(unbegun(sequence, run));
    }
    Ok(Start { sequence, content: Content { adapter, ..Content::default() } })
}

/// Gives back a sequence that no lane will own.
fn unbegun<R: Runtime>(sequence: SeqHandle, run: &mut Run<'_, R>) -> Fatal {
    run.state.runtime.seq_free(sequence);
    Fatal
}

fn make_lane<R: Runtime>(
    record: &LaneAdmit,
    prompt: &[u32],
    start: Start,
    seed: Option<Seed>,
    run: &Run<'_, R>,
) -> Lane {
    let recipe = Recipe::new(record, run.state.bias.get(record.logit_bias_handle).cloned());
    let lane = Lane::new(record.lane_tag, start.sequence, prompt, record.decode_replay as usize, recipe);
    // Both are at most the length of the prompt, which is in memory.
    let (seeded, fed) = seed.map_or((0, 0), |seed| (seed.len as usize, seed.keep as usize));
    lane.seeded(seeded, fed, start.content)
}

/// The lane as it speculates: under the configuration that its slot has now (R-48). A HOST lane never drafts: its rows go to
/// the host one by one.
fn speculating<R: Runtime>(lane: Lane, record: &LaneAdmit, admission: Option<Admission>, run: &Run<'_, R>) -> Lane {
    let cert_id = match admission {
        Some(Admission::Certified { cert_id, .. }) => cert_id,
        Some(Admission::Approximate) => 0,
        Some(Admission::Rejected) | None => return lane,
    };
    match run.state.speculation.registry().slot(record.strategy_slot) {
        Some(slot) if !lane.recipe().is_host() => {
            lane.drafting_with(|tokens| Drafting::new(slot.strategy(), *slot.config(), cert_id, tokens))
        }
        _ => lane,
    }
}

/// The entry of the seed leaves the cache and gives its sequence to the lane (T-76).
fn take_over<R: Runtime>(seed: &Seed, lane_tag: u64, run: &mut Run<'_, R>) -> Result<Start, Fatal> {
    let LeaseSource::Entry(id) = seed.source else { return Err(Fatal) };
    let entry = run.state.cache.remove(id).ok_or(Fatal)?;
    let cut = run.state.runtime.seq_truncate(entry.sequence, seed.keep);
    run.state.cells_moved = true;
    run.state.freed |= Domain::Blocks.bit();
    let loss = run.state.loss_of(&entry);
    run.events.lose(lane_tag, loss);
    if cut.is_err() {
        return Err(unbegun(entry.sequence, run));
    }
    Ok(Start { sequence: entry.sequence, content: content_of_entry(&entry).advanced() })
}

/// A sequence with the tokens of the seed that does not take its entry over (T-77 .. T-80).
fn start_from<R: Runtime>(seed: &Seed, prompt: &[u32], lane_tag: u64, run: &mut Run<'_, R>) -> Result<Start, Fatal> {
    let id = match seed.source {
        LeaseSource::Sequence(sequence) => return adopt(seed, sequence, run),
        LeaseSource::Entry(id) => id,
    };
    run.state.finish_departure(id);
    let sequence = run.state.with_room(R::seq_create).map_err(|_| Fatal)?;
    let content = match fill(seed, id, prompt, (sequence, lane_tag), run) {
        Ok(content) => content,
        Err(Fatal) => return Err(unbegun(sequence, run)),
    };
    // At most the length of the prompt.
    run.state.cache.seeded(id, seed.keep as usize, run.state.tick_count);
    Ok(Start { sequence, content })
}

/// Fills the empty sequence of a lane with the first tokens of an entry: a copy, or an import (T-79, T-80).
fn fill<R: Runtime>(
    seed: &Seed,
    id: EntryId,
    prompt: &[u32],
    (sequence, lane_tag): (SeqHandle, u64),
    run: &mut Run<'_, R>,
) -> Result<Content, Fatal> {
    let state = &mut *run.state;
    let adapter = state.adapter_of(lane_tag);
    // What the reserve stage counted (T-64), if departing entries still hold some of it.
    let imported = state.cache.get(id).filter(|entry| !entry.in_pool()).map(|entry| entry.held_tokens);
    state.have_room_for(imported.unwrap_or(seed.keep));
    let entry = state.cache.get(id).ok_or(Fatal)?;
    // An export may be older than the handle that its adapter has now.
    let content = Content { adapter, ..content_of_entry(entry).copied() };
    state.runtime.seq_adapt(sequence, adapter).map_err(|_| Fatal)?;
    match entry.payload() {
        None => state.runtime.seq_copy(entry.sequence, sequence, seed.keep).map_err(|_| Fatal)?,
        Some(payload) => {
            let whole = entry.held_tokens;
            let imported = state.runtime.seq_import(sequence, payload).is_ok_and(|tokens| tokens == whole);
            let cut = seed.keep == whole || (imported && state.runtime.seq_truncate(sequence, seed.keep).is_ok());
            if !(imported && cut) {
                recompute(seed, prompt, sequence, run)?;
                forget(id, lane_tag, run);
            }
        }
    }
    Ok(content)
}

/// The bare sequence stops being bare (T-77); one that covers the whole prompt is cut by a token (T-78).
fn adopt<R: Runtime>(seed: &Seed, sequence: SeqHandle, run: &mut Run<'_, R>) -> Result<Start, Fatal> {
    let bare = run.state.bare.remove(&sequence).ok_or(Fatal)?;
    if seed.keep == seed.len {
        return Ok(Start { sequence, content: bare.content });
    }
    if run.state.runtime.seq_truncate(sequence, seed.keep).is_err() {
        return Err(unbegun(sequence, run));
    }
    run.state.cells_moved = true;
    Ok(Start { sequence, content: bare.content.advanced() })
}

/// Fills a sequence whose import failed by feeding its tokens (T-79).
fn recompute<R: Runtime>(seed: &Seed, prompt: &[u32], sequence: SeqHandle, run: &mut Run<'_, R>) -> Result<(), Fatal> {
    run.state.runtime.seq_truncate(sequence, 0).map_err(|_| Fatal)?;
    let tokens = prompt.get(..seed.keep as usize).ok_or(Fatal)?;
    if tokens.is_empty() {
        return Ok(());
    }
    let feed = Feed { sequence, input: Input::Tokens(tokens), want: Want::Nothing };
    run.state.runtime.step(&[feed], &mut Answers::new()).map_err(|_| Fatal)
}

/// Drops an export that could not be imported, unless another lease holds it (T-79).
fn forget<R: Runtime>(id: EntryId, lane_tag: u64, run: &mut Run<'_, R>) {
    if run.state.cache.get(id).is_some_and(|entry| entry.pins == 1) {
        let mut losses = Vec::new();
        run.state.drop_entry(id, &mut losses);
        losses.into_iter().for_each(|loss| run.events.lose(lane_tag, loss));
    }
}
