#![forbid(unsafe_code)]
//! Words already met in this text, and where their tokens lie in the output.
//!
//! Natural text repeats its words. The cache lives for one call, has a fixed size, and each word has one slot: a newer word takes the
//! slot of an older one. An entry names places in the text and in the output, so nothing is copied into it.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

/// Slots; a power of two.
const SLOTS: usize = 4096;
/// Texts shorter than this go without: clearing the slots would cost more than it saves.
const MIN_TEXT_BYTES: usize = 4096;
/// Longer words seldom repeat.
const MAX_WORD_BYTES: usize = 64;

#[derive(Clone, Copy, Default)]
struct Slot {
    hash: u64,
    /// Place of the word in the text; an empty slot has an empty word, and no word is empty.
    start: u32,
    len: u32,
    /// Place of its tokens in the output.
    out_start: u32,
    out_len: u32,
}

pub(super) struct WordCache {
    slots: Vec<Slot>,
}

impl WordCache {
    /// For a text of this length, which the caller has checked to stay below 4 GiB.
    pub(super) fn for_text(bytes: usize) -> Self {
        Self { slots: if bytes < MIN_TEXT_BYTES { Vec::new() } else { vec![Slot::default(); SLOTS] } }
    }

    /// Appends the tokens of the word `text[range]`: those of an earlier equal word, or what `encode` appends.
    pub(super) fn word(
        &mut self,
        text: &[u8],
        range: Range<usize>,
        out: &mut Vec<u32>,
        encode: impl FnOnce(&mut Vec<u32>),
    ) {
        let word = &text[range.clone()];
        if self.slots.is_empty() || word.is_empty() || word.len() > MAX_WORD_BYTES {
            encode(out);
            return;
        }
        let hash = xxh3_64(word);
        let slot = &mut self.slots[hash as usize % SLOTS];
        if slot.hash == hash && text[slot.start as usize..(slot.start + slot.len) as usize] == *word {
            let start = slot.out_start as usize;
            out.extend_from_within(start..start + slot.out_len as usize);
            return;
        }
        let start = out.len();
        encode(out);
        *slot = Slot {
            hash,
            start: range.start as u32,
            len: word.len() as u32,
            out_start: start as u32,
            out_len: (out.len() - start) as u32,
        };
    }
}
