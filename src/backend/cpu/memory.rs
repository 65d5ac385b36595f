#![forbid(unsafe_code)]
//! What the backend keeps: weights where they lie in the file, activation rows, and the pool of pages.

use half::f16;
use memmap2::MmapMut;

use crate::backend::{BackendError, KvShape, KvType};
use crate::tensor::{DType, Tensor, dequantise_row};

/// A weight matrix, still in the file's element type.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub(super) tensor: Tensor,
    pub(super) row_bytes: usize,
}

impl Matrix {
    pub(super) fn new(tensor: &Tensor) -> Result<Self, BackendError> {
        let unsupported = BackendError::UnsupportedTensor { operation: "linear" };
        let row_bytes = tensor.dtype.row_bytes(tensor.cols).ok_or(unsupported.clone())?;
        let bytes = row_bytes.checked_mul(tensor.rows);
        if tensor.rows == 0 || tensor.cols == 0 || bytes != Some(tensor.data.as_slice().len()) {
            return Err(unsupported);
        }
        Ok(Self { tensor: tensor.clone(), row_bytes })
    }

    /// The bytes of a row.
    pub(super) fn row(&self, row: usize) -> &[u8] {
        &self.tensor.data.as_slice()[row * self.row_bytes..][..self.row_bytes]
    }

    pub(super) fn dtype(&self) -> DType {
        self.tensor.dtype
    }
}

/// A weight vector in f32.
#[derive(Clone, Debug)]
pub struct Vector(pub(super) Vec<f32>);

impl Vector {
    pub(super) fn new(tensor: &Tensor) -> Result<Self, BackendError> {
        let unsupported = BackendError::UnsupportedTensor { operation: "vector" };
        let len = tensor.rows.checked_mul(tensor.cols).ok_or(unsupported.clone())?;
        let mut values = Vec::new();
        values.try_reserve_exact(len).map_err(|_| BackendError::OutOfMemory { bytes: len as u64 * 4 })?;
        values.resize(len, 0.0);
        dequantise_row(tensor.dtype, tensor.data.as_slice(), &mut values).map_err(|_| unsupported)?;
        Ok(Self(values))
    }
}

/// A cache line of activations.
#[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

const LINE: usize = 16;

/// Activation rows: `[rows, width]` f32, each row padded to whole cache lines.
///
/// # Invariants
/// The padding is zero, so a kernel may read whole vectors past the width.
#[derive(Clone, Debug)]
pub struct Buffer {
    lines: Vec<Line>,
    rows: usize,
    width: usize,
}

impl Buffer {
    pub(super) fn new(width: usize) -> Self {
        Self { lines: Vec::new(), rows: 0, width }
    }

    pub(super) fn resize(&mut self, rows: usize) -> Result<(), BackendError> {
        let lines = rows.saturating_mul(self.stride() / LINE);
        if lines > self.lines.len() {
            let bytes = lines as u64 * size_of::<Line>() as u64;
            let more = lines - self.lines.len();
            self.lines.try_reserve_exact(more).map_err(|_| BackendError::OutOfMemory { bytes })?;
            self.lines.resize(lines, Line::default());
        }
        self.rows = rows;
        Ok(())
    }

    /// Elements from one row to the next.
    pub(super) fn stride(&self) -> usize {
        self.width.next_multiple_of(LINE)
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// All elements, rows one stride apart.
    pub(super) fn elements(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.rows * self.stride()]
    }

    pub(super) fn elements_mut(&mut self) -> &mut [f32] {
        let len = self.rows * self.stride();
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..len]
    }

    /// A row without its padding.
    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.elements()[row * self.stride()..][..self.width]
    }

    pub(super) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        let (stride, width) = (self.stride(), self.width);
        &mut self.elements_mut()[row * stride..][..width]
    }
}

/// Keys and values of all layers in one mapping, zero until written and without memory until then.
///
/// ```text
/// layer 0                                                    layer 1 ...
/// | keys: page 0 | page 1 | ...  | values: page 0 | ...     |
///        |
///        | head 0: slot 0 | slot 1 | ... | head 1: slot 0 | ...       slot: head_dim elements
/// ```
/// A head's slots in a page lie together, since attention reads one head's keys in position order.
#[derive(Debug)]
pub struct Pages {
    shape: KvShape,
    memory: MmapMut,
}

/// Where the keys or the values of one layer begin, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Keys,
    Values,
}

/// Elements of the pool, as stored.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stored<'p> {
    F32(&'p [f32]),
    F16(&'p [u16]),
}

impl Pages {
    pub(super) fn new(shape: &KvShape) -> Result<Self, BackendError> {
        let bytes = shape.page_bytes().and_then(|page| page.checked_mul(shape.pages as u64));
        let out_of_memory = BackendError::OutOfMemory { bytes: bytes.unwrap_or(u64::MAX) };
        let len = bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or(out_of_memory.clone())?;
        // An empty mapping is refused by the system; a pool without pages is legal.
        let memory = MmapMut::map_anon(len.max(1)).map_err(|_| out_of_memory)?;
        Ok(Self { shape: *shape, memory })
    }

    pub(super) fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Elements of one page of one layer's keys or values.
    fn page_elements(&self) -> usize {
        self.shape.n_kv_heads * self.shape.page_size_tokens * self.shape.head_dim
    }

    /// First element of a page.
    pub(super) fn page_start(&self, layer: usize, part: Part, page: u32) -> usize {
        let half = 2 * layer + usize::from(part == Part::Values);
        (half * self.shape.pages + page as usize) * self.page_elements()
    }

    /// All elements.
    pub(super) fn stored(&self) -> Stored<'_> {
        let bytes = &self.memory[..];
        let len = bytes.len() / self.shape.element.bytes() * self.shape.element.bytes();
        // A mapping begins at a memory page, so it is aligned for either type.
        match self.shape.element {
            KvType::F32 => Stored::F32(bytemuck::cast_slice(&bytes[..len])),
            KvType::F16 => Stored::F16(bytemuck::cast_slice(&bytes[..len])),
        }
    }

    /// Writes one head of one token.
    pub(super) fn write(&mut self, start: usize, values: &[f32]) {
        match self.shape.element {
            KvType::F32 => {
                let bytes = &mut self.memory[4 * start..][..4 * values.len()];
                bytes.copy_from_slice(bytemuck::cast_slice(values));
            }
            KvType::F16 => {
                let bytes = &mut self.memory[2 * start..][..2 * values.len()];
                for (stored, &value) in bytes.chunks_exact_mut(2).zip(values) {
                    stored.copy_from_slice(&f16::from_f32(value).to_le_bytes());
                }
            }
        }
    }

    /// Copies a page over all layers.
    pub(super) fn copy(&mut self, from: u32, to: u32) {
        let bytes = self.page_elements() * self.shape.element.bytes();
        for layer in 0..self.shape.layers {
            for part in [Part::Keys, Part::Values] {
                let element = self.shape.element.bytes();
                let (from, to) = (self.page_start(layer, part, from), self.page_start(layer, part, to));
                self.memory.copy_within(element * from..element * from + bytes, element * to);
            }
        }
    }
}
