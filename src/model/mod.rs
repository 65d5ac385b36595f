#![forbid(unsafe_code)]
//! What a model computes: one file per family, over the operations of a backend.
//!
//! A family's file holds its weights and its layer walk and reads like the paper's figure. What families share is here in
//! four parts: `weights` finds tensors by name and shape, `pass` has the sections of a layer (attention, feed-forward), `rope`
//! the frequencies, `spread` says what lies where on several devices. A new family is one file and one arm of [`load`].
//!
//! ```text
//! tokens -> embed -> stream -> [ norm -> attention -> + -> norm -> feed-forward -> + ] x layers -> norm -> head -> logits
//!                                     (rows of all sequences together)                           (rows somebody wants)
//! ```
//!
//! # Invariants
//! A network is immutable once loaded. Rows meet only in attention, and there only those of the same sequence.
//!
//! # Not here
//! Which rows form a step and where their keys lie (`runtime`), how an operation is computed (`backend`).

mod adapter;
mod gemma3;
mod llama;
mod pass;
mod qwen2;
mod qwen3;
mod rope;
pub mod spread;
mod weights;
mod workspace;

pub use adapter::{Adapted, Adapter};
pub use pass::{Pass, Progress, Rows, Wanted};
pub use weights::TensorSource;
pub use workspace::{Workspace, WorkspaceShape};

use std::sync::Arc;

use crate::backend::{Backend, BackendError};
use crate::checkpoint::{Family, ModelConfig};

/// Why a model could not be loaded. Nothing is kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A tensor that the family needs is not there.
    #[error("tensor {name} is missing, {rows} x {cols} expected")]
    MissingTensor {
        /// Its canonical name.
        name: String,
        /// Expected rows.
        rows: usize,
        /// Expected elements of a row.
        cols: usize,
    },
    /// A tensor has another shape than the configuration implies.
    #[error("tensor {name} is {got_rows} x {got_cols}, {rows} x {cols} expected")]
    TensorShape {
        /// Its canonical name.
        name: String,
        /// Expected rows.
        rows: usize,
        /// Expected elements of a row.
        cols: usize,
        /// Rows it has.
        got_rows: usize,
        /// Elements of a row it has.
        got_cols: usize,
    },
    /// The backend did not take a tensor.
    #[error("tensor {name}: {source}")]
    Tensor {
        /// Its canonical name.
        name: String,
        /// What the backend said.
        source: BackendError,
    },
}

/// A loaded model: weights in a backend's form and the walk over its layers.
pub trait Network<B: Backend>: Send + Sync {
    /// Computes the residual stream of the wanted rows of the pass behind its layers, and stores the keys and values of all rows.
    ///
    /// The last layer is computed for the wanted rows alone; a row's bits do not depend on which those are.
    ///
    /// # Errors
    /// `OutOfMemory`, `Device`; never for rows and adapters that the workspace was made for.
    fn forward(&self, pass: &mut Pass<'_, B>) -> Result<(), BackendError>;

    /// Computes the last hidden states (under the last norm) of some rows of the residual stream.
    ///
    /// # Shapes
    /// `rows`: at most the workspace's `head_rows`, each a row of the stream; `work.hidden()`: `[rows.len(), hidden]`
    ///
    /// # Errors
    /// As [`Network::head`].
    fn hidden(&self, backend: &B, work: &mut Workspace<B>, rows: &[usize]) -> Result<(), BackendError>;

    /// Computes the logits of some rows of the residual stream that [`Network::forward`] left.
    ///
    /// # Shapes
    /// `rows`: at most the workspace's `head_rows`, each a row of the stream; `work.logits`: `[rows.len(), vocab]`
    ///
    /// # Errors
    /// `OutOfMemory`, `Device`; never for as many rows as the workspace was made for.
    fn head(&self, backend: &B, work: &mut Workspace<B>, rows: &[usize]) -> Result<(), BackendError>;
}

/// Loads the weights of a model into a backend's form.
///
/// # Errors
/// A [`ModelError`] that names the tensor; nothing is kept.
pub fn load<B: Backend>(
    backend: &B,
    config: &ModelConfig,
    tensors: &dyn TensorSource,
) -> Result<Arc<dyn Network<B>>, ModelError> {
    backend.weights_begin(&tensors.all());
    let loaded = load_family(backend, config, tensors);
    backend.weights_end();
    loaded
}

/// Makes a backend ready for the weights of a model that another one of its kind has loaded.
///
/// # Errors
/// Those of [`Backend::weights_shared`].
pub fn share<B: Backend>(backend: &B, tensors: &dyn TensorSource) -> Result<(), BackendError> {
    backend.weights_shared(&tensors.all())
}

fn load_family<B: Backend>(
    backend: &B,
    config: &ModelConfig,
    tensors: &dyn TensorSource,
) -> Result<Arc<dyn Network<B>>, ModelError> {
    Ok(match config.family {
        Family::Llama => Arc::new(llama::Llama::load(backend, config, tensors)?),
        Family::Qwen2 => Arc::new(qwen2::Qwen2::load(backend, config, tensors)?),
        Family::Qwen3 => Arc::new(qwen3::Qwen3::load(backend, config, tensors)?),
        Family::Gemma3 => Arc::new(gemma3::Gemma3::load(backend, config, tensors)?),
    })
}

/// Elements of the widest input of a product of a model with these numbers.
pub fn widest_input(config: &ModelConfig) -> usize {
    config.hidden.max(config.ffn_hidden).max(config.n_heads * config.head_dim)
}
