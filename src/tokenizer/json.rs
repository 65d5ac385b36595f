#![forbid(unsafe_code)]
//! Vocabularies of a Hugging Face directory: `tokenizer.json`, encoded through the `tokenizers` crate.
//!
//! The crate encodes. Decoding is ours, token by token, so that streaming and decoding agree and bytes stay bytes; for that the
//! decoder's kind is read from the file: byte level (the GPT-2 alphabet) or SentencePiece style (U+2581 for a space, `<0xHH>` for a byte).
//!
//! # Limits
//! Models other than BPE and Unigram and decoders of other kinds are refused.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::Value;

use super::EncodeOptions;
use super::bpe::bytes_of_text;
use super::error::{EncodeError, TokenizerError};
use super::parts::VocabularyParts;
use super::spm::render;
use super::table::Strings;
use super::tokens::{Kind, Roles, Tokens, byte_of, measured};
use crate::checkpoint::SpecialTokens;

#[derive(Debug)]
pub(super) struct Json {
    parsing: Box<tokenizers::Tokenizer>,
    /// The same, blind for special tokens; made when first asked for.
    plain: OnceLock<Box<tokenizers::Tokenizer>>,
    /// Whether decoding takes a space off the start of a text.
    pub(super) strips_space: bool,
}

#[derive(Deserialize)]
struct Outline {
    model: ModelOutline,
    #[serde(default)]
    decoder: Value,
}

#[derive(Deserialize)]
struct ModelOutline {
    #[serde(rename = "type")]
    kind: Option<String>,
}

/// How the tokens' texts stand for bytes.
#[derive(Clone, Copy, Default)]
struct Style {
    byte_level: bool,
    marks: bool,
    strips_space: bool,
}

impl Style {
    fn read(decoder: &Value) -> Result<Self, TokenizerError> {
        let mut style = Self::default();
        style.add(decoder)?;
        if style.byte_level == style.marks {
            return Err(unknown("decoder", &decoder["type"]));
        }
        Ok(style)
    }

    fn add(&mut self, decoder: &Value) -> Result<(), TokenizerError> {
        match decoder["type"].as_str() {
            Some("Sequence") => {
                let parts = decoder["decoders"].as_array().map_or(&[][..], Vec::as_slice);
                // One level: no file nests sequences.
                for part in parts {
                    if part["type"] == "Sequence" {
                        return Err(unknown("decoder", &part["type"]));
                    }
                    self.add(part)?;
                }
            }
            Some("ByteLevel") => self.byte_level = true,
            Some("Metaspace") => {
                self.marks = true;
                self.strips_space |= decoder["prepend_scheme"] != "never";
            }
            Some("Replace") if decoder["pattern"]["String"] == "\u{2581}" && decoder["content"] == " " => {
                self.marks = true;
            }
            Some("Strip") if decoder["content"] == " " => {
                self.strips_space |= decoder["start"].as_u64().is_some_and(|start| start > 0);
            }
            Some("ByteFallback" | "Fuse") => {}
            _ => return Err(unknown("decoder", &decoder["type"])),
        }
        Ok(())
    }
}

fn unknown(part: &'static str, kind: &Value) -> TokenizerError {
    TokenizerError::UnknownPart { part, kind: kind.as_str().unwrap_or("none").to_owned() }
}

impl Json {
    pub(super) fn new(json: &str, special: &SpecialTokens) -> Result<(Self, Tokens), TokenizerError> {
        let json_error = |error: &dyn std::fmt::Display| TokenizerError::Json { detail: error.to_string() };
        let outline: Outline = serde_json::from_str(json).map_err(|error| json_error(&error))?;
        // Files from before models named their type are BPE or Unigram when the crate can read them at all.
        if let Some(kind) = outline.model.kind.filter(|kind| kind != "BPE" && kind != "Unigram") {
            return Err(TokenizerError::UnknownPart { part: "model", kind });
        }
        let style = Style::read(&outline.decoder)?;
        let mut inner =
            guarded(|| tokenizers::Tokenizer::from_str(json)).map_err(|detail| TokenizerError::Json { detail })?;
        // Neither cuts nor fills: the whole text counts.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| json_error(&error))?;
        let tokens = tokens(&inner, special, style)?;
        Ok((Self { parsing: Box::new(inner), plain: OnceLock::new(), strips_space: style.strips_space }, tokens))
    }

