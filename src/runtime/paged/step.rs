#![forbid(unsafe_code)]
//! One step: check, take pages, walk, answer.

use smallvec::SmallVec;

use super::ModelRuntime;
use crate::backend::{Backend, Span};
use crate::kv::{Growth, PageRef};
use crate::model::{Pass, WorkspaceShape};
use crate::record::constant::fault;
use crate::runtime::{Answers, Feed, Input, ROWS_MAX, RuntimeError, Want};
use crate::sample::pick;

/// Lists of a step, reused from step to step.
pub(super) struct Rows {
    shape: WorkspaceShape,
    growths: Vec<Growth>,
    copies: Vec<(PageRef, PageRef)>,
    /// Token of each row of the part.
    tokens: Vec<u32>,
    /// Feeds whose last row lies in the part, in feed order.
    ends: Vec<End>,
    /// Rows whose logits are computed at once.
    wanted: Vec<usize>,
}

/// The end of a feed in a part.
#[derive(Clone, Copy)]
struct End {
    feed: usize,
    /// First row of the part whose logits are wanted.
    first_row: usize,
    /// How many are wanted.
    rows: usize,
}

/// How far a step has been walked.
#[derive(Clone, Copy, Default)]
struct Cursor {
    feed: usize,
    /// Tokens of the feed that were walked.
    tokens: usize,
}

impl Rows {
    pub(super) fn new(shape: WorkspaceShape) -> Self {
        Self {
            shape,
            growths: Vec::new(),
            copies: Vec::new(),
            tokens: Vec::with_capacity(shape.rows),
            ends: Vec::new(),
            wanted: Vec::new(),
        }
    }
}

/// Tokens of a feed that was checked.
fn tokens_of<'a>(feed: &Feed<'a>) -> &'a [u32] {
    match feed.input {
        Input::Tokens(tokens) => tokens,
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

    /// Takes the pages of all feeds, or of none, and copies those that are shared and will be written.
    pub(super) fn grow(&mut self, feeds: &[Feed<'_>]) -> Result<(), RuntimeError> {
        let Rows { growths, copies, .. } = &mut self.rows;
        growths.clear();
        growths.extend(feeds.iter().map(|feed| Growth { handle: feed.sequence, tokens: tokens_of(feed).len() }));
        copies.clear();
        self.sequences.grow(growths, copies)?;
        if !copies.is_empty() {
            self.backend.copy_pages(&mut self.pages, copies);
        }
        Ok(())
    }

    /// Walks all rows, part by part, and answers each feed when its last row is done.
    pub(super) fn walk(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        let mut cursor = Cursor::default();
        while cursor.feed < feeds.len() {
            cursor = self.walk_part(feeds, cursor)?;
            self.answer_part(feeds, answers)?;
        }
        Ok(())
    }

    /// Walks the next rows of the step; answers how far it came.
    fn walk_part(&mut self, feeds: &[Feed<'_>], from: Cursor) -> Result<Cursor, RuntimeError> {
        let Rows { shape, tokens: ids, ends, .. } = &mut self.rows;
        let mut cursor = from;
        let mut spans: SmallVec<[Span<'_>; 64]> = SmallVec::new();
        ids.clear();
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
            let first_row = ids.len();
            spans.push(Span {
                first_row,
                rows: now.len(),
                start: table.len() - left.len(),
                block_table: table.pages(),
            });
            ids.extend_from_slice(now);
            if now.len() < left.len() {
                cursor.tokens += now.len();
                break;
            }
            let rows = rows_wanted(feed);
            ends.push(End { feed: cursor.feed, first_row: ids.len() - rows, rows });
            cursor = Cursor { feed: cursor.feed + 1, tokens: 0 };
        }
        self.work.resize(&self.backend, ids.len()).map_err(|_| RuntimeError::Fatal)?;
        self.network.forward(&mut Pass {
            backend: &self.backend,
            pages: &mut self.pages,
            work: &mut self.work,
            tokens: ids,
            spans: &spans,
        });
        Ok(cursor)
    }

    /// Answers the feeds that ended in the part, computing as many rows of logits at once as the workspace holds.
    fn answer_part(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        let mut next = 0;
        while next < self.rows.ends.len() {
            let Rows { shape, ends, wanted, .. } = &mut self.rows;
            wanted.clear();
            let group = next;
            while let Some(end) = ends.get(next).filter(|end| wanted.len() + end.rows <= shape.head_rows) {
                wanted.extend(end.first_row..end.first_row + end.rows);
                next += 1;
            }
            if !wanted.is_empty() {
                self.network.head(&self.backend, &mut self.work, wanted).map_err(|_| RuntimeError::Fatal)?;
            }
            self.answer_group(feeds, group..next, answers)?;
        }
        Ok(())
    }

    /// Answers the feeds whose ends are in `group`; their logits lie one after another.
    fn answer_group(
        &mut self,
        feeds: &[Feed<'_>],
        group: std::ops::Range<usize>,
        answers: &mut Answers,
    ) -> Result<(), RuntimeError> {
        let logits = self.work.logits();
        let mut first = 0;
        for end in &self.rows.ends[group] {
            match feeds[end.feed].want {
                Want::Nothing => answers.push_nothing(),
                Want::LastRow | Want::EveryRow => {
                    let rows = answers.push_rows(end.rows);
                    self.backend.read(logits, first, rows).map_err(|_| RuntimeError::Fatal)?;
                }
                Want::Token(request) => {
                    self.backend.read(logits, first, &mut self.row).map_err(|_| RuntimeError::Fatal)?;
                    match pick(&mut self.row, &request, &mut self.scratch) {
                        Ok(picked) => answers.push_pick(picked),
                        Err(error) => answers.push_fault(error.fault_code()),
                    }
                }
            }
            first += end.rows;
        }
        Ok(())
    }
}
