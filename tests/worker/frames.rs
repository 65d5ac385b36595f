//! Frames as they come in: in pieces, cut, and wrong (WS-2 .. WS-4).

use ictus::worker::codec::Wire;
use ictus::worker::frame::{FrameError, FrameReader, FrameWriter, HEADER_BYTES, MAX_FRAME_BYTES, VERSION};
use ictus::worker::message::{KINDS, Message, Sender, kind, name, sender};
use ictus::worker::payload::{Load, TickEmit};

use crate::{bytes_of, raw_frame};

/// Number, correlation and payload of a frame.
type Seen = (u16, u64, Vec<u8>);

/// Every frame that is in `bytes`, read in pieces of the given sizes.
fn frames_of(bytes: &[u8], pieces: &[usize]) -> (Vec<Seen>, Result<(), FrameError>) {
    let mut reader = FrameReader::new();
    let mut found = Vec::new();
    let mut left = bytes;
    let mut sizes = pieces.iter().cycle();
    while !left.is_empty() {
        let size = (*sizes.next().expect("a cycle")).min(left.len());
        reader.push(&left[..size]);
        left = &left[size..];
        while let Some(frame) = reader.next().expect("sound frames") {
            found.push((frame.kind, frame.correlation, frame.payload.to_vec()));
        }
    }
    (found, reader.finish())
}

fn three_frames() -> (Vec<u8>, Vec<Seen>) {
    let mut writer = FrameWriter::new(VERSION);
    let mut out = Vec::new();
    let emit = TickEmit { lane_tag: 7, tokens: (0..300).collect() };
    for (correlation, message) in
        [(0, Message::DrainReq), (0, Message::TickEmit(emit.clone())), (9, Message::Pong(Load::default()))]
    {
        writer.write(correlation, &message, &mut out).expect("small");
    }
    let mut payload = Vec::new();
    emit.put(&mut payload);
    (out, vec![(kind::DRAIN_REQ, 0, vec![]), (kind::TICK_EMIT, 0, payload), (kind::PONG, 9, vec![0; 7])])
}

/// W-5.
#[test]
fn ws_2_frames_come_out_whole_however_they_come_in() {
    let (bytes, expected) = three_frames();
    for pieces in [&[bytes.len()][..], &[1], &[2, 3, 5], &[24, 1], &[25], &[60, 400], &[4]] {
        assert_eq!(frames_of(&bytes, pieces), (expected.clone(), Ok(())), "pieces of {pieces:?}");
    }
}

/// W-6.
#[test]
fn ws_2_stream_cut_inside_a_frame_is_truncated_with_what_is_left_over() {
    let (bytes, expected) = three_frames();
    let ends = [25, 25 + 25 + expected[1].2.len(), bytes.len()];
    for cut in 0..=bytes.len() {
        let whole = ends.iter().filter(|&&end| end <= cut).count();
        let left = cut - ends[..whole].last().unwrap_or(&0);
        let finished = if left == 0 { Ok(()) } else { Err(FrameError::Truncated { left }) };
        assert_eq!(frames_of(&bytes[..cut], &[7]), (expected[..whole].to_vec(), finished), "cut at {cut}");
    }
}

/// W-1.
#[test]
fn ws_3_lengths_out_of_range_are_refused_from_their_four_bytes() {
    let refused = |len: u32| {
        let mut reader = FrameReader::new();
        reader.push(&len.to_le_bytes());
        let first = reader.next().map(|frame| frame.is_some());
        assert_eq!(reader.next().map(|frame| frame.is_some()), first, "it is not consumed");
        first
    };
    assert_eq!(refused(20), Err(FrameError::BadLength { len: 20 }));
    assert_eq!(refused(0), Err(FrameError::BadLength { len: 0 }));
    assert_eq!(refused((1 << 24) + 1), Err(FrameError::TooLarge { len: (1 << 24) + 1 }));
    assert_eq!(refused(u32::MAX), Err(FrameError::TooLarge { len: u32::MAX.into() }));
    assert_eq!((refused(21), refused(1 << 24)), (Ok(false), Ok(false)));
}

/// W-1.
#[test]
fn ws_3_payload_beyond_the_bound_is_not_sent() {
    // A list of bytes has its length before it: four bytes for so many.
    let largest = MAX_FRAME_BYTES as usize - (HEADER_BYTES - 4) - 4;
    let mut writer = FrameWriter::new(VERSION);
    let mut out = vec![1, 2, 3];
    let too_large = Message::Telemetry(vec![0; largest + 1]);
    for _ in 0..2 {
        let refused = writer.write(0, &too_large, &mut out);
        assert_eq!(refused, Err(FrameError::TooLarge { len: u64::from(MAX_FRAME_BYTES) + 1 }));
        assert_eq!(out, [1, 2, 3], "nothing was written");
    }
    assert_eq!(writer.write(0, &Message::Telemetry(vec![0; largest]), &mut out), Ok(1), "no number was used");
    let mut reader = FrameReader::new();
    reader.push(&out[3..]);
    assert_eq!(reader.next().expect("sound").expect("whole").payload.len(), 16_777_195);
}

/// W-2, W-3.
#[test]
fn ws_4_class_and_type_are_checked() {
    let first = |bytes: &[u8]| {
        let mut reader = FrameReader::new();
        reader.push(bytes);
        reader.next().map(|frame| frame.map(|frame| frame.kind))
    };
    let ping = bytes_of("00000000000000");
    let mismatch = |kind, class| Err(FrameError::ClassMismatch { kind, class });
    assert_eq!(first(&raw_frame(8, kind::PING, 1, 0, 1, &ping)), mismatch(kind::PING, 1));
    assert_eq!(first(&raw_frame(8, kind::TELEMETRY, 1, 0, 0, &[0])), mismatch(kind::TELEMETRY, 0));
    assert_eq!(first(&raw_frame(8, kind::PING, 1, 0, 7, &ping)), mismatch(kind::PING, 7));
    assert_eq!(first(&raw_frame(8, 0x0FFF, 1, 0, 0, &[])), Err(FrameError::UnknownType { kind: 0x0FFF }));
    assert_eq!(first(&raw_frame(8, 0x0FFF, 1, 0, 3, &[])), mismatch(0x0FFF, 3), "the class is looked at first (W-4)");
    let skipped = [raw_frame(8, 0x8FFF, 1, 0, 1, &[1, 2, 3]), raw_frame(8, kind::PONG, 2, 1, 0, &ping)].concat();
    assert_eq!(first(&skipped), Ok(Some(kind::PONG)));
}

/// W-15.
#[test]
fn ws_4_there_are_thirty_two_known_types() {
    assert_eq!(KINDS.len(), 32);
    assert_eq!(KINDS[..31], (1..=0x1F).collect::<Vec<u16>>());
    assert_eq!((KINDS[31], name(0x8001), sender(0x8001)), (0x8001, Some("TELEMETRY"), Some(Sender::Either)));
    let from_the_worker = KINDS.iter().filter(|&&kind| sender(kind) == Some(Sender::Worker)).count();
    assert_eq!(from_the_worker, 13 + 1, "replies, and what comes unasked");
    assert_eq!((sender(0), sender(0x20), Message::decode(0x20, &[])), (None, None, None));
}
