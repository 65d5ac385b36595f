//! Picking tokens on the device: launches of `kernels/sample_*.cu`.
//!
//! ```text
//! rows -> survey, or shape where a row is changed first; survey_merge: sound? best, lowest id of it
//!      -> weights, weight_sum, six times reach: where a row is drawn from;  pick                      -> token, status, flags
//!      -> weights, weight_sum at temperature 1, seven times reach, logprobs: where somebody wants them -> a record of 44 words
//! ```
//! # Invariants
//! A token and a log-probability are those of [`sample::pick`](crate::sample::pick) for the same row: the kernels do its additions in its order, and the
//! logarithm is the host's (`tests/cuda_picks.rs`). What they do not do, a row answers as [`Picked::NotServed`], or as [`Picked::Shaped`] where its
//! row was changed already, and the host picks from it.

use smallvec::SmallVec;

use super::driver::At;
use super::launch::{Launcher, Parameter, check, parameters, word};
use super::requests::{Listed, serves};
use super::{Buffer, CudaBackend};
use crate::backend::{BackendError, Picked};
use crate::sample::{LogprobParts, Logprobs, Pick, SampleError, SampleRequest};

/// Entries that a block of a pass takes.
const PART: usize = 4096;
/// Words of a row that come back: the token, whether the draw is sound, flags; with log-probabilities their record too.
const PLAIN_WORDS: usize = 3;
const RECORD: usize = 44;
/// All of them.
pub(super) const ROW_WORDS: usize = PLAIN_WORDS + RECORD;
/// Entries of a record.
const TOP: usize = 20;
/// Flags of a row (kernels/survey.cuh).
const NOT_FINITE: u32 = 1;
const EMPTY: u32 = 2;

/// Passes that look for the best entries, and what each counts of a part (kernels/head.cuh).
const PASSES: usize = 7;
const DIGITS: usize = 32;

/// Words of the scratch that one row is picked in, weights included.
fn work_words(vocab: usize) -> usize {
    (3 + 2 * DIGITS) * vocab.div_ceil(PART) + 3 + PASSES + vocab
}

/// What came back of some rows: tokens, status and flags of all, then the records.
pub(super) struct Results<'w> {
    pub(super) words: &'w [u32],
    pub(super) rows: usize,
}

impl Results<'_> {
    /// What became of a row.
    pub(super) fn of(&self, row: usize, request: &SampleRequest<'_>) -> Picked {
        let at = |column: usize| self.words.get(column * self.rows + row).copied().unwrap_or(u32::MAX);
        let (token, status, flags) = (at(0), at(1), at(2));
        match (flags, status) {
            (flags, _) if flags & NOT_FINITE != 0 => Picked::Done(Err(SampleError::NotFinite)),
            (flags, _) if flags & EMPTY != 0 => Picked::Done(Err(SampleError::NothingAllowed)),
            (_, 0) => Picked::Done(Ok(Pick { token, logprobs: request.logprobs.map(|k| self.logprobs(row, k)) })),
            _ if request.shapes() => Picked::Shaped,
            _ => Picked::NotServed,
        }
    }

    fn logprobs(&self, row: usize, k: u32) -> Logprobs {
        let record = self.words.get(PLAIN_WORDS * self.rows + row * RECORD..).unwrap_or_default();
        let at = |index: usize| record.get(index).copied().unwrap_or(0);
        let [best, weight_sum, chosen] = [0, 1, 2].map(|index| f32::from_bits(at(index)));
        let count = at(3).min(k) as usize;
        let top = (0..count.min(TOP)).map(|index| (at(4 + index), f32::from_bits(at(4 + TOP + index))));
        LogprobParts { best, weight_sum, chosen }.record(top)
    }
}

