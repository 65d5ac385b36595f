//! The operations: shapes to tasks, tasks to threads.

use core::ops::Range;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::attention::Attend;
use super::linear::Row;
use super::memory::{ALIGNMENT_BYTES, Aligned, Slab};
use super::pages::Elements;
use super::rounded::SCRATCH;
use super::rows::{Activate, Add, AddRmsNorm, RmsNorm, RmsNormInPlace, Rope};
use super::shared::Shared;
use super::tile::{ROWS, pack};
use super::{
    Buffer, CpuBackend, Matrix, Pages, RELEASE_BYTES, SECTIONS, SPREAD_ELEMENTS, Section, Vector, has_codes,
    matrix_bytes, whole_row_bytes,
};
use crate::backend::{
    Arithmetic, AttentionShape, Backend, BackendError, EachRow, Gate, KvShape, Product, RopeTable, Span,
};
use crate::checkpoint::RopePairing;
use crate::tensor::{Tensor, dequantise_row};

impl Backend for CpuBackend {
    type Matrix = Matrix;
    type Vector = Vector;
    type Buffer = Buffer;
    type Pages = Pages;

    fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    fn make_ready(&self, inputs: usize) -> Result<(), BackendError> {
        if self.arithmetic == Arithmetic::Fast {
            self.scratch.reserve(SCRATCH)?;
        }
        self.inputs().reserve(0, inputs)
    }

    fn weights_begin(&self, tensors: &[&Tensor]) {
        let bytes = tensors.iter().filter(|tensor| tensor.rows > 1).try_fold(0_usize, |sum, tensor| {
            sum.checked_add(matrix_bytes(tensor)?.1.checked_next_multiple_of(ALIGNMENT_BYTES)?)
        });
        *self.slab() = bytes.filter(|&bytes| bytes > 0).and_then(Slab::new);
    }

    fn weights_end(&self) {
        if let Some(slab) = self.slab().take() {
            slab.filled();
        }
    }

    fn matrix(&self, tensor: &Tensor) -> Result<Matrix, BackendError> {
        let (dtype, rows, cols) = (tensor.dtype, tensor.rows, tensor.cols);
        let row_bytes = whole_row_bytes(tensor, "matrix")?;
        let unsupported = BackendError::UnsupportedTensor { operation: "matrix" };
        let (group_bytes, bytes) = matrix_bytes(tensor).ok_or(unsupported)?;
        self.make_ready(if has_codes(dtype) { cols } else { 0 })?;
        // What has one row is counted as a vector, which most of it is: a matrix of one row takes memory of its own.
        let in_slab = self.slab().as_mut().filter(|_| rows > 1).and_then(|slab| slab.take(bytes));
        let data = in_slab.map_or_else(|| Aligned::zeroed(bytes), Ok)?;
        let mut matrix = Matrix { data, dtype, rows, cols, group_bytes };
        let (groups, from, to) = (matrix.groups(), tensor.data.as_slice(), Shared::new(&mut matrix.data));
        let group_rows_bytes = ROWS * row_bytes;
        self.split(groups, SPREAD_ELEMENTS.div_ceil(ROWS * cols), 1, |_, part| {
            let mut kept = part.start;
            for group in part {
                let rows = from.chunks_exact(row_bytes).skip(group * ROWS).take(ROWS);
                let mut group_rows = [from; ROWS];
                let count = group_rows.iter_mut().zip(rows).map(|(to, row)| *to = row).count();
                // SAFETY: each row group belongs to one part of the split.
                let to = unsafe { to.part(group * group_bytes, group_bytes) };
                pack(dtype, &group_rows[..count], to);
                // The file is not needed any more, and is not to be held beside the tiles.
                if (group + 1 - kept) * group_rows_bytes >= RELEASE_BYTES {
                    tensor.data.release(kept * group_rows_bytes..(group + 1) * group_rows_bytes);
                    kept = group + 1;
                }
            }
        });
        tensor.data.release(0..tensor.data.len());
        Ok(matrix)
    }

    fn vector(&self, tensor: &Tensor) -> Result<Vector, BackendError> {
        whole_row_bytes(tensor, "vector")?;
        let mut values = Aligned::zeroed(tensor.rows * tensor.cols)?;
        let unsupported = |_| BackendError::UnsupportedTensor { operation: "vector" };
        dequantise_row(tensor.dtype, tensor.data.as_slice(), &mut values).map_err(unsupported)?;
        Ok(Vector(values))
    }

