//! The real binary over real streams: its command line, its exit codes, its life and death (WS-6, WS-15, WS-21 .. WS-23, WS-25).

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ictus::InstructionSet;
use ictus::worker::message::{Message, kind};
use ictus::worker::payload::*;
use ictus::worker::socket::{keep_on_exec, pair};

use crate::host::{Host, admit, decode};
use crate::{ends_within_a_second, raw_frame};

const WORKER: &str = env!("CARGO_BIN_EXE_ictus-worker");
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/ictus-tiny.gguf");

static STARTING: Mutex<()> = Mutex::new(());

/// A worker process and the host that talks to it.
struct Worker {
    host: Option<Host>,
    child: Child,
}

impl Worker {
    /// Starts the binary as a host does; the numbers of its streams are what the line says.
    fn start(options: &[&str]) -> Self {
        let (host_frames, frames) = pair().expect("a pair");
        let (host_descriptors, descriptors) = pair().expect("a pair");
        // Between the two lines the streams would go to whatever is started meanwhile.
        let _alone = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        for end in [&frames, &descriptors] {
            keep_on_exec(end.as_fd()).expect("its flags can be set");
        }
        let number = |end: &OwnedFd| end.as_raw_fd().to_string();
        let child = Command::new(WORKER)
            .args(options)
            .args(["--model", MODEL, "--max-context", "512", "--max-batch", "8", "--threads", "1"])
            .args(["--frames-fd", &number(&frames), "--fd-channel-fd", &number(&descriptors)])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the worker starts");
        drop((frames, descriptors));
        Self { host: Some(Host::over(host_frames, host_descriptors)), child }
    }

    fn host(&mut self) -> &mut Host {
        self.host.as_mut().expect("the stream is open")
    }

    /// Waits for the process, which has to end by itself.
    fn ended(mut self) -> (ExitStatus, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "the worker lingers");
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut said = String::new();
        self.child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        (status, said)
    }

    /// Closes the stream and waits: the exit code, and what was said on stderr.
    fn close(self) -> (Option<i32>, String) {
        let (code, said, _) = self.close_timed();
        (code, said)
    }

    /// The same, and how long the process took to end.
    fn close_timed(mut self) -> (Option<i32>, String, Duration) {
        let start = Instant::now();
        self.host = None;
        let (status, said) = self.ended();
        (status.code(), said, start.elapsed())
    }

    fn context_switches(&self) -> u64 {
        // All threads: the one that serves, and the one that watches the host.
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("a process");
        let of_task = |task: std::path::PathBuf| {
            let status = std::fs::read_to_string(task.join("status")).expect("a task");
            let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
            lines
                .map(|line| line.split(':').nth(1).expect("a value").trim().parse::<u64>().expect("a number"))
                .sum::<u64>()
        };
        tasks.map(|task| of_task(task.expect("an entry").path())).sum()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Text of the tiny model's vocabulary, as token ids.
fn prompt(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|n| 3 + (n * 7) % 200).collect()
}

fn run(arguments: &[&str]) -> Output {
    Command::new(WORKER).args(arguments).stdin(Stdio::null()).output().expect("the worker starts")
}

