//! Memory, copies and launches, as the driver is asked for them: the one place where the driver's library is called, but for
//! the look whether it is there ([`super::probe`]).
//!
//! # Invariants
//! - The caller's context is current again behind every call ([`super::current`]).
//! - All work of a [`Driver`] goes through one stream of its own, in order. Event tracking of the binding is off (P-1): what orders
//!   streams is written here, namely that memory is freed only when the device has nothing to do, and [`Driver::join`].
//! - A [`Memory`] is freed exactly once, when its owner goes, or behind the section in which that happens; [`At`] is a place in one and holds nothing.
//!
//! # Limits
//! Memory is had for good, not per step: getting and freeing it waits for the device.

use core::ffi::c_void;
use core::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaEvent, CudaFunction, CudaGraph, CudaStream, DriverError, result, sys};
use cudarc::nvrtc::Ptx;

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

/// Held while a stream is captured, and while a whole context is waited for. While any stream of a context is captured a driver refuses such a wait, on
/// whichever thread and in whichever mode, and the capture is void. Engines on one device share its context.
static CAPTURE: Mutex<()> = Mutex::new(());

fn no_capture() -> MutexGuard<'static, ()> {
    CAPTURE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A context, held.
type Context = Own<Arc<CudaContext>>;
/// A place in the order of a stream's work.
pub(super) type Event = Own<CudaEvent>;
/// A kernel of a module, held with it.
pub(super) type Function = Own<CudaFunction>;

/// Types of which kernels read and write arrays.
pub(super) trait Element: bytemuck::Pod {}
impl Element for u8 {}
impl Element for u32 {}
impl Element for f32 {}

/// A place in device memory, and how many elements lie there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct At<T> {
    address: u64,
    len: usize,
    elements: PhantomData<fn() -> T>,
}

impl<T> Clone for At<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for At<T> {}

impl<T> At<T> {
    /// A null pointer, which some kernels take for "none".
    pub(super) fn null() -> Self {
        Self { address: 0, len: 0, elements: PhantomData }
    }

    /// From element `index` on; no element where that is past the end.
    pub(super) fn from(self, index: usize) -> Self {
        let index = index.min(self.len);
        Self { address: self.address + (index * size_of::<T>()) as u64, len: self.len - index, ..self }
    }

    /// The first `len` elements, or all where there are fewer.
    pub(super) fn first(self, len: usize) -> Self {
        Self { len: self.len.min(len), ..self }
    }

    /// The same bytes as elements of another type.
    pub(super) fn cast<U>(self) -> At<U> {
        At { address: self.address, len: self.len * size_of::<T>() / size_of::<U>(), elements: PhantomData }
    }

    pub(super) fn address(self) -> u64 {
        self.address
    }

    pub(super) fn len(self) -> usize {
        self.len
    }

