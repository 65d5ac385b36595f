//! Work that is captured once and launched as often as one likes.
//!
//! # Invariants
//! While a stream is captured here nobody of this process waits for a whole context, which a driver would refuse, and the capture would be void.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaGraph, CudaStream, sys};

use super::{Context, Driver, Entered, Own, failed};
use crate::backend::BackendError;

/// Held while a stream is captured, and while a whole context is waited for. While any stream of a context is captured a driver refuses such a wait, on
/// whichever thread and in whichever mode, and the capture is void. Engines on one device share its context.
static CAPTURE: Mutex<()> = Mutex::new(());

pub(super) fn no_capture() -> MutexGuard<'static, ()> {
    CAPTURE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Work of a stream that was captured, to be launched as often as one likes.
pub(in super::super) struct Graph {
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

impl Driver {
    /// Captures what `work` gives to the stream instead of running it. `work` gets and frees no memory, waits for nothing and copies none of
    /// the host's (P-10).
    ///
    /// # Errors
    /// Those of `work`, or what the driver says of the capture: then there is no graph, nothing ran, and the stream is as before.
    pub(in super::super) fn capture(
        &self,
        work: impl FnOnce() -> Result<(), BackendError>,
    ) -> Result<Graph, BackendError> {
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
    pub(in super::super) fn replay(&self, graph: &Graph) -> Result<(), BackendError> {
        let _entered = self.enter()?;
        let Some(graph) = &graph.graph else { return Ok(()) };
        graph.launch().map_err(|error| failed("launching a graph", error))
    }
}
