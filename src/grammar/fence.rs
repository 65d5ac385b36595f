#![forbid(unsafe_code)]
//! Where the library is called: its panics end here, and so does its need of stack.
//!
//! Compilation runs on a thread of its own that has ended when the call returns; a host's thread may have little stack, and a
//! document decides how deep the library recurses. Work of a cursor needs little stack and runs where it is called.
//!
//! The library installs a panic hook, once per process, that keeps quiet about the panics it catches and passes on all others
//! to the hook before it.

use std::panic::AssertUnwindSafe;
use std::thread;

use llguidance::panic_utils;

use super::error::GrammarError;

/// Stack of a compilation. Address space alone: a page that is not touched costs nothing.
const STACK_BYTES: usize = 64 << 20;

/// Runs `body`; a panic in it is a typed error.
///
/// What `body` was changing is to be dropped then.
pub(super) fn contain<T>(body: impl FnOnce() -> Result<T, GrammarError>) -> Result<T, GrammarError> {
    let caught = panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(body())));
    caught.unwrap_or_else(|panic| Err(GrammarError::broken(&panic)))
}

/// Runs `body` as [`contain`] does, on a stack that is large enough for every document within the limits.
pub(super) fn contain_deep<T: Send>(body: impl FnOnce() -> Result<T, GrammarError> + Send) -> Result<T, GrammarError> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("ictus-grammar".into()).stack_size(STACK_BYTES);
        let worker = builder.spawn_scoped(scope, || contain(body)).map_err(|error| GrammarError::broken(&error))?;
        worker.join().unwrap_or_else(|_| Err(GrammarError::broken(&"the thread of the compilation ended")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_becomes_an_error_and_the_next_call_works() {
        let outcome: Result<(), _> = contain(|| panic!("by a bug, at {}", 7));
        let Err(GrammarError::Broken { reason }) = outcome else { panic!("{outcome:?}") };
        assert!(reason.contains("by a bug, at 7"), "{reason}");
        assert_eq!(contain(|| Ok(3)), Ok(3));
        let outcome: Result<(), _> = contain_deep(|| panic!("elsewhere"));
        assert!(matches!(outcome, Err(GrammarError::Broken { .. })));
        assert_eq!(contain_deep(|| Ok(4)), Ok(4));
    }
}
