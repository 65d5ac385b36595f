//! The CPU backend: exact products of f32 activations with weights as the file has them.
//!
//! ```text
//! mod            the operations: shapes to tasks, tasks to threads
//! linear rows attention pages quant math      kernels, generic over ...
//! simd           ... the vector operations of an instruction set
//! portable avx2  the instruction sets;  dispatch  chooses one
//! threads        who runs tasks;  shared  where they write;  memory  aligned and zeroed
//! ```
//! Weights are not copied: a matrix is a view of the mapped file, decoded to f32 in registers (one row of activations) or once
//! per call into L2 (more rows).
//!
//! # Invariants
//! - A row's bits depend on that row and, in attention, on the keys and values that it sees: each kernel's header says in which order
//!   it adds. Threads and tasks only decide who computes what.
//! - Another instruction set may give other bits: where it fuses products and sums, it rounds less.
//!
//! # Limits
//! Matrices, pools and buffers are all the memory there is, and a decoded panel of weights per thread, made with the matrix. An
//! operation allocates nothing but its list of tasks, which is kept.

mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod dispatch;
mod linear;
mod math;
mod memory;
mod pages;
mod portable;
mod quant;
mod rows;
mod shared;
mod simd;
mod threads;

pub use dispatch::InstructionSet;
pub use pages::Pages;

use core::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use self::dispatch::Isa;
use self::linear::{Decode, OneRow, Outputs, PANEL, Panel, STREAMS, Weights};
use self::memory::Aligned;
use self::pages::{Element, Elements, Write};
use self::rows::{Activate, Add, Embed, RmsNorm, Rope};
use self::shared::Shared;
use self::threads::Threads;
use super::{AttentionShape, Backend, BackendError, Gate, KvShape, RopeTable, Span};
use crate::tensor::{Bytes, DType, Tensor};

/// Elements below which an operation on rows stays on the caller's thread: handing over costs a microsecond or two.
const SPREAD_ELEMENTS: usize = 1 << 14;
/// Products below which a matrix product does.
const SPREAD_PRODUCTS: usize = 1 << 15;
/// Tasks per thread that work is cut into, so that a thread that is held up does not hold up the others.
const TASKS_PER_THREAD: usize = 4;

/// Runs operations on the threads of the process.
pub struct CpuBackend {
    isa: Isa,
    set: InstructionSet,
    threads: Threads,
    scratch: Scratch,
    /// Tasks of the operation at hand.
    tasks: Mutex<Vec<RowTask>>,
}

/// Memory for decoded weights, for each participant.
struct Scratch(Vec<Mutex<Aligned<f32>>>);

impl Scratch {
    /// That of a participant; nobody else asks for it at the same time.
    fn of(&self, participant: usize) -> MutexGuard<'_, Aligned<f32>> {
        self.0[participant].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes each at least `len` elements long.
    fn reserve(&self, len: usize) -> Result<(), BackendError> {
        for participant in 0..self.0.len() {
            let mut scratch = self.of(participant);
            if scratch.len() < len {
                *scratch = Aligned::zeroed(len)?;
            }
        }
        Ok(())
    }
}

/// A weight matrix: a view of its file.
pub struct Matrix {
    data: Bytes,
    dtype: DType,
    rows: usize,
    cols: usize,
    row_bytes: usize,
}

impl Matrix {
    fn weights(&self) -> Weights<'_> {
        Weights { dtype: self.dtype, bytes: self.data.as_slice(), row_bytes: self.row_bytes, cols: self.cols }
    }
}

/// A weight vector.
pub struct Vector(Aligned<f32>);

/// Activation rows.
pub struct Buffer {
    width: usize,
    rows: usize,
    data: Aligned<f32>,
}

impl Buffer {
    fn values(&self) -> &[f32] {
        &self.data[..self.rows * self.width]
    }

    fn values_mut(&mut self) -> &mut [f32] {
        &mut self.data[..self.rows * self.width]
    }
}

/// Some rows of a span.
#[derive(Clone, Copy)]
struct RowTask {
    span: usize,
    first: usize,
    end: usize,
}

