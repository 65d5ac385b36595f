//! The checks of abi.md section 7 that need no C (AS-2 .. AS-13), and what lies between them.
//!
//! Every byte read here belongs to the test, so that a checker of memory accesses notices a read too far.

use super::*;
use crate::record::constant::op_state;
use crate::record::{LaneAdmit, LaneCommit, LaneDecode, LanePrefill, OpStatus, RecordArena, TickPlan};

/// Eight-aligned bytes of exactly the given length in words.
fn words(bytes: &[u8]) -> Vec<u64> {
    assert_eq!(bytes.len() % 8, 0);
    bytes.chunks(8).map(|chunk| u64::from_le_bytes(chunk.try_into().expect("eight bytes"))).collect()
}

fn bytes_of<T: Plain>(record: &T) -> Vec<u8> {
    let mut copy = vec![0u64; size_of::<T>().div_ceil(8)];
    // SAFETY: a `Plain` record is `size_of` initialised bytes, and `copy` is at least as long.
    unsafe {
        core::ptr::copy_nonoverlapping(
            (&raw const *record).cast::<u8>(),
            copy.as_mut_ptr().cast::<u8>(),
            size_of::<T>(),
        )
    };
    copy.iter().flat_map(|word| word.to_le_bytes()).take(size_of::<T>()).collect()
}

fn over(words: &[u64], count: u32, elem_size: u32) -> Array {
    Array { data: words.as_ptr().cast(), count, elem_size }
}

/// Reads through memory of which nothing is known, as at the C boundary. The caller's arrays lie in live `words`.
fn read<T: Record>(array: &Array) -> Result<Vec<T>, Status> {
    // SAFETY: every array of these tests that passes the checks lies in memory that the test holds.
    let memory = unsafe { Unbounded::new() };
    array.elements::<T>(&memory).map(Iterator::collect)
}

fn refused<T: Record + core::fmt::Debug>(array: &Array) -> Status {
    let first = read::<T>(array).map(|records| records.len()).expect_err("refused");
    assert_eq!(read::<T>(array).map(|records| records.len()).expect_err("refused again"), first);
    first
}

/// AS-2.
#[test]
fn canonical_empty_array_has_no_elements() {
    assert_eq!(Array::EMPTY.elements::<LaneCommit>(&RecordArena::new()).expect("legal").count(), 0);
    assert!(read::<LaneCommit>(&Array::EMPTY).expect("legal").is_empty());
}

/// AS-3: an empty list of records that are too small is refused all the same.
#[test]
fn empty_array_of_short_records_is_refused() {
    assert_eq!(refused::<LaneCommit>(&over(&[0; 3], 0, 8)), Status::RejectBadStride);
    assert_eq!(refused::<LaneCommit>(&Array { elem_size: 23, ..Array::EMPTY }), Status::RejectBadStride);
    assert!(read::<LaneCommit>(&Array { elem_size: 24, ..Array::EMPTY }).expect("legal").is_empty());
}

/// AS-4.
#[test]
fn empty_array_off_its_alignment_is_refused() {
    let store = [0u64; 4];
    let mut array = over(&store, 0, 24);
    for offset in 1..8 {
        array.data = store.as_ptr().wrapping_byte_add(offset).cast();
        assert_eq!(refused::<LaneCommit>(&array), Status::RejectBadAlignment);
        assert_eq!(refused::<LaneCommit>(&Array { elem_size: 0, ..array }), Status::RejectBadAlignment);
    }
}

/// NULL is legal for nothing but the empty list.
#[test]
fn null_with_elements_is_bad_alignment_after_the_stride() {
    assert_eq!(refused::<LaneCommit>(&Array { count: 1, elem_size: 24, ..Array::EMPTY }), Status::RejectBadAlignment);
    assert_eq!(refused::<LaneCommit>(&Array { count: 1, elem_size: 8, ..Array::EMPTY }), Status::RejectBadStride);
    assert_eq!(refused::<LaneCommit>(&Array { count: 1, ..Array::EMPTY }), Status::RejectBadStride);
}

/// AS-5.
#[test]
fn records_come_back_equal_and_in_order() {
    let mut arena = RecordArena::new();
    let written = [7u64, 9].map(|lane_tag| LanePrefill { lane_tag, token_offset: 1, token_count: 2 });
    let array = arena.push_records(&written);
    let elements = array.elements::<LanePrefill>(&arena).expect("legal");
    assert_eq!(elements.len(), 2);
    let read: Vec<Vec<u8>> = elements.map(|record| bytes_of(&record)).collect();
    assert_eq!(read, written.map(|record| bytes_of(&record)));
}