    pub(super) fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, EncodeError> {
        let inner = if options.parse_special {
            &self.parsing
        } else {
            self.plain.get_or_init(|| {
                let mut plain = self.parsing.clone();
                plain.set_encode_special_tokens(true);
                plain
            })
        };
        let encoding =
            guarded(|| inner.encode_fast(text, options.add_special)).map_err(|detail| EncodeError::Json { detail })?;
        Ok(encoding.get_ids().to_vec())
    }
}

/// Calls the crate behind this file; a file or a text that makes it panic is one that it refuses.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    // Nothing of ours is touched inside, and what the crate left behind is not used again after a panic of `from_str`.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the tokenizers crate panicked".to_owned()),
    }
}

/// Bytes and roles of all tokens. Ids that the file leaves out are tokens without bytes.
fn tokens(inner: &tokenizers::Tokenizer, special: &SpecialTokens, style: Style) -> Result<Tokens, TokenizerError> {
    let vocabulary = inner.get_vocab(true);
    let vocab = vocabulary.values().max().map_or(0, |&id| id as usize + 1);
    // Ids far beyond the number of tokens are an error of the file, not a reason to allocate.
    if vocab > 2 * vocabulary.len() + (1 << 16) {
        return Err(TokenizerError::Size { tokens: vocab, bytes: 0 });
    }
    let mut texts: Vec<&str> = vec![""; vocab];
    for (text, &id) in &vocabulary {
        texts[id as usize] = text;
    }
    let mut types = vec![1; vocab];
    for (id, text) in texts.iter().enumerate() {
        if text.is_empty() {
            types[id] = 5;
        } else if style.marks && byte_of(text.as_bytes()).is_some() {
            types[id] = 6;
        }
    }
    for (&id, added) in inner.get_added_tokens_decoder().iter() {
        if let Some(kind) = types.get_mut(id as usize) {
            *kind = if added.special { 3 } else { 4 };
        }
    }
    let mut outline = VocabularyParts {
        tokens: texts.iter().map(|text| text.as_bytes()).collect(),
        types: Some(&types),
        ..VocabularyParts::default()
    };
    // What the file puts around an empty text is what it puts around any.
    let around = guarded(|| inner.encode_fast("", true)).map_err(|detail| TokenizerError::Json { detail })?;
    outline.add_bos = Some(special.bos.is_some_and(|bos| around.get_ids().first() == Some(&bos)));
    outline.add_eos = Some(special.eos.is_some_and(|eos| around.get_ids().last() == Some(&eos)));
    let size_bytes = measured(&outline)?;
    let roles = Roles::new(&outline, special, false)?;
    let mut rendered = Strings::with_capacity(vocab, size_bytes);
    let mut buffer = Vec::new();
    for (text, &kind) in texts.iter().zip(&roles.kinds) {
        buffer.clear();
        if kind.is_special() {
            rendered.push(text.as_bytes());
        } else if let Some(byte) = byte_of(text.as_bytes()).filter(|_| kind.is(Kind::BYTE)) {
            rendered.push(&[byte]);
        } else if style.byte_level && bytes_of_text(text, &mut buffer).is_some() {
            rendered.push(&buffer);
        } else if style.marks {
            render(text.as_bytes(), &mut buffer);
            rendered.push(&buffer);
        } else {
            rendered.push(text.as_bytes());
        }
    }
    Ok(Tokens { rendered, roles })
}
