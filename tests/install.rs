//! What `scripts/install.sh` puts down is what C and C++ programs need: they find it, link it both ways, and run.
//!
//! Libraries are those of this very build (`--no-build --library-dir`). Every prefix has spaces in its name and is moved after the
//! installation, so a path that was written down anywhere breaks the test.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ictus::engine::PlanBuilder;
use ictus::ring::{MemoryRings, Rings};
use ictus::{Model, ModelOptions};
use support::{has, library_folder, root, run};
use tempfile::TempDir;

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn soname() -> String {
    // Below 1.0; `cmake_requests_are_met_within_the_minor_version_only` fails when that ends.
    concat!("libictus.so.0.", env!("CARGO_PKG_VERSION_MINOR")).to_owned()
}

fn model() -> PathBuf {
    root().join("models/ictus-tiny.gguf")
}

fn install(arguments: &[&str]) -> Command {
    let mut command = Command::new(root().join("scripts/install.sh"));
    command.args(arguments).env_remove("DESTDIR");
    command
}

/// An installation that was moved since: its folder, and the prefix below it.
fn installed(libraries: &Path) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let (first, prefix) = (folder.path().join("first place"), folder.path().join("the last place"));
    run(install(&["--no-build", "--library-dir", text(libraries), text(&first)]).current_dir(folder.path()));
    std::fs::rename(first, &prefix).expect("the prefix can be moved");
    (folder, prefix)
}

/// Files that stand in for the libraries where only their names matter.
fn stand_ins() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["libictus.so", "libictus.a"] {
        std::fs::write(folder.path().join(name), name).expect("the file can be written");
    }
    folder
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Whether these commands are there; when not, says what is left out.
fn have(commands: &[&str], what: &str) -> bool {
    let missing: Vec<&str> = commands.iter().copied().filter(|command| !has(command)).collect();
    if !missing.is_empty() {
        println!("skipped: {what}: no {}", missing.join(", no "));
    }
    missing.is_empty()
}

/// What a host has to print: version, hash, and the token that the Rust API gives for the same tick.
fn expected() -> String {
    let model = Model::open(model(), &ModelOptions::default()).expect("the model opens");
    let mut engine = model.engine().expect("an engine");
    let mut rings = MemoryRings::new();
    let staged = rings.stage_prompt(&[1, 2, 3, 4, 5]);
    let (plan, arena) = PlanBuilder::new(1).admit(7, staged).prefill(7, 0, 5).decode(7, 1).build();
    let emit = engine.tick(&plan, &arena, &mut rings).expect("the plan runs").emits[0];
    let mut tokens = Vec::new();
    rings.read_tokens(&emit.token_ref, &mut tokens).expect("the tokens are there");
    format!("ictus {VERSION} {:016x} token {}\n", ictus::abi::ictus_abi_hash(), tokens[0])
}

/// Runs a host without help from the environment.
fn run_host(host: &Path, library_path: Option<&Path>) -> Output {
    let mut command = Command::new(host);
    command.arg(model()).env_remove("LD_LIBRARY_PATH");
    if let Some(path) = library_path {
        command.env("LD_LIBRARY_PATH", path);
    }
    command.output().expect("the host can be started")
}

#[track_caller]
fn assert_runs(host: &Path, library_path: Option<&Path>, expected: &str) {
    let output = run_host(host, library_path);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {}\n{err}", host.display(), output.status);
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", host.display());
}

#[test]
fn cmake_project_finds_the_package_and_runs_with_both_libraries() {
    if !have(&["cmake", "cc", "c++"], "a CMake project against the installed package") {
        return;
    }
    let (folder, prefix) = installed(&library_folder());
    let build = folder.path().join("build");
    let prefix_path = format!("-DCMAKE_PREFIX_PATH={}", text(&prefix));
    run(Command::new("cmake").args(["-S", text(&root().join("tests/install")), "-B", text(&build), &prefix_path]));
    run(Command::new("cmake").args(["--build", text(&build)]));

    let expected = expected();
    for host in ["c-ictus", "cpp-ictus", "c-static", "cpp-static"] {
        assert_runs(&build.join(host), None, &expected);
    }
    // The shared ones need the installed library, the static ones need nothing of it.
    std::fs::remove_dir_all(prefix).expect("the prefix can be removed");
    for host in ["c-static", "cpp-static"] {
        assert_runs(&build.join(host), None, &expected);
    }
    for host in ["c-ictus", "cpp-ictus"] {
        assert!(!run_host(&build.join(host), None).status.success(), "{host} carries a library of its own");
    }
}

