#![forbid(unsafe_code)]
//! Two words by which the host hurries the engine while it ticks (E-36, E-37, E-46).
//!
//! ```text
//! 0 magic u64 | 8 yield u64 | 16 latency u64 | 24 unused up to 64
//! ```
//! A word is on when it is not zero. Any thread or process may write either at any time.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Release};

use super::LayoutError;
use super::mapping::{Mapping, Segment};
use crate::record::constant::control::{BYTES, LATENCY_OFFSET, MAGIC, YIELD_OFFSET};

/// One end of the control words; host and engine each have theirs.
#[derive(Debug)]
pub struct ControlWords {
    mapping: Mapping,
}

impl ControlWords {
    /// Lays out cleared words in a segment of their own, as the host does.
    pub fn create() -> Segment {
        let segment = Segment::new(BYTES);
        if let Some(magic) = segment.words().first() {
            magic.store(MAGIC, Release);
        }
        segment
    }

    /// Lays out cleared words in zeroed memory and opens one end of them.
    ///
    /// # Errors
    /// `Length` when it is shorter than 64 bytes.
    pub fn lay_out(mapping: Mapping) -> Result<Self, LayoutError> {
        if mapping.len_bytes() < BYTES {
            return Err(LayoutError::Length);
        }
        if let Some(magic) = mapping.word(0) {
            magic.store(MAGIC, Release);
        }
        Ok(Self { mapping })
    }

    /// Opens the words in `mapping`.
    ///
    /// # Errors
    /// `Length` when it is shorter than 64 bytes, `Magic`.
    pub fn open(mapping: Mapping) -> Result<Self, LayoutError> {
        if mapping.len_bytes() < BYTES {
            return Err(LayoutError::Length);
        }
        let magic = mapping.word(0).map_or(0, |word| word.load(Acquire));
        if magic != MAGIC {
            return Err(LayoutError::Magic { got: magic });
        }
        Ok(Self { mapping })
    }

    /// Whether the host would rather have the tick return early (E-36).
    pub fn yield_requested(&self) -> bool {
        self.is_on(YIELD_OFFSET)
    }

    /// Whether latency-sensitive requests have been around (E-37).
    pub fn latency_wanted(&self) -> bool {
        self.is_on(LATENCY_OFFSET)
    }

    /// Raises or clears the yield word.
    pub fn set_yield(&self, on: bool) {
        self.set(YIELD_OFFSET, on);
    }

    /// Raises or clears the latency word.
    pub fn set_latency(&self, on: bool) {
        self.set(LATENCY_OFFSET, on);
    }

    fn word(&self, offset: usize) -> Option<&AtomicU64> {
        self.mapping.word(offset)
    }

    fn is_on(&self, offset: usize) -> bool {
        self.word(offset).is_some_and(|word| word.load(Acquire) != 0)
    }

    fn set(&self, offset: usize, on: bool) {
        if let Some(word) = self.word(offset) {
            word.store(u64::from(on), Release);
        }
    }
}
