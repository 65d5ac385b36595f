//! Grammars without a model's steps: how long a vocabulary, a schema and a token take.

use std::path::Path;
use std::time::{Duration, Instant};

use ictus::grammar::{Compiler, Limits, Source, Tokens};
use ictus::tokenizer::{EncodeOptions, Tokenizer};
use ictus::{Model, ModelOptions};

use super::host::Failure;

/// Schemas, and a document of each.
const DOCUMENTS: [(&str, &str); 5] = [
    (
        r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer", "minimum": 0,
            "maximum": 150}, "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 5}},
            "required": ["name", "age", "tags"]}"#,
        r#"{"name": "Ada Lovelace of London", "age": 36, "tags": ["red", "blue", "green"]}"#,
    ),
    (
        r#"{"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}"#,
        r#"{"text": "It was a bright cold day in April, and the clocks were striking thirteen. Nobody looked up."}"#,
    ),
    (
        r#"{"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
            "required": ["x", "y"]}}"#,
        r#"[{"x": 1.25, "y": -3}, {"x": 0.5, "y": 12.75}, {"x": 100, "y": 1e3}]"#,
    ),
    (r#"{"type": "string", "pattern": "^[a-z]+@[a-z]+\\.(com|org)$"}"#, r#""somebody@example.org""#),
    ("{}", r#"{"any": ["value", {"at": "all"}, null, true, 3.5], "is": {"fine": ""}}"#),
];

/// What was measured.
pub struct Masks {
    pub vocab: usize,
    /// Putting the vocabulary into a tree, once per engine.
    pub index: Duration,
    /// Compiling a schema, first mask included: the median.
    pub compile: Duration,
    /// Accepting a token and computing the mask after it, every token of every run, ascending.
    pub tokens: Vec<Duration>,
}

/// Goes over the documents `runs` times.
pub fn measure(path: &Path, options: &ModelOptions, runs: usize) -> Result<Masks, Failure> {
    let model = Model::open(path, options)?;
    let tokenizer = model.tokenizer();
    let words: Vec<Box<[u8]>> = (0..tokenizer.vocab_size() as u32).map(|id| word(tokenizer, id)).collect();
    let end_ids: Vec<u32> = tokenizer.end_ids().collect();
    let started = Instant::now();
    let tokens = Tokens { tokens: &words, special: &[], end_ids: &end_ids };
    let compiler = Compiler::new(&tokens, Limits::default())?;
    let mut masks = Masks { vocab: words.len(), index: started.elapsed(), compile: Duration::ZERO, tokens: vec![] };
    let mut compiled = vec![];
    for _ in 0..runs {
        for (schema, document) in DOCUMENTS {
            let started = Instant::now();
            let grammar = compiler.compile(Source::schema(schema, &Limits::default())?)?;
            compiled.push(started.elapsed());
            let mut cursor = grammar.cursor();
            for token in tokenizer.encode(document, EncodeOptions::default())? {
                let started = Instant::now();
                cursor.accept(token)?;
                cursor.prepare();
                masks.tokens.push(started.elapsed());
            }
        }
    }
    compiled.sort_unstable();
    masks.compile = compiled.get(compiled.len() / 2).copied().unwrap_or_default();
    masks.tokens.sort_unstable();
    Ok(masks)
}

/// The bytes of a token as a runtime lists them (R-19).
fn word(tokenizer: &Tokenizer, id: u32) -> Box<[u8]> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    if tokenizer.is_control(id) { [b"\xff", bytes].concat().into() } else { bytes.into() }
}
