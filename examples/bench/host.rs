//! A host that only measures: every tick is timed by the caller's clock.

use std::fmt;
use std::path::Path;
use std::time::Instant;

use ictus::engine::{Engine, PlanBuilder};
use ictus::record::constant::determinism;
use ictus::ring::{MemoryRings, Rings};
use ictus::timeline::Timeline;
use ictus::{Model, ModelOptions, WorkerOptions};

pub type Failure = Box<dyn std::error::Error>;

/// The token ids of a prompt: fixed, spread over the vocabulary, the same as the peer's bench feeds.
pub fn tokens(count: usize, vocab: u32, seed: u32) -> Vec<u32> {
    let mut x = seed.wrapping_mul(2_654_435_761);
    let span = vocab.saturating_sub(2000).max(1);
    let first = 1000.min(vocab - 1);
    let next = |_| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (first + (x >> 8) % span).min(vocab - 1)
    };
    (0..count).map(next).collect()
}

/// Where engines come from: a model file, here or in a process of its own.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    pub path: &'a Path,
    pub worker: bool,
}

impl Source<'_> {
    /// The model, and an engine of it.
    pub fn open(self, options: &ModelOptions) -> Result<(Model, Box<dyn Engine + Send>), Failure> {
        let model = Model::open(self.path, options)?;
        let engine = if self.worker { model.engine_in_worker(&WorkerOptions::default())? } else { model.engine()? };
        Ok((model, engine))
    }
}

/// FNV-1a over the tokens of a run, in the order in which they came: runs that say the same have the same one.
pub struct Digest(u64);

impl Digest {
    pub fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub fn take(&mut self, tokens: &[u32]) {
        for byte in tokens.iter().flat_map(|token| token.to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// One model, one engine.
pub struct Host {
    engine: Box<dyn Engine + Send>,
    rings: MemoryRings,
    said: Digest,
    /// The tokens of one lane of a tick.
    read: Vec<u32>,
    vocab: u32,
    context_tokens: usize,
    page_size_tokens: u64,
    seq: u64,
}

impl Host {
    pub fn open(source: Source<'_>, options: &ModelOptions) -> Result<Self, Failure> {
        let (model, engine) = source.open(options)?;
        let vocab = u32::try_from(model.config().vocab)?;
        let context_tokens = model.context_tokens();
        let page_size_tokens =
            engine.state_spaces().first().map_or(1, |space| u64::from(space.page_size_tokens.max(1)));
        let (rings, said) = (MemoryRings::new(), Digest::new());
        Ok(Self { engine, rings, said, read: Vec::new(), vocab, context_tokens, page_size_tokens, seq: 0 })
    }

    /// What was said since this was asked last.
    pub fn take_said(&mut self) -> String {
        std::mem::replace(&mut self.said, Digest::new()).to_string()
    }

    pub fn vocab(&self) -> u32 {
        self.vocab
    }

    /// Records what the engine does into a file.
    pub fn record(&mut self, path: &Path) -> Result<(), Failure> {
        Ok(self.engine.timeline_start(Box::new(Timeline::new(std::fs::File::create(path)?)))?)
    }

    /// Ends the file, if there is one.
    pub fn stop_recording(&mut self) -> Result<(), Failure> {
        self.engine.timeline_stop().map_or(Ok(()), |timeline| Ok(timeline.finish()?))
    }

    /// Whether a lane of so many tokens fits the model.
    pub fn fits(&self, tokens: usize) -> bool {
        tokens <= self.context_tokens
    }

    fn plan(&mut self) -> PlanBuilder {
        self.seq += 1;
        PlanBuilder::new(self.seq).prefill_budget(u32::MAX).max_decode_lanes(64)
    }

    /// Runs one plan and answers its seconds; a fault is a failure of the bench.
    fn tick(&mut self, plan: PlanBuilder) -> Result<f64, Failure> {
        let (plan, arena) = plan.build();
        let started = Instant::now();
        let events = self.engine.tick(&plan, &arena, &mut self.rings)?;
        let seconds = started.elapsed().as_secs_f64();
        if let Some(fault) = events.faults.first() {
            return Err(format!("lane {} faulted with code {}", fault.lane_tag, fault.code).into());
        }
        for emit in events.emits {
            self.read.clear();
            self.rings.read_tokens(&emit.token_ref, &mut self.read)?;
            self.said.take(&self.read);
        }
        Ok(seconds)
    }

    /// Admits a lane, runs its whole prompt and picks the first token, in one tick.
    pub fn prompt(&mut self, tag: u64, prompt: &[u32]) -> Result<f64, Failure> {
        let staged = self.rings.stage_prompt(prompt);
        let plan = self.plan().admit(tag, staged).prefill(tag, 0, prompt.len() as u32).decode(tag, 1);
        self.tick(plan)
    }

    /// `steps` ticks of one token for each lane.
    pub fn steps(&mut self, tags: &[u64], steps: usize) -> Result<f64, Failure> {
        let mut seconds = 0.0;
        for _ in 0..steps {
            let plan = tags.iter().fold(self.plan(), |plan, &tag| plan.decode(tag, 1));
            seconds += self.tick(plan)?;
        }
        Ok(seconds)
    }

    /// Runs a prompt and leaves it in the prefix cache; answers the seconds of the prefill.
    pub fn publish(&mut self, prompt: &[u32]) -> Result<f64, Failure> {
        let staged = self.rings.stage_prompt(prompt);
        let plan = self.plan().admit(0, staged).prefill(0, 0, prompt.len() as u32);
        let seconds = self.tick(plan)?;
        let plan = self.plan().retire(0, true);
        self.tick(plan)?;
        Ok(seconds)
    }

    /// Admits a lane with this prompt, seeded from the longest cached prefix, and picks its first token; answers the tokens of that
    /// prefix.
    pub fn seeded(&mut self, tag: u64, prompt: &[u32]) -> Result<u64, Failure> {
        // The prompt is published in whole pages, so a lane finds all of it but the rest of the last page.
        let prefix = prompt.len() as u64 / self.page_size_tokens * self.page_size_tokens;
        if prefix == 0 {
            return self.prompt(tag, prompt).map(|_| 0);
        }
        let lease = self.engine.seed_acquire(prompt, prefix, determinism::BEST_EFFORT)?;
        let staged = self.rings.stage_prompt(prompt);
        let rest = prompt.len() as u64 - prefix;
        let plan = self.plan().admit_with(|admit| admit.seed_handle = lease, tag, staged).decode(tag, 1);
        self.tick(if rest > 0 { plan.prefill(tag, prefix as u32, rest as u32) } else { plan })?;
        Ok(prefix)
    }

    /// Drops what the prefix cache holds of this prompt.
    pub fn forget(&mut self, prompt: &[u32]) -> Result<(), Failure> {
        let prefix = prompt.len() as u64 / self.page_size_tokens * self.page_size_tokens;
        if prefix > 0 {
            self.engine.unpublish(&prompt[..prefix as usize])?;
        }
        Ok(())
    }

    pub fn retire(&mut self, tags: &[u64]) -> Result<(), Failure> {
        let plan = tags.iter().fold(self.plan(), |plan, &tag| plan.retire(tag, false));
        self.tick(plan)?;
        Ok(())
    }
}
