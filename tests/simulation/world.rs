//! The executor and the model side by side: every call goes to both, and everything that can be seen is compared.

use std::ffi::c_void;

use ictus::engine::Engine;
use ictus::engine::StrategyBuilder;
use ictus::executor::Executor;
use ictus::record::constant::{fault, op_state, shed_kind, tick_flag};
use ictus::record::{CacheKey, Status, TokenRange};
use ictus::ring::Rings;
use ictus::runtime::Runtime;
use ictus::testing::{Events, Harness, register_strategy};

use super::model::{
    Answer, Call, Candidate, Emit, Envelope, HEADER, LANGUAGES, Language, Lease, Loss, Model, Predicted, Target,
    checksum, digest, u64_at,
};
use super::plan::Plan;
use super::runtime::{AheadCounts, Planned, SimRuntime};
use super::shape::Shape;

/// A plan, and what happens while it runs.
#[derive(Clone, Debug)]
pub(crate) struct Tick {
    pub(crate) plan: Plan,
    /// The yield word is up.
    pub(crate) yields: bool,
    /// The host listens to single tokens.
    pub(crate) partial: bool,
    /// A refusal is tried twice and must leave no trace.
    pub(crate) trace: bool,
    /// A lane whose next decode record faults, and the code.
    pub(crate) doom: Option<(u64, u32)>,
    /// What of the runtime will fail.
    pub(crate) fail: Option<Planned>,
}

impl Tick {
    pub(crate) fn quiet(plan: Plan) -> Self {
        Self { plan, yields: false, partial: false, trace: false, doom: None, fail: None }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    Call(Call),
    /// A call while something of the runtime fails.
    Failing(Planned, Call),
    Tick(Tick),
}

/// What was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    /// Calls, plans, and the tokens of lanes.
    pub(crate) events: usize,
    pub(crate) ticks: usize,
    pub(crate) calls: usize,
    pub(crate) refused: usize,
    pub(crate) replanned: usize,
    pub(crate) admitted: usize,
    pub(crate) seeded: usize,
    pub(crate) takeovers: usize,
    pub(crate) adopted: usize,
    pub(crate) tokens: usize,
    pub(crate) rows: usize,
    pub(crate) faults: usize,
    pub(crate) finished: usize,
    pub(crate) chunks: usize,
    pub(crate) losses: usize,
    pub(crate) exports: usize,
    pub(crate) hits: usize,
    pub(crate) proposed: usize,
    pub(crate) accepted: usize,
    /// Operations of state that ended well, failed, were cancelled.
    pub(crate) ops: [usize; 3],
    pub(crate) demoted: usize,
    pub(crate) ahead: AheadCounts,
}

impl std::ops::AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        self.events += other.events;
        self.ticks += other.ticks;
        self.calls += other.calls;
        self.refused += other.refused;
        self.replanned += other.replanned;
        self.admitted += other.admitted;
        self.seeded += other.seeded;
        self.takeovers += other.takeovers;
        self.adopted += other.adopted;
        self.tokens += other.tokens;
        self.rows += other.rows;
        self.faults += other.faults;
        self.finished += other.finished;
        self.chunks += other.chunks;
        self.losses += other.losses;
        self.exports += other.exports;
        self.hits += other.hits;
        self.proposed += other.proposed;
        self.accepted += other.accepted;
        self.ops.iter_mut().zip(other.ops).for_each(|(sum, more)| *sum += more);
        self.demoted += other.demoted;
        self.ahead.picked += other.ahead.picked;
        self.ahead.vain += other.ahead.vain;
        self.ahead.again += other.ahead.again;
        self.ahead.taken_back += other.ahead.taken_back;
    }
}

impl Stats {
    /// What every long run must reach.
    pub(crate) fn shares(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("a tick", self.ticks),
            ("a refusal", self.refused),
            ("a plan that does not fit", self.replanned),
            ("an admit", self.admitted),
            ("a token", self.tokens),
            ("a row", self.rows),
            ("a fault", self.faults),
            ("a finish", self.finished),
            ("a chunk", self.chunks),
        ]
    }
}

