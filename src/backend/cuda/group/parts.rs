#![forbid(unsafe_code)]
//! What lies on the devices of a group, and how tensors are cut for them.

use core::cell::Cell;

use super::super::peers::Cut;
use super::super::{Buffer, CudaBackend, Matrix, Pages, Vector};
use crate::backend::{BackendError, KvShape, Spread};
use crate::tensor::Tensor;

/// A matrix on all devices: all of it on each, or the outputs of each.
pub struct SpreadMatrix {
    pub(super) cut: Option<Cut>,
    pub(super) parts: Vec<Matrix>,
}

/// A vector on all devices: all of it on each, or the elements of each.
pub struct SpreadVector {
    pub(super) parts: Vec<Vector>,
}

/// Activation rows on all devices.
pub struct SpreadBuffer {
    pub(super) width: usize,
    pub(super) rows: usize,
    pub(super) spread: Spread,
    /// Own columns of each device; none where `spread` has none.
    pub(super) parts: Vec<Buffer>,
    /// All columns, on each device; none where `spread` has none.
    pub(super) wholes: Vec<Buffer>,
    /// Whether `parts` hold the rows.
    pub(super) has_parts: Cell<bool>,
    /// How many of `wholes` hold the rows, from the first on.
    pub(super) has_wholes: Cell<usize>,
}

impl SpreadBuffer {
    pub(super) fn wrote_parts(&self) {
        self.has_parts.set(true);
        self.has_wholes.set(0);
    }

    pub(super) fn wrote_wholes(&self) {
        self.has_parts.set(false);
        self.has_wholes.set(self.wholes.len());
    }

    pub(super) fn unit(&self) -> Option<usize> {
        match self.spread {
            Spread::Whole => None,
            Spread::Parts { unit } | Spread::Collected { unit } => Some(unit),
        }
    }

    pub(super) fn cut(&self, parts: usize) -> Result<Cut, BackendError> {
        Cut::new("columns", self.width, self.unit().unwrap_or(1), parts)
    }

    /// Whether it can be worked on column by column with another one.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        (self.width, self.unit()) == (other.width, other.unit()) && self.has_parts.get() && other.has_parts.get()
    }
}

/// The pool: each device has its heads of every page.
pub struct SpreadPages {
    pub(super) shape: KvShape,
    pub(super) heads: Cut,
    pub(super) parts: Vec<Pages>,
}

pub(super) fn wrong(what: &str) -> BackendError {
    BackendError::Device { reason: what.to_owned() }
}

pub(super) fn whether(is_so: bool, otherwise: &str) -> Result<(), BackendError> {
    if is_so { Ok(()) } else { Err(wrong(otherwise)) }
}

/// Which buffers a product with a matrix cut like this is written into.
pub(super) fn places(out: &mut SpreadBuffer, cut: Option<Cut>) -> &mut [Buffer] {
    if cut.is_some() { &mut out.parts } else { &mut out.wholes }
}

/// The pool's shape on a device.
pub(super) fn shape_of(shape: &KvShape, member: usize, members: usize) -> KvShape {
    KvShape { n_kv_heads: Spread::share(shape.n_kv_heads, 1, member, members).len(), ..*shape }
}

/// What of a tensor lies on a device: rows of a matrix, elements of a vector; none where they cannot be told apart.
pub(super) fn part_of(tensor: &Tensor, spread: Spread, member: usize, members: usize) -> Option<Tensor> {
    let (Spread::Parts { unit } | Spread::Collected { unit }) = spread else { return Some(tensor.clone()) };
    let is_vector = tensor.rows == 1;
    let share = Spread::share(if is_vector { tensor.cols } else { tensor.rows }, unit, member, members);
    let bytes_of = |count: usize| match is_vector {
        true => tensor.dtype.row_bytes(count),
        false => tensor.dtype.row_bytes(tensor.cols)?.checked_mul(count),
    };
    let data = tensor.data.slice(bytes_of(share.start)?..bytes_of(share.end)?)?;
    let (rows, cols) = if is_vector { (1, share.len()) } else { (share.len(), tensor.cols) };
    Some(Tensor { rows, cols, data, ..tensor.clone() })
}

/// The parts of a tensor for all devices, made by `load`, and how it was cut.
pub(super) fn spread_out<T>(
    members: &[CudaBackend],
    what: &'static str,
    (tensor, outputs): (&Tensor, usize),
    spread: Spread,
    load: impl Fn(&CudaBackend, &Tensor) -> Result<T, BackendError>,
) -> Result<(Option<Cut>, Vec<T>), BackendError> {
    let cut = match spread {
        Spread::Whole => None,
        Spread::Parts { unit } | Spread::Collected { unit } => Some(Cut::new(what, outputs, unit, members.len())?),
    };
    let part = |(at, member): (usize, &CudaBackend)| {
        let part = part_of(tensor, spread, at, members.len());
        load(member, &part.ok_or(BackendError::UnsupportedTensor { operation: what })?)
    };
    Ok((cut, members.iter().enumerate().map(part).collect::<Result<_, _>>()?))
}
