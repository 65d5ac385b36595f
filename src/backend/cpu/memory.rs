//! Memory that starts at a cache line and is zero until it is written.
//!
//! Fresh pages of the operating system are zero already, so a large pool costs nothing until it is used. Matrices of a model lie side by
//! side in one [`Slab`], so that they fill huge pages where the system has them: a translation for 2 MB instead of one for 4 KB.

use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::time::{Duration, Instant};

use memmap2::MmapMut;

use crate::backend::BackendError;

/// Bytes that memory is aligned to.
pub(super) const ALIGNMENT_BYTES: usize = 64;
/// Bytes of a huge page; where they are of another size, a slab is memory like any other.
#[cfg(target_os = "linux")]
const HUGE_BYTES: usize = 2 << 20;

/// A fixed number of elements in memory of their own; all-zero bytes are a value of each.
pub(super) struct Aligned<T: bytemuck::Pod> {
    home: Home,
    start: NonNull<T>,
    len: usize,
}

/// Where elements lie.
enum Home {
    /// In an allocation: the elements, and room to begin them at a cache line. Dangling where there are no elements.
    Own(NonNull<u8>),
    /// In a slab, which is there for as long as anybody lies in it.
    Slab { _keep: Arc<MmapMut> },
}

/// Memory for many values, handed out from its start on and given back when all of them are gone.
pub(super) struct Slab {
    map: Arc<MmapMut>,
    /// What has not been handed out, which nobody else reaches.
    rest: NonNull<u8>,
    rest_bytes: usize,
}

// SAFETY: the rest of the slab belongs to this value alone, and is plain memory.
unsafe impl Send for Slab {}

impl Slab {
    /// Memory for `bytes`; none where the system does not give it.
    pub(super) fn new(bytes: usize) -> Option<Self> {
        let mut map = MmapMut::map_anon(bytes).ok()?;
        ask_for_huge_pages(&mut map);
        let rest = NonNull::from(&mut map[..]).cast();
        Some(Self { map: Arc::new(map), rest, rest_bytes: bytes })
    }

    /// Says that it is filled: where huge pages were too slow to wait for, the system may make them in its own time.
    pub(super) fn filled(self) {
        #[cfg(target_os = "linux")]
        let _ = self.map.advise(memmap2::Advice::HugePage);
    }

    /// Takes `len` zeros; none where too little is left.
    pub(super) fn take<T: bytemuck::Pod>(&mut self, len: usize) -> Option<Aligned<T>> {
        let bytes = len.checked_mul(size_of::<T>())?.checked_next_multiple_of(ALIGNMENT_BYTES)?;
        self.rest_bytes = self.rest_bytes.checked_sub(bytes)?;
        let start = self.rest;
        // SAFETY: so many bytes were left, by the line above.
        self.rest = unsafe { start.add(bytes) };
        Some(Aligned { home: Home::Slab { _keep: Arc::clone(&self.map) }, start: start.cast(), len })
    }
}

// SAFETY: the memory belongs to this value alone, as in a vector, and the elements are plain data that may move between threads.
unsafe impl<T: bytemuck::Pod + Send> Send for Aligned<T> {}
// SAFETY: a shared reference only gives out shared slices of plain data.
unsafe impl<T: bytemuck::Pod + Sync> Sync for Aligned<T> {}

/// Asks for huge pages, which are refused where the system has none, and does without where they come slowly.
///
/// A page of 2 MB is usually there in a quarter of a millisecond, half of what its 4 KB pages take. But in a virtual machine whose host
/// takes back what has been free for a while, it is brought back 4 KB by 4 KB, in 5 ms. The first two are timed, whose memory is needed
/// anyway.
#[cfg(target_os = "linux")]
fn ask_for_huge_pages(map: &mut MmapMut) {
    const SLOW: Duration = Duration::from_millis(1);
    let first = map.as_ptr().align_offset(HUGE_BYTES);
    let probes = [first, first.saturating_add(HUGE_BYTES)];
    if probes[1].saturating_add(HUGE_BYTES) > map.len() || map.advise(memmap2::Advice::HugePage).is_err() {
        return;
    }
    let times = probes.map(|at| {
        let started = Instant::now();
        *core::hint::black_box(&mut map[at]) = 0;
        started.elapsed()
    });
    if times.iter().all(|time| *time > SLOW) {
        let _ = map.advise(memmap2::Advice::NoHugePage);
    }
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages(_: &mut MmapMut) {}

impl<T: bytemuck::Pod> Aligned<T> {
    /// No elements.
    pub(super) const fn empty() -> Self {
        Self { home: Home::Own(NonNull::dangling()), start: NonNull::dangling(), len: 0 }
    }

    /// `len` zeros.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(super) fn zeroed(len: usize) -> Result<Self, BackendError> {
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        let refused = BackendError::OutOfMemory { bytes };
        let Some(layout) = layout::<T>(len) else { return Err(refused) };
        if len == 0 || size_of::<T>() == 0 {
            return Ok(Self::empty());
        }
        // SAFETY: the size is not 0.
        let allocation = unsafe { alloc_zeroed(layout) };
        let Some(allocation) = NonNull::new(allocation) else { return Err(refused) };
        let offset = allocation.align_offset(ALIGNMENT_BYTES);
        // SAFETY: the next cache line begins less than `ALIGNMENT_BYTES` further on, and the layout has so many bytes beside the elements.
        let start = unsafe { allocation.add(offset) };
        Ok(Self { home: Home::Own(allocation), start: start.cast(), len })
    }
}