/// What differs, in words.
pub(crate) type Checked = Result<(), String>;

fn same<T: PartialEq + std::fmt::Debug>(what: &str, engine: T, model: T) -> Checked {
    match engine == model {
        true => Ok(()),
        false => Err(format!("{what}\n  engine: {engine:?}\n  model:  {model:?}")),
    }
}

pub(crate) struct World {
    h: Harness<Executor<SimRuntime>>,
    pub(crate) model: Model,
    pub(crate) stats: Stats,
    /// Sequence, generation as the model has it, generation as the engine says it: hosts only ever compare them.
    generations: Vec<(u64, u64, u64)>,
    /// Exports that were taken: what the model sealed, and what the engine sealed. Over a fake runtime the two are the same.
    exports: Vec<(Vec<u8>, Vec<u8>)>,
    /// One failure is planned for the whole world, and none besides.
    planned_once: bool,
}

fn token_range((start, end): (u64, u64)) -> TokenRange {
    TokenRange { start, end }
}

/// What the engine calls the generation that the model calls `generation`.
fn generation_of(known: &[(u64, u64, u64)], seq: u64, generation: u64) -> u64 {
    known.iter().find(|known| (known.0, known.1) == (seq, generation)).map_or(u64::MAX, |known| known.2)
}

/// The bytes that the engine made where the model made these; a text that the host sealed is the same for both.
fn as_the_engine_has_it(exports: &[(Vec<u8>, Vec<u8>)], envelope: &Envelope) -> Vec<u8> {
    let known = exports.iter().find(|(model, _)| *model == *envelope.pristine);
    envelope.spoil.apply(known.map_or(&envelope.pristine, |(_, engine)| engine))
}

/// Collects what the partial callback is told.
unsafe extern "C" fn collect(user: *mut c_void, tag: u64, tokens: *const u32, n: u32) {
    // SAFETY: `user` is the list that `World::run` keeps until the tick has returned, and nobody else uses it meanwhile.
    let list = unsafe { &mut *user.cast::<Vec<(u64, u32)>>() };
    assert_eq!(n, 1, "T-107: one token at a time");
    // SAFETY: the engine promises `n` readable ids for the call.
    list.push((tag, unsafe { *tokens }));
}

impl World {
    pub(crate) fn new(shape: &Shape) -> Self {
        let mut h = Harness::with_engine(shape.engine());
        h.next_seq = 0;
        if shape.drafts > 0 {
            // Without gate and adaption, what is drafted follows from the tokens alone.
            let params = format!("throughput_gate=0,adaptive=0,yield_rounds=1000000000,max_draft={}", shape.drafts);
            let strategy = StrategyBuilder::new("prompt-lookup").config(&params);
            let granted = register_strategy(&mut h, &strategy).map(|(slot, _)| slot);
            assert_eq!(granted, Ok(1), "R-52: the first slot");
        }
        Self {
            h,
            model: Model::new(shape.clone()),
            stats: Stats::default(),
            generations: vec![],
            exports: vec![],
            planned_once: false,
        }
    }

    pub(crate) fn apply(&mut self, action: &Action) -> Checked {
        self.stats.events += 1;
        match action {
            Action::Call(call) | Action::Failing(_, call) => {
                self.stats.calls += 1;
                let planned = if let Action::Failing(planned, _) = action { Some(*planned) } else { None };
                self.plan_failures(planned);
                let answer = self.model.call(call);
                if let (Call::Acquire { .. }, Answer::Number(_)) = (call, &answer) {
                    self.stats.hits += 1;
                }
                let engine = self.call(call);
                self.compare_answers(engine, answer)?;
                self.compare_counters()
            }
            Action::Tick(tick) => self.tick(tick),
        }
    }

