#![forbid(unsafe_code)]
//! Which prompt under way begins like this one.
//!
//! A prompt is hashed page by page, each hash covering all pages before it. The prompts on lanes are listed by these hashes, so the
//! longest common beginning is found by walking the new prompt's own hashes from the end; the tokens are compared before anything is
//! built on it.

use std::collections::HashMap;

use super::lanes::Slot;

/// Hashes of the first page of a prompt, of the first two, and so on. Prompts for different adapters share nothing.
pub(super) fn chain(tokens: &[u32], page_tokens: usize, adapter: u64) -> Box<[u64]> {
    let mut hash = adapter ^ 0x9E37_79B9_7F4A_7C15;
    let pages = tokens.chunks_exact(page_tokens.max(1));
    pages
        .map(|page| {
            for &token in page {
                hash = (hash.rotate_left(5) ^ u64::from(token)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
            }
            hash ^ (hash >> 32)
        })
        .collect()
}

/// Prompts on lanes by the hashes of their beginnings; of several, the one that was first.
#[derive(Debug, Default)]
pub(super) struct Beginnings {
    slots: HashMap<u64, Slot>,
}

impl Beginnings {
    pub(super) fn insert(&mut self, chain: &[u64], slot: Slot) {
        // The first one keeps its place: it is further on.
        for &hash in chain {
            self.slots.entry(hash).or_insert(slot);
        }
    }

    pub(super) fn remove(&mut self, chain: &[u64], slot: Slot) {
        for hash in chain {
            if self.slots.get(hash) == Some(&slot) {
                self.slots.remove(hash);
            }
        }
    }

    /// The longest beginning that a prompt on a lane has too: its pages, and where that prompt is.
    pub(super) fn longest(&self, chain: &[u64]) -> Option<(usize, Slot)> {
        if self.slots.is_empty() {
            return None;
        }
        chain.iter().enumerate().rev().find_map(|(at, hash)| Some((at + 1, *self.slots.get(hash)?)))
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_common_beginning_is_found_in_whole_pages() {
        let of = |tokens: &[u32]| chain(tokens, 4, 0);
        let (first, second) = (of(&[1; 12]), of(&[1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2]));
        let mut beginnings = Beginnings::default();
        beginnings.insert(&first, 3);
        beginnings.insert(&second, 5);
        assert_eq!(beginnings.longest(&of(&[1; 11])), Some((2, 3)));
        assert_eq!(beginnings.longest(&of(&[1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 9, 9, 9, 9])), Some((3, 5)));
        assert_eq!(beginnings.longest(&of(&[2, 1, 1, 1])), None);
        assert_eq!(beginnings.longest(&of(&[1, 1])), None, "less than a page");
        assert_eq!(beginnings.longest(&chain(&[1; 12], 4, 7)), None, "another adapter");
        beginnings.remove(&first, 3);
        assert_eq!(beginnings.longest(&of(&[1; 12])), None, "what the first one listed is gone with it");
        beginnings.remove(&second, 5);
        assert!(beginnings.is_empty());
    }
}
