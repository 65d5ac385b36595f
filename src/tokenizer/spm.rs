#![forbid(unsafe_code)]
//! SentencePiece-style BPE: GGUF model `llama` (Llama 1 and 2, Mistral, Gemma).
//!
//! Spaces become U+2581, the text becomes characters, and those neighbours merge first whose joint token has the highest score. A
//! character that is no token becomes byte tokens. There is no splitting rule; but a token that has U+2581 behind another
//! character is rare, so the text can be cut before U+2581 wherever no token could reach across, with the same result and shorter words.
//!
//! # Invariants
//! Every byte has a token, so every text can be encoded.

use super::cache::WordCache;
use super::error::TokenizerError;
use super::merge::{Merger, NONE, Rules, Symbol};
use super::parts::VocabularyParts;
use super::table::{Index, Merge, Strings};
use super::tokens::{Kind, Roles, Tokens, byte_of, measured};
use crate::checkpoint::SpecialTokens;

/// U+2581, written for a space.
const MARK: &[u8; 3] = b"\xe2\x96\x81";

#[derive(Debug)]
pub(super) struct Spm {
    /// Texts as the file has them: what the escaped text is looked up in.
    raw: Strings,
    index: Index,
    /// Merge rank by id: a higher score is a lower rank, equal scores have equal ranks.
    ranks: Vec<u32>,
    /// Token of each byte.
    bytes: [u32; 256],
    /// Whether a token may have the mark behind a character that ends in this byte.
    reaches_mark: [bool; 256],
    longest_bytes: usize,
    /// Whether a space is put before text that starts or follows a special token.
    pub(super) add_space_prefix: bool,
}

