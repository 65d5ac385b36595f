//! Launches: one function per kernel, with the types and the order of its parameters, its grid, and the checks of everything that the kernel
//! assumes of its arrays. Those of a subject with a file of its own are there (`attend`, `fast`, `pick`, `tokens`, `peers`). All go through
//! [`Launcher::launch`]; no kernel is launched in any other way (P-7).
//!
//! Each function answers an error instead of launching where an array is too short, and where the kernel's text declares other parameters.
//! What it does not check is inside of arrays: tokens below the vocabulary, rows below the number of rows, pages below the pool's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::driver::{At, Driver, failed};
use super::kernels::{KernelForms, Kernels, Kind};
use super::players::lock;
use super::program::{Launch, Op, Operation, Program};
use super::split::Counts;
use crate::backend::{BackendError, Gate, KvShape, KvType};
use crate::checkpoint::RopePairing;
use crate::tensor::DType;

/// Positions of a segment of attention (kernels/attention.cuh).
pub(super) const SEGMENT: usize = 256;
/// Most dimensions of a head.
pub(super) const MOST_DIMS: usize = 256;
/// Most parameters of a kernel.
pub(super) const MOST_PARAMETERS: usize = 16;
/// Largest grid.
const MOST_BLOCKS: [usize; 3] = [(1 << 31) - 1, 65_535, 65_535];
/// Most rows of an operation that has a block for each in its second direction.
pub(super) const MOST_ROWS: usize = MOST_BLOCKS[1];
/// Blocks of an operation by elements, which takes any number of them: enough to fill a device, few enough to start quickly.
const ELEMENT_BLOCKS: usize = 1024;

/// A parameter by value.
#[derive(Clone, Copy)]
pub(super) struct Parameter {
    kind: Kind,
    value: u64,
}

impl<T> From<At<T>> for Parameter {
    fn from(at: At<T>) -> Self {
        Self { kind: Kind::Wide, value: at.address() }
    }
}

impl From<u64> for Parameter {
    fn from(value: u64) -> Self {
        Self { kind: Kind::Wide, value }
    }
}

impl Parameter {
    /// The bytes of the value, from the first on.
    pub(super) fn value(&self) -> u64 {
        self.value
    }

    fn narrow(kind: Kind, [a, b, c, d]: [u8; 4]) -> Self {
        Self { kind, value: u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]) }
    }
}

impl From<u32> for Parameter {
    fn from(value: u32) -> Self {
        Self::narrow(Kind::Word, value.to_ne_bytes())
    }
}

impl From<f32> for Parameter {
    fn from(value: f32) -> Self {
        Self::narrow(Kind::Float, value.to_ne_bytes())
    }
}

/// Parameters, converted.
macro_rules! parameters {
    ($($value:expr),* $(,)?) => { [$(Parameter::from($value)),*] };
}
pub(super) use parameters;

/// A kernel's name by element type.
macro_rules! by_type {
    ($dtype:expr, $before:literal, $behind:literal) => {
        match $dtype {
            DType::F32 => concat!($before, "f32", $behind),
            DType::F16 => concat!($before, "f16", $behind),
            DType::BF16 => concat!($before, "bf16", $behind),
            DType::Q4_0 => concat!($before, "q4_0", $behind),
            DType::Q4_1 => concat!($before, "q4_1", $behind),
            DType::Q5_0 => concat!($before, "q5_0", $behind),
            DType::Q5_1 => concat!($before, "q5_1", $behind),
            DType::Q8_0 => concat!($before, "q8_0", $behind),
            DType::Q2_K => concat!($before, "q2_k", $behind),
            DType::Q3_K => concat!($before, "q3_k", $behind),
            DType::Q4_K => concat!($before, "q4_k", $behind),
            DType::Q5_K => concat!($before, "q5_k", $behind),
            DType::Q6_K => concat!($before, "q6_k", $behind),
            DType::IQ4_NL => concat!($before, "iq4_nl", $behind),
            DType::IQ4_XS => concat!($before, "iq4_xs", $behind),
        }
    };
}
pub(super) use by_type;

