//! Sections: operations whose shapes come again, noted first and launched together, as a graph where there is one.
//!
//! ```text
//! part_begin      an empty program, an empty arena
//!   operations     launches -> program; lists, block tables, angles -> arena, at places that only sizes decide
//!   (a read)       settle: the arena's bytes in one copy, the program as one graph or launch by launch; then on with an empty program
//! part_end        settle
//! ```
//! # Invariants
//! - Nothing that the program names is freed before it was settled: memory that goes within a section is freed behind it ([`Driver::hold_frees`]).
//! - The arena's places go on after a settling, so lists of before stay valid until the section ends.
//! - A section without room goes on plainly: what was noted is launched, and so is everything behind it.

use super::CudaBackend;
use super::driver::At;
#[cfg(doc)]
use super::driver::Driver;
use super::spans::{Fit, SpanLists};
use crate::backend::{BackendError, Span};

impl CudaBackend {
    pub(super) fn begin_section(&self, may_capture: bool) {
        self.errors.run(|| {
            let mut graphs = self.graphs.borrow_mut();
            graphs.permit(may_capture);
            if graphs.is_of_use() {
                self.arena.borrow_mut().begin(self.driver())?;
                self.in_section.set(true);
                self.driver().hold_frees();
                self.launcher.program.begin();
            }
            Ok(())
        });
    }

    pub(super) fn end_section(&self) {
        if self.in_section.replace(false) {
            self.errors.run(|| self.settle());
            self.launcher.program.end();
            self.errors.run(|| self.arena.borrow_mut().end(self.driver()));
            self.driver().release_frees();
        }
    }

    /// Launches what was noted so far; before the host reads, and before memory goes.
    pub(super) fn settle(&self) -> Result<(), BackendError> {
        let ops = self.launcher.program.take();
        let settled = if ops.is_empty() {
            Ok(())
        } else {
            self.arena.borrow_mut().bring(self.driver()).and_then(|()| {
                // SAFETY: what it names is live, by the first invariant.
                unsafe { self.graphs.borrow_mut().run(&self.launcher, &ops) }
            })
        };
        self.launcher.program.keep(ops);
        settled
    }

    /// Forgets all graphs, as memory moves.
    pub(super) fn forget_graphs(&self) -> Result<(), BackendError> {
        self.errors.attempt(|| {
            self.settle()?;
            self.driver().finish()
        })?;
        self.graphs.borrow_mut().clear();
        Ok(())
    }

    /// Goes on without a graph.
    fn abandon(&self) -> Result<(), BackendError> {
        let ops = self.launcher.program.take();
        self.launcher.program.end();
        self.arena.borrow_mut().bring(self.driver())?;
        // SAFETY: what it names is live, by the first invariant.
        let played = unsafe { self.launcher.play(&ops) };
        self.launcher.program.keep(ops);
        played
    }

    /// Puts bytes into the arena where a program is being noted, and there is room.
    fn in_arena(&self, bytes: &[u8]) -> Result<Option<At<u8>>, BackendError> {
        if !self.launcher.program.is_noting() {
            return Ok(None);
        }
        if let Some((target, at)) = self.arena.borrow_mut().place(bytes.len()) {
            target.copy_from_slice(bytes);
            return Ok(Some(at));
        }
        self.abandon().map(|()| None)
    }

    /// A list for the operation at hand.
    pub(super) fn list(&self, words: &[u32]) -> Result<At<u32>, BackendError> {
        match self.in_arena(bytemuck::cast_slice(words))? {
            Some(at) => Ok(at.cast()),
            None => self.staging.borrow_mut().list(self.driver(), words),
        }
    }

    /// Brings bytes to a place on the device.
    pub(super) fn fill(&self, to: At<u8>, bytes: &[u8]) -> Result<(), BackendError> {
        match self.in_arena(bytes)? {
            Some(at) => self.launcher.copy(to, at, bytes.len()),
            None => self.staging.borrow_mut().fill(self.driver(), to, bytes),
        }
    }

    /// Lays lists of spans out in the arena, as [`CudaBackend::in_arena`]: with tables and lengths rounded up, so that a graph serves more than one
    /// step. Whether it did.
    pub(super) fn spans_in_arena(&self, taken: &mut SpanLists, lists: &[&[Span<'_>]]) -> Result<bool, BackendError> {
        if !self.launcher.program.is_noting() {
            return Ok(false);
        }
        taken.split(lists, self.page_size_tokens.get());
        let bytes = taken.words(lists, Fit::Roomy) * size_of::<u32>();
        if let Some((target, at)) = self.arena.borrow_mut().place(bytes) {
            taken.lay_out(lists, Fit::Roomy, bytemuck::cast_slice_mut(target), at.cast());
            return Ok(true);
        }
        self.abandon().map(|()| false)
    }
}
