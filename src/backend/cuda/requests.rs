#![forbid(unsafe_code)]
//! Requests for tokens as words on the device: how rows are drawn from, and their masks, biases and penalties.
//!
//! ```text
//! columns of `rows` rows     temperature | top_k | min_p, top_p | position | whether log-probabilities are wanted | record
//! lists, anywhere behind     masks | biases: id, addend | penalties: id, count          records say where (kernels/sample_shape.cu)
//! ```
//! # Invariants
//! - A column lies where the number of rows alone says, and lists are told by offsets in records, so launches for as many rows have the same
//!   parameters.
//! - The biases of a row ascend by id, and those of one id are in the request's order: they are added in that order.
//!
//! # Limits
//! [`LIST_BYTES`] for the rows of one go; a row that needs more by itself is not served.

use super::driver::At;
use super::staging::HALF_BYTES;
use crate::sample::{PENALTY_WINDOW, SampleRequest};

/// Bytes of the words of one go: no more than a list may have that goes to the device.
const LIST_BYTES: usize = HALF_BYTES;
/// Words of a record (kernels/sample_shape.cu).
const RECORD: usize = 10;
/// Words of a row in front of the lists.
const COLUMNS: usize = 7 + RECORD;
/// No place.
const NOWHERE: u32 = u32::MAX;
/// Temperatures that the device draws at; for others the host does.
const TEMPERATURES: core::ops::RangeInclusive<f32> = 1e-2..=1e2;

/// Words that the lists of a request take, at most.
fn list_words(request: &SampleRequest<'_>, vocab: usize) -> usize {
    let mask = request.mask.map_or(0, |mask| mask.len().min(vocab.div_ceil(32)));
    let penalties = request.penalty.map_or(0, |penalty| penalty.window.len().min(PENALTY_WINDOW));
    mask + 2 * (request.bias.len() + penalties)
}

/// Whether the device picks as this request says.
pub(super) fn serves(request: &SampleRequest<'_>, vocab: usize) -> bool {
    let draws = request.temperature <= 0.0 || TEMPERATURES.contains(&request.temperature);
    draws && COLUMNS + list_words(request, vocab) <= LIST_BYTES / size_of::<u32>()
}

/// Requests of some rows as words.
#[derive(Default)]
pub(super) struct Requests {
    words: Vec<u32>,
    rows: usize,
    /// A row is masked, biased or penalised.
    pub(super) shapes: bool,
    /// Log-probabilities are wanted of a row.
    pub(super) logprobs: bool,
    /// A row is drawn from.
    pub(super) draws: bool,
    biases: Vec<(u32, f32)>,
}

impl Requests {
    /// Takes up the requests of the next rows, as many as fit, at least one; what the device does not serve becomes a greedy one.
    pub(super) fn take(&mut self, requests: &[Option<&SampleRequest<'_>>], vocab: usize) -> usize {
        let all = || requests.iter().map(|request| request.filter(|request| serves(request, vocab)));
        let mut used = 0;
        let fits = |request: Option<&SampleRequest<'_>>| {
            used += COLUMNS + request.map_or(0, |request| list_words(request, vocab));
            used <= LIST_BYTES / size_of::<u32>()
        };
        self.rows = all().map(fits).take_while(|&fits| fits).count();
        let rows = || all().take(self.rows);
        self.words.clear();
        self.words.extend(rows().map(|row| row.map_or(0, |row| row.temperature.to_bits())));
        self.words.extend(rows().map(|row| row.map_or(0, |row| row.top_k)));
        self.words.extend(rows().flat_map(|row| row.map_or([0, 0], |row| [row.min_p.to_bits(), row.top_p.to_bits()])));
        // At a multiple of 8 bytes, as there are four words of each row before.
        for position in rows().map(|row| row.map_or(0, |row| row.position)) {
            self.words.extend([position as u32, (position >> 32) as u32]);
        }
        let is_wanted = |row: Option<&SampleRequest<'_>>| row.is_some_and(|row| row.logprobs.is_some());
        self.words.extend(rows().map(|row| if is_wanted(row) { 1.0_f32.to_bits() } else { 0 }));
        self.logprobs = rows().any(is_wanted);
        self.shapes = rows().flatten().any(SampleRequest::shapes);
        self.draws = rows().flatten().any(|row| row.temperature > 0.0);
        let records = self.words.len();
        self.words.resize(records + RECORD * self.rows, 0);
        for (row, request) in all().take(self.rows).enumerate() {
            let record = self.lists_of(request, vocab);
            let at = records + RECORD * row;
            if let Some(place) = self.words.get_mut(at..at + RECORD) {
                place.copy_from_slice(&record);
            }
        }
        self.rows
    }

