#![cfg(all(feature = "worker", target_os = "linux"))]
//! The engine in its own process, from outside: scenarios WS-1 ...

#[path = "../support/mod.rs"]
mod support;

mod cut;
mod frames;
mod fuzz;
mod handshake;
mod host;
mod hostile;
mod library;
mod process;
mod scripted;
mod ticks;
mod vectors;

use std::time::Duration;

/// The bytes that a hex text names.
fn bytes_of(hex: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("two hex digits");
    (0..hex.len()).step_by(2).map(digit).collect()
}

/// WS-21: an end takes less than a second. `end` ends something and says how long that took.
///
/// A busy machine may keep one end waiting for a processor, so the first of several that is in time will do. What ends late for a reason of
/// its own, such as a time-out, is late each time.
fn ends_within_a_second(mut end: impl FnMut() -> Duration) {
    let mut took = Vec::new();
    while took.len() < 10 {
        took.push(end());
        if took.last() < Some(&Duration::from_secs(1)) {
            return;
        }
    }
    panic!("not once within a second: {took:?}");
}

/// A frame with any values in its header; the length is right.
fn raw_frame(version: u16, kind: u16, seq: u64, correlation: u64, class: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend((21 + payload.len() as u32).to_le_bytes());
    frame.extend(version.to_le_bytes());
    frame.extend(kind.to_le_bytes());
    frame.extend(seq.to_le_bytes());
    frame.extend(correlation.to_le_bytes());
    frame.push(class);
    frame.extend(payload);
    frame
}
