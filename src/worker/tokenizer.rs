#![allow(
    unsafe_code,
    reason = "C functions with pointers: each names what it takes, and the module says once what callers promise"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "one contract for all functions stands below; a copy in each would say nothing more"
)]
//! The tokenizer library: ten C functions by which a host that has no tokenizer of its own uses a model's (spec section 16, W-89).
//!
//! The shared library of this crate exports them, so that `libictus.so` beside the worker, or in `../lib`, is the tokenizer library
//! of its models. They are no part of the header: who links ictus has the tokenizer in better functions.
//!
//! Functions that fill a buffer answer the size needed, in ids or bytes, and write at most `cap` of it; `(size_t)-1` is none.
//!
//! # Safety
//! Every function with pointers is unsafe for the same reasons, which its caller promises:
//! - A handle came from `superfluid_tokenizer_open` and was not closed; NULL is noticed.
//! - A pointer that is not NULL is valid for the length given beside it, texts up to their NUL.
//!
//! # Invariants
//! - A handle is only read, from any number of threads at once.
//! - No panic leaves a function: it is none, or the least answer.

use core::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::checkpoint::Checkpoint;
use crate::tokenizer::{EncodeOptions, Tokenizer};

/// There is none.
const NONE: usize = usize::MAX;

/// What a handle points at.
struct Opened {
    tokenizer: Tokenizer,
    chat_template: Option<String>,
    /// Special tokens as `superfluid_tokenizer_special_tokens` gives them.
    special: Vec<u8>,
}

const _: fn() = || {
    fn shared<T: Sync>() {}
    shared::<Opened>();
};

impl Opened {
    fn new(path: &str) -> Result<Self, String> {
        let checkpoint = Checkpoint::open(path).map_err(|error| error.to_string())?;
        let vocabulary = checkpoint.vocabulary().ok_or("the model has no vocabulary")?;
        let tokenizer = Tokenizer::new(vocabulary).map_err(|error| error.to_string())?;
        let mut special = Vec::new();
        for id in (0..tokenizer.vocab_size() as u32).filter(|&id| tokenizer.is_special(id)) {
            let text = tokenizer.token_bytes(id).unwrap_or_default();
            special.extend(id.to_le_bytes());
            special.extend((text.len() as u32).to_le_bytes());
            special.extend(text);
        }
        let chat_template = checkpoint.chat_template().map(str::to_owned);
        Ok(Self { tokenizer, chat_template, special })
    }
}

/// Runs `body` on what a handle points at; `none` for NULL and after a panic.
///
/// # Safety
/// `handle` is NULL or an open handle.
unsafe fn with<T>(handle: *const c_void, none: T, body: impl FnOnce(&Opened) -> T) -> T {
    // SAFETY: NULL, or a box that `open` leaked and nobody has closed, and that is only read: the promise of the caller.
    let Some(opened) = (unsafe { handle.cast::<Opened>().as_ref() }) else { return none };
    catch_unwind(AssertUnwindSafe(|| body(opened))).unwrap_or(none)
}

/// Copies as much of `values` as there is room for, and answers their number.
///
/// # Safety
/// `out` is NULL or valid for `cap` writes.
unsafe fn fill<T: Copy>(values: &[T], out: *mut T, cap: usize) -> usize {
    if !out.is_null() {
        // SAFETY: room for `cap`, of which no more is used: the promise of the caller; the values are nowhere near it.
        unsafe { core::ptr::copy_nonoverlapping(values.as_ptr(), out, values.len().min(cap)) };
    }
    values.len()
}

/// Version of these functions.
#[unsafe(no_mangle)]
pub extern "C" fn superfluid_tokenizer_abi_version() -> u32 {
    1
}

/// Reads the tokenizer of a model file or folder. NULL on failure; `err` then has a message with its NUL, cut to `err_len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn superfluid_tokenizer_open(
    model_path: *const c_char,
    err: *mut c_char,
    err_len: usize,
) -> *mut c_void {
    let open = || {
        if model_path.is_null() {
            return Err("no path".to_owned());
        }
        // SAFETY: not NULL, and a text up to its NUL: the promise of the caller.
        let path = unsafe { CStr::from_ptr(model_path) };
        Opened::new(path.to_str().map_err(|_| "the path is not UTF-8")?)
    };
    match catch_unwind(open).unwrap_or_else(|_| Err("a panic".to_owned())) {
        Ok(opened) => Box::into_raw(Box::new(opened)).cast(),
        Err(mut message) => {
            let mut len = err_len.saturating_sub(1).min(message.len());
            while !message.is_char_boundary(len) {
                len -= 1;
            }
            message.truncate(len);
            message.retain(|letter| letter != '\0');
            message.push('\0');
            // SAFETY: room for `err_len` bytes, or NULL: the promise of the caller.
            unsafe { fill(message.as_bytes(), err.cast(), err_len) };
            core::ptr::null_mut()
        }
    }
}

