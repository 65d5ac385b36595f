//! Operations row by row: embedding, norms, gates, rotation; rows to other rows; and what fast products do to their rows first.

use ictus::backend::{Backend, Gate, KvType, RopeTable, Span};
use ictus::checkpoint::{ModelConfig, RopePairing};
use ictus::tensor::DType;
use serde_json::json;

use super::{Bench, Buffer, Cost, floats, weights};

impl Bench {
    /// Rows of the model's table, and of small ones of every other element type.
    pub(crate) fn embeddings(&self) {
        let ModelConfig { hidden, vocab, .. } = self.sizes.model;
        self.embeddings_of(DType::BF16, [vocab, hidden], self.sizes.rows);
        let most = &self.sizes.rows[self.sizes.rows.len() - 1..];
        for &dtype in DType::ALL.iter().filter(|&&dtype| dtype != DType::BF16) {
            let width = hidden.next_multiple_of(dtype.unit_values());
            self.embeddings_of(dtype, [vocab.min(4096), width], most);
        }
    }

    fn embeddings_of(&self, dtype: DType, [vocab, width]: [usize; 2], rows: &[usize]) {
        let table = self.backend.matrix(&weights(dtype, vocab, width)).expect("a matrix");
        let row_bytes = dtype.row_bytes(width).expect("whole units") + 4 * width;
        for &rows in rows {
            let mut out = self.rows(rows, width);
            let tokens: Vec<u32> = (0..rows).map(|row| (row * 997 % vocab) as u32).collect();
            let shape = json!({ "type": format!("{dtype:?}"), "rows": rows, "width": width });
            self.measure("embed", shape, Cost::bytes(rows * row_bytes), |backend, _| {
                backend.embed(&table, &tokens, 1.0, &mut out);
            });
        }
    }

    pub(crate) fn row_operations(&self) {
        let ModelConfig { hidden, ffn_hidden, n_heads, head_dim, .. } = self.sizes.model;
        let ones = self.backend.vector(&floats(1, hidden)).expect("a vector");
        for &rows in self.sizes.rows {
            let row_bytes = |width: usize, arrays: usize| Cost::bytes(4 * rows * width * arrays);
            let shape = |width: usize| json!({ "rows": rows, "width": width });
            let (mut x, y) = (self.rows(rows, hidden), self.rows(rows, hidden));
            let mut out = self.rows(rows, hidden);
            self.measure("rms_norm", shape(hidden), row_bytes(hidden, 2), |backend, _| {
                backend.rms_norm(&x, &ones, 1e-5, &mut out);
            });
            self.measure("add_rms_norm", shape(hidden), row_bytes(hidden, 4), |backend, _| {
                backend.add_rms_norm(&mut x, &y, &ones, 1e-5, &mut out);
            });
            let (mut gate, up) = (self.rows(rows, ffn_hidden), self.rows(rows, ffn_hidden));
            for (test, act) in [("gate", Gate::Silu), ("gate_gelu", Gate::GeluTanh)] {
                self.measure(test, shape(ffn_hidden), row_bytes(ffn_hidden, 3), |backend, _| {
                    backend.gate(&mut gate, &up, act);
                });
            }
            let mut queries = self.rows(rows, n_heads * head_dim);
            let angles = self.angles(rows);
            self.measure("rope", shape(n_heads * head_dim), row_bytes(n_heads * head_dim, 2), |backend, _| {
                backend.rope(&mut queries, head_dim, RopePairing::Halves, &angles);
            });
        }
    }

    /// Rows to other rows. Those that are kept go through the scratch: written and read once more.
    pub(crate) fn row_moves(&self) {
        let hidden = self.sizes.model.hidden;
        // A pool brings the scratch.
        let _pool = self.backend.pages(&self.pool(1, KvType::F16)).expect("memory");
        for &rows in self.sizes.rows {
            let row_bytes = |arrays: usize| Cost::bytes(4 * rows * hidden * arrays);
            let shape = || json!({ "rows": rows, "width": hidden });
            let (mut x, y, mut out) = (self.rows(rows, hidden), self.rows(rows, hidden), self.rows(rows, hidden));
            let back: Vec<usize> = (0..rows).rev().collect();
            self.measure("gather_rows", shape(), row_bytes(2), |backend, _| backend.gather_rows(&y, &back, &mut out));
            self.measure("add_rows", shape(), row_bytes(3), |backend, _| backend.add_rows(&mut x, &back, &y));
            let all: Vec<usize> = (0..rows).collect();
            self.measure("keep_rows", shape(), row_bytes(4), |backend, _| backend.keep_rows(&mut x, &all));
        }
    }

    /// Rows rounded for fast products, in their three forms. There is no operation that rounds alone, so a product of one output is behind it, which reads all
    /// that was written.
    pub(crate) fn rounded_rows(&self) {
        let width = self.sizes.model.ffn_hidden;
        for (dtype, written) in [(DType::BF16, 2.0), (DType::F16, 2.0), (DType::Q8_0, 1.25)] {
            let weight = self.backend.matrix(&weights(dtype, 1, width)).expect("a matrix");
            for &rows in self.sizes.rows {
                let (x, mut out) = (self.rows(rows, width), self.rows(rows, 1));
                let cost = Cost { bytes: (rows * width) as f64 * (4.0 + 2.0 * written), operations: 0.0 };
                let shape = json!({ "type": format!("{dtype:?}"), "rows": rows, "width": width });
                self.measure("round_rows", shape, cost, |backend, _| backend.linear(&x, &weight, None, &mut out));
            }
        }
    }

    fn angles(&self, rows: usize) -> Buffer {
        let dims = self.sizes.model.rope.dims;
        let frequencies = (0..dims / 2).map(|i| 5e5_f64.powf(-2.0 * i as f64 / dims as f64)).collect();
        let mut angles = self.rows(rows, dims);
        let span = Span { first_row: 0, rows, start: 0, block_table: &[] };
        self.backend.angles(&RopeTable { frequencies, pairing: RopePairing::Halves }, &[span], &mut angles);
        angles
    }
}
