#![forbid(unsafe_code)]
//! Embeddings of a group, and steps that are begun ahead: what the first device picks feeds all of them.
//!
//! ```text
//! device 0   ... pick k | gather the tokens of k, push them | find who has which, embed k+1 ... pick k+1
//! device 1   ...                              join          | find who has which, embed k+1 ...
//! host                    a copy of the picks from device 0, an event on every device behind step k
//! ```
//! # Invariants
//! - A step has ended when every device's work of it is done: each has a half without picks and an event for it, as the first one has one with.
//! - No device is told tokens before it has read those of the step before: the embedding's round lies between.

use smallvec::SmallVec;

use super::parts::whether;
use super::{CudaGroup, SpreadBuffer, SpreadMatrix};
use crate::backend::cuda::peers::{Cut, Tokens};
use crate::backend::cuda::{Buffer, CudaBackend, Matrix};
use crate::backend::{BackendError, Picked};
use crate::sample::SampleRequest;

impl CudaGroup {
    /// Rows of a table that is cut.
    pub(super) fn embed_parts(
        &self,
        table: &SpreadMatrix,
        cut: Cut,
        tokens: Tokens<'_>,
        scale: f32,
        out: &SpreadBuffer,
    ) -> Result<(), BackendError> {
        let parts: SmallVec<[_; 8]> = table.parts.iter().map(Matrix::weights).collect();
        let outs: SmallVec<[_; 8]> = out.wholes.iter().map(Buffer::values).collect();
        self.exchange.borrow_mut().embed(&self.members, (&parts, cut), tokens, scale, &outs)?;
        out.wrote_wholes();
        Ok(())
    }

    /// Rows of the tokens that the first device picks in the step that was begun last.
    pub(super) fn embed_begun(
        &self,
        table: &SpreadMatrix,
        rows: &[usize],
        scale: f32,
        out: &SpreadBuffer,
    ) -> Result<(), BackendError> {
        whether(!out.wholes.is_empty(), "embedded rows that have no place")?;
        let vocab = table.cut.map_or_else(|| self.lead_rows(table), |cut| cut.width);
        let count = self.lead().begun_tokens(rows, vocab)?.len();
        let fed = |member: &CudaBackend| member.begun.borrow().fed()[0].first(count);
        let places: SmallVec<[_; 8]> = self.members.iter().map(fed).collect();
        self.exchange.borrow().tell(&places)?;
        if let Some(cut) = table.cut {
            return self.embed_parts(table, cut, Tokens::Fed { first: 0, count }, scale, out);
        }
        let each = self.members.iter().zip(&table.parts).zip(&out.wholes).zip(&places);
        for (((member, table), out), &tokens) in each {
            member.launcher().embed(out.values(), table.weights(), tokens, scale)?;
        }
        // Told tokens are read before the next ones are: a table that is not cut has no round for that.
        self.exchange.borrow_mut().meet()?;
        out.wrote_wholes();
        Ok(())
    }

    fn lead_rows(&self, table: &SpreadMatrix) -> usize {
        table.parts.first().map_or(0, |part| part.weights().rows)
    }

    /// The first device sends what it picked; the others note how far they are.
    pub(super) fn send_begun(&self) -> Result<(), BackendError> {
        self.members.iter().try_for_each(CudaBackend::send_begun)
    }

    /// Waits for the step that was begun first, on every device: an error of any of them is the step's.
    pub(super) fn end_begun(
        &self,
        requests: &[Option<&SampleRequest<'_>>],
        out: &mut [Picked],
    ) -> Result<(), BackendError> {
        self.lead().end_begun(requests, out)?;
        self.members.iter().skip(1).try_for_each(|member| member.end_begun(&[], &mut []))
    }
}