/// AS-6: a newer writer is read by the prefix we know; the stride stays the writer's.
#[test]
fn larger_record_is_read_by_its_known_prefix() {
    let mut store = Vec::new();
    for lane_tag in [5u64, 6] {
        store.extend(bytes_of(&LanePrefill { lane_tag, token_offset: 10, token_count: 20 }));
        store.extend([0xEE; 8]);
    }
    let store = words(&store);
    let array = over(&store, 2, 24);
    let records = read::<LanePrefill>(&array).expect("legal");
    assert_eq!(array.elem_size, 24);
    let fields: Vec<_> =
        records.iter().map(|record| (record.lane_tag, record.token_offset, record.token_count)).collect();
    assert_eq!(fields, [(5, 10, 20), (6, 10, 20)]);
}

/// AS-7: what an older writer lacks reads as zero, and not one byte past its record is looked at.
#[test]
fn admit_of_136_bytes_reads_zero_for_the_fields_it_lacks() {
    let mut admit = LaneAdmit::zeroed();
    admit.lane_tag = 77;
    admit.host_sampler_identity = [3; 32];
    admit.grammar_replay = 5;
    admit.decode_replay = 6;
    let store = words(&[&bytes_of(&admit)[..136], &bytes_of(&admit)[..136]].concat());
    let records = read::<LaneAdmit>(&over(&store, 2, 136)).expect("legal");
    assert_eq!(records.len(), 2);
    for record in records {
        assert_eq!((record.lane_tag, record.host_sampler_identity), (77, [3; 32]));
        assert_eq!((record.grammar_replay, record.decode_replay), (0, 0));
    }
    assert_eq!(refused::<LaneAdmit>(&over(&store, 2, 135)), Status::RejectBadStride);
}

/// AS-8.
#[test]
fn stride_below_the_record_is_refused() {
    let mut arena = RecordArena::new();
    let array = arena.push_records(&[1u64, 2, 3]);
    assert_eq!(array.elements::<LanePrefill>(&arena).map(|_| ()).expect_err("8 < 16"), Status::RejectBadStride);
    assert_eq!(refused::<LanePrefill>(&array), Status::RejectBadStride);
    assert_eq!(read::<u64>(&array).expect("legal"), [1, 2, 3]);
}

/// AS-9. Only the base must be aligned: a stride of 17 puts the elements anywhere.
#[test]
fn base_off_by_four_is_refused_but_an_odd_stride_is_not() {
    let store = words(&[1u8; 40]);
    let base = over(&store, 1, 16);
    let shifted = Array { data: base.data.wrapping_byte_add(4), ..base };
    assert_eq!(refused::<LanePrefill>(&shifted), Status::RejectBadAlignment);
    let odd = read::<LaneDecode>(&over(&store, 2, 17)).expect("legal");
    assert_eq!(odd[1].lane_tag, 0x0101_0101_0101_0101);
}

/// AS-10, and the sum that wraps instead of the product.
#[test]
fn span_that_overflows_is_out_of_bounds() {
    let store = [0u64; 2];
    assert_eq!(refused::<LanePrefill>(&over(&store, u32::MAX, u32::MAX)), Status::RejectBounds);
    let near_the_end = Array { data: core::ptr::without_provenance(usize::MAX - 7), count: 1, elem_size: 16 };
    assert_eq!(refused::<LanePrefill>(&near_the_end), Status::RejectBounds);
    let arena = RecordArena::new();
    let array = over(&store, u32::MAX, u32::MAX);
    assert_eq!(array.elements::<LanePrefill>(&arena).map(|_| ()).expect_err("overflows"), Status::RejectBounds);
}

/// AS-11.
#[test]
fn array_outside_the_arena_is_out_of_bounds() {
    let mut arena = RecordArena::new();
    let inside = arena.push_records(&[LanePrefill::zeroed(); 2]);
    let store = [0u64; 4];
    for array in [over(&store, 2, 16), Array { count: 3, ..inside }] {
        for _ in 0..2 {
            assert_eq!(array.elements::<LanePrefill>(&arena).map(|_| ()).expect_err("outside"), Status::RejectBounds);
        }
    }
    assert_eq!(inside.elements::<LanePrefill>(&arena).expect("inside").count(), 2);
}