    /// Nothing may be left once everything is gone.
    pub(crate) fn finish(mut self, last: Tick) -> Result<Stats, String> {
        if self.model.broken {
            return Ok(self.stats);
        }
        while let Some(op) = self.model.running() {
            self.apply(&Action::Call(Call::Cancel { op }))?;
        }
        self.tick(&last)?;
        for lease in self.model.leases.clone() {
            self.apply(&Action::Call(Call::Release { lease: lease.handle }))?;
        }
        // Expired ones go with the next plan.
        let mut empty = last;
        empty.plan = Plan::new(self.model.plan_seq.map_or(1, |seq| seq + 1));
        self.tick(&empty)?;
        for bare in self.model.bares.clone() {
            self.apply(&Action::Call(Call::Free { seq: bare.seq }))?;
        }
        self.apply(&Action::Call(Call::Evict { classes: 7, quota: 0, max: u64::MAX, target: u64::MAX }))?;
        same("sequences in the end", self.h.engine.primitives().live_sequences(), 0)?;
        same("cells in the end", self.h.engine.primitives().mem_counters().cells_used, 0)?;
        same("entries in the end", self.model.entries.len(), 0)?;
        Ok(self.stats)
    }

    /// Something fails once, whenever it comes to that.
    pub(crate) fn plan_once(&mut self, planned: Planned) {
        self.plan_failures(Some(planned));
        self.planned_once = true;
    }

    /// What was planned before is forgotten, on both sides.
    fn plan_failures(&mut self, planned: Option<Planned>) {
        if self.planned_once {
            return;
        }
        let planned = planned.unwrap_or_default();
        self.h.engine.primitives_mut().planned = planned;
        self.model.planned = planned;
    }

    /// Answers are the same, and bytes that leave are the same but for what a network computed.
    fn compare_answers(&mut self, engine: Answer, model: Answer) -> Checked {
        let (Answer::Bytes(Some(engine)), Answer::Bytes(Some(model))) = (&engine, &model) else {
            return same("the answer", engine, model);
        };
        if self.model.shape.tiny.is_none() || model.is_empty() {
            same("the bytes of an export", engine, model)?;
        } else {
            same("the length of an export", engine.len(), model.len())?;
            same("its header", &engine[..HEADER - 8], &model[..HEADER - 8])?;
            same("its checksum", Some(u64_at(engine, HEADER - 8)), checksum(engine))?;
            let known = self.exports.iter().find(|(before, _)| before == model);
            if let Some((_, before)) = known {
                // The same tokens give the same bits, whatever way they came about.
                same("the payload of the same tokens", engine == before, true)?;
            } else {
                self.exports.push((model.clone(), engine.clone()));
            }
        }
        Ok(())
    }

    fn tick(&mut self, tick: &Tick) -> Checked {
        self.h.rings.set_yield(tick.yields);
        self.plan_failures(tick.fail);
        if let Some((tag, code)) = tick.doom
            && self.h.engine.inject_fault(tag, code)
            && let Some(lane) = self.model.lanes.iter_mut().find(|lane| lane.tag == tag)
        {
            lane.doomed = Some(code);
        }
        let sweeps = self.model.would_sweep();
        let leases = self.model.leases.clone();
        let exported = self.model.exported_tokens();
        let predicted = self.model.tick(&tick.plan, tick.yields);
        let mut partial: Vec<(u64, u32)> = Vec::new();
        let (mut record, arena) = tick.plan.build(&mut self.h.rings);
        if tick.partial {
            record.flags |= tick_flag::PARTIAL_EMITS;
            record.on_partial_emit = Some(collect);
            record.partial_emit_user = (&raw mut partial).cast();
        }
        let refused = predicted.as_ref().err().is_some_and(|status| *status != Status::Fatal);
        let answered = match tick.trace && refused && !sweeps {
            true => Err(self.h.refused_record(&record, &arena)),
            false => self.h.tick_record(&record, &arena),
        };
        match (answered, predicted) {
            (Err(engine), Err(model)) => {
                self.stats.refused += 1;
                self.stats.replanned += usize::from(model == Status::NeedsReplan);
                same("the status of the plan", engine, model)?;
                self.compare_counters()
            }
            (Ok(events), Ok(predicted)) => {
                // A plan of the size before the callback was added has none.
                if tick.partial && record.struct_size as usize == size_of_val(&record) {
                    same("partial tokens (T-105, T-107)", &partial, &predicted.partial)?;
                }
                self.count(tick, (&leases, exported), &predicted);
                self.compare_events(&tick.plan, &events, &predicted)?;
                self.compare_counters()?;
                self.compare_sequences()
            }
            (Ok(_), Err(model)) => Err(format!("the engine accepts what the model refuses with {model}")),
            (Err(engine), Ok(_)) => Err(format!("the engine refuses with {engine} what the model accepts")),
        }
    }

