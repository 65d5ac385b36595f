#![forbid(unsafe_code)]
//! One walk over the layers, and the sections that families build it from.
//!
//! Each section is a few operations over the workspace. In the comments, `x` is the residual stream, one row per fed token.

use super::weights::{Ends, FeedForward, HeadNorms, Qkv, QkvBias};
use super::workspace::Workspace;
use crate::backend::{AttentionShape, Backend, BackendError, Gate, RopeTable, Span};
use crate::checkpoint::ModelConfig;

/// The rows of one walk, and what they are computed with.
pub struct Pass<'a, B: Backend> {
    /// Where operations run.
    pub backend: &'a B,
    /// Keys and values of all layers.
    pub pages: &'a mut B::Pages,
    /// Buffers with as many rows as there are tokens.
    pub work: &'a mut Workspace<B>,
    /// The token of each row.
    pub tokens: &'a [u32],
    /// The rows of each sequence; together they are all rows.
    pub spans: &'a [Span<'a>],
}

impl<B: Backend> Pass<'_, B> {
    /// `x = embedding[token] * scale`
    pub(super) fn embed(&mut self, embedding: &B::Matrix, scale: f32) {
        self.backend.embed(embedding, self.tokens, scale, &mut self.work.stream);
    }

    /// `normed = rms_norm(x) * weight`
    pub(super) fn norm(&mut self, weight: &B::Vector, epsilon: f32) {
        self.backend.rms_norm(&self.work.stream, weight, epsilon, &mut self.work.normed);
    }

    /// `q, k, v = W normed (+ bias)`
    pub(super) fn project(&mut self, qkv: &Qkv<B>, bias: Option<&QkvBias<B>>) {
        let Workspace { normed, queries, keys, values, .. } = &mut *self.work;
        self.backend.linear(normed, &qkv.q, bias.map(|bias| &bias.q), queries);
        self.backend.linear(normed, &qkv.k, bias.map(|bias| &bias.k), keys);
        self.backend.linear(normed, &qkv.v, bias.map(|bias| &bias.v), values);
    }

    /// `q, k = rms_norm(each head) * weight`
    pub(super) fn norm_heads(&mut self, norms: &HeadNorms<B>, epsilon: f32) {
        self.backend.rms_norm_in_place(&mut self.work.queries, &norms.q, epsilon);
        self.backend.rms_norm_in_place(&mut self.work.keys, &norms.k, epsilon);
    }

    /// `delta = W softmax(q k^T * scale) v` over the sequence so far, rotated, with this pass's keys and values stored first.
    pub(super) fn attend(&mut self, layer: usize, shape: &AttentionShape, rope: &RopeTable, output: &B::Matrix) {
        let Workspace { queries, keys, values, attended, delta, .. } = &mut *self.work;
        self.backend.rope(queries, shape.head_dim, rope, self.spans);
        self.backend.rope(keys, shape.head_dim, rope, self.spans);
        self.backend.kv_write(self.pages, layer, keys, values, self.spans);
        self.backend.attention(queries, self.pages, layer, shape, self.spans, attended);
        self.backend.linear(attended, output, None, delta);
    }

    /// `delta = down(act(gate normed) * up normed)`
    pub(super) fn feed_forward(&mut self, weights: &FeedForward<B>, act: Gate) {
        let Workspace { normed, gate, up, delta, .. } = &mut *self.work;
        self.backend.linear(normed, &weights.gate, None, gate);
        self.backend.linear(normed, &weights.up, None, up);
        self.backend.gate(gate, up, act);
        self.backend.linear(gate, &weights.down, None, delta);
    }

    /// `delta = rms_norm(delta) * weight`
    pub(super) fn norm_delta(&mut self, weight: &B::Vector, epsilon: f32) {
        self.backend.rms_norm_in_place(&mut self.work.delta, weight, epsilon);
    }

    /// `x = x + delta`
    pub(super) fn add_delta(&mut self) {
        self.backend.add(&mut self.work.stream, &self.work.delta);
    }
}

/// `logits = head(rms_norm(x) * weight)` for some rows of the stream.
pub(super) fn logits<B: Backend>(
    backend: &B,
    work: &mut Workspace<B>,
    rows: &[usize],
    ends: &Ends<B>,
    epsilon: f32,
) -> Result<(), BackendError> {
    work.resize_head(backend, rows.len())?;
    let Workspace { stream, wanted, logits, .. } = work;
    backend.gather_rows(stream, rows, wanted);
    backend.rms_norm_in_place(wanted, &ends.norm, epsilon);
    backend.linear(wanted, ends.head.as_ref().unwrap_or(&ends.embedding), None, logits);
    Ok(())
}

/// The attention of layer `layer`, as the configuration has it.
pub(super) fn attention_shape(config: &ModelConfig, layer: usize) -> AttentionShape {
    AttentionShape {
        n_heads: config.n_heads,
        n_kv_heads: config.n_kv_heads,
        head_dim: config.head_dim,
        scale: config.attention_scale,
        window: config.window_of(layer),
    }
}
