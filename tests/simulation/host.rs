//! A host that plans and calls at random, from what the model knows.
//!
//! It aims at the interesting places: few texts with long common beginnings, leases that are held for long, plans that are a little
//! too large, lanes that stop and come again. Now and then one thing of a plan is spoiled; the model says what must come of it.

mod calls;

use std::collections::BTreeSet;

use ictus::record::SamplingParams;
use ictus::record::constant::{sampling, sampling_flag, tick_flag};
use ictus::record::view::Plain;
use ictus::runtime::RuntimeError;

use super::model::{Model, Target};
use super::plan::{Admit, BadRef, Plan};
use super::random::Random;
use super::runtime::Planned;
use super::world::{Action, Tick};

/// Never the tag of a lane.
const STRANGER: u64 = 0xDEAD_BEEF;
const LANES_MAX: usize = 12;

pub(crate) struct Host {
    random: Random,
    /// Long texts that everything starts like.
    texts: Vec<Vec<u32>>,
    next_tag: u64,
    /// The last plan did not fit.
    pub(crate) crowded: bool,
    /// How often a step is made to fail, one in so many ticks; 0 is never.
    faults: usize,
}

/// The records of a plan for one lane that is being drafted.
struct Stand {
    tag: u64,
    stands: usize,
    prefill_end: usize,
    host: bool,
    finished: bool,
    row: Option<u64>,
}

impl Host {
    pub(crate) fn new(model: &Model, key: u64) -> Self {
        let mut random = Random::from_key(key);
        let (context, vocab) = (model.shape.context, model.shape.vocab as usize);
        let mut texts: Vec<Vec<u32>> =
            (0..2).map(|_| (0..context + 4).map(|_| random.below(vocab) as u32).collect()).collect();
        // A third one that leaves the first in its middle.
        let mut third = texts[0].clone();
        for token in third.iter_mut().skip(context / 2) {
            *token = random.below(vocab) as u32;
        }
        texts.push(third);
        let faults = *random.pick(&[0, 12, 40]);
        Self { random, texts, next_tag: 0, crowded: false, faults }
    }

    /// Nothing fails from now on.
    pub(crate) fn is_quiet(&mut self) {
        self.faults = 0;
    }

    /// Tags are opaque: 0 and large ones are as good as any.
    fn tag(&self, number: u64) -> u64 {
        number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.random.below(n) == 0
    }

    pub(crate) fn next(&mut self, model: &Model) -> Action {
        if self.one_in(2) {
            return match self.failure() {
                Some(planned) => Action::Failing(planned, self.call(model)),
                None => Action::Call(self.call(model)),
            };
        }
        Action::Tick(self.tick(model))
    }

    /// The plan that ends everything.
    pub(crate) fn last(&self, model: &Model) -> Tick {
        let mut plan = Plan::new(model.plan_seq.map_or(1, |last| last + 1));
        plan.retires = model
            .lanes
            .iter()
            .map(|lane| lane.tag)
            .chain(model.faulted.iter().copied())
            .map(|tag| (tag, false))
            .collect();
        Tick::quiet(plan)
    }

    fn tick(&mut self, model: &Model) -> Tick {
        let mut plan = self.plan(model);
        if self.one_in(4) {
            self.spoil(&mut plan, model);
        }
        let doom = match plan.decodes.first() {
            Some(&(tag, ..)) if self.faults > 0 && self.one_in(25) && model.lane(tag).is_some() => Some((tag, 3)),
            _ => None,
        };
        Tick {
            plan,
            yields: self.one_in(5),
            partial: self.one_in(6),
            trace: self.one_in(6),
            doom,
            fail: self.failure(),
        }
    }

    /// One thing that fails, now and then.
    fn failure(&mut self) -> Option<Planned> {
        if self.faults == 0 || !self.one_in(self.faults) {
            return None;
        }
        let mut planned = Planned::default();
        let error = *self.random.pick(&[
            RuntimeError::Fault(9),
            RuntimeError::Capacity,
            RuntimeError::Unsupported,
            RuntimeError::OutOfBoundary,
        ]);
        match self.random.below(8) {
            0..=2 => planned.step = Some((self.random.below(6) as u64, error)),
            3 | 4 => planned.page = Some(self.random.below(12) as u64),
            5 | 6 => planned.part = Some((self.random.below(3) as u64, error)),
            _ => planned.import_end = true,
        }
        // A copy that fails breaks a tick (T-79), which ends a world.
        if self.one_in(40) {
            planned.copy = Some(self.random.below(2) as u64);
        }
        Some(planned)
    }

