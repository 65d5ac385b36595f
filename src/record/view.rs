//! Reading records out of memory that somebody else wrote, and handing ours out.
//!
//! An [`Array`] says where a list of records lies and how far apart they are. A writer of another version may use larger
//! or smaller records than ours: each element is copied bytewise over an all-zero record, so a newer writer is read by
//! its known prefix and the fields an older one lacks are zero.
//!
//! [`Memory`] is what an array may point into. A [`RecordArena`](super::arena::RecordArena) answers with its own bytes and
//! nothing else; [`Unbounded`] stands for the memory of a C caller, and making one is the unsafe promise.
//!
//! # Invariants
//! No byte of an array is read before A-10 .. A-13 hold for it, in that order.

use core::ffi::{CStr, c_char};
use core::marker::PhantomData;

use super::status::Status;
use super::value::Array;

/// A plain record: any bytes are a valid value, and there is no hidden padding.
///
/// # Safety
/// - `Self` is `repr(C)` and every bit pattern of its size is a valid value.
/// - Its field sizes sum to its size.
pub unsafe trait Plain: Copy + 'static {
    /// The record with every byte zero.
    fn zeroed() -> Self {
        // SAFETY: every bit pattern is a valid value of a `Plain` type, zero included.
        unsafe { core::mem::zeroed() }
    }

    /// Copies the first bytes of `bytes` over a zeroed record; what `bytes` lacks stays zero.
    fn from_prefix(bytes: &[u8]) -> Self {
        if bytes.len() >= size_of::<Self>() {
            // SAFETY:
            // - `bytes` is valid for as many reads as `Self` has bytes, by the line above; alignment is no obligation.
            // - Any bytes make a valid `Self`.
            return unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() };
        }
        let mut record = Self::zeroed();
        let known_bytes = bytes.len().min(size_of::<Self>());
        let target = (&raw mut record).cast::<u8>();
        // SAFETY:
        // - `bytes` is valid for `known_bytes` reads and `record` for as many writes: both are at least that long.
        // - They do not overlap: `record` is a local.
        // - Any bytes make a valid `Self`.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), target, known_bytes) };
        record
    }
}

/// A record that may be an element of an [`Array`] or stand alone with its `struct_size`.
///
/// # Safety
/// As [`Plain`].
pub unsafe trait Record: Plain {
    /// The smallest stride or `struct_size` a writer may have.
    const MIN_PREFIX: usize;
}

macro_rules! zeroed {
    ($name:ident) => {
        // SAFETY:
        // - `repr(C)`, made of integers, floats, raw pointers, optional function pointers and records of the same kind,
        //   each valid for any bits.
        // - All padding is explicit: the layout test sums the field sizes of the table.
        unsafe impl $crate::record::view::Plain for $name {}
    };
}
macro_rules! record {
    ($name:ident, min_prefix: $min:literal) => {
        $crate::record::view::zeroed!($name);
        // SAFETY: `Plain` by the line above.
        unsafe impl $crate::record::view::Record for $name {
            const MIN_PREFIX: usize = $min;
        }
    };
}
pub(crate) use {record, zeroed};

macro_rules! plain_element {
    ($($type:ty),*) => { $(
        // SAFETY: an integer, or an array of bytes: any bits are valid and there is no padding.
        unsafe impl Plain for $type {}
        // SAFETY: as above.
        unsafe impl Record for $type {
            const MIN_PREFIX: usize = size_of::<$type>();
        }
    )* };
}
plain_element!(u8, u64, [u8; 32]);

/// Memory that arrays may point into.
pub trait Memory {
    /// Whether `array` lies wholly inside, an empty one always. Memory of which nothing is known says yes.
    fn contains(&self, array: &Array) -> bool {
        let _ = array;
        true
    }

    /// The `len` bytes that `array` points at, if all of them lie inside. `len` is not 0, at most `isize::MAX`, and does not
    /// wrap around the end of memory.
    fn bytes(&self, array: &Array, len: usize) -> Option<&[u8]>;

    /// The bytes of a C string, without its NUL, if all of them lie inside; none for NULL.
    fn text(&self, start: *const c_char) -> Option<&[u8]>;
}

/// The memory of a caller on the other side of the C boundary: nothing is known of it but its word.
pub struct Unbounded<'a>(PhantomData<&'a [u8]>);

impl Unbounded<'_> {
    /// Trusts the pointers of every array read through the result.
    ///
    /// # Safety
    /// Each array read through it points at `count * elem_size` readable bytes that nobody writes while `'a` lasts, and each text at
    /// such bytes up to a NUL.
    pub const unsafe fn new() -> Self {
        Self(PhantomData)
    }
}

