#![allow(
    unsafe_code,
    reason = "the fence of the link: mapping shared memory, and what a child does before it becomes the worker"
)]
//! Memory that host and worker share.
//!
//! The host creates an object, which has no name in any file system, and passes its descriptor; both sides map it. The other side may write
//! into it at any moment, so it is touched through atomic words only: what was read once is a value, and what is read twice may differ.
//!
//! # Invariants
//! - An object that is mapped cannot shrink: it is sealed, whoever made it. Touching a mapping therefore never fails; what cannot be sealed is
//!   not mapped ([`SharedMemory::can_be_mapped`]).
//! - The mapping lives until the last clone, and the last [`Mapping`] made from it, is gone. So does the descriptor.

use core::ffi::c_void;
use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create};
use rustix::io::{FdFlags, dup2, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::ring::Mapping;

/// The file system of memory objects with pages of the usual size, as `fstatfs` names it.
const PLAIN_PAGES: u64 = 0x0102_1994;

/// A shared object, mapped. Clones are the same object.
#[derive(Clone, Debug)]
pub struct SharedMemory {
    object: Arc<Object>,
    len: usize,
}

/// What is given back with the last clone.
#[derive(Debug)]
struct Object {
    base: NonNull<c_void>,
    // The length that was mapped: whole words.
    mapped: usize,
    descriptor: OwnedFd,
}

// SAFETY:
// - The address is that of a shared mapping, which belongs to the process and to no thread; it is valid until `Drop`.
// - Nothing is read or written through it but by the atomics of `Mapping`.
unsafe impl Send for Object {}
// SAFETY: as above: a shared reference hands out the address and the descriptor only.
unsafe impl Sync for Object {}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY:
        // - `base` and `mapped` are those of the `mmap` in `map_object`, which nobody else unmaps.
        // - No `Mapping` over it is left: each holds the object.
        let unmapped = unsafe { munmap(self.base.as_ptr(), self.mapped) };
        debug_assert!(unmapped.is_ok(), "a mapping that exists can be unmapped");
    }
}

impl SharedMemory {
    /// A new object of `bytes` zeroed bytes, sealed against changes of its size. `name` is for those who list the mappings of a process.
    ///
    /// # Errors
    /// `InvalidInput` for no bytes or more than can be addressed; descriptors or memory are exhausted.
    pub fn create(name: &str, bytes: usize) -> io::Result<Self> {
        let descriptor = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&descriptor, bytes as u64)?;
        fcntl_add_seals(&descriptor, SealFlags::SHRINK | SealFlags::GROW)?;
        Self::map_object(descriptor, bytes)
    }

    /// Keeps an object that somebody else made from shrinking, where it allows that; answers whether it can be mapped without danger.
    ///
    /// A memory object that cannot be sealed may be cut short at any time, and so may a file. Objects of huge pages can have their size and
    /// lack the pages.
    pub fn can_be_mapped(descriptor: BorrowedFd<'_>) -> bool {
        // Refused for objects that were not made to be sealed; what counts is how they are now.
        let _ = fcntl_add_seals(descriptor, SealFlags::SHRINK);
        let sealed = fcntl_get_seals(descriptor).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        sealed && fstatfs(descriptor).is_ok_and(|system| system.f_type as u64 == PLAIN_PAGES)
    }

    /// Maps the first `bytes` of an object that somebody else made.
    ///
    /// # Errors
    /// `InvalidInput` when the object is shorter or could become so, nothing of it is asked, or more than can be addressed; it cannot be
    /// mapped.
    pub fn map(descriptor: OwnedFd, bytes: usize) -> io::Result<Self> {
        // Sealed first: its size is the same from then on.
        if !Self::can_be_mapped(descriptor.as_fd()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the shared object can be cut short"));
        }
        if object_bytes(descriptor.as_fd())? < bytes as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the shared object is too short"));
        }
        Self::map_object(descriptor, bytes)
    }

    fn map_object(descriptor: OwnedFd, bytes: usize) -> io::Result<Self> {
        let fits = bytes > 0 && isize::try_from(bytes).is_ok_and(|bytes| bytes.checked_add(8).is_some());
        if !fits {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a shared object of this size cannot be mapped"));
        }
        // Whole words: those behind the end lie in the last page of the object, which exists and is zero there.
        let mapped = bytes.next_multiple_of(8);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY:
        // - A new mapping at an address that the kernel chooses: it replaces nothing.
        // - It is shared: the reader of this code finds in the header of the module who may write there.
        let base = unsafe { mmap(core::ptr::null_mut(), mapped, protection, MapFlags::SHARED, &descriptor, 0) }?;
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { object: Arc::new(Object { base, mapped, descriptor }), len: bytes })
    }

    /// The object's descriptor, to be passed.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.object.descriptor.as_fd()
    }

    /// The size of the object now, which its owner may have changed unless it is sealed.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn object_bytes(&self) -> io::Result<u64> {
        object_bytes(self.descriptor())
    }

    /// Bytes that are mapped.
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    /// A mapping of all of it, which keeps the memory alive.
    pub fn mapping(&self) -> Mapping {
        let owner = Arc::clone(&self.object);
        // SAFETY:
        // - `base` is page-aligned and valid for `mapped` bytes until the object is dropped, which the owner outlasts.
        // - Everybody who touches it in this process does so through a `Mapping`; other processes have mappings of their own.
        unsafe { Mapping::owned(self.object.base, self.object.mapped, owner) }
    }

    /// Copies from `offset` on; answers whether all of it lies inside. Another writer may be seen half way.
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> bool {
        self.inside(offset, out.len()) && self.mapping().copy_out(offset, out)
    }

    /// Copies to `offset` on; answers whether all of it lies inside, and writes nothing otherwise.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> bool {
        self.inside(offset, bytes.len()) && self.mapping().copy_in(offset, bytes)
    }

    fn inside(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len)
    }
}

