//! Models from files: open, plan, describe.

use core::ffi::{c_char, c_void};
use core::ops::ControlFlow;
use core::time::Duration;

use super::bundle::{self, ModelHandle, StatusCode, status};
use super::constant::{NO_RESTARTS, NO_TOKEN, arithmetic, claim, device, instruction_set, kv_type, log_level};
use super::guard::{Buffer, Failure, Outcome, buffer, contain, optional_text, out, sized_out, text, versioned};
use super::log::Log;
use crate::backend::cpu::{HostThreads, Lent};
use crate::backend::{Arithmetic, BackendError, KvType};
use crate::checkpoint::CheckpointError;
use crate::facade::CoreError;
use crate::open::{Device, Error, InstructionSet, Model, ModelOptions, Progress, WorkerOptions};
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
    /// Element type of cached keys and values (`ICTUS_KV_*`). 0 is single precision, which rounds nothing, for exact arithmetic
    /// and half precision for fast.
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
    /// Bytes that the model may take, weights and all; 0 is no bound. Where `context_tokens` or `pool_tokens` is 0 it follows from the
    /// budget; a plan that exceeds the budget all the same is refused.
    pub memory_budget_bytes: u64,
    /// Tokens of the pool that cached state may hold when nobody else does; 0 is half of the pool, the pool or more no bound.
    pub cache_tokens: u64,
    /// Tokens of cached state that may be kept in host memory when they leave the pool; 0 is none. Each takes there what it took in
    /// the pool, which the plan of the model does not count.
    pub cache_export_tokens: u64,
    /// Threads of the host that compute in place of the engine's own; NULL is the engine's own. Calls `call(job, index)` once for each
    /// index below `calls`, on whichever of its threads, the calling one among them or not, and returns when all these calls have. It is
    /// called several times per layer, on the thread that ticks; `calls` is at most `threads`. Leaving a call out, making one twice or
    /// after the return makes the tick fatal, never wrong; `job` dies with the model.
    pub on_parallel: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            calls: u32,
            call: Option<unsafe extern "C" fn(job: *mut c_void, index: u32)>,
            job: *mut c_void,
        ),
    >,
    /// Passed to `on_parallel` unchanged.
    pub parallel_user: *mut c_void,
    /// Bytes of state that a tick or `ictus_pump` moves for operations and for entries of the cache that go to host memory, before it goes
    /// on; 0 is 4 MiB.
    pub op_slice_bytes: u64,
    /// 1 seals exported state with XXH3-64 instead of FNV-1a-64: many times as fast, and read only by engines that take both.
    pub op_fast_checksum: u32,
    /// Levels of a grammar's JSON document, at most 64; 0 is that.
    pub grammar_depth: u32,
    /// Bytes of a grammar's document; 0 is 1 MiB.
    pub grammar_document_bytes: u64,
    /// Work of compiling a grammar, in units that are the same on every machine, about 50 000 a millisecond; 0 is 1 000 000.
    pub grammar_compile_fuel: u64,
    /// Work of the lexer for one mask, about 14 000 units a millisecond; 0 is 200 000. A lane that would exceed it faults.
    pub grammar_mask_fuel: u64,
    /// Items of the parser for one mask, about 20 000 a millisecond; 0 is 50 000. A lane that would exceed them faults.
    pub grammar_mask_items: u32,
    /// States that the lexer of a lane may keep, one or two kilobytes each; 0 is 32 768. A lane that would exceed them faults.
    pub grammar_lexer_states: u32,
    /// How products with weights of fewer than 32 bits are computed (`ICTUS_ARITHMETIC_*`). 0 is exact.
    pub arithmetic: u32,
    /// Which CUDA device, as the driver counts them from 0.
    pub device_index: u32,
    /// NULL is an engine in this process. Else the engine is in a process of its own (Linux), which may crash and is replaced; lanes go on
    /// to the same bits. The path of the worker program; an empty text looks for it: what the variable `ICTUS_WORKER` names, or
    /// `ictus-worker` beside the library (in its folder, in `../bin`, in the folder above) or beside the program.
    pub worker: *const c_char,
    /// Milliseconds that one tick may take in a worker before that is replaced; 0 is 10 minutes.
    pub worker_timeout_ms: u32,
    /// Fresh workers that one call may use up when one dies: the call then answers `ICTUS_ERR_FATAL`, and a later one tries again. 0 is
    /// 3; `ICTUS_NO_RESTARTS` never replaces one.
    pub worker_restarts: u32,
    /// Several CUDA devices that compute together, as bits: bit 0 is device 0. 0 is `device_index` alone. Results are those of one
    /// device; a model has at most as many devices as key and value heads.
    pub device_mask: u64,
    /// Instructions of the processor to compute with (`ICTUS_INSTRUCTION_SET_*`); 0 is the best that it has. All but the portable one give
    /// the same bits. One that the processor lacks answers `ICTUS_ERR_OP_UNSUPPORTED`; a CUDA device takes none.
    pub instruction_set: u32,
    /// Zero; readers ignore it.
    pub _pad0: u32,
}
const _: () = assert!(size_of::<OpenOptions>() == 208);
record!(OpenOptions, min_prefix: 80);