    pub(super) fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// How often [`is_idle`] asks, a millisecond apart: for far longer than a capture takes.
const TRIES: usize = 1000;

/// Waits until no stream of the context has anything to do, or ever will, as the device has failed. False where that stays unknown: while somebody
/// captures on the device who does not know of [`CAPTURE`], the driver refuses to wait for the whole context.
fn is_idle(context: &CudaContext) -> bool {
    (0..TRIES).any(|_| {
        let no_other = no_capture();
        let waited = Entered::enter(context).and_then(|_entered| result::ctx::synchronize());
        drop(no_other);
        let captures = waited.is_err_and(|error| {
            let (refused, spoiled) = (
                sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            );
            error.0 == refused || error.0 == spoiled
        });
        if captures {
            std::thread::sleep(Duration::from_millis(1));
        }
        !captures
    })
}

/// An allocation of the device.
#[derive(Debug)]
struct Place {
    address: u64,
    context: Context,
}

impl Drop for Place {
    fn drop(&mut self) {
        // Weights are shared, so others' streams may use them. What is not known to be unused stays until the context goes.
        if !is_idle(&self.context) {
            return;
        }
        let _entered = Entered::enter(&self.context);
        // SAFETY: the address is that of an allocation of this context, which nobody else frees; no stream uses it, by the check, or none will
        // ever run again.
        let freed = unsafe { result::free_sync(self.address) };
        // A device that has failed refuses; its memory goes with its context.
        let _ = freed;
    }
}

/// Memory that went while a section may name it: it is freed when the section is over.
#[derive(Debug, Default)]
struct Late {
    is_held: AtomicBool,
    places: Mutex<Vec<Place>>,
}

impl Late {
    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory of the device.
#[derive(Debug)]
pub(super) struct Memory {
    /// None for no bytes.
    place: Option<Place>,
    bytes: usize,
    late: Arc<Late>,
}

impl Memory {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// All of it, as elements.
    pub(super) fn at<T: Element>(&self) -> At<T> {
        let address = self.place.as_ref().map_or(0, |place| place.address);
        At { address, len: self.bytes / size_of::<T>(), elements: PhantomData }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let place = self.place.take();
        if self.late.is_held.load(Ordering::Acquire) {
            self.late.places().extend(place);
        }
    }
}

/// Memory of the host that the device copies from and to by itself.
#[derive(Debug)]
pub(super) struct Pinned {
    start: *mut u8,
    bytes: usize,
    context: Context,
}

// SAFETY: it owns its memory, which is no thread's own.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// Some of its bytes; none where they are not all there.
    ///
    /// # Safety
    /// - No copy from or to these bytes is under way.
    pub(super) unsafe fn part(&mut self, from: usize, bytes: usize) -> &mut [u8] {
        if from.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return &mut [];
        }
        // SAFETY: inside of the memory, by the check.
        let start = unsafe { self.start.add(from) };
        // SAFETY: the memory is this long, was set when it was made, and is borrowed from `self` alone; the device leaves these bytes alone,
        // as the caller promises.
        unsafe { core::slice::from_raw_parts_mut(start, bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if !is_idle(&self.context) {
            return;
        }
        let _entered = Entered::enter(&self.context);
        // SAFETY: it came from the driver and nobody else frees it; no copy is under way, by the check.
        let freed = unsafe { result::free_host(self.start.cast()) };
        let _ = freed;
    }
}

/// Work of a stream that was captured, to be launched as often as one likes.
pub(super) struct Graph {
    /// None once it goes.
    graph: Option<Own<CudaGraph>>,
    context: Context,
    stream: Own<Arc<CudaStream>>,
}

impl Drop for Graph {
    /// Behind what was launched of it, and with its context current, which the binding does not see to.
    fn drop(&mut self) {
        let _entered = Entered::enter(&self.context);
        // A device that has failed runs nothing any more.
        let _ = self.stream.synchronize();
        self.graph = None;
    }
}

// SAFETY: its handles are no thread's own, and it is not `Sync`: one thread at a time uses it.
unsafe impl Send for Graph {}

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
        // SAFETY: with it off, ordering between streams is the caller's. There is one stream; weights are complete before anybody else gets
        // them (`Driver::fill` waits), and memory is freed when all streams are done.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(|error| refused(error, 0, "making a stream"))?;
        Ok(Self { context: Own::new(context), stream: Own::new(stream), late: Arc::default() })
    }

    fn enter(&self) -> Result<Entered, BackendError> {
        Entered::enter(&self.context).map_err(|error| failed("taking up the device", error))
    }

