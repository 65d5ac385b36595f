//! The processor as a backend: f32 activations, weights unpacked as they are used, a pool of threads.
//!
//! ```text
//! CpuBackend: an operation -> parts -> threads.rs -> kernels/<operation>.rs, the instance of the processor's instruction set
//! memory.rs: matrices in the mapped file, activation rows, pages          simd.rs: eight lanes; which instance
//! ```
//!
//! # Invariants
//! As of [`Backend`]: threads split outputs, rows or heads, never a sum. The instruction set is found once, when the backend is
//! made; it is the device kind, and two kinds may differ in the last bits.

mod disjoint;
mod kernels;
mod memory;
mod simd;
mod threads;

pub use memory::{Buffer, Matrix, Pages, Vector};
pub use simd::Isa;

use self::disjoint::Disjoint;
use self::kernels::attention::{HeadJob, attend};
use self::kernels::elementwise::{embed, gate};
use self::kernels::linear::{GRANULE, Linear, linear};
use self::kernels::norm::rms_norm;
use self::kernels::rope::rope;
use self::memory::Part;
use self::threads::Pool;
use super::{AttentionShape, Backend, BackendError, Gate, KvShape, RopeTable, Span};
use crate::tensor::Tensor;

/// Elements below which an element-wise operation is not worth another thread.
const SMALL: usize = 16 << 10;
/// Parts per thread: enough that a thread which lost its processor does not hold up the others.
const PARTS_PER_THREAD: usize = 4;

/// The processor.
pub struct CpuBackend {
    isa: Isa,
    pool: Pool,
}

impl CpuBackend {
    /// A backend of `threads` threads, the caller's among them, with the best instruction set there is.
    pub fn new(threads: usize) -> Self {
        Self::with_isa(threads, Isa::detect())
    }

    /// As [`CpuBackend::new`] with a chosen instruction set.
    pub fn with_isa(threads: usize, isa: Isa) -> Self {
        Self { isa, pool: Pool::new(threads) }
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Runs `operation` on every row of a buffer.
    fn each_row(&self, buffer: &mut Buffer, operation: impl Fn(usize, &mut [f32]) + Sync) {
        let (rows, width, stride) = (buffer.rows(), buffer.width(), buffer.stride());
        let parts = if rows * width < SMALL { 1 } else { rows.min(PARTS_PER_THREAD * self.pool.threads()) };
        let out = Disjoint::new(buffer.elements_mut());
        self.pool.run(parts, &|part| {
            for row in rows * part / parts..rows * (part + 1) / parts {
                // SAFETY: the parts are disjoint ranges of rows, and each row is taken once.
                let values = unsafe { out.slice(row * stride, width) };
                operation(row, values);
            }
        });
    }
}

/// The sequence of each row: its span and its place in it.
fn rows_of<'s>(spans: &'s [Span<'s>]) -> impl Iterator<Item = (&'s Span<'s>, usize)> {
    spans.iter().flat_map(|span| (0..span.rows).map(move |row| (span, row)))
}

impl Backend for CpuBackend {
    type Matrix = Matrix;
    type Vector = Vector;
    type Buffer = Buffer;
    type Pages = Pages;

    fn matrix(&self, tensor: &Tensor) -> Result<Matrix, BackendError> {
        Matrix::new(tensor)
    }

    fn vector(&self, tensor: &Tensor) -> Result<Vector, BackendError> {
        Vector::new(tensor)
    }

    fn pages(&self, shape: &KvShape) -> Result<Pages, BackendError> {
        Pages::new(shape)
    }

    fn buffer(&self, width: usize) -> Buffer {
        Buffer::new(width)
    }

    fn resize(&self, buffer: &mut Buffer, rows: usize) -> Result<(), BackendError> {
        buffer.resize(rows)
    }

    fn embed(&self, table: &Matrix, tokens: &[u32], scale: f32, out: &mut Buffer) {
        let isa = self.isa;
        self.each_row(out, |row, out| embed(isa, table, tokens[row] as usize, scale, out));
    }