    /// A legal plan, but for cells and slots.
    fn plan(&mut self, model: &Model) -> Plan {
        let mut plan = Plan::new(model.plan_seq.map_or(self.random.next() % 100, |last| last + 1));
        plan.max_decode = model.shape.batch as u32;
        if self.one_in(6) {
            plan.budget = self.random.below(12) as u32;
        }
        self.draft_retires(&mut plan, model);
        let leaving: BTreeSet<u64> = plan.retires.iter().map(|&(tag, _)| tag).collect();
        if self.random.below(3) > 0 && (!self.crowded || self.one_in(4)) {
            for _ in 0..self.random.below(4) {
                if model.lanes.len() + plan.admits.len() < LANES_MAX {
                    let admit = self.admit(model, &plan, &leaving);
                    plan.admits.push(admit);
                }
            }
        }
        self.draft_work(&mut plan, model, &leaving);
        if self.one_in(4) {
            plan.classes = *self.random.pick(&[0, 1, 2, 3, 4, 7, u64::MAX]);
            plan.max_evict = *self.random.pick(&[0, 8, 40, 200, u64::MAX]);
            plan.quota = *self.random.pick(&[0, 0, 20, 100, u64::MAX]);
        }
        if plan.admits.is_empty() && self.one_in(5) {
            plan.flags = tick_flag::DRAIN;
        }
        if self.one_in(8) {
            plan.flags |= tick_flag::CAPTURE_OK | 0x8000_0000; // T-6
        }
        self.random.shuffle(&mut plan.decodes);
        self.random.shuffle(&mut plan.retires);
        plan
    }

    fn draft_retires(&mut self, plan: &mut Plan, model: &Model) {
        for &tag in &model.faulted {
            if self.one_in(2) {
                plan.retires.push((tag, self.one_in(2)));
            }
        }
        for lane in &model.lanes {
            let odds = if lane.finished || self.crowded { 2 } else { 14 };
            if self.one_in(odds) {
                plan.retires.push((lane.tag, self.random.below(4) > 0));
            }
        }
    }

    fn new_tag(&mut self, model: &Model, plan: &Plan, leaving: &BTreeSet<u64>) -> u64 {
        // A faulted tag may come again, a new one always.
        let again = model.faulted.iter().copied().find(|tag| !leaving.contains(tag));
        match again.filter(|tag| plan.admits.iter().all(|admit| admit.tag != *tag)) {
            Some(tag) if self.one_in(3) => tag,
            _ => {
                self.next_tag += 1;
                self.tag(self.next_tag - 1)
            }
        }
    }

    fn admit(&mut self, model: &Model, plan: &Plan, leaving: &BTreeSet<u64>) -> Admit {
        let tag = self.new_tag(model, plan, leaving);
        let free: Vec<_> =
            model.leases.iter().filter(|lease| plan.admits.iter().all(|admit| admit.seed != lease.handle)).collect();
        let (mut prompt, mut seed, mut class) = (self.text(model), 0, self.random.below(2) as u8);
        if !free.is_empty() && self.random.below(4) > 0 {
            let lease = *self.random.pick(&free);
            seed = lease.handle;
            class = if matches!(lease.target, Target::Bare(_)) { 0 } else { lease.class };
            prompt = lease.prefix.clone();
            if !self.one_in(3) || !model.shape.cuts {
                self.grow(&mut prompt, model);
            }
        }
        prompt.truncate(model.shape.context);
        let mode = *self.random.pick(&[
            sampling::GPU_GREEDY,
            sampling::GPU_GREEDY,
            sampling::GPU_GUMBEL,
            sampling::GPU_GUMBEL,
            sampling::HOST,
        ]);
        let speculates = model.shape.drafts > 0 && mode != sampling::HOST && self.random.below(4) > 0;
        let bias = match speculates || model.biases.is_empty() || self.random.below(4) > 0 {
            true => 0,
            false => self.random.pick(&model.biases).0,
        };
        let free: Vec<u32> =
            model.grammars.iter().filter(|known| !known.borrowed && !known.marked).map(|known| known.handle).collect();
        let wants = mode != sampling::HOST && !speculates && !free.is_empty() && self.random.below(3) > 0;
        let grammar = if wants { *self.random.pick(&free) } else { 0 };
        // What was said before: mostly nothing, or the beginning of a sentence.
        let begun: [&[u32]; 7] = [&[], &[], &[0], &[3], &[8], &[6, 0], &[5, 7]];
        let said = if grammar > 0 && seed == 0 { *self.random.pick(&begun) } else { &[] };
        prompt.truncate(model.shape.context - said.len());
        prompt.extend(said);
        let mut params = self.params();
        if grammar > 0 && mode == sampling::GPU_GREEDY && self.one_in(12) {
            // What the grammar forbids becomes the best there is.
            params.repeat_penalty = -1.0;
        }
        Admit {
            tag,
            bad_ref: None,
            seed,
            mode,
            bias,
            params,
            base: if self.one_in(10) { u64::MAX - 1 } else { self.random.next() },
            grammar,
            grammar_replay: said.len() as u32,
            slot: u32::from(speculates),
            class,
            logprobs: if !speculates && self.one_in(4) { *self.random.pick(&[1, 2, 5, 25]) } else { 0 },
            replay: if self.one_in(4) { self.random.below(prompt.len()) as u32 } else { 0 },
            prompt,
        }
    }

