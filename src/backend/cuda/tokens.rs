//! Tokens out of the pool and into it, in any encoding: launches of `kernels/page_copy.cu` and `page_encode.cu`, and what goes over.
//!
//! ```text
//! pages -> gather, coded where the encoding is lossy -> scratch -> pinned memory -> host      and the other way round
//! ```
//! # Invariants
//! The bytes are those of the host's encoder ([`Encoding`]) over what the pool holds (`tests/cuda_state.rs`), so what travels is the small form.

use core::ops::Range;

use super::driver::At;
use super::launch::{Launcher, Parameter, PoolLayers, check, parameters, word};
use super::{CudaBackend, Pages};
use crate::backend::{BackendError, KvShape, KvType};
use crate::transfer::{BLOCK, Encoding};

/// Bytes of a token.
fn token_bytes(shape: &KvShape, encoding: Encoding) -> usize {
    2 * shape.layers * shape.n_kv_heads * encoding.vector_bytes(shape.head_dim, shape.element.bytes())
}

/// The kernels that take tokens out and put them in.
fn kernels(element: KvType, encoding: Encoding) -> [&'static str; 2] {
    match (element, encoding) {
        (KvType::F16, Encoding::Lossless) => ["ictus_gather_tokens_16", "ictus_scatter_tokens_16"],
        (KvType::F32, Encoding::Lossless) => ["ictus_gather_tokens_32", "ictus_scatter_tokens_32"],
        (KvType::F16, Encoding::Q8) => ["ictus_gather_tokens_q8_f16", "ictus_scatter_tokens_q8_f16"],
        (KvType::F32, Encoding::Q8) => ["ictus_gather_tokens_q8_f32", "ictus_scatter_tokens_q8_f32"],
        (KvType::F16, Encoding::Q4) => ["ictus_gather_tokens_q4_f16", "ictus_scatter_tokens_q4_f16"],
        (KvType::F32, Encoding::Q4) => ["ictus_gather_tokens_q4_f32", "ictus_scatter_tokens_q4_f32"],
    }
}

/// Tokens of one sequence from a position on.
#[derive(Clone, Copy)]
struct Tokens {
    table: At<u32>,
    first: usize,
    count: usize,
    encoding: Encoding,
}

impl CudaBackend {
    /// Reads tokens, as many at once as the scratch takes.
    pub(super) fn export_tokens(
        &self,
        pages: &Pages,
        block_table: &[u32],
        positions: Range<usize>,
        encoding: Encoding,
        out: &mut [u8],
    ) -> Result<(), BackendError> {
        self.each_go(pages, positions, encoding, out.len(), |first, bytes, count, scratch| {
            let out = out.get_mut(bytes).unwrap_or_default();
            let table = self.list(block_table)?;
            let tokens = Tokens { table, first, count, encoding };
            self.launcher().gather_tokens(scratch, pages.layers_from(0), tokens)?;
            self.read_back(scratch, out)
        })
    }

    /// Writes tokens that were read in the same encoding.
    pub(super) fn import_tokens(
        &self,
        pages: &Pages,
        block_table: &[u32],
        positions: Range<usize>,
        encoding: Encoding,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        self.each_go(pages, positions, encoding, bytes.len(), |first, range, count, scratch| {
            let bytes = bytes.get(range).unwrap_or_default();
            self.fill(scratch, bytes)?;
            let table = self.list(block_table)?;
            let tokens = Tokens { table, first, count, encoding };
            self.launcher().scatter_tokens(pages.layers_from(0), scratch, tokens)
        })
    }

    /// Calls `go` for as many tokens as the scratch takes: with the first position, their bytes of the payload, their number and the scratch.
    fn each_go(
        &self,
        pages: &Pages,
        positions: Range<usize>,
        encoding: Encoding,
        payload: usize,
        mut go: impl FnMut(usize, Range<usize>, usize, At<u8>) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        if positions.is_empty() {
            return Ok(());
        }
        self.errors.attempt(|| {
            let token = token_bytes(&pages.shape, encoding);
            check("tokens", token > 0 && payload == positions.len() * token)?;
            let scratch = self.scratch.borrow().at::<u8>();
            let at_once = (scratch.len() / token).max(1);
            for first in positions.clone().step_by(at_once) {
                let count = at_once.min(positions.end - first);
                let from = (first - positions.start) * token;
                go(first, from..from + count * token, count, scratch)?;
            }
            Ok(())
        })
    }
}

impl Launcher {
    /// Copies tokens out of the pool, in the form in which state travels.
    fn gather_tokens(&self, out: At<u8>, pool: PoolLayers, tokens: Tokens) -> Result<(), BackendError> {
        let [name, _] = kernels(pool.shape.element, tokens.encoding);
        self.move_tokens(name, [out, pool.bytes], out, pool, tokens)
    }

    /// The other way round.
    fn scatter_tokens(&self, pool: PoolLayers, bytes: At<u8>, tokens: Tokens) -> Result<(), BackendError> {
        let [_, name] = kernels(pool.shape.element, tokens.encoding);
        self.move_tokens(name, [pool.bytes, bytes], bytes, pool, tokens)
    }

    fn move_tokens(
        &self,
        name: &'static str,
        [to, from]: [At<u8>; 2],
        bytes: At<u8>,
        pool: PoolLayers,
        Tokens { table, first, count, encoding }: Tokens,
    ) -> Result<(), BackendError> {
        let KvShape { layers, n_kv_heads, head_dim, page_size_tokens, .. } = pool.shape;
        let token = token_bytes(&pool.shape, encoding);
        check(name, pool.has(layers) && table.len() * page_size_tokens >= first + count)?;
        check(name, bytes.len() >= count * token)?;
        let (layer, first) = (pool.layer_elements() as u64, word(first)?);
        let [heads, dims, page] = [word(n_kv_heads)?, word(head_dim)?, word(page_size_tokens)?];
        // SAFETY, of both: `count` tokens, their pages by the table, and pages below the pool's number in all layers, all there by the checks.
        if encoding.is_lossy() {
            check(name, head_dim.is_multiple_of(8) && token.is_multiple_of(4))?;
            let quant_blocks = 2 * layers * n_kv_heads * head_dim.div_ceil(BLOCK);
            let (blocks, words) = (word(quant_blocks)?, word(token / 4)?);
            let parameters = parameters![to, from, table, first, blocks, words, layer, heads, dims, page];
            // SAFETY: as above.
            return unsafe { self.launch(name, [count, 1, 1], &parameters) };
        }
        let elements = word(pool.shape.token_elements())?;
        let parameters = parameters![to, from, table, first, elements, layer, heads, dims, page];
        // SAFETY: as above.
        unsafe { self.launch(name, [count, 1, 1], &parameters) }
    }
}
