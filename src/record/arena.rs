#![forbid(unsafe_code)]
//! The memory behind the arrays of one plan.
//!
//! # Invariants
//! - A segment never moves or changes once created, so an [`Array`] made here stays good while the arena lives.
//! - Bytes are handed out from the segment that wholly contains an array, never from anywhere else.

use super::value::Array;
use super::view::{Memory, Record};

/// Owns the records that the arrays of one plan, or of one result, point at.
#[derive(Default, Debug)]
pub struct RecordArena {
    // Whole words, so that every segment is 8-byte aligned.
    segments: Vec<Vec<u64>>,
}

impl RecordArena {
    /// An arena without segments: only empty arrays lie inside.
    pub fn new() -> Self {
        Self::default()
    }

    /// Copies `records` into a segment of their own and returns the array over it.
    ///
    /// # Panics
    /// If the length does not fit `u32` or the record needs more than 8-byte alignment.
    pub fn push_records<T: Record>(&mut self, records: &[T]) -> Array {
        const { assert!(align_of::<T>() <= 8) };
        if records.is_empty() {
            return Array::EMPTY;
        }
        let count = match u32::try_from(records.len()) {
            Ok(count) => count,
            Err(_) => panic!("an array holds at most u32::MAX records"),
        };
        let mut segment = vec![0u64; size_of_val(records).div_ceil(8)];
        super::view::copy_records(records, &mut segment);
        let data = segment.as_ptr().cast();
        self.segments.push(segment);
        Array { data, count, elem_size: size_of::<T>() as u32 }
    }

    /// Whether `array` lies wholly inside one segment; an empty array always does.
    pub fn contains(&self, array: &Array) -> bool {
        if array.count == 0 {
            return true;
        }
        let len = (array.count as usize).checked_mul(array.elem_size as usize);
        len.is_some_and(|len| self.bytes(array, len).is_some())
    }
}

impl Memory for RecordArena {
    fn bytes(&self, array: &Array, len: usize) -> Option<&[u8]> {
        self.segments.iter().find_map(|segment| {
            let bytes: &[u8] = bytemuck::cast_slice(segment);
            let offset = array.data.addr().checked_sub(bytes.as_ptr().addr())?;
            bytes.get(offset..offset.checked_add(len)?)
        })
    }
}
