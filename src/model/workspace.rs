#![forbid(unsafe_code)]
//! The activation rows of a pass, in buffers that are made once and used for every step.
//!
//! # Limits
//! `rows` rows for the walk and `head_rows` rows of logits: longer steps are walked in parts, so the memory is known before
//! the model is loaded ([`WorkspaceShape::bytes`]).

use super::adapter::AdapterRows;
use super::rope::Ropes;
use super::spread::Activations;
use crate::backend::{Backend, BackendError, Spread};
use crate::checkpoint::ModelConfig;

/// Sizes of a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkspaceShape {
    /// Most rows of a pass.
    pub rows: usize,
    /// Most rows of logits at once.
    pub head_rows: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the queries: all heads.
    pub query: usize,
    /// Width of the keys, and of the values.
    pub key: usize,
    /// Key and value heads, that the keys are cut between.
    pub n_kv_heads: usize,
    /// Width of the feed-forward layer.
    pub ffn_hidden: usize,
    /// Cosines and sines of a row's position, for each way of turning.
    pub angles: usize,
    /// Ways of turning.
    pub turns: usize,
    /// Logits of a row.
    pub vocab: usize,
}

impl WorkspaceShape {
    /// The sizes for a model.
    pub fn new(config: &ModelConfig, rows: usize, head_rows: usize) -> Self {
        Self {
            rows,
            head_rows,
            hidden: config.hidden,
            query: config.n_heads * config.head_dim,
            key: config.n_kv_heads * config.head_dim,
            n_kv_heads: config.n_kv_heads,
            ffn_hidden: config.ffn_hidden,
            angles: 2 * (config.rope.dims / 2),
            turns: Ropes::count(config),
            vocab: config.vocab,
        }
    }

    /// How the columns lie on several devices.
    pub(super) fn spread(&self) -> Activations {
        Activations::new(self.query, self.key, self.n_kv_heads)
    }

    /// Bytes of all buffers; none on overflow.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes_on(0, 1)
    }

    /// Bytes of all buffers of device `member` out of `members`; none on overflow.
    pub fn bytes_on(&self, member: usize, members: usize) -> Option<u64> {
        let Activations { whole, queries, keys, attended, collected, columns } = self.spread();
        let Self { hidden, query, key, ffn_hidden, angles, turns, .. } = *self;
        let held = |width: usize, spread: Spread| match members {
            1 => width as u64,
            _ => spread.held(width, member, members) as u64,
        };
        let pass_width = 2 * held(hidden, whole)
            + held(hidden, collected)
            + held(query, queries)
            + held(query, attended)
            + 2 * held(key, keys)
            + held(ffn_hidden, collected)
            + held(ffn_hidden, columns)
            + turns as u64 * held(angles, whole);
        let head_width = held(hidden, whole) + held(self.vocab, collected);
        let pass = pass_width.checked_mul(self.rows as u64)?;
        let head = head_width.checked_mul(self.head_rows as u64)?;
        pass.checked_add(head)?.checked_mul(size_of::<f32>() as u64)
    }
}

/// Buffers of one row per fed token, and of one row per row of logits.
pub struct Workspace<B: Backend> {
    /// The residual stream, `[rows, hidden]`.
    pub(super) stream: B::Buffer,
    /// The stream under a norm, `[rows, hidden]`.
    pub(super) normed: B::Buffer,
    /// What a section adds to the stream, `[rows, hidden]`.
    pub(super) delta: B::Buffer,
    /// Queries, `[rows, n_heads * head_dim]`.
    pub(super) queries: B::Buffer,
    /// Keys, `[rows, n_kv_heads * head_dim]`.
    pub(super) keys: B::Buffer,
    /// Values, `[rows, n_kv_heads * head_dim]`.
    pub(super) values: B::Buffer,
    /// What the heads attend to, `[rows, n_heads * head_dim]`.
    pub(super) attended: B::Buffer,
    /// Gate of the feed-forward section, then its product, `[rows, ffn_hidden]`.
    pub(super) gate: B::Buffer,
    /// The other factor, `[rows, ffn_hidden]`.
    pub(super) up: B::Buffer,
    /// Angles of the rows' positions for each way of turning, `[rows, 2 * pairs]`.
    pub(super) angles: Vec<B::Buffer>,
    /// Rows of the stream whose logits are wanted, `[head_rows, hidden]`.
    pub(super) wanted: B::Buffer,
    /// Logits, `[head_rows, vocab]`.
    pub(super) logits: B::Buffer,
    /// Rows of adapters, once there is one.
    pub(super) adapted: Option<AdapterRows<B>>,
}

