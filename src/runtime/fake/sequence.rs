#![forbid(unsafe_code)]
//! A sequence: its tokens, the cells they lie in, and the two hashes of the list.

use std::ops::Range;

use smallvec::SmallVec;

/// FNV-1a-64.
const BASIS: u64 = 0xCBF2_9CE4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01B3;

fn absorb(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

/// The hash of a list: the salt as u64, then the ids as u32, all little-endian.
pub(super) fn hash(salt: u64, tokens: &[u32]) -> u64 {
    tokens.iter().fold(absorb(BASIS, &salt.to_le_bytes()), |hash, token| absorb(hash, &token.to_le_bytes()))
}

/// As [`hash`], with the digest of an adapter between the salt and the list; without one it is the same.
pub(super) fn adapted_hash(salt: u64, digest: &[u8], tokens: &[u32]) -> u64 {
    let start = absorb(absorb(BASIS, &salt.to_le_bytes()), digest);
    tokens.iter().fold(start, |hash, token| absorb(hash, &token.to_le_bytes()))
}

#[derive(Clone, Debug)]
pub(super) struct Sequence {
    tokens: Vec<u32>,
    /// Cell of each token; what stands there for a released one means nothing.
    cells: Vec<u32>,
    /// Ranges whose cells were given back, ascending (S-91).
    released: Vec<Range<usize>>,
    // Of the whole list with salts 1 and 2, kept along so that a token costs the same at any length.
    hash_next: u64,
    hash_row: u64,
    adapter: u64,
    /// Of the adapter; nothing without one.
    digest: Vec<u8>,
}

impl Sequence {
    pub(super) fn new() -> Self {
        Self {
            tokens: Vec::new(),
            cells: Vec::new(),
            released: Vec::new(),
            hash_next: hash(1, &[]),
            hash_row: hash(2, &[]),
            adapter: 0,
            digest: Vec::new(),
        }
    }

    pub(super) fn adapter(&self) -> u64 {
        self.adapter
    }

    /// Computes with an adapter from the first token on.
    pub(super) fn adapt(&mut self, adapter: u64, digest: &[u8]) {
        (self.adapter, self.digest) = (adapter, digest.to_vec());
        self.rehash();
    }

    fn rehash(&mut self) {
        self.hash_next = adapted_hash(1, &self.digest, &self.tokens);
        self.hash_row = adapted_hash(2, &self.digest, &self.tokens);
    }

    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The cells that are held.
    pub(super) fn cells(&self) -> impl Iterator<Item = &u32> {
        self.cells.iter().enumerate().filter(|(at, _)| !self.is_released(*at)).map(|(_, cell)| cell)
    }

    /// Ranges whose cells were given back.
    pub(super) fn released(&self) -> &[Range<usize>] {
        &self.released
    }

    fn is_released(&self, at: usize) -> bool {
        self.released.iter().any(|range| range.contains(&at))
    }

    pub(super) fn hash_next(&self) -> u64 {
        self.hash_next
    }

    pub(super) fn hash_row(&self) -> u64 {
        self.hash_row
    }

    pub(super) fn push(&mut self, token: u32, cell: u32) {
        self.tokens.push(token);
        self.cells.push(cell);
        self.hash_next = absorb(self.hash_next, &token.to_le_bytes());
        self.hash_row = absorb(self.hash_row, &token.to_le_bytes());
    }

    /// Cuts to `len` tokens, at most the length; the cells of the rest are the caller's to release. A released range that is cut keeps
    /// its first part.
    pub(super) fn truncate(&mut self, len: usize) -> SmallVec<[u32; 16]> {
        let gone = (len..self.tokens.len()).filter(|&at| !self.is_released(at)).map(|at| self.cells[at]).collect();
        self.tokens.truncate(len);
        self.cells.truncate(len);
        self.released.retain(|range| range.start < len);
        if let Some(range) = self.released.last_mut() {
            range.end = range.end.min(len);
        }
        self.rehash();
        gone
    }

    /// Gives the cells of a range back; they are the caller's to release.
    pub(super) fn release(&mut self, range: Range<usize>) -> Vec<u32> {
        let cells = self.cells[range.clone()].to_vec();
        self.released.push(range);
        self.released.sort_unstable_by_key(|range| range.start);
        cells
    }

    /// Takes fresh cells for a released range.
    pub(super) fn refill(&mut self, range: Range<usize>, mut take: impl FnMut() -> u32) {
        self.released.retain(|released| *released != range);
        for cell in &mut self.cells[range] {
            *cell = take();
        }
    }

    /// Replaces tokens in place.
    pub(super) fn overwrite(&mut self, start: usize, tokens: &[u32]) {
        self.tokens[start..start + tokens.len()].copy_from_slice(tokens);
        self.rehash();
    }
}
