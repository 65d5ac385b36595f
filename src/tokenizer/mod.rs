#![forbid(unsafe_code)]
//! Text to token ids and back, by the vocabulary of a model file.
//!
//! ```text
//! text -> partition: special tokens written in it, cut out -> bpe or spm on what lies between -> ids
//! ids  -> bytes of each token, one after the other         -> stream: bytes to text, when complete
//! ```
//!
//! Three kinds of vocabulary: byte-level BPE (GGUF `gpt2`), SentencePiece style (GGUF `llama`), and whatever of these a `tokenizer.json`
//! describes. Other kinds are refused. The first two give the ids and bytes that llama.cpp gives.
//!
//! # Invariants
//! A [`Tokenizer`] does not change after it is built, and its answers depend on nothing else: it can be shared between threads.
//!
//! # Limits
//! Encoding takes time linear in the text, times the logarithm of its longest word.
//!
//! # Not here
//! Chat templates: [`chat`](crate::chat). Cleaning of spaces before punctuation, which some old models ask for: decoded bytes are the
//! bytes of the tokens.

mod bpe;
mod cache;
mod error;
mod json;
mod merge;
mod partition;
mod parts;
mod pretokenize;
mod spm;
mod stream;
mod table;
mod tokens;

pub use error::{EncodeError, TokenizerError, UnknownToken};
pub use parts::VocabularyParts;
pub use stream::{TextStream, TokenStream};

use bpe::Bpe;
use json::Json;
use merge::Merger;
use partition::{Fragment, Specials};
use spm::Spm;
use tokens::{Kind, Tokens};

use crate::checkpoint::{SpecialTokens, Vocabulary};

/// How a text is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Puts the tokens around the text that the model wants: BOS before, EOS behind, as its file says.
    pub add_special: bool,
    /// Takes the text of a control token for that token. Off, it is plain text, so that what a user typed cannot steer the model;
    /// tokens that the vocabulary lists as user-defined are found either way.
    pub parse_special: bool,
}

/// How ids are decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Writes control tokens out; off, they are left out.
    pub special: bool,
}

#[derive(Debug)]
enum Model {
    Bpe(Box<Bpe>),
    Spm(Box<Spm>),
    Json(Json),
}

/// A vocabulary, ready to encode and decode.
#[derive(Debug)]
pub struct Tokenizer {
    model: Model,
    tokens: Tokens,
    /// Tokens cut out of a text when control tokens are parsed.
    parsed: Specials,
    /// Tokens cut out in any case.
    always: Specials,
}

impl Tokenizer {
    /// Builds a tokenizer from the vocabulary of a checkpoint.
    ///
    /// # Errors
    /// What is wrong with the vocabulary, or which kind is not known.
    pub fn new(vocabulary: &Vocabulary) -> Result<Self, TokenizerError> {
        match vocabulary {
            Vocabulary::Gguf(vocabulary) => Self::from_parts(&VocabularyParts::from(&**vocabulary)),
            Vocabulary::Hf(vocabulary) => {
                let path = &vocabulary.tokenizer_json;
                let json = std::fs::read_to_string(path)
                    .map_err(|source| TokenizerError::Read { path: path.clone(), source })?;
                Self::from_json(&json, &vocabulary.special)
            }
        }
    }

    /// Builds a tokenizer from the vocabulary of a GGUF file.
    ///
    /// # Errors
    /// What is wrong with the vocabulary, or which kind is not known.
    pub fn from_parts(parts: &VocabularyParts<'_>) -> Result<Self, TokenizerError> {
        let (model, tokens) = match parts.model {
            "gpt2" => {
                let (bpe, tokens) = Bpe::new(parts)?;
                (Model::Bpe(Box::new(bpe)), tokens)
            }
            "llama" => {
                let (spm, tokens) = Spm::new(parts)?;
                (Model::Spm(Box::new(spm)), tokens)
            }
            "" => return Err(TokenizerError::NoVocabulary),
            model => return Err(TokenizerError::UnknownModel { model: model.to_owned() }),
        };
        let special = |parse: bool| {
            let kinds = (0u32..).zip(&tokens.roles.kinds);
            let wanted = kinds.filter(move |(_, kind)| kind.is_special() && (parse || !kind.is_hidden()));
            Specials::new(wanted.map(|(id, _)| (id, tokens.rendered.get(id))))
        };
        let (parsed, always) = (special(true), special(false));
        Ok(Self { model, tokens, parsed, always })
    }

    /// Builds a tokenizer from the text of a `tokenizer.json` and the tokens that its companions name.
    ///
    /// # Errors
    /// What cannot be read, or which kind of part is not known.
    pub fn from_json(json: &str, special: &SpecialTokens) -> Result<Self, TokenizerError> {
        let (json, tokens) = Json::new(json, special)?;
        // The crate behind it finds special tokens itself.
        Ok(Self { model: Model::Json(json), tokens, parsed: Specials::default(), always: Specials::default() })
    }

