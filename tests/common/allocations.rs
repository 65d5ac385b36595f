//! Counts what a thread allocates, so that a test can hold a parser to the size of its input.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATED_BYTES: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting.
struct Counting;

fn count(bytes: usize) {
    // A thread that is ending has no counter any more, and nothing to hold it to.
    let _ = ALLOCATED_BYTES.try_with(|total| total.set(total.get() + bytes as u64));
}

// SAFETY:
// - every call goes to the system's allocator with the caller's own arguments, so its promises are kept;
// - counting touches a thread-local cell that needs no allocation and no destructor, and cannot unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises about `layout`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises about `layout`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size);
        // SAFETY: the caller's promises about `pointer`, `layout` and `new_size`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises about `pointer` and `layout`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` gives, and the bytes that this thread asked for meanwhile, freed ones included.
pub(crate) fn allocated_bytes<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = ALLOCATED_BYTES.get();
    let result = work();
    (result, ALLOCATED_BYTES.get() - before)
}
