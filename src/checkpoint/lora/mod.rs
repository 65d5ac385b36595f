#![forbid(unsafe_code)]
//! LoRA adapters: low-rank changes of a model's matrices, read from PEFT directories and from GGUF files.
//!
//! ```text
//!   y = W x + scale * B (A x)          A: [rank, inputs]    B: [outputs, rank]    scale = alpha / rank, or alpha / sqrt(rank)
//!
//!   path -> hf/adapter or gguf/adapter: names, numbers, tensors -> fit: checked against the model, rows in the model's order
//! ```
//! Every matrix product of a layer can be changed: q, k, v, the attention's output, gate, up, down. What else an adapter may carry
//! (changes of the embedding or the head, magnitudes of DoRA, trained biases, modules saved whole) is refused with its reason: an
//! adapter that is followed in part gives wrong answers, not an error.
//!
//! # Order of rows
//! Llama GGUF files rotate neighbouring dimensions of a head, Hugging Face ones the two halves; the rows of q and k are
//! exchanged for it ([`RopePairing`]). The rows of `B` follow those of the matrix that it changes, so an adapter of one form on a model
//! of the other has the rows of its q and k exchanged the same way.
//!
//! # Limits
//! Ranks up to [`MAX_RANK`]. All numbers are finite. Values are kept in single precision, whatever the file has.
//!
//! # Identity
//! [`AdapterFile::digest`] names what is computed: two files that change the model the same way have one digest. It is XXH3 with two
//! seeds, which tells files apart that nobody made to collide; it is no defence against somebody who does.
//!
//! # Source
//! arXiv 2106.09685 (LoRA), 2312.03732 (scale of rank-stabilised LoRA); adapter documents of the PEFT project; adapter keys of
//! the GGUF format description.

mod error;
mod fit;

pub use error::{AdapterError, LoraError};
pub use fit::MAX_RANK;

use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use self::fit::fit;
use super::config::{ModelConfig, RopePairing};
use super::{gguf, hf};
use crate::tensor::Tensor;

/// A matrix of a layer that an adapter can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Into queries.
    Query,
    /// Into keys.
    Key,
    /// Into values.
    Value,
    /// From the heads back into the stream.
    AttentionOutput,
    /// Gate of the feed-forward section.
    Gate,
    /// Its other factor.
    Up,
    /// Back into the stream.
    Down,
}

impl Target {
    /// All of them, in the order of a layer.
    pub const ALL: [Self; 7] =
        [Self::Query, Self::Key, Self::Value, Self::AttentionOutput, Self::Gate, Self::Up, Self::Down];

    /// The canonical name behind `blk.N.`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Query => "attn_q.weight",
            Self::Key => "attn_k.weight",
            Self::Value => "attn_v.weight",
            Self::AttentionOutput => "attn_output.weight",
            Self::Gate => "ffn_gate.weight",
            Self::Up => "ffn_up.weight",
            Self::Down => "ffn_down.weight",
        }
    }

    /// Outputs and inputs of the matrix in a model.
    pub const fn shape(self, config: &ModelConfig) -> (usize, usize) {
        // `ModelConfig::check` has multiplied these.
        let (wide, narrow) = (config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim);
        match self {
            Self::Query => (wide, config.hidden),
            Self::Key | Self::Value => (narrow, config.hidden),
            Self::AttentionOutput => (config.hidden, wide),
            Self::Gate | Self::Up => (config.ffn_hidden, config.hidden),
            Self::Down => (config.hidden, config.ffn_hidden),
        }
    }
}

/// The change of one matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The layer.
    pub layer: usize,
    /// The matrix in it.
    pub target: Target,
    /// Width between the two factors.
    pub rank: usize,
    /// What the product is multiplied with.
    pub scale: f32,
    /// `[rank, inputs]`
    pub a: Vec<f32>,
    /// `[outputs, rank]`, rows in the order of the model's matrix.
    pub b: Vec<f32>,
}

/// An adapter that fits a model.
#[derive(Clone, Debug)]
pub struct AdapterFile {
    changes: Vec<Change>,
    digest: [u8; 32],
}

impl AdapterFile {
    /// Reads an adapter for a model: a directory with `adapter_config.json` and `adapter_model.safetensors`, the latter file
    /// with the former beside it, or a GGUF file.
    ///
    /// The file must not be changed while it is read; nothing refers to it afterwards.
    ///
    /// # Errors
    /// An [`AdapterError`] that names the file and the place in it. Nothing is kept.
    pub fn open(path: impl AsRef<Path>, config: &ModelConfig) -> Result<Self, AdapterError> {
        let path = path.as_ref();
        let about = std::fs::metadata(path).map_err(|source| AdapterError::Read { path: path.to_owned(), source })?;
        let is_tensors = path.extension().is_some_and(|extension| extension == "safetensors");
        let raw = if about.is_dir() || is_tensors {
            hf::open_adapter(path, config)?
        } else {
            gguf::open_adapter(path, config)?
        };
        let changes = fit(raw, config).map_err(|source| AdapterError::Lora { path: path.to_owned(), source })?;
        let digest = digest(&changes);
        Ok(Self { changes, digest })
    }

    /// The changes, by layer and target.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Identity of what it computes.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// The widest rank of its changes.
    pub fn rank(&self) -> usize {
        self.changes.iter().map(|change| change.rank).max().unwrap_or(0)
    }
}

fn digest(changes: &[Change]) -> [u8; 32] {
    let mut hashes = [Xxh3::with_seed(0), Xxh3::with_seed(1)];
    for hash in &mut hashes {
        for change in changes {
            hash.update(&(change.layer as u64).to_le_bytes());
            hash.update(change.target.name().as_bytes());
            hash.update(&(change.rank as u64).to_le_bytes());
            hash.update(&change.scale.to_le_bytes());
            for value in change.a.iter().chain(&change.b) {
                hash.update(&value.to_le_bytes());
            }
        }
    }
    let mut digest = [0; 32];
    for (half, hash) in digest.chunks_exact_mut(16).zip(&hashes) {
        half.copy_from_slice(&hash.digest128().to_le_bytes());
    }
    digest
}

/// What a reader has found, before it is checked against the model.
pub(super) struct Raw {
    /// The pairing whose order the rows of q and k have; none when it is that of the model.
    pub(super) pairing: Option<RopePairing>,
    pub(super) scale: ScaleRule,
    /// The one rank that the document states, when it states one.
    pub(super) stated_rank: Option<usize>,
    pub(super) factors: Vec<RawFactor>,
}

/// How the scale follows from the rank.
#[derive(Clone, Copy)]
pub(super) enum ScaleRule {
    /// `alpha / rank`
    Rank(f32),
    /// `alpha / sqrt(rank)`
    RootOfRank(f32),
    /// 1
    None,
}

impl ScaleRule {
    fn scale(self, rank: usize) -> f32 {
        match self {
            Self::Rank(alpha) => alpha / rank as f32,
            Self::RootOfRank(alpha) => alpha / (rank as f32).sqrt(),
            Self::None => 1.0,
        }
    }
}

/// Which of the two factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Factor {
    A,
    B,
}

/// A factor as a file has it.
pub(super) struct RawFactor {
    /// Its name in the file.
    pub(super) name: String,
    /// The canonical name of the matrix it changes.
    pub(super) matrix: String,
    pub(super) factor: Factor,
    pub(super) tensor: Tensor,
}
