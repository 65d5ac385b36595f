#![forbid(unsafe_code)]
//! From the tokens of an answer to its text, and where it ends.

use super::event::{Finish, Piece};
use super::request::{Request, Words};
use super::stop::StopMatcher;
use crate::tokenizer::TextStream;

/// The answer of one request, so far.
#[derive(Debug)]
pub(super) struct Output {
    words: Option<Words>,
    show_special: bool,
    stop_tokens: Vec<u32>,
    text: TextStream,
    stops: StopMatcher,
    max_tokens: u64,
    said: u64,
}

impl Output {
    pub(super) fn new(request: &Request, words: Option<Words>) -> Self {
        Self {
            words,
            show_special: request.show_special,
            stop_tokens: request.stop_tokens.clone(),
            text: TextStream::new(),
            stops: StopMatcher::new(&request.stop_strings),
            max_tokens: request.max_tokens,
            said: 0,
        }
    }

    /// Tokens that the request may still say.
    pub(super) fn tokens_left(&self) -> u64 {
        self.max_tokens.saturating_sub(self.said)
    }

    /// Tokens it has said.
    pub(super) fn said(&self) -> u64 {
        self.said
    }

    /// Takes a token. `ends`: what the engine says of it. Answers why the request is over, if it is.
    pub(super) fn take(&mut self, token: u32, ends: Option<Finish>, piece: &mut Piece) -> Option<Finish> {
        piece.tokens.push(token);
        self.said += 1;
        let stopped = self.stop_tokens.binary_search(&token).is_ok();
        // Neither an end token nor a stop token is part of the text.
        if !stopped && ends != Some(Finish::EndToken) {
            let found = self.say(token, &mut piece.text);
            if found.is_some() {
                return found;
            }
        }
        let full = (self.tokens_left() == 0).then_some(Finish::MaxTokens);
        stopped.then_some(Finish::StopToken(token)).or(ends).or(full)
    }

    fn say(&mut self, token: u32, text: &mut String) -> Option<Finish> {
        let tokenizer = self.words.as_ref()?.tokenizer();
        let bytes = tokenizer.token_bytes(token)?;
        if tokenizer.is_control(token) && !self.show_special {
            return None;
        }
        let mut certain = String::new();
        self.text.push(bytes, &mut certain);
        self.stops.push(&certain, text).map(Finish::StopString)
    }

    /// Ends the text: what was held back comes out. A stop string that only now is complete is answered.
    pub(super) fn finish(&mut self, text: &mut String) -> Option<Finish> {
        let mut certain = String::new();
        self.text.finish(&mut certain);
        let found = self.stops.push(&certain, text).map(Finish::StopString);
        self.stops.finish(text);
        found
    }
}
