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

impl TickPlan {
    /// Runs `tick` with a plan like this one that hands every token to `receive`, which gets the lane and its tokens.
    ///
    /// A panic of `receive` does not leave the callback: the tick goes on without further calls, and the panic is lost. Callbacks of the
    /// plan itself are replaced, whether it has PARTIAL_EMITS or not.
    pub fn with_partial_emits<T>(&self, receive: &mut dyn FnMut(u64, &[u32]), tick: impl FnOnce(&TickPlan) -> T) -> T {
        let mut receiver = Receiver { receive, spoilt: false };
        let mut plan = *self;
        plan.struct_size = size_of::<Self>() as u64;
        plan.on_partial_emit = Some(Receiver::call);
        plan.partial_emit_user = (&raw mut receiver).cast();
        tick(&plan)
    }
}

/// What the callback of [`TickPlan::with_partial_emits`] finds behind its user pointer.
struct Receiver<'r> {
    receive: &'r mut dyn FnMut(u64, &[u32]),
    /// It panicked once, or was given no tokens where there should be some: nothing is handed over any more.
    spoilt: bool,
}

impl Receiver<'_> {
    /// A [`PartialEmitFn`].
    ///
    /// # Safety
    /// - `user` is null or a `Receiver` that nobody else uses during the call.
    /// - `tokens` is null or `n_tokens` readable ids.
    unsafe extern "C" fn call(user: *mut c_void, lane_tag: u64, tokens: *const u32, n_tokens: u32) {
        if n_tokens == 0 {
            return;
        }
        // SAFETY:
        // - Null or a live receiver that nobody else uses: the promise of the caller. `with_partial_emits` keeps it on its stack while the
        //   plan runs, and the engine calls from the thread that ticks.
        let Some(receiver) = (unsafe { user.cast::<Receiver<'_>>().as_mut() }) else { return };
        if receiver.spoilt {
            return;
        }
        receiver.spoilt = true;
        if tokens.is_null() {
            return;
        }
        // SAFETY: `tokens` is not null and has `n_tokens` readable ids: the promise of the caller.
        let tokens = unsafe { core::slice::from_raw_parts(tokens, n_tokens as usize) };
        let received = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| (receiver.receive)(lane_tag, tokens)));
        receiver.spoilt = received.is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::view::Plain;

    /// W-47.
    #[test]
    fn callback_bears_null_pointers_no_tokens_and_a_receiver_that_panics() {
        let mut plan = TickPlan::zeroed();
        plan.flags = tick_flag::PARTIAL_EMITS;
        let mut got = Vec::new();
        let mut receive = |lane: u64, tokens: &[u32]| {
            assert_ne!(lane, 13);
            got.push((lane, tokens.to_vec()));
        };
        plan.with_partial_emits(&mut receive, |plan| {
            let call = plan.on_partial_emit.expect("set");
            let user = plan.partial_emit_user;
            let tokens = [5, 6];
            let ignored =
                [(core::ptr::null_mut(), tokens.as_ptr(), 2), (user, core::ptr::null(), 0), (user, tokens.as_ptr(), 0)];
            for (user, tokens, count) in ignored {
                // SAFETY: the user pointer is null or the plan's, which runs now; the tokens are null or two.
                unsafe { call(user, 1, tokens, count) };
            }
            plan.partial_emit().expect("asked for").call(1, 9);
            // SAFETY: as above.
            unsafe { call(user, 2, tokens.as_ptr(), 2) };
            // SAFETY: as above; null stands for tokens that are not there.
            unsafe { call(user, 3, core::ptr::null(), 2) };
            plan.partial_emit().expect("asked for").call(4, 9);
        });
        assert_eq!(got, [(1, vec![9]), (2, vec![5, 6])], "nothing after tokens that were not there");
        got.clear();
        let mut receive = |lane: u64, tokens: &[u32]| {
            assert_ne!(lane, 13, "a panic that stays here");
            got.push((lane, tokens.to_vec()));
        };
        let answer = plan.with_partial_emits(&mut receive, |plan| {
            for lane in [12, 13, 14] {
                plan.partial_emit().expect("asked for").call(lane, 1);
            }
            77
        });
        assert_eq!((answer, got), (77, vec![(12, vec![1])]));
    }
}
