//! Bytes that no host would send (WS-24): random frames, and sessions with bytes changed, cut and repeated.
//!
//! The seeds are the frames of the contract's vectors, a whole session, and the files of `tests/worker/corpus`: what once was found goes there.
//! `ICTUS_WORKER_FRAMES=<n>` says how many; `ICTUS_RNG=<key>` replays a run.

use std::time::{Duration, Instant};

use ictus::executor::Executor;
use ictus::runtime::FakeRuntime;
use ictus::worker::frame::FrameReader;
use ictus::worker::message::{KINDS, Message, Sender, sender};
use ictus::worker::payload::*;

use crate::host::Host;
use crate::{bytes_of, raw_frame, vectors};

/// A sequence of numbers that a key decides (splitmix64).
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn from_key(key: u64) -> Self {
        Self(key)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

pub(crate) fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |value| value.parse().expect("a number"))
}

pub(crate) fn key() -> u64 {
    let key = from_environment("ICTUS_RNG", 0x0124);
    println!("ICTUS_RNG={key}");
    key
}

/// Streams that are sound, or were found.
fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = vectors::payloads()
        .into_iter()
        .map(|(message, hex)| raw_frame(8, message.kind(), 1, 0, 0, &bytes_of(hex)))
        .collect();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/worker/corpus");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("the corpus is there").map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a text");
        let hex: String = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .flat_map(str::chars)
            .filter(|c| !c.is_whitespace())
            .collect();
        seeds.push(bytes_of(&hex));
    }
    seeds
}

/// One of the seeds with something changed, or a frame of random bytes.
fn stream(draw: &mut Draw, seeds: &[Vec<u8>]) -> Vec<u8> {
    if draw.below(4) == 0 {
        let kind = if draw.below(4) == 0 { draw.next() as u16 } else { KINDS[draw.below(KINDS.len())] };
        let class = if draw.below(16) == 0 { draw.next() as u8 } else { u8::from(kind >= 0x8000) };
        let payload: Vec<u8> = (0..draw.below(80))
            .map(|_| if draw.below(3) == 0 { draw.next() as u8 } else { draw.below(4) as u8 })
            .collect();
        return raw_frame(8, kind, draw.next(), 0, class, &payload);
    }
    let mut bytes = seeds[draw.below(seeds.len())].clone();
    for _ in 0..1 + draw.below(4) {
        let at = draw.below(bytes.len());
        match draw.below(5) {
            0 => bytes[at] = draw.next() as u8,
            1 => bytes[at] ^= 1 << draw.below(8),
            2 => bytes.truncate(at + 1),
            3 => bytes.insert(at, draw.next() as u8),
            _ => {
                let other = &seeds[draw.below(seeds.len())];
                bytes.extend_from_slice(&other[..draw.below(other.len()) + 1]);
            }
        }
        if bytes.is_empty() {
            bytes.push(0);
        }
    }
    bytes
}

/// W-4, W-12, W-14: frames and payloads.
#[test]
fn ws_24_decoders_take_any_bytes() {
    let mut draw = Draw(key());
    let seeds = seeds();
    let (mut frames, mut sound, mut wrong) = (0u64, 0u64, 0u64);
    let wanted = from_environment("ICTUS_WORKER_FRAMES", 60_000);
    while frames < wanted {
        let bytes = stream(&mut draw, &seeds);
        let mut reader = FrameReader::new();
        let mut left = &bytes[..];
        'stream: while !left.is_empty() {
            let size = (1 + draw.below(40)).min(left.len());
            reader.push(&left[..size]);
            left = &left[size..];
            loop {
                frames += 1;
                match reader.next() {
                    Ok(None) => break,
                    Ok(Some(frame)) => match Message::decode(frame.kind, frame.payload).expect("known") {
                        Ok(message) => {
                            sound += 1;
                            let mut again = Vec::new();
                            message.encode(&mut again);
                            let read = Message::decode(message.kind(), &again).expect("known").expect("sound");
                            assert_eq!(format!("{read:?}"), format!("{message:?}"));
                        }
                        Err(_) => wrong += 1,
                    },
                    Err(_) => {
                        wrong += 1;
                        break 'stream;
                    }
                }
            }
        }
    }
    assert!(sound > wanted / 50 && wrong > wanted / 50, "{sound} sound, {wrong} wrong");
}