    fn rms_norm(&self, x: &Buffer, weight: &Vector, epsilon: f32, out: &mut Buffer) {
        let isa = self.isa;
        self.each_row(out, |row, out| {
            out.copy_from_slice(x.row(row));
            rms_norm(isa, out, &weight.0, epsilon);
        });
    }

    fn rms_norm_in_place(&self, x: &mut Buffer, weight: &Vector, epsilon: f32) {
        let isa = self.isa;
        self.each_row(x, |_, row| rms_norm(isa, row, &weight.0, epsilon));
    }

    fn linear(&self, x: &Buffer, weight: &Matrix, bias: Option<&Vector>, out: &mut Buffer) {
        let (isa, outputs) = (self.isa, weight.tensor.rows);
        let out_stride = out.stride();
        let job = Linear {
            x: x.elements(),
            x_stride: x.stride(),
            rows: x.rows(),
            weight,
            bias: bias.map(|bias| &*bias.0),
            out: Disjoint::new(out.elements_mut()),
            out_stride,
        };
        let granules = outputs.div_ceil(GRANULE);
        let parts = granules.min(PARTS_PER_THREAD * self.pool.threads());
        self.pool.run(parts, &|part| {
            let start = granules * part / parts * GRANULE;
            let end = outputs.min(granules * (part + 1) / parts * GRANULE);
            linear(isa, &job, start..end);
        });
    }

    fn rope(&self, x: &mut Buffer, head_dim: usize, table: &RopeTable, spans: &[Span<'_>]) {
        let mut turns = Vec::with_capacity(table.frequencies.len());
        for (span, row) in rows_of(spans) {
            rope(x.row_mut(span.first_row + row), head_dim, table, span.start + row, &mut turns);
        }
    }

    fn kv_write(&self, pages: &mut Pages, layer: usize, keys: &Buffer, values: &Buffer, spans: &[Span<'_>]) {
        let KvShape { page_size_tokens, head_dim, .. } = *pages.shape();
        for (span, row) in rows_of(spans) {
            let position = span.start + row;
            let page = span.block_table[position / page_size_tokens];
            for (part, source) in [(Part::Keys, keys), (Part::Values, values)] {
                let start = pages.page_start(layer, part, page);
                for (head, values) in source.row(span.first_row + row).chunks_exact(head_dim).enumerate() {
                    let slot = head * page_size_tokens + position % page_size_tokens;
                    pages.write(start + slot * head_dim, values);
                }
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
        let (isa, dim, stride) = (self.isa, shape.head_dim, out.stride());
        let out = Disjoint::new(out.elements_mut());
        for span in spans {
            // Later rows see more keys: single rows are handed out, so that the threads finish together.
            self.pool.run(span.rows * shape.n_heads, &|part| {
                let (row, head) = (part / shape.n_heads, part % shape.n_heads);
                let query = &queries.row(span.first_row + row)[head * dim..][..dim];
                let job = HeadJob { query, pages, layer, shape, span, head, position: span.start + row };
                // SAFETY: every part is another head of another row.
                let out = unsafe { out.slice((span.first_row + row) * stride + head * dim, dim) };
                attend(isa, &job, out);
            });
        }
    }

    fn gate(&self, x: &mut Buffer, up: &Buffer, act: Gate) {
        let isa = self.isa;
        self.each_row(x, |row, x| gate(isa, x, up.row(row), act));
    }

    fn add(&self, x: &mut Buffer, y: &Buffer) {
        self.each_row(x, |row, x| x.iter_mut().zip(y.row(row)).for_each(|(x, y)| *x += y));
    }

    fn gather_rows(&self, x: &Buffer, rows: &[usize], out: &mut Buffer) {
        for (to, &from) in rows.iter().enumerate() {
            out.row_mut(to).copy_from_slice(x.row(from));
        }
    }

    fn read(&self, x: &Buffer, first_row: usize, out: &mut [f32]) -> Result<(), BackendError> {
        for (row, out) in (first_row..).zip(out.chunks_exact_mut(x.width())) {
            out.copy_from_slice(x.row(row));
        }
        Ok(())
    }

    fn copy_pages(&self, pages: &mut Pages, copies: &[(u32, u32)]) {
        for &(from, to) in copies {
            pages.copy(from, to);
        }
    }
}
