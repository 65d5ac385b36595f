//! The CPU backend: products of weights in the file's types with f32 activations (exact) or with activations rounded to 8 bits (fast).
//!
//! ```text
//! mod            the backend: its matrices and buffers, how work is cut;  operations   shapes to tasks, tasks to threads
//! linear rounded rows attention pages tile math   kernels, generic over ...;  inputs  what codes meet;  outputs  where sums go
//! simd           ... the vector operations of an instruction set
//! portable avx2 avx512 neon   the instruction sets;  dispatch  chooses one
//! threads        who runs tasks, own threads or the host's;  shared  where they write;  memory  aligned and zeroed
//! ```
//! A matrix is re-laid once, so that the lanes of a vector are outputs (`tile`). In exact arithmetic (`linear`) its codes become f32 in registers, in
//! fast arithmetic (`rounded`) they are multiplied as integers; in both, scales enter once for all codes that share them.
//! A row of activations is put into the form that codes meet once for all products that it goes into.
//!
//! # Invariants
//! - A row's bits depend on that row and, in attention, on the keys and values that it sees: each kernel's header says in which order
//!   it adds. Threads and tasks only decide who computes what.
//! - All operations have the same bits on all instruction sets that fuse products and sums; the portable one does not, and has others.
//!
//! # Limits
//! Matrices, pools and buffers are all the memory there is, beside one buffer's rows in the form that codes meet, and in fast arithmetic a panel of codes per
//! thread, made with the first matrix. An operation allocates nothing but its list of tasks, which is kept.

mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod dispatch;
mod inputs;
mod linear;
mod math;
mod memory;
#[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
mod neon;
mod operations;
mod outputs;
mod pages;
mod portable;
mod prefetch;
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
use self::inputs::{Prepare, Prepared};
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
    inputs: Mutex<InputRows>,
    /// While the matrices of a model are made: memory for all of them.
    slab: Mutex<Option<Slab>>,
    /// Buffers made so far, which names them.
    buffers: AtomicU64,
}

/// Memory that rounded products work in, for each participant.
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

/// The buffer that codes were multiplied with last, in the form that they meet: several products share their factor.
struct InputRows {
    /// Whose, and which of its contents; none before the first.
    of: Option<(u64, u64)>,
    blocks: Blocks,
    /// The largest buffer there is room for.
    rows: usize,
    cols: usize,
}

/// Blocks of 32 columns.
enum Blocks {
    /// Of exact arithmetic.
    Prepared(Aligned<Prepared>),
    /// Of fast arithmetic.
    Rounded(Aligned<Rounded>),
}

impl InputRows {
    fn new(arithmetic: Arithmetic) -> Self {
        let blocks = match arithmetic {
            Arithmetic::Exact => Blocks::Prepared(Aligned::empty()),
            Arithmetic::Fast => Blocks::Rounded(Aligned::empty()),
        };
        Self { of: None, blocks, rows: 0, cols: 0 }
    }

    /// Makes room for as many rows, and as many columns.
    fn reserve(&mut self, rows: usize, cols: usize) -> Result<(), BackendError> {
        (self.rows, self.cols) = (self.rows.max(rows), self.cols.max(cols));
        let wanted = self.rows.saturating_mul(self.cols.div_ceil(BLOCK));
        match &mut self.blocks {
            Blocks::Prepared(blocks) if wanted > blocks.len() => *blocks = Aligned::zeroed(wanted)?,
            Blocks::Rounded(blocks) if wanted > blocks.len() => *blocks = Aligned::zeroed(wanted)?,
            _ => return Ok(()),
        }
        self.of = None;
        Ok(())
    }
}

