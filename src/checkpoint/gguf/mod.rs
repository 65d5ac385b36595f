#![forbid(unsafe_code)]
//! GGUF files, versions 2 and 3, little-endian.
//!
//! ```text
//! "GGUF" | version u32 | tensors u64 | keys u64 | keys ... | tensor table ... | padding | data section
//! ```
//!
//! The data section starts at the next multiple of `general.alignment` (32 when it is not stated). [`GgufFile::parse`] checks the
//! whole layout; what keys and tensors *mean* is checked when they become a [`Checkpoint`](super::Checkpoint).
//!
//! # Invariants
//! Parsing never panics and allocates in proportion to what the file really holds: a count is compared with the bytes that are left
//! before anything is allocated for it.
//!
//! # Limits
//! See [`MAX_KEYS`], [`MAX_NAME_BYTES`], [`MAX_DEPTH`], [`MAX_TENSORS`]; the alignment is a power of two from 8 to 1 MiB.
//!
//! A tensor of a type that this crate does not read may stand in the file; asking for it is an error that names both.
//!
//! # Source
//! The GGUF format description of the ggml project.

mod adapter;
mod cursor;
mod keys;
mod metadata;
mod read;
mod split;
mod table;
mod types;
mod value;
mod vocabulary;

pub use metadata::{MAX_DEPTH, MAX_KEYS, MAX_NAME_BYTES, Metadata};
pub use table::{MAX_TENSORS, TensorInfo};
pub use types::TypeId;
pub use value::{Array, StringArray, Value, ValueType};

pub(super) use adapter::open as open_adapter;
pub(super) use read::read;
pub(super) use split::open_all;

use self::cursor::Cursor;
use self::metadata::truncated;
use super::error::{ConfigError, GgufError};
use crate::tensor::{Bytes, Tensor};

/// A parsed file, or one shard of a split one.
#[derive(Clone, Debug)]
pub struct GgufFile {
    bytes: Bytes,
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    header_bytes: usize,
    data: Bytes,
}

impl GgufFile {
    /// Checks the layout of a file.
    ///
    /// # Errors
    /// A [`GgufError`] that names the place.
    pub fn parse(bytes: Bytes) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(bytes.as_slice());
        let version = read_version(&mut cursor)?;
        let short = |short| truncated("the header", short);
        let tensor_count = cursor.u64().map_err(short)?;
        let key_count = cursor.u64().map_err(short)?;
        let metadata = Metadata::parse(&bytes, &mut cursor, key_count)?;
        let tensors = table::parse(&bytes, &mut cursor, tensor_count)?;
        let header_bytes = cursor.at();
        let alignment = alignment(&metadata)?;
        let file_bytes = bytes.as_slice().len();
        let data_start = header_bytes.checked_next_multiple_of(alignment).unwrap_or(file_bytes).min(file_bytes);
        let data = bytes.slice(data_start..file_bytes).unwrap_or_else(|| Bytes::new(std::sync::Arc::new([])));
        table::check_layout(&tensors, alignment as u64, (file_bytes - data_start) as u64)?;
        Ok(Self { bytes, version, metadata, tensors, header_bytes, data })
    }

    /// Version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The keys.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensor table, in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Everything before the data section: keys and tensor table.
    fn header(&self) -> Bytes {
        self.bytes.slice(0..self.header_bytes).unwrap_or_else(|| self.bytes.clone())
    }

    /// The tensor that a row of this file's table describes.
    ///
    /// # Errors
    /// `TensorType` for a type that this crate does not read.
    pub fn tensor(&self, info: &TensorInfo) -> Result<Tensor, ConfigError> {
        let unknown = || ConfigError::TensorType { tensor: info.name.clone(), element_type: info.kind.name() };
        let dtype = info.kind.dtype().ok_or_else(unknown)?;
        // The layout was checked for this file's own table: the sizes fit, or `info` belongs to another file.
        let tensor = (|| {
            let rows = usize::try_from(info.rows()).ok()?;
            let cols = usize::try_from(info.cols()).ok()?;
            let start = usize::try_from(info.offset).ok()?;
            let end = start.checked_add(dtype.row_bytes(cols)?.checked_mul(rows)?)?;
            Some(Tensor { dtype, rows, cols, data: self.data.slice(start..end)? })
        })();
        tensor.ok_or_else(|| ConfigError::MissingTensor { tensor: info.name.clone() })
    }
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let magic = cursor.take(cursor.remaining().min(4)).unwrap_or_default();
    match magic {
        b"GGUF" => {}
        b"FUGG" => return Err(GgufError::BigEndian),
        _ => return Err(GgufError::Magic { got: magic.to_vec() }),
    }
    match cursor.u32().map_err(|short| truncated("the version", short))? {
        version @ (2 | 3) => Ok(version),
        version if matches!(version.swap_bytes(), 1..=3) => Err(GgufError::BigEndian),
        version => Err(GgufError::Version { version }),
    }
}

fn alignment(metadata: &Metadata) -> Result<usize, GgufError> {
    match metadata.integer("general.alignment") {
        Ok(None) => Ok(32),
        Ok(Some(value)) if value.is_power_of_two() && (8..=1 << 20).contains(&value) => Ok(value as usize),
        Ok(Some(value)) => Err(GgufError::Alignment { got: value.to_string() }),
        Err(ConfigError::KeyType { got, .. }) => Err(GgufError::Alignment { got }),
        Err(_) => Err(GgufError::Alignment { got: "unreadable".to_owned() }),
    }
}
