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
//! - What a round pushes, and where, depends on sizes alone; and sections begin and end with half 0. So a step that comes again is the same program.
//!
//! # Limits
//! A half holds at least one row, and one of the embedding for each device; more go in several rounds.

use std::sync::Arc;

use smallvec::SmallVec;

use super::CudaBackend;
use super::driver::{At, Memory};
use super::launch::{Launcher, MOST_ROWS, Parameter, Weights, check, parameters, word};
use super::players::{Player, Players};
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

/// The staging of all devices.
pub(super) struct Exchange {
    players: Arc<Players>,
    /// What each device is pushed into.
    sides: Vec<[Memory; 2]>,
    half_bytes: usize,
    /// Whether the next round takes half 1.
    is_second: bool,
    /// A list of an embedding.
    words: Vec<u32>,
}

impl Exchange {
    pub(super) fn new(players: &Arc<Players>, half_bytes: usize) -> Result<Self, BackendError> {
        let half = |player: &Player| player.launcher.driver.memory(half_bytes);
        let side = |player: &Player| Ok([half(player)?, half(player)?]);
        let sides = players.all().map(side).collect::<Result<_, BackendError>>()?;
        let (is_second, words) = Default::default();
        Ok(Self { players: players.clone(), sides, half_bytes, is_second, words })
    }

    /// Makes a half hold so many bytes; not in a section.
    pub(super) fn reserve(&mut self, bytes: usize) -> Result<(), BackendError> {
        if bytes > self.half_bytes {
            // Nobody pushes into what is freed.
            self.players.finish()?;
            *self = Self::new(&self.players, bytes)?;
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

    fn count(&self) -> usize {
        self.sides.len()
    }

    /// The halves of a new round, by device.
    fn take(&mut self) -> Places {
        let half = usize::from(self.is_second);
        self.is_second = !self.is_second;
        self.sides.iter().map(|halves| halves[half].at()).collect()
    }

    /// Has the next round take half 0, by a round in which nobody pushes anything where it would take the other one: sections begin and end so, or the same
    /// step would be another program each time.
    pub(super) fn even_out(&mut self) -> Result<(), BackendError> {
        if self.is_second { self.meet() } else { Ok(()) }
    }

    /// A round in which nobody pushes anything.
    pub(super) fn meet(&mut self) -> Result<(), BackendError> {
        self.is_second = !self.is_second;
        (0..self.count()).try_for_each(|member| self.players.note(member))?;
        self.join()
    }

    /// Copies rows of `from` to the same place of other devices' halves, and notes that it was done.
    fn push(&self, source: usize, from: At<f32>, targets: &[At<f32>]) -> Result<(), BackendError> {
        for (target, to) in targets.iter().enumerate().filter(|(target, _)| *target != source) {
            // SAFETY: the half is live, and free until `target` joins the event below, by the invariant of the module.
            unsafe { self.players.push(source, target, to.cast(), from.cast()) }?;
        }
        self.players.note(source)
    }

    /// Every device waits for what all others have pushed.
    fn join(&self) -> Result<(), BackendError> {
        let pairs = (0..self.count()).flat_map(|member| (0..self.count()).map(move |other| (member, other)));
        pairs.filter(|(member, other)| member != other).try_for_each(|(member, other)| self.players.join(member, other))
    }

    /// Makes whole rows of the parts of all devices, on the first `wholes.len()` of them.
    pub(super) fn collect(
        &mut self,
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
            for source in 0..self.count() {
                let columns = cut.columns(source);
                let to = |half: &At<f32>| half.from(count * columns.start).first(count * columns.len());
                let targets: Places = halves.iter().take(wholes.len()).map(to).collect();
                self.push(source, piece(source), &targets)?;
            }
            self.join()?;
            for (at, whole) in wholes.iter().enumerate() {
                let out = whole.from(start * cut.width).first(count * cut.width);
                self.players.player(at).launcher.place_parts(out, piece(at), halves[at], cut, at, count)?;
            }
        }
        Ok(())
    }

    /// Rows of a table that is cut by rows, on every device; tokens are below the table's rows.
    ///
    /// Each device embeds a row for every token, some row of its own where it does not have the token's, and pushes all of them; everybody takes the row of
    /// each token from who has it. So only lists say which tokens there are, and a step that comes again is the same program.
    pub(super) fn embed(
        &mut self,
        members: &[CudaBackend],
        (table, cut): (&[Weights], Cut),
        tokens: Tokens<'_>,
        scale: f32,
        outs: &[At<f32>],
    ) -> Result<(), BackendError> {
        let width = table.first().map_or(0, |part| part.cols);
        let at_once = self.rows_at_once(width.saturating_mul(self.count()))?;
        for start in (0..tokens.count()).step_by(at_once) {
            let tokens = tokens.piece(start, at_once);
            let (halves, count) = (self.take(), tokens.count());
            for (source, member) in members.iter().enumerate() {
                let at = |half: &At<f32>| half.from(source * count * width).first(count * width);
                let (own, targets) = (at(&halves[source]), halves.iter().map(at).collect::<Places>());
                let ids = tokens.ids_of(member, source, cut, &mut self.words)?;
                member.launcher().embed(own, table[source], ids, scale)?;
                self.push(source, own, &targets)?;
            }
            self.join()?;
            for (at, member) in members.iter().enumerate() {
                let out = outs[at].from(start * width).first(count * width);
                let rows = tokens.rows_of(member, cut, &mut self.words)?;
                member.launcher().gather_rows(out, halves[at], rows, width)?;
            }
        }
        Ok(())
    }

    /// Words of the first device, at the same place of the others.
    ///
    /// # Errors
    /// `Device`.
    pub(super) fn tell(&self, places: &[At<u32>]) -> Result<(), BackendError> {
        let Some((from, others)) = places.split_first() else { return Ok(()) };
        for (other, to) in others.iter().enumerate() {
            // SAFETY: the place is live, and was last read before a round that the first device has joined, as an embedding has one; `other` joins the event
            // below before it reads the place again.
            unsafe { self.players.push(0, other + 1, to.cast(), from.cast()) }?;
        }
        self.players.note(0)?;
        (1..self.count()).try_for_each(|other| self.players.join(other, 0))
    }
}

/// The tokens of an embedding.
#[derive(Clone, Copy)]
pub(super) enum Tokens<'t> {
    /// The host knows them.
    Known(&'t [u32]),
    /// So many, from one on, which every device has in the place of what it is fed.
    Fed { first: usize, count: usize },
}

impl Tokens<'_> {
    fn count(&self) -> usize {
        match *self {
            Self::Known(tokens) => tokens.len(),
            Self::Fed { count, .. } => count,
        }
    }

