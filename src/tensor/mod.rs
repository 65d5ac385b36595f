#![forbid(unsafe_code)]
//! Weights as they lie in a file: element types, shapes and the bytes.

mod dtype;

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

impl core::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Bytes({} bytes)", self.range.len())
    }
}

/// A named weight: `rows` rows of `cols` elements; a vector has one row.
///
/// # Invariants
/// `data` holds exactly `rows * dtype.row_bytes(cols)` bytes, rows one after another.
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
