#![forbid(unsafe_code)]
//! Requests on their way, and what the next plan does with them.

use super::Below;
use super::request::{Counts, Request, Transcript};
use super::starts::{Holdings, Start};
use crate::record::LaneAdmit;
use crate::record::constant::{finish, sampling};
use crate::testing::{EngineInspect, Harness, StageRings};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Waiting,
    Live,
}

/// A request on its way.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) tag: u64,
    pub(super) request: Request,
    pub(super) noise: bool,
    pub(super) stage: Stage,
    pub(super) transcript: Transcript,
    /// Of the admission it lives under: prompt tokens and those of them to replay.
    pub(super) prompt_len: usize,
    pub(super) replay: usize,
    /// Prompt tokens that it started with.
    pub(super) seeded: usize,
    /// The adapter that it was admitted with; 0 is none.
    pub(super) adapter: u64,
    pub(super) committed: usize,
    /// The row of a HOST lane that waits for its commit.
    pub(super) row: Option<Row>,
    pub(super) counts: Counts,
}

/// A row as the host read it, and its nonce.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) nonce: u64,
    pub(super) logits: Vec<f32>,
}

/// What the next plan does with one lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Act {
    pub(super) admit: bool,
    /// What an admit starts from: [`Holdings::start`].
    pub(super) start: usize,
    pub(super) commits: bool,
    pub(super) prefill: usize,
    pub(super) grant: u16,
    /// How far drafts may exceed the grant.
    pub(super) overshoot: u16,
    /// Admitted with the request's strategy.
    pub(super) drafts: bool,
    pub(super) retire: bool,
    pub(super) publish: bool,
}

impl Lane {
    pub(super) fn new(number: u64, request: Request, noise: bool) -> Self {
        Self {
            // Spread, so that the order of tags is not the order of requests.
            tag: number.wrapping_mul(0x9E37_79B9_7F4A_7C15),
            request,
            noise,
            stage: Stage::Waiting,
            transcript: Transcript::default(),
            prompt_len: 0,
            replay: 0,
            seeded: 0,
            adapter: 0,
            committed: 0,
            row: None,
            counts: Counts::default(),
        }
    }

    pub(super) fn is_host(&self) -> bool {
        self.request.admit.sampling == sampling::HOST
    }

    pub(super) fn done(&self) -> bool {
        self.transcript.finish != finish::NONE || self.tokens_left() == 0
    }

    pub(super) fn tokens_left(&self) -> usize {
        self.request.tokens.saturating_sub(self.transcript.tokens.len())
    }

    pub(super) fn prefill_end(&self) -> usize {
        (self.prompt_len - self.replay).max(self.seeded)
    }

    pub(super) fn prefill_left(&self) -> usize {
        self.prefill_end().saturating_sub(self.committed)
    }

    /// The admit that takes the request up where it stands, and what it starts from; prefill and grant of `act` are then for what is
    /// left.
    pub(super) fn admit<E: EngineInspect, R: StageRings>(
        &mut self,
        harness: &mut Harness<E, R>,
        holdings: &Holdings,
        act: &mut Act,
    ) -> (LaneAdmit, Option<Start>) {
        let mut prompt = self.request.prompt.clone();
        prompt.extend(&self.transcript.tokens);
        let mut admit = self.request.admit;
        admit.lane_tag = self.tag;
        admit.prompt = harness.prompt(&prompt);
        self.replay = self.transcript.tokens.len();
        admit.decode_replay = self.replay as u32;
        admit.rng_counter_base = admit.rng_counter_base.wrapping_add(self.replay as u64);
        let (ids, addends): (Vec<i32>, Vec<f32>) = self.request.bias.iter().copied().unzip();
        if !ids.is_empty() {
            admit.logit_bias_handle = harness.engine.logit_bias_create(&ids, &addends).expect("a bias is kept");
        }
        if let Some(path) = &self.request.adapter {
            self.adapter = harness.engine.adapter_load(path).expect("the adapter fits");
            harness.engine.adapter_bind(self.tag, self.adapter).expect("it is loaded");
        }
        self.prompt_len = prompt.len();
        let start = holdings.start(harness, &prompt, self.adapter, act.start);
        admit.seed_handle = start.map_or(0, |start| start.lease);
        self.seeded = start.map_or(0, |start| start.len);
        self.committed = self.seeded;
        self.row = None;
        let whole = act.prefill == self.request.prompt.len();
        act.prefill = if whole { self.prefill_left() } else { act.prefill.min(self.prefill_left()) };
        let most = self.prompt_len - self.prefill_end() + self.tokens_left();
        act.grant = act.grant.min(most as u16);
        act.overshoot = act.overshoot.min(most as u16 - act.grant);
        (admit, start)
    }
}

