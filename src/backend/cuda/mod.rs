//! The CUDA backend: operations as launches of the kernels in `kernels/`, through the NVIDIA driver, whose library is opened at run time.
//!
//! ```text
//! mod       the operations: shapes to launches, and what goes to and from the host
//! probe     whether there is a device, and why not
//! kernels   PTX texts; what they declare
//! launch    one checked function per kernel;  attend  those of attention;  pick  those that pick tokens, as  requests  say;  tokens  state that moves
//! staging   lists and rows on their way to the device;  spans  block tables, once per walk;  split  what attention shares of them
//! section   steps that come again: noted (program), brought over in one copy (arena), launched as a graph (graphs)
//! driver    memory, copies, launches: the driver's library
//! group     several devices as one backend;  peers  what they tell each other
//! ```
//! Everything goes through one stream, in order; the host waits only where it reads and at the end of a step
//! ([`Backend::health`]). `docs/cuda.md` follows a step from plan to launch.
//!
//! # Invariants
//! - A row's bits are those that the kernels promise: they depend on neither batch, chunk nor pages. Where two kernels can do an operation,
//!   they give the same bits, so memory and shape may decide between them.
//! - The first error of an operation that cannot fail is kept, nothing is launched after it, and everybody who can fail answers it
//!   from then on. Memory that could not be had is no such error.
//! - A step gets no memory: buffers, lists and the scratch are made with the workspace and the pool, kernels are compiled with the weights.
//!   The driver takes some for a graph, when one is made.
//!
//! # Limits
//! Heads of at most 256 dimensions, a multiple of 8. Draws at a temperature outside 0.01 .. 100 or past the best 2048 entries are
//! the host's, from rows that are read back.
//!
//! **Nobody has run this on a device.** It is tested on a driver that runs the kernels in a simulator (docs/cuda.md).

mod arena;
mod attend;
mod driver;
mod fast;
mod graphs;
mod group;
mod kernels;
mod launch;
mod peers;
mod pick;
mod probe;
mod program;
mod requests;
mod section;
mod spans;
mod split;
mod staging;
mod tokens;

pub use group::{CudaGroup, SpreadBuffer, SpreadMatrix, SpreadPages, SpreadVector};
pub use probe::{DeviceInfo, device};

use core::cell::{Cell, RefCell};
use core::ops::Range;

use self::arena::{ARENA_BYTES, Arena};
use self::attend::{Attend, slots_bytes};
use self::driver::{At, Driver, Memory, Pinned};
use self::graphs::Graphs;
use self::launch::{Launcher, MOST_DIMS, PoolLayers, SEGMENT, SpanList, Weights};
use self::requests::Requests;
use self::spans::SpanLists;
use self::staging::{HALF_BYTES, Staging};
use super::{
    Arithmetic, AttentionShape, Backend, BackendError, EachRow, Gate, GraphCounts, KvShape, Picked, Product, RopeTable,
    Span,
};
use crate::checkpoint::RopePairing;
use crate::sample::SampleRequest;
use crate::tensor::{DType, Tensor, dequantise_row};
use crate::transfer::Encoding;

/// Bytes that are read back at once, at least.
const READ_BYTES: usize = 4 << 20;
/// Bytes of the scratch, at least and at most (but for tokens that are larger).
const SCRATCH_BYTES: Range<usize> = 16 << 20..256 << 20;
/// Query heads per key and value head that the scratch has room for.
const SCRATCH_GROUP: usize = 8;
/// Rows that share a segment of the pool, which each has a slot of its own for: so many on average.
const SCRATCH_SHARING: usize = 4;
/// Words of block tables beyond one for each page of the pool.
const TABLE_WORDS: usize = 1 << 14;
/// Memory is handed out in multiples of this.
const ALIGNMENT_BYTES: u64 = 256;

