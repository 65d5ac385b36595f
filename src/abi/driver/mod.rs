//! Drivers: requests in, tokens and text out, for hosts without a scheduler of their own.

mod convert;
mod records;

pub use records::{DriverChoices, DriverEvent, DriverRequest};

use core::ffi::c_char;
use core::time::Duration;
use std::sync::{Arc, Mutex, TryLockError};

use self::convert::{Target, asked, choices, record_of};
use super::bundle::{Bundle, ModelHandle, StatusCode, code};
use super::constant::{driver_flag, driver_progress};
use super::guard::{Failure, Outcome, buffer, contain, out, sized_out, versioned};
use super::handle;
use crate::driver::{
    self as core_driver, Driver, DriverError, DriverHandle as Served, DriverOptions, EngineSource, Event, Finish, Next,
    Outbox, Progress, RequestId, Server, Wanted,
};
use crate::engine::Engine;
use crate::record::view::Plain;
use crate::record::{LaneLogprob, Status};

/// What an `ictus_driver_t` points to: nothing that C could look at.
#[derive(Debug)]
pub struct OpaqueDriver(());

/// Handle of a driver. NULL is none.
pub type DriverNumber = *mut OpaqueDriver;

/// The engine of a model that a driver ticks, one step at a time.
#[derive(Debug)]
pub(super) struct ModelEngine(Arc<Bundle>);

impl EngineSource for ModelEngine {
    fn with_engine(&mut self, work: &mut dyn FnMut(&mut dyn Engine)) -> Result<(), Status> {
        self.0.let_others_in();
        self.0.run("ictus_driver", |inside| {
            work(&mut *inside.engine);
            Ok(())
        })
    }
}

/// How a driver is driven.
#[derive(Debug)]
enum Mode {
    /// By the host's calls; its events go to the outbox of its own.
    Stepped(Box<Mutex<Driver<ModelEngine>>>, Outbox),
    /// By its thread.
    Threaded(Server<ModelEngine>, Served),
}

/// What a handle of a driver stands for.
#[derive(Debug)]
pub(super) struct DriverObject {
    bundle: Arc<Bundle>,
    mode: Mode,
}

impl DriverObject {
    fn outbox(&self) -> &Outbox {
        match &self.mode {
            Mode::Stepped(_, outbox) => outbox,
            Mode::Threaded(_, served) => served.outbox(),
        }
    }

    /// The driver of a stepped one, when no other call is at work on it.
    fn stepped<T>(&self, body: impl FnOnce(&mut Driver<ModelEngine>, &Outbox) -> Outcome<T>) -> Outcome<T> {
        let Mode::Stepped(driver, outbox) = &self.mode else {
            return Err(Failure::new(Status::Unsupported, "this driver has a thread of its own"));
        };
        match driver.try_lock() {
            Ok(mut driver) => body(&mut driver, outbox),
            Err(TryLockError::Poisoned(poisoned)) => body(&mut poisoned.into_inner(), outbox),
            Err(TryLockError::WouldBlock) => Err(Failure::new(Status::Busy, "another call is at work on this driver")),
        }
    }
}

/// A call on a driver that answers with a status.
fn call(driver: DriverNumber, name: &str, body: impl FnOnce(&DriverObject) -> Outcome<()>) -> StatusCode {
    code(handle::driver(driver.addr()).and_then(|object| {
        let outcome = contain(|| body(&object)).unwrap_or_else(|message| Err(Failure::new(Status::Fatal, message)));
        outcome.map_err(|failure| {
            let status = failure.status;
            object.bundle.note(name, &failure, None);
            status
        })
    }))
}

/// Makes a driver of a model: from now on it alone ticks the model, and `ictus_tick` on it answers `ICTUS_EBUSY`.
///
/// `options` may be NULL: all defaults. With `ICTUS_DRIVER_THREAD` it has a thread of its own, which sleeps while there is nothing to do;
/// without, it works only inside `ictus_driver_step`. Other calls on the model go on to work, between its ticks.
/// Owner: `*driver` is the host's, which releases it with `ictus_driver_destroy`, before or after the model. Threads: any.
/// Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (model), `ICTUS_REJECT_BOUNDS` (an option), `ICTUS_EBUSY` (the model has a driver),
/// `ICTUS_NEEDS_REPLAN` (no thread could be started). No driver is made then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_driver_create(
    model: ModelHandle,
    options: *const DriverChoices,
    driver: *mut DriverNumber,
) -> StatusCode {
    code(handle::model(model.addr()).and_then(|bundle| {
        let body = || {
            let source = match options.is_null() {
                true => DriverChoices::zeroed(),
                // SAFETY: the caller's pointer, as the module's documentation asks.
                false => unsafe { versioned(options) }?,
            };
            // SAFETY: as above.
            let driver = unsafe { out(driver) }?;
            let object = create(&bundle, &source)?;
            driver.set(core::ptr::without_provenance_mut(handle::insert_driver(object)));
            Ok(())
        };
        let outcome = contain(body).unwrap_or_else(|message| Err(Failure::new(Status::Fatal, message)));
        outcome.map_err(|failure: Failure| {
            bundle.note("ictus_driver_create", &failure, None);
            failure.status
        })
    }))
}

