#![forbid(unsafe_code)]
//! One walk over the layers, and the sections that families build it from.
//!
//! Each section is a few operations over the workspace. In the comments, `x` is the residual stream, one row per fed token.

use core::ops::Range;

use super::adapter::{Adapted, adapt};
use super::rope::{Ropes, Turn};
use super::weights::{Ends, FeedForward, HeadNorms, Qkv, QkvBias};
use super::workspace::Workspace;
use crate::backend::{AttentionShape, Backend, BackendError, Gate, Product, Span};
use crate::checkpoint::{ModelConfig, Target};

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
    /// Where the host does not know them: for which row of the step begun before each is picked ([`Backend::embed_picked`]).
    pub picked: Option<&'a [usize]>,
    /// All rows.
    pub rows: Rows<'a, B>,
    /// The rows that are wanted of the residual stream in the end; none when all are.
    pub wanted: Option<Wanted<'a, B>>,
    /// The layers to walk. A walk that does not begin with the first finds the residual stream as it was left.
    pub layers: Range<usize>,
    /// How far the walk is.
    pub progress: Progress,
}

/// Rows of a pass, by whom they belong to.
pub struct Rows<'a, B: Backend> {
    /// The rows of each sequence; together they are all rows.
    pub spans: &'a [Span<'a>],
    /// The rows that adapters change; no row is named twice.
    pub adapted: &'a [Adapted<'a, B>],
}

impl<B: Backend> Clone for Rows<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for Rows<'_, B> {}

/// Some rows of a pass.
pub struct Wanted<'a, B: Backend> {
    /// Which rows of the pass, ascending.
    pub of_pass: &'a [usize],
    /// The same rows, numbered from 0.
    pub rows: Rows<'a, B>,
}

/// What a walk has still to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// The stream lacks the delta.
    delta_is_due: bool,
    /// The stream holds wanted rows only.
    is_narrow: bool,
}

impl<'a, B: Backend> Pass<'a, B> {
    /// Walks the layers that are to be walked, of all of them, and leaves the wanted rows in the stream.
    pub(super) fn walk<L>(
        &mut self,
        layers: &[L],
        walk: impl FnMut(&mut Self, usize, &L) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let wanted = self.wanted.as_ref().map_or(&[][..], |wanted| wanted.rows.spans);
        self.backend.pass_begin(&[self.rows.spans, wanted])?;
        let walked = self.walk_layers(layers, walk);
        self.backend.pass_end();
        walked
    }

    fn walk_layers<L>(
        &mut self,
        layers: &[L],
        mut walk: impl FnMut(&mut Self, usize, &L) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let Range { start, end } = self.layers.clone();
        for (index, layer) in layers.iter().enumerate().take(end).skip(start) {
            walk(self, index, layer)?;
        }
        if core::mem::take(&mut self.progress.delta_is_due) {
            self.backend.add(&mut self.work.stream, &self.work.delta);
        }
        // Where there was no layer to do it in.
        self.narrow()
    }

    /// Leaves the wanted rows only.
    fn narrow(&mut self) -> Result<(), BackendError> {
        if let Some(wanted) = &self.wanted
            && !core::mem::replace(&mut self.progress.is_narrow, true)
        {
            self.work.narrow(self.backend, wanted.of_pass)?;
        }
        Ok(())
    }