impl<B: Backend> Workspace<B> {
    /// Makes all buffers at their largest.
    ///
    /// # Errors
    /// `OutOfMemory`, `Device`.
    pub fn new(backend: &B, shape: &WorkspaceShape) -> Result<Self, BackendError> {
        let Activations { whole, queries, keys, attended, collected, columns } = shape.spread();
        let mut work = Self {
            stream: backend.buffer_in(shape.hidden, whole),
            normed: backend.buffer_in(shape.hidden, whole),
            delta: backend.buffer_in(shape.hidden, collected),
            queries: backend.buffer_in(shape.query, queries),
            keys: backend.buffer_in(shape.key, keys),
            values: backend.buffer_in(shape.key, keys),
            attended: backend.buffer_in(shape.query, attended),
            gate: backend.buffer_in(shape.ffn_hidden, collected),
            up: backend.buffer_in(shape.ffn_hidden, columns),
            angles: (0..shape.turns).map(|_| backend.buffer_in(shape.angles, whole)).collect(),
            wanted: backend.buffer_in(shape.hidden, whole),
            logits: backend.buffer_in(shape.vocab, collected),
            adapted: None,
        };
        work.resize(backend, shape.rows)?;
        work.resize_head(backend, shape.head_rows)?;
        Ok(work)
    }

    /// Gives the buffers of a pass `rows` rows.
    ///
    /// # Errors
    /// `OutOfMemory`, `Device`; never for as many rows as the workspace was made for.
    pub fn resize(&mut self, backend: &B, rows: usize) -> Result<(), BackendError> {
        let Self { stream, normed, delta, queries, keys, values, attended, gate, up, angles, .. } = self;
        let buffers = [stream, normed, delta, queries, keys, values, attended, gate, up];
        buffers.into_iter().chain(angles).try_for_each(|buffer| backend.resize(buffer, rows))
    }

    /// Keeps some rows of the stream and of what was normed of it, and gives as many to what follows in a layer.
    pub(super) fn narrow(&mut self, backend: &B, rows: &[usize]) -> Result<(), BackendError> {
        let Self { stream, normed, delta, queries, attended, gate, up, .. } = self;
        for kept in [stream, normed] {
            backend.keep_rows(kept, rows);
        }
        [delta, queries, attended, gate, up].into_iter().try_for_each(|buffer| backend.resize(buffer, rows.len()))
    }

    /// Gives the buffers of the head `rows` rows.
    pub(super) fn resize_head(&mut self, backend: &B, rows: usize) -> Result<(), BackendError> {
        backend.resize(&mut self.wanted, rows)?;
        backend.resize(&mut self.logits, rows)
    }

    /// The residual stream, `[rows, hidden]`: behind a walk the rows that were wanted.
    pub fn stream(&self) -> &B::Buffer {
        &self.stream
    }

    /// The residual stream, to be filled before a walk that does not begin with the first layer.
    pub fn stream_mut(&mut self) -> &mut B::Buffer {
        &mut self.stream
    }

    /// Hidden states of the rows that [`Network::hidden`](super::Network::hidden) was last asked for, `[rows, hidden]`.
    pub fn hidden(&self) -> &B::Buffer {
        &self.wanted
    }

    /// Logits of the rows that the head was last asked for, to be shaped; the next call of the head writes them anew.
    pub fn logits_mut(&mut self) -> &mut B::Buffer {
        &mut self.logits
    }

    /// Logits of the rows that the head was last asked for, `[rows, vocab]`.
    pub fn logits(&self) -> &B::Buffer {
        &self.logits
    }
}
