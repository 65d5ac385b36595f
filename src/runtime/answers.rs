#![forbid(unsafe_code)]
//! What a step answers, in buffers that are reused from step to step.

use crate::sample::Pick;

/// The answer to one feed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer {
    /// The feed wanted nothing.
    Nothing,
    /// Logits rows: `count` of them from row `first` of the step.
    Rows {
        /// Index of the first row.
        first: usize,
        /// Number of rows.
        count: usize,
    },
    /// A picked token.
    Picked(Pick),
    /// The lane of this feed alone fails with this code (`FAULT_*`): its row was not finite, say. The feed's tokens are in the
    /// sequence all the same, and the other answers are good.
    Fault(u32),
    /// Only of a step that was begun ([`Runtime::step_begin`](super::Runtime::step_begin)): its token cannot be picked while another step is under
    /// way. The caller cuts the sequence back to what it held before, and feeds it again by a plain step. What another begun step fed
    /// for this feed ([`Input::Picked`](super::Input::Picked)) is another token than will be picked.
    Again,
}

/// One answer per feed, in feed order.
#[derive(Debug, Default)]
pub struct Answers {
    vocab_size: usize,
    rows: Vec<f32>,
    answers: Vec<Answer>,
}

impl Answers {
    /// Empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets the last step; rows now have `vocab_size` logits.
    pub fn clear(&mut self, vocab_size: usize) {
        self.vocab_size = vocab_size;
        self.rows.clear();
        self.answers.clear();
    }

    /// Makes room for rows of so many bytes in all; false when there is no memory for them.
    pub fn try_reserve_bytes(&mut self, bytes: u64) -> bool {
        let values = usize::try_from(bytes / size_of::<f32>() as u64).unwrap_or(usize::MAX);
        self.rows.try_reserve_exact(values.saturating_sub(self.rows.len())).is_ok()
    }

    /// Answers the next feed with nothing.
    pub fn push_nothing(&mut self) {
        self.answers.push(Answer::Nothing);
    }

    /// Answers the next feed with `count` rows, zeroed, and gives them to be filled.
    pub fn push_rows(&mut self, count: usize) -> &mut [f32] {
        let start = self.rows.len();
        let first = start.checked_div(self.vocab_size).unwrap_or(0);
        self.answers.push(Answer::Rows { first, count });
        self.rows.resize(start + count * self.vocab_size, 0.0);
        &mut self.rows[start..]
    }

    /// Answers the next feed with a picked token.
    pub fn push_pick(&mut self, pick: Pick) {
        self.answers.push(Answer::Picked(pick));
    }

    /// Answers the next feed with the failure of its lane.
    pub fn push_fault(&mut self, code: u32) {
        self.answers.push(Answer::Fault(code));
    }

    /// Answers the next feed of a begun step with the wish to be fed again.
    pub fn push_again(&mut self) {
        self.answers.push(Answer::Again);
    }

    /// The answers so far, one per feed.
    pub fn as_slice(&self) -> &[Answer] {
        &self.answers
    }

    /// Row `index` of the step, or none past the end.
    pub fn row(&self, index: usize) -> Option<&[f32]> {
        let start = index.checked_mul(self.vocab_size)?;
        self.rows.get(start..start.checked_add(self.vocab_size)?)
    }

    /// Row `index` of the step to be shaped in place, or none past the end.
    pub fn row_mut(&mut self, index: usize) -> Option<&mut [f32]> {
        let start = index.checked_mul(self.vocab_size)?;
        self.rows.get_mut(start..start.checked_add(self.vocab_size)?)
    }
}
