//! Kernels as machine code: made when a build is asked to, taken by the driver or not, and the text where it is not.
//!
//! Simulated devices compare what a fatbin declares and run their own kernels. `ICTUS_NVCC=1 cargo test --test cuda_fatbins` runs all of it over a build that has
//! machine code, which nvcc has really made.

#![cfg(feature = "cuda")]
#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[cfg(unix)]
#[path = "cuda_fatbins/build.rs"]
mod build;
#[path = "common/cuda_device.rs"]
mod cuda_device;
#[path = "common/fatbin.rs"]
mod fatbin;
#[path = "common/model.rs"]
mod model;

use std::collections::HashMap;
use std::path::Path;

use cuda_device::{Point, Setting, backend, simulated, test_device};
use ictus::backend::KvType;
use ictus::backend::cuda::CudaBackend;
use ictus::checkpoint::Checkpoint;
use ictus::runtime::{ModelRuntime, PagedError, PagedIdentity, Runtime};
use ictus::{Device, Model, ModelOptions};

const SMALL: &str = "tests/data/llama-window.gguf";

/// The texts by name.
fn texts() -> Vec<(String, String)> {
    let folder = std::fs::read_dir(model::file("kernels/ptx")).expect("kernels/ptx");
    let text = |path: &Path| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).expect("a text"))
    };
    folder.map(|entry| text(&entry.expect("an entry").path())).collect()
}

/// Fatbins of all files, for this architecture.
fn fatbins(architecture: u32) -> HashMap<String, Vec<u8>> {
    let fatbin = |text: &str| fatbin::fatbin(&[architecture], &fatbin::kernels_of(text));
    texts().iter().map(|(name, text)| (name.clone(), fatbin(text))).collect()
}

/// A backend that has them.
fn with(fatbins: HashMap<String, Vec<u8>>) -> CudaBackend {
    // SAFETY: simulated devices run no code of a fatbin; what is declared there is compared with the kernels' sources.
    unsafe { backend().with_machine_code(fatbins) }
}

/// The small model on a backend.
fn load(backend: CudaBackend) -> Result<ModelRuntime<CudaBackend>, PagedError> {
    let checkpoint = Checkpoint::open(model::file(SMALL)).expect("the model opens");
    let identity = PagedIdentity { backend: "here".to_owned(), ..PagedIdentity::default() };
    ModelRuntime::new(backend, checkpoint.config(), &checkpoint, &model::options(KvType::F32, 64), identity)
}

/// What it says of its kernels, and picks.
fn said(backend: CudaBackend) -> (String, Vec<u32>) {
    let mut runtime = load(backend).expect("the model loads");
    let said = runtime.describe().backend.strip_prefix("here, ").expect("a remark").to_owned();
    (said, model::greedy(&mut runtime, &[1, 2, 3, 4], 3))
}

/// The kernels of text alone.
fn of_text() -> (String, Vec<u32>) {
    // A fatbin that is none stands in for the build's.
    let (said, tokens) = said(with(texts().into_iter().map(|(name, _)| (name, vec![0])).collect()));
    assert!(said.starts_with("kernels as PTX ("), "{said}");
    (said, tokens)
}

#[test]
fn cuda_kernels_are_what_the_build_has() {
    let Some(device) = test_device() else { return };
    let is_asked = std::env::var("ICTUS_NVCC").as_deref() == Ok("1");
    let (said, tokens) = said(backend());
    println!("{said}");
    match is_asked {
        true => assert_eq!(said, "kernels as machine code"),
        false => assert_eq!(said, "kernels as PTX"),
    }
    if matches!(device, cuda_device::TestDevice::Simulated(_)) {
        assert_eq!(tokens, of_text().1);
    }
    let options = ModelOptions { device: Device::Cuda, threads: 1, context_tokens: 64, ..ModelOptions::default() };
    let engine = Model::open(model::file(SMALL), &options).and_then(|model| model.engine()).expect("an engine");
    let capability = engine.capability_descriptor().expect("there is one");
    assert!(capability.contains(&format!(", {said}\"")), "a host sees it: {capability}");
}