fn object_bytes(descriptor: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(u64::try_from(fstat(descriptor)?.st_size).unwrap_or(0))
}

/// The descriptors that a worker finds its sockets at (W-83).
pub(crate) const FRAMES_FD: RawFd = 3;
/// As [`FRAMES_FD`], for descriptors.
pub(crate) const DESCRIPTORS_FD: RawFd = 4;

/// Lets `command` start a child that has the two sockets at descriptors 3 and 4, and beyond its standard streams nothing else (W-83).
///
/// # Errors
/// No descriptors are left.
pub(crate) fn hand_over(command: &mut Command, frames: BorrowedFd<'_>, descriptors: BorrowedFd<'_>) -> io::Result<()> {
    // Out of the way of their places: putting one there must not close the other.
    let frames = fcntl_dupfd_cloexec(frames, DESCRIPTORS_FD + 1)?;
    let descriptors = fcntl_dupfd_cloexec(descriptors, DESCRIPTORS_FD + 1)?;
    // Whatever is opened from here on is close-on-exec, as everything is that Rust opens; the margin is for what is not.
    let highest = highest_descriptor()?.saturating_add(64);
    let become_worker = move || {
        place(&frames, FRAMES_FD)?;
        place(&descriptors, DESCRIPTORS_FD)?;
        (DESCRIPTORS_FD + 1..=highest).for_each(close_on_exec);
        Ok(())
    };
    // SAFETY:
    // - Between fork and exec the closure makes system calls only: it takes no lock, allocates nothing, and cannot panic.
    // - What it owns was made before the fork.
    unsafe { command.pre_exec(become_worker) };
    Ok(())
}

/// Makes `target` the descriptor that `source` is, not close-on-exec.
fn place(source: &OwnedFd, target: RawFd) -> io::Result<()> {
    // SAFETY:
    // - In the child nobody uses the number any more: what it was belongs to the parent's code, which does not run here.
    // - It is forgotten below, so it is not closed.
    let mut there = unsafe { OwnedFd::from_raw_fd(target) };
    let placed = dup2(source, &mut there);
    core::mem::forget(there);
    Ok(placed?)
}

