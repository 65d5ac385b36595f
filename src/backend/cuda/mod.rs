//! The CUDA backend: operations as launches of the kernels in `kernels/`, through the NVIDIA driver, whose library is opened at run time.
//!
//! ```text
//! mod       what lies on a device, and what all operations have in common;  operations  shapes to launches, and what goes to and from the host
//! probe     whether there is a device, and why not
//! kernels   PTX texts, what they declare; machine code of them, where the build has it
//! launch    the one way to a launch, and checked functions of kernels;  attend  those of attention;  fast  of fast products;  pick  those that pick tokens, as
//!           requests  say;  tokens  state that moves
//! begun     picks that nobody waits for yet, and that feed the next step
//! staging   lists and rows on their way to the device;  spans  block tables, once per walk;  split  what attention shares of them
//! section   parts of steps: noted (program), brought over in one copy (arena), launched, as a graph where they come again (graphs), on all devices of
//!           a backend together (players)
//! driver    memory, copies, launches: the driver's library;  current  the caller's context, left as it was;  errors  the first one, which stays
//! group     several devices as one backend;  peers  what they tell each other
//! ```
//! Everything of a device goes through one stream, in order; between devices notes and joins of their program order what one has of another
//! (`players`), and memory is freed when no stream of its device has anything to do. The host waits only where it reads and at the end of a step
//! ([`Backend::health`], [`Backend::take_picks`] of one that was begun ahead). `docs/cuda.md` follows a step from plan to launch.
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
mod begun;
mod current;
mod driver;
mod errors;
mod fast;
mod graphs;
mod group;
mod kernels;
mod launch;
mod operations;
mod peers;
mod pick;
mod players;
mod probe;
mod program;
mod requests;
mod section;
mod spans;
mod split;
mod staging;
mod tokens;

pub use group::{CudaGroup, SpreadBuffer, SpreadMatrix, SpreadPages, SpreadVector};
pub use kernels::KernelForms;
pub use probe::{DeviceInfo, device, devices};

use core::cell::{Cell, RefCell};
use core::ops::Range;
use std::collections::HashMap;
use std::sync::Arc;

use self::arena::arena_bytes;
use self::attend::slots_bytes;
use self::begun::BegunPicks;
use self::driver::{At, Driver, Memory, Pinned};
use self::errors::FirstError;
use self::launch::{Launcher, PoolLayers, SEGMENT, SpanList, Weights};
use self::players::{Player, Players};
use self::requests::Requests;
use self::spans::SpanLists;
use self::staging::{HALF_BYTES, Staging};
#[cfg(doc)]
use super::Backend;
use super::{Arithmetic, BackendError, KvShape, RopeTable, Span};
use crate::tensor::{DType, Tensor};

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
    /// The devices of the backend, or of the group that it is part of, and which one is its own.
    players: Arc<Players>,
    member: usize,
    staging: RefCell<Staging>,
    /// The lists of a walk.
    lists: RefCell<SpanLists>,
    /// A list that no walk brought.
    loose: RefCell<SpanLists>,
    /// Tokens of a page of the pool, and dimensions of a head.
    page_size_tokens: Cell<usize>,
    head_dim: Cell<usize>,
    /// What rows are read back through.
    back: RefCell<Pinned>,
    /// Rows while the host changes them, and angles.
    host: RefCell<Vec<f32>>,
    /// How rows are picked from, and what came of it.
    requests: RefCell<Requests>,
    words: RefCell<Vec<u32>>,
    /// Picks of steps under way.
    begun: RefCell<BegunPicks>,
    /// What an operation works in: states of segments, rows on their way, tokens on theirs.
    scratch: RefCell<Memory>,
    arithmetic: Arithmetic,
    /// Elements of the widest input of a product; 0 is not known yet.
    widest_input: Cell<usize>,
    /// Rows as fast products take them.
    rounded: RefCell<Memory>,
    errors: Arc<FirstError>,
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
        Self::together(&[index])?.pop().ok_or_else(|| BackendError::Device { reason: "a device got lost".to_owned() })
    }

    /// A backend on each of these devices, which note one program, and whose first error is that of all.
    fn together(indices: &[u32]) -> Result<Vec<Self>, BackendError> {
        let open = |&index: &u32| Ok((probe::device(index)?, Driver::open(index)?));
        let (infos, drivers): (Vec<_>, Vec<_>) =
            indices.iter().map(open).collect::<Result<Vec<_>, BackendError>>()?.into_iter().unzip();
        let (players, errors) = (Arc::new(Players::new(drivers)?), Arc::default());
        let member = |(member, info)| Self::member_of(&players, member, info, &errors);
        infos.into_iter().enumerate().map(member).collect()
    }

    fn member_of(
        players: &Arc<Players>,
        member: usize,
        info: DeviceInfo,
        errors: &Arc<FirstError>,
    ) -> Result<Self, BackendError> {
        let driver = &players.player(member).launcher.driver;
        Ok(Self {
            staging: RefCell::new(Staging::new(driver, HALF_BYTES)?),
            lists: RefCell::new(SpanLists::new(driver, TABLE_WORDS)?),
            loose: RefCell::new(SpanLists::new(driver, TABLE_WORDS)?),
            page_size_tokens: Cell::new(1),
            head_dim: Cell::new(0),
            back: RefCell::new(driver.pinned(READ_BYTES)?),
            host: RefCell::default(),
            requests: RefCell::default(),
            words: RefCell::default(),
            begun: RefCell::new(BegunPicks::new(driver, 0)?),
            scratch: RefCell::new(driver.memory(0)?),
            arithmetic: Arithmetic::Exact,
            widest_input: Cell::new(0),
            rounded: RefCell::new(driver.memory(0)?),
            errors: errors.clone(),
            players: players.clone(),
            member,
            info,
        })
    }

    /// The device.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// In which form the driver has taken the kernels that were needed so far: those of a weight type with the first matrix, the others with the pool.
    pub fn kernels(&self) -> KernelForms {
        self.launcher().forms()
    }

    /// The same backend, which takes kernels from these fatbins, by the names of the files in `kernels/ptx`, in place of those that the build has. One that
    /// the driver does not take, or that is no whole fatbin, is passed over, as those are.
    ///
    /// # Safety
    /// - A fatbin whose kernels the driver finds was made of the text of that file, as it is in this version.
    pub unsafe fn with_machine_code(self, fatbins: HashMap<String, Vec<u8>>) -> Self {
        // SAFETY: as the caller promises.
        unsafe { self.launcher().bring(fatbins) };
        self
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
        let begun = BegunPicks::device_bytes(spans);
        let arena = arena_bytes(spans, shape.head_dim);
        let working = scratch_bytes(shape).saturating_add(tables).saturating_add(begun).saturating_add(arena);
        working.saturating_add(2 * HALF_BYTES) as u64
    }

    /// Makes ready what products with a matrix of this tensor need beside it.
    fn make_ready_for(&self, tensor: &Tensor) -> Result<(), BackendError> {
        self.launcher().prepare_type(tensor.dtype)?;
        if self.arithmetic == Arithmetic::Fast {
            self.launcher().prepare_fast(tensor.dtype, tensor.cols)?;
            self.widest_input.set(self.widest_input.get().max(tensor.cols));
        }
        Ok(())
    }

    fn player(&self) -> &Player {
        self.players.player(self.member)
    }

    fn launcher(&self) -> &Launcher {
        &self.player().launcher
    }

    fn driver(&self) -> &Driver {
        &self.launcher().driver
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