impl Memory for Unbounded<'_> {
    fn bytes(&self, array: &Array, len: usize) -> Option<&[u8]> {
        // SAFETY:
        // - The pointer is not null (A-11 was checked) and valid for `len` reads: the promise of `Unbounded::new`.
        // - Nobody writes there while the borrow lives: the same promise.
        // - `len` does not exceed `isize::MAX`: `Array::elements` checked that the span does not wrap and `len` fits.
        Some(unsafe { core::slice::from_raw_parts(array.data.cast(), len) })
    }

    #[expect(
        clippy::not_unsafe_ptr_arg_deref,
        reason = "the promise about every text was made in `Unbounded::new`, which is unsafe"
    )]
    fn text(&self, start: *const c_char) -> Option<&[u8]> {
        if start.is_null() {
            return None;
        }
        // SAFETY: the promise of `Unbounded::new`: the string ends in a NUL, is readable up to it, and nobody writes there.
        let text = unsafe { CStr::from_ptr(start) };
        Some(text.to_bytes())
    }
}

impl Array {
    /// The canonical empty array.
    pub const EMPTY: Self = Self { data: core::ptr::null(), count: 0, elem_size: 0 };

    /// An array over a slice of our own records. Valid while the slice is borrowed and unmoved.
    pub fn over<T: Record>(records: &[T]) -> Self {
        match u32::try_from(records.len()) {
            Ok(count) if count > 0 => Self { data: records.as_ptr().cast(), count, elem_size: size_of::<T>() as u32 },
            _ => Self::EMPTY,
        }
    }

    /// As [`Array::elements`] for an array of a plan: one with elements that lies outside the arena of the plan is out of
    /// bounds, whatever else is wrong with it.
    ///
    /// # Errors
    /// As there.
    pub fn elements_within<'m, T: Record>(&self, memory: &'m dyn Memory) -> Result<Elements<'m, T>, Status> {
        if !memory.contains(self) {
            return Err(Status::RejectBounds);
        }
        self.elements(memory)
    }

    /// Checks the array and gives its elements, in order (A-10 .. A-15).
    ///
    /// # Errors
    /// `RejectBadStride`, `RejectBadAlignment`, `RejectBounds`; nothing was read.
    pub fn elements<'m, T: Record>(&self, memory: &'m dyn Memory) -> Result<Elements<'m, T>, Status> {
        let stride = self.elem_size as usize;
        let count = self.count as usize;
        if (stride != 0 || count != 0) && stride < T::MIN_PREFIX {
            return Err(Status::RejectBadStride);
        }
        if (self.data.is_null() && count != 0) || !self.data.addr().is_multiple_of(8) {
            return Err(Status::RejectBadAlignment);
        }
        if count == 0 {
            return Ok(Elements { bytes: &[], stride: 1, element: PhantomData });
        }
        let len = count.checked_mul(stride).filter(|&len| isize::try_from(len).is_ok()).ok_or(Status::RejectBounds)?;
        self.data.addr().checked_add(len).ok_or(Status::RejectBounds)?;
        let bytes = memory.bytes(self, len).ok_or(Status::RejectBounds)?;
        Ok(Elements { bytes, stride, element: PhantomData })
    }
}

/// The elements of a checked array.
#[derive(Clone, Debug)]
pub struct Elements<'m, T> {
    bytes: &'m [u8],
    stride: usize,
    element: PhantomData<T>,
}

impl<T: Record> Iterator for Elements<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        let (element, rest) = self.bytes.split_at_checked(self.stride)?;
        self.bytes = rest;
        Some(T::from_prefix(element))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.bytes.len() / self.stride;
        (left, Some(left))
    }
}

impl<T: Record> ExactSizeIterator for Elements<'_, T> {}

/// Reads a top-level record that begins with its writer's `struct_size`.
///
/// # Errors
/// `RejectBadStruct` when the size is below the minimum prefix; nothing else was read.
///
/// # Safety
/// - `source` is valid for 8 byte reads, and for as many as the `struct_size` it begins with says.
/// - Nobody writes there during the call.
pub unsafe fn read_versioned<T: Record>(source: *const T) -> Result<T, Status> {
    // SAFETY: `source` is valid for 8 bytes; the read is unaligned, so alignment is no obligation.
    let struct_size = unsafe { source.cast::<u64>().read_unaligned() };
    if struct_size < T::MIN_PREFIX as u64 {
        return Err(Status::RejectBadStruct);
    }
    let known_bytes = usize::try_from(struct_size).unwrap_or(usize::MAX).min(size_of::<T>());
    // SAFETY: `source` is valid for `struct_size` bytes, of which `known_bytes` is the smaller part; nobody writes there.
    let bytes = unsafe { core::slice::from_raw_parts(source.cast::<u8>(), known_bytes) };
    Ok(T::from_prefix(bytes))
}

/// Copies the bytes of `records` to the front of `words`, which holds at least as many.
pub(super) fn copy_records<T: Record>(records: &[T], words: &mut [u64]) {
    let len = size_of_val(records);
    assert!(len <= size_of_val(words), "the segment was sized for these records");
    // SAFETY:
    // - The source is valid for `len` reads and the target for as many writes (asserted above).
    // - They do not overlap: one is borrowed shared, the other exclusively.
    // - Any bytes are valid `u64`s, and a `Plain` type has no padding, so all bytes are initialised.
    unsafe { core::ptr::copy_nonoverlapping(records.as_ptr().cast::<u8>(), words.as_mut_ptr().cast::<u8>(), len) };
}

#[cfg(test)]
mod tests;
