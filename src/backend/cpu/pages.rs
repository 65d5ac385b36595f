#![forbid(unsafe_code)]
//! The pool of pages: keys and values of all layers in one allocation.
//!
//! ```text
//! pool    [layer 0 | layer 1 | ...]                      so that the pages of a layer lie together
//! layer   [page 0 | page 1 | ...]
//! page    [head 0: keys, values | head 1: keys, values | ...]
//! keys    [slots 0 .. 16: dim 0 of each, dim 1 of each, ... | slots 16 .. 32 | ...]      positions side by side
//! values  [dims 0 .. 16: slot 0, slot 1, ... | dims 16 .. 32 | ...]                      dimensions side by side
//! ```
//! The slots of a page are consecutive positions of a sequence. So one load has the same dimension of sixteen keys, or sixteen dimensions
//! of a value: scores and weighted sums come out lane by lane, without sums across lanes. Where the slots of a page, or the dimensions,
//! are no multiple of sixteen, the last block or strip is as narrow as what is left: nothing is padded.
//!
//! # Limits
//! Fixed when it is made: [`KvShape`]. Memory that no page was written to costs nothing.
//!
//! # Not here
//! Outside the pool a token's keys and values lie in order ([`Pages::read`]): nobody else knows of blocks and strips, `attention` excepted.

use std::ops::Range;

use super::memory::Aligned;
use super::simd::{LANES, Simd, store_part};
use crate::backend::{BackendError, KvShape, KvType};

/// Positions, or dimensions, that lie side by side.
pub(super) const SIDE: usize = 16;

/// An element of a page.
pub(super) trait Element: bytemuck::Pod + Send + Sync {
    /// Sixteen elements.
    fn load_w<S: Simd>(s: S, from: &[Self; SIDE]) -> S::W;
    /// Writes eight elements.
    fn store<S: Simd>(s: S, v: S::V, to: &mut [Self; 8]);
    /// Writes as many lanes as fit.
    fn store_part<S: Simd>(s: S, v: S::V, to: &mut [Self]);
}

impl Element for f32 {
    #[inline(always)]
    fn load_w<S: Simd>(s: S, from: &[f32; SIDE]) -> S::W {
        s.load_w(from)
    }

    #[inline(always)]
    fn store<S: Simd>(s: S, v: S::V, to: &mut [f32; 8]) {
        s.store(v, to);
    }

    #[inline(always)]
    fn store_part<S: Simd>(s: S, v: S::V, to: &mut [f32]) {
        store_part(s, v, to);
    }
}

/// The bits of an IEEE binary16.
impl Element for u16 {
    #[inline(always)]
    fn load_w<S: Simd>(s: S, from: &[u16; SIDE]) -> S::W {
        s.load_w_f16(bytemuck::cast_ref(from))
    }

    #[inline(always)]
    fn store<S: Simd>(s: S, v: S::V, to: &mut [u16; 8]) {
        s.store_f16(v, to);
    }

    #[inline(always)]
    fn store_part<S: Simd>(s: S, v: S::V, to: &mut [u16]) {
        let mut lanes = [0; LANES];
        s.store_f16(v, &mut lanes);
        for (bits, &lane) in to.iter_mut().zip(&lanes) {
            *bits = lane;
        }
    }
}

/// The elements of a pool.
pub(super) enum Elements {
    F16(Aligned<u16>),
    F32(Aligned<f32>),
}

/// Keys and values of all layers.
pub struct Pages {
    pub(super) shape: KvShape,
    pub(super) elements: Elements,
}

impl Pages {
    pub(super) fn new(shape: &KvShape) -> Result<Self, BackendError> {
        let refused = BackendError::OutOfMemory { bytes: u64::MAX };
        let pool_bytes = shape.page_bytes().and_then(|bytes| bytes.checked_mul(shape.pages as u64));
        let Some(pool_bytes) = pool_bytes.and_then(|bytes| usize::try_from(bytes).ok()) else { return Err(refused) };
        let len = pool_bytes / shape.element.bytes();
        let elements = match shape.element {
            KvType::F16 => Elements::F16(Aligned::zeroed(len)?),
            KvType::F32 => Elements::F32(Aligned::zeroed(len)?),
        };
        Ok(Self { shape: *shape, elements })
    }

