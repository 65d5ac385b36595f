#![forbid(unsafe_code)]
//! Constants of the extension functions; those of the records are in [`record::constant`](crate::record::constant).

pub mod executor;

use self::executor::{
    admission_flag, bad, end, executor_fault, executor_flag, executor_state, feature, fit, logits, out, refusal,
    sequence_state, work,
};
use crate::record::layout::{Constant, ConstantGroup};

/// How much an engine says through its log callback.
pub mod log_level {
    /// Nothing.
    pub const OFF: u32 = 0;
    /// What breaks the model.
    pub const ERROR: u32 = 1;
    /// And refused calls.
    pub const WARN: u32 = 2;
    /// And what was opened and released.
    pub const INFO: u32 = 3;
}

/// Where a model runs.
pub mod device {
    /// The processor.
    pub const CPU: u32 = 0;
    /// A CUDA device.
    pub const CUDA: u32 = 1;
}

/// Instructions of a processor.
pub mod instruction_set {
    use crate::open::InstructionSet;

    /// The best that the processor has.
    pub const BEST: u32 = 0;
    /// What every processor of the target has.
    pub const PORTABLE: u32 = InstructionSet::Portable as u32;
    /// x86-64 with AVX2, FMA and F16C.
    pub const AVX2: u32 = InstructionSet::Avx2 as u32;
    /// x86-64 with AVX-512 F, BW, VL and DQ, and all of AVX2.
    pub const AVX512: u32 = InstructionSet::Avx512 as u32;
    /// The same, with AVX-512 VNNI.
    pub const AVX512_VNNI: u32 = InstructionSet::Avx512Vnni as u32;
    /// AArch64 with NEON.
    pub const NEON: u32 = InstructionSet::Neon as u32;
    /// AArch64 with NEON and `dotprod`.
    pub const NEON_DOTPROD: u32 = InstructionSet::NeonDot as u32;
}

/// How products with quantised weights are computed.
pub mod arithmetic {
    /// With f32 activations: nothing is rounded.
    pub const EXACT: u32 = 0;
    /// With activations rounded to 8 bits, block by block.
    pub const FAST: u32 = 1;
}

/// Element types of cached keys and values.
pub mod kv_type {
    /// Single precision for exact arithmetic, half precision for fast.
    pub const DEFAULT: u32 = 0;
    /// Half precision.
    pub const F16: u32 = 1;
    /// Single precision: nothing is rounded.
    pub const F32: u32 = 2;
}

/// How text becomes tokens and back.
pub mod text_flag {
    /// Puts the tokens around a text that the model wants.
    pub const ADD_SPECIAL: u32 = 1;
    /// Takes the text of a control token for that token.
    pub const PARSE_SPECIAL: u32 = 2;
    /// Writes control tokens out.
    pub const SHOW_SPECIAL: u32 = 4;
    /// All of them.
    pub(in crate::abi) const ALL: u32 = ADD_SPECIAL | PARSE_SPECIAL | SHOW_SPECIAL;
}

/// Bits of the chat flags.
pub mod chat_flag {
    /// Ends the prompt where the model's answer begins.
    pub const GENERATION_PROMPT: u32 = 1;
}

/// Bits of the flags of a driver.
pub mod driver_flag {
    /// It has a thread of its own.
    pub const THREAD: u32 = 1;
    /// All of them.
    pub(in crate::abi) const ALL: u32 = THREAD;
}

/// Bits of the flags of a request.
pub mod request_flag {
    /// Its state is not kept in the prefix cache.
    pub const NO_PUBLISH: u32 = 1;
    /// It may start from cached state that was rounded.
    pub const BEST_EFFORT: u32 = 2;
    /// All of them.
    pub(in crate::abi) const ALL: u32 = NO_PUBLISH | BEST_EFFORT;
}

/// What a step of a driver did.
pub mod driver_progress {
    /// There is nothing to do until something is submitted.
    pub const IDLE: u32 = 0;
    /// The model ticked, or requests ended; there may be more to do.
    pub const WORKED: u32 = 1;
    /// The model refuses every plan for now, because an operation moves the state of a lane.
    pub const STALLED: u32 = 2;
}

