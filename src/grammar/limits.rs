#![forbid(unsafe_code)]
//! How much a grammar may cost, and the check of documents before they are compiled.
//!
//! The library bounds most of its own work in units that it counts, not in seconds, so a grammar that compiles on one machine
//! compiles on every machine. What it does not bound is refused here, before it sees the document.

use llguidance::api::ParserLimits;
use serde_json::Value;

use super::error::GrammarError;

/// Bounds of one grammar and of the cursors on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a document.
    pub document_bytes: usize,
    /// Levels of a JSON document; each costs stack while it is compiled.
    pub depth: usize,
    /// The greatest `multipleOf`, written without its decimal point: the automaton has this many states.
    pub multiple_of: u64,
    /// Symbols of a compiled grammar.
    pub grammar_symbols: usize,
    /// Work of making the lexer, in the library's units; a millisecond does about 50 000.
    pub compile_fuel: u64,
    /// Work of the lexer for one mask; a millisecond does about 14 000.
    pub mask_fuel: u64,
    /// Items of the parser for one mask; a millisecond does about 20 000.
    pub mask_items: usize,
    /// States of the lexer that a cursor may keep, one or two kilobytes each.
    pub lexer_states: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            document_bytes: 1 << 20,
            depth: 64,
            multiple_of: 10_000,
            grammar_symbols: 200_000,
            compile_fuel: 1_000_000,
            mask_fuel: 200_000,
            mask_items: 50_000,
            lexer_states: 1 << 15,
        }
    }
}

impl Limits {
    /// The bounds that the library keeps itself.
    pub(super) fn of_parser(&self) -> ParserLimits {
        ParserLimits {
            initial_lexer_fuel: self.compile_fuel,
            step_lexer_fuel: self.mask_fuel,
            step_max_items: self.mask_items,
            max_lexer_states: self.lexer_states,
            max_grammar_size: self.grammar_symbols,
            verbose_errors: false,
            ..ParserLimits::default()
        }
    }

    /// Refuses a document that is too long.
    pub(super) fn check_length(&self, document: &str) -> Result<(), GrammarError> {
        match document.len() {
            bytes if bytes > self.document_bytes => Err(GrammarError::TooLong { bytes, limit: self.document_bytes }),
            _ => Ok(()),
        }
    }

    /// Refuses a JSON document that is too deep, or whose numbers stand for too much.
    pub(super) fn check_document(&self, document: &Value) -> Result<(), GrammarError> {
        let mut open = vec![(document, 0)];
        while let Some((value, depth)) = open.pop() {
            if depth > self.depth {
                return Err(GrammarError::TooDeep { limit: self.depth });
            }
            match value {
                Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
                Value::Object(members) => {
                    self.check_multiple(members.get("multipleOf"))?;
                    open.extend(members.values().map(|member| (member, depth + 1)));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_multiple(&self, multiple: Option<&Value>) -> Result<(), GrammarError> {
        let Some(Value::Number(number)) = multiple else { return Ok(()) };
        let text = number.to_string();
        let digits: String = text.chars().take_while(|&c| c != 'e' && c != 'E').filter(char::is_ascii_digit).collect();
        let exponent = text.split(['e', 'E']).nth(1).and_then(|exponent| exponent.parse::<i32>().ok()).unwrap_or(0);
        let coefficient = digits.parse::<u64>().ok();
        let scaled = coefficient.and_then(|c| c.checked_mul(10u64.checked_pow(exponent.max(0).unsigned_abs())?));
        match scaled {
            Some(scaled) if scaled <= self.multiple_of => Ok(()),
            _ => Err(GrammarError::TooLarge { what: "multipleOf", value: text, limit: self.multiple_of }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn depth_and_length_are_bounded_at_the_limit_exactly() {
        let limits = Limits { document_bytes: 4, depth: 2, ..Limits::default() };
        assert_eq!(limits.check_length("1234"), Ok(()));
        assert_eq!(limits.check_length("12345"), Err(GrammarError::TooLong { bytes: 5, limit: 4 }));
        assert_eq!(limits.check_document(&json!([[1]])), Ok(()));
        assert_eq!(limits.check_document(&json!([[[1]]])), Err(GrammarError::TooDeep { limit: 2 }));
        assert_eq!(limits.check_document(&json!({"a": {"b": {"c": 1}}})), Err(GrammarError::TooDeep { limit: 2 }));
    }

    #[test]
    fn multiples_count_by_their_digits() {
        let limits = Limits::default();
        let check = |multiple: Value| limits.check_document(&json!({"items": [{"multipleOf": multiple}]})).is_ok();
        assert!(check(json!(10_000)) && check(json!(0.01)) && check(json!(1.25)) && check(json!("text")));
        assert!(!check(json!(10_001)) && !check(json!(1e9)) && !check(json!(u64::MAX)) && !check(json!(1.000_000_1)));
    }
}