/// The bytes that a model takes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ModelPlan {
    /// The reader's size of this record in bytes; at least 48.
    pub struct_size: u64,
    /// Weights as they are held, once for all engines of the model that live at the same time.
    pub weights_bytes: u64,
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

/// What a model recommends for sampling. It is never applied unasked.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ClaimedSampling {
    /// The reader's size of this record in bytes; at least 40.
    pub struct_size: u64,
    /// Which of the fields the model claims (`ICTUS_CLAIMS_*`); the others are 0.
    pub claimed: u32,
    /// Temperature.
    pub temperature: f32,
    /// Nucleus mass.
    pub top_p: f32,
    /// Relative probability floor.
    pub min_p: f32,
    /// Repetition penalty.
    pub repetition_penalty: f32,
    /// Number of candidates.
    pub top_k: u32,
    /// Nonzero: to sample at all.
    pub do_sample: u8,
    /// Zero; readers ignore it.
    pub _pad0: [u8; 7],
}
const _: () = assert!(size_of::<ClaimedSampling>() == 40);
record!(ClaimedSampling, min_prefix: 40);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::Options(_) => Status::RejectBounds,
            Error::Checkpoint(CheckpointError::Read { .. }) => Status::UnknownHandle,
            Error::Backend(BackendError::NoDevice { .. } | BackendError::CannotSpread { .. }) | Error::NoVocabulary => {
                Status::Unsupported
            }
            Error::Backend(_) | Error::Runtime(_) => Status::NeedsReplan,
            Error::Core(CoreError::Items { .. } | CoreError::Arena { .. }) => Status::RejectBounds,
            Error::Core(CoreError::Memory) => Status::RejectBudget,
            Error::Core(_) => Status::Unsupported,
            Error::NotInWorker { .. } => Status::Unsupported,
            #[cfg(all(feature = "worker", target_os = "linux"))]
            Error::NoWorker(_) => Status::UnknownHandle,
            #[cfg(all(feature = "worker", target_os = "linux"))]
            Error::Worker(_) => Status::Fatal,
            #[cfg(not(all(feature = "worker", target_os = "linux")))]
            Error::NoWorkers => Status::Unsupported,
            Error::PlanTooLarge | Error::OverBudget { .. } => Status::RejectBudget,
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
    let arithmetic = match source.arithmetic {
        arithmetic::EXACT => Arithmetic::Exact,
        arithmetic::FAST => Arithmetic::Fast,
        other => return Err(Failure::new(Status::RejectBounds, format_args!("option arithmetic is {other}"))),
    };
    let kv_type = match source.kv_type {
        kv_type::DEFAULT => None,
        kv_type::F16 => Some(KvType::F16),
        kv_type::F32 => Some(KvType::F32),
        other => return Err(Failure::new(Status::RejectBounds, format_args!("option kv_type is {other}"))),
    };
    let OpenOptions {
        threads,
        page_size_tokens,
        context_tokens,
        max_lanes,
        pool_tokens,
        prefill_step_tokens,
        memory_budget_bytes,
        cache_tokens,
        cache_export_tokens,
        op_slice_bytes,
        grammar_document_bytes,
        grammar_depth,
        grammar_compile_fuel,
        grammar_mask_fuel,
        grammar_mask_items,
        grammar_lexer_states,
        device_index,
        device_mask,
        ..
    } = *source;
    let instruction_set = match source.instruction_set {
        instruction_set::BEST => None,
        number => match InstructionSet::ALL.iter().find(|&&set| set as u32 == number) {
            Some(&set) => Some(set),
            None => return Err(Failure::new(Status::RejectBounds, format_args!("option instruction_set is {number}"))),
        },
    };
    let op_fast_checksum = match source.op_fast_checksum {
        0 => false,
        1 => true,
        other => return Err(Failure::new(Status::RejectBounds, format_args!("option op_fast_checksum is {other}"))),
    };
    let options = ModelOptions {
        device,
        device_index,
        device_mask,
        threads,
        host_threads: host_threads(source),
        instruction_set,
        arithmetic,
        kv_type,
        page_size_tokens,
        context_tokens,
        pool_tokens,
        max_lanes,
        prefill_step_tokens,
        memory_budget_bytes,
        cache_tokens,
        cache_export_tokens,
        op_slice_bytes,
        op_fast_checksum,
        grammar_document_bytes,
        grammar_depth,
        grammar_compile_fuel,
        grammar_mask_fuel,
        grammar_mask_items,
        grammar_lexer_states,
    };
    options.check().map_err(|error| Failure::from(Error::from(error)))?;
    Ok(options)
}

