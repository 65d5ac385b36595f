#![forbid(unsafe_code)]
//! What a model will take, before it is loaded.

use crate::backend::{KvShape, KvType, Spread};
use crate::checkpoint::ModelConfig;
use crate::kv::PagePool;
use crate::model::WorkspaceShape;
use crate::runtime::ROWS_MAX;

/// Most rows of one walk over the layers: longer steps are walked in parts.
const PASS_ROWS: usize = 512;
/// Bytes of logits computed at once, when that is more than [`ROWS_MAX`] rows.
const LOGITS_BYTES: usize = 16 << 20;

/// Sizes of a runtime, chosen by the host and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagedOptions {
    /// Element type of cached keys and values.
    pub kv_type: KvType,
    /// Tokens per page; 0 counts as 1.
    pub page_size_tokens: usize,
    /// Pages of the pool.
    pub pool_pages: usize,
    /// Most tokens of a sequence.
    pub context_tokens: usize,
    /// Feeds of one decode step, for which a host plans.
    pub max_lanes: u32,
    /// Prompt tokens of one step, for which a host plans.
    pub prefill_step_tokens: u32,
    /// Most rows of one walk over the layers, at least [`ROWS_MAX`]; 0 is 512, or less when steps are shorter. Changes memory and
    /// speed, never a bit of an answer.
    pub pass_rows: usize,
    /// Tokens of the pool that resting cache entries may hold alone; 0 is no bound (S-57).
    pub cache_resident_tokens: u64,
    /// Tokens of cache entries that may be kept in host memory outside the pool; 0 is none (S-56). Each takes there what it took in the
    /// pool, from when it is exported on.
    pub cache_exported_tokens: u64,
}

impl PagedOptions {
    /// Rows of one walk, with the default filled in.
    pub fn resolved_pass_rows(&self) -> usize {
        let step = self.max_lanes.max(self.prefill_step_tokens) as usize;
        let rows = if self.pass_rows == 0 { step.min(PASS_ROWS) } else { self.pass_rows };
        rows.max(ROWS_MAX)
    }

    /// Logical pages of the longest sequence.
    pub(crate) fn longest_table(&self) -> usize {
        self.context_tokens.div_ceil(self.page_size_tokens.max(1))
    }

    /// The pool.
    pub(crate) fn kv_shape(&self, config: &ModelConfig) -> KvShape {
        KvShape {
            layers: config.layers,
            n_kv_heads: config.n_kv_heads,
            head_dim: config.head_dim,
            page_size_tokens: self.page_size_tokens.max(1),
            pages: self.pool_pages,
            element: self.kv_type,
        }
    }

    /// The activations.
    pub(super) fn workspace_shape(&self, config: &ModelConfig) -> WorkspaceShape {
        let rows = self.resolved_pass_rows();
        let head_rows = (LOGITS_BYTES / (size_of::<f32>() * config.vocab)).max(ROWS_MAX).min(rows);
        WorkspaceShape::new(config, rows, head_rows)
    }
}

/// Bytes of a runtime by what they are for. Beyond these, block tables take 4 bytes per page that a sequence holds, each thread that draws
/// tokens takes [`Scratch::bytes`](crate::sample::Scratch::bytes), and the answers of a step belong to the caller; an adapter takes 4 bytes
/// for each element of its factors when it is loaded, and the first one its rows of activations. [`MemoryPlan::new`] knows no backend: what one
/// keeps for its products and operations ([`CpuBackend::input_bytes`](crate::backend::cpu::CpuBackend::input_bytes)) is in the plan of a model that is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights as they are held, once for all runtimes that share them: in memory of their own where a backend re-lays them, as that of
    /// processors does (up to 4 % more than in their file, whose mapped pages it gives back as it goes).
    pub weights_bytes: u64,
    /// Keys and values of all pages.
    pub kv_pool_bytes: u64,
    /// Activations, and rows of them in the form that weights meet; on a device also what operations work in and what goes to and from it.
    pub activation_bytes: u64,
    /// Free list and reference counts.
    pub table_bytes: u64,
}

impl MemoryPlan {
    /// The plan of a model with these numbers, options and weights; none when a sum does not fit 64 bits.
    pub fn new(config: &ModelConfig, options: &PagedOptions, weights_bytes: u64) -> Option<Self> {
        Self::on_device(config, options, weights_bytes, 0, 1)
    }

    /// What of it lies on device `member` out of `members`; tables, which are the host's, are in that of the first.
    pub fn on_device(
        config: &ModelConfig,
        options: &PagedOptions,
        weights_bytes: u64,
        member: usize,
        members: usize,
    ) -> Option<Self> {
        let kv = options.kv_shape(config);
        let n_kv_heads = Spread::share(kv.n_kv_heads, 1, member, members).len();
        let plan = Self {
            weights_bytes,
            kv_pool_bytes: KvShape { n_kv_heads, ..kv }.page_bytes()?.checked_mul(kv.pages as u64)?,
            activation_bytes: options.workspace_shape(config).bytes_on(member, members)?,
            table_bytes: if member == 0 { PagePool::table_bytes(kv.pages) } else { 0 },
        };
        plan.checked_total().map(|_| plan)
    }

    /// This and another one; none when a sum does not fit 64 bits.
    pub fn with(&self, other: &Self) -> Option<Self> {
        let plan = Self {
            weights_bytes: self.weights_bytes.checked_add(other.weights_bytes)?,
            kv_pool_bytes: self.kv_pool_bytes.checked_add(other.kv_pool_bytes)?,
            activation_bytes: self.activation_bytes.checked_add(other.activation_bytes)?,
            table_bytes: self.table_bytes.checked_add(other.table_bytes)?,
        };
        plan.checked_total().map(|_| plan)
    }

    /// All bytes.
    pub fn total_bytes(&self) -> u64 {
        self.weights_bytes + self.allocated_bytes()
    }

    /// All bytes but those of the weights, which runtimes may share.
    pub fn allocated_bytes(&self) -> u64 {
        self.kv_pool_bytes + self.activation_bytes + self.table_bytes
    }

    fn checked_total(&self) -> Option<u64> {
        [self.kv_pool_bytes, self.activation_bytes, self.table_bytes]
            .into_iter()
            .try_fold(self.weights_bytes, u64::checked_add)
    }
}
