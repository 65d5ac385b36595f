#![forbid(unsafe_code)]
//! Two words by which the host hurries the engine while it ticks (E-36, E-37, E-46).
//!
//! ```text
//! 0 magic u64 | 8 yield u64 | 16 latency u64 | 24 unused up to 64
//! ```
//! A word is on when it is not zero. Any thread or process may write either at any time.

use core::sync::atomic::Ordering::{Acquire, Release};

use super::LayoutError;
use super::mapping::Segment;
use super::store::Store;
use crate::record::constant::control::{BYTES, LATENCY_OFFSET, MAGIC, YIELD_OFFSET};

/// One end of the control words; host and engine each have theirs.
#[derive(Debug)]
pub struct ControlWords {
    store: Store,
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
    pub fn lay_out(store: impl Into<Store>) -> Result<Self, LayoutError> {
        let store = store.into();
        if store.len_bytes() < BYTES {
            return Err(LayoutError::Length);
        }
        store.set(0, MAGIC, Release).ok_or(LayoutError::Length)?;
        Ok(Self { store })
    }

    /// Opens the words in `store`.
    ///
    /// # Errors
    /// `Length` when it is shorter than 64 bytes, `Magic`.
    pub fn open(store: impl Into<Store>) -> Result<Self, LayoutError> {
        let store = store.into();
        if store.len_bytes() < BYTES {
            return Err(LayoutError::Length);
        }
        let magic = store.get(0, Acquire).unwrap_or(0);
        if magic != MAGIC {
            return Err(LayoutError::Magic { got: magic });
        }
        Ok(Self { store })
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

    /// A word in memory that is gone is off.
    fn is_on(&self, offset: usize) -> bool {
        self.store.get(offset, Acquire).is_some_and(|word| word != 0)
    }

    fn set(&self, offset: usize, on: bool) {
        let _ = self.store.set(offset, u64::from(on), Release);
    }
}
