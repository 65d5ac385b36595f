//! A CUDA driver of simulated devices, in this process: whoever opens `libcuda.so` after [`fake_driver`] gets it. docs/kernels.md says what it can show.
//!
//! ```ignore
//! let Some(driver) = fake_driver() else { return };   // says `skipped` without a C++ compiler
//! driver.set(Setting::Devices, 2);
//! driver.inject(Point::Alloc, 3, 2);                  // the third allocation from now on answers CUDA_ERROR_OUT_OF_MEMORY
//! let context = CudaContext::new(0).expect("a device");
//! ```
//!
//! The driver is one per process and tests run at the same time, so [`FakeDriver`] is held by one test at a time, and each begins with it reset.
//! Make it before anything that uses CUDA, so that it is dropped last.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

#[path = "cuda_library.rs"]
mod library;
use library::{Library, with_line};

type Reset = unsafe extern "C" fn();
type Set = unsafe extern "C" fn(u32, u64) -> c_int;
type Inject = unsafe extern "C" fn(u32, u64, c_int) -> c_int;
type Count = unsafe extern "C" fn(*mut Statistics);
type ErrorText = unsafe extern "C" fn(*mut c_char, u64);
type KernelsRun = unsafe extern "C" fn(*mut c_char, u64) -> u64;

/// The functions of controls.cpp.
struct Functions {
    reset: Reset,
    set: Set,
    inject: Inject,
    count: Count,
    error_text: ErrorText,
    kernels_run: KernelsRun,
}

/// What can be set. The numbers are those of `Option` in kernels/sim/driver.h.
#[allow(dead_code, reason = "not every test file that takes this module uses all of it")]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Setting {
    /// In which order streams run: 0 lazily, 1 at once, 2 in any legal order, which [`Setting::Seed`] decides.
    Order = 0,
    Seed = 1,
    /// 1: a copy to pageable memory of the host is not done when the call returns. Such memory must then live until the stream was waited for.
    Strict = 2,
    /// Number of devices, 1 unless set; 0 lets `cuInit` fail.
    Devices = 3,
    /// Bytes of memory of each device, 1 GiB unless set.
    Memory = 4,
    /// Compute capability, 90 unless set.
    Capability = 5,
    /// 0: the device has no memory pools, and no asynchronous allocation.
    Pools = 6,
    Processors = 7,
    /// 0: devices cannot reach each other's memory.
    Peers = 8,
    /// Compute capability of the last device; 0, as it is unless set: that of all.
    LastCapability = 9,
}

/// Where an error can be injected. The numbers are those of `Point` in kernels/sim/driver.h.
#[allow(dead_code, reason = "not every test file that takes this module uses all of it")]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Point {
    Init = 0,
    Alloc = 1,
    HostAlloc = 2,
    Module = 3,
    /// The call that launches.
    Launch = 4,
    /// The running kernel: its context is lost with the error, which comes back from later calls.
    Run = 5,
    /// The call that asks for a copy or a memset.
    Copy = 6,
    Sync = 7,
    /// The calls that begin a capture, end it (it is over all the same), make an executable graph, and launch that.
    Capture = 8,
}

/// What happened since the last reset, and what there is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Statistics {
    /// Kernels that ran, in graphs too.
    pub(crate) launches: u64,
    /// Launches that were asked for, captured ones too.
    pub(crate) launch_calls: u64,
    pub(crate) graph_launches: u64,
    /// Copies and memsets that were asked for.
    pub(crate) copies: u64,
    pub(crate) synchronisations: u64,
    pub(crate) allocations: u64,
    /// Copies to the host of bytes that nobody had written.
    pub(crate) unwritten_reads: u64,
    /// Allocations that were live when their context ended.
    pub(crate) leaked: u64,
    /// Of the copies those that the host has an end of, and their bytes.
    pub(crate) copies_to_device: u64,
    pub(crate) copies_to_host: u64,
    pub(crate) bytes_to_device: u64,
    pub(crate) bytes_to_host: u64,
    pub(crate) live_allocations: u64,
    pub(crate) live_bytes: u64,
    pub(crate) live_host_allocations: u64,
    pub(crate) live_streams: u64,
    pub(crate) live_events: u64,
    pub(crate) live_modules: u64,
    /// Graphs, and executable ones beside.
    pub(crate) live_graphs: u64,
    pub(crate) live_contexts: u64,
}