/// The host's parallel-for, if it brings one.
fn host_threads(source: &OpenOptions) -> Option<HostThreads> {
    /// A call that the host was lent.
    ///
    /// # Safety
    /// - `job` is what the host's parallel-for got, of a model that has not been freed.
    unsafe extern "C" fn call(job: *mut c_void, index: u32) {
        // SAFETY: by the promise of the host; the model keeps it until it is freed.
        let lent = unsafe { &*job.cast::<Lent>() };
        lent.call(index as usize);
    }
    /// The host's `user`, which any thread that ticks may hand over.
    struct User(*mut c_void);
    // SAFETY: the engine does nothing with it but pass it back; the host calls from the threads that it chooses to tick on.
    unsafe impl Send for User {}
    // SAFETY: as for `Send`; ticks of a model come one at a time.
    unsafe impl Sync for User {}
    impl User {
        fn get(&self) -> *mut c_void {
            self.0
        }
    }
    let (on_parallel, user) = (source.on_parallel?, User(source.parallel_user));
    Some(HostThreads::lending(move |calls, lent| {
        let job = std::sync::Arc::as_ptr(lent).cast_mut().cast();
        // SAFETY: the caller of `ictus_model_open` promises that the callback may be called with its user while the model lives.
        unsafe { on_parallel(user.get(), calls as u32, Some(call), job) };
    }))
}

/// Reads options of the host; NULL is all defaults.
///
/// # Safety
/// As [`versioned`].
pub(super) unsafe fn read_options(source: *const OpenOptions) -> Result<OpenOptions, Status> {
    match source.is_null() {
        true => Ok(OpenOptions::zeroed()),
        // SAFETY: the promise of this function.
        false => unsafe { versioned(source) },
    }
}

/// Runs the body of a call that has no model yet; why it failed goes into the caller's buffer, cut to fit.
pub(super) fn without_model(error_text: Result<Buffer<u8>, Status>, body: impl FnOnce() -> Outcome<()>) -> StatusCode {
    let error_text = match error_text {
        Ok(error_text) => error_text,
        Err(status) => return status.code(),
    };
    let outcome = contain(body).unwrap_or_else(|message| Err(Failure::new(Status::Fatal, message)));
    let Err(failure) = outcome else { return Status::Ok.code() };
    error_text.fill_text(&failure.to_string());
    failure.status.code()
}

