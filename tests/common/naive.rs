//! A backend that nobody could get wrong: one row at a time, sums in double precision, weights decoded when they are loaded.
//!
//! Independent of the real kernels; it also counts the bytes that it is asked to keep and the rows that it multiplies.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ictus::backend::{AttentionShape, Backend, BackendError, EachRow, Gate, KvShape, KvType, RopeTable, Span};
use ictus::checkpoint::RopePairing;
use ictus::tensor::{Tensor, dequantise_row};

/// The backend; clones count together.
#[derive(Clone, Default)]
pub(crate) struct Naive {
    pool_bytes: Arc<AtomicU64>,
    buffer_bytes: Arc<AtomicU64>,
    requests: Arc<AtomicU64>,
    /// Rows of products since they were last taken, by the rows and columns of the matrix.
    multiplied: Arc<Mutex<HashMap<(usize, usize), usize>>>,
    /// The request that fails, counted from 1.
    failing: u64,
}

impl Naive {
    /// A backend whose `request`-th request for memory or rows fails.
    pub(crate) fn failing(request: u64) -> Self {
        Self { failing: request, ..Self::default() }
    }

    fn request(&self, bytes: usize) -> Result<(), BackendError> {
        let request = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        if request == self.failing { Err(BackendError::OutOfMemory { bytes: bytes as u64 }) } else { Ok(()) }
    }

    /// Requests for memory or rows so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// How many rows were multiplied by matrices of each shape, `(rows, columns)`, since this was last asked.
    pub(crate) fn take_multiplied(&self) -> HashMap<(usize, usize), usize> {
        std::mem::take(&mut *self.multiplied.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Bytes of pages, and bytes of buffers at their largest.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.pool_bytes.load(Ordering::Relaxed), self.buffer_bytes.load(Ordering::Relaxed))
    }
}

pub(crate) struct Matrix {
    rows: usize,
    cols: usize,
    values: Vec<f32>,
}

pub(crate) struct Buffer {
    width: usize,
    values: Vec<f32>,
}

impl Buffer {
    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.width..][..self.width]
    }

    fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.values[row * self.width..][..self.width]
    }

    fn rows(&self) -> usize {
        self.values.len() / self.width
    }
}

/// Keys, then values, of each cell: `[layer][page][slot][2][head][dim]`.
pub(crate) struct Pages {
    shape: KvShape,
    cells: Vec<f32>,
}

impl Pages {
    fn width(&self) -> usize {
        self.shape.n_kv_heads * self.shape.head_dim
    }

    /// Where the keys of a position lie; its values follow.
    fn cell(&self, layer: usize, span: &Span<'_>, position: usize) -> usize {
        let page = span.block_table[position / self.shape.page_size_tokens] as usize;
        assert!(page < self.shape.pages, "the page is in the pool");
        let cell = (layer * self.shape.pages + page) * self.shape.page_size_tokens;
        (cell + position % self.shape.page_size_tokens) * 2 * self.width()
    }

    /// Where the elements of a token lie, in the order of a payload: layer, head, keys before values, element.
    fn places(&self, block_table: &[u32], position: usize) -> Vec<usize> {
        let KvShape { layers, n_kv_heads, head_dim, .. } = self.shape;
        let span = Span { first_row: 0, rows: 1, start: position, block_table };
        let mut places = Vec::new();
        for layer in 0..layers {
            for head in 0..n_kv_heads {
                for part in [0, self.width()] {
                    let at = self.cell(layer, &span, position) + part + head * head_dim;
                    places.extend(at..at + head_dim);
                }
            }
        }
        places
    }

    fn rounded(&self, value: f32) -> f32 {
        match self.shape.element {
            KvType::F32 => value,
            KvType::F16 => half::f16::from_f32(value).to_f32(),
        }
    }
}

fn decode(tensor: &Tensor) -> Result<Vec<f32>, BackendError> {
    let mut values = vec![0.0; tensor.rows * tensor.cols];
    let row_bytes = tensor.dtype.row_bytes(tensor.cols).expect("whole units");
    for (row, bytes) in values.chunks_mut(tensor.cols).zip(tensor.data.as_slice().chunks(row_bytes)) {
        dequantise_row(tensor.dtype, bytes, row).expect("a whole row");
    }
    Ok(values)
}

fn normalise(row: &mut [f32], weight: &[f32], epsilon: f32) {
    let mean = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / row.len() as f64;
    let scale = 1.0 / (mean + f64::from(epsilon)).sqrt();
    for (x, w) in row.iter_mut().zip(weight) {
        *x = (f64::from(*x) * scale * f64::from(*w)) as f32;
    }
}

impl Backend for Naive {
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Buffer = Buffer;
    type Pages = Pages;

    fn matrix(&self, tensor: &Tensor) -> Result<Matrix, BackendError> {
        self.request(tensor.data.len())?;
        Ok(Matrix { rows: tensor.rows, cols: tensor.cols, values: decode(tensor)? })
    }