impl CpuBackend {
    /// A backend of `threads` threads, the caller's included, with the best instruction set of the processor.
    ///
    /// 0 is as many as the process may use. Where the system does not give as many, there are fewer: no result depends on
    /// their number.
    pub fn new(threads: usize) -> Self {
        let best = InstructionSet::best();
        // The portable instance is everywhere, so there is always one.
        let isa = Isa::new(best).unwrap_or(Isa::PORTABLE);
        Self::with_isa(threads, isa, best)
    }

    /// As [`CpuBackend::new`], with a chosen instruction set.
    ///
    /// # Errors
    /// `NoDevice` when the processor lacks it.
    pub fn with_instruction_set(threads: usize, set: InstructionSet) -> Result<Self, BackendError> {
        let refused = || BackendError::NoDevice { reason: format!("the processor has no {}", set.name()) };
        Ok(Self::with_isa(threads, Isa::new(set).ok_or_else(refused)?, set))
    }

    fn with_isa(threads: usize, isa: Isa, set: InstructionSet) -> Self {
        let count = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            count => count,
        };
        let threads = Threads::new(count);
        let scratch = Scratch((0..threads.count()).map(|_| Mutex::new(Aligned::empty())).collect());
        Self { isa, set, threads, scratch, tasks: Mutex::new(Vec::new()) }
    }

    /// The instruction set in use.
    pub fn instruction_set(&self) -> InstructionSet {
        self.set
    }

    /// Threads that work, the caller's included.
    pub fn threads(&self) -> usize {
        self.threads.count()
    }

    /// Calls `f(participant, part)` with parts of `0..len` of at least `least` elements, `multiple` of them or a multiple.
    fn split<F: Fn(usize, Range<usize>) + Sync>(&self, len: usize, least: usize, multiple: usize, f: F) {
        let even = len.div_ceil(TASKS_PER_THREAD * self.threads.count());
        let step = even.max(least).next_multiple_of(multiple.max(1)).max(1);
        self.threads.run(len.div_ceil(step), &|participant: usize, task: usize| {
            f(participant, task * step..len.min((task + 1) * step));
        });
    }

    /// Calls `f` with parts of `values` that are whole groups of `group` elements, and where they lie; on one thread where there
    /// are few.
    fn split_values<F: Fn(&mut [f32], Range<usize>) + Sync>(&self, values: &mut [f32], group: usize, f: F) {
        let group = group.max(1);
        let groups = values.len() / group;
        let shared = Shared::new(values);
        self.split(groups, SPREAD_ELEMENTS.div_ceil(group), 1, |_, part| {
            let range = part.start * group..part.end * group;
            // SAFETY: parts of a split do not overlap.
            let values = unsafe { shared.part(range.start, range.len()) };
            f(values, range);
        });
    }

    /// The rows of the spans in tasks of at most `most` rows; whether no two spans share a row.
    fn row_tasks(&self, spans: &[Span<'_>], most: usize) -> (MutexGuard<'_, Vec<RowTask>>, bool) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.clear();
        let mut ascending = true;
        let mut end = 0;
        for (index, span) in spans.iter().enumerate() {
            ascending &= span.first_row >= end;
            end = span.first_row + span.rows;
            for first in (0..span.rows).step_by(most.max(1)) {
                tasks.push(RowTask { span: index, first, end: span.rows.min(first + most.max(1)) });
            }
        }
        (tasks, ascending)
    }

    /// Runs tasks on all threads, or on the caller's alone.
    fn run_tasks<F: Fn(usize) + Sync>(&self, tasks: usize, spread: bool, f: F) {
        if spread {
            self.threads.run(tasks, &|_: usize, task: usize| f(task));
        } else {
            (0..tasks).for_each(f);
        }
    }

    fn attend<E: Element>(&self, elements: &[E], layout: pages::Layout, a: Attend<'_>, out: &mut [f32]) {
        let (tasks, disjoint) = self.row_tasks(a.spans, attention::TASK_ROWS);
        let group = a.shape.n_heads / a.shape.n_kv_heads;
        // Heads of a group share the reading of keys; where there are few tasks they are spread all the same.
        let few = tasks.len() * a.shape.n_kv_heads < TASKS_PER_THREAD * self.threads.count();
        let heads = if few { 1 } else { group };
        let parts = a.shape.n_heads / heads;
        let (isa, out) = (self.isa, Shared::new(out));
        let tasks = &tasks[..];
        self.run_tasks(tasks.len() * parts, disjoint, |index| {
            // The longest rows are last: they are begun first, so that no thread is left with one at the end.
            let task = tasks[tasks.len() - 1 - index / parts];
            let first_head = index % parts * heads;
            isa.run(attention::Task {
                queries: a.queries,
                elements,
                layout,
                shape: a.shape,
                span: a.spans[task.span],
                rows: task.first..task.end,
                heads: first_head..first_head + heads,
                out,
            });
        });
    }
}

