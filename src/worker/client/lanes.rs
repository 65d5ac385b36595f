#![forbid(unsafe_code)]
//! What the host has seen of its lanes: enough to begin each again in a fresh worker.
//!
//! # Invariants
//! - A lane here is live: it was admitted by an accepted plan, and neither retired nor faulted since.
//! - `history` is its prompt and the tokens it produced, all of which the host has seen.

use std::collections::HashMap;
use std::sync::Arc;

use super::handles::{BiasSource, GrammarSource};
use crate::record::constant::{finish, sampling, shed_kind};
use crate::worker::payload::{LaneAdmit, LanePrefill, Plan, TickEvents};

/// The row that a HOST lane waits with, by its generation in the host's rings and in the worker's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) local: u64,
    pub(super) remote: u64,
}

/// One live lane.
#[derive(Debug)]
pub(super) struct Lane {
    /// Its own, where a tag may be another lane's later.
    pub(super) number: u64,
    /// As it was asked for, the prompt's place and the handles left out.
    pub(super) admit: LaneAdmit,
    /// The grammar it has borrowed: its name, and what it is made from.
    pub(super) grammar: Option<(u64, Arc<GrammarSource>)>,
    pub(super) bias: Option<Arc<BiasSource>>,
    pub(super) history: Vec<u32>,
    pub(super) prompt_len: usize,
    prefill_end: usize,
    /// Prompt tokens that prefill has brought in.
    pub(super) prefilled: usize,
    pub(super) finished: bool,
    pub(super) row: Option<Row>,
    /// The worker of the moment has it.
    pub(super) resident: bool,
    /// It was begun again, with what it had produced as part of its prompt.
    pub(super) renewed: bool,
    /// The name of its sequence, once the host has asked.
    pub(super) sequence: Option<u64>,
}

impl Lane {
    /// A lane that starts with this prompt, the first `seeded` tokens of which are there.
    pub(super) fn new(number: u64, admit: LaneAdmit, prompt: Vec<u32>, seeded: usize) -> Self {
        let prompt_len = prompt.len();
        let prefill_end = prompt_len.saturating_sub(admit.decode_replay as usize).max(seeded);
        Self {
            number,
            admit,
            grammar: None,
            bias: None,
            history: prompt,
            prompt_len,
            prefill_end,
            prefilled: seeded,
            finished: false,
            row: None,
            resident: true,
            renewed: false,
            sequence: None,
        }
    }

    pub(super) fn is_host(&self) -> bool {
        self.admit.sampling == sampling::HOST
    }

    /// How many tokens it has produced.
    pub(super) fn produced(&self) -> usize {
        self.history.len() - self.prompt_len
    }

    /// The tokens that the host knows to be committed. Of a tail that is being replayed it does not know how far it is.
    pub(super) fn committed(&self) -> &[u32] {
        let committed = if self.produced() > 0 { self.history.len() } else { self.prefilled };
        self.history.get(..committed).unwrap_or_default()
    }

    /// How it is begun again: the admit less its prompt's place, and how many tokens are then prefilled.
    ///
    /// A lane in its prompt starts over with the same prompt. One that is through goes on as one whose prompt is all that is known of it:
    /// after prefill its newest token waits to be fed, as it does now, and its next draw is the one it would have made (T-119).
    pub(super) fn renewal(&self) -> (LaneAdmit, usize) {
        let mut admit = self.admit.clone();
        admit.seed_handle = 0;
        if self.prefilled < self.prefill_end {
            return (admit, self.prefilled);
        }
        let produced = self.produced();
        admit.decode_replay = 0;
        admit.rng_counter_base = admit.rng_counter_base.wrapping_add(produced as u64);
        if self.grammar.is_some() {
            admit.grammar_replay = admit.grammar_replay.saturating_add(produced as u32);
        }
        (admit, self.history.len())
    }

    /// The offset that the worker expects of a prefill at `offset`.
    pub(super) fn wire_offset(&self, offset: u32) -> u32 {
        let through = self.prefilled >= self.prefill_end;
        if self.renewed && through && offset as usize == self.prefilled { self.history.len() as u32 } else { offset }
    }
}

/// Prompt tokens of a prefill that ran: what the report does not say was dropped.
fn taken(prefill: &LanePrefill, events: &TickEvents) -> usize {
    let dropped: u64 = events
        .shed
        .entries
        .iter()
        .filter(|entry| entry.kind == shed_kind::PREFILL_CHUNK && entry.lane_tag == prefill.lane_tag)
        .map(|entry| entry.tokens)
        .sum();
    u64::from(prefill.token_count).saturating_sub(dropped) as usize
}

/// All live lanes, by tag.
pub(super) type Lanes = HashMap<u64, Lane>;

/// Notes what an accepted plan did to the lanes: all but its admits, whose lanes are in already, and its emits.
pub(super) fn settle(lanes: &mut Lanes, plan: &Plan, events: &TickEvents) {
    for commit in &plan.commits {
        if let Some(lane) = lanes.get_mut(&commit.lane_tag) {
            lane.history.push(commit.token_id);
            lane.row = None;
        }
    }
    for prefill in &plan.prefills {
        if let Some(lane) = lanes.get_mut(&prefill.lane_tag) {
            lane.prefilled = (lane.prefilled + taken(prefill, events)).min(lane.prefill_end);
        }
    }
}

/// Notes what a lane emitted.
pub(super) fn emitted(lanes: &mut Lanes, lane_tag: u64, tokens: &[u32], how: u32) {
    if let Some(lane) = lanes.get_mut(&lane_tag) {
        lane.history.extend_from_slice(tokens);
        lane.finished |= how != finish::NONE;
    }
}
