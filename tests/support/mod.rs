//! What the tests of the C boundary share: compilers, and where the built library lies.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Root of the source.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Folder of the headers.
pub(crate) fn header_folder() -> PathBuf {
    root().join("include")
}

/// Folder with `libictus.so` and `libictus.a` of this very build: cargo leaves them beside the test binary.
pub(crate) fn library_folder() -> PathBuf {
    let test = std::env::current_exe().expect("the path of the test");
    test.parent().expect("a test lies in a folder").to_owned()
}

/// Whether a command can be run.
pub(crate) fn has(command: &str) -> bool {
    Command::new(command).arg("--version").output().is_ok()
}

/// Runs a command that has to succeed, and gives what it printed.
///
/// # Panics
/// When it fails, with what it said.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// System libraries that a program needs which links `libictus.a`.
pub(crate) const STATIC_LIBRARIES: &[&str] = &["-lpthread", "-ldl", "-lm"];
