//! C and C++ programs, built with warnings as errors, against the library of this very build.
//!
//! The examples print what the Rust API prints; a host of its own lays out rings by hand; both C programs run under valgrind, where
//! an invalid access, a jump on uninitialised memory or a leak fails the test.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use ictus::engine::PlanBuilder;
use ictus::facade::{Admission, Chunk, CoreOptions, Logits, Out, Work};
use ictus::record::constant::finish;
use ictus::ring::{MemoryRings, Rings};
use ictus::tokenizer::{DecodeOptions, EncodeOptions, TokenStream};
use ictus::{Model, ModelOptions};
use support::{STATIC_LIBRARIES, has, header_folder, library_folder, root, run};

const WARNINGS: &[&str] = &["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-g"];
const MODEL: &str = "models/ictus-tiny.gguf";

#[derive(Clone, Copy, PartialEq)]
enum Link {
    Static,
    Shared,
}

/// Builds sources of `folder` into a program; nothing when there is no such compiler.
fn build(out: &Path, name: &str, compiler: &str, standard: &str, link: Link, sources: &[&str]) -> Option<PathBuf> {
    if !has(compiler) {
        println!("skipped: {name}: no {compiler}");
        return None;
    }
    let program = out.join(name);
    let mut command = Command::new(compiler);
    command.arg(standard).args(WARNINGS).arg("-I").arg(header_folder()).arg("-o").arg(&program);
    command.args(sources.iter().map(|source| root().join(source)));
    match link {
        Link::Static => command.arg(library_folder().join("libictus.a")).args(STATIC_LIBRARIES),
        Link::Shared => {
            // A program looks for the library by its SONAME, which has no file in cargo's folder.
            let soname = out.join(concat!("libictus.so.0.", env!("CARGO_PKG_VERSION_MINOR")));
            if !soname.exists() {
                std::os::unix::fs::symlink(library_folder().join("libictus.so"), soname).expect("the link can be made");
            }
            command.arg("-L").arg(library_folder()).arg("-lictus").arg(format!("-Wl,-rpath,{}", out.display()))
        }
    };
    run(&mut command);
    Some(program)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// What the three hello programs print, from the Rust API.
fn expected_story() -> String {
    let prompt = "Once upon a time";
    let model = Model::open(root().join(MODEL), &ModelOptions::default()).expect("the default model opens");
    let mut engine = model.engine().expect("an engine");
    let mut rings = MemoryRings::new();
    let ids = model.tokenizer().encode(prompt, EncodeOptions { add_special: true, parse_special: true }).expect("ids");
    let staged = rings.stage_prompt(&ids);
    let mut stream = TokenStream::new(model.tokenizer(), DecodeOptions::default());
    let mut story = prompt.to_owned();
    for seq in 1..=200 {
        let mut plan = PlanBuilder::new(seq).decode(1, 1);
        if seq == 1 {
            plan = plan.admit_with(|admit| admit.params.flags = 0, 1, staged).prefill(1, 0, ids.len() as u32);
        }
        let (plan, arena) = plan.build();
        let emit = engine.tick(&plan, &arena, &mut rings).expect("accepted").emits[0];
        let mut tokens = Vec::new();
        rings.read_tokens(&emit.token_ref, &mut tokens).expect("fresh");
        for token in tokens {
            story.push_str(&stream.push(token).expect("in the vocabulary"));
        }
        if emit.finish != finish::NONE {
            break;
        }
    }
    story + &stream.finish() + "\n"
}

#[test]
fn hello_says_the_same_in_c_and_cpp_as_in_rust() {
    let story = expected_story();
    assert!(story.len() > 100, "{story}");
    let out = folder();
    for (name, compiler, standard, link, source) in [
        ("hello-c-static", "cc", "-std=c11", Link::Static, "examples/hello.c"),
        ("hello-c-shared", "cc", "-std=c11", Link::Shared, "examples/hello.c"),
        ("hello-cpp-static", "c++", "-std=c++17", Link::Static, "examples/hello.cpp"),
        ("hello-cpp-shared", "c++", "-std=c++17", Link::Shared, "examples/hello.cpp"),
    ] {
        let Some(program) = build(out.path(), name, compiler, standard, link, &[source]) else { continue };
        // From the root, without arguments: the path of the default model is relative to it.
        assert_eq!(run(Command::new(&program).current_dir(root())), story, "{name}");
        // A file that is not there is told, not printed by the library, and not a crash.
        let failed = Command::new(&program).arg("no-such-model.gguf").output().expect("it runs");
        let said = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert_eq!(failed.status.code(), Some(1), "{said}");
        assert!(said.contains("no-such-model.gguf") && failed.stdout.is_empty(), "{said}");
    }
}

/// The worker program of this build; none when it is built without.
fn worker() -> Option<&'static str> {
    let worker = option_env!("CARGO_BIN_EXE_ictus-worker");
    if worker.is_none() {
        println!("skipped: an engine in a process of its own: built without the feature worker");
    }
    worker
}