    pub(super) fn layout(&self, layer: usize) -> Layout {
        Layout::new(self.shape, layer)
    }

    /// Page `to` becomes page `from`, in all layers.
    pub(super) fn copy(&mut self, copies: &[(u32, u32)]) {
        for layer in 0..self.shape.layers {
            let layout = self.layout(layer);
            for &(from, to) in copies {
                let (from, to) = (layout.page_at(from), layout.page_at(to));
                match &mut self.elements {
                    Elements::F16(elements) => elements.copy_within(from..from + layout.page, to),
                    Elements::F32(elements) => elements.copy_within(from..from + layout.page, to),
                }
            }
        }
    }

    /// The bytes of tokens, token after token (see `Backend::read_tokens`).
    pub(super) fn read(&self, block_table: &[u32], positions: Range<usize>, out: &mut [u8]) {
        match &self.elements {
            Elements::F16(elements) => read(self.shape, elements, block_table, positions, out),
            Elements::F32(elements) => read(self.shape, elements, block_table, positions, out),
        }
    }

    /// Writes the bytes that [`Pages::read`] read.
    pub(super) fn write(&mut self, block_table: &[u32], positions: Range<usize>, bytes: &[u8]) {
        match &mut self.elements {
            Elements::F16(elements) => write(self.shape, elements, block_table, positions, bytes),
            Elements::F32(elements) => write(self.shape, elements, block_table, positions, bytes),
        }
    }
}

fn read<E: bytemuck::Pod>(
    shape: KvShape,
    elements: &[E],
    block_table: &[u32],
    positions: Range<usize>,
    out: &mut [u8],
) {
    each_run(shape, block_table, positions, |layout, head, run| {
        let mut slot = run.slots.start;
        while slot < run.slots.end {
            if let Some(block) = layout.whole_key_block(&run.slots, slot) {
                // A square of sixteen slots and as many dimensions is turned at a time: both sides are then copied in runs.
                let keys = elements[head + block.start..head + block.end].as_chunks::<SIDE>().0.as_chunks::<SIDE>().0;
                for (square, keys) in keys.iter().enumerate() {
                    for (lane, key) in turned(keys).iter().enumerate() {
                        let to = run.bytes::<E>(slot + lane, square * SIDE, SIDE);
                        out[to].copy_from_slice(bytemuck::bytes_of(key));
                    }
                }
                slot += SIDE;
                continue;
            }
            let (first, stride) = layout.key(slot);
            let from = elements[head + first..].iter().step_by(stride);
            let to = &mut out[run.bytes::<E>(slot, 0, layout.dim)];
            for (to, from) in to.chunks_exact_mut(size_of::<E>()).zip(from) {
                to.copy_from_slice(bytemuck::bytes_of(from));
            }
            slot += 1;
        }
        for dim in (0..layout.dim).step_by(SIDE) {
            for slot in run.slots.clone() {
                let part = layout.value(slot, dim);
                let to = run.bytes::<E>(slot, layout.dim + dim, part.len());
                out[to].copy_from_slice(bytemuck::cast_slice(&elements[head + part.start..head + part.end]));
            }
        }
    });
}

