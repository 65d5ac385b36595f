#![forbid(unsafe_code)]
//! Tokens that travel: each device has its heads of them, and the host puts these to their places in the payload.

use core::ops::Range;

use super::{CudaGroup, SpreadPages};
use crate::backend::{Backend, BackendError, KvShape};
use crate::transfer::Encoding;

/// Where the heads of a device lie in a payload of tokens: `[tokens, layers, heads, 2, head_dim]`.
struct Heads {
    layers: usize,
    layer: usize,
    /// Bytes of a layer of a token that are the device's.
    own: Range<usize>,
}

impl Heads {
    fn new(pages: &SpreadPages, at: usize, encoding: Encoding) -> Self {
        let KvShape { layers, n_kv_heads, head_dim, element, .. } = pages.shape;
        let head_bytes = 2 * encoding.vector_bytes(head_dim, element.bytes());
        let Range { start, end } = pages.heads.columns(at);
        Self { layers, layer: n_kv_heads * head_bytes, own: start * head_bytes..end * head_bytes }
    }

    fn layer_bytes(&self) -> usize {
        self.layer.max(1)
    }

    fn own_bytes(&self) -> usize {
        self.own.len().max(1)
    }

    fn token_bytes(&self) -> usize {
        self.layers * self.own.len()
    }

    /// The device's bytes of each layer of each token.
    fn of_layers<'o>(&self, out: &'o mut [u8]) -> impl Iterator<Item = &'o mut [u8]> {
        let own = self.own.clone();
        out.chunks_exact_mut(self.layer_bytes()).map(move |layer| layer.get_mut(own.clone()).unwrap_or_default())
    }
}

impl CudaGroup {
    /// Reads the heads of every device.
    pub(super) fn export_heads(
        &self,
        pages: &SpreadPages,
        block_table: &[u32],
        positions: Range<usize>,
        encoding: Encoding,
        out: &mut [u8],
    ) -> Result<(), BackendError> {
        let mut own = self.tokens.borrow_mut();
        for (at, (member, part)) in self.members.iter().zip(&pages.parts).enumerate() {
            let heads = Heads::new(pages, at, encoding);
            own.resize(positions.len() * heads.token_bytes(), 0);
            member.read_tokens_as(part, block_table, positions.clone(), encoding, &mut own)?;
            let places = heads.of_layers(out).zip(own.chunks_exact(heads.own_bytes()));
            places.for_each(|(to, from)| to.copy_from_slice(from));
        }
        Ok(())
    }

    /// Writes the heads of every device.
    pub(super) fn import_heads(
        &self,
        pages: &mut SpreadPages,
        block_table: &[u32],
        positions: Range<usize>,
        encoding: Encoding,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        let mut own = self.tokens.borrow_mut();
        for (at, member) in self.members.iter().enumerate() {
            let heads = Heads::new(pages, at, encoding);
            own.clear();
            let layers = bytes.chunks_exact(heads.layer_bytes());
            layers.for_each(|layer| own.extend_from_slice(layer.get(heads.own.clone()).unwrap_or_default()));
            member.write_tokens_as(&mut pages.parts[at], block_table, positions.clone(), encoding, &own)?;
        }
        Ok(())
    }
}