    fn count(&mut self, tick: &Tick, (leases, exported): (&[Lease], u64), predicted: &Predicted) {
        let stats = &mut self.stats;
        stats.ticks += 1;
        stats.ahead = self.h.engine.primitives().ahead;
        for (state, count) in [op_state::DONE, op_state::FAILED, op_state::CANCELLED].into_iter().zip(&mut stats.ops) {
            *count += predicted.completions.iter().filter(|ended| ended.1 == state).count();
        }
        stats.demoted += usize::from(self.model.seqs.iter().any(|seq| !seq.holes.is_empty()));
        stats.admitted += predicted.admitted.len();
        stats.seeded += tick.plan.admits.iter().filter(|admit| admit.seed != 0).count();
        let adopts = |seed| leases.iter().any(|lease| lease.handle == seed && matches!(lease.target, Target::Bare(_)));
        stats.adopted += tick.plan.admits.iter().filter(|admit| adopts(admit.seed)).count();
        let admitted = |tag| predicted.admitted.contains(&tag);
        stats.takeovers += predicted.losses.iter().filter(|loss| loss.bytes > 0 && admitted(loss.tag)).count();
        let emitted: usize = predicted.emits.iter().map(|emit| emit.tokens.len()).sum();
        let fed: usize = tick.plan.prefills.iter().map(|prefill| prefill.2 as usize).sum();
        stats.tokens += emitted;
        stats.events += emitted + fed.min(tick.plan.budget as usize);
        stats.rows += predicted.emits.iter().filter(|emit| emit.row.is_some()).count();
        stats.finished += predicted.emits.iter().filter(|emit| emit.finish != 0).count();
        stats.faults += predicted.faults.len();
        stats.proposed += predicted.emits.iter().map(|emit| emit.drafts.0 as usize).sum::<usize>();
        stats.accepted += predicted.emits.iter().map(|emit| emit.drafts.1 as usize).sum::<usize>();
        stats.chunks += predicted.chunks();
        stats.losses += predicted.losses.len() - predicted.chunks();
        stats.exports += usize::from(self.model.exported_tokens() > exported);
    }

    fn compare_events(&self, plan: &Plan, events: &Events, predicted: &Predicted) -> Checked {
        same("T-147: the number", events.plan_seq, plan.seq)?;
        let admitted: Vec<u64> = events.admit_results.iter().map(|result| result.lane_tag).collect();
        same("T-82: admitted", &admitted, &predicted.admitted)?;
        for (result, admit) in events.admit_results.iter().zip(&plan.admits) {
            let granted = (result.status, result.reject_code, result.cert_id, result.granted_class);
            let certificate = if admit.slot == 0 { (1, 0, 0, 2) } else { (1, 0, 1, 1) };
            same("T-82: what an admit is granted", granted, certificate)?;
        }
        let mut faults: Vec<(u64, u32)> = events.faults.iter().map(|fault| (fault.lane_tag, fault.code)).collect();
        let mut expected = predicted.faults.clone();
        faults.sort_unstable();
        expected.sort_unstable();
        same("T-133: faults", faults, expected)?;
        let detail = |code| if code == fault::OOM_TENTATIVE { 2 } else { 0 };
        let details = events.faults.iter().all(|fault| fault.detail == detail(fault.code));
        same("T-134, X-71: pages are the one detail", details, true)?;
        let ended: Vec<(u64, u8, u32, u64)> =
            events.op_completions.iter().map(|end| (end.op, end.state, end.error, end.bytes_moved)).collect();
        same("S-89, T-144: operations that ended", &ended, &predicted.completions)?;
        self.compare_emits(events, predicted)?;
        self.compare_shed(events, predicted)?;
        let logprobs: Vec<(u64, f32, Vec<u32>)> = events
            .logprobs
            .iter()
            .map(|record| (record.lane_tag, record.logprob, record.top_ids[..record.n_top as usize].to_vec()))
            .collect();
        same("T-122: log-probabilities", &logprobs, &predicted.logprobs)?;
        same("T-142: status", events.tick_status, predicted.status())?;
        self.compare_memory(events)
    }

