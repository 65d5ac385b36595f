#![forbid(unsafe_code)]
//! Frequencies of the rotary embedding.
//!
//! Pair `i` of `dims / 2` turns by `position * base^(-2i / dims)`, divided by the scaling.
//!
//! # Source
//! arXiv 2104.09864 (RoPE), 2306.15595 (linear scaling), 2407.21783 (factors of Llama 3.1)

use crate::backend::RopeTable;
use crate::checkpoint::{ModelConfig, RopeScaling};

/// The table of the global layers: the base of the configuration, scaled.
pub(super) fn global(config: &ModelConfig) -> RopeTable {
    let mut table = unscaled(config, config.rope.base);
    match &config.rope.scaling {
        RopeScaling::None => {}
        RopeScaling::Linear { factor } => {
            table.frequencies.iter_mut().for_each(|frequency| *frequency /= f64::from(*factor));
        }
        RopeScaling::Factors { factors } => {
            for (frequency, factor) in table.frequencies.iter_mut().zip(factors) {
                *frequency /= f64::from(*factor);
            }
        }
    }
    table
}

/// The table of local layers: a base of their own, never scaled. Without such a base they turn as the global ones.
pub(super) fn local(config: &ModelConfig) -> RopeTable {
    match config.rope.local_base {
        Some(base) => unscaled(config, base),
        None => global(config),
    }
}

fn unscaled(config: &ModelConfig, base: f32) -> RopeTable {
    let dims = config.rope.dims;
    let frequency = |pair: usize| f64::from(base).powf(-((2 * pair) as f64) / dims as f64);
    RopeTable { frequencies: (0..dims / 2).map(frequency).collect(), pairing: config.rope.pairing }
}