/// Runs operations on a CUDA device.
pub struct CudaBackend {
    info: DeviceInfo,
    /// Programs that were seen, and their graphs. They go before the kernels that they name, which the launcher has.
    graphs: RefCell<Graphs>,
    launcher: Launcher,
    staging: RefCell<Staging>,
    /// The lists of a walk.
    lists: RefCell<SpanLists>,
    /// A list that no walk brought.
    loose: RefCell<SpanLists>,
    /// Tokens of a page of the pool.
    page_size_tokens: Cell<usize>,
    /// What rows are read back through.
    back: RefCell<Pinned>,
    /// Rows while the host changes them, and angles.
    host: RefCell<Vec<f32>>,
    /// How rows are picked from, and what came of it.
    requests: RefCell<Requests>,
    words: RefCell<Vec<u32>>,
    /// What an operation works in: states of segments, rows on their way, tokens on theirs.
    scratch: RefCell<Memory>,
    /// What a section brings to the device.
    arena: RefCell<Arena>,
    in_section: Cell<bool>,
    arithmetic: Arithmetic,
    /// Elements of the widest input of a product; 0 is not known yet.
    widest_input: Cell<usize>,
    /// Rows as fast products take them.
    rounded: RefCell<Memory>,
    /// What went wrong first.
    failure: RefCell<Option<BackendError>>,
}

/// A weight matrix, as its file has it.
pub struct Matrix {
    dtype: DType,
    rows: usize,
    cols: usize,
    memory: Memory,
}

impl Matrix {
    fn weights(&self) -> Weights {
        Weights { dtype: self.dtype, bytes: self.memory.at(), rows: self.rows, cols: self.cols }
    }
}

/// A weight vector.
pub struct Vector(Memory);

impl Vector {
    fn len(&self) -> usize {
        self.0.bytes() / size_of::<f32>()
    }
}

/// Activation rows.
pub struct Buffer {
    width: usize,
    rows: usize,
    memory: Memory,
}

impl Buffer {
    fn values(&self) -> At<f32> {
        self.memory.at().first(self.rows * self.width)
    }
}

/// The pool.
pub struct Pages {
    shape: KvShape,
    memory: Memory,
}

impl Pages {
    /// The pool from this layer on.
    fn layers_from(&self, layer: usize) -> PoolLayers {
        let layer_bytes = self.memory.bytes() / self.shape.layers.max(1);
        PoolLayers {
            bytes: self.memory.at().from(layer * layer_bytes),
            shape: self.shape,
            layers: self.shape.layers.saturating_sub(layer),
        }
    }
}

impl CudaBackend {
    /// A backend on device number `index`.
    ///
    /// # Errors
    /// `NoDevice` with the reason, `OutOfMemory`, `Device`. Nothing is kept.
    pub fn new(index: u32) -> Result<Self, BackendError> {
        let info = probe::device(index)?;
        let driver = Driver::open(index)?;
        Ok(Self {
            staging: RefCell::new(Staging::new(&driver, HALF_BYTES)?),
            lists: RefCell::new(SpanLists::new(&driver, TABLE_WORDS)?),
            loose: RefCell::new(SpanLists::new(&driver, TABLE_WORDS)?),
            page_size_tokens: Cell::new(1),
            back: RefCell::new(driver.pinned(READ_BYTES)?),
            host: RefCell::default(),
            requests: RefCell::default(),
            words: RefCell::default(),
            scratch: RefCell::new(driver.memory(0)?),
            graphs: RefCell::default(),
            arena: RefCell::new(Arena::new(&driver)?),
            in_section: Cell::new(false),
            arithmetic: Arithmetic::Exact,
            widest_input: Cell::new(0),
            rounded: RefCell::new(driver.memory(0)?),
            failure: RefCell::default(),
            launcher: Launcher::new(driver),
            info,
        })
    }

    /// The device.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Bytes of device memory that the weights of these tensors take.
    pub fn weights_bytes<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> u64 {
        let bytes = |tensor: &Tensor| match tensor.rows {
            0 | 1 => (size_of::<f32>() as u64).saturating_mul(tensor.cols as u64),
            _ => tensor.data.len() as u64,
        };
        tensors.map(|tensor| bytes(tensor).next_multiple_of(ALIGNMENT_BYTES)).fold(0, u64::saturating_add)
    }

    /// Bytes of device memory that a backend with this pool takes beside weights, pool and activations, for walks of at most `spans`
    /// spans with block tables of at most `longest` entries.
    pub fn working_bytes(shape: &KvShape, [spans, longest]: [usize; 2]) -> u64 {
        let walk =
            spans::walk_words(spans, longest, shape.page_size_tokens).max(TABLE_WORDS.saturating_add(shape.pages));
        let tables = walk.saturating_add(TABLE_WORDS).saturating_mul(size_of::<u32>());
        (scratch_bytes(shape).saturating_add(tables) + 2 * HALF_BYTES + ARENA_BYTES) as u64
    }

    fn driver(&self) -> &Driver {
        &self.launcher.driver
    }

