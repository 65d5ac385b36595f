#![forbid(unsafe_code)]
//! Names of sequences, and parts of prompts.

use crate::capacity::{Bad, Refusal};

/// Names one incarnation of a sequence.
///
/// A slot is used again, a generation never. Nothing that a host supplies takes part in it. The default names nothing: every core answers
/// `Foreign` to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq {
    pub(super) core: u32,
    pub(super) slot: u32,
    pub(super) generation: u64,
}

impl Seq {
    /// The name as three numbers, for a boundary that passes plain data: core, slot, generation.
    pub const fn to_parts(self) -> (u32, u32, u64) {
        (self.core, self.slot, self.generation)
    }

    /// The name of these numbers. One that no core gave out names nothing, and is answered so.
    pub const fn from_parts(core: u32, slot: u32, generation: u64) -> Self {
        Self { core, slot, generation }
    }
}

/// A part of an admitted context: tokens `start .. start + len` of `total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    start: usize,
    len: usize,
    total: usize,
}

impl Chunk {
    /// A chunk of at least one token.
    ///
    /// # Errors
    /// `Bounds` when `len` or `total` is 0, or the end lies past `total` or overflows.
    pub const fn new(start: usize, len: usize, total: usize) -> Result<Self, Refusal> {
        match start.checked_add(len) {
            Some(end) if len > 0 && end <= total => Ok(Self { start, len, total }),
            _ => Err(Refusal::bad(Bad::Bounds)),
        }
    }

    /// First token.
    pub const fn start(&self) -> usize {
        self.start
    }

    /// Tokens, at least one.
    #[expect(clippy::len_without_is_empty, reason = "a chunk is never empty")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Tokens of the context.
    pub const fn total(&self) -> usize {
        self.total
    }

    /// Token behind the last one.
    pub const fn end(&self) -> usize {
        self.start + self.len
    }

    /// Whether it ends the context, and so yields a row.
    pub const fn is_final(&self) -> bool {
        self.end() == self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// XS-1.
    #[test]
    fn xs_1_chunks_are_checked_when_made() {
        let chunk = |start, len, total| {
            Chunk::new(start, len, total).map(|chunk| (chunk.start()..chunk.end(), chunk.is_final()))
        };
        assert_eq!(chunk(0, 4, 9), Ok((0..4, false)));
        assert_eq!(chunk(4, 5, 9), Ok((4..9, true)));
        for (start, len, total) in [(0, 0, 9), (0, 1, 0), (8, 2, 9), (usize::MAX - 1, 5, usize::MAX)] {
            assert_eq!(chunk(start, len, total), Err(Refusal::bad(Bad::Bounds)), "{start} {len} {total}");
        }
    }
}
