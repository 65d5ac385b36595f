#![forbid(unsafe_code)]
//! Constants of the extension functions; those of the records are in [`record::constant`](crate::record::constant).

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

/// Element types of cached keys and values.
pub mod kv_type {
    /// Single precision.
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

/// No token.
pub const NO_TOKEN: u32 = u32::MAX;

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
    "TOKEN" {
        "ICTUS_NO_TOKEN" = NO_TOKEN,
    }
}