/// The elements, and room before them. The layout itself is aligned for the elements only: allocators clear memory of a larger
/// alignment by writing all of it, and what they have from the system is zero without that.
impl<T: bytemuck::Pod> Default for Aligned<T> {
    /// No elements.
    fn default() -> Self {
        Self::empty()
    }
}

fn layout<T>(len: usize) -> Option<Layout> {
    let elements = Layout::array::<T>(len).ok()?;
    Layout::from_size_align(elements.size().checked_add(ALIGNMENT_BYTES)?, elements.align()).ok()
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
        let Home::Own(allocation) = self.home else { return };
        if let Some(layout) = layout::<T>(self.len).filter(|_| self.len > 0) {
            // SAFETY: a value with elements of its own was allocated in `zeroed` with this layout, and is dropped once.
            unsafe { dealloc(allocation.as_ptr(), layout) };
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

    /// The system's own word for it: the highest bit of a page's entry says whether the page is there.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[test]
    fn memory_is_not_there_until_it_is_written() {
        use std::os::unix::fs::FileExt;
        const PAGE_BYTES: usize = 4096;
        let pages = std::fs::File::open("/proc/self/pagemap").unwrap();
        let is_there = |at: &u8| {
            let mut entry = [0; 8];
            pages.read_exact_at(&mut entry, (core::ptr::from_ref(at) as usize / PAGE_BYTES * 8) as u64).unwrap();
            u64::from_le_bytes(entry) >> 63 == 1
        };
        let mut memory = Aligned::<u8>::zeroed(64 << 20).unwrap();
        let places = [16 << 20, 32 << 20, 48 << 20];
        assert_eq!(places.map(|at| is_there(&memory[at])), [false; 3]);
        memory[32 << 20] = 1;
        assert_eq!(places.map(|at| is_there(&memory[at])), [false, true, false]);
    }

    #[test]
    fn values_of_a_slab_are_apart_and_outlive_it() {
        const MIB: usize = 1 << 20;
        let mut slab = Slab::new(6 * MIB + 100).unwrap();
        let mut one = slab.take::<u8>(2 * MIB + 1).unwrap();
        let mut two = slab.take::<f32>(MIB / 2).unwrap();
        assert!(slab.take::<u8>(2 * MIB + 1).is_none(), "rounded up to cache lines, too little is left");
        assert!(slab.take::<u64>(usize::MAX / 2).is_none());
        let three = slab.take::<u16>(18).unwrap();
        slab.filled();
        assert_eq!(one.as_ptr() as usize % ALIGNMENT_BYTES, 0);
        assert_eq!(two.as_ptr() as usize % ALIGNMENT_BYTES, 0);
        assert!(one.iter().all(|&x| x == 0) && two.iter().all(|&x| x == 0.0));
        one.fill(1);
        two.fill(2.0);
        assert!(three.iter().all(|&x| x == 0) && three.len() == 18);
        assert!(one.iter().all(|&x| x == 1) && two.iter().all(|&x| x == 2.0));
        drop(one);
        assert!(two.iter().all(|&x| x == 2.0), "the memory stays while anybody lies in it");
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        for len in [usize::MAX, usize::MAX / 4, usize::MAX / 8 + 1] {
            assert!(matches!(Aligned::<f32>::zeroed(len), Err(BackendError::OutOfMemory { .. })), "{len}");
            assert!(Slab::new(len).is_none(), "{len}");
        }
    }
}
