#![forbid(unsafe_code)]
//! Gemma 3 (text).
//!
//! Norms before and after each section, each head of queries and keys normed, GeGLU with the tanh form, embedding scaled by
//! `sqrt(hidden)`. Every sixth layer attends to all; the others see a window, and rotate with a base of their own.
//!
//! The norms' weights are those of the canonical file form, which has the paper's `1 + w` already added.
//!
//! # Source
//! arXiv 2503.19786 (Gemma 3)

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
    post_attention_norm: B::Vector,
    ffn_norm: B::Vector,
    ffn: FeedForward<B>,
    post_ffn_norm: B::Vector,
}

/// The network.
pub(super) struct Gemma3<B: Backend> {
    ends: Ends<B>,
    layers: Vec<Layer<B>>,
    ropes: Ropes,
    embedding_scale: f32,
    epsilon: f32,
}

impl<B: Backend> Gemma3<B> {
    pub(super) fn load(backend: &B, config: &ModelConfig, tensors: &dyn TensorSource) -> Result<Self, ModelError> {
        let load = Loader { backend, config, tensors };
        let layer = |index| {
            Ok(Layer {
                attention_norm: load.norm(index, "attn_norm")?,
                attention: attention_shape(config, index),
                qkv: load.qkv(index)?,
                head_norms: load.head_norms(index)?,
                output: load.attention_output(index)?,
                post_attention_norm: load.norm(index, "post_attention_norm")?,
                ffn_norm: load.norm(index, "ffn_norm")?,
                ffn: load.feed_forward(index)?,
                post_ffn_norm: load.norm(index, "post_ffw_norm")?,
            })
        };
        Ok(Self {
            ends: load.ends()?,
            layers: (0..config.layers).map(layer).collect::<Result<_, _>>()?,
            ropes: Ropes::new(config),
            embedding_scale: (config.hidden as f32).sqrt(),
            epsilon: config.norm_epsilon,
        })
    }
}

impl<B: Backend> Network<B> for Gemma3<B> {
    fn forward(&self, pass: &mut Pass<'_, B>) -> Result<(), BackendError> {
        pass.embed(&self.ends.embedding, self.embedding_scale);
        pass.angles(&self.ropes);
        pass.walk(&self.layers, |pass, index, layer| {
            let is_local = layer.attention.window.is_some();
            let turn = if is_local { self.ropes.local() } else { self.ropes.global() };

            pass.norm(&layer.attention_norm, self.epsilon);
            pass.project(index, &layer.qkv, None)?;
            pass.norm_heads(&layer.head_norms, self.epsilon);
            pass.attend(index, &layer.attention, turn, &layer.output)?;
            pass.norm_delta(&layer.post_attention_norm, self.epsilon);
            pass.add_delta();

            pass.norm(&layer.ffn_norm, self.epsilon);
            pass.feed_forward(index, &layer.ffn, Gate::GeluTanh)?;
            pass.norm_delta(&layer.post_ffn_norm, self.epsilon);
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