fn close_on_exec(number: RawFd) {
    // SAFETY: the number is looked at and nothing else; one that is not open is refused by the kernel.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    if let Ok(flags) = fcntl_getfd(descriptor)
        && !flags.contains(FdFlags::CLOEXEC)
    {
        let _ = fcntl_setfd(descriptor, flags | FdFlags::CLOEXEC);
    }
}

/// The greatest number of an open descriptor.
fn highest_descriptor() -> io::Result<RawFd> {
    let mut highest = DESCRIPTORS_FD;
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        highest = highest.max(number.unwrap_or(0));
    }
    Ok(highest)
}

/// Keeps 3 and 4 occupied, so that nothing that is opened meanwhile gets one of them: the child puts its sockets there.
///
/// # Errors
/// No descriptors are left.
pub(crate) fn occupy_places() -> io::Result<[OwnedFd; 2]> {
    let something = std::fs::File::open("/dev/null")?;
    let first = fcntl_dupfd_cloexec(&something, FRAMES_FD)?;
    let second = fcntl_dupfd_cloexec(&something, FRAMES_FD)?;
    debug_assert!(first.as_raw_fd() >= FRAMES_FD && second.as_raw_fd() >= FRAMES_FD);
    Ok([first, second])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_see_one_memory() {
        let host = SharedMemory::create("test", 100).expect("created");
        let passed = host.descriptor().try_clone_to_owned().expect("a second descriptor");
        let worker = SharedMemory::map(passed, 100).expect("mapped");
        for (offset, len) in [(0, 100), (1, 3), (7, 2), (8, 16), (5, 64), (99, 1), (40, 0)] {
            let bytes: Vec<u8> = (0..len).map(|n| (offset * 7 + n) as u8).collect();
            assert!(host.copy_in(offset, &bytes));
            let mut read = vec![0; len];
            assert!(worker.copy_out(offset, &mut read));
            assert_eq!(read, bytes, "{len} bytes at {offset}");
        }
        let mut all = [0; 100];
        assert!(worker.copy_out(0, &mut all));
        let mut whole = host.clone();
        whole.len = 100;
        assert!(!whole.copy_in(99, &[1, 2]) && !worker.copy_out(usize::MAX, &mut [0]), "nothing outside");
        let mut again = [0; 100];
        assert!(host.copy_out(0, &mut again));
        assert_eq!(again, all, "a refused copy writes nothing");
    }

    #[test]
    fn created_object_keeps_its_size() {
        let memory = SharedMemory::create("test", 4096).expect("created");
        assert!(ftruncate(memory.descriptor(), 10).is_err() && ftruncate(memory.descriptor(), 8192).is_err());
        assert_eq!((memory.object_bytes().expect("size"), memory.len_bytes()), (4096, 4096));
        assert!(SharedMemory::create("none", 0).is_err());
        let short = memory.descriptor().try_clone_to_owned().expect("a second descriptor");
        let refused = SharedMemory::map(short, 4097).expect_err("one byte more than there is");
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn foreign_object_cannot_shrink_once_mapped() {
        let object = memfd_create("foreign", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("an object");
        ftruncate(&object, 64).expect("sized");
        let other = object.try_clone().expect("its owner keeps one");
        let memory = SharedMemory::map(object, 64).expect("mapped");
        assert!(ftruncate(&other, 8).is_err(), "sealed by the one who mapped it");
        assert_eq!(memory.object_bytes().expect("size"), 64);
        // What cannot be sealed is not mapped: its owner could cut it short.
        let object = memfd_create("plain", MemfdFlags::CLOEXEC).expect("an object");
        ftruncate(&object, 64).expect("sized");
        let file = OwnedFd::from(tempfile::tempfile().expect("a file"));
        ftruncate(&file, 64).expect("sized");
        for object in [object, file] {
            let refused = SharedMemory::map(object, 64).expect_err("it can shrink");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn mapping_outlives_its_memory() {
        let memory = SharedMemory::create("test", 64).expect("created");
        assert!(memory.copy_in(8, &[9; 8]));
        let mapping = memory.mapping();
        drop(memory);
        let mut read = [0; 8];
        assert!(mapping.copy_out(8, &mut read));
        assert_eq!(read, [9; 8]);
    }
}
