#![forbid(unsafe_code)]
//! Bytes to text as they come, never cutting a character.
//!
//! A token may end inside a UTF-8 character. [`TextStream`] keeps the bytes of a character that may still become valid, at most three,
//! and gives text as soon as it is certain. Bytes that can no longer become valid are U+FFFD, one for each maximal subpart, so that the
//! pieces joined are always what `String::from_utf8_lossy` makes of all bytes at once.
//!
//! # Invariants
//! The tail is empty or a proper prefix of a valid character.
//!
//! # Source
//! Unicode Standard 16, section 3.9, "U+FFFD Substitution of Maximal Subparts".

use super::{DecodeOptions, Tokenizer, UnknownToken};

const REPLACEMENT: char = '\u{fffd}';

/// Turns bytes into text, piece by piece.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    tail: [u8; 4],
    tail_len: usize,
}

impl TextStream {
    /// An empty stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends to `text` what is certain after these bytes.
    pub fn push(&mut self, mut bytes: &[u8], text: &mut String) {
        // One byte at a time completes or breaks the character in the tail.
        while self.tail_len > 0
            && let Some((&byte, rest)) = bytes.split_first()
        {
            self.tail[self.tail_len] = byte;
            match std::str::from_utf8(&self.tail[..self.tail_len + 1]) {
                Ok(character) => {
                    text.push_str(character);
                    self.tail_len = 0;
                }
                // Still a prefix.
                Err(error) if error.error_len().is_none() => self.tail_len += 1,
                // This byte cannot follow: the tail is lost, the byte begins anew.
                Err(_) => {
                    text.push(REPLACEMENT);
                    self.tail_len = 0;
                    break;
                }
            }
            bytes = rest;
        }
        for chunk in bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            // An invalid part is open only at the very end, when more bytes could complete it.
            let at_end = std::ptr::eq(invalid.as_ptr_range().end, bytes.as_ptr_range().end);
            let open = at_end && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if open {
                self.tail[..invalid.len()].copy_from_slice(invalid);
                self.tail_len = invalid.len();
            } else if !invalid.is_empty() {
                text.push(REPLACEMENT);
            }
        }
    }

    /// Ends the stream: appends U+FFFD for a character that stayed incomplete. The stream is then empty again.
    pub fn finish(&mut self, text: &mut String) {
        if std::mem::take(&mut self.tail_len) > 0 {
            text.push(REPLACEMENT);
        }
    }

    /// Number of bytes kept back.
    pub fn pending_bytes(&self) -> usize {
        self.tail_len
    }
}

/// Turns token ids into text, one by one, as a continuation: nothing is taken off the first token.
#[derive(Clone, Debug)]
pub struct TokenStream<'t> {
    tokenizer: &'t Tokenizer,
    options: DecodeOptions,
    text: TextStream,
}

impl<'t> TokenStream<'t> {
    /// An empty stream of this vocabulary.
    pub fn new(tokenizer: &'t Tokenizer, options: DecodeOptions) -> Self {
        Self { tokenizer, options, text: TextStream::new() }
    }

    /// The text that is certain after this token and was not before; often empty, when a token ends inside a character.
    ///
    /// # Errors
    /// An id outside the vocabulary; the stream is as before.
    pub fn push(&mut self, id: u32) -> Result<String, UnknownToken> {
        let bytes = self.tokenizer.shown(id, self.options)?;
        let mut text = String::new();
        self.text.push(bytes, &mut text);
        Ok(text)
    }

    /// Ends the stream: U+FFFD for a character that stayed incomplete, else nothing.
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        self.text.finish(&mut text);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn streamed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> String {
        let (mut stream, mut text) = (TextStream::new(), String::new());
        for piece in pieces {
            stream.push(piece, &mut text);
            assert!(stream.pending_bytes() < 4);
        }
        stream.finish(&mut text);
        text
    }

    #[test]
    fn character_comes_whole_and_at_once() {
        let (mut stream, mut text) = (TextStream::new(), String::new());
        for &byte in &"\u{1f600}".as_bytes()[..3] {
            stream.push(&[byte], &mut text);
            assert_eq!(text, "");
        }
        stream.push(&"\u{1f600}a".as_bytes()[3..], &mut text);
        assert_eq!(text, "\u{1f600}a");
    }

    #[test]
    fn every_sequence_of_two_bytes_streams_as_it_decodes() {
        for first in 0..=255u8 {
            for second in 0..=255u8 {
                for third in [0x61, 0x80, 0xa0, 0xe2, 0xf0] {
                    let bytes = [first, second, third, 0x80];
                    let expected = String::from_utf8_lossy(&bytes);
                    assert_eq!(streamed(bytes.chunks(1)), expected, "{bytes:x?}");
                    assert_eq!(streamed([&bytes[..2], &bytes[2..]]), expected, "{bytes:x?}");
                }
            }
        }
    }

    fn rough_bytes() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            any::<char>().prop_map(|c| c.to_string().into_bytes()),
            any::<char>().prop_flat_map(|c| (Just(c), 0..4usize)).prop_map(|(c, cut)| {
                let bytes = c.to_string().into_bytes();
                bytes[..cut.min(bytes.len())].to_vec()
            }),
            any::<u8>().prop_map(|byte| vec![byte]),
        ];
        proptest::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn any_cut_streams_as_all_bytes_decode(bytes in rough_bytes(), cuts in proptest::collection::vec(any::<usize>(), 0..8)) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
            cuts.sort_unstable();
            cuts.push(bytes.len());
            let mut start = 0;
            let mut pieces = Vec::new();
            for cut in cuts {
                pieces.push(&bytes[start..cut]);
                start = cut;
            }
            prop_assert_eq!(streamed(pieces), String::from_utf8_lossy(&bytes));
        }
    }
}