    fn params(&mut self) -> SamplingParams {
        let mut params = SamplingParams::zeroed();
        params.temperature = *self.random.pick(&[0.0, 0.7, 8.0, 8.0]);
        params.top_p = *self.random.pick(&[1.0, 0.9, 0.0]);
        params.top_k = *self.random.pick(&[0, 0, 1, 20]);
        params.min_p = *self.random.pick(&[0.0, 0.05]);
        if self.one_in(4) {
            params.repeat_penalty = 1.3;
            params.freq_penalty = 0.2;
        }
        params.flags = if self.random.below(3) > 0 { sampling_flag::IGNORE_EOS } else { 0 };
        params
    }

    /// A few tokens more, mostly as one of the texts goes on.
    fn grow(&mut self, tokens: &mut Vec<u32>, model: &Model) {
        let text = self.random.pick(&self.texts).clone();
        for _ in 0..1 + self.random.below(6) {
            let next = match self.random.below(3) {
                0 => self.random.below(model.shape.vocab as usize) as u32,
                _ => text[tokens.len().min(text.len() - 1)],
            };
            tokens.push(next);
        }
    }

    /// Tokens that mostly begin as something that is known does; never empty.
    fn text(&mut self, model: &Model) -> Vec<u32> {
        let context = model.shape.context;
        let mut tokens = match self.random.below(6) {
            0 if !model.entries.is_empty() => self.random.pick(&model.entries).key.clone(),
            1 if !model.lanes.is_empty() => self.random.pick(&model.lanes).committed.clone(),
            _ => {
                let len =
                    if self.one_in(12) { context - self.random.below(3) } else { 1 + self.random.below(context / 2) };
                self.random.pick(&self.texts)[..len].to_vec()
            }
        };
        if tokens.is_empty() || self.one_in(2) {
            self.grow(&mut tokens, model);
        }
        tokens.truncate(context);
        tokens
    }

    /// Commits, prefills and decodes for the lanes that stay (T-49, T-54).
    fn draft_work(&mut self, plan: &mut Plan, model: &Model, leaving: &BTreeSet<u64>) {
        let mut stands: Vec<Stand> = Vec::new();
        for lane in model.lanes.iter().filter(|lane| !leaving.contains(&lane.tag)) {
            stands.push(Stand {
                tag: lane.tag,
                stands: lane.prefilled,
                prefill_end: lane.prefill_end,
                host: lane.is_host(),
                finished: lane.finished,
                row: lane.row,
            });
        }
        for admit in &plan.admits {
            let seeded = model.lease(admit.seed).map_or(0, |lease| lease.prefix.len());
            stands.push(Stand {
                tag: admit.tag,
                stands: seeded,
                prefill_end: (admit.prompt.len() - admit.replay as usize).max(seeded),
                host: admit.mode == sampling::HOST,
                finished: false,
                row: None,
            });
        }
        self.random.shuffle(&mut stands);
        let mut budget = plan.budget as usize;
        for mut lane in stands {
            let rest = lane.prefill_end - lane.stands;
            if (rest > 0 || self.one_in(20)) && self.random.below(5) > 0 {
                let count = if self.random.below(3) > 0 { rest } else { self.random.below(rest + 1) };
                plan.prefills.push((lane.tag, lane.stands as u32, count as u32));
                let taken = count.min(budget);
                budget -= taken;
                lane.stands += taken;
            }
            if let Some(nonce) = lane.row
                && self.random.below(4) > 0
            {
                plan.commits.push((lane.tag, self.random.below(model.shape.vocab as usize) as u32, nonce));
                lane.row = None;
            }
            let ready = lane.stands >= lane.prefill_end && !lane.finished && lane.row.is_none();
            if ready && plan.decodes.len() < model.shape.batch && self.random.below(6) > 0 {
                let grant = if lane.host { 1 } else { *self.random.pick(&[0, 1, 1, 2, 3, 8, 30]) };
                plan.decodes.push((lane.tag, grant, *self.random.pick(&[0, 0, 3])));
            }
        }
    }

