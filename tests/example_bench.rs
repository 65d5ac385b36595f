//! The `bench` example as a person runs it: a line for each size of each test, the same tokens from run to run, and with the engine in a
//! process of its own.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// All tests that have an engine, as small as they go.
const SMALL: [&str; 15] = [
    "--json",
    "--only",
    "load,pp,tg,batch,prefix,draft",
    "--runs",
    "1",
    "--pp",
    "8,40",
    "--depth",
    "0,40",
    "--lanes",
    "3",
    "--steps",
    "6",
    "--prefix",
    "64",
];

/// Cargo builds the examples beside the tests.
fn bench(arguments: &[&str], worker: Option<&str>) -> Output {
    let test = std::env::current_exe().expect("a test knows its path");
    let folder = test.parent().and_then(Path::parent).expect("tests lie in deps");
    let mut command = Command::new(folder.join("examples").join("bench"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(["--threads", "1", "--no-limits"]).args(arguments);
    if let Some(worker) = worker {
        command.arg("--worker").env("ICTUS_WORKER", worker);
    }
    command.output().expect("the example runs")
}

/// The lines of a run, without what a clock said.
fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout.clone()).expect("text");
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for line in &mut lines {
        let fields = line.as_object_mut().expect("an object");
        fields.retain(|name, value| {
            let is_clock = name.ends_with("_s");
            assert!(!is_clock || value.as_f64().is_some_and(|value| value >= 0.0), "{name} is {value}");
            !is_clock
        });
    }
    lines
}

#[test]
fn tests_of_an_engine_say_the_same_in_a_worker() {
    let here = lines(&bench(&SMALL, None));
    let tests: Vec<&str> = here.iter().filter_map(|line| line["test"].as_str()).collect();
    assert_eq!(tests, ["load", "pp", "pp", "tg", "tg", "batch", "prefix", "draft"]);
    // Both prompts of `pp` may begin alike: one token each.
    let mut said: Vec<&str> = here[1..].iter().map(|line| line["said"].as_str().expect("a digest")).collect();
    said.sort_unstable();
    said.dedup();
    assert!(said.len() >= 6, "lines are about other tokens: {here:?}");
    assert_eq!(lines(&bench(&SMALL, None)), here, "another run");
    let Some(worker) = option_env!("CARGO_BIN_EXE_ictus-worker") else {
        println!("skipped: an engine in a process of its own: built without the feature worker");
        return;
    };
    let mut there = lines(&bench(&SMALL, Some(worker)));
    for line in &mut there {
        assert_eq!(line.as_object_mut().and_then(|line| line.remove("worker")), Some(true.into()), "{line}");
    }
    assert_eq!(there, here);
}

#[test]
fn what_a_worker_has_no_part_in_is_left_out_by_name() {
    let Some(worker) = option_env!("CARGO_BIN_EXE_ictus-worker") else {
        println!("skipped: an engine in a process of its own: built without the feature worker");
        return;
    };
    let output = bench(&["--json", "--runs", "1", "--only", "idle,tick,match,mask,fork,rss"], Some(worker));
    let lines = lines(&output);
    let tests: Vec<&str> = lines.iter().filter_map(|line| line["test"].as_str()).collect();
    assert_eq!(tests, ["tick", "match", "fork", "mask", "rss", "idle"]);
    assert!(lines.iter().all(|line| line["skipped"].is_string()), "{lines:?}");
    for (program, arguments, reason) in [
        (worker, &["--timeline", "/nonexistent/trace.json"][..], "--timeline needs"),
        ("/nonexistent/worker", &["--only", "tg"], "/nonexistent/worker"),
    ] {
        let refused = bench(arguments, Some(program));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains(reason), "{arguments:?}: {said}");
    }
}
