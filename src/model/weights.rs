#![forbid(unsafe_code)]
//! Weights by canonical name, checked against the shape that the configuration implies.

use std::collections::HashMap;

use super::{ModelError, spread};
use crate::backend::Backend;
use crate::checkpoint::{Checkpoint, ModelConfig};
use crate::tensor::Tensor;

/// Where tensors are looked up by canonical name (`blk.0.attn_q.weight`).
pub trait TensorSource {
    /// The tensor of this name, when there is one.
    fn tensor(&self, name: &str) -> Option<&Tensor>;

    /// All tensors, so that room can be made for them at once; none where the source cannot list them.
    fn all(&self) -> Vec<&Tensor> {
        Vec::new()
    }
}

impl TensorSource for HashMap<String, Tensor> {
    fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.get(name)
    }

    fn all(&self) -> Vec<&Tensor> {
        self.values().collect()
    }
}

impl TensorSource for Checkpoint {
    fn tensor(&self, name: &str) -> Option<&Tensor> {
        Checkpoint::tensor(self, name)
    }

    fn all(&self) -> Vec<&Tensor> {
        self.tensors().map(|(_, tensor)| tensor).collect()
    }
}

/// Takes weights from a source into a backend.
pub(super) struct Loader<'a, B: Backend> {
    pub(super) backend: &'a B,
    pub(super) config: &'a ModelConfig,
    pub(super) tensors: &'a dyn TensorSource,
}

impl<B: Backend> Loader<'_, B> {
    /// The matrix `name`, which has `rows` outputs and `cols` inputs.
    pub(super) fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<B::Matrix, ModelError> {
        let tensor = self.find(name, rows, cols)?;
        let spread = spread::of_tensor(self.config, name);
        self.backend.matrix_in(tensor, spread).map_err(|source| ModelError::Tensor { name: name.to_owned(), source })
    }

    /// The vector `name` of `len` elements.
    pub(super) fn vector(&self, name: &str, len: usize) -> Result<B::Vector, ModelError> {
        let tensor = self.find(name, 1, len)?;
        let spread = spread::of_tensor(self.config, name);
        self.backend.vector_in(tensor, spread).map_err(|source| ModelError::Tensor { name: name.to_owned(), source })
    }

    fn find(&self, name: &str, rows: usize, cols: usize) -> Result<&Tensor, ModelError> {
        let missing = || ModelError::MissingTensor { name: name.to_owned(), rows, cols };
        let tensor = self.tensors.tensor(name).ok_or_else(missing)?;
        if (tensor.rows, tensor.cols) != (rows, cols) {
            let (got_rows, got_cols) = (tensor.rows, tensor.cols);
            return Err(ModelError::TensorShape { name: name.to_owned(), rows, cols, got_rows, got_cols });
        }
        Ok(tensor)
    }

    /// The projections into queries, keys and values of layer `layer`.
    pub(super) fn qkv(&self, layer: usize) -> Result<Qkv<B>, ModelError> {
        let c = self.config;
        let name = |part: &str| format!("blk.{layer}.attn_{part}.weight");
        Ok(Qkv {
            q: self.matrix(&name("q"), c.n_heads * c.head_dim, c.hidden)?,
            k: self.matrix(&name("k"), c.n_kv_heads * c.head_dim, c.hidden)?,
            v: self.matrix(&name("v"), c.n_kv_heads * c.head_dim, c.hidden)?,
        })
    }

    /// The biases of [`Loader::qkv`].
    pub(super) fn qkv_bias(&self, layer: usize) -> Result<QkvBias<B>, ModelError> {
        let c = self.config;
        let name = |part: &str| format!("blk.{layer}.attn_{part}.bias");
        Ok(QkvBias {
            q: self.vector(&name("q"), c.n_heads * c.head_dim)?,
            k: self.vector(&name("k"), c.n_kv_heads * c.head_dim)?,
            v: self.vector(&name("v"), c.n_kv_heads * c.head_dim)?,
        })
    }

    /// The projection of the heads back into the residual stream.
    pub(super) fn attention_output(&self, layer: usize) -> Result<B::Matrix, ModelError> {
        let c = self.config;
        self.matrix(&format!("blk.{layer}.attn_output.weight"), c.hidden, c.n_heads * c.head_dim)
    }

    /// A norm over the residual stream: `blk.LAYER.NAME.weight`.
    pub(super) fn norm(&self, layer: usize, name: &str) -> Result<B::Vector, ModelError> {
        self.vector(&format!("blk.{layer}.{name}.weight"), self.config.hidden)
    }

    /// The norms over each head of queries and keys.
    pub(super) fn head_norms(&self, layer: usize) -> Result<HeadNorms<B>, ModelError> {
        let name = |part: &str| format!("blk.{layer}.attn_{part}_norm.weight");
        Ok(HeadNorms {
            q: self.vector(&name("q"), self.config.head_dim)?,
            k: self.vector(&name("k"), self.config.head_dim)?,
        })
    }

    /// The gated feed-forward section of layer `layer`.
    pub(super) fn feed_forward(&self, layer: usize) -> Result<FeedForward<B>, ModelError> {
        let c = self.config;
        let name = |part: &str| format!("blk.{layer}.ffn_{part}.weight");
        Ok(FeedForward {
            gate: self.matrix(&name("gate"), c.ffn_hidden, c.hidden)?,
            up: self.matrix(&name("up"), c.ffn_hidden, c.hidden)?,
            down: self.matrix(&name("down"), c.hidden, c.ffn_hidden)?,
        })
    }

    /// What stands before the first layer and after the last one.
    pub(super) fn ends(&self) -> Result<Ends<B>, ModelError> {
        let c = self.config;
        let head = match self.tensors.tensor("output.weight") {
            Some(_) => Some(self.matrix("output.weight", c.vocab, c.hidden)?),
            None => None,
        };
        Ok(Ends {
            embedding: self.matrix("token_embd.weight", c.vocab, c.hidden)?,
            norm: self.vector("output_norm.weight", c.hidden)?,
            head,
        })
    }
}

/// Projections of the normed stream: `[heads * head_dim, hidden]` each.
pub(super) struct Qkv<B: Backend> {
    pub(super) q: B::Matrix,
    pub(super) k: B::Matrix,
    pub(super) v: B::Matrix,
}

/// Biases of the projections.
pub(super) struct QkvBias<B: Backend> {
    pub(super) q: B::Vector,
    pub(super) k: B::Vector,
    pub(super) v: B::Vector,
}

/// Norms over each head of queries and keys.
pub(super) struct HeadNorms<B: Backend> {
    pub(super) q: B::Vector,
    pub(super) k: B::Vector,
}

/// `down(act(gate x) * up x)`.
pub(super) struct FeedForward<B: Backend> {
    pub(super) gate: B::Matrix,
    pub(super) up: B::Matrix,
    pub(super) down: B::Matrix,
}

/// Embedding, last norm and output matrix.
pub(super) struct Ends<B: Backend> {
    pub(super) embedding: B::Matrix,
    pub(super) norm: B::Vector,
    /// None where the embedding is the output matrix as well.
    pub(super) head: Option<B::Matrix>,
}