/// Arguments of an attention operation.
struct Attend<'a> {
    queries: &'a [f32],
    shape: &'a AttentionShape,
    spans: &'a [Span<'a>],
}

impl Backend for CpuBackend {
    type Matrix = Matrix;
    type Vector = Vector;
    type Buffer = Buffer;
    type Pages = Pages;

    fn matrix(&self, tensor: &Tensor) -> Result<Matrix, BackendError> {
        let unsupported = || BackendError::UnsupportedTensor { operation: "matrix" };
        let row_bytes = tensor.dtype.row_bytes(tensor.cols).ok_or_else(unsupported)?;
        if tensor.cols == 0 || row_bytes.checked_mul(tensor.rows) != Some(tensor.data.len()) {
            return Err(unsupported());
        }
        let (dtype, rows, cols) = (tensor.dtype, tensor.rows, tensor.cols);
        let matrix = Matrix { data: tensor.data.clone(), dtype, rows, cols, row_bytes };
        self.scratch.reserve(PANEL * matrix.weights().padded_cols())?;
        Ok(matrix)
    }

    fn vector(&self, tensor: &Tensor) -> Result<Vector, BackendError> {
        let matrix = self.matrix(tensor)?;
        let (weights, len) = (matrix.weights(), matrix.rows * matrix.cols);
        let mut values = Aligned::zeroed(len)?;
        let mut row = Aligned::zeroed(weights.padded_cols())?;
        for (index, values) in values.chunks_exact_mut(matrix.cols).enumerate() {
            self.isa.run(Decode { weights, range: index..index + 1, to: &mut row });
            values.copy_from_slice(&row[..matrix.cols]);
        }
        Ok(Vector(values))
    }

    fn pages(&self, shape: &KvShape) -> Result<Pages, BackendError> {
        Pages::new(shape)
    }

    fn buffer(&self, width: usize) -> Buffer {
        Buffer { width, rows: 0, data: Aligned::empty() }
    }

    fn resize(&self, buffer: &mut Buffer, rows: usize) -> Result<(), BackendError> {
        let len = rows.checked_mul(buffer.width).ok_or(BackendError::OutOfMemory { bytes: u64::MAX })?;
        if len > buffer.data.len() {
            buffer.data = Aligned::zeroed(len)?;
        }
        buffer.rows = rows;
        Ok(())
    }

    fn embed(&self, table: &Matrix, tokens: &[u32], scale: f32, out: &mut Buffer) {
        let (isa, scratch, width, weights) = (self.isa, &self.scratch, out.width, table.weights());
        assert_eq!(width, weights.cols, "the row has the width of the table");
        let shared = Shared::new(out.values_mut());
        self.split(tokens.len(), SPREAD_ELEMENTS.div_ceil(width.max(1)), 1, |participant, part| {
            let mut memory = scratch.of(participant);
            for row in part {
                // SAFETY: each row belongs to one part of the split.
                let out = unsafe { shared.part(row * width, width) };
                let scratch = &mut memory[..weights.padded_cols()];
                isa.run(Embed { table: weights, token: tokens[row] as usize, scale, scratch, out });
            }
        });
    }

