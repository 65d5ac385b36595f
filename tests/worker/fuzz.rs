//! The functions of the fuzz targets on any compiler (W-74): the committed corpus, and as many mutations of it as are wanted.
//!
//! `ICTUS_FUZZ_RUNS=<n>` says how many per target, `ICTUS_RNG=<key>` replays a run. `ICTUS_BLESS=1` writes the part of the corpus that
//! follows from the vectors of the contract. `scripts/fuzz.sh` runs the same functions under libFuzzer.

#[path = "../../fuzz/checks.rs"]
pub(crate) mod checks;

use std::path::{Path, PathBuf};

use ictus::worker::message::{KINDS, Message, Sender, sender};
use ictus::worker::payload::TickResult;

use crate::hostile::{Draw, from_environment, key};
use crate::{bytes_of, raw_frame, vectors};

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target)
}

/// The files of a target, in order.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(folder(target)).expect("the corpus is there");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).expect("readable")).collect()
}

fn mutated(draw: &mut Draw, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = corpus[draw.below(corpus.len())].clone();
    for _ in 0..draw.below(6) {
        if bytes.is_empty() {
            bytes.push(draw.next() as u8);
        }
        let at = draw.below(bytes.len());
        match draw.below(7) {
            0 => bytes[at] = draw.next() as u8,
            1 => bytes[at] ^= 1 << draw.below(8),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, draw.next() as u8),
            4 => bytes[at] = [0, 1, 0x7F, 0x80, 0xFF][draw.below(5)],
            5 => drop(bytes.drain(at..(at + 1 + draw.below(8)).min(bytes.len()))),
            _ => {
                let other = &corpus[draw.below(corpus.len())];
                bytes.truncate(at);
                bytes.extend_from_slice(&other[draw.below(other.len())..]);
            }
        }
    }
    bytes
}

fn run(target: &str, usual: u64) {
    let check = checks::TARGETS.iter().find(|(name, _)| *name == target).expect("a target").1;
    let corpus = corpus(target);
    assert!(corpus.len() >= 3, "{target} has a corpus");
    corpus.iter().for_each(|bytes| check(bytes));
    let mut draw = Draw::from_key(key());
    for run in 0..from_environment("ICTUS_FUZZ_RUNS", usual) {
        let bytes = mutated(&mut draw, &corpus);
        let outcome = std::panic::catch_unwind(|| check(&bytes));
        assert!(outcome.is_ok(), "{target}, run {run}: {bytes:02x?}");
    }
}

#[test]
fn ws_24_fuzz_frames() {
    run("frames", 20_000);
}

#[test]
fn ws_24_fuzz_messages() {
    run("messages", 20_000);
}

#[test]
fn ws_24_fuzz_segments() {
    run("segments", 5_000);
}

#[test]
fn ws_24_fuzz_what_a_host_sends() {
    run("worker", 300);
}

#[test]
fn ws_24_fuzz_what_a_worker_sends() {
    run("host", 300);
}

/// What follows from the vectors is in the corpus; found inputs lie beside it.
#[test]
fn corpus_has_the_vectors() {
    let hello = raw_frame(8, 1, 1, 0, 0, &bytes_of("08080000"));
    let mut wanted: Vec<(&str, String, Vec<u8>)> = Vec::new();
    for (at, (message, hex)) in vectors::payloads().into_iter().enumerate() {
        let payload = bytes_of(hex);
        let number = KINDS.iter().position(|&kind| kind == message.kind()).expect("known") as u8;
        let frame = raw_frame(8, message.kind(), 2, 0, 0, &payload);
        wanted.push(("messages", format!("vector-{at:02}"), [&[number], &payload[..]].concat()));
        wanted.push(("frames", format!("vector-{at:02}"), [&[5], &frame[..]].concat()));
        wanted.push(("worker", format!("vector-{at:02}"), [&[0], &hello[..], &frame].concat()));
        if sender(message.kind()) == Some(Sender::Host) {
            // Behind a good beginning, over objects of each kind, which are cut now and then.
            let how = [1, 3, 7][at % 3];
            wanted.push(("worker", format!("ready-{at:02}"), [&[how], &frame[..]].concat()));
        }
        // To the first request behind the handshake, of a worker that begins well; what answers nothing comes without being asked for.
        let (call, correlation) = match &message {
            Message::MatchRes(_) => (0, 6),
            Message::SeedGrant(_) => (1, 6),
            Message::StateSyncRes(_) => (2 + at as u8 % 3, 6),
            Message::TickResult(_) => (6, 6),
            _ => (6, 0),
        };
        let said = raw_frame(8, message.kind(), 6, correlation, 0, &payload);
        wanted.push(("host", format!("vector-{at:02}"), [&[call << 1], &said[..]].concat()));
        if let Message::TickResult(TickResult::Events(_)) = message {
            let taken = checks::emits_heard(&[&[call << 1], &said[..]].concat());
            assert_eq!(taken, 1, "a host takes the events of the contract's vector");
        }
    }
    for (at, (id, slots, slot_bytes)) in
        [(1u32, 4u32, 80u32), (2, 2, 144), (3, 1, 24), (9, 0, 0)].into_iter().enumerate()
    {
        let mut bytes: Vec<u8> = [id, slots, slot_bytes, 0].iter().flat_map(|n| n.to_be_bytes()).collect();
        bytes.extend(0x4252_5452_494E_4731u64.to_le_bytes());
        bytes.extend([id, slots, slot_bytes].iter().flat_map(|n| n.to_le_bytes()));
        bytes.resize(16 + 64, 0);
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(8u32.to_le_bytes());
        bytes.resize(16 + 64 + (slots * slot_bytes) as usize, 7);
        wanted.push(("segments", format!("ring-{at}"), bytes));
    }
    let bless = std::env::var_os("ICTUS_BLESS").is_some();
    for (target, name, bytes) in wanted {
        let file = folder(target).join(name);
        if bless {
            std::fs::write(&file, &bytes).expect("the corpus can be written");
        }
        let there = std::fs::read(&file).unwrap_or_default();
        assert!(there == bytes, "{} is old (ICTUS_BLESS=1 writes it)", file.display());
    }
}
