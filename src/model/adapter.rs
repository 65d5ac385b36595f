#![forbid(unsafe_code)]
//! Adapters in a backend's form, and the rows that they change.
//!
//! ```text
//!   rows of the adapter:  gathered = x[rows]    mid = A gathered    out = (scale B) mid    y[rows] += out
//! ```
//! # Numerics
//! `scale B` is rounded to single precision when the adapter is loaded. The two products have the order of sums of
//! [`Backend::linear`], and the sum with `y` comes last, behind a bias. Widths between the factors are padded with zeros to one width
//! per adapter, which changes no sum.
//!
//! # Invariants
//! A row's bits depend on that row and its adapter alone: what other rows are changed by changes nothing.

use super::spread::{self, Activations};
use super::{ModelError, Workspace, WorkspaceShape};
use crate::backend::{Backend, BackendError, Spread};
use crate::checkpoint::{AdapterFile, Change, ModelConfig, Target};
use crate::tensor::{Bytes, DType, Tensor};

/// The two factors of a change.
struct LowRank<B: Backend> {
    /// `[width, inputs]`
    a: B::Matrix,
    /// `[outputs, width]`, times the scale.
    b: B::Matrix,
}

/// An adapter, ready to be computed with.
pub struct Adapter<B: Backend> {
    /// Width between the factors.
    width: usize,
    /// By layer, then by target.
    changes: Vec<[Option<LowRank<B>>; Target::ALL.len()]>,
    bytes: u64,
}

impl<B: Backend> Adapter<B> {
    /// Takes an adapter into a backend's form.
    ///
    /// # Errors
    /// `Tensor` with what the backend said; nothing is kept.
    pub fn load(backend: &B, config: &ModelConfig, file: &AdapterFile) -> Result<Self, ModelError> {
        let width = file.rank();
        let mut changes: Vec<[Option<LowRank<B>>; Target::ALL.len()]> = Vec::new();
        changes.resize_with(config.layers, Default::default);
        let mut bytes = 0;
        for change in file.changes() {
            let (a, b) = padded(change, width, config);
            bytes += (a.data.len() + b.data.len()) as u64;
            let refused = |source| {
                let name = format!("blk.{}.{} of the adapter", change.layer, change.target.name());
                ModelError::Tensor { name, source }
            };
            // As what it is added to.
            let spread = spread::of_tensor(config, change.target.name());
            // The first one is narrow: every device computes all of it, and none waits for another.
            let a = backend.matrix_in(&a, Spread::Whole).map_err(refused)?;
            let low_rank = LowRank { a, b: backend.matrix_in(&b, spread).map_err(refused)? };
            if let Some(layer) = changes.get_mut(change.layer) {
                layer[change.target as usize] = Some(low_rank);
            }
        }
        Ok(Self { width, changes, bytes })
    }

    /// Bytes of its factors.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn change(&self, layer: usize, target: Target) -> Option<&LowRank<B>> {
        self.changes.get(layer)?[target as usize].as_ref()
    }
}

/// Both factors in single precision, `width` wide, the scale in the second one.
fn padded(change: &Change, width: usize, config: &ModelConfig) -> (Tensor, Tensor) {
    let (outputs, inputs) = change.target.shape(config);
    let mut a = change.a.clone();
    a.resize(width * inputs, 0.0);
    let mut b = vec![0.0; outputs * width];
    for (to, from) in b.chunks_exact_mut(width).zip(change.b.chunks_exact(change.rank)) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = change.scale * from);
    }
    let tensor = |rows, cols, values: &[f32]| Tensor { dtype: DType::F32, rows, cols, data: Bytes::from_f32(values) };
    (tensor(width, inputs, &a), tensor(outputs, width, &b))
}

/// The rows of a pass that one adapter changes.
pub struct Adapted<'a, B: Backend> {
    /// The adapter.
    pub adapter: &'a Adapter<B>,
    /// Rows of the pass, ascending.
    pub rows: &'a [usize],
}

