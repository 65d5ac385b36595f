//! Models from files: open, plan, describe.

use core::ffi::{c_char, c_void};
use core::ops::ControlFlow;

use super::bundle::{self, ModelHandle, StatusCode, status};
use super::constant::{NO_TOKEN, device, kv_type, log_level};
use super::guard::{Buffer, Failure, Outcome, buffer, contain, out, sized_out, text, versioned};
use super::log::Log;
use crate::backend::{BackendError, KvType};
use crate::checkpoint::CheckpointError;
use crate::open::{Device, Error, Model, ModelOptions, Progress};
use crate::record::Status;
use crate::record::view::{Plain, record};

/// What a host may choose when it opens a model. Zero in a field means its default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// The writer's size of this record in bytes; at least 80.
    pub struct_size: u64,
    /// Where the model runs (`ICTUS_DEVICE_*`).
    pub device: u32,
    /// Threads that compute, the caller's among them; at most 256. 0 is one per processor.
    pub threads: u32,
    /// Element type of cached keys and values (`ICTUS_KV_*`). 0 is single precision, which rounds nothing.
    pub kv_type: u32,
    /// Tokens per page: a power of two up to 1024; 0 is 16.
    pub page_size_tokens: u32,
    /// Longest sequence, at most what the model was trained for; 0 is that, or 8192 when it is more.
    pub context_tokens: u32,
    /// Lanes of one decode step, at most 4096; 0 is 64.
    pub max_lanes: u32,
    /// Tokens in the page pool, rounded up to whole pages, at most 2^31; 0 is four longest sequences.
    pub pool_tokens: u64,
    /// Prompt tokens of one step, at most 2^20; 0 is 512.
    pub prefill_step_tokens: u32,
    /// How much is said through `on_log` (`ICTUS_LOG_*`).
    pub log_level: u32,
    /// Told how far opening has come, on the opening thread; may be NULL. `total_bytes` is 0 while it is not known. Another answer
    /// than 0 breaks off.
    pub on_progress: Option<unsafe extern "C" fn(user: *mut c_void, done_bytes: u64, total_bytes: u64) -> u32>,
    /// Passed to `on_progress` unchanged.
    pub progress_user: *mut c_void,
    /// Told what the model has to say, while it opens and afterwards, as with `ictus_model_log`; may be NULL.
    pub on_log: Option<unsafe extern "C" fn(user: *mut c_void, level: u32, text: *const c_char)>,
    /// Passed to `on_log` unchanged.
    pub log_user: *mut c_void,
}
const _: () = assert!(size_of::<OpenOptions>() == 80);
record!(OpenOptions, min_prefix: 80);

/// The bytes that a model takes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ModelPlan {
    /// The reader's size of this record in bytes; at least 48.
    pub struct_size: u64,
    /// Weights that stay in their file; they are mapped, and shared with other models and processes.
    pub weights_mapped_bytes: u64,
    /// Keys and values of all pages.
    pub kv_pool_bytes: u64,
    /// Activations.
    pub activation_bytes: u64,
    /// Free list, reference counts, and the row that tokens are picked from.
    pub table_bytes: u64,
    /// All of these.
    pub total_bytes: u64,
}
const _: () = assert!(size_of::<ModelPlan>() == 48);
record!(ModelPlan, min_prefix: 48);

