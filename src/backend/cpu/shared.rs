//! A slice that several threads write, each in places of its own.

use core::marker::PhantomData;

/// Hands out parts of a mutable slice; the caller promises that they do not overlap.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for an exclusive borrow of the slice, whose elements may be sent to other threads; parts are given out under the
// promise that no two of them overlap, so no element is reached from two threads.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as for `Send`: sharing it between threads gives each the parts that it asks for.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// `len` elements from `at` on; cut where the slice ends.
    ///
    /// # Safety
    /// - While the part is used, no other part that overlaps it is.
    #[inline(always)]
    pub(super) unsafe fn part(self, at: usize, len: usize) -> &'a mut [T] {
        let at = at.min(self.len);
        let len = len.min(self.len - at);
        // SAFETY: `at` is at most the length of the slice.
        let start = unsafe { self.start.add(at) };
        // SAFETY:
        // - the part lies inside the slice, by the two lines above, and the slice is borrowed for `'a`;
        // - it is the only reference to these elements: the slice is borrowed exclusively, and the caller promises no overlap.
        unsafe { core::slice::from_raw_parts_mut(start, len) }
    }
}