/// Kinds of events of a driver.
pub mod driver_event {
    /// None came.
    pub const NONE: u32 = 0;
    /// The request was admitted.
    pub const STARTED: u32 = 1;
    /// It said something.
    pub const TOKENS: u32 = 2;
    /// It is over.
    pub const FINISHED: u32 = 3;
}

/// Why a request is over.
pub mod driver_finish {
    /// It is not.
    pub const NONE: u32 = 0;
    /// The model said an end token.
    pub const END_TOKEN: u32 = 1;
    /// It said a stop token.
    pub const STOP_TOKEN: u32 = 2;
    /// Its text came to a stop string.
    pub const STOP_STRING: u32 = 3;
    /// The grammar is complete.
    pub const GRAMMAR: u32 = 4;
    /// It said as many tokens as it may.
    pub const MAX_TOKENS: u32 = 5;
    /// The context is full.
    pub const CONTEXT_FULL: u32 = 6;
    /// The host wanted it to end.
    pub const CANCELLED: u32 = 7;
    /// Its deadline passed.
    pub const DEADLINE: u32 = 8;
    /// Its lane faulted.
    pub const FAULT: u32 = 9;
    /// It could not go on; the status says why.
    pub const FAILED: u32 = 10;
    /// The driver ended.
    pub const CLOSED: u32 = 11;
}

/// Which members of sampling defaults a model claims.
pub mod claim {
    /// `temperature`.
    pub const TEMPERATURE: u32 = 1;
    /// `top_p`.
    pub const TOP_P: u32 = 2;
    /// `min_p`.
    pub const MIN_P: u32 = 4;
    /// `repetition_penalty`.
    pub const REPETITION_PENALTY: u32 = 8;
    /// `top_k`.
    pub const TOP_K: u32 = 16;
    /// `do_sample`.
    pub const DO_SAMPLE: u32 = 32;
}

/// Domains, as records number them; 0 says nothing.
pub mod domain {
    use crate::capacity::Domain;

    /// Of none in particular.
    pub const UNSPECIFIED: u32 = 0;
    /// Sequences.
    pub const SLOTS: u32 = Domain::Slots.code();
    /// Pages of the pool.
    pub const BLOCKS: u32 = Domain::Blocks.code();
    /// Scratch memory of a step.
    pub const WORKSPACE: u32 = Domain::Workspace.code();
    /// Host memory for exports.
    pub const HOST_EXPORT: u32 = Domain::HostExport.code();
    /// Device bytes of this core.
    pub const BUDGET: u32 = Domain::Budget.code();
    /// Device bytes of all cores.
    pub const DEVICE: u32 = Domain::Device.code();
    /// Runs under way.
    pub const FLIGHT: u32 = Domain::Flight.code();
}

/// What helps.
pub mod remedy {
    use crate::capacity::Remedy;

    /// Wait.
    pub const WAIT: u32 = Remedy::Wait as u32;
    /// Grow.
    pub const GROW: u32 = Remedy::Grow as u32;
    /// Take a victim.
    pub const RECOMPUTE: u32 = Remedy::Recompute as u32;
    /// Wait for a run to end.
    pub const QUIESCE: u32 = Remedy::Quiesce as u32;
}

/// How something is short.
pub mod lack {
    use crate::capacity::Lack;

    /// What has to be free besides.
    pub const FIT: u32 = Lack::Fit as u32;
    /// What is taken.
    pub const NOW: u32 = Lack::Now as u32;
    /// More than is installed.
    pub const GROWTH: u32 = Lack::Growth as u32;
    /// More than can ever be there.
    pub const NEVER: u32 = Lack::Never as u32;
}

/// No token.
pub const NO_TOKEN: u32 = u32::MAX;

/// A worker that dies is not replaced.
pub const NO_RESTARTS: u32 = u32::MAX;

