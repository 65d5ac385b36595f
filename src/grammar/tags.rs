#![forbid(unsafe_code)]
//! Structural tags: a JSON document that mixes tokens, literals, schemas and free text, written as one Lark grammar.
//!
//! ```text
//!   format    --write-->  Piece
//!
//!   Text      a terminal: what it matches is a regular set of texts, and several in a row are one terminal
//!   Rule      a rule: it has tokens or a schema in it
//! ```
//!
//! Texts are put together before the lexer sees them, because the lexer takes the longest match of a terminal: `[a-z]+` followed
//! by `end` as two terminals would never end.
//!
//! # Source
//! The members of each format are those of the table before R-72; unknown ones are ignored.

use std::fmt::Write as _;

use serde_json::Value;

use super::error::GrammarError;
use super::schema;

/// The tokens that a document can speak of by their text.
#[derive(Clone, Debug)]
pub(super) struct Specials {
    /// Text and id, the longest text first.
    by_length: Vec<(String, u32)>,
    end_ids: Vec<u32>,
    vocab_size: u32,
}

impl Specials {
    pub(super) fn new(special: &[(String, u32)], end_ids: &[u32], vocab_size: u32) -> Self {
        let named = special.iter().filter(|(text, id)| !text.is_empty() && *id < vocab_size);
        let mut by_length: Vec<(String, u32)> = named.cloned().collect();
        by_length.sort_by(|(a, x), (b, y)| b.len().cmp(&a.len()).then_with(|| a.cmp(b)).then(x.cmp(y)));
        Self { by_length, end_ids: end_ids.to_vec(), vocab_size }
    }

    /// The special token whose text this is.
    fn named(&self, text: &str) -> Option<u32> {
        self.by_length.iter().find(|(special, _)| special == text).map(|&(_, id)| id)
    }

    /// The special token with the longest text that `text` begins with, and what follows it.
    fn strip<'t>(&self, text: &'t str) -> Option<(u32, &'t str)> {
        self.by_length.iter().find_map(|(special, id)| Some((*id, text.strip_prefix(special.as_str())?)))
    }

    /// A literal, cut where special tokens begin (RS-24).
    pub(super) fn split<'t>(&self, text: &'t str) -> Vec<Part<'t>> {
        let mut parts = Vec::new();
        let (mut rest, mut plain) = (text, 0);
        let flush = |parts: &mut Vec<Part<'t>>, from: &'t str, bytes: usize| {
            if bytes > 0 {
                parts.push(Part::Text(from.get(..bytes).unwrap_or_default()));
            }
        };
        while let Some(c) = rest.get(plain..).and_then(|tail| tail.chars().next()) {
            match self.strip(rest.get(plain..).unwrap_or_default()) {
                Some((id, tail)) => {
                    flush(&mut parts, rest, plain);
                    parts.push(Part::Token(id));
                    (rest, plain) = (tail, 0);
                }
                None => plain += c.len_utf8(),
            }
        }
        flush(&mut parts, rest, plain);
        parts
    }
}

/// A piece of a literal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'t> {
    Text(&'t str),
    Token(u32),
}

/// Writes the Lark grammar of a structural document.
///
/// # Errors
/// `Malformed`, `Unsupported` (R-72, R-73).
pub(super) fn to_lark(document: &Value, specials: &Specials) -> Result<String, GrammarError> {
    let is_wrapped = document.get("type").and_then(Value::as_str) == Some("structural_tag");
    let format = if is_wrapped { member(document, "format", "")? } else { document };
    let mut writer = Writer { specials, lines: String::new(), names: 0 };
    let place = if is_wrapped { "format" } else { "" };
    let whole = writer.format(format, place, None)?;
    let start = whole.name();
    Ok(format!("start: {start}\n{}", writer.lines))
}

/// A part of the grammar, by the name of its definition.
#[derive(Clone, Debug)]
enum Piece {
    Text(String),
    Rule(String),
}

