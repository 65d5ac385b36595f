#![forbid(unsafe_code)]
//! A deterministic stand-in for a model (R-30 .. R-39).
//!
//! A sequence is its token list; the next token and the row of logits are hashes of the list. So a test predicts every token
//! with [`FakeRuntime::token_for`], and anything that disturbs a lane's tokens is seen at once. Tests also plant failures,
//! script tokens and rows, and read back what was fed.
//!
//! ```
//! use ictus::runtime::{FakeRuntime, Runtime};
//!
//! let fake = FakeRuntime::with(|options| options.descriptor.vocab_size = 64);
//! assert_eq!(fake.describe().runtime_id, "fake");
//! assert!(fake.token_for(&[5, 6, 7]) < 63);
//! ```
//!
//! The primitives of the contract that fed and picked in three ways are one [`Runtime::step`] here, whose feeds say what they
//! want: a row, every row, or a token. Which tokens it picks itself is the descriptor's `sampling` (greedy ones by default, R-37);
//! every other want is `Unsupported`, before anything moves.
//!
//! # Invariants
//! - A step that answers an error moved nothing.
//! - `cells_used` is the number of distinct cells that sequences hold.
//!
//! # Limits
//! Beyond the contract it is strict, because an executor under test should never do these: a feed without tokens, a sequence
//! fed twice in a step, a token outside the vocabulary or a sequence longer than the context answer `Fatal`.

mod cells;
mod options;
mod sequence;

pub use options::{CopyModel, FakeOptions};

use std::collections::{BTreeMap, VecDeque};

use self::cells::Cells;
use self::sequence::{Sequence, hash};
use super::{
    Answers, Descriptor, Feed, Input, MemCounters, ROWS_MAX, Runtime, RuntimeError, SeqHandle, Vocabulary, Want,
};
use crate::record::constant::encoding;
use crate::sample::{Pick, SampleRequest, Scratch, pick};

/// What a scripted or planted row replaces.
#[derive(Clone, Debug)]
enum Planned {
    Token(u32),
    Row(Vec<f32>),
}

/// One recorded feed (R-38).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedFeed {
    /// The step it belonged to, counted from 0.
    pub step: u64,
    /// The sequence.
    pub sequence: SeqHandle,
    /// Tokens fed.
    pub len: usize,
    /// Whether a row was wanted, to be answered or to pick from.
    pub wants_row: bool,
}

/// The deterministic runtime.
#[derive(Debug)]
pub struct FakeRuntime {
    options: FakeOptions,
    sequences: BTreeMap<SeqHandle, Sequence>,
    next_handle: SeqHandle,
    cells: Cells,
    scripts: BTreeMap<SeqHandle, VecDeque<Planned>>,
    next_failure: Option<RuntimeError>,
    poisoned_import: bool,
    steps: u64,
    feeds: Vec<RecordedFeed>,
    idle_cells: Vec<u64>,
    sync: Option<bool>,
    row: Vec<f32>,
    scratch: Scratch,
}

impl Default for FakeRuntime {
    fn default() -> Self {
        Self::new(FakeOptions::default())
    }
}

impl FakeRuntime {
    /// A runtime with these options; `recurrent` follows `truncate_partial`.
    pub fn new(mut options: FakeOptions) -> Self {
        options.descriptor.recurrent = !options.descriptor.truncate_partial;
        Self {
            options,
            sequences: BTreeMap::new(),
            next_handle: 1,
            cells: Cells::default(),
            scripts: BTreeMap::new(),
            next_failure: None,
            poisoned_import: false,
            steps: 0,
            feeds: Vec::new(),
            idle_cells: Vec::new(),
            sync: None,
            row: Vec::new(),
            scratch: Scratch::new(),
        }
    }

    /// The defaults of the contract, changed by `change`.
    pub fn with(change: impl FnOnce(&mut FakeOptions)) -> Self {
        let mut options = FakeOptions::default();
        change(&mut options);
        Self::new(options)
    }

    /// The token that follows a list (R-31, R-32).
    pub fn token_for(&self, tokens: &[u32]) -> u32 {
        self.token_after(tokens, hash(1, tokens))
    }

    /// The row after a list (R-31): its token has the only logit above 0.5.
    pub fn row_for(&self, tokens: &[u32]) -> Vec<f32> {
        let mut row = vec![0.0; self.options.descriptor.vocab_size as usize];
        fill_row(&mut row, hash(2, tokens), self.token_for(tokens));
        row
    }

    /// The tokens a sequence holds, or none for an unknown one (R-39).
    pub fn contents(&self, sequence: SeqHandle) -> Option<&[u32]> {
        self.sequences.get(&sequence).map(Sequence::tokens)
    }

