#![forbid(unsafe_code)]
//! The checksum of a payload, taken while the payload streams by (S-97).
//!
//! What is written is FNV-1a-64, as the contract has it; XXH3-64 is read too, and written where a host asks for it (S-72).
//!
//! # Limits
//! FNV-1a takes one multiplication after another, byte by byte: about one byte per four cycles, whatever the machine. XXH3 keeps up
//! with memory.
//!
//! # Source
//! XXH3: <https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>

use xxhash_rust::xxh3::Xxh3Default;

use crate::identity::{FNV_BASIS, fnv};
use crate::record::constant::checksum_kind;

/// A checksum that is being taken.
#[derive(Clone)]
pub enum Checksum {
    /// FNV-1a-64.
    Fnv(u64),
    /// XXH3-64, seed 0.
    Xxh3(Box<Xxh3Default>),
}

impl Checksum {
    /// A checksum of nothing yet; none for a number that names no kind (`CHECKSUM_*`).
    pub fn new(kind: u32) -> Option<Self> {
        match kind {
            checksum_kind::FNV1A64 => Some(Self::Fnv(FNV_BASIS)),
            checksum_kind::XXH3_64 => Some(Self::Xxh3(Box::default())),
            _ => None,
        }
    }

    /// The number of its kind.
    pub fn kind(&self) -> u32 {
        match self {
            Self::Fnv(_) => checksum_kind::FNV1A64,
            Self::Xxh3(_) => checksum_kind::XXH3_64,
        }
    }

    /// Goes on over these bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Fnv(hash) => *hash = fnv(*hash, bytes),
            Self::Xxh3(hash) => hash.update(bytes),
        }
    }

    /// The checksum of all bytes so far.
    pub fn value(&self) -> u64 {
        match self {
            Self::Fnv(hash) => *hash,
            Self::Xxh3(hash) => hash.digest(),
        }
    }
}

impl core::fmt::Debug for Checksum {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Checksum({}, {:016x})", self.kind(), self.value())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S-72, S-97: both kinds give the published values, in one piece or in many.
    #[test]
    fn checksum_of_pieces_is_that_of_the_whole() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i * 31 % 251) as u8).collect();
        for kind in [checksum_kind::FNV1A64, checksum_kind::XXH3_64] {
            let mut whole = Checksum::new(kind).expect("a known kind");
            whole.update(&bytes);
            for size in [1, 7, 64, 241, 4096] {
                let mut pieces = Checksum::new(kind).expect("a known kind");
                bytes.chunks(size).for_each(|piece| pieces.update(piece));
                assert_eq!(pieces.value(), whole.value(), "kind {kind}, pieces of {size}");
            }
            assert_eq!(whole.kind(), kind);
        }
        let mut fnv = Checksum::new(checksum_kind::FNV1A64).expect("a known kind");
        fnv.update(b"foobar");
        assert_eq!(fnv.value(), 0x8594_4171_F739_67E8);
        // XXH3-64 of no bytes with seed 0, as its specification prints it.
        assert_eq!(Checksum::new(checksum_kind::XXH3_64).map(|hash| hash.value()), Some(0x2D06_8005_38D3_94C2));
        assert!(Checksum::new(0).is_none() && Checksum::new(3).is_none());
    }
}
