#![forbid(unsafe_code)]
//! Calls of the host about what shapes the picking of tokens: bias lists and grammars.

use crate::executor::Executor;
use crate::executor::constraint;
use crate::grammar::{GrammarError, Limits, Source};
use crate::record::Status;
use crate::runtime::Runtime;

impl<R: Runtime> Executor<R> {
    pub(super) fn create_bias(&mut self, tokens: &[i32], addends: &[f32]) -> Result<u32, Status> {
        let vocab_size = self.state.descriptor.vocab_size;
        self.state.bias.create(tokens, addends, vocab_size).ok_or(Status::Unsupported)
    }

    /// Compiles a document that `parse` reads. The runtime's vocabulary is asked for when the document is sound so far.
    pub(super) fn create_grammar(
        &mut self,
        document: &str,
        parse: fn(&str, &Limits) -> Result<Source, GrammarError>,
    ) -> Result<u32, Status> {
        let grammars = &mut self.state.grammars;
        let tokens = self.state.runtime.vocabulary().map(constraint::tokens);
        let created = parse(document, grammars.limits()).and_then(|source| grammars.create(source, tokens));
        created.map_err(|error| {
            let status = Status::from(&error);
            grammars.note_refusal(error);
            status
        })
    }

    pub(super) fn free_grammar(&mut self, grammar: u32) -> Result<(), Status> {
        if self.state.grammars.free(grammar) { Ok(()) } else { Err(Status::UnknownHandle) }
    }

    pub(super) fn free_bias(&mut self, bias: u32) -> Result<(), Status> {
        if self.state.bias.free(bias) { Ok(()) } else { Err(Status::UnknownHandle) }
    }
}
