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
//! - `cells_used` is the number of distinct cells that sequences hold; of a bounded pool with a `cell_granule_tokens` above 1, the
//!   cells of the distinct pages that they hold.
//!
//! # Limits
//! Beyond the contract it is strict, because an executor under test should never do these: a feed without tokens, a sequence
//! fed twice in a step or across a released range, a token outside the vocabulary or a sequence longer than the context answer `Fatal`.

mod ahead;
mod cells;
mod options;
mod pages;
mod sequence;

pub use options::{CopyModel, FakeOptions};

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::path::Path;

use self::ahead::BegunSteps;
use self::cells::Cells;
use self::pages::Pages;
use self::sequence::{Sequence, adapted_hash, hash};
use super::adapters::Adapters;
use super::{
    AdapterLoadError, Answers, Descriptor, Feed, Input, LoadedAdapter, MemCounters, ROWS_MAX, Runtime, RuntimeError,
    SeqGrowth, SeqHandle, Vocabulary, Want,
};
use crate::checkpoint::AdapterError;
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
    /// Whole pages are counted beside the cells, and bound the pool.
    pages: Option<Pages>,
    adapters: Adapters<()>,
    scripts: BTreeMap<SeqHandle, VecDeque<Planned>>,
    /// How many steps still go well before one fails, and how it fails; with none it panics.
    next_failure: Option<(u64, Option<RuntimeError>)>,
    poisoned_import: bool,
    poisoned_export: bool,
    begun: BegunSteps,
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
            pages: Pages::of(&options.descriptor),
            options,
            sequences: BTreeMap::new(),
            next_handle: 1,
            cells: Cells::default(),
            adapters: Adapters::default(),
            scripts: BTreeMap::new(),
            next_failure: None,
            poisoned_import: false,
            poisoned_export: false,
            begun: BegunSteps::default(),
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

    /// The token that follows a list in a sequence with the adapter of this digest.
    pub fn token_for_adapted(&self, digest: &[u8; 32], tokens: &[u32]) -> u32 {
        self.token_after(tokens, adapted_hash(1, digest, tokens))
    }

    /// The digest of the adapter that a path names; no file is read.
    pub fn adapter_digest(path: &str) -> [u8; 32] {
        let mut digest = [0; 32];
        for (part, salt) in digest.chunks_exact_mut(8).zip(3..) {
            part.copy_from_slice(&adapted_hash(salt, path.as_bytes(), &[]).to_le_bytes());
        }
        digest
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
        self.fail_step_after(0, error);
    }

    /// `steps` more steps go well; the one after them answers this error and moves nothing.
    pub fn fail_step_after(&mut self, steps: u64, error: RuntimeError) {
        self.next_failure = Some((steps, Some(error)));
    }

    /// The next step panics, after its delay and before anything moves.
    pub fn panic_next_step(&mut self) {
        self.panic_step_after(0);
    }

    /// `steps` more steps go well; the one after them panics.
    pub fn panic_step_after(&mut self, steps: u64) {
        self.next_failure = Some((steps, None));
    }

    /// The next import fills its sequence and then answers `Fatal` (R-36).
    pub fn poison_next_import(&mut self) {
        self.poisoned_import = true;
    }

    /// The next part of an export answers `Fatal` and writes nothing.
    pub fn poison_next_export(&mut self) {
        self.poisoned_export = true;
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
            if tokens.is_empty() || foreign || too_long || twice || !sequence.released().is_empty() {
                return Err(RuntimeError::Fatal);
            }
            growth += tokens.len() as u64;
        }
        self.room_for(growth, 0)
    }

    /// Whether the pool takes `growth` more cells when `released` go first (R-34). Pages answer for themselves.
    fn room_for(&self, growth: u64, released: u64) -> Result<(), RuntimeError> {
        if self.pages.is_some() {
            return Ok(());
        }
        let total = self.options.descriptor.cells_total;
        let needed = self.cells.used() - released + growth;
        if total != 0 && needed > total { Err(RuntimeError::Capacity) } else { Ok(()) }
    }

    /// The time of a step, and the failure that may strike it.
    fn pass_time(&mut self) -> Result<(), RuntimeError> {
        if !self.options.step_delay.is_zero() {
            std::thread::sleep(self.options.step_delay);
        }
        match self.next_failure.take() {
            Some((0, error)) => return Err(error.expect("a planted panic")),
            later => self.next_failure = later.map(|(steps, error)| (steps - 1, error)),
        }
        Ok(())
    }

    /// Takes the pages of a step.
    fn grow_pages(&mut self, feeds: &[Feed<'_>]) -> Result<(), RuntimeError> {
        if let Some(pages) = &mut self.pages {
            let growths: Vec<(SeqHandle, usize)> = feeds.iter().map(|feed| (feed.sequence, fed_tokens(feed))).collect();
            pages.grow(&growths)?;
        }
        Ok(())
    }

    fn record_step(&mut self, feeds: &[Feed<'_>]) {
        if self.options.record {
            let others: Vec<SeqHandle> =
                self.sequences.keys().copied().filter(|key| !feeds.iter().any(|feed| feed.sequence == *key)).collect();
            let held = match &self.pages {
                Some(pages) => pages.held_by(&others),
                None => self.cells.held_by(others.iter().filter_map(|key| self.sequences.get(key))),
            };
            self.idle_cells.push(held);
            self.feeds.extend(feeds.iter().map(|feed| RecordedFeed {
                step: self.steps,
                sequence: feed.sequence,
                len: fed_tokens(feed),
                wants_row: !matches!(feed.want, Want::Nothing),
            }));
        }
        self.steps += 1;
    }

    /// The next planned row of a sequence, which is then used up (R-33).
    fn take_planned(&mut self, handle: SeqHandle) -> Option<Planned> {
        self.scripts.get_mut(&handle).and_then(VecDeque::pop_front)
    }

    /// Writes the row after the sequence's tokens, or the planned one.
    fn write_row(&self, handle: SeqHandle, planned: Option<Planned>, row: &mut [f32]) {
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
    fn answer_pick(
        &mut self,
        handle: SeqHandle,
        request: &SampleRequest<'_>,
        planned: Option<Planned>,
        answers: &mut Answers,
    ) {
        // An unshaped greedy pick is the token of the list, and needs no row: 10.0 is above every other logit.
        let shaped = !request.bias.is_empty() || request.penalty.is_some() || request.mask.is_some();
        let draws = request.temperature > 0.0;
        if !draws && !shaped && request.logprobs.is_none() && planned.is_none() {
            let sequence = self.sequences.get(&handle);
            let token = sequence.map_or(0, |sequence| self.token_after(sequence.tokens(), sequence.hash_next()));
            return answers.push_pick(Pick { token, logprobs: None });
        }
        let mut row = core::mem::take(&mut self.row);
        row.resize(self.options.descriptor.vocab_size as usize, 0.0);
        self.write_row(handle, planned, &mut row);
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

fn fed_tokens(feed: &Feed<'_>) -> usize {
    if let Input::Tokens(tokens) = feed.input { tokens.len() } else { 0 }
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
        if let Some(pages) = &mut self.pages {
            pages.create(handle)?;
        }
        self.next_handle += 1;
        self.sequences.insert(handle, Sequence::new());
        Ok(handle)
    }

    fn seq_free(&mut self, sequence: SeqHandle) {
        if let Some(mut freed) = self.sequences.remove(&sequence) {
            self.adapters.pass_on(freed.adapter(), 0);
            self.cells.release(freed.truncate(0));
        }
        if let Some(pages) = &mut self.pages {
            pages.free(sequence);
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
        if let Some(pages) = &self.pages {
            return pages.released_by(&handles);
        }
        self.cells.released_by(handles.iter().filter_map(|handle| self.sequences.get(handle)))
    }

    fn seq_rest(&mut self, sequence: SeqHandle) {
        if let Some(pages) = &mut self.pages {
            pages.rest(sequence);
        }
    }

    fn cells_resting(&self) -> Option<u64> {
        self.pages.as_ref().map(Pages::cells_resting)
    }

    fn cells_to_grow(&self, growths: &[SeqGrowth], leaving: &[SeqHandle]) -> u64 {
        match &self.pages {
            Some(pages) => pages.cells_to_grow(growths, leaving),
            None => growths.iter().fold(0, |sum, growth| {
                let after = growth.keep.saturating_add(growth.tokens);
                sum.saturating_add(after.saturating_sub(self.seq_len(growth.sequence)))
            }),
        }
    }

    fn seq_copy(&mut self, source: SeqHandle, target: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        let from = self.sequences.get(&source).ok_or(RuntimeError::UnknownSeq)?;
        let onto = self.sequences.get(&target).ok_or(RuntimeError::UnknownSeq)?;
        let len = self.cuttable_at(from.tokens().len(), len)?;
        if source == target {
            return self.seq_truncate(target, len as u64);
        }
        if from.released().iter().any(|gone| gone.start < len) {
            return Err(RuntimeError::OutOfBoundary);
        }
        let shares = self.options.descriptor.copy_shares_cells;
        if !shares {
            self.room_for(len as u64, self.cells.released_by([onto].into_iter()))?;
        }
        if let Some(pages) = &mut self.pages {
            pages.copy(source, target, len as u64)?;
        }
        let inherited = from.adapter();
        let copied = from.tokens()[..len].to_vec();
        let shared: Vec<u32> = from.cells().take(len).copied().collect();
        let Some(onto) = self.sequences.get_mut(&target) else { return Err(RuntimeError::UnknownSeq) };
        // Shared cells are held before the old ones go: the target may hold some of the same.
        if shares {
            self.cells.hold(&shared);
        }
        self.cells.release(onto.truncate(0));
        let carried = onto.adapter();
        onto.adapt(inherited, &self.adapters.digest(inherited).map_or(Vec::new(), Vec::from));
        self.adapters.pass_on(0, inherited);
        self.adapters.pass_on(carried, 0);
        for (token, cell) in copied.into_iter().zip(shared) {
            onto.push(token, if shares { cell } else { self.cells.take() });
        }
        Ok(())
    }

    fn seq_truncate(&mut self, sequence: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        let held = self.sequences.get(&sequence).ok_or(RuntimeError::UnknownSeq)?.tokens().len();
        let len = self.cuttable_at(held, len)?;
        if let Some(pages) = &mut self.pages {
            pages.truncate(sequence, len as u64)?;
        }
        if let Some(sequence) = self.sequences.get_mut(&sequence) {
            self.cells.release(sequence.truncate(len));
        }
        Ok(())
    }

    fn payload_token_bytes(&self, encoding: u8) -> Option<u64> {
        self.options.descriptor.export_encodings.contains(&encoding).then_some(4)
    }

    fn export_bytes(&self, sequence: SeqHandle, tokens: Range<u64>, encoding: u8) -> Result<u64, RuntimeError> {
        let token = self.payload_token_bytes(encoding).ok_or(RuntimeError::Unsupported)?;
        let held = self.sequences.get(&sequence).ok_or(RuntimeError::UnknownSeq)?;
        let end = self.cuttable_at(held.tokens().len(), tokens.end)?;
        let start = usize::try_from(tokens.start).ok().filter(|&start| start <= end);
        let start = start.ok_or(RuntimeError::OutOfBoundary)?;
        if held.released().iter().any(|gone| gone.start < end && start < gone.end) {
            return Err(RuntimeError::OutOfBoundary);
        }
        Ok((end - start) as u64 * token)
    }

    fn export_part(
        &mut self,
        sequence: SeqHandle,
        tokens: Range<u64>,
        _: u8,
        out: &mut [u8],
    ) -> Result<(), RuntimeError> {
        if core::mem::take(&mut self.poisoned_export) {
            return Err(RuntimeError::Fatal);
        }
        let held = self.sequences.get(&sequence).ok_or(RuntimeError::UnknownSeq)?;
        let ids = held.tokens().get(tokens.start as usize..tokens.end as usize).ok_or(RuntimeError::OutOfBoundary)?;
        if out.len() != ids.len() * 4 {
            return Err(RuntimeError::OutOfBoundary);
        }
        for (bytes, id) in out.as_chunks_mut::<4>().0.iter_mut().zip(ids) {
            *bytes = id.to_le_bytes();
        }
        Ok(())
    }

    fn import_begin(&mut self, sequence: SeqHandle, tokens: Range<u64>) -> Result<(), RuntimeError> {
        let held = self.sequences.get(&sequence).ok_or(RuntimeError::UnknownSeq)?;
        let range = tokens.start as usize..tokens.end as usize;
        let refill = held.released().contains(&range);
        if !refill && (tokens.start != 0 || !held.tokens().is_empty()) {
            return Err(RuntimeError::OutOfBoundary);
        }
        self.room_for(range.len() as u64, 0)?;
        match &mut self.pages {
            Some(pages) if refill => pages.fill(sequence, tokens)?,
            Some(pages) => pages.grow(&[(sequence, range.len())])?,
            None => {}
        }
        if !refill {
            self.append(sequence, &vec![0; range.len()]);
        } else if let Some(held) = self.sequences.get_mut(&sequence) {
            held.refill(range, || self.cells.take());
        }
        Ok(())
    }

    fn import_part(
        &mut self,
        sequence: SeqHandle,
        tokens: Range<u64>,
        _: u8,
        bytes: &[u8],
    ) -> Result<(), RuntimeError> {
        let held = self.sequences.get_mut(&sequence).ok_or(RuntimeError::UnknownSeq)?;
        let ids: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
        let range = tokens.start as usize..tokens.end as usize;
        if bytes.len() != range.len() * 4 || range.end > held.tokens().len() {
            return Err(RuntimeError::OutOfBoundary);
        }
        held.overwrite(range.start, &ids);
        Ok(())
    }

    fn import_end(&mut self, sequence: SeqHandle, _: Range<u64>) -> Result<u64, RuntimeError> {
        if core::mem::take(&mut self.poisoned_import) { Err(RuntimeError::Fatal) } else { Ok(self.seq_len(sequence)) }
    }

    fn range_release(&mut self, sequence: SeqHandle, tokens: Range<u64>) -> Result<(), RuntimeError> {
        let page = u64::from(self.options.descriptor.page_size_tokens.max(1));
        let held = self.sequences.get_mut(&sequence).ok_or(RuntimeError::UnknownSeq)?;
        let range = tokens.start as usize..tokens.end as usize;
        let whole =
            tokens.start.is_multiple_of(page) && (tokens.end.is_multiple_of(page) || range.end == held.tokens().len());
        let overlaps = held.released().iter().any(|gone| gone.start < range.end && range.start < gone.end);
        if !whole || overlaps || range.is_empty() || range.end > held.tokens().len() {
            return Err(RuntimeError::OutOfBoundary);
        }
        if let Some(pages) = &mut self.pages {
            pages.punch(sequence, tokens)?;
        }
        self.cells.release(held.release(range));
        Ok(())
    }

    fn page_copies(&self, sequence: SeqHandle) -> u64 {
        self.pages.as_ref().map_or(0, |pages| pages.copies(sequence))
    }

    fn mem_counters(&self) -> MemCounters {
        let descriptor = &self.options.descriptor;
        let cells_used = self.pages.as_ref().map_or(self.cells.used(), Pages::cells_used);
        MemCounters {
            allocated_bytes: cells_used * descriptor.kv_bytes_per_token.max(1),
            cells_used,
            cells_total: descriptor.cells_total,
        }
    }

    fn step(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        answers.clear(self.options.descriptor.vocab_size as usize);
        if !self.begun.is_empty() {
            return Err(RuntimeError::Fatal);
        }
        self.pass_time()?;
        self.check(feeds)?;
        self.grow_pages(feeds)?;
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
                    let planned = self.take_planned(feed.sequence);
                    self.write_row(feed.sequence, planned, answers.push_rows(1));
                }
                Want::EveryRow => {
                    let rows = answers.push_rows(tokens.len());
                    for (token, row) in tokens.iter().zip(rows.chunks_mut(vocab.max(1))) {
                        self.append(feed.sequence, core::slice::from_ref(token));
                        self.write_row(feed.sequence, None, row);
                    }
                }
                Want::Token(request) => {
                    self.append(feed.sequence, tokens);
                    let planned = self.take_planned(feed.sequence);
                    self.answer_pick(feed.sequence, &request, planned, answers);
                }
            }
        }
        Ok(())
    }

    fn steps_ahead(&self) -> bool {
        self.options.steps_ahead
    }

    fn step_begin(&mut self, feeds: &[Feed<'_>]) -> Result<(), RuntimeError> {
        self.begin(feeds)
    }

    fn step_end(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        self.end(feeds, answers)
    }

    fn sync_steps(&mut self, on: bool) {
        self.sync = Some(on);
    }

    fn vocabulary(&self) -> Option<&Vocabulary> {
        self.options.vocabulary.as_ref()
    }

    /// Any path that begins with `fake:` names an adapter, where the descriptor says that there are adapters.
    fn adapter_load(&mut self, path: &Path) -> Result<LoadedAdapter, AdapterLoadError> {
        if !self.options.descriptor.workloads.adapters {
            return Err(AdapterLoadError::Unsupported);
        }
        let Some(name) = path.to_str().filter(|path| path.starts_with("fake:")) else {
            let source = std::io::Error::from(std::io::ErrorKind::NotFound);
            return Err(AdapterError::Read { path: path.to_owned(), source }.into());
        };
        let digest = Self::adapter_digest(name);
        Ok(self.adapters.revive(digest).unwrap_or_else(|| self.adapters.insert(digest, ())))
    }

    fn adapter_unload(&mut self, adapter: u64) -> bool {
        self.adapters.unload(adapter)
    }

    fn adapters(&self) -> Vec<LoadedAdapter> {
        self.adapters.list()
    }

    fn adapter_digest(&self, adapter: u64) -> Option<[u8; 32]> {
        self.adapters.digest(adapter)
    }

    fn seq_adapt(&mut self, sequence: SeqHandle, adapter: u64) -> Result<(), RuntimeError> {
        let adapted = self.sequences.get_mut(&sequence).ok_or(RuntimeError::UnknownSeq)?;
        if !adapted.tokens().is_empty() {
            return Err(RuntimeError::OutOfBoundary);
        }
        if !self.adapters.is_loaded(adapter) {
            return Err(RuntimeError::UnknownSeq);
        }
        let carried = adapted.adapter();
        adapted.adapt(adapter, &self.adapters.digest(adapter).map_or(Vec::new(), Vec::from));
        self.adapters.pass_on(carried, adapter);
        Ok(())
    }

    fn seq_adapter(&self, sequence: SeqHandle) -> u64 {
        self.sequences.get(&sequence).map_or(0, Sequence::adapter)
    }
}

#[cfg(test)]
mod tests;
