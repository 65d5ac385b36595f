#![forbid(unsafe_code)]
//! What can be wrong with an adapter.

use std::path::PathBuf;

use super::super::error::{ConfigError, GgufError, HfError};

/// Why an adapter could not be read. Nothing is kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// The file system refused.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The bytes are not a well-formed GGUF file.
    #[error("{} is not a well-formed GGUF file", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: GgufError,
    },
    /// A document or a tensor file is not well-formed.
    #[error("{} is not well-formed", path.display())]
    Hf {
        /// The file at fault.
        path: PathBuf,
        /// What is wrong with it.
        source: HfError,
    },
    /// A key or a tensor is of a wrong kind.
    #[error("{} cannot be used", path.display())]
    Config {
        /// The file at fault.
        path: PathBuf,
        /// What is wrong with it.
        source: ConfigError,
    },
    /// Well-formed, but no adapter of this model.
    #[error("{} is no adapter of this model", path.display())]
    Lora {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        source: LoraError,
    },
}

/// Why something well-formed is no adapter of a model.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LoraError {
    /// It says that it is something else.
    #[error("{key} is {got}, not {expected}")]
    Kind {
        /// The key.
        key: &'static str,
        /// What it says.
        got: String,
        /// What an adapter says.
        expected: &'static str,
    },
    /// It was made for another family of models.
    #[error("it is for the architecture {architecture}, which is not the model's")]
    Architecture {
        /// The architecture that it names.
        architecture: String,
    },
    /// A kind of adapter that is not computed.
    #[error("{key} is {got}: {reason}")]
    Variant {
        /// The key or tensor.
        key: String,
        /// What it says.
        got: String,
        /// Why that is not computed.
        reason: &'static str,
    },
    /// It changes something that cannot be changed.
    #[error("{tensor}: {reason}")]
    Target {
        /// The tensor or module.
        tensor: String,
        /// Why.
        reason: &'static str,
    },
    /// One factor without the other.
    #[error("{tensor} has no counterpart")]
    Alone {
        /// The tensor.
        tensor: String,
    },
    /// A factor occurs twice.
    #[error("{tensor} occurs twice")]
    Duplicate {
        /// The tensor.
        tensor: String,
    },
    /// It has no factor at all.
    #[error("it changes nothing")]
    Empty,
    /// A factor has another shape than the model implies.
    #[error("{tensor} is {got_rows} x {got_cols}, {rows} x {cols} expected")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Expected rows.
        rows: usize,
        /// Expected elements of a row.
        cols: usize,
        /// Rows it has.
        got_rows: usize,
        /// Elements of a row it has.
        got_cols: usize,
    },
    /// A rank of 0, above [`MAX_RANK`](super::MAX_RANK), or other than the document says.
    #[error("the rank of {place} is {got}, {expected}")]
    Rank {
        /// The key or tensor.
        place: String,
        /// The rank.
        got: u64,
        /// What it may be.
        expected: String,
    },
    /// The scale is no finite number.
    #[error("the scale is {got}")]
    Scale {
        /// The scale.
        got: f32,
    },
    /// A factor has an element that is no finite number.
    #[error("{tensor} has an element that is not finite")]
    NotFinite {
        /// The tensor.
        tensor: String,
    },
    /// The rows of q and k cannot be brought into the model's order.
    #[error("the model rotates {dims} of {head_dim} dimensions: the rows of q and k have no known order")]
    PartialRotation {
        /// Rotated dimensions of a head.
        dims: usize,
        /// Dimensions of a head.
        head_dim: usize,
    },
}

impl LoraError {
    /// Whether this is a kind of adapter, or a place in the model, that is not computed, rather than a broken file.
    pub fn is_variant(&self) -> bool {
        matches!(self, Self::Variant { .. } | Self::Target { .. } | Self::PartialRotation { .. })
    }
}
