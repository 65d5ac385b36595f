#![forbid(unsafe_code)]
//! A shared object of the other side that is read and written by position, and never mapped.
//!
//! An object that its owner cuts short while it is mapped ends the process that touches it. A read by position comes to the end and says so.
//!
//! # Invariants
//! - Whatever the owner does to the object, a call ends in bytes or in a refusal.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, Stat, fcntl_getfl, fstat};
use rustix::io::{Errno, pread, pwrite};

use crate::ring::ByPosition;

/// The first bytes of a shared object.
#[derive(Debug)]
pub(super) struct Positioned {
    object: OwnedFd,
    bytes: u64,
}

impl Positioned {
    /// The first `bytes` of an object; none are room for nothing.
    ///
    /// # Errors
    /// `InvalidInput`: the object is shorter, or it cannot be both read and written.
    pub(super) fn new(object: OwnedFd, bytes: u64) -> io::Result<Self> {
        let invalid = |reason| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        if fcntl_getfl(&object)? & OFlags::RWMODE != OFlags::RDWR {
            return invalid("the shared object cannot be read and written");
        }
        if size(&fstat(&object)?) < bytes {
            return invalid("the shared object is too short");
        }
        Ok(Self { object, bytes })
    }

    /// Bytes that the other side lends.
    pub(super) fn len_bytes(&self) -> u64 {
        self.bytes
    }

    /// How much of them there is now; none when the kernel does not say.
    pub(super) fn there(&self) -> Option<(u64, Stat)> {
        let object = fstat(&self.object).ok()?;
        Some((size(&object).min(self.bytes), object))
    }

    /// Reads all of `out`; false when the object ends before.
    pub(super) fn read(&self, mut at: u64, mut out: &mut [u8]) -> bool {
        while !out.is_empty() {
            match pread(&self.object, &mut *out, at) {
                Ok(count) if count > 0 => {
                    at += count as u64;
                    out = &mut out[count..];
                }
                Err(Errno::INTR) => {}
                Ok(_) | Err(_) => return false,
            }
        }
        true
    }

    /// Writes all of `bytes`; false when the object has no room for them now, or does not take them.
    pub(super) fn write(&self, mut at: u64, mut bytes: &[u8]) -> bool {
        // A write behind the end would make the object longer.
        let Some((there, _)) = self.there() else { return false };
        if at.checked_add(bytes.len() as u64).is_none_or(|end| end > there) {
            return false;
        }
        while !bytes.is_empty() {
            match pwrite(&self.object, bytes, at) {
                Ok(count) if count > 0 => {
                    at += count as u64;
                    bytes = &bytes[count..];
                }
                Err(Errno::INTR) => {}
                Ok(_) | Err(_) => return false,
            }
        }
        true
    }
}

/// Memory of a ring or of control words that cannot be kept from shrinking. It remembers whether an access ever failed.
#[derive(Debug)]
pub(super) struct Unsealed {
    object: Positioned,
    len: usize,
    failed: AtomicBool,
}

impl Unsealed {
    /// # Errors
    /// As [`Positioned::new`].
    pub(super) fn new(object: OwnedFd, len: usize) -> io::Result<Self> {
        Ok(Self { object: Positioned::new(object, len as u64)?, len, failed: AtomicBool::new(false) })
    }

    /// Whether its owner has cut it, as far as it was touched since.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    fn note(&self, done: bool) -> bool {
        if !done {
            self.failed.store(true, Relaxed);
        }
        done
    }
}

impl ByPosition for Unsealed {
    fn len_bytes(&self) -> usize {
        self.len
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        self.note(self.object.read(offset as u64, out))
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> bool {
        self.note(self.object.write(offset as u64, bytes))
    }
}

fn size(object: &Stat) -> u64 {
    u64::try_from(object.st_size).unwrap_or(0)
}
