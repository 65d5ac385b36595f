//! The `serve_many` example as a person runs it: every request starts and finishes once, one prompt's beginning is computed once, and a
//! run with one lane says the same.

use std::path::Path;
use std::process::{Command, Output};

/// Cargo builds the examples beside the tests.
fn serve_many(arguments: &[&str]) -> Output {
    let test = std::env::current_exe().expect("a test knows its path");
    let folder = test.parent().and_then(Path::parent).expect("tests lie in deps");
    Command::new(folder.join("examples").join("serve_many"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(arguments)
        .output()
        .expect("the example runs")
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
