#![forbid(unsafe_code)]
//! Weights as they lie in a file: element types, shapes and the bytes.

mod dequant;
mod dtype;

pub use dequant::{RowSizeError, dequantise_row};
pub use dtype::DType;

use std::ops::Range;
use std::sync::Arc;

/// Shared bytes: a range of a mapped file or of owned memory.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl Bytes {
    /// All bytes of `owner`.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        let len = (*owner).as_ref().len();
        Self { owner, range: 0..len }
    }

    /// A copy of `bytes` in memory of its own, aligned to 8 bytes.
    pub fn copy_aligned(bytes: &[u8]) -> Self {
        let mut words = vec![0_u64; bytes.len().div_ceil(8)];
        bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Self { owner: Arc::new(Words(words)), range: 0..bytes.len() }
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
        (start <= end && end <= self.range.end).then(|| Self { owner: Arc::clone(&self.owner), range: start..end })
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
