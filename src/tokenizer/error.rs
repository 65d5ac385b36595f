#![forbid(unsafe_code)]
//! What can go wrong with a tokenizer: a vocabulary that is refused, text or ids that cannot be served.

/// Why a vocabulary was refused. Nothing was built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The model file has no vocabulary.
    #[error("the model file has no vocabulary")]
    NoVocabulary,
    /// The kind of tokenizer is not known here.
    #[error("unknown tokenizer model {model:?}")]
    UnknownModel {
        /// As the file names it.
        model: String,
    },
    /// The splitting rule is not known here, or the file names none.
    #[error("unknown pre-tokenizer {name:?}")]
    UnknownPreTokenizer {
        /// As the file names it; none when the file does not.
        name: Option<String>,
    },
    /// The vocabulary is empty, or longer than ids or offsets can say.
    #[error("a vocabulary of {tokens} tokens and {bytes} bytes cannot be served")]
    Size {
        /// Number of tokens.
        tokens: usize,
        /// Bytes of all tokens.
        bytes: u64,
    },
    /// A list that runs parallel to the tokens is shorter.
    #[error("{list} has {got} entries for {expected} tokens")]
    ListTooShort {
        /// Name of the list.
        list: &'static str,
        /// Number of tokens.
        expected: usize,
        /// Its length.
        got: usize,
    },
    /// A list that this kind of tokenizer cannot do without is missing.
    #[error("{list} is missing")]
    ListMissing {
        /// Name of the list.
        list: &'static str,
    },
    /// A token that stands for no bytes.
    #[error("token {id} is empty")]
    EmptyToken {
        /// The token.
        id: u32,
    },
    /// Two tokens are the same.
    #[error("tokens {first} and {second} are the same")]
    DuplicateToken {
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
    },
    /// A token's text is not UTF-8.
    #[error("token {id} is not UTF-8")]
    NotUtf8 {
        /// The token.
        id: u32,
    },
    /// A byte token that is not written `<0xHH>`.
    #[error("byte token {id} does not name a byte")]
    BadByteToken {
        /// The token.
        id: u32,
    },
    /// A score that cannot be compared.
    #[error("the score of token {id} is not a number")]
    BadScore {
        /// The token.
        id: u32,
    },
    /// A merge rule that is not two tokens with a space between, or whose parts or result are no tokens.
    #[error("merge {index} does not join two tokens into one")]
    BadMerge {
        /// Place in the list of merges.
        index: usize,
    },
    /// The vocabulary has no token for this byte, so that some text could not be encoded.
    #[error("no token for byte {byte:#04x}")]
    NoByteToken {
        /// The byte.
        byte: u8,
    },
    /// A special token lies outside the vocabulary.
    #[error("{name} is {id}, outside a vocabulary of {vocab}")]
    SpecialOutOfRange {
        /// What the token is for.
        name: &'static str,
        /// The token.
        id: u32,
        /// Number of tokens.
        vocab: usize,
    },
    /// The file asks for a token around every text but does not name it.
    #[error("{name} is asked for but not named")]
    SpecialMissing {
        /// What the token is for.
        name: &'static str,
    },
    /// `tokenizer.json` cannot be read from its file.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: std::path::PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// `tokenizer.json` is not what it should be.
    #[error("tokenizer.json: {detail}")]
    Json {
        /// What the reader said.
        detail: String,
    },
    /// A part of `tokenizer.json` is of a kind that is not known here.
    #[error("tokenizer.json: unknown {part} {kind:?}")]
    UnknownPart {
        /// Which part.
        part: &'static str,
        /// Its kind.
        kind: String,
    },
}

/// Why a text was not encoded. Nothing was returned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// Longer than offsets can say.
    #[error("a text of {bytes} bytes is too long")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The `tokenizers` crate refused the text.
    #[error("tokenizer.json: {detail}")]
    Json {
        /// What it said.
        detail: String,
    },
}

/// Why ids were not decoded. Nothing was returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token {id} is outside a vocabulary of {vocab}")]
pub struct UnknownToken {
    /// The id.
    pub id: u32,
    /// Number of tokens.
    pub vocab: usize,
}