    fn pages(&self, shape: &KvShape) -> Result<Pages, BackendError> {
        self.attention.reserve(shape.head_dim)?;
        Pages::new(shape)
    }

    fn buffer(&self, width: usize) -> Buffer {
        Buffer {
            name: self.buffers.fetch_add(1, Ordering::Relaxed),
            version: 0,
            width,
            rows: 0,
            data: Aligned::empty(),
        }
    }

    fn resize(&self, buffer: &mut Buffer, rows: usize) -> Result<(), BackendError> {
        let len = rows.checked_mul(buffer.width).ok_or(BackendError::OutOfMemory { bytes: u64::MAX })?;
        if len > buffer.data.len() {
            buffer.data = Aligned::zeroed(len)?;
        }
        self.inputs().reserve(rows, 0)?;
        buffer.rows = rows;
        buffer.version += 1;
        Ok(())
    }

    fn embed(&self, table: &Matrix, tokens: &[u32], scale: f32, out: &mut Buffer) {
        let (isa, width, weights) = (self.isa, out.width, table.weights());
        assert_eq!(width, weights.cols, "the row has the width of the table");
        let shared = Shared::new(out.values_mut());
        self.split(tokens.len(), SPREAD_ELEMENTS.div_ceil(width.max(1)), 1, |_, part| {
            for row in part {
                // SAFETY: each row belongs to one part of the split.
                let out = unsafe { shared.part(row * width, width) };
                let row = tokens[row] as usize;
                assert!(row < weights.rows, "the matrix has this row");
                isa.run(Row { weights, row, scale, out });
            }
        });
    }

    fn rms_norm(&self, x: &Buffer, weight: &Vector, epsilon: f32, out: &mut Buffer) {
        let (isa, x, weight) = (self.isa, x.values(), &weight.0[..]);
        self.split_values(out.values_mut(), weight.len(), |out, range| {
            isa.run(RmsNorm { x: &x[range], weight, epsilon, out });
        });
    }

    fn add_rms_norm(&self, x: &mut Buffer, delta: &Buffer, weight: &Vector, epsilon: f32, out: &mut Buffer) {
        assert_eq!((x.width, x.rows), (out.width, out.rows), "the sum and its norm have one shape");
        let (isa, delta, weight) = (self.isa, delta.values(), &weight.0[..]);
        let x = Shared::new(x.values_mut());
        self.split_values(out.values_mut(), weight.len(), |out, range| {
            // SAFETY: parts of a split do not overlap, and `x` has the shape of what is split.
            let x = unsafe { x.part(range.start, range.len()) };
            isa.run(AddRmsNorm { x, delta: &delta[range], weight, epsilon, out });
        });
    }

    fn rms_norm_in_place(&self, x: &mut Buffer, weight: &Vector, epsilon: f32) {
        let (isa, weight) = (self.isa, &weight.0[..]);
        self.split_values(x.values_mut(), weight.len(), |x, _| {
            isa.run(RmsNormInPlace { x, weight, epsilon });
        });
    }

    fn linear(&self, x: &Buffer, weight: &Matrix, bias: Option<&Vector>, out: &mut Buffer) {
        self.multiply(x, &[self.section(x, weight, bias, out, weight.groups())]);
    }

