//! Memory that starts at a cache line and is zero until it is written.
//!
//! Fresh pages of the operating system are zero already, so a large pool costs nothing until it is used.

use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};

use crate::backend::BackendError;

/// Bytes that memory is aligned to.
pub(super) const ALIGNMENT_BYTES: usize = 64;

/// A fixed number of elements in memory of their own; all-zero bytes are a value of each.
pub(super) struct Aligned<T: bytemuck::Pod> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: the memory belongs to this value alone, as in a vector, and the elements are plain data that may move between threads.
unsafe impl<T: bytemuck::Pod + Send> Send for Aligned<T> {}
// SAFETY: a shared reference only gives out shared slices of plain data.
unsafe impl<T: bytemuck::Pod + Sync> Sync for Aligned<T> {}

impl<T: bytemuck::Pod> Aligned<T> {
    /// No elements.
    pub(super) const fn empty() -> Self {
        Self { start: NonNull::dangling(), len: 0 }
    }

    /// `len` zeros.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(super) fn zeroed(len: usize) -> Result<Self, BackendError> {
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        let refused = BackendError::OutOfMemory { bytes };
        let Some(layout) = layout::<T>(len) else { return Err(refused) };
        if layout.size() == 0 {
            return Ok(Self::empty());
        }
        // SAFETY: the size is not 0.
        let start = unsafe { alloc_zeroed(layout) };
        match NonNull::new(start.cast()) {
            Some(start) => Ok(Self { start, len }),
            None => Err(refused),
        }
    }
}

fn layout<T>(len: usize) -> Option<Layout> {
    Layout::array::<T>(len).ok()?.align_to(ALIGNMENT_BYTES).ok()
}

impl<T: bytemuck::Pod> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY:
        // - `start` is aligned, and `len` elements lie there, or `len` is 0;
        // - zeros are values of a plain-data type, and every later write was one;
        // - the reference lives no longer than `self`, which owns the memory.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: bytemuck::Pod> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the exclusive borrow of `self` makes this the only reference.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: bytemuck::Pod> Drop for Aligned<T> {
    fn drop(&mut self) {
        if let Some(layout) = layout::<T>(self.len).filter(|layout| layout.size() > 0) {
            // SAFETY: a value with elements was allocated in `zeroed` with this layout, and is dropped once.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_zero_and_its_own() {
        let mut one = Aligned::<f32>::zeroed(33).unwrap();
        let two = Aligned::<u16>::zeroed(7).unwrap();
        assert_eq!(one.as_ptr() as usize % ALIGNMENT_BYTES, 0);
        assert_eq!(two.as_ptr() as usize % ALIGNMENT_BYTES, 0);
        assert!(one.iter().all(|&x| x == 0.0) && one.len() == 33);
        one.fill(1.0);
        assert!(two.iter().all(|&x| x == 0));
        assert!(Aligned::<f32>::zeroed(0).unwrap().is_empty());
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        for len in [usize::MAX, usize::MAX / 4, usize::MAX / 8 + 1] {
            assert!(matches!(Aligned::<f32>::zeroed(len), Err(BackendError::OutOfMemory { .. })), "{len}");
        }
    }
}
