//! The fake CUDA driver (kernels/sim), through cudarc. The tests of the CUDA backend rest on what it answers, so each kind of mistake that it is there to
//! show is made here, and is shown.
//!
//! Needs a C++ compiler, else every test says `skipped`.

#![cfg(feature = "cuda")]

#[path = "common/fake_driver.rs"]
mod fake_driver;
#[path = "common/fatbin.rs"]
mod fatbin;
#[path = "cuda_driver/faults.rs"]
mod faults;
#[path = "cuda_driver/graphs.rs"]
mod graphs;
#[path = "cuda_driver/memory.rs"]
mod memory;
#[path = "cuda_driver/modules.rs"]
mod modules;
#[path = "cuda_driver/peers.rs"]
mod peers;
#[path = "cuda_driver/streams.rs"]
mod streams;

use std::sync::Arc;

use fake_driver::{FakeDriver, Setting};

use cudarc::driver::result::DriverError;
use cudarc::driver::sys::cudaError_enum as Code;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, CudaView, CudaViewMut, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;

/// The driver as it is where nothing is set: what is tested here are its orders, whatever `ICTUS_FAKE_CUDA_*` says for a whole run.
fn calm_driver() -> Option<FakeDriver> {
    let driver = fake_driver::fake_driver()?;
    calm(&driver);
    Some(driver)
}

/// Resets the driver to that.
fn calm(driver: &FakeDriver) {
    driver.reset();
    driver.set(Setting::Order, 0);
    driver.set(Setting::Strict, 0);
}

/// A device whose slices carry no events (with them a driver's own ordering would hide what is shown here), and a kernel.
struct Device {
    add: CudaFunction,
    stream: Arc<CudaStream>,
    context: Arc<CudaContext>,
}

impl Device {
    fn new(ordinal: usize) -> Self {
        let context = CudaContext::new(ordinal).expect("a device");
        // SAFETY: the tests order what they do between streams themselves.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().expect("a stream");
        let module = context.load_module(Ptx::from_src(include_str!("../kernels/ptx/rows.ptx"))).expect("a module");
        Self { add: module.load_function("ictus_add").expect("a kernel"), stream, context }
    }

    /// Asks for x = x + y on a stream.
    fn add_on(
        &self,
        stream: &CudaStream,
        x: &mut CudaViewMut<'_, f32>,
        y: &CudaView<'_, f32>,
    ) -> Result<(), DriverError> {
        let count = y.len() as u64;
        let mut launch = stream.launch_builder(&self.add);
        // SAFETY: the kernel takes these arguments.
        unsafe { launch.arg(x).arg(y).arg(&count).launch(blocks_of(256)) }.map(|_| ())
    }

    fn add(&self, x: &mut CudaSlice<f32>, y: &CudaSlice<f32>) -> Result<(), DriverError> {
        self.add_on(&self.stream, &mut x.as_view_mut(), &y.as_view())
    }

    /// Memory with these numbers, which is there when this returns.
    fn numbers(&self, numbers: &[f32]) -> CudaSlice<f32> {
        let memory = self.stream.clone_htod(numbers).expect("memory");
        self.stream.synchronize().expect("the stream ends");
        memory
    }

    /// Memory that is there, and that nobody wrote.
    fn room(&self, len: usize) -> CudaSlice<f32> {
        // SAFETY: nobody relies on what it has.
        let memory = unsafe { self.stream.alloc(len) }.expect("memory");
        self.stream.synchronize().expect("the stream ends");
        memory
    }

    fn read(&self, memory: &CudaSlice<f32>) -> Vec<f32> {
        let numbers = self.stream.clone_dtoh(memory).expect("a copy");
        self.stream.synchronize().expect("the stream ends");
        numbers
    }
}

/// A grid of one block.
fn blocks_of(threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (1, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

fn code<T>(result: Result<T, DriverError>) -> Code {
    result.err().map_or(Code::CUDA_SUCCESS, |error| error.0)
}
