//! Executors come and go.

use core::ffi::c_char;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::convert::core_options;
use super::records::ExecutorChoices;
use super::{ExecutorNumber, ExecutorObject, ask};
use crate::abi::bundle::{self, ModelHandle, StatusCode, code};
use crate::abi::guard::{Failure, Outcome, buffer, contain, out, text, versioned};
use crate::abi::handle;
use crate::abi::log::Log;
use crate::abi::model::{OpenOptions, open_model, read_options, without_model};
use crate::capacity::{Bad, Refusal};
use crate::engine::Engine;
use crate::facade::{Core, CoreBounds, Logits};
use crate::open::{Device, Model};
use crate::record::Status;
use crate::record::view::Plain;
use crate::runtime::Runtime;

/// Makes a handle around a core, for C code to run. `ictus_executor_destroy` releases it.
pub fn adopt_core<R: Runtime + Send + 'static>(core: Core<R>) -> ExecutorNumber {
    insert(core, None)
}

fn insert<R: Runtime + Send + 'static>(core: Core<R>, model: Option<Model>) -> ExecutorNumber {
    let number = handle::insert_executor(ExecutorObject {
        executor: core.executor(),
        tick_hosts: Box::new(move || Some(Box::new(core.tick_host()?) as Box<dyn Engine + Send>)),
        model,
        plain: Logits::greedy(),
        scratches: Mutex::default(),
        last: Mutex::default(),
        broken: AtomicBool::new(false),
    });
    core::ptr::without_provenance_mut(number)
}

/// Reads options of the host; NULL is all defaults.
///
/// # Safety
/// As [`versioned`].
unsafe fn choices(source: *const ExecutorChoices) -> Result<ExecutorChoices, Status> {
    match source.is_null() {
        true => Ok(ExecutorChoices::zeroed()),
        // SAFETY: the promise of this function.
        false => unsafe { versioned(source) },
    }
}

/// A core of a model, as a handle.
fn executor_of(model: &Model, source: &ExecutorChoices) -> Outcome<ExecutorNumber> {
    let account = match source.account.addr() {
        0 => None,
        number => Some(handle::account(number)?),
    };
    let bounds = CoreBounds {
        arena_bytes: source.arena_bytes,
        arena_max_bytes: source.arena_max_bytes,
        host_export_bytes: source.host_export_bytes,
        budget_bytes: source.budget_bytes,
        account,
        ceiling_bytes: source.ceiling_bytes,
    };
    let options = core_options(source)?;
    let kept = Some(model.clone());
    match model.device() {
        Device::Cpu => Ok(insert(model.core_within(options, &bounds)?, kept)),
        #[cfg(feature = "cuda")]
        Device::Cuda if model.device_indices().len() > 1 => {
            Ok(insert(model.cuda_group_core_within(options, &bounds)?, kept))
        }
        #[cfg(feature = "cuda")]
        Device::Cuda => Ok(insert(model.cuda_core_within(options, &bounds)?, kept)),
        #[cfg(not(feature = "cuda"))]
        Device::Cuda => Err(Failure::new(Status::Unsupported, "this build has no CUDA backend")),
    }
}

/// Opens a model and makes an executor of it, and no engine beside.
///
/// `path`, `model_options`, `error_text` and `error_capacity` are those of `ictus_model_open`; `options` may be NULL: all defaults.
/// Owner: `*executor` is the host's, which releases it with `ictus_executor_destroy`. Threads: any; callbacks of the model's options run on this one.
/// Codes: those of `ictus_model_open`; `ICTUS_REJECT_BUDGET` (what is installed exceeds the budget, or what the account has left),
/// `ICTUS_ERR_UNKNOWN_HANDLE` (the account).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_executor_open(
    path: *const c_char,
    model_options: *const OpenOptions,
    options: *const ExecutorChoices,
    error_text: *mut c_char,
    error_capacity: u64,
    executor: *mut ExecutorNumber,
) -> StatusCode {
    // SAFETY: the caller's pointer, as the module's documentation asks.
    let error_text = unsafe { buffer(error_text.cast::<u8>(), error_capacity) };
    without_model(error_text, || {
        // SAFETY: as above.
        let path = unsafe { text(path) }?;
        // SAFETY: as above.
        let model_options = unsafe { read_options(model_options) }?;
        // SAFETY: as above.
        let options = unsafe { choices(options) }?;
        // SAFETY: as above.
        let target = unsafe { out(executor) }?;
        if !model_options.worker.is_null() {
            return Err(Failure::new(Status::Unsupported, "an executor is of this process only, not of a worker"));
        }
        let (model, _) = open_model(path, &model_options)?;
        target.set(executor_of(&model, &options)?);
        Ok(())
    })
}

/// Makes an executor over the weights of a model that is open: its own pool and threads, beside those of the model.
///
/// `options` may be NULL: all defaults. Owner: `*executor` is the host's, which releases it with `ictus_executor_destroy`, before or after the model.
/// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (the model, the account), `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_REJECT_BOUNDS` (an option),
/// `ICTUS_ERR_OP_UNSUPPORTED` (an engine without a model file), `ICTUS_NEEDS_REPLAN` (memory could not be had), `ICTUS_REJECT_BUDGET`.
/// The model's last error says why.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_executor_create(
    model: ModelHandle,
    options: *const ExecutorChoices,
    executor: *mut ExecutorNumber,
) -> StatusCode {
    bundle::status(model, "ictus_executor_create", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let options = unsafe { choices(options) }?;
        // SAFETY: as above.
        let target = unsafe { out(executor) }?;
        target.set(executor_of(inside.model()?, &options)?);
        Ok(())
    })
}

/// The tick engine on the same core, as a model: the same pool, cache and coordinator, and all functions that take a model.
///
/// Owner: `*model` is the host's, which releases it with `ictus_model_free`; then it can be had again. One that outlives the executor finds no
/// room any more. Threads: any; ticks and runs take turns.
/// Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_EBUSY` (it has been handed out).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_executor_tick_host(executor: ExecutorNumber, model: *mut ModelHandle) -> StatusCode {
    ask(executor, "ictus_executor_tick_host", |object| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let target = unsafe { out(model) }?;
        let engine = (object.tick_hosts)();
        let engine = engine.ok_or_else(|| Failure::new(Status::Busy, "the tick host has been handed out"))?;
        target.set(bundle::insert(engine, object.model.clone(), Log::silent()));
        Ok(())
    })
}

/// Releases an executor: it is shut down, and its pool and threads go when no call and no tick host has it any more.
///
/// It waits for runs under way. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (NULL, or released before), `ICTUS_EBUSY` (called from inside one of its own
/// steps; it lives on).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_executor_destroy(executor: ExecutorNumber) -> StatusCode {
    let number = executor.addr();
    code(handle::executor(number).and_then(|object| {
        if !object.broken.load(Ordering::Acquire) {
            let ended = contain(|| object.executor.shutdown());
            // What is poisoned has ended already; nobody is told of a panic that has nobody to be told.
            if matches!(ended, Ok(Err(Refusal::Bad { why: Bad::Busy, .. }))) {
                object.noted("ictus_executor_destroy", Refusal::bad(Bad::Busy).into());
                return Err(Status::Busy);
            }
        }
        let gone: Arc<ExecutorObject> = handle::remove_executor(number)?;
        drop(object);
        // A destructor that panics has nobody to tell.
        let _ = contain(move || drop(gone));
        Ok(())
    }))
}
