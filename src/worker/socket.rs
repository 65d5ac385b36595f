#![forbid(unsafe_code)]
//! Sockets between host and worker, and the descriptors that travel over them (W-32, W-33).
//!
//! A message of the `fds` channel is eight bytes, the tag, and exactly one descriptor beside them. Descriptors arrive close-on-exec, and
//! whatever arrived with a message that is refused is closed.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg, socketpair,
};

use super::frame::FrameReader;

/// Most descriptors of one message that are looked at; what exceeds them is closed by the kernel and counts as too many.
const SPACE: usize = 8;

/// Why a message brought no descriptor (W-33). What it brought is closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptorError {
    /// The other side closed the channel.
    #[error("the channel is closed")]
    Closed,
    /// Nothing arrived in time.
    #[error("no descriptor in time")]
    TimedOut,
    /// Fewer bytes than a tag has.
    #[error("a tag of {got} bytes")]
    Tag {
        /// Bytes that arrived.
        got: usize,
    },
    /// None, several, or more than the kernel could deliver.
    #[error("not exactly one descriptor")]
    Count,
    /// The call failed.
    #[error("receiving failed")]
    Io(#[from] io::Error),
}

/// Two ends of one stream, both close-on-exec.
///
/// # Errors
/// No descriptors are left.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Lets a program that is started from here have the descriptor.
///
/// # Errors
/// Its flags cannot be set.
pub fn keep_on_exec(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty())?)
}

/// Waits until one of `events` holds for `descriptor`, or it has hung up; answers whether it does, false when `limit` is over first.
///
/// # Errors
/// The wait fails.
pub(crate) fn wait_for(descriptor: BorrowedFd<'_>, events: PollFlags, limit: Option<Duration>) -> io::Result<bool> {
    let mut waited = [PollFd::from_borrowed_fd(descriptor, events)];
    poll_until(&mut waited, limit.map(|limit| Instant::now() + limit))
}