/// A weight matrix on the device, as its file has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    pub(super) dtype: DType,
    pub(super) bytes: At<u8>,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl Weights {
    /// Bytes that it must have; none on overflow.
    pub(super) fn needed(&self) -> Option<usize> {
        self.dtype.row_bytes(self.cols)?.checked_mul(self.rows)
    }
}

/// The spans of a step on the device (kernels/pages.cuh).
#[derive(Clone, Copy, Debug)]
pub(super) struct SpanList {
    /// `[spans][width]`
    pub(super) table: At<u32>,
    /// `[spans][3]`
    pub(super) spans: At<u32>,
    pub(super) count: usize,
    pub(super) width: usize,
    /// Rows of the longest span.
    pub(super) most_rows: usize,
    /// One past the last row of any span.
    pub(super) rows: usize,
    pub(super) split: SplitList,
}

/// What of the spans attention splits by position, on the device (kernels/split.cuh).
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitList {
    /// `[members][3]`
    pub(super) members: At<u32>,
    /// `[spans][2]`
    pub(super) parts: At<u32>,
    /// `[tasks][4]`
    pub(super) tasks: At<u32>,
    pub(super) counts: Counts,
}

/// The pool from some layer on.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolLayers {
    pub(super) bytes: At<u8>,
    pub(super) shape: KvShape,
    /// Layers that lie there.
    pub(super) layers: usize,
}

impl PoolLayers {
    /// Elements of a layer.
    pub(super) fn layer_elements(&self) -> usize {
        self.shape.pages * self.page_elements()
    }

    fn page_elements(&self) -> usize {
        self.shape.n_kv_heads * 2 * self.shape.page_size_tokens * self.shape.head_dim
    }

    pub(super) fn has(&self, layers: usize) -> bool {
        let needed = self.layer_elements().checked_mul(layers * self.shape.element.bytes());
        layers <= self.layers && needed.is_some_and(|needed| needed <= self.bytes.len())
    }
}

/// Launches kernels on a device.
pub(super) struct Launcher {
    pub(super) driver: Driver,
    kernels: Mutex<Kernels>,
    /// Where launches go while a section is noted, and whose they are there.
    pub(super) program: Arc<Program>,
    pub(super) member: usize,
}

impl Launcher {
    pub(super) fn new(driver: Driver, program: Arc<Program>, member: usize) -> Self {
        Self { driver, kernels: Mutex::default(), program, member }
    }

    /// Launches a kernel whose text declares these parameters, or notes it for later.
    ///
    /// # Safety
    /// - What the kernel reads and writes with these parameters and this grid lies in live memory, which nobody else writes meanwhile.
    pub(super) unsafe fn launch(
        &self,
        name: &'static str,
        grid: [usize; 3],
        parameters: &[Parameter],
    ) -> Result<(), BackendError> {
        let wrong = |what: &str| BackendError::Device { reason: format!("{name}: {what}") };
        let is_declared = {
            let mut kernels = lock(&self.kernels);
            let declared = &kernels.get(&self.driver, name)?.parameters;
            parameters.iter().map(|parameter| parameter.kind).eq(declared.iter().copied())
        };
        if !is_declared {
            return Err(wrong("its parameters are others"));
        }
        if grid.iter().zip(MOST_BLOCKS).any(|(&blocks, most)| blocks == 0 || blocks > most) {
            return Err(wrong("no such grid"));
        }
        // At most 2^31 - 1 each.
        let grid = grid.map(|blocks| blocks as u32);
        let launch = Launch::new(name, grid, parameters).ok_or_else(|| wrong("too many parameters"))?;
        if self.program.note(Operation { member: self.member, op: Op::Launch(launch) }) {
            return Ok(());
        }
        // SAFETY: it was checked above; the rest as the caller promises.
        unsafe { self.start(&launch) }
    }

