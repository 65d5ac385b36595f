#![forbid(unsafe_code)]
//! Whole texts outside lanes: embeddings, and stages of a model that is split by layers.
//!
//! A text runs in a sequence of its own, which is gone when the call returns: lanes see nothing of it but the pages it takes
//! meanwhile. It is walked in parts like any step, so the parts change no bit.
//!
//! # Numerics
//! The mean of hidden states is summed in double precision in position order; a length is computed in double precision too.

use core::ops::Range;

use super::ModelRuntime;
use super::adapt::Carried;
use crate::backend::{Again, Backend, Span};
use crate::checkpoint::Pooling;
use crate::kv::Growth;
use crate::model::{self, Pass, Progress, Wanted};
use crate::record::constant::fault;
use crate::runtime::stage::Activations;
use crate::runtime::{RuntimeError, SeqHandle, Stage, StageError, StageOutput};
use crate::sample::argmax;

/// A text at work: its sequence, and the layers that it is walked through.
struct Text<'t> {
    tokens: &'t [u32],
    sequence: SeqHandle,
    layers: Range<usize>,
}

impl<B: Backend> ModelRuntime<B> {
    pub(super) fn embed_text(&mut self, tokens: &[u32], adapter: u64) -> Result<Vec<f32>, RuntimeError> {
        let embedding = self.descriptor.workloads.embedding.ok_or(RuntimeError::Unsupported)?;
        let known = tokens.iter().all(|&token| token < self.descriptor.vocab_size);
        if tokens.is_empty() || !known {
            return Err(RuntimeError::Fault(fault::INTERNAL));
        }
        let all = 0..self.config.layers;
        self.with_text(tokens, adapter, all, |runtime, text| runtime.pool(text, embedding.pooling)).map(|mut vector| {
            if embedding.normalised {
                normalise(&mut vector);
            }
            vector
        })
    }

    pub(super) fn run_stage(&mut self, stage: &Stage<'_>) -> Result<StageOutput, StageError> {
        let layers = self.config.layers as u32;
        let Stage { tokens, adapter, first, end, incoming } = *stage;
        let known = tokens.iter().all(|&token| token < self.descriptor.vocab_size);
        let fits = tokens.len() as u64 <= self.descriptor.max_seq_len;
        if first > end || end > layers || tokens.is_empty() || !known || !fits {
            return Err(StageError::Bounds);
        }
        let weights = self.descriptor.weights_identity;
        let (rows, hidden) = (tokens.len(), self.config.hidden);
        let adapter_digest = self.adapters.digest(adapter).unwrap_or_default();
        let of = |layer| Activations { layer, rows, hidden, weights: &weights, tokens, adapter: adapter_digest };
        let stream = match incoming {
            Some(bytes) => Some(of(first).open(bytes)?),
            None if first == 0 => None,
            None => return Err(StageError::Activations),
        };
        let range = first as usize..end as usize;
        if end < layers {
            let leaving = self.with_text(tokens, adapter, range, |runtime, text| runtime.stream_of(text, stream))?;
            return Ok(StageOutput::Hidden(of(end).seal(&leaving)));
        }
        let row = self.with_text(tokens, adapter, range, |runtime, text| runtime.logits_of(text, stream))?;
        if row.iter().any(|logit| logit.is_nan()) {
            return Err(StageError::NotFinite);
        }
        Ok(StageOutput::Token(argmax(&row)))
    }

