//! The CPU backend: products of weights in the file's types with f32 activations (exact) or with activations rounded to 8 bits (fast).
//!
//! ```text
//! mod            the backend: its matrices and buffers, how work is cut;  operations   shapes to tasks, tasks to threads
//! linear rounded rows attention pages tile math   kernels, generic over ...
//! simd           ... the vector operations of an instruction set
//! portable avx2 avx512 neon   the instruction sets;  dispatch  chooses one
//! threads        who runs tasks, own threads or the host's;  shared  where they write;  memory  aligned and zeroed
//! ```
//! A matrix is re-laid once, so that the lanes of a vector are outputs (`tile`). In exact arithmetic (`linear`) it is decoded to f32 in registers
//! (few rows of activations) or once per 128 rows into L1; in fast arithmetic (`rounded`) its codes are multiplied as integers.
//! Types that differ in their scales alone share that code; a product of decoded weights knows no type.
//!
//! # Invariants
//! - A row's bits depend on that row and, in attention, on the keys and values that it sees: each kernel's header says in which order
//!   it adds. Threads and tasks only decide who computes what.
//! - All operations have the same bits on all instruction sets that fuse products and sums; the portable one does not, and has others.
//!
//! # Limits
//! Matrices, pools and buffers are all the memory there is, and a decoded panel of weights per thread, made with the first matrix. An
//! operation allocates nothing but its list of tasks, which is kept.

mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod dispatch;
mod linear;
mod math;
mod memory;
#[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
mod neon;
mod operations;
mod outputs;
mod pages;
mod portable;
mod rounded;
mod rows;
mod shared;
mod simd;
mod threads;
mod tile;

pub use dispatch::InstructionSet;
pub use pages::Pages;
pub use threads::HostThreads;
pub(crate) use threads::Lent;

use core::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use self::attention::{Attention, Part, Write};
use self::dispatch::Isa;
use self::linear::{Product, STREAMS};
use self::memory::{Aligned, Slab};
use self::outputs::Outputs;
use self::pages::{Element, Layout, SIDE};
use self::rounded::{Round, Rounded, RoundedProduct};
use self::shared::Shared;
use self::threads::Threads;
use self::tile::{BLOCK, ROWS, Weights, group_bytes};
use super::{Arithmetic, BackendError, KvShape, Span};
use crate::tensor::{DType, Tensor};

/// Elements below which an operation on rows stays on the caller's thread: handing over costs a microsecond or two.
const SPREAD_ELEMENTS: usize = 1 << 14;
/// Products below which a matrix product does.
const SPREAD_PRODUCTS: usize = 1 << 15;
/// Tasks per thread that work is cut into, so that a thread that is held up does not hold up the others.
const TASKS_PER_THREAD: usize = 4;

/// Products of one input that go to the threads together without a list on the heap.
const SECTIONS: usize = 4;

/// Bytes of a file that are given back together once they are re-laid: each time costs the processors an interruption.
const RELEASE_BYTES: usize = 4 << 20;

/// Runs operations on the threads of the process.
pub struct CpuBackend {
    isa: Isa,
    set: InstructionSet,
    arithmetic: Arithmetic,
    threads: Threads,
    scratch: Scratch,
    attention: Attention,
    rounded: Mutex<RoundedRows>,
    /// While the matrices of a model are made: memory for all of them.
    slab: Mutex<Option<Slab>>,
    /// Buffers made so far, which names them.
    buffers: AtomicU64,
}

/// Memory for decoded weights and scales, for each participant.
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

/// The rounded form of the buffer that was multiplied last: several products share their factor.
#[derive(Default)]
struct RoundedRows {
    /// Whose, and which of its contents; none before the first.
    of: Option<(u64, u64)>,
    blocks: Aligned<Rounded>,
    /// The largest buffer there is room for.
    rows: usize,
    cols: usize,
}

impl RoundedRows {
    /// Makes room for as many rows, and as many columns.
    fn reserve(&mut self, rows: usize, cols: usize) -> Result<(), BackendError> {
        (self.rows, self.cols) = (self.rows.max(rows), self.cols.max(cols));
        let blocks = self.rows.saturating_mul(self.cols.div_ceil(BLOCK));
        if blocks > self.blocks.len() {
            self.blocks = Aligned::zeroed(blocks)?;
            self.of = None;
        }
        Ok(())
    }
}

/// A weight matrix in tiles.
pub struct Matrix {
    data: Aligned<u8>,
    dtype: DType,
    rows: usize,
    cols: usize,
    group_bytes: usize,
}

impl Matrix {
    fn weights(&self) -> Weights<'_> {
        let Self { dtype, rows, cols, group_bytes, .. } = *self;
        Weights { dtype, bytes: &self.data, group_bytes, rows, cols }
    }

    /// Row groups.
    fn groups(&self) -> usize {
        self.rows.div_ceil(ROWS)
    }
}

