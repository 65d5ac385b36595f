#![allow(unsafe_code, reason = "a number that the parent process gave becomes a descriptor")]
//! Descriptors that a process was started with (W-83).

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_setfd};

/// Takes over the descriptor of this number, and keeps it from being inherited any further.
///
/// # Errors
/// No descriptor of this number is open.
///
/// # Safety
/// - Nothing else in this process uses or closes the descriptor; it was opened by whoever started the process.
/// - It is called at most once for a number.
pub unsafe fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a descriptor has no negative number"));
    }
    // SAFETY: not negative (checked above). Whether it is open is what the call below says; nobody closes it meanwhile: the promise of
    // the caller.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    // SAFETY: open, since its flags could be set, and nobody else's: the promise of the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