/// AS-12.
#[test]
fn status_record_that_claims_eight_bytes_is_refused() {
    let mut status = OpStatus::zeroed();
    status.struct_size = 24;
    status.state = op_state::DONE;
    status.bytes_moved = 99;
    // SAFETY: the record is a local of the size it claims.
    let read = unsafe { read_versioned(&raw const status) }.expect("full size");
    assert_eq!(bytes_of(&read), bytes_of(&status));
    for struct_size in [0u64, 7, 8, 23] {
        // Nothing behind the size is read: the record ends after its first word.
        let store = [struct_size];
        for _ in 0..2 {
            // SAFETY: 8 bytes are readable, and the size they hold is below the minimum, so no more are needed.
            let result = unsafe { read_versioned(store.as_ptr().cast::<OpStatus>()) };
            assert_eq!(result.map(|_| ()).expect_err("short"), Status::RejectBadStruct);
        }
    }
}

/// AS-13: the plan before its tail was appended, and a plan of a later version.
#[test]
fn plan_is_read_from_152_bytes_and_from_any_longer_one() {
    let mut plan = TickPlan::zeroed();
    plan.plan_seq = 4;
    plan.shed_policy.max_evict_bytes = 11;
    plan.partial_emit_user = core::ptr::without_provenance_mut(0x10);
    let full = bytes_of(&plan);
    for (struct_size, user) in [(152usize, 0), (160, 0), (168, 0x10), (168 + 64, 0x10)] {
        let mut store = full.clone();
        store.resize(store.len().max(struct_size), 0xEE);
        store[..8].copy_from_slice(&(struct_size as u64).to_le_bytes());
        store.truncate(struct_size);
        let store = words(&store);
        // SAFETY: `store` is as long as the size it begins with.
        let read = unsafe { read_versioned(store.as_ptr().cast::<TickPlan>()) }.expect("legal");
        assert_eq!((read.struct_size, read.plan_seq), (struct_size as u64, 4));
        assert_eq!((read.shed_policy.max_evict_bytes, read.partial_emit_user.addr()), (11, user));
    }
    let store = [151u64; 19];
    // SAFETY: 152 bytes are there.
    let short = unsafe { read_versioned(store.as_ptr().cast::<TickPlan>()) };
    assert_eq!(short.map(|_| ()).expect_err("short"), Status::RejectBadStruct);
}

/// A record may stand at any address: the copy is bytewise.
#[test]
fn versioned_record_is_read_from_any_address() {
    let mut status = OpStatus::zeroed();
    status.struct_size = 24;
    status.bytes_moved = 5;
    let mut store = vec![0u64; 4];
    // SAFETY: 24 bytes from byte 1 lie inside 32.
    let odd = unsafe { store.as_mut_ptr().cast::<u8>().add(1) };
    // SAFETY: the source is 24 bytes, the target 31; they do not overlap.
    unsafe { core::ptr::copy_nonoverlapping(bytes_of(&status).as_ptr(), odd, 24) };
    // SAFETY: 24 bytes are there, as the record says.
    let read = unsafe { read_versioned(odd.cast::<OpStatus>().cast_const()) }.expect("legal");
    assert_eq!(read.bytes_moved, 5);
}

/// Whatever count, stride, base and length of memory: the answer is what the rules say, and an accepted array yields
/// exactly the bytes it names. Replay with the numbers in the message.
#[test]
fn every_small_shape_is_decoded_as_the_rules_say() {
    let store: Vec<u64> = (0..12).map(|word| 0x0101_0101_0101_0101 * (word + 1)).collect();
    let bytes: Vec<u8> = store.iter().flat_map(|word| word.to_le_bytes()).collect();
    for offset in 0..24usize {
        for count in 0..6u32 {
            for stride in 0..40u32 {
                let data = store.as_ptr().wrapping_byte_add(offset).cast();
                let array = Array { data, count, elem_size: stride };
                let total = count as usize * stride as usize;
                if offset + total > bytes.len() {
                    continue;
                }
                let expected = if (stride != 0 || count != 0) && stride < 16 {
                    Err(Status::RejectBadStride)
                } else if offset % 8 != 0 {
                    Err(Status::RejectBadAlignment)
                } else {
                    Ok((0..count as usize)
                        .map(|index| {
                            let at = offset + index * stride as usize;
                            bytes[at..at + 16].to_vec()
                        })
                        .collect::<Vec<_>>())
                };
                let got = read::<LanePrefill>(&array).map(|records| records.iter().map(bytes_of).collect());
                assert_eq!(got, expected, "offset {offset}, count {count}, stride {stride}");
            }
        }
    }
}