    /// Runs `body` on a sequence that has the cells of the text, and frees it.
    fn with_text<T>(
        &mut self,
        tokens: &[u32],
        adapter: u64,
        layers: Range<usize>,
        body: impl FnOnce(&mut Self, &Text<'_>) -> Result<T, RuntimeError>,
    ) -> Result<T, RuntimeError> {
        if self.broken {
            return Err(RuntimeError::Fatal);
        }
        if !self.adapters.is_loaded(adapter) {
            return Err(RuntimeError::UnknownSeq);
        }
        let sequence = self.sequences.create()?;
        let outcome = self.carry(sequence, adapter).and_then(|()| {
            // A new sequence shares no page, so there is nothing to copy.
            self.sequences.grow(&[Growth { handle: sequence, tokens: tokens.len() }], &mut Vec::new())?;
            let outcome = body(self, &Text { tokens, sequence, layers });
            let outcome = outcome.and_then(|value| self.healthy().map(|()| value));
            self.broken = outcome.is_err();
            outcome
        });
        self.release(sequence);
        outcome
    }

    /// Walks the text part by part; `before` sees the positions of each part, `after` those of them that are `wanted`, whose rows are
    /// the first of the stream.
    fn walk_text(
        &mut self,
        text: &Text<'_>,
        wanted: Range<usize>,
        mut before: impl FnMut(&mut Self, Range<usize>) -> Result<(), RuntimeError>,
        mut after: impl FnMut(&mut Self, Range<usize>) -> Result<(), RuntimeError>,
    ) -> Result<(), RuntimeError> {
        let step = self.rows.shape.rows.max(1);
        for start in (0..text.tokens.len()).step_by(step) {
            let part = start..text.tokens.len().min(start + step);
            let some = wanted.start.clamp(part.start, part.end)..wanted.end.clamp(part.start, part.end);
            self.backend.part_begin(Again::No);
            let walked = self.walk_text_part(text, part, some.clone(), &mut before);
            let answered = walked.and_then(|()| after(self, some));
            self.backend.part_end();
            answered?;
        }
        Ok(())
    }

    /// Walks the positions `part`, of which `some` are wanted.
    fn walk_text_part(
        &mut self,
        text: &Text<'_>,
        part: Range<usize>,
        some: Range<usize>,
        before: &mut impl FnMut(&mut Self, Range<usize>) -> Result<(), RuntimeError>,
    ) -> Result<(), RuntimeError> {
        self.work.resize(&self.backend, part.len()).map_err(|_| RuntimeError::Fatal)?;
        before(self, part.clone())?;
        let adapter = self.sequences.mark(text.sequence);
        let (mut carried, mut wanted_carried) = (Carried::default(), Carried::default());
        carried.note(adapter, 0, part.len());
        wanted_carried.note(adapter, 0, some.len());
        let adapted = carried.by_adapter(&self.adapters).ok_or(RuntimeError::Fatal)?;
        let wanted_adapted = wanted_carried.by_adapter(&self.adapters).ok_or(RuntimeError::Fatal)?;
        let block_table = self.sequences.table(text.sequence)?.pages();
        let of_pass: Vec<usize> = (some.start - part.start..some.end - part.start).collect();
        let span = |positions: &Range<usize>| {
            [Span { first_row: 0, rows: positions.len(), start: positions.start, block_table }]
        };
        let some_span = span(&some);
        let mut pass = Pass {
            picked: None,
            backend: &self.backend,
            pages: &mut self.pages,
            work: &mut self.work,
            tokens: text.tokens.get(part.clone()).unwrap_or_default(),
            rows: model::Rows { spans: &span(&part), adapted: &adapted },
            wanted: (some != part).then_some(Wanted {
                of_pass: &of_pass,
                rows: model::Rows { spans: &some_span, adapted: &wanted_adapted },
            }),
            layers: text.layers.clone(),
            progress: Progress::default(),
        };
        self.network.forward(&mut pass).map_err(|_| RuntimeError::Fatal)
    }

    /// The pooled hidden states.
    fn pool(&mut self, text: &Text<'_>, pooling: Pooling) -> Result<Vec<f32>, RuntimeError> {
        let all = text.tokens.len();
        let mut sums = vec![0.0f64; self.config.hidden];
        let mut row = vec![0.0f32; self.config.hidden];
        let pooled = match pooling {
            Pooling::Last => all - 1..all,
            Pooling::Mean => 0..all,
            Pooling::First => 0..1,
        };
        let count = pooled.len() as f64;
        let nothing = |_: &mut Self, _: Range<usize>| Ok(());
        self.walk_text(text, pooled, nothing, |runtime, some| {
            for index in 0..some.len() {
                let ModelRuntime { network, backend, work, .. } = &mut *runtime;
                network.hidden(backend, work, &[index]).map_err(|_| RuntimeError::Fatal)?;
                backend.read(work.hidden(), 0, &mut row).map_err(|_| RuntimeError::Fatal)?;
                sums.iter_mut().zip(&row).for_each(|(sum, &value)| *sum += f64::from(value));
            }
            Ok(())
        })?;
        Ok(sums.into_iter().map(|sum| (sum / count) as f32).collect())
    }

    /// The residual stream behind the stage's layers, all rows.
    fn stream_of(&mut self, text: &Text<'_>, incoming: Option<Vec<f32>>) -> Result<Vec<f32>, RuntimeError> {
        let hidden = self.config.hidden;
        let mut leaving = vec![0.0; text.tokens.len() * hidden];
        let before = |runtime: &mut Self, part| runtime.bring_in(incoming.as_deref(), part);
        self.walk_text(text, 0..text.tokens.len(), before, |runtime, part| {
            let rows = leaving.get_mut(part.start * hidden..part.end * hidden).unwrap_or_default();
            runtime.backend.read(runtime.work.stream(), 0, rows).map_err(|_| RuntimeError::Fatal)
        })?;
        Ok(leaving)
    }

    /// The logits behind the last token.
    fn logits_of(&mut self, text: &Text<'_>, incoming: Option<Vec<f32>>) -> Result<Vec<f32>, RuntimeError> {
        let all = text.tokens.len();
        let mut logits = vec![0.0; self.config.vocab];
        let before = |runtime: &mut Self, part| runtime.bring_in(incoming.as_deref(), part);
        self.walk_text(text, all - 1..all, before, |runtime, some| {
            if some.is_empty() {
                return Ok(());
            }
            let ModelRuntime { network, backend, work, .. } = runtime;
            network.head(backend, work, &[0]).map_err(|_| RuntimeError::Fatal)?;
            backend.read(work.logits(), 0, &mut logits).map_err(|_| RuntimeError::Fatal)
        })?;
        Ok(logits)
    }

    /// Puts the rows of the stage before into the stream.
    fn bring_in(&mut self, incoming: Option<&[f32]>, part: Range<usize>) -> Result<(), RuntimeError> {
        let Some(values) = incoming else { return Ok(()) };
        let hidden = self.config.hidden;
        let rows = values.get(part.start * hidden..part.end * hidden).ok_or(RuntimeError::Fatal)?;
        self.backend.write(self.work.stream_mut(), 0, rows).map_err(|_| RuntimeError::Fatal)
    }
}

/// Scales a vector to length 1; one of zeros stays.
fn normalise(vector: &mut [f32]) {
    let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
}