impl CudaBackend {
    /// [`Backend::pick_rows`](crate::backend::Backend::pick_rows): as many rows at once as the scratch and the lists have room for.
    pub(super) fn pick(
        &self,
        logits: &Buffer,
        requests: &[Option<&SampleRequest<'_>>],
        out: &mut [Picked],
    ) -> Result<(), BackendError> {
        self.errors.attempt(|| self.pick_in_goes(logits, requests, out))
    }

    /// Rows of so many entries that the scratch has room to pick from at once.
    pub(super) fn rows_at_once(&self, scratch: At<u32>, vocab: usize) -> usize {
        if vocab == 0 { 0 } else { scratch.len() / (ROW_WORDS + work_words(vocab)) }
    }

    fn pick_in_goes(
        &self,
        logits: &Buffer,
        requests: &[Option<&SampleRequest<'_>>],
        out: &mut [Picked],
    ) -> Result<(), BackendError> {
        out.fill(Picked::NotServed);
        let vocab = logits.width;
        let is_served = |request: &&SampleRequest<'_>| serves(request, vocab);
        let scratch: At<u32> = self.scratch.borrow().at();
        let at_once = self.rows_at_once(scratch, vocab);
        if at_once == 0 || !requests.iter().flatten().any(is_served) {
            return Ok(());
        }
        let mut list = self.requests.borrow_mut();
        let mut words = self.words.borrow_mut();
        let (mut next, end) = (0, requests.len().min(out.len()).min(logits.rows));
        while next < end {
            let rows = list.take(&requests[next..end.min(next + at_once)], vocab);
            let (first, now) = (next, &requests[next..next + rows]);
            next += rows;
            if !now.iter().flatten().any(is_served) {
                continue;
            }
            let listed = list.listed(self.list(list.words())?);
            let (place, work) = (scratch.first(rows * ROW_WORDS), scratch.from(rows * ROW_WORDS));
            let came = self.launcher().pick_into(place, logits.values().from(first * vocab), &listed, vocab, work)?;
            words.clear();
            words.resize(came.len(), 0);
            self.read_back(came.cast(), bytemuck::cast_slice_mut(&mut words))?;
            let results = Results { words: &words, rows };
            for (row, (request, out)) in now.iter().zip(&mut out[first..next]).enumerate() {
                if let Some(request) = request.filter(is_served) {
                    *out = results.of(row, request);
                }
            }
        }
        Ok(())
    }
}

/// Where things lie while some rows are picked from: what comes of it in a place of its own, all else in the scratch.
struct Room {
    rows: usize,
    vocab: usize,
    /// Tokens, status and flags of all rows, then records.
    results: At<u32>,
    best: At<u32>,
    greedy: At<u32>,
    sums: At<u32>,
    /// Best, place and flags of the parts of rows.
    of_parts: [At<u32>; 3],
    counts: At<u32>,
    pivots: At<u32>,
    weights: At<u32>,
}

impl Room {
    /// None where one of them is too small.
    fn new(place: At<u32>, scratch: At<u32>, [rows, vocab]: [usize; 2], logprobs: bool) -> Option<Self> {
        let words = rows.checked_mul(if logprobs { ROW_WORDS } else { PLAIN_WORDS })?;
        let is_empty = rows == 0 || vocab == 0;
        if is_empty || place.len() < words || scratch.len() < rows.checked_mul(work_words(vocab))? {
            return None;
        }
        let parts = vocab.div_ceil(PART);
        let mut used = 0;
        let mut take = |count: usize| {
            used += count;
            scratch.from(used - count).first(count)
        };
        Some(Self {
            rows,
            vocab,
            results: place.first(words),
            best: take(rows),
            greedy: take(rows),
            sums: take(rows),
            of_parts: [(); 3].map(|()| take(rows * parts)),
            counts: take(2 * rows * parts * DIGITS),
            pivots: take(PASSES * rows),
            weights: take(rows * vocab),
        })
    }

    /// Tokens, status, flags, records.
    fn columns(&self) -> [At<u32>; 4] {
        [0, 1, 2, PLAIN_WORDS].map(|column| self.results.from(column * self.rows))
    }

    /// A block for each part of each row.
    fn parts(&self) -> [usize; 3] {
        [self.vocab.div_ceil(PART), self.rows, 1]
    }

    fn vocab(&self) -> Result<u32, BackendError> {
        word(self.vocab)
    }
}

impl Launcher {
    /// Picks from the first rows of `logits`, of `vocab` entries, as `listed` says, in `scratch`, which has room for all. What comes of it is put to the
    /// front of `place`; answers the words that it takes.
    pub(super) fn pick_into(
        &self,
        place: At<u32>,
        logits: At<f32>,
        listed: &Listed,
        vocab: usize,
        scratch: At<u32>,
    ) -> Result<At<u32>, BackendError> {
        let (name, rows) = ("ictus_pick", listed.rows);
        let room = Room::new(place, scratch, [rows, vocab], listed.logprobs);
        check(name, room.is_some() && logits.len() >= rows * vocab && listed.is_whole())?;
        let Some(room) = room else { return Ok(At::null()) };
        self.survey(&room, logits, listed)?;
        if listed.draws {
            let temperatures = listed.temperatures();
            self.weigh(&room, logits, temperatures)?;
            let Room { counts, pivots, weights, sums, .. } = room;
            self.reach(&room, "ictus_reach", 1, &parameters![counts, pivots, weights, sums, temperatures])?;
        }
        self.draw(&room, listed)?;
        if listed.logprobs {
            self.weigh(&room, logits, listed.wanted())?;
            let Room { counts, pivots, .. } = room;
            self.reach(&room, "ictus_reach_logits", 0, &parameters![counts, pivots, logits, listed.wanted()])?;
            self.logprobs(&room, logits, listed)?;
        }
        Ok(room.results)
    }

    /// Whether rows are sound, and the best of each; changes those that are to be changed first.
    fn survey(&self, room: &Room, logits: At<f32>, listed: &Listed) -> Result<(), BackendError> {
        let [part_best, part_place, part_flags] = room.of_parts;
        let ([_, _, flags, _], parts, vocab) = (room.columns(), room.parts(), room.vocab()?);
        if listed.shapes {
            let (records, lists) = (listed.records(), listed.words);
            let all = parameters![part_best, part_place, part_flags, logits, records, lists, vocab];
            // SAFETY: the rows of logits and of each part of the scratch, and a record for each, all there by the checks of `pick` and `Room`; places
            // in records are inside of the words, as who wrote them says.
            unsafe { self.launch("ictus_shape", parts, &all) }?;
        } else {
            let all = parameters![part_best, part_place, part_flags, logits, vocab];
            // SAFETY: as above.
            unsafe { self.launch("ictus_survey", parts, &all) }?;
        }
        let (best, greedy, count) = (room.best, room.greedy, word(parts[0])?);
        let all = parameters![best, greedy, flags, part_best, part_place, part_flags, logits, count, vocab];
        // SAFETY: as above.
        unsafe { self.launch("ictus_survey_merge", [room.rows, 1, 1], &all) }
    }

    /// Weights of rows at temperatures, and their sums; rows of temperature 0 are left out.
    fn weigh(&self, room: &Room, logits: At<f32>, temperatures: At<u32>) -> Result<(), BackendError> {
        let (vocab, rows) = (room.vocab()?, room.rows);
        check("ictus_weights", temperatures.len() >= rows)?;
        let all = parameters![room.weights, logits, room.best, temperatures, vocab];
        // SAFETY: the rows of all, by the checks of `pick` and `Room` and the one above.
        unsafe { self.launch("ictus_weights", room.parts(), &all) }?;
        let all = parameters![room.sums, room.weights, temperatures, vocab];
        // SAFETY: as above.
        unsafe { self.launch("ictus_weight_sum", [rows, 1, 1], &all) }
    }

    /// The passes from `first` on that look for the best entries of rows (kernels/head.cuh).
    fn reach(
        &self,
        room: &Room,
        name: &'static str,
        first: usize,
        parameters: &[Parameter],
    ) -> Result<(), BackendError> {
        for pass in first..PASSES {
            let mut all: SmallVec<[Parameter; 8]> = SmallVec::from_slice(parameters);
            all.extend(parameters![room.vocab()?, word(pass)?]);
            // SAFETY: the rows of logits or weights, counts of all parts and pivots of all passes, by the checks of `pick` and `Room`.
            unsafe { self.launch(name, room.parts(), &all) }?;
        }
        Ok(())
    }

    /// Tokens of rows: those of the draws whose passes are done, and greedy ones.
    fn draw(&self, room: &Room, listed: &Listed) -> Result<(), BackendError> {
        let [tokens, status, _, _] = room.columns();
        let &Room { weights, sums, counts, pivots, greedy, .. } = room;
        let (temperatures, top_k, cuts, positions) =
            (listed.temperatures(), listed.top_k(), listed.cuts(), listed.positions());
        let vocab = room.vocab()?;
        let all = parameters![
            tokens,
            status,
            weights,
            sums,
            counts,
            pivots,
            greedy,
            temperatures,
            top_k,
            cuts,
            positions,
            vocab
        ];
        // SAFETY: the rows of all, by the checks of `pick` and `Room`; all columns are there for each row.
        unsafe { self.launch("ictus_pick", [room.rows, 1, 1], &all) }
    }

    fn logprobs(&self, room: &Room, logits: At<f32>, listed: &Listed) -> Result<(), BackendError> {
        let [tokens, _, _, records] = room.columns();
        let &Room { sums, counts, pivots, best, .. } = room;
        let all = parameters![records, logits, counts, pivots, tokens, best, sums, listed.wanted(), room.vocab()?];
        // SAFETY: as above; a record for each row, as they were asked for.
        unsafe { self.launch("ictus_logprobs", [room.rows, 1, 1], &all) }
    }
}