/// Rows between gathering and adding, made with the first adapter.
pub(super) struct AdapterRows<B: Backend> {
    hidden: B::Buffer,
    query: B::Buffer,
    key: B::Buffer,
    ffn: B::Buffer,
    /// One for each width of an adapter.
    mids: Vec<(usize, B::Buffer)>,
    rows: usize,
    /// Of all buffers.
    columns: usize,
}

impl<B: Backend> AdapterRows<B> {
    fn new(backend: &B, shape: &WorkspaceShape) -> Result<Self, BackendError> {
        let wide = |width, spread| {
            let mut buffer = backend.buffer_in(width, spread);
            backend.resize(&mut buffer, shape.rows).map(|()| buffer)
        };
        // All but keys go into a change as well as out of one.
        let Activations { keys, attended, collected, .. } = shape.spread();
        Ok(Self {
            hidden: wide(shape.hidden, collected)?,
            query: wide(shape.query, attended)?,
            key: wide(shape.key, keys)?,
            ffn: wide(shape.ffn_hidden, collected)?,
            mids: Vec::new(),
            rows: shape.rows,
            columns: shape.hidden + shape.query + shape.key + shape.ffn_hidden,
        })
    }

    /// Buffers for what goes into a target, between its factors, and out.
    fn buffers(&mut self, target: Target, width: usize) -> Option<[&mut B::Buffer; 3]> {
        let Self { hidden, query, key, ffn, mids, .. } = self;
        let (_, mid) = mids.iter_mut().find(|(of, _)| *of == width)?;
        Some(match target {
            Target::Query => [hidden, mid, query],
            Target::Key | Target::Value => [hidden, mid, key],
            Target::AttentionOutput => [query, mid, hidden],
            Target::Gate | Target::Up => [hidden, mid, ffn],
            Target::Down => [ffn, mid, hidden],
        })
    }
}

impl<B: Backend> Workspace<B> {
    /// Makes room for the rows of an adapter, so that no pass with it allocates.
    ///
    /// # Errors
    /// `OutOfMemory`, `Device`; what room there was stays.
    pub fn make_room(&mut self, backend: &B, shape: &WorkspaceShape, adapter: &Adapter<B>) -> Result<(), BackendError> {
        if self.adapted.is_none() {
            self.adapted = Some(AdapterRows::new(backend, shape)?);
        }
        if let Some(rows) = &mut self.adapted
            && rows.mids.iter().all(|(width, _)| *width != adapter.width)
        {
            let mut mid = backend.buffer_in(adapter.width, Spread::Whole);
            backend.resize(&mut mid, rows.rows)?;
            rows.mids.push((adapter.width, mid));
            rows.columns += adapter.width;
        }
        Ok(())
    }

    /// Bytes that the rows of adapters take; 0 before the first one.
    pub fn adapter_bytes(&self) -> u64 {
        self.adapted.as_ref().map_or(0, |rows| (rows.rows * rows.columns * size_of::<f32>()) as u64)
    }
}

/// `y[rows] += scale B (A x[rows])` for the rows of each adapter.
pub(super) fn adapt<B: Backend>(
    backend: &B,
    adapted: &[Adapted<'_, B>],
    (layer, target): (usize, Target),
    memory: &mut Option<AdapterRows<B>>,
    x: &B::Buffer,
    y: &mut B::Buffer,
) -> Result<(), BackendError> {
    for Adapted { adapter, rows } in adapted {
        let Some(change) = adapter.change(layer, target) else { continue };
        // The room was made when the adapter was loaded.
        let buffers = memory.as_mut().and_then(|memory| memory.buffers(target, adapter.width));
        let [input, mid, output] = buffers.ok_or(BackendError::OutOfMemory { bytes: 0 })?;
        for buffer in [&mut *input, &mut *mid, &mut *output] {
            backend.resize(buffer, rows.len())?;
        }
        backend.gather_rows(x, rows, input);
        backend.linear(input, &change.a, None, mid);
        backend.linear(mid, &change.b, None, output);
        backend.add_rows(y, rows, output);
    }
    Ok(())
}