    fn compare_emits(&self, events: &Events, predicted: &Predicted) -> Checked {
        let mut emits = Vec::new();
        for emit in &events.emits {
            let row = match emit.logits_row.generation {
                0 => None,
                generation => {
                    let mut row = Vec::new();
                    self.h.rings.read_logits_row(&emit.logits_row, &mut row).map_err(|error| error.to_string())?;
                    Some((generation, row))
                }
            };
            // A lane of a host has no tokens and no reference; any other has one, of no token too (T-140).
            let tokens = match emit.token_ref.generation {
                0 => vec![],
                _ => self.h.rings_tokens(&emit.token_ref),
            };
            same("T-140: the count of the emit", emit.n_tokens as usize, tokens.len())?;
            let drafts = (emit.spec.proposed, emit.spec.accepted, emit.spec.cert_id_in_effect);
            emits.push(Emit { tag: emit.lane_tag, tokens, finish: emit.finish, row, drafts });
        }
        same("T-140: emits", &emits, &predicted.emits)
    }

    fn compare_shed(&self, events: &Events, predicted: &Predicted) -> Checked {
        let mut losses: Vec<Loss> = Vec::new();
        for entry in &events.shed_entries {
            losses.push(Loss { tag: entry.lane_tag, kind: entry.kind, bytes: entry.bytes, tokens: entry.tokens });
        }
        let mut expected = predicted.losses.clone();
        losses.sort_unstable();
        expected.sort_unstable();
        same("T-143: shed entries", &losses, &expected)?;
        let of = |kind| losses.iter().filter(move |loss| loss.kind == kind);
        same("T-143: chunks", events.shed_chunks as usize, of(shed_kind::PREFILL_CHUNK).count())?;
        same("T-143: evictions", events.evictions as usize, of(shed_kind::CACHE_EVICTION).count())?;
        same("T-143: bytes", events.bytes_evicted, of(shed_kind::CACHE_EVICTION).map(|loss| loss.bytes).sum())
    }

    /// T-145.
    fn compare_memory(&self, events: &Events) -> Checked {
        let (mem, model, shape) = (events.mem, &self.model, &self.model.shape);
        let cells = model.cells_used();
        let engine = (
            mem.allocated_bytes,
            mem.host_retained_bytes,
            mem.pool_blocks_total,
            mem.pool_blocks_used,
            mem.pool_bytes_evictable,
            mem.tentative_bytes,
        );
        let page = shape.page as u64;
        let expected = (
            cells * shape.bytes_per_token.max(1),
            model.exported_tokens() * model.lossless_bytes() + model.op_bytes(),
            shape.cells / page,
            cells / page,
            model.evictable_bytes(),
            0,
        );
        same("T-145: memory", engine, expected)
    }

    /// What can be asked between ticks at any time.
    fn compare_counters(&self) -> Checked {
        let engine = &self.h.engine;
        same("cells", engine.primitives().mem_counters().cells_used, self.model.cells_used())?;
        same("sequences of the runtime", engine.primitives().live_sequences(), self.model.seqs.len())?;
        same("live sequences", engine.live_sequences(), self.model.live_sequences())?;
        same("cached bytes in the pool (S-48)", engine.cache_bytes(), self.model.resident_bytes())?;
        same("exported tokens (S-48)", engine.cache_exported_tokens(), self.model.exported_tokens())?;
        for entry in self.model.entries.iter().take(3) {
            let span = [entry.key.as_slice(), &[1]].concat();
            let lengths: Vec<u64> =
                self.model.default_candidates(&span).iter().map(|candidate| candidate.len).collect();
            same("match lengths (S-46)", engine.match_lengths(&span), lengths)?;
        }
        engine.audit().map_err(|error| error.to_string())?;
        engine.primitives().audit()
    }

