#![forbid(unsafe_code)]
//! Where a lane stands in its grammar: which tokens may follow, and what a token does (R-62 .. R-66).
//!
//! ```text
//!   prepare   the mask, unless it is known        accept   a token; a closed grammar then computes the next mask, because
//!   mask      one bit per token                            it is complete as soon as nothing but an end token is left
//! ```
//!
//! # Invariants
//! - Masks and answers are a function of the grammar and of the tokens accepted, not of when or how often they are asked for.
//! - A cursor that failed allows nothing, and refuses every token.

use std::fmt;
use std::sync::Arc;

use llguidance::Matcher;

use super::error::Refused;

/// A place in a grammar.
pub struct Cursor {
    matcher: Matcher,
    closed: bool,
    end_ids: Arc<[u32]>,
    vocab_size: usize,
    /// One bit per token, while `known`.
    mask: Vec<u32>,
    known: bool,
    complete: bool,
    accepted: u64,
    failure: Option<Box<str>>,
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor")
            .field("closed", &self.closed)
            .field("accepted", &self.accepted)
            .field("complete", &self.complete)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl Clone for Cursor {
    fn clone(&self) -> Self {
        self.detached()
    }
}

impl Cursor {
    pub(super) fn new(matcher: Matcher, closed: bool, end_ids: Arc<[u32]>, vocab_size: usize) -> Self {
        Self {
            matcher,
            closed,
            end_ids,
            vocab_size,
            mask: Vec::new(),
            known: false,
            complete: false,
            accepted: 0,
            failure: None,
        }
    }

    /// A copy that shares no lexer with this one: how far another lane has filled it changes no answer here.
    pub(super) fn detached(&self) -> Self {
        Self {
            matcher: self.matcher.deep_clone(),
            end_ids: Arc::clone(&self.end_ids),
            mask: self.mask.clone(),
            failure: self.failure.clone(),
            ..*self
        }
    }

    /// Whether the text is complete (R-65).
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Tokens accepted since the start, replayed ones included.
    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Why the cursor allows nothing any more, in the library's words.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Makes the mask known. It costs nothing while the cursor has not moved (R-66).
    pub fn prepare(&mut self) {
        if self.known {
            return;
        }
        self.known = true;
        self.mask.clear();
        self.mask.resize(self.vocab_size.div_ceil(32), 0);
        if self.failure.is_some() {
            return;
        }
        if !self.complete && !self.matcher.is_stopped() {
            match self.matcher.compute_mask() {
                Ok(allowed) => {
                    for (word, allowed) in self.mask.iter_mut().zip(allowed.as_slice()) {
                        *word = *allowed;
                    }
                    self.drop_foreign_bits();
                }
                Err(error) => return self.fail(&error),
            }
        }
        if self.may_stop() {
            self.allow_ends();
        }
    }

    /// The allowed tokens, one bit per id, lowest bit first; nothing is allowed before [`Cursor::prepare`] or after a failure.
    pub fn mask(&self) -> &[u32] {
        if self.known { &self.mask } else { &[] }
    }

    /// Moves over a token that was picked (R-65); answers whether the text is complete.
    ///
    /// # Errors
    /// The grammar does not go on with this token, or a limit was reached. The cursor allows nothing afterwards.
    pub fn accept(&mut self, token: u32) -> Result<bool, Refused> {
        self.step(token)?;
        if self.closed && !self.complete {
            self.complete = self.matcher.is_stopped() || self.only_ends_remain();
        }
        match &self.failure {
            None => Ok(self.complete),
            Some(_) => Err(Refused { token }),
        }
    }

    /// Moves over tokens that were accepted before, in another life of the lane (R-62).
    ///
    /// # Errors
    /// As [`Cursor::accept`]; an end token may only be the last.
    pub fn replay(&mut self, tokens: &[u32]) -> Result<(), Refused> {
        for &token in tokens {
            if self.end_ids.contains(&token) && !self.may_end_with(token) {
                return Err(self.refuse(token));
            }
            self.step(token)?;
        }
        Ok(())
    }

    /// Moves over one token, without looking what may follow.
    fn step(&mut self, token: u32) -> Result<(), Refused> {
        if self.complete || self.failure.is_some() {
            return Err(self.refuse(token));
        }
        self.known = false;
        if self.end_ids.contains(&token) {
            self.complete = true;
        } else if self.matcher.is_stopped() || token as usize >= self.vocab_size {
            return Err(self.refuse(token));
        } else if let Err(error) = self.matcher.consume_token(token) {
            self.fail(&error);
            return Err(Refused { token });
        }
        self.accepted += 1;
        Ok(())
    }

    /// Whether an end token could have been picked here.
    fn may_end_with(&mut self, token: u32) -> bool {
        self.prepare();
        self.mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 != 0)
    }

    /// Whether the text may end here: the matcher stopped, or would let it.
    fn may_stop(&mut self) -> bool {
        self.complete || self.matcher.is_stopped() || self.matcher.is_accepting().unwrap_or(false)
    }

    /// Whether the text may end here and cannot go on.
    fn only_ends_remain(&mut self) -> bool {
        self.prepare();
        let mut rest = self.mask.clone();
        for &id in self.end_ids.iter() {
            if let Some(word) = rest.get_mut(id as usize / 32) {
                *word &= !(1 << (id % 32));
            }
        }
        self.failure.is_none() && rest.iter().all(|&word| word == 0) && self.may_stop()
    }

    fn allow_ends(&mut self) {
        for &id in self.end_ids.iter() {
            if let Some(word) = self.mask.get_mut(id as usize / 32) {
                *word |= 1 << (id % 32);
            }
        }
    }

    /// Clears bits past the vocabulary, which a set of "all but these" may have.
    fn drop_foreign_bits(&mut self) {
        let used = self.vocab_size % 32;
        if let Some(last) = self.mask.last_mut().filter(|_| used != 0) {
            *last &= (1 << used) - 1;
        }
    }

    /// Ends the cursor because of a token.
    fn refuse(&mut self, token: u32) -> Refused {
        let refused = Refused { token };
        self.fail(&refused);
        refused
    }

    /// Ends the cursor: from here on it allows nothing.
    fn fail(&mut self, reason: &impl ToString) {
        let reason = reason.to_string();
        self.failure.get_or_insert_with(|| reason.lines().next().unwrap_or_default().into());
        self.mask.fill(0);
    }
}
