//! Programs that come again, as graphs: a step of hundreds of launches, on however many devices, becomes one.
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
use super::players::Players;
use super::program::{Op, Operation};
use crate::backend::{Again, BackendError, GraphCounts};

/// Programs that are remembered.
pub(super) const MOST_PROGRAMS: usize = 32;
/// Programs that launch fewer kernels are launched as they are, however often devices meet in them.
const LEAST_LAUNCHES: usize = 4;

/// Whether a program launches enough kernels.
fn is_worth_it(operations: &[Operation]) -> bool {
    let launches = operations.iter().filter(|operation| matches!(operation.op, Op::Launch(_)));
    launches.take(LEAST_LAUNCHES).count() == LEAST_LAUNCHES
}

/// A program that was seen.
struct Known {
    operations: Vec<Operation>,
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
    pub(super) unsafe fn run(&mut self, players: &Players, operations: &[Operation]) -> Result<(), BackendError> {
        if !is_worth_it(operations) || !self.are_of_use() {
            // SAFETY: as the caller promises.
            return unsafe { players.play(operations) };
        }
        let is_known = self.take_up(operations);
        let may_capture = self.may_capture();
        if let Some(known) = self.known.last_mut().filter(|known| is_known && !known.is_refused) {
            let had_graph = known.graph.is_some();
            if !had_graph && may_capture {
                // SAFETY: as the caller promises; a graph is launched only in the place of this program.
                known.graph = unsafe { players.capture(operations) }.ok();
            }
            let is_launched = match &known.graph {
                Some(graph) => players.replay(graph)?,
                None => false,
            };
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
        unsafe { players.play(operations) }
    }

    fn may_capture(&self) -> bool {
        self.again == Again::Keep
    }

    /// Makes the program the last of those that are known, when it is one of them or may become one. Whether it was.
    fn take_up(&mut self, operations: &[Operation]) -> bool {
        let found = self.known.iter().position(|known| known.operations == operations);
        if let Some(at) = found {
            let known = self.known.remove(at);
            self.known.push(known);
        } else if self.may_capture() {
            if self.known.len() >= MOST_PROGRAMS {
                // A graph that goes is waited for.
                self.known.remove(0);
            }
            self.known.push(Known { operations: operations.to_vec(), graph: None, is_refused: false });
        }
        found.is_some()
    }
}
