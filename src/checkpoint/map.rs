//! A file mapped into memory, read-only: the one place of `unsafe` in this folder.
//!
//! # Limits
//! The file must not be written, truncated or replaced in place while it is mapped. The map is private and read-only, so nothing
//! here can change it; but if another program writes to the file, tensors may change under the engine, and if it truncates the file,
//! touching the lost pages raises SIGBUS (on Unix), which ends the process. No library can prevent that for a mapped file.
//! Replacing a model by renaming a new file over it is safe: the map keeps the old file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::tensor::{Bytes, Release};

/// The bytes of a regular file.
struct MappedFile {
    map: memmap2::Mmap,
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl Release for MappedFile {
    fn release(&self, range: Range<usize>) {
        let len = range.end.min(self.map.len()).saturating_sub(range.start);
        #[cfg(unix)]
        {
            // SAFETY:
            // - the pages are those of a file, mapped read-only and never written: when they are read again, they come from the file
            //   with the same bytes (which nobody changes, see `map`), so whoever holds references sees nothing of it;
            // - the range lies inside the map, by the line above; its pages do as well.
            let _ = unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, len) };
        }
        #[cfg(not(unix))]
        let _ = len;
    }

    fn fetch(&self, range: Range<usize>) -> bool {
        let len = range.end.min(self.map.len()).saturating_sub(range.start);
        // One call instead of a fault for each few pages; kernels before 5.14 refuse it.
        #[cfg(target_os = "linux")]
        return len == 0 || self.map.advise_range(memmap2::Advice::PopulateRead, range.start, len).is_ok();
        #[cfg(not(target_os = "linux"))]
        return len == 0;
    }
}

/// Maps a regular file; an empty one becomes no bytes.
///
/// # Errors
/// The system's error, or `InvalidInput` for something that is no regular file.
pub(super) fn map(path: &Path) -> io::Result<Bytes> {
    // Opening a named pipe would wait for its writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(Bytes::new(Arc::new([])));
    }
    // SAFETY:
    // - the map is read-only and private: this process never writes through it, and `File` was opened for reading;
    // - nobody else changes the file while it is mapped: the promise that `Checkpoint::open` asks of its caller in its
    //   documentation, because the system offers no way to check it;
    // - the bytes are only ever read as `u8`, for which every value is valid.
    let map = unsafe { memmap2::Mmap::map(&file) }?;
    Ok(Bytes::with_release(Arc::new(MappedFile { map })))
}