/// Draws what the next plan does, and its prefill budget.
pub(super) fn draw_plan(lanes: &[Lane], lanes_max: usize, below: &mut Below<'_>) -> (Vec<(usize, Act)>, u32) {
    let budget = if below(3) == 0 { 1 + below(12) as u32 } else { u32::MAX };
    let mut room = lanes_max - lanes.iter().filter(|lane| lane.stage == Stage::Live).count();
    let mut acts = Vec::new();
    for (number, lane) in lanes.iter().enumerate() {
        let mut act = Act::default();
        match lane.stage {
            Stage::Waiting if !lane.done() && room > 0 && below(3) == 0 => {
                act.admit = true;
                act.start = if below(4) == 0 { 0 } else { 1 + below(24) };
                act.drafts = below(4) > 0;
                room -= 1;
                let whole = lane.request.prompt.len();
                act.prefill = if below(2) == 0 { whole } else { below(whole + 1) };
                act.grant = draw_grant(lane, below) * u16::from(act.prefill == whole);
            }
            Stage::Live if lane.done() => act.retire = below(2) == 0,
            Stage::Live if below(5) == 0 => {}
            Stage::Live if below(25) == 0 => act.retire = true,
            Stage::Live => {
                act.commits = lane.row.is_some() && below(3) > 0;
                let left = lane.prefill_left();
                act.prefill = if left == 0 || below(3) == 0 { left } else { below(left + 1) };
                let ready = act.prefill == left && (lane.row.is_none() || act.commits) && below(4) > 0;
                act.grant = draw_grant(lane, below) * u16::from(ready);
            }
            Stage::Waiting => {}
        }
        act.overshoot = draw_overshoot(lane, act, below);
        act.publish = act.retire && below(2) == 0;
        acts.push((number, act));
    }
    // Records in any order.
    for last in (1..acts.len()).rev() {
        acts.swap(last, below(last + 1));
    }
    cut_decodes(&mut acts, budget);
    (acts, budget)
}

/// Steps and tokens that the lane may still be granted.
fn grantable(lane: &Lane) -> usize {
    let tail = match lane.stage {
        Stage::Waiting => lane.transcript.tokens.len(),
        Stage::Live => lane.prompt_len.saturating_sub(lane.committed.max(lane.prefill_end())),
    };
    tail + lane.tokens_left()
}

/// No further than the request wants tokens.
fn draw_overshoot(lane: &Lane, act: Act, below: &mut Below<'_>) -> u16 {
    let left = grantable(lane).saturating_sub(act.grant.into());
    match act.grant > 0 && !lane.is_host() && below(2) == 0 {
        true => below(left.min(8) + 1) as u16,
        false => 0,
    }
}

fn draw_grant(lane: &Lane, below: &mut Below<'_>) -> u16 {
    let left = grantable(lane);
    match lane.is_host() {
        true => 1,
        false => (1 + below(left.clamp(1, 7))).min(left) as u16,
    }
}

/// Takes the decodes out whose prefill the budget will cut (T-54).
fn cut_decodes(acts: &mut [(usize, Act)], budget: u32) {
    let mut left = budget as usize;
    for (_, act) in acts {
        let take = act.prefill.min(left);
        left -= take;
        if take < act.prefill {
            act.grant = 0;
        }
    }
}
