//! The shared library of simulator, fake driver and kernels: built by the machine's C++ compiler once per state of the sources, then loaded.
//!
//! It lies below target/tmp, in a folder that names the state. A file lock is held while it is built, so test programs that run at the same time
//! build it once; objects are kept, so only what changed is compiled again. Its SONAME is `libcuda.so`: after [`Library::open`] this process has a
//! driver, and whoever loads one by that name gets this one.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}
const RTLD_NOW: c_int = 2;
const RTLD_GLOBAL: c_int = 0x100;

/// Products and sums stay apart unless the source fuses them, as nvcc is told too.
const FLAGS: [&str; 10] = [
    "-std=c++17",
    "-O2",
    "-g1",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-Wall",
    "-Wextra",
    "-Werror",
];
/// Its own calls stay inside of the library, should the process have a real driver too.
const LINK_FLAGS: [&str; 3] = ["-shared", "-Wl,-soname,libcuda.so", "-Wl,-Bsymbolic"];

/// The library, loaded for as long as the process lives.
pub(crate) struct Library(*mut c_void);

static PATH: OnceLock<PathBuf> = OnceLock::new();

impl Library {
    /// Builds the library where that is needed, and loads it; none without a C++ compiler.
    pub(crate) fn open() -> Option<Self> {
        let path = build()?;
        let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL");
        // SAFETY: the library only registers its kernels and sets its own state when it is loaded.
        let library = unsafe { dlopen(name.as_ptr(), RTLD_NOW | RTLD_GLOBAL) };
        if library.is_null() {
            // SAFETY: it takes nothing.
            let reason = unsafe { dlerror() };
            // SAFETY: an error was just reported, whose text stays until the next call.
            let reason = unsafe { CStr::from_ptr(reason) };
            panic!("the simulator does not load: {}", reason.to_string_lossy());
        }
        PATH.get_or_init(|| path);
        Some(Self(library))
    }

    /// The address of a function.
    pub(crate) fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the library is loaded and stays so.
        let symbol = unsafe { dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "the library has {name:?}");
        symbol
    }
}

/// An error of a kernel with the source line that its code address belongs to, where addr2line is at hand.
pub(crate) fn with_line(error: &str) -> String {
    let Some(path) = PATH.get() else { return error.into() };
    let Some((text, rest)) = error.split_once(" [code +") else { return error.into() };
    let address = rest.trim_end_matches(']');
    let lines = Command::new("addr2line").arg("-i").arg("-e").arg(path).arg(address).output();
    let Ok(lines) = lines else { return error.into() };
    let lines = String::from_utf8_lossy(&lines.stdout);
    let place = lines.lines().find(|line| !line.contains("/sim/") && !line.starts_with('?'));
    place.map_or(error.into(), |place| format!("{text} [{}]", place.rsplit('/').next().unwrap_or(place)))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files of a folder with one of these extensions, by name.
fn files(folder: &str, extensions: &[&str]) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join(folder)).expect("a folder of sources");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let is_wanted = |path: &PathBuf| path.extension().is_some_and(|e| extensions.iter().any(|want| e == *want));
    let mut files: Vec<PathBuf> = paths.filter(is_wanted).collect();
    files.sort();
    files
}

/// A name that changes with any of these files.
fn fingerprint(compiler: &str, files: &[PathBuf]) -> String {
    let mut hasher = DefaultHasher::new();
    (compiler, FLAGS, LINK_FLAGS).hash(&mut hasher);
    for file in files {
        std::fs::read(file).expect("a source can be read").hash(&mut hasher);
    }
    format!("{:016x}", hasher.finish())
}

/// Every source with the object that it becomes, whose name changes with whatever it includes.
fn objects(compiler: &str, folder: &Path) -> Vec<(PathBuf, PathBuf)> {
    let kernels = files("kernels", &["cu"]).into_iter().chain(files("tests/cuda", &["cu"]));
    let mut kernel_headers = files("kernels", &["cuh"]);
    kernel_headers.extend(["device.h", "tensor.h"].map(|name| root().join("kernels/sim").join(name)));
    let sources = kernels.map(|source| (source, &kernel_headers));
    let host_headers = files("kernels/sim", &["h"]);
    let sources = sources.chain(files("kernels/sim", &["cpp"]).into_iter().map(|source| (source, &host_headers)));
    let object = |(source, headers): (PathBuf, &Vec<PathBuf>)| {
        let mut all = headers.clone();
        all.push(source.clone());
        let stem = source.file_stem().expect("a name").to_string_lossy().into_owned();
        let object = folder.join(format!("{stem}-{}.o", fingerprint(compiler, &all)));
        (source, object)
    };
    sources.map(object).collect()
}

/// The path of the library; none without a compiler.
fn build() -> Option<PathBuf> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    Command::new(&compiler).arg("--version").output().ok().filter(|output| output.status.success())?;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-simulator");
    std::fs::create_dir_all(&folder).expect("a folder for the library");
    let objects = objects(&compiler, &folder);
    let names: Vec<PathBuf> = objects.iter().map(|(_, object)| object.clone()).collect();
    let mut hasher = DefaultHasher::new();
    names.hash(&mut hasher);
    let state = folder.join(format!("{:016x}", hasher.finish()));
    let library = state.join("libcuda.so");
    let lock = File::create(folder.join("lock")).expect("a file to lock");
    lock.lock().expect("the lock is waited for");
    if !library.exists() {
        compile(&compiler, &objects);
        std::fs::create_dir_all(&state).expect("a folder for the library");
        let linked = state.join("linking");
        let mut command = Command::new(&compiler);
        command.args(LINK_FLAGS).arg("-o").arg(&linked).args(names).arg("-ldl").arg("-pthread");
        assert!(command.status().expect("the linker starts").success(), "the kernels link");
        std::fs::rename(&linked, &library).expect("the library moves to its place");
    }
    Some(library)
}

/// Compiles what is not there yet, two at a time: the slowest takes a few seconds.
fn compile(compiler: &str, objects: &[(PathBuf, PathBuf)]) {
    let missing: Vec<&(PathBuf, PathBuf)> = objects.iter().filter(|(_, object)| !object.exists()).collect();
    for pair in missing.chunks(2) {
        let started = pair.iter().map(|(source, object)| {
            let unfinished = object.with_extension("unfinished");
            let mut command = Command::new(compiler);
            command.args(FLAGS).arg("-I").arg(root().join("kernels")).args(["-x", "c++", "-c"]).arg(source);
            let child = command.arg("-o").arg(&unfinished).spawn().expect("the compiler starts");
            (child, unfinished, object)
        });
        for (mut child, unfinished, object) in started.collect::<Vec<_>>() {
            assert!(child.wait().expect("the compiler ends").success(), "the kernels compile for the simulator");
            std::fs::rename(unfinished, object).expect("the object moves to its place");
        }
    }
}