/// Opens a model file; the log is the one that its options name.
pub(super) fn open_model(path: &str, source: &OpenOptions) -> Outcome<(Model, Log)> {
    let options = options(source)?;
    let log = Log::new(source.log_level, source.on_log, source.log_user)?;
    let mut tell = |progress: Progress| {
        let Some(callback) = source.on_progress else { return ControlFlow::Continue(()) };
        // SAFETY: the caller of `ictus_model_open` promises that the callback may be called with its user during the call.
        let answer = unsafe { callback(source.progress_user, progress.done_bytes, progress.total_bytes) };
        if answer == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let model = Model::open_with_progress(path, &options, &mut tell)?;
    log.line(
        log_level::INFO,
        &format!("opened {path}: {} with {} tokens of context", model.name(), model.context_tokens()),
    );
    Ok((model, log))
}

/// Where the engine is to be, when not in this process. `program` is the text of the record's `worker`.
fn worker_options(program: &str, source: &OpenOptions) -> WorkerOptions {
    let default = WorkerOptions::default();
    WorkerOptions {
        program: (!program.is_empty()).then(|| program.into()),
        tick_timeout: match source.worker_timeout_ms {
            0 => default.tick_timeout,
            limit => Some(Duration::from_millis(limit.into())),
        },
        restarts: match source.worker_restarts {
            0 => default.restarts,
            NO_RESTARTS => 0,
            restarts => restarts,
        },
    }
}

fn open(path: &str, source: &OpenOptions, worker: Option<&str>) -> Outcome<ModelHandle> {
    let (model, log) = open_model(path, source)?;
    let engine = match worker {
        None => model.engine()?,
        Some(program) => model.engine_in_worker(&worker_options(program, source))?,
    };
    Ok(bundle::insert(engine, Some(model), log))
}

/// Opens a model and makes an engine of it. The file is mapped: keep it as it is while the model lives.
///
/// `path`: a GGUF file or a Hugging Face directory, NUL-terminated. `options` may be NULL: all defaults. `error_text`: where the reason of a
/// failure goes, NUL-terminated and cut to `error_capacity` bytes; NULL with 0 when it is not wanted.
/// Owner: `*model` is the host's, which releases it with `ictus_model_free`. Threads: any; callbacks of the options run on this one.
/// Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (the file cannot be read, or there is no worker program), `ICTUS_REJECT_BAD_STRUCT` (it is not a model, or options too short),
/// `ICTUS_REJECT_BOUNDS` (an option), `ICTUS_ERR_OP_UNSUPPORTED` (device, model without a vocabulary, an option that a worker cannot
/// have, workers in a build without them), `ICTUS_ERR_FATAL` (a worker did not get as far as serving), `ICTUS_NEEDS_REPLAN` (memory
/// could not be had, or the weights do not fit the model), `ICTUS_REJECT_BUDGET` (more than the budget, or sizes beyond 64 bits), `ICTUS_EBUSY` (the progress
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
        // SAFETY: as above; of a shorter record it is NULL.
        let worker = unsafe { optional_text(options.worker) }?;
        // SAFETY: as above.
        let model = unsafe { out(model) }?;
        model.set(open(path, &options, worker)?);
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
            weights_bytes: memory.weights_bytes,
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

/// What the model recommends for sampling. Set `defaults->struct_size` before the call.
///
/// Threads: any; one at a time. Codes: `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_ERR_OP_UNSUPPORTED` (an engine without a model file).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_model_sampling_defaults(
    model: ModelHandle,
    defaults: *mut ClaimedSampling,
) -> StatusCode {
    status(model, "ictus_model_sampling_defaults", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let target = unsafe { sized_out(defaults) }?;
        let claims = inside.model()?.sampling_defaults().unwrap_or_default();
        let bit = |claimed: bool, bit: u32| if claimed { bit } else { 0 };
        target.set(ClaimedSampling {
            struct_size: target.bytes(),
            claimed: bit(claims.temperature.is_some(), claim::TEMPERATURE)
                | bit(claims.top_p.is_some(), claim::TOP_P)
                | bit(claims.min_p.is_some(), claim::MIN_P)
                | bit(claims.repetition_penalty.is_some(), claim::REPETITION_PENALTY)
                | bit(claims.top_k.is_some(), claim::TOP_K)
                | bit(claims.do_sample.is_some(), claim::DO_SAMPLE),
            temperature: claims.temperature.unwrap_or_default(),
            top_p: claims.top_p.unwrap_or_default(),
            min_p: claims.min_p.unwrap_or_default(),
            repetition_penalty: claims.repetition_penalty.unwrap_or_default(),
            top_k: claims.top_k.unwrap_or_default(),
            do_sample: claims.do_sample.unwrap_or_default().into(),
            _pad0: [0; 7],
        });
        Ok(())
    })
}

fn count(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
