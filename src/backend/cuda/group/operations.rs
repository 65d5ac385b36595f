#![forbid(unsafe_code)]
//! The operations of several devices: each device's part of the work, and which form of its rows each operation takes and leaves.

use core::ops::Range;

use smallvec::SmallVec;

use super::parts::{places, shape_of, spread_out, whether};
use super::{CudaGroup, SpreadBuffer, SpreadMatrix, SpreadPages, SpreadVector};
use crate::backend::cuda::peers::{Cut, Tokens};
use crate::backend::cuda::{CudaBackend, Vector, angles_of};
use crate::backend::{
    Again, Arithmetic, AttentionShape, Backend, BackendError, EachRow, Gate, GraphCounts, KvShape, Picked, Product,
    RopeTable, Span, Spread,
};
use crate::checkpoint::RopePairing;
use crate::sample::SampleRequest;
use crate::tensor::Tensor;
use crate::transfer::Encoding;

impl Backend for CudaGroup {
    type Matrix = SpreadMatrix;
    type Vector = SpreadVector;
    type Buffer = SpreadBuffer;
    type Pages = SpreadPages;

    fn arithmetic(&self) -> Arithmetic {
        self.lead().arithmetic()
    }

    fn remark(&self) -> Option<String> {
        Some(self.kernels().to_string())
    }

    fn make_ready(&self, inputs: usize) -> Result<(), BackendError> {
        self.members.iter().try_for_each(|member| member.make_ready(inputs))
    }

    fn weights_begin(&self, tensors: &[&Tensor]) {
        self.members.iter().for_each(|member| member.weights_begin(tensors));
    }

    fn weights_end(&self) {
        self.members.iter().for_each(CudaBackend::weights_end);
    }

    fn weights_shared(&self, tensors: &[&Tensor]) -> Result<(), BackendError> {
        self.members.iter().try_for_each(|member| member.weights_shared(tensors))
    }

    fn matrix(&self, tensor: &Tensor) -> Result<SpreadMatrix, BackendError> {
        self.matrix_in(tensor, Spread::Whole)
    }

    fn vector(&self, tensor: &Tensor) -> Result<SpreadVector, BackendError> {
        self.vector_in(tensor, Spread::Whole)
    }

    fn matrix_in(&self, tensor: &Tensor, spread: Spread) -> Result<SpreadMatrix, BackendError> {
        self.errors.sound()?;
        let load = |member: &CudaBackend, part: &Tensor| member.matrix(part);
        let (cut, parts) = spread_out(&self.members, "outputs of a matrix", (tensor, tensor.rows), spread, load)?;
        Ok(SpreadMatrix { cut, parts })
    }

    fn vector_in(&self, tensor: &Tensor, spread: Spread) -> Result<SpreadVector, BackendError> {
        self.errors.sound()?;
        let load = |member: &CudaBackend, part: &Tensor| member.vector(part);
        let (_, parts) = spread_out(&self.members, "elements of a vector", (tensor, tensor.cols), spread, load)?;
        Ok(SpreadVector { parts })
    }

    fn pages(&self, shape: &KvShape) -> Result<SpreadPages, BackendError> {
        self.errors.sound()?;
        let heads = Cut::new("key and value heads", shape.n_kv_heads, 1, self.count())?;
        let part = |(at, member): (usize, &CudaBackend)| member.pages(&shape_of(shape, at, self.count()));
        let parts = self.members.iter().enumerate().map(part).collect::<Result<_, _>>()?;
        Ok(SpreadPages { shape: *shape, heads, parts })
    }

    fn buffer(&self, width: usize) -> SpreadBuffer {
        self.buffer_in(width, Spread::Whole)
    }

    fn buffer_in(&self, width: usize, spread: Spread) -> SpreadBuffer {
        let parts = |unit: usize| {
            let columns =
                |(at, member): (usize, &CudaBackend)| member.buffer(Spread::share(width, unit, at, self.count()).len());
            self.members.iter().enumerate().map(columns).collect()
        };
        let wholes = || self.members.iter().map(|member| member.buffer(width)).collect();
        let (parts, wholes) = match spread {
            Spread::Whole => (Vec::new(), wholes()),
            Spread::Parts { unit } => (parts(unit), Vec::new()),
            Spread::Collected { unit } => (parts(unit), wholes()),
        };
        let (has_parts, has_wholes) = Default::default();
        SpreadBuffer { width, rows: 0, spread, parts, wholes, has_parts, has_wholes }
    }

