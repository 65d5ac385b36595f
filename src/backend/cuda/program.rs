#![forbid(unsafe_code)]
//! What a section would launch, noted instead: kernels with grid and parameters, copies on the device and between devices, and how these wait for each other.
//!
//! What precedes only some of the steps that are alike (pages that are copied before they are written) is kept apart, in front: what comes again is the
//! rest.
//!
//! # Invariants
//! - An operation is noted by the function that would else launch it, after all of its checks, so what is noted may be launched as it
//!   stands for as long as the memory it names lives.
//! - Two programs that are equal do the same, bit by bit, with what lies at the same places: that is all that a graph freezes (P-10).

use core::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::driver::At;
use super::launch::{Launcher, MOST_PARAMETERS, Parameter};
use super::players::lock;
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
    /// Bytes to another device.
    Push {
        other: usize,
        to: At<u8>,
        from: At<u8>,
    },
    /// How far the device's work goes is noted.
    Note,
    /// What comes next waits for what another device noted last.
    Join {
        other: usize,
    },
}

/// An operation, and which device does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    pub(super) member: usize,
    pub(super) op: Op,
}

/// The program that is being noted, if one is: that of all devices of a backend, whose thread notes it.
#[derive(Default)]
pub(super) struct Program {
    is_noting: AtomicBool,
    /// Whether what is noted now goes in front.
    is_in_front: AtomicBool,
    noted: Mutex<Noted>,
}

/// What was noted.
#[derive(Default)]
pub(super) struct Noted {
    /// Done first, and part of no graph.
    pub(super) front: Vec<Operation>,
    pub(super) operations: Vec<Operation>,
}

impl Noted {
    pub(super) fn is_empty(&self) -> bool {
        self.front.is_empty() && self.operations.is_empty()
    }

    fn clear(&mut self) {
        self.front.clear();
        self.operations.clear();
    }
}

impl Program {
    pub(super) fn begin(&self) {
        lock(&self.noted).clear();
        self.is_noting.store(true, Ordering::Relaxed);
    }

    /// Notes nothing any more; what was noted is forgotten.
    pub(super) fn end(&self) {
        self.is_noting.store(false, Ordering::Relaxed);
        lock(&self.noted).clear();
    }

    pub(super) fn is_noting(&self) -> bool {
        self.is_noting.load(Ordering::Relaxed)
    }

    /// Whether what is noted in front would overtake nothing.
    pub(super) fn may_have_front(&self) -> bool {
        self.is_noting() && lock(&self.noted).operations.is_empty()
    }

    /// Notes an operation; false where it is to be done instead.
    pub(super) fn note(&self, operation: Operation) -> bool {
        let is_noting = self.is_noting();
        if is_noting {
            let mut noted = lock(&self.noted);
            let is_in_front = self.is_in_front.load(Ordering::Relaxed);
            let operations = if is_in_front { &mut noted.front } else { &mut noted.operations };
            operations.push(operation);
        }
        is_noting
    }

    /// Notes what `operation` does in front.
    pub(super) fn in_front<T>(&self, operation: impl FnOnce() -> T) -> T {
        self.is_in_front.store(true, Ordering::Relaxed);
        let outcome = operation();
        self.is_in_front.store(false, Ordering::Relaxed);
        outcome
    }

    /// What was noted. The lists come back by [`Program::keep`], for their memory.
    pub(super) fn take(&self) -> Noted {
        core::mem::take(&mut *lock(&self.noted))
    }

    pub(super) fn keep(&self, mut noted: Noted) {
        noted.clear();
        *lock(&self.noted) = noted;
    }
}

impl Launcher {
    /// Copies within the device, in stream order. The places do not overlap.
    pub(super) fn copy(&self, to: At<u8>, from: At<u8>, bytes: usize) -> Result<(), BackendError> {
        let operation = Operation { member: self.member, op: Op::Copy { to, from, bytes } };
        if self.program.note(operation) { Ok(()) } else { self.driver.copy(to, from, bytes) }
    }
}
