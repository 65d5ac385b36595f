#![forbid(unsafe_code)]
//! From a document to a grammar: parse, prepare, compile, and check that some text fits.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;

use super::cursor::Cursor;
use super::error::GrammarError;
use super::limits::Limits;
use super::tags::{self, Specials};
use super::{fence, schema, sentence};

/// The tokens that a grammar speaks of.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// Bytes of each token; those of special tokens start with 0xFF.
    pub tokens: &'a [Box<[u8]>],
    /// Text and id of the special tokens.
    pub special: &'a [(String, u32)],
    /// The tokens that end a text; the first is the tokenizer's end token.
    pub end_ids: &'a [u32],
}

/// A document that parses.
#[derive(Clone, Debug)]
pub struct Source(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Schema(Value),
    Structural(Value),
    Regex(String),
    Lark(String),
}

impl Source {
    /// A JSON schema.
    ///
    /// # Errors
    /// `NotJson`, `TooLong`, `TooDeep`, `TooLarge`.
    pub fn schema(document: &str, limits: &Limits) -> Result<Self, GrammarError> {
        Ok(Self(Kind::Schema(parse(document, limits)?)))
    }

    /// A structural tag document.
    ///
    /// # Errors
    /// As [`Source::schema`].
    pub fn structural(document: &str, limits: &Limits) -> Result<Self, GrammarError> {
        Ok(Self(Kind::Structural(parse(document, limits)?)))
    }

    /// A regular expression for the whole text.
    ///
    /// # Errors
    /// `TooLong`; `Malformed` when it ends within an escape.
    pub fn regex(pattern: &str, limits: &Limits) -> Result<Self, GrammarError> {
        limits.check_length(pattern)?;
        tags::check_pattern(pattern, "pattern")?;
        Ok(Self(Kind::Regex(pattern.to_owned())))
    }

    /// A grammar in the library's variant of the Lark notation. Schemas in it are taken as they are, without the closing rule.
    ///
    /// # Errors
    /// `TooLong`; `TooDeep` and `TooLarge` for the schemas in it.
    pub fn lark(grammar: &str, limits: &Limits) -> Result<Self, GrammarError> {
        limits.check_length(grammar)?;
        for (at, keyword) in grammar.match_indices("%json") {
            let rest = grammar.get(at + keyword.len()..).unwrap_or_default();
            let embedded = serde_json::Deserializer::from_str(rest).into_iter::<Value>().next();
            // What does not parse here does not parse for the library.
            if let Some(Ok(embedded)) = embedded {
                limits.check_document(&embedded)?;
            }
        }
        Ok(Self(Kind::Lark(grammar.to_owned())))
    }

    /// Whether a text ends by itself when nothing can follow.
    fn is_closed(&self) -> bool {
        !matches!(self.0, Kind::Structural(_))
    }
}

/// A JSON document within the limits.
fn parse(document: &str, limits: &Limits) -> Result<Value, GrammarError> {
    limits.check_length(document)?;
    let value: Value =
        serde_json::from_str(document).map_err(|error| GrammarError::NotJson { reason: error.to_string() })?;
    limits.check_document(&value)?;
    Ok(value)
}

