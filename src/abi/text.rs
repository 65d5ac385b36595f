//! Text and tokens: the model's vocabulary and its chat template.

use core::ffi::c_char;
use std::collections::HashMap;

use super::bundle::{Inside, ModelHandle, StatusCode, status};
use super::constant::{chat_flag, text_flag};
use super::guard::{Failure, Outcome, buffer, hand_over, hand_over_text, list, out, text};
use crate::chat::{ChatOptions, ChatTemplate, Message};
use crate::record::Status;
use crate::tokenizer::{DecodeOptions, EncodeOptions, TextStream, Tokenizer};

/// One message of a chat.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ChatMessage {
    /// Who speaks: `system`, `user`, `assistant`, or what else the template knows; NUL-terminated.
    pub role: *const c_char,
    /// What they say; NUL-terminated.
    pub content: *const c_char,
}
const _: () = assert!(size_of::<ChatMessage>() == 16);

/// Texts that grow token by token, by number.
#[derive(Debug, Default)]
pub(super) struct Texts {
    last: u64,
    streams: HashMap<u64, Text>,
}

#[derive(Clone, Debug)]
struct Text {
    options: DecodeOptions,
    stream: TextStream,
}

impl Inside {
    fn tokenizer(&self) -> Outcome<&Tokenizer> {
        Ok(self.model()?.tokenizer())
    }
}

fn check_flags(flags: u32) -> Result<(), Status> {
    if flags & !text_flag::ALL == 0 { Ok(()) } else { Err(Status::RejectBounds) }
}

fn decode_options(flags: u32) -> Result<DecodeOptions, Status> {
    check_flags(flags)?;
    Ok(DecodeOptions { special: flags & text_flag::SHOW_SPECIAL != 0 })
}

/// The tokens of a text.
///
/// `text`: `text_bytes` bytes of UTF-8, which need no NUL. `flags`: `ICTUS_TEXT_ADD_SPECIAL`, `ICTUS_TEXT_PARSE_SPECIAL`.
/// `*n_tokens` is their number, written also when the buffer is too small: a first call with capacity 0 measures.
/// Threads: any; one at a time.
/// Codes: `ICTUS_ERR_BUFFER_TOO_SMALL` (`tokens` is as before), `ICTUS_REJECT_BAD_STRUCT` (not UTF-8), `ICTUS_REJECT_BOUNDS` (flags, or
/// a text too long), `ICTUS_ERR_OP_UNSUPPORTED` (an engine without a model file).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_model_tokenize(
    model: ModelHandle,
    text: *const c_char,
    text_bytes: u64,
    flags: u32,
    tokens: *mut u32,
    capacity: u64,
    n_tokens: *mut u64,
) -> StatusCode {
    status(model, "ictus_model_tokenize", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let text = unsafe { list(text.cast::<u8>(), text_bytes) }?;
        // SAFETY: as above.
        let target = unsafe { buffer(tokens, capacity) }?;
        // SAFETY: as above.
        let n_tokens = unsafe { out(n_tokens) }?;
        check_flags(flags)?;
        let text = str::from_utf8(text).map_err(|error| Failure::new(Status::RejectBadStruct, error))?;
        let options = EncodeOptions {
            add_special: flags & text_flag::ADD_SPECIAL != 0,
            parse_special: flags & text_flag::PARSE_SPECIAL != 0,
        };
        let encoded = inside.tokenizer()?.encode(text, options);
        let encoded = encoded.map_err(|error| Failure::because(Status::RejectBounds, &error))?;
        Ok(hand_over(&encoded, &target, n_tokens)?)
    })
}

/// The text of tokens, from the start of a text. A token may end inside a character, so the bytes need not be UTF-8; `ictus_text_push`
/// never cuts one.
///
/// `flags`: `ICTUS_TEXT_SHOW_SPECIAL`. A NUL follows the text and needs room; `*text_bytes` does not count it, and is written also when
/// the buffer is too small. Threads: any; one at a time.
/// Codes: `ICTUS_ERR_BUFFER_TOO_SMALL` (`text` is as before), `ICTUS_REJECT_BOUNDS` (flags, or a token outside the vocabulary),
/// `ICTUS_ERR_OP_UNSUPPORTED` (an engine without a model file).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_model_detokenize(
    model: ModelHandle,
    tokens: *const u32,
    n_tokens: u64,
    flags: u32,
    text: *mut c_char,
    capacity: u64,
    text_bytes: *mut u64,
) -> StatusCode {
    status(model, "ictus_model_detokenize", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let tokens = unsafe { list(tokens, n_tokens) }?;
        // SAFETY: as above.
        let target = unsafe { buffer(text.cast::<u8>(), capacity) }?;
        // SAFETY: as above.
        let text_bytes = unsafe { out(text_bytes) }?;
        let decoded = inside.tokenizer()?.decode(tokens, decode_options(flags)?);
        let decoded = decoded.map_err(|error| Failure::because(Status::RejectBounds, &error))?;
        Ok(hand_over_text(&decoded, &target, text_bytes)?)
    })
}

