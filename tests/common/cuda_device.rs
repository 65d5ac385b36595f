//! The device that tests of the CUDA backend run on: simulated ones behind a driver of our own, or the machine's.
//!
//! `ICTUS_CUDA=sim` takes the simulated ones, `gpu` the machine's, which must be there; unset or `auto`, the machine's if it has one. The choice is
//! made once per process, as one library can be loaded under the driver's name.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ictus::backend::cuda::{self, CudaBackend};

#[path = "fake_driver.rs"]
mod fake_driver;
#[allow(unused_imports, reason = "not every test file that takes this module sets something")]
pub(crate) use fake_driver::{FakeDriver, Point, Setting};

/// A device, for one test at a time.
pub(crate) enum TestDevice {
    Simulated(FakeDriver),
    Machine(MutexGuard<'static, ()>),
}

/// The device; none, and a line that says so, where there is neither a driver nor a C++ compiler.
pub(crate) fn test_device() -> Option<TestDevice> {
    static IS_MACHINE: OnceLock<bool> = OnceLock::new();
    static MACHINE: Mutex<()> = Mutex::new(());
    let is_machine = *IS_MACHINE.get_or_init(|| match std::env::var("ICTUS_CUDA").as_deref() {
        Ok("sim") => false,
        Ok("gpu") => cuda::device(0).map(|_| true).expect("ICTUS_CUDA=gpu: the device"),
        Err(_) | Ok("" | "auto") => cuda::device(0).is_ok(),
        Ok(other) => panic!("ICTUS_CUDA is {other}, must be sim, gpu or auto"),
    });
    if is_machine {
        return Some(TestDevice::Machine(MACHINE.lock().unwrap_or_else(PoisonError::into_inner)));
    }
    fake_driver::fake_driver().map(TestDevice::Simulated)
}

/// The simulated devices, for tests that set them; none, and a line that says so, on a machine's device.
pub(crate) fn simulated() -> Option<FakeDriver> {
    match test_device()? {
        TestDevice::Simulated(driver) => Some(driver),
        TestDevice::Machine(_) => {
            println!("skipped: needs simulated devices: this runs on the machine's");
            None
        }
    }
}

/// A backend on the device.
pub(crate) fn backend() -> CudaBackend {
    CudaBackend::new(0).expect("the device was looked for")
}

/// Refuses what `make` asks the driver for at this point, one thing after another, for want of memory: it says so each time, and nothing is left.
/// Answers how many things there are.
pub(crate) fn refused_in_turn<T, E: std::fmt::Display>(
    driver: &FakeDriver,
    point: Point,
    make: impl Fn() -> Result<T, E>,
) -> u64 {
    /// What the driver says.
    const OUT_OF_MEMORY: i32 = 2;
    let mut nth = 1;
    loop {
        driver.inject(point, nth, OUT_OF_MEMORY);
        let made = make();
        driver.inject(point, 0, 0);
        let Err(error) = made else { break };
        assert!(error.to_string().contains("out of memory"), "{point:?} {nth}: {error}");
        let left = driver.statistics();
        assert_eq!((left.live_allocations, left.live_host_allocations), (0, 0), "{point:?} {nth}: {left:?}");
        assert_eq!((left.live_streams, left.live_contexts), (0, 0), "{point:?} {nth}: {left:?}");
        nth += 1;
    }
    println!("{point:?}: {} places", nth - 1);
    nth - 1
}
