#![forbid(unsafe_code)]
//! A grammar that a lane has borrowed, and where the lane stands in it.
//!
//! Validation makes it, with the replayed tokens consumed, and changes nothing (T-32); admission hands it to the lane; whoever
//! removes the lane gives the grammar back.

use std::collections::HashSet;

use super::lane::Lane;
use super::state::State;
use crate::grammar::Cursor;
use crate::record::constant::sampling;
use crate::record::{LaneAdmit, Status};
use crate::runtime::{Runtime, Vocabulary};

/// The grammar of a lane.
#[derive(Clone, Debug)]
pub(super) struct Constraint {
    pub(super) handle: u32,
    pub(super) cursor: Cursor,
}

/// The constraint that an admit asks for (T-31, T-32). `taken` has the grammars of the earlier admits of the plan.
///
/// # Errors
/// `RejectIllegalCombination`: the grammar is unknown, borrowed, marked for freeing or taken; the lane is HOST; the prompt is shorter than
/// the replayed tokens, or the grammar does not accept them; tokens are replayed without a grammar.
pub(super) fn check<R: Runtime>(
    record: &LaneAdmit,
    prompt: &[u32],
    state: &State<R>,
    taken: &mut HashSet<u32>,
) -> Result<Option<Box<Constraint>>, Status> {
    let refused = Status::RejectIllegalCombination;
    let handle = record.grammar_handle;
    if handle == 0 {
        return if record.grammar_replay == 0 { Ok(None) } else { Err(refused) };
    }
    let mut cursor = state.grammars.cursor(handle).ok_or(refused)?;
    if !taken.insert(handle) || record.sampling == sampling::HOST {
        return Err(refused);
    }
    let start = prompt.len().checked_sub(record.grammar_replay as usize).ok_or(refused)?;
    let replayed = prompt.get(start..).unwrap_or_default();
    cursor.replay(replayed).map_err(|_| refused)?;
    Ok(Some(Box::new(Constraint { handle, cursor })))
}

impl<R: Runtime> State<R> {
    /// Takes back what a lane had borrowed; the lane is no longer in the list.
    pub(super) fn take_back(&mut self, lane: &Lane) {
        if let Some(handle) = lane.grammar() {
            self.grammars.give_back(handle);
        }
    }
}

/// The vocabulary of a runtime, as grammars see it.
pub(super) fn tokens(vocabulary: &Vocabulary) -> crate::grammar::Tokens<'_> {
    let Vocabulary { tokens, special, end_ids } = vocabulary;
    crate::grammar::Tokens { tokens, special, end_ids }
}