/// The same calls and the same text with the engine in a process of its own, which the variable names or the library finds.
#[test]
fn hello_says_the_same_with_its_engine_in_a_worker() {
    let Some(worker) = worker() else { return };
    let (story, out) = (expected_story(), folder());
    let test = std::env::current_exe().expect("a test knows its path");
    let examples = test.parent().and_then(Path::parent).expect("tests lie in deps").join("examples");
    let mut programs = vec![("hello in Rust", examples.join("hello"), false)];
    for (name, compiler, standard, link, source) in [
        ("hello-c-static", "cc", "-std=c11", Link::Static, "examples/hello.c"),
        ("hello-c-shared", "cc", "-std=c11", Link::Shared, "examples/hello.c"),
        ("hello-cpp-shared", "c++", "-std=c++17", Link::Shared, "examples/hello.cpp"),
    ] {
        let built = build(out.path(), name, compiler, standard, link, &[source]);
        // The library lies one below the worker, as the examples do; the static program lies elsewhere.
        programs.extend(built.map(|program| (name, program, link == Link::Static)));
    }
    for (name, program, needs_variable) in programs {
        let command = || {
            let mut command = Command::new(&program);
            command.current_dir(root()).arg("--worker").env_remove("ICTUS_WORKER");
            command
        };
        assert_eq!(run(command().env("ICTUS_WORKER", worker)), story, "{name}");
        if !needs_variable {
            assert_eq!(run(&mut command()), story, "{name}: found beside the library");
        }
        let missing = command().env("ICTUS_WORKER", "/nonexistent/worker").output().expect("it runs");
        let said = String::from_utf8_lossy(&missing.stderr).into_owned();
        assert!(!missing.status.success() && missing.stdout.is_empty(), "{name}: {said}");
        assert!(said.contains("/nonexistent/worker"), "{name}: {said}");
    }
}

/// What the requests of the two programs say: the lines between the trace and the figures.
fn answers(text: &str) -> String {
    let lines = text.lines().filter(|line| line.starts_with('['));
    lines.map(|line| format!("{line}\n")).collect()
}

/// In process, and with the engine in a process of its own.
#[test]
fn many_lanes_says_the_same_in_cpp_as_in_rust() {
    let test = std::env::current_exe().expect("a test knows its path");
    let folder = test.parent().and_then(Path::parent).expect("tests lie in deps");
    let rust = run(Command::new(folder.join("examples/serve_many")).current_dir(root()));
    let out = self::folder();
    for (name, link) in [("many-lanes-static", Link::Static), ("many-lanes-shared", Link::Shared)] {
        let Some(program) = build(out.path(), name, "c++", "-std=c++17", link, &["examples/many_lanes.cpp"]) else {
            return;
        };
        let command = || {
            let mut command = Command::new(&program);
            command.current_dir(root());
            command
        };
        let cpp = run(&mut command());
        assert_eq!(answers(&cpp), answers(&rust), "{name}");
        assert_eq!(answers(&cpp).lines().count(), 12, "{cpp}");
        let Some(worker) = worker() else { continue };
        assert_eq!(run(command().arg("--worker").env("ICTUS_WORKER", worker)), cpp, "{name} in a worker");
        let missing = command().arg("--worker").env("ICTUS_WORKER", "/nonexistent/worker").output().expect("it runs");
        let said = String::from_utf8_lossy(&missing.stderr).into_owned();
        assert_eq!((missing.status.code(), missing.stdout.len()), (Some(1), 0), "{name}: {said}");
        assert!(said.contains("/nonexistent/worker"), "{name}: {said}");
    }
}

