//! Keys and values: on their way into pages, pages to other pages, and state that leaves and enters.

use ictus::backend::{Backend, KvType, Span};
use ictus::checkpoint::ModelConfig;
use ictus::transfer::Encoding;
use serde_json::json;

use super::{Bench, Cost, PAGE};

impl Bench {
    pub(crate) fn pages(&self) {
        for element in [KvType::F16, KvType::F32] {
            for &rows in self.sizes.rows {
                self.writes_and_copies(element, rows);
            }
            self.state(element);
        }
    }

    fn writes_and_copies(&self, element: KvType, rows: usize) {
        let ModelConfig { n_kv_heads, head_dim, layers, .. } = self.sizes.model;
        let width = n_kv_heads * head_dim;
        let tokens = rows.next_multiple_of(PAGE);
        let mut pages = self.backend.pages(&self.pool(2 * tokens / PAGE, element)).expect("memory");
        let table: Vec<u32> = (0..tokens as u32 / PAGE as u32).collect();
        let spans = [Span { first_row: 0, rows, start: 0, block_table: &table }];
        let (keys, values) = (self.rows(rows, width), self.rows(rows, width));
        let kv = format!("{element:?}");
        let cost = Cost::bytes(2 * rows * width * (4 + element.bytes()));
        self.measure("kv_write", json!({ "kv": kv, "rows": rows, "width": width }), cost, |backend, _| {
            backend.kv_write(&mut pages, 0, &keys, &values, &spans);
        });
        let copies: Vec<(u32, u32)> = table.iter().map(|&page| (page, page + table.len() as u32)).collect();
        let cost = Cost::bytes(2 * copies.len() * PAGE * 2 * width * layers * element.bytes());
        self.measure("copy_pages", json!({ "kv": kv, "pages": copies.len() }), cost, |backend, _| {
            backend.copy_pages(&mut pages, &copies);
        });
    }

    /// A prompt's keys and values of all layers to the host and back, in every encoding. The floor is the device's: what is read there and written there in
    /// the form that travels. The way over the bus is in the time, and `payload_bytes` is what goes over.
    fn state(&self, element: KvType) {
        let shape = self.pool(self.sizes.prompt.div_ceil(PAGE), element);
        let mut pages = self.backend.pages(&shape).expect("memory");
        let table: Vec<u32> = (0..shape.pages as u32).rev().collect();
        let tokens = self.sizes.prompt;
        let vectors = 2 * shape.layers * shape.n_kv_heads * tokens;
        for encoding in [Encoding::Lossless, Encoding::Q8, Encoding::Q4] {
            let mut payload = vec![0_u8; vectors * encoding.vector_bytes(shape.head_dim, element.bytes())];
            let fields = json!({ "kv": format!("{element:?}"), "encoding": format!("{encoding:?}"), "tokens": tokens,
                "payload_bytes": payload.len() });
            let cost = Cost::bytes(vectors * shape.head_dim * element.bytes() + payload.len());
            self.measure("export_tokens", fields.clone(), cost, |backend, _| {
                let done = match encoding {
                    Encoding::Lossless => backend.read_tokens(&pages, &table, 0..tokens, &mut payload).map(|()| true),
                    _ => backend.read_tokens_as(&pages, &table, 0..tokens, encoding, &mut payload),
                };
                assert_eq!(done, Ok(true), "the device encodes");
            });
            self.measure("import_tokens", fields, cost, |backend, _| {
                let done = match encoding {
                    Encoding::Lossless => backend.write_tokens(&mut pages, &table, 0..tokens, &payload).map(|()| true),
                    _ => backend.write_tokens_as(&mut pages, &table, 0..tokens, encoding, &payload),
                };
                assert_eq!(done, Ok(true), "the device decodes");
            });
        }
    }
}
