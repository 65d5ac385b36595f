#![forbid(unsafe_code)]
//! Frequencies of the rotary embedding.
//!
//! Pair `i` of `dims / 2` turns by `position * base^(-2i / dims)`, divided by the scaling.
//!
//! # Source
//! arXiv 2104.09864 (RoPE), 2306.15595 (linear scaling), 2407.21783 (factors of Llama 3.1)

use crate::backend::RopeTable;
use crate::checkpoint::{ModelConfig, RopePairing, RopeScaling};

/// How the layers of a model turn queries and keys.
///
/// Each table has a buffer of angles in the workspace, filled once for all layers of a pass.
pub(super) struct Ropes {
    tables: Vec<RopeTable>,
    /// The table of local layers.
    local: usize,
}

/// How one layer turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    /// Which table.
    pub(super) table: usize,
    pub(super) pairing: RopePairing,
}

impl Ropes {
    /// How many tables a model has.
    pub(super) fn count(config: &ModelConfig) -> usize {
        if config.rope.local_base.is_some() { 2 } else { 1 }
    }

    /// The tables of a model.
    pub(super) fn new(config: &ModelConfig) -> Self {
        let mut tables = vec![global(config)];
        tables.extend(config.rope.local_base.map(|base| unscaled(config, base)));
        Self { local: tables.len() - 1, tables }
    }

    pub(super) fn tables(&self) -> &[RopeTable] {
        &self.tables
    }

    /// How global layers turn.
    pub(super) fn global(&self) -> Turn {
        self.turn(0)
    }

    /// How local layers turn: with a base of their own, never scaled; without such a base as the global ones.
    pub(super) fn local(&self) -> Turn {
        self.turn(self.local)
    }

    fn turn(&self, table: usize) -> Turn {
        Turn { table, pairing: self.tables[table].pairing }
    }
}

/// The table of the global layers: the base of the configuration, scaled.
fn global(config: &ModelConfig) -> RopeTable {
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

fn unscaled(config: &ModelConfig, base: f32) -> RopeTable {
    let dims = config.rope.dims;
    let frequency = |pair: usize| f64::from(base).powf(-((2 * pair) as f64) / dims as f64);
    RopeTable { frequencies: (0..dims / 2).map(frequency).collect(), pairing: config.rope.pairing }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Family, RopeConfig};

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
        let linear = Ropes::new(&config(RopeScaling::Linear { factor: 8.0 }, Some(100.0)));
        assert_eq!(
            linear.tables().iter().map(|table| &table.frequencies[..]).collect::<Vec<_>>(),
            [[0.125, 0.00125], [1.0, 0.1]]
        );
        assert_eq!((linear.global().table, linear.local().table), (0, 1));
        let factors = Ropes::new(&config(RopeScaling::Factors { factors: vec![1.0, 4.0] }, None));
        assert_eq!(factors.tables().len(), 1);
        assert_eq!(factors.tables()[0].frequencies, [1.0, 0.0025]);
        assert_eq!(factors.local(), factors.global(), "no base of their own: as the global ones");
    }

    #[test]
    fn a_model_has_as_many_tables_as_it_is_planned_for() {
        for local_base in [None, Some(100.0)] {
            let config = config(RopeScaling::None, local_base);
            assert_eq!(Ropes::new(&config).tables().len(), Ropes::count(&config));
        }
    }
}
