//! Statuses as text.

use core::ffi::{CStr, c_char};

use crate::record::{Status, explain};

/// What a status means, in a few words.
pub(super) fn meaning(status: Status) -> &'static CStr {
    match status {
        Status::Ok => c"success",
        Status::Fatal => c"the runtime is broken; release the model",
        Status::RejectBadStride => c"the stride of an array is smaller than its record",
        Status::RejectBadAlignment => c"a pointer is misaligned, or NULL with elements",
        Status::RejectBounds => c"a value or a span is out of range",
        Status::RejectBadRefGeneration => c"the ring slot was recycled or never written",
        Status::RejectUnknownLane => c"no such live lane",
        Status::RejectDuplicateLane => c"a lane is named twice in one array",
        Status::RejectIllegalCombination => c"well-formed, but not allowed together or now",
        Status::RejectBudget => c"over a declared capacity",
        Status::RejectStaleSeed => c"the seed is unknown, expired, used, or does not match the admit",
        Status::RejectHostRules => c"the protocol of a HOST lane was broken",
        Status::RejectTransferLocked => c"an operation is in flight on the sequence of a lane",
        Status::RejectStaleNonce => c"the commit names another row",
        Status::NeedsReplan => c"pool, slots and envelope cannot serve this",
        Status::RejectBadStruct => c"a required pointer is NULL, a record too short, or a document does not parse",
        Status::Busy => c"in use, or called from one of its own callbacks",
        Status::BufferTooSmall => c"the buffer is too small",
        Status::StaleSizing => c"no live sizing has this generation, length and encoding",
        Status::OutOfBoundary => c"the state cannot be cut or published there",
        Status::EnvelopeMismatch => c"the envelope is malformed or of another kind",
        Status::Checksum => c"the checksum of the payload differs",
        Status::IdentityMismatch => c"state of another runtime, version or weights",
        Status::Unsupported => c"not offered by this engine",
        Status::RegistrationRefused => c"the strategy was refused",
        Status::UnknownHandle => c"no such model, sequence, operation or other handle",
        Status::SeedUnservable => c"no cached state serves this prefix",
        Status::RingLayout => c"a ring does not look as its descriptor says",
        Status::RejectCertUnmatched => c"no certificate at or above the floor",
    }
}

/// What a status means, in a few English words; for a number that is no status, that it is none. Never NULL.
///
/// Owner: the library, for ever. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn ictus_status_text(status: i32) -> *const c_char {
    let text = Status::from_code(status).map_or(c"no status of this library; treat it as fatal", meaning);
    text.as_ptr()
}

/// A sentence or two on a status: what it means, and what a host does about it. Never NULL.
///
/// Owner: the library, for ever. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn ictus_explain(status: i32) -> *const c_char {
    Status::from_code(status).map_or(c"No status of this library; treat it as fatal.", explain::status).as_ptr()
}

/// As `ictus_explain`, for the code of a lane fault (`ICTUS_FAULT_*`).
#[unsafe(no_mangle)]
pub extern "C" fn ictus_explain_fault(code: u32) -> *const c_char {
    explain::fault_text(code).unwrap_or(c"No fault of this library.").as_ptr()
}

/// As `ictus_explain`, for the reason that a lane stopped (`ICTUS_FINISH_*`).
#[unsafe(no_mangle)]
pub extern "C" fn ictus_explain_finish(finish: u32) -> *const c_char {
    explain::finish_text(finish).unwrap_or(c"No finish of this library.").as_ptr()
}

/// As `ictus_explain`, for the kind of a shed entry (`ICTUS_SHED_*`).
#[unsafe(no_mangle)]
pub extern "C" fn ictus_explain_shed(kind: u32) -> *const c_char {
    explain::shed_text(kind).unwrap_or(c"No kind of this library.").as_ptr()
}

/// As `ictus_explain`, for what became of an admit (`ICTUS_ADMIT_*`).
#[unsafe(no_mangle)]
pub extern "C" fn ictus_explain_admit(status: u32) -> *const c_char {
    explain::admit_text(status).unwrap_or(c"No result of this library.").as_ptr()
}
