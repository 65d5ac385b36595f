//! A model with everything that belongs to it, and the way into it.
//!
//! Every function on a model goes through [`status`] or [`value`] (by sequence: [`sequence_status`]): look the handle up, take the
//! model's lock, run the body inside the panic boundary, note what failed. The body sees a safe [`Inside`].
//!
//! # Invariants
//! - At most one thread is inside; it is named in `owner` while it is, so that a callback which calls in is refused.
//! - After a panic nothing but the release runs on the engine again.

use core::ffi::{CStr, c_void};
use core::time::Duration;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;

use super::guard::{Failure, Outcome, contain};
use super::handle::{self, OpaqueSequence};
use super::log::Log;
use super::ops::Exports;
use super::ring::OwnedControl;
use super::text::Texts;
use crate::capacity::Capacity;
use crate::engine::{Engine, SeqHandle};
use crate::open::Model;
use crate::record::Status;
use crate::ring::{SharedRing, SharedRings};

/// Handle of a model: an opened model file with an engine of its own, or an engine that a Rust host brought. NULL is none.
pub type ModelHandle = *mut c_void;

/// Handle of a sequence. NULL is none.
pub type SequenceHandle = *mut OpaqueSequence;

/// Handle of a state operation; never reused, 0 is none.
pub type OpId = u64;

/// 0 or one of `ICTUS_REJECT_*`, `ICTUS_ERR_*`, `ICTUS_NEEDS_REPLAN`, `ICTUS_EBUSY`.
pub type StatusCode = i32;

/// What a handle of a model stands for.
#[derive(Debug)]
pub(super) struct Bundle {
    owner: Mutex<Option<ThreadId>>,
    inside: Mutex<Option<Inside>>,
    last_error: Mutex<String>,
    control: Arc<OwnedControl>,
    /// What other threads see of the engine's capacity, and wait for; none where it is counted in another process.
    capacity: Option<Capacity>,
    /// Threads that wait to come in.
    queue: AtomicUsize,
}

/// The parts that one thread at a time works on.
pub(super) struct Inside {
    pub(super) number: usize,
    pub(super) engine: Box<dyn Engine + Send>,
    model: Option<Model>,
    pub(super) texts: Texts,
    pub(super) rings: SharedRings,
    /// The host's end of token-in, when the model keeps the rings.
    pub(super) prompts: Option<SharedRing>,
    pub(super) control: Arc<OwnedControl>,
    pub(super) exports: Exports,
    pub(super) log: Log,
    pub(super) descriptor: OnceLock<Option<CString>>,
    pub(super) sequences: Sequences,
    /// A driver ticks this model.
    pub(super) driven: bool,
    broken: bool,
}

impl core::fmt::Debug for Inside {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Inside").field("number", &self.number).field("broken", &self.broken).finish_non_exhaustive()
    }
}

/// The handles given out for sequences of one model.
#[derive(Debug, Default)]
pub(super) struct Sequences {
    by_handle: HashMap<SeqHandle, usize>,
    by_lane: HashMap<u64, SeqHandle>,
}

impl Sequences {
    /// The number of a sequence: the same one each time, until it is forgotten.
    pub(super) fn number(&mut self, model: usize, handle: SeqHandle) -> usize {
        *self.by_handle.entry(handle).or_insert_with(|| handle::insert_sequence(model, handle))
    }

    /// As [`Sequences::number`], for the sequence of a lane.
    pub(super) fn number_of_lane(&mut self, model: usize, lane_tag: u64, handle: SeqHandle) -> usize {
        self.by_lane.insert(lane_tag, handle);
        self.number(model, handle)
    }

    /// Forgets a sequence that is gone.
    pub(super) fn forget(&mut self, handle: SeqHandle) {
        if let Some(number) = self.by_handle.remove(&handle) {
            handle::remove_sequence(number);
        }
    }

    /// Forgets the sequence of a lane that ended.
    pub(super) fn forget_lane(&mut self, lane_tag: u64) {
        if let Some(handle) = self.by_lane.remove(&lane_tag) {
            self.forget(handle);
        }
    }