    /// Launches a kernel.
    ///
    /// # Safety
    /// - The launch passed the checks of [`Launcher::launch`], and what is promised there is so now.
    pub(super) unsafe fn start(&self, launch: &Launch) -> Result<(), BackendError> {
        let mut kernels = lock(&self.kernels);
        let kernel = kernels.get(&self.driver, launch.name)?;
        let launched = launch.with_pointers(|pointers| {
            // SAFETY: number, order and sizes of the parameters are those of the text that the driver compiled, or that the machine code which it
            // took was made of, by the check before; the rest as the caller promises.
            unsafe { self.driver.launch(&kernel.function, launch.grid, kernel.threads, pointers) }
        });
        launched.map_err(|error| failed(launch.name, error))
    }

    /// Has files that come from now on taken from these fatbins, by name.
    ///
    /// # Safety
    /// - A fatbin whose kernels the driver finds was made of the text of that file: launches are checked against its declarations.
    pub(super) unsafe fn bring(&self, fatbins: HashMap<String, Vec<u8>>) {
        lock(&self.kernels).bring(fatbins);
    }

    /// In which form the driver has taken the kernels so far.
    pub(super) fn forms(&self) -> KernelForms {
        lock(&self.kernels).forms().clone()
    }

    /// Has the file of this kernel compiled.
    pub(super) fn compile(&self, name: &'static str) -> Result<(), BackendError> {
        lock(&self.kernels).get(&self.driver, name).map(|_| ())
    }

    /// Has the kernels that take weights of this type compiled.
    pub(super) fn prepare_type(&self, dtype: DType) -> Result<(), BackendError> {
        let mut kernels = lock(&self.kernels);
        kernels.get(&self.driver, by_type!(dtype, "ictus_linear_", "_m1"))?;
        kernels.get(&self.driver, by_type!(dtype, "ictus_embed_", "")).map(|_| ())
    }

    /// Has the kernels compiled that take no weights, but for those of attention.
    pub(super) fn prepare(&self) -> Result<(), BackendError> {
        // One of each file.
        let names = [
            "ictus_rms_norm",
            "ictus_rope",
            "ictus_add",
            "ictus_copy_pages",
            "ictus_gather_tokens_q8_f32",
            "ictus_place_parts",
            "ictus_kv_write_f32",
            "ictus_survey",
            "ictus_shape",
            "ictus_weights",
            "ictus_reach",
            "ictus_pick",
            "ictus_logprobs",
        ];
        self.prepare_kernels(&names)
    }

