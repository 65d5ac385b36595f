#![forbid(unsafe_code)]
//! Tokens of a sequence as payload bytes, and back.
//!
//! A token is `[layer][head][keys, values]` vectors of `head_dim` numbers, each vector in the payload's encoding. Neither the places of
//! pages nor their size show in the bytes, so a payload fits any pool of the same model and element type.
//!
//! # Invariants
//! - A lossless payload is the pool's own bytes: what is imported is what was exported, to the bit.
//! - The bytes of a token depend on that token alone: slices of any length give the same payload.
//!
//! # Limits
//! Where the backend does not encode by itself, lossy encodings go through a scratch of [`SCRATCH_TOKENS`] tokens.

use std::ops::Range;

use super::ModelRuntime;
use crate::backend::{Backend, KvShape, KvType};
use crate::kv::Growth;
use crate::runtime::{RuntimeError, SeqHandle};
use crate::transfer::Encoding;

/// Tokens that are encoded at once.
const SCRATCH_TOKENS: usize = 16;

/// How tokens of this pool are written.
#[derive(Debug)]
pub(super) struct Payload {
    kv: KvShape,
    /// Bytes of some tokens as the pool holds them; only lossy encodings need them.
    raw: Vec<u8>,
    /// One vector.
    vector: Vec<f32>,
}

impl Payload {
    pub(super) fn new(kv: KvShape) -> Self {
        Self { kv, raw: Vec::new(), vector: Vec::new() }
    }

    pub(super) fn token_bytes(&self, encoding: u8) -> Option<u64> {
        Encoding::from_number(encoding).map(|encoding| self.bytes_of(encoding) as u64)
    }

    fn bytes_of(&self, encoding: Encoding) -> usize {
        let KvShape { layers, n_kv_heads, head_dim, element, .. } = self.kv;
        2 * layers * n_kv_heads * encoding.vector_bytes(head_dim, element.bytes())
    }

    /// Makes room to encode; the memory is kept.
    fn prepare(&mut self) -> Result<(), RuntimeError> {
        let raw = SCRATCH_TOKENS * self.bytes_of(Encoding::Lossless);
        self.raw.try_reserve(raw.saturating_sub(self.raw.len())).map_err(|_| RuntimeError::Capacity)?;
        self.raw.resize(raw, 0);
        self.vector.resize(self.kv.head_dim, 0.0);
        Ok(())
    }

    /// Encodes the first `raw` bytes of the scratch.
    fn encode(&mut self, encoding: Encoding, raw: usize, out: &mut [u8]) {
        let Self { kv, raw: scratch, vector } = self;
        let from = kv.head_dim * kv.element.bytes();
        let to = encoding.vector_bytes(kv.head_dim, kv.element.bytes());
        for (bytes, out) in scratch[..raw].chunks_exact(from).zip(out.chunks_exact_mut(to)) {
            match kv.element {
                KvType::F32 => Encoding::Lossless.decode(bytes, vector),
                KvType::F16 => {
                    for (value, half) in vector.iter_mut().zip(bytes.as_chunks::<2>().0) {
                        *value = half::f16::from_le_bytes(*half).to_f32();
                    }
                }
            }
            encoding.encode(vector, out);
        }
    }

    /// Decodes into the first `raw` bytes of the scratch.
    fn decode(&mut self, encoding: Encoding, bytes: &[u8], raw: usize) {
        let Self { kv, raw: scratch, vector } = self;
        let to = kv.head_dim * kv.element.bytes();
        let from = encoding.vector_bytes(kv.head_dim, kv.element.bytes());
        for (bytes, raw) in bytes.chunks_exact(from).zip(scratch[..raw].chunks_exact_mut(to)) {
            encoding.decode(bytes, vector);
            match kv.element {
                KvType::F32 => Encoding::Lossless.encode(vector, raw),
                KvType::F16 => {
                    for (value, half) in vector.iter().zip(raw.as_chunks_mut::<2>().0) {
                        *half = half::f16::from_f32(*value).to_le_bytes();
                    }
                }
            }
        }
    }
}

impl<B: Backend> ModelRuntime<B> {
    pub(super) fn size_export(
        &self,
        sequence: SeqHandle,
        tokens: Range<u64>,
        encoding: u8,
    ) -> Result<u64, RuntimeError> {
        let token = self.transfer.token_bytes(encoding).ok_or(RuntimeError::Unsupported)?;
        let tokens = self.held(sequence, tokens)?;
        Ok(tokens.len() as u64 * token)
    }