    fn vector(&self, tensor: &Tensor) -> Result<Vec<f32>, BackendError> {
        self.request(tensor.data.len())?;
        decode(tensor)
    }

    fn pages(&self, shape: &KvShape) -> Result<Pages, BackendError> {
        let elements = shape.layers * shape.pages * shape.page_size_tokens * 2 * shape.n_kv_heads * shape.head_dim;
        self.request(elements * shape.element.bytes())?;
        self.pool_bytes.fetch_add((elements * shape.element.bytes()) as u64, Ordering::Relaxed);
        Ok(Pages { shape: *shape, cells: vec![0.0; elements] })
    }

    fn buffer(&self, width: usize) -> Buffer {
        Buffer { width, values: Vec::new() }
    }

    fn resize(&self, buffer: &mut Buffer, rows: usize) -> Result<(), BackendError> {
        let elements = rows * buffer.width;
        if elements > buffer.values.capacity() {
            self.request(4 * elements)?;
            let grown = elements - buffer.values.capacity();
            self.buffer_bytes.fetch_add(4 * grown as u64, Ordering::Relaxed);
            buffer.values.reserve_exact(elements - buffer.values.len());
        }
        // What a row holds is unspecified: make use of it show.
        buffer.values.clear();
        buffer.values.resize(elements, f32::NAN);
        Ok(())
    }

    fn embed(&self, table: &Matrix, tokens: &[u32], scale: f32, out: &mut Buffer) {
        for (row, &token) in tokens.iter().enumerate() {
            let source = &table.values[token as usize * table.cols..][..table.cols];
            out.row_mut(row).iter_mut().zip(source).for_each(|(out, value)| *out = value * scale);
        }
    }

    fn rms_norm(&self, x: &Buffer, weight: &Vec<f32>, epsilon: f32, out: &mut Buffer) {
        out.values.copy_from_slice(&x.values);
        self.rms_norm_in_place(out, weight, epsilon);
    }

    fn rms_norm_in_place(&self, x: &mut Buffer, weight: &Vec<f32>, epsilon: f32) {
        x.values.chunks_mut(weight.len()).for_each(|group| normalise(group, weight, epsilon));
    }

    fn linear(&self, x: &Buffer, weight: &Matrix, bias: Option<&Vec<f32>>, out: &mut Buffer) {
        assert_eq!((x.width, out.width, x.rows()), (weight.cols, weight.rows, out.rows()), "shapes agree");
        let mut multiplied = self.multiplied.lock().unwrap_or_else(PoisonError::into_inner);
        *multiplied.entry((weight.rows, weight.cols)).or_default() += x.rows();
        drop(multiplied);
        for row in 0..x.rows() {
            for output in 0..weight.rows {
                let products = x.row(row).iter().zip(&weight.values[output * weight.cols..]);
                let sum: f64 = products.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                let bias = bias.map_or(0.0, |bias| f64::from(bias[output]));
                out.row_mut(row)[output] = (sum + bias) as f32;
            }
        }
    }

