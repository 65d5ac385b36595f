//! Machine code of the kernels, made by the machine's nvcc when `ICTUS_NVCC=1` asks for it: a fatbin of each PTX text.
//!
//! nvcc is given the committed texts, not the sources beside them. So what comes out is what a driver makes of the same text: it has the same bits, and
//! the parameters that launches are checked against, whichever nvcc it is. (Of the sources the pinned nvcc makes the same fatbins, byte for byte.)
//!
//! # Limits
//! Machine code alone: a device of another architecture is given the text, which stays in the library.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What decides beside the texts: when one of these changes it is done again.
pub const VARIABLES: [&str; 4] = ["NVCC", "CUDA_HOME", "CUDA_PATH", "ICTUS_NVCC_ARCHS"];

/// The oldest architecture that the texts are for.
const LEAST: u32 = 80;

/// The value of a variable that is set to something.
pub type Variable<'v> = &'v dyn Fn(&str) -> Option<String>;

/// Makes `NAME.fatbin` in `out` of every `NAME.ptx` in `texts`; answers for which architectures.
///
/// # Errors
/// Why not, in one line.
pub fn make(variable: Variable<'_>, texts: &Path, out: &Path) -> Result<Vec<String>, String> {
    let nvcc = compiler(variable);
    let architectures = architectures(variable)?;
    let files = texts_of(texts).map_err(|error| format!("{}: {error}", texts.display()))?;
    let jobs = variable("NUM_JOBS").and_then(|jobs| jobs.parse().ok()).unwrap_or(1).clamp(1, files.len().max(1));
    let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
    let work = || {
        while let Some(text) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(reason) = compile(&nvcc, &architectures, text, out) {
                // The others need not begin.
                next.store(files.len(), Ordering::Relaxed);
                if let Ok(mut failure) = failure.lock() {
                    failure.get_or_insert(reason);
                }
            }
        }
    };
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    match failure.into_inner() {
        Ok(None) => Ok(architectures),
        Ok(Some(reason)) => Err(reason),
        Err(_) => Err("a thread that ran nvcc broke".to_owned()),
    }
}

/// `NVCC`, or the one in `CUDA_HOME` or `CUDA_PATH`, or whichever PATH has.
fn compiler(variable: Variable<'_>) -> PathBuf {
    let program = format!("nvcc{}", std::env::consts::EXE_SUFFIX);
    let home =
        |name| variable(name).map(|home| Path::new(&home).join("bin").join(&program)).filter(|nvcc| nvcc.is_file());
    variable("NVCC")
        .map(PathBuf::from)
        .or_else(|| home("CUDA_HOME"))
        .or_else(|| home("CUDA_PATH"))
        .unwrap_or(program.into())
}

/// Those that `ICTUS_NVCC_ARCHS` lists, or those of the machine's devices, such as `90` or `90a`.
fn architectures(variable: Variable<'_>) -> Result<Vec<String>, String> {
    if let Some(list) = variable("ICTUS_NVCC_ARCHS") {
        let names: Vec<String> = list.split(',').map(|name| name.trim().to_owned()).collect();
        let is_one = |name: &String| {
            let digits = name.trim_end_matches(|letter: char| letter.is_ascii_lowercase());
            name.len() <= digits.len() + 1 && digits.parse().is_ok_and(|number: u32| number >= LEAST)
        };
        return match names.iter().find(|name| !is_one(name)) {
            Some(wrong) => Err(format!("ICTUS_NVCC_ARCHS has `{wrong}`, which is no architecture from {LEAST} on")),
            None => Ok(names),
        };
    }
    let asked = Command::new("nvidia-smi").args(["--query-gpu=compute_cap", "--format=csv,noheader"]).output();
    let answer = asked.map_err(|error| error.to_string()).and_then(|output| match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(reason_of(&output)),
    });
    let answer = answer.map_err(|reason| {
        format!("which devices there are is not known (nvidia-smi: {reason}), and ICTUS_NVCC_ARCHS does not say")
    })?;
    let mut numbers: Vec<u32> = answer.lines().filter_map(|line| line.trim().replace('.', "").parse().ok()).collect();
    numbers.retain(|&number| number >= LEAST);
    numbers.sort_unstable();
    numbers.dedup();
    match numbers.is_empty() {
        true => {
            Err("nvidia-smi lists no device of compute capability 8.0 or newer, and ICTUS_NVCC_ARCHS is not set"
                .to_owned())
        }
        false => Ok(numbers.iter().map(u32::to_string).collect()),
    }
}

fn texts_of(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "ptx") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn compile(nvcc: &Path, architectures: &[String], text: &Path, out: &Path) -> Result<(), String> {
    let name = text.file_stem().unwrap_or_default();
    let mut command = Command::new(nvcc);
    // The text says where a product and a sum are fused, and nowhere else.
    command.args(["-fatbin", "-fmad=false"]);
    for architecture in architectures {
        command.args(["-gencode", &format!("arch=compute_{LEAST},code=sm_{architecture}")]);
    }
    command.arg("-o").arg(out.join(name).with_extension("fatbin")).arg(text);
    let output = command.output().map_err(|error| format!("{} does not start: {error}", nvcc.display()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{} of {}.ptx: {}", nvcc.display(), name.display(), reason_of(&output))),
    }
}

/// The line that says most of why a program failed.
fn reason_of(output: &Output) -> String {
    let text = [&output.stderr[..], &output.stdout[..]].map(String::from_utf8_lossy).join("\n");
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    let told = lines().find(|line| line.contains("fatal") || line.contains("error")).or_else(|| lines().next());
    told.map_or_else(|| output.status.to_string(), str::to_owned)
}
