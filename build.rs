//! Names the shared library, so that programs find the version they were linked with; makes machine code of the CUDA kernels where that is asked for.
//!
//! A program records the SONAME of a shared library, not the name of its file: `libictus.so.0.1` for every
//! `0.1.y`, since minor versions below 1.0 may differ, and `libictus.so.1` from 1.0 on. So
//! `scripts/install.sh` can lay several versions side by side, with links that say which is used. Linked straight from cargo's
//! folder, a program needs a link of that name beside the library, or the installed one.
//!
//! With feature `cuda` and `ICTUS_NVCC=1` the library has the kernels as machine code too ([`machine_code`]), so that the driver need not compile them. It is an
//! offer: where that does not work a warning says why, and the library has the texts alone, as without.
//!
//! # Limits
//! Linux. Elsewhere the library has the name that the linker gives it.

#![forbid(unsafe_code)]

#[path = "build/machine_code.rs"]
mod machine_code;

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(ictus_machine_code)");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_some() {
        make_machine_code();
    }
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    if variable("CARGO_CFG_TARGET_OS") == "linux" {
        let line = match (variable("CARGO_PKG_VERSION_MAJOR"), variable("CARGO_PKG_VERSION_MINOR")) {
            (major, minor) if major == "0" => format!("0.{minor}"),
            (major, _) => major,
        };
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libictus.so.{line}");
        // A dependency has C functions of its own, which are nobody's business here: a program may link another version of it.
        println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    }
}

/// Sets `ictus_machine_code` where `OUT_DIR` has a fatbin of every text. Nothing that goes wrong breaks the build.
fn make_machine_code() {
    println!("cargo::rerun-if-env-changed=ICTUS_NVCC");
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    match variable("ICTUS_NVCC").as_deref() {
        None | Some("0") => return,
        Some("1") => {}
        Some(other) => {
            return println!("cargo::warning=ICTUS_NVCC is {other}, must be 0 or 1: the CUDA kernels are PTX alone");
        }
    }
    machine_code::VARIABLES.iter().for_each(|name| println!("cargo::rerun-if-env-changed={name}"));
    println!("cargo::rerun-if-changed=kernels/ptx");
    let out = variable("OUT_DIR").unwrap_or_default();
    match machine_code::make(&variable, Path::new("kernels/ptx"), Path::new(&out)) {
        Ok(_) => println!("cargo::rustc-cfg=ictus_machine_code"),
        Err(reason) => println!("cargo::warning=ICTUS_NVCC: the CUDA kernels are PTX alone: {reason}"),
    }
}