    fn angles(&self, table: &RopeTable, spans: &[Span<'_>], out: &mut Buffer) {
        let pairs = table.frequencies.len();
        for span in spans {
            for i in 0..span.rows {
                let row = out.row_mut(span.first_row + i);
                for (pair, frequency) in table.frequencies.iter().enumerate() {
                    let angle = (span.start + i) as f64 * frequency;
                    (row[pair], row[pairs + pair]) = (angle.cos() as f32, angle.sin() as f32);
                }
            }
        }
    }

    fn rope(&self, x: &mut Buffer, head_dim: usize, pairing: RopePairing, angles: &Buffer) {
        assert_eq!(x.rows(), angles.rows(), "each row has its angles");
        let pairs = angles.width / 2;
        for row in 0..x.rows() {
            for head in x.row_mut(row).chunks_mut(head_dim) {
                for pair in 0..pairs {
                    let (one, two) = match pairing {
                        RopePairing::Interleaved => (2 * pair, 2 * pair + 1),
                        RopePairing::Halves => (pair, pair + pairs),
                    };
                    let (cos, sin) = (f64::from(angles.row(row)[pair]), f64::from(angles.row(row)[pairs + pair]));
                    let (a, b) = (f64::from(head[one]), f64::from(head[two]));
                    head[one] = (a * cos - b * sin) as f32;
                    head[two] = (a * sin + b * cos) as f32;
                }
            }
        }
    }

    fn kv_write(&self, pages: &mut Pages, layer: usize, keys: &Buffer, values: &Buffer, spans: &[Span<'_>]) {
        let width = pages.width();
        for span in spans {
            for i in 0..span.rows {
                let at = pages.cell(layer, span, span.start + i);
                let row = keys.row(span.first_row + i).iter().chain(values.row(span.first_row + i));
                let row: Vec<f32> = row.map(|&value| pages.rounded(value)).collect();
                pages.cells[at..at + 2 * width].copy_from_slice(&row);
            }
        }
    }

    fn attention(
        &self,
        queries: &Buffer,
        pages: &Pages,
        layer: usize,
        shape: &AttentionShape,
        spans: &[Span<'_>],
        out: &mut Buffer,
    ) {
        let (dim, width) = (shape.head_dim, pages.width());
        let group = shape.n_heads / shape.n_kv_heads;
        for span in spans {
            for i in 0..span.rows {
                let position = span.start + i;
                let first = shape.window.map_or(0, |window| (position + 1).saturating_sub(window));
                for head in 0..shape.n_heads {
                    let query = &queries.row(span.first_row + i)[head * dim..][..dim];
                    let cells: Vec<&[f32]> = (first..=position)
                        .map(|p| &pages.cells[pages.cell(layer, span, p) + head / group * dim..])
                        .collect();
                    let dot = |cell: &&[f32]| -> f64 {
                        query.iter().zip(*cell).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum()
                    };
                    let scores: Vec<f64> = cells.iter().map(|cell| dot(cell) * f64::from(shape.scale)).collect();
                    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    for d in 0..dim {
                        let values = cells.iter().zip(&weights).map(|(cell, w)| w * f64::from(cell[width + d]));
                        out.row_mut(span.first_row + i)[head * dim + d] = (values.sum::<f64>() / sum) as f32;
                    }
                }
            }
        }
    }

    fn gate(&self, gate: &mut Buffer, up: &Buffer, act: Gate) {
        for (g, &u) in gate.values.iter_mut().zip(&up.values) {
            let x = f64::from(*g);
            let y = match act {
                Gate::Silu => x / (1.0 + (-x).exp()),
                Gate::GeluTanh => {
                    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                    0.5 * x * (1.0 + inner.tanh())
                }
            };
            *g = (y * f64::from(u)) as f32;
        }
    }

    fn add(&self, x: &mut Buffer, y: &Buffer) {
        x.values.iter_mut().zip(&y.values).for_each(|(x, y)| *x += y);
    }

    fn gather_rows(&self, x: &Buffer, rows: &[usize], out: &mut Buffer) {
        for (to, &from) in rows.iter().enumerate() {
            out.row_mut(to).copy_from_slice(x.row(from));
        }
    }

    fn keep_rows(&self, x: &mut Buffer, rows: &[usize]) {
        let kept: Vec<f32> = rows.iter().flat_map(|&row| x.row(row)).copied().collect();
        x.values.clear();
        x.values.extend(kept);
    }

    fn add_rows(&self, x: &mut Buffer, rows: &[usize], y: &Buffer) {
        for (from, &to) in rows.iter().enumerate() {
            x.row_mut(to).iter_mut().zip(y.row(from)).for_each(|(x, y)| *x += y);
        }
    }

    fn each_row(&self, x: &mut Buffer, rows: &[usize], f: EachRow<'_>) -> Result<(), BackendError> {
        self.request(4 * x.values.len())?;
        rows.iter().for_each(|&row| f(0, row, x.row_mut(row)));
        Ok(())
    }

    fn read(&self, x: &Buffer, first_row: usize, out: &mut [f32]) -> Result<(), BackendError> {
        self.request(4 * out.len())?;
        out.copy_from_slice(&x.values[first_row * x.width..][..out.len()]);
        Ok(())
    }

    fn write(&self, x: &mut Buffer, first_row: usize, values: &[f32]) -> Result<(), BackendError> {
        self.request(4 * values.len())?;
        x.values[first_row * x.width..][..values.len()].copy_from_slice(values);
        Ok(())
    }

    fn copy_pages(&self, pages: &mut Pages, copies: &[(u32, u32)]) {
        let page = pages.shape.page_size_tokens * 2 * pages.width();
        for layer in 0..pages.shape.layers {
            for &(from, to) in copies {
                let at = |number: u32| (layer * pages.shape.pages + number as usize) * page;
                pages.cells.copy_within(at(from)..at(from) + page, at(to));
            }
        }
    }

    fn read_tokens(
        &self,
        pages: &Pages,
        block_table: &[u32],
        positions: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), BackendError> {
        self.request(out.len())?;
        let mut bytes = Vec::new();
        for position in positions {
            for place in pages.places(block_table, position) {
                match pages.shape.element {
                    KvType::F32 => bytes.extend(pages.cells[place].to_le_bytes()),
                    KvType::F16 => bytes.extend(half::f16::from_f32(pages.cells[place]).to_le_bytes()),
                }
            }
        }
        out.copy_from_slice(&bytes);
        Ok(())
    }

    fn write_tokens(
        &self,
        pages: &mut Pages,
        block_table: &[u32],
        positions: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        self.request(bytes.len())?;
        let size = pages.shape.element.bytes();
        let mut elements = bytes.chunks(size);
        for position in positions {
            for place in pages.places(block_table, position) {
                let element = elements.next().expect("as many bytes as tokens take");
                pages.cells[place] = match *element {
                    [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
                    [a, b] => half::f16::from_le_bytes([a, b]).to_f32(),
                    _ => panic!("elements of {size} bytes"),
                };
            }
        }
        Ok(())
    }
}
