#![forbid(unsafe_code)]
//! A worker outlives nothing: it ends with its stream and with its host, whatever it is doing.
//!
//! The serve loop notices a closed stream itself, between two messages and between two steps of a tick. This thread is for the rest: a load,
//! or a step that takes long. It sleeps until the stream is closed or the process that started this one has ended.
//!
//! The kernel's own signal for a parent's death (`PR_SET_PDEATHSIG`) is not used: it comes when the *thread* that started the worker ends,
//! and hosts start workers from threads of pools.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getppid, pidfd_open};

/// How long the serve loop has to end by itself once the stream is closed.
const GRACE: Duration = Duration::from_millis(500);

/// Watches `frames`, a descriptor of its own for the stream, and the host.
///
/// # Errors
/// The thread cannot be made.
pub fn watch(frames: OwnedFd) -> io::Result<()> {
    // None when the parent has gone already, or the kernel knows no such descriptors: then the stream alone says it.
    let host = getppid().and_then(|host| pidfd_open(host, PidfdFlags::empty()).ok());
    std::thread::Builder::new().name("guard".to_owned()).stack_size(64 << 10).spawn(move || {
        let mut waited = vec![PollFd::from_borrowed_fd(frames.as_fd(), PollFlags::RDHUP)];
        waited.extend(host.as_ref().map(|host| PollFd::from_borrowed_fd(host.as_fd(), PollFlags::IN)));
        loop {
            match poll(&mut waited, None) {
                Err(Errno::INTR) => {}
                Err(_) => return,
                Ok(_) => break,
            }
        }
        // A worker whose loop runs is gone by then, with the code of the loop.
        std::thread::sleep(GRACE);
        std::process::exit(0);
    })?;
    Ok(())
}
