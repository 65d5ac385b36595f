#![forbid(unsafe_code)]
//! Where the worker program lies, when the host does not say.
//!
//! ```text
//! 1. $ICTUS_WORKER           what it names, or nothing
//! 2. beside the library      libictus.so, or the program that ictus is linked into: in its folder, in ../bin, in the folder above
//! 3. beside the program      the same three, from the program that runs
//! ```
//! The folder above is where cargo leaves programs whose examples and tests lie one further down.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The name of the program.
pub const PROGRAM: &str = "ictus-worker";
/// The variable that names it.
pub const VARIABLE: &str = "ICTUS_WORKER";

/// There is no worker program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no worker program: looked for {}", list(looked_for))]
pub struct NoWorker {
    /// Where it was looked for, in this order.
    pub looked_for: Vec<PathBuf>,
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// The worker program: the one that the host names, else the first of those above that can be run.
///
/// # Errors
/// None is there, or the one that is named, by the host or by the variable, is no program.
pub fn find_worker(named: Option<&Path>) -> Result<PathBuf, NoWorker> {
    let variable = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    let candidates = match named.map(Path::to_owned).or(variable) {
        Some(named) => vec![named],
        None => beside(&[this_code(), std::env::current_exe().ok()]),
    };
    match candidates.iter().find(|path| is_program(path)) {
        Some(found) => Ok(found.clone()),
        None => Err(NoWorker { looked_for: candidates }),
    }
}

/// The places beside these files.
fn beside(files: &[Option<PathBuf>]) -> Vec<PathBuf> {
    let mut places = Vec::new();
    for folder in files.iter().flatten().filter_map(|file| file.parent()) {
        let above = folder.parent().unwrap_or(folder);
        for place in [folder.join(PROGRAM), above.join("bin").join(PROGRAM), above.join(PROGRAM)] {
            if !places.contains(&place) {
                places.push(place);
            }
        }
    }
    places
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

/// The file that this code was loaded from: the shared library, or the program that it is part of.
fn this_code() -> Option<PathBuf> {
    let address = (find_worker as fn(Option<&Path>) -> Result<PathBuf, NoWorker>) as usize as u64;
    let maps = std::fs::read("/proc/self/maps").ok()?;
    maps.split(|&byte| byte == b'\n').find_map(|line| mapped_file(line, address))
}

/// The file of a line of the maps, when it has this address.
fn mapped_file(line: &[u8], address: u64) -> Option<PathBuf> {
    // start-end permissions offset device inode path
    let start_of_path = line.iter().position(|&byte| byte == b'/')?;
    let range = core::str::from_utf8(line.split(|&byte| byte == b' ').next()?).ok()?;
    let (start, end) = range.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let path = || PathBuf::from(OsStr::from_bytes(&line[start_of_path..]));
    (start..end).contains(&address).then(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_code_lies_in_the_program_that_tests_it() {
        assert_eq!(this_code(), std::env::current_exe().ok());
    }

    #[test]
    fn maps_name_the_file_of_an_address() {
        let line = b"55d0c000-55d0e000 r-xp 00001000 08:01 1234      /opt/a b/lib/libictus.so.0.1";
        assert_eq!(mapped_file(line, 0x55d0_d123), Some("/opt/a b/lib/libictus.so.0.1".into()));
        assert_eq!(mapped_file(line, 0x55d0_e000), None);
        assert_eq!(mapped_file(b"7ffc0000-7ffd0000 rw-p 00000000 00:00 0   [stack]", 0x7ffc_0001), None);
        assert_eq!(mapped_file(b"", 1), None);
    }

    #[test]
    fn places_of_an_installed_library_and_of_a_program_of_cargo() {
        let of = |file: &str| beside(&[Some(file.into())]).iter().map(|p| p.display().to_string()).collect::<Vec<_>>();
        assert!(of("/opt/x/lib/libictus.so").contains(&"/opt/x/bin/ictus-worker".to_owned()));
        assert!(of("/p/target/debug/examples/hello").contains(&"/p/target/debug/ictus-worker".to_owned()));
        assert_eq!(of("/usr/bin/host")[0], "/usr/bin/ictus-worker");
        assert_eq!(beside(&[Some("/a/b".into()), None, Some("/a/c".into())]).len(), 3, "each place once");
    }

    #[test]
    fn what_is_named_is_the_only_place() {
        let named = Path::new("/nonexistent/worker");
        let missing = find_worker(Some(named)).expect_err("it is not there");
        assert_eq!(missing.looked_for, [named]);
        assert_eq!(missing.to_string(), "no worker program: looked for /nonexistent/worker");
        assert!(find_worker(Some(Path::new("/dev/null"))).is_err(), "no file");
        assert!(find_worker(Some(Path::new("/etc/passwd"))).is_err(), "not to be run");
        assert_eq!(find_worker(Some(Path::new("/bin/sh"))), Ok("/bin/sh".into()));
    }
}
