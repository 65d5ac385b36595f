//! Sections: the operations of a part of a step, noted first, brought over in one copy and launched together, as a graph where there is one.
//!
//! ```text
//! part_begin       an empty program, an empty arena
//!   operations     launches -> program; lists, block tables, angles -> arena, at places that only sizes decide
//!   (a read)       settle: the arena's bytes in one copy, the program as one graph or launch by launch; then on with an empty program
//! part_end         settle
//! ```
//! A section is one of all devices of the backend ([`players`](super::players)): one program, in which each operation says whose it is, and an arena for each
//! device. Any of them may settle it, and whatever one of them has no room for ends it for all.
//!
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
use super::players::{Players, lock};
use super::program::Noted;
use super::spans::{Fit, SpanLists};
use crate::backend::{Again, BackendError, Span};

impl Players {
    /// Begins a section of all devices.
    fn begin(&self, again: Again) -> Result<(), BackendError> {
        lock(&self.graphs).expect(again);
        for player in self.all() {
            lock(&player.arena).begin(&player.launcher.driver)?;
        }
        self.all().for_each(|player| player.launcher.driver.hold_frees());
        self.program.begin();
        Ok(())
    }

    /// Launches what was noted so far, on all devices; before the host reads, and before memory goes.
    pub(super) fn settle(&self) -> Result<(), BackendError> {
        let noted = self.program.take();
        let settled = if noted.is_empty() { Ok(()) } else { self.run_noted(&noted) };
        self.program.keep(noted);
        settled
    }

    fn run_noted(&self, noted: &Noted) -> Result<(), BackendError> {
        for player in self.all() {
            lock(&player.arena).bring(&player.launcher.driver)?;
        }
        // SAFETY: what it names is live, by the first invariant.
        unsafe { self.play(&noted.front) }?;
        // SAFETY: as above.
        unsafe { lock(&self.graphs).run(self, &noted.operations) }
    }

    /// Goes on plainly, on all devices: what was noted so far is half of a step, and becomes no graph.
    fn abandon(&self) -> Result<(), BackendError> {
        lock(&self.graphs).expect(Again::No);
        let settled = self.settle();
        self.program.end();
        settled
    }
}

impl CudaBackend {
    /// Begins a section of all devices of the backend.
    pub(super) fn begin_section(&self, again: Again) {
        self.errors.run(|| self.players.begin(again));
    }

    pub(super) fn end_section(&self) {
        self.errors.run(|| self.players.settle());
        self.players.program.end();
        self.players.all().for_each(|player| player.launcher.driver.release_frees());
    }

    /// As [`Players::settle`].
    pub(super) fn settle(&self) -> Result<(), BackendError> {
        self.players.settle()
    }

    /// Has sections bring up to so many bytes to this device; not in one.
    pub(super) fn reserve_arena(&self, bytes: usize) -> Result<(), BackendError> {
        let arena = &self.player().arena;
        if !lock(arena).holds(bytes) {
            let larger = Arena::new(self.driver(), bytes)?;
            self.forget_graphs()?;
            *lock(arena) = larger;
        }
        Ok(())
    }

    /// Forgets all graphs, as memory moves.
    pub(super) fn forget_graphs(&self) -> Result<(), BackendError> {
        self.errors.attempt(|| {
            self.settle()?;
            self.players.finish()
        })?;
        lock(&self.players.graphs).clear();
        Ok(())
    }

    /// Puts bytes into the arena where a program is being noted, and there is room.
    fn in_arena(&self, bytes: &[u8]) -> Result<Option<At<u8>>, BackendError> {
        if !self.players.program.is_noting() {
            return Ok(None);
        }
        if let Some((target, at)) = lock(&self.player().arena).place(bytes.len()) {
            target.copy_from_slice(bytes);
            return Ok(Some(at));
        }
        self.players.abandon().map(|()| None)
    }

    /// Does `operation` with a list, in front of the program where nothing else was noted yet and the list is short: whether it comes then does not make
    /// another program of it.
    pub(super) fn with_list_in_front(
        &self,
        words: &[u32],
        operation: impl FnOnce(At<u32>) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let bytes: &[u8] = bytemuck::cast_slice(words);
        let program = &self.players.program;
        let place = match program.may_have_front() {
            true => lock(&self.player().arena).place_in_front(bytes.len()).map(|(target, at)| {
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
            Some(at) => self.launcher().copy(to, at, bytes.len()),
            None => self.staging.borrow_mut().fill(self.driver(), to, bytes),
        }
    }

    /// Lays lists of spans out in the arena, as [`CudaBackend::in_arena`]: with tables and lengths rounded up where a graph may come of it, which then
    /// serves more than one step. Whether it did.
    pub(super) fn spans_in_arena(&self, taken: &mut SpanLists, lists: &[&[Span<'_>]]) -> Result<bool, BackendError> {
        if !self.players.program.is_noting() {
            return Ok(false);
        }
        taken.split(lists, self.page_size_tokens.get());
        let fit = if lock(&self.players.graphs).are_of_use() { Fit::Roomy } else { Fit::Exact };
        let bytes = taken.words(lists, fit) * size_of::<u32>();
        if let Some((target, at)) = lock(&self.player().arena).place(bytes) {
            taken.lay_out(lists, fit, bytemuck::cast_slice_mut(target), at.cast());
            return Ok(true);
        }
        self.players.abandon().map(|()| false)
    }
}