    /// The rows that the stream holds now.
    fn live(&self) -> Rows<'a, B> {
        match &self.wanted {
            Some(wanted) if self.progress.is_narrow => wanted.rows,
            _ => self.rows,
        }
    }

    /// The angles of all rows, for each way of turning.
    pub(super) fn angles(&mut self, ropes: &Ropes) {
        for (table, out) in ropes.tables().iter().zip(&mut self.work.angles) {
            self.backend.angles(table, self.rows.spans, out);
        }
    }

    /// `x = embedding[token] * scale`, in a walk that begins with the first layer.
    pub(super) fn embed(&mut self, embedding: &B::Matrix, scale: f32) {
        if self.layers.start == 0 && !self.tokens.is_empty() {
            let stream = &mut self.work.stream;
            match self.picked {
                Some(rows) => self.backend.embed_picked(embedding, rows, scale, stream),
                None => self.backend.embed(embedding, self.tokens, scale, stream),
            }
        }
    }

    /// `normed = rms_norm(x) * weight`
    pub(super) fn norm(&mut self, weight: &B::Vector, epsilon: f32) {
        let Workspace { stream, delta, normed, .. } = &mut *self.work;
        if core::mem::take(&mut self.progress.delta_is_due) {
            self.backend.add_rms_norm(stream, delta, weight, epsilon, normed);
        } else {
            self.backend.rms_norm(stream, weight, epsilon, normed);
        }
    }

    /// `q, k, v = W normed (+ bias)`
    ///
    /// Keys and values are those of all rows. From the queries of the last layer on only the wanted rows are computed.
    pub(super) fn project(
        &mut self,
        layer: usize,
        qkv: &Qkv<B>,
        bias: Option<&QkvBias<B>>,
    ) -> Result<(), BackendError> {
        let narrows = self.wanted.is_some() && layer + 1 == self.layers.end;
        let Workspace { normed, queries, keys, values, adapted, .. } = &mut *self.work;
        let q = Product { weight: &qkv.q, bias: bias.map(|bias| &bias.q), out: queries };
        let k = Product { weight: &qkv.k, bias: bias.map(|bias| &bias.k), out: keys };
        let v = Product { weight: &qkv.v, bias: bias.map(|bias| &bias.v), out: values };
        if narrows {
            self.backend.linear_many(normed, &mut [k, v]);
        } else {
            self.backend.linear_many(normed, &mut [q, k, v]);
        }
        let all = self.rows.adapted;
        adapt(self.backend, all, (layer, Target::Key), adapted, normed, keys)?;
        adapt(self.backend, all, (layer, Target::Value), adapted, normed, values)?;
        if narrows {
            self.narrow()?;
            let Workspace { normed, queries, .. } = &mut *self.work;
            self.backend.linear(normed, &qkv.q, bias.map(|bias| &bias.q), queries);
        }
        let live = self.live().adapted;
        let Workspace { normed, queries, adapted, .. } = &mut *self.work;
        adapt(self.backend, live, (layer, Target::Query), adapted, normed, queries)
    }

    /// `q, k = rms_norm(each head) * weight`
    pub(super) fn norm_heads(&mut self, norms: &HeadNorms<B>, epsilon: f32) {
        self.backend.rms_norm_in_place(&mut self.work.queries, &norms.q, epsilon);
        self.backend.rms_norm_in_place(&mut self.work.keys, &norms.k, epsilon);
    }

    /// `delta = W softmax(q k^T * scale) v` over the sequence so far, rotated, with this pass's keys and values stored first.
    pub(super) fn attend(
        &mut self,
        layer: usize,
        shape: &AttentionShape,
        turn: Turn,
        output: &B::Matrix,
    ) -> Result<(), BackendError> {
        let Rows { spans, adapted: changes } = self.live();
        let Workspace { queries, keys, values, angles, attended, delta, adapted, .. } = &mut *self.work;
        let angles = &mut angles[turn.table];
        self.backend.rope(keys, shape.head_dim, turn.pairing, angles);
        self.backend.kv_write(self.pages, layer, keys, values, self.rows.spans);
        if let Some(wanted) = self.wanted.as_ref().filter(|_| self.progress.is_narrow) {
            self.backend.keep_rows(angles, wanted.of_pass);
        }
        self.backend.rope(queries, shape.head_dim, turn.pairing, angles);
        self.backend.attention(queries, self.pages, layer, shape, spans, attended);
        self.backend.linear(attended, output, None, delta);
        adapt(self.backend, changes, (layer, Target::AttentionOutput), adapted, attended, delta)
    }

    /// `delta = down(act(gate normed) * up normed)`
    pub(super) fn feed_forward(
        &mut self,
        layer: usize,
        weights: &FeedForward<B>,
        act: Gate,
    ) -> Result<(), BackendError> {
        let changes = self.live().adapted;
        let Workspace { normed, gate, up, delta, adapted, .. } = &mut *self.work;
        self.backend.linear_many(
            normed,
            &mut [
                Product { weight: &weights.gate, bias: None, out: gate },
                Product { weight: &weights.up, bias: None, out: up },
            ],
        );
        adapt(self.backend, changes, (layer, Target::Gate), adapted, normed, gate)?;
        adapt(self.backend, changes, (layer, Target::Up), adapted, normed, up)?;
        self.backend.gate(gate, up, act);
        self.backend.linear(gate, &weights.down, None, delta);
        adapt(self.backend, changes, (layer, Target::Down), adapted, gate, delta)
    }

    /// `delta = rms_norm(delta) * weight`
    pub(super) fn norm_delta(&mut self, weight: &B::Vector, epsilon: f32) {
        self.backend.rms_norm_in_place(&mut self.work.delta, weight, epsilon);
    }

    /// `x = x + delta`, together with the norm that comes next.
    pub(super) fn add_delta(&mut self) {
        self.progress.delta_is_due = true;
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
    hidden(backend, work, rows, ends, epsilon)?;
    let Workspace { wanted, logits, .. } = work;
    backend.linear(wanted, ends.head.as_ref().unwrap_or(&ends.embedding), None, logits);
    Ok(())
}

/// `wanted = rms_norm(x) * weight` for some rows of the stream, as many as the head has room for.
pub(super) fn hidden<B: Backend>(
    backend: &B,
    work: &mut Workspace<B>,
    rows: &[usize],
    ends: &Ends<B>,
    epsilon: f32,
) -> Result<(), BackendError> {
    work.resize_head(backend, rows.len())?;
    backend.gather_rows(&work.stream, rows, &mut work.wanted);
    backend.rms_norm_in_place(&mut work.wanted, &ends.norm, epsilon);
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
