//! Value types: references, buffers and ranges other records are made of.

use core::ffi::c_void;

use super::view::zeroed;

/// A `(pointer, count, stride)` view of a list of records (A-10 .. A-15).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Array {
    /// First element; NULL only when `count` is 0; 8-byte aligned.
    pub data: *const c_void,
    /// Number of elements.
    pub count: u32,
    /// The writer's record size in bytes: the stride, not the reader's size.
    pub elem_size: u32,
}
const _: () = assert!(size_of::<Array>() == 16);
zeroed!(Array);

// SAFETY:
// - An array is a number that names a place: nothing is read through it except by `Array::elements`, from a `Memory` whose
//   maker vouches for those bytes on the thread that reads them.
// - It owns nothing, so dropping it on another thread frees nothing.
// So records that hold arrays, and an engine that keeps its events, may move between threads.
unsafe impl Send for Array {}
// SAFETY: as above; a shared array only lets its three numbers be read.
unsafe impl Sync for Array {}

/// Reference to one token-ring slot.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TokenRef {
    /// Ring the slot belongs to (`RING_ID_*`).
    pub ring_id: u32,
    /// Slot number.
    pub index: u32,
    /// Number of ids the payload must hold.
    pub count: u32,
    /// Zero; readers ignore it.
    pub _pad0: u32,
    /// Generation the slot must carry; 0 never matches.
    pub generation: u64,
}
const _: () = assert!(size_of::<TokenRef>() == 24);
zeroed!(TokenRef);

/// Reference to one logits row; its generation is the nonce of the row.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RingRef {
    /// Ring the slot belongs to.
    pub ring_id: u32,
    /// Slot number.
    pub index: u32,
    /// Generation the slot must carry; also the nonce a commit names.
    pub generation: u64,
}
const _: () = assert!(size_of::<RingRef>() == 16);
zeroed!(RingRef);

/// Caller-owned host memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Buf {
    /// First byte.
    pub ptr: *mut c_void,
    /// Length in bytes.
    pub len: u64,
}
const _: () = assert!(size_of::<Buf>() == 16);
zeroed!(Buf);

/// Half-open range `[start, end)` in tokens; blob kinds use `start == end == boundary`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TokenRange {
    /// First token.
    pub start: u64,
    /// One past the last token.
    pub end: u64,
}
const _: () = assert!(size_of::<TokenRange>() == 16);
zeroed!(TokenRange);

/// How a lane picks its tokens (T-112 .. T-118).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SamplingParams {
    /// At most 0 means greedy.
    pub temperature: f32,
    /// Nucleus mass; 1.0 is off, 0.0 keeps only the top token.
    pub top_p: f32,
    /// Smallest kept probability relative to the best; 0 is off.
    pub min_p: f32,
    /// Number of candidates kept; 0 is off.
    pub top_k: u32,
    /// Subtracted per occurrence in the penalty window; 0 is off.
    pub freq_penalty: f32,
    /// Subtracted once for a token in the penalty window; 0 is off.
    pub presence_penalty: f32,
    /// Divides positive and multiplies other logits of seen tokens; 0 means 1.0, off.
    pub repeat_penalty: f32,
    /// Bit set of `SAMPLING_FLAG_*`.
    pub flags: u32,
}
const _: () = assert!(size_of::<SamplingParams>() == 32);
zeroed!(SamplingParams);

/// What an encoded image or sound becomes in a prompt.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MediaInfo {
    /// Number of placeholder tokens.
    pub n_tokens: u32,
    /// The placeholder.
    pub image_token_id: u32,
    /// Token before them; 0 is none.
    pub boi_token_id: u32,
    /// Token after them; 0 is none.
    pub eoi_token_id: u32,
    /// Fingerprint of the preprocessing.
    pub preprocess_fp: u64,
}
const _: () = assert!(size_of::<MediaInfo>() == 24);
zeroed!(MediaInfo);
