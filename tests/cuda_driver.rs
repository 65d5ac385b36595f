//! The fake CUDA driver (kernels/sim), through cudarc: what it answers is what the backend's tests rest on, so each kind of mistake that it is there to
//! show is made here, and shown.
//!
//! Needs a C++ compiler, else every test says `skipped`.

#![cfg(feature = "cuda")]
#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/fake_driver.rs"]
mod fake_driver;

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use fake_driver::fake_driver;

/// A context whose slices carry no events, and a stream of its own.
fn device(ordinal: usize) -> (Arc<CudaContext>, Arc<CudaStream>) {
    let context = CudaContext::new(ordinal).expect("a device");
    // SAFETY: the tests order what they do between streams themselves.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().expect("a stream");
    (context, stream)
}

#[test]
fn cuda_memory_comes_back_as_it_went() {
    let Some(_driver) = fake_driver() else { return };
    let (_context, stream) = device(0);
    let there = stream.clone_htod(&[1_u32, 2, 3]).expect("memory");
    let back = stream.clone_dtoh(&there).expect("a copy");
    stream.synchronize().expect("the stream ends");
    assert_eq!(back, [1, 2, 3]);
}

#[test]
fn cuda_kernel_of_the_committed_ptx_adds() {
    let Some(driver) = fake_driver() else { return };
    let (context, stream) = device(0);
    let module = context.load_module(Ptx::from_src(include_str!("../kernels/ptx/rows.ptx"))).expect("a module");
    let add = module.load_function("ictus_add").expect("a kernel");
    let mut x = stream.clone_htod(&[1.0_f32, 2.0, 3.0]).expect("memory");
    let y = stream.clone_htod(&[10.0_f32, 20.0, 30.0]).expect("memory");
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernel takes these arguments.
    unsafe { stream.launch_builder(&add).arg(&mut x).arg(&y).arg(&3_u64).launch(config) }.expect("a launch");
    assert_eq!(driver.statistics().launches, 0, "nothing runs at a launch");
    let back = stream.clone_dtoh(&x).expect("a copy");
    assert_eq!(back, [11.0, 22.0, 33.0]);
    assert_eq!(driver.statistics().launches, 1);
}