/// Rows in the form that codes meet.
#[derive(Clone, Copy)]
enum Inputs<'a> {
    Prepared(&'a [f32]),
    Rounded(&'a [Rounded]),
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
    /// Whether its weights are codes, which meet blocks of the input.
    codes: bool,
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
            inputs: Mutex::new(InputRows::new(Arithmetic::Exact)),
            slab: Mutex::default(),
            buffers: AtomicU64::new(0),
        }
    }

    /// The same backend with this arithmetic; a new one is exact. Matrices are prepared for it.
    pub fn with_arithmetic(self, arithmetic: Arithmetic) -> Self {
        Self { arithmetic, inputs: Mutex::new(InputRows::new(arithmetic)), ..self }
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

    /// Bytes of the rows that codes meet, which are kept for the products of one input: so many rows of up to `inputs` elements, 4.5 bytes
    /// each in exact arithmetic and 1.9 in fast.
    pub fn input_bytes(arithmetic: Arithmetic, rows: usize, inputs: usize) -> u64 {
        let block = match arithmetic {
            Arithmetic::Exact => size_of::<Prepared>(),
            Arithmetic::Fast => size_of::<Rounded>(),
        };
        (rows as u64).saturating_mul(inputs.div_ceil(BLOCK) as u64).saturating_mul(block as u64)
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

    fn slab(&self) -> MutexGuard<'_, Option<Slab>> {
        self.slab.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inputs(&self) -> MutexGuard<'_, InputRows> {
        self.inputs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rows of a buffer whose width is whole blocks, in the form that codes meet, computed unless they are there already.
    fn rows_for_codes(&self, x: &Buffer) -> MutexGuard<'_, InputRows> {
        let mut kept = self.inputs();
        let of = Some((x.name, x.version));
        if kept.of != of {
            kept.of = of;
            let (isa, values) = (self.isa, x.values());
            let count = values.len() / BLOCK;
            match &mut kept.blocks {
                Blocks::Prepared(blocks) => {
                    self.split_blocks(&mut blocks[..count], values, |x, to| isa.run(Prepare { x, to }));
                }
                Blocks::Rounded(blocks) => {
                    self.split_blocks(&mut blocks[..count], values, |x, to| isa.run(Round { x, to }));
                }
            }
        }
        kept
    }

    /// Calls `f` with parts of `blocks` and the columns that they are of; on one thread where there are few.
    fn split_blocks<T, F: Fn(&[f32], &mut [T]) + Sync>(&self, blocks: &mut [T], x: &[f32], f: F)
    where
        T: Copy + Send,
    {
        let count = blocks.len();
        let shared = Shared::new(blocks);
        self.split(count, SPREAD_ELEMENTS / BLOCK, 1, |_, part| {
            // SAFETY: parts of a split do not overlap.
            let to = unsafe { shared.part(part.start, part.len()) };
            f(&x[part.start * BLOCK..part.end * BLOCK], to);
        });
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
        let (weights, codes) = (weight.weights(), has_codes(weight.dtype));
        Section { weights, codes, out, step, tasks: weight.groups().div_ceil(step) }
    }

    /// Computes products of one input in one hand-over to the threads.
    fn multiply(&self, x: &Buffer, sections: &[Section<'_>]) {
        let (isa, scratch) = (self.isa, &self.scratch);
        let kept = sections.iter().any(|section| section.codes).then(|| self.rows_for_codes(x));
        let blocks = x.rows * (x.width / BLOCK);
        let inputs = kept.as_ref().map(|kept| match &kept.blocks {
            Blocks::Prepared(prepared) => Inputs::Prepared(bytemuck::cast_slice(&prepared[..blocks])),
            Blocks::Rounded(rounded) => Inputs::Rounded(&rounded[..blocks]),
        });
        let x = x.values();
        let tasks = sections.iter().map(|section| section.tasks).sum();
        self.threads.run(tasks, &|participant: usize, mut task: usize| {
            for &Section { weights, codes, out, step, tasks } in sections {
                if task >= tasks {
                    task -= tasks;
                    continue;
                }
                let range = task * step..weights.rows.div_ceil(ROWS).min((task + 1) * step);
                match inputs.filter(|_| codes) {
                    Some(Inputs::Rounded(x)) => {
                        let scratch = &mut scratch.of(participant)[..];
                        isa.run_integers(RoundedProduct { x, weights, range, scratch, out });
                    }
                    Some(Inputs::Prepared(x)) => isa.run(Product { x, weights, range, out }),
                    None => isa.run(Product { x, weights, range, out }),
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

/// Whether weights of a type are codes with scales, and not single elements.
fn has_codes(dtype: DType) -> bool {
    !matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
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
