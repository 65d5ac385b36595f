//! The build script: what it makes when it is asked to, and that it never breaks a build.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{model, texts};

/// The project's build script, compiled, in a folder of its own.
struct Script {
    folder: tempfile::TempDir,
    /// One at a time: a program that is being written, as another thread starts one, cannot be started.
    _turn: MutexGuard<'static, ()>,
}

/// What a run of it said, and the files that it made.
struct Run {
    said: String,
    made: Vec<PathBuf>,
}

impl Run {
    fn has_machine_code(&self) -> bool {
        self.said.lines().any(|line| line == "cargo::rustc-cfg=ictus_machine_code")
    }

    fn warnings(&self) -> Vec<&str> {
        self.said.lines().filter_map(|line| line.strip_prefix("cargo::warning=")).collect()
    }
}

impl Script {
    fn new() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().expect("a folder");
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
        let mut command = Command::new(rustc);
        command.args(["--edition", "2024", "-o"]).arg(folder.path().join("script")).arg(model::file("build.rs"));
        assert!(command.status().expect("rustc starts").success(), "build.rs compiles");
        Self { folder, _turn: turn }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A program of the shell, by its path below the folder.
    fn program(&self, name: &str, text: &str) -> String {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("it can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it can be run");
        path.to_string_lossy().into_owned()
    }

    /// Runs it as cargo does, with these variables and no others.
    fn run(&self, variables: &[(&str, &str)]) -> Run {
        let out = self.path().join("out");
        let _ = fs::remove_dir_all(&out);
        fs::create_dir(&out).expect("an empty folder");
        let mut command = Command::new(self.path().join("script"));
        command.current_dir(env!("CARGO_MANIFEST_DIR")).env_clear();
        command.env("PATH", self.path().join("path")).env("OUT_DIR", &out).env("CARGO_FEATURE_CUDA", "1");
        command.envs(variables.iter().copied());
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "a build never breaks: {output:?}");
        let made = fs::read_dir(&out).expect("the folder").map(|entry| entry.expect("an entry").path()).collect();
        Run { said: String::from_utf8(output.stdout).expect("text"), made }
    }
}

/// Says into a file how it was called, and makes the file that it was asked for.
const NVCC: &str = r#"echo "$0 $*" >> "${0%/*}/called"
while [ "$1" != -o ]; do shift; done
: > "$2""#;

#[test]
fn cuda_machine_code_is_made_only_where_it_is_asked_for() {
    let script = Script::new();
    let nvcc = script.program("nvcc", NVCC);
    for asked in [None, Some(""), Some("0")] {
        let asked: Vec<(&str, &str)> = asked.map(|value| ("ICTUS_NVCC", value)).into_iter().collect();
        let run = script.run(&[&asked[..], &[("NVCC", &nvcc), ("ICTUS_NVCC_ARCHS", "90")]].concat());
        assert!(!run.has_machine_code() && run.made.is_empty() && run.warnings().is_empty(), "{}", run.said);
        let depends: Vec<&str> = run.said.lines().filter(|line| line.starts_with("cargo::rerun")).collect();
        assert_eq!(depends, ["cargo::rerun-if-changed=build.rs", "cargo::rerun-if-env-changed=ICTUS_NVCC"]);
    }
    assert!(!script.path().join("called").exists(), "nvcc was not started");
    let run = script.run(&[("ICTUS_NVCC", "yes"), ("NVCC", &nvcc)]);
    assert_eq!(run.warnings(), ["ICTUS_NVCC is yes, must be 0 or 1: the CUDA kernels are PTX alone"]);
}

#[test]
fn cuda_machine_code_is_made_of_every_text_for_the_named_architectures() {
    let script = Script::new();
    let nvcc = script.program("nvcc", NVCC);
    let run = script.run(&[("ICTUS_NVCC", "1"), ("NVCC", &nvcc), ("ICTUS_NVCC_ARCHS", "80, 90a"), ("NUM_JOBS", "3")]);
    assert!(run.has_machine_code() && run.warnings().is_empty(), "{}", run.said);
    assert!(run.said.contains("cargo::rerun-if-changed=kernels/ptx\n"));
    assert_eq!(run.made.len(), texts().len());
    let called = fs::read_to_string(script.path().join("called")).expect("nvcc was started");
    for (name, _) in texts() {
        let flags = "-fatbin -fmad=false -gencode arch=compute_80,code=sm_80 -gencode arch=compute_80,code=sm_90a";
        let out = script.path().join("out");
        let call = format!("{nvcc} {flags} -o {}/{name}.fatbin kernels/ptx/{name}.ptx\n", out.display());
        assert!(called.contains(&call), "{name}: {called}");
    }
}

