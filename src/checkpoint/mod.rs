#![deny(unsafe_code)]
//! Model files: what they say, with bounded reads and no trust.
//!
//! A GGUF file and a Hugging Face directory both become a [`Checkpoint`]: the architecture's numbers, named tensors, the
//! vocabulary and what else the file says. Tensors have the canonical names of GGUF (`blk.0.attn_q.weight`).
//!
//! ```text
//! path -> gguf/ or hf/ : bytes to keys and tensors -> config: numbers, checked -> assemble: tensors, checked against them
//! ```
//!
//! # Invariants
//! A `Checkpoint` that exists is complete: every number passes [`ModelConfig::check`], every tensor of the family is there with the
//! shape that follows from the numbers, and no other tensor is.
//!
//! # Limits
//! See [`gguf`], [`hf`] and the constants of [`ModelConfig::check`]. Whatever the bytes, opening ends in a checkpoint or a typed
//! error, and allocates in proportion to the files' real sizes.
//!
//! # Not here
//! Tokenizing (`tokenizer`), computing (`model`), planning bytes of keys and values.

mod assemble;
mod config;
mod error;
pub mod gguf;
pub mod hf;
mod identity;
mod lora;
#[allow(unsafe_code, reason = "mapping a file is a promise about that file, argued there")]
mod map;
mod pooling;
mod sampling;
mod vocabulary;

pub use config::{
    Family, MAX_CONTEXT_TOKENS, MAX_HEAD_DIM, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, ModelConfig, RopeConfig, RopePairing,
    RopeScaling, SlidingWindow,
};
pub use error::{CheckpointError, ConfigError, GgufError, HfError, SafetensorsError, SplitError};
pub use lora::{AdapterError, AdapterFile, Change, LoraError, MAX_RANK, Target};
pub use pooling::{Embedding, Pooling};
pub use sampling::SamplingDefaults;
pub use vocabulary::{GgufVocabulary, HfVocabulary, SpecialTokens, Vocabulary};

use std::collections::HashMap;
use std::path::Path;
use std::sync::OnceLock;

use self::assemble::Named;
use crate::tensor::{Bytes, Tensor};

/// An opened model: complete, checked, and still in its file.
#[derive(Debug)]
pub struct Checkpoint {
    name: String,
    config: ModelConfig,
    tensors: Vec<(String, Tensor)>,
    index: HashMap<String, usize>,
    vocabulary: Option<Vocabulary>,
    chat_template: Option<String>,
    sampling_defaults: Option<SamplingDefaults>,
    embedding: Option<Embedding>,
    documents: Vec<Bytes>,
    identity: OnceLock<[u8; 32]>,
}

/// What a reader has found, before tensors are checked.
struct Parts {
    name: String,
    config: ModelConfig,
    tensors: Vec<Named>,
    vocabulary: Option<Vocabulary>,
    chat_template: Option<String>,
    sampling_defaults: Option<SamplingDefaults>,
    embedding: Option<Embedding>,
    documents: Vec<Bytes>,
}

