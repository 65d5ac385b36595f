#![forbid(unsafe_code)]
//! A timeline of what an engine did, as a file that Chrome's and Perfetto's trace viewers open.
//!
//! The file is one JSON array of trace events, one event a line:
//!
//! ```text
//!   [
//!   {"name":"process_name","ph":"M", ...},
//!   {"name":"decode","ph":"X","pid":1,"tid":1,"ts":1041.250,"dur":88.100,"args":{}},
//!   {}]
//! ```
//!
//! | track | what lies on it |
//! |---|---|
//! | ticks | a span per tick; in it one per phase, in those one per step of the runtime; refused plans as marks |
//! | cache | counters of pages and cached bytes; a mark per entry that was lost, per chunk that was dropped |
//! | operations | from submission to completion |
//! | one per lane | its part of each step; around those of the decode phase a span with the tokens it emitted; its fault |
//!
//! Times are microseconds since the start, with three decimals. Tags are text: they are opaque and may exceed what a JSON reader keeps
//! of a number.
//!
//! # Invariants
//! - Every line that is written is whole. The format allows the end of the array to be missing, so a file of a process that was stopped
//!   is opened by the viewers as it is; strict JSON it is once [`Timeline::finish`] has run.
//! - Spans of one track nest or are disjoint: whoever records writes what it does, one thing after the other, on one thread.
//!
//! # Limits
//! Whoever has no timeline pays nothing: there is no recorder to ask, and no clock is read. With one, a tick reads the clock once per phase
//! and twice per step, and formats a line per event. The first failure of the writer ends the recording; [`Timeline::finish`] reports it.

mod json;

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::time::Instant;

pub use json::Value;

/// Where an event lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Track {
    /// Ticks, phases and steps.
    Ticks,
    /// The prefix cache and the pool.
    Cache,
    /// State operations.
    Operations,
    /// The lane with this tag.
    Lane(u64),
}

/// First number of the tracks of lanes.
const LANES_FROM: u64 = 16;

/// A recorder.
pub struct Timeline {
    out: BufWriter<Box<dyn Write + Send>>,
    origin: Instant,
    /// Track numbers of lanes, given in the order in which they are first seen.
    lanes: BTreeMap<u64, u64>,
    line: String,
    phase_from_ns: u64,
    last_phase_ns: (u64, u64),
    failure: Option<io::Error>,
}

impl core::fmt::Debug for Timeline {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Timeline").field("lanes", &self.lanes.len()).field("failure", &self.failure).finish()
    }
}

impl Timeline {
    /// A recorder that starts now and writes there.
    pub fn new(out: impl Write + Send + 'static) -> Self {
        let mut timeline = Self {
            out: BufWriter::with_capacity(1 << 16, Box::new(out)),
            origin: Instant::now(),
            lanes: BTreeMap::new(),
            line: String::new(),
            phase_from_ns: 0,
            last_phase_ns: (0, 0),
            failure: None,
        };
        timeline.write(b"[\n");
        timeline.name("process_name", 0, "ictus");
        for (number, name) in [(1, "ticks"), (2, "cache"), (3, "operations")] {
            timeline.name("thread_name", number, name);
        }
        timeline
    }

    /// Nanoseconds since the start, now.
    pub fn now_ns(&self) -> u64 {
        self.since_start_ns(Instant::now())
    }

    /// Nanoseconds from the start to an instant; 0 for one before it.
    pub fn since_start_ns(&self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.origin);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    /// A tick begins: its first phase starts at `instant`.
    pub fn begin_tick(&mut self, instant: Instant) {
        self.phase_from_ns = self.since_start_ns(instant);
    }

    /// Something on the track of ticks ends now that began where the last such thing ended.
    pub fn phase(&mut self, name: &str) {
        let now = self.now_ns();
        self.last_phase_ns = (self.phase_from_ns, now);
        self.phase_from_ns = now;
        let (from, to) = self.last_phase_ns;
        self.span(Track::Ticks, name, from, to, &[]);
    }