/// A product as part of a parallel section.
struct Section<'a> {
    weights: Weights<'a>,
    /// Whether its input is rounded.
    rounds: bool,
    out: Outputs<'a>,
    /// Row groups of a task.
    step: usize,
    tasks: usize,
}

/// A weight vector.
pub struct Vector(Aligned<f32>);

/// Activation rows.
pub struct Buffer {
    name: u64,
    /// Counts how often it may have been written.
    version: u64,
    width: usize,
    rows: usize,
    data: Aligned<f32>,
}

impl Buffer {
    fn values(&self) -> &[f32] {
        &self.data[..self.rows * self.width]
    }

    fn values_mut(&mut self) -> &mut [f32] {
        self.version += 1;
        &mut self.data[..self.rows * self.width]
    }
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
        Self::with_isa(isa, best, Threads::new(or_all(threads)))
    }

    /// As [`CpuBackend::new`], on `threads` threads that the host lends.
    pub fn on_host_threads(threads: usize, host: HostThreads) -> Self {
        let best = InstructionSet::best();
        let isa = Isa::new(best).unwrap_or(Isa::PORTABLE);
        Self::with_isa(isa, best, Threads::of_host(or_all(threads), host))
    }

    /// As [`CpuBackend::new`], with a chosen instruction set.
    ///
    /// # Errors
    /// `NoDevice` when the processor lacks it.
    pub fn with_instruction_set(threads: usize, set: InstructionSet) -> Result<Self, BackendError> {
        Self::new(threads).on_instruction_set(set)
    }

    /// The same backend with a chosen instruction set; a new one has the best of the processor.
    ///
    /// # Errors
    /// `NoDevice` when the processor lacks it.
    pub fn on_instruction_set(self, set: InstructionSet) -> Result<Self, BackendError> {
        set.require()?;
        Ok(Self { isa: Isa::new(set).unwrap_or(Isa::PORTABLE), set, ..self })
    }

    fn with_isa(isa: Isa, set: InstructionSet, threads: Threads) -> Self {
        let scratch = Scratch((0..threads.count()).map(|_| Mutex::new(Aligned::empty())).collect());
        Self {
            isa,
            set,
            arithmetic: Arithmetic::Exact,
            attention: Attention::new(threads.count()),
            threads,
            scratch,
            rounded: Mutex::default(),
            slab: Mutex::default(),
            buffers: AtomicU64::new(0),
        }
    }

    /// The same backend with this arithmetic; a new one is exact. Matrices are prepared for it.
    pub fn with_arithmetic(self, arithmetic: Arithmetic) -> Self {
        Self { arithmetic, ..self }
    }

    /// The instruction set in use.
    pub fn instruction_set(&self) -> InstructionSet {
        self.set
    }

    /// Bytes that the weights of these tensors take: matrices as they are re-laid, vectors in single precision. What has one row counts as a
    /// vector.
    pub fn weights_bytes<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> u64 {
        let bytes = |tensor: &Tensor| match matrix_bytes(tensor) {
            Some((_, bytes)) if tensor.rows > 1 => bytes as u64,
            _ => (size_of::<f32>() as u64).saturating_mul(tensor.rows as u64).saturating_mul(tensor.cols as u64),
        };
        tensors.map(bytes).fold(0, u64::saturating_add)
    }

    /// Threads that work, the caller's included; it is one more than those that a host lends.
    pub fn threads(&self) -> usize {
        self.threads.count()
    }

    /// Calls `f(participant, part)` with parts of `0..len` of at least `least` elements, `multiple` of them or a multiple.
    fn split<F: Fn(usize, Range<usize>) + Sync>(&self, len: usize, least: usize, multiple: usize, f: F) {
        let even = len.div_ceil(TASKS_PER_THREAD * self.threads.working());
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

    /// Whether activations are rounded before they meet weights of this type.
    fn rounds(&self, dtype: DType) -> bool {
        self.arithmetic == Arithmetic::Fast && !matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
    }

    fn slab(&self) -> MutexGuard<'_, Option<Slab>> {
        self.slab.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rounded(&self) -> MutexGuard<'_, RoundedRows> {
        self.rounded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rounded rows of a buffer whose width is whole blocks, computed unless they are there already.
    fn round(&self, x: &Buffer) -> MutexGuard<'_, RoundedRows> {
        let mut kept = self.rounded();
        let of = Some((x.name, x.version));
        if kept.of != of {
            kept.of = of;
            let (isa, values) = (self.isa, x.values());
            let shared = Shared::new(&mut kept.blocks[..values.len() / BLOCK]);
            self.split(values.len() / BLOCK, SPREAD_ELEMENTS / BLOCK, 1, |_, part| {
                // SAFETY: parts of a split do not overlap.
                let to = unsafe { shared.part(part.start, part.len()) };
                isa.run(Round { x: &values[part.start * BLOCK..part.end * BLOCK], to });
            });
        }
        kept
    }

    /// A product as part of a section of `groups` row groups in all.
    fn section<'a>(
        &self,
        x: &Buffer,
        weight: &'a Matrix,
        bias: Option<&'a Vector>,
        out: &'a mut Buffer,
        groups: usize,
    ) -> Section<'a> {
        let shapes = (x.width, out.width, x.rows);
        assert_eq!(shapes, (weight.cols, weight.rows, out.rows), "the shapes of a product agree");
        // Work is cut at row groups; with few of them, not at whole sets of streams.
        let even = groups.div_ceil(TASKS_PER_THREAD * self.threads.working());
        let least = SPREAD_PRODUCTS.div_ceil(ROWS * weight.cols * x.rows.max(1));
        let multiple = if weight.groups() >= 2 * STREAMS * self.threads.working() { STREAMS } else { 1 };
        let step = even.max(least).next_multiple_of(multiple).max(1);
        let bias = bias.map(|bias| &bias.0[..]);
        let out = Outputs { width: out.width, values: Shared::new(out.values_mut()), bias };
        let (weights, rounds) = (weight.weights(), self.rounds(weight.dtype));
        Section { weights, rounds, out, step, tasks: weight.groups().div_ceil(step) }
    }

    /// Computes products of one input in one hand-over to the threads.
    fn multiply(&self, x: &Buffer, sections: &[Section<'_>]) {
        let (isa, scratch) = (self.isa, &self.scratch);
        let rounded = sections.iter().any(|section| section.rounds).then(|| self.round(x));
        let rounded = rounded.as_ref().map(|kept| &kept.blocks[..x.rows * (x.width / BLOCK)]);
        let x = x.values();
        let tasks = sections.iter().map(|section| section.tasks).sum();
        self.threads.run(tasks, &|participant: usize, mut task: usize| {
            for &Section { weights, rounds, out, step, tasks } in sections {
                if task >= tasks {
                    task -= tasks;
                    continue;
                }
                let range = task * step..weights.rows.div_ceil(ROWS).min((task + 1) * step);
                let mut scratch = scratch.of(participant);
                let scratch = &mut scratch[..];
                match rounded.filter(|_| rounds) {
                    Some(x) => isa.run_integers(RoundedProduct { x, weights, range, scratch, out }),
                    None => isa.run(Product { x, weights, range, scratch, out }),
                }
                return;
            }
        });
    }

    /// Runs tasks on all threads, or on the caller's alone.
    fn run_tasks<F: Fn(usize) + Sync>(&self, tasks: usize, spread: bool, f: F) {
        if spread {
            self.threads.run(tasks, &|_: usize, task: usize| f(task));
        } else {
            (0..tasks).for_each(f);
        }
    }

    fn write_pages<E: Element>(
        &self,
        elements: &mut [E],
        layout: Layout,
        shape: &KvShape,
        kv: [&[f32]; 2],
        spans: &[Span<'_>],
    ) {
        let (isa, elements) = (self.isa, Shared::new(elements));
        let width = shape.n_kv_heads * shape.head_dim;
        let spread = kv[0].len() >= SPREAD_ELEMENTS;
        // As many parts as there are heads, or more where there are few.
        let least = if spread { (TASKS_PER_THREAD * self.threads.working()).div_ceil(2 * shape.n_kv_heads) } else { 1 };
        let cuts = least.clamp(1, shape.head_dim.div_ceil(SIDE).max(1));
        self.run_tasks(Part::count(shape, cuts), spread, |index| {
            let part = Part::new(shape, cuts, index);
            let rows = kv[usize::from(part.values)];
            isa.run(Write { elements, layout, part, rows, width, head_dim: shape.head_dim, spans });
        });
    }
}

/// A number of threads; 0 is as many as the process may use.
fn or_all(threads: usize) -> usize {
    match threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        count => count,
    }
}

/// Bytes of a row group of a matrix, and of all of it; none where its rows are no whole units or the size overflows.
fn matrix_bytes(tensor: &Tensor) -> Option<(usize, usize)> {
    let group_bytes = group_bytes(tensor.dtype, tensor.cols)?;
    Some((group_bytes, group_bytes.checked_mul(tensor.rows.div_ceil(ROWS))?))
}

/// Bytes of a row of a tensor that has whole rows.
fn whole_row_bytes(tensor: &Tensor, operation: &'static str) -> Result<usize, BackendError> {
    let row_bytes = tensor.dtype.row_bytes(tensor.cols).filter(|_| tensor.cols > 0);
    let whole = row_bytes.filter(|bytes| bytes.checked_mul(tensor.rows) == Some(tensor.data.len()));
    whole.ok_or(BackendError::UnsupportedTensor { operation })
}
