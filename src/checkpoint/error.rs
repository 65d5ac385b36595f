#![forbid(unsafe_code)]
//! What can be wrong with a model file, one type per layer.
//!
//! [`GgufError`] and [`HfError`] speak of bytes and documents, [`ConfigError`] of what they say; [`CheckpointError`] adds the
//! path. Every variant names the key, tensor, shard or offset that is at fault.

use crate::tensor::DType;
use std::path::PathBuf;

/// Why a checkpoint could not be opened. Nothing is kept when it is returned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file system refused.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Neither a GGUF file nor a directory with a `config.json`.
    #[error("{} is neither a GGUF file nor a directory with config.json", path.display())]
    NotACheckpoint {
        /// What was opened.
        path: PathBuf,
    },
    /// The bytes are not a well-formed GGUF file.
    #[error("{} is not a well-formed GGUF file", path.display())]
    Gguf {
        /// The file, or the shard at fault.
        path: PathBuf,
        /// What is wrong with it.
        source: GgufError,
    },
    /// The shards of a split file do not belong together.
    #[error("{} is not a complete split model", path.display())]
    Split {
        /// The shard at fault.
        path: PathBuf,
        /// What is wrong with it.
        source: SplitError,
    },
    /// A document or a tensor file of a directory is not well-formed.
    #[error("{} is not well-formed", path.display())]
    Hf {
        /// The file at fault.
        path: PathBuf,
        /// What is wrong with it.
        source: HfError,
    },
    /// The file is well-formed, but says something that cannot be computed.
    #[error("{} cannot be used", path.display())]
    Config {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        source: ConfigError,
    },
}

/// What is wrong with the bytes of a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The first four bytes are not `GGUF`.
    #[error("the file starts with {got:02x?}, not with GGUF")]
    Magic {
        /// The first bytes, fewer than four when the file is shorter.
        got: Vec<u8>,
    },
    /// Numbers are stored most significant byte first.
    #[error("the file is big-endian")]
    BigEndian,
    /// Neither version 2 nor 3.
    #[error("version {version} is not served, only 2 and 3")]
    Version {
        /// The version.
        version: u32,
    },
    /// The file ends inside something.
    #[error("{place} at offset {offset} needs {needed} bytes and the file has {available}")]
    Truncated {
        /// What was being read.
        place: String,
        /// Where it starts.
        offset: u64,
        /// Bytes it takes, at least.
        needed: u64,
        /// Bytes from there to the end.
        available: u64,
    },
    /// A count or a length is above what is accepted.
    #[error("{place} is {got}, at most {max} are accepted")]
    TooLarge {
        /// What was counted.
        place: String,
        /// The count.
        got: u64,
        /// The most accepted.
        max: u64,
    },
    /// A metadata type that does not exist.
    #[error("{place} has the unknown metadata type {got}")]
    ValueType {
        /// The key or array.
        place: String,
        /// Its type number.
        got: u32,
    },
    /// Arrays inside arrays inside arrays.
    #[error("key {key} nests arrays deeper than {max}")]
    TooDeep {
        /// The key.
        key: String,
        /// The most levels accepted.
        max: u32,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("key {key} has {got} for a boolean")]
    Boolean {
        /// The key.
        key: String,
        /// The byte.
        got: u8,
    },
    /// A key or tensor name that is empty or not UTF-8.
    #[error("{place} at offset {offset} has no proper name")]
    Name {
        /// What was to be named.
        place: String,
        /// Where the name starts.
        offset: u64,
    },
    /// A key occurs twice.
    #[error("key {key} occurs twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A tensor occurs twice.
    #[error("tensor {tensor} occurs twice")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// `general.alignment` is not a power of two from 8 to 1 MiB, or not an integer.
    #[error("general.alignment is {got}, not a power of two from 8 to 1048576")]
    Alignment {
        /// The value as text.
        got: String,
    },
    /// A tensor has no dimension or more than four.
    #[error("tensor {tensor} has {got} dimensions, 1 to 4 are possible")]
    DimensionCount {
        /// The tensor.
        tensor: String,
        /// Its number of dimensions.
        got: u32,
    },
    /// A dimension is 0, or all together overflow.
    #[error("tensor {tensor} has the impossible shape {dims:?}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its dimensions, innermost first.
        dims: Vec<u64>,
    },
    /// The rows do not consist of whole quant blocks.
    #[error("tensor {tensor} has rows of {cols} values, not a multiple of {unit_values}")]
    PartialRow {
        /// The tensor.
        tensor: String,
        /// Values of a row.
        cols: u64,
        /// Values of a quant block.
        unit_values: u64,
    },
    /// A tensor's data does not start at a multiple of the alignment.
    #[error("tensor {tensor} starts at {offset}, not a multiple of {alignment}")]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Its offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor's data does not lie inside the file.
    #[error("tensor {tensor} needs {needed} bytes at {offset} of a data section of {available}")]
    OutOfFile {
        /// The tensor.
        tensor: String,
        /// Its offset in the data section.
        offset: u64,
        /// Its size in bytes.
        needed: u64,
        /// Bytes of the data section.
        available: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors {first} and {second} overlap")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The other.
        second: String,
    },
}