/// Compiles a host the way the README says: the shell reads what pkg-config prints.
fn compile(compiler: &str, source: &str, target: &Path, prefix: &Path, flags: &str) {
    let source = root().join("tests/install").join(source);
    let script = format!("eval \"{compiler} -Wall -Wextra -Werror -o '$TARGET' '$SOURCE' $({flags})\"");
    let mut command = Command::new("sh");
    command.args(["-eu", "-c", &script]).env("TARGET", target).env("SOURCE", source);
    run(command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")));
}

#[test]
fn pkg_config_flags_build_hosts_with_both_libraries() {
    if !have(&["pkg-config", "cc", "c++"], "hosts built with the installed pkg-config file") {
        return;
    }
    let (folder, prefix) = installed(&library_folder());
    let library_path = prefix.join("lib");
    // A place where the library has no name but its SONAME.
    let by_soname = folder.path().join("by soname");
    std::fs::create_dir(&by_soname).expect("the folder can be made");
    std::fs::copy(library_path.join("libictus.so"), by_soname.join(soname())).expect("the library can be copied");

    let expected = expected();
    for (compiler, source) in [("cc -std=c11", "host.c"), ("c++ -std=c++17", "host.cpp")] {
        let shared = folder.path().join(format!("shared {source}.out"));
        compile(compiler, source, &shared, &prefix, "pkg-config --cflags --libs ictus");
        assert_runs(&shared, Some(&library_path), &expected);
        assert_runs(&shared, Some(&by_soname), &expected);
        assert!(!run_host(&shared, None).status.success(), "{source} runs without the shared library");

        let fixed = folder.path().join(format!("static {source}.out"));
        let flags = "pkg-config --static --cflags --libs ictus | sed 's/-lictus/-l:libictus.a/'";
        compile(compiler, source, &fixed, &prefix, flags);
        assert_runs(&fixed, None, &expected);
    }
    let mut version = Command::new("pkg-config");
    let version = run(version.args(["--modversion", "ictus"]).env("PKG_CONFIG_PATH", library_path.join("pkgconfig")));
    assert_eq!(version.trim(), VERSION);
}

#[test]
fn cmake_requests_are_met_within_the_minor_version_only() {
    if !have(&["cmake"], "requests for versions of the CMake package") {
        return;
    }
    let libraries = stand_ins();
    let (folder, prefix) = installed(libraries.path());
    let number = |part: &str| part.parse::<u32>().expect("a number");
    let (major, minor, patch) = (
        number(env!("CARGO_PKG_VERSION_MAJOR")),
        number(env!("CARGO_PKG_VERSION_MINOR")),
        number(env!("CARGO_PKG_VERSION_PATCH")),
    );
    assert_eq!(major, 0, "from 1.0 on an older minor version is met too: this table changes");
    let met = [
        String::new(),
        format!("0.{minor}"),
        VERSION.into(),
        format!("{VERSION};EXACT"),
        format!("0.{minor}...<0.{}", minor + 2),
        format!("0.0...{VERSION}"),
    ];
    let unmet = [
        format!("0.{}", minor + 1),
        format!("0.{minor}.{}", patch + 1),
        format!("0.{minor}.{};EXACT", patch + 1),
        "1".into(),
        "1.0".into(),
        format!("0.0...<{VERSION}"),
        format!("0.{}...<1", minor + 1),
        "0.0.9".into(),
        format!("0.{minor};COMPONENTS;worker"),
    ];
    let requests = met.iter().map(|request| (request, true)).chain(unmet.iter().map(|request| (request, false)));
    for (index, (request, is_met)) in requests.enumerate() {
        let output = Command::new("cmake")
            .args(["-S", text(&root().join("tests/install/version")), "-B"])
            .arg(folder.path().join(format!("build {index}")))
            .args([format!("-DCMAKE_PREFIX_PATH={}", text(&prefix)), format!("-DICTUS_REQUEST={request}")])
            .output()
            .expect("cmake runs");
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), is_met, "{request:?}\n{said}");
        // Refused for the reason that is tested, not because nothing was found.
        assert!(said.contains(VERSION) || said.contains("no component"), "{request:?}\n{said}");
    }
}