    /// Has the files of these kernels compiled.
    pub(super) fn prepare_kernels(&self, names: &[&'static str]) -> Result<(), BackendError> {
        let mut kernels = lock(&self.kernels);
        names.iter().try_for_each(|name| kernels.get(&self.driver, name).map(|_| ()))
    }

    /// `out[r] = table[tokens[r]] * scale`; tokens are below the table's rows.
    pub(super) fn embed(&self, out: At<f32>, table: Weights, tokens: At<u32>, scale: f32) -> Result<(), BackendError> {
        let name = by_type!(table.dtype, "ictus_embed_", "");
        let (rows, columns) = (tokens.len(), table.cols);
        check(name, table.needed().is_some_and(|needed| needed <= table.bytes.len()))?;
        check(name, out.len() >= rows * columns)?;
        let parameters = parameters![out, table.bytes, tokens, word(columns)?, scale];
        // SAFETY: rows of the table below its number of rows, and `rows` rows of `out`, all there by the checks.
        unsafe { self.launch(name, [rows, 1, 1], &parameters) }
    }

    /// `out = norm(x) * weight` in groups of `weight.len()`; `out` may be `x`.
    pub(super) fn rms_norm(&self, out: At<f32>, x: At<f32>, weight: At<f32>, epsilon: f32) -> Result<(), BackendError> {
        let name = "ictus_rms_norm";
        check(name, !weight.is_empty() && x.len().is_multiple_of(weight.len()) && out.len() >= x.len())?;
        let groups = x.len() / weight.len();
        let parameters = parameters![out, x, weight, word(weight.len())?, epsilon];
        // SAFETY: `groups` groups of both, all there by the check.
        unsafe { self.launch(name, [groups, 1, 1], &parameters) }
    }

    /// `x = x + delta`, then as [`Launcher::rms_norm`].
    pub(super) fn add_rms_norm(
        &self,
        out: At<f32>,
        x: At<f32>,
        delta: At<f32>,
        weight: At<f32>,
        epsilon: f32,
    ) -> Result<(), BackendError> {
        let name = "ictus_add_rms_norm";
        check(name, !weight.is_empty() && x.len().is_multiple_of(weight.len()))?;
        check(name, out.len() >= x.len() && delta.len() >= x.len())?;
        let groups = x.len() / weight.len();
        let parameters = parameters![out, x, delta, weight, word(weight.len())?, epsilon];
        // SAFETY: `groups` groups of all three, all there by the checks.
        unsafe { self.launch(name, [groups, 1, 1], &parameters) }
    }

    /// `out[r][o] = sum_i x[r][i] * weight[o][i] (+ bias[o])` of `rows` rows.
    pub(super) fn linear(
        &self,
        out: At<f32>,
        x: At<f32>,
        weight: Weights,
        bias: Option<At<f32>>,
        rows: usize,
    ) -> Result<(), BackendError> {
        // All three give the same bits; with more rows at once weights are read less often.
        let (name, at_once) = match rows {
            1 => (by_type!(weight.dtype, "ictus_linear_", "_m1"), 1),
            2..=4 => (by_type!(weight.dtype, "ictus_linear_", "_m4"), 4),
            _ => (by_type!(weight.dtype, "ictus_linear_", "_m16"), 16),
        };
        let Weights { rows: outputs, cols: inputs, .. } = weight;
        check(name, weight.needed().is_some_and(|needed| needed <= weight.bytes.len()))?;
        check(name, x.len() >= rows * inputs && out.len() >= rows * outputs)?;
        check(name, bias.is_none_or(|bias| bias.len() >= outputs))?;
        let bias = bias.unwrap_or(At::null());
        let parameters = parameters![out, x, weight.bytes, bias, word(rows)?, word(inputs)?, word(outputs)?];
        // SAFETY: `rows` rows of `x` and `out`, all rows of the weight and of the bias, all there by the checks.
        unsafe { self.launch(name, [outputs.div_ceil(4), rows.div_ceil(at_once), 1], &parameters) }
    }

    /// Turns the heads of `rows` rows of `x`.
    pub(super) fn rope(
        &self,
        x: At<f32>,
        angles: At<f32>,
        [rows, heads, head_dim, pairs]: [usize; 4],
        pairing: RopePairing,
    ) -> Result<(), BackendError> {
        let name = "ictus_rope";
        check(name, 2 * pairs <= head_dim && x.len() >= rows * heads * head_dim && angles.len() >= rows * 2 * pairs)?;
        let interleaved = u32::from(pairing == RopePairing::Interleaved);
        let parameters = parameters![x, angles, word(heads)?, word(head_dim)?, word(pairs)?, interleaved];
        // SAFETY: `rows` rows of both, all there by the check.
        unsafe { self.launch(name, [rows, 1, 1], &parameters) }
    }

    /// Writes rows into the first layer of the pool; pages of the tables are below the pool's number.
    pub(super) fn kv_write(
        &self,
        pool: PoolLayers,
        keys: At<f32>,
        values: At<f32>,
        list: SpanList,
    ) -> Result<(), BackendError> {
        let name = match pool.shape.element {
            KvType::F16 => "ictus_kv_write_f16",
            KvType::F32 => "ictus_kv_write_f32",
        };
        let KvShape { n_kv_heads, head_dim, page_size_tokens, .. } = pool.shape;
        let needed = list.rows * n_kv_heads * head_dim;
        check(name, pool.has(1) && keys.len() >= needed && values.len() >= needed)?;
        let (no_angles, nothing) = (At::<f32>::null(), 0_u32);
        let parameters = parameters![
            pool.bytes,
            keys,
            values,
            no_angles,
            list.table,
            list.spans,
            word(list.width)?,
            word(n_kv_heads)?,
            word(head_dim)?,
            word(page_size_tokens)?,
            nothing,
            nothing
        ];
        // SAFETY: the spans' rows of keys and values, and pages of one layer, all there by the check; the list was made whole.
        unsafe { self.launch(name, [list.most_rows, list.count, 1], &parameters) }
    }

    /// `gate = act(gate) * up`
    pub(super) fn gate(&self, gate: At<f32>, up: At<f32>, act: Gate) -> Result<(), BackendError> {
        let name = match act {
            Gate::Silu => "ictus_gate_silu",
            Gate::GeluTanh => "ictus_gate_gelu_tanh",
        };
        self.by_element(name, gate, up)
    }

    /// `x = x + y`
    pub(super) fn add(&self, x: At<f32>, y: At<f32>) -> Result<(), BackendError> {
        self.by_element("ictus_add", x, y)
    }

    fn by_element(&self, name: &'static str, x: At<f32>, y: At<f32>) -> Result<(), BackendError> {
        check(name, y.len() >= x.len())?;
        let blocks = x.len().div_ceil(256).min(ELEMENT_BLOCKS);
        // SAFETY: as many elements of `y` as of `x`, there by the check.
        unsafe { self.launch(name, [blocks, 1, 1], &parameters![x, y, x.len() as u64]) }
    }

    /// Row `i` of `out` is row `rows[i]` of `x`, which has it.
    pub(super) fn gather_rows(
        &self,
        out: At<f32>,
        x: At<f32>,
        rows: At<u32>,
        width: usize,
    ) -> Result<(), BackendError> {
        let name = "ictus_gather_rows";
        check(name, out.len() >= rows.len() * width)?;
        let parameters = parameters![out, x, rows, word(width)?];
        // SAFETY: rows of `x` that it has, as the caller checked, and as many rows of `out` as there are numbers, by the check.
        unsafe { self.launch(name, [rows.len(), 1, 1], &parameters) }
    }

    /// Row `rows[i]` of `x`, which has it, becomes itself plus row `i` of `y`.
    pub(super) fn add_rows(&self, x: At<f32>, y: At<f32>, rows: At<u32>, width: usize) -> Result<(), BackendError> {
        let name = "ictus_add_rows";
        check(name, y.len() >= rows.len() * width)?;
        let parameters = parameters![x, y, rows, word(width)?];
        // SAFETY: rows of `x` that it has, as the caller checked, and as many rows of `y` as there are numbers, by the check.
        unsafe { self.launch(name, [rows.len(), 1, 1], &parameters) }
    }

    /// Page `pairs[2 i + 1]` becomes page `pairs[2 i]` in all layers; both are below the pool's number.
    pub(super) fn copy_pages(&self, pool: PoolLayers, pairs: At<u32>) -> Result<(), BackendError> {
        let name = "ictus_copy_pages";
        let page_bytes = pool.page_elements() * pool.shape.element.bytes();
        check(name, page_bytes.is_multiple_of(16) && pool.has(pool.shape.layers))?;
        let words = page_bytes / 4;
        let layer_words = (words * pool.shape.pages) as u64;
        let parameters = parameters![pool.bytes, pairs, layer_words, word(words)?];
        // SAFETY: pages below the pool's number in all layers, all there by the check.
        unsafe { self.launch(name, [pairs.len() / 2, pool.shape.layers, 1], &parameters) }
    }
}

/// A size as kernels take it.
pub(super) fn word(size: usize) -> Result<u32, BackendError> {
    u32::try_from(size)
        .map_err(|_| BackendError::Device { reason: format!("a size of {size} is too large for a kernel") })
}

pub(super) fn check(name: &str, fits: bool) -> Result<(), BackendError> {
    if fits { Ok(()) } else { Err(BackendError::Device { reason: format!("{name}: the shapes do not agree") }) }
}