/// What is wrong with the shards of a split GGUF file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// The name does not end in `-00001-of-00003.gguf` with the count that the file states.
    #[error("the name does not end in -NNNNN-of-{count:05}.gguf")]
    Name {
        /// `split.count` of the file.
        count: u64,
    },
    /// `split.no` or `split.count` is missing, of a wrong type, or out of range.
    #[error("{key} is not usable")]
    Key {
        /// The key.
        key: &'static str,
    },
    /// The shard says that it is another one: a renamed file, or one shard linked under many names.
    #[error("the shard is number {got} where {expected} belongs")]
    Number {
        /// Its place, counted from 0.
        expected: u64,
        /// Its `split.no`.
        got: u64,
    },
    /// The shard belongs to a set of another size.
    #[error("the shard is one of {got} where {expected} are expected")]
    Count {
        /// `split.count` of the first shard.
        expected: u64,
        /// Its own.
        got: u64,
    },
    /// A tensor occurs in two shards.
    #[error("tensor {tensor} occurs in an earlier shard too")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// All shards together hold another number of tensors than they state.
    #[error("the shards hold {got} tensors where {expected} are stated")]
    TensorCount {
        /// `split.tensors.count` of the first shard.
        expected: u64,
        /// Tensors found.
        got: u64,
    },
}

/// What is wrong with a file of a Hugging Face directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HfError {
    /// The file is larger than such a file can be.
    #[error("the file has {got} bytes, at most {max} are accepted")]
    TooLarge {
        /// Its size.
        got: u64,
        /// The most accepted.
        max: u64,
    },
    /// Not JSON, or nested too deeply.
    #[error("the document is not JSON as expected")]
    Json {
        /// What is wrong, with line and column.
        source: serde_json::Error,
    },
    /// The document is JSON, but not of the expected form.
    #[error("{key} is not {expected}")]
    Form {
        /// The member at fault.
        key: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A tensor file is wrong.
    #[error("the tensor file is not well-formed")]
    Safetensors(#[from] SafetensorsError),
    /// A shard's name is not a plain file name inside the directory.
    #[error("tensor {tensor} is said to lie in {file:?}, which is no plain file name")]
    ShardName {
        /// The tensor.
        tensor: String,
        /// The name.
        file: String,
    },
    /// More shards are named than accepted.
    #[error("{got} shards are named, at most {max} are accepted")]
    TooManyShards {
        /// Shards named.
        got: u64,
        /// The most accepted.
        max: u64,
    },
    /// A shard lacks a tensor that the index promises, or the index lacks one that the shard holds.
    #[error("index and shard disagree on tensor {tensor}")]
    Index {
        /// The tensor.
        tensor: String,
    },
    /// Two tensors of the files get the same canonical name.
    #[error("tensor {tensor} occurs twice")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
}

/// What is wrong with a safetensors file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SafetensorsError {
    /// The file ends before its header does.
    #[error("the header takes {needed} bytes and the file has {available}")]
    Truncated {
        /// Bytes needed.
        needed: u64,
        /// Bytes of the file.
        available: u64,
    },
    /// The header's length is absurd.
    #[error("the header has {got} bytes, at most {max} are accepted")]
    HeaderTooLarge {
        /// Its length.
        got: u64,
        /// The most accepted.
        max: u64,
    },
    /// The header is not JSON of the expected form.
    #[error("the header is not JSON as expected")]
    Header {
        /// What is wrong, with line and column.
        source: serde_json::Error,
    },
    /// A tensor occurs twice.
    #[error("tensor {tensor} occurs twice")]
    Duplicate {
        /// The tensor.
        tensor: String,
    },
    /// A tensor does not start where the one before it ends, or does not lie inside the file.
    #[error(
        "tensor {tensor} is at {begin}..{end}, expected from {expected} on, in a data section of {available} bytes"
    )]
    Offsets {
        /// The tensor.
        tensor: String,
        /// Where it is said to start.
        begin: u64,
        /// Where it is said to end.
        end: u64,
        /// Where the tensor before it ends.
        expected: u64,
        /// Bytes of the data section.
        available: u64,
    },
    /// A tensor's shape overflows or does not fill its bytes.
    #[error("tensor {tensor} of shape {shape:?} does not fit its bytes")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape, outermost first.
        shape: Vec<u64>,
    },
    /// Bytes follow the last tensor.
    #[error("tensors take {used} bytes of a data section of {available}")]
    Trailing {
        /// Bytes of all tensors.
        used: u64,
        /// Bytes of the data section.
        available: u64,
    },
}

