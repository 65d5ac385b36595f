//! Products with weights of every element type.

use ictus::backend::{Arithmetic, Backend};
use ictus::checkpoint::ModelConfig;
use ictus::tensor::DType;
use serde_json::json;

use super::{Bench, Cost, weights};

impl Bench {
    /// The widest product of a layer, in every element type: exact, and in fast arithmetic where the type has one.
    pub(crate) fn products(&mut self) {
        self.products_in(Arithmetic::Exact);
        self.in_fast(|bench| bench.products_in(Arithmetic::Fast));
    }

    fn products_in(&self, arithmetic: Arithmetic) {
        let ModelConfig { hidden, ffn_hidden, .. } = self.sizes.model;
        let is_fast = arithmetic == Arithmetic::Fast;
        for &dtype in DType::ALL.iter().filter(|&&dtype| !is_fast || dtype != DType::F32) {
            let cols = hidden.next_multiple_of(dtype.unit_values());
            let tensor = weights(dtype, ffn_hidden, cols);
            let turns = self.sizes.weight_bytes.div_ceil(tensor.data.len());
            let all: Vec<_> = (0..turns).map(|_| self.backend.matrix(&tensor).expect("a matrix")).collect();
            for &rows in self.sizes.rows {
                let x = self.rows(rows, cols);
                let mut out = self.rows(rows, ffn_hidden);
                let cost = Cost {
                    bytes: (tensor.data.len() + 4 * rows * (cols + ffn_hidden)) as f64,
                    operations: (2 * rows * cols * ffn_hidden) as f64,
                };
                let shape =
                    json!({ "type": format!("{dtype:?}"), "rows": rows, "outputs": ffn_hidden, "inputs": cols });
                self.measure(if is_fast { "linear_fast" } else { "linear" }, shape, cost, |backend, call| {
                    backend.linear(&x, &all[call % turns], None, &mut out);
                });
            }
        }
    }
}
