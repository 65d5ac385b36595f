#![forbid(unsafe_code)]
//! The operations of one device: shapes to launches, and what goes to and from the host.

use core::ops::Range;

use super::arena::arena_bytes;
use super::attend::Attend;
use super::driver::At;
use super::launch::MOST_DIMS;
use super::players::lock;
use super::{
    Buffer, CudaBackend, Matrix, Pages, TABLE_WORDS, Vector, angles_of, check_tensor, inside, scratch_bytes, spans,
};
use crate::backend::{
    Again, Arithmetic, AttentionShape, Backend, BackendError, EachRow, Gate, GraphCounts, KvShape, Picked, Product,
    RopeTable, Span,
};
use crate::checkpoint::RopePairing;
use crate::sample::SampleRequest;
use crate::tensor::{Tensor, dequantise_row};
use crate::transfer::Encoding;

impl Backend for CudaBackend {
    type Matrix = Matrix;
    type Vector = Vector;
    type Buffer = Buffer;
    type Pages = Pages;

    fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    fn remark(&self) -> Option<String> {
        Some(self.kernels().to_string())
    }

    /// Rounded rows get their memory with the rows, in [`Backend::resize`].
    fn make_ready(&self, inputs: usize) -> Result<(), BackendError> {
        self.widest_input.set(self.widest_input.get().max(inputs));
        Ok(())
    }

    /// Kernels belong to an engine: it compiles its own, when it is opened.
    fn weights_shared(&self, tensors: &[&Tensor]) -> Result<(), BackendError> {
        self.errors.sound()?;
        tensors.iter().filter(|tensor| tensor.rows > 1).try_for_each(|tensor| self.make_ready_for(tensor))
    }

    fn matrix(&self, tensor: &Tensor) -> Result<Matrix, BackendError> {
        check_tensor(tensor, "matrix")?;
        self.errors.sound()?;
        self.make_ready_for(tensor)?;
        let memory = self.driver().memory(tensor.data.len())?;
        self.errors.attempt(|| self.driver().fill(&memory, tensor.data.as_slice()))?;
        tensor.data.release(0..tensor.data.len());
        Ok(Matrix { dtype: tensor.dtype, rows: tensor.rows, cols: tensor.cols, memory })
    }

    fn vector(&self, tensor: &Tensor) -> Result<Vector, BackendError> {
        check_tensor(tensor, "vector")?;
        self.errors.sound()?;
        let mut values = vec![0.0_f32; tensor.rows * tensor.cols];
        let unsupported = |_| BackendError::UnsupportedTensor { operation: "vector" };
        dequantise_row(tensor.dtype, tensor.data.as_slice(), &mut values).map_err(unsupported)?;
        let memory = self.driver().memory(size_of_val(&values[..]))?;
        self.errors.attempt(|| self.driver().fill(&memory, bytemuck::cast_slice(&values)))?;
        Ok(Vector(memory))
    }

    fn pages(&self, shape: &KvShape) -> Result<Pages, BackendError> {
        if shape.head_dim > MOST_DIMS || !shape.head_dim.is_multiple_of(8) {
            return Err(BackendError::UnsupportedTensor { operation: "attention" });
        }
        self.errors.sound()?;
        self.launcher().prepare()?;
        self.launcher().prepare_attention(self.arithmetic(), shape)?;
        let bytes = shape.page_bytes().and_then(|page| page.checked_mul(shape.pages as u64));
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.ok_or(BackendError::OutOfMemory { bytes: u64::MAX })?;
        let memory = self.driver().memory(bytes)?;
        self.forget_graphs()?;
        let scratch = scratch_bytes(shape);
        if self.scratch.borrow().bytes() < scratch {
            let larger = self.driver().memory(scratch)?;
            *self.scratch.borrow_mut() = larger;
        }
        self.lists.borrow_mut().reserve(self.driver(), TABLE_WORDS + shape.pages)?;
        self.page_size_tokens.set(shape.page_size_tokens);
        self.head_dim.set(shape.head_dim);
        self.errors.attempt(|| self.driver().zero(&memory))?;
        Ok(Pages { shape: *shape, memory })
    }