impl Checkpoint {
    /// Opens a GGUF file (any shard of a split one) or a Hugging Face directory.
    ///
    /// Weights are mapped, not read: opening takes milliseconds, and pages come from the disk when they are touched. **The files
    /// must not be changed or truncated while the checkpoint, or anything made from its tensors, exists**: the process could be
    /// ended by SIGBUS. Renaming a new file over an old one is safe.
    ///
    /// # Errors
    /// A [`CheckpointError`] that names the file and the place in it. Nothing is kept.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        let kind = std::fs::metadata(path).map_err(|source| CheckpointError::Read { path: path.to_owned(), source })?;
        if !kind.is_dir() {
            return Self::from_gguf_shards(path, gguf::open_all(path)?);
        }
        if !path.join("config.json").is_file() {
            return Err(CheckpointError::NotACheckpoint { path: path.to_owned() });
        }
        let parts = hf::open(path)?;
        Self::assemble(parts).map_err(|source| CheckpointError::Config { path: path.to_owned(), source })
    }

    /// Opens the bytes of a GGUF file that is not split, say one that is part of the program.
    ///
    /// # Errors
    /// As [`open`](Self::open); the path in the error is empty.
    pub fn from_gguf_bytes(bytes: Bytes) -> Result<Self, CheckpointError> {
        let path = Path::new("");
        let file =
            gguf::GgufFile::parse(bytes).map_err(|source| CheckpointError::Gguf { path: path.to_owned(), source })?;
        Self::from_gguf_shards(path, vec![(path.to_owned(), file)])
    }

    fn from_gguf_shards(
        path: &Path,
        shards: Vec<(std::path::PathBuf, gguf::GgufFile)>,
    ) -> Result<Self, CheckpointError> {
        gguf::read(shards)
            .and_then(Self::assemble)
            .map_err(|source| CheckpointError::Config { path: path.to_owned(), source })
    }

    fn assemble(parts: Parts) -> Result<Self, ConfigError> {
        let Parts { name, mut config, mut tensors, vocabulary, chat_template, .. } = parts;
        let (sampling_defaults, embedding, documents) = (parts.sampling_defaults, parts.embedding, parts.documents);
        assemble::take_rope_factors(&mut config, &mut tensors)?;
        config.check()?;
        let tensors: Vec<_> =
            assemble::fit(&config, tensors)?.into_iter().map(|named| (named.name, named.tensor)).collect();
        let index = tensors.iter().enumerate().map(|(index, (name, _))| (name.clone(), index)).collect();
        let identity = OnceLock::new();
        Ok(Self {
            name,
            config,
            tensors,
            index,
            vocabulary,
            chat_template,
            sampling_defaults,
            embedding,
            documents,
            identity,
        })
    }

    /// The model's name in the file, or the directory's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The architecture's name in the file.
    pub fn architecture(&self) -> &str {
        &self.config.architecture
    }

    /// The numbers, checked.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// A tensor by its canonical name.
    ///
    /// All that the family needs are there. `output.weight` is none where the embedding is the output matrix as well.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.index.get(name).and_then(|&index| self.tensors.get(index)).map(|(_, tensor)| tensor)
    }

    /// All tensors with their names, in the order of the file.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (&**name, tensor))
    }

    /// Bytes of all tensors.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|(_, tensor)| tensor.data.len() as u64).sum()
    }

    /// Gives the memory of the mapped files back to the system: for who has copied what it needs. Everything can be read as before,
    /// only more slowly the first time.
    pub fn release(&self) {
        let tensors = self.tensors.iter().map(|(_, tensor)| &tensor.data);
        tensors.chain(&self.documents).for_each(|bytes| bytes.release(0..bytes.len()));
    }

    /// What a tokenizer is built from; none when the files have no vocabulary.
    pub fn vocabulary(&self) -> Option<&Vocabulary> {
        self.vocabulary.as_ref()
    }

    /// The chat template, in the Jinja language.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// What the files recommend for sampling (R-91).
    pub fn sampling_defaults(&self) -> Option<SamplingDefaults> {
        self.sampling_defaults
    }

    /// How the model embeds a text: as its files say, else by the last token. None for one that is pooled in a way that gives no
    /// embedding, or none that is computed here.
    pub fn embedding(&self) -> Option<Embedding> {
        self.embedding
    }

    /// An identity of the weights: a hash of the descriptions and of samples of every tensor.
    ///
    /// The same files give the same identity. Files that differ in a description, a shape or a sampled byte give another; a
    /// change elsewhere in a tensor is not seen. Computed on the first call, which touches three places of every tensor.
    pub fn weights_identity(&self) -> [u8; 32] {
        *self.identity.get_or_init(|| identity::identity(&self.documents, self.tensors()))
    }
}
