#![forbid(unsafe_code)]
//! Splitting rules of byte-level vocabularies: text -> words, which never merge with each other.
//!
//! Each rule is published as a regular expression; here they are written out by hand, because a backtracking engine is slow on them and
//! quadratic on long runs of white space. All rules cover the whole text: their words joined are the text.
//!
//! ```text
//! Gpt2     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//! Smollm   each \p{N} alone, Gpt2 on what lies between
//! Llama3   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//! Qwen2    Llama3 with \p{N} for \p{N}{1,3}
//! Default  runs of [\p{P}$+<=>^~|] apart; Gpt2 in and between them; then runs of \p{N} apart; then three digits at a time apart
//! ```
//!
//! Letters, numbers and punctuation are those of Unicode 15.1, as llama.cpp has them: a character that became a letter later splits as
//! it did before.
//!
//! The contractions are ASCII in either case, as llama.cpp has them: U+017F is no `s`.
//!
//! # Not here
//! Byte fallback and merges: `bpe`. Vocabularies of the SentencePiece kind have no such rule: `spm`.

use std::ops::Range;

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

/// A splitting rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Split {
    Gpt2,
    Smollm,
    Llama3,
    Qwen2,
    Default,
}

/// What the name of a pre-tokenizer stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PreTokenizer {
    pub(super) split: Split,
    /// A word that is a token is that token, whatever the merges say.
    pub(super) whole_words: bool,
    /// Whether a text starts with BOS when the file does not say.
    pub(super) add_bos: bool,
}