/// The driver, for one test.
pub(crate) struct FakeDriver(MutexGuard<'static, Functions>);

/// The driver, reset; none, and a line that says so, where there is no C++ compiler.
pub(crate) fn fake_driver() -> Option<FakeDriver> {
    static LIBRARY: OnceLock<Option<Mutex<Functions>>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| Library::open().map(|library| Mutex::new(functions(&library))));
    let Some(library) = library else {
        println!("skipped: the CUDA backend on simulated devices: no C++ compiler (c++)");
        return None;
    };
    let driver = FakeDriver(library.lock().unwrap_or_else(PoisonError::into_inner));
    driver.reset();
    Some(driver)
}

impl FakeDriver {
    /// Ends all contexts and frees everything; settings, injections and counts begin anew. What programs still hold is answered with errors.
    pub(crate) fn reset(&self) {
        // SAFETY: it takes nothing.
        unsafe { (self.0.reset)() };
    }

    /// Sets a value; what describes the devices before the driver is initialised.
    pub(crate) fn set(&self, setting: Setting, value: u64) {
        // SAFETY: any values are allowed.
        let failed = unsafe { (self.0.set)(setting as u32, value) };
        assert_eq!(failed, 0, "{setting:?} can be {value}");
    }

    /// The `nth` call from now on (1 is the next one) at this point answers this error; `nth` 0 takes it back.
    pub(crate) fn inject(&self, point: Point, nth: u64, error: i32) {
        // SAFETY: any values are allowed.
        let failed = unsafe { (self.0.inject)(point as u32, nth, error) };
        assert_eq!(failed, 0, "there is {point:?}");
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let mut statistics = Statistics::default();
        // SAFETY: the structure is the one of kernels/sim/driver.h.
        unsafe { (self.0.count)(&mut statistics) };
        statistics
    }

    /// The names of the kernels that ran since the last reset, in their order.
    pub(crate) fn kernels_run(&self) -> Vec<String> {
        // SAFETY: a place of no bytes is not written.
        let bytes = unsafe { (self.0.kernels_run)(std::ptr::null_mut(), 0) };
        let mut text = vec![0_u8; bytes as usize];
        // SAFETY: the place is as long as it says.
        unsafe { (self.0.kernels_run)(text.as_mut_ptr().cast(), text.len() as u64) };
        let text = CStr::from_bytes_until_nul(&text).expect("the text ends").to_string_lossy();
        text.lines().map(str::to_owned).collect()
    }

    /// The newest text of an error, or of a copy of bytes that nobody wrote; that of a kernel with its source line. Empty when there was none.
    pub(crate) fn error_text(&self) -> String {
        let mut text = [0_u8; 1024];
        // SAFETY: the place is as long as it says.
        unsafe { (self.0.error_text)(text.as_mut_ptr().cast(), text.len() as u64) };
        with_line(&CStr::from_bytes_until_nul(&text).expect("the text ends").to_string_lossy())
    }
}

fn functions(library: &Library) -> Functions {
    /// The function of this name and type.
    macro_rules! function {
        ($name:literal, $type:ty) => {
            // SAFETY: controls.cpp declares it with these types.
            unsafe { std::mem::transmute::<*mut c_void, $type>(library.symbol($name)) }
        };
    }
    Functions {
        reset: function!(c"fake_reset", Reset),
        set: function!(c"fake_set", Set),
        inject: function!(c"fake_inject", Inject),
        count: function!(c"fake_statistics", Count),
        error_text: function!(c"fake_error_text", ErrorText),
        kernels_run: function!(c"fake_kernels_run", KernelsRun),
    }
}
