#![forbid(unsafe_code)]
//! One step: check, take pages, walk, answer.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

use super::ModelRuntime;
use super::adapt::Carried;
use crate::backend::{Again, Backend, BackendError, Picked, Span};
use crate::kv::{Growth, PageRef};
use crate::model::{self, Pass, Progress, Wanted, WorkspaceShape};
use crate::record::constant::fault;
use crate::runtime::{Answers, Feed, Input, ROWS_MAX, RuntimeError, Want};
use crate::sample::{Pick, SampleError, SampleRequest, Scratch, pick, pick_shaped};

/// Lists of a step, reused from step to step.
pub(super) struct Rows {
    pub(super) shape: WorkspaceShape,
    growths: Vec<Growth>,
    /// Pages that the next part copies before it does anything else.
    copies: Vec<(PageRef, PageRef)>,
    /// Token of each row of the part.
    tokens: Vec<u32>,
    /// For a step that is fed what the one before picks: which of its rows each token is picked for.
    pub(super) sources: Vec<usize>,
    carried: Carried,
    /// Rows of the part whose logits are wanted, and which adapters change them.
    wanted: Vec<usize>,
    wanted_carried: Carried,
    /// Feeds whose last row lies in the part, in feed order.
    ends: Vec<End>,
    /// Wanted rows whose logits are computed at once.
    pub(super) at_once: Vec<usize>,
    /// What was picked from each of them, where a token is wanted.
    picks: Vec<Mutex<Outcome>>,
    /// What the backend did for each of them, and which ones are left to the host.
    pub(super) picked: Vec<Picked>,
    left: Vec<usize>,
    /// Memory for picking, for each participant of the backend.
    scratches: Vec<Mutex<Scratch>>,
}

/// What became of a row that a token is wanted of.
type Outcome = Option<Result<Pick, SampleError>>;

/// The end of a feed in a part.
#[derive(Clone, Copy)]
struct End {
    feed: usize,
    /// How many rows are wanted.
    rows: usize,
}

/// How far a step has been walked.
#[derive(Clone, Copy, Default)]
pub(super) struct Cursor {
    pub(super) feed: usize,
    /// Tokens of the feed that were walked.
    tokens: usize,
}

impl Rows {
    pub(super) fn new(shape: WorkspaceShape, participants: usize) -> Result<Self, BackendError> {
        let scratch = || Scratch::with_room(shape.vocab).map(Mutex::new);
        let out_of_memory = |_| BackendError::OutOfMemory { bytes: Scratch::bytes(shape.vocab) };
        Ok(Self {
            shape,
            growths: Vec::new(),
            copies: Vec::new(),
            tokens: Vec::with_capacity(shape.rows),
            sources: Vec::new(),
            carried: Carried::default(),
            wanted: Vec::new(),
            wanted_carried: Carried::default(),
            ends: Vec::new(),
            at_once: Vec::new(),
            picks: Vec::new(),
            picked: Vec::new(),
            left: Vec::new(),
            scratches: (0..participants).map(|_| scratch()).collect::<Result<_, _>>().map_err(out_of_memory)?,
        })
    }
}

/// Tokens of a feed that was checked; of one that only the device knows, one in its place.
pub(super) fn tokens_of<'a>(feed: &Feed<'a>) -> &'a [u32] {
    match feed.input {
        Input::Tokens(tokens) => tokens,
        Input::Picked { .. } => &[0],
        Input::Media { .. } => &[],
    }
}

fn rows_wanted(feed: &Feed<'_>) -> usize {
    match feed.want {
        Want::Nothing => 0,
        Want::LastRow | Want::Token(_) => 1,
        Want::EveryRow => tokens_of(feed).len(),
    }
}

