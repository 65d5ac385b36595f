//! Memory of the device and pinned memory of the host: how it is had, named and given back.
//!
//! # Invariants
//! - A [`Memory`] is freed exactly once, when its owner goes, or behind the section in which that happens; [`At`] is a place in one and holds nothing.
//! - What is freed is not in use: the device has nothing to do then, or has failed for good.
//!
//! # Limits
//! Memory is had for good, not per step: getting and freeing it waits for the device.

use core::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cudarc::driver::{CudaContext, result, sys};

use super::capture::no_capture;
use super::{Context, Driver, Entered, refused};
use crate::backend::BackendError;

/// Types of which kernels read and write arrays.
pub(in super::super) trait Element: bytemuck::Pod {}
impl Element for u8 {}
impl Element for u32 {}
impl Element for f32 {}

/// A place in device memory, and how many elements lie there.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) struct At<T> {
    pub(super) address: u64,
    pub(super) len: usize,
    elements: PhantomData<fn() -> T>,
}

impl<T> Clone for At<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for At<T> {}

impl<T> At<T> {
    /// A null pointer, which some kernels take for "none".
    pub(in super::super) fn null() -> Self {
        Self { address: 0, len: 0, elements: PhantomData }
    }

    /// From element `index` on; no element where that is past the end.
    pub(in super::super) fn from(self, index: usize) -> Self {
        let index = index.min(self.len);
        Self { address: self.address + (index * size_of::<T>()) as u64, len: self.len - index, ..self }
    }

    /// The first `len` elements, or all where there are fewer.
    pub(in super::super) fn first(self, len: usize) -> Self {
        Self { len: self.len.min(len), ..self }
    }

    /// The same bytes as elements of another type.
    pub(in super::super) fn cast<U>(self) -> At<U> {
        At { address: self.address, len: self.len * size_of::<T>() / size_of::<U>(), elements: PhantomData }
    }

    pub(in super::super) fn address(self) -> u64 {
        self.address
    }

    pub(in super::super) fn len(self) -> usize {
        self.len
    }

    pub(in super::super) fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// How often [`is_idle`] asks, a millisecond apart: for far longer than a capture takes.
const TRIES: usize = 1000;

/// Waits until no stream of the context has anything to do, or ever will, as the device has failed. False where that stays unknown: while somebody
/// captures on the device who does not know of [`CAPTURE`], the driver refuses to wait for the whole context.
fn is_idle(context: &CudaContext) -> bool {
    (0..TRIES).any(|_| {
        let no_other = no_capture();
        let waited = Entered::enter(context).and_then(|_entered| result::ctx::synchronize());
        drop(no_other);
        let captures = waited.is_err_and(|error| {
            let (refused, spoiled) = (
                sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            );
            error.0 == refused || error.0 == spoiled
        });
        if captures {
            std::thread::sleep(Duration::from_millis(1));
        }
        !captures
    })
}

/// An allocation of the device.
#[derive(Debug)]
struct Place {
    address: u64,
    context: Context,
}

impl Drop for Place {
    fn drop(&mut self) {
        // Weights are shared, so others' streams may use them. What is not known to be unused stays until the context goes.
        if !is_idle(&self.context) {
            return;
        }
        let _entered = Entered::enter(&self.context);
        // SAFETY: the address is that of an allocation of this context, which nobody else frees; no stream uses it, by the check, or none will
        // ever run again.
        let freed = unsafe { result::free_sync(self.address) };
        // A device that has failed refuses; its memory goes with its context.
        let _ = freed;
    }
}

/// Memory that went while a section may name it: it is freed when the section is over.
#[derive(Debug, Default)]
pub(super) struct Late {
    is_held: AtomicBool,
    places: Mutex<Vec<Place>>,
}

impl Late {
    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory of the device.
#[derive(Debug)]
pub(in super::super) struct Memory {
    /// None for no bytes.
    place: Option<Place>,
    pub(super) bytes: usize,
    late: Arc<Late>,
}

impl Memory {
    pub(in super::super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// All of it, as elements.
    pub(in super::super) fn at<T: Element>(&self) -> At<T> {
        let address = self.place.as_ref().map_or(0, |place| place.address);
        At { address, len: self.bytes / size_of::<T>(), elements: PhantomData }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let place = self.place.take();
        if self.late.is_held.load(Ordering::Acquire) {
            self.late.places().extend(place);
        }
    }
}

/// Memory of the host that the device copies from and to by itself.
#[derive(Debug)]
pub(in super::super) struct Pinned {
    pub(super) start: *mut u8,
    pub(super) bytes: usize,
    context: Context,
}

// SAFETY: it owns its memory, which is no thread's own.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(in super::super) fn len(&self) -> usize {
        self.bytes
    }

    /// Some of its bytes; none where they are not all there.
    ///
    /// # Safety
    /// - No copy from or to these bytes is under way.
    pub(in super::super) unsafe fn part(&mut self, from: usize, bytes: usize) -> &mut [u8] {
        if from.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return &mut [];
        }
        // SAFETY: inside of the memory, by the check.
        let start = unsafe { self.start.add(from) };
        // SAFETY: the memory is this long, was set when it was made, and is borrowed from `self` alone; the device leaves these bytes alone,
        // as the caller promises.
        unsafe { core::slice::from_raw_parts_mut(start, bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if !is_idle(&self.context) {
            return;
        }
        let _entered = Entered::enter(&self.context);
        // SAFETY: it came from the driver and nobody else frees it; no copy is under way, by the check.
        let freed = unsafe { result::free_host(self.start.cast()) };
        let _ = freed;
    }
}

impl Driver {
    /// No memory.
    pub(in super::super) fn nothing(&self) -> Memory {
        Memory { place: None, bytes: 0, late: self.late.clone() }
    }

    /// From now on memory that goes is not freed: it may be named by what was noted and not launched yet.
    pub(in super::super) fn hold_frees(&self) {
        self.late.is_held.store(true, Ordering::Release);
    }

    /// Nothing is named any more that is not in the stream: frees what went meanwhile.
    pub(in super::super) fn release_frees(&self) {
        self.late.is_held.store(false, Ordering::Release);
        let places = core::mem::take(&mut *self.late.places());
        drop(places);
    }

    /// Memory that nobody has written.
    pub(in super::super) fn memory(&self, bytes: usize) -> Result<Memory, BackendError> {
        let _entered = self.enter()?;
        if bytes == 0 {
            return Ok(self.nothing());
        }
        // SAFETY: the context is current; whoever reads the memory writes it before, as each operation says.
        let address = unsafe { result::malloc_sync(bytes) }.map_err(|error| refused(error, bytes, "getting memory"))?;
        let place = Some(Place { address, context: self.context.clone() });
        Ok(Memory { place, bytes, late: self.late.clone() })
    }

    /// Memory of the host for copies; zeroed.
    pub(in super::super) fn pinned(&self, bytes: usize) -> Result<Pinned, BackendError> {
        let _entered = self.enter()?;
        // No flags: write-combined memory is slow to read (P-3).
        // SAFETY: the context is current.
        let start = unsafe { result::malloc_host(bytes.max(1), 0) };
        let start = start.map_err(|error| refused(error, bytes, "getting host memory"))?.cast::<u8>();
        // SAFETY: the memory is this long and nobody else's.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Pinned { start, bytes, context: self.context.clone() })
    }
}
