#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex};

use super::*;

/// A writer that keeps what it is given, up to a limit.
#[derive(Clone, Default)]
struct Kept {
    bytes: Arc<Mutex<Vec<u8>>>,
    fails_after: Option<usize>,
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut kept = self.bytes.lock().expect("no other holder panicked");
        if self.fails_after.is_some_and(|limit| kept.len() + bytes.len() > limit) {
            return Err(io::Error::other("full"));
        }
        kept.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn text_of(kept: &Kept) -> String {
    String::from_utf8(kept.bytes.lock().expect("no other holder panicked").clone()).expect("a timeline is text")
}

#[test]
fn a_finished_timeline_is_json_and_names_its_tracks() {
    let kept = Kept::default();
    let mut timeline = Timeline::new(kept.clone());
    timeline.begin_tick(Instant::now());
    timeline.phase("prefill");
    timeline.span(Track::Lane(u64::MAX), "feed \"\\\n", 1_500, 4_000, &[("tokens", Value::Number(3))]);
    timeline.span(Track::Lane(u64::MAX), "feed", 5_000, 4_000, &[]);
    timeline.mark(Track::Cache, "evict", 7, &[("tag", Value::Id(u64::MAX))]);
    timeline.counter("pool", 8, &[("pages", Value::Number(1))]);
    timeline.begin("snapshot", 4, 9, &[]);
    timeline.end("snapshot", 4, 10, &[("state", Value::Text("done"))]);
    timeline.finish().expect("memory takes everything");
    let events: Vec<serde_json::Value> = serde_json::from_str(&text_of(&kept)).expect("it is JSON");
    let named = |name: &str| events.iter().filter(move |event| event["name"] == name).collect::<Vec<_>>();
    assert_eq!(named("thread_name").len(), 4, "three tracks and one lane");
    let span = named("feed \"\\\n")[0];
    assert_eq!((span["ts"].as_f64(), span["dur"].as_f64()), (Some(1.5), Some(2.5)));
    assert_eq!(span["args"]["tokens"], 3);
    assert_eq!(named("feed")[0]["dur"].as_f64(), Some(0.0), "an end before its start is no negative time");
    assert_eq!(named("evict")[0]["args"]["tag"], u64::MAX.to_string());
    assert_eq!(named("snapshot")[0]["id"], named("snapshot")[1]["id"]);
}

#[test]
fn a_timeline_that_was_cut_off_has_whole_lines() {
    let kept = Kept::default();
    let mut timeline = Timeline::new(kept.clone());
    for number in 0..5000 {
        timeline.mark(Track::Ticks, "something", number, &[]);
    }
    drop(timeline);
    let text = text_of(&kept);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines[0], lines.len()), ("[", 5005));
    for line in &lines[1..] {
        let event = line.strip_suffix(',').expect("an event ends with a comma");
        serde_json::from_str::<serde_json::Value>(event).expect("each line is an event");
    }
}

#[test]
fn a_writer_that_fails_is_reported_once_at_the_end() {
    let kept = Kept { fails_after: Some(1 << 17), ..Kept::default() };
    let mut timeline = Timeline::new(kept.clone());
    for number in 0..10_000 {
        timeline.mark(Track::Ticks, "something", number, &[]);
    }
    let error = timeline.finish().expect_err("the writer is full");
    assert_eq!(error.to_string(), "full");
    assert!(text_of(&kept).len() <= 1 << 17);
}
