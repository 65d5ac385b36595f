#![forbid(unsafe_code)]
//! A sequence: its tokens, the cells they lie in, and the two hashes of the list.

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

#[derive(Clone, Debug)]
pub(super) struct Sequence {
    tokens: Vec<u32>,
    cells: Vec<u32>,
    // Of the whole list with salts 1 and 2, kept along so that a token costs the same at any length.
    hash_next: u64,
    hash_row: u64,
}

impl Sequence {
    pub(super) fn new() -> Self {
        Self { tokens: Vec::new(), cells: Vec::new(), hash_next: hash(1, &[]), hash_row: hash(2, &[]) }
    }

    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(super) fn cells(&self) -> &[u32] {
        &self.cells
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

    /// Cuts to `len` tokens, at most the length; the cells of the rest are the caller's to release.
    pub(super) fn truncate(&mut self, len: usize) -> Vec<u32> {
        self.tokens.truncate(len);
        self.hash_next = hash(1, &self.tokens);
        self.hash_row = hash(2, &self.tokens);
        self.cells.split_off(self.tokens.len())
    }
}
