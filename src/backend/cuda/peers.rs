//! What devices of a group tell each other: parts of rows become whole rows on every device, tokens' rows go from who has them to all.
//!
//! ```text
//! round    each device: push its part into the others' staging, note an event      join the events of the others     place or gather
//! staging  [ half 0 ][ half 1 ]     of every device; rounds take them in turn
//! ```
//! The host never waits in a round. There is no sum between devices, so nothing depends on who comes first.
//!
//! # Invariants
//! - Every device notes an event in every round and joins those of all others, whether it has pushed anything or not. So when a device pushes in
//!   round `k + 2`, it has joined what each other one noted in round `k + 1`, which lies behind that one's reading of round `k`: the half is free.
//! - A part is pushed by its own device's stream, so that device may overwrite it at once.
//!
//! # Limits
//! A half holds at least one row; longer ones go in several rounds.

use smallvec::SmallVec;

use super::CudaBackend;
use super::driver::{At, Event, Memory};
use super::launch::{Launcher, MOST_ROWS, Parameter, Weights, check, parameters, word};
use crate::backend::{BackendError, Spread};

/// Bytes of a half, at least.
pub(super) const HALF_BYTES: usize = 4 << 20;

/// A place on each device.
type Places = SmallVec<[At<f32>; 8]>;

/// How the columns of a row are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) width: usize,
    /// Neighbours that stay together.
    pub(super) unit: usize,
    pub(super) parts: usize,
}

impl Cut {
    /// Where every part has something.
    pub(super) fn new(what: &'static str, width: usize, unit: usize, parts: usize) -> Result<Self, BackendError> {
        let cut = Self { width, unit: unit.max(1), parts };
        let units = width / cut.unit;
        if parts == 0 || units < parts || !width.is_multiple_of(cut.unit) {
            return Err(BackendError::CannotSpread { what, parts: units, devices: parts });
        }
        Ok(cut)
    }

    /// The columns of a part.
    pub(super) fn columns(&self, part: usize) -> core::ops::Range<usize> {
        Spread::share(self.width, self.unit, part, self.parts)
    }
}

/// What a device is pushed into, and how the others know that it has pushed.
struct Side {
    halves: [Memory; 2],
    pushed: Event,
}

/// The staging of all devices.
pub(super) struct Exchange {
    sides: Vec<Side>,
    half_bytes: usize,
    /// Whether the next round takes half 1.
    is_second: bool,
    /// Tokens that a device has, and where each token's row lies, in a round of an embedding.
    ids: Vec<u32>,
    rows: Vec<u32>,
}

impl Exchange {
    pub(super) fn new(members: &[CudaBackend], half_bytes: usize) -> Result<Self, BackendError> {
        let side = |member: &CudaBackend| {
            let driver = member.driver();
            let halves = [driver.memory(half_bytes)?, driver.memory(half_bytes)?];
            Ok(Side { halves, pushed: driver.event()? })
        };
        let (is_second, ids, rows) = Default::default();
        Ok(Self { sides: members.iter().map(side).collect::<Result<_, _>>()?, half_bytes, is_second, ids, rows })
    }

    /// Makes a half hold so many bytes.
    pub(super) fn reserve(&mut self, members: &[CudaBackend], bytes: usize) -> Result<(), BackendError> {
        if bytes > self.half_bytes {
            // Nobody pushes into what is freed.
            members.iter().try_for_each(|member| member.driver().finish())?;
            *self = Self::new(members, bytes)?;
        }
        Ok(())
    }

    /// How many rows go in one round.
    fn rows_at_once(&self, width: usize) -> Result<usize, BackendError> {
        let rows = (self.half_bytes / size_of::<f32>() / width.max(1)).min(MOST_ROWS);
        if rows == 0 {
            return Err(BackendError::Device { reason: format!("a row of {width} is larger than the staging") });
        }
        Ok(rows)
    }

    /// The halves of a new round, by device.
    fn take(&mut self) -> Places {
        let half = usize::from(self.is_second);
        self.is_second = !self.is_second;
        self.sides.iter().map(|side| side.halves[half].at()).collect()
    }

    /// Copies rows of `from` to the same place of other devices' halves, and notes that it was done.
    fn push(
        &self,
        members: &[CudaBackend],
        source: usize,
        from: At<f32>,
        targets: &[At<f32>],
    ) -> Result<(), BackendError> {
        let driver = members[source].driver();
        for (target, to) in targets.iter().enumerate().filter(|(target, _)| *target != source) {
            // SAFETY: the half is live, and free until `target` joins the event below, by the invariant of the module.
            unsafe { driver.push(members[target].driver(), *to, from) }?;
        }
        driver.note(&self.sides[source].pushed)
    }

