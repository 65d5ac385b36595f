#![forbid(unsafe_code)]
//! The grammars of an engine, by handle: who borrows them, and when they go (R-60 .. R-63).
//!
//! ```text
//!   create --> idle --borrow--> borrowed --give back--> idle
//!                | free             | free
//!                v                  v
//!               gone             marked --give back--> gone         refused to admits, and to a second free
//! ```

use std::collections::BTreeMap;

use super::compiler::{Grammar, SharedCompiler, Source, Tokens};
use super::cursor::Cursor;
use super::error::GrammarError;
use super::limits::Limits;

/// A compiled grammar and who has it.
#[derive(Debug)]
struct Entry {
    grammar: Grammar,
    borrowed: bool,
    marked: bool,
}

/// All grammars of an engine.
#[derive(Debug, Default)]
pub struct Grammars {
    compiler: SharedCompiler,
    entries: BTreeMap<u32, Entry>,
    last_handle: u32,
    /// How many lanes have one.
    borrowed: usize,
    refusal: Option<GrammarError>,
    limits: Limits,
}

impl Grammars {
    /// No grammars yet, within these limits; `compiler` may be shared with engines of the same vocabulary and limits.
    pub fn new(limits: Limits, compiler: SharedCompiler) -> Self {
        Self { limits, compiler, ..Self::default() }
    }

    /// What documents are held against.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Compiles a document and keeps it; handles ascend from 1 and are never reused (R-61, E-12).
    ///
    /// The first call puts `tokens` into a tree, which later calls use (R-60).
    ///
    /// # Errors
    /// Why there is no grammar; nothing is kept then.
    pub fn create(&mut self, source: Source, tokens: Option<Tokens<'_>>) -> Result<u32, GrammarError> {
        let tokens = tokens.ok_or(GrammarError::NoVocabulary)?;
        let handle = self.last_handle.checked_add(1).ok_or(GrammarError::HandlesUsedUp)?;
        let grammar = self.compiler.get(&tokens, &self.limits)?.compile(source)?;
        self.entries.insert(handle, Entry { grammar, borrowed: false, marked: false });
        self.last_handle = handle;
        Ok(handle)
    }

    /// Frees a grammar, or marks a borrowed one; false when there is none, or it is marked already (R-63).
    pub fn free(&mut self, handle: u32) -> bool {
        match self.entries.get_mut(&handle) {
            Some(entry) if entry.marked => false,
            Some(entry) if entry.borrowed => {
                entry.marked = true;
                true
            }
            Some(_) => self.entries.remove(&handle).is_some(),
            None => false,
        }
    }

    /// A cursor at the start of a grammar that a lane may borrow; none when it is unknown, borrowed or marked (T-31).
    pub fn cursor(&self, handle: u32) -> Option<Cursor> {
        let entry = self.entries.get(&handle).filter(|entry| !entry.borrowed && !entry.marked)?;
        Some(entry.grammar.cursor())
    }

    /// Notes that a lane has the grammar; false when it may not have it.
    pub fn borrow(&mut self, handle: u32) -> bool {
        match self.entries.get_mut(&handle) {
            Some(entry) if !entry.borrowed && !entry.marked => {
                entry.borrowed = true;
                self.borrowed += 1;
                true
            }
            _ => false,
        }
    }

    /// Notes that the lane has ended: the grammar is free for others, or gone when it was marked (R-62, R-63).
    pub fn give_back(&mut self, handle: u32) {
        if let Some(entry) = self.entries.get_mut(&handle).filter(|entry| entry.borrowed) {
            entry.borrowed = false;
            self.borrowed -= 1;
            if entry.marked {
                self.entries.remove(&handle);
            }
        }
    }

    /// Whether any lane has one.
    pub fn any_borrowed(&self) -> bool {
        self.borrowed > 0
    }

    /// Keeps why a document was refused.
    pub fn note_refusal(&mut self, refusal: GrammarError) {
        self.refusal = Some(refusal);
    }

    /// Why the last refused document was refused.
    pub fn refusal(&self) -> Option<&GrammarError> {
        self.refusal.as_ref()
    }

    /// Handles that lanes have, ascending.
    pub fn borrowed(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries.iter().filter(|(_, entry)| entry.borrowed).map(|(&handle, _)| handle)
    }
}
