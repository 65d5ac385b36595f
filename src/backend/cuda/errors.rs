#![forbid(unsafe_code)]
//! The first error of a backend, which stays: of one device, or of all devices of a group, which share it.
//!
//! # Invariants
//! Once there is one, no operation is begun any more, and everybody who can fail answers it.

use std::sync::OnceLock;

use crate::backend::BackendError;

/// The first error, if there was one.
#[derive(Debug, Default)]
pub(super) struct FirstError(OnceLock<BackendError>);

impl FirstError {
    /// What went wrong before.
    pub(super) fn sound(&self) -> Result<(), BackendError> {
        self.0.get().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    fn keep(&self, error: &BackendError) {
        // One of two at the same time: either may be the first.
        let _ = self.0.set(error.clone());
    }

    /// Does what cannot be done again on a device that fails: the error stays. But for memory that could not be had: then nothing was done, and the
    /// caller is told so.
    pub(super) fn attempt<T>(&self, operation: impl FnOnce() -> Result<T, BackendError>) -> Result<T, BackendError> {
        self.sound()?;
        operation().inspect_err(|error| {
            if !matches!(error, BackendError::OutOfMemory { .. }) {
                self.keep(error);
            }
        })
    }

    /// For operations that answer nothing: any error stays, as nobody else is told that they were not done.
    pub(super) fn run(&self, operation: impl FnOnce() -> Result<(), BackendError>) {
        if self.sound().is_ok()
            && let Err(error) = operation()
        {
            self.keep(&error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(reason: &str) -> BackendError {
        BackendError::Device { reason: reason.to_owned() }
    }

    #[test]
    fn cuda_first_error_stays_and_begins_nothing() {
        let errors = FirstError::default();
        assert_eq!(errors.attempt(|| Ok(7)), Ok(7));
        assert_eq!(errors.attempt(|| Err::<(), _>(device("first"))), Err(device("first")));
        for _ in 0..2 {
            errors.run(|| panic!("begun"));
            assert_eq!(errors.attempt(|| -> Result<(), _> { panic!("begun") }), Err(device("first")));
            assert_eq!(errors.sound(), Err(device("first")));
        }
    }

    /// Who is told that there was no memory goes on; what was to be done without telling is lost, and that stays.
    #[test]
    fn cuda_memory_that_could_not_be_had_stays_only_where_nobody_was_told() {
        let errors = FirstError::default();
        let none = BackendError::OutOfMemory { bytes: 5 };
        for _ in 0..2 {
            assert_eq!(errors.attempt(|| Err::<(), _>(none.clone())), Err(none.clone()));
            assert_eq!(errors.sound(), Ok(()));
        }
        errors.run(|| Err(none.clone()));
        assert_eq!(errors.sound(), Err(none));
    }
}