    fn linear_many(&self, x: &Buffer, products: &mut [Product<'_, Self>]) {
        let groups = products.iter().map(|product| product.weight.groups()).sum();
        let sections: SmallVec<[Section<'_>; SECTIONS]> = products
            .iter_mut()
            .map(|Product { weight, bias, out }| self.section(x, weight, *bias, out, groups))
            .collect();
        self.multiply(x, &sections);
    }

    fn angles(&self, table: &RopeTable, spans: &[Span<'_>], out: &mut Buffer) {
        let width = out.width;
        assert_eq!(width, 2 * table.frequencies.len(), "a cosine and a sine for each pair");
        let values = out.values_mut();
        for span in spans {
            for row in 0..span.rows {
                let out = &mut values[(span.first_row + row) * width..][..width];
                table.angles(span.start + row, out);
            }
        }
    }

    fn rope(&self, x: &mut Buffer, head_dim: usize, pairing: RopePairing, angles: &Buffer) {
        assert_eq!(x.rows, angles.rows, "each row has its angles");
        let (isa, width, turns) = (self.isa, x.width, angles.width);
        let angles = angles.values();
        self.split_values(x.values_mut(), width, |x, range| {
            let angles = angles[range.start / width * turns..].chunks_exact(turns);
            for (row, angles) in x.chunks_exact_mut(width).zip(angles) {
                isa.run(Rope { row, head_dim, pairing, angles });
            }
        });
    }

    fn kv_write(&self, pages: &mut Pages, layer: usize, keys: &Buffer, values: &Buffer, spans: &[Span<'_>]) {
        let (layout, shape, kv) = (pages.layout(layer), pages.shape, [keys.values(), values.values()]);
        match &mut pages.elements {
            Elements::F16(elements) => self.write_pages(elements, layout, &shape, kv, spans),
            Elements::F32(elements) => self.write_pages(elements, layout, &shape, kv, spans),
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
        let (layout, queries, out) = (pages.layout(layer), queries.values(), out.values_mut());
        let (isa, threads) = (self.isa, &self.threads);
        match &pages.elements {
            Elements::F16(elements) => {
                self.attention.run(isa, threads, &Attend { elements, layout, queries, shape, spans }, out);
            }
            Elements::F32(elements) => {
                self.attention.run(isa, threads, &Attend { elements, layout, queries, shape, spans }, out);
            }
        }
    }

    fn gate(&self, gate: &mut Buffer, up: &Buffer, act: Gate) {
        let (isa, width, up) = (self.isa, gate.width, up.values());
        self.split_values(gate.values_mut(), width, |gate, range| {
            isa.run(Activate { gate, up: &up[range], act });
        });
    }

    fn add(&self, x: &mut Buffer, y: &Buffer) {
        self.isa.run(Add { x: x.values_mut(), y: y.values() });
    }

    fn gather_rows(&self, x: &Buffer, rows: &[usize], out: &mut Buffer) {
        let (width, values) = (x.width, x.values());
        for (out, &row) in out.values_mut().chunks_exact_mut(width).zip(rows) {
            out.copy_from_slice(&values[row * width..][..width]);
        }
    }

    fn keep_rows(&self, x: &mut Buffer, rows: &[usize]) {
        let width = x.width;
        let values = x.values_mut();
        for (to, &from) in rows.iter().enumerate() {
            values.copy_within(from * width..(from + 1) * width, to * width);
        }
        x.rows = rows.len();
    }

    fn add_rows(&self, x: &mut Buffer, rows: &[usize], y: &Buffer) {
        let width = x.width;
        let values = x.values_mut();
        for (y, &row) in y.values().chunks_exact(width).zip(rows) {
            self.isa.run(Add { x: &mut values[row * width..][..width], y });
        }
    }

    fn participants(&self) -> usize {
        self.threads.count()
    }

    fn each_row(&self, x: &mut Buffer, rows: &[usize], f: EachRow<'_>) -> Result<(), BackendError> {
        if !rows.is_sorted_by(|a, b| a < b) {
            return Err(BackendError::Device { reason: "rows to visit ascend".to_owned() });
        }
        let width = x.width;
        let shared = Shared::new(x.values_mut());
        self.threads.run(rows.len(), &|participant: usize, task: usize| {
            let Some(&row) = rows.get(task) else { return };
            // SAFETY: each row is one task, by the check.
            f(participant, row, unsafe { shared.part(row * width, width) });
        });
        Ok(())
    }

    fn read(&self, x: &Buffer, first_row: usize, out: &mut [f32]) -> Result<(), BackendError> {
        let from = first_row * x.width;
        out.copy_from_slice(&x.values()[from..from + out.len()]);
        Ok(())
    }

    fn write(&self, x: &mut Buffer, first_row: usize, values: &[f32]) -> Result<(), BackendError> {
        let from = first_row * x.width;
        x.values_mut()[from..from + values.len()].copy_from_slice(values);
        Ok(())
    }

    fn health(&self) -> Result<(), BackendError> {
        match self.threads.breach() {
            Some(breach) => Err(BackendError::Device { reason: breach.to_owned() }),
            None => Ok(()),
        }
    }

    fn copy_pages(&self, pages: &mut Pages, copies: &[(u32, u32)]) {
        pages.copy(copies);
    }

    fn read_tokens(
        &self,
        pages: &Pages,
        block_table: &[u32],
        positions: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), BackendError> {
        pages.read(block_table, positions, out);
        Ok(())
    }

    fn write_tokens(
        &self,
        pages: &mut Pages,
        block_table: &[u32],
        positions: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        pages.write(block_table, positions, bytes);
        Ok(())
    }
}