/// What a model is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ModelInfo {
    /// The reader's size of this record in bytes; at least 40.
    pub struct_size: u64,
    /// Number of tokens; ids are below it.
    pub vocab_size: u32,
    /// Longest sequence in tokens.
    pub context_tokens: u32,
    /// Layers.
    pub layers: u32,
    /// Width of a hidden state.
    pub hidden: u32,
    /// Token that begins a text; `ICTUS_NO_TOKEN` when there is none.
    pub bos_token: u32,
    /// Token that ends a text; `ICTUS_NO_TOKEN` when there is none.
    pub eos_token: u32,
    /// Token that ends a turn; `ICTUS_NO_TOKEN` when there is none.
    pub eot_token: u32,
    /// Nonzero: the model wants `bos_token` before a text.
    pub adds_bos: u8,
    /// Nonzero: the model wants `eos_token` behind a text.
    pub adds_eos: u8,
    /// Nonzero: the model has a chat template, and it compiles.
    pub has_chat_template: u8,
    /// Zero; readers ignore it.
    pub _pad0: u8,
}
const _: () = assert!(size_of::<ModelInfo>() == 40);
record!(ModelInfo, min_prefix: 40);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::Options(_) => Status::RejectBounds,
            Error::Checkpoint(CheckpointError::Read { .. }) => Status::UnknownHandle,
            Error::Backend(BackendError::NoDevice { .. }) | Error::NoVocabulary => Status::Unsupported,
            Error::Backend(_) | Error::Runtime(_) => Status::NeedsReplan,
            Error::PlanTooLarge => Status::RejectBudget,
            Error::Cancelled => Status::Busy,
            _ => Status::RejectBadStruct,
        };
        Self::because(status, &error)
    }
}

/// The options as the Rust API takes them.
fn options(source: &OpenOptions) -> Outcome<ModelOptions> {
    let device = match source.device {
        device::CPU => Device::Cpu,
        device::CUDA => Device::Cuda,
        other => return Err(Failure::new(Status::RejectBounds, format_args!("option device is {other}"))),
    };
    let kv_type = match source.kv_type {
        kv_type::DEFAULT | kv_type::F32 => KvType::F32,
        kv_type::F16 => KvType::F16,
        other => return Err(Failure::new(Status::RejectBounds, format_args!("option kv_type is {other}"))),
    };
    let OpenOptions { threads, page_size_tokens, context_tokens, max_lanes, pool_tokens, prefill_step_tokens, .. } =
        *source;
    let options = ModelOptions {
        device,
        threads,
        kv_type,
        page_size_tokens,
        context_tokens,
        pool_tokens,
        max_lanes,
        prefill_step_tokens,
    };
    options.check().map_err(|error| Failure::from(Error::from(error)))?;
    Ok(options)
}

/// Reads options of the host; NULL is all defaults.
///
/// # Safety
/// As [`versioned`].
unsafe fn read_options(source: *const OpenOptions) -> Result<OpenOptions, Status> {
    match source.is_null() {
        true => Ok(OpenOptions::zeroed()),
        // SAFETY: the promise of this function.
        false => unsafe { versioned(source) },
    }
}

/// Runs the body of a call that has no model yet; why it failed goes into the caller's buffer, cut to fit.
fn without_model(error_text: Result<Buffer<u8>, Status>, body: impl FnOnce() -> Outcome<()>) -> StatusCode {
    let error_text = match error_text {
        Ok(error_text) => error_text,
        Err(status) => return status.code(),
    };
    let outcome = contain(body).unwrap_or_else(|message| Err(Failure::new(Status::Fatal, message)));
    let Err(failure) = outcome else { return Status::Ok.code() };
    error_text.fill_text(&failure.to_string());
    failure.status.code()
}