    /// Puts the lists of a request behind what is there; answers its record.
    fn lists_of(&mut self, request: Option<&SampleRequest<'_>>, vocab: usize) -> [u32; RECORD] {
        let mut record = [0; RECORD];
        record[0] = NOWHERE;
        let Some(request) = request.filter(|request| request.shapes()) else { return record };
        record[9] = 1;
        if let Some(mask) = request.mask {
            let mask = &mask[..mask.len().min(vocab.div_ceil(32))];
            [record[0], record[1]] = [self.words.len() as u32, mask.len() as u32];
            self.words.extend_from_slice(mask);
        }
        self.biases.clear();
        self.biases.extend(request.bias.iter().filter(|(id, _)| (*id as usize) < vocab));
        if !self.biases.is_sorted_by_key(|&(id, _)| id) {
            self.biases.sort_by_key(|&(id, _)| id);
        }
        [record[2], record[3]] = [self.words.len() as u32, self.biases.len() as u32];
        self.words.extend(self.biases.iter().flat_map(|&(id, addend)| [id, addend.to_bits()]));
        record[4] = self.words.len() as u32;
        if let Some(penalty) = &request.penalty {
            penalty.each(|id, count| {
                self.words.extend([id, count]);
                record[5] += 1;
            });
            record[6..9].copy_from_slice(&[penalty.repeat, penalty.presence, penalty.frequency].map(f32::to_bits));
        }
        record
    }

    /// The words, for the device.
    pub(super) fn words(&self) -> &[u32] {
        &self.words
    }

    /// Where things lie, once the words have been brought to `at`.
    pub(super) fn listed(&self, at: At<u32>) -> Listed {
        let &Self { rows, shapes, logprobs, draws, .. } = self;
        Listed { words: at.first(self.words.len()), rows, shapes, logprobs, draws }
    }
}

/// Requests on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listed {
    /// All of it; lists are counted from here on.
    pub(super) words: At<u32>,
    pub(super) rows: usize,
    pub(super) shapes: bool,
    pub(super) logprobs: bool,
    pub(super) draws: bool,
}

impl Listed {
    /// `[rows]`, above 0 for a draw.
    pub(super) fn temperatures(&self) -> At<u32> {
        self.words
    }

    pub(super) fn top_k(&self) -> At<u32> {
        self.words.from(self.rows)
    }

    /// `[rows, 2]`: min_p, top_p.
    pub(super) fn cuts(&self) -> At<u32> {
        self.words.from(2 * self.rows)
    }

    /// `[rows]`, of 64 bits.
    pub(super) fn positions(&self) -> At<u32> {
        self.words.from(4 * self.rows)
    }

    /// `[rows]`: 1.0 where log-probabilities are wanted.
    pub(super) fn wanted(&self) -> At<u32> {
        self.words.from(6 * self.rows)
    }

    /// `[rows, 10]`
    pub(super) fn records(&self) -> At<u32> {
        self.words.from(7 * self.rows)
    }

    /// Whether the columns are all there.
    pub(super) fn is_whole(&self) -> bool {
        self.words.len() >= COLUMNS * self.rows
    }
}