fn write<E: bytemuck::Pod>(
    shape: KvShape,
    elements: &mut [E],
    block_table: &[u32],
    positions: Range<usize>,
    bytes: &[u8],
) {
    each_run(shape, block_table, positions, |layout, head, run| {
        let mut slot = run.slots.start;
        while slot < run.slots.end {
            if let Some(block) = layout.whole_key_block(&run.slots, slot) {
                let keys = &mut elements[head + block.start..head + block.end];
                let keys = keys.as_chunks_mut::<SIDE>().0.as_chunks_mut::<SIDE>().0;
                for (square, keys) in keys.iter_mut().enumerate() {
                    let mut square_keys = [[E::zeroed(); SIDE]; SIDE];
                    for (lane, key) in square_keys.iter_mut().enumerate() {
                        let from = run.bytes::<E>(slot + lane, square * SIDE, SIDE);
                        bytemuck::bytes_of_mut(key).copy_from_slice(&bytes[from]);
                    }
                    *keys = turned(&square_keys);
                }
                slot += SIDE;
                continue;
            }
            let (first, stride) = layout.key(slot);
            let to = elements[head + first..].iter_mut().step_by(stride);
            let from = &bytes[run.bytes::<E>(slot, 0, layout.dim)];
            for (from, to) in from.chunks_exact(size_of::<E>()).zip(to) {
                bytemuck::bytes_of_mut(to).copy_from_slice(from);
            }
            slot += 1;
        }
        for dim in (0..layout.dim).step_by(SIDE) {
            for slot in run.slots.clone() {
                let part = layout.value(slot, dim);
                let from = run.bytes::<E>(slot, layout.dim + dim, part.len());
                bytemuck::cast_slice_mut(&mut elements[head + part.start..head + part.end])
                    .copy_from_slice(&bytes[from]);
            }
        }
    });
}

/// Rows become columns.
#[inline(always)]
fn turned<E: bytemuck::Pod>(square: &[[E; SIDE]; SIDE]) -> [[E; SIDE]; SIDE] {
    let mut out = [[E::zeroed(); SIDE]; SIDE];
    for (column, row) in square.iter().enumerate() {
        for (to, element) in out.iter_mut().zip(row) {
            to[column] = *element;
        }
    }
    out
}

/// Slots of a page, and where the same head's keys of their tokens are outside.
struct Run {
    slots: Range<usize>,
    /// Of the first slot: its keys in the record of tokens, in elements.
    record: usize,
    /// Elements from token to token.
    token: usize,
}

impl Run {
    /// The bytes of `len` elements from `dim` on, keys and values counted through, of a slot's token.
    #[inline(always)]
    fn bytes<E>(&self, slot: usize, dim: usize, len: usize) -> Range<usize> {
        let start = (self.record + (slot - self.slots.start) * self.token + dim) * size_of::<E>();
        start..start + len * size_of::<E>()
    }
}

/// Calls `visit` with the layout of the layer, the place of the head in the pool, and the slots of a page. Page by page and head by head, so
/// that the pool is walked in its own order.
#[inline(always)]
fn each_run(shape: KvShape, block_table: &[u32], positions: Range<usize>, mut visit: impl FnMut(&Layout, usize, &Run)) {
    let KvShape { layers, n_kv_heads, head_dim, page_size_tokens, .. } = shape;
    let token = shape.token_elements();
    let mut at = positions.start;
    while at < positions.end {
        let page_end = positions.end.min((at / page_size_tokens + 1) * page_size_tokens);
        let page = block_table[at / page_size_tokens];
        let slot = at % page_size_tokens;
        for layer in 0..layers {
            let layout = Layout::new(shape, layer);
            for head in 0..n_kv_heads {
                let record = (at - positions.start) * token + (layer * n_kv_heads + head) * 2 * head_dim;
                let run = Run { slots: slot..slot + (page_end - at), record, token };
                visit(&layout, layout.head_at(page, head), &run);
            }
        }
        at = page_end;
    }
}

/// Where things lie in a layer, in elements.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// Start of the layer.
    layer: usize,
    page: usize,
    head: usize,
    dim: usize,
    pub(super) page_size_tokens: usize,
}

impl Layout {
    fn new(shape: KvShape, layer: usize) -> Self {
        let KvShape { n_kv_heads, head_dim, page_size_tokens, pages, .. } = shape;
        let head = 2 * page_size_tokens * head_dim;
        let page = n_kv_heads * head;
        Self { layer: layer * pages * page, page, head, dim: head_dim, page_size_tokens }
    }

    fn page_at(&self, page: u32) -> usize {
        self.layer + page as usize * self.page
    }

