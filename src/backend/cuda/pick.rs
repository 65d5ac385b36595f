//! Picking tokens on the device: launches of `kernels/sample_*.cu`.
//!
//! ```text
//! rows -> survey, or shape where a row is changed first; survey_merge: sound? best, lowest id of it
//!      -> weights, weight_sum, pick: the draw, where a row wants one                                  -> token, status, flags
//!      -> weights, weight_sum at temperature 1, logprobs, where somebody wants them                   -> a record of 44 words
//! ```
//! # Invariants
//! A token and a log-probability are those of [`sample::pick`](crate::sample::pick) for the same row: the kernels do its additions in its order, and the
//! logarithm is the host's (`tests/cuda_picks.rs`). What they do not do, a row answers as [`Picked::NotServed`], or as [`Picked::Shaped`] where its
//! row was changed already, and the host picks from it.

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

/// Words of the scratch that one row is picked in, weights included.
fn work_words(vocab: usize) -> usize {
    3 * vocab.div_ceil(PART) + 3 + vocab
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
            let came = self.launcher.pick_into(place, logits.values().from(first * vocab), &listed, vocab, work)?;
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
        let results = place.first((PLAIN_WORDS + if listed.logprobs { RECORD } else { 0 }) * rows);
        check(name, results.len() >= PLAIN_WORDS * rows && (!listed.logprobs || results.len() >= ROW_WORDS * rows))?;
        check(
            name,
            rows > 0 && vocab > 0 && logits.len() >= rows * vocab && scratch.len() >= rows * work_words(vocab),
        )?;
        check(name, listed.is_whole())?;
        let parts = vocab.div_ceil(PART);
        let mut used = 0;
        let mut take = |count: usize| {
            used += count;
            scratch.from(used - count).first(count)
        };
        let (tokens, status, flags) = (results, results.from(rows), results.from(2 * rows));
        let [best, greedy, sums] = [(); 3].map(|()| take(rows));
        let [part_best, part_place, part_flags] = [(); 3].map(|()| take(rows * parts));
        let weights = take(rows * vocab);
        let temperatures = listed.temperatures();
        let (vocab, parts_word) = (word(vocab)?, word(parts)?);
        if listed.shapes {
            let (records, lists) = (listed.records(), listed.words);
            let all = parameters![part_best, part_place, part_flags, logits, records, lists, vocab];
            // SAFETY: `rows` rows of logits and of each part of the scratch, and a record for each, all there by the checks; places in records are
            // inside of the words, as who wrote them says.
            unsafe { self.launch("ictus_shape", [parts, rows, 1], &all) }?;
        } else {
            let all = parameters![part_best, part_place, part_flags, logits, vocab];
            // SAFETY: as above.
            unsafe { self.launch("ictus_survey", [parts, rows, 1], &all) }?;
        }
        let all = parameters![best, greedy, flags, part_best, part_place, part_flags, logits, parts_word, vocab];
        // SAFETY: as above.
        unsafe { self.launch("ictus_survey_merge", [rows, 1, 1], &all) }?;
        self.weigh([weights, sums], logits, best, temperatures, [rows, vocab as usize])?;
        let (top_k, cuts, positions) = (listed.top_k(), listed.cuts(), listed.positions());
        let all = parameters![tokens, status, weights, sums, greedy, temperatures, top_k, cuts, positions, vocab];
        // SAFETY: as above; all columns are there for each row.
        unsafe { self.launch(name, [rows, 1, 1], &all) }?;
        if listed.logprobs {
            let wanted = listed.wanted();
            self.weigh([weights, sums], logits, best, wanted, [rows, vocab as usize])?;
            let records = results.from(PLAIN_WORDS * rows);
            let all = parameters![records, logits, tokens, best, sums, wanted, vocab];
            // SAFETY: as above; a record for each row.
            unsafe { self.launch("ictus_logprobs", [rows, 1, 1], &all) }?;
        }
        Ok(results)
    }

    /// Weights of rows at temperatures, and their sums; rows of temperature 0 are left out. The caller has checked that all of it is there.
    fn weigh(
        &self,
        [weights, sums]: [At<u32>; 2],
        logits: At<f32>,
        best: At<u32>,
        temperatures: At<u32>,
        [rows, vocab]: [usize; 2],
    ) -> Result<(), BackendError> {
        let name = "ictus_weights";
        check(name, weights.len() >= rows * vocab && logits.len() >= rows * vocab && sums.len() >= rows)?;
        check(name, best.len() >= rows && temperatures.len() >= rows)?;
        let (parts, vocab) = (vocab.div_ceil(PART), word(vocab)?);
        let all = parameters![weights, logits, best, temperatures, vocab];
        // SAFETY: `rows` rows of all, by the checks.
        unsafe { self.launch(name, [parts, rows, 1], &all) }?;
        let all = parameters![sums, weights, temperatures, vocab];
        // SAFETY: as above.
        unsafe { self.launch("ictus_weight_sum", [rows, 1, 1], &all) }
    }
}