/// Whether a token ends a text: `*is_end` is 1 or 0. A token outside the vocabulary does not.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_OP_UNSUPPORTED` (an engine without a model file).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_model_is_end(model: ModelHandle, token: u32, is_end: *mut u32) -> StatusCode {
    status(model, "ictus_model_is_end", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let is_end = unsafe { out(is_end) }?;
        is_end.set(inside.tokenizer()?.is_eog(token).into());
        Ok(())
    })
}

/// Begins a text that grows token by token, as the continuation of a prompt. It keeps the bytes of a character that is not complete.
///
/// `flags`: `ICTUS_TEXT_SHOW_SPECIAL`.
/// Owner: `*text` is the host's, until `ictus_text_end`; the model's release ends it too. It is not 0, and no number comes twice.
/// Threads: any; one at a time. Codes: `ICTUS_REJECT_BOUNDS` (flags), `ICTUS_ERR_OP_UNSUPPORTED` (an engine without a model file).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_text_begin(model: ModelHandle, flags: u32, text: *mut u64) -> StatusCode {
    status(model, "ictus_text_begin", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let text = unsafe { out(text) }?;
        let options = decode_options(flags)?;
        inside.tokenizer()?;
        inside.texts.last += 1;
        inside.texts.streams.insert(inside.texts.last, Text { options, stream: TextStream::new() });
        text.set(inside.texts.last);
        Ok(())
    })
}

/// Appends a token and gives the text that is certain now and was not before, in whole characters; often none.
///
/// A NUL follows the text and needs room; `*piece_bytes` does not count it, and is written also when the buffer is too small.
/// Threads: any; one at a time.
/// Codes: `ICTUS_ERR_BUFFER_TOO_SMALL`, `ICTUS_REJECT_BOUNDS` (a token outside the vocabulary), `ICTUS_ERR_UNKNOWN_HANDLE` (no such text).
/// The text is as before then, and the token may be pushed again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_text_push(
    model: ModelHandle,
    text: u64,
    token: u32,
    piece: *mut c_char,
    capacity: u64,
    piece_bytes: *mut u64,
) -> StatusCode {
    status(model, "ictus_text_push", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let target = unsafe { buffer(piece.cast::<u8>(), capacity) }?;
        // SAFETY: as above.
        let piece_bytes = unsafe { out(piece_bytes) }?;
        let mut grown = inside.texts.streams.get(&text).ok_or(Status::UnknownHandle)?.clone();
        let tokenizer = inside.tokenizer()?;
        let bytes = tokenizer.token_bytes(token).ok_or(Status::RejectBounds)?;
        let hidden = tokenizer.is_control(token) && !grown.options.special;
        let mut certain = String::new();
        grown.stream.push(if hidden { &[] } else { bytes }, &mut certain);
        hand_over_text(certain.as_bytes(), &target, piece_bytes)?;
        inside.texts.streams.insert(text, grown);
        Ok(())
    })
}

/// Ends a text and gives what is left of it: U+FFFD when it ended inside a character, else nothing.
///
/// The buffer as with `ictus_text_push`; four bytes are enough. Threads: any; one at a time.
/// Codes: `ICTUS_ERR_BUFFER_TOO_SMALL` (it goes on), `ICTUS_ERR_UNKNOWN_HANDLE` (no such text).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_text_end(
    model: ModelHandle,
    text: u64,
    piece: *mut c_char,
    capacity: u64,
    piece_bytes: *mut u64,
) -> StatusCode {
    status(model, "ictus_text_end", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let target = unsafe { buffer(piece.cast::<u8>(), capacity) }?;
        // SAFETY: as above.
        let piece_bytes = unsafe { out(piece_bytes) }?;
        let mut ended = inside.texts.streams.get(&text).ok_or(Status::UnknownHandle)?.clone();
        let mut rest = String::new();
        ended.stream.finish(&mut rest);
        hand_over_text(rest.as_bytes(), &target, piece_bytes)?;
        inside.texts.streams.remove(&text);
        Ok(())
    })
}

