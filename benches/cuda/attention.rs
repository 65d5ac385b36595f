//! Attention over pages: one token of each lane, and a prompt.

use ictus::backend::{AttentionShape, Backend, KvShape, KvType, Span};
use ictus::checkpoint::ModelConfig;
use serde_json::{Value, json};

use super::{Bench, Cost, PAGE, Sizes};

/// Heads of other sizes than the model's that there are kernels for.
const OTHER_DIMS: [usize; 3] = [96, 128, 256];
/// Lanes that are looked at with those, at most.
const OTHER_LANES: usize = 16;

/// What is attended to, and by whom.
struct Case<'a> {
    test: &'static str,
    spans: Vec<Span<'a>>,
    /// Positions that pages are read of.
    held: usize,
}

impl Bench {
    /// Attention: exact, and on tensor cores, there with heads of all sizes.
    pub(crate) fn attention(&mut self) {
        let (dims, lanes) = (self.sizes.model.head_dim, self.sizes.lanes);
        for element in [KvType::F16, KvType::F32] {
            self.attention_over(element, dims, lanes);
        }
        self.in_fast(|bench| {
            bench.attention_over(KvType::F16, dims, lanes);
            let few = lanes.iter().take_while(|&&lanes| lanes <= OTHER_LANES).count();
            OTHER_DIMS.iter().for_each(|&dims| bench.attention_over(KvType::F16, dims, &lanes[..few]));
        });
    }

    /// One token of each lane over its context, with and without a prefix that all share; one lane's prompt, from nothing and behind cached pages.
    fn attention_over(&self, element: KvType, head_dim: usize, lanes: &[usize]) {
        let Sizes { context, prompt, .. } = self.sizes;
        let n_kv_heads = self.sizes.model.n_kv_heads;
        let most = lanes.iter().copied().max().unwrap_or(1);
        let pages_each = (context + prompt).div_ceil(PAGE);
        let shape =
            KvShape { layers: 1, n_kv_heads, head_dim, page_size_tokens: PAGE, pages: most * pages_each, element };
        let tables: Vec<Vec<u32>> =
            (0..most).map(|lane| (0..pages_each).map(|page| (page * most + lane) as u32).collect()).collect();
        // Whole segments of 256 positions before the last one.
        let prefix = (context - 1) / 256 * 256;
        let over_prefix = |table: &Vec<u32>| [&tables[0][..prefix / PAGE], &table[prefix / PAGE..]].concat();
        let shared: Vec<Vec<u32>> = tables.iter().map(over_prefix).collect();
        let mut cases: Vec<Case<'_>> = Vec::new();
        for &lanes in lanes {
            let spans = decode(&tables[..lanes], context - 1);
            cases.push(Case { test: "attention_decode", spans, held: lanes * context });
            if lanes > 1 && prefix > 0 {
                let spans = decode(&shared[..lanes], context - 1);
                cases.push(Case { test: "attention_decode_shared", spans, held: prefix + lanes * (context - prefix) });
            }
        }
        for start in [0, context] {
            let spans = vec![Span { first_row: 0, rows: prompt, start, block_table: &tables[0] }];
            cases.push(Case { test: "attention_prefill", spans, held: start + prompt });
        }
        self.attend(&shape, cases);
    }

    fn attend(&self, pool: &KvShape, cases: Vec<Case<'_>>) {
        let ModelConfig { n_heads, .. } = self.sizes.model;
        let KvShape { n_kv_heads, head_dim, element, .. } = *pool;
        let scale = (head_dim as f32).sqrt().recip();
        let shape = AttentionShape { n_heads, n_kv_heads, head_dim, scale, window: None };
        let pages = self.backend.pages(pool).expect("memory");
        for Case { test, spans, held } in cases {
            let rows: usize = spans.iter().map(|span| span.rows).sum();
            let (queries, mut out) = (self.rows(rows, n_heads * head_dim), self.rows(rows, n_heads * head_dim));
            // Of each row the positions up to its own; of each page every position once.
            let seen: usize = spans.iter().map(|span| (span.start + 1..=span.start + span.rows).sum::<usize>()).sum();
            let cost = Cost {
                bytes: (held * 2 * n_kv_heads * head_dim * element.bytes() + 8 * rows * n_heads * head_dim) as f64,
                operations: (4 * seen * n_heads * head_dim) as f64,
            };
            let fields: Value = json!({ "kv": format!("{element:?}"), "arithmetic": self.backend.arithmetic().name(),
                "dims": head_dim, "lanes": spans.len(), "rows": rows, "positions": held });
            self.measure(test, fields, cost, |backend, _| {
                backend.attention(&queries, &pages, 0, &shape, &spans, &mut out);
            });
        }
    }
}

/// A row of each table's sequence.
fn decode(tables: &[Vec<u32>], start: usize) -> Vec<Span<'_>> {
    tables.iter().enumerate().map(|(first_row, block_table)| Span { first_row, rows: 1, start, block_table }).collect()
}