/// Compiles against one vocabulary.
pub struct Compiler {
    factory: ParserFactory,
    specials: Specials,
    end_ids: Arc<[u32]>,
    limits: Limits,
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiler").field("end_ids", &self.end_ids).field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Compiler {
    /// Puts the vocabulary into a tree.
    ///
    /// # Errors
    /// `NoEndToken`, `Vocabulary`, `Broken`.
    pub fn new(tokens: &Tokens<'_>, limits: Limits) -> Result<Self, GrammarError> {
        let vocab_size = u32::try_from(tokens.tokens.len()).unwrap_or(u32::MAX);
        // The library counts end tokens in its tree; ids past the listed tokens are not there.
        let end_ids: Arc<[u32]> = tokens.end_ids.iter().copied().filter(|&id| id < vocab_size).collect();
        let first = *end_ids.first().ok_or(GrammarError::NoEndToken)?;
        let environment: TokEnv = fence::contain_deep(|| {
            let words: Vec<Vec<u8>> = tokens.tokens.iter().map(|bytes| bytes.to_vec()).collect();
            let trie = TokTrie::from(&TokRxInfo::new(vocab_size, first), &words).with_eos_tokens(&end_ids);
            Ok(Arc::new(ApproximateTokEnv::new(trie)) as TokEnv)
        })
        .map_err(|error| GrammarError::Vocabulary { reason: error.to_string() })?;
        let factory = fence::contain_deep(|| {
            let slices = SlicedBiasComputer::general_slices();
            let mut factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices)
                .map_err(|error| GrammarError::Vocabulary { reason: error.to_string() })?;
            factory.quiet();
            *factory.limits_mut() = limits.of_parser();
            Ok(factory)
        })?;
        let specials = Specials::new(tokens.special, &end_ids, vocab_size);
        Ok(Self { factory, specials, end_ids, limits })
    }

    /// Compiles a document.
    ///
    /// The first mask is computed here too, so that a lane's first token waits for nothing.
    ///
    /// # Errors
    /// `Malformed`, `Unsupported`, `DoesNotCompile`, `NoSentence`, `Broken`.
    pub fn compile(&self, source: Source) -> Result<Grammar, GrammarError> {
        let closed = source.is_closed();
        let grammar = match source.0 {
            Kind::Schema(schema) => TopLevelGrammar::from_json_schema(schema::prepare(schema)),
            Kind::Structural(document) => TopLevelGrammar::from_lark(tags::to_lark(&document, &self.specials)?),
            Kind::Regex(pattern) => TopLevelGrammar::from_regex(&pattern),
            Kind::Lark(grammar) => TopLevelGrammar::from_lark(grammar),
        };
        let vocab_size = self.factory.tok_env().tok_trie().vocab_size();
        fence::contain_deep(|| {
            let parser = self.factory.create_parser(grammar).map_err(|error| refusal(&error))?;
            if !sentence::has_sentence(parser.parser.grammar(), &self.limits.of_parser()) {
                return Err(GrammarError::NoSentence);
            }
            let mut start = Cursor::new(Matcher::new(Ok(parser)), closed, Arc::clone(&self.end_ids), vocab_size);
            start.prepare();
            match start.failure() {
                Some(reason) => Err(GrammarError::does_not_compile(&reason)),
                None => Ok(Grammar { start }),
            }
        })
    }
}

/// The compiler of a vocabulary, made when the first grammar of any engine that shares it is created: an engine without grammars
/// never pays for the tree, and engines of one model pay once.
#[derive(Clone, Debug, Default)]
pub struct SharedCompiler {
    made: Arc<Mutex<Option<Arc<Compiler>>>>,
}

impl SharedCompiler {
    /// The compiler; whoever comes while it is made waits for it.
    ///
    /// `tokens` and `limits` are those of the first caller: the engines that share it have the same.
    ///
    /// # Errors
    /// As [`Compiler::new`]; the next call tries again.
    pub fn get(&self, tokens: &Tokens<'_>, limits: &Limits) -> Result<Arc<Compiler>, GrammarError> {
        // A panic of another thread left it as it was: none, or whole.
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiler) = &*made {
            return Ok(Arc::clone(compiler));
        }
        let compiler = Arc::new(Compiler::new(tokens, limits.clone())?);
        *made = Some(Arc::clone(&compiler));
        Ok(compiler)
    }

    /// Whether it was made.
    pub fn is_made(&self) -> bool {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// What the library's error says; that a schema fits nothing has a variant of its own.
fn refusal(error: &impl ToString) -> GrammarError {
    let text = error.to_string();
    match text {
        text if text.starts_with("Unsatisfiable schema") => GrammarError::NoSentence,
        text if text.starts_with("panic") => GrammarError::broken(&text),
        text => GrammarError::does_not_compile(&text),
    }
}

/// A compiled grammar: the cursor at its start.
#[derive(Debug)]
pub struct Grammar {
    start: Cursor,
}

impl Grammar {
    /// A cursor at the start, which shares nothing with others: what a lane does is never seen by another lane.
    pub fn cursor(&self) -> Cursor {
        self.start.detached()
    }
}
