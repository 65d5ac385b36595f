#![forbid(unsafe_code)]
//! The memory behind the arrays of one plan.
//!
//! # Invariants
//! - A segment never moves or changes once created, so an [`Array`] made here stays good until the arena is cleared or gone.
//! - Bytes are handed out from the segment that wholly contains an array, never from anywhere else.

use core::ffi::c_char;

use super::value::Array;
use super::view::{Memory, Record};

/// Owns the records that the arrays of one plan, or of one result, point at.
#[derive(Default, Debug)]
pub struct RecordArena {
    // Whole words, so that every segment is 8-byte aligned.
    segments: Vec<Vec<u64>>,
    /// Segments of earlier plans, to be used again.
    spare: Vec<Vec<u64>>,
}

impl RecordArena {
    /// An arena without segments: only empty arrays lie inside.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets all records and keeps the memory for the next ones: no array made so far lies inside any more.
    pub fn clear(&mut self) {
        self.spare.append(&mut self.segments);
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
        let mut segment = self.spare.pop().unwrap_or_default();
        segment.clear();
        segment.resize(size_of_val(records).div_ceil(8), 0);
        super::view::copy_records(records, &mut segment);
        let data = segment.as_ptr().cast();
        self.segments.push(segment);
        Array { data, count, elem_size: size_of::<T>() as u32 }
    }
}

impl Memory for RecordArena {
    /// Whether `array` lies wholly inside one segment; an empty array always does.
    fn contains(&self, array: &Array) -> bool {
        if array.count == 0 {
            return true;
        }
        let len = (array.count as usize).checked_mul(array.elem_size as usize);
        len.is_some_and(|len| self.bytes(array, len).is_some())
    }

    fn bytes(&self, array: &Array, len: usize) -> Option<&[u8]> {
        self.segments.iter().find_map(|segment| {
            let bytes: &[u8] = bytemuck::cast_slice(segment);
            let offset = array.data.addr().checked_sub(bytes.as_ptr().addr())?;
            bytes.get(offset..offset.checked_add(len)?)
        })
    }

