//! The calling thread's current context, which is left as it was found: whoever links this library may use CUDA himself, on any device.
//!
//! ```text
//! enter     remember what is current -> make the device's context current -> ... -> what was remembered is current again
//! Own       the same around the end of what belongs to the binding, which makes its context current when most of it goes (a graph: `driver`)
//! ```
//! A context is entered around each call of the driver, not around a step: a group takes turns between devices on one thread, and a step that is noted makes
//! no calls. Where the device's context is current already that costs one look, else two changes besides: each is a write to memory of the thread.
//!
//! # Invariants
//! Nothing of the binding is called, or let go, but inside of one of these. So also where a call fails, and where a thread unwinds.

use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::Deref;

use cudarc::driver::{CudaContext, DriverError, result, sys};

/// Makes the context current again that was current before.
pub(super) struct Entered {
    /// Null for none.
    before: sys::CUcontext,
    is_changed: bool,
    /// What is current is the thread's.
    of_thread: PhantomData<*const ()>,
}

impl Entered {
    /// Remembers what is current, for calls that may change it.
    pub(super) fn nothing() -> Self {
        // Before the driver was started nothing is current.
        let before = result::ctx::get_current().ok().flatten().unwrap_or(core::ptr::null_mut());
        Self { before, is_changed: true, of_thread: PhantomData }
    }

    /// Makes this context current.
    ///
    /// # Errors
    /// Those of the driver. One that was met when something of this context was let go (P-5) comes back from calls of the binding, not from here: memory is
    /// not taken for idle on account of it.
    pub(super) fn enter(context: &CudaContext) -> Result<Self, DriverError> {
        let mut entered = Self::nothing();
        entered.is_changed = entered.before != context.cu_ctx();
        if entered.is_changed {
            // SAFETY: the context is retained, by `context`.
            unsafe { result::ctx::set_current(context.cu_ctx()) }?;
        }
        Ok(entered)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.is_changed {
            // SAFETY: it was current on this thread before; should its owner have destroyed it meanwhile, the driver refuses.
            let restored = unsafe { result::ctx::set_current(self.before) };
            // There is nobody to tell, and nothing else to make current.
            let _ = restored;
        }
    }
}

/// Something of the binding.
#[derive(Debug)]
pub(super) struct Own<T>(ManuallyDrop<T>);

impl<T> Own<T> {
    pub(super) fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }
}

impl<T: Clone> Clone for Own<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Deref for Own<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        let _entered = Entered::nothing();
        // SAFETY: once, and nobody sees it afterwards.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}
