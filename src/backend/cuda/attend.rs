//! Launches of attention: rows of short spans split by position, a block for each segment and a merge behind; long spans walked.
//!
//! # Invariants
//! - Either way gives the same bits, so memory may decide: rows whose slots the scratch has no room for are walked too.
//! - Fast arithmetic takes the tensor cores' kernels where the pool has pages of f16 and they know the size of its heads, else the exact ones: what
//!   decides is the same in every step.

use smallvec::SmallVec;

use super::driver::At;
use super::launch::{Launcher, MOST_DIMS, Parameter, PoolLayers, SpanList, check, parameters, word};
use crate::backend::{Arithmetic, AttentionShape, BackendError, KvShape, KvType};

/// The kernels of one arithmetic, element and size of heads, and the pairs of a row and a query head that a block of each takes.
#[derive(Clone, Copy, Debug)]
struct Family {
    /// Segments of one span, and of several.
    own: (&'static str, usize),
    shared: (&'static str, usize),
    merge: &'static str,
    walk: (&'static str, usize),
    /// Whether the size of heads is in the name and no parameter.
    is_fast: bool,
}

/// The tensor cores' kernels for heads of one size.
macro_rules! fast {
    ($dims:literal, $walked:literal) => {
        Family {
            own: (concat!("ictus_attention_fast_decode_", $dims), 16),
            shared: (concat!("ictus_attention_fast_shared_", $dims), 16),
            merge: "ictus_attention_fast_merge",
            walk: (concat!("ictus_attention_fast_prefill_", $dims), $walked),
            is_fast: true,
        }
    };
}

/// Those on the other cores for one element type.
macro_rules! exact {
    ($element:literal) => {
        Family {
            own: (concat!("ictus_attention_decode_", $element), 8),
            shared: (concat!("ictus_attention_shared_", $element), 16),
            merge: "ictus_attention_merge",
            walk: (concat!("ictus_attention_prefill_", $element), 8),
            is_fast: false,
        }
    };
}

impl Family {
    fn of(arithmetic: Arithmetic, pool: &KvShape) -> Self {
        match (arithmetic, pool.element, pool.head_dim) {
            (Arithmetic::Fast, KvType::F16, 64) => fast!("64", 64),
            (Arithmetic::Fast, KvType::F16, 96) => fast!("96", 64),
            (Arithmetic::Fast, KvType::F16, 128) => fast!("128", 64),
            (Arithmetic::Fast, KvType::F16, 256) => fast!("256", 32),
            (_, KvType::F16, _) => exact!("f16"),
            (_, KvType::F32, _) => exact!("f32"),
        }
    }
}

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
    pub(super) arithmetic: Arithmetic,
    pub(super) out: At<f32>,
    pub(super) queries: At<f32>,
    pub(super) pool: PoolLayers,
    pub(super) shape: &'a AttentionShape,
    pub(super) list: SpanList,
}

/// Parameters of one launch.
type Parameters = SmallVec<[Parameter; 16]>;

impl Attend<'_> {
    /// Blocks that the pairs of so many rows fill.
    fn chunks(&self, rows: usize, pairs: usize) -> usize {
        (rows * self.shape.n_heads / self.shape.n_kv_heads).div_ceil(pairs)
    }

    /// Some parameters, and behind them the sizes and the scale, which all kernels take.
    fn with_sizes(
        &self,
        family: Family,
        first: impl IntoIterator<Item = Parameter>,
    ) -> Result<Parameters, BackendError> {
        let AttentionShape { n_heads, n_kv_heads, head_dim, scale, window } = *self.shape;
        let mut all: Parameters = first.into_iter().collect();
        all.extend(parameters![word(n_heads)?, word(n_kv_heads)?]);
        if !family.is_fast {
            all.push(word(head_dim)?.into());
        }
        let page_size = self.pool.shape.page_size_tokens;
        all.extend(parameters![word(page_size)?, word(self.list.width)?, word(window.unwrap_or(0))?, scale]);
        Ok(all)
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

    /// Elements of the slots of all members.
    fn elements(&self) -> usize {
        self.list.split.counts.slots.saturating_mul(slot_elements(self.shape.n_heads, self.shape.head_dim))
    }
}

impl Launcher {
    /// Has the kernels compiled that attention over this pool takes.
    pub(super) fn prepare_attention(&self, arithmetic: Arithmetic, pool: &KvShape) -> Result<(), BackendError> {
        let family = Family::of(arithmetic, pool);
        self.prepare_kernels(&[family.own.0, family.walk.0])
    }

    /// Attention of all rows.
    pub(super) fn attention(&self, attend: Attend<'_>, scratch: At<f32>) -> Result<(), BackendError> {
        attend.check()?;
        let family = Family::of(attend.arithmetic, &attend.pool.shape);
        let counts = attend.list.split.counts;
        if attend.elements() > scratch.len() {
            return self.attention_walk(family, attend, At::null(), attend.list.most_rows);
        }
        if counts.members > 0 {
            self.attention_split(family, attend, scratch)?;
        }
        if counts.walked_rows > 0 {
            self.attention_walk(family, attend, attend.list.split.parts, counts.walked_rows)?;
        }
        Ok(())
    }

    /// The rows of spans that are split; `scratch` has room for their slots.
    fn attention_split(&self, family: Family, attend: Attend<'_>, scratch: At<f32>) -> Result<(), BackendError> {
        let Attend { out, queries, pool, shape, list, .. } = attend;
        let split = list.split;
        let (partial, states) = (scratch, scratch.from(split.counts.slots * shape.n_heads * shape.head_dim));
        let common = parameters![partial, states, queries, pool.bytes, list.table];
        if split.counts.tasks > 0 {
            let (name, pairs) = family.shared;
            let chunks = attend.chunks(split.counts.most_members, pairs);
            let lists = parameters![split.tasks, split.members, word(chunks)?];
            let parameters = attend.with_sizes(family, common.into_iter().chain(lists))?;
            let grid = [split.counts.tasks * chunks, shape.n_kv_heads, 1];
            // SAFETY: rows of the spans, pages of one layer, and the slots of the members, all there by `Attend::check` and the caller; the lists
            // were made whole.
            unsafe { self.launch(name, grid, &parameters) }?;
        }
        let (name, pairs) = family.own;
        let lists = parameters![list.spans, split.parts, split.members];
        let parameters = attend.with_sizes(family, common.into_iter().chain(lists))?;
        let chunks = attend.chunks(split.counts.most_rows, pairs);
        let grid = [split.counts.segments, shape.n_kv_heads * chunks, list.count];
        // SAFETY: as above.
        unsafe { self.launch(name, grid, &parameters) }?;
        let window = word(shape.window.unwrap_or(0))?;
        let parameters = parameters![out, partial, states, split.members, word(shape.head_dim)?, window];
        // SAFETY: rows of `out`, and the slots of the members, all there as above.
        unsafe { self.launch(family.merge, [shape.n_heads, split.counts.members, 1], &parameters) }
    }

    /// The rows of the spans that `parts` leaves, which have at most `most_rows` rows; a block for some of them and all of their segments.
    fn attention_walk(
        &self,
        family: Family,
        attend: Attend<'_>,
        parts: At<u32>,
        most_rows: usize,
    ) -> Result<(), BackendError> {
        let Attend { out, queries, pool, shape, list, .. } = attend;
        let (name, pairs) = family.walk;
        let first = parameters![out, queries, pool.bytes, list.table, list.spans, parts];
        let parameters = attend.with_sizes(family, first)?;
        let grid = [attend.chunks(most_rows, pairs), shape.n_kv_heads, list.count];
        // SAFETY: the spans' rows of queries and `out`, and pages of one layer, all there by `Attend::check`; `parts` is null or whole.
        unsafe { self.launch(name, grid, &parameters) }
    }
}
