#![forbid(unsafe_code)]
//! The pool of pages: keys and values of all layers in one allocation.
//!
//! ```text
//! pool    [layer 0 | layer 1 | ...]                      so that the pages of a layer lie together
//! layer   [page 0 | page 1 | ...]
//! page    [head 0: keys, values | head 1: keys, values | ...]
//! keys    [slot 0: head_dim elements | slot 1 | ...]     the slots of a page are consecutive positions of a sequence
//! values  the same
//! ```
//! # Limits
//! Fixed when it is made: [`KvShape`]. Memory that no page was written to costs nothing.

use super::dispatch::Isa;
use super::memory::Aligned;
use super::simd::{LANES, Op, Simd, load_part, store_part};
use crate::backend::{BackendError, KvShape, KvType, Span};

/// An element of a page.
pub(super) trait Element: bytemuck::Pod + Send + Sync {
    /// Eight elements.
    fn load<S: Simd>(s: S, from: &[Self; 8]) -> S::V;
    /// Up to eight elements, the rest of the lanes 0.
    fn load_part<S: Simd>(s: S, from: &[Self]) -> S::V;
    /// Writes eight elements.
    fn store<S: Simd>(s: S, v: S::V, to: &mut [Self; 8]);
    /// Writes as many lanes as fit.
    fn store_part<S: Simd>(s: S, v: S::V, to: &mut [Self]);
}

impl Element for f32 {
    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[f32; 8]) -> S::V {
        s.load(from)
    }

    #[inline(always)]
    fn load_part<S: Simd>(s: S, from: &[f32]) -> S::V {
        load_part(s, from)
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
    fn load<S: Simd>(s: S, from: &[u16; 8]) -> S::V {
        s.load_f16(from)
    }

    #[inline(always)]
    fn load_part<S: Simd>(s: S, from: &[u16]) -> S::V {
        let mut lanes = [0; LANES];
        for (lane, &bits) in lanes.iter_mut().zip(from) {
            *lane = bits;
        }
        s.load_f16(&lanes)
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
        let KvShape { n_kv_heads, head_dim, page_size_tokens, pages, .. } = self.shape;
        let head = 2 * page_size_tokens * head_dim;
        let page = n_kv_heads * head;
        Layout { layer: layer * pages * page, page, head, values: head / 2, slot: head_dim, page_size_tokens }
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
}

/// Where things lie in a layer, in elements.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// Start of the layer.
    layer: usize,
    page: usize,
    head: usize,
    /// From a slot's keys to its values.
    pub(super) values: usize,
    slot: usize,
    pub(super) page_size_tokens: usize,
}

impl Layout {
    fn page_at(&self, page: u32) -> usize {
        self.layer + page as usize * self.page
    }

    /// The keys of a head in a slot; its values lie [`Layout::values`] further.
    pub(super) fn keys_at(&self, page: u32, head: usize, slot: usize) -> usize {
        self.page_at(page) + head * self.head + slot * self.slot
    }
}

/// Stores the keys and values of rows. One thread: the copying is small beside the products that made them.
pub(super) struct Write<'a> {
    pub(super) pages: &'a mut Pages,
    pub(super) layer: usize,
    /// `[rows, n_kv_heads * head_dim]`
    pub(super) keys: &'a [f32],
    pub(super) values: &'a [f32],
    pub(super) spans: &'a [Span<'a>],
}

impl Write<'_> {
    pub(super) fn run(self, isa: Isa) {
        let (layout, shape) = (self.pages.layout(self.layer), self.pages.shape);
        let Self { keys, values, spans, .. } = self;
        match &mut self.pages.elements {
            Elements::F16(elements) => isa.run(WriteElements { elements, layout, shape, keys, values, spans }),
            Elements::F32(elements) => isa.run(WriteElements { elements, layout, shape, keys, values, spans }),
        }
    }
}

struct WriteElements<'a, E> {
    elements: &'a mut [E],
    layout: Layout,
    shape: KvShape,
    keys: &'a [f32],
    values: &'a [f32],
    spans: &'a [Span<'a>],
}

impl<E: Element> Op for WriteElements<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (dim, heads, page_size) = (self.shape.head_dim, self.shape.n_kv_heads, self.shape.page_size_tokens);
        for span in self.spans {
            for i in 0..span.rows {
                let (position, row) = (span.start + i, (span.first_row + i) * heads * dim);
                let page = span.block_table[position / page_size];
                for head in 0..heads {
                    let at = self.layout.keys_at(page, head, position % page_size);
                    let from = row + head * dim..row + (head + 1) * dim;
                    convert(s, &self.keys[from.clone()], &mut self.elements[at..at + dim]);
                    let at = at + self.layout.values;
                    convert(s, &self.values[from], &mut self.elements[at..at + dim]);
                }
            }
        }
    }
}

#[inline(always)]
fn convert<S: Simd, E: Element>(s: S, from: &[f32], to: &mut [E]) {
    let (from, from_tail) = from.as_chunks::<LANES>();
    let (to, to_tail) = to.as_chunks_mut::<LANES>();
    for (from, to) in from.iter().zip(to) {
        E::store(s, s.load(from), to);
    }
    if !to_tail.is_empty() {
        E::store_part(s, load_part(s, from_tail), to_tail);
    }
}
