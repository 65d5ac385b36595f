//! A worker that is killed at random moments, again and again, while many lanes run: no token is lost, changed or told twice, and nothing is
//! left behind. Once over the fake runtime, which reaches more states of the link, and once with a model, whose bits a fresh worker has to
//! compute again.
//!
//! `ICTUS_KILLS` says how many kills (20 in a usual run).

use core::ffi::c_void;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use ictus::Model;
use ictus::engine::{Engine, PlanBuilder};
use ictus::record::constant::{sampling, tick_flag};
use ictus::record::{LaneAdmit, TokenRef};
use ictus::ring::{MemoryRings, Rings};
use ictus::testing::Events;
use ictus::worker::client::{RemoteEngine, RemoteOptions};
use ictus::worker::socket::open_descriptors;

use crate::probe::fake;
use crate::random::Random;
use crate::recovery::kill;
use crate::{command, options};

pub(crate) fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(usual)
}

/// One request: what it asks, what it must get.
#[derive(Clone)]
pub(crate) struct Request {
    prompt: Vec<u32>,
    pub(crate) mode: u32,
    base: u64,
    expected: Vec<u32>,
    pub(crate) got: Vec<u32>,
    told: Vec<u32>,
    prefilled: usize,
    row: Option<(u32, u64)>,
}

impl Request {
    fn change(&self) -> impl Fn(&mut LaneAdmit) + 'static {
        let (mode, base) = (self.mode, self.base);
        move |admit| {
            admit.sampling = mode;
            admit.rng_counter_base = base;
            if mode == sampling::GPU_GUMBEL {
                admit.params.temperature = 0.8;
                admit.params.top_p = 0.9;
                admit.params.presence_penalty = 0.3;
            }
        }
    }
}

fn best(row: &[f32]) -> u32 {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).expect("logits") as u32
}

/// What runs in the worker, and what is asked of it.
pub(crate) struct Subject {
    /// As [`command`] names it.
    which: &'static str,
    /// Such an engine in this process.
    engine: Box<dyn Fn() -> Box<dyn Engine>>,
    vocab: usize,
    lanes: usize,
    /// Most tokens of a prompt and of an answer.
    prompt: usize,
    answer: usize,
    /// Requests that come again and again, so that no time goes into what they must get; none are all fresh.
    known: Vec<Request>,
}

impl Subject {
    /// 32 lanes over the fake runtime.
    pub(crate) fn fake() -> Self {
        let engine = || -> Box<dyn Engine> { Box::new(fake()) };
        Self {
            which: "fake",
            engine: Box::new(engine),
            vocab: 512,
            lanes: 32,
            prompt: 90,
            answer: 60,
            known: Vec::new(),
        }
    }

    /// Lanes of the model that comes with the repository.
    pub(crate) fn model(random: &mut Random) -> Self {
        let model = Model::open(crate::tiny(), &crate::tiny_options()).expect("the model");
        let vocab = model.tokenizer().vocab_size();
        let engine = move || -> Box<dyn Engine> { model.engine().expect("an engine") };
        let mut subject = Self {
            which: "tiny",
            engine: Box::new(engine),
            vocab,
            lanes: 12,
            prompt: 60,
            answer: 40,
            known: Vec::new(),
        };
        subject.known = (0..24).map(|_| subject.fresh(random, true)).collect();
        subject
    }

    fn request(&self, random: &mut Random, hosts: usize) -> Request {
        // Rows of HOST lanes have eight places.
        let may_be_host = hosts < 6;
        let fits = |request: &&Request| may_be_host || request.mode != sampling::HOST;
        let known: Vec<&Request> = self.known.iter().filter(fits).collect();
        if known.is_empty() { self.fresh(random, may_be_host) } else { (*random.pick(&known)).clone() }
    }

