//! Sections: the operations of a part of a step, noted first, brought over in one copy and launched together, as a graph where there is one.
//!
//! ```text
//! part_begin       an empty program, an empty arena
//!   operations     launches -> program; lists, block tables, angles -> arena, at places that only sizes decide
//!   (a read)       settle: the arena's bytes in one copy, the program as one graph or launch by launch; then on with an empty program
//! part_end         settle
//! ```
//! Where a graph may come of it, sizes are rounded up, so that steps that are nearly alike are the same program ([`Fit::Roomy`]).
//!
//! # Invariants
//! - Nothing that the program names is freed before it was settled: memory that goes within a section is freed behind it ([`Driver::hold_frees`]).
//! - The arena's places go on after a settling, so lists of before stay valid until the section ends.
//! - A section without room goes on plainly: what was noted is launched, and so is everything behind it.

use super::CudaBackend;
use super::arena::Arena;
use super::driver::At;
#[cfg(doc)]
use super::driver::Driver;
use super::program::Noted;
use super::spans::{Fit, SpanLists};
use crate::backend::{Again, BackendError, Span};

impl CudaBackend {
    pub(super) fn begin_section(&self, again: Again) {
        self.errors.run(|| {
            self.graphs.borrow_mut().expect(again);
            self.arena.borrow_mut().begin(self.driver())?;
            self.in_section.set(true);
            self.driver().hold_frees();
            self.launcher.program.begin();
            Ok(())
        });
    }

    pub(super) fn end_section(&self) {
        if self.in_section.replace(false) {
            self.errors.run(|| self.settle());
            self.launcher.program.end();
            self.driver().release_frees();
        }
    }

    /// Launches what was noted so far; before the host reads, and before memory goes.
    pub(super) fn settle(&self) -> Result<(), BackendError> {
        let noted = self.launcher.program.take();
        let settled = if noted.is_empty() { Ok(()) } else { self.run_noted(&noted) };
        self.launcher.program.keep(noted);
        settled
    }

    fn run_noted(&self, noted: &Noted) -> Result<(), BackendError> {
        self.arena.borrow_mut().bring(self.driver())?;
        // SAFETY: what it names is live, by the first invariant.
        unsafe { self.launcher.play(&noted.front) }?;
        // SAFETY: as above.
        unsafe { self.graphs.borrow_mut().run(&self.launcher, &noted.ops) }
    }

    /// Has sections bring up to so many bytes; not in one.
    pub(super) fn reserve_arena(&self, bytes: usize) -> Result<(), BackendError> {
        if !self.arena.borrow().holds(bytes) {
            let larger = Arena::new(self.driver(), bytes)?;
            self.forget_graphs()?;
            *self.arena.borrow_mut() = larger;
        }
        Ok(())
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

    /// Goes on plainly: what was noted so far is half of a step, and becomes no graph.
    fn abandon(&self) -> Result<(), BackendError> {
        self.graphs.borrow_mut().expect(Again::No);
        let settled = self.settle();
        self.launcher.program.end();
        settled
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

    /// Does `operation` with a list, in front of the section where the section has just begun and the list is short: whether it comes then does not make
    /// another program of it.
    pub(super) fn with_list_in_front(
        &self,
        words: &[u32],
        operation: impl FnOnce(At<u32>) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let bytes: &[u8] = bytemuck::cast_slice(words);
        let program = &self.launcher.program;
        let place = match program.is_noting() {
            true => self.arena.borrow_mut().place_in_front(bytes.len()).map(|(target, at)| {
                target.copy_from_slice(bytes);
                at
            }),
            false => None,
        };
        match place {
            Some(at) => program.in_front(|| operation(at.cast())),
            None => operation(self.list(words)?),
        }
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

    /// Lays lists of spans out in the arena, as [`CudaBackend::in_arena`]: with tables and lengths rounded up where a graph may come of it, which then
    /// serves more than one step. Whether it did.
    pub(super) fn spans_in_arena(&self, taken: &mut SpanLists, lists: &[&[Span<'_>]]) -> Result<bool, BackendError> {
        if !self.launcher.program.is_noting() {
            return Ok(false);
        }
        taken.split(lists, self.page_size_tokens.get());
        let fit = if self.graphs.borrow().are_of_use() { Fit::Roomy } else { Fit::Exact };
        let bytes = taken.words(lists, fit) * size_of::<u32>();
        if let Some((target, at)) = self.arena.borrow_mut().place(bytes) {
            taken.lay_out(lists, fit, bytemuck::cast_slice_mut(target), at.cast());
            return Ok(true);
        }
        self.abandon().map(|()| false)
    }
}
