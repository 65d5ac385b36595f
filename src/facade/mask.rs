#![forbid(unsafe_code)]
//! Which tokens may be selected.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

/// Allowed tokens: a byte that is not 0 allows its id, ids at or past its end are forbidden.
///
/// Clones share the bytes; an edit copies them when they are shared. The hash is that of the content, so that whoever keeps a copy on a
/// device finds it again, and compares before it uses it: two contents may have one hash.
#[derive(Clone, Debug)]
pub struct TokenMask {
    bytes: Arc<[u8]>,
    hash: u64,
}

impl TokenMask {
    /// A mask of these bytes, one per id.
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes = bytes.into();
        let hash = xxh3_64(&bytes);
        Self { bytes, hash }
    }

    /// Ids that it has a byte for.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether the id may be selected.
    pub fn allows(&self, id: u32) -> bool {
        self.bytes.get(id as usize).is_some_and(|&byte| byte != 0)
    }

    /// The bytes, one per id.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Hash of the content.
    pub fn content_hash(&self) -> u64 {
        self.hash
    }

    /// Allows or forbids an id; answers whether that changed anything. An id past the end stays forbidden.
    pub fn set(&mut self, id: u32, allowed: bool) -> bool {
        let changes = self.bytes.get(id as usize).is_some_and(|&byte| (byte != 0) != allowed);
        if changes {
            let bytes = Arc::make_mut(&mut self.bytes);
            if let Some(byte) = bytes.get_mut(id as usize) {
                *byte = u8::from(allowed);
            }
            self.hash = xxh3_64(&self.bytes);
        }
        changes
    }

    /// Whether `other` has the same content; hashes that differ say no at once, hashes that agree prove nothing.
    pub fn same_content(&self, other: &Self) -> bool {
        self.hash == other.hash && (Arc::ptr_eq(&self.bytes, &other.bytes) || self.bytes == other.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X-50, XS-51: an edit reaches nobody else; the content restored is the hash restored; a hash alone is no content.
    #[test]
    fn xs_51_edits_copy_what_is_shared() {
        let mut edited = TokenMask::new([1, 0, 1, 1].as_slice());
        let held = edited.clone();
        let before = edited.content_hash();
        assert!(edited.set(2, false) && !edited.set(2, false), "once it changes, then no more");
        assert_ne!(edited.content_hash(), before);
        assert!(held.allows(2) && !edited.allows(2));
        assert!(edited.set(2, true));
        assert_eq!(edited.content_hash(), before);
        assert!(edited.same_content(&held));
        assert!(!edited.set(4, true) && !edited.allows(4), "past its end all is forbidden");
        let colliding = TokenMask { bytes: [0, 1, 0, 0].as_slice().into(), hash: before };
        assert!(!held.same_content(&colliding), "same hash, other content");
    }
}
