//! Model files: what they say, with bounded reads and no trust.
//!
//! A GGUF file and a Hugging Face directory both become a [`Checkpoint`]: the architecture's numbers, named tensors, the
//! vocabulary and what else the file says. Tensors have the canonical names of GGUF (`blk.0.attn_q.weight`).

mod config;

pub use config::{Family, ModelConfig, RopeConfig, RopePairing, RopeScaling, SlidingWindow};