    /// What went wrong before.
    fn sound(&self) -> Result<(), BackendError> {
        self.failure.borrow().as_ref().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    /// Does what cannot be done again on a device that fails: the first error stays.
    fn attempt<T>(&self, operation: impl FnOnce() -> Result<T, BackendError>) -> Result<T, BackendError> {
        self.sound()?;
        operation().inspect_err(|error| {
            self.failure.borrow_mut().get_or_insert_with(|| error.clone());
        })
    }

    /// As [`CudaBackend::attempt`] for operations that answer nothing: [`Backend::health`] does.
    fn run(&self, operation: impl FnOnce() -> Result<(), BackendError>) {
        let _ = self.attempt(operation);
    }

    /// Numbers of rows as a list, each below `bound`.
    fn row_list(&self, rows: &[usize], bound: usize) -> Result<At<u32>, BackendError> {
        inside(rows.iter().all(|&row| row < bound), "a row past the last one")?;
        let words: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        self.list(&words)
    }

    /// Spans on the device: those of the walk, or brought for this operation.
    fn spans(&self, spans: &[Span<'_>]) -> Result<SpanList, BackendError> {
        if let Some(list) = self.lists.borrow().find(spans) {
            return Ok(list);
        }
        let mut loose = self.loose.borrow_mut();
        if !self.spans_in_arena(&mut loose, &[spans])? {
            loose.begin_growing(self.driver(), &[spans], self.page_size_tokens.get())?;
        }
        loose.find(spans).ok_or_else(|| BackendError::Device { reason: "a list of spans got lost".to_owned() })
    }

    /// Copies values to the host, piece by piece, and waits for each.
    fn read_back(&self, from: At<u8>, out: &mut [u8]) -> Result<(), BackendError> {
        self.settle()?;
        let mut back = self.back.borrow_mut();
        let step = back.len();
        for (piece, out) in out.chunks_mut(step).enumerate() {
            let bytes = self.driver().download(&mut back, from.from(piece * step), out.len())?;
            out.copy_from_slice(bytes);
        }
        Ok(())
    }
}

/// Bytes of the scratch for a pool: slots of attention for [`SCRATCH_SHARING`] rows over each of its segments.
///
/// With fewer bytes than an operation wants it takes another way to the same bits, so this decides about speed alone.
fn scratch_bytes(shape: &KvShape) -> usize {
    let segments = (shape.pages.saturating_mul(shape.page_size_tokens)).div_ceil(SEGMENT);
    let slots = slots_bytes(shape, SCRATCH_GROUP, segments.saturating_mul(SCRATCH_SHARING));
    let token = shape.token_elements() * shape.element.bytes();
    slots.clamp(SCRATCH_BYTES.start, SCRATCH_BYTES.end).max(token)
}

fn inside(fits: bool, what: &str) -> Result<(), BackendError> {
    if fits { Ok(()) } else { Err(BackendError::Device { reason: what.to_owned() }) }
}

/// The angles of the rows of spans, `[rows, width]`; of rows that no span has they are 0.
fn angles_of(table: &RopeTable, spans: &[Span<'_>], [rows, width]: [usize; 2], out: &mut Vec<f32>) {
    out.clear();
    out.resize(rows * width, 0.0);
    for span in spans {
        let rows = out.chunks_exact_mut(width).skip(span.first_row).take(span.rows);
        rows.enumerate().for_each(|(row, angles)| table.angles(span.start + row, angles));
    }
}

/// Whether a tensor has whole rows.
fn check_tensor(tensor: &Tensor, operation: &'static str) -> Result<(), BackendError> {
    let row_bytes = tensor.dtype.row_bytes(tensor.cols).filter(|_| tensor.cols > 0);
    let whole = row_bytes.and_then(|bytes| bytes.checked_mul(tensor.rows)) == Some(tensor.data.len());
    if whole { Ok(()) } else { Err(BackendError::UnsupportedTensor { operation }) }
}

impl Backend for CudaBackend {
    type Matrix = Matrix;
    type Vector = Vector;
    type Buffer = Buffer;
    type Pages = Pages;

    fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    /// Rounded rows get their memory with the rows, in [`Backend::resize`].
    fn make_ready(&self, inputs: usize) -> Result<(), BackendError> {
        self.widest_input.set(self.widest_input.get().max(inputs));
        Ok(())
    }

    fn matrix(&self, tensor: &Tensor) -> Result<Matrix, BackendError> {
        check_tensor(tensor, "matrix")?;
        self.sound()?;
        self.launcher.prepare_type(tensor.dtype)?;
        if self.arithmetic == Arithmetic::Fast {
            self.launcher.prepare_fast(tensor.dtype, tensor.cols)?;
            self.make_ready(tensor.cols)?;
        }
        let memory = self.driver().memory(tensor.data.len())?;
        self.attempt(|| self.driver().fill(&memory, tensor.data.as_slice()))?;
        tensor.data.release(0..tensor.data.len());
        Ok(Matrix { dtype: tensor.dtype, rows: tensor.rows, cols: tensor.cols, memory })
    }

    fn vector(&self, tensor: &Tensor) -> Result<Vector, BackendError> {
        check_tensor(tensor, "vector")?;
        self.sound()?;
        let mut values = vec![0.0_f32; tensor.rows * tensor.cols];
        let unsupported = |_| BackendError::UnsupportedTensor { operation: "vector" };
        dequantise_row(tensor.dtype, tensor.data.as_slice(), &mut values).map_err(unsupported)?;
        let memory = self.driver().memory(size_of_val(&values[..]))?;
        self.attempt(|| self.driver().fill(&memory, bytemuck::cast_slice(&values)))?;
        Ok(Vector(memory))
    }

    fn pages(&self, shape: &KvShape) -> Result<Pages, BackendError> {
        if shape.head_dim > MOST_DIMS || !shape.head_dim.is_multiple_of(8) {
            return Err(BackendError::UnsupportedTensor { operation: "attention" });
        }
        self.sound()?;
        self.launcher.prepare()?;
        self.launcher.prepare_attention(self.arithmetic(), shape)?;
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
        self.attempt(|| self.driver().zero(&memory))?;
        Ok(Pages { shape: *shape, memory })
    }

    fn buffer(&self, width: usize) -> Buffer {
        Buffer { width, rows: 0, memory: self.driver().nothing() }
    }

    fn resize(&self, buffer: &mut Buffer, rows: usize) -> Result<(), BackendError> {
        let bytes = rows.checked_mul(buffer.width).and_then(|len| len.checked_mul(size_of::<f32>()));
        let bytes = bytes.ok_or(BackendError::OutOfMemory { bytes: u64::MAX })?;
        if bytes > buffer.memory.bytes() {
            self.sound()?;
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
        self.run(|| {
            inside(tokens.iter().all(|&token| (token as usize) < table.rows), "a token past the vocabulary")?;
            self.launcher.embed(out.values(), table.weights(), self.list(tokens)?, scale)
        });
    }

    fn rms_norm(&self, x: &Buffer, weight: &Vector, epsilon: f32, out: &mut Buffer) {
        if x.rows > 0 {
            self.run(|| self.launcher.rms_norm(out.values(), x.values(), weight.0.at(), epsilon));
        }
    }

    fn add_rms_norm(&self, x: &mut Buffer, delta: &Buffer, weight: &Vector, epsilon: f32, out: &mut Buffer) {
        if x.rows > 0 {
            let (out, x, delta) = (out.values(), x.values(), delta.values());
            self.run(|| self.launcher.add_rms_norm(out, x, delta, weight.0.at(), epsilon));
        }
    }

    fn rms_norm_in_place(&self, x: &mut Buffer, weight: &Vector, epsilon: f32) {
        if x.rows > 0 {
            self.run(|| self.launcher.rms_norm(x.values(), x.values(), weight.0.at(), epsilon));
        }
    }

    fn linear(&self, x: &Buffer, weight: &Matrix, bias: Option<&Vector>, out: &mut Buffer) {
        if x.rows > 0 {
            self.run(|| self.product(x, weight, bias, out, &mut None));
        }
    }

    /// Rows are rounded once for neighbours that take them in the same form.
    fn linear_many(&self, x: &Buffer, products: &mut [Product<'_, Self>]) {
        if x.rows > 0 {
            let mut left = None;
            self.run(|| {
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
        self.run(|| {
            let mut host = self.host.borrow_mut();
            angles_of(table, spans, [out.rows, out.width], &mut host);
            self.fill(out.values().cast(), bytemuck::cast_slice(&host))
        });
    }

    fn rope(&self, x: &mut Buffer, head_dim: usize, pairing: RopePairing, angles: &Buffer) {
        if x.rows > 0 {
            let sizes = [x.rows, x.width / head_dim, head_dim, angles.width / 2];
            self.run(|| self.launcher.rope(x.values(), angles.values(), sizes, pairing));
        }
    }

    /// As many entries as memory was got for, so that no walk needs more.
    fn make_room_for_tables(&self, spans: usize, longest: usize) -> Result<usize, BackendError> {
        let words = spans::walk_words(spans, longest, self.page_size_tokens.get());
        self.lists.borrow_mut().reserve(self.driver(), words)?;
        self.staging.borrow_mut().reserve(self.driver(), longest.saturating_mul(size_of::<u32>()))?;
        Ok(spans::table_entries(spans, longest))
    }

    fn graph_begin(&self, may_capture: bool) {
        self.begin_section(may_capture);
    }

    fn graph_end(&self) {
        self.end_section();
    }

    fn take_graph_counts(&self) -> GraphCounts {
        self.graphs.borrow_mut().take_counts()
    }

    fn pass_begin(&self, lists: &[&[Span<'_>]]) -> Result<(), BackendError> {
        self.attempt(|| {
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
        self.run(|| self.launcher.kv_write(pool, keys.values(), values.values(), self.spans(spans)?));
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
        self.run(|| {
            let arithmetic = self.arithmetic();
            let attend = Attend { arithmetic, out, queries, pool, shape, list: self.spans(spans)? };
            self.launcher.attention(attend, self.scratch.borrow().at())
        });
    }

    fn gate(&self, gate: &mut Buffer, up: &Buffer, act: Gate) {
        if gate.rows > 0 {
            self.run(|| self.launcher.gate(gate.values(), up.values(), act));
        }
    }

    fn add(&self, x: &mut Buffer, y: &Buffer) {
        if x.rows > 0 {
            self.run(|| self.launcher.add(x.values(), y.values()));
        }
    }

    fn gather_rows(&self, x: &Buffer, rows: &[usize], out: &mut Buffer) {
        if !rows.is_empty() {
            self.run(|| {
                let list = self.row_list(rows, x.rows)?;
                self.launcher.gather_rows(out.values(), x.values(), list, x.width)
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
        self.run(|| {
            inside(rows.is_sorted_by(|a, b| a < b), "rows to keep ascend")?;
            let scratch: At<f32> = self.scratch.borrow().at();
            let at_once = scratch.len() / width;
            inside(at_once > 0, "a row is larger than the scratch")?;
            for (piece, rows) in rows.chunks(at_once).enumerate() {
                let list = self.row_list(rows, bound)?;
                self.launcher.gather_rows(scratch, values, list, width)?;
                let to = values.from(piece * at_once * width).cast();
                self.launcher.copy(to, scratch.cast(), rows.len() * width * size_of::<f32>())?;
            }
            Ok(())
        });
    }

    fn add_rows(&self, x: &mut Buffer, rows: &[usize], y: &Buffer) {
        if !rows.is_empty() {
            self.run(|| {
                let list = self.row_list(rows, x.rows)?;
                self.launcher.add_rows(x.values(), y.values(), list, x.width)
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

    /// Rows are read and changed one after another; the changes stay on the host.
    fn each_row(&self, x: &mut Buffer, rows: &[usize], f: EachRow<'_>) -> Result<(), BackendError> {
        self.attempt(|| {
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
        self.attempt(|| self.read_back(from, bytemuck::cast_slice_mut(out)))
    }

    fn write(&self, x: &mut Buffer, first_row: usize, values: &[f32]) -> Result<(), BackendError> {
        let to = x.values().from(first_row.saturating_mul(x.width)).cast();
        self.attempt(|| self.fill(to, bytemuck::cast_slice(values)))
    }

    /// Waits for all that was launched: a device says only then what went wrong.
    fn health(&self) -> Result<(), BackendError> {
        self.attempt(|| {
            self.settle()?;
            self.driver().finish()
        })
    }

    fn copy_pages(&self, pages: &mut Pages, copies: &[(u32, u32)]) {
        if copies.is_empty() {
            return;
        }
        self.run(|| {
            let last = pages.shape.pages;
            let exist = |&(from, to): &(u32, u32)| (from as usize) < last && (to as usize) < last;
            inside(copies.iter().all(exist), "a page past the pool")?;
            let pairs: Vec<u32> = copies.iter().flat_map(|&(from, to)| [from, to]).collect();
            self.launcher.copy_pages(pages.layers_from(0), self.list(&pairs)?)
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