    fn text(&self, start: *const c_char) -> Option<&[u8]> {
        self.segments.iter().find_map(|segment| {
            let bytes: &[u8] = bytemuck::cast_slice(segment);
            let offset = start.addr().checked_sub(bytes.as_ptr().addr())?;
            bytes.get(offset..)?.split(|&byte| byte == 0).next().filter(|text| offset + text.len() < bytes.len())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Status;
    use crate::record::view::Plain;
    use crate::record::{LanePrefill, LaneRetire, SamplingParams, TapSpec};

    fn prefill(lane_tag: u64) -> LanePrefill {
        LanePrefill { lane_tag, token_offset: 3, token_count: 5 }
    }

    /// base aligned, length in whole words, tail zero.
    #[test]
    fn segment_is_aligned_and_its_tail_is_zero() {
        let mut arena = RecordArena::new();
        for count in 1..20 {
            let array = arena.push_records(&vec![0xABu8; count]);
            assert_eq!(array.data.addr() % 8, 0);
            assert_eq!((array.count as usize, array.elem_size), (count, 1));
            let segment = arena.segments.last().expect("just pushed");
            assert_eq!(segment.len(), count.div_ceil(8));
            let bytes: &[u8] = bytemuck::cast_slice(segment);
            assert!(bytes[..count].iter().all(|&byte| byte == 0xAB) && bytes[count..].iter().all(|&byte| byte == 0));
        }
    }

    ///
    #[test]
    fn no_records_make_the_canonical_empty_array() {
        let mut arena = RecordArena::new();
        let array = arena.push_records::<LanePrefill>(&[]);
        assert!(array.data.is_null());
        assert_eq!((array.count, array.elem_size), (0, 0));
        assert!(arena.contains(&array) && arena.segments.is_empty());
    }

    /// later segments move nothing that was handed out before.
    #[test]
    fn arrays_stay_good_while_the_arena_grows() {
        let mut arena = RecordArena::new();
        let arrays: Vec<Array> = (0..200).map(|tag| arena.push_records(&[prefill(tag), prefill(tag + 1000)])).collect();
        let arena = { arena };
        for (tag, array) in (0..).zip(&arrays) {
            let read: Vec<u64> =
                array.elements::<LanePrefill>(&arena).expect("inside").map(|record| record.lane_tag).collect();
            assert_eq!(read, [tag, tag + 1000]);
        }
    }

    /// one byte past the end of the segment, or before its start, is outside.
    #[test]
    fn array_is_inside_only_with_all_its_bytes() {
        let mut arena = RecordArena::new();
        let array = arena.push_records(&[prefill(1), prefill(2)]);
        let other = arena.push_records(&[prefill(3)]);
        assert!(arena.contains(&array) && arena.contains(&other));
        let at =
            |bytes: isize, count, elem_size| Array { data: array.data.wrapping_byte_offset(bytes), count, elem_size };
        assert!(arena.contains(&at(0, 32, 1)) && arena.contains(&at(16, 1, 16)) && arena.contains(&at(31, 1, 1)));
        for outside in
            [at(0, 33, 1), at(-1, 1, 1), at(17, 1, 16), at(32, 1, 1), at(-8, 3, 16), at(0, u32::MAX, u32::MAX)]
        {
            assert!(!arena.contains(&outside), "{outside:?}");
        }
        assert!(arena.contains(&at(4096, 0, 16)), "an empty array is inside anything");
        assert!(!RecordArena::new().contains(&array), "another arena");
    }

    /// the place is looked at before the stride, for an array that has elements.
    #[test]
    fn array_of_a_plan_outside_its_arena_is_out_of_bounds_even_with_a_bad_stride() {
        let mut arena = RecordArena::new();
        let mut array = arena.push_records(&[prefill(1)]);
        array.elem_size = 8;
        let within =
            |array: &Array, arena: &RecordArena| array.elements_within::<LanePrefill>(arena).map(|_| ()).unwrap_err();
        for _ in 0..2 {
            assert_eq!(within(&array, &arena), Status::RejectBadStride);
            assert_eq!(within(&array, &RecordArena::new()), Status::RejectBounds);
            assert_eq!(
                array.elements::<LanePrefill>(&RecordArena::new()).map(|_| ()).unwrap_err(),
                Status::RejectBadStride
            );
        }
        array.count = 0;
        assert_eq!(within(&array, &RecordArena::new()), Status::RejectBadStride);
    }

    /// What was pushed before lies outside, whatever memory the next records get.
    #[test]
    fn cleared_arena_uses_its_memory_again() {
        let mut arena = RecordArena::new();
        let first = arena.push_records(&[prefill(1), prefill(2)]);
        arena.clear();
        assert!(!arena.contains(&first));
        let second = arena.push_records(&[prefill(3)]);
        assert_eq!(second.data, first.data, "the memory of the first");
        let read: Vec<u64> =
            second.elements::<LanePrefill>(&arena).expect("inside").map(|lane| lane.lane_tag).collect();
        assert_eq!(read, [3]);
        assert!(!arena.contains(&first), "it would reach past the second");
    }

    /// Records of smaller alignment ride in 8-aligned segments too.
    #[test]
    fn records_of_any_alignment_are_copied_verbatim() {
        let mut arena = RecordArena::new();
        let taps = [TapSpec { layer: 1, tensor: 2, dtype: 3, layout: 4 }; 3];
        let array = arena.push_records(&taps);
        let read: Vec<u32> = array.elements::<TapSpec>(&arena).expect("inside").map(|tap| tap.layout).collect();
        assert_eq!(read, [4, 4, 4]);
        let mut retire = LaneRetire::zeroed();
        retire.publish_to_cache = 7;
        retire._pad0 = [9; 7];
        let array = arena.push_records(&[retire]);
        let read = array.elements::<LaneRetire>(&arena).expect("inside").next().expect("one");
        assert_eq!((read.publish_to_cache, read._pad0), (7, [9; 7]));
        assert_eq!(SamplingParams::zeroed().top_p.to_bits(), 0);
    }
}