    /// Whether a lane's sequence was given out at all.
    pub(super) fn knows_lanes(&self) -> bool {
        !self.by_lane.is_empty()
    }
}

/// Makes a handle around an engine, for C code to drive. `ictus_model_free` releases it.
///
/// What belongs to model files (tokenizer, chat template) answers `Unsupported` on it.
pub fn adopt_engine(engine: Box<dyn Engine + Send>) -> ModelHandle {
    insert(engine, None, Log::silent())
}

/// Makes a handle around an engine and the model that it runs.
pub(super) fn insert(engine: Box<dyn Engine + Send>, model: Option<Model>, log: Log) -> ModelHandle {
    let number = handle::insert_model(|number| Bundle::new(number, engine, model, log));
    core::ptr::without_provenance_mut(number)
}

/// As it crosses the boundary.
pub(super) fn sequence_handle(number: usize) -> SequenceHandle {
    core::ptr::without_provenance_mut(number)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No invariant spans two steps under any of these locks; a panic is answered by `broken`.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One thread's stay inside a bundle.
struct Stay<'b> {
    bundle: &'b Bundle,
    inside: MutexGuard<'b, Option<Inside>>,
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        *lock(&self.bundle.owner) = None;
    }
}

impl Bundle {
    fn new(number: usize, engine: Box<dyn Engine + Send>, model: Option<Model>, log: Log) -> Self {
        let control = Arc::new(OwnedControl::default());
        let capacity = engine.capacity().cloned();
        let inside = Inside {
            number,
            engine,
            model,
            texts: Texts::default(),
            rings: SharedRings::new(),
            prompts: None,
            control: Arc::clone(&control),
            exports: Exports::default(),
            log,
            descriptor: OnceLock::new(),
            sequences: Sequences::default(),
            driven: false,
            broken: false,
        };
        Self {
            owner: Mutex::new(None),
            inside: Mutex::new(Some(inside)),
            last_error: Mutex::new(String::new()),
            control,
            capacity,
            queue: AtomicUsize::new(0),
        }
    }

    /// Waits for the model to be free.
    fn enter(&self) -> Result<Stay<'_>, Status> {
        let me = std::thread::current().id();
        if *lock(&self.owner) == Some(me) {
            return Err(Status::Busy);
        }
        self.queue.fetch_add(1, Ordering::Relaxed);
        let inside = lock(&self.inside);
        self.queue.fetch_sub(1, Ordering::Relaxed);
        *lock(&self.owner) = Some(me);
        Ok(Stay { bundle: self, inside })
    }

    /// Gives threads that wait a moment to come in: a thread that leaves and enters at once would keep them out for ever.
    pub(super) fn let_others_in(&self) {
        const MOMENTS: u32 = 20;
        const MOMENT: Duration = Duration::from_micros(50);
        for _ in 0..MOMENTS {
            if self.queue.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::thread::sleep(MOMENT);
        }
    }

    /// Whether this thread is inside, as in a callback.
    pub(super) fn is_entered_here(&self) -> bool {
        *lock(&self.owner) == Some(std::thread::current().id())
    }

    /// Control words that the model keeps.
    pub(super) fn control(&self) -> &OwnedControl {
        &self.control
    }

    /// The coordinator of the engine, for threads that are not inside.
    pub(super) fn capacity(&self) -> Option<&Capacity> {
        self.capacity.as_ref()
    }

    /// The text of the last failure; empty before the first.
    pub(super) fn last_error(&self) -> String {
        lock(&self.last_error).clone()
    }

    pub(super) fn note(&self, call: &str, failure: &Failure, log: Option<&Log>) {
        let text = format!("{call}: {failure}");
        if let Some(log) = log {
            log.failure(failure.status, &text);
        }
        *lock(&self.last_error) = text;
    }

    /// Runs the body of a call.
    pub(super) fn run<T>(&self, call: &str, body: impl FnOnce(&mut Inside) -> Outcome<T>) -> Result<T, Status> {
        let mut stay = self.enter().inspect_err(|&status| self.note(call, &status.into(), None))?;
        // Released by another thread while this one waited.
        let Some(inside) = stay.inside.as_mut() else { return Err(Status::UnknownHandle) };
        let outcome = match inside.broken {
            true => Err(Failure::new(Status::Fatal, "the engine panicked before")),
            false => contain(|| body(inside)).unwrap_or_else(|message| {
                inside.broken = true;
                Err(Failure::new(Status::Fatal, format_args!("the engine panicked: {message}")))
            }),
        };
        outcome.map_err(|mut failure| {
            if failure.status == Status::Fatal && failure.detail.is_none() {
                failure.detail = inside.engine.fatal_reason();
            }
            self.note(call, &failure, Some(&inside.log));
            failure.status
        })
    }

    /// Drops the engine and everything around it; the bundle is an empty shell afterwards.
    fn release(&self) -> Result<(), Status> {
        let mut stay = self.enter()?;
        let inside = stay.inside.take();
        // A destructor that panics has nobody to tell.
        let _ = contain(move || drop(inside));
        Ok(())
    }
}