impl Piece {
    fn name(&self) -> &str {
        let (Self::Text(name) | Self::Rule(name)) = self;
        name
    }

    fn is_text(&self) -> bool {
        matches!(self, Self::Text(_))
    }
}

struct Writer<'s> {
    specials: &'s Specials,
    /// One definition per line.
    lines: String,
    names: usize,
}

impl Writer<'_> {
    /// Writes one format; `end` is the end token of the innermost tag around it.
    fn format(&mut self, format: &Value, place: &str, end: Option<u32>) -> Result<Piece, GrammarError> {
        let kind = text(format, "type", place)?;
        match kind {
            "const_string" => {
                let value = text(format, "value", place)?;
                Ok(self.literal(value))
            }
            "json_schema" => self.json_schema(format, place),
            "regex" => {
                let pattern = text(format, "pattern", place)?;
                self.regex(pattern, &at(place, "pattern"))
            }
            "sequence" => {
                let pieces = self.elements(format, place, end)?;
                Ok(self.sequence(&pieces))
            }
            "or" => {
                let pieces = self.elements(format, place, end)?;
                match pieces.is_empty() {
                    true => Err(malformed(&at(place, "elements"), "at least one alternative")),
                    false => Ok(self.alternatives(&pieces)),
                }
            }
            "optional" | "plus" | "star" => {
                let content = self.format(member(format, "content", place)?, &at(place, "content"), end)?;
                let mark = if kind == "optional" {
                    "?"
                } else if kind == "plus" {
                    "+"
                } else {
                    "*"
                };
                Ok(self.repeated(&content, mark))
            }
            "tag" => self.tag(format, place),
            "token" => {
                let token = self.token(member(format, "token", place)?, &at(place, "token"))?;
                Ok(self.any_of(&[token]))
            }
            "any_tokens" => self.any_tokens(format, place, end),
            "triggered_tags" => self.triggered_tags(format, place),
            other => Err(unsupported("format", other)),
        }
    }

    fn elements(&mut self, format: &Value, place: &str, end: Option<u32>) -> Result<Vec<Piece>, GrammarError> {
        let elements = list(member(format, "elements", place)?, &at(place, "elements"))?;
        let numbered = elements.iter().enumerate();
        numbered.map(|(n, element)| self.format(element, &format!("{}[{n}]", at(place, "elements")), end)).collect()
    }

    fn json_schema(&mut self, format: &Value, place: &str) -> Result<Piece, GrammarError> {
        match format.get("style") {
            None => {}
            Some(Value::String(style)) if style == "json" => {}
            Some(Value::String(style)) => return Err(unsupported("style", style)),
            Some(_) => return Err(malformed(&at(place, "style"), "a text")),
        }
        let document = member(format, "json_schema", place)?;
        if !document.is_object() && !document.is_boolean() {
            return Err(malformed(&at(place, "json_schema"), "a schema"));
        }
        let blank = self.define(true, r"/[ \t\r\n]{1,4}/");
        let body = format!("{0}? %json {1} {0}?", blank.name(), schema::prepare(document.clone()));
        Ok(self.define(false, &body))
    }

    /// A pattern as a terminal.
    fn regex(&mut self, pattern: &str, place: &str) -> Result<Piece, GrammarError> {
        check_pattern(pattern, place)?;
        if pattern.is_empty() {
            return Ok(self.literal(""));
        }
        Ok(self.define(true, &format!("/{}/", llguidance::regex_to_lark(pattern, ""))))
    }

    /// A literal in which the texts of special tokens are those tokens.
    fn literal(&mut self, value: &str) -> Piece {
        let parts = self.specials.split(value);
        let pieces: Vec<Piece> = parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => self.define(true, &quoted(text)),
                Part::Token(id) => self.any_of(&[*id]),
            })
            .collect();
        self.sequence(&pieces)
    }

    fn tag(&mut self, format: &Value, place: &str) -> Result<Piece, GrammarError> {
        let (begin, _) = self.marker(member(format, "begin", place)?, &at(place, "begin"))?;
        let (end, end_token) = self.marker(member(format, "end", place)?, &at(place, "end"))?;
        let content = self.format(member(format, "content", place)?, &at(place, "content"), end_token)?;
        Ok(self.sequence(&[begin, content, end]))
    }

    /// The begin or end of a tag, and the token it begins with.
    fn marker(&mut self, marker: &Value, place: &str) -> Result<(Piece, Option<u32>), GrammarError> {
        if let Value::String(literal) = marker {
            let token = self.specials.strip(literal).map(|(id, _)| id);
            return Ok((self.literal(literal), token));
        }
        match text(marker, "type", place)? {
            "token" => {
                let token = self.token(member(marker, "token", place)?, &at(place, "token"))?;
                Ok((self.any_of(&[token]), Some(token)))
            }
            other => Err(unsupported("marker", other)),
        }
    }

    fn any_tokens(&mut self, format: &Value, place: &str, end: Option<u32>) -> Result<Piece, GrammarError> {
        let mut excluded: Vec<u32> = end.into_iter().collect();
        if let Some(tokens) = format.get("exclude_tokens") {
            let place = at(place, "exclude_tokens");
            for token in list(tokens, &place)? {
                excluded.push(self.token(token, &place)?);
            }
        }
        let one = self.any_but(excluded);
        Ok(self.repeated(&one, "*"))
    }

    /// Free text with tags in it (R-72).
    fn triggered_tags(&mut self, format: &Value, place: &str) -> Result<Piece, GrammarError> {
        let mut triggers = Vec::new();
        for trigger in list(member(format, "triggers", place)?, &at(place, "triggers"))? {
            let trigger = trigger.as_str().ok_or_else(|| malformed(&at(place, "triggers"), "texts"))?;
            let (token, _) = self.specials.strip(trigger).ok_or_else(|| unsupported("trigger", trigger))?;
            triggers.push(token);
        }
        let place_of_tags = at(place, "tags");
        let tags = list(member(format, "tags", place)?, &place_of_tags)?;
        if tags.is_empty() {
            return Err(malformed(&place_of_tags, "at least one tag"));
        }
        let numbered = tags.iter().enumerate();
        let tags: Vec<Piece> =
            numbered.map(|(n, tag)| self.tag(tag, &format!("{place_of_tags}[{n}]"))).collect::<Result<_, _>>()?;
        let (at_least_one, only_one) = (flag(format, "at_least_one", place)?, flag(format, "stop_after_first", place)?);
        let tag = self.alternatives(&tags);
        let one = self.any_but(triggers);
        let (c, t) = (tag.name(), one.name());
        let body = match (at_least_one, only_one) {
            (false, false) => format!("({t})* ({c} ({t})*)*"),
            (true, false) => format!("{c} (({t})* {c})* ({t})*"),
            (false, true) => format!("({t})* ({c})?"),
            (true, true) => c.to_owned(),
        };
        Ok(self.define(false, &body))
    }

    /// A token by its id, or by the text of a special one.
    fn token(&self, token: &Value, place: &str) -> Result<u32, GrammarError> {
        match token {
            Value::String(text) => self.specials.named(text).ok_or_else(|| unsupported("token", text)),
            Value::Number(id) => {
                let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
                id.filter(|&id| id < self.specials.vocab_size)
                    .ok_or_else(|| malformed(place, "the id of a token of the vocabulary"))
            }
            _ => Err(malformed(place, "the id of a token, or the text of a special one")),
        }
    }

    /// One token out of these.
    fn any_of(&mut self, tokens: &[u32]) -> Piece {
        let list = listed(tokens);
        self.define(false, &format!("<[{list}]>"))
    }

    /// One token that is neither an end token nor one of these.
    fn any_but(&mut self, mut excluded: Vec<u32>) -> Piece {
        excluded.extend(self.specials.end_ids.iter().filter(|&&id| id < self.specials.vocab_size));
        excluded.sort_unstable();
        excluded.dedup();
        let list = listed(&excluded);
        self.define(false, &format!("<[^{list}]>"))
    }

    /// Pieces one after another; neighbouring texts become one terminal.
    fn sequence(&mut self, pieces: &[Piece]) -> Piece {
        let mut merged = Vec::new();
        for run in pieces.chunk_by(|a, b| a.is_text() && b.is_text()) {
            merged.push(match run {
                [one] => one.clone(),
                several => self.define(several.iter().all(Piece::is_text), &joined(several, " ")),
            });
        }
        match merged.as_slice() {
            [one] => one.clone(),
            [] => self.define(false, "\"\""),
            several => self.define(false, &joined(several, " ")),
        }
    }

    fn alternatives(&mut self, pieces: &[Piece]) -> Piece {
        match pieces {
            [one] => one.clone(),
            several => self.define(several.iter().all(Piece::is_text), &joined(several, " | ")),
        }
    }

    fn repeated(&mut self, piece: &Piece, mark: &str) -> Piece {
        self.define(piece.is_text(), &format!("({}){mark}", piece.name()))
    }

    /// Adds a definition under a new name.
    fn define(&mut self, text: bool, body: &str) -> Piece {
        self.names += 1;
        let name = format!("{}{}", if text { 'T' } else { 'r' }, self.names);
        // Writing to a text does not fail.
        let _ = writeln!(self.lines, "{name}: {body}");
        if text { Piece::Text(name) } else { Piece::Rule(name) }
    }
}

