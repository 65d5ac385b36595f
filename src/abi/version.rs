//! Which library this is, and which records it speaks.

use core::ffi::{CStr, c_char};
use std::sync::LazyLock;

use crate::record::layout;

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("the version of a package has no NUL"),
};

/// The version of the library as text, for example `0.1.0`; `ICTUS_VERSION` is that of the header. Never NULL.
///
/// Owner: the library, for ever. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn ictus_version() -> *const c_char {
    VERSION.as_ptr()
}

/// Hash of the layouts of all records and the values of all constants of tick schema draft 7 in the library; `ICTUS_ABI_HASH` is
/// that of the header. When the two are equal, library and host agree on every byte.
///
/// It is XXH3-64 of the file `tests/abi-layout.tsv` of the source. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn ictus_abi_hash() -> u64 {
    // Constant, so computing it once changes no answer.
    static HASH: LazyLock<u64> = LazyLock::new(layout::abi_hash);
    *HASH
}