impl<B: Backend> ModelRuntime<B> {
    /// Checks what each feed says by itself.
    pub(super) fn check(&self, feeds: &[Feed<'_>]) -> Result<(), RuntimeError> {
        let vocab = self.descriptor.vocab_size;
        for feed in feeds {
            let Input::Tokens(tokens) = feed.input else { return Err(RuntimeError::Unsupported) };
            if tokens.is_empty() || tokens.iter().any(|&token| token >= vocab) {
                return Err(RuntimeError::Fault(fault::INTERNAL));
            }
            let served = match feed.want {
                Want::Nothing | Want::LastRow => true,
                Want::EveryRow => tokens.len() <= ROWS_MAX,
                Want::Token(request) => self.descriptor.sampling.serves(&request),
            };
            if !served {
                return Err(RuntimeError::Unsupported);
            }
        }
        Ok(())
    }

    /// Takes the pages of all feeds, or of none; the first part copies those that are shared and will be written.
    pub(super) fn grow(&mut self, feeds: &[Feed<'_>]) -> Result<(), RuntimeError> {
        let Rows { growths, copies, .. } = &mut self.rows;
        growths.clear();
        growths.extend(feeds.iter().map(|feed| Growth { handle: feed.sequence, tokens: tokens_of(feed).len() }));
        copies.clear();
        Ok(self.sequences.grow(growths, copies)?)
    }

    /// Walks all rows, part by part, and answers each feed when its last row is done.
    pub(super) fn walk(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        let again = self.comes_again(feeds);
        let mut cursor = Cursor::default();
        while cursor.feed < feeds.len() {
            self.backend.part_begin(again);
            let walked = self.walk_part(feeds, cursor);
            let answered = walked.and_then(|cursor| self.answer_part(feeds, answers).map(|()| cursor));
            self.backend.part_end();
            cursor = answered?;
        }
        Ok(())
    }

    /// Of lanes that decode the shapes of the next step are likely to be the same.
    pub(super) fn comes_again(&self, feeds: &[Feed<'_>]) -> Again {
        match feeds.iter().all(|feed| tokens_of(feed).len() == 1) {
            false => Again::No,
            true if self.may_capture => Again::Keep,
            true => Again::Use,
        }
    }

    /// Walks the next rows of the step; answers how far it came.
    pub(super) fn walk_part(&mut self, feeds: &[Feed<'_>], from: Cursor) -> Result<Cursor, RuntimeError> {
        let Rows { shape, copies, tokens: ids, sources, carried, wanted, wanted_carried, ends, .. } = &mut self.rows;
        self.backend.copy_pages(&mut self.pages, copies);
        copies.clear();
        let mut cursor = from;
        let mut spans: SmallVec<[Span<'_>; 64]> = SmallVec::new();
        let mut wanted_spans: SmallVec<[Span<'_>; 64]> = SmallVec::new();
        let mut longest = 0;
        ids.clear();
        carried.clear();
        wanted.clear();
        wanted_carried.clear();
        ends.clear();
        while let Some(feed) = feeds.get(cursor.feed) {
            let left = &tokens_of(feed)[cursor.tokens..];
            let room = shape.rows - ids.len();
            // The rows of a feed that wants all of them stay in one part, so that they are answered together.
            let whole = matches!(feed.want, Want::EveryRow);
            if room == 0 || (whole && left.len() > room) {
                break;
            }
            let now = &left[..left.len().min(room)];
            let table = self.sequences.table(feed.sequence)?;
            longest = table.pages().len().max(longest);
            if !spans.is_empty() && (spans.len() + 1).saturating_mul(longest) > self.table_entries {
                break;
            }
            let adapter = self.sequences.mark(feed.sequence);
            let (first_row, start) = (ids.len(), table.len() - left.len());
            spans.push(Span { first_row, rows: now.len(), start, block_table: table.pages() });
            carried.note(adapter, first_row, now.len());
            ids.extend_from_slice(now);
            if now.len() < left.len() {
                cursor.tokens += now.len();
                break;
            }
            // Of a feed the last row is wanted, or all are, or none is.
            let rows = rows_wanted(feed);
            if rows > 0 {
                let (first_row, start) = (wanted.len(), table.len() - rows);
                wanted_spans.push(Span { first_row, rows, start, block_table: table.pages() });
                wanted_carried.note(adapter, first_row, rows);
                wanted.extend(ids.len() - rows..ids.len());
            }
            ends.push(End { feed: cursor.feed, rows });
            cursor = Cursor { feed: cursor.feed + 1, tokens: 0 };
        }
        let adapted = carried.by_adapter(&self.adapters).ok_or(RuntimeError::Fatal)?;
        let wanted_adapted = wanted_carried.by_adapter(&self.adapters).ok_or(RuntimeError::Fatal)?;
        let is_narrower = wanted.len() < ids.len();
        self.work.resize(&self.backend, ids.len()).map_err(|_| RuntimeError::Fatal)?;
        self.network
            .forward(&mut Pass {
                backend: &self.backend,
                pages: &mut self.pages,
                work: &mut self.work,
                tokens: ids,
                picked: (!sources.is_empty()).then_some(sources.as_slice()),
                rows: model::Rows { spans: &spans, adapted: &adapted },
                wanted: is_narrower.then_some(Wanted {
                    of_pass: wanted,
                    rows: model::Rows { spans: &wanted_spans, adapted: &wanted_adapted },
                }),
                layers: 0..self.config.layers,
                progress: Progress::default(),
            })
            .map_err(|_| RuntimeError::Fatal)?;
        Ok(cursor)
    }

    /// Answers the feeds that ended in the part, computing as many rows of logits at once as the workspace holds.
    fn answer_part(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        let (mut next, mut first_row) = (0, 0);
        while next < self.rows.ends.len() {
            let Rows { shape, ends, at_once, .. } = &mut self.rows;
            at_once.clear();
            let group = next;
            while let Some(end) = ends.get(next).filter(|end| at_once.len() + end.rows <= shape.head_rows) {
                at_once.extend(first_row..first_row + end.rows);
                first_row += end.rows;
                next += 1;
            }
            if !at_once.is_empty() {
                self.network.head(&self.backend, &mut self.work, at_once).map_err(|_| RuntimeError::Fatal)?;
            }
            self.answer_group(feeds, group..next, answers)?;
        }
        Ok(())
    }

    /// Answers the feeds whose ends are in `group`; their logits lie one after another.
    fn answer_group(
        &mut self,
        feeds: &[Feed<'_>],
        group: Range<usize>,
        answers: &mut Answers,
    ) -> Result<(), RuntimeError> {
        self.pick_group(feeds, group.clone())?;
        let mut first = 0;
        for end in &self.rows.ends[group] {
            match feeds[end.feed].want {
                Want::Nothing => answers.push_nothing(),
                Want::LastRow | Want::EveryRow => {
                    let rows = answers.push_rows(end.rows);
                    self.backend.read(self.work.logits(), first, rows).map_err(|_| RuntimeError::Fatal)?;
                }
                Want::Token(_) => match self.rows.picks.get(first).and_then(taken) {
                    Some(Ok(picked)) => answers.push_pick(picked),
                    Some(Err(error)) => answers.push_fault(error.fault_code()),
                    None => return Err(RuntimeError::Fatal),
                },
            }
            first += end.rows;
        }
        Ok(())
    }

    /// Picks the tokens that are wanted in `group`, where the logits lie and several at a time. A row is picked from by itself, so it
    /// does not matter by whom and when.
    fn pick_group(&mut self, feeds: &[Feed<'_>], group: Range<usize>) -> Result<(), RuntimeError> {
        let Rows { ends, picks, picked, left, scratches, .. } = &mut self.rows;
        let mut requests: SmallVec<[Option<&SampleRequest<'_>>; 64]> = SmallVec::new();
        for end in &ends[group] {
            let request = match &feeds[end.feed].want {
                Want::Token(request) => Some(request),
                _ => None,
            };
            requests.extend(core::iter::repeat_n(request, end.rows));
        }
        if requests.iter().all(Option::is_none) {
            return Ok(());
        }
        if picks.len() < requests.len() {
            picks.resize_with(requests.len(), Mutex::default);
        }
        picked.clear();
        picked.resize(requests.len(), Picked::NotServed);
        self.backend.pick_rows(self.work.logits_mut(), &requests, picked).map_err(|_| RuntimeError::Fatal)?;
        left.clear();
        for (row, ((slot, picked), request)) in picks.iter_mut().zip(&*picked).zip(&requests).enumerate() {
            let slot = slot.get_mut().unwrap_or_else(PoisonError::into_inner);
            *slot = match *picked {
                Picked::Done(outcome) => Some(outcome),
                Picked::Shaped | Picked::NotServed => None,
            };
            if slot.is_none() && request.is_some() {
                left.push(row);
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        let (picks, picked, scratches, requests) = (&*picks, &*picked, &*scratches, &*requests);
        let pick_row = |participant: usize, row: usize, logits: &mut [f32]| {
            if let (Some(Some(request)), Some(picked), Some(slot), Some(scratch)) =
                (requests.get(row), picked.get(row), picks.get(row), scratches.get(participant))
            {
                let mut scratch = scratch.lock().unwrap_or_else(PoisonError::into_inner);
                let outcome = match picked {
                    Picked::Shaped => Ok(pick_shaped(logits, request, &mut scratch)),
                    _ => pick(logits, request, &mut scratch),
                };
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
            }
        };
        self.backend.each_row(self.work.logits_mut(), left, &pick_row).map_err(|_| RuntimeError::Fatal)
    }
}

/// What was picked, which is then gone.
fn taken(picked: &Mutex<Outcome>) -> Outcome {
    picked.lock().unwrap_or_else(PoisonError::into_inner).take()
}

#[cfg(test)]
mod tests {
    use crate::backend::KvType;
    use crate::backend::cpu::CpuBackend;
    use crate::checkpoint::Checkpoint;
    use crate::runtime::{Answers, Feed, Input, ModelRuntime, PagedIdentity, PagedOptions, Runtime, SeqHandle, Want};

    /// A part of a step ends where the block tables of the next span would have no room, and no bit of a row depends on it.
    #[test]
    fn parts_end_where_block_tables_have_no_room() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/ictus-tiny.gguf");
        let checkpoint = Checkpoint::open(file).expect("the model opens");
        let options = PagedOptions {
            kv_type: KvType::F32,
            page_size_tokens: 4,
            pool_pages: 64,
            context_tokens: 64,
            max_lanes: 8,
            prefill_step_tokens: 128,
            pass_rows: 0,
            cache_resident_tokens: 0,
            cache_exported_tokens: 0,
        };
        let tokens: Vec<u32> = (3..43).collect();
        let lengths = [3, 20, 1, 9, 40];
        // Room for all of it, for two short tables at most, for one table at a time.
        let runs = [usize::MAX, 8, 1].map(|table_entries| {
            let mut runtime = ModelRuntime::new(
                CpuBackend::new(1),
                checkpoint.config(),
                &checkpoint,
                &options,
                PagedIdentity::default(),
            )
            .expect("the model loads");
            runtime.table_entries = table_entries;
            let sequences = lengths.map(|_| runtime.seq_create().expect("a sequence"));
            let feed = |(sequence, length): (SeqHandle, usize)| Feed {
                sequence,
                input: Input::Tokens(&tokens[..length]),
                want: Want::LastRow,
            };
            let feeds: Vec<Feed<'_>> = sequences.into_iter().zip(lengths).map(feed).collect();
            let mut answers = Answers::new();
            runtime.step(&feeds, &mut answers).expect("the step runs");
            let bits = |row: &[f32]| row.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
            let rows: Vec<Vec<u32>> = (0..lengths.len()).map(|row| bits(answers.row(row).expect("a row"))).collect();
            (rows, runtime.rows.tokens.len())
        });
        assert_eq!(runs.each_ref().map(|(_, last_part)| *last_part), [73, 40, 40]);
        assert!(runs.iter().all(|(rows, _)| *rows == runs[0].0), "bits differ");
    }
}