/// Gives a handle back. NULL is nothing to give back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn superfluid_tokenizer_close(handle: *mut c_void) {
    if handle.is_null() {
        return;
    }
    // SAFETY: a box that `open` leaked, and that nobody else uses or closes: the promise of the caller.
    let opened = unsafe { Box::from_raw(handle.cast::<Opened>()) };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(opened)));
}

/// The ids of a text, in which the texts of special tokens are recognised. No token is put before or behind it: that is the
/// template's. None for a text that is not UTF-8, or too long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn superfluid_tokenizer_encode(
    handle: *const c_void,
    text: *const u8,
    len: usize,
    out: *mut u32,
    cap: usize,
) -> usize {
    let body = |opened: &Opened| {
        let text: &[u8] = match text.is_null() || len == 0 {
            true => &[],
            // SAFETY: not NULL and `len` readable bytes: the promise of the caller.
            false => unsafe { core::slice::from_raw_parts(text, len) },
        };
        let options = EncodeOptions { add_special: false, parse_special: true };
        let ids = str::from_utf8(text).ok().and_then(|text| opened.tokenizer.encode(text, options).ok());
        // SAFETY: NULL or room for `cap` ids: the promise of the caller.
        ids.map_or(NONE, |ids| unsafe { fill(&ids, out, cap) })
    };
    // SAFETY: NULL or an open handle: the promise of the caller.
    unsafe { with(handle, NONE, body) }
}

/// The bytes of a token, which may end inside a character; 0 of a control token, none outside the vocabulary.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn superfluid_tokenizer_token_bytes(
    handle: *const c_void,
    id: u32,
    out: *mut u8,
    cap: usize,
) -> usize {
    let body = |opened: &Opened| {
        let Some(bytes) = opened.tokenizer.token_bytes(id) else { return NONE };
        let bytes = if opened.tokenizer.is_control(id) { &[] } else { bytes };
        // SAFETY: NULL or room for `cap` bytes: the promise of the caller.
        unsafe { fill(bytes, out, cap) }
    };
    // SAFETY: NULL or an open handle: the promise of the caller.
    unsafe { with(handle, NONE, body) }
}

/// The number of tokens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn superfluid_tokenizer_vocab_size(handle: *const c_void) -> u32 {
    // SAFETY: NULL or an open handle: the promise of the caller.
    unsafe { with(handle, 0, |opened| opened.tokenizer.vocab_size() as u32) }
}

/// The special tokens: for each one its id (u32), the length of its text (u32), both little-endian, and the text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn superfluid_tokenizer_special_tokens(handle: *const c_void, out: *mut u8, cap: usize) -> usize {
    let body = |opened: &Opened| {
        // SAFETY: NULL or room for `cap` bytes: the promise of the caller.
        unsafe { fill(&opened.special, out, cap) }
    };
    // SAFETY: NULL or an open handle: the promise of the caller.
    unsafe { with(handle, NONE, body) }
}

/// The token that begins a text, or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn superfluid_tokenizer_bos(handle: *const c_void) -> i64 {
    // SAFETY: NULL or an open handle: the promise of the caller.
    unsafe { with(handle, -1, |opened| opened.tokenizer.bos().map_or(-1, i64::from)) }
}

/// The token that ends a text; of a model that names none, the first one that ends its turns, or `UINT32_MAX`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn superfluid_tokenizer_eos(handle: *const c_void) -> u32 {
    let eos = |opened: &Opened| opened.tokenizer.eos().or_else(|| opened.tokenizer.end_ids().next());
    // SAFETY: NULL or an open handle: the promise of the caller.
    unsafe { with(handle, u32::MAX, |opened| eos(opened).unwrap_or(u32::MAX)) }
}

/// The source of a chat template: the model's for NULL and for `default`; none for another name, and where the model has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn superfluid_tokenizer_chat_template(
    handle: *const c_void,
    name_or_null: *const c_char,
    out: *mut u8,
    cap: usize,
) -> usize {
    let body = |opened: &Opened| {
        // SAFETY: looked at only when it is not NULL, and then a text up to its NUL: the promise of the caller.
        let named = !name_or_null.is_null() && unsafe { CStr::from_ptr(name_or_null) } != c"default";
        match &opened.chat_template {
            // SAFETY: NULL or room for `cap` bytes: the promise of the caller.
            Some(template) if !named => unsafe { fill(template.as_bytes(), out, cap) },
            _ => NONE,
        }
    };
    // SAFETY: NULL or an open handle: the promise of the caller.
    unsafe { with(handle, NONE, body) }
}