    fn rms_norm(&self, x: &Buffer, weight: &Vector, epsilon: f32, out: &mut Buffer) {
        let (isa, x) = (self.isa, x.values());
        self.split_values(out.values_mut(), weight.0.len(), |out, range| {
            out.copy_from_slice(&x[range]);
            isa.run(RmsNorm { x: out, weight: &weight.0, epsilon });
        });
    }

    fn rms_norm_in_place(&self, x: &mut Buffer, weight: &Vector, epsilon: f32) {
        let isa = self.isa;
        self.split_values(x.values_mut(), weight.0.len(), |x, _| {
            isa.run(RmsNorm { x, weight: &weight.0, epsilon });
        });
    }

    fn linear(&self, x: &Buffer, weight: &Matrix, bias: Option<&Vector>, out: &mut Buffer) {
        let shapes = (x.width, out.width, x.rows);
        assert_eq!(shapes, (weight.cols, weight.rows, out.rows), "the shapes of a product agree");
        let (isa, scratch, weights) = (self.isa, &self.scratch, weight.weights());
        let (rows, width, x) = (x.rows, out.width, x.values());
        let bias = bias.map(|bias| &bias.0[..]);
        let out = Outputs { values: Shared::new(out.values_mut()), width, bias };
        let least = SPREAD_PRODUCTS.div_ceil(weights.cols * rows.max(1));
        match rows {
            0 => {}
            1 => self.split(weight.rows, least, STREAMS, |_, range| isa.run(OneRow { x, weights, range, out })),
            _ => self.split(weight.rows, least, PANEL, |participant, part| {
                let stride = weights.padded_cols();
                let mut memory = scratch.of(participant);
                let panel = &mut memory[..PANEL * stride];
                for first in part.clone().step_by(PANEL) {
                    let range = first..part.end.min(first + PANEL);
                    isa.run(Decode { weights, range: range.clone(), to: panel });
                    isa.run(Panel { x, cols: weights.cols, panel, stride, range, out });
                }
            }),
        }
    }

    fn rope(&self, x: &mut Buffer, head_dim: usize, table: &RopeTable, spans: &[Span<'_>]) {
        let (isa, width, elements) = (self.isa, x.width, x.rows * x.width);
        let (tasks, disjoint) = self.row_tasks(spans, SPREAD_ELEMENTS.div_ceil(width.max(1)));
        let shared = Shared::new(x.values_mut());
        let tasks = &tasks[..];
        // A few rows of many sequences are less work than a hand-over.
        let spread = disjoint && elements >= SPREAD_ELEMENTS;
        self.run_tasks(tasks.len(), spread, |index| {
            let task = tasks[index];
            let span = spans[task.span];
            for row in task.first..task.end {
                // SAFETY: each row belongs to one task, or there is one thread, which uses one row at a time.
                let values = unsafe { shared.part((span.first_row + row) * width, width) };
                isa.run(Rope { row: values, head_dim, table, position: span.start + row });
            }
        });
    }

    fn kv_write(&self, pages: &mut Pages, layer: usize, keys: &Buffer, values: &Buffer, spans: &[Span<'_>]) {
        Write { pages, layer, keys: keys.values(), values: values.values(), spans }.run(self.isa);
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
        let layout = pages.layout(layer);
        let attend = Attend { queries: queries.values(), shape, spans };
        match &pages.elements {
            Elements::F16(elements) => self.attend(elements, layout, attend, out.values_mut()),
            Elements::F32(elements) => self.attend(elements, layout, attend, out.values_mut()),
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

    fn read(&self, x: &Buffer, first_row: usize, out: &mut [f32]) -> Result<(), BackendError> {
        let from = first_row * x.width;
        out.copy_from_slice(&x.values()[from..from + out.len()]);
        Ok(())
    }

    fn copy_pages(&self, pages: &mut Pages, copies: &[(u32, u32)]) {
        pages.copy(copies);
    }
}
