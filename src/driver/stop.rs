#![forbid(unsafe_code)]
//! Stop strings, found in a text that comes piece by piece.
//!
//! Each string has its automaton (Knuth, Morris, Pratt): its state is the length of the longest start of the string that the text
//! ends with. So one look per byte and string decides both questions: is one complete, and how much of the end of the text may still
//! become one and has to be held back.
//!
//! The string that is complete first ends the text. Of several that are complete at the same byte, the one that began first counts.
//!
//! # Invariants
//! What is held back is the longest end of the text that a stop string begins with; it starts at a character.
//!
//! # Source
//! Knuth, Morris, Pratt, "Fast pattern matching in strings", 1977.

/// One string and where its automaton stands.
#[derive(Clone, Debug)]
struct Pattern {
    bytes: Box<[u8]>,
    /// Per length: the longest shorter start that is also an end of the start of that length.
    borders: Box<[usize]>,
    state: usize,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let bytes: Box<[u8]> = text.as_bytes().into();
        let mut borders = vec![0; bytes.len() + 1].into_boxed_slice();
        let mut border = 0;
        for at in 1..bytes.len() {
            border = step(&bytes, &borders, border, bytes[at]);
            borders[at + 1] = border;
        }
        Self { bytes, borders, state: 0 }
    }

    /// Takes a byte and says whether the string is complete.
    fn take(&mut self, byte: u8) -> bool {
        self.state = step(&self.bytes, &self.borders, self.state, byte);
        self.state == self.bytes.len()
    }
}

/// Where the automaton stands after one more byte; `state` is below the length of the string.
fn step(bytes: &[u8], borders: &[usize], mut state: usize, byte: u8) -> usize {
    loop {
        if bytes.get(state) == Some(&byte) {
            return state + 1;
        }
        if state == 0 {
            return 0;
        }
        state = borders.get(state).copied().unwrap_or(0);
    }
}

/// Finds the first of some strings in a text.
#[derive(Clone, Debug, Default)]
pub(super) struct StopMatcher {
    patterns: Vec<Pattern>,
    /// The end of the text that is not given out yet.
    held: String,
}

impl StopMatcher {
    /// For these strings, none of which is empty.
    pub(super) fn new(stops: &[String]) -> Self {
        let patterns = stops.iter().filter(|stop| !stop.is_empty()).map(|stop| Pattern::new(stop)).collect();
        Self { patterns, held: String::new() }
    }

    /// Takes a piece, appends to `text` what is certain not to belong to a stop string, and answers the number of the string that is
    /// complete. After that the text has ended: nothing is held, and nothing more may be pushed.
    pub(super) fn push(&mut self, piece: &str, text: &mut String) -> Option<usize> {
        if self.patterns.is_empty() {
            text.push_str(piece);
            return None;
        }
        let before = self.held.len();
        self.held.push_str(piece);
        for (at, &byte) in piece.as_bytes().iter().enumerate() {
            let mut found: Option<(usize, usize)> = None;
            for (number, pattern) in self.patterns.iter_mut().enumerate() {
                let complete = pattern.take(byte);
                let len = pattern.bytes.len();
                if complete && found.is_none_or(|(_, longest)| len > longest) {
                    found = Some((number, len));
                }
            }
            if let Some((number, len)) = found {
                let start = (before + at + 1).saturating_sub(len);
                text.push_str(self.held.get(..start).unwrap_or_default());
                self.held.clear();
                return Some(number);
            }
        }
        let keep = self.patterns.iter().map(|pattern| pattern.state).max().unwrap_or(0);
        let certain = self.held.len().saturating_sub(keep);
        text.push_str(self.held.get(..certain).unwrap_or_default());
        self.held.drain(..certain);
        None
    }

    /// Ends the text: what was held back belongs to it.
    pub(super) fn finish(&mut self, text: &mut String) {
        text.push_str(&std::mem::take(&mut self.held));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By definition: the first place at which any string is complete; there, the one that began first.
    fn plain(text: &str, stops: &[String]) -> (String, Option<usize>) {
        for end in 1..=text.len() {
            let complete =
                stops.iter().enumerate().filter(|(_, stop)| text.as_bytes()[..end].ends_with(stop.as_bytes()));
            // The first of the longest ones.
            if let Some((number, stop)) = complete.rev().max_by_key(|(_, stop)| stop.len()) {
                return (text[..end - stop.len()].to_owned(), Some(number));
            }
        }
        (text.to_owned(), None)
    }

    fn streamed(pieces: &[String], stops: &[String]) -> (String, Option<usize>) {
        let (mut matcher, mut text) = (StopMatcher::new(stops), String::new());
        for piece in pieces {
            if let Some(number) = matcher.push(piece, &mut text) {
                return (text, Some(number));
            }
            let held = matcher.held.as_str();
            let all = format!("{text}{held}");
            let longest = stops.iter().flat_map(|stop| (0..stop.len()).map(|len| &stop.as_bytes()[..len]));
            let longest = longest.filter(|start| all.as_bytes().ends_with(start)).map(<[u8]>::len).max();
            assert_eq!(Some(held.len()), longest.or(Some(0)), "no more and no less is held back");
        }
        matcher.finish(&mut text);
        (text, None)
    }

    #[test]
    fn text_before_the_string_comes_and_nothing_after() {
        let stops = ["</s>".to_owned(), "\n\nUser:".to_owned()];
        let pieces = ["hello", "\n", "\nUse", "d <", "/s", "> more"].map(str::to_owned);
        assert_eq!(streamed(&pieces, &stops), ("hello\n\nUsed ".to_owned(), Some(0)));
    }

    #[test]
    fn string_that_is_complete_first_counts_not_the_one_that_began_first() {
        let stops = ["abcd".to_owned(), "bc".to_owned()];
        assert_eq!(streamed(&["xabcd".to_owned()], &stops), ("xa".to_owned(), Some(1)));
        let stops = ["bc".to_owned(), "abc".to_owned()];
        assert_eq!(streamed(&["xabc".to_owned()], &stops), ("x".to_owned(), Some(1)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

        /// A small alphabet with characters of one to four bytes makes near misses and overlaps common.
        #[test]
        fn any_cut_finds_what_a_plain_search_finds(
            pieces in proptest::collection::vec("[ab\u{e9}\u{20ac}\u{1f600}]{0,4}", 0..12),
            stops in proptest::collection::vec("[ab\u{e9}\u{20ac}\u{1f600}]{1,6}", 0..5),
        ) {
            prop_assert_eq!(streamed(&pieces, &stops), plain(&pieces.concat(), &stops));
        }
    }
}