    /// The ids of a text.
    ///
    /// # Errors
    /// The text is over a gigabyte, or the `tokenizers` crate refuses it. Nothing is returned then.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, EncodeError> {
        // Offsets are 32 bits, and an escaped space is three bytes.
        if text.len() > (u32::MAX / 4) as usize {
            return Err(EncodeError::TooLong { bytes: text.len() });
        }
        if let Model::Json(json) = &self.model {
            return json.encode(text, options);
        }
        let roles = &self.tokens.roles;
        let mut out = Vec::with_capacity(text.len() / 4 + 2);
        if options.add_special && roles.add_bos {
            out.extend(roles.bos);
        }
        let specials = if options.parse_special { &self.parsed } else { &self.always };
        let mut merger = Merger::default();
        // A text counts as following a special token, whether BOS was added or not.
        let mut after_special = true;
        for fragment in specials.partition(text) {
            match fragment {
                Fragment::Token(id) => {
                    out.push(id);
                    after_special = true;
                }
                Fragment::Text(range) => {
                    let text = &text[range];
                    match &self.model {
                        Model::Bpe(bpe) => bpe.encode(&self.tokens, text, &mut merger, &mut out),
                        Model::Spm(spm) => {
                            spm.encode(text, spm.add_space_prefix && after_special, &mut merger, &mut out);
                        }
                        Model::Json(_) => {}
                    }
                    after_special = false;
                }
            }
        }
        if options.add_special && roles.add_eos {
            out.extend(roles.eos);
        }
        Ok(out)
    }

    /// The bytes that ids stand for, from the start of a text: where encoding puts a space before a text, it is taken off again.
    /// The bytes need not be UTF-8, since a token may end inside a character.
    ///
    /// # Errors
    /// An id outside the vocabulary. Nothing is returned then.
    pub fn decode(&self, ids: &[u32], options: DecodeOptions) -> Result<Vec<u8>, UnknownToken> {
        let mut out = Vec::with_capacity(ids.len() * 4);
        for (i, &id) in ids.iter().enumerate() {
            let bytes = self.shown(id, options)?;
            let bytes = if i == 0 && self.strips_space() { bytes.strip_prefix(b" ").unwrap_or(bytes) } else { bytes };
            out.extend_from_slice(bytes);
        }
        Ok(out)
    }

    fn strips_space(&self) -> bool {
        match &self.model {
            Model::Bpe(_) => false,
            Model::Spm(spm) => spm.add_space_prefix,
            Model::Json(json) => json.strips_space,
        }
    }

    /// The bytes of a token by itself, a control token's text included; none outside the vocabulary. This is what streaming emits.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        let kind = *self.tokens.roles.kinds.get(id as usize)?;
        Some(if kind == Kind::UNUSED { &[] } else { self.tokens.rendered.get(id) })
    }

    /// The bytes of a token as decoding shows it: none of a control token that is left out.
    fn shown(&self, id: u32, options: DecodeOptions) -> Result<&[u8], UnknownToken> {
        let bytes = self.token_bytes(id).ok_or(UnknownToken { id, vocab: self.vocab_size() })?;
        Ok(if self.is_control(id) && !options.special { &[] } else { bytes })
    }

    /// Number of tokens; ids are below it.
    pub fn vocab_size(&self) -> usize {
        self.tokens.rendered.len()
    }

    /// Whether a token is left out of decoded text unless special tokens are asked for.
    pub fn is_control(&self, id: u32) -> bool {
        self.tokens.roles.kinds.get(id as usize).is_some_and(|kind| kind.is_hidden())
    }

    /// Whether a token is special: control, unknown or user-defined, cut out of a text before anything else.
    pub fn is_special(&self, id: u32) -> bool {
        self.tokens.roles.kinds.get(id as usize).is_some_and(|kind| kind.is_special())
    }

    /// Whether a token ends a text.
    pub fn is_eog(&self, id: u32) -> bool {
        self.tokens.roles.eog.binary_search(&id).is_ok()
    }

    /// The tokens that end a text, ascending.
    pub fn eog_ids(&self) -> &[u32] {
        &self.tokens.roles.eog
    }

    /// The tokens that end a text, the model's end token first.
    pub fn end_ids(&self) -> impl Iterator<Item = u32> {
        let eos = self.eos().filter(|&eos| self.is_eog(eos));
        eos.into_iter().chain(self.eog_ids().iter().copied().filter(move |&id| Some(id) != eos))
    }

    /// The control and unknown tokens with their texts, ascending: those that no text of a user stands for (R-19).
    pub fn control_tokens(&self) -> impl Iterator<Item = (u32, &[u8])> {
        (0u32..)
            .zip(&self.tokens.roles.kinds)
            .filter(|(_, kind)| kind.is_hidden())
            .map(|(id, _)| (id, self.tokens.rendered.get(id)))
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.tokens.roles.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.tokens.roles.eos
    }

    /// The token that ends a turn.
    pub fn eot(&self) -> Option<u32> {
        self.tokens.roles.eot
    }

    /// The token for what cannot be encoded.
    pub fn unk(&self) -> Option<u32> {
        self.tokens.roles.unk
    }

    /// The token that fills unused places.
    pub fn pad(&self) -> Option<u32> {
        self.tokens.roles.pad
    }

    /// Whether [`EncodeOptions::add_special`] puts BOS before a text.
    pub fn adds_bos(&self) -> bool {
        self.tokens.roles.add_bos
    }

    /// Whether [`EncodeOptions::add_special`] puts EOS behind a text.
    pub fn adds_eos(&self) -> bool {
        self.tokens.roles.add_eos
    }

    /// Bytes that no token stands for: they are dropped from encoded text. Empty for most vocabularies.
    pub fn missing_bytes(&self) -> Vec<u8> {
        match &self.model {
            Model::Bpe(bpe) => bpe.lacks().collect(),
            Model::Spm(_) | Model::Json(_) => Vec::new(),
        }
    }
}