/// Messages of the caller as the template takes them.
///
/// # Safety
/// `messages`, when not NULL, is valid for `n_messages` reads, and their texts up to their NULs, for `'a`.
unsafe fn conversation<'a>(messages: *const ChatMessage, n_messages: u64) -> Outcome<Vec<Message<'a>>> {
    // SAFETY: the promise of this function.
    let messages = unsafe { list(messages, n_messages) }?;
    let mut conversation = Vec::with_capacity(messages.len());
    for message in messages {
        // SAFETY: the promise of this function.
        let role = unsafe { text(message.role) }?;
        // SAFETY: as above.
        let content = unsafe { text(message.content) }?;
        conversation.push(Message { role, content });
    }
    Ok(conversation)
}

fn chat_options(flags: u32, now_unix_s: i64) -> Result<ChatOptions, Status> {
    if flags & !chat_flag::GENERATION_PROMPT != 0 {
        return Err(Status::RejectBounds);
    }
    let add_generation_prompt = flags & chat_flag::GENERATION_PROMPT != 0;
    Ok(ChatOptions { add_generation_prompt, now_unix_s: (now_unix_s >= 0).then_some(now_unix_s) })
}

fn template(inside: &Inside) -> Outcome<ChatTemplate> {
    let template = inside.model()?.chat_template();
    let template = template.map_err(|error| Failure::because(Status::RejectBadStruct, &error))?;
    template.ok_or_else(|| Failure::new(Status::Unsupported, "the model has no chat template"))
}

/// The prompt of a chat as text, by the model's template.
///
/// `flags`: `ICTUS_CHAT_GENERATION_PROMPT`. `now_unix_s`: the time for templates that write a date, in seconds since 1970; negative when
/// they shall not. The buffer as with `ictus_model_detokenize`. Threads: any; one at a time.
/// Codes: `ICTUS_ERR_BUFFER_TOO_SMALL` (`prompt` is as before), `ICTUS_REJECT_BAD_STRUCT` (the template refuses these messages, or a
/// text is not UTF-8), `ICTUS_REJECT_BOUNDS` (flags), `ICTUS_ERR_OP_UNSUPPORTED` (no template).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_model_chat_text(
    model: ModelHandle,
    messages: *const ChatMessage,
    n_messages: u64,
    flags: u32,
    now_unix_s: i64,
    prompt: *mut c_char,
    capacity: u64,
    prompt_bytes: *mut u64,
) -> StatusCode {
    status(model, "ictus_model_chat_text", |inside| {
        // SAFETY: the caller's pointers, as the module's documentation asks.
        let messages = unsafe { conversation(messages, n_messages) }?;
        // SAFETY: as above.
        let target = unsafe { buffer(prompt.cast::<u8>(), capacity) }?;
        // SAFETY: as above.
        let prompt_bytes = unsafe { out(prompt_bytes) }?;
        let rendered = template(inside)?.render(&messages, chat_options(flags, now_unix_s)?);
        let rendered = rendered.map_err(|error| Failure::because(Status::RejectBadStruct, &error))?;
        Ok(hand_over_text(rendered.as_bytes(), &target, prompt_bytes)?)
    })
}

/// The prompt of a chat as tokens, with the token that begins a text exactly once where the model wants it.
///
/// The buffer as with `ictus_model_tokenize`; the rest as `ictus_model_chat_text`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_model_chat_tokens(
    model: ModelHandle,
    messages: *const ChatMessage,
    n_messages: u64,
    flags: u32,
    now_unix_s: i64,
    tokens: *mut u32,
    capacity: u64,
    n_tokens: *mut u64,
) -> StatusCode {
    status(model, "ictus_model_chat_tokens", |inside| {
        // SAFETY: the caller's pointers, as the module's documentation asks.
        let messages = unsafe { conversation(messages, n_messages) }?;
        // SAFETY: as above.
        let target = unsafe { buffer(tokens, capacity) }?;
        // SAFETY: as above.
        let n_tokens = unsafe { out(n_tokens) }?;
        let options = chat_options(flags, now_unix_s)?;
        let encoded = template(inside)?.encode(inside.tokenizer()?, &messages, options);
        let encoded = encoded.map_err(|error| Failure::because(Status::RejectBadStruct, &error))?;
        Ok(hand_over(&encoded, &target, n_tokens)?)
    })
}
