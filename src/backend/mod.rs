//! The backend: where a model's operations run.
//!
//! A family (`model/<family>.rs`) says which operations in which order over which tensors; a backend implements them. A
//! [`Buffer`](Backend::Buffer) holds one activation row per fed token; all operations work row by row.
//!
//! # Invariants
//! The bits of a row depend on that row alone (and, in attention, on its sequence's keys and values by absolute position):
//! never on the other rows, their number, or the threads. The reduction order over columns is fixed per operation; attention walks
//! keys in segments cut at absolute positions and merges them in position order.
//!
//! # Not here
//! Which page belongs to whom: block tables arrive as slices of page numbers (`kv` keeps them).

use std::ops::Range;

use crate::checkpoint::RopePairing;
use crate::sample::{Pick, SampleError, SampleRequest};
use crate::tensor::Tensor;
use crate::transfer::Encoding;

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;

/// Why a backend refused or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// A tensor's element type or shape is not served by the operation.
    #[error("{operation} does not take this tensor")]
    UnsupportedTensor {
        /// The operation it was meant for.
        operation: &'static str,
    },
    /// Memory could not be had; nothing was kept.
    #[error("out of memory for {bytes} bytes")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// The device does not exist or cannot be used.
    #[error("no device: {reason}")]
    NoDevice {
        /// Why, in the driver's words.
        reason: String,
    },
    /// The devices are more than there are parts to spread over them.
    #[error("{parts} {what} cannot be spread over {devices} devices")]
    CannotSpread {
        /// What was to be spread.
        what: &'static str,
        /// How many of it there are.
        parts: usize,
        /// How many devices.
        devices: usize,
    },
    /// The device failed; the backend must be discarded.
    #[error("the device failed: {reason}")]
    Device {
        /// Why, in the driver's words.
        reason: String,
    },
}

/// Element type of cached keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum KvType {
    /// Half precision.
    F16,
    /// Single precision: nothing is rounded.
    #[default]
    F32,
}

impl KvType {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// How products are computed. Weights of 32 bits are multiplied as they are in both, and on processors those of 16 bits too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Arithmetic {
    /// With f32 activations: nothing is rounded before a product.
    #[default]
    Exact,
    /// With activations rounded, for quantised weights to integers, block by block, on devices for 16-bit weights to their type: faster, and about as far from exact as other
    /// engines are.
    Fast,
}

impl Arithmetic {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Fast => "fast",
        }
    }

    /// Bits of an activation in a product with quantised weights.
    pub const fn activation_bits(self) -> u32 {
        match self {
            Self::Exact => 32,
            Self::Fast => 8,
        }
    }
}

/// How columns of activations, and the outputs that make them, lie on a backend of several devices. A backend of one device has all of them
/// there, whatever it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// All of them on every device.
    Whole,
    /// Each device has its own; `unit` neighbours stay together, say those of a head.
    Parts {
        /// Columns that stay together.
        unit: usize,
    },
    /// As `Parts`, and the devices collect those of the others where an operation takes whole rows.
    Collected {
        /// Columns that stay together.
        unit: usize,
    },
}

impl Spread {
    /// The columns of device `member` out of `members`, where `width` columns are cut between groups of `unit`.
    pub fn share(width: usize, unit: usize, member: usize, members: usize) -> Range<usize> {
        let (unit, members) = (unit.max(1), members.max(1));
        let first = |member: usize| unit * (width / unit * member / members);
        first(member)..first(member + 1)
    }

    /// Columns that device `member` out of `members` has memory for.
    pub fn held(self, width: usize, member: usize, members: usize) -> usize {
        match self {
            Self::Whole => width,
            Self::Parts { unit } => Self::share(width, unit, member, members).len(),
            Self::Collected { unit } => Self::share(width, unit, member, members).len() + width,
        }
    }
}

/// Shape of the page pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Layers, each with keys and values of its own.
    pub layers: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens per page.
    pub page_size_tokens: usize,
    /// Pages.
    pub pages: usize,
    /// Element type.
    pub element: KvType,
}

impl KvShape {
    /// Bytes of one page over all layers; none on overflow.
    pub fn page_bytes(&self) -> Option<u64> {
        let token = 2u64 * self.element.bytes() as u64;
        [self.layers, self.n_kv_heads, self.head_dim, self.page_size_tokens]
            .into_iter()
            .try_fold(token, |bytes, factor| bytes.checked_mul(factor as u64))
    }

    /// Elements of one token over all layers: keys and values.
    pub fn token_elements(&self) -> usize {
        2 * self.layers * self.n_kv_heads * self.head_dim
    }
}

