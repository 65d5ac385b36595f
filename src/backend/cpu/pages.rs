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
    each_head(shape, block_table, positions, |layout, head, slot, record| {
        let (keys, values) = out[record * size_of::<E>()..].split_at_mut(layout.dim * size_of::<E>());
        let (first, stride) = layout.key(slot);
        let from = elements[head + first..].iter().step_by(stride);
        for (to, from) in keys.chunks_exact_mut(size_of::<E>()).zip(from) {
            to.copy_from_slice(bytemuck::bytes_of(from));
        }
        for dim in (0..layout.dim).step_by(SIDE) {
            let part = layout.value(slot, dim);
            let to = &mut values[dim * size_of::<E>()..][..part.len() * size_of::<E>()];
            to.copy_from_slice(bytemuck::cast_slice(&elements[head + part.start..head + part.end]));
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
    each_head(shape, block_table, positions, |layout, head, slot, record| {
        let (keys, values) = bytes[record * size_of::<E>()..].split_at(layout.dim * size_of::<E>());
        let (first, stride) = layout.key(slot);
        let to = elements[head + first..].iter_mut().step_by(stride);
        for (from, to) in keys.chunks_exact(size_of::<E>()).zip(to) {
            bytemuck::bytes_of_mut(to).copy_from_slice(from);
        }
        for dim in (0..layout.dim).step_by(SIDE) {
            let part = layout.value(slot, dim);
            let from = &values[dim * size_of::<E>()..][..part.len() * size_of::<E>()];
            bytemuck::cast_slice_mut(&mut elements[head + part.start..head + part.end]).copy_from_slice(from);
        }
    });
}

/// Calls `visit` with the layout of the layer, the place of the head in the pool, the slot, and the place of the head's keys in the
/// record of tokens, in elements. Page by page and head by head, so that the pool is walked in its own order.
#[inline(always)]
fn each_head(
    shape: KvShape,
    block_table: &[u32],
    positions: Range<usize>,
    mut visit: impl FnMut(&Layout, usize, usize, usize),
) {
    let KvShape { layers, n_kv_heads, head_dim, page_size_tokens, .. } = shape;
    let token = shape.token_elements();
    let mut at = positions.start;
    while at < positions.end {
        let page_end = positions.end.min((at / page_size_tokens + 1) * page_size_tokens);
        let page = block_table[at / page_size_tokens];
        for layer in 0..layers {
            let layout = Layout::new(shape, layer);
            for head in 0..n_kv_heads {
                let record = (layer * n_kv_heads + head) * 2 * head_dim;
                let head = layout.head_at(page, head);
                for position in at..page_end {
                    let record = (position - positions.start) * token + record;
                    visit(&layout, head, position % page_size_tokens, record);
                }
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