    fn resize(&self, buffer: &mut SpreadBuffer, rows: usize) -> Result<(), BackendError> {
        if buffer.unit().is_some() {
            // Whole rows are on every device, however narrow.
            buffer.cut(self.count())?;
        }
        if !buffer.wholes.is_empty() {
            let row_bytes = buffer.width.saturating_mul(size_of::<f32>());
            // As many rows of an embedding as there are devices go in one round.
            let together = if buffer.unit().is_none() { self.count() } else { 1 };
            self.exchange.borrow_mut().reserve(row_bytes.saturating_mul(together))?;
        }
        // Before anything moves: a device may have no memory when others have got theirs.
        buffer.has_parts.set(false);
        buffer.has_wholes.set(0);
        for forms in [&mut buffer.parts, &mut buffer.wholes] {
            forms.iter_mut().zip(&self.members).try_for_each(|(form, member)| member.resize(form, rows))?;
        }
        buffer.rows = rows;
        Ok(())
    }

    fn embed(&self, table: &SpreadMatrix, tokens: &[u32], scale: f32, out: &mut SpreadBuffer) {
        if tokens.is_empty() {
            return;
        }
        self.errors.run(|| {
            whether(!out.wholes.is_empty(), "embedded rows that have no place")?;
            let Some(cut) = table.cut else {
                let each = self.members.iter().zip(&table.parts).zip(&mut out.wholes);
                each.for_each(|((member, table), out)| member.embed(table, tokens, scale, out));
                out.wrote_wholes();
                return Ok(());
            };
            whether(tokens.iter().all(|&token| (token as usize) < cut.width), "a token past the vocabulary")?;
            self.embed_parts(table, cut, Tokens::Known(tokens), scale, out)
        });
    }

    fn embed_picked(&self, table: &SpreadMatrix, rows: &[usize], scale: f32, out: &mut SpreadBuffer) {
        if !rows.is_empty() {
            self.errors.run(|| self.embed_begun(table, rows, scale, out));
        }
    }

    fn rms_norm(&self, x: &SpreadBuffer, weight: &SpreadVector, epsilon: f32, out: &mut SpreadBuffer) {
        if x.rows == 0 {
            return;
        }
        self.errors.run(|| {
            whether(!out.wholes.is_empty(), "normed rows that have no place")?;
            let each = self.members.iter().zip(self.wholes(x)?).zip(&weight.parts).zip(&mut out.wholes);
            each.for_each(|(((member, x), weight), out)| member.rms_norm(x, weight, epsilon, out));
            out.wrote_wholes();
            Ok(())
        });
    }

    fn add_rms_norm(
        &self,
        x: &mut SpreadBuffer,
        delta: &SpreadBuffer,
        weight: &SpreadVector,
        epsilon: f32,
        out: &mut SpreadBuffer,
    ) {
        if x.rows == 0 {
            return;
        }
        self.errors.run(|| {
            whether(!out.wholes.is_empty(), "normed rows that have no place")?;
            self.wholes(x)?;
            let each = self.members.iter().zip(&mut x.wholes).zip(self.wholes(delta)?).zip(&weight.parts);
            for ((((member, x), delta), weight), out) in each.zip(&mut out.wholes) {
                member.add_rms_norm(x, delta, weight, epsilon, out);
            }
            x.wrote_wholes();
            out.wrote_wholes();
            Ok(())
        });
    }