/// `NVCC` before `CUDA_HOME` before `CUDA_PATH` before PATH; a home without a compiler is passed over.
#[test]
fn cuda_compiler_is_looked_for_in_order() {
    let script = Script::new();
    let places = ["named", "home/bin", "other/bin", "path"];
    let programs = places.map(|place| script.program(&format!("{place}/nvcc"), NVCC));
    let home = |name: &str| script.path().join(name).to_string_lossy().into_owned();
    let (home, other, none) = (home("home"), home("other"), home("none"));
    let asked = [("ICTUS_NVCC", "1"), ("ICTUS_NVCC_ARCHS", "90")];
    let named = [("NVCC", programs[0].as_str()), ("CUDA_HOME", &home), ("CUDA_PATH", &other)];
    for (variables, expected) in [
        (&named[..], 0),
        (&named[1..], 1),
        (&named[2..], 2),
        (&[], 3),
        (&[("CUDA_HOME", none.as_str()), ("CUDA_PATH", &other)][..], 2),
        (&[("CUDA_HOME", none.as_str())], 3),
    ] {
        let run = script.run(&[&asked[..], variables].concat());
        assert!(run.has_machine_code(), "{variables:?}: {}", run.said);
        for (at, place) in places.iter().enumerate() {
            let called = fs::remove_file(script.path().join(place).join("called")).is_ok();
            assert_eq!(called, at == expected, "{place} with {variables:?}");
        }
    }
}

#[test]
fn cuda_architectures_are_those_of_the_machine() {
    let script = Script::new();
    let nvcc = script.program("nvcc", NVCC);
    let asked = [("ICTUS_NVCC", "1"), ("NVCC", nvcc.as_str())];
    let with = |devices: &str| {
        script.program("path/nvidia-smi", devices);
        let _ = fs::remove_file(script.path().join("called"));
        let run = script.run(&asked);
        let called = fs::read_to_string(script.path().join("called")).unwrap_or_default();
        let first = called.lines().next().unwrap_or_default().to_owned();
        (run.warnings().join("\n"), first)
    };
    let (warnings, called) = with("printf '9.0\\n8.6\\n7.5\\n9.0\\n'");
    assert_eq!(warnings, "");
    assert!(called.contains("-gencode arch=compute_80,code=sm_86 -gencode arch=compute_80,code=sm_90 -o"), "{called}");
    let (warnings, called) = with("echo 7.5");
    assert!(warnings.contains("nvidia-smi lists no device of compute capability 8.0 or newer"), "{warnings}");
    assert_eq!(called, "");
    let (warnings, called) = with("echo 'NVIDIA-SMI has failed'; exit 9");
    assert!(warnings.contains("(nvidia-smi: NVIDIA-SMI has failed), and ICTUS_NVCC_ARCHS does not say"), "{warnings}");
    assert_eq!(called, "");
}

/// Whatever is wrong is one warning, and the library has the texts.
#[test]
fn cuda_build_without_machine_code_says_why() {
    let script = Script::new();
    let failing =
        script.program("failing", "echo noise >&2; echo 'x.ptx: error: it does not go' >&2; echo more >&2; exit 1");
    let nvcc = script.program("nvcc", NVCC);
    let missing = script.path().join("missing").to_string_lossy().into_owned();
    for (variables, reason) in [
        (&[("NVCC", missing.as_str()), ("ICTUS_NVCC_ARCHS", "90")][..], "missing does not start: "),
        (&[("ICTUS_NVCC_ARCHS", "90")], "nvcc does not start: "),
        (&[("NVCC", &failing), ("ICTUS_NVCC_ARCHS", "90")], ".ptx: x.ptx: error: it does not go"),
        (&[("NVCC", &nvcc)], "which devices there are is not known (nvidia-smi: "),
        (&[("NVCC", &nvcc), ("ICTUS_NVCC_ARCHS", "90,sm_80")], "ICTUS_NVCC_ARCHS has `sm_80`"),
        (&[("NVCC", &nvcc), ("ICTUS_NVCC_ARCHS", "75")], "ICTUS_NVCC_ARCHS has `75`"),
        (&[("NVCC", &nvcc), ("ICTUS_NVCC_ARCHS", "90ab")], "ICTUS_NVCC_ARCHS has `90ab`"),
        (&[("NVCC", &nvcc), ("ICTUS_NVCC_ARCHS", "90"), ("OUT_DIR", &missing)], "nvcc of "),
    ] {
        let run = script.run(&[&[("ICTUS_NVCC", "1")], variables].concat());
        assert!(!run.has_machine_code(), "{variables:?}");
        let warnings = run.warnings();
        assert!(warnings.len() == 1 && warnings[0].contains(reason), "{variables:?}: {warnings:?}");
    }
}