    fn fresh(&self, random: &mut Random, may_be_host: bool) -> Request {
        let prompt = (0..random.between(1, self.prompt)).map(|_| random.below(self.vocab) as u32).collect();
        let modes = [sampling::GPU_GREEDY, sampling::GPU_GUMBEL, sampling::HOST];
        let mode = if may_be_host { *random.pick(&modes) } else { *random.pick(&modes[..2]) };
        let mut request = Request {
            prompt,
            mode,
            base: random.next(),
            expected: Vec::new(),
            got: Vec::new(),
            told: Vec::new(),
            prefilled: 0,
            row: None,
        };
        request.expected = self.alone(&request, random.between(1, self.answer));
        request
    }

    /// What a request gets when it is alone, in process, undisturbed.
    fn alone(&self, request: &Request, tokens: usize) -> Vec<u32> {
        let (mut engine, mut rings, mut seq) = ((self.engine)(), MemoryRings::new(), 0);
        let mut tick = |rings: &mut MemoryRings, build: &dyn Fn(PlanBuilder) -> PlanBuilder| {
            seq += 1;
            let (plan, memory) = build(PlanBuilder::new(seq)).build();
            let view = engine.tick(&plan, &memory, rings).expect("accepted");
            *Events::of(&view).emit_for(1).expect("an emit")
        };
        let staged = rings.stage_prompt(&request.prompt);
        let len = request.prompt.len() as u32;
        let admit = |plan: PlanBuilder| plan.admit_with(request.change(), 1, staged).prefill(1, 0, len);
        let mut out: Vec<u32> = Vec::new();
        if request.mode != sampling::HOST {
            let emit = tick(&mut rings, &|plan| admit(plan).decode(1, tokens as u16));
            rings.read_tokens(&emit.token_ref, &mut out).expect("its tokens");
            return out;
        }
        let mut emit = tick(&mut rings, &|plan| admit(plan).decode(1, 1));
        loop {
            let mut logits = Vec::new();
            rings.read_logits_row(&emit.logits_row, &mut logits).expect("the row");
            let token = best(&logits);
            out.push(token);
            if out.len() == tokens {
                return out;
            }
            let nonce = emit.logits_row.generation;
            emit = tick(&mut rings, &|plan| plan.commit(1, token, nonce).decode(1, 1));
        }
    }
}

/// Collects what the callback is told.
unsafe extern "C" fn tell(user: *mut c_void, lane_tag: u64, tokens: *const u32, n_tokens: u32) {
    // SAFETY: the user of the plan is the list below, which nobody else touches while the tick runs.
    let told = unsafe { &mut *user.cast::<Vec<(u64, u32)>>() };
    // SAFETY: the engine hands over `n_tokens` readable ids, at least one.
    let tokens = unsafe { core::slice::from_raw_parts(tokens, n_tokens as usize) };
    told.extend(tokens.iter().map(|&token| (lane_tag, token)));
}

/// The host: as many requests at a time as its subject takes, until told to stop.
pub(crate) struct Run {
    subject: Subject,
    pub(crate) engine: RemoteEngine,
    /// A tick is under way.
    ticking: Arc<AtomicBool>,
    rings: MemoryRings,
    pub(crate) live: BTreeMap<u64, Request>,
    next_tag: u64,
    seq: u64,
    pub(crate) finished: u64,
    pub(crate) tokens: u64,
}

impl Run {
    pub(crate) fn new(subject: Subject, options: RemoteOptions) -> Self {
        let engine = RemoteEngine::start(command(subject.which), options).unwrap_or_else(|gone| panic!("{gone}"));
        let (rings, ticking) = (MemoryRings::new(), Arc::default());
        Self { subject, engine, ticking, rings, live: BTreeMap::new(), next_tag: 1, seq: 0, finished: 0, tokens: 0 }
    }