    /// The kernels of these names out of a text, which the driver compiles.
    pub(super) fn compile<'n>(
        &self,
        file: &str,
        text: &'static str,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<Vec<Function>, BackendError> {
        let _entered = self.enter()?;
        let refused = |error| refused(error, text.len(), &format!("compiling {file}.ptx"));
        let module = Own::new(self.context.load_module(Ptx::from_src(text)).map_err(refused)?);
        names.map(|name| module.load_function(name).map(Own::new).map_err(refused)).collect()
    }

    /// No memory.
    pub(super) fn nothing(&self) -> Memory {
        Memory { place: None, bytes: 0, late: self.late.clone() }
    }

    /// From now on memory that goes is not freed: it may be named by what was noted and not launched yet.
    pub(super) fn hold_frees(&self) {
        self.late.is_held.store(true, Ordering::Release);
    }

    /// Nothing is named any more that is not in the stream: frees what went meanwhile.
    pub(super) fn release_frees(&self) {
        self.late.is_held.store(false, Ordering::Release);
        let places = core::mem::take(&mut *self.late.places());
        drop(places);
    }

    /// Memory that nobody has written.
    pub(super) fn memory(&self, bytes: usize) -> Result<Memory, BackendError> {
        let _entered = self.enter()?;
        if bytes == 0 {
            return Ok(self.nothing());
        }
        // SAFETY: the context is current; whoever reads the memory writes it before, as each operation says.
        let address = unsafe { result::malloc_sync(bytes) }.map_err(|error| refused(error, bytes, "getting memory"))?;
        let place = Some(Place { address, context: self.context.clone() });
        Ok(Memory { place, bytes, late: self.late.clone() })
    }

    /// Memory of the host for copies; zeroed.
    pub(super) fn pinned(&self, bytes: usize) -> Result<Pinned, BackendError> {
        let _entered = self.enter()?;
        // No flags: write-combined memory is slow to read (P-3).
        // SAFETY: the context is current.
        let start = unsafe { result::malloc_host(bytes.max(1), 0) };
        let start = start.map_err(|error| refused(error, bytes, "getting host memory"))?.cast::<u8>();
        // SAFETY: the memory is this long and nobody else's.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Pinned { start, bytes, context: self.context.clone() })
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
    pub(super) unsafe fn push(&self, other: &Self, to: At<f32>, from: At<f32>) -> Result<(), BackendError> {
        if from.is_empty() {
            return Ok(());
        }
        check(from.len <= to.len, "copying between devices")?;
        let _entered = self.enter()?;
        let (target, source) = (other.context.cu_ctx(), self.context.cu_ctx());
        let (bytes, stream) = (from.len * size_of::<f32>(), self.stream.cu_stream());
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

    /// Captures what `work` gives to the stream instead of running it. `work` gets and frees no memory, waits for nothing and copies none of
    /// the host's (P-10).
    ///
    /// # Errors
    /// Those of `work`, or what the driver says of the capture: then there is no graph, nothing ran, and the stream is as before.
    pub(super) fn capture(&self, work: impl FnOnce() -> Result<(), BackendError>) -> Result<Graph, BackendError> {
        // Other threads go on with other streams of the device meanwhile, but for waits for all of them.
        let _no_other = no_capture();
        let _entered = self.enter()?;
        let begun = self.stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        begun.map_err(|error| failed("beginning a capture", error))?;
        let worked = work();
        // However it went: a capture that was begun is ended.
        let ended = self.stream.end_capture(sys::CUgraphInstantiate_flags(0));
        worked?;
        let nothing = || BackendError::Device { reason: "a capture gave no graph".to_owned() };
        ended
            .map_err(|error| failed("ending a capture", error))?
            .map(|graph| Graph {
                graph: Some(Own::new(graph)),
                context: self.context.clone(),
                stream: self.stream.clone(),
            })
            .ok_or_else(nothing)
    }

    /// Launches a graph, in stream order. What its work reads and writes is live, as for the launches that were captured.
    pub(super) fn replay(&self, graph: &Graph) -> Result<(), BackendError> {
        let _entered = self.enter()?;
        let Some(graph) = &graph.graph else { return Ok(()) };
        graph.launch().map_err(|error| failed("launching a graph", error))
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
    /// Modules and graphs are let go behind it (`Launcher`, `CudaBackend`): by then nothing runs of them.
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
