#![forbid(unsafe_code)]
//! Why a document is no grammar, and why a token is no continuation.

use crate::record::Status;

/// Longest reason that is kept of what the library says, in characters.
const REASON_CHARS: usize = 400;

/// Why no grammar was made. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// There is nothing to compile against.
    #[error("the runtime lists no vocabulary")]
    NoVocabulary,
    /// Nothing could end a text.
    #[error("the vocabulary has no end token")]
    NoEndToken,
    /// The tokens cannot be put into a tree.
    #[error("the vocabulary cannot be indexed: {reason}")]
    Vocabulary {
        /// What is wrong with it.
        reason: String,
    },
    /// The document does not parse.
    #[error("not JSON: {reason}")]
    NotJson {
        /// What the parser says.
        reason: String,
    },
    /// The document is longer than the limit.
    #[error("a document of {bytes} bytes, and at most {limit} are taken")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The document is nested deeper than the limit.
    #[error("a document nested deeper than {limit} levels")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// A number in the document stands for too much work.
    #[error("{what} {value}, and at most {limit} is taken")]
    TooLarge {
        /// What the number says.
        what: &'static str,
        /// The number.
        value: String,
        /// The limit.
        limit: u64,
    },
    /// A member is missing or has another type.
    #[error("{place}: {expected}")]
    Malformed {
        /// Where, as a path of members.
        place: String,
        /// What belongs there.
        expected: &'static str,
    },
    /// A part that is not offered.
    #[error("{what} {name:?} is not offered")]
    Unsupported {
        /// The kind of part.
        what: &'static str,
        /// Its name in the document.
        name: String,
    },
    /// The library refuses the grammar, or a limit of its work was reached.
    #[error("the grammar does not compile: {reason}")]
    DoesNotCompile {
        /// What the library says.
        reason: String,
    },
    /// No text fits the grammar.
    #[error("no text fits the grammar")]
    NoSentence,
    /// The library failed in a way that it does not promise to survive.
    #[error("the grammar compiler failed: {reason}")]
    Broken {
        /// What it said.
        reason: String,
    },
    /// All handles were given out.
    #[error("no grammar handle is left")]
    HandlesUsedUp,
}

impl GrammarError {
    /// An error of the library, cut to a length that a log line holds.
    pub(super) fn does_not_compile(error: &impl ToString) -> Self {
        Self::DoesNotCompile { reason: shorten(&error.to_string()) }
    }

    /// A failure of the library.
    pub(super) fn broken(error: &impl ToString) -> Self {
        Self::Broken { reason: shorten(&error.to_string()) }
    }
}

impl From<&GrammarError> for Status {
    /// `Unsupported` for what is not offered here, `RejectBadStruct` for what is wrong with the document.
    fn from(error: &GrammarError) -> Self {
        match error {
            GrammarError::NoVocabulary
            | GrammarError::NoEndToken
            | GrammarError::Vocabulary { .. }
            | GrammarError::Unsupported { .. }
            | GrammarError::HandlesUsedUp => Status::Unsupported,
            _ => Status::RejectBadStruct,
        }
    }
}

/// The first characters of a reason, on one line; what follows a line in angle brackets is the library's own state.
fn shorten(reason: &str) -> String {
    let lines = reason.lines().take_while(|line| !line.starts_with('<')).map(str::trim);
    let mut short = String::new();
    for line in lines.filter(|line| !line.is_empty()) {
        if !short.is_empty() {
            short.push(' ');
        }
        short.extend(line.chars().take(REASON_CHARS.saturating_sub(short.chars().count())));
    }
    short
}

/// A token that the grammar does not go on with, or a cursor whose work reached a limit. The lane faults (T-134).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the grammar does not go on with token {token}")]
pub struct Refused {
    /// The token.
    pub token: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_one_short_line() {
        let error = GrammarError::broken(&format!("panic: {}\n<backtrace>\n0: main\n</backtrace>", "x".repeat(900)));
        let GrammarError::Broken { reason } = error else { panic!("{error}") };
        assert_eq!((reason.chars().count(), reason.contains('\n')), (REASON_CHARS, false));
        let error = GrammarError::does_not_compile(&"at 1(8): invalid\n   1 | start: x\n");
        assert_eq!(error.to_string(), "the grammar does not compile: at 1(8): invalid 1 | start: x");
    }

    /// which refusal has which status.
    #[test]
    fn statuses_tell_what_is_not_offered_from_what_is_wrong() {
        assert_eq!(Status::from(&GrammarError::NoVocabulary), Status::Unsupported);
        assert_eq!(Status::from(&GrammarError::NoEndToken), Status::Unsupported);
        assert_eq!(Status::from(&GrammarError::NoSentence), Status::RejectBadStruct);
        assert_eq!(Status::from(&GrammarError::TooDeep { limit: 1 }), Status::RejectBadStruct);
    }
}
