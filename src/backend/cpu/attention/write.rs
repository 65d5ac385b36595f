//! New keys and values into pages.
//!
//! # Invariants
//! Work is cut by heads and dimensions, never by rows: what two threads write lies apart whatever the block tables say.

use core::ops::Range;

use super::super::pages::{Element, Layout, SIDE};
use super::super::shared::Shared;
use super::super::simd::{LANES, Op, Simd, load_part};
use crate::backend::{KvShape, Span};

/// Some dimensions of the keys, or of the values, of a head.
#[derive(Clone, Debug)]
pub(in super::super) struct Part {
    pub(in super::super) head: usize,
    pub(in super::super) values: bool,
    /// From the start of a strip to the end of one.
    pub(in super::super) dims: Range<usize>,
}

impl Part {
    /// How many parts there are when the dimensions are cut `cuts` times.
    pub(in super::super) fn count(shape: &KvShape, cuts: usize) -> usize {
        2 * shape.n_kv_heads * cuts
    }

    /// One of them; parts of different numbers have no element in common.
    pub(in super::super) fn new(shape: &KvShape, cuts: usize, index: usize) -> Self {
        let (index, cut) = (index / cuts, index % cuts);
        let strips = shape.head_dim.div_ceil(SIDE);
        let at = |cut: usize| (cut * strips / cuts * SIDE).min(shape.head_dim);
        Self { head: index / 2, values: index % 2 == 1, dims: at(cut)..at(cut + 1) }
    }
}

/// Stores a part of the keys or values of rows.
pub(in super::super) struct Write<'a, E> {
    /// Nobody else uses this part of the layer.
    pub(in super::super) elements: Shared<'a, E>,
    pub(in super::super) layout: Layout,
    pub(in super::super) part: Part,
    /// Keys or values: `[rows, width]`
    pub(in super::super) rows: &'a [f32],
    /// `n_kv_heads * head_dim`
    pub(in super::super) width: usize,
    pub(in super::super) head_dim: usize,
    pub(in super::super) spans: &'a [Span<'a>],
}

impl<E: Element> Op for Write<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let page_size = self.layout.page_size_tokens;
        for span in self.spans {
            for i in 0..span.rows {
                let position = span.start + i;
                let head = self.layout.head_at(span.block_table[position / page_size], self.part.head);
                let row = &self.rows[(span.first_row + i) * self.width + self.part.head * self.head_dim..];
                let row = &row[self.part.dims.clone()];
                if self.part.values {
                    self.value(s, head, position % page_size, row);
                } else {
                    self.key(s, head, position % page_size, row);
                }
            }
        }
    }
}

impl<E: Element> Write<'_, E> {
    #[inline(always)]
    fn key<S: Simd>(&self, s: S, head: usize, slot: usize, row: &[f32]) {
        let (first, stride) = self.layout.key(slot);
        let at = head + first + self.part.dims.start * stride;
        let len = (row.len().max(1) - 1) * stride + 1;
        // SAFETY: these dimensions of the head are this part's, and no other slice of them is in use.
        let to = unsafe { self.elements.part(at, len) };
        let mut converted = [E::zeroed(); LANES];
        let (eights, tail) = row.as_chunks::<LANES>();
        for (index, eight) in eights.iter().enumerate() {
            E::store(s, s.load(eight), &mut converted);
            scatter(&converted, &mut to[index * LANES * stride..], stride);
        }
        if !tail.is_empty() {
            E::store(s, load_part(s, tail), &mut converted);
            scatter(&converted[..tail.len()], &mut to[eights.len() * LANES * stride..], stride);
        }
    }

    #[inline(always)]
    fn value<S: Simd>(&self, s: S, head: usize, slot: usize, row: &[f32]) {
        for (dim, row) in self.part.dims.clone().step_by(SIDE).zip(row.chunks(SIDE)) {
            let place = self.layout.value(slot, dim);
            // SAFETY: these dimensions of the head are this part's, and no other slice of them is in use.
            let to = unsafe { self.elements.part(head + place.start, place.len()) };
            let (eights, tail) = row.as_chunks::<LANES>();
            let (to_eights, to_tail) = to.as_chunks_mut::<LANES>();
            for (from, to) in eights.iter().zip(to_eights) {
                E::store(s, s.load(from), to);
            }
            if !tail.is_empty() {
                E::store_part(s, load_part(s, tail), to_tail);
            }
        }
    }
}

/// Writes elements `stride` apart.
#[inline(always)]
fn scatter<E: Copy>(from: &[E], to: &mut [E], stride: usize) {
    for (to, &from) in to.iter_mut().step_by(stride).zip(from) {
        *to = from;
    }
}
