//! The fence: pointers become references here, and panics end here.
//!
//! A pointer from C is NULL-checked and alignment-checked by one of these helpers; what they return is safe to use. Which status
//! a bad pointer gets is the same everywhere: NULL is `RejectBadStruct`, a misaligned one `RejectBadAlignment`, a size that
//! no memory has `RejectBounds`.

use core::ffi::{CStr, c_char};
use core::ptr::NonNull;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::record::Status;
use crate::record::view::{Plain, Record, read_versioned};
use crate::ring::{LayoutError, RingError};

/// Why a call failed: the status that is returned, and what the last error says of it.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: Status,
    pub(super) detail: Option<String>,
}

/// What the body of a call gives.
pub(super) type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// A status with a reason in words.
    pub(super) fn new(status: Status, detail: impl core::fmt::Display) -> Self {
        Self { status, detail: Some(detail.to_string()) }
    }

    /// A status with an error and all that caused it.
    pub(super) fn because(status: Status, error: &dyn core::error::Error) -> Self {
        let mut detail = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            detail = format!("{detail}: {error}");
            cause = error.source();
        }
        Self { status, detail: Some(detail) }
    }
}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match &self.detail {
            Some(detail) => write!(f, "{detail} [{}]", self.status),
            None => write!(f, "{} [{}]", super::status::meaning(self.status).to_string_lossy(), self.status),
        }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self { status, detail: None }
    }
}

impl From<RingError> for Failure {
    fn from(error: RingError) -> Self {
        Self::new(error.into(), error)
    }
}

impl From<LayoutError> for Failure {
    fn from(error: LayoutError) -> Self {
        Self::new(Status::RingLayout, error)
    }
}

/// Runs `body`; a panic in it becomes its message.
///
/// What `body` was changing may be half changed afterwards: the caller puts it out of use.
pub(super) fn contain<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(body)).map_err(message)
}

fn message(payload: Box<dyn Any + Send>) -> String {
    let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "a panic without a message".to_owned(),
    };
    // Dropping a payload runs code of whoever panicked, which may panic again.
    core::mem::forget(payload);
    text
}

/// Where an output goes, once there is one.
#[derive(Debug)]
pub(super) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// Writes the output.
    pub(super) fn set(self, value: T) {
        // SAFETY: aligned and not null (checked in `out`), valid for a write during the call (promised there).
        unsafe { self.0.write(value) };
    }
}

/// Checks the pointer of an output.
///
/// # Safety
/// `target`, when not NULL, is valid for a write of `T` until the end of the call.
pub(super) unsafe fn out<T>(target: *mut T) -> Result<Out<T>, Status> {
    let target = NonNull::new(target).ok_or(Status::RejectBadStruct)?;
    if !target.is_aligned() {
        return Err(Status::RejectBadAlignment);
    }
    Ok(Out(target))
}

/// Where an output record goes that the caller may know shorter or longer than we do.
#[derive(Debug)]
pub(super) struct SizedOut<T> {
    target: NonNull<T>,
    bytes: usize,
}

impl<T: Record> SizedOut<T> {
    /// How many bytes will be written; what the caller knows beyond stays as it is.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Writes the part of the record that the caller knows.
    pub(super) fn set(&self, value: T) {
        // SAFETY:
        // - The target is valid for `bytes` writes: the caller said so in its `struct_size`, which `sized_out` read.
        // - `bytes` is at most the size of `value`; a record has no padding, so all of them are initialised.
        unsafe {
            core::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), self.target.as_ptr().cast(), self.bytes)
        };
    }
}

/// Checks the pointer of an output record that begins with the size at which its reader knows it.
///
/// # Safety
/// `target`, when not NULL, is valid for a read of 8 bytes, and for writes of as many as those say, until the end of the call.
pub(super) unsafe fn sized_out<T: Record>(target: *mut T) -> Result<SizedOut<T>, Status> {
    check(target.cast_const())?;
    let target = NonNull::new(target).ok_or(Status::RejectBadStruct)?;
    // SAFETY: aligned and not null (checked above), valid for 8 bytes (promised).
    let struct_size = unsafe { target.cast::<u64>().read() };
    if struct_size < T::MIN_PREFIX as u64 {
        return Err(Status::RejectBadStruct);
    }
    let bytes = usize::try_from(struct_size).unwrap_or(usize::MAX).min(size_of::<T>());
    Ok(SizedOut { target, bytes })
}