/// Paths below a folder, with the contents of files and the targets of links.
fn listing(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).expect("the folder can be listed") {
            let path = entry.expect("the entry can be read").path();
            let name = text(path.strip_prefix(folder).expect("below the folder")).to_owned();
            match std::fs::read_link(&path) {
                Ok(target) => drop(found.insert(name, format!("-> {}", target.display()))),
                Err(_) if path.is_dir() => folders.push(path),
                Err(_) => drop(found.insert(name, std::fs::read_to_string(&path).expect("text"))),
            }
        }
    }
    found
}

#[test]
fn installing_again_changes_nothing_and_destdir_stages_it() {
    let libraries = stand_ins();
    let (folder, prefix) = installed(libraries.path());
    let first = listing(&prefix);
    let names = vec![
        "include/ictus.h".to_owned(),
        "include/ictus.hpp".into(),
        "include/ictus/base.hpp".into(),
        "include/ictus/capacity.hpp".into(),
        "include/ictus/driver.hpp".into(),
        "include/ictus/executor.hpp".into(),
        "include/ictus/model.hpp".into(),
        "include/ictus/tick.hpp".into(),
        "lib/cmake/ictus/ictusConfig.cmake".into(),
        "lib/cmake/ictus/ictusConfigVersion.cmake".into(),
        "lib/libictus.a".into(),
        "lib/libictus.so".into(),
        format!("lib/{}", soname()),
        format!("lib/libictus.so.{VERSION}"),
        "lib/pkgconfig/ictus.pc".into(),
    ];
    assert_eq!(first.keys().cloned().collect::<Vec<_>>(), names);
    assert_eq!(first["lib/libictus.so"], format!("-> {}", soname()));
    assert_eq!(first[&format!("lib/{}", soname())], format!("-> libictus.so.{VERSION}"));
    for (name, content) in &first {
        assert!(name.starts_with("include/") || !content.contains('@'), "{name} has a place that was not filled");
        assert!(!content.contains(text(folder.path())), "{name} names the folder it was installed into");
    }

    // Again, at the same place, named from the folder that the caller is in.
    run(install(&["the last place", "--no-build", "--library-dir", text(libraries.path())]).current_dir(&folder));
    assert_eq!(listing(&prefix), first);

    let (stage, never) = (folder.path().join("a stage"), folder.path().join("not here"));
    let mut staged = install(&[text(&never), "--no-build", "--library-dir", text(libraries.path())]);
    let said = run(staged.env("DESTDIR", &stage));
    let place = stage.join(never.strip_prefix("/").expect("a whole path"));
    assert_eq!(listing(&place), first);
    assert_eq!(listing(&stage).len(), first.len());
    assert!(!never.exists(), "DESTDIR is before PREFIX");
    for name in first.keys() {
        assert!(said.contains(&format!("/{name}")), "{name} was installed without a word\n{said}");
    }
}

#[test]
fn wrong_arguments_and_missing_libraries_install_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (empty, libraries) = (tempfile::tempdir().expect("a folder"), stand_ins());
    std::fs::remove_file(libraries.path().join("libictus.a")).expect("the file can be removed");
    let cases: [(&[&str], i32); 8] = [
        (&[], 2),
        (&[""], 2),
        (&["one", "two"], 2),
        (&["prefix", "--no-such-flag"], 2),
        (&["prefix", "--no-build", "--library-dir"], 2),
        (&["prefix", "--library-dir", text(libraries.path())], 1),
        (&["prefix", "--no-build", "--library-dir", text(empty.path())], 1),
        (&["prefix", "--no-build", "--library-dir", text(libraries.path())], 1),
    ];
    for (arguments, code) in cases {
        for _ in 0..2 {
            let output = install(arguments).current_dir(&folder).output().expect("the script runs");
            assert_eq!(output.status.code(), Some(code), "{arguments:?}");
            assert!(!output.stderr.is_empty(), "{arguments:?}");
            assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "{arguments:?}");
        }
    }
}