    fn buffer(&self, width: usize) -> Buffer {
        Buffer { width, rows: 0, memory: self.driver().nothing() }
    }

    fn resize(&self, buffer: &mut Buffer, rows: usize) -> Result<(), BackendError> {
        let bytes = rows.checked_mul(buffer.width).and_then(|len| len.checked_mul(size_of::<f32>()));
        let bytes = bytes.ok_or(BackendError::OutOfMemory { bytes: u64::MAX })?;
        if bytes > buffer.memory.bytes() {
            self.errors.sound()?;
            self.reserve_rounded(rows)?;
            let memory = self.driver().memory(bytes)?;
            self.forget_graphs()?;
            // Lists of rows: of an operation one is in use.
            self.staging.borrow_mut().reserve(self.driver(), rows.saturating_mul(size_of::<u32>()))?;
            buffer.memory = memory;
        }
        buffer.rows = rows;
        Ok(())
    }

    fn embed(&self, table: &Matrix, tokens: &[u32], scale: f32, out: &mut Buffer) {
        if tokens.is_empty() {
            return;
        }
        self.errors.run(|| {
            inside(tokens.iter().all(|&token| (token as usize) < table.rows), "a token past the vocabulary")?;
            self.launcher().embed(out.values(), table.weights(), self.list(tokens)?, scale)
        });
    }

    fn embed_picked(&self, table: &Matrix, rows: &[usize], scale: f32, out: &mut Buffer) {
        if !rows.is_empty() {
            self.errors.run(|| {
                let tokens = self.begun_tokens(rows, table.rows)?;
                self.launcher().embed(out.values(), table.weights(), tokens, scale)
            });
        }
    }

    fn rms_norm(&self, x: &Buffer, weight: &Vector, epsilon: f32, out: &mut Buffer) {
        if x.rows > 0 {
            self.errors.run(|| self.launcher().rms_norm(out.values(), x.values(), weight.0.at(), epsilon));
        }
    }

    fn add_rms_norm(&self, x: &mut Buffer, delta: &Buffer, weight: &Vector, epsilon: f32, out: &mut Buffer) {
        if x.rows > 0 {
            let (out, x, delta) = (out.values(), x.values(), delta.values());
            self.errors.run(|| self.launcher().add_rms_norm(out, x, delta, weight.0.at(), epsilon));
        }
    }

    fn rms_norm_in_place(&self, x: &mut Buffer, weight: &Vector, epsilon: f32) {
        if x.rows > 0 {
            self.errors.run(|| self.launcher().rms_norm(x.values(), x.values(), weight.0.at(), epsilon));
        }
    }

    fn linear(&self, x: &Buffer, weight: &Matrix, bias: Option<&Vector>, out: &mut Buffer) {
        if x.rows > 0 {
            self.errors.run(|| self.product(x, weight, bias, out, &mut None));
        }
    }