    /// Every sequence holds what the model says, under the handle it says.
    fn compare_sequences(&self) -> Checked {
        let engine = &self.h.engine;
        for lane in &self.model.lanes {
            same("the sequence of a lane", engine.lane_sequence(lane.tag), Some(lane.seq))?;
            same("committed", engine.lane_committed(lane.tag), Some(lane.committed.as_slice()))?;
            let cost = engine.lane_cost(lane.tag).unwrap_or_default();
            let engine_cost = (
                cost.seeded_tokens,
                cost.prefill_tokens,
                cost.replayed_tokens,
                cost.decoded_tokens,
                cost.answered_steps,
            );
            same("what a lane has cost", engine_cost, lane.cost.counts(lane))?;
            same("E-1", self.model.seq(lane.seq).tokens.len(), lane.held())?;
        }
        for &tag in &self.model.faulted {
            same("T-133: a faulted lane is gone", engine.lane_committed(tag), None)?;
        }
        for seq in &self.model.seqs {
            same("R-7: the length of a sequence", engine.primitives().seq_len(seq.handle), seq.tokens.len() as u64)?;
            if self.model.shape.tiny.is_some() {
                same("pages copied (S-96)", engine.primitives().page_copies(seq.handle), seq.copies)?;
            }
            if let Some(contents) = engine.primitives().contents(seq.handle) {
                same("contents of a sequence", contents, seq.tokens.as_slice())?;
            }
        }
        Ok(())
    }

    /// A broken engine answers `Fatal` to everything that could touch the runtime (T-136).
    pub(crate) fn apply_broken(&mut self, action: &Action) -> Checked {
        match action {
            Action::Tick(tick) => {
                let (record, arena) = tick.plan.build(&mut self.h.rings);
                same("T-136", self.h.tick_record(&record, &arena).map(|_| ()), Err(Status::Fatal))
            }
            // What no call of the runtime answers is not refused.
            Action::Call(Call::Pump | Call::Take { .. }) | Action::Failing(_, Call::Pump | Call::Take { .. }) => Ok(()),
            Action::Call(call) | Action::Failing(_, call) => {
                same("T-136", self.call(call), Answer::Refused(Status::Fatal))
            }
        }
    }

