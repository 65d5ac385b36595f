//! Memory, copies and launches, as the driver is asked for them: the one place where the driver's library is called, but for
//! the look whether it is there ([`super::probe`]).
//!
//! ```text
//! driver    a device and its stream: events, copies, launches;  memory  of the device and the host;  modules  files of kernels;  capture  work
//!           that is launched as one
//! ```
//!
//! # Invariants
//! - The caller's context is current again behind every call ([`super::current`]).
//! - All work of a [`Driver`] goes through one stream of its own, in order. Event tracking of the binding is off (P-1): what orders
//!   streams is written here, namely that memory is freed only when the device has nothing to do, and [`Driver::join`].

mod capture;
mod memory;
mod modules;

use core::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaFunction, CudaStream, DriverError, result, sys};

pub(super) use self::capture::Graph;
use self::memory::Late;
pub(super) use self::memory::{At, Memory, Pinned};
pub(super) use self::modules::Taken;
use super::current::{Entered, Own};
use crate::backend::BackendError;

/// What the driver says of an error.
pub(super) fn text_of(error: DriverError) -> String {
    let name = error.error_name().map(|name| name.to_string_lossy().into_owned());
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
    match (name, text) {
        (Ok(name), Ok(text)) => format!("{name}: {text}"),
        _ => format!("driver error {}", error.0 as u32),
    }
}

/// An error of the driver while it did `what`.
pub(super) fn failed(what: &str, error: DriverError) -> BackendError {
    BackendError::Device { reason: format!("{what}: {}", text_of(error)) }
}

/// A context, held.
type Context = Own<Arc<CudaContext>>;
/// A place in the order of a stream's work.
pub(super) type Event = Own<CudaEvent>;
/// A kernel of a module, held with it.
pub(super) type Function = Own<CudaFunction>;

/// A device and the stream that this backend's work goes through.
#[derive(Debug)]
pub(super) struct Driver {
    context: Context,
    stream: Own<Arc<CudaStream>>,
    late: Arc<Late>,
}

impl Driver {
    /// Device number `index`, which must be there.
    pub(super) fn open(index: u32) -> Result<Self, BackendError> {
        let _entered = Entered::nothing();
        let context = CudaContext::new(index as usize).map_err(|error| failed("opening the device", error))?;
        // SAFETY: with it off, ordering between streams is the caller's. Those of several devices are ordered by the notes and joins of their program
        // (`Players`); weights are complete before anybody else gets them (`Driver::fill` waits), and memory is freed when all streams of its context are
        // done (`is_idle`).
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(|error| refused(error, 0, "making a stream"))?;
        Ok(Self { context: Own::new(context), stream: Own::new(stream), late: Arc::default() })
    }

    fn enter(&self) -> Result<Entered, BackendError> {
        Entered::enter(&self.context).map_err(|error| failed("taking up the device", error))
    }

    pub(super) fn event(&self) -> Result<Event, BackendError> {
        let _entered = self.enter()?;
        self.context.new_event(None).map(Own::new).map_err(|error| refused(error, 0, "making an event"))
    }

    /// Notes how far the stream's work goes.
    pub(super) fn note(&self, event: &Event) -> Result<(), BackendError> {
        let _entered = self.enter()?;
        event.record(&self.stream).map_err(|error| failed("noting an event", error))
    }

    /// Waits until the work before an event is done.
    pub(super) fn wait_for(&self, event: &Event) -> Result<(), BackendError> {
        let _entered = self.enter()?;
        event.synchronize().map_err(|error| failed("waiting for the device", error))
    }

    /// Whether the work before an event is done.
    pub(super) fn has_passed(&self, event: &Event) -> Result<bool, BackendError> {
        let _entered = self.enter()?;
        event.try_is_complete().map_err(|error| failed("asking for the device", error))
    }

    /// Has the work that comes next wait for the work before an event, of whichever device. The host does not wait.
    pub(super) fn join(&self, event: &Event) -> Result<(), BackendError> {
        let _entered = self.enter()?;
        self.stream.wait(event).map_err(|error| failed("joining a stream", error))
    }

