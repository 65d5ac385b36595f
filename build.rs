//! Names the shared library, so that programs find the version they were linked with.
//!
//! A program records the SONAME of a shared library, not the name of its file: `libictus.so.0.1` for every
//! `0.1.y`, since minor versions below 1.0 may differ, and `libictus.so.1` from 1.0 on. So
//! `scripts/install.sh` can lay several versions side by side, with links that say which is used. Linked straight from cargo's
//! folder, a program needs a link of that name beside the library, or the installed one.
//!
//! # Limits
//! Linux. Elsewhere the library has the name that the linker gives it.

#![forbid(unsafe_code)]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
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
