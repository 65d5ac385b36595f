#![forbid(unsafe_code)]
//! Where a ring or the control words lie: in a mapping, or in an object that is read and written by position.
//!
//! An object that its owner cuts short while it is mapped ends the process that touches it. Whatever cannot be kept from shrinking is not
//! mapped therefore: each access is a call, and a call can say that there is nothing any more.
//!
//! # Invariants
//! - Nothing outside `[0, len)` is ever touched: every accessor checks.
//! - An access by position is ordered against those before and after it at least as an atomic one of the same name.

use core::fmt::Debug;
use core::sync::atomic::Ordering::{self, Relaxed, SeqCst};
use core::sync::atomic::fence;
use std::sync::Arc;

use super::mapping::Mapping;

/// Bytes that go at once between an object and a list.
const PIECE_BYTES: usize = 2048;

/// Memory that is not mapped.
pub trait ByPosition: Debug + Send + Sync {
    /// Its length in bytes, which what is behind it may fall short of at any time.
    fn len_bytes(&self) -> usize;

    /// Reads all of `out`; false when the object does not have it any more.
    fn read(&self, offset: usize, out: &mut [u8]) -> bool;

    /// Writes all of `bytes`; false when the object does not take them any more.
    fn write(&self, offset: usize, bytes: &[u8]) -> bool;
}

/// Memory of a ring or of the control words.
#[derive(Debug)]
pub enum Store {
    /// Mapped; it cannot go away.
    Mapped(Mapping),
    /// Reached by position.
    Positioned(Arc<dyn ByPosition>),
}

impl From<Mapping> for Store {
    fn from(mapping: Mapping) -> Self {
        Self::Mapped(mapping)
    }
}

/// Four bytes of a payload.
pub trait Word: Copy {
    /// As it lies in memory.
    fn to_word(self) -> u32;
    /// From memory.
    fn from_word(word: u32) -> Self;
}

impl Word for u32 {
    fn to_word(self) -> u32 {
        self
    }
    fn from_word(word: u32) -> Self {
        word
    }
}

impl Word for f32 {
    fn to_word(self) -> u32 {
        self.to_bits()
    }
    fn from_word(word: u32) -> Self {
        Self::from_bits(word)
    }
}

impl Store {
    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Mapped(mapping) => mapping.len_bytes(),
            Self::Positioned(object) => object.len_bytes(),
        }
    }

    /// The 8-byte word at `offset`; none when it is out of range or not aligned, or the object is gone.
    pub(super) fn get(&self, offset: usize, order: Ordering) -> Option<u64> {
        match self {
            Self::Mapped(mapping) => Some(mapping.word(offset)?.load(order)),
            Self::Positioned(object) => {
                let mut bytes = [0; 8];
                read(&**object, offset, &mut bytes)?;
                Some(u64::from_ne_bytes(bytes))
            }
        }
    }

    /// Stores the 8-byte word at `offset`; none as [`Store::get`].
    pub(super) fn set(&self, offset: usize, value: u64, order: Ordering) -> Option<()> {
        match self {
            Self::Mapped(mapping) => mapping.word(offset)?.store(value, order),
            Self::Positioned(object) => write(&**object, offset, &value.to_ne_bytes())?,
        }
        Some(())
    }

    /// The 4-byte word at `offset`; none as [`Store::get`].
    pub(super) fn get_half(&self, offset: usize) -> Option<u32> {
        match self {
            Self::Mapped(mapping) => Some(mapping.words(offset, 1)?.first()?.load(Relaxed)),
            Self::Positioned(object) => {
                let mut bytes = [0; 4];
                read(&**object, offset, &mut bytes)?;
                Some(u32::from_ne_bytes(bytes))
            }
        }
    }

    /// Appends `count` 4-byte words from `offset` on to `out`; none as [`Store::get`], some of them may have been appended then.
    pub(super) fn append<T: Word>(&self, offset: usize, count: usize, out: &mut Vec<T>) -> Option<()> {
        match self {
            Self::Mapped(mapping) => {
                let words = mapping.words(offset, count)?;
                out.extend(words.iter().map(|word| T::from_word(word.load(Relaxed))));
            }
            Self::Positioned(object) => {
                let end = offset.checked_add(count.checked_mul(4)?)?;
                let mut piece = [0; PIECE_BYTES];
                for at in (offset..end).step_by(PIECE_BYTES) {
                    let piece = piece.get_mut(..PIECE_BYTES.min(end - at))?;
                    read(&**object, at, piece)?;
                    let (words, _) = piece.as_chunks::<4>();
                    out.extend(words.iter().map(|&word| T::from_word(u32::from_ne_bytes(word))));
                }
            }
        }
        Some(())
    }

    /// Stores 4-byte words from `offset` on: the two of `head`, then `values`; none as [`Store::get`].
    pub(super) fn fill<T: Word>(&self, offset: usize, head: [u32; 2], values: &[T]) -> Option<()> {
        let all = head.into_iter().chain(values.iter().map(|value| value.to_word()));
        match self {
            Self::Mapped(mapping) => {
                let words = mapping.words(offset, values.len().checked_add(head.len())?)?;
                words.iter().zip(all).for_each(|(word, value)| word.store(value, Relaxed));
            }
            Self::Positioned(object) => {
                let (mut piece, mut len, mut at) = ([0; PIECE_BYTES], 0, offset);
                for value in all {
                    piece.get_mut(len..len + 4)?.copy_from_slice(&value.to_ne_bytes());
                    len += 4;
                    if len == PIECE_BYTES {
                        write(&**object, at, &piece)?;
                        (at, len) = (at + len, 0);
                    }
                }
                write(&**object, at, piece.get(..len)?)?;
            }
        }
        Some(())
    }
}

