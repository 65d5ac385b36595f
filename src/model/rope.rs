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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Family, RopeConfig, RopePairing};

    fn config(scaling: RopeScaling, local_base: Option<f32>) -> ModelConfig {
        ModelConfig {
            family: Family::Gemma3,
            architecture: "gemma3".to_owned(),
            layers: 1,
            hidden: 8,
            ffn_hidden: 8,
            n_heads: 1,
            n_kv_heads: 1,
            head_dim: 8,
            vocab: 8,
            context_tokens: 8,
            norm_epsilon: 1e-6,
            attention_scale: 1.0,
            rope: RopeConfig { pairing: RopePairing::Halves, dims: 4, base: 10_000.0, local_base, scaling },
            window: None,
        }
    }

    #[test]
    fn frequencies_fall_from_one_by_the_base() {
        let table = global(&config(RopeScaling::None, None));
        assert_eq!(table.frequencies, [1.0, 0.01]);
        assert_eq!(table.pairing, RopePairing::Halves);
    }

    #[test]
    fn scaling_divides_frequencies_of_global_layers_only() {
        let linear = config(RopeScaling::Linear { factor: 8.0 }, Some(100.0));
        assert_eq!(global(&linear).frequencies, [0.125, 0.00125]);
        assert_eq!(local(&linear).frequencies, [1.0, 0.1]);
        let factors = config(RopeScaling::Factors { factors: vec![1.0, 4.0] }, None);
        assert_eq!(global(&factors).frequencies, [1.0, 0.0025]);
        assert_eq!(local(&factors).frequencies, [1.0, 0.0025], "no base of their own: as the global ones");
    }
}
