//! Picks that were begun: launched, and on their way to the host while the device goes on.
//!
//! ```text
//! step k      embed .. head   pick ----> device: tokens, status, flags, records     copy to pinned half 0, an event behind it
//! step k+1    gather the tokens, embed .. head   pick ----> the same place          copy to pinned half 1, an event behind it
//! host                                                      waits for the event of k, reads half 0
//! ```
//! # Invariants
//! - What came of the picks of a step lies on the device until those of the next step are made, which are last in it: its embedding reads them, and its copy
//!   to the host is in front of that in the stream.
//! - A pinned half is read only behind its event, and written by a copy only when no step under way has it: at most two are (P-2).
//! - Where tokens lie depends on the numbers of rows alone, so a step that comes again finds them at the same places.
//!
//! # Limits
//! As many rows as a walk has ([`BegunPicks::reserve`]).

use smallvec::SmallVec;

use super::driver::{At, Driver, Event, Memory, Pinned};
use super::pick::{ROW_WORDS, Results};
use super::requests::serves;
use super::{Buffer, CudaBackend, inside};
use crate::backend::{BackendError, Picked};
use crate::sample::SampleRequest;

/// Words of a row that is fed what a device has picked.
const FED_LISTS: usize = 3;

/// Rows that were picked from together.
#[derive(Clone, Copy, Debug)]
struct Go {
    /// Its first row in the step, and how many it has.
    first: usize,
    rows: usize,
    /// Its words: where they begin, and how many there are. Tokens are in front.
    at: usize,
    words: usize,
}

/// A step whose picks were begun.
struct Half {
    pinned: Pinned,
    /// Behind the copy.
    sent: Event,
    goes: SmallVec<[Go; 4]>,
    /// Entries of its rows of logits: tokens are below it.
    vocab: usize,
}

impl Half {
    fn rows(&self) -> usize {
        self.goes.last().map_or(0, |go| go.first + go.rows)
    }

    fn words(&self) -> usize {
        self.goes.last().map_or(0, |go| go.at + go.words)
    }
}

/// The picks of the steps that are under way.
pub(super) struct BegunPicks {
    /// Words of picks for `rows` rows, behind them the tokens that a step is fed, and where a device of several finds their rows.
    device: Memory,
    rows: usize,
    halves: [Half; 2],
    /// The half of the step that was begun first, and how many were sent.
    oldest: usize,
    sent: usize,
}

impl BegunPicks {
    pub(super) fn new(driver: &Driver, rows: usize) -> Result<Self, BackendError> {
        let bytes = Self::device_bytes(rows);
        let half =
            || Ok(Half { pinned: driver.pinned(bytes)?, sent: driver.event()?, goes: SmallVec::new(), vocab: 0 });
        Ok(Self { device: driver.memory(bytes)?, rows, halves: [half()?, half()?], oldest: 0, sent: 0 })
    }

    /// Bytes of the device for so many rows.
    pub(super) fn device_bytes(rows: usize) -> usize {
        rows.saturating_mul((ROW_WORDS + FED_LISTS) * size_of::<u32>())
    }

    /// Makes room for steps of so many rows; no step is under way.
    pub(super) fn reserve(&mut self, driver: &Driver, rows: usize) -> Result<(), BackendError> {
        if rows > self.rows {
            *self = Self::new(driver, rows)?;
        }
        Ok(())
    }

    /// The half of the step that is being begun.
    fn next(&mut self) -> &mut Half {
        &mut self.halves[(self.oldest + self.sent) % 2]
    }

    /// The half of the step that was begun last.
    fn newest(&self) -> Option<&Half> {
        (self.sent > 0).then(|| &self.halves[(self.oldest + self.sent - 1) % 2])
    }

    /// Words behind what the step being begun has so far.
    fn place(&mut self) -> At<u32> {
        let used = self.next().words();
        self.picks().from(used)
    }

    fn picks(&self) -> At<u32> {
        self.device.at().first(self.rows * ROW_WORDS)
    }

    /// Where the tokens of a step lie that are fed to it, then two lists of as many words, for a group.
    pub(super) fn fed(&self) -> [At<u32>; FED_LISTS] {
        [0, 1, 2].map(|list| self.device.at::<u32>().from(self.rows * (ROW_WORDS + list)).first(self.rows))
    }
}