fn create(bundle: &Arc<Bundle>, source: &DriverChoices) -> Outcome<DriverObject> {
    let options = choices(source)?;
    let model = bundle.run("ictus_driver_create", |inside| {
        if std::mem::replace(&mut inside.driven, true) {
            return Err(Failure::new(Status::Busy, "the model has a driver"));
        }
        Ok(inside.model().ok().cloned())
    })?;
    let make = || -> Outcome<Mode> {
        let context_tokens = model.as_ref().map_or(0, |model| model.context_tokens() as u64);
        let options = DriverOptions { context_tokens, ..options };
        let driver = Driver::new(ModelEngine(Arc::clone(bundle)), options).map_err(|error| match error {
            DriverError::Engine(status) => Failure::from(status),
            other => Failure::because(Status::RejectBounds, &other),
        })?;
        let driver = match model {
            Some(model) => driver.with_tokenizer(model),
            None => driver,
        };
        if source.flags & driver_flag::THREAD == 0 {
            return Ok(Mode::Stepped(Box::new(Mutex::new(driver)), Outbox::default()));
        }
        let server = driver.serve().map_err(|error| Failure::because(Status::NeedsReplan, &error))?;
        let served = server.handle();
        Ok(Mode::Threaded(server, served))
    };
    let made = make();
    if made.is_err() {
        set_free(bundle);
    }
    Ok(DriverObject { bundle: Arc::clone(bundle), mode: made? })
}

/// The model may be ticked by its host again.
fn set_free(bundle: &Bundle) {
    // A model that was released has nobody to set free.
    let _ = bundle.run("ictus_driver_destroy", |inside| {
        inside.driven = false;
        Ok(())
    });
}

/// Releases a driver: its requests end, what they hold in the model is given back, its thread ends. Events that were not read are lost.
///
/// It waits for a running tick. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (NULL, or released before), `ICTUS_EBUSY` (called from a callback of
/// its model, or while another call is at work on it; it lives on).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_driver_destroy(driver: DriverNumber) -> StatusCode {
    let number = driver.addr();
    let free = handle::driver(number).and_then(|object| match &object.mode {
        // The thread of the driver would be waited for by itself, or by one that keeps it out of the model.
        _ if object.bundle.is_entered_here() => Err(Status::Busy),
        Mode::Stepped(driver, _) if matches!(driver.try_lock(), Err(TryLockError::WouldBlock)) => Err(Status::Busy),
        _ => Ok(()),
    });
    code(free.and_then(|()| {
        let object = handle::remove_driver(number)?;
        // Whoever waits for events of it is told that none will come.
        object.outbox().end_all(&Finish::Failed(core_driver::Failure::Closed));
        let bundle = Arc::clone(&object.bundle);
        // A destructor that panics has nobody to tell.
        let _ = contain(move || end(object));
        set_free(&bundle);
        Ok(())
    }))
}

/// Ends a driver that is in no table any more. A call on another thread that still holds it keeps it until it returns.
fn end(object: Arc<DriverObject>) {
    let Some(object) = Arc::into_inner(object) else { return };
    match object.mode {
        Mode::Stepped(driver, _) => {
            let driver = driver.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
            drop(driver.close());
        }
        Mode::Threaded(server, _) => drop(server.stop()),
    }
}

/// Hands a request to a driver. What it says comes through `ictus_driver_next_event`.
///
/// Owner: `*request` is a number, from 1 and never reused; it needs no release. All memory of `source` is read during the call only.
/// Threads: any; with a thread, also while others submit.
/// Codes: `ICTUS_EBUSY` (the queue is full, or another call is at work on a driver without a thread), `ICTUS_REJECT_BAD_STRUCT` (none or
/// both of the prompts, both grammars, a text that is not UTF-8), `ICTUS_REJECT_BOUNDS` (a number, a flag, a token, or a NaN),
/// `ICTUS_REJECT_BUDGET` (the prompt is longer than the context), `ICTUS_REJECT_ILLEGAL_COMBINATION` (an empty prompt),
/// `ICTUS_ERR_OP_UNSUPPORTED` (a text, and the model has no tokenizer), `ICTUS_ERR_FATAL` (the model is broken or released). Nothing is
/// kept then. What only the engine can judge (a grammar, an adapter) ends the request with an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_driver_submit(
    driver: DriverNumber,
    source: *const DriverRequest,
    request: *mut u64,
) -> StatusCode {
    call(driver, "ictus_driver_submit", |object| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let source = unsafe { versioned(source) }?;
        // SAFETY: as above.
        let request = unsafe { out(request) }?;
        // SAFETY: as above; so are the pointers in the record.
        let asked = unsafe { asked(&source) }?;
        let id = match &object.mode {
            Mode::Threaded(_, served) => served.submit_detached(asked)?,
            Mode::Stepped(..) => object.stepped(|driver, outbox| {
                let id = driver.submit(asked)?;
                outbox.open(id);
                Ok(id)
            })?,
        };
        request.set(id.get());
        Ok(())
    })
}

