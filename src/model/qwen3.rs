#![forbid(unsafe_code)]
//! Qwen3 (dense).
//!
//! Pre-norm layers, GQA with rotary embedding, SwiGLU; each head of queries and keys is normed before it is rotated.
//!
//! # Source
//! arXiv 2505.09388 (Qwen3)

use super::pass::{Pass, attention_shape, hidden, logits};
use super::rope::Ropes;
use super::weights::{Ends, FeedForward, HeadNorms, Loader, Qkv};
use super::{ModelError, Network, TensorSource, Workspace};
use crate::backend::{AttentionShape, Backend, BackendError, Gate};
use crate::checkpoint::ModelConfig;

struct Layer<B: Backend> {
    attention_norm: B::Vector,
    attention: AttentionShape,
    qkv: Qkv<B>,
    head_norms: HeadNorms<B>,
    output: B::Matrix,
    ffn_norm: B::Vector,
    ffn: FeedForward<B>,
}

/// The network.
pub(super) struct Qwen3<B: Backend> {
    ends: Ends<B>,
    layers: Vec<Layer<B>>,
    ropes: Ropes,
    epsilon: f32,
}

impl<B: Backend> Qwen3<B> {
    pub(super) fn load(backend: &B, config: &ModelConfig, tensors: &dyn TensorSource) -> Result<Self, ModelError> {
        let load = Loader { backend, config, tensors };
        let layer = |index| {
            Ok(Layer {
                attention_norm: load.norm(index, "attn_norm")?,
                attention: attention_shape(config, index),
                qkv: load.qkv(index)?,
                head_norms: load.head_norms(index)?,
                output: load.attention_output(index)?,
                ffn_norm: load.norm(index, "ffn_norm")?,
                ffn: load.feed_forward(index)?,
            })
        };
        Ok(Self {
            ends: load.ends()?,
            layers: (0..config.layers).map(layer).collect::<Result<_, _>>()?,
            ropes: Ropes::new(config),
            epsilon: config.norm_epsilon,
        })
    }
}

impl<B: Backend> Network<B> for Qwen3<B> {
    fn forward(&self, pass: &mut Pass<'_, B>) -> Result<(), BackendError> {
        pass.embed(&self.ends.embedding, 1.0);
        pass.angles(&self.ropes);
        pass.walk(&self.layers, |pass, index, layer| {
            pass.norm(&layer.attention_norm, self.epsilon);
            pass.project(index, &layer.qkv, None)?;
            pass.norm_heads(&layer.head_norms, self.epsilon);
            pass.attend(index, &layer.attention, self.ropes.global(), &layer.output)?;
            pass.add_delta();

            pass.norm(&layer.ffn_norm, self.epsilon);
            pass.feed_forward(index, &layer.ffn, Gate::Silu)?;
            pass.add_delta();
            Ok(())
        })
    }

    fn hidden(&self, backend: &B, work: &mut Workspace<B>, rows: &[usize]) -> Result<(), BackendError> {
        hidden(backend, work, rows, &self.ends, self.epsilon)
    }

    fn head(&self, backend: &B, work: &mut Workspace<B>, rows: &[usize]) -> Result<(), BackendError> {
        logits(backend, work, rows, &self.ends, self.epsilon)
    }
}