/// What a well-formed file says that cannot be computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No family computes this architecture.
    #[error("architecture {architecture:?} is not served")]
    Architecture {
        /// The architecture's name in the file.
        architecture: String,
    },
    /// A required key is missing.
    #[error("key {key} is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key has a value of another type.
    #[error("key {key} is {got}, not {expected}")]
    KeyType {
        /// The key.
        key: String,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        got: String,
    },
    /// A number is 0, negative, not finite or absurd.
    #[error("key {key} is {got}, not {expected}")]
    Range {
        /// The key, or the number's name where several keys make it.
        key: String,
        /// The value as text.
        got: String,
        /// What is accepted.
        expected: &'static str,
    },
    /// Two numbers that must divide do not.
    #[error("{dividend} = {dividend_value} is not a multiple of {divisor} = {divisor_value}")]
    NotDivisible {
        /// Name of the first number.
        dividend: &'static str,
        /// The first number.
        dividend_value: u64,
        /// Name of the second number.
        divisor: &'static str,
        /// The second number.
        divisor_value: u64,
    },
    /// Sizes multiply to more than can be addressed.
    #[error("{product} overflows")]
    Overflow {
        /// Which product.
        product: &'static str,
    },
    /// The setting exists, but this crate does not compute it.
    #[error("{key} = {value} is not served")]
    Unsupported {
        /// The key.
        key: String,
        /// Its value as text.
        value: String,
    },
    /// A tensor is missing.
    #[error("tensor {tensor} is missing")]
    MissingTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tensor that the family does not compute with; without it the results would be wrong.
    #[error("tensor {tensor} is unknown to the family")]
    UnknownTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tensor's shape does not follow from the numbers.
    #[error("tensor {tensor} has {got_rows} rows of {got_cols}, not {rows} of {cols}")]
    TensorShape {
        /// The tensor.
        tensor: String,
        /// Rows expected.
        rows: u64,
        /// Columns expected.
        cols: u64,
        /// Rows in the file.
        got_rows: u64,
        /// Columns in the file.
        got_cols: u64,
    },
    /// A tensor's element type is not served.
    #[error("tensor {tensor} has the element type {element_type}, which is not served")]
    TensorType {
        /// The tensor.
        tensor: String,
        /// The type's name or number.
        element_type: String,
    },
    /// A vector has a quantised type.
    #[error("tensor {tensor} is a vector of {dtype:?}, only F32, F16 and BF16 are served")]
    VectorType {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: DType,
    },
    /// Parallel lists of the vocabulary differ in length, or from the embedding.
    #[error("{key} has {got} entries, not {expected}")]
    VocabularySize {
        /// The key.
        key: String,
        /// Entries in the file.
        got: u64,
        /// Entries expected.
        expected: u64,
    },
    /// A special token lies outside the vocabulary.
    #[error("{key} is {id}, outside a vocabulary of {vocab}")]
    SpecialToken {
        /// The key.
        key: String,
        /// The token.
        id: u64,
        /// Tokens of the vocabulary.
        vocab: u64,
    },
}
