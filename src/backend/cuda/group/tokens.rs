#![forbid(unsafe_code)]
//! The heads of a device in tokens that travel.

use core::ops::Range;

use super::SpreadPages;
use crate::backend::KvShape;
use crate::transfer::Encoding;

/// Where the heads of a device lie in a payload of tokens: `[tokens, layers, heads, 2, head_dim]`.
pub(super) struct Heads {
    layers: usize,
    layer: usize,
    /// Bytes of a layer of a token that are the device's.
    pub(super) own: Range<usize>,
}

impl Heads {
    pub(super) fn new(pages: &SpreadPages, at: usize, encoding: Encoding) -> Self {
        let KvShape { layers, n_kv_heads, head_dim, element, .. } = pages.shape;
        let head_bytes = 2 * encoding.vector_bytes(head_dim, element.bytes());
        let Range { start, end } = pages.heads.columns(at);
        Self { layers, layer: n_kv_heads * head_bytes, own: start * head_bytes..end * head_bytes }
    }

    pub(super) fn layer_bytes(&self) -> usize {
        self.layer.max(1)
    }

    pub(super) fn own_bytes(&self) -> usize {
        self.own.len().max(1)
    }

    pub(super) fn token_bytes(&self) -> usize {
        self.layers * self.own.len()
    }

    /// The device's bytes of each layer of each token.
    pub(super) fn of_layers<'o>(&self, out: &'o mut [u8]) -> impl Iterator<Item = &'o mut [u8]> {
        let own = self.own.clone();
        out.chunks_exact_mut(self.layer_bytes()).map(move |layer| layer.get_mut(own.clone()).unwrap_or_default())
    }
}
