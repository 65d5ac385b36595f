#![forbid(unsafe_code)]
//! A position in bytes that are not trusted: every read is checked against what is left.

use core::ops::Range;

/// A read that goes past the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Short {
    /// Where the read starts.
    pub(super) offset: u64,
    /// Bytes it takes, at least.
    pub(super) needed: u64,
    /// Bytes that are left.
    pub(super) available: u64,
}

/// Reads little-endian numbers and length-prefixed strings.
///
/// # Invariants
/// `at <= bytes.len()`; a read that fails leaves the position where it was, or inside the value it was reading.
#[derive(Clone)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Offset of the next byte.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Bytes left.
    pub(super) fn remaining(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// Steps over `len` bytes and gives their range.
    pub(super) fn skip(&mut self, len: u64) -> Result<Range<usize>, Short> {
        let available = self.remaining();
        match usize::try_from(len) {
            Ok(step) if len <= available => {
                let start = self.at;
                self.at += step;
                Ok(start..self.at)
            }
            _ => Err(Short { offset: self.at as u64, needed: len, available }),
        }
    }

    /// Steps over `count` values of at least `unit_bytes` each, or says that they cannot be there.
    pub(super) fn expect_units(&self, count: u64, unit_bytes: u64) -> Result<(), Short> {
        let needed = count.saturating_mul(unit_bytes);
        let available = self.remaining();
        if needed > available { Err(Short { offset: self.at as u64, needed, available }) } else { Ok(()) }
    }

    pub(super) fn take(&mut self, len: u64) -> Result<&'a [u8], Short> {
        let range = self.skip(len)?;
        Ok(&self.bytes[range])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64)?);
        Ok(out)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Short> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Short> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_le_bytes)
    }

    /// A string: its length in 8 bytes, then its bytes. Gives the range of the latter.
    pub(super) fn string(&mut self) -> Result<Range<usize>, Short> {
        let len = self.u64()?;
        self.skip(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_past_the_end_say_where_and_how_much() {
        let mut cursor = Cursor::new(&[1, 0, 0, 0, 9]);
        assert_eq!(cursor.u32(), Ok(1));
        assert_eq!(cursor.u16(), Err(Short { offset: 4, needed: 2, available: 1 }));
        assert_eq!(cursor.u8(), Ok(9));
        assert_eq!(cursor.skip(u64::MAX), Err(Short { offset: 5, needed: u64::MAX, available: 0 }));
        assert_eq!(cursor.skip(0), Ok(5..5));
    }

    #[test]
    fn a_count_that_overflows_is_refused_before_anything_is_read() {
        let cursor = Cursor::new(&[0; 16]);
        assert!(cursor.expect_units(2, 8).is_ok());
        assert!(cursor.expect_units(3, 8).is_err());
        assert!(cursor.expect_units(u64::MAX, 12).is_err());
    }
}