#[test]
fn host_lays_out_rings_by_hand_and_samples_itself() {
    let out = folder();
    for (name, link) in [("rings-static", Link::Static), ("rings-shared", Link::Shared)] {
        let Some(program) = build(out.path(), name, "cc", "-std=c11", link, &["tests/hosts/own_rings.c"]) else {
            return;
        };
        assert_eq!(run(Command::new(&program).arg(root().join(MODEL))), "own rings: ok\n");
        // The host's rings are not those of the link: what goes through them is carried over.
        if let Some(worker) = worker() {
            assert_eq!(run(Command::new(program).arg(root().join(MODEL)).arg(worker)), "own rings: ok\n");
        }
    }
}

/// S-65, S-72, S-75, SS-50: one process parks a lane in a file, and another one goes on with the same tokens.
#[test]
fn lane_parked_in_a_file_goes_on_in_another_process() {
    let out = folder();
    let Some(program) = build(out.path(), "park", "cc", "-std=c11", Link::Static, &["tests/hosts/park.c"]) else {
        return;
    };
    let file = out.path().join("lane.state");
    let park = |mode: &str| run(Command::new(&program).arg(root().join(MODEL)).arg(mode).arg(&file));
    let next = park("save");
    assert_eq!(next.split_whitespace().count(), 9, "{next}");
    let resumed = park("resume");
    let (tokens, held) = resumed.split_at(next.len());
    assert_eq!(tokens, next);
    let held: u64 = held.trim().trim_start_matches("held ").parse().expect("a number");
    assert!(held >= 16, "most of the prompt was not computed again: {held}");
    assert_eq!(
        park("damaged"),
        format!("{next}held 0\n"),
        "without the state, the same tokens at the price of a prefill"
    );
    let Some(worker) = worker() else { return };
    let in_worker = |mode: &str| run(Command::new(&program).arg(root().join(MODEL)).arg(mode).arg(&file).arg(worker));
    assert_eq!(in_worker("resume"), resumed, "parked here, resumed in a worker");
    assert_eq!(in_worker("damaged"), format!("{next}held 0\n"));
    assert_eq!(in_worker("save"), next);
    assert_eq!(park("resume"), resumed, "parked in a worker, resumed here");
}

/// evidence, and three ways to wait, while another thread ticks.
#[test]
fn x_70_a_host_in_c_waits_for_room() {
    let out = folder();
    let sources = ["tests/hosts/capacity.c"];
    if let Some(program) = build(out.path(), "capacity", "cc", "-std=c11", Link::Static, &sources) {
        assert_eq!(run(Command::new(program).arg(root().join(MODEL))), "capacity: ok\n");
    }
}

/// What the requests of the executor host say, from the Rust API, each alone.
fn expected_requests() -> String {
    const PROMPT: usize = 20;
    let options = ModelOptions { threads: 1, context_tokens: 64, pool_tokens: 128, ..ModelOptions::default() };
    let model = Model::open(root().join(MODEL), &options).expect("the default model opens");
    let (vocab, greedy, mut lines) = (model.config().vocab as u32, Logits::greedy(), String::new());
    for salt in 0..3 {
        let executor = model.core(CoreOptions::default()).expect("a core").executor();
        let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| (i * 37 + salt * 101 + 5) % vocab).collect();
        let seq = executor.admit(&Admission::of(&prompt, 64)).expect("there is room");
        let chunk = Chunk::new(0, PROMPT, PROMPT).expect("it is one");
        let mut work = Work::Prefill { seq, chunk, whole: true, logits: &greedy };
        let (mut said, mut rows) = (Vec::new(), Vec::new());
        while said.len() < 8 {
            executor.run(&[work], &mut rows).expect("there is room");
            let Ok(Out::Tokens(tokens)) = &rows[0].out else { panic!("a token: {rows:?}") };
            work = Work::Decode { seq, at: PROMPT + said.len(), token: tokens[0], logits: &greedy };
            said.push(tokens[0].to_string());
        }
        lines += &(said.join(" ") + "\n");
    }
    lines
}