    /// Where a head of a page begins.
    #[inline(always)]
    pub(super) fn head_at(&self, page: u32, head: usize) -> usize {
        self.page_at(page) + head * self.head
    }

    /// Where in a head dimension 0 of the slot's key lies, and how far it is from one dimension to the next.
    #[inline(always)]
    pub(super) fn key(&self, slot: usize) -> (usize, usize) {
        let (block, lane) = (slot - slot % SIDE, slot % SIDE);
        (block * self.dim + lane, SIDE.min(self.page_size_tokens - block))
    }

    /// Where in a head the keys of the block of slots that begins with `slot` are, when all sixteen are among `slots`, and so are whole squares
    /// of dimensions.
    #[inline(always)]
    fn whole_key_block(&self, slots: &Range<usize>, slot: usize) -> Option<Range<usize>> {
        let whole = slot.is_multiple_of(SIDE) && slot + SIDE <= slots.end && self.dim.is_multiple_of(SIDE);
        whole.then(|| slot * self.dim..(slot + SIDE) * self.dim)
    }

    /// Where in a head the dimensions of the slot's value from `dim` on lie that are side by side; `dim` begins a strip.
    #[inline(always)]
    pub(super) fn value(&self, slot: usize, dim: usize) -> Range<usize> {
        let width = SIDE.min(self.dim - dim);
        let start = self.head / 2 + dim * self.page_size_tokens + slot * width;
        start..start + width
    }

    /// Elements from one strip of values to the next.
    #[inline(always)]
    pub(super) fn strip(&self) -> usize {
        SIDE * self.page_size_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_go_in_and_come_out_of_the_places_that_the_layout_names() {
        // Pages of whole blocks, of less than one, and of one and a half; heads of whole squares, and not.
        for (page_size_tokens, head_dim) in [(16, 32), (32, 64), (8, 32), (24, 32), (16, 24), (40, 20)] {
            let shape =
                KvShape { layers: 2, n_kv_heads: 2, head_dim, page_size_tokens, pages: 7, element: KvType::F32 };
            let table = [3, 6, 0, 5, 1];
            let tokens = table.len() * page_size_tokens;
            let record = shape.token_elements();
            let all: Vec<f32> = (0..tokens * record).map(|i| i as f32).collect();
            let mut pages = Pages::new(&shape).unwrap();
            // In parts that begin and end inside pages and blocks.
            let cuts = [0, 3, 3 + page_size_tokens, 2 * page_size_tokens + 1, 4 * page_size_tokens, tokens];
            for cut in cuts.windows(2) {
                let part = &all[cut[0] * record..cut[1] * record];
                pages.write(&table, cut[0]..cut[1], bytemuck::cast_slice(part));
            }
            let Elements::F32(elements) = &pages.elements else { panic!("the type that was asked for") };
            for (layer, head, position, dim) in (0..2)
                .flat_map(|layer| (0..2).map(move |head| (layer, head)))
                .flat_map(|(layer, head)| (0..tokens).map(move |position| (layer, head, position)))
                .flat_map(|(layer, head, position)| (0..head_dim).map(move |dim| (layer, head, position, dim)))
            {
                let layout = pages.layout(layer);
                let (page, slot) = (table[position / page_size_tokens], position % page_size_tokens);
                let at = layout.head_at(page, head);
                let (first, stride) = layout.key(slot);
                let value = layout.value(slot, dim - dim % SIDE).start + dim % SIDE;
                let expected = position * record + (layer * 2 + head) * 2 * head_dim + dim;
                assert_eq!(elements[at + first + dim * stride], all[expected], "key {dim} of {position}");
                assert_eq!(elements[at + value], all[expected + head_dim], "value {dim} of {position}");
            }
            for range in [0..tokens, 5..tokens - 2, page_size_tokens..2 * page_size_tokens, 4..5] {
                let mut out = vec![0.0_f32; range.len() * record];
                pages.read(&table, range.clone(), bytemuck::cast_slice_mut(&mut out));
                assert!(out == all[range.start * record..range.end * record], "{range:?}");
            }
        }
    }
}
