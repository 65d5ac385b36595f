#![forbid(unsafe_code)]
//! A buffer of the host (W-40). Bytes that are taken once, or given once, need no mapping.
//!
//! # Invariants
//! - What is read takes no more memory than the host has filled with bytes of its own, and what cannot be had is refused (W-74).

use std::io;
use std::os::fd::OwnedFd;

use crate::record::Status;
use crate::record::constant::envelope;
use crate::worker::positioned::Positioned;

/// Where the length of an envelope's payload lies.
const PAYLOAD_LENGTH_AT: u64 = 120;
/// Bytes of one block, in which the kernel counts what an object holds.
const BLOCK_BYTES: u64 = 512;

/// A shared object of the host.
#[derive(Debug)]
pub(super) struct Buffer(Positioned);

impl Buffer {
    /// The first `bytes` of an object.
    ///
    /// # Errors
    /// As [`Positioned::new`].
    pub(super) fn new(object: OwnedFd, bytes: u64) -> io::Result<Self> {
        Positioned::new(object, bytes).map(Self)
    }

    /// Bytes that the host lends.
    pub(super) fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    /// The envelope at the front, copied out once (W-56).
    ///
    /// # Errors
    /// `EnvelopeMismatch`: too short, a length that does not fit, or bytes that nobody wrote: an object may claim any size and hold none of
    /// it. `NeedsReplan`: no memory for the copy. What else is wrong is the engine's to say.
    pub(super) fn envelope(&self) -> Result<Vec<u8>, Status> {
        let mismatch = Status::EnvelopeMismatch;
        // The host may have cut the object since it was announced.
        let (there, object) = self.0.there().ok_or(mismatch)?;
        let mut length = [0u8; 8];
        if there < envelope::BYTES as u64 || !self.0.read(PAYLOAD_LENGTH_AT, &mut length) {
            return Err(mismatch);
        }
        let held = u64::try_from(object.st_blocks).unwrap_or(0).saturating_mul(BLOCK_BYTES);
        let bytes = u64::from_le_bytes(length).checked_add(envelope::BYTES as u64);
        let bytes = bytes.filter(|&bytes| bytes <= there && bytes <= held).ok_or(mismatch)?;
        let bytes = usize::try_from(bytes).map_err(|_| mismatch)?;
        let mut sealed = Vec::new();
        sealed.try_reserve_exact(bytes).map_err(|_| Status::NeedsReplan)?;
        sealed.resize(bytes, 0);
        if self.0.read(0, &mut sealed) { Ok(sealed) } else { Err(mismatch) }
    }

    /// Puts sealed bytes at the front; answers whether they fit (W-58).
    pub(super) fn put(&self, sealed: &[u8]) -> bool {
        self.0.write(0, sealed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    use rustix::io::pwrite;

    fn object(bytes: u64) -> OwnedFd {
        let object = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("an object");
        ftruncate(&object, bytes).expect("sized");
        object
    }

    fn claim(object: &OwnedFd, payload_bytes: u64) {
        assert_eq!(pwrite(object, &payload_bytes.to_le_bytes(), PAYLOAD_LENGTH_AT), Ok(8));
    }

    #[test]
    fn envelope_is_read_as_it_was_put() {
        let buffer = Buffer::new(object(300), 300).expect("taken");
        let mut sealed: Vec<u8> = (0..=255).collect();
        sealed[120..128].copy_from_slice(&(256 - 136u64).to_le_bytes());
        assert!(buffer.put(&sealed));
        assert_eq!(buffer.envelope(), Ok(sealed));
        assert!(!buffer.put(&[1; 301]), "W-58");
        assert!(Buffer::new(object(299), 300).is_err(), "W-40");
        let read_only = OwnedFd::from(std::fs::File::open("/etc/passwd").expect("readable"));
        assert!(Buffer::new(read_only, 8).is_err());
    }

    /// W-40, W-56: only a wrong tag and a short object are refused; what nothing fits into is found out when it is used.
    #[test]
    fn buffer_of_no_bytes_holds_nothing() {
        for there in [0, 300] {
            let buffer = Buffer::new(object(there), 0).expect("as long as was announced");
            assert_eq!((buffer.len_bytes(), buffer.envelope()), (0, Err(Status::EnvelopeMismatch)));
            assert!(!buffer.put(&[1]));
        }
    }

    /// W-74: a terabyte of nothing is a page or two.
    #[test]
    fn bytes_that_nobody_wrote_are_no_envelope() {
        let huge = object(1 << 40);
        claim(&huge, (1 << 40) - 136);
        let buffer = Buffer::new(huge, 1 << 40).expect("taken");
        for _ in 0..2 {
            assert_eq!(buffer.envelope(), Err(Status::EnvelopeMismatch));
        }
    }

    /// W-74: an object that is cut, or cannot be written, refuses; nobody dies of it.
    #[test]
    fn object_that_is_cut_or_sealed_refuses() {
        let cut = object(1 << 20);
        assert_eq!(pwrite(&cut, &[7; 4096], 0), Ok(4096));
        claim(&cut, 2000);
        let buffer = Buffer::new(cut.try_clone().expect("its owner keeps one"), 1 << 20).expect("taken");
        ftruncate(&cut, 1000).expect("cut");
        assert_eq!(buffer.envelope(), Err(Status::EnvelopeMismatch));
        assert!(!buffer.put(&[1; 2000]) && buffer.put(&[1; 1000]));
        let sealed = object(4096);
        fcntl_add_seals(&sealed, SealFlags::WRITE).expect("sealed");
        assert!(!Buffer::new(sealed, 4096).expect("taken").put(&[1; 8]));
    }
}
