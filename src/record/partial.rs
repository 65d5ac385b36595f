//! Calling the host back with a token, from inside a tick.
//!
//! This is the only place where the engine calls a function that it was given.

use core::ffi::c_void;
use core::mem::offset_of;

use super::constant::tick_flag;

use super::plan::{PartialEmitFn, TickPlan};

/// The callback of one plan that asked for partial emits.
#[derive(Clone, Copy, Debug)]
pub struct PartialEmit {
    callback: PartialEmitFn,
    user: *mut c_void,
}

impl TickPlan {
    /// The callback, when the plan sets PARTIAL_EMITS and brings one; none otherwise.
    ///
    /// Fields past the writer's `struct_size` are not the writer's and count as zero.
    pub fn partial_emit(&self) -> Option<PartialEmit> {
        let written = |end: usize| self.struct_size >= end as u64;
        let asked = self.flags & tick_flag::PARTIAL_EMITS != 0 && written(offset_of!(Self, partial_emit_user));
        let callback = self.on_partial_emit.filter(|_| asked)?;
        let user = if written(size_of::<Self>()) { self.partial_emit_user } else { core::ptr::null_mut() };
        Some(PartialEmit { callback, user })
    }
}

impl PartialEmit {
    /// Hands one token over.
    pub fn call(&self, lane_tag: u64, token: u32) {
        // SAFETY:
        // - `callback` may be called with `user` and any tag and tokens while the plan runs: who puts a callback into a plan
        //   promises that, as the documentation of `PartialEmitFn` says; and the plan runs now.
        // - `token` is one readable id for the length of the call.
        unsafe { (self.callback)(self.user, lane_tag, &token, 1) };
    }
}
