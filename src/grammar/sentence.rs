#![forbid(unsafe_code)]
//! Whether a compiled grammar has a sentence at all.
//!
//! ```text
//!   a terminal is productive    when its lexeme matches some text
//!   a rule is productive        when each symbol on its right side is
//!   a symbol is productive      when it may be empty, or one of its rules is productive
//! ```
//!
//! The least solution is found by counting: each rule knows how many of its symbols are not yet productive. The grammar has a
//! sentence when its start is productive. `{"a": {"a": {"a": ...`, which a schema that requires itself asks for, has none.

use std::collections::HashMap;

use llguidance::api::ParserLimits;
use llguidance::earley::regexvec::LexemeSet;
use llguidance::earley::{CGrammar, CSymIdx};

/// Whether some text fits. Conditions on parameters count as true: with them the answer may be yes where it is no.
pub(super) fn has_sentence(grammar: &CGrammar, limits: &ParserLimits) -> bool {
    let symbols = reachable(grammar);
    let mut productive: HashMap<CSymIdx, bool> = symbols.iter().map(|&symbol| (symbol, false)).collect();
    let mut ready = terminals(grammar, &symbols, limits);
    // Rules by the symbols they wait for, and how many each still waits for.
    let mut waiting: HashMap<CSymIdx, Vec<usize>> = HashMap::new();
    let mut rules: Vec<(CSymIdx, usize)> = Vec::new();
    for &symbol in &symbols {
        let data = grammar.sym_data(symbol);
        if data.is_nullable || !data.cond_nullable.is_empty() {
            ready.push(symbol);
        }
        for &rule in grammar.rules_of(symbol) {
            let (right, _, _) = grammar.rule_rhs(rule);
            for &part in right {
                waiting.entry(part).or_default().push(rules.len());
            }
            rules.push((symbol, right.len()));
        }
    }
    while let Some(symbol) = ready.pop() {
        if productive.insert(symbol, true) == Some(true) {
            continue;
        }
        for &rule in waiting.get(&symbol).into_iter().flatten() {
            if let Some((left, missing)) = rules.get_mut(rule) {
                *missing -= 1;
                if *missing == 0 {
                    ready.push(*left);
                }
            }
        }
    }
    productive.get(&grammar.start()).copied().unwrap_or(false)
}

/// The symbols that the start leads to.
fn reachable(grammar: &CGrammar) -> Vec<CSymIdx> {
    let mut found = vec![grammar.start()];
    let mut seen: HashMap<CSymIdx, ()> = HashMap::from([(grammar.start(), ())]);
    let mut next = 0;
    while let Some(&symbol) = found.get(next) {
        next += 1;
        for &rule in grammar.rules_of(symbol) {
            let (right, _, _) = grammar.rule_rhs(rule);
            found.extend(right.iter().filter(|&&part| seen.insert(part, ()).is_none()));
        }
    }
    found
}

/// The terminals whose lexeme matches some text. A lexer that does not fit into its limits counts as matching.
fn terminals(grammar: &CGrammar, symbols: &[CSymIdx], limits: &ParserLimits) -> Vec<CSymIdx> {
    let spec = grammar.lexer_spec();
    let mut lexer = spec.to_regex_vec(&mut limits.clone()).ok();
    let lexemes = spec.all_lexemes().len();
    let mut matches = |symbol: &CSymIdx| {
        let data = grammar.sym_data(*symbol);
        let (Some(lexeme), Some(lexer)) = (data.lexeme, lexer.as_mut()) else { return data.is_terminal };
        let mut only = LexemeSet::new(lexemes);
        only.add(lexeme);
        !lexer.initial_state(&only).is_dead()
    };
    symbols.iter().copied().filter(|symbol| matches(symbol)).collect()
}