    /// At most `most` of them, from one on.
    fn piece(&self, start: usize, most: usize) -> Self {
        match *self {
            Self::Known(tokens) => Self::Known(tokens.chunks(most).nth(start / most).unwrap_or_default()),
            Self::Fed { first, count } => Self::Fed { first: first + start, count: most.min(count - start) },
        }
    }

    /// Which row of its part of a table device `source` embeds for each token.
    fn ids_of(
        &self,
        member: &CudaBackend,
        source: usize,
        cut: Cut,
        words: &mut Vec<u32>,
    ) -> Result<At<u32>, BackendError> {
        match *self {
            Self::Known(tokens) => {
                let held = cut.columns(source);
                let id = |&token: &u32| if held.contains(&(token as usize)) { token - held.start as u32 } else { 0 };
                words.clear();
                words.extend(tokens.iter().map(id));
                member.list(words)
            }
            Self::Fed { first, count } => {
                let [tokens, ids, rows] = member.begun.borrow().fed().map(|list| list.from(first).first(count));
                member.launcher().own_tokens([ids, rows], tokens, cut, source)?;
                Ok(ids)
            }
        }
    }

    /// Where each token's row lies among those of all devices; once a device has its ids.
    fn rows_of(&self, member: &CudaBackend, cut: Cut, words: &mut Vec<u32>) -> Result<At<u32>, BackendError> {
        match *self {
            Self::Known(tokens) => {
                let owner = |token: u32| (0..cut.parts).rfind(|&part| cut.columns(part).start <= token as usize);
                words.clear();
                // Below the rows of a round.
                let row = |(at, &token): (usize, &u32)| (owner(token).unwrap_or(0) * tokens.len() + at) as u32;
                words.extend(tokens.iter().enumerate().map(row));
                member.list(words)
            }
            Self::Fed { first, count } => {
                let [_, _, rows] = member.begun.borrow().fed().map(|list| list.from(first).first(count));
                Ok(rows)
            }
        }
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

    /// Which of `tokens`, below the rows of a table that is cut so, part `own` has, and where all of their rows lie (kernels/columns.cu).
    fn own_tokens(&self, [ids, rows]: [At<u32>; 2], tokens: At<u32>, cut: Cut, own: usize) -> Result<(), BackendError> {
        let name = "ictus_own_tokens";
        let Cut { width, unit, parts } = cut;
        let count = tokens.len();
        check(name, own < parts && width.is_multiple_of(unit) && ids.len() >= count && rows.len() >= count)?;
        let sizes = parameters![word(count)?, word(width)?, word(unit)?, word(parts)?, word(own)?];
        let parameters: SmallVec<[Parameter; 8]> = parameters![ids, rows, tokens].into_iter().chain(sizes).collect();
        // SAFETY: `count` words of all three, all there by the check.
        unsafe { self.launch(name, [count.div_ceil(256).clamp(1, 64), 1, 1], &parameters) }
    }
}
