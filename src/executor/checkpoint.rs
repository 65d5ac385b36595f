#![forbid(unsafe_code)]
//! Copies of prompt state on runtimes that cannot cut (T-90).
//!
//! A head-only runtime serves a prefix only from state that ends with it, and a lane's own state moves on. So when prefill has
//! brought a lane to one token short of its prompt, a copy stays behind as an entry, for the same prompt and for those that go on
//! from it.
//!
//! # Limits
//! States shorter than [`CHECKPOINT_TOKENS_MIN`] are as quickly fed again. A copy is made only of cells that nobody in the plan may need;
//! without room there is none, and nobody is told.

use super::cache::Entering;
use super::lanes::LaneId;
use super::run::{Fatal, Run};
use crate::runtime::Runtime;

/// Shortest state worth a copy, in tokens.
const CHECKPOINT_TOKENS_MIN: usize = 128;

impl<R: Runtime> Run<'_, R> {
    /// Fills `due` with the lanes that the step being put together brings to the end of their prompt, less the token held back.
    ///
    /// # Errors
    /// A portion names no lane.
    pub(super) fn checkpoints_due(&self, due: &mut Vec<LaneId>) -> Result<(), Fatal> {
        due.clear();
        if self.state.descriptor.truncate_partial {
            return Ok(());
        }
        for portion in &self.steps.portions {
            let lane = self.state.lanes.get(portion.lane).ok_or(Fatal)?;
            let completes = portion.committed == lane.prompt_len() && portion.fed > lane.fed_len();
            if completes && portion.fed >= CHECKPOINT_TOKENS_MIN {
                due.push(portion.lane);
            }
        }
        Ok(())
    }

    /// Copies the state of these lanes into the cache, as far as `spare_cells` go; lanes that are gone leave nothing.
    pub(super) fn checkpoint(&mut self, due: &[LaneId], spare_cells: &mut u64) {
        due.iter().for_each(|&lane| self.checkpoint_lane(lane, spare_cells));
    }

    fn checkpoint_lane(&mut self, id: LaneId, spare_cells: &mut u64) {
        let state = &mut *self.state;
        let Some(lane) = state.lanes.get(id) else { return };
        let (source, fed, content) = (lane.sequence(), lane.fed_len(), lane.content().copied());
        let tokens = lane.known(0, fed).to_vec();
        let mut same = Vec::new();
        state.cache.exact(&state.scope(content.adapter), &tokens, &mut same);
        let granule = u64::from(state.descriptor.cell_granule_tokens.max(1));
        let cells = match state.descriptor.copy_shares_cells {
            // The lane copies the page that it goes on in.
            true if (fed as u64).is_multiple_of(granule) => 0,
            true => granule,
            false => (fed as u64).next_multiple_of(granule),
        };
        if !same.is_empty() || cells > *spare_cells {
            return;
        }
        let Ok(copy) = state.with_room(R::seq_create) else { return };
        if state.with_room(|runtime| runtime.seq_copy(source, copy, fed as u64)).is_err() {
            return state.runtime.seq_free(copy);
        }
        *spare_cells -= cells;
        state.note_sharing(source);
        state.enter_cache(copy, tokens, Entering { content, prompt_len: fed, shared: false });
    }
}
