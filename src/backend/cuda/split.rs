#![forbid(unsafe_code)]
//! Which rows of a walk are split by position, and which of their segments they share: the lists of `kernels/split.cuh`.
//!
//! ```text
//! spans of at most SPLIT_ROWS rows, in the order of their block tables     members: their rows
//! a run that begins with the same pages    a task for each segment wholly inside them, of all members of the run
//! the rest of each span                    its own work
//! ```
//! # Invariants
//! - Of every member, each segment up to its position is in exactly one task, or is its span's own.
//! - Shared segments lie before the first row of all of their spans, so nobody writes them in this step.
//! - It decides who computes a segment, never how: no bit depends on it.
//!
//! # Limits
//! Heads and windows are not known here; a task of a segment that no member sees through its window is launched and does nothing.

use super::launch::SEGMENT;
use crate::backend::Span;

/// Rows of the longest span that is split: a draft and the token before it.
const SPLIT_ROWS: usize = 8;
/// In the place of a span's first member: its rows are not split.
const WALKED: u32 = u32::MAX;

/// The lists of a walk. Kept, so that their memory is.
#[derive(Default)]
pub(super) struct Split {
    /// Row, position, first slot.
    pub(super) members: Vec<[u32; 3]>,
    /// Of each span the first member or [`WALKED`], and its shared segments.
    pub(super) parts: Vec<[u32; 2]>,
    /// Segment, span whose block table is read, first member, members.
    pub(super) tasks: Vec<[u32; 4]>,
    pub(super) counts: Counts,
    /// Spans that are split, in the order of their block tables.
    order: Vec<Sequence>,
}

/// How much there is of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) members: usize,
    pub(super) tasks: usize,
    /// Members of the largest task.
    pub(super) most_members: usize,
    /// Slots of all members.
    pub(super) slots: usize,
    /// Of the spans that are split: rows of the longest one, and segments of the one that reaches farthest.
    pub(super) most_rows: usize,
    pub(super) segments: usize,
    /// Rows of the longest span that is not split; 0 when all are.
    pub(super) walked_rows: usize,
}

#[derive(Clone, Copy, Debug)]
struct Sequence {
    span: usize,
    first_member: usize,
    /// Whole segments in common with the sequence before.
    common: usize,
}

/// Pages that both tables begin with. Tables are long and often equal, so that pieces are compared whole.
fn common_pages(one: &[u32], two: &[u32]) -> usize {
    const PIECE: usize = 64;
    let pieces = one.chunks(PIECE).zip(two.chunks(PIECE));
    let whole = PIECE * pieces.take_while(|(one, two)| one == two && one.len() == PIECE).count();
    let rest = one[whole..].iter().zip(&two[whole..]);
    whole + rest.take_while(|(one, two)| one == two).count()
}

