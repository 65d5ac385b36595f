#![forbid(unsafe_code)]
//! A runtime whose steps cost next to nothing, to measure what an engine adds.

use std::collections::VecDeque;

use crate::runtime::{
    Answers, Descriptor, FakeOptions, Feed, Input, MemCounters, Runtime, RuntimeError, SamplingSupport, SeqHandle, Want,
};
use crate::sample::Pick;

/// Counts the tokens of its sequences and answers every pick with the parity of the count.
///
/// Rows are zeroed and not filled. Nothing is checked; sequences are never reused, so it is for short lives only.
#[derive(Debug)]
pub struct FreeRuntime {
    descriptor: Descriptor,
    lens: Vec<u64>,
    steps_ahead: bool,
    /// What sequences hold with each feed of the steps that were begun and have not ended, oldest first.
    begun: VecDeque<u64>,
}

impl FreeRuntime {
    /// A runtime for this many lanes, without end tokens and with an endless context.
    pub fn new(max_batch: u32) -> Self {
        let descriptor = Descriptor {
            runtime_id: "free".to_owned(),
            max_batch,
            max_seq_len: u64::MAX / 2,
            sampling: SamplingSupport { greedy: true, draws: true, shaping: true, logprobs: false },
            ..FakeOptions::default().descriptor
        };
        Self { descriptor, lens: Vec::new(), steps_ahead: false, begun: VecDeque::new() }
    }

    /// The same runtime, whose steps can be begun ahead.
    pub fn stepping_ahead(self) -> Self {
        Self { steps_ahead: true, ..self }
    }

    fn len_mut(&mut self, sequence: SeqHandle) -> Result<&mut u64, RuntimeError> {
        let index = usize::try_from(sequence).ok().and_then(|handle| handle.checked_sub(1));
        index.and_then(|index| self.lens.get_mut(index)).ok_or(RuntimeError::UnknownSeq)
    }
}

/// Answers a feed of `fed` tokens, with which its sequence holds `held`.
pub(super) fn answer(feed: &Feed<'_>, fed: usize, held: u64, answers: &mut Answers) {
    match feed.want {
        Want::Nothing => answers.push_nothing(),
        Want::LastRow => {
            answers.push_rows(1);
        }
        Want::EveryRow => {
            answers.push_rows(fed);
        }
        Want::Token(_) => answers.push_pick(Pick { token: u32::from(held.is_multiple_of(2)), logprobs: None }),
    }
}

impl Runtime for FreeRuntime {
    fn describe(&self) -> &Descriptor {
        &self.descriptor
    }

    fn is_eos(&self, _: u32) -> bool {
        false
    }

    fn seq_create(&mut self) -> Result<SeqHandle, RuntimeError> {
        self.lens.push(0);
        Ok(self.lens.len() as SeqHandle)
    }

    fn seq_free(&mut self, sequence: SeqHandle) {
        if let Ok(len) = self.len_mut(sequence) {
            *len = 0;
        }
    }

    fn seq_len(&self, sequence: SeqHandle) -> u64 {
        (sequence as usize).checked_sub(1).and_then(|index| self.lens.get(index)).copied().unwrap_or(0)
    }

    fn cells_released(&self, sequences: &[SeqHandle]) -> u64 {
        sequences.iter().map(|&sequence| self.seq_len(sequence)).sum()
    }

    fn seq_copy(&mut self, source: SeqHandle, target: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        let held = self.seq_len(source);
        *self.len_mut(target)? = held.min(len);
        Ok(())
    }

    fn seq_truncate(&mut self, sequence: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        let held = self.len_mut(sequence)?;
        *held = len.min(*held);
        Ok(())
    }

    fn mem_counters(&self) -> MemCounters {
        MemCounters::default()
    }

    fn step(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        answers.clear(self.descriptor.vocab_size as usize);
        for feed in feeds {
            let Input::Tokens(tokens) = feed.input else { return Err(RuntimeError::Unsupported) };
            let held = self.len_mut(feed.sequence)?;
            *held += tokens.len() as u64;
            answer(feed, tokens.len(), *held, answers);
        }
        Ok(())
    }

    fn steps_ahead(&self) -> bool {
        self.steps_ahead
    }

    fn step_begin(&mut self, feeds: &[Feed<'_>]) -> Result<(), RuntimeError> {
        for feed in feeds {
            let held = self.len_mut(feed.sequence)?;
            *held += 1;
            let held = *held;
            self.begun.push_back(held);
        }
        Ok(())
    }

    fn step_end(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        answers.clear(self.descriptor.vocab_size as usize);
        for feed in feeds {
            let held = self.begun.pop_front().ok_or(RuntimeError::Fatal)?;
            answer(feed, 1, held, answers);
        }
        Ok(())
    }
}