/// Refuses a pattern that ends within an escape, which would swallow what is written after it.
pub(super) fn check_pattern(pattern: &str, place: &str) -> Result<(), GrammarError> {
    let backslashes = pattern.chars().rev().take_while(|&c| c == '\\').count();
    match backslashes % 2 {
        0 => Ok(()),
        _ => Err(malformed(place, "a pattern that does not end in a backslash")),
    }
}

/// A literal as Lark writes it: a JSON text without the one control character that JSON leaves as it is.
fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

fn joined(pieces: &[Piece], between: &str) -> String {
    pieces.iter().map(Piece::name).collect::<Vec<_>>().join(between)
}

fn listed(tokens: &[u32]) -> String {
    tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// The place of a member, for messages.
fn at(place: &str, name: &str) -> String {
    if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") }
}

fn malformed(place: &str, expected: &'static str) -> GrammarError {
    GrammarError::Malformed { place: place.to_owned(), expected }
}

fn unsupported(what: &'static str, name: &str) -> GrammarError {
    GrammarError::Unsupported { what, name: name.chars().take(80).collect() }
}

fn member<'d>(format: &'d Value, name: &'static str, place: &str) -> Result<&'d Value, GrammarError> {
    format.get(name).ok_or_else(|| malformed(&at(place, name), "this member"))
}

fn text<'d>(format: &'d Value, name: &'static str, place: &str) -> Result<&'d str, GrammarError> {
    member(format, name, place)?.as_str().ok_or_else(|| malformed(&at(place, name), "a text"))
}

fn list<'d>(value: &'d Value, place: &str) -> Result<&'d [Value], GrammarError> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| malformed(place, "a list"))
}