fn open(path: &str, source: &OpenOptions) -> Outcome<ModelHandle> {
    let options = options(source)?;
    let log = Log::new(source.log_level, source.on_log, source.log_user)?;
    let mut tell = |progress: Progress| {
        let Some(callback) = source.on_progress else { return ControlFlow::Continue(()) };
        // SAFETY: the caller of `ictus_model_open` promises that the callback may be called with its user during the call.
        let answer = unsafe { callback(source.progress_user, progress.done_bytes, progress.total_bytes) };
        if answer == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let model = Model::open_with_progress(path, &options, &mut tell)?;
    let engine = model.engine()?;
    log.line(
        log_level::INFO,
        &format!("opened {path}: {} with {} tokens of context", model.name(), model.context_tokens()),
    );
    Ok(bundle::insert(engine, Some(model), log))
}

/// Opens a model and makes an engine of it. Weights stay in their file, mapped: keep the file as it is while the model lives.
///
/// `path`: a GGUF file or a Hugging Face directory, NUL-terminated. `options` may be NULL: all defaults. `error_text`: where the reason of a
/// failure goes, NUL-terminated and cut to `error_capacity` bytes; NULL with 0 when it is not wanted.
/// Owner: `*model` is the host's, which releases it with `ictus_model_free`. Threads: any; callbacks of the options run on this one.
/// Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (the file cannot be read), `ICTUS_REJECT_BAD_STRUCT` (it is not a model, or options too short),
/// `ICTUS_REJECT_BOUNDS` (an option), `ICTUS_ERR_OP_UNSUPPORTED` (device, model without a vocabulary), `ICTUS_NEEDS_REPLAN` (memory
/// could not be had, or the weights do not fit the model), `ICTUS_REJECT_BUDGET` (sizes beyond 64 bits), `ICTUS_EBUSY` (the progress
/// callback broke off). Nothing is kept then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_model_open(
    path: *const c_char,
    options: *const OpenOptions,
    error_text: *mut c_char,
    error_capacity: u64,
    model: *mut ModelHandle,
) -> StatusCode {
    // SAFETY: the caller's pointer, as the module's documentation asks.
    let error_text = unsafe { buffer(error_text.cast::<u8>(), error_capacity) };
    without_model(error_text, || {
        // SAFETY: as above.
        let path = unsafe { text(path) }?;
        // SAFETY: as above.
        let options = unsafe { read_options(options) }?;
        // SAFETY: as above.
        let model = unsafe { out(model) }?;
        model.set(open(path, &options)?);
        Ok(())
    })
}

/// What a model would take with these options, in bytes, from its description alone: no weight is read, nothing is allocated.
///
/// Set `plan->struct_size` before the call. The rest as `ictus_model_open`; no callback is called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_model_plan(
    path: *const c_char,
    options: *const OpenOptions,
    error_text: *mut c_char,
    error_capacity: u64,
    plan: *mut ModelPlan,
) -> StatusCode {
    // SAFETY: the caller's pointer, as the module's documentation asks.
    let error_text = unsafe { buffer(error_text.cast::<u8>(), error_capacity) };
    without_model(error_text, || {
        // SAFETY: as above.
        let path = unsafe { text(path) }?;
        // SAFETY: as above.
        let source = unsafe { read_options(options) }?;
        // SAFETY: as above.
        let target = unsafe { sized_out(plan) }?;
        let memory = Model::plan(path, &self::options(&source)?)?;
        target.set(ModelPlan {
            struct_size: target.bytes(),
            weights_mapped_bytes: memory.weights_mapped_bytes,
            kv_pool_bytes: memory.kv_pool_bytes,
            activation_bytes: memory.activation_bytes,
            table_bytes: memory.table_bytes,
            total_bytes: memory.total_bytes(),
        });
        Ok(())
    })
}

/// What the model is. Set `info->struct_size` before the call.
///
/// Threads: any; one at a time. Codes: `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_ERR_OP_UNSUPPORTED` (an engine without a model file).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_model_info(model: ModelHandle, info: *mut ModelInfo) -> StatusCode {
    status(model, "ictus_model_info", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let target = unsafe { sized_out(info) }?;
        let model = inside.model()?;
        let tokenizer = model.tokenizer();
        let config = model.config();
        target.set(ModelInfo {
            struct_size: target.bytes(),
            vocab_size: count(tokenizer.vocab_size()),
            context_tokens: count(model.context_tokens()),
            layers: count(config.layers),
            hidden: count(config.hidden),
            bos_token: tokenizer.bos().unwrap_or(NO_TOKEN),
            eos_token: tokenizer.eos().unwrap_or(NO_TOKEN),
            eot_token: tokenizer.eot().unwrap_or(NO_TOKEN),
            adds_bos: tokenizer.adds_bos().into(),
            adds_eos: tokenizer.adds_eos().into(),
            has_chat_template: matches!(model.chat_template(), Ok(Some(_))).into(),
            _pad0: 0,
        });
        Ok(())
    })
}

fn count(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
