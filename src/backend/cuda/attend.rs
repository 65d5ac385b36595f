//! Launches of attention: rows of short spans split by position, a block for each segment and a merge behind; long spans walked.
//!
//! # Invariants
//! Either way gives the same bits, so memory may decide: rows whose slots the scratch has no room for are walked too.

use super::driver::At;
use super::launch::Parameter;
use super::launch::{Launcher, MOST_DIMS, PoolLayers, SpanList, check, parameters, word};
use crate::backend::{AttentionShape, BackendError, KvShape, KvType};

/// Pairs of a row and a query head that a block takes: of one span, and of a shared segment (kernels/attention.cuh, kernels/attention_decode.cu).
const PAIRS: usize = 8;
const SHARED_PAIRS: usize = 16;

/// Elements of a slot: of each head the weighted values and the state.
fn slot_elements(n_heads: usize, head_dim: usize) -> usize {
    n_heads * (head_dim + 2)
}

/// Bytes of slots for each of so many segments.
pub(super) fn slots_bytes(shape: &KvShape, group: usize, segments: usize) -> usize {
    slot_elements(shape.n_kv_heads * group, shape.head_dim).saturating_mul(segments).saturating_mul(size_of::<f32>())
}

/// What the launches of one operation have in common.
#[derive(Clone, Copy)]
pub(super) struct Attend<'a> {
    pub(super) out: At<f32>,
    pub(super) queries: At<f32>,
    pub(super) pool: PoolLayers,
    pub(super) shape: &'a AttentionShape,
    pub(super) list: SpanList,
}

impl Attend<'_> {
    /// Blocks that the pairs of so many rows fill.
    fn chunks(&self, rows: usize, pairs: usize) -> usize {
        (rows * self.shape.n_heads / self.shape.n_kv_heads).div_ceil(pairs)
    }

    /// The sizes that all kernels take, and the scale.
    fn sizes(&self) -> Result<[Parameter; 7], BackendError> {
        let AttentionShape { n_heads, n_kv_heads, head_dim, scale, window } = *self.shape;
        let page_size = self.pool.shape.page_size_tokens;
        Ok(parameters![
            word(n_heads)?,
            word(n_kv_heads)?,
            word(head_dim)?,
            word(page_size)?,
            word(self.list.width)?,
            word(window.unwrap_or(0))?,
            scale
        ])
    }

    fn check(&self) -> Result<(), BackendError> {
        let AttentionShape { n_heads, n_kv_heads, head_dim, .. } = *self.shape;
        let needed = self.list.rows * n_heads * head_dim;
        let name = "attention";
        check(name, n_kv_heads > 0 && n_heads.is_multiple_of(n_kv_heads))?;
        check(name, (n_kv_heads, head_dim) == (self.pool.shape.n_kv_heads, self.pool.shape.head_dim))?;
        check(name, head_dim.is_multiple_of(8) && head_dim <= MOST_DIMS)?;
        check(name, self.pool.has(1) && self.queries.len() >= needed && self.out.len() >= needed)
    }

    fn elements(&self) -> usize {
        self.list.split.counts.slots.saturating_mul(slot_elements(self.shape.n_heads, self.shape.head_dim))
    }
}

impl Launcher {
    /// Attention of all rows.
    pub(super) fn attention(&self, attend: Attend<'_>, scratch: At<f32>) -> Result<(), BackendError> {
        attend.check()?;
        let counts = attend.list.split.counts;
        if attend.elements() > scratch.len() {
            return self.attention_walk(attend, At::null(), attend.list.most_rows);
        }
        if counts.members > 0 {
            self.attention_split(attend, scratch)?;
        }
        if counts.walked_rows > 0 {
            self.attention_walk(attend, attend.list.split.parts, counts.walked_rows)?;
        }
        Ok(())
    }

    /// The rows of spans that are split; `scratch` has room for their slots.
    fn attention_split(&self, attend: Attend<'_>, scratch: At<f32>) -> Result<(), BackendError> {
        let Attend { out, queries, pool, shape, list } = attend;
        let split = list.split;
        let (partial, states) = (scratch, scratch.from(split.counts.slots * shape.n_heads * shape.head_dim));
        let [heads, kv_heads, dims, page, width, window, scale] = attend.sizes()?;
        if split.counts.tasks > 0 {
            let name = match pool.shape.element {
                KvType::F16 => "ictus_attention_shared_f16",
                KvType::F32 => "ictus_attention_shared_f32",
            };
            let chunks = attend.chunks(split.counts.most_members, SHARED_PAIRS);
            let parameters = [
                partial.into(),
                states.into(),
                queries.into(),
                pool.bytes.into(),
                list.table.into(),
                split.tasks.into(),
                split.members.into(),
                word(chunks)?.into(),
                heads,
                kv_heads,
                dims,
                page,
                width,
                window,
                scale,
            ];
            let grid = [split.counts.tasks * chunks, shape.n_kv_heads, 1];
            // SAFETY: rows of the spans, pages of one layer, and the slots of the members, all there by `Attend::check` and the caller; the lists
            // were made whole.
            unsafe { self.launch(name, grid, &parameters) }?;
        }
        let name = match pool.shape.element {
            KvType::F16 => "ictus_attention_decode_f16",
            KvType::F32 => "ictus_attention_decode_f32",
        };
        let parameters = [
            partial.into(),
            states.into(),
            queries.into(),
            pool.bytes.into(),
            list.table.into(),
            list.spans.into(),
            split.parts.into(),
            split.members.into(),
            heads,
            kv_heads,
            dims,
            page,
            width,
            window,
            scale,
        ];
        let chunks = attend.chunks(split.counts.most_rows, PAIRS);
        let grid = [split.counts.segments, shape.n_kv_heads * chunks, list.count];
        // SAFETY: as above.
        unsafe { self.launch(name, grid, &parameters) }?;
        let name = "ictus_attention_merge";
        let parameters = parameters![out, partial, states, split.members, word(shape.head_dim)?];
        // SAFETY: rows of `out`, and the slots of the members, all there as above.
        unsafe { self.launch(name, [shape.n_heads, split.counts.members, 1], &parameters) }
    }

    /// The rows of the spans that `parts` leaves, which have at most `most_rows` rows; a block for some of them and all of their segments.
    fn attention_walk(&self, attend: Attend<'_>, parts: At<u32>, most_rows: usize) -> Result<(), BackendError> {
        let Attend { out, queries, pool, shape, list } = attend;
        let name = match pool.shape.element {
            KvType::F16 => "ictus_attention_prefill_f16",
            KvType::F32 => "ictus_attention_prefill_f32",
        };
        let [heads, kv_heads, dims, page, width, window, scale] = attend.sizes()?;
        let parameters = [
            out.into(),
            queries.into(),
            pool.bytes.into(),
            list.table.into(),
            list.spans.into(),
            parts.into(),
            heads,
            kv_heads,
            dims,
            page,
            width,
            window,
            scale,
        ];
        let grid = [attend.chunks(most_rows, PAIRS), shape.n_kv_heads, list.count];
        // SAFETY: the spans' rows of queries and `out`, and pages of one layer, all there by `Attend::check`; `parts` is null or whole.
        unsafe { self.launch(name, grid, &parameters) }
    }
}
