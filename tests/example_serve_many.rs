//! The `serve_many` example as a person runs it: every request starts and finishes once, one prompt's beginning is computed once, and a
//! run with one lane or with the engine in a process of its own says the same.

use std::path::Path;
use std::process::{Command, Output};

/// Cargo builds the examples beside the tests.
fn command(arguments: &[&str]) -> Command {
    let test = std::env::current_exe().expect("a test knows its path");
    let folder = test.parent().and_then(Path::parent).expect("tests lie in deps");
    let mut command = Command::new(folder.join("examples").join("serve_many"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(arguments);
    command
}

fn serve_many(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the example runs")
}

fn stdout(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The part after the trace and before the figures.
fn answers(text: &str) -> &str {
    let start = text.find("\n[1] ").expect("answers follow the trace");
    let end = text.rfind("\n\n").expect("figures follow the answers");
    &text[start..end]
}

#[test]
fn every_request_starts_and_finishes_once_and_says_the_same_whatever_the_lanes() {
    let many = stdout(serve_many(&["--max-tokens", "24"]));
    for number in 1..=12 {
        for word in ["starts", "finishes"] {
            let lines = many.lines().filter(|line| line.contains(&format!(" ms {number:>4} {word} ")));
            assert_eq!(lines.count(), 1, "{number} {word}: {many}");
        }
    }
    let one = stdout(serve_many(&["--max-tokens", "24", "--lanes", "1", "--threads", "1", "--tick-tokens", "16"]));
    assert_eq!(answers(&many), answers(&one));
    assert!(answers(&many).matches("\n[").count() == 12, "{many}");
}

#[test]
fn worker_says_what_the_engine_of_this_process_says() {
    let Some(worker) = option_env!("CARGO_BIN_EXE_ictus-worker") else {
        println!("skipped: an engine in a process of its own: built without the feature worker");
        return;
    };
    let in_worker = |program: &str, arguments: &[&str]| {
        command(arguments).arg("--worker").env("ICTUS_WORKER", program).output().expect("the example runs")
    };
    for arguments in [&["--max-tokens", "16"][..], &["--max-tokens", "16", "--temperature", "0.8", "--lanes", "3"]] {
        let (here, there) = (stdout(serve_many(arguments)), stdout(in_worker(worker, arguments)));
        assert_eq!(answers(&there), answers(&here), "{arguments:?}");
        assert!(answers(&there).matches("\n[").count() == 12, "{there}");
    }
    for (program, arguments, reason) in [
        (worker, &["--timeline", "/nonexistent/trace.json"][..], "--timeline needs"),
        ("/nonexistent/worker", &[], "/nonexistent/worker"),
    ] {
        let refused = in_worker(program, arguments);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0), "{arguments:?}: {said}");
        assert!(said.starts_with("serve_many: ") && said.contains(reason), "{arguments:?}: {said}");
    }
}

#[test]
fn bad_flags_are_told_and_help_is_given() {
    let help = stdout(serve_many(&["--help"]));
    assert!(help.starts_with("usage: serve_many"), "{help}");
    for arguments in
        [&["--no-such-flag"][..], &["--lanes", "0"], &["--model", "no-such-model.gguf"], &["--temperature", "nan"]]
    {
        let output = serve_many(arguments);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("serve_many: "), "{output:?}");
    }
}