/// Reads a top-level record by its writer's size.
///
/// # Safety
/// `source`, when not NULL, is valid for 8 bytes, and for as many as the size that it begins with.
pub(super) unsafe fn versioned<T: Record>(source: *const T) -> Result<T, Status> {
    check(source)?;
    // SAFETY: not null; its bytes are valid by the promise of this function.
    unsafe { read_versioned(source) }
}

/// Reads a record that has no size of its own.
///
/// # Safety
/// `source`, when not NULL, is valid for a read of `T`.
pub(super) unsafe fn plain<T: Plain>(source: *const T) -> Result<T, Status> {
    check(source)?;
    // SAFETY: not null and aligned (checked above), valid (promised), and any bytes make a record.
    Ok(unsafe { source.read() })
}

fn check<T>(source: *const T) -> Result<(), Status> {
    if source.is_null() {
        return Err(Status::RejectBadStruct);
    }
    if !source.is_aligned() {
        return Err(Status::RejectBadAlignment);
    }
    Ok(())
}

/// A list of `count` elements; NULL is the empty list when `count` is 0.
///
/// # Safety
/// `source`, when not NULL, is valid for reads of `count` elements for `'a`, which are initialised and do not change.
pub(super) unsafe fn list<'a, T>(source: *const T, count: u64) -> Result<&'a [T], Status> {
    if count == 0 {
        return Ok(&[]);
    }
    check(source)?;
    let count = span::<T>(source.addr(), count)?;
    // SAFETY: not null, aligned, and within the address space (checked above); initialised and constant for `'a` (promised).
    Ok(unsafe { core::slice::from_raw_parts(source, count) })
}

/// A buffer for `capacity` elements; NULL is the empty one when `capacity` is 0.
///
/// # Safety
/// `target`, when not NULL, is valid for writes of `capacity` elements until the end of the call.
pub(super) unsafe fn buffer<T: Copy>(target: *mut T, capacity: u64) -> Result<Buffer<T>, Status> {
    if capacity == 0 {
        return Ok(Buffer { target: NonNull::dangling(), capacity: 0 });
    }
    check(target.cast_const())?;
    let capacity = span::<T>(target.addr(), capacity)?;
    Ok(Buffer { target: NonNull::new(target).ok_or(Status::RejectBadStruct)?, capacity })
}

/// A checked buffer of the caller.
#[derive(Debug)]
pub(super) struct Buffer<T> {
    target: NonNull<T>,
    capacity: usize,
}

impl<T: Copy> Buffer<T> {
    /// Copies all of `values` to the start of the buffer, or nothing when they do not fit.
    pub(super) fn fill(&self, values: &[T]) -> Result<(), Status> {
        self.put(0, values)
    }

    /// Copies all of `values` into the buffer from element `at` on, or nothing when they do not fit.
    pub(super) fn put(&self, at: usize, values: &[T]) -> Result<(), Status> {
        if !at.checked_add(values.len()).is_some_and(|end| self.holds(end)) {
            return Err(Status::BufferTooSmall);
        }
        let target = self.target.as_ptr().wrapping_add(at);
        // SAFETY:
        // - The target is valid for `capacity` writes (promised in `buffer`), and the values end before that.
        // - They do not overlap: the values are ours, the target is the caller's.
        unsafe { core::ptr::copy_nonoverlapping(values.as_ptr(), target, values.len()) };
        Ok(())
    }

    /// Whether so many elements fit.
    pub(super) fn holds(&self, count: usize) -> bool {
        count <= self.capacity
    }
}