/// a scheduler in C admits, is refused, parks on the ticket in another thread, and goes on to the tokens of Rust.
#[test]
fn x_70_a_scheduler_in_c_says_what_rust_says() {
    let out = folder();
    let expected = expected_requests();
    for (name, link) in [("executor-static", Link::Static), ("executor-shared", Link::Shared)] {
        let Some(program) = build(out.path(), name, "cc", "-std=c11", link, &["tests/hosts/executor.c"]) else {
            return;
        };
        assert_eq!(run(Command::new(&program).arg(root().join(MODEL))), expected, "{name}");
        if link == Link::Static {
            under_valgrind(&program, &[MODEL]);
        }
    }
}

fn valgrind(program: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--error-exitcode=99", "--leak-check=full", "--errors-for-leak-kinds=definite,indirect"]);
    command.arg(program);
    command
}

/// Every class of the wrapper, two models from two threads, one model from four.
#[test]
fn wrapper_in_cpp_serves_all_of_its_parts() {
    let out = folder();
    let mut chat = root().join("target/models/smollm2-135m-instruct-q4_1.gguf");
    if !chat.exists() {
        println!("skipped: a chat through the C++ wrapper: no {} (scripts/fetch-models.sh)", chat.display());
        chat = PathBuf::from("-");
    }
    if let Some(program) = build(out.path(), "wrapper", "c++", "-std=c++17", Link::Static, &["tests/hosts/wrapper.cpp"])
    {
        assert_eq!(run(Command::new(program).arg(root().join(MODEL)).arg(chat)), "wrapper: ok\n");
    }
}

/// Runs a program under valgrind, where it has to succeed.
fn under_valgrind(program: &Path, arguments: &[&str]) {
    if has("valgrind") {
        run(valgrind(program).args(arguments).current_dir(root()));
    } else {
        println!("skipped: C hosts under valgrind: no valgrind (package valgrind)");
    }
}

#[test]
fn hello_in_c_is_clean_under_valgrind() {
    let out = folder();
    if let Some(program) = build(out.path(), "hello", "cc", "-std=c11", Link::Static, &["examples/hello.c"]) {
        under_valgrind(&program, &[]);
    }
}

/// A check that cannot fail checks nothing.
#[test]
fn valgrind_notices_a_leak() {
    if !has("cc") || !has("valgrind") {
        println!("skipped: C hosts under valgrind: no valgrind (package valgrind)");
        return;
    }
    let out = folder();
    let (source, program) = (out.path().join("leak.c"), out.path().join("leak"));
    let leak = "#include <stdlib.h>\nint main(void) { volatile char *p = malloc(9); p = 0; return p != 0; }\n";
    std::fs::write(&source, leak).expect("the source can be written");
    run(Command::new("cc").arg(&source).arg("-o").arg(&program));
    let found = valgrind(&program).output().expect("valgrind runs");
    assert_eq!(found.status.code(), Some(99), "{}", String::from_utf8_lossy(&found.stderr));
}

#[test]
fn host_with_rings_by_hand_is_clean_under_valgrind() {
    let out = folder();
    if let Some(program) = build(out.path(), "rings", "cc", "-std=c11", Link::Static, &["tests/hosts/own_rings.c"]) {
        under_valgrind(&program, &[MODEL]);
    }
}

#[test]
fn header_stands_alone_in_c_and_cpp() {
    let out = folder();
    let alone = ["tests/hosts/header_alone.c"];
    for (name, compiler, arguments) in
        [("alone-c", "cc", &["-std=c11", "-x", "c"][..]), ("alone-cpp", "c++", &["-std=c++17", "-x", "c++"][..])]
    {
        if !has(compiler) {
            println!("skipped: {name}: no {compiler}");
            continue;
        }
        let program = out.path().join(name);
        let mut command = Command::new(compiler);
        command.args(arguments).args(WARNINGS).arg("-I").arg(header_folder()).arg(root().join(alone[0]));
        command
            .args(["-x", "none", "-o"])
            .arg(&program)
            .arg(library_folder().join("libictus.a"))
            .args(STATIC_LIBRARIES);
        run(&mut command);
        run(&mut Command::new(program));
    }
}

#[test]
fn two_units_that_include_the_cpp_header_link() {
    let out = folder();
    let sources = ["tests/hosts/unit_a.cpp", "tests/hosts/unit_b.cpp"];
    if let Some(program) = build(out.path(), "units", "c++", "-std=c++17", Link::Static, &sources) {
        run(&mut Command::new(program));
    }
}