    /// Over heads that a device has, column by column; else over whole rows, on every device.
    fn rms_norm_in_place(&self, x: &mut SpreadBuffer, weight: &SpreadVector, epsilon: f32) {
        if x.rows == 0 {
            return;
        }
        self.errors.run(|| {
            let group = weight.parts.first().map_or(0, Vector::len);
            let by_heads = x.has_parts.get() && x.unit().is_some_and(|unit| group > 0 && unit.is_multiple_of(group));
            if !by_heads {
                self.wholes(x)?;
            }
            let rows = if by_heads { &mut x.parts } else { &mut x.wholes };
            let each = self.members.iter().zip(rows).zip(&weight.parts);
            each.for_each(|((member, x), weight)| member.rms_norm_in_place(x, weight, epsilon));
            if by_heads {
                x.wrote_parts()
            } else {
                x.wrote_wholes()
            }
            Ok(())
        });
    }

    fn linear(&self, x: &SpreadBuffer, weight: &SpreadMatrix, bias: Option<&SpreadVector>, out: &mut SpreadBuffer) {
        self.linear_many(x, &mut [Product { weight, bias, out }]);
    }

    fn linear_many(&self, x: &SpreadBuffer, products: &mut [Product<'_, Self>]) {
        if x.rows == 0 {
            return;
        }
        self.errors.run(|| {
            let inputs = self.wholes(x)?;
            products.iter().try_for_each(|product| self.writes(product.weight, product.out))?;
            for (at, (member, x)) in self.members.iter().zip(inputs).enumerate() {
                let mut own: SmallVec<[Product<'_, CudaBackend>; 4]> = SmallVec::new();
                for Product { weight, bias, out } in products.iter_mut() {
                    let (bias, cut) = (bias.map(|bias| &bias.parts[at]), weight.cut);
                    own.push(Product { weight: &weight.parts[at], bias, out: &mut places(out, cut)[at] });
                }
                member.linear_many(x, &mut own);
            }
            Ok(())
        });
    }

    /// Computed once, as it is the host that does it.
    fn angles(&self, table: &RopeTable, spans: &[Span<'_>], out: &mut SpreadBuffer) {
        if out.rows == 0 || out.width == 0 {
            return;
        }
        self.errors.run(|| {
            let mut host = self.host.borrow_mut();
            angles_of(table, spans, [out.rows, out.width], &mut host);
            let mut each = self.members.iter().zip(&mut out.wholes);
            each.try_for_each(|(member, out)| member.write(out, 0, &host))?;
            out.wrote_wholes();
            Ok(())
        });
    }

    fn rope(&self, x: &mut SpreadBuffer, head_dim: usize, pairing: RopePairing, angles: &SpreadBuffer) {
        if x.rows == 0 {
            return;
        }
        self.errors.run(|| {
            whether(x.has_parts.get(), "heads that nobody has written")?;
            let each = self.members.iter().zip(&mut x.parts).zip(self.wholes(angles)?);
            each.for_each(|((member, x), angles)| member.rope(x, head_dim, pairing, angles));
            x.wrote_parts();
            Ok(())
        });
    }

    fn make_room_for_tables(&self, spans: usize, longest: usize) -> Result<usize, BackendError> {
        let mut rooms = self.members.iter().map(|member| member.make_room_for_tables(spans, longest));
        rooms.try_fold(usize::MAX, |least, room| Ok(least.min(room?)))
    }

    fn part_begin(&self, again: Again) {
        self.even_out();
        self.lead().begin_section(again);
    }

    fn part_end(&self) {
        self.even_out();
        self.lead().end_section();
    }

    fn take_graph_counts(&self) -> GraphCounts {
        self.lead().take_graph_counts()
    }

    fn pass_begin(&self, lists: &[&[Span<'_>]]) -> Result<(), BackendError> {
        self.errors.attempt(|| self.members.iter().try_for_each(|member| member.pass_begin(lists)))
    }

    fn pass_end(&self) {
        self.members.iter().for_each(CudaBackend::pass_end);
    }

    fn kv_write(
        &self,
        pages: &mut SpreadPages,
        layer: usize,
        keys: &SpreadBuffer,
        values: &SpreadBuffer,
        spans: &[Span<'_>],
    ) {
        if spans.iter().all(|span| span.rows == 0) {
            return;
        }
        self.errors.run(|| {
            whether(keys.has_parts.get() && values.has_parts.get(), "keys that nobody has written")?;
            let each = self.members.iter().zip(&mut pages.parts).zip(&keys.parts).zip(&values.parts);
            each.for_each(|(((member, pages), keys), values)| member.kv_write(pages, layer, keys, values, spans));
            Ok(())
        });
    }

    fn attention(
        &self,
        queries: &SpreadBuffer,
        pages: &SpreadPages,
        layer: usize,
        shape: &AttentionShape,
        spans: &[Span<'_>],
        out: &mut SpreadBuffer,
    ) {
        if spans.iter().all(|span| span.rows == 0) {
            return;
        }
        self.errors.run(|| {
            whether(queries.has_parts.get(), "queries that nobody has written")?;
            whether(shape.n_kv_heads == pages.shape.n_kv_heads, "attention over other heads than the pool's")?;
            let each = self.members.iter().zip(&pages.parts).zip(&queries.parts).zip(&mut out.parts);
            for (at, (((member, pages), queries), out)) in each.enumerate() {
                let n_kv_heads = pages.shape.n_kv_heads;
                let n_heads = shape.n_heads / shape.n_kv_heads.max(1) * n_kv_heads;
                whether(n_kv_heads == Spread::share(shape.n_kv_heads, 1, at, self.count()).len(), "heads elsewhere")?;
                let own = AttentionShape { n_heads, n_kv_heads, ..*shape };
                member.attention(queries, pages, layer, &own, spans, out);
            }
            out.wrote_parts();
            Ok(())
        });
    }

    fn gate(&self, gate: &mut SpreadBuffer, up: &SpreadBuffer, act: Gate) {
        if gate.rows == 0 {
            return;
        }
        self.errors.run(|| {
            whether(gate.is_like(up), "two factors that are cut otherwise")?;
            let each = self.members.iter().zip(&mut gate.parts).zip(&up.parts);
            each.for_each(|((member, gate), up)| member.gate(gate, up, act));
            gate.wrote_parts();
            Ok(())
        });
    }

    fn add(&self, x: &mut SpreadBuffer, y: &SpreadBuffer) {
        if x.rows == 0 {
            return;
        }
        self.errors.run(|| {
            self.wholes(x)?;
            let each = self.members.iter().zip(&mut x.wholes).zip(self.wholes(y)?);
            each.for_each(|((member, x), y)| member.add(x, y));
            x.wrote_wholes();
            Ok(())
        });
    }

    fn gather_rows(&self, x: &SpreadBuffer, rows: &[usize], out: &mut SpreadBuffer) {
        if rows.is_empty() {
            return;
        }
        self.errors.run(|| {
            whether(!out.wholes.is_empty(), "gathered rows that have no place")?;
            let each = self.members.iter().zip(self.wholes(x)?).zip(&mut out.wholes);
            each.for_each(|((member, x), out)| member.gather_rows(x, rows, out));
            out.wrote_wholes();
            Ok(())
        });
    }

    fn keep_rows(&self, x: &mut SpreadBuffer, rows: &[usize]) {
        let (has_parts, has_wholes) = (x.has_parts.get(), x.has_wholes.get());
        x.rows = rows.len();
        let is_empty = rows.is_empty();
        for (forms, held) in [(&mut x.parts, usize::MAX * usize::from(has_parts)), (&mut x.wholes, has_wholes)] {
            for (at, (form, member)) in forms.iter_mut().zip(&self.members).enumerate() {
                if at < held && !is_empty {
                    self.errors.run(|| {
                        member.keep_rows(form, rows);
                        Ok(())
                    });
                }
                // Fewer rows than before: no memory is got.
                form.rows = rows.len();
            }
        }
    }

    fn add_rows(&self, x: &mut SpreadBuffer, rows: &[usize], y: &SpreadBuffer) {
        if rows.is_empty() {
            return;
        }
        self.errors.run(|| {
            whether(x.is_like(y), "two sums that are cut otherwise")?;
            let each = self.members.iter().zip(&mut x.parts).zip(&y.parts);
            each.for_each(|((member, x), y)| member.add_rows(x, rows, y));
            x.wrote_parts();
            Ok(())
        });
    }

    /// The first device picks, from whole rows of its own, which stay as it leaves them.
    fn pick_rows(
        &self,
        logits: &mut SpreadBuffer,
        requests: &[Option<&SampleRequest<'_>>],
        out: &mut [Picked],
    ) -> Result<(), BackendError> {
        self.errors.attempt(|| {
            let whole = self.collected(logits, 1)?;
            self.lead().pick(&whole[0], requests, out)
        })
    }

    fn picks_ahead(&self) -> bool {
        true
    }

    fn can_begin_picks(&self, vocab: usize, requests: &[&SampleRequest<'_>]) -> bool {
        self.lead().begins_picks(vocab, requests)
    }

    fn begin_picks(&self, logits: &mut SpreadBuffer, requests: &[&SampleRequest<'_>]) -> Result<(), BackendError> {
        self.errors.attempt(|| self.lead().launch_picks(&self.collected(logits, 1)?[0], requests))
    }

    fn send_picks(&self) -> Result<(), BackendError> {
        self.errors.attempt(|| self.send_begun())
    }

    fn take_picks(&self, requests: &[Option<&SampleRequest<'_>>], out: &mut [Picked]) -> Result<(), BackendError> {
        self.errors.attempt(|| self.end_begun(requests, out))
    }

    /// Rows are read and changed one after another; the changes stay on the host.
    fn each_row(&self, x: &mut SpreadBuffer, rows: &[usize], f: EachRow<'_>) -> Result<(), BackendError> {
        self.errors.attempt(|| {
            let mut host = core::mem::take(&mut *self.host.borrow_mut());
            host.resize(x.width, 0.0);
            let outcome = rows.iter().try_for_each(|&row| {
                self.read(x, row, &mut host)?;
                f(0, row, &mut host);
                Ok(())
            });
            *self.host.borrow_mut() = host;
            outcome
        })
    }

    fn read(&self, x: &SpreadBuffer, first_row: usize, out: &mut [f32]) -> Result<(), BackendError> {
        if out.is_empty() {
            return Ok(());
        }
        self.errors.attempt(|| self.lead().read(&self.collected(x, 1)?[0], first_row, out))
    }

    fn write(&self, x: &mut SpreadBuffer, first_row: usize, values: &[f32]) -> Result<(), BackendError> {
        self.errors.attempt(|| {
            // Some rows are written, others may be there.
            if x.has_parts.get() {
                self.wholes(x)?;
            }
            let mut each = self.members.iter().zip(&mut x.wholes);
            each.try_for_each(|(member, x)| member.write(x, first_row, values))?;
            x.wrote_wholes();
            Ok(())
        })
    }

    /// Waits for all devices, also for those behind one that failed.
    fn health(&self) -> Result<(), BackendError> {
        self.errors.attempt(|| {
            self.players.settle()?;
            self.players.finish()
        })
    }

    fn copy_pages(&self, pages: &mut SpreadPages, copies: &[(u32, u32)]) {
        self.errors.run(|| {
            let each = self.members.iter().zip(&mut pages.parts);
            each.for_each(|(member, pages)| member.copy_pages(pages, copies));
            Ok(())
        });
    }

    fn read_tokens(
        &self,
        pages: &SpreadPages,
        block_table: &[u32],
        positions: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), BackendError> {
        self.read_tokens_as(pages, block_table, positions, Encoding::Lossless, out).map(|_| ())
    }

    fn write_tokens(
        &self,
        pages: &mut SpreadPages,
        block_table: &[u32],
        positions: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        self.write_tokens_as(pages, block_table, positions, Encoding::Lossless, bytes).map(|_| ())
    }

    fn read_tokens_as(
        &self,
        pages: &SpreadPages,
        block_table: &[u32],
        positions: Range<usize>,
        encoding: Encoding,
        out: &mut [u8],
    ) -> Result<bool, BackendError> {
        self.errors.attempt(|| self.export_heads(pages, block_table, positions, encoding, out)).map(|()| true)
    }

    fn write_tokens_as(
        &self,
        pages: &mut SpreadPages,
        block_table: &[u32],
        positions: Range<usize>,
        encoding: Encoding,
        bytes: &[u8],
    ) -> Result<bool, BackendError> {
        self.errors.attempt(|| self.import_heads(pages, block_table, positions, encoding, bytes)).map(|()| true)
    }
}
