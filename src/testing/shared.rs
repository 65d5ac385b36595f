#![forbid(unsafe_code)]
//! Shared rings with both ends in one test.

use core::sync::atomic::Ordering::Acquire;

use super::{StageRings, digest_of_debug};
use crate::record::constant::ring_id;
use crate::record::{RingRef, TokenRef};
use crate::ring::{ControlWords, LayoutError, RingError, Rings, Segment, SharedRing, SharedRings};

/// The engine's end of three shared rings, and the host's ends of token-in and of the control words.
#[derive(Debug)]
pub struct SharedStage {
    engine: SharedRings,
    prompts: SharedRing,
    /// The host's end of the control words.
    pub control: ControlWords,
    segments: Vec<Segment>,
}

impl SharedStage {
    /// Rings of `slots` slots each; token slots of `token_slot_bytes`, logits slots of `logits_slot_bytes`.
    ///
    /// # Errors
    /// A shape that cannot be laid out.
    pub fn new(slots: u32, token_slot_bytes: u32, logits_slot_bytes: u32) -> Result<Self, LayoutError> {
        let mut engine = SharedRings::new();
        let mut segments = Vec::new();
        let (segment, desc) = SharedRing::create(ring_id::TOKENS_IN, slots, token_slot_bytes)?;
        let prompts = SharedRing::open(&desc, segment.mapping())?;
        engine.attach([SharedRing::open(&desc, segment.mapping())?]);
        segments.push(segment);
        for (id, slot_bytes) in [(ring_id::TOKENS_OUT, token_slot_bytes), (ring_id::LOGITS, logits_slot_bytes)] {
            let (segment, desc) = SharedRing::create(id, slots, slot_bytes)?;
            engine.attach([SharedRing::open(&desc, segment.mapping())?]);
            segments.push(segment);
        }
        let words = ControlWords::create();
        engine.attach_control(ControlWords::open(words.mapping())?);
        let control = ControlWords::open(words.mapping())?;
        Ok(Self { engine, prompts, control, segments })
    }
}

impl Rings for SharedStage {
    fn read_tokens(&self, reference: &TokenRef, tokens: &mut Vec<u32>) -> Result<(), RingError> {
        self.engine.read_tokens(reference, tokens)
    }

    fn write_tokens(&mut self, tokens: &[u32]) -> Result<TokenRef, RingError> {
        self.engine.write_tokens(tokens)
    }

    fn write_logits_row(&mut self, row: &[f32]) -> Result<RingRef, RingError> {
        self.engine.write_logits_row(row)
    }

    fn read_logits_row(&self, reference: &RingRef, row: &mut Vec<f32>) -> Result<(), RingError> {
        self.engine.read_logits_row(reference, row)
    }

    fn yield_requested(&self) -> bool {
        self.engine.yield_requested()
    }

    fn latency_wanted(&self) -> bool {
        self.engine.latency_wanted()
    }
}

impl StageRings for SharedStage {
    /// # Panics
    /// When a slot cannot hold the prompt.
    fn stage_prompt(&mut self, tokens: &[u32]) -> TokenRef {
        match self.prompts.write(tokens) {
            Ok((index, generation)) => {
                let count = tokens.len() as u32;
                TokenRef { ring_id: ring_id::TOKENS_IN, index, count, _pad0: 0, generation }
            }
            Err(_) => panic!("a slot of token-in holds fewer than {} tokens", tokens.len()),
        }
    }

    fn rings_digest(&self) -> u64 {
        let words = |segment: &Segment| segment.words().iter().map(|word| word.load(Acquire)).collect::<Vec<_>>();
        let all: Vec<Vec<u64>> = self.segments.iter().map(words).collect();
        digest_of_debug(&(all, &self.engine, &self.prompts))
    }
}
