#![allow(unsafe_code, reason = "the fence of the rings: all of their unsafe code is in this file")]
//! Memory that another thread or process reads and writes at the same time.
//!
//! This is the only file of the rings with `unsafe`. Everything it hands out is an atomic word, so that a race is a matter of
//! the protocol above and never undefined behaviour; payloads are read and written word by word for the same reason.
//!
//! # Invariants
//! - `base` is 8-byte aligned and valid for atomic access to `len` bytes while the mapping lives.
//! - Nothing outside `[0, len)` is ever touched: every accessor checks.

use core::any::Any;
use core::ffi::c_void;
use core::ptr::NonNull;
#[cfg(any(test, all(feature = "worker", target_os = "linux")))]
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::Arc;

use super::LayoutError;

/// Memory of this process that can back rings: zeroed, shared by all its clones, freed with the last.
#[derive(Clone, Debug)]
pub struct Segment {
    words: Arc<[AtomicU64]>,
}

impl Segment {
    /// At least `bytes` zeroed bytes.
    pub fn new(bytes: usize) -> Self {
        Self { words: (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// First byte, for a descriptor. Valid while the segment or a clone lives.
    pub fn base(&self) -> *mut c_void {
        self.words.as_ptr().cast_mut().cast()
    }

    /// Length in bytes, a multiple of 8.
    pub fn len_bytes(&self) -> usize {
        self.words.len() * 8
    }

    /// All words, for tests that spoil headers.
    pub fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    /// A mapping of the whole segment, which it keeps alive.
    pub fn mapping(&self) -> Mapping {
        let base = NonNull::from(&*self.words).cast();
        Mapping { base, len: self.len_bytes(), _owner: Some(Arc::new(self.clone())) }
    }
}

/// A stretch of memory under the protocol of the rings.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    _owner: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY:
// - A mapping is an address and a length; the memory behind it is not bound to a thread: either it is a `Segment`, whose words
//   are atomics behind an `Arc`, or the promise of `Mapping::foreign` speaks of any thread.
// - All access goes through atomics (`word`, `words`), and no method hands out a plain reference into the memory.
unsafe impl Send for Mapping {}

// SAFETY:
// - `&Mapping` gives the length and references to atomic words, both of which any number of threads may use at once; there is no
//   method that writes anything else through it.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Memory that somebody else owns.
    ///
    /// # Errors
    /// `Base` when it is null or not 8-byte aligned, `Length` when no object can be that long.
    ///
    /// # Safety
    /// - `base` is valid for reads and writes of `len` bytes, from any thread, until the mapping is dropped (E-44).
    /// - Until then everybody who touches it does so atomically or under the protocol of E-41, and other processes through
    ///   mappings of their own.
    pub unsafe fn foreign(base: *mut c_void, len: u64) -> Result<Self, LayoutError> {
        let base = NonNull::new(base.cast::<u8>()).ok_or(LayoutError::Base)?;
        if !base.addr().get().is_multiple_of(8) {
            return Err(LayoutError::Base);
        }
        let fits = isize::try_from(len).is_ok_and(|len| base.addr().get().checked_add(len as usize).is_some());
        if !fits {
            return Err(LayoutError::Length);
        }
        Ok(Self { base, len: len as usize, _owner: None })
    }

    /// Memory that `owner` keeps valid, which the mapping keeps alive.
    ///
    /// # Safety
    /// - `base` is 8-byte aligned and valid for reads and writes of `len` bytes, from any thread, until `owner` is dropped.
    /// - Until then everybody in this process who touches it does so through a mapping.
    #[cfg_attr(
        not(all(feature = "worker", target_os = "linux")),
        expect(dead_code, reason = "only the link shares memory that it maps itself")
    )]
    pub(crate) unsafe fn owned(base: NonNull<c_void>, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { base: base.cast(), len, _owner: Some(owner) }
    }