impl CudaBackend {
    /// Whether the device picks all of these rows by itself, as far as that can be known, and there is room for what comes of it.
    pub(super) fn begins_picks(&self, vocab: usize, requests: &[&SampleRequest<'_>]) -> bool {
        let scratch: At<u32> = self.scratch.borrow().at();
        let begun = self.begun.borrow();
        begun.sent < 2
            && self.rows_at_once(scratch, vocab) > 0
            && requests.len() <= begun.rows
            && requests.iter().all(|request| serves(request, vocab))
    }

    /// Launches the picks of the next rows of a step.
    pub(super) fn launch_picks(&self, logits: &Buffer, requests: &[&SampleRequest<'_>]) -> Result<(), BackendError> {
        let vocab = logits.width;
        let scratch: At<u32> = self.scratch.borrow().at();
        let at_once = self.rows_at_once(scratch, vocab);
        inside(at_once > 0 && requests.len() <= logits.rows, "picks that were not asked for")?;
        let requests: SmallVec<[Option<&SampleRequest<'_>>; 64]> =
            requests.iter().map(|request| Some(*request)).collect();
        let mut list = self.requests.borrow_mut();
        let mut begun = self.begun.borrow_mut();
        let mut next = 0;
        while next < requests.len() {
            let rows = list.take(&requests[next..requests.len().min(next + at_once)], vocab);
            let listed = list.listed(self.list(list.words())?);
            let place = begun.place();
            let came = self.launcher().pick_into(place, logits.values().from(next * vocab), &listed, vocab, scratch)?;
            let half = begun.next();
            half.vocab = vocab;
            let go = Go { first: half.rows(), rows, at: half.words(), words: came.len() };
            half.goes.push(go);
            next += rows;
        }
        Ok(())
    }

    /// Sends what comes of the picks of a step to the host, and does not wait.
    pub(super) fn send_begun(&self) -> Result<(), BackendError> {
        self.settle()?;
        let mut begun = self.begun.borrow_mut();
        inside(begun.sent < 2, "a third step under way")?;
        let from = begun.picks().cast();
        let half = begun.next();
        let bytes = half.words() * size_of::<u32>();
        // SAFETY: nobody reads this half: the step that had it before has ended, as at most one other is under way, and `end_begun` waits.
        unsafe { self.driver().send(&mut half.pinned, from, bytes) }?;
        self.driver().note(&half.sent)?;
        begun.sent += 1;
        Ok(())
    }

    /// Waits for the step that was begun first; what became of its rows. Whatever is not asked for is `NotServed`.
    pub(super) fn end_begun(
        &self,
        requests: &[Option<&SampleRequest<'_>>],
        out: &mut [Picked],
    ) -> Result<(), BackendError> {
        out.fill(Picked::NotServed);
        let mut begun = self.begun.borrow_mut();
        inside(begun.sent > 0, "a step that was not begun")?;
        let oldest = begun.oldest;
        begun.oldest = (oldest + 1) % 2;
        begun.sent -= 1;
        let half = &mut begun.halves[oldest];
        let bytes = half.words() * size_of::<u32>();
        let goes = core::mem::take(&mut half.goes);
        self.driver().wait_for(&half.sent)?;
        // SAFETY: the one copy to these bytes is in front of the event that was waited for.
        let words: &[u32] = bytemuck::cast_slice(unsafe { half.pinned.part(0, bytes) });
        for go in goes {
            let results = Results { words: words.get(go.at..).unwrap_or_default(), rows: go.rows };
            for row in 0..go.rows {
                if let (Some(Some(request)), Some(out)) = (requests.get(go.first + row), out.get_mut(go.first + row)) {
                    *out = results.of(row, request);
                }
            }
        }
        Ok(())
    }

    /// Where the tokens lie that the step begun last picks for these of its rows: one word each.
    pub(super) fn begun_tokens(&self, rows: &[usize], vocab: usize) -> Result<At<u32>, BackendError> {
        let begun = self.begun.borrow();
        let half = begun.newest().filter(|half| half.vocab <= vocab);
        let half = half.ok_or_else(|| BackendError::Device { reason: "tokens that nobody picks".to_owned() })?;
        let place = |&row: &usize| {
            let go = half.goes.iter().find(|go| (go.first..go.first + go.rows).contains(&row))?;
            Some((go.at + row - go.first) as u32)
        };
        let places: Option<SmallVec<[u32; 64]>> = rows.iter().map(place).collect();
        inside(places.is_some(), "tokens of rows that are not there")?;
        let list = self.list(&places.unwrap_or_default())?;
        let [fed, _, _] = begun.fed();
        let fed = fed.first(rows.len());
        inside(fed.len() == rows.len(), "more rows than there is room for")?;
        self.launcher().gather_rows(fed.cast(), begun.picks().cast(), list, 1)?;
        Ok(fed)
    }
}
