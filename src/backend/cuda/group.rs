#![forbid(unsafe_code)]
//! Several devices of this process as one backend.
//!
//! ```text
//!            device 0                device 1
//! matrix     rows 0 .. n/2           rows n/2 .. n          every matrix is cut by its outputs; norms are on both
//! pages      heads 0 .. h/2          heads h/2 .. h         block tables are the same on both
//! buffer     whole | own columns     whole | own columns    `model::spread` says which; parts become whole rows where an operation takes them
//! ```
//! A device computes its outputs from whole rows, as one device alone computes them, and what the others computed is copied over ([`peers`](super::peers)).
//! No sum is cut, so the bits are those of one device, whatever the number of devices; state moves between engines of any number.
//!
//! In a section ([`section`](super::section)) all of it is noted first, what is copied between devices too, and then launched, or is one graph of all devices'
//! streams ([`players`](super::players)).
//!
//! # Invariants
//! - A buffer knows which of its forms hold its rows; an operation leaves the one it wrote.
//! - The first error of any device is the group's: nothing is launched after it, on no device.
//! - Memory that one device does not have is refused with what the others gave returned.
//!
//! # Limits
//! At most as many devices as the model has key and value heads, else `CannotSpread`. One thread of the host launches on all devices in turn.

mod ahead;
mod operations;
mod parts;
mod tokens;

use core::cell::RefCell;
use std::sync::Arc;

use smallvec::SmallVec;

pub use self::parts::{SpreadBuffer, SpreadMatrix, SpreadPages, SpreadVector};
use self::parts::{part_of, shape_of, whether, wrong};
use super::driver::At;
use super::errors::FirstError;
use super::peers::{Exchange, HALF_BYTES};
use super::players::Players;
use super::{Buffer, CudaBackend, DeviceInfo, KernelForms, probe};
use crate::backend::{Arithmetic, BackendError, KvShape, Spread};
use crate::tensor::Tensor;

/// Runs operations on several CUDA devices.
pub struct CudaGroup {
    members: Vec<CudaBackend>,
    players: Arc<Players>,
    exchange: RefCell<Exchange>,
    /// Rows of the host.
    host: RefCell<Vec<f32>>,
    /// Tokens of a device.
    tokens: RefCell<Vec<u8>>,
    /// Of any device, or between them.
    errors: Arc<FirstError>,
}

impl CudaGroup {
    /// A backend on these devices, whose order decides who has which part.
    ///
    /// # Errors
    /// `NoDevice` with the reason (also for a device that is named twice, for none, and for devices of different generations), `OutOfMemory`, `Device`. Nothing is kept.
    pub fn new(indices: &[u32]) -> Result<Self, BackendError> {
        if let Some(twice) = indices.iter().enumerate().find(|(at, index)| indices[..*at].contains(index)) {
            return Err(BackendError::NoDevice { reason: format!("device {} is named twice", twice.1) });
        }
        if indices.is_empty() {
            return Err(BackendError::NoDevice { reason: "no device is named".to_owned() });
        }
        probe::devices(indices)?;
        let members = CudaBackend::together(indices)?;
        for (at, member) in members.iter().enumerate() {
            let others = members.iter().enumerate().filter(|(other, _)| *other != at);
            others.into_iter().try_for_each(|(_, other)| member.driver().reach(other.driver()))?;
        }
        let exchange = RefCell::new(Exchange::new(&members[0].players, HALF_BYTES)?);
        let (players, errors) = (members[0].players.clone(), members[0].errors.clone());
        let (host, tokens) = Default::default();
        Ok(Self { members, players, exchange, host, tokens, errors })
    }

    /// The same backend with this arithmetic on all devices; a new one is exact.
    pub fn with_arithmetic(mut self, arithmetic: Arithmetic) -> Self {
        self.members.iter_mut().for_each(|member| member.arithmetic = arithmetic);
        self
    }

    /// The devices.
    pub fn infos(&self) -> impl Iterator<Item = &DeviceInfo> {
        self.members.iter().map(CudaBackend::info)
    }

    /// In which form the drivers have taken the kernels so far, on all devices together.
    pub fn kernels(&self) -> KernelForms {
        self.members.iter().map(CudaBackend::kernels).fold(KernelForms::default(), KernelForms::and)
    }

    /// Bytes that device `member` out of `members` takes for these tensors.
    pub fn weights_bytes<'a>(
        tensors: impl Iterator<Item = (&'a Tensor, Spread)>,
        member: usize,
        members: usize,
    ) -> u64 {
        let share = tensors.map(|(tensor, spread)| part_of(tensor, spread, member, members).unwrap_or(tensor.clone()));
        share.map(|part| CudaBackend::weights_bytes(core::iter::once(&part))).fold(0, u64::saturating_add)
    }

    /// Bytes that device `member` out of `members` takes beside weights, pool and activations, for walks as [`CudaBackend::working_bytes`] has
    /// them; the widest row has `widest` elements.
    pub fn working_bytes(shape: &KvShape, walk: [usize; 2], widest: usize, member: usize, members: usize) -> u64 {
        let half = HALF_BYTES.max(widest.saturating_mul(size_of::<f32>())) as u64;
        CudaBackend::working_bytes(&shape_of(shape, member, members), walk).saturating_add(2 * half)
    }

    fn count(&self) -> usize {
        self.members.len()
    }

    /// Sections begin and end with the same half of the staging.
    fn even_out(&self) {
        self.errors.run(|| self.exchange.borrow_mut().even_out());
    }

    fn lead(&self) -> &CudaBackend {
        &self.members[0]
    }

    /// Whole rows on the first `count` devices.
    fn collected<'x>(&self, x: &'x SpreadBuffer, count: usize) -> Result<&'x [Buffer], BackendError> {
        let wholes = x.wholes.get(..count).ok_or_else(|| wrong("rows that nobody collects"))?;
        if x.has_wholes.get() < count {
            whether(x.has_parts.get(), "rows that nobody has written")?;
            let at = |buffers: &[Buffer]| buffers.iter().map(Buffer::values).collect::<SmallVec<[At<f32>; 8]>>();
            let cut = x.cut(self.count())?;
            self.exchange.borrow_mut().collect(cut, x.rows, &at(&x.parts), &at(wholes))?;
            x.has_wholes.set(count);
        }
        Ok(wholes)
    }

    /// Whole rows on every device.
    fn wholes<'x>(&self, x: &'x SpreadBuffer) -> Result<&'x [Buffer], BackendError> {
        self.collected(x, self.count())
    }

    /// Checks that a product with this matrix can be written into `out`, and says that it was.
    fn writes(&self, weight: &SpreadMatrix, out: &SpreadBuffer) -> Result<(), BackendError> {
        match weight.cut {
            None => {
                whether(!out.wholes.is_empty(), "a product that has no place")?;
                out.wrote_wholes();
            }
            Some(cut) => {
                whether(!out.parts.is_empty() && out.cut(self.count())? == cut, "a product that is cut otherwise")?;
                out.wrote_parts();
            }
        }
        Ok(())
    }
}

impl Drop for CudaGroup {
    /// What devices push into others' memory is done before that is freed.
    fn drop(&mut self) {
        // One that has failed pushes nothing any more.
        let _ = self.players.finish();
    }
}