/// The kernel copies while it is called; what other threads see of the calls is held in order by the fences.
fn read(object: &dyn ByPosition, offset: usize, out: &mut [u8]) -> Option<()> {
    let inside = offset.checked_add(out.len()).is_some_and(|end| end <= object.len_bytes());
    let done = inside && object.read(offset, out);
    fence(SeqCst);
    done.then_some(())
}

fn write(object: &dyn ByPosition, offset: usize, bytes: &[u8]) -> Option<()> {
    let inside = offset.checked_add(bytes.len()).is_some_and(|end| end <= object.len_bytes());
    fence(SeqCst);
    (inside && object.write(offset, bytes)).then_some(())
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering::{Acquire, Release};
    use std::sync::Mutex;

    use super::*;
    use crate::ring::Segment;

    /// An object in memory, which may be cut.
    #[derive(Debug)]
    struct Plain(Mutex<Vec<u8>>, usize);

    impl ByPosition for Plain {
        fn len_bytes(&self) -> usize {
            self.1
        }
        fn read(&self, offset: usize, out: &mut [u8]) -> bool {
            let bytes = self.0.lock().expect("whole");
            bytes.get(offset..offset + out.len()).map(|there| out.copy_from_slice(there)).is_some()
        }
        fn write(&self, offset: usize, bytes: &[u8]) -> bool {
            let mut there = self.0.lock().expect("whole");
            there.get_mut(offset..offset + bytes.len()).map(|there| there.copy_from_slice(bytes)).is_some()
        }
    }

    /// Payloads shorter and longer than a piece, against the mapping.
    #[test]
    fn words_by_position_are_the_words_of_a_mapping() {
        const BYTES: usize = 3 * PIECE_BYTES;
        for len in [0, 1, 2, PIECE_BYTES / 4 - 3, PIECE_BYTES / 4 - 2, PIECE_BYTES / 4, PIECE_BYTES / 2 + 1] {
            let plain = Arc::new(Plain(Mutex::new(vec![0; BYTES]), BYTES));
            let stores = [Store::from(Segment::new(BYTES).mapping()), Store::Positioned(plain)];
            let values: Vec<u32> = (0..len as u32).map(|n| n.wrapping_mul(0x0101_0107) + 1).collect();
            for store in &stores {
                assert_eq!(store.set(8, u64::MAX - 5, Release), Some(()));
                assert_eq!(store.fill(16, [7, 9], &values), Some(()), "{len}");
                assert_eq!(store.fill(BYTES - 8, [1, 2], &[3u32]), None, "nothing outside");
                assert_eq!(store.get(BYTES - 4, Acquire), None);
                let mut read: Vec<u32> = vec![5];
                assert_eq!(store.append(24, len, &mut read), Some(()));
                assert_eq!((&read[..1], &read[1..]), (&[5][..], &values[..]));
                assert_eq!(store.append(BYTES - 4, 2, &mut Vec::<u32>::new()), None);
            }
            let words =
                |store: &Store| -> Vec<Option<u64>> { (0..BYTES / 8).map(|n| store.get(n * 8, Acquire)).collect() };
            assert_eq!(words(&stores[0]), words(&stores[1]), "{len}");
            assert_eq!((stores[1].get_half(16), stores[1].get_half(20)), (Some(7), Some(9)));
        }
    }

    #[test]
    fn object_that_is_gone_answers_none() {
        let plain = Arc::new(Plain(Mutex::new(vec![0; 64]), 64));
        let store = Store::Positioned(Arc::clone(&plain) as Arc<dyn ByPosition>);
        plain.0.lock().expect("whole").truncate(20);
        assert_eq!(store.get(8, Acquire), Some(0));
        assert_eq!((store.get(16, Acquire), store.get_half(20), store.set(24, 1, Relaxed)), (None, None, None));
        assert_eq!(store.append(8, 8, &mut Vec::<u32>::new()), None);
        assert_eq!(store.fill(8, [1, 2], &[3u32; 4]), None);
    }
}
