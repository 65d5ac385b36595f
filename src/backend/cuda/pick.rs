//! Picking tokens on the device: launches of `kernels/sample_survey.cu`, `sample_weights.cu` and `sample_pick.cu`.
//!
//! ```text
//! rows -> survey, survey_merge: finite? best, lowest id of it -> weights, weight_sum, pick: the draw, where a row wants one -> tokens, status
//! ```
//! # Invariants
//! A token is the one that [`crate::sample`] picks from the same row: the kernels do its additions in its order (`tests/cuda/sampling.rs`). What they do
//! not, a row answers as [`Picked::NotServed`], and the host picks from it.

use super::driver::At;
use super::launch::{Launcher, Parameter, check, parameters, word};
use crate::backend::{BackendError, Picked, PlainPick};

/// Entries that a block of a pass takes.
const PART: usize = 4096;
/// Temperatures that the device draws at; for others the host does.
const TEMPERATURES: core::ops::RangeInclusive<f32> = 1e-2..=1e2;

/// Words of the scratch for one row, weights included.
fn row_words(vocab: usize) -> usize {
    3 * vocab.div_ceil(PART) + 6 + vocab
}

/// How many rows a scratch of so many words takes at once.
pub(super) fn rows_at_once(words: usize, vocab: usize) -> usize {
    words / row_words(vocab).max(1)
}

/// Whether the device draws at this temperature, or takes the greedy token.
pub(super) fn serves(pick: &PlainPick) -> bool {
    pick.temperature <= 0.0 || TEMPERATURES.contains(&pick.temperature)
}

/// How rows are picked from, as words: temperatures, top_k, min_p and top_p, positions.
pub(super) fn words_of(picks: &[Option<PlainPick>], out: &mut Vec<u32>) {
    let all = || picks.iter().map(|pick| pick.filter(serves));
    out.clear();
    // Rows that nobody serves here are looked at like greedy ones; nobody takes what comes of it.
    out.extend(all().map(|pick| pick.map_or(0, |pick| pick.temperature.to_bits())));
    out.extend(all().map(|pick| pick.map_or(0, |pick| pick.top_k)));
    out.extend(all().flat_map(|pick| pick.map_or([0, 0], |pick| [pick.min_p.to_bits(), pick.top_p.to_bits()])));
    // At a multiple of 8 bytes, as there are four words of each row before.
    for position in all().map(|pick| pick.map_or(0, |pick| pick.position)) {
        out.extend([position as u32, (position >> 32) as u32]);
    }
}

/// Where results of rows lie: tokens, whether they are sound, whether the row was finite.
pub(super) struct Results {
    /// `[3][rows]`: tokens, status, flags.
    pub(super) words: At<u32>,
    pub(super) rows: usize,
}

impl Results {
    /// What became of a row.
    pub(super) fn of(&self, words: &[u32], row: usize) -> Picked {
        let at = |column: usize| words.get(column * self.rows + row).copied().unwrap_or(u32::MAX);
        match (at(0), at(1), at(2)) {
            (_, _, 1..) => Picked::NotFinite,
            (token, 0, 0) => Picked::Token(token),
            _ => Picked::NotServed,
        }
    }
}

impl Launcher {
    /// Picks from rows of `vocab` logits as `words` says ([`words_of`]), with a draw for some of them; `scratch` has room for all.
    pub(super) fn pick(
        &self,
        logits: At<f32>,
        words: At<u32>,
        [rows, vocab]: [usize; 2],
        scratch: At<u32>,
    ) -> Result<Results, BackendError> {
        let name = "ictus_pick";
        check(name, rows > 0 && vocab > 0 && logits.len() >= rows * vocab && scratch.len() >= rows * row_words(vocab))?;
        check(name, words.len() >= 6 * rows)?;
        let parts = vocab.div_ceil(PART);
        let mut used = 0;
        let mut take = |count: usize| {
            used += count;
            scratch.from(used - count).first(count)
        };
        let results = take(3 * rows);
        let (tokens, status, flags) = (results, results.from(rows), results.from(2 * rows));
        let [row_best, greedy, sums] = [(); 3].map(|()| take(rows));
        let [part_best, part_place, part_flags] = [(); 3].map(|()| take(rows * parts));
        let weights = take(rows * vocab);
        let (temperatures, top_k, cuts) = (words, words.from(rows), words.from(2 * rows));
        let positions = words.from(4 * rows);
        let vocab = word(vocab)?;
        let grid = [parts, rows, 1];
        let all = parameters![part_best, part_place, part_flags, logits, vocab];
        // SAFETY: `rows` rows of logits, and as many of each part of the scratch, all there by the check.
        unsafe { self.launch("ictus_survey", grid, &all) }?;
        let all = parameters![row_best, greedy, flags, part_best, part_place, part_flags, logits, word(parts)?, vocab];
        // SAFETY: as above.
        unsafe { self.launch("ictus_survey_merge", [rows, 1, 1], &all) }?;
        let all = parameters![weights, logits, row_best, temperatures, vocab];
        // SAFETY: as above; `words` has a temperature for each row, by the check.
        unsafe { self.launch("ictus_weights", grid, &all) }?;
        let all = parameters![sums, weights, temperatures, vocab];
        // SAFETY: as above.
        unsafe { self.launch("ictus_weight_sum", [rows, 1, 1], &all) }?;
        let all = parameters![tokens, status, weights, sums, greedy, temperatures, top_k, cuts, positions, vocab];
        // SAFETY: as above; `words` has all of it for each row, by the checks.
        unsafe { self.launch(name, [rows, 1, 1], &all) }?;
        Ok(Results { words: results, rows })
    }
}