impl Buffer<u8> {
    /// As much of a text as fits, cut between characters, and a NUL.
    pub(super) fn fill_text(&self, text: &str) {
        let Some(room) = self.capacity.checked_sub(1) else { return };
        let end = (0..=room.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        let mut bytes = text.as_bytes().get(..end).unwrap_or_default().to_vec();
        bytes.push(0);
        // It fits: `end` is at most `room`.
        let _ = self.fill(&bytes);
    }
}

/// `values` into `buffer` and their number into `count`, which is written also when they do not fit.
pub(super) fn hand_over<T: Copy>(values: &[T], buffer: &Buffer<T>, count: Out<u64>) -> Result<(), Status> {
    let filled = buffer.fill(values);
    count.set(values.len() as u64);
    filled
}

/// As [`hand_over`] for text: a NUL follows it in the buffer and is not counted.
pub(super) fn hand_over_text(text: &[u8], buffer: &Buffer<u8>, count: Out<u64>) -> Result<(), Status> {
    let filled = buffer.fill(&[text, &[0]].concat());
    count.set(text.len() as u64);
    filled
}

/// `count` as a number of elements that memory can hold from `address` on.
fn span<T>(address: usize, count: u64) -> Result<usize, Status> {
    let count = usize::try_from(count).map_err(|_| Status::RejectBounds)?;
    let bytes = count.checked_mul(size_of::<T>()).ok_or(Status::RejectBounds)?;
    match isize::try_from(bytes).is_ok() && address.checked_add(bytes).is_some() {
        true => Ok(count),
        false => Err(Status::RejectBounds),
    }
}

/// A NUL-terminated text; one that is not UTF-8 is a document that does not parse.
///
/// # Safety
/// `source`, when not NULL, is valid up to a NUL and does not change for `'a`.
pub(super) unsafe fn text<'a>(source: *const c_char) -> Result<&'a str, Status> {
    check(source)?;
    // SAFETY: not null (checked above), terminated and constant for `'a` (promised).
    let text = unsafe { CStr::from_ptr(source) };
    text.to_str().map_err(|_| Status::RejectBadStruct)
}

/// A text that may be NULL, which is none.
///
/// # Safety
/// As [`text`].
pub(super) unsafe fn optional_text<'a>(source: *const c_char) -> Result<Option<&'a str>, Status> {
    match source.is_null() {
        true => Ok(None),
        // SAFETY: the promise of this function.
        false => unsafe { text(source) }.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_no_memory_has_are_out_of_bounds() {
        let words = [1u64, 2];
        for count in [u64::MAX, 1 << 61, (isize::MAX as u64 / 8) + 1] {
            // SAFETY: the count is refused before the pointer is used.
            assert_eq!(unsafe { list(words.as_ptr(), count) }.expect_err("no such memory"), Status::RejectBounds);
        }
        // SAFETY: two words are there.
        assert_eq!(unsafe { list(words.as_ptr(), 2) }, Ok(&words[..]));
        // SAFETY: nothing is read.
        assert_eq!(unsafe { list::<u64>(core::ptr::null(), 0) }, Ok(&[][..]));
    }

    #[test]
    fn buffer_that_is_too_small_stays_as_it_was_and_learns_the_size() {
        let (mut bytes, mut count) = ([7u8; 4], 0u64);
        // SAFETY: four bytes are there.
        let target = unsafe { buffer(bytes.as_mut_ptr(), 4) }.expect("a good buffer");
        // SAFETY: `count` is a local.
        let told = unsafe { out(&raw mut count) }.expect("a good pointer");
        assert_eq!(hand_over_text(b"abcd", &target, told), Err(Status::BufferTooSmall));
        assert_eq!((bytes, count), ([7; 4], 4));
        // SAFETY: as above.
        let target = unsafe { buffer(bytes.as_mut_ptr(), 4) }.expect("a good buffer");
        // SAFETY: as above.
        let told = unsafe { out(&raw mut count) }.expect("a good pointer");
        assert_eq!(hand_over_text(b"abc", &target, told), Ok(()));
        assert_eq!((bytes, count), (*b"abc\0", 3));
    }

    #[test]
    fn panics_of_every_kind_become_text() {
        assert_eq!(contain(|| panic!("plain")).map(|(): ()| ()), Err("plain".to_owned()));
        let number = 3;
        assert_eq!(contain(|| panic!("with {number}")).map(|(): ()| ()), Err("with 3".to_owned()));
        let odd = contain(|| std::panic::panic_any(3)).map(|(): ()| ());
        assert_eq!(odd, Err("a panic without a message".to_owned()));
    }
}
