//! Images and sounds in a prompt.

use core::ffi::c_char;

use super::bundle::{ModelHandle, StatusCode, status};
use super::guard::{out, text};
use crate::record::MediaInfo;

/// What a media file (NUL-terminated path) would become in a prompt; nothing is kept.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_OP_UNSUPPORTED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_media_probe(
    model: ModelHandle,
    path: *const c_char,
    info: *mut MediaInfo,
) -> StatusCode {
    status(model, "ictus_media_probe", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let path = unsafe { text(path) }?;
        // SAFETY: as above.
        let info = unsafe { out(info) }?;
        info.set(inside.engine.media_probe(path)?);
        Ok(())
    })
}

/// Encodes a media file (NUL-terminated path).
///
/// Owner: the features are the model's until they are released. Threads: any; one at a time.
/// Codes: `ICTUS_ERR_OP_UNSUPPORTED`. Nothing is kept then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_media_encode(
    model: ModelHandle,
    path: *const c_char,
    media: *mut u64,
    info: *mut MediaInfo,
) -> StatusCode {
    status(model, "ictus_media_encode", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let path = unsafe { text(path) }?;
        // SAFETY: as above.
        let media = unsafe { out(media) }?;
        // SAFETY: as above.
        let info = unsafe { out(info) }?;
        let (handle, about) = inside.engine.media_encode(path)?;
        media.set(handle);
        info.set(about);
        Ok(())
    })
}

/// Frees encoded media.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_ERR_OP_UNSUPPORTED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_media_release(model: ModelHandle, media: u64) -> StatusCode {
    status(model, "ictus_media_release", |inside| Ok(inside.engine.media_release(media)?))
}

/// Puts encoded media at a place in a lane's prompt. They are consumed in the order of their places, and dropped with the lane.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`, `ICTUS_ERR_OP_UNSUPPORTED`. Nothing changes then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_media_bind(
    model: ModelHandle,
    lane_tag: u64,
    media: u64,
    prompt_offset: u32,
) -> StatusCode {
    status(model, "ictus_media_bind", |inside| Ok(inside.engine.media_bind(lane_tag, media, prompt_offset)?))
}
