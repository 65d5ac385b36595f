#![forbid(unsafe_code)]
//! Maps keyed by lane tag.
//!
//! A tag is any 64-bit number that the host likes, so its bits are mixed before they choose a bucket. The mixing is
//! invertible: two tags never hash alike, they only may share a bucket.
//!
//! # Limits
//! A host that picks its tags so that they collide slows its own lookups down; nothing else depends on the hash.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// Values by lane tag.
pub(super) type TagMap<V> = HashMap<u64, V, BuildHasherDefault<TagHasher>>;

/// A set of lane tags.
pub(super) type TagSet = HashSet<u64, BuildHasherDefault<TagHasher>>;

/// Mixes one 64-bit key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TagHasher(u64);

impl Hasher for TagHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        let mut mixed = self.0 ^ key;
        mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_that_differ_in_high_bits_only_spread_over_the_low_ones() {
        let low_bits = |tag: u64| {
            let mut hasher = TagHasher::default();
            hasher.write_u64(tag);
            hasher.finish() % 1024
        };
        let buckets: HashSet<u64> = (0..256u64).map(|i| low_bits(i << 56)).collect();
        assert!(buckets.len() > 200, "{} buckets for 256 tags", buckets.len());
    }
}
