//! A runtime that fails where it is told to: at the n-th step, the n-th page, the n-th copy, the n-th part of a state that moves.
//!
//! What is behind it is the fake runtime or a model on pages. Sequences get the numbers 1, 2, 3 ... whatever the runtime calls them.
//! A planned failure happens before the runtime is asked, so nothing has moved; it happens once.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;

use ictus::backend::cpu::CpuBackend;
use ictus::runtime::{
    AdapterLoadError, Answer, Answers, Descriptor, FakeRuntime, Feed, Input, LoadedAdapter, MemCounters, ModelRuntime,
    Runtime, RuntimeError, SeqGrowth, SeqHandle, Vocabulary, Want,
};

/// What will fail, and after how much that goes well.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Planned {
    /// Steps.
    pub(crate) step: Option<(u64, RuntimeError)>,
    /// Pages, or cells of a runtime without pages: the one after these is not to be had.
    pub(crate) page: Option<u64>,
    /// Copies of sequences: the one after these finds no room.
    pub(crate) copy: Option<u64>,
    /// Parts of states that are exported or imported, and ranges that are released.
    pub(crate) part: Option<(u64, RuntimeError)>,
    /// The next import that ends well says that it did not.
    pub(crate) import_end: bool,
}

impl Planned {
    /// Counts down to a failure with an error.
    fn due(planned: &mut Option<(u64, RuntimeError)>) -> Result<(), RuntimeError> {
        match planned.take() {
            Some((0, error)) => return Err(error),
            later => *planned = later.map(|(left, error)| (left - 1, error)),
        }
        Ok(())
    }

    pub(crate) fn step(&mut self) -> Result<(), RuntimeError> {
        Self::due(&mut self.step)
    }

    pub(crate) fn part(&mut self) -> Result<(), RuntimeError> {
        Self::due(&mut self.part)
    }

    pub(crate) fn copy(&mut self) -> Result<(), RuntimeError> {
        match self.copy.take() {
            Some(0) => return Err(RuntimeError::Capacity),
            later => self.copy = later.map(|left| left - 1),
        }
        Ok(())
    }

    /// All of these pages or none.
    pub(crate) fn pages(&mut self, pages: u64) -> Result<(), RuntimeError> {
        match self.page {
            Some(left) if pages > left => {
                self.page = None;
                Err(RuntimeError::Capacity)
            }
            _ => {
                self.page = self.page.map(|left| left - pages);
                Ok(())
            }
        }
    }
}

enum Inner {
    Fake(Box<FakeRuntime>),
    Paged(Box<ModelRuntime<CpuBackend>>),
}

/// The runtime under the engine.
pub(crate) struct SimRuntime {
    inner: Inner,
    /// What the runtime calls the sequences 1, 2, 3 ...
    names: Vec<SeqHandle>,
    pub(crate) planned: Planned,
    live: usize,
    /// Of each feed of the steps that were begun and have not ended.
    begun: VecDeque<Vec<Begun>>,
    /// The next step feeds again what a begun step was counted for.
    feeds_again: bool,
    pub(crate) ahead: AheadCounts,
}

/// A feed of a step that was begun.
#[derive(Clone, Copy, Debug)]
struct Begun {
    sequence: SeqHandle,
    /// Tokens it held before.
    held: u64,
    /// Pages it took.
    pages: u64,
}

/// What became of steps that were begun.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AheadCounts {
    /// Feeds of a token that nobody had seen, those whose answer nobody wanted, and those that had to be fed again.
    pub(crate) picked: usize,
    pub(crate) vain: usize,
    pub(crate) again: usize,
    /// Steps of which nothing was wanted.
    pub(crate) taken_back: usize,
}

impl SimRuntime {
    pub(crate) fn fake(fake: FakeRuntime) -> Self {
        Self::of(Inner::Fake(Box::new(fake)))
    }

