#![forbid(unsafe_code)]
//! Byte-level BPE: GGUF model `gpt2`.
//!
//! A text is split into words by a named rule, a word into bytes, and bytes merge in the order of the merge list. Files write bytes as
//! printable characters (the GPT-2 alphabet); that is undone once when the vocabulary is read, so encoding never sees it.
//!
//! # Invariants
//! `index` holds exactly the tokens whose text is in the GPT-2 alphabet and equals what they render; both sides and the result of
//! every pair in `pairs` are such tokens.
//!
//! # Limits
//! A byte without a token is dropped from encoded text, as llama.cpp does; [`Bpe::lacks`] says which those are.

use super::cache::WordCache;
use super::error::TokenizerError;
use super::merge::{Merger, NONE, Rules, Symbol};
use super::parts::VocabularyParts;
use super::pretokenize::{PreTokenizer, Split};
use super::table::{Index, Merge, Pairs, Strings};
use super::tokens::{Kind, Roles, Tokens, byte_of, measured};

#[derive(Debug)]
pub(super) struct Bpe {
    split: Split,
    whole_words: bool,
    index: Index,
    pairs: Pairs,
    /// Token of each byte, or [`NONE`].
    bytes: [u32; 256],
}

/// The byte that a character of the GPT-2 alphabet stands for: printable Latin-1 for itself, the others from U+0100 on in order.
pub(super) fn byte_of_char(c: char) -> Option<u8> {
    match c as u32 {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// Appends the bytes that `text` stands for; none when a character is outside the alphabet.
pub(super) fn bytes_of_text(text: &str, out: &mut Vec<u8>) -> Option<()> {
    text.chars().try_for_each(|c| {
        out.push(byte_of_char(c)?);
        Some(())
    })
}

impl Bpe {
    pub(super) fn new(parts: &VocabularyParts<'_>) -> Result<(Self, Tokens), TokenizerError> {
        let rule = parts.pre.and_then(PreTokenizer::by_name);
        let Some(rule) = rule else {
            return Err(TokenizerError::UnknownPreTokenizer { name: parts.pre.map(str::to_owned) });
        };
        let size_bytes = measured(parts)?;
        let roles = Roles::new(parts, &parts.special, rule.add_bos)?;
        let mut rendered = Strings::with_capacity(parts.tokens.len(), size_bytes);
        let mut index = Index::with_capacity(parts.tokens.len());
        let mut foreign = Foreign::default();
        let mut plain = Vec::new();
        for ((id, raw), &kind) in (0u32..).zip(&parts.tokens).zip(&roles.kinds) {
            if raw.is_empty() {
                return Err(TokenizerError::EmptyToken { id });
            }
            let text = std::str::from_utf8(raw).map_err(|_| TokenizerError::NotUtf8 { id })?;
            plain.clear();
            let decoded = bytes_of_text(text, &mut plain).is_some();
            if kind.is_special() {
                rendered.push(raw);
            } else if kind.is(Kind::BYTE) {
                rendered.push(&[byte_of(raw).ok_or(TokenizerError::BadByteToken { id })?]);
            } else {
                rendered.push(if decoded { &plain } else { raw });
            }
            let reachable = decoded && rendered.get(id) == plain;
            let duplicate = if reachable { index.insert(&rendered, id) } else { foreign.insert(raw, id) };
            duplicate.map_err(|first| TokenizerError::DuplicateToken { first, second: id })?;
        }
        let bytes = std::array::from_fn(|byte| index.find(&rendered, &[byte as u8]).unwrap_or(NONE));
        if bytes.iter().all(|&id| id == NONE) {
            return Err(TokenizerError::NoByteToken { byte: 0 });
        }
        let merges = parts.merges.as_deref().ok_or(TokenizerError::ListMissing { list: "merges" })?;
        let pairs = pairs(merges, &index, &rendered)?;
        let bpe = Self { split: rule.split, whole_words: rule.whole_words, index, pairs, bytes };
        Ok((bpe, Tokens { rendered, roles }))
    }

    /// Bytes that no token stands for.
    pub(super) fn lacks(&self) -> impl Iterator<Item = u8> {
        (0..=255).filter(|&byte| self.bytes[byte as usize] == NONE)
    }

    /// Appends the tokens of `text`.
    pub(super) fn encode(&self, tokens: &Tokens, text: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        let mut cache = WordCache::for_text(text.len());
        self.split.words(text, &mut |range| {
            let word = &text.as_bytes()[range.clone()];
            cache.word(text.as_bytes(), range, out, |out| self.encode_word(tokens, word, merger, out));
        });
    }

    fn encode_word(&self, tokens: &Tokens, word: &[u8], merger: &mut Merger, out: &mut Vec<u32>) {
        if self.whole_words
            && let Some(id) = self.index.find(&tokens.rendered, word)
        {
            out.push(id);
            return;
        }
        merger.symbols.clear();
        merger.symbols.extend((0u32..).zip(word).map(|(start, &byte)| Symbol {
            start,
            len: 1,
            id: self.bytes[byte as usize],
        }));
        merger.run(word, self);
        out.extend(merger.symbols.iter().map(|symbol| symbol.id).filter(|&id| id != NONE));
    }
}

impl Rules for Bpe {
    fn merge(&self, _: &[u8], left: Symbol, right: Symbol) -> Option<Merge> {
        // A symbol without a token is in no pair.
        self.pairs.find(left.id, right.id)
    }
}

/// The merge list by ids.
fn pairs(merges: &[&[u8]], index: &Index, rendered: &Strings) -> Result<Pairs, TokenizerError> {
    let mut pairs = Pairs::with_capacity(merges.len());
    let mut joined = Vec::new();
    for (place, merge) in merges.iter().enumerate() {
        let mut ids = || {
            // A part is never empty, so a space at the start belongs to it.
            let space = merge.iter().skip(1).position(|&byte| byte == b' ')? + 1;
            let (left, right) = (std::str::from_utf8(&merge[..space]), std::str::from_utf8(&merge[space + 1..]));
            joined.clear();
            bytes_of_text(left.ok()?, &mut joined)?;
            let middle = joined.len();
            bytes_of_text(right.ok()?, &mut joined)?;
            let find = |bytes: &[u8]| index.find(rendered, bytes);
            Some((find(&joined[..middle])?, find(&joined[middle..])?, find(&joined)?))
        };
        let (left, right, id) = ids().ok_or(TokenizerError::BadMerge { index: place })?;
        pairs.insert(left, right, Merge { rank: place as u32, id });
    }
    Ok(pairs)
}

/// Tokens that no text leads to; kept only to find equal ones.
#[derive(Default)]
struct Foreign<'a>(std::collections::HashMap<&'a [u8], u32>);

impl<'a> Foreign<'a> {
    fn insert(&mut self, text: &'a [u8], id: u32) -> Result<(), u32> {
        match self.0.insert(text, id) {
            Some(first) => Err(first),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphabet_names_every_byte_once() {
        let mut seen = [false; 256];
        for c in '\0'..='\u{200}' {
            if let Some(byte) = byte_of_char(c) {
                assert!(!std::mem::replace(&mut seen[byte as usize], true), "{byte} twice");
            }
        }
        assert!(seen.iter().all(|&seen| seen));
        assert_eq!(byte_of_char('\u{120}'), Some(b' '));
        assert_eq!(byte_of_char('\u{10a}'), Some(b'\n'));
        assert_eq!(byte_of_char('\u{143}'), Some(0xad));
    }
}