    pub(super) fn export_tokens(
        &mut self,
        sequence: SeqHandle,
        tokens: Range<u64>,
        encoding: u8,
        out: &mut [u8],
    ) -> Result<(), RuntimeError> {
        let encoding = Encoding::from_number(encoding).ok_or(RuntimeError::Unsupported)?;
        let tokens = self.held(sequence, tokens)?;
        let token = self.transfer.bytes_of(encoding);
        if self.broken || out.len() != tokens.len() * token {
            return Err(if self.broken { RuntimeError::Fatal } else { RuntimeError::OutOfBoundary });
        }
        let table = self.sequences.table(sequence)?.pages();
        let failed = |_| RuntimeError::Fatal;
        if !encoding.is_lossy() {
            return self.backend.read_tokens(&self.pages, table, tokens, out).map_err(failed);
        }
        if self.backend.read_tokens_as(&self.pages, table, tokens.clone(), encoding, out).map_err(failed)? {
            return Ok(());
        }
        self.transfer.prepare()?;
        let raw_token = self.transfer.bytes_of(Encoding::Lossless);
        for (start, out) in tokens.clone().step_by(SCRATCH_TOKENS).zip(out.chunks_mut(SCRATCH_TOKENS * token)) {
            let now = start..tokens.end.min(start + SCRATCH_TOKENS);
            let raw = now.len() * raw_token;
            self.backend.read_tokens(&self.pages, table, now, &mut self.transfer.raw[..raw]).map_err(failed)?;
            self.transfer.encode(encoding, raw, out);
        }
        Ok(())
    }

    pub(super) fn begin_import(&mut self, sequence: SeqHandle, tokens: Range<u64>) -> Result<(), RuntimeError> {
        if !self.sequences.table(sequence)?.is_empty() {
            return Ok(self.sequences.fill(sequence, tokens)?);
        }
        let count = usize::try_from(tokens.end).map_err(|_| RuntimeError::OutOfBoundary)?;
        if tokens.start != 0 {
            return Err(RuntimeError::OutOfBoundary);
        }
        // An empty sequence has no page that others hold too, so nothing is to be copied.
        let mut copies = Vec::new();
        Ok(self.sequences.grow(&[Growth { handle: sequence, tokens: count }], &mut copies)?)
    }

    pub(super) fn import_tokens(
        &mut self,
        sequence: SeqHandle,
        tokens: Range<u64>,
        encoding: u8,
        bytes: &[u8],
    ) -> Result<(), RuntimeError> {
        let encoding = Encoding::from_number(encoding).ok_or(RuntimeError::Unsupported)?;
        let tokens = self.held(sequence, tokens)?;
        let token = self.transfer.bytes_of(encoding);
        if self.broken || bytes.len() != tokens.len() * token {
            return Err(if self.broken { RuntimeError::Fatal } else { RuntimeError::OutOfBoundary });
        }
        let table = self.sequences.table(sequence)?.pages();
        let failed = |_| RuntimeError::Fatal;
        if !encoding.is_lossy() {
            return self.backend.write_tokens(&mut self.pages, table, tokens, bytes).map_err(failed);
        }
        if self.backend.write_tokens_as(&mut self.pages, table, tokens.clone(), encoding, bytes).map_err(failed)? {
            return Ok(());
        }
        self.transfer.prepare()?;
        let raw_token = self.transfer.bytes_of(Encoding::Lossless);
        for (start, bytes) in tokens.clone().step_by(SCRATCH_TOKENS).zip(bytes.chunks(SCRATCH_TOKENS * token)) {
            let now = start..tokens.end.min(start + SCRATCH_TOKENS);
            let raw = now.len() * raw_token;
            self.transfer.decode(encoding, bytes, raw);
            self.backend.write_tokens(&mut self.pages, table, now, &self.transfer.raw[..raw]).map_err(failed)?;
        }
        Ok(())
    }

    /// The range as positions whose pages are all in the pool.
    fn held(&self, sequence: SeqHandle, tokens: Range<u64>) -> Result<Range<usize>, RuntimeError> {
        let table = self.sequences.table(sequence)?;
        if tokens.start > tokens.end || tokens.end > table.len() as u64 {
            return Err(RuntimeError::OutOfBoundary);
        }
        let (start, end) = (tokens.start as usize, tokens.end as usize);
        let page = self.transfer.kv.page_size_tokens;
        if table.has_holes_in(start / page..end.div_ceil(page)) {
            Err(RuntimeError::OutOfBoundary)
        } else {
            Ok(start..end)
        }
    }
}