/// Waits until something holds for one of `waited`; answers whether it does, false when the deadline is over first.
///
/// # Errors
/// The wait fails.
pub(crate) fn poll_until(waited: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(waited, timeout.as_ref()) {
            Ok(0) if deadline.is_some_and(|deadline| Instant::now() < deadline) => {}
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Bytes that are read at least at once.
const PIECE_BYTES: usize = 64 << 10;

/// What reading found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Bytes, which the reader has now.
    Bytes,
    /// Nothing is there yet.
    Nothing,
    /// The other side has closed its end.
    End,
    /// It did so with something unread.
    Reset,
}

/// Reads what has come, without waiting.
///
/// # Errors
/// The call fails.
pub(super) fn receive(frames: BorrowedFd<'_>, reader: &mut FrameReader) -> io::Result<Received> {
    loop {
        match recv(frames, reader.room(PIECE_BYTES), RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Ok(Received::End),
            Ok((_, count)) => {
                reader.filled(count);
                return Ok(Received::Bytes);
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(Errno::CONNRESET) => return Ok(Received::Reset),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends all of `bytes`, waiting for room until the deadline; none waits as long as the other side lives. SIGPIPE is not raised (W-73).
///
/// # Errors
/// `TimedOut`; `BrokenPipe` when the other side is gone; the call fails.
pub(super) fn transmit(frames: BorrowedFd<'_>, bytes: &[u8], deadline: Option<Instant>) -> io::Result<()> {
    let mut left = bytes;
    while !left.is_empty() {
        match send(frames, left, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) => left = left.get(sent..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut waited = [PollFd::from_borrowed_fd(frames, PollFlags::OUT)];
                if !poll_until(&mut waited, deadline)? {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(io::ErrorKind::BrokenPipe.into()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Passes a descriptor with its tag (W-32). The caller keeps its own.
///
/// # Errors
/// The other side is gone, or does not read.
pub fn send_descriptor(channel: BorrowedFd<'_>, tag: u64, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    send_descriptors(channel, &tag.to_le_bytes(), &[descriptor])
}

/// Passes any data with any number of descriptors, as only tests of a hostile host do.
///
/// # Errors
/// The other side is gone or does not read, or the kernel takes no message of this kind.
pub fn send_descriptors(channel: BorrowedFd<'_>, data: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(SPACE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one message"));
    }
    loop {
        match sendmsg(channel, &[IoSlice::new(data)], &mut control, SendFlags::NOSIGNAL) {
            Ok(sent) if sent == data.len() => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Takes the next descriptor of the channel, waiting at most `limit` (W-32, W-33).
///
/// # Errors
/// What is wrong with the message, or that none came. Every descriptor that arrived is closed.
pub fn receive_descriptor(channel: BorrowedFd<'_>, limit: Duration) -> Result<(u64, OwnedFd), DescriptorError> {
    if !wait_for(channel, PollFlags::IN, Some(limit))? {
        return Err(DescriptorError::TimedOut);
    }
    let mut tag = [0u8; 8];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(SPACE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        match recvmsg(channel, &mut [IoSliceMut::new(&mut tag)], &mut control, flags) {
            Ok(received) => break received,
            Err(Errno::INTR) => {}
            // Woken for nothing: the message is not there after all.
            Err(Errno::AGAIN) => return Err(DescriptorError::TimedOut),
            Err(error) => return Err(DescriptorError::Io(error.into())),
        }
    };
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 && descriptors.is_empty() {
        return Err(DescriptorError::Closed);
    }
    if received.bytes < tag.len() {
        return Err(DescriptorError::Tag { got: received.bytes });
    }
    let whole = !received.flags.contains(ReturnFlags::CTRUNC);
    match (descriptors.pop(), descriptors.is_empty() && whole) {
        (Some(descriptor), true) => Ok((u64::from_le_bytes(tag), descriptor)),
        _ => Err(DescriptorError::Count),
    }
}

/// The number of open descriptors of this process, for tests that look for leaks.
///
/// # Errors
/// The list cannot be read.
pub fn open_descriptors() -> io::Result<usize> {
    // The list itself is open while it is read.
    Ok(std::fs::read_dir("/proc/self/fd")?.count().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    fn is_count(result: Result<(u64, OwnedFd), DescriptorError>) -> bool {
        matches!(result, Err(DescriptorError::Count))
    }

    /// W-32.
    #[test]
    fn descriptors_arrive_in_order_with_their_tags() {
        let (host, worker) = pair().expect("a pair");
        let (a, b) = pair().expect("something to pass");
        send_descriptor(host.as_fd(), 7, a.as_fd()).expect("sent");
        send_descriptor(host.as_fd(), u64::MAX, b.as_fd()).expect("sent");
        let (first, got_a) = receive_descriptor(worker.as_fd(), SHORT).expect("the first");
        let (second, got_b) = receive_descriptor(worker.as_fd(), SHORT).expect("the second");
        assert_eq!((first, second), (7, u64::MAX));
        rustix::io::write(&got_a, b"x").expect("the passed end writes");
        let mut byte = [0];
        assert_eq!(rustix::io::read(&got_b, &mut byte), Ok(1), "the two are the two ends of one stream");
        let flags = rustix::io::fcntl_getfd(&got_a).expect("flags");
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "W-33: close-on-exec");
    }

    /// W-33.
    #[test]
    fn message_without_exactly_one_descriptor_and_a_tag_is_refused() {
        let (host, worker) = pair().expect("a pair");
        let (a, b) = pair().expect("something to pass");
        let tag = 7u64.to_le_bytes();
        send_descriptors(host.as_fd(), &tag, &[]).expect("sent");
        assert!(is_count(receive_descriptor(worker.as_fd(), SHORT)));
        send_descriptors(host.as_fd(), &tag, &[a.as_fd(), b.as_fd()]).expect("sent");
        assert!(is_count(receive_descriptor(worker.as_fd(), SHORT)));
        send_descriptors(host.as_fd(), &tag[..7], &[a.as_fd()]).expect("sent");
        let short = receive_descriptor(worker.as_fd(), SHORT);
        assert!(matches!(short, Err(DescriptorError::Tag { got: 7 })), "{short:?}");
        let late = receive_descriptor(worker.as_fd(), SHORT);
        assert!(matches!(late, Err(DescriptorError::TimedOut)), "{late:?}");
        drop(host);
        let closed = receive_descriptor(worker.as_fd(), SHORT);
        assert!(matches!(closed, Err(DescriptorError::Closed)), "{closed:?}");
    }

    /// W-33: what arrives with a refused message does not stay open.
    #[test]
    fn refused_descriptors_are_closed() {
        let (host, worker) = pair().expect("a pair");
        let (passed, other) = pair().expect("something to pass");
        send_descriptors(host.as_fd(), &[1, 2, 3], &[passed.as_fd()]).expect("sent");
        assert!(receive_descriptor(worker.as_fd(), SHORT).is_err());
        drop(passed);
        let mut byte = [0];
        assert_eq!(rustix::io::read(&other, &mut byte), Ok(0), "no copy of the passed end is left");
    }
}