impl PreTokenizer {
    /// The rule of a `tokenizer.ggml.pre`; names that mean exactly the same are listed together.
    pub(super) fn by_name(name: &str) -> Option<Self> {
        let (split, whole_words, add_bos) = match name {
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2" => {
                (Split::Llama3, true, true)
            }
            "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => (Split::Llama3, false, false),
            "qwen2" | "deepseek-r1-qwen" | "kormo" | "megrez" | "stablelm2" | "hunyuan" | "solar-open" | "grok-2" => {
                (Split::Qwen2, false, false)
            }
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => {
                (Split::Smollm, false, false)
            }
            "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" | "trillion" | "gigachat" | "a.x-4.0" | "mellum"
            | "exaone4" => (Split::Gpt2, false, false),
            "default" => (Split::Default, false, false),
            _ => return None,
        };
        Some(Self { split, whole_words, add_bos })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

const ASCII: [Class; 128] = {
    let mut table = [Class::Other; 128];
    let mut i = 0;
    while i < 128 {
        table[i] = match i as u8 {
            b'a'..=b'z' | b'A'..=b'Z' => Class::Letter,
            b'0'..=b'9' => Class::Number,
            b'\t'..=b'\r' | b' ' => Class::Space,
            _ => Class::Other,
        };
        i += 1;
    }
    table
};

fn class(c: char) -> Class {
    if let Some(class) = ASCII.get(c as usize) {
        return *class;
    }
    match c.general_category_group() {
        GeneralCategoryGroup::Letter => Class::Letter,
        GeneralCategoryGroup::Number => Class::Number,
        _ if c.is_whitespace() => Class::Space,
        _ => Class::Other,
    }
}

/// Class and length of the character at `at`; none at the end.
fn look(text: &str, at: usize) -> Option<(Class, usize)> {
    let byte = *text.as_bytes().get(at)?;
    if let Some(class) = ASCII.get(byte as usize) {
        return Some((*class, 1));
    }
    let c = text.get(at..)?.chars().next()?;
    Some((class(c), c.len_utf8()))
}

/// End of the run of `wanted` that starts at `at`.
fn run(text: &str, mut at: usize, wanted: Class) -> usize {
    while let Some((class, len)) = look(text, at)
        && class == wanted
    {
        at += len;
    }
    at
}

fn is_newline(byte: u8) -> bool {
    byte == b'\r' || byte == b'\n'
}

/// Length of a contraction at `at`, in lower case or, when `any_case`, in either.
fn contraction(text: &str, at: usize, any_case: bool) -> Option<usize> {
    let rest = text.as_bytes().get(at..)?.strip_prefix(b"'")?;
    let letter = |i: usize| rest.get(i).map(|&byte| if any_case { byte.to_ascii_lowercase() } else { byte });
    match (letter(0)?, letter(1)) {
        (b's' | b't' | b'm' | b'd', _) => Some(2),
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(3),
        _ => None,
    }
}

/// End of the white space at `at`, less its last character when something follows: `\s+(?!\S)|\s+`.
fn white_space(text: &str, at: usize) -> usize {
    let (mut end, mut last) = (at, at);
    while let Some((Class::Space, len)) = look(text, end) {
        last = end;
        end += len;
    }
    if end < text.len() && last > at { last } else { end }
}

fn next_gpt2(text: &str, at: usize) -> usize {
    if let Some(len) = contraction(text, at, false) {
        return at + len;
    }
    let body = if text.as_bytes()[at] == b' ' { at + 1 } else { at };
    match look(text, body) {
        Some((class, len)) if class != Class::Space => run(text, body + len, class),
        _ => white_space(text, at),
    }
}

fn next_llama3(text: &str, at: usize, digits: usize) -> usize {
    if let Some(len) = contraction(text, at, true) {
        return at + len;
    }
    let bytes = text.as_bytes();
    let Some((class, len)) = look(text, at) else { return text.len() };
    match class {
        Class::Letter => return run(text, at + len, Class::Letter),
        Class::Number => {
            let (mut end, mut count) = (at + len, 1);
            while count < digits
                && let Some((Class::Number, len)) = look(text, end)
            {
                end += len;
                count += 1;
            }
            return end;
        }
        Class::Space | Class::Other => {}
    }
    if !is_newline(bytes[at])
        && let Some((Class::Letter, first)) = look(text, at + len)
    {
        return run(text, at + len + first, Class::Letter);
    }
    let body = if bytes[at] == b' ' { at + 1 } else { at };
    if let Some((Class::Other, len)) = look(text, body) {
        let mut end = run(text, body + len, Class::Other);
        while bytes.get(end).is_some_and(|&byte| is_newline(byte)) {
            end += 1;
        }
        return end;
    }
    let end = run(text, at, Class::Space);
    match bytes[at..end].iter().rposition(|&byte| is_newline(byte)) {
        Some(newline) => at + newline + 1,
        None => white_space(text, at),
    }
}

/// Calls `word` for each piece that `next` cuts from `text[range]`, which it sees as a text of its own.
fn cut(text: &str, range: Range<usize>, next: impl Fn(&str, usize) -> usize, word: &mut dyn FnMut(Range<usize>)) {
    let Some(piece) = text.get(range.clone()) else { return };
    let mut at = 0;
    while at < piece.len() {
        let end = next(piece, at);
        word(range.start + at..range.start + end);
        at = end;
    }
}

/// End of the run at `at` of characters that are all, or all not, `wanted`.
fn same(piece: &str, at: usize, wanted: impl Fn(char) -> bool) -> usize {
    let mut chars = piece[at..].char_indices();
    let first = chars.next().is_some_and(|(_, c)| wanted(c));
    chars.find(|&(_, c)| wanted(c) != first).map_or(piece.len(), |(i, _)| at + i)
}

fn is_number(c: char) -> bool {
    class(c) == Class::Number
}

fn is_default_mark(c: char) -> bool {
    matches!(c, '$' | '+' | '<' | '=' | '>' | '^' | '~' | '|')
        || c.general_category_group() == GeneralCategoryGroup::Punctuation
}

/// End of three ASCII digits at `at`, or of what lies before the next three.
fn three_digits(piece: &str, at: usize) -> usize {
    let bytes = piece.as_bytes();
    let three = |i: usize| bytes.get(i..i + 3).is_some_and(|three| three.iter().all(u8::is_ascii_digit));
    if three(at) { at + 3 } else { (at + 1..bytes.len()).find(|&i| three(i)).unwrap_or(bytes.len()) }
}

impl Split {
    /// Calls `word` with the place of each word, in order.
    pub(super) fn words(self, text: &str, word: &mut dyn FnMut(Range<usize>)) {
        let whole = 0..text.len();
        match self {
            Self::Gpt2 => cut(text, whole, next_gpt2, word),
            Self::Llama3 => cut(text, whole, |piece, at| next_llama3(piece, at, 3), word),
            Self::Qwen2 => cut(text, whole, |piece, at| next_llama3(piece, at, 1), word),
            Self::Smollm => {
                let number_or_rest = |piece: &str, at: usize| match look(piece, at) {
                    Some((Class::Number, len)) => at + len,
                    _ => same(piece, at, is_number),
                };
                cut(text, whole, number_or_rest, &mut |piece| cut(text, piece, next_gpt2, word));
            }
            Self::Default => {
                cut(text, whole, |piece, at| same(piece, at, is_default_mark), &mut |piece| {
                    cut(text, piece, next_gpt2, &mut |piece| {
                        cut(text, piece, |piece, at| same(piece, at, is_number), &mut |piece| {
                            cut(text, piece, three_digits, word);
                        });
                    });
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use proptest::prelude::*;

    fn words(split: Split, text: &str) -> Vec<&str> {
        let mut words = Vec::new();
        split.words(text, &mut |range| words.push(&text[range]));
        words
    }

    /// Matches and what lies between them, each piece of the former stage searched as a text of its own.
    fn by_regex<'t>(stages: &[fancy_regex::Regex], text: &'t str) -> Vec<&'t str> {
        let mut pieces = vec![text];
        for stage in stages {
            let mut next = Vec::new();
            for piece in pieces {
                let mut at = 0;
                for found in stage.find_iter(piece) {
                    let found = found.expect("the search ends");
                    if found.start() > at {
                        next.push(&piece[at..found.start()]);
                    }
                    next.push(found.as_str());
                    at = found.end();
                }
                if at < piece.len() {
                    next.push(&piece[at..]);
                }
            }
            pieces = next;
        }
        pieces
    }

    const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
    const LLAMA3: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    const QWEN2: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    static RULES: LazyLock<Vec<(Split, Vec<fancy_regex::Regex>)>> = LazyLock::new(|| {
        let rules: [(Split, &[&str]); 5] = [
            (Split::Gpt2, &[GPT2]),
            (Split::Smollm, &[r"\p{N}", GPT2]),
            (Split::Llama3, &[LLAMA3]),
            (Split::Qwen2, &[QWEN2]),
            (Split::Default, &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
        ];
        let compile = |stage: &&str| fancy_regex::Regex::new(stage).expect("the rule compiles");
        rules.map(|(split, stages)| (split, stages.iter().map(compile).collect())).into()
    });

    /// Whether the expressions, which know a later Unicode, have the character in the same class.
    fn is_agreed(c: char) -> bool {
        static CLASSES: LazyLock<[fancy_regex::Regex; 3]> = LazyLock::new(|| {
            [r"^\p{L}", r"^\p{N}", r"^\p{P}"].map(|class| fancy_regex::Regex::new(class).expect("the class compiles"))
        });
        let found = CLASSES.each_ref().map(|class| class.is_match(&c.to_string()).expect("the search ends"));
        let mark = c.general_category_group() == GeneralCategoryGroup::Punctuation;
        found == [class(c) == Class::Letter, class(c) == Class::Number, mark]
    }

    #[test]
    fn classes_agree_on_nearly_every_character() {
        let differ = ('\0'..=char::MAX).filter(|&c| !is_agreed(c)).count();
        // Unicode 16 and 17 added about ten thousand characters, and changed hardly any.
        assert!(differ < 15_000, "{differ}");
        assert!(('\0'..='\u{800}').all(is_agreed));
    }

    fn assert_rules(text: &str) {
        for (split, stages) in RULES.iter() {
            assert_eq!(words(*split, text), by_regex(stages, text), "{split:?} on {text:?}");
        }
    }

    #[test]
    fn rules_match_their_expressions_on_chosen_texts() {
        for text in [
            "",
            " ",
            "  a",
            "a  ",
            "I'm you'RE 'S' it's don't '",
            "12345 6 \u{b2}\u{bd}78",
            "x\r\n\r\n  y \n\n z\n ",
            " \n \n",
            "...\n\n!? \u{a0}\u{2003}x",
            "e\u{301}\u{301} \u{301}",
            "\u{4f60}\u{597d},\u{4e16}\u{754c}\u{3002}1234",
            "a+b=c|d~e^f$ <tag> `x`",
            "\t\tif\t1",
            "\u{85}\u{85}a\u{200b}b",
        ] {
            assert_rules(text);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn rules_match_their_expressions(text in "[ \n\r\t'a-eA-Elrsvtm0-9.,$+|~\u{e9}\u{301}\u{3000}\u{4e16}\u{660}\u{2003}\u{1f600}\u{aa}\u{b2}]{0,24}") {
            assert_rules(&text);
        }

        #[test]
        fn rules_match_their_expressions_on_any_text(text in "\\PC{0,12}[ \n]{0,3}\\PC{0,6}") {
            assert_rules(&text.chars().filter(|&c| is_agreed(c)).collect::<String>());
        }
    }
}
