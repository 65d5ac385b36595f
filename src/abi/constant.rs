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
}
