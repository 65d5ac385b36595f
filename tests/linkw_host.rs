#![cfg(all(feature = "worker", target_os = "linux"))]
//! The worker against a host that shares nothing with it: `tests/hosts/linkw`, in Python, written from the protocol's text alone.
//!
//! That program audits every tick it drives. Each test here runs the checks of some parts of the text; the rules that a check
//! holds stand beside its name in the output.

mod support;

use std::process::Command;

use support::{has, library_folder, root, run};

/// Runs the checks of the named files and passes on what they say; a fact that does not hold fails the test.
fn agrees_about(parts: &[&str]) {
    let recent = "import sys; sys.exit(sys.version_info < (3, 10))";
    if !has("python3") || !Command::new("python3").args(["-c", recent]).status().is_ok_and(|status| status.success()) {
        println!("skipped: no python3 of version 3.10 or later");
        return;
    }
    let mut host = Command::new("python3");
    host.arg("-B").arg(root().join("tests/hosts/linkw"));
    host.arg("--worker").arg(env!("CARGO_BIN_EXE_ictus-worker"));
    host.arg("--model").arg(root().join("models/ictus-tiny.gguf"));
    host.arg("--library").arg(library_folder().join("libictus.so"));
    for part in parts {
        host.args(["--part", part]);
    }
    print!("{}", run(&mut host));
}

/// W-1 .. W-8, W-10, W-11, W-12, W-14, W-15, W-20, W-21, W-22, W-24, W-31, W-33, W-34, W-36, W-37, W-40, W-44, W-50, W-56, W-58, W-61, W-70,
/// W-71, W-74; WS-1 .. WS-4, WS-6 .. WS-9, WS-20.
#[test]
fn host_in_python_agrees_about_frames_and_attachments() {
    agrees_about(&["vectors", "frames"]);
}

/// W-6, W-21, W-23, W-24, W-25, W-30, W-70, W-71, W-72, W-73, W-81, W-82, W-84, W-85, W-86, W-89, W-95; WS-5, WS-21, WS-22, WS-23.
#[test]
fn host_in_python_agrees_about_the_process() {
    agrees_about(&["process"]);
}

/// W-38, W-44, W-45, W-46, W-49, W-91, W-92; WS-12, WS-26. The rules of ticks stand beside each check.
#[test]
fn host_in_python_agrees_about_ticks() {
    agrees_about(&["ticks"]);
}

/// W-50, W-51, W-60, W-61, W-93; WS-13, WS-14.
#[test]
fn host_in_python_agrees_about_seeds_and_forks() {
    agrees_about(&["seeds"]);
}

/// W-41, W-48, W-55, W-56, W-57, W-59, W-66, W-67, W-94; WS-15 .. WS-18.
#[test]
fn host_in_python_agrees_about_state_operations() {
    agrees_about(&["state"]);
}

/// W-13, W-65, W-66, W-67, W-89, W-90, W-96; E-11.
#[test]
fn host_in_python_agrees_about_state_sync_strategies_and_the_tokenizer() {
    agrees_about(&["sync", "tokenizer"]);
}