/// W-74: a whole worker. It answers or ends its link; it does not panic, and it does not hang.
#[test]
fn ws_24_worker_answers_or_ends_its_link() {
    let mut draw = Draw(key());
    let seeds = seeds();
    let links = from_environment("ICTUS_WORKER_FRAMES", 60_000) / 500;
    let (mut ended, mut answered) = (0, 0);
    for link in 0..links {
        let mut host =
            if link % 8 == 0 { Host::of_fake() } else { Host::of(|| Box::new(Executor::new(FakeRuntime::default()))) };
        if link % 8 != 0 {
            host.start();
            host.buffer(1, 300);
        }
        let start = Instant::now();
        for _ in 0..1 + draw.below(40) {
            let mut bytes = stream(&mut draw, &seeds);
            // What asks for a descriptor only waits for it.
            if draw.below(20) != 0 {
                bytes = without_attaches(&bytes);
            }
            if !host.try_send_raw(&bytes) {
                break;
            }
        }
        host.stop_sending();
        let replies = host.drain_replies();
        answered += replies;
        match host.end() {
            Ok(_) => {}
            Err(_) => ended += 1,
        }
        assert!(start.elapsed() < Duration::from_secs(50), "link {link} took {:?}", start.elapsed());
    }
    assert!(ended > 0 && answered > 0, "{ended} of {links} links ended, {answered} replies");
}

/// A stream without the messages that announce a descriptor.
fn without_attaches(bytes: &[u8]) -> Vec<u8> {
    let announces = |kind| matches!(kind, 0x0003 | 0x0015 | 0x001E);
    let kind = bytes.get(6..8).map_or(0, |kind| u16::from_le_bytes([kind[0], kind[1]]));
    if announces(kind) { raw_frame(8, 0x0017, 1, 0, 0, &[0; 7]) } else { bytes.to_vec() }
}

/// W-74: prompts, plans and operations with numbers from nowhere, in sound frames.
#[test]
fn ws_24_sound_messages_with_any_numbers_are_answered() {
    let mut draw = Draw(key());
    let mut host = Host::ready();
    host.buffer(1, 300);
    let mut odd = |bound: usize| match draw.below(4) {
        0 => draw.next(),
        1 => u64::MAX - draw.below(3) as u64,
        _ => draw.below(bound) as u64,
    };
    for round in 0..from_environment("ICTUS_WORKER_FRAMES", 60_000) / 60 {
        let span = TokenRef { ring_id: odd(4) as u32, index: odd(70) as u32, count: odd(6) as u32, generation: odd(9) };
        let sequence = odd(5);
        let range = TokenRange { start: odd(20), end: odd(70) };
        let message = match round % 9 {
            0 => Message::MatchReq(MatchReq { space_id: odd(3) as u32, span, media_deps: vec![] }),
            1 => Message::SeedAcquire(SeedAcquire { span, prefix_len: odd(60), determinism_class: odd(3) as u8 }),
            2 => Message::StateSyncReq(SyncRequest::ExportSize {
                sequence,
                space_id: odd(3) as u32,
                range,
                encoding: odd(4) as u8,
            }),
            3 => Message::StateOpSubmit(StateOp::Snapshot {
                sequence,
                space_id: odd(3) as u32,
                boundary_pos: odd(70),
                buf_id: odd(3),
                sizing_gen: odd(4),
            }),
            4 => Message::StateOpSubmit(StateOp::Restore { sequence, space_id: odd(3) as u32, buf_id: odd(3) }),
            5 => Message::StateSyncReq(SyncRequest::Trim { sequence, space_id: odd(3) as u32, new_len: odd(40) }),
            6 => Message::StateSyncReq(SyncRequest::CreateSequence),
            7 => Message::StateSyncReq(SyncRequest::PublishSequence { sequence, span }),
            _ => Message::TickSubmit(Plan {
                plan_seq: odd(50),
                flags: odd(8) as u32,
                prefill_token_budget: odd(100) as u32,
                max_decode_lanes: odd(20) as u32,
                admits: vec![LaneAdmit {
                    sampling: odd(4) as u32,
                    top_logprobs: odd(30) as u8,
                    want_logprobs: true,
                    decode_replay: odd(5) as u32,
                    ..crate::host::admit(odd(4), span)
                }],
                prefills: vec![LanePrefill {
                    lane_tag: odd(4),
                    token_offset: odd(5) as u32,
                    token_count: odd(9) as u32,
                }],
                decodes: vec![crate::host::decode(odd(4), (odd(40) % 300) as u16)],
                ..Plan::default()
            }),
        };
        let prompt: Vec<u32> = (0..odd(6) % 6).map(|_| odd(32_000) as u32).collect();
        host.prompt(&prompt);
        let expected = sender(message.kind());
        assert_eq!(expected, Some(Sender::Host));
        host.ask(&message);
        host.unasked.clear();
    }
    host.ping();
}