    /// One tick; `admits` says whether new requests come.
    pub(crate) fn step(&mut self, random: &mut Random, admits: bool) {
        self.seq += 1;
        let mut told: Vec<(u64, u32)> = Vec::new();
        let mut plan = PlanBuilder::new(self.seq).max_decode_lanes(self.subject.lanes as u32);
        for (&tag, request) in &self.live {
            plan = advance(plan, tag, request, random);
        }
        // One new request a tick, as requests come; every one is another way to be when a worker dies.
        if admits && self.live.len() < self.subject.lanes {
            let hosts = self.live.values().filter(|request| request.mode == sampling::HOST).count();
            let request = self.subject.request(random, hosts);
            let staged: TokenRef = self.rings.stage_prompt(&request.prompt);
            plan = plan.admit_with(request.change(), self.next_tag, staged);
            self.live.insert(self.next_tag, request);
            self.next_tag += 1;
        }
        let partial = random.below(2) == 0;
        if partial {
            plan = plan.flags(tick_flag::PARTIAL_EMITS).partial_emit(tell, (&raw mut told).cast());
        }
        let (plan, memory) = plan.build();
        self.ticking.store(true, Ordering::Release);
        let events = match self.engine.tick(&plan, &memory, &mut self.rings) {
            Ok(view) => Events::of(&view),
            Err(status) => panic!("tick {}: {status}; {:?}", self.seq, self.engine.gone()),
        };
        self.ticking.store(false, Ordering::Release);
        assert!(events.faults.is_empty(), "{:?}", events.faults);
        let prefills: Vec<_> = plan.prefills.elements::<ictus::record::LanePrefill>(&memory).expect("ours").collect();
        for prefill in prefills {
            self.live.get_mut(&prefill.lane_tag).expect("live").prefilled += prefill.token_count as usize;
        }
        self.take(&events, partial.then_some(told));
    }

    fn take(&mut self, events: &Events, told: Option<Vec<(u64, u32)>>) {
        for &(tag, token) in told.iter().flatten() {
            self.live.get_mut(&tag).expect("live").told.push(token);
        }
        for emit in &events.emits {
            let request = self.live.get_mut(&emit.lane_tag).expect("live");
            let before = request.got.len();
            if request.mode == sampling::HOST {
                let mut row = Vec::new();
                self.rings.read_logits_row(&emit.logits_row, &mut row).expect("the row");
                let token = best(&row);
                request.got.push(token);
                request.row = Some((token, emit.logits_row.generation));
            } else {
                self.rings.read_tokens(&emit.token_ref, &mut request.got).expect("the tokens");
                if told.is_some() {
                    assert_eq!(request.told, request.got[before..], "lane {}: what was told", emit.lane_tag);
                }
            }
            request.told.clear();
            self.tokens += (request.got.len() - before) as u64;
            assert!(request.expected.starts_with(&request.got), "lane {}: a token is another", emit.lane_tag);
        }
    }

    /// Retires what is through.
    pub(crate) fn retire(&mut self, random: &mut Random) {
        let through: Vec<u64> = self
            .live
            .iter()
            .filter(|(_, request)| request.got.len() == request.expected.len())
            .map(|(&tag, _)| tag)
            .collect();
        if through.is_empty() {
            return;
        }
        self.seq += 1;
        let mut plan = PlanBuilder::new(self.seq);
        for &tag in &through {
            plan = plan.retire(tag, random.below(2) == 0);
            self.live.remove(&tag);
            self.finished += 1;
        }
        let (plan, memory) = plan.build();
        if let Err(status) = self.engine.tick(&plan, &memory, &mut self.rings) {
            panic!("retiring: {status}; {:?}", self.engine.gone());
        }
    }
}

/// What a lane does next.
fn advance(plan: PlanBuilder, tag: u64, request: &Request, random: &mut Random) -> PlanBuilder {
    let missing = request.prompt.len() - request.prefilled;
    let left = request.expected.len() - request.got.len();
    if missing > 0 {
        let part = random.between(1, missing);
        let plan = plan.prefill(tag, request.prefilled as u32, part as u32);
        return if part == missing { plan.decode(tag, 1) } else { plan };
    }
    match request.row {
        Some((token, nonce)) => plan.commit(tag, token, nonce).decode(tag, 1),
        None if request.mode == sampling::HOST => plan.decode(tag, 1),
        None => plan.decode(tag, random.between(1, left.min(4)) as u16),
    }
}

