//! One lane on a text that repeats itself, with prompt lookup and without.

use std::time::Instant;

use ictus::ModelOptions;
use ictus::engine::{Engine, PlanBuilder, StrategyBuilder};
use ictus::ring::{MemoryRings, Rings};
use ictus::tokenizer::EncodeOptions;

use crate::host::{Failure, Source};

/// What the text says over and over: a list, as code and tables do.
const LINE: &str =
    "- name: lamp, price: 12, stock: 40\n- name: chair, price: 35, stock: 8\n- name: table, price: 90, stock: 3\n";
/// How often.
const LINES: usize = 6;

/// What one run came to.
pub struct Drafted {
    pub seconds: f64,
    pub tokens: Vec<u32>,
    pub proposed: u32,
    pub accepted: u32,
}

/// Opens the model for a run each of [`Drafts::run`].
pub struct Drafts {
    engine: Box<dyn Engine + Send>,
    prompt: Vec<u32>,
    seq: u64,
    slot: u32,
    rings: MemoryRings,
}

impl Drafts {
    /// An engine with a strategy registered.
    pub fn open(source: Source<'_>, options: &ModelOptions, strategy: &StrategyBuilder) -> Result<Self, Failure> {
        let (model, mut engine) = source.open(options)?;
        let prompt =
            model.tokenizer().encode(&LINE.repeat(LINES), EncodeOptions { add_special: true, parse_special: false })?;
        let (registration, memory) = strategy.build();
        let slot = engine.strategy_register(&registration, &memory)?.strategy_slot;
        Ok(Self { engine, prompt, seq: 0, slot, rings: MemoryRings::new() })
    }

    fn plan(&mut self) -> PlanBuilder {
        self.seq += 1;
        PlanBuilder::new(self.seq).prefill_budget(u32::MAX)
    }

    /// Decodes `steps` tokens behind the text, some eight a tick; only the ticks that decode are timed.
    pub fn run(&mut self, drafts: bool, steps: usize) -> Result<Drafted, Failure> {
        let staged = self.rings.stage_prompt(&self.prompt);
        let slot = if drafts { self.slot } else { 0 };
        let len = self.prompt.len() as u32;
        let plan = self.plan().admit_with(|admit| admit.strategy_slot = slot, 1, staged).prefill(1, 0, len);
        let (plan, memory) = plan.build();
        self.engine.tick(&plan, &memory, &mut self.rings)?;
        let mut run = Drafted { seconds: 0.0, tokens: Vec::new(), proposed: 0, accepted: 0 };
        while run.tokens.len() < steps {
            let (plan, memory) = self.plan().decode(1, 8.min(steps - run.tokens.len()) as u16).build();
            let started = Instant::now();
            let events = self.engine.tick(&plan, &memory, &mut self.rings)?;
            run.seconds += started.elapsed().as_secs_f64();
            let emit = events.emits.first().copied().ok_or("the lane faulted")?;
            run.proposed += emit.spec.proposed;
            run.accepted += emit.spec.accepted;
            self.rings.read_tokens(&emit.token_ref, &mut run.tokens)?;
        }
        let (plan, memory) = self.plan().retire(1, false).build();
        self.engine.tick(&plan, &memory, &mut self.rings)?;
        Ok(run)
    }
}