impl Split {
    /// Makes the lists anew.
    pub(super) fn make(&mut self, spans: &[Span<'_>], page_size_tokens: usize) {
        self.members.clear();
        self.parts.clear();
        self.tasks.clear();
        self.order.clear();
        self.counts = Counts::default();
        self.parts.resize(spans.len(), [WALKED, 0]);
        self.sort(spans);
        self.list_members(spans);
        self.find_common(spans, page_size_tokens);
        self.list_tasks();
        self.counts.members = self.members.len();
        self.counts.tasks = self.tasks.len();
    }

    /// Words of the lists.
    pub(super) fn words(&self) -> usize {
        self.members.len() * 3 + self.parts.len() * 2 + self.tasks.len() * 4
    }

    fn sort(&mut self, spans: &[Span<'_>]) {
        for (index, span) in spans.iter().enumerate().filter(|(_, span)| span.rows > 0) {
            if span.rows <= SPLIT_ROWS {
                self.order.push(Sequence { span: index, first_member: 0, common: 0 });
            } else {
                self.counts.walked_rows = self.counts.walked_rows.max(span.rows);
            }
        }
        self.order.sort_unstable_by(|one, two| {
            let (one_table, two_table) = (spans[one.span].block_table, spans[two.span].block_table);
            let common = common_pages(one_table, two_table);
            one_table.get(common).cmp(&two_table.get(common)).then(one.span.cmp(&two.span))
        });
    }

    fn list_members(&mut self, spans: &[Span<'_>]) {
        let counts = &mut self.counts;
        for sequence in &mut self.order {
            let span = &spans[sequence.span];
            sequence.first_member = self.members.len();
            self.parts[sequence.span][0] = self.members.len() as u32;
            for row in 0..span.rows {
                let position = span.start + row;
                // Positions and rows stay within 32 bits: pools are no larger. Launches check the slots.
                self.members.push([span.first_row + row, position, counts.slots].map(|n| n as u32));
                counts.slots += position / SEGMENT + 1;
            }
            counts.most_rows = counts.most_rows.max(span.rows);
            counts.segments = counts.segments.max((span.start + span.rows).div_ceil(SEGMENT));
        }
    }

    /// Whole segments that each sequence has in the same pages as the one before, before the rows of either.
    fn find_common(&mut self, spans: &[Span<'_>], page_size_tokens: usize) {
        for index in 1..self.order.len() {
            let (before, this) = (self.order[index - 1].span, self.order[index].span);
            let (one, two) = (&spans[before], &spans[this]);
            let segments = one.start.min(two.start) / SEGMENT;
            let pages = (segments * SEGMENT).div_ceil(page_size_tokens.max(1));
            let equal = common_pages(one.block_table, two.block_table).min(pages);
            let common = if equal == pages { segments } else { equal * page_size_tokens / SEGMENT };
            self.order[index].common = common;
            for span in [before, this] {
                self.parts[span][1] = self.parts[span][1].max(common as u32);
            }
        }
    }

    /// Of each segment the runs of sequences that have it in the same pages.
    fn list_tasks(&mut self) {
        let last = self.order.iter().map(|sequence| sequence.common).max().unwrap_or(0);
        for segment in 0..last {
            let mut first = 0;
            while first < self.order.len() {
                let mut end = first + 1;
                while self.order.get(end).is_some_and(|sequence| sequence.common > segment) {
                    end += 1;
                }
                if end - first > 1 {
                    let first_member = self.order[first].first_member;
                    let behind = self.order.get(end).map_or(self.members.len(), |next| next.first_member);
                    let members = behind - first_member;
                    self.tasks.push([segment, self.order[first].span, first_member, members].map(|n| n as u32));
                    self.counts.most_members = self.counts.most_members.max(members);
                }
                first = end;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every segment up to a row's position is in one task, or its span's own; all of a task have its pages.
    fn check(spans: &[Span<'_>], page_size_tokens: usize) -> Split {
        let mut split = Split::default();
        split.make(spans, page_size_tokens);
        let mut slots: Vec<bool> = vec![false; split.counts.slots];
        for (index, span) in spans.iter().enumerate() {
            let [first, shared] = split.parts[index];
            if span.rows == 0 || span.rows > SPLIT_ROWS {
                assert_eq!([first, shared], [WALKED, 0]);
                continue;
            }
            for row in 0..span.rows {
                let number = first as usize + row;
                let [of, position, slot] = split.members[number].map(|n| n as usize);
                assert_eq!((of, position), (span.first_row + row, span.start + row));
                for segment in 0..=position / SEGMENT {
                    assert!(!core::mem::replace(&mut slots[slot + segment], true), "a slot has one owner");
                    let has = |task: &&[u32; 4]| {
                        task[0] as usize == segment
                            && (task[2] as usize..(task[2] + task[3]) as usize).contains(&number)
                    };
                    let tasks: Vec<&[u32; 4]> = split.tasks.iter().filter(has).collect();
                    assert_eq!(tasks.len(), usize::from(segment < shared as usize), "{span:?} segment {segment}");
                    for task in tasks {
                        assert!((segment + 1) * SEGMENT <= span.start, "before the rows");
                        let pages =
                            segment * SEGMENT / page_size_tokens..((segment + 1) * SEGMENT).div_ceil(page_size_tokens);
                        let table = spans[task[1] as usize].block_table;
                        assert_eq!(table[pages.clone()], span.block_table[pages]);
                    }
                }
            }
        }
        assert!(slots.iter().all(|is_used| *is_used));
        split
    }

    #[test]
    fn cuda_segments_of_shared_pages_are_tasks_of_all_their_rows() {
        // Two begin with the same four segments, a third with one of them; one has nothing to do with them, one is walked.
        let whole: Vec<u32> = (0..80).collect();
        let branch: Vec<u32> = (0..24).chain(200..260).collect();
        let other: Vec<u32> = (300..400).collect();
        let spans = [
            Span { first_row: 0, rows: 1, start: 1100, block_table: &whole },
            Span { first_row: 1, rows: 1, start: 900, block_table: &other },
            Span { first_row: 2, rows: 3, start: 1030, block_table: &whole },
            Span { first_row: 5, rows: 1, start: 600, block_table: &branch },
            Span { first_row: 6, rows: 40, start: 512, block_table: &whole },
            Span { first_row: 46, rows: 0, start: 512, block_table: &whole },
        ];
        let split = check(&spans, 16);
        let counts = |segment: u32| -> Vec<u32> {
            split.tasks.iter().filter(|task| task[0] == segment).map(|task| task[3]).collect()
        };
        assert_eq!([0, 1, 2, 3, 4].map(counts), [vec![5], vec![4], vec![4], vec![4], vec![]]);
        let Counts { members, most_members, most_rows, segments, walked_rows, .. } = split.counts;
        assert_eq!((members, most_members, most_rows, segments, walked_rows), (6, 5, 3, 5, 40));
    }

    #[test]
    fn cuda_common_pages_are_counted_to_the_first_that_differs() {
        let table: Vec<u32> = (0..200).collect();
        for len in [0, 1, 63, 64, 65, 128, 200] {
            assert_eq!(common_pages(&table, &table[..len]), len, "one is shorter");
            let mut other = table.clone();
            if let Some(page) = other.get_mut(len) {
                *page = 1000;
                assert_eq!(common_pages(&other, &table), len);
            }
        }
    }

    #[test]
    fn cuda_pages_of_any_size_are_shared_by_whole_segments() {
        for page_size_tokens in [1, 5, 16, 100, 256, 600] {
            let pages = 2000_usize.div_ceil(page_size_tokens) as u32;
            // Equal for 700 tokens at most.
            let equal = 700 / page_size_tokens as u32;
            let one: Vec<u32> = (0..pages).collect();
            let two: Vec<u32> = (0..equal).chain(5000..5000 + pages).collect();
            let spans = [one, two];
            let spans: Vec<Span<'_>> =
                (0..2).map(|i| Span { first_row: i, rows: 1, start: 1500 + i, block_table: &spans[i] }).collect();
            let split = check(&spans, page_size_tokens);
            assert_eq!(split.counts.tasks, equal as usize * page_size_tokens / SEGMENT, "{page_size_tokens}");
        }
    }
}