fn flag(format: &Value, name: &'static str, place: &str) -> Result<bool, GrammarError> {
    match format.get(name) {
        None => Ok(false),
        Some(value) => value.as_bool().ok_or_else(|| malformed(&at(place, name), "true or false")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn specials() -> Specials {
        let named = [("<call>", 300), ("</call>", 301), ("<call>x", 302), ("<end>", 303)];
        Specials::new(&named.map(|(text, id)| (text.to_owned(), id)), &[303], 310)
    }

    /// RS-24: markers in a literal become their tokens, the longest text first.
    #[test]
    fn rs_24_literal_is_cut_at_the_texts_of_special_tokens() {
        let specials = specials();
        assert_eq!(specials.split("<call>{"), [Part::Token(300), Part::Text("{")]);
        assert_eq!(specials.split("plain"), [Part::Text("plain")]);
        assert_eq!(specials.split(""), []);
        assert_eq!(specials.split("a<call>xb</call>"), {
            [Part::Text("a"), Part::Token(302), Part::Text("b"), Part::Token(301)]
        });
        assert_eq!(specials.split("<call<call>"), [Part::Text("<call"), Part::Token(300)]);
    }

    /// R-73, R-72: what is wrong, and where.
    #[test]
    fn refusals_name_the_place_and_tell_missing_from_unknown() {
        let specials = specials();
        let refusal = |document: Value| to_lark(&document, &specials).expect_err("refused");
        let tag = json!({"begin": "<call>", "content": {"type": "regex", "pattern": "a"}, "end": "</call>"});
        let malformed = [
            (json!(3), "type"),
            (json!({"type": 7}), "type"),
            (json!({"type": "structural_tag"}), "format"),
            (json!({"type": "structural_tag", "format": {"type": "const_string"}}), "format.value"),
            (json!({"type": "const_string", "value": 3}), "value"),
            (json!({"type": "regex", "pattern": "a\\"}), "pattern"),
            (json!({"type": "sequence", "elements": {}}), "elements"),
            (json!({"type": "or", "elements": []}), "elements"),
            (json!({"type": "star"}), "content"),
            (json!({"type": "json_schema", "json_schema": "text"}), "json_schema"),
            (json!({"type": "json_schema", "json_schema": {}, "style": 3}), "style"),
            (json!({"type": "token", "token": 310}), "token"),
            (json!({"type": "token", "token": -1}), "token"),
            (json!({"type": "token", "token": []}), "token"),
            (json!({"type": "tag", "begin": "x", "content": {"type": "regex", "pattern": "a"}}), "end"),
            (json!({"type": "any_tokens", "exclude_tokens": 3}), "exclude_tokens"),
            (json!({"type": "triggered_tags", "triggers": ["<call>"], "tags": []}), "tags"),
            (json!({"type": "triggered_tags", "triggers": [1], "tags": [tag]}), "triggers"),
            (json!({"type": "triggered_tags", "triggers": [], "tags": [tag], "at_least_one": 1}), "at_least_one"),
            (json!({"type": "sequence", "elements": [{"type": "star", "content": {}}]}), "elements[0].content.type"),
        ];
        for (document, expected) in malformed {
            match refusal(document.clone()) {
                GrammarError::Malformed { place, .. } => assert_eq!(place, expected, "{document}"),
                other => panic!("{document}: {other}"),
            }
        }
        let unknown = [
            json!({"type": "poem"}),
            json!({"type": "token", "token": "<nothing>"}),
            json!({"type": "any_tokens", "exclude_tokens": ["<nothing>"]}),
            json!({"type": "json_schema", "json_schema": {}, "style": "xml"}),
            json!({"type": "triggered_tags", "triggers": ["text<call>"], "tags": [tag]}),
            json!({"type": "tag", "begin": {"type": "regex"}, "content": {"type": "regex", "pattern": "a"}, "end": ""}),
        ];
        for document in unknown {
            let error = refusal(document.clone());
            assert!(matches!(error, GrammarError::Unsupported { .. }), "{document}: {error}");
        }
    }

    #[test]
    fn neighbouring_texts_are_one_terminal() {
        let document = json!({"type": "sequence", "elements": [
            {"type": "regex", "pattern": "[a-z]+"},
            {"type": "const_string", "value": "end\u{7f}/\"<call>"},
        ]});
        let lark = to_lark(&document, &specials()).expect("a grammar");
        assert_eq!(
            lark,
            "start: r6\nT1: /[a-z]+/\nT2: \"end\\u007f/\\\"\"\nr3: <[300]>\nr4: T2 r3\nr5: T1 r4\n".replace("r6", "r5")
        );
    }
}