    /// The next rows that `sequence` is asked for point at these tokens, one each (R-33).
    pub fn script(&mut self, sequence: SeqHandle, tokens: &[u32]) {
        let planned = tokens.iter().map(|&token| Planned::Token(token));
        self.scripts.entry(sequence).or_default().extend(planned);
    }

    /// The next row that `sequence` is asked for is this one; shorter than the vocabulary it is filled up with zeros.
    pub fn plant_row(&mut self, sequence: SeqHandle, row: &[f32]) {
        self.scripts.entry(sequence).or_default().push_back(Planned::Row(row.to_vec()));
    }

    /// The next step answers this error and moves nothing (R-39).
    pub fn fail_next_step(&mut self, error: RuntimeError) {
        self.next_failure = Some(error);
    }

    /// The next import fills its sequence and then answers `Fatal` (R-36).
    pub fn poison_next_import(&mut self) {
        self.poisoned_import = true;
    }

    /// How long every further step takes at least.
    pub fn set_step_delay(&mut self, delay: core::time::Duration) {
        self.options.step_delay = delay;
    }

    /// Steps answered so far, failed ones not counted.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Every feed so far (R-38); none are kept when `record` is off.
    pub fn feeds(&self) -> &[RecordedFeed] {
        &self.feeds
    }

    /// Per step so far, the cells held by sequences it did not feed (R-38).
    pub fn idle_cells(&self) -> &[u64] {
        &self.idle_cells
    }

    /// What [`Runtime::sync_steps`] was last told; none before the first time.
    pub fn last_sync(&self) -> Option<bool> {
        self.sync
    }

    /// Sequences that exist.
    pub fn live_sequences(&self) -> usize {
        self.sequences.len()
    }

    fn token_after(&self, tokens: &[u32], hash_next: u64) -> u32 {
        let copied = self.options.copy_model.as_ref().and_then(|model| model.predict(tokens));
        let choices = u64::from(self.options.descriptor.vocab_size).saturating_sub(1).max(1);
        copied.unwrap_or((hash_next % choices) as u32)
    }

