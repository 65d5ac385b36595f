//! What scripts/install.sh installs is found by CMake and by pkg-config, also after the prefix was moved.
//!
//! The library is the one of this build, so that nothing is compiled twice; the script's own build is `cargo build --release`.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{has, library_folder, root, run};

/// An installed prefix, moved to where it was not installed.
fn installed(folder: &Path) -> PathBuf {
    let (first, moved) = (folder.join("first"), folder.join("moved"));
    run(Command::new(root().join("scripts/install.sh")).arg(&first).env("ICTUS_LIBRARY_DIR", library_folder()));
    std::fs::rename(&first, &moved).expect("the prefix can be moved");
    moved
}

const PROGRAM: &str = "#include <ictus.h>\n#include <stdio.h>\n\
    int main(void) {\n    puts(ictus_version());\n    return ictus_abi_hash() == ICTUS_ABI_HASH ? 0 : 1;\n}\n";
const PROGRAM_CPP: &str = "#include <ictus.hpp>\n\
    int main() {\n    try {\n        ictus::Model::open(\"no such model\");\n    } catch (const ictus::Error &error) {\n\
            return error.status() == ICTUS_ERR_UNKNOWN_HANDLE ? 0 : 1;\n    }\n    return 1;\n}\n";

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("a file lies in a folder")).expect("the folder can be made");
    std::fs::write(path, text).expect("the file can be written");
}

#[test]
fn cmake_project_finds_the_package_and_runs() {
    if !has("cmake") {
        println!("skipped: the installed CMake package: no cmake (package cmake)");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = installed(folder.path());
    let project = |name: &str, request: &str| {
        let source = folder.path().join(name);
        write(
            &source.join("CMakeLists.txt"),
            &format!(
                "cmake_minimum_required(VERSION 3.16)\nproject(host C CXX)\nfind_package(ictus {request} REQUIRED)\n\
                 set(CMAKE_CXX_STANDARD 17)\nadd_executable(shared main.c)\ntarget_link_libraries(shared ictus::ictus)\n\
                 add_executable(static main.c)\ntarget_link_libraries(static ictus::static)\n\
                 add_executable(wrapper main.cpp)\ntarget_link_libraries(wrapper ictus::static)\n"
            ),
        );
        write(&source.join("main.c"), PROGRAM);
        write(&source.join("main.cpp"), PROGRAM_CPP);
        let mut command = Command::new("cmake");
        command.arg("-S").arg(&source).arg("-B").arg(source.join("build"));
        command.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
        (source.join("build"), command)
    };
    let version = env!("CARGO_PKG_VERSION");
    let line = version.rsplit_once('.').expect("a version has parts").0;
    for (name, request) in [("any", String::new()), ("line", line.to_owned()), ("exact", format!("{version} EXACT"))] {
        let (build, mut configure) = project(name, &request);
        run(&mut configure);
        if name == "any" {
            run(Command::new("cmake").arg("--build").arg(&build));
            for program in ["shared", "static"] {
                assert_eq!(run(&mut Command::new(build.join(program))), format!("{version}\n"), "{program}");
            }
            run(&mut Command::new(build.join("wrapper")));
        }
    }
    // A version that this is not is not found.
    for (name, request) in [("newer", "0.999"), ("major", "7")] {
        let (_, mut configure) = project(name, request);
        assert!(!configure.output().expect("cmake runs").status.success(), "{request}");
    }
}

#[test]
fn pkg_config_finds_the_library_and_the_program_runs() {
    if !has("pkg-config") || !has("cc") {
        println!("skipped: the installed pkg-config file: no pkg-config or cc");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = installed(folder.path());
    let ask = |arguments: &[&str]| {
        let mut command = Command::new("pkg-config");
        command.args(arguments).arg("ictus").env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        run(&mut command).split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(ask(&["--modversion"]), [version]);
    let source = folder.path().join("main.c");
    write(&source, PROGRAM);
    let program = folder.path().join("main");
    let flags = ask(&["--cflags", "--libs"]);
    run(Command::new("cc").arg(&source).args(flags).arg("-o").arg(&program));
    let ran = run(Command::new(&program).env("LD_LIBRARY_PATH", prefix.join("lib")));
    assert_eq!(ran, format!("{version}\n"));
}

#[test]
fn install_without_a_prefix_says_how_and_does_nothing() {
    let output = Command::new(root().join("scripts/install.sh")).output().expect("the script runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("usage: "));
}
