#![forbid(unsafe_code)]
//! The tensor table of a GGUF file.
//!
//! ```text
//! name string | n_dims u32 | n_dims x u64 (innermost first) | type u32 | offset u64 (in the data section)
//! ```
//!
//! # Invariants
//! After [`parse`] and [`check_layout`]: names are unique; no dimension is 0 and their product fits; offsets are aligned; tensors of
//! known types lie inside the data section, consist of whole quant blocks and share no byte.

use std::collections::HashSet;

use super::super::error::GgufError;
use super::cursor::Cursor;
use super::metadata::{read_name, truncated};
use super::types::TypeId;
use crate::tensor::Bytes;

/// Most tensors of a file.
pub const MAX_TENSORS: u64 = 1 << 20;

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name.
    pub name: String,
    /// Sizes, innermost first; 1 beyond the dimensions of the file.
    pub dims: [u64; 4],
    /// Element type.
    pub kind: TypeId,
    /// Where the data starts, counted from the data section.
    pub offset: u64,
}

impl TensorInfo {
    /// Values of a row.
    pub fn cols(&self) -> u64 {
        self.dims[0]
    }

    /// Rows; the table was refused if they overflow.
    pub fn rows(&self) -> u64 {
        self.dims[1] * self.dims[2] * self.dims[3]
    }

    /// Bytes of the data; none for an element type that is not known.
    fn data_bytes(&self) -> Result<Option<u64>, GgufError> {
        let Some(dtype) = self.kind.dtype() else { return Ok(None) };
        let unit_values = dtype.unit_values() as u64;
        if !self.cols().is_multiple_of(unit_values) {
            return Err(GgufError::PartialRow { tensor: self.name.clone(), cols: self.cols(), unit_values });
        }
        let units = (self.cols() / unit_values).checked_mul(self.rows());
        match units.and_then(|units| units.checked_mul(dtype.unit_bytes() as u64)) {
            Some(bytes) => Ok(Some(bytes)),
            None => Err(GgufError::Shape { tensor: self.name.clone(), dims: self.dims.to_vec() }),
        }
    }
}

/// Reads `count` rows.
pub(super) fn parse(bytes: &Bytes, cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<TensorInfo>, GgufError> {
    if count > MAX_TENSORS {
        return Err(GgufError::TooLarge { place: "the number of tensors".to_owned(), got: count, max: MAX_TENSORS });
    }
    cursor.expect_units(count, 8 + 1 + 4 + 8 + 4 + 8).map_err(|short| truncated("the tensor table", short))?;
    let mut names = HashSet::new();
    let mut table = Vec::new();
    for index in 0..count {
        let name = read_name(bytes, cursor, || format!("tensor number {index}"))?;
        if !names.insert(name) {
            return Err(GgufError::DuplicateTensor { tensor: name.to_owned() });
        }
        table.push(read_row(cursor, name)?);
    }
    Ok(table)
}

fn read_row(cursor: &mut Cursor<'_>, name: &str) -> Result<TensorInfo, GgufError> {
    let short = |short| truncated(format!("the description of tensor {name}"), short);
    let n_dims = cursor.u32().map_err(short)?;
    let mut dims = [1; 4];
    let Some(stated) = dims.get_mut(..n_dims as usize).filter(|stated| !stated.is_empty()) else {
        return Err(GgufError::DimensionCount { tensor: name.to_owned(), got: n_dims });
    };
    for dim in stated.iter_mut() {
        *dim = cursor.u64().map_err(short)?;
    }
    let product = stated.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim));
    if product.is_none_or(|product| product == 0 || product > i64::MAX as u64) {
        return Err(GgufError::Shape { tensor: name.to_owned(), dims: stated.to_vec() });
    }
    let kind = TypeId(cursor.u32().map_err(short)?);
    let offset = cursor.u64().map_err(short)?;
    Ok(TensorInfo { name: name.to_owned(), dims, kind, offset })
}

/// Checks that all tensors lie in a data section of `available` bytes, aligned and apart.
pub(super) fn check_layout(table: &[TensorInfo], alignment: u64, available: u64) -> Result<(), GgufError> {
    let mut spans = Vec::with_capacity(table.len());
    for info in table {
        if !info.offset.is_multiple_of(alignment) {
            return Err(GgufError::Misaligned { tensor: info.name.clone(), offset: info.offset, alignment });
        }
        // Of an unknown type only the start can be checked.
        let needed = info.data_bytes()?.unwrap_or(1);
        match info.offset.checked_add(needed) {
            Some(end) if end <= available => spans.push((info.offset, end, &info.name)),
            _ => {
                let (tensor, offset) = (info.name.clone(), info.offset);
                return Err(GgufError::OutOfFile { tensor, offset, needed, available });
            }
        }
    }
    spans.sort_unstable();
    for pair in spans.windows(2) {
        let ((_, end, first), (start, _, second)) = (pair[0], pair[1]);
        if start < end {
            return Err(GgufError::Overlap { first: first.clone(), second: second.clone() });
        }
    }
    Ok(())
}
