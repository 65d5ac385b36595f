//! Grammars as lists of sentences (R-60 .. R-66, T-31, T-32, T-134).
//!
//! A language is the few texts that it has. A token is allowed where a sentence begins with what was said and the token's text; every end
//! token is allowed where a sentence was said.

use ictus::record::Status;

use super::{Answer, Model};
use crate::shape::{END_IDS, piece};

/// A grammar that hosts use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Language {
    /// The document that is compiled.
    pub(crate) document: &'static str,
    /// A schema is closed: it ends the text. A structural one is open-ended (R-61).
    pub(crate) closed: bool,
    sentences: &'static [&'static str],
}

/// No token has the letter z, so one of the sentences cannot be said to its end.
pub(crate) const LANGUAGES: [Language; 3] = [
    Language {
        document: r#"{"type": "or", "elements": [{"type": "const_string", "value": "ab"},
            {"type": "const_string", "value": "abc"}, {"type": "const_string", "value": "ca"}]}"#,
        closed: false,
        sentences: &["ab", "abc", "ca"],
    },
    Language {
        document: r#"{"type": "or", "elements": [{"type": "const_string", "value": "az"},
            {"type": "const_string", "value": "bcb"}]}"#,
        closed: false,
        sentences: &["az", "bcb"],
    },
    Language { document: r#"{"enum": ["a", "ab", "cb"]}"#, closed: true, sentences: &[r#""a""#, r#""ab""#, r#""cb""#] },
];

/// A compiled grammar.
#[derive(Clone, Debug)]
pub(crate) struct Grammar {
    pub(crate) handle: u32,
    pub(crate) language: usize,
    pub(crate) borrowed: bool,
    /// R-63: it goes when it comes back.
    pub(crate) marked: bool,
}

/// Where a lane stands in its grammar.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    pub(crate) handle: u32,
    language: usize,
    said: String,
    complete: bool,
}

/// The grammar does not go on with this token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused;

impl Cursor {
    fn language(&self) -> &'static Language {
        &LANGUAGES[self.language]
    }

    fn is_sentence(&self) -> bool {
        self.language().sentences.contains(&self.said.as_str())
    }

    /// What is said once the token is, if a sentence begins so.
    fn after(&self, token: u32) -> Option<String> {
        let said = self.said.clone() + &piece(token)?;
        let begins = self.language().sentences.iter().any(|sentence| sentence.starts_with(&said));
        Some(said).filter(|_| begins && !self.complete)
    }

    /// R-64.
    pub(crate) fn allows(&self, token: u32) -> bool {
        match END_IDS.contains(&token) {
            true => self.complete || self.is_sentence(),
            false => self.after(token).is_some(),
        }
    }

    /// The allowed tokens as a mask.
    pub(super) fn mask(&self, vocab: u32) -> Vec<u32> {
        let mut mask = vec![0; vocab.div_ceil(32) as usize];
        for token in (0..vocab).filter(|&token| self.allows(token)) {
            mask[token as usize / 32] |= 1 << (token % 32);
        }
        mask
    }

    /// R-65; answers whether the text is complete.
    pub(super) fn accept(&mut self, token: u32) -> Result<bool, Refused> {
        self.step(token)?;
        let ends = self.is_sentence() && self.language().sentences.iter().all(|sentence| !self.goes_on(sentence));
        self.complete |= self.language().closed && ends;
        Ok(self.complete)
    }

    fn goes_on(&self, sentence: &str) -> bool {
        sentence.len() > self.said.len() && sentence.starts_with(&self.said)
    }

    fn step(&mut self, token: u32) -> Result<(), Refused> {
        if self.complete {
            return Err(Refused);
        }
        match END_IDS.contains(&token) {
            true => self.complete = true,
            false => self.said = self.after(token).ok_or(Refused)?,
        }
        Ok(())
    }

    /// R-62: what was said in another life.
    fn replay(&mut self, tokens: &[u32]) -> Result<(), Refused> {
        tokens.iter().try_for_each(|&token| if self.allows(token) { self.step(token) } else { Err(Refused) })
    }
}

impl Model {
    /// R-60, R-61.
    pub(super) fn grammar_create(&mut self, language: usize) -> Answer {
        if !self.shape.speaks {
            return Answer::Refused(Status::Unsupported);
        }
        let handle = self.next_grammar;
        self.next_grammar += 1;
        self.grammars.push(Grammar { handle, language, borrowed: false, marked: false });
        Answer::Number(u64::from(handle))
    }

    /// R-63.
    pub(super) fn grammar_free(&mut self, handle: u32) -> Answer {
        let Some(grammar) = self.grammars.iter_mut().find(|grammar| grammar.handle == handle && !grammar.marked) else {
            return Answer::Refused(Status::UnknownHandle);
        };
        grammar.marked = true;
        self.grammars.retain(|grammar| grammar.borrowed || !grammar.marked);
        Answer::Done
    }

    /// T-31, T-32: the cursor of an admit whose prompt ends with `replay` tokens that were said before.
    pub(super) fn cursor(&self, handle: u32, replayed: &[u32]) -> Option<Cursor> {
        let free = |grammar: &&Grammar| grammar.handle == handle && !grammar.borrowed && !grammar.marked;
        let language = self.grammars.iter().find(free)?.language;
        let mut cursor = Cursor { handle, language, said: String::new(), complete: false };
        cursor.replay(replayed).ok()?;
        Some(cursor)
    }

    pub(super) fn borrow_grammar(&mut self, handle: u32) {
        self.grammars.iter_mut().filter(|grammar| grammar.handle == handle).for_each(|grammar| grammar.borrowed = true);
    }

    /// R-62, R-63: the lane that borrowed it is gone.
    pub(super) fn give_grammar_back(&mut self, cursor: Option<&Cursor>) {
        let Some(cursor) = cursor else { return };
        let lent = self.grammars.iter_mut().filter(|grammar| grammar.handle == cursor.handle);
        lent.for_each(|grammar| grammar.borrowed = false);
        self.grammars.retain(|grammar| grammar.borrowed || !grammar.marked);
    }
}