    /// First byte, for a descriptor. Valid while the mapping lives.
    pub fn base(&self) -> *mut c_void {
        self.base.as_ptr().cast()
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    /// The 8-byte word at `offset`; none when it is out of range or not aligned.
    pub(super) fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let end = offset.checked_add(8)?;
        if end > self.len || !offset.is_multiple_of(8) {
            return None;
        }
        // SAFETY:
        // - `offset + 8 <= len`, checked above, so the result stays inside the mapping.
        let at = unsafe { self.base.add(offset) };
        // SAFETY:
        // - 8-byte aligned: the base is (checked at construction), and so is the offset (above).
        // - Valid for 8 bytes while `self` lives: the invariant of the type.
        // - Everybody else accesses it atomically: the promise of `foreign`, or `Segment` has atomics only.
        Some(unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) })
    }

    /// `count` 4-byte words from `offset` on; none when they are out of range or not aligned.
    pub(super) fn words(&self, offset: usize, count: usize) -> Option<&[AtomicU32]> {
        let end = offset.checked_add(count.checked_mul(4)?)?;
        if end > self.len || !offset.is_multiple_of(4) {
            return None;
        }
        // SAFETY:
        // - `offset` is at most `len`, by the check above.
        let at = unsafe { self.base.add(offset) };
        // SAFETY:
        // - 4-byte aligned, and `count` words lie inside the mapping (both checked above).
        // - `AtomicU32` has the layout of `u32` and may change behind a shared reference.
        // - Valid while `self` lives, accessed atomically by everybody: as in `word`.
        Some(unsafe { core::slice::from_raw_parts(at.as_ptr().cast(), count) })
    }
}

/// Copies of bytes, word by word. A word that is written in part keeps its other bytes; two writers of one word may lose each other's.
#[cfg(all(feature = "worker", target_os = "linux"))]
impl Mapping {
    /// Copies from `offset` on; answers whether all of it lies inside whole words of the mapping.
    pub(crate) fn copy_out(&self, offset: usize, out: &mut [u8]) -> bool {
        if !self.has(offset, out.len()) {
            return false;
        }
        let mut at = offset;
        let mut rest = out;
        while !rest.is_empty() {
            let within = at % 8;
            let take = (8 - within).min(rest.len());
            let Some(word) = self.word(at - within) else { return false };
            let bytes = word.load(Relaxed).to_ne_bytes();
            let (now, later) = rest.split_at_mut(take);
            now.copy_from_slice(&bytes[within..within + take]);
            rest = later;
            at += take;
        }
        true
    }

    /// Copies to `offset` on; answers whether all of it lies inside whole words of the mapping, and writes nothing otherwise.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) -> bool {
        if !self.has(offset, bytes.len()) {
            return false;
        }
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let within = at % 8;
            let take = (8 - within).min(rest.len());
            let Some(word) = self.word(at - within) else { return false };
            let (now, later) = rest.split_at(take);
            let mut kept = if take == 8 { [0; 8] } else { word.load(Relaxed).to_ne_bytes() };
            kept[within..within + take].copy_from_slice(now);
            word.store(u64::from_ne_bytes(kept), Relaxed);
            rest = later;
            at += take;
        }
        true
    }

    fn has(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len / 8 * 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_is_handed_out() {
        let mapping = Segment::new(20).mapping();
        assert_eq!(mapping.len_bytes(), 24);
        assert!(mapping.word(16).is_some() && mapping.words(20, 1).is_some() && mapping.words(24, 0).is_some());
        for offset in [1, 4, 17, 24, usize::MAX - 7] {
            assert!(mapping.word(offset).is_none(), "{offset}");
        }
        for (offset, count) in [(24, 1), (20, 2), (2, 1), (0, usize::MAX), (usize::MAX - 3, 2)] {
            assert!(mapping.words(offset, count).is_none(), "{offset} {count}");
        }
    }

    #[test]
    fn mappings_of_a_segment_see_each_other() {
        let segment = Segment::new(64);
        let (a, b) = (segment.mapping(), segment.mapping());
        drop(segment);
        a.word(8).expect("inside").store(0x0102_0304_0506_0708, Relaxed);
        let low = b.words(8, 1).expect("inside");
        assert_eq!(low[0].load(Relaxed).to_le(), 0x0506_0708_u32.to_le());
    }

    #[test]
    fn null_and_misaligned_bases_are_refused() {
        let segment = Segment::new(64);
        let bases = [core::ptr::null_mut(), segment.base().cast::<u8>().wrapping_add(4).cast()];
        for base in bases {
            // SAFETY: the base is refused before it is used.
            let refused = unsafe { Mapping::foreign(base, 8) };
            assert!(matches!(refused, Err(LayoutError::Base)));
        }
        // SAFETY: the length is refused before the base is used.
        let refused = unsafe { Mapping::foreign(segment.base(), u64::MAX) };
        assert!(matches!(refused, Err(LayoutError::Length)));
    }
}