#[test]
fn cuda_machine_code_is_taken_and_picks_the_same_tokens() {
    let Some(driver) = simulated() else { return };
    let expected = of_text().1;
    assert_eq!(said(with(fatbins(90))), ("kernels as machine code".to_owned(), expected.clone()));
    driver.set(Setting::Capability, 86);
    assert_eq!(said(with(fatbins(80))), ("kernels as machine code".to_owned(), expected));
}

#[test]
fn cuda_device_without_machine_code_is_given_text() {
    let Some(_driver) = simulated() else { return };
    let (said, tokens) = said(with(fatbins(80)));
    assert!(said.starts_with("kernels as PTX (") && said.contains(".fatbin: CUDA_ERROR_NO_BINARY_FOR_GPU"), "{said}");
    assert_eq!(tokens, of_text().1);
}

/// One file whose fatbin cannot be used is text; the others stay machine code.
#[test]
fn cuda_file_whose_machine_code_is_refused_is_text() {
    let Some(_driver) = simulated() else { return };
    let expected = of_text().1;
    let rows = texts().into_iter().find(|(name, _)| name == "rows").map(|(_, text)| fatbin::kernels_of(&text));
    let rows = rows.expect("kernels/ptx/rows.ptx");
    let whole = fatbin::fatbin(&[90], &rows);
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut fatbin = whole.clone();
        change(&mut fatbin);
        fatbin
    };
    let mut other = rows.clone();
    other[0].1.push(8);
    for (fatbin, reason) in [
        (changed(&|fatbin| fatbin.truncate(100)), "rows.fatbin is no whole fatbin"),
        (changed(&|fatbin| fatbin.push(0)), "rows.fatbin is no whole fatbin"),
        (changed(&|fatbin| fatbin[0] = 0), "rows.fatbin is no whole fatbin"),
        (changed(&|fatbin| fatbin[4] = 2), "rows.fatbin: CUDA_ERROR_INVALID_IMAGE"),
        (changed(&|fatbin| fatbin[16 + 64] = 0), "rows.fatbin: CUDA_ERROR_INVALID_IMAGE"),
        (fatbin::fatbin(&[90], &rows[1..]), "rows.fatbin: CUDA_ERROR_NOT_FOUND"),
        (fatbin::fatbin(&[90], &other), "rows.fatbin: CUDA_ERROR_INVALID_PTX"),
    ] {
        let mut fatbins = fatbins(90);
        fatbins.insert("rows".to_owned(), fatbin);
        let (said, tokens) = said(with(fatbins));
        assert!(said.starts_with("kernels as machine code, 1 of ") && said.contains(reason), "{said}");
        assert_eq!(tokens, expected, "{reason}");
    }
}

/// A driver that cannot take the image it is given gets the text; any other error is one.
#[test]
fn cuda_errors_that_are_not_about_the_image_stay_errors() {
    let Some(driver) = simulated() else { return };
    let expected = of_text().1;
    for code in [200, 209, 218, 221, 222, 223, 300, 500, 801] {
        driver.inject(Point::Module, 1, code);
        let (said, tokens) = said(with(fatbins(90)));
        assert!(said.starts_with("kernels as machine code, 1 of "), "{code}: {said}");
        assert_eq!(tokens, expected, "{code}");
    }
    for code in [1, 700, 719, 999] {
        driver.inject(Point::Module, 1, code);
        let refused = load(with(fatbins(90))).map(|_| ()).expect_err("an error").to_string();
        assert!(refused.contains("the device failed: loading "), "{code}: {refused}");
    }
    driver.inject(Point::Module, 1, 2);
    let refused = load(with(fatbins(90))).map(|_| ()).expect_err("no memory").to_string();
    assert!(refused.contains("out of memory"), "{refused}");
    driver.inject(Point::Module, 0, 0);
    assert_eq!(driver.statistics().live_contexts, 0);
}