    /// Every device waits for what all others have pushed.
    fn join(&self, members: &[CudaBackend]) -> Result<(), BackendError> {
        for (at, member) in members.iter().enumerate() {
            for (_, side) in self.sides.iter().enumerate().filter(|(other, _)| *other != at) {
                member.driver().join(&side.pushed)?;
            }
        }
        Ok(())
    }

    /// Makes whole rows of the parts of all devices, on the first `wholes.len()` of them.
    pub(super) fn collect(
        &mut self,
        members: &[CudaBackend],
        cut: Cut,
        rows: usize,
        parts: &[At<f32>],
        wholes: &[At<f32>],
    ) -> Result<(), BackendError> {
        let at_once = self.rows_at_once(cut.width)?;
        for start in (0..rows).step_by(at_once) {
            let count = at_once.min(rows - start);
            let halves = self.take();
            let piece = |part: usize| {
                let share = cut.columns(part).len();
                parts[part].from(start * share).first(count * share)
            };
            for source in 0..members.len() {
                let columns = cut.columns(source);
                let to = |half: &At<f32>| half.from(count * columns.start).first(count * columns.len());
                let targets: Places = halves.iter().take(wholes.len()).map(to).collect();
                self.push(members, source, piece(source), &targets)?;
            }
            self.join(members)?;
            for (at, whole) in wholes.iter().enumerate() {
                let out = whole.from(start * cut.width).first(count * cut.width);
                members[at].launcher.place_parts(out, piece(at), halves[at], cut, at, count)?;
            }
        }
        Ok(())
    }

    /// Rows of a table that is cut by rows, on every device; tokens are below the table's rows.
    pub(super) fn embed(
        &mut self,
        members: &[CudaBackend],
        (table, cut): (&[Weights], Cut),
        tokens: &[u32],
        scale: f32,
        outs: &[At<f32>],
    ) -> Result<(), BackendError> {
        let width = table.first().map_or(0, |part| part.cols);
        let at_once = self.rows_at_once(width)?;
        let (mut ids, mut rows) = (core::mem::take(&mut self.ids), core::mem::take(&mut self.rows));
        for (piece, tokens) in tokens.chunks(at_once).enumerate() {
            let halves = self.take();
            rows.clear();
            rows.resize(tokens.len(), 0);
            let mut placed = 0;
            for (source, member) in members.iter().enumerate() {
                let held = cut.columns(source);
                ids.clear();
                for (token, row) in tokens.iter().zip(&mut rows).filter(|(token, _)| held.contains(&(**token as usize)))
                {
                    // Below the rows of a round and of the table.
                    *row = (placed + ids.len()) as u32;
                    ids.push(*token - held.start as u32);
                }
                let at = |half: &At<f32>| half.from(placed * width).first(ids.len() * width);
                let (own, targets) = (at(&halves[source]), halves.iter().map(at).collect::<Places>());
                if !ids.is_empty() {
                    member.launcher.embed(own, table[source], member.list(&ids)?, scale)?;
                }
                self.push(members, source, own, &targets)?;
                placed += ids.len();
            }
            self.join(members)?;
            for (at, member) in members.iter().enumerate() {
                let out = outs[at].from(piece * at_once * width).first(tokens.len() * width);
                member.launcher.gather_rows(out, halves[at], member.list(&rows)?, width)?;
            }
        }
        (self.ids, self.rows) = (ids, rows);
        Ok(())
    }
}

impl Launcher {
    /// `rows` whole rows of the parts of all devices: the own one, and the others one after another where they were pushed.
    fn place_parts(
        &self,
        out: At<f32>,
        own: At<f32>,
        others: At<f32>,
        cut: Cut,
        part: usize,
        rows: usize,
    ) -> Result<(), BackendError> {
        let name = "ictus_place_parts";
        let Cut { width, unit, parts } = cut;
        check(name, part < parts && width.is_multiple_of(unit))?;
        check(name, out.len() >= rows * width && others.len() >= rows * width)?;
        check(name, own.len() >= rows * cut.columns(part).len())?;
        let parameters = parameters![out, own, others, word(width)?, word(unit)?, word(parts)?, word(part)?];
        let blocks = width.div_ceil(parts).div_ceil(256).clamp(1, 64);
        // SAFETY: `rows` rows of all three, all there by the checks.
        unsafe { self.launch(name, [blocks, rows, 1], &parameters) }
    }
}