/// Order of scores as integers, highest first.
fn rank(score: f32) -> u32 {
    // Adding 0 makes -0 and 0 the same.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

/// `text` with a space for each mark, in place of what `out` held.
pub(super) fn render(text: &[u8], out: &mut Vec<u8>) {
    out.clear();
    let mut rest = text;
    while let Some(&byte) = rest.first() {
        if let Some(after) = rest.strip_prefix(MARK) {
            out.push(b' ');
            rest = after;
        } else {
            out.push(byte);
            rest = &rest[1..];
        }
    }
}

impl Spm {
    pub(super) fn new(parts: &VocabularyParts<'_>) -> Result<(Self, Tokens), TokenizerError> {
        let size_bytes = measured(parts)?;
        let count = parts.tokens.len();
        let roles = Roles::new(parts, &usual_ids(parts), true)?;
        let scores = parts.scores.ok_or(TokenizerError::ListMissing { list: "scores" })?;
        if scores.len() < count {
            return Err(TokenizerError::ListTooShort { list: "scores", expected: count, got: scores.len() });
        }
        let mut spm = Self {
            raw: Strings::with_capacity(count, size_bytes),
            index: Index::with_capacity(count),
            ranks: Vec::with_capacity(count),
            bytes: [NONE; 256],
            reaches_mark: [false; 256],
            longest_bytes: 0,
            add_space_prefix: parts.add_space_prefix.unwrap_or(true),
        };
        let mut rendered = Strings::with_capacity(count, size_bytes);
        let mut buffer = Vec::new();
        for (((id, text), &kind), &score) in (0u32..).zip(&parts.tokens).zip(&roles.kinds).zip(scores) {
            spm.add(id, text, score)?;
            if kind.is_special() {
                rendered.push(text);
            } else if kind.is(Kind::BYTE) {
                rendered.push(&[byte_of(text).ok_or(TokenizerError::BadByteToken { id })?]);
            } else {
                render(text, &mut buffer);
                rendered.push(&buffer);
            }
        }
        for byte in 0..=255u8 {
            let named = format!("<0x{byte:02X}>");
            let token = spm.find(named.as_bytes()).or_else(|| spm.find(&[byte]));
            spm.bytes[byte as usize] = token.ok_or(TokenizerError::NoByteToken { byte })?;
        }
        Ok((spm, Tokens { rendered, roles }))
    }

    fn add(&mut self, id: u32, text: &[u8], score: f32) -> Result<(), TokenizerError> {
        if text.is_empty() {
            return Err(TokenizerError::EmptyToken { id });
        }
        if std::str::from_utf8(text).is_err() {
            return Err(TokenizerError::NotUtf8 { id });
        }
        if score.is_nan() {
            return Err(TokenizerError::BadScore { id });
        }
        self.ranks.push(rank(score));
        self.raw.push(text);
        self.index.insert(&self.raw, id).map_err(|first| TokenizerError::DuplicateToken { first, second: id })?;
        self.longest_bytes = self.longest_bytes.max(text.len());
        for (at, _) in text.windows(3).enumerate().skip(1).filter(|(_, window)| window == MARK) {
            self.reaches_mark[text[at - 1] as usize] = true;
        }
        Ok(())
    }

    fn find(&self, text: &[u8]) -> Option<u32> {
        self.index.find(&self.raw, text)
    }

    /// Appends the tokens of `text`, with a space before it when `prefix`.
    pub(super) fn encode(&self, text: &str, prefix: bool, merger: &mut Merger, out: &mut Vec<u32>) {
        let mut escaped = String::with_capacity(text.len() + text.len() / 2 + 3);
        if prefix {
            escaped.push('\u{2581}');
        }
        for (i, piece) in text.split(' ').enumerate() {
            if i > 0 {
                escaped.push('\u{2581}');
            }
            escaped.push_str(piece);
        }
        let mut cache = WordCache::for_text(escaped.len());
        let bytes = escaped.as_bytes();
        let mut start = 0;
        while start < bytes.len() {
            let end = self.word_end(bytes, start);
            cache.word(bytes, start..end, out, |out| self.encode_word(&escaped[start..end], merger, out));
            start = end;
        }
    }

    /// Where the word that starts at `start` may be cut: before a mark that no token reaches.
    fn word_end(&self, bytes: &[u8], start: usize) -> usize {
        let mut at = start + 1;
        while let Some(offset) = bytes.get(at..).and_then(|rest| rest.iter().position(|&byte| byte == MARK[0])) {
            at += offset;
            let before = bytes[at - 1];
            // Marks in a row stay together: what ends in the mark's last byte is taken for one.
            if bytes[at..].starts_with(MARK) && before != MARK[2] && !self.reaches_mark[before as usize] {
                return at;
            }
            at += 1;
        }
        bytes.len()
    }

    fn encode_word(&self, word: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        merger.symbols.clear();
        merger.symbols.extend(word.char_indices().map(|(start, c)| Symbol {
            start: start as u32,
            len: c.len_utf8() as u32,
            id: NONE,
        }));
        merger.run(word.as_bytes(), self);
        for symbol in &merger.symbols {
            let text = &word.as_bytes()[symbol.start as usize..(symbol.start + symbol.len) as usize];
            let token = if symbol.id == NONE { self.find(text) } else { Some(symbol.id) };
            match token {
                Some(id) => out.push(id),
                None => out.extend(text.iter().map(|&byte| self.bytes[byte as usize])),
            }
        }
    }
}

impl Rules for Spm {
    fn merge(&self, word: &[u8], left: Symbol, right: Symbol) -> Option<Merge> {
        let len = (left.len + right.len) as usize;
        if len > self.longest_bytes {
            return None;
        }
        let start = left.start as usize;
        let id = self.find(word.get(start..start + len)?)?;
        Some(Merge { rank: self.ranks[id as usize], id })
    }
}

/// The ids that vocabularies of this kind have had since the first Llama, where the file names none.
fn usual_ids(parts: &VocabularyParts<'_>) -> SpecialTokens {
    let usual = |id: u32| Some(id).filter(|&id| (id as usize) < parts.tokens.len());
    let mut special = parts.special.clone();
    special.unknown = special.unknown.or(usual(0));
    special.bos = special.bos.or(usual(1));
    special.eos = special.eos.or(usual(2));
    special
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_order_scores_from_high_to_low() {
        let scores = [f32::INFINITY, 3.5, 1e-30, 0.0, -1e-30, -1.0, -1000.0, f32::NEG_INFINITY];
        for pair in scores.windows(2) {
            assert!(rank(pair[0]) < rank(pair[1]), "{pair:?}");
        }
        assert_eq!(rank(0.0), rank(-0.0));
    }
}