    pub(crate) fn paged(model: ModelRuntime<CpuBackend>) -> Self {
        Self::of(Inner::Paged(Box::new(model)))
    }

    fn of(inner: Inner) -> Self {
        let (planned, begun, ahead) = Default::default();
        Self { inner, names: vec![], planned, live: 0, begun, feeds_again: false, ahead }
    }

    fn named<'a>(&self, feeds: &[Feed<'a>]) -> Vec<Feed<'a>> {
        feeds.iter().map(|feed| Feed { sequence: self.name(feed.sequence), ..*feed }).collect()
    }

    /// Pages that named feeds take together.
    fn pages_of(&self, named: &[Feed<'_>]) -> u64 {
        let grows = |feed: &Feed<'_>| {
            let tokens = match feed.input {
                Input::Tokens(tokens) => tokens.len() as u64,
                Input::Picked { .. } => 1,
                Input::Media { .. } => return None,
            };
            Some(SeqGrowth { sequence: feed.sequence, keep: self.inner().seq_len(feed.sequence), tokens })
        };
        let growths: Vec<SeqGrowth> = named.iter().filter_map(grows).collect();
        self.inner().cells_to_grow(&growths, &[]) / self.granule()
    }

    fn inner(&self) -> &dyn Runtime {
        match &self.inner {
            Inner::Fake(fake) => &**fake,
            Inner::Paged(model) => &**model,
        }
    }

    fn inner_mut(&mut self) -> &mut dyn Runtime {
        match &mut self.inner {
            Inner::Fake(fake) => &mut **fake,
            Inner::Paged(model) => &mut **model,
        }
    }

    /// The runtime's own name; 0, which names none, for a number that was not given.
    fn name(&self, sequence: SeqHandle) -> SeqHandle {
        let at = usize::try_from(sequence).ok().and_then(|number| number.checked_sub(1));
        at.and_then(|at| self.names.get(at)).copied().unwrap_or(0)
    }

    fn granule(&self) -> u64 {
        u64::from(self.inner().describe().cell_granule_tokens.max(1))
    }

    /// Sequences that exist.
    pub(crate) fn live_sequences(&self) -> usize {
        self.live
    }

    /// The tokens of a sequence; none where the runtime keeps only what it computed from them.
    pub(crate) fn contents(&self, sequence: SeqHandle) -> Option<&[u32]> {
        match &self.inner {
            Inner::Fake(fake) => fake.contents(sequence),
            Inner::Paged(_) => None,
        }
    }

    /// The page tables and the reference counts agree.
    pub(crate) fn audit(&self) -> Result<(), String> {
        match &self.inner {
            Inner::Fake(_) => Ok(()),
            #[cfg(debug_assertions)]
            Inner::Paged(model) => model.sequences().audit(),
            #[cfg(not(debug_assertions))]
            Inner::Paged(_) => Ok(()),
        }
    }
}

impl Runtime for SimRuntime {
    fn describe(&self) -> &Descriptor {
        self.inner().describe()
    }

    fn is_eos(&self, token: u32) -> bool {
        self.inner().is_eos(token)
    }

    fn seq_create(&mut self) -> Result<SeqHandle, RuntimeError> {
        let name = self.inner_mut().seq_create()?;
        self.names.push(name);
        self.live += 1;
        Ok(self.names.len() as u64)
    }

    fn seq_free(&mut self, sequence: SeqHandle) {
        let name = self.name(sequence);
        if name != 0 {
            self.inner_mut().seq_free(name);
            self.live -= 1;
            self.names[sequence as usize - 1] = 0;
        }
    }

    fn seq_len(&self, sequence: SeqHandle) -> u64 {
        self.inner().seq_len(self.name(sequence))
    }

    fn cells_released(&self, sequences: &[SeqHandle]) -> u64 {
        let names: Vec<SeqHandle> = sequences.iter().map(|&sequence| self.name(sequence)).collect();
        self.inner().cells_released(&names)
    }

