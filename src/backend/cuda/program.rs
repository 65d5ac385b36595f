//! What a section would launch, noted instead: kernels with grid and parameters, copies on the device.
//!
//! What precedes only some of the steps that are alike (pages that are copied before they are written) is kept apart, in front: what comes again is the
//! rest.
//!
//! # Invariants
//! - An operation is noted by the function that would else launch it, after all of its checks, so what is noted may be launched as it
//!   stands for as long as the memory it names lives.
//! - Two programs that are equal do the same, bit by bit, with what lies at the same places: that is all that a graph freezes (P-10).

use core::cell::{Cell, RefCell};
use core::ffi::c_void;

use super::driver::At;
use super::launch::{Launcher, MOST_PARAMETERS, Parameter};
use crate::backend::BackendError;

/// One kernel, as it is to be launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    pub(super) name: &'static str,
    pub(super) grid: [u32; 3],
    /// Parameters by value, and how many there are.
    values: [u64; MOST_PARAMETERS],
    count: usize,
}

impl Launch {
    /// None where there are too many parameters.
    pub(super) fn new(name: &'static str, grid: [u32; 3], parameters: &[Parameter]) -> Option<Self> {
        let mut values = [0; MOST_PARAMETERS];
        let used = values.get_mut(..parameters.len())?;
        used.iter_mut().zip(parameters).for_each(|(value, parameter)| *value = parameter.value());
        Some(Self { name, grid, values, count: parameters.len() })
    }

    /// Pointers to the parameters, as the driver takes them; it writes nothing.
    pub(super) fn with_pointers<T>(&self, f: impl FnOnce(&mut [*mut c_void]) -> T) -> T {
        let mut pointers = [core::ptr::null_mut(); MOST_PARAMETERS];
        for (pointer, value) in pointers.iter_mut().zip(&self.values) {
            *pointer = core::ptr::from_ref(value).cast_mut().cast();
        }
        let count = self.count.min(MOST_PARAMETERS);
        f(pointers.get_mut(..count).unwrap_or_default())
    }
}

/// An operation of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Launch(Launch),
    /// `bytes` bytes within the device.
    Copy {
        to: At<u8>,
        from: At<u8>,
        bytes: usize,
    },
}

/// The program that is being noted, if one is.
#[derive(Default)]
pub(super) struct Program {
    is_noting: Cell<bool>,
    /// Whether what is noted now goes in front.
    is_in_front: Cell<bool>,
    noted: RefCell<Noted>,
}

/// What was noted.
#[derive(Default)]
pub(super) struct Noted {
    /// Done first, and part of no graph.
    pub(super) front: Vec<Op>,
    pub(super) ops: Vec<Op>,
}

impl Noted {
    pub(super) fn is_empty(&self) -> bool {
        self.front.is_empty() && self.ops.is_empty()
    }

    fn clear(&mut self) {
        self.front.clear();
        self.ops.clear();
    }
}

impl Program {
    pub(super) fn begin(&self) {
        self.noted.borrow_mut().clear();
        self.is_noting.set(true);
    }

    /// Notes nothing any more; what was noted is forgotten.
    pub(super) fn end(&self) {
        self.is_noting.set(false);
    }

    pub(super) fn is_noting(&self) -> bool {
        self.is_noting.get()
    }

    /// Notes an operation; false where it is to be done instead.
    pub(super) fn note(&self, op: Op) -> bool {
        if self.is_noting() {
            let mut noted = self.noted.borrow_mut();
            let ops = if self.is_in_front.get() { &mut noted.front } else { &mut noted.ops };
            ops.push(op);
        }
        self.is_noting()
    }

    /// Notes what `operation` does in front.
    pub(super) fn in_front<T>(&self, operation: impl FnOnce() -> T) -> T {
        self.is_in_front.set(true);
        let outcome = operation();
        self.is_in_front.set(false);
        outcome
    }

    /// What was noted. The lists come back by [`Program::keep`], for their memory.
    pub(super) fn take(&self) -> Noted {
        self.noted.take()
    }

    pub(super) fn keep(&self, mut noted: Noted) {
        noted.clear();
        *self.noted.borrow_mut() = noted;
    }
}

impl Launcher {
    /// Copies within the device, in stream order. The places do not overlap.
    pub(super) fn copy(&self, to: At<u8>, from: At<u8>, bytes: usize) -> Result<(), BackendError> {
        if self.program.note(Op::Copy { to, from, bytes }) { Ok(()) } else { self.driver.copy(to, from, bytes) }
    }

    /// Does what was noted, one after another.
    ///
    /// # Safety
    /// - The memory that it names is live.
    pub(super) unsafe fn play(&self, ops: &[Op]) -> Result<(), BackendError> {
        for op in ops {
            match op {
                // SAFETY: it was noted after the checks of a launch; the memory is live, as the caller promises.
                Op::Launch(launch) => unsafe { self.start(launch) }?,
                &Op::Copy { to, from, bytes } => self.driver.copy(to, from, bytes)?,
            }
        }
        Ok(())
    }
}