/// The rows of one sequence in a step.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// First activation row of the sequence; its rows are contiguous, in position order.
    pub first_row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Absolute position of the first row: the tokens already in the cache.
    pub start: usize,
    /// Physical page of each logical page, enough for `start + rows` tokens.
    pub block_table: &'a [u32],
}

/// One attention operation.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; query head `h` reads head `h / (n_heads / n_kv_heads)`.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// A row at position p sees positions above `p - window`; none sees all up to p.
    pub window: Option<usize>,
}

/// Gate of a feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// `x * sigmoid(x)`.
    Silu,
    /// The tanh form of GELU.
    GeluTanh,
}

/// Rotation of one head layout: position times frequency is the angle that a pair of dimensions turns by.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Angle per position for each pair, in f64 so that large positions keep their digits; `dims / 2` of them.
    pub frequencies: Vec<f64>,
    /// Pairing of dimensions.
    pub pairing: RopePairing,
}

impl RopeTable {
    /// The angles of one position: the cosines of all pairs, then their sines, in double precision and rounded once.
    fn angles(&self, position: usize, out: &mut [f32]) {
        let (cosines, sines) = out.split_at_mut(self.frequencies.len().min(out.len()));
        for ((frequency, cosine), sine) in self.frequencies.iter().zip(cosines).zip(sines) {
            let (s, c) = (position as f64 * frequency).sin_cos();
            (*cosine, *sine) = (c as f32, s as f32);
        }
    }
}

/// One of several products with the same input ([`Backend::linear_many`]).
pub struct Product<'a, B: Backend> {
    /// `[outputs, inputs]`
    pub weight: &'a B::Matrix,
    /// One number per output, added behind the sum.
    pub bias: Option<&'a B::Vector>,
    /// `[rows, outputs]`; nobody else's.
    pub out: &'a mut B::Buffer,
}

/// What a backend did for a row that a token is wanted of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Picked {
    /// What [`sample::pick`](crate::sample::pick) answers for the row.
    Done(Result<Pick, SampleError>),
    /// The row was sound, and is masked, biased and penalised: the host is to pick from it as it is now
    /// ([`sample::pick_shaped`](crate::sample::pick_shaped)).
    Shaped,
    /// Nothing: the host is to pick, from the row as it was.
    NotServed,
}

/// Whether the operations of a part of a step are likely to come again in the same shapes, with other values ([`Backend::part_begin`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// They are not: prompts, and what is mixed with them.
    No,
    /// They are, and what a backend keeps of parts like it may be used. Nothing new is kept.
    Use,
    /// They are, and a backend may keep what it needs to launch all of them at once the next time.
    Keep,
}

/// What became of the parts of steps that a backend may run as graphs ([`Backend::part_begin`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphCounts {
    /// Graphs that were there, and were launched again.
    pub hits: u32,
    /// Parts that might have been captured and for which there was no graph: they ran all the same, and one of them may be there next time.
    pub misses: u32,
}

/// What [`Backend::each_row`] calls: with a participant, a row, and the row's values.
pub type EachRow<'f> = &'f (dyn Fn(usize, usize, &mut [f32]) + Sync);

