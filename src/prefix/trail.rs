#![forbid(unsafe_code)]
//! Content digests of the prefixes of a key, without hashing them again.
//!
//! FNV goes byte by byte: hashing a span costs many times what comparing it costs. So a key is hashed once, as it enters, and the hash
//! is kept every [`STRIDE_TOKENS`] tokens; the digest of a prefix is the kept hash before its end, and the few tokens that remain.
//! A key that begins like another one takes that part of its trail over.

use crate::identity::ContentHash;

/// Tokens between two kept hashes: 16 bytes for every 128 of the key.
const STRIDE_TOKENS: usize = 32;

/// The hash of a key after every stride, the empty one first.
#[derive(Debug, Default)]
pub(super) struct Trail {
    kept: Vec<ContentHash>,
}

impl Trail {
    /// The trail of `key`, of which the first `common` tokens are those of the key of `like`.
    pub(super) fn of(key: &[u32], like: Option<(&Trail, usize)>) -> Self {
        let mut kept = Vec::with_capacity(key.len() / STRIDE_TOKENS + 1);
        if let Some((like, common)) = like {
            let shared = like.kept.get(..common / STRIDE_TOKENS + 1).unwrap_or(&like.kept);
            kept.extend_from_slice(shared);
        }
        let mut hash = kept.last().copied().unwrap_or_default();
        if kept.is_empty() {
            kept.push(hash);
        }
        let hashed = (kept.len() - 1) * STRIDE_TOKENS;
        for stride in key.get(hashed..).unwrap_or(&[]).chunks_exact(STRIDE_TOKENS) {
            hash.extend(stride);
            kept.push(hash);
        }
        Self { kept }
    }

    /// Content digest of the first `len` tokens of `key`, which is the key of this trail (S-81).
    pub(super) fn digest(&self, key: &[u32], len: usize) -> [u8; 32] {
        let index = (len / STRIDE_TOKENS).min(self.kept.len().saturating_sub(1));
        let mut hash = self.kept.get(index).copied().unwrap_or_default();
        hash.extend(key.get(index * STRIDE_TOKENS..len).unwrap_or(&[]));
        hash.digest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::content_digest;

    /// S-46, S-81: a candidate's digest is that of the span's prefix.
    #[test]
    fn digest_of_every_prefix_is_the_content_digest() {
        let key: Vec<u32> = (0..200).map(|i| i * 7919).collect();
        let trail = Trail::of(&key, None);
        for len in 0..=key.len() {
            assert_eq!(trail.digest(&key, len), content_digest(&key[..len]), "{len} tokens");
        }
    }

    /// S-81, S-95.
    #[test]
    fn trail_that_begins_like_another_is_the_same_as_one_made_alone() {
        let first: Vec<u32> = (0..150).collect();
        for common in [0, 1, 31, 32, 33, 64, 149, 150] {
            let mut key = first[..common].to_vec();
            key.extend((0..90).map(|i| 1_000_000 + i));
            let trail = Trail::of(&key, Some((&Trail::of(&first, None), common)));
            assert_eq!(trail.kept, Trail::of(&key, None).kept, "{common} tokens in common");
        }
    }
}
