//! What an engine has to say, to whom it may concern: a callback per model, silent by default, and the text of the last error.

use core::ffi::{c_char, c_void};
use std::ffi::CString;

use super::bundle::{ModelHandle, StatusCode, beside, status};
use super::constant::log_level;
use super::guard::{buffer, hand_over_text, out};
use crate::record::Status;

/// Told one line: its level (`ICTUS_LOG_*`) and its text, which is valid for this call only.
///
/// It runs on the thread that made the call on the model, and must not call back into that model.
pub type LogFn = Option<unsafe extern "C" fn(user: *mut c_void, level: u32, text: *const c_char)>;

/// Where lines go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Log {
    level: u32,
    callback: LogFn,
    user: *mut c_void,
}

// SAFETY:
// - The pointer is only passed back to the callback it came with; whoever installed the two promised that the callback may be
//   called on any thread that calls into the model (documentation of `ictus_model_log`).
unsafe impl Send for Log {}

impl Log {
    /// Says nothing.
    pub(super) const fn silent() -> Self {
        Self { level: log_level::OFF, callback: None, user: core::ptr::null_mut() }
    }

    /// Checks the level.
    pub(super) fn new(level: u32, callback: LogFn, user: *mut c_void) -> Result<Self, Status> {
        if level > log_level::INFO {
            return Err(Status::RejectBounds);
        }
        Ok(Self { level, callback, user })
    }

    /// A call that failed.
    pub(super) fn failure(&self, status: Status, text: &str) {
        self.line(if status == Status::Fatal { log_level::ERROR } else { log_level::WARN }, text);
    }

    /// Something worth knowing.
    pub(super) fn line(&self, level: u32, text: &str) {
        let Some(callback) = self.callback.filter(|_| level <= self.level) else { return };
        let Ok(text) = CString::new(text.replace('\0', " ")) else { return };
        // SAFETY:
        // - Whoever installed the callback promised that it may be called with `user` while the model lives.
        // - `text` is a NUL-terminated string that outlives the call.
        unsafe { callback(self.user, level, text.as_ptr()) };
    }
}

/// Sends what the model has to say to a callback, up to a level (`ICTUS_LOG_*`); a NULL callback silences it, as it is at first.
///
/// The callback and `user` are kept until they are replaced or the model is released, and must work on every thread that calls
/// into the model. What is logged changes no result.
/// Codes: `ICTUS_REJECT_BOUNDS` (level). On failure the old callback stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_model_log(
    model: ModelHandle,
    level: u32,
    callback: LogFn,
    user: *mut c_void,
) -> StatusCode {
    status(model, "ictus_model_log", |inside| {
        inside.log = Log::new(level, callback, user)?;
        Ok(())
    })
}

/// Copies the text of the last failed call on the model, empty when there was none.
///
/// `text_bytes` is the length without the closing NUL, written also when the buffer is too small. Any thread may ask, also while
/// another one ticks. Calls that found no model leave no text.
/// Codes: `ICTUS_ERR_BUFFER_TOO_SMALL` (nothing is written to `text`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_model_last_error(
    model: ModelHandle,
    text: *mut c_char,
    capacity: u64,
    text_bytes: *mut u64,
) -> StatusCode {
    beside(model, |bundle| {
        // SAFETY: the caller's pointers, as the module's documentation asks.
        let (buffer, text_bytes) = (unsafe { buffer(text.cast::<u8>(), capacity) }?, unsafe { out(text_bytes) }?);
        Ok(hand_over_text(bundle.last_error().as_bytes(), &buffer, text_bytes)?)
    })
}
