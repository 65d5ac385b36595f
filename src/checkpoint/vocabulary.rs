#![forbid(unsafe_code)]
//! What a tokenizer is built from, as the files say it.
//!
//! # Not here
//! Encoding and decoding: `tokenizer`.

use std::path::PathBuf;

use super::error::ConfigError;
use super::gguf::StringArray;

/// The vocabulary of a checkpoint.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Vocabulary {
    /// From the `tokenizer.ggml.*` keys of a GGUF file.
    Gguf(Box<GgufVocabulary>),
    /// From a Hugging Face directory.
    Hf(HfVocabulary),
}

impl Vocabulary {
    /// The special tokens that the files name.
    pub fn special(&self) -> &SpecialTokens {
        match self {
            Self::Gguf(vocabulary) => &vocabulary.special,
            Self::Hf(vocabulary) => &vocabulary.special,
        }
    }
}

/// The `tokenizer.ggml.*` keys.
///
/// # Invariants
/// `tokens` has one entry per row of the embedding; `scores` and `types`, where present, have as many.
#[derive(Clone, Debug)]
pub struct GgufVocabulary {
    /// Kind of tokenizer: `gpt2`, `llama`, ...
    pub model: String,
    /// Name of the pre-tokenizer: `smollm`, `qwen2`, ...
    pub pre: Option<String>,
    /// The pieces, by token id.
    pub tokens: StringArray,
    /// Score of each token.
    pub scores: Option<Vec<f32>>,
    /// Type of each token: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub types: Option<Vec<i32>>,
    /// Byte-pair merges, `left right`, best first.
    pub merges: Option<StringArray>,
    /// Special tokens.
    pub special: SpecialTokens,
    /// Whether BOS goes in front, when stated.
    pub add_bos: Option<bool>,
    /// Whether EOS goes behind, when stated.
    pub add_eos: Option<bool>,
    /// Whether a separator goes behind, when stated.
    pub add_sep: Option<bool>,
    /// Whether a space goes in front of the text, when stated.
    pub add_space_prefix: Option<bool>,
    /// Whether runs of spaces become one, when stated.
    pub remove_extra_whitespaces: Option<bool>,
    /// Whether there is a table of character replacements (`precompiled_charsmap`) that a tokenizer would have to apply.
    pub has_charsmap: bool,
}

/// The tokenizer of a Hugging Face directory.
#[derive(Clone, Debug)]
pub struct HfVocabulary {
    /// Path of `tokenizer.json`, which exists.
    pub tokenizer_json: PathBuf,
    /// Special tokens that the configuration names.
    pub special: SpecialTokens,
}

/// Token ids with a meaning; all are below the vocabulary's size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Begins a sequence.
    pub bos: Option<u32>,
    /// Ends a sequence.
    pub eos: Option<u32>,
    /// Ends a turn.
    pub eot: Option<u32>,
    /// Ends a message.
    pub eom: Option<u32>,
    /// Stands for what the vocabulary lacks.
    pub unknown: Option<u32>,
    /// Separates.
    pub separator: Option<u32>,
    /// Fills up.
    pub padding: Option<u32>,
    /// Hides.
    pub mask: Option<u32>,
    /// All tokens that the files name as ends of generation, ascending: `eos`, `eot`, `eom`, and every id of a list.
    pub ends: Vec<u32>,
}

impl SpecialTokens {
    /// Fills `ends` from the single ids and `more`.
    pub(super) fn with_ends(mut self, more: &[u32]) -> Self {
        self.ends = [self.eos, self.eot, self.eom].into_iter().flatten().chain(more.iter().copied()).collect();
        self.ends.sort_unstable();
        self.ends.dedup();
        self
    }
}

/// Checks an id against the vocabulary. Files write -1, and its unsigned form, for none.
pub(super) fn token_id(key: &str, id: i64, vocab: usize) -> Result<Option<u32>, ConfigError> {
    if id == -1 || id == i64::from(u32::MAX) {
        return Ok(None);
    }
    match u32::try_from(id) {
        Ok(token) if (token as usize) < vocab => Ok(Some(token)),
        _ => {
            let id = u64::try_from(id).unwrap_or(u64::MAX);
            Err(ConfigError::SpecialToken { key: key.to_owned(), id, vocab: vocab as u64 })
        }
    }
}
