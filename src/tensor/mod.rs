#![forbid(unsafe_code)]
//! Weights as they lie in a file: element types, shapes and the bytes.

mod dequant;
mod dtype;

pub use dequant::{RowSizeError, dequantise_row};
pub use dtype::DType;

use std::ops::Range;
use std::sync::Arc;

/// Bytes whose memory can be given back to the system and comes again when they are read: those of a mapped file.
pub trait Release: AsRef<[u8]> + Send + Sync {
    /// Gives back the memory of these bytes, or of some of them; they can be read as before.
    fn release(&self, range: Range<usize>);

    /// Has these bytes in memory when it returns, and says so; false where the system does not do that on request.
    fn fetch(&self, range: Range<usize>) -> bool;
}

/// Shared bytes: a range of a mapped file or of owned memory.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    /// The owner once more, where it can give memory back.
    release: Option<Arc<dyn Release>>,
    range: Range<usize>,
}

impl Bytes {
    /// All bytes of `owner`.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        let len = (*owner).as_ref().len();
        Self { owner, release: None, range: 0..len }
    }

    /// All bytes of `owner`, whose memory can be given back.
    pub fn with_release<T: Release + 'static>(owner: Arc<T>) -> Self {
        Self { release: Some(owner.clone()), ..Self::new(owner) }
    }

    /// Gives the memory of a part of these bytes back to the system, where that is possible: who has copied them says so. They can
    /// be read as before, only more slowly the first time. What lies outside is left out.
    pub fn release(&self, part: Range<usize>) {
        if let Some((owner, part)) = self.of_release(part) {
            owner.release(part);
        }
    }

    /// Has a part of these bytes in memory when it returns, read from the disk if need be. What lies outside is left out.
    pub fn fetch(&self, part: Range<usize>) {
        const MEMORY_PAGE_BYTES: usize = 4096;
        let Some((owner, range)) = self.of_release(part) else { return };
        if !owner.fetch(range.clone()) {
            let bytes = (*self.owner).as_ref().get(range).unwrap_or_default();
            let sum = bytes.iter().step_by(MEMORY_PAGE_BYTES).fold(0u8, |sum, &byte| sum ^ byte);
            core::hint::black_box(sum);
        }
    }

    /// An owner that can give memory back, and where in it a part of these bytes lies; none for nothing.
    fn of_release(&self, part: Range<usize>) -> Option<(&dyn Release, Range<usize>)> {
        let at = |index: usize| self.range.start.saturating_add(index).min(self.range.end);
        let range = at(part.start)..at(part.end);
        self.release.as_deref().filter(|_| range.start < range.end).map(|owner| (owner, range))
    }

    /// A copy of `bytes` in memory of its own, aligned to 8 bytes.
    pub fn copy_aligned(bytes: &[u8]) -> Self {
        let mut words = vec![0_u64; bytes.len().div_ceil(8)];
        bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Self { range: 0..bytes.len(), ..Self::new(Arc::new(Words(words))) }
    }

    /// The bytes of `values` in memory of their own, aligned to 8 bytes.
    pub fn from_f32(values: &[f32]) -> Self {
        Self::copy_aligned(bytemuck::cast_slice(values))
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// A part of these bytes, or none when it does not lie inside.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let start = self.range.start.checked_add(range.start)?;
        let end = self.range.start.checked_add(range.end)?;
        (start <= end && end <= self.range.end).then(|| Self { range: start..end, ..self.clone() })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

/// Owned memory with the alignment of its words.
struct Words(Vec<u64>);

impl AsRef<[u8]> for Words {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl core::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Bytes({} bytes)", self.range.len())
    }
}

/// A named weight: `rows` rows of `cols` elements; a vector has one row.
///
/// # Invariants
/// - `data` holds exactly `rows * dtype.row_bytes(cols)` bytes, rows one after another.
/// - In a [`Checkpoint`](crate::checkpoint::Checkpoint), `data` starts at an address that is a multiple of 4 for F32 and of 2 for
///   every other type, and every vector (norm, bias) is F32.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Element type.
    pub dtype: DType,
    /// Number of rows: the outputs of a linear layer.
    pub rows: usize,
    /// Elements of a row: the inputs of a linear layer.
    pub cols: usize,
    /// The elements as the file has them.
    pub data: Bytes,
}