    fn call(&mut self, call: &Call) -> Answer {
        let engine = &mut self.h.engine;
        let done = |result: Result<(), Status>| result.map_or_else(Answer::Refused, |()| Answer::Done);
        let number = |result: Result<u64, Status>| result.map_or_else(Answer::Refused, Answer::Number);
        match call {
            Call::Match { space, span, adapter } => match match *adapter {
                None => engine.space_match(*space, span, &[]),
                Some(adapter) => engine.space_match_adapted(*space, span, &[], adapter),
            }
            .map(|_| ())
            {
                Err(status) => Answer::Refused(status),
                Ok(()) => Answer::Candidates(
                    engine
                        .match_candidates()
                        .iter()
                        .map(|candidate| Candidate {
                            len: candidate.prefix_len,
                            digest: candidate.provenance_digest,
                            taint: candidate.taint_bits,
                            tier: candidate.resident_tier,
                        })
                        .collect(),
                ),
            },
            Call::Acquire { span, n, class, adapter: None } => number(engine.seed_acquire(span, *n, *class)),
            Call::Acquire { span, n, class, adapter: Some(adapter) } => {
                number(engine.seed_acquire_adapted(span, *n, *class, *adapter))
            }
            Call::AdapterLoad { name } => number(engine.adapter_load(&self.model.shape.adapter_path(*name))),
            Call::AdapterUnload { adapter } => done(engine.adapter_unload(*adapter)),
            Call::AdapterBind { tag, adapter } => done(engine.adapter_bind(*tag, *adapter)),
            Call::DefaultLoad { name } => done(engine.lora_load(&self.model.shape.adapter_path(*name))),
            Call::DefaultUnload => done(engine.lora_unload()),
            Call::SequenceAdapt { seq, adapter } => done(engine.sequence_adapt(*seq, *adapter)),
            Call::Release { lease } => done(engine.seed_release(*lease)),
            Call::Adopt { seq, tokens } => number(engine.seed_adopt(*seq, tokens)),
            Call::Fork { parent, flags } => number(engine.seq_fork(*parent, *flags)),
            Call::Create => number(engine.create_sequence()),
            Call::Free { seq } => done(engine.free_sequence(*seq)),
            Call::Publish { seq, tokens } => done(engine.publish_sequence(*seq, tokens)),
            Call::Unpublish { tokens } => done(engine.unpublish(tokens)),
            Call::Evict { classes, quota, max, target } => number(engine.cache_evict(*classes, *quota, *max, *target)),
            Call::EvictEntries { keys } => {
                let mine = self.model.shape.identity(None);
                let keys: Vec<CacheKey> = keys
                    .iter()
                    .map(|(foreign, tokens)| CacheKey {
                        compat_key: if *foreign { [9; 32] } else { mine },
                        provenance_digest: digest(tokens),
                    })
                    .collect();
                done(engine.cache_evict_entries(&keys))
            }
            Call::BiasCreate { ids, addends } => number(engine.logit_bias_create(ids, addends).map(u64::from)),
            Call::BiasFree { bias } => done(engine.logit_bias_free(*bias)),
            Call::GrammarCreate { language } => {
                let Language { document, closed, .. } = LANGUAGES[*language];
                let made =
                    if closed { engine.grammar_create(document) } else { engine.grammar_create_structural(document) };
                number(made.map(u64::from))
            }
            Call::GrammarFree { grammar } => done(engine.grammar_free(*grammar)),
            Call::Trim { seq, space, len } => done(engine.space_trim(*seq, *space, *len)),
            Call::Size { seq, space, range, encoding } => {
                number(engine.space_export_size(*seq, *space, token_range(*range), *encoding).map(|size| {
                    let generation = self.model.seq(*seq).generation;
                    self.generations.retain(|known| (known.0, known.1) != (*seq, generation));
                    self.generations.push((*seq, generation, size.sizing_gen));
                    size.bytes
                }))
            }
            Call::Snapshot { seq, space, pos, dst, generation } => {
                let generation = generation_of(&self.generations, *seq, *generation);
                number(engine.space_snapshot(*seq, *space, *pos, *dst, generation))
            }
            Call::Demote { seq, space, range, encoding, dst, generation } => {
                let generation = generation_of(&self.generations, *seq, *generation);
                number(engine.space_demote(*seq, *space, token_range(*range), *encoding, *dst, generation))
            }
            Call::Promote { seq, space, range, sealed } => {
                let sealed = as_the_engine_has_it(&self.exports, sealed);
                number(engine.space_promote(*seq, *space, token_range(*range), &sealed))
            }
            Call::Restore { seq, space, sealed } => {
                let sealed = as_the_engine_has_it(&self.exports, sealed);
                number(engine.space_restore(*seq, *space, &sealed))
            }
            Call::Poll { op } => match engine.op_poll(*op) {
                Ok(op) => Answer::Op { state: op.state, error: op.error, moved: op.bytes_moved },
                Err(status) => Answer::Refused(status),
            },
            Call::Take { op } => Answer::Bytes(engine.take_op_output(*op)),
            Call::Cancel { op } => done(engine.op_cancel(*op)),
            Call::Pump => {
                engine.pump();
                Answer::Done
            }
            Call::Boundary { seq, space, cap } => number(engine.space_snapshot_boundary(*seq, *space, *cap)),
        }
    }
}