    fn seq_rest(&mut self, sequence: SeqHandle) {
        let name = self.name(sequence);
        self.inner_mut().seq_rest(name);
    }

    fn cells_resting(&self) -> Option<u64> {
        self.inner().cells_resting()
    }

    fn cells_to_grow(&self, growths: &[SeqGrowth], leaving: &[SeqHandle]) -> u64 {
        let growths: Vec<SeqGrowth> =
            growths.iter().map(|growth| SeqGrowth { sequence: self.name(growth.sequence), ..*growth }).collect();
        let leaving: Vec<SeqHandle> = leaving.iter().map(|&sequence| self.name(sequence)).collect();
        self.inner().cells_to_grow(&growths, &leaving)
    }

    fn seq_copy(&mut self, source: SeqHandle, target: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        self.planned.copy()?;
        if !self.describe().copy_shares_cells {
            self.planned.pages(len.div_ceil(self.granule()))?;
        }
        let (source, target) = (self.name(source), self.name(target));
        self.inner_mut().seq_copy(source, target, len)
    }

    fn seq_truncate(&mut self, sequence: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        let name = self.name(sequence);
        self.inner_mut().seq_truncate(name, len)
    }

    fn seq_boundary(&self, sequence: SeqHandle, cap: u64) -> u64 {
        self.inner().seq_boundary(self.name(sequence), cap)
    }

    fn payload_token_bytes(&self, encoding: u8) -> Option<u64> {
        self.inner().payload_token_bytes(encoding)
    }

    fn export_bytes(&self, sequence: SeqHandle, tokens: Range<u64>, encoding: u8) -> Result<u64, RuntimeError> {
        self.inner().export_bytes(self.name(sequence), tokens, encoding)
    }

    fn export_part(
        &mut self,
        sequence: SeqHandle,
        tokens: Range<u64>,
        encoding: u8,
        out: &mut [u8],
    ) -> Result<(), RuntimeError> {
        self.planned.part()?;
        let name = self.name(sequence);
        self.inner_mut().export_part(name, tokens, encoding, out)
    }

    fn import_begin(&mut self, sequence: SeqHandle, tokens: Range<u64>) -> Result<(), RuntimeError> {
        let pages = (tokens.end - tokens.start).div_ceil(self.granule());
        self.planned.pages(pages)?;
        let name = self.name(sequence);
        self.inner_mut().import_begin(name, tokens)
    }

    fn import_part(
        &mut self,
        sequence: SeqHandle,
        tokens: Range<u64>,
        encoding: u8,
        bytes: &[u8],
    ) -> Result<(), RuntimeError> {
        self.planned.part()?;
        let name = self.name(sequence);
        self.inner_mut().import_part(name, tokens, encoding, bytes)
    }

    fn import_end(&mut self, sequence: SeqHandle, tokens: Range<u64>) -> Result<u64, RuntimeError> {
        let name = self.name(sequence);
        let held = self.inner_mut().import_end(name, tokens)?;
        match std::mem::take(&mut self.planned.import_end) {
            true => Err(RuntimeError::Fatal),
            false => Ok(held),
        }
    }

    fn range_release(&mut self, sequence: SeqHandle, tokens: Range<u64>) -> Result<(), RuntimeError> {
        self.planned.part()?;
        let name = self.name(sequence);
        self.inner_mut().range_release(name, tokens)
    }

    fn page_copies(&self, sequence: SeqHandle) -> u64 {
        self.inner().page_copies(self.name(sequence))
    }

    fn mem_counters(&self) -> MemCounters {
        self.inner().mem_counters()
    }

    fn step(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        answers.clear(self.describe().vocab_size as usize);
        let named = self.named(feeds);
        if std::mem::take(&mut self.feeds_again) {
            return self.inner_mut().step(&named, answers);
        }
        self.planned.step()?;
        if self.planned.page.is_some() {
            self.planned.pages(self.pages_of(&named))?;
        }
        self.inner_mut().step(&named, answers)
    }