/// Operations over activation rows. Shapes are promised by the caller, which checked them when the model was built. Buffers may have no
/// rows.
pub trait Backend: Sized + Send + 'static {
    /// A weight matrix `[rows, cols]`, prepared for this backend.
    type Matrix: Send + Sync + 'static;
    /// A weight vector in f32.
    type Vector: Send + Sync + 'static;
    /// Activation rows in f32: `[rows, width]`.
    type Buffer: Send + 'static;
    /// Keys and values of all layers in one pool of pages.
    type Pages: Send + 'static;

    /// How it multiplies: part of the identity of all state that it computes.
    fn arithmetic(&self) -> Arithmetic {
        Arithmetic::Exact
    }

    /// What there is to know of how it runs, beside where, once weights and pool are there; for people.
    fn remark(&self) -> Option<String> {
        None
    }

    /// Makes room for what products need beside their matrices, for inputs of up to `inputs` elements. Matrices that this backend
    /// prepares bring it along; a backend that is to work with those of another one of its kind is asked for it.
    ///
    /// # Errors
    /// `OutOfMemory`, `Device`.
    fn make_ready(&self, inputs: usize) -> Result<(), BackendError> {
        let _ = inputs;
        Ok(())
    }

    /// Told before matrices of these tensors are prepared, which will live and die together: a backend may make room for all of them at
    /// once. [`Backend::weights_end`] ends it.
    fn weights_begin(&self, tensors: &[&Tensor]) {
        let _ = tensors;
    }

    /// Told when the last one has been prepared, or one has failed.
    fn weights_end(&self) {}

    /// Told, instead of being asked for matrices of these tensors, that it works with those that another backend of its kind has prepared: it makes ready
    /// what it would have made with them, so that no step has to.
    ///
    /// # Errors
    /// `UnsupportedTensor`, `OutOfMemory`, `Device`.
    fn weights_shared(&self, tensors: &[&Tensor]) -> Result<(), BackendError> {
        let _ = tensors;
        Ok(())
    }

    /// Prepares a matrix.
    ///
    /// # Errors
    /// `UnsupportedTensor`, `OutOfMemory`, `Device`.
    fn matrix(&self, tensor: &Tensor) -> Result<Self::Matrix, BackendError>;

    /// Prepares a vector.
    ///
    /// # Errors
    /// As [`Backend::matrix`].
    fn vector(&self, tensor: &Tensor) -> Result<Self::Vector, BackendError>;

    /// As [`Backend::matrix`], its outputs spread over the devices.
    ///
    /// # Errors
    /// As there, and `CannotSpread`.
    fn matrix_in(&self, tensor: &Tensor, spread: Spread) -> Result<Self::Matrix, BackendError> {
        let _ = spread;
        self.matrix(tensor)
    }

    /// As [`Backend::vector`], its elements spread over the devices like the outputs that they belong to.
    ///
    /// # Errors
    /// As there, and `CannotSpread`.
    fn vector_in(&self, tensor: &Tensor, spread: Spread) -> Result<Self::Vector, BackendError> {
        let _ = spread;
        self.vector(tensor)
    }

    /// A pool of pages, zeroed.
    ///
    /// # Errors
    /// `OutOfMemory`, `Device`.
    fn pages(&self, shape: &KvShape) -> Result<Self::Pages, BackendError>;

    /// An empty buffer of rows of `width` elements.
    fn buffer(&self, width: usize) -> Self::Buffer;

    /// As [`Backend::buffer`], its columns spread over the devices.
    fn buffer_in(&self, width: usize, spread: Spread) -> Self::Buffer {
        let _ = spread;
        self.buffer(width)
    }

    /// Gives the buffer `rows` rows; what they hold is unspecified.
    ///
    /// # Errors
    /// `OutOfMemory`, `Device`.
    fn resize(&self, buffer: &mut Self::Buffer, rows: usize) -> Result<(), BackendError>;

    /// Row `i` of `out` is row `tokens[i]` of `table`, times `scale`.
    fn embed(&self, table: &Self::Matrix, tokens: &[u32], scale: f32, out: &mut Self::Buffer);

    /// As [`Backend::embed`]: row `i` of `out` is the row of the token that the step begun last picks for its row `rows[i]`
    /// ([`Backend::begin_picks`]). The host need not have seen it.
    fn embed_picked(&self, table: &Self::Matrix, rows: &[usize], scale: f32, out: &mut Self::Buffer) {
        let _ = (table, rows, scale, out);
    }

    /// `out = x / sqrt(mean(x^2) + epsilon) * weight`, over groups of `weight.len()` elements: a whole row, or each head.
    fn rms_norm(&self, x: &Self::Buffer, weight: &Self::Vector, epsilon: f32, out: &mut Self::Buffer);

    /// `x = x + delta`, then [`Backend::rms_norm`] of `x`: the same bits as one after the other.
    fn add_rms_norm(
        &self,
        x: &mut Self::Buffer,
        delta: &Self::Buffer,
        weight: &Self::Vector,
        epsilon: f32,
        out: &mut Self::Buffer,
    ) {
        self.add(x, delta);
        self.rms_norm(x, weight, epsilon, out);
    }

    /// As [`Backend::rms_norm`], in place.
    fn rms_norm_in_place(&self, x: &mut Self::Buffer, weight: &Self::Vector, epsilon: f32);

    /// `out[r][o] = sum_i x[r][i] * weight[o][i] (+ bias[o])`.
    fn linear(&self, x: &Self::Buffer, weight: &Self::Matrix, bias: Option<&Self::Vector>, out: &mut Self::Buffer);

    /// [`Backend::linear`] of one input with several matrices, each into its own output: the same bits as one after another.
    ///
    /// What a backend makes of the input alone (another layout, rounded rows) it may make once for all, and the outputs of all may be
    /// one parallel section, with one hand-over to the threads instead of one each. The matrices may differ in type and height.
    fn linear_many(&self, x: &Self::Buffer, products: &mut [Product<'_, Self>]) {
        for Product { weight, bias, out } in products {
            self.linear(x, weight, *bias, out);
        }
    }

    /// The angles of the rows' positions: the cosines of all pairs, then their sines, `[rows, 2 * frequencies.len()]`.
    ///
    /// They are computed in double precision and rounded once.
    fn angles(&self, table: &RopeTable, spans: &[Span<'_>], out: &mut Self::Buffer);

    /// Rotates each head of each row by the angles of the row.
    fn rope(&self, x: &mut Self::Buffer, head_dim: usize, pairing: RopePairing, angles: &Self::Buffer);

    /// Makes room for the block tables of walks of at most `spans` spans, each with at most `longest` entries; answers how many entries the
    /// tables of one list may have, counted as spans times the longest of them. One table always fits.
    ///
    /// # Errors
    /// `OutOfMemory`, `Device`.
    fn make_room_for_tables(&self, spans: usize, longest: usize) -> Result<usize, BackendError> {
        let _ = (spans, longest);
        Ok(usize::MAX)
    }

    /// Told before a part of a step, and whether it is likely to come again. Until [`Backend::part_end`] operations may be put off to its end, or to
    /// the next one that answers values, so that what they bring along goes over at once; no bit depends on it. What becomes of matrices, vectors,
    /// buffers and pages that they name meanwhile does not matter to them.
    fn part_begin(&self, again: Again) {
        let _ = again;
    }

    /// Told when the part is over, however it ended.
    fn part_end(&self) {}

    /// What became of such parts since this was last asked.
    fn take_graph_counts(&self) -> GraphCounts {
        GraphCounts::default()
    }

    /// Told before a walk over layers which lists of spans its operations will name, so that a backend that brings them elsewhere does it
    /// once. The lists stay where they are, as they are, until [`Backend::pass_end`]; operations may name others all the same.
    ///
    /// # Errors
    /// `OutOfMemory`, `Device`. Nothing of the walk has been done.
    fn pass_begin(&self, lists: &[&[Span<'_>]]) -> Result<(), BackendError> {
        let _ = lists;
        Ok(())
    }

    /// Told when the walk is over, however it ended.
    fn pass_end(&self) {}

    /// Writes the keys and values of the rows into the pages of layer `layer`.
    fn kv_write(
        &self,
        pages: &mut Self::Pages,
        layer: usize,
        keys: &Self::Buffer,
        values: &Self::Buffer,
        spans: &[Span<'_>],
    );

    /// Causal attention of each row over its sequence's pages, its own position included.
    fn attention(
        &self,
        queries: &Self::Buffer,
        pages: &Self::Pages,
        layer: usize,
        shape: &AttentionShape,
        spans: &[Span<'_>],
        out: &mut Self::Buffer,
    );

    /// `gate = act(gate) * up`.
    fn gate(&self, gate: &mut Self::Buffer, up: &Self::Buffer, act: Gate);

    /// `x = x + y`.
    fn add(&self, x: &mut Self::Buffer, y: &Self::Buffer);

    /// Row `i` of `out` is row `rows[i]` of `x`.
    fn gather_rows(&self, x: &Self::Buffer, rows: &[usize], out: &mut Self::Buffer);

    /// Row `i` of `x` becomes its row `rows[i]`, and `x` has as many rows as there are `rows`, which ascend.
    fn keep_rows(&self, x: &mut Self::Buffer, rows: &[usize]);

    /// Row `rows[i]` of `x` becomes itself plus row `i` of `y`. No row of `x` is named twice.
    fn add_rows(&self, x: &mut Self::Buffer, rows: &[usize], y: &Self::Buffer);

    /// Picks tokens where the logits lie: from row `i` as `requests[i]` says, into `out[i]`. Whatever is not asked for or not done is `NotServed`.
    ///
    /// A row that a request changes (mask, bias, penalties) may be changed in place; what it holds is then unspecified, but for `Shaped` and
    /// `NotServed`.
    ///
    /// # Errors
    /// `Device`.
    fn pick_rows(
        &self,
        logits: &mut Self::Buffer,
        requests: &[Option<&SampleRequest<'_>>],
        out: &mut [Picked],
    ) -> Result<(), BackendError> {
        let _ = (logits, requests);
        out.fill(Picked::NotServed);
        Ok(())
    }

    /// Whether picks can be begun ([`Backend::begin_picks`]); without it nothing of the kind is asked for.
    fn picks_ahead(&self) -> bool {
        false
    }

    /// Whether a step can be begun now of whose rows of `vocab` logits tokens are wanted so: the backend picks them by itself, as far as can
    /// be known before.
    fn can_begin_picks(&self, vocab: usize, requests: &[&SampleRequest<'_>]) -> bool {
        let _ = (vocab, requests);
        false
    }

    /// Begins to pick from the first rows of `logits`, one for each request, and does not wait: these are the next rows of the step that is being
    /// begun. `logits` may be written anew at once.
    ///
    /// # Errors
    /// `Device`.
    fn begin_picks(&self, logits: &mut Self::Buffer, requests: &[&SampleRequest<'_>]) -> Result<(), BackendError> {
        let _ = (logits, requests);
        Ok(())
    }

    /// The step is begun: all of its picks were. At most two are under way.
    ///
    /// # Errors
    /// `Device`.
    fn send_picks(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Waits for the step that was begun first, and for no other; says what was picked from its rows, as [`Backend::pick_rows`]. Rows are
    /// gone by then: what is not `Done` cannot be picked any more. Also answers whether all went as it should, as [`Backend::health`].
    ///
    /// # Errors
    /// `Device`.
    fn take_picks(&self, requests: &[Option<&SampleRequest<'_>>], out: &mut [Picked]) -> Result<(), BackendError> {
        let _ = requests;
        out.fill(Picked::NotServed);
        Ok(())
    }

    /// How many calls of [`Backend::each_row`] may run at the same time.
    fn participants(&self) -> usize {
        1
    }

    /// Calls `f(participant, row, values)` for each of these rows, on the host, which may change its values: what such a row holds afterwards is
    /// unspecified. `rows` ascend.
    ///
    /// Several calls may run at the same time, in any order; no two of them have the same participant, a number below
    /// [`Backend::participants`].
    ///
    /// # Errors
    /// `Device`; what the rows hold is then unspecified.
    fn each_row(&self, x: &mut Self::Buffer, rows: &[usize], f: EachRow<'_>) -> Result<(), BackendError>;

    /// Copies whole rows to the host, from `first_row` on, as many as fill `out`.
    ///
    /// # Errors
    /// `Device`.
    fn read(&self, x: &Self::Buffer, first_row: usize, out: &mut [f32]) -> Result<(), BackendError>;

    /// Copies whole rows from the host, to `first_row` and the ones behind it, as many as `values` fills.
    ///
    /// # Errors
    /// `Device`.
    fn write(&self, x: &mut Self::Buffer, first_row: usize, values: &[f32]) -> Result<(), BackendError>;

    /// Whether everything so far went as it should; asked at the end of a step, as most operations cannot fail.
    ///
    /// # Errors
    /// `Device`: results are complete, but the backend must be discarded.
    fn health(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Copies whole pages, all layers: page `to` becomes page `from`.
    fn copy_pages(&self, pages: &mut Self::Pages, copies: &[(u32, u32)]);

    /// Copies the keys and values at `positions` of one sequence to the host, as the pool holds them.
    ///
    /// `out` is `[positions, layers, n_kv_heads, 2, head_dim]` elements of [`KvShape::element`], little-endian: of each head its
    /// keys, then its values. So the bytes of a token do not depend on where its page lies, nor on the size of pages.
    ///
    /// # Errors
    /// `Device`; what `out` holds is then unspecified.
    fn read_tokens(
        &self,
        pages: &Self::Pages,
        block_table: &[u32],
        positions: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), BackendError>;

    /// Writes what [`Backend::read_tokens`] read, into pages that only this sequence holds.
    ///
    /// # Errors
    /// `Device`; what the positions hold is then unspecified.
    fn write_tokens(
        &self,
        pages: &mut Self::Pages,
        block_table: &[u32],
        positions: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), BackendError>;

    /// [`Backend::read_tokens`] with each vector of `head_dim` numbers in a lossy encoding, as [`Encoding::encode`] writes it; false where this backend
    /// does not do it and wrote nothing.
    ///
    /// # Errors
    /// `Device`; what `out` holds is then unspecified.
    fn read_tokens_as(
        &self,
        pages: &Self::Pages,
        block_table: &[u32],
        positions: Range<usize>,
        encoding: Encoding,
        out: &mut [u8],
    ) -> Result<bool, BackendError> {
        let _ = (pages, block_table, positions, encoding, out);
        Ok(false)
    }

    /// [`Backend::write_tokens`] of what [`Backend::read_tokens_as`] read; false where this backend does not do it and wrote nothing.
    ///
    /// # Errors
    /// `Device`; what the positions hold is then unspecified.
    fn write_tokens_as(
        &self,
        pages: &mut Self::Pages,
        block_table: &[u32],
        positions: Range<usize>,
        encoding: Encoding,
        bytes: &[u8],
    ) -> Result<bool, BackendError> {
        let _ = (pages, block_table, positions, encoding, bytes);
        Ok(false)
    }
}