    /// Finds what is wrong with a step before anything moves (R-35).
    fn check(&self, feeds: &[Feed<'_>]) -> Result<(), RuntimeError> {
        let mut growth = 0u64;
        for (index, feed) in feeds.iter().enumerate() {
            let Input::Tokens(tokens) = feed.input else { return Err(RuntimeError::Unsupported) };
            let sequence = self.sequences.get(&feed.sequence).ok_or(RuntimeError::UnknownSeq)?;
            let served = match feed.want {
                Want::Nothing | Want::LastRow => true,
                Want::EveryRow => self.options.descriptor.verify_rows && tokens.len() <= ROWS_MAX,
                Want::Token(request) => self.options.descriptor.sampling.serves(&request),
            };
            if !served {
                return Err(RuntimeError::Unsupported);
            }
            let descriptor = &self.options.descriptor;
            let foreign = tokens.iter().any(|&token| token >= descriptor.vocab_size);
            let too_long = (sequence.tokens().len() + tokens.len()) as u64 > descriptor.max_seq_len;
            let twice = feeds.iter().take(index).any(|other| other.sequence == feed.sequence);
            if tokens.is_empty() || foreign || too_long || twice {
                return Err(RuntimeError::Fatal);
            }
            growth += tokens.len() as u64;
        }
        self.room_for(growth, 0)
    }

    /// Whether the pool takes `growth` more cells when `released` go first (R-34).
    fn room_for(&self, growth: u64, released: u64) -> Result<(), RuntimeError> {
        let total = self.options.descriptor.cells_total;
        let needed = self.cells.used() - released + growth;
        if total != 0 && needed > total { Err(RuntimeError::Capacity) } else { Ok(()) }
    }

    fn record_step(&mut self, feeds: &[Feed<'_>]) {
        if self.options.record {
            let others: Vec<SeqHandle> =
                self.sequences.keys().copied().filter(|key| !feeds.iter().any(|feed| feed.sequence == *key)).collect();
            let held = self.cells.held_by(others.iter().filter_map(|key| self.sequences.get(key)));
            self.idle_cells.push(held);
            self.feeds.extend(feeds.iter().map(|feed| RecordedFeed {
                step: self.steps,
                sequence: feed.sequence,
                len: if let Input::Tokens(tokens) = feed.input { tokens.len() } else { 0 },
                wants_row: !matches!(feed.want, Want::Nothing),
            }));
        }
        self.steps += 1;
    }

    /// Writes the row after the sequence's tokens; with `scripted`, a planned one first (R-33).
    fn write_row(&mut self, handle: SeqHandle, scripted: bool, row: &mut [f32]) {
        let planned = if scripted { self.scripts.get_mut(&handle).and_then(VecDeque::pop_front) } else { None };
        match planned {
            Some(Planned::Token(token)) => {
                row.fill(-1.0);
                if let Some(logit) = row.get_mut(token as usize) {
                    *logit = 10.0;
                }
            }
            Some(Planned::Row(planned)) => {
                row.fill(0.0);
                for (logit, planned) in row.iter_mut().zip(planned) {
                    *logit = planned;
                }
            }
            None => {
                let Some(sequence) = self.sequences.get(&handle) else { return };
                let token = self.token_after(sequence.tokens(), sequence.hash_next());
                fill_row(row, sequence.hash_row(), token);
            }
        }
    }

    /// Rows that are scripted or planted for a sequence and not yet asked for.
    pub fn planned(&self, sequence: SeqHandle) -> usize {
        self.scripts.get(&sequence).map_or(0, VecDeque::len)
    }

    fn append(&mut self, handle: SeqHandle, tokens: &[u32]) {
        if let Some(sequence) = self.sequences.get_mut(&handle) {
            for &token in tokens {
                sequence.push(token, self.cells.take());
            }
        }
    }

    /// Picks a token as the executor would from the row (R-37).
    fn answer_pick(&mut self, handle: SeqHandle, request: &SampleRequest<'_>, answers: &mut Answers) {
        // An unshaped greedy pick is the token of the list, and needs no row: 10.0 is above every other logit.
        let shaped = !request.bias.is_empty() || request.penalty.is_some() || request.mask.is_some();
        let draws = request.temperature > 0.0;
        if !draws && !shaped && request.logprobs.is_none() && self.planned(handle) == 0 {
            let sequence = self.sequences.get(&handle);
            let token = sequence.map_or(0, |sequence| self.token_after(sequence.tokens(), sequence.hash_next()));
            return answers.push_pick(Pick { token, logprobs: None });
        }
        let mut row = core::mem::take(&mut self.row);
        row.resize(self.options.descriptor.vocab_size as usize, 0.0);
        self.write_row(handle, true, &mut row);
        match pick(&mut row, request, &mut self.scratch) {
            Ok(picked) => answers.push_pick(picked),
            Err(error) => answers.push_fault(error.fault_code()),
        }
        self.row = row;
    }

    fn cuttable_at(&self, held: usize, len: u64) -> Result<usize, RuntimeError> {
        let len = usize::try_from(len).map_err(|_| RuntimeError::OutOfBoundary)?;
        let free = self.options.descriptor.truncate_partial && len <= held;
        if free || len == 0 || len == held { Ok(len) } else { Err(RuntimeError::OutOfBoundary) }
    }
}

/// The row of R-31.
fn fill_row(row: &mut [f32], hash_row: u64, token: u32) {
    for (logit, i) in row.iter_mut().zip(1u64..) {
        let thousandths = (hash_row.wrapping_mul(i) >> 40) % 1000;
        *logit = thousandths as f32 / 1000.0 - 0.5;
    }
    if let Some(logit) = row.get_mut(token as usize) {
        *logit = 10.0;
    }
}

impl Runtime for FakeRuntime {
    fn describe(&self) -> &Descriptor {
        &self.options.descriptor
    }

    fn is_eos(&self, token: u32) -> bool {
        self.options.end_ids.contains(&token)
    }

    fn seq_create(&mut self) -> Result<SeqHandle, RuntimeError> {
        let slots = self.options.descriptor.max_seqs as usize;
        if slots != 0 && self.sequences.len() >= slots {
            return Err(RuntimeError::Capacity);
        }
        let handle = self.next_handle;
        self.next_handle += 1;
        self.sequences.insert(handle, Sequence::new());
        Ok(handle)
    }

    fn seq_free(&mut self, sequence: SeqHandle) {
        if let Some(mut freed) = self.sequences.remove(&sequence) {
            self.cells.release(freed.truncate(0));
        }
        self.scripts.remove(&sequence);
    }

    fn seq_len(&self, sequence: SeqHandle) -> u64 {
        self.sequences.get(&sequence).map_or(0, |sequence| sequence.tokens().len() as u64)
    }

    fn cells_released(&self, sequences: &[SeqHandle]) -> u64 {
        let mut handles = sequences.to_vec();
        handles.sort_unstable();
        handles.dedup();
        self.cells.released_by(handles.iter().filter_map(|handle| self.sequences.get(handle)))
    }

    fn seq_copy(&mut self, source: SeqHandle, target: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        let from = self.sequences.get(&source).ok_or(RuntimeError::UnknownSeq)?;
        let onto = self.sequences.get(&target).ok_or(RuntimeError::UnknownSeq)?;
        let len = self.cuttable_at(from.tokens().len(), len)?;
        if source == target {
            return self.seq_truncate(target, len as u64);
        }
        let shares = self.options.descriptor.copy_shares_cells;
        if !shares {
            self.room_for(len as u64, self.cells.released_by([onto].into_iter()))?;
        }
        let copied = from.tokens()[..len].to_vec();
        let shared = from.cells()[..len].to_vec();
        let Some(onto) = self.sequences.get_mut(&target) else { return Err(RuntimeError::UnknownSeq) };
        // Shared cells are held before the old ones go: the target may hold some of the same.
        if shares {
            self.cells.hold(&shared);
        }
        self.cells.release(onto.truncate(0));
        for (token, cell) in copied.into_iter().zip(shared) {
            onto.push(token, if shares { cell } else { self.cells.take() });
        }
        Ok(())
    }

    fn seq_truncate(&mut self, sequence: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        let held = self.sequences.get(&sequence).ok_or(RuntimeError::UnknownSeq)?.tokens().len();
        let len = self.cuttable_at(held, len)?;
        if let Some(sequence) = self.sequences.get_mut(&sequence) {
            self.cells.release(sequence.truncate(len));
        }
        Ok(())
    }

    fn seq_export(&mut self, sequence: SeqHandle, len: u64, encoding: u8) -> Result<Vec<u8>, RuntimeError> {
        if encoding != encoding::LOSSLESS || !self.options.descriptor.export_encodings.contains(&encoding) {
            return Err(RuntimeError::Unsupported);
        }
        let sequence = self.sequences.get(&sequence).ok_or(RuntimeError::UnknownSeq)?;
        let len = self.cuttable_at(sequence.tokens().len(), len)?;
        Ok(sequence.tokens()[..len].iter().flat_map(|token| token.to_le_bytes()).collect())
    }

    fn seq_import(&mut self, sequence: SeqHandle, payload: &[u8]) -> Result<u64, RuntimeError> {
        let held = self.sequences.get(&sequence).ok_or(RuntimeError::UnknownSeq)?.tokens().len();
        let (words, rest) = payload.as_chunks::<4>();
        if held != 0 || !rest.is_empty() {
            return Err(RuntimeError::OutOfBoundary);
        }
        self.room_for(words.len() as u64, 0)?;
        let tokens: Vec<u32> = words.iter().map(|&word| u32::from_le_bytes(word)).collect();
        self.append(sequence, &tokens);
        if core::mem::take(&mut self.poisoned_import) { Err(RuntimeError::Fatal) } else { Ok(tokens.len() as u64) }
    }

    fn mem_counters(&self) -> MemCounters {
        let descriptor = &self.options.descriptor;
        MemCounters {
            allocated_bytes: self.cells.used() * descriptor.kv_bytes_per_token.max(1),
            cells_used: self.cells.used(),
            cells_total: descriptor.cells_total,
        }
    }

    fn step(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        answers.clear(self.options.descriptor.vocab_size as usize);
        if let Some(error) = self.next_failure.take() {
            return Err(error);
        }
        if !self.options.step_delay.is_zero() {
            std::thread::sleep(self.options.step_delay);
        }
        self.check(feeds)?;
        self.record_step(feeds);
        let vocab = self.options.descriptor.vocab_size as usize;
        for feed in feeds {
            let Input::Tokens(tokens) = feed.input else { return Err(RuntimeError::Unsupported) };
            match feed.want {
                Want::Nothing => {
                    self.append(feed.sequence, tokens);
                    answers.push_nothing();
                }
                Want::LastRow => {
                    self.append(feed.sequence, tokens);
                    self.write_row(feed.sequence, true, answers.push_rows(1));
                }
                Want::EveryRow => {
                    let rows = answers.push_rows(tokens.len());
                    for (token, row) in tokens.iter().zip(rows.chunks_mut(vocab.max(1))) {
                        self.append(feed.sequence, core::slice::from_ref(token));
                        self.write_row(feed.sequence, false, row);
                    }
                }
                Want::Token(request) => {
                    self.append(feed.sequence, tokens);
                    self.answer_pick(feed.sequence, &request, answers);
                }
            }
        }
        Ok(())
    }

    fn sync_steps(&mut self, on: bool) {
        self.sync = Some(on);
    }

    fn vocabulary(&self) -> Option<&Vocabulary> {
        self.options.vocabulary.as_ref()
    }
}

#[cfg(test)]
mod tests;