    fn steps_ahead(&self) -> bool {
        self.inner().steps_ahead()
    }

    /// Nothing fails here: a step that was begun fails when it ends, with what is then wanted of it, as a step that was run then.
    fn step_begin(&mut self, feeds: &[Feed<'_>]) -> Result<(), RuntimeError> {
        let named = self.named(feeds);
        let is_first = self.begun.is_empty();
        let begun = |feed: &Feed<'_>| Begun {
            sequence: feed.sequence,
            held: self.inner().seq_len(feed.sequence),
            pages: if is_first { 0 } else { self.pages_of(std::slice::from_ref(feed)) },
        };
        let mut step: Vec<Begun> = named.iter().map(begun).collect();
        if is_first {
            // They may copy a page that they share; all of them are wanted in the end.
            step[0].pages = self.pages_of(&named);
        }
        self.inner_mut().step_begin(&named)?;
        self.begun.push_back(step);
        self.ahead.picked += if is_first { 0 } else { feeds.len() };
        Ok(())
    }

    fn step_end(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        let step = self.begun.pop_front().expect("a step was begun");
        let named = self.named(feeds);
        let is_vain = |feed: &Feed<'_>| matches!(feed.want, Want::Nothing);
        let wanted: u64 =
            feeds.iter().zip(&step).filter(|(feed, _)| !is_vain(feed)).map(|(_, begun)| begun.pages).sum();
        let vain = feeds.iter().filter(|feed| is_vain(feed)).count();
        self.ahead.vain += vain;
        self.ahead.taken_back += usize::from(vain == feeds.len());
        if vain < feeds.len()
            && let Err(error) = self.planned.step().and_then(|()| self.planned.pages(wanted))
        {
            let nothing: Vec<Feed<'_>> = named.iter().map(|feed| Feed { want: Want::Nothing, ..*feed }).collect();
            self.inner_mut().step_end(&nothing, answers)?;
            if error == RuntimeError::Fatal {
                // Nobody cuts anything back any more, and cells are compared all the same: as if nothing had moved.
                for begun in self.begun.drain(..).rev().flatten().chain(step).collect::<Vec<_>>() {
                    let _ = self.inner_mut().seq_truncate(begun.sequence, begun.held);
                }
            }
            return Err(error);
        }
        self.inner_mut().step_end(&named, answers)?;
        let again = answers.as_slice().iter().filter(|answer| **answer == Answer::Again).count();
        self.ahead.again += again;
        self.feeds_again |= again > 0;
        Ok(())
    }

    fn sync_steps(&mut self, on: bool) {
        self.inner_mut().sync_steps(on);
    }

    fn vocabulary(&self) -> Option<&Vocabulary> {
        self.inner().vocabulary()
    }

    fn lists_vocabulary(&self) -> bool {
        self.inner().lists_vocabulary()
    }

    fn exempt_ids(&self) -> Vec<u32> {
        self.inner().exempt_ids()
    }

    fn adapter_load(&mut self, path: &Path) -> Result<LoadedAdapter, AdapterLoadError> {
        self.inner_mut().adapter_load(path)
    }

    fn adapter_unload(&mut self, adapter: u64) -> bool {
        self.inner_mut().adapter_unload(adapter)
    }

    fn adapters(&self) -> Vec<LoadedAdapter> {
        self.inner().adapters()
    }

    fn adapter_digest(&self, adapter: u64) -> Option<[u8; 32]> {
        self.inner().adapter_digest(adapter)
    }

    fn seq_adapt(&mut self, sequence: SeqHandle, adapter: u64) -> Result<(), RuntimeError> {
        let name = self.name(sequence);
        self.inner_mut().seq_adapt(name, adapter)
    }

    fn seq_adapter(&self, sequence: SeqHandle) -> u64 {
        self.inner().seq_adapter(self.name(sequence))
    }
}
