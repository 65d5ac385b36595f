//! Programs that come again, as graphs: a step of hundreds of launches becomes one.
//!
//! ```text
//! program --seen never--> launched, remembered --seen once--> captured, launched as a graph --has a graph--> launched as a graph
//! ```
//! A graph is found by comparing the whole program: every kernel, grid and parameter. So it is never asked whether memory moved, an
//! adapter came or a shape changed; then the program is another one.
//!
//! # Invariants
//! - What runs is the program that was noted, as a graph or not: the bits are the same.
//! - A capture begins and ends within one call, however it goes. A program whose capture or graph fails is launched plainly, now and from
//!   then on; an error that is the device's comes back from there.
//!
//! # Limits
//! [`MOST_PROGRAMS`] are remembered; the one not used for longest goes first. How much memory the driver takes for a graph, it does not say.

use super::driver::Graph;
use super::launch::Launcher;
use super::program::Op;
use crate::backend::{Again, BackendError, GraphCounts};

/// Programs that are remembered.
pub(super) const MOST_PROGRAMS: usize = 32;
/// Shorter programs are launched as they are.
const LEAST_OPS: usize = 4;

/// A program that was seen.
struct Known {
    ops: Vec<Op>,
    graph: Option<Graph>,
    /// It could not be captured, or its graph not be launched.
    is_refused: bool,
}

pub(super) struct Graphs {
    /// The one used last is the last.
    known: Vec<Known>,
    counts: GraphCounts,
    /// Whether the programs of now come again.
    again: Again,
}

impl Default for Graphs {
    fn default() -> Self {
        Self { known: Vec::new(), counts: GraphCounts::default(), again: Again::No }
    }
}

impl Graphs {
    /// Says whether programs come again from now on. Those that do not are launched and neither looked for, remembered nor counted.
    pub(super) fn expect(&mut self, again: Again) {
        self.again = again;
    }

    /// Whether the program that is noted now may be a graph, now or later.
    pub(super) fn are_of_use(&self) -> bool {
        match self.again {
            Again::No => false,
            Again::Use => self.known.iter().any(|known| known.graph.is_some()),
            Again::Keep => true,
        }
    }

    /// Forgets all programs. The device is done with them.
    pub(super) fn clear(&mut self) {
        self.known.clear();
    }

    pub(super) fn take_counts(&mut self) -> GraphCounts {
        core::mem::take(&mut self.counts)
    }

    /// Runs a program.
    ///
    /// # Safety
    /// - The memory that it names is live.
    pub(super) unsafe fn run(&mut self, launcher: &Launcher, ops: &[Op]) -> Result<(), BackendError> {
        if ops.len() < LEAST_OPS || !self.are_of_use() {
            // SAFETY: as the caller promises.
            return unsafe { launcher.play(ops) };
        }
        let is_known = self.take_up(ops);
        let may_capture = self.may_capture();
        if let Some(known) = self.known.last_mut().filter(|known| is_known && !known.is_refused) {
            let had_graph = known.graph.is_some();
            if !had_graph && may_capture {
                // SAFETY: as the caller promises. What is captured runs when the graph does.
                known.graph = launcher.driver.capture(|| unsafe { launcher.play(ops) }).ok();
            }
            let is_launched = known.graph.as_ref().is_some_and(|graph| launcher.driver.replay(graph).is_ok());
            if is_launched {
                self.counts.hits += u32::from(had_graph);
                self.counts.misses += u32::from(!had_graph);
                return Ok(());
            }
            known.is_refused = had_graph || may_capture;
            known.graph = None;
        }
        self.counts.misses += u32::from(may_capture);
        // SAFETY: as the caller promises.
        unsafe { launcher.play(ops) }
    }

    fn may_capture(&self) -> bool {
        self.again == Again::Keep
    }

    /// Makes the program the last of those that are known, when it is one of them or may become one. Whether it was.
    fn take_up(&mut self, ops: &[Op]) -> bool {
        let found = self.known.iter().position(|known| known.ops == ops);
        if let Some(at) = found {
            let known = self.known.remove(at);
            self.known.push(known);
        } else if self.may_capture() {
            if self.known.len() >= MOST_PROGRAMS {
                // A graph that goes is waited for.
                self.known.remove(0);
            }
            self.known.push(Known { ops: ops.to_vec(), graph: None, is_refused: false });
        }
        found.is_some()
    }
}