    /// Start and end of the last phase.
    pub fn last_phase_ns(&self) -> (u64, u64) {
        self.last_phase_ns
    }

    /// Something that began and ended.
    pub fn span(&mut self, track: Track, name: &str, from_ns: u64, to_ns: u64, args: &[(&str, Value<'_>)]) {
        let thread = self.thread(track);
        let line = self.open("X", name, thread, from_ns);
        json::time(line, "dur", to_ns.saturating_sub(from_ns));
        self.close(args);
    }

    /// Something that happened.
    pub fn mark(&mut self, track: Track, name: &str, at_ns: u64, args: &[(&str, Value<'_>)]) {
        let thread = self.thread(track);
        let line = self.open("i", name, thread, at_ns);
        line.push_str(r#","s":"t""#);
        self.close(args);
    }

    /// Values at a time; the viewer draws them as areas.
    pub fn counter(&mut self, name: &str, at_ns: u64, args: &[(&str, Value<'_>)]) {
        let thread = self.thread(Track::Cache);
        self.open("C", name, thread, at_ns);
        self.close(args);
    }

    /// An operation begins that outlives the call; `id` names it.
    pub fn begin(&mut self, name: &str, id: u64, at_ns: u64, args: &[(&str, Value<'_>)]) {
        self.flow("b", name, id, at_ns, args);
    }

    /// An operation ends.
    pub fn end(&mut self, name: &str, id: u64, at_ns: u64, args: &[(&str, Value<'_>)]) {
        self.flow("e", name, id, at_ns, args);
    }

    fn flow(&mut self, phase: &str, name: &str, id: u64, at_ns: u64, args: &[(&str, Value<'_>)]) {
        let thread = self.thread(Track::Operations);
        let line = self.open(phase, name, thread, at_ns);
        line.push_str(r#","cat":"operation","id":"#);
        json::value(line, &Value::Id(id));
        self.close(args);
    }

    /// Ends the array and writes out what is still in memory.
    ///
    /// # Errors
    /// The first failure of the writer; the file holds whole lines up to there, or the last one cut.
    pub fn finish(mut self) -> io::Result<()> {
        self.write(b"{}]\n");
        match self.failure.take() {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }

    /// The number of a track; a lane seen for the first time gets a name.
    fn thread(&mut self, track: Track) -> u64 {
        let tag = match track {
            Track::Ticks => return 1,
            Track::Cache => return 2,
            Track::Operations => return 3,
            Track::Lane(tag) => tag,
        };
        let next = LANES_FROM + self.lanes.len() as u64;
        let thread = *self.lanes.entry(tag).or_insert(next);
        if thread == next {
            self.name("thread_name", thread, &format!("lane {tag}"));
        }
        thread
    }

    fn name(&mut self, what: &str, thread: u64, name: &str) {
        self.open("M", what, thread, 0);
        self.close(&[("name", Value::Text(name))]);
    }

    /// Starts a line: the fields that every event has.
    fn open(&mut self, phase: &str, name: &str, thread: u64, at_ns: u64) -> &mut String {
        let line = &mut self.line;
        line.clear();
        line.push_str(r#"{"name":"#);
        json::value(line, &Value::Text(name));
        line.push_str(r#","ph":"#);
        json::value(line, &Value::Text(phase));
        line.push_str(r#","pid":1,"tid":"#);
        json::value(line, &Value::Number(thread));
        json::time(line, "ts", at_ns);
        line
    }

    /// Ends a line and writes it.
    fn close(&mut self, args: &[(&str, Value<'_>)]) {
        let mut line = core::mem::take(&mut self.line);
        line.push_str(r#","args":{"#);
        for (number, (key, value)) in args.iter().enumerate() {
            if number > 0 {
                line.push(',');
            }
            json::value(&mut line, &Value::Text(key));
            line.push(':');
            json::value(&mut line, value);
        }
        line.push_str("}},\n");
        self.write(line.as_bytes());
        self.line = line;
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.failure.is_none()
            && let Err(error) = self.out.write_all(bytes)
        {
            self.failure = Some(error);
        }
    }
}

#[cfg(test)]
mod tests;
