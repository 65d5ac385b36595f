#![forbid(unsafe_code)]
//! Sixteen rows at once on their way from the file into tiles: what is done to the word of one row is done to those of all.
//!
//! The loops have a fixed length and no branch, so that compilers make vectors of them, whatever the instruction set.

use core::ops::{BitAnd, BitOr, BitOrAssign, BitXor, Mul, Shl, Shr};

use super::{LINE, ROWS};
use crate::backend::cpu::simd::part;

/// Most words of four codes in a unit of a row: those of a superblock.
pub(super) const UNIT_WORDS: usize = 64;

/// Four bytes of each row: lane `r` is row `r`'s.
#[derive(Clone, Copy)]
pub(in super::super) struct Words([u32; ROWS]);

impl Words {
    /// No bits.
    pub(super) const ZERO: Self = Self([0; ROWS]);

    #[inline(always)]
    fn each(self, f: impl Fn(u32) -> u32) -> Self {
        Self(self.0.map(f))
    }

    /// As a line has them: dword `r` belongs to row `r`.
    #[inline(always)]
    pub(super) fn store(self, line: &mut [u8; LINE]) {
        for (to, word) in line.as_chunks_mut::<4>().0.iter_mut().zip(self.0) {
            *to = word.to_le_bytes();
        }
    }
}

/// An operation with the same number on every row.
macro_rules! with_number {
    ($operation:ident, $function:ident, $operator:tt) => {
        impl $operation<u32> for Words {
            type Output = Self;

            #[inline(always)]
            fn $function(self, by: u32) -> Self {
                self.each(|word| word $operator by)
            }
        }
    };
}

with_number!(BitAnd, bitand, &);
with_number!(BitXor, bitxor, ^);
with_number!(Shl, shl, <<);
with_number!(Shr, shr, >>);

impl Mul<u32> for Words {
    type Output = Self;

    #[inline(always)]
    fn mul(self, by: u32) -> Self {
        self.each(|word| word.wrapping_mul(by))
    }
}

impl BitOr for Words {
    type Output = Self;

    #[inline(always)]
    fn bitor(mut self, other: Self) -> Self {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word |= other;
        }
        self
    }
}

impl BitOrAssign for Words {
    #[inline(always)]
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

/// The same unit of 16 rows of a file.
#[derive(Clone, Copy)]
pub(in super::super) struct Unit<'a> {
    rows: &'a [&'a [u8]; ROWS],
    /// Where in its row the unit begins.
    at: usize,
}

impl<'a> Unit<'a> {
    /// The unit at byte `at` of rows that all have one there.
    pub(super) fn new(rows: &'a [&'a [u8]; ROWS], at: usize) -> Self {
        Self { rows, at }
    }

    /// The words at byte `at` of the unit.
    #[inline(always)]
    pub(super) fn word(&self, at: usize) -> Words {
        Words(self.rows.map(|row| u32::from_le_bytes(*part(row, self.at + at))))
    }
}