macro_rules! extension {
    ($($group:literal { $($name:literal = $value:path,)* })*) => {
        /// The constants of the extensions as a table, for the header and its tests.
        pub const EXTENSION_GROUPS: &[ConstantGroup] = &[$(
            ConstantGroup { name: $group, constants: &[$(Constant { name: $name, value: $value as i64 },)*] },
        )*];
    };
}

extension! {
    "LOG_LEVEL" {
        "ICTUS_LOG_OFF" = log_level::OFF,
        "ICTUS_LOG_ERROR" = log_level::ERROR,
        "ICTUS_LOG_WARN" = log_level::WARN,
        "ICTUS_LOG_INFO" = log_level::INFO,
    }
    "DEVICE" {
        "ICTUS_DEVICE_CPU" = device::CPU,
        "ICTUS_DEVICE_CUDA" = device::CUDA,
    }
    "INSTRUCTION_SET" {
        "ICTUS_INSTRUCTION_SET_BEST" = instruction_set::BEST,
        "ICTUS_INSTRUCTION_SET_PORTABLE" = instruction_set::PORTABLE,
        "ICTUS_INSTRUCTION_SET_AVX2" = instruction_set::AVX2,
        "ICTUS_INSTRUCTION_SET_AVX512" = instruction_set::AVX512,
        "ICTUS_INSTRUCTION_SET_AVX512_VNNI" = instruction_set::AVX512_VNNI,
        "ICTUS_INSTRUCTION_SET_NEON" = instruction_set::NEON,
        "ICTUS_INSTRUCTION_SET_NEON_DOTPROD" = instruction_set::NEON_DOTPROD,
    }
    "ARITHMETIC" {
        "ICTUS_ARITHMETIC_EXACT" = arithmetic::EXACT,
        "ICTUS_ARITHMETIC_FAST" = arithmetic::FAST,
    }
    "KV_TYPE" {
        "ICTUS_KV_DEFAULT" = kv_type::DEFAULT,
        "ICTUS_KV_F16" = kv_type::F16,
        "ICTUS_KV_F32" = kv_type::F32,
    }
    "TEXT_FLAG" {
        "ICTUS_TEXT_ADD_SPECIAL" = text_flag::ADD_SPECIAL,
        "ICTUS_TEXT_PARSE_SPECIAL" = text_flag::PARSE_SPECIAL,
        "ICTUS_TEXT_SHOW_SPECIAL" = text_flag::SHOW_SPECIAL,
    }
    "CHAT_FLAG" {
        "ICTUS_CHAT_GENERATION_PROMPT" = chat_flag::GENERATION_PROMPT,
    }
    "DRIVER_FLAG" {
        "ICTUS_DRIVER_THREAD" = driver_flag::THREAD,
    }
    "REQUEST_FLAG" {
        "ICTUS_REQUEST_NO_PUBLISH" = request_flag::NO_PUBLISH,
        "ICTUS_REQUEST_BEST_EFFORT" = request_flag::BEST_EFFORT,
    }
    "DRIVER_PROGRESS" {
        "ICTUS_DRIVER_IDLE" = driver_progress::IDLE,
        "ICTUS_DRIVER_WORKED" = driver_progress::WORKED,
        "ICTUS_DRIVER_STALLED" = driver_progress::STALLED,
    }
    "DRIVER_EVENT" {
        "ICTUS_EVENT_NONE" = driver_event::NONE,
        "ICTUS_EVENT_STARTED" = driver_event::STARTED,
        "ICTUS_EVENT_TOKENS" = driver_event::TOKENS,
        "ICTUS_EVENT_FINISHED" = driver_event::FINISHED,
    }
    "DRIVER_FINISH" {
        "ICTUS_DRIVER_FINISH_NONE" = driver_finish::NONE,
        "ICTUS_DRIVER_FINISH_END_TOKEN" = driver_finish::END_TOKEN,
        "ICTUS_DRIVER_FINISH_STOP_TOKEN" = driver_finish::STOP_TOKEN,
        "ICTUS_DRIVER_FINISH_STOP_STRING" = driver_finish::STOP_STRING,
        "ICTUS_DRIVER_FINISH_GRAMMAR" = driver_finish::GRAMMAR,
        "ICTUS_DRIVER_FINISH_MAX_TOKENS" = driver_finish::MAX_TOKENS,
        "ICTUS_DRIVER_FINISH_CONTEXT_FULL" = driver_finish::CONTEXT_FULL,
        "ICTUS_DRIVER_FINISH_CANCELLED" = driver_finish::CANCELLED,
        "ICTUS_DRIVER_FINISH_DEADLINE" = driver_finish::DEADLINE,
        "ICTUS_DRIVER_FINISH_FAULT" = driver_finish::FAULT,
        "ICTUS_DRIVER_FINISH_FAILED" = driver_finish::FAILED,
        "ICTUS_DRIVER_FINISH_CLOSED" = driver_finish::CLOSED,
    }
    "CLAIM" {
        "ICTUS_CLAIMS_TEMPERATURE" = claim::TEMPERATURE,
        "ICTUS_CLAIMS_TOP_P" = claim::TOP_P,
        "ICTUS_CLAIMS_MIN_P" = claim::MIN_P,
        "ICTUS_CLAIMS_REPETITION_PENALTY" = claim::REPETITION_PENALTY,
        "ICTUS_CLAIMS_TOP_K" = claim::TOP_K,
        "ICTUS_CLAIMS_DO_SAMPLE" = claim::DO_SAMPLE,
    }
    "DOMAIN" {
        "ICTUS_DOMAIN_UNSPECIFIED" = domain::UNSPECIFIED,
        "ICTUS_DOMAIN_SLOTS" = domain::SLOTS,
        "ICTUS_DOMAIN_BLOCKS" = domain::BLOCKS,
        "ICTUS_DOMAIN_WORKSPACE" = domain::WORKSPACE,
        "ICTUS_DOMAIN_HOST_EXPORT" = domain::HOST_EXPORT,
        "ICTUS_DOMAIN_BUDGET" = domain::BUDGET,
        "ICTUS_DOMAIN_DEVICE" = domain::DEVICE,
        "ICTUS_DOMAIN_FLIGHT" = domain::FLIGHT,
    }
    "REMEDY" {
        "ICTUS_REMEDY_WAIT" = remedy::WAIT,
        "ICTUS_REMEDY_GROW" = remedy::GROW,
        "ICTUS_REMEDY_RECOMPUTE" = remedy::RECOMPUTE,
        "ICTUS_REMEDY_QUIESCE" = remedy::QUIESCE,
    }
    "LACK" {
        "ICTUS_LACK_FIT" = lack::FIT,
        "ICTUS_LACK_NOW" = lack::NOW,
        "ICTUS_LACK_GROWTH" = lack::GROWTH,
        "ICTUS_LACK_NEVER" = lack::NEVER,
    }
    "EXECUTOR_FLAG" {
        "ICTUS_EXECUTOR_UNMIXED" = executor_flag::UNMIXED,
    }
    "ADMISSION_FLAG" {
        "ICTUS_ADMISSION_REUSE" = admission_flag::REUSE,
        "ICTUS_ADMISSION_UNCOUNTED" = admission_flag::UNCOUNTED,
    }
    "FIT" {
        "ICTUS_FIT_NOW" = fit::NOW,
        "ICTUS_FIT_INPUT" = fit::INPUT,
        "ICTUS_FIT_CEILING" = fit::CEILING,
    }
    "WORK" {
        "ICTUS_WORK_PREFILL" = work::PREFILL,
        "ICTUS_WORK_DECODE" = work::DECODE,
        "ICTUS_WORK_VERIFY" = work::VERIFY,
    }
    "LOGITS" {
        "ICTUS_LOGITS_GREEDY" = logits::GREEDY,
        "ICTUS_LOGITS_FULL" = logits::FULL,
    }
    "OUT" {
        "ICTUS_OUT_SILENT" = out::SILENT,
        "ICTUS_OUT_LOGITS" = out::LOGITS,
        "ICTUS_OUT_TOKENS" = out::TOKENS,
        "ICTUS_OUT_NO_FINITE" = out::NO_FINITE,
        "ICTUS_OUT_FAULT" = out::FAULT,
    }
    "REFUSAL" {
        "ICTUS_REFUSAL_NONE" = refusal::NONE,
        "ICTUS_REFUSAL_BLOCKED" = refusal::BLOCKED,
        "ICTUS_REFUSAL_NEVER" = refusal::NEVER,
        "ICTUS_REFUSAL_UNSUPPORTED" = refusal::UNSUPPORTED,
        "ICTUS_REFUSAL_BAD" = refusal::BAD,
    }
    "BAD" {
        "ICTUS_BAD_BOUNDS" = bad::BOUNDS,
        "ICTUS_BAD_FRONTIER" = bad::FRONTIER,
        "ICTUS_BAD_DUPLICATE" = bad::DUPLICATE,
        "ICTUS_BAD_STALE" = bad::STALE,
        "ICTUS_BAD_FOREIGN" = bad::FOREIGN,
        "ICTUS_BAD_BUSY" = bad::BUSY,
        "ICTUS_BAD_FAULTED" = bad::FAULTED,
        "ICTUS_BAD_POLICY" = bad::POLICY,
        "ICTUS_BAD_CLOSED" = bad::CLOSED,
        "ICTUS_BAD_REGRESSED" = bad::REGRESSED,
        "ICTUS_BAD_EXHAUSTED" = bad::EXHAUSTED,
        "ICTUS_BAD_POISONED" = bad::POISONED,
    }
    "FEATURE" {
        "ICTUS_FEATURE_MIXED" = feature::MIXED,
        "ICTUS_FEATURE_VERIFY" = feature::VERIFY,
        "ICTUS_FEATURE_TRUNCATE" = feature::TRUNCATE,
        "ICTUS_FEATURE_GREEDY_DEVICE" = feature::GREEDY_DEVICE,
        "ICTUS_FEATURE_GROW" = feature::GROW,
        "ICTUS_FEATURE_EXPORT" = feature::EXPORT,
        "ICTUS_FEATURE_REUSE" = feature::REUSE,
        "ICTUS_FEATURE_ITEMS" = feature::ITEMS,
        "ICTUS_FEATURE_TOKENS" = feature::TOKENS,
    }
    "END" {
        "ICTUS_END_COMPLETED" = end::COMPLETED,
        "ICTUS_END_CANCELLED" = end::CANCELLED,
        "ICTUS_END_FAILED" = end::FAILED,
        "ICTUS_END_RECOMPUTE" = end::RECOMPUTE,
    }
    "EXECUTOR_FAULT" {
        "ICTUS_EXECUTOR_FAULT_CONTRACT" = executor_fault::CONTRACT,
        "ICTUS_EXECUTOR_FAULT_CANCELLED" = executor_fault::CANCELLED,
        "ICTUS_EXECUTOR_FAULT_DEVICE" = executor_fault::DEVICE,
        "ICTUS_EXECUTOR_FAULT_MEMORY" = executor_fault::MEMORY,
    }
    "SEQUENCE_STATE" {
        "ICTUS_SEQUENCE_INTACT" = sequence_state::INTACT,
        "ICTUS_SEQUENCE_LOST" = sequence_state::LOST,
        "ICTUS_SEQUENCE_HELD" = sequence_state::HELD,
    }
    "EXECUTOR_STATE" {
        "ICTUS_EXECUTOR_STATE_LOADING" = executor_state::LOADING,
        "ICTUS_EXECUTOR_STATE_READY" = executor_state::READY,
        "ICTUS_EXECUTOR_STATE_BUSY" = executor_state::BUSY,
        "ICTUS_EXECUTOR_STATE_FAULTED" = executor_state::FAULTED,
        "ICTUS_EXECUTOR_STATE_CLOSING" = executor_state::CLOSING,
    }
    "TOKEN" {
        "ICTUS_NO_TOKEN" = NO_TOKEN,
        "ICTUS_NO_RESTARTS" = NO_RESTARTS,
    }
}
