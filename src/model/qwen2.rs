#![forbid(unsafe_code)]
//! Qwen2 and Qwen2.5.
//!
//! Pre-norm layers, GQA with rotary embedding, SwiGLU; the projections into queries, keys and values have a bias.
//!
//! # Source
//! arXiv 2407.10671 (Qwen2), 2412.15115 (Qwen2.5)

use super::pass::{Pass, attention_shape, hidden, logits};
use super::rope::Ropes;
use super::weights::{Ends, FeedForward, Loader, Qkv, QkvBias};
use super::{ModelError, Network, TensorSource, Workspace};
use crate::backend::{AttentionShape, Backend, BackendError, Gate};
use crate::checkpoint::ModelConfig;

struct Layer<B: Backend> {
    attention_norm: B::Vector,
    attention: AttentionShape,
    qkv: Qkv<B>,
    qkv_bias: QkvBias<B>,
    output: B::Matrix,
    ffn_norm: B::Vector,
    ffn: FeedForward<B>,
}

/// The network.
pub(super) struct Qwen2<B: Backend> {
    ends: Ends<B>,
    layers: Vec<Layer<B>>,
    ropes: Ropes,
    epsilon: f32,
}

impl<B: Backend> Qwen2<B> {
    pub(super) fn load(backend: &B, config: &ModelConfig, tensors: &dyn TensorSource) -> Result<Self, ModelError> {
        let load = Loader { backend, config, tensors };
        let layer = |index| {
            Ok(Layer {
                attention_norm: load.norm(index, "attn_norm")?,
                attention: attention_shape(config, index),
                qkv: load.qkv(index)?,
                qkv_bias: load.qkv_bias(index)?,
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

impl<B: Backend> Network<B> for Qwen2<B> {
    fn forward(&self, pass: &mut Pass<'_, B>) -> Result<(), BackendError> {
        pass.embed(&self.ends.embedding, 1.0);
        pass.angles(&self.ropes);
        pass.walk(&self.layers, |pass, index, layer| {
            pass.norm(&layer.attention_norm, self.epsilon);
            pass.project(index, &layer.qkv, Some(&layer.qkv_bias))?;
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