/// Memory objects of the link that this process has mapped, and its children.
pub(crate) fn left_behind() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the maps");
    let segments = maps.lines().filter(|line| line.contains("memfd:ictus-")).count();
    let me = std::process::id().to_string();
    let children = std::fs::read_dir("/proc").expect("the processes").flatten().filter(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // Behind the name in parentheses: state, parent.
        stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)) == Some(&me)
    });
    (segments, children.count())
}

/// Kills the worker of a run at random moments until it was started `wanted` times anew, and lets the lanes come to their ends.
fn killed_again_and_again(subject: Subject, mut random: Random) {
    let wanted = number("ICTUS_KILLS", 20);
    let descriptors = open_descriptors().expect("counted");
    let generous = RemoteOptions { restarts: 1000, backoff: Duration::from_millis(1), ..options() };
    let mut run = Run::new(subject, generous);
    let victim = Arc::new(AtomicU32::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let killer = {
        let (victim, stop, ticking) = (Arc::clone(&victim), Arc::clone(&stop), Arc::clone(&run.ticking));
        let mut random = Random::from_key(random.next());
        std::thread::spawn(move || {
            let mut inside = 0;
            while !stop.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_micros(random.below(120_000) as u64));
                match victim.swap(0, Ordering::AcqRel) {
                    0 => {}
                    id => {
                        inside += u64::from(ticking.load(Ordering::Acquire));
                        kill(id);
                    }
                }
            }
            inside
        })
    };
    let (mut seen, mut ticks) = (1, 0u64);
    victim.store(run.engine.process_id().expect("a worker"), Ordering::Release);
    while run.engine.started() <= wanted || !run.live.is_empty() {
        let going = run.engine.started() <= wanted;
        run.step(&mut random, going);
        run.retire(&mut random);
        ticks += 1;
        if run.engine.started() != seen {
            seen = run.engine.started();
            if going {
                victim.store(run.engine.process_id().unwrap_or(0), Ordering::Release);
            }
        }
    }
    stop.store(true, Ordering::Release);
    let inside = killer.join().expect("the killer ends");
    let kills = run.engine.started() - 1;
    println!(
        "{kills} kills, {inside} of them inside a tick, {ticks} ticks, {} requests, {} tokens",
        run.finished, run.tokens
    );
    assert!(kills >= wanted && run.finished >= kills.min(10));
    assert!(inside > 0, "no kill met a tick");
    let _ = run.engine.close();
    assert_eq!(left_behind(), (0, 0), "segments and children");
    assert_eq!(open_descriptors().expect("counted"), descriptors, "descriptors");
}

#[test]
#[ignore = "counts the descriptors and children of the whole process: alone, by `worker_dies_again_and_again`"]
fn kills_in_a_process_of_their_own() {
    killed_again_and_again(Subject::fake(), Random::new("kills_in_a_process_of_their_own"));
}

#[test]
#[ignore = "counts the descriptors and children of the whole process: alone, by `worker_of_a_model_dies_again_and_again`"]
fn kills_of_a_model_in_a_process_of_their_own() {
    let mut random = Random::new("kills_of_a_model_in_a_process_of_their_own");
    killed_again_and_again(Subject::model(&mut random), random);
}

/// Runs one test of this program in a process of its own.
pub(crate) fn in_its_own_process(test: &str) {
    let program = std::env::current_exe().expect("the path of the test");
    let output = std::process::Command::new(program)
        .args(["--exact", test, "--ignored", "--nocapture"])
        .output()
        .expect("started");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    print!("{out}");
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.contains("1 passed"), "{out}");
}

/// Item "1 000 kills" of the goals, with `ICTUS_KILLS=1000`.
#[test]
fn worker_dies_again_and_again() {
    in_its_own_process("kills::kills_in_a_process_of_their_own");
}

/// The same with a model: every lane has the tokens that it has alone, undisturbed.
#[test]
fn worker_of_a_model_dies_again_and_again() {
    in_its_own_process("kills::kills_of_a_model_in_a_process_of_their_own");
}