    /// Rows are rounded once for neighbours that take them in the same form.
    fn linear_many(&self, x: &Buffer, products: &mut [Product<'_, Self>]) {
        if x.rows > 0 {
            let mut left = None;
            self.errors.run(|| {
                products
                    .iter_mut()
                    .try_for_each(|Product { weight, bias, out }| self.product(x, weight, *bias, out, &mut left))
            });
        }
    }

    fn angles(&self, table: &RopeTable, spans: &[Span<'_>], out: &mut Buffer) {
        if out.rows == 0 || out.width == 0 {
            return;
        }
        self.errors.run(|| {
            let mut host = self.host.borrow_mut();
            angles_of(table, spans, [out.rows, out.width], &mut host);
            self.fill(out.values().cast(), bytemuck::cast_slice(&host))
        });
    }

    fn rope(&self, x: &mut Buffer, head_dim: usize, pairing: RopePairing, angles: &Buffer) {
        if x.rows > 0 {
            let sizes = [x.rows, x.width / head_dim, head_dim, angles.width / 2];
            self.errors.run(|| self.launcher().rope(x.values(), angles.values(), sizes, pairing));
        }
    }

    /// As many entries as memory was got for, so that no walk needs more.
    fn make_room_for_tables(&self, spans: usize, longest: usize) -> Result<usize, BackendError> {
        let words = spans::walk_words(spans, longest, self.page_size_tokens.get());
        self.lists.borrow_mut().reserve(self.driver(), words)?;
        self.staging.borrow_mut().reserve(self.driver(), longest.saturating_mul(size_of::<u32>()))?;
        self.begun.borrow_mut().reserve(self.driver(), spans)?;
        self.reserve_arena(arena_bytes(spans, self.head_dim.get()))?;
        Ok(spans::table_entries(spans, longest))
    }

    fn part_begin(&self, again: Again) {
        self.begin_section(again);
    }

    fn part_end(&self) {
        self.end_section();
    }

    fn take_graph_counts(&self) -> GraphCounts {
        lock(&self.players.graphs).take_counts()
    }

    fn pass_begin(&self, lists: &[&[Span<'_>]]) -> Result<(), BackendError> {
        self.errors.attempt(|| {
            let mut walk = self.lists.borrow_mut();
            match self.spans_in_arena(&mut walk, lists)? {
                true => Ok(()),
                false => walk.begin(self.driver(), lists, self.page_size_tokens.get()),
            }
        })
    }

    fn pass_end(&self) {
        self.lists.borrow_mut().end();
    }

    fn kv_write(&self, pages: &mut Pages, layer: usize, keys: &Buffer, values: &Buffer, spans: &[Span<'_>]) {
        if spans.iter().all(|span| span.rows == 0) {
            return;
        }
        let pool = pages.layers_from(layer);
        self.errors.run(|| self.launcher().kv_write(pool, keys.values(), values.values(), self.spans(spans)?));
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
        if spans.iter().all(|span| span.rows == 0) {
            return;
        }
        let (out, queries, pool) = (out.values(), queries.values(), pages.layers_from(layer));
        self.errors.run(|| {
            let arithmetic = self.arithmetic();
            let attend = Attend { arithmetic, out, queries, pool, shape, list: self.spans(spans)? };
            self.launcher().attention(attend, self.scratch.borrow().at())
        });
    }

    fn gate(&self, gate: &mut Buffer, up: &Buffer, act: Gate) {
        if gate.rows > 0 {
            self.errors.run(|| self.launcher().gate(gate.values(), up.values(), act));
        }
    }

    fn add(&self, x: &mut Buffer, y: &Buffer) {
        if x.rows > 0 {
            self.errors.run(|| self.launcher().add(x.values(), y.values()));
        }
    }

    fn gather_rows(&self, x: &Buffer, rows: &[usize], out: &mut Buffer) {
        if !rows.is_empty() {
            self.errors.run(|| {
                let list = self.row_list(rows, x.rows)?;
                self.launcher().gather_rows(out.values(), x.values(), list, x.width)
            });
        }
    }

    /// Rows go through the scratch, as many at a time as it holds: what is written lies before all that is still to be read, as rows ascend.
    fn keep_rows(&self, x: &mut Buffer, rows: &[usize]) {
        let (values, width, bound) = (x.values(), x.width, x.rows);
        x.rows = rows.len();
        if rows.is_empty() || width == 0 {
            return;
        }
        self.errors.run(|| {
            inside(rows.is_sorted_by(|a, b| a < b), "rows to keep ascend")?;
            let scratch: At<f32> = self.scratch.borrow().at();
            let at_once = scratch.len() / width;
            inside(at_once > 0, "a row is larger than the scratch")?;
            for (piece, rows) in rows.chunks(at_once).enumerate() {
                let list = self.row_list(rows, bound)?;
                self.launcher().gather_rows(scratch, values, list, width)?;
                let to = values.from(piece * at_once * width).cast();
                self.launcher().copy(to, scratch.cast(), rows.len() * width * size_of::<f32>())?;
            }
            Ok(())
        });
    }

    fn add_rows(&self, x: &mut Buffer, rows: &[usize], y: &Buffer) {
        if !rows.is_empty() {
            self.errors.run(|| {
                let list = self.row_list(rows, x.rows)?;
                self.launcher().add_rows(x.values(), y.values(), list, x.width)
            });
        }
    }

    fn pick_rows(
        &self,
        logits: &mut Buffer,
        requests: &[Option<&SampleRequest<'_>>],
        out: &mut [Picked],
    ) -> Result<(), BackendError> {
        self.pick(logits, requests, out)
    }

    fn picks_ahead(&self) -> bool {
        true
    }

    fn can_begin_picks(&self, vocab: usize, requests: &[&SampleRequest<'_>]) -> bool {
        self.begins_picks(vocab, requests)
    }

    fn begin_picks(&self, logits: &mut Buffer, requests: &[&SampleRequest<'_>]) -> Result<(), BackendError> {
        self.errors.attempt(|| self.launch_picks(logits, requests))
    }

    fn send_picks(&self) -> Result<(), BackendError> {
        self.errors.attempt(|| self.send_begun())
    }

    fn take_picks(&self, requests: &[Option<&SampleRequest<'_>>], out: &mut [Picked]) -> Result<(), BackendError> {
        self.errors.attempt(|| self.end_begun(requests, out))
    }

    /// Rows are read and changed one after another; the changes stay on the host.
    fn each_row(&self, x: &mut Buffer, rows: &[usize], f: EachRow<'_>) -> Result<(), BackendError> {
        self.errors.attempt(|| {
            let mut host = self.host.borrow_mut();
            host.resize(x.width, 0.0);
            for &row in rows {
                self.read_back(x.values().from(row * x.width).cast(), bytemuck::cast_slice_mut(&mut host))?;
                f(0, row, &mut host);
            }
            Ok(())
        })
    }

    fn read(&self, x: &Buffer, first_row: usize, out: &mut [f32]) -> Result<(), BackendError> {
        let from = x.values().from(first_row.saturating_mul(x.width)).cast();
        self.errors.attempt(|| self.read_back(from, bytemuck::cast_slice_mut(out)))
    }

    fn write(&self, x: &mut Buffer, first_row: usize, values: &[f32]) -> Result<(), BackendError> {
        let to = x.values().from(first_row.saturating_mul(x.width)).cast();
        self.errors.attempt(|| self.fill(to, bytemuck::cast_slice(values)))
    }

    /// Waits for all that was launched: a device says only then what went wrong.
    fn health(&self) -> Result<(), BackendError> {
        self.errors.attempt(|| {
            self.settle()?;
            self.driver().finish()
        })
    }

    fn copy_pages(&self, pages: &mut Pages, copies: &[(u32, u32)]) {
        if copies.is_empty() {
            return;
        }
        self.errors.run(|| {
            let last = pages.shape.pages;
            let exist = |&(from, to): &(u32, u32)| (from as usize) < last && (to as usize) < last;
            inside(copies.iter().all(exist), "a page past the pool")?;
            let pairs: Vec<u32> = copies.iter().flat_map(|&(from, to)| [from, to]).collect();
            self.with_list_in_front(&pairs, |list| self.launcher().copy_pages(pages.layers_from(0), list))
        });
    }

    fn read_tokens(
        &self,
        pages: &Pages,
        block_table: &[u32],
        positions: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), BackendError> {
        self.export_tokens(pages, block_table, positions, Encoding::Lossless, out)
    }

    fn write_tokens(
        &self,
        pages: &mut Pages,
        block_table: &[u32],
        positions: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        self.import_tokens(pages, block_table, positions, Encoding::Lossless, bytes)
    }

    fn read_tokens_as(
        &self,
        pages: &Pages,
        block_table: &[u32],
        positions: Range<usize>,
        encoding: Encoding,
        out: &mut [u8],
    ) -> Result<bool, BackendError> {
        self.export_tokens(pages, block_table, positions, encoding, out).map(|()| true)
    }

    fn write_tokens_as(
        &self,
        pages: &mut Pages,
        block_table: &[u32],
        positions: Range<usize>,
        encoding: Encoding,
        bytes: &[u8],
    ) -> Result<bool, BackendError> {
        self.import_tokens(pages, block_table, positions, encoding, bytes).map(|()| true)
    }
}