fn code_and_words(arguments: &[&str]) -> (Option<i32>, String) {
    let output = run(arguments);
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// W-33, W-71: a host that announces a ring and keeps it does not keep the worker.
#[test]
fn ws_7_descriptor_that_never_comes_ends_the_process_after_ten_seconds() {
    let mut worker = Worker::start(&[]);
    worker.host().hello();
    let spec = worker.host().specs[0].clone();
    let start = Instant::now();
    worker.host().announce(&spec);
    let (status, said) = worker.ended();
    let took = start.elapsed();
    assert_eq!((status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("ring") && said.contains("no descriptor in time"), "{said}");
    assert!((Duration::from_secs(10)..Duration::from_secs(30)).contains(&took), "{took:?}");
}

/// W-84 .. W-86.
#[test]
fn ws_23_check_prints_one_object_about_runtime_and_model() {
    let output = run(&["check", "--model", MODEL, "--threads", "2"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(report["runtime"]["id"], "ictus");
    assert_eq!(report["runtime"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(report["link_w"], serde_json::json!([8]));
    assert_eq!(report["available"], true);
    assert_eq!(report["formats"][0]["file"]["magic"], "GGUF");
    assert_eq!(report["tokenizer"], serde_json::json!({ "from": "library", "name": "ictus" }));
    assert!(report["devices"][0]["memory"].as_u64().expect("bytes") > 1 << 20);
    assert_eq!(report["capabilities"]["runtime"]["id"], "ictus-paged");
    let names: Vec<&str> = report["options"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|option| option["name"].as_str().expect("a name"))
        .collect();
    let reserved = ["model", "max-context", "max-batch", "kv-bits", "frames-fd", "fd-channel-fd", "engine"];
    assert!(names.contains(&"threads") && names.iter().all(|name| !reserved.contains(name)), "{names:?}");
    let model = &report["model"];
    assert_eq!((&model["path"], &model["reads"]), (&MODEL.into(), &true.into()));
    let sizing = &model["sizing"];
    let file = std::fs::metadata(MODEL).expect("the model").len();
    let weights = sizing["weight_bytes"].as_u64().expect("bytes");
    assert!(weights > file / 2 && weights <= file, "{weights} of {file}");
    assert!(
        sizing["kv_bytes_per_token"].as_u64().expect("bytes") > 0
            && sizing["trained_context"].as_u64().expect("tokens") > 0
    );
    assert!(model["facts"]["architecture"].is_string());
    // Without a model there is nothing said of one.
    let output = run(&["check"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!((output.status.code(), report.get("model")), (Some(0), None));
    let output = run(&["version"]);
    assert_eq!(output.stdout, format!("{}\n", env!("CARGO_PKG_VERSION")).into_bytes(), "W-85");
}

/// W-81, W-82, W-84.
#[test]
fn ws_23_bad_lines_and_models_have_their_exit_codes() {
    let missing = run(&["check", "--model", "/nowhere/model.gguf"]);
    let report: serde_json::Value = serde_json::from_slice(&missing.stdout).expect("one JSON object");
    assert_eq!(missing.status.code(), Some(1));
    assert!(report["model"]["reads"].is_string() && report["available"] == true);
    let serve = ["--model", MODEL, "--max-context", "512", "--max-batch", "8"];
    let cases: [(&[&str], &str); 13] = [
        (&["check", "--wrong", "1"], "unknown flag --wrong"),
        (&["--wrong", "1", "--model", MODEL], "unknown flag --wrong"),
        (&serve, "--frames-fd"),
        (&["--frames-fd", "3", "--fd-channel-fd", "4"], "--model"),
        (&["--model"], "--model"),
        (&["model", MODEL], "no flag"),
        (&["--model", MODEL, "--max-context", "many"], "--max-context"),
        (&["--model", MODEL, "--max-batch", "-1"], "--max-batch"),
        (&["--model", MODEL, "--kv-bits", "7"], "--kv-bits"),
        (&["--model", MODEL, "--threads", "1000"], "--threads"),
        (&["--model", MODEL, "--instruction-set", "mmx"], "--instruction-set"),
        (&["--model", MODEL, "--frames-fd", "77", "--fd-channel-fd", "78"], "--frames-fd 77"),
        (&["--model", MODEL, "--frames-fd", "3", "--fd-channel-fd", "3"], "--frames-fd 3"),
    ];
    for (arguments, words) in cases {
        let (code, said) = code_and_words(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {said}");
        assert!(said.contains(words) && said.lines().count() == 1, "{arguments:?}: {said}");
    }
}

/// W-25: a model that cannot be loaded closes the stream, with code 3. W-82: the last of two equal flags counts.
#[test]
fn ws_23_load_failure_is_code_three() {
    let mut worker = Worker::start(&["--threads", "2", "--memory-budget", "10"]);
    assert_eq!(worker.host().receive(), None);
    let (code, said) = worker.close();
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("budget") && said.lines().count() == 1, "{said}");
}

/// W-25, W-86: each set has its name on the line; one that the processor lacks is no model that cannot be read, but none that can be loaded.
#[test]
fn instruction_sets_that_the_processor_lacks_are_refused_with_their_name() {
    let report: serde_json::Value = serde_json::from_slice(&run(&["check"]).stdout).expect("one JSON object");
    let options = report["options"].as_array().expect("a list");
    let option = options.iter().find(|option| option["name"] == "instruction-set").expect("it is there");
    let names: Vec<&str> = ["best"].into_iter().chain(InstructionSet::ALL.iter().map(|set| set.name())).collect();
    assert_eq!((&option["choices"], &option["default"]), (&serde_json::json!(names), &"best".into()));
    for &set in InstructionSet::ALL {
        let line = ["check", "--model", MODEL, "--instruction-set", set.name()];
        let report: serde_json::Value = serde_json::from_slice(&run(&line).stdout).expect("one JSON object");
        let reads = report["model"]["reads"].to_string();
        let mut worker = Worker::start(&["--instruction-set", set.name()]);
        if set.is_available() {
            assert_eq!(reads, "true");
            worker.host().start();
            assert_eq!(worker.close().0, Some(0));
        } else {
            assert!(reads.contains(set.name()), "{reads}");
            assert_eq!(worker.host().receive(), None);
            let (code, said) = worker.close();
            assert_eq!((code, said.lines().count()), (Some(3), 1), "{said}");
            assert!(said.contains(set.name()), "{said}");
        }
    }
}

/// W-71.
#[test]
fn ws_6_link_errors_are_one_line_and_code_one() {
    let mut worker = Worker::start(&[]);
    worker.host().hello();
    worker.host().send_raw(&raw_frame(7, kind::DRAIN_REQ, 2, 0, 0, &[]));
    assert_eq!(worker.host().receive(), None);
    let (code, said) = worker.close();
    assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("version"), "{said}");
}

/// W-71, W-74: a host that cuts short what the process uses; the line says what, and no signal ended it.
#[test]
fn ring_that_is_cut_short_is_one_line_and_code_one() {
    let mut worker = Worker::start(&[]);
    let objects = worker.host().start_over(rustix::fs::MemfdFlags::empty());
    let tokens = worker.host().run(7, &prompt(40), 4);
    assert_eq!(tokens.len(), 4);
    assert!(objects[1].cut(64), "the ring of emits");
    let mut plan = worker.host().plan();
    plan.decodes = vec![decode(7, 4)];
    worker.host().send(&Message::TickSubmit(plan));
    assert_eq!(worker.host().receive(), None);
    let (code, said) = worker.close();
    assert_eq!((code, said.as_str()), (Some(1), "ictus-worker: ring: the shared object was cut short\n"));
}

/// W-70, W-6: within a second, idle, with a live lane, and in the middle of a frame.
#[test]
fn ws_21_closed_stream_is_exit_code_zero() {
    fn idle(_: &mut Host) {}
    fn live(host: &mut Host) {
        host.run(7, &prompt(40), 4);
    }
    fn inside(host: &mut Host) {
        host.send_raw(&raw_frame(8, kind::PING, 1, 0, 0, &[0; 7])[..9]);
    }
    type Reach = fn(&mut Host);
    let cases: [(Reach, &str); 3] = [(idle, ""), (live, ""), (inside, "9 bytes into a frame")];
    for (act, words) in cases {
        ends_within_a_second(|| {
            let mut worker = Worker::start(&[]);
            worker.host().start();
            act(worker.host());
            let (code, said, took) = worker.close_timed();
            assert_eq!(code, Some(0), "{said}");
            assert!(said.contains(words) && said.is_empty() == words.is_empty(), "{said}");
            took
        });
    }
    // Closed before HELLO, perhaps in the middle of the load.
    assert_eq!(Worker::start(&[]).close().0, Some(0));
}

/// W-95: killed in the middle of a tick, and started again with the same line.
#[test]
fn ws_22_killed_worker_ends_the_stream_and_a_new_one_gives_the_same() {
    let mut first = Worker::start(&[]);
    let ack = first.host().start();
    let text = prompt(64);
    let tokens = first.host().run(7, &text, 24);
    let mut plan = first.host().plan();
    plan.decodes = vec![decode(7, 256)];
    first.host().send(&Message::TickSubmit(plan));
    first.child.kill().expect("it lives");
    while let Some((_, message)) = first.host().receive() {
        assert!(matches!(message, Message::TickResult(_)), "the tick may have been over: {message:?}");
    }
    let mut second = Worker::start(&[]);
    assert_eq!(second.host().start(), ack, "the same capabilities, byte for byte");
    assert_eq!(second.host().run(7, &text, 24), tokens);
}

/// W-94: what one process parks, another resumes, to the same tokens.
#[test]
fn ws_15_lane_parked_in_one_process_goes_on_in_another() {
    let mut first = Worker::start(&[]);
    first.host().start();
    let text = prompt(48);
    let host = first.host();
    let mut committed = text.clone();
    committed.extend(host.run(7, &text, 10));
    let SyncOk::LaneSequence { sequence } = host.sync(SyncRequest::LaneSequence { lane_tag: 7 }) else {
        panic!("live")
    };
    let cap = committed.len() as u64 - 1;
    let boundary = SyncRequest::SnapshotBoundary { sequence, space_id: 1, cap };
    let SyncOk::SnapshotBoundary { boundary } = host.sync(boundary) else { panic!("a boundary") };
    let range = TokenRange { start: 0, end: boundary };
    let size = SyncRequest::ExportSize { sequence, space_id: 1, range, encoding: 0 };
    let SyncOk::ExportSize { required_bytes, sizing_gen } = host.sync(size) else { panic!("a size") };
    let memory = host.buffer(1, required_bytes as usize);
    let op = StateOp::Snapshot { sequence, space_id: 1, boundary_pos: boundary, buf_id: 1, sizing_gen };
    let OpAccepted::Accepted { op_handle } = host.submit(op) else { panic!("accepted") };
    let done = host.done(op_handle);
    assert_eq!((done.state, done.error, done.bytes_moved), (2, 0, required_bytes));
    let mut sealed = vec![0; required_bytes as usize];
    assert!(memory.copy_out(0, &mut sealed));
    let undisturbed = host.go_on(7, 16);
    assert_eq!(first.close().0, Some(0));

    let mut second = Worker::start(&[]);
    second.host().start();
    let host = second.host();
    let memory = host.buffer(4, sealed.len());
    assert!(memory.copy_in(0, &sealed));
    let SyncOk::CreateSequence { sequence } = host.sync(SyncRequest::CreateSequence) else { panic!("a sequence") };
    let OpAccepted::Accepted { op_handle } = host.submit(StateOp::Restore { sequence, space_id: 1, buf_id: 4 }) else {
        panic!("accepted")
    };
    assert_eq!(host.done(op_handle).state, 2);
    let held = host.prompt(&committed[..boundary as usize]);
    host.sync(SyncRequest::PublishSequence { sequence, span: held });
    let span = host.prompt(&committed);
    let found = host.matches(span.clone());
    let prefix_len = found[0].candidates[0].prefix_len;
    let SeedGrant::Granted { seed_handle, .. } = host.acquire(span.clone(), prefix_len) else { panic!("a lease") };
    let mut plan = host.plan();
    plan.admits = vec![LaneAdmit { seed_handle, ..admit(9, span) }];
    let token_count = (committed.len() as u64 - prefix_len) as u32;
    plan.prefills = vec![LanePrefill { lane_tag: 9, token_offset: prefix_len as u32, token_count }];
    plan.decodes = vec![decode(9, 16)];
    let events = host.tick(plan);
    assert_eq!(host.tokens_of(&events, 9), undisturbed);
}

/// W-72: nothing wakes a worker that is idle for ten seconds, and nothing is missed.
#[test]
fn ws_25_idle_worker_sleeps() {
    let mut worker = Worker::start(&[]);
    worker.host().start();
    worker.host().run(7, &prompt(40), 4);
    worker.host().ping();
    // Whatever still has to come to rest, which takes a while on a busy machine.
    let mut before = worker.context_switches();
    let rests = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(300));
        let now = worker.context_switches();
        std::mem::replace(&mut before, now) == now
    });
    assert!(rests, "a worker of which nobody wants anything comes to rest");
    std::thread::sleep(Duration::from_secs(10));
    let woken = worker.context_switches() - before;
    assert_eq!(woken, 0, "context switches of all threads in ten seconds");
    worker.host().ping();
    assert!(worker.context_switches() > before, "the counter counts");
    assert_eq!(worker.host().go_on(7, 4).len(), 4);
}