    /// Changes one thing, mostly for the worse.
    fn spoil(&mut self, plan: &mut Plan, model: &Model) {
        let vocab = model.shape.vocab;
        let lane = (!model.lanes.is_empty()).then(|| self.random.pick(&model.lanes).clone());
        let tag = lane.as_ref().map_or(STRANGER, |lane| lane.tag);
        let which = self.random.below(plan.admits.len().max(1));
        match self.random.below(22) {
            0 => plan.seq = model.plan_seq.unwrap_or(plan.seq),
            1 => plan.max_decode = model.shape.batch as u32 + 1,
            2 => plan.max_decode = self.random.below(3) as u32,
            3 => plan.retires.push((*self.random.pick(&[STRANGER, tag]), true)),
            4 => plan.prefills.push((*self.random.pick(&[STRANGER, tag]), 0, 1)),
            5 => plan.decodes.push((*self.random.pick(&[STRANGER, tag]), 1, 0)),
            6 => {
                let nonce = lane.and_then(|lane| lane.row).unwrap_or(1) + self.random.below(2) as u64;
                plan.commits.push((*self.random.pick(&[STRANGER, tag, tag]), *self.random.pick(&[0, vocab]), nonce));
            }
            7 => plan.struct_size = *self.random.pick(&[0, 151, 152]),
            8 => plan.flags |= tick_flag::DRAIN,
            9 => plan.budget = self.random.below(4) as u32,
            10 => {
                if let Some(prefill) = plan.prefills.first_mut() {
                    prefill.1 += 1;
                }
            }
            11 => {
                if let Some(prefill) = plan.prefills.first_mut() {
                    prefill.2 += 1 + self.random.below(40) as u32;
                }
            }
            12 => {
                if let Some(decode) = plan.decodes.first_mut() {
                    decode.1 = *self.random.pick(&[0, 2, 500]);
                }
            }
            13 => {
                if let Some(&commit) = plan.commits.first() {
                    plan.commits.push(commit);
                }
            }
            _ => {
                if plan.admits.is_empty() {
                    let leaving = plan.retires.iter().map(|retire| retire.0).collect();
                    let admit = self.admit(model, plan, &leaving);
                    plan.admits.push(admit);
                }
                let which = which.min(plan.admits.len() - 1);
                self.spoil_admit(&mut plan.admits[which], model);
            }
        }
    }

    fn spoil_admit(&mut self, admit: &mut Admit, model: &Model) {
        let vocab = model.shape.vocab;
        match self.random.below(14) {
            0 => {
                admit.bad_ref =
                    Some(*self.random.pick(&[BadRef::Generation, BadRef::Ring, BadRef::Slot, BadRef::Count]))
            }
            1 => admit.prompt.push(vocab),
            2 if admit.slot == 0 => admit.mode = 3,
            3 => admit.replay = admit.prompt.len() as u32,
            4 => admit.slot = 2,
            // With a strategy it would be a matter of certificates.
            5 if admit.slot == 0 => admit.grammar = 1,
            6 => admit.grammar_replay = 1,
            7 => admit.bias = 9999,
            8 => admit.seed = self.random.below(model.leases.len() + 60) as u64,
            9 => admit.class ^= 1,
            10 => admit.prompt.clear(),
            11 => admit.prompt.resize(model.shape.context + 1 + self.random.below(2), 0),
            12 => admit.tag = model.lanes.first().map_or(admit.tag, |lane| lane.tag),
            _ => {
                if let Some(token) = admit.prompt.first_mut() {
                    *token = (*token + 1) % vocab;
                }
            }
        }
    }
}