    /// Lets this device reach the memory of another one, where the machine can do that. Where it cannot, the driver takes copies between them
    /// through the host.
    pub(super) fn reach(&self, other: &Self) -> Result<(), BackendError> {
        let refused = |error| failed("reaching another device", error);
        let mut can = 0;
        let [this, that] = [self, other].map(|driver| driver.context.cu_device());
        // SAFETY: both devices are open, and the place is ours.
        unsafe { sys::cuDeviceCanAccessPeer(&mut can, this, that) }.result().map_err(refused)?;
        if can == 0 {
            return Ok(());
        }
        let _entered = self.enter()?;
        // SAFETY: this context is current and the other one lives.
        match unsafe { sys::cuCtxEnablePeerAccess(other.context.cu_ctx(), 0) }.result() {
            Err(error) if goes_without_reaching(error) => Ok(()),
            reached => reached.map_err(refused),
        }
    }

    /// Copies from this device to another one, in the order of this one's stream. Who reads there joins an event behind it.
    ///
    /// # Safety
    /// - The target is live memory of `other`, which nothing that `other` has to do reads or writes before it joins such an event.
    pub(super) unsafe fn push(&self, other: &Self, to: At<u8>, from: At<u8>) -> Result<(), BackendError> {
        if from.is_empty() {
            return Ok(());
        }
        check(from.len <= to.len, "copying between devices")?;
        let _entered = self.enter()?;
        let (target, source) = (other.context.cu_ctx(), self.context.cu_ctx());
        let (bytes, stream) = (from.len, self.stream.cu_stream());
        // SAFETY: both places have so many bytes, by the check; the rest as the caller promises.
        let copied = unsafe { result::memcpy_peer_async(target, to.address, source, from.address, bytes, stream) };
        copied.map_err(|error| failed("copying between devices", error))
    }

    /// Waits until all work is done.
    pub(super) fn finish(&self) -> Result<(), BackendError> {
        let _entered = self.enter()?;
        self.stream.synchronize().map_err(|error| failed("waiting for the device", error))
    }

    /// Zeroes memory.
    pub(super) fn zero(&self, to: &Memory) -> Result<(), BackendError> {
        if to.bytes == 0 {
            return Ok(());
        }
        let _entered = self.enter()?;
        // SAFETY: the allocation has this many bytes.
        let zeroed = unsafe { result::memset_d8_async(to.at::<u8>().address, 0, to.bytes, self.stream.cu_stream()) };
        zeroed.map_err(|error| failed("zeroing memory", error))
    }

    /// Copies bytes of the host and waits until they are there.
    pub(super) fn fill(&self, to: &Memory, bytes: &[u8]) -> Result<(), BackendError> {
        if bytes.is_empty() {
            return Ok(());
        }
        check(bytes.len() <= to.bytes, "filling memory")?;
        let _entered = self.enter()?;
        // SAFETY: the allocation has room, by the check; the bytes live until the copy is done, by `finish` below.
        let copied = unsafe { result::memcpy_htod_async(to.at::<u8>().address, bytes, self.stream.cu_stream()) };
        let finished = self.finish();
        copied.map_err(|error| failed("copying to the device", error))?;
        finished
    }

    /// Copies `bytes` bytes from `from` on to the device, in stream order.
    ///
    /// # Safety
    /// - These bytes stay as they are until the copy is done.
    pub(super) unsafe fn upload(
        &self,
        to: At<u8>,
        source: &Pinned,
        from: usize,
        bytes: usize,
    ) -> Result<(), BackendError> {
        if bytes == 0 {
            return Ok(());
        }
        check(
            bytes <= to.len && from.checked_add(bytes).is_some_and(|end| end <= source.bytes),
            "copying to the device",
        )?;
        let _entered = self.enter()?;
        // SAFETY: inside of the pinned memory, by the check.
        let start = unsafe { source.start.add(from) };
        // SAFETY: these bytes are part of the pinned memory, by the check, and nobody writes them meanwhile, as the caller promises.
        let part = unsafe { core::slice::from_raw_parts(start, bytes) };
        // SAFETY: the place has room, by the check; the source stays, as the caller promises.
        let copied = unsafe { result::memcpy_htod_async(to.address, part, self.stream.cu_stream()) };
        copied.map_err(|error| failed("copying to the device", error))
    }

