#![forbid(unsafe_code)]
//! What a model file says about its vocabulary, before anything is built from it.

use crate::checkpoint::{GgufVocabulary, SpecialTokens};

/// A vocabulary as GGUF metadata has it (`tokenizer.ggml.*`); nothing is checked yet.
#[derive(Clone, Debug, Default)]
pub struct VocabularyParts<'a> {
    /// `model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece style).
    pub model: &'a str,
    /// `pre`: name of the splitting rule.
    pub pre: Option<&'a str>,
    /// `tokens`: text of each token, by id.
    pub tokens: Vec<&'a [u8]>,
    /// `scores`, by id.
    pub scores: Option<&'a [f32]>,
    /// `token_type`, by id: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub types: Option<&'a [i32]>,
    /// `merges`: two tokens with a space between, earliest first.
    pub merges: Option<Vec<&'a [u8]>>,
    /// Tokens named for a purpose.
    pub special: SpecialTokens,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`.
    pub add_space_prefix: Option<bool>,
}

impl<'a> From<&'a GgufVocabulary> for VocabularyParts<'a> {
    fn from(vocabulary: &'a GgufVocabulary) -> Self {
        Self {
            model: &vocabulary.model,
            pre: vocabulary.pre.as_deref(),
            tokens: vocabulary.tokens.iter().collect(),
            scores: vocabulary.scores.as_deref(),
            types: vocabulary.types.as_deref(),
            merges: vocabulary.merges.as_ref().map(|merges| merges.iter().collect()),
            special: vocabulary.special.clone(),
            add_bos: vocabulary.add_bos,
            add_eos: vocabulary.add_eos,
            add_space_prefix: vocabulary.add_space_prefix,
        }
    }
}