/// A call on a model that answers with a status.
pub(super) fn status(model: ModelHandle, call: &str, body: impl FnOnce(&mut Inside) -> Outcome<()>) -> StatusCode {
    code(handle::model(model.addr()).and_then(|bundle| bundle.run(call, body)))
}

/// A call on a model that answers with a value; none is a failure, which the last error explains.
pub(super) fn value<T>(model: ModelHandle, call: &str, body: impl FnOnce(&mut Inside) -> Outcome<T>) -> Option<T> {
    handle::model(model.addr()).and_then(|bundle| bundle.run(call, body)).ok()
}

/// A call on a sequence, which names its model.
pub(super) fn sequence_status(
    sequence: SequenceHandle,
    call: &str,
    body: impl FnOnce(&mut Inside, SeqHandle) -> Outcome<()>,
) -> StatusCode {
    let found = handle::sequence(sequence.addr());
    code(found.and_then(|(bundle, handle)| bundle.run(call, |inside| body(inside, handle))))
}

/// A call that any thread may make while another one is inside.
pub(super) fn beside(model: ModelHandle, body: impl FnOnce(&Bundle) -> Outcome<()>) -> StatusCode {
    code(handle::model(model.addr()).and_then(|bundle| {
        let outcome = contain(|| body(&bundle)).unwrap_or(Err(Status::Fatal.into()));
        outcome.map_err(|failure| failure.status)
    }))
}

/// A call that needs no model.
pub(super) fn without_model(body: impl FnOnce() -> Outcome<()>) -> StatusCode {
    let outcome = contain(body).unwrap_or(Err(Status::Fatal.into()));
    code(outcome.map_err(|failure| failure.status))
}

/// Releases a model.
pub(super) fn release(model: ModelHandle) -> StatusCode {
    let number = model.addr();
    // Not from inside one of its own calls: the engine is in use there.
    let free = handle::model(number).and_then(|bundle| {
        let me = std::thread::current().id();
        if *lock(&bundle.owner) == Some(me) { Err(Status::Busy) } else { Ok(()) }
    });
    code(free.and_then(|()| handle::remove_model(number)?.release()))
}

pub(super) fn code(result: Result<(), Status>) -> StatusCode {
    match result {
        Ok(()) => Status::Ok.code(),
        Err(status) => status.code(),
    }
}

impl Inside {
    /// The model behind the engine.
    pub(super) fn model(&self) -> Outcome<&Model> {
        self.model.as_ref().ok_or_else(|| Failure::new(Status::Unsupported, "this engine came without a model file"))
    }

    /// The engine-owned JSON text of the capability descriptor; constant while the model lives.
    pub(super) fn descriptor(&self) -> Option<&CStr> {
        let text = || self.engine.capability_descriptor().and_then(|text| CString::new(text).ok());
        self.descriptor.get_or_init(text).as_deref()
    }
}