/// Ends a request; its last event says so. Tokens that are on their way still come.
///
/// Threads: as `ictus_driver_submit`. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (the driver, or no such request any more), `ICTUS_EBUSY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_driver_cancel(driver: DriverNumber, request: u64) -> StatusCode {
    call(driver, "ictus_driver_cancel", |object| {
        let id = RequestId::from_number(request);
        let there = match &object.mode {
            Mode::Threaded(_, served) => served.cancel(id),
            Mode::Stepped(..) => object.stepped(|driver, outbox| {
                let there = driver.cancel(id);
                hand_out(driver, outbox);
                Ok(there)
            })?,
        };
        if there { Ok(()) } else { Err(Status::UnknownHandle.into()) }
    })
}

fn hand_out(driver: &mut Driver<ModelEngine>, outbox: &Outbox) {
    outbox.put(std::iter::from_fn(|| driver.next_event()));
}

/// Makes one plan and ticks, on this thread. `*progress` is one of `ICTUS_DRIVER_IDLE`, `ICTUS_DRIVER_WORKED`, `ICTUS_DRIVER_STALLED`.
///
/// Threads: any; one call at a time on a driver. Codes: `ICTUS_ERR_OP_UNSUPPORTED` (the driver has a thread), `ICTUS_EBUSY`. A broken
/// model ends all requests with `ICTUS_DRIVER_FINISH_FAILED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_driver_step(driver: DriverNumber, progress: *mut u32) -> StatusCode {
    call(driver, "ictus_driver_step", |object| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let progress = unsafe { out(progress) }?;
        let made = object.stepped(|driver, outbox| {
            let made = driver.step();
            hand_out(driver, outbox);
            Ok(made)
        })?;
        progress.set(match made {
            Progress::Idle => driver_progress::IDLE,
            Progress::Worked => driver_progress::WORKED,
            Progress::Stalled => driver_progress::STALLED,
        });
        Ok(())
    })
}

/// The next event of a request, or of any when `request` is 0. Set `event->struct_size` before the call.
///
/// A driver with a thread is waited for, `timeout_ns` at most (`UINT64_MAX`: without end); one without is not. When there is no event,
/// `event->kind` is `ICTUS_EVENT_NONE`. Tokens, text and log-probabilities go to the buffers, which may be NULL with a capacity of 0; a
/// NUL follows the text and needs room. When one of them is too small the event stays, and `event` tells the sizes.
/// Threads: any; a request is read by one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (the driver; no such request, or its last event was
/// read; with 0: there is no request), `ICTUS_ERR_BUFFER_TOO_SMALL`, `ICTUS_EBUSY`
/// (called from a callback of the model).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_driver_next_event(
    driver: DriverNumber,
    request: u64,
    timeout_ns: u64,
    event: *mut DriverEvent,
    tokens: *mut u32,
    token_capacity: u64,
    text: *mut c_char,
    text_capacity: u64,
    logprobs: *mut LaneLogprob,
    logprob_capacity: u64,
) -> StatusCode {
    call(driver, "ictus_driver_next_event", |object| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let event = unsafe { sized_out(event) }?;
        let target = Target {
            // SAFETY: as above.
            tokens: unsafe { buffer(tokens, token_capacity) }?,
            // SAFETY: as above.
            text: unsafe { buffer(text.cast::<u8>(), text_capacity) }?,
            // SAFETY: as above.
            logprobs: unsafe { buffer(logprobs, logprob_capacity) }?,
            text_wanted: text_capacity > 0,
        };
        if object.bundle.is_entered_here() {
            return Err(Failure::new(Status::Busy, "called from a callback of the model"));
        }
        let wanted = if request == 0 { Wanted::Any } else { Wanted::Of(RequestId::from_number(request)) };
        let timeout = match &object.mode {
            Mode::Stepped(..) => Some(Duration::ZERO),
            Mode::Threaded(..) if timeout_ns == u64::MAX => None,
            Mode::Threaded(..) => Some(Duration::from_nanos(timeout_ns)),
        };
        let mut too_small = false;
        let mut accept = |happened: &Event| {
            too_small = target.fill(happened).is_err();
            event.set(DriverEvent { struct_size: event.bytes(), ..record_of(happened) });
            !too_small
        };
        match object.outbox().next_if(wanted, timeout, &mut accept) {
            Next::Event(_) => Ok(()),
            Next::TimedOut if too_small => Err(Status::BufferTooSmall.into()),
            Next::TimedOut => {
                event.set(DriverEvent { struct_size: event.bytes(), request, ..DriverEvent::zeroed() });
                Ok(())
            }
            Next::Ended => Err(Status::UnknownHandle.into()),
        }
    })
}