    /// Copies from the device to the front of pinned memory and waits; answers what came.
    pub(super) fn download<'p>(
        &self,
        to: &'p mut Pinned,
        from: At<u8>,
        bytes: usize,
    ) -> Result<&'p [u8], BackendError> {
        if bytes == 0 {
            return Ok(&[]);
        }
        check(bytes <= to.bytes && bytes <= from.len, "copying from the device")?;
        let _entered = self.enter()?;
        // SAFETY: the memory is this long, by the check, and borrowed for this copy alone: callers wait for each of theirs, as this does.
        let part = unsafe { core::slice::from_raw_parts_mut(to.start, bytes) };
        // SAFETY: the source has so many bytes, by the check; the target stays until the copy is done, by `finish` below.
        let copied = unsafe { result::memcpy_dtoh_async(part, from.address, self.stream.cu_stream()) };
        let finished = self.finish();
        copied.map_err(|error| failed("copying from the device", error))?;
        finished?;
        // SAFETY: as above, and the copy is done.
        Ok(unsafe { core::slice::from_raw_parts(to.start, bytes) })
    }

    /// Copies from the device to the front of pinned memory, in stream order, and does not wait.
    ///
    /// # Safety
    /// - Nobody reads or writes these bytes of `to` until an event behind the copy was waited for.
    pub(super) unsafe fn send(&self, to: &mut Pinned, from: At<u8>, bytes: usize) -> Result<(), BackendError> {
        if bytes == 0 {
            return Ok(());
        }
        check(bytes <= to.bytes && bytes <= from.len, "copying from the device")?;
        let _entered = self.enter()?;
        // SAFETY: the memory is this long, by the check, and nobody else's until the copy is done, as the caller promises.
        let part = unsafe { core::slice::from_raw_parts_mut(to.start, bytes) };
        // SAFETY: the source has so many bytes, by the check; the target is freed only when the device is idle, and left alone until then, as the
        // caller promises.
        let copied = unsafe { result::memcpy_dtoh_async(part, from.address, self.stream.cu_stream()) };
        copied.map_err(|error| failed("copying from the device", error))
    }

    /// Copies within the device, in stream order. The places do not overlap.
    pub(super) fn copy(&self, to: At<u8>, from: At<u8>, bytes: usize) -> Result<(), BackendError> {
        if bytes == 0 {
            return Ok(());
        }
        check(bytes <= to.len && bytes <= from.len, "copying on the device")?;
        let _entered = self.enter()?;
        // SAFETY: both places have so many bytes, by the check.
        let copied = unsafe { result::memcpy_dtod_async(to.address, from.address, bytes, self.stream.cu_stream()) };
        copied.map_err(|error| failed("copying on the device", error))
    }

    /// Launches a kernel, in stream order.
    ///
    /// # Safety
    /// - `parameters` point to values of the number, order and sizes of the kernel's parameters.
    /// - What the kernel reads and writes with them and this grid lies in live memory, and nobody else writes it meanwhile.
    pub(super) unsafe fn launch(
        &self,
        function: &Function,
        grid: [u32; 3],
        threads: u32,
        parameters: &mut [*mut c_void],
    ) -> Result<(), DriverError> {
        let _entered = Entered::enter(&self.context)?;
        let (function, stream): (sys::CUfunction, sys::CUstream) = (function.cu_function(), self.stream.cu_stream());
        // SAFETY: the function belongs to a module of this context, which lives as long as `function`; the rest as the caller promises.
        unsafe { result::launch_kernel(function, grid.into(), (threads, 1, 1), 0, stream, parameters) }
    }
}

impl Drop for Driver {
    /// Modules are let go behind it (`Launcher`), by when nothing runs of them. Graphs went before (`Players`), each when its launches were done.
    fn drop(&mut self) {
        // A device that has failed runs nothing any more.
        let _ = self.finish();
        self.release_frees();
    }
}

fn check(fits: bool, what: &str) -> Result<(), BackendError> {
    if fits { Ok(()) } else { Err(BackendError::Device { reason: format!("{what}: past the end") }) }
}

/// Whether copies between two devices work although one was not made to reach the other. It was before: contexts are shared with other engines, and
/// it stays so while the context lives. Or a device reaches no more others (8, where no switch joins them), or not in this configuration.
fn goes_without_reaching(error: DriverError) -> bool {
    matches!(
        error.0,
        sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
            | sys::CUresult::CUDA_ERROR_TOO_MANY_PEERS
            | sys::CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
    )
}

/// An error of getting memory: that there is none is nobody's fault.
fn refused(error: DriverError, bytes: usize, what: &str) -> BackendError {
    match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => BackendError::OutOfMemory { bytes: bytes as u64 },
        _ => failed(what, error),
    }
}
