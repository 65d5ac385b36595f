//! One output that many threads write, each its own part.

use std::marker::PhantomData;

/// A slice whose elements are handed out to threads.
#[derive(Clone, Copy)]
pub(super) struct Disjoint<'s> {
    start: *mut f32,
    len: usize,
    slice: PhantomData<&'s mut [f32]>,
}

// SAFETY: the pointer is followed only by `write` and `slice`, whose callers promise that no two threads touch one element.
unsafe impl Send for Disjoint<'_> {}
// SAFETY: as above.
unsafe impl Sync for Disjoint<'_> {}

impl<'s> Disjoint<'s> {
    pub(super) fn new(slice: &'s mut [f32]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// Writes one element.
    ///
    /// # Safety
    /// No other thread reads or writes element `index` while `'s` lasts.
    #[inline(always)]
    pub(super) unsafe fn write(self, index: usize, value: f32) {
        assert!(index < self.len, "the element is in the slice");
        // SAFETY: in bounds by the assertion; nobody else uses the element, by the caller's promise.
        let element = unsafe { self.start.add(index) };
        // SAFETY: as above.
        unsafe { element.write(value) };
    }

    /// A part of the slice.
    ///
    /// # Safety
    /// No one else uses the part while the result lives.
    #[inline(always)]
    pub(super) unsafe fn slice(self, first: usize, len: usize) -> &'s mut [f32] {
        assert!(first.checked_add(len).is_some_and(|end| end <= self.len), "the part is in the slice");
        // SAFETY: in bounds by the assertion.
        let start = unsafe { self.start.add(first) };
        // SAFETY: as above; exclusive by the caller's promise.
        unsafe { core::slice::from_raw_parts_mut(start, len) }
    }
}
