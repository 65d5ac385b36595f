#![forbid(unsafe_code)]
//! What a host may choose when it opens a model; every value is checked before a file is touched.

use super::place::Devices;
use super::sizing::{self, ModelDemand};
use crate::backend::cpu::{HostThreads, InstructionSet};
use crate::backend::{Arithmetic, KvType};
use crate::checkpoint::ModelConfig;
use crate::executor::ExecutorOptions;
use crate::grammar::Limits;

/// Where the model runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Device {
    /// The processor.
    #[default]
    Cpu,
    /// The CUDA device that [`ModelOptions::device_index`] names, or those of [`ModelOptions::device_mask`]. Where there is none, or the build lacks the feature `cuda`, opening
    /// answers the reason ([`NoDevice`](crate::backend::BackendError::NoDevice)).
    Cuda,
}

/// Choices of a host. Zero means the default of that field.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ModelOptions {
    /// Where the model runs.
    pub device: Device,
    /// Which CUDA device, as the driver counts them from 0.
    pub device_index: u32,
    /// Several CUDA devices that compute together, as bits: bit 0 is device 0. 0 is `device_index` alone. Results are those of one device.
    pub device_mask: u64,
    /// Threads that compute, the caller's among them; 0 is one per processor. At most [`ModelOptions::MAX_THREADS`].
    pub threads: u32,
    /// Threads of the host that compute in place of the engine's own, `threads` of them at a time; none is the engine's own. Results are
    /// the same.
    pub host_threads: Option<HostThreads>,
    /// Instructions of the processor to compute with; none is the best that it has. Those that fuse products and sums, which are all but
    /// the portable one, give the same bits. One that the processor lacks is refused
    /// ([`NoDevice`](crate::backend::BackendError::NoDevice)), and so is any beside a CUDA device.
    pub instruction_set: Option<InstructionSet>,
    /// How products are computed: exact, or faster with rounded activations, where the weights are quantised and on CUDA devices also where they have 16 bits.
    pub arithmetic: Arithmetic,
    /// Element type of cached keys and values; none is single precision, which rounds nothing, for exact arithmetic and half precision for
    /// fast: that rounding is a fortieth of the activations'.
    pub kv_type: Option<KvType>,
    /// Tokens per page: a power of two up to [`ModelOptions::MAX_PAGE_SIZE_TOKENS`]; 0 is 16.
    pub page_size_tokens: u32,
    /// Longest sequence, at most what the model was trained for; 0 is that, or 8192 when it is more.
    pub context_tokens: u32,
    /// Tokens in the page pool, rounded up to whole pages; 0 is four longest sequences. At least one page.
    pub pool_tokens: u64,
    /// Lanes of one decode step, at most [`ModelOptions::MAX_LANES`]; 0 is 64.
    pub max_lanes: u32,
    /// Prompt tokens of one step; 0 is 512.
    pub prefill_step_tokens: u32,
    /// Bytes that the model may take, weights and all, on all its devices together; 0 is no bound. Where `context_tokens` or `pool_tokens` is 0, it follows from the
    /// budget ([`sizing`]); a plan that exceeds the budget all the same is refused.
    pub memory_budget_bytes: u64,
    /// Tokens of the pool that cached state may hold when nobody else does; 0 is half of the pool, so that lanes find room even where no plan
    /// allows an eviction. The pool or more is no bound.
    pub cache_tokens: u64,
    /// Tokens of cached state that may be kept in host memory when they leave the pool; 0 is none. Each takes there what it took in
    /// the pool, and [`Model::plan`](super::Model::plan) does not count it.
    pub cache_export_tokens: u64,
    /// Bytes of state that a tick or a pump moves for operations and for entries of the cache that go to host memory, before it goes on;
    /// 0 is 4 MiB.
    pub op_slice_bytes: u64,
    /// Seal exported state with XXH3-64 instead of FNV-1a-64: many times as fast, and read only by engines that take both.
    pub op_fast_checksum: bool,
    /// Bytes of a grammar's document; 0 is 1 MiB.
    pub grammar_document_bytes: u64,
    /// Levels of a grammar's JSON document, at most [`ModelOptions::MAX_GRAMMAR_DEPTH`]; 0 is that.
    pub grammar_depth: u32,
    /// Work of compiling a grammar, in units that are the same on every machine, about 50 000 a millisecond; 0 is 1 000 000.
    pub grammar_compile_fuel: u64,
    /// Work of the lexer for one mask, about 14 000 units a millisecond; 0 is 200 000. A lane that would exceed it faults.
    pub grammar_mask_fuel: u64,
    /// Items of the parser for one mask, about 20 000 a millisecond; 0 is 50 000. A lane that would exceed them faults.
    pub grammar_mask_items: u32,
    /// States that the lexer of a lane may keep, one or two kilobytes each; 0 is 32 768. A lane that would exceed them faults.
    pub grammar_lexer_states: u32,
}

/// A value out of range. Nothing was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("option {name} is {value}, must be {allowed}")]
pub struct OptionsError {
    /// The field.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
    /// What it may be.
    pub allowed: &'static str,
}

/// The options with every default filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resolved {
    pub(super) devices: Devices,
    pub(super) threads: usize,
    pub(super) host_threads: Option<HostThreads>,
    pub(super) arithmetic: Arithmetic,
    pub(super) kv_type: KvType,
    pub(super) page_size_tokens: usize,
    pub(super) context_tokens: usize,
    pub(super) pool_pages: usize,
    pub(super) max_lanes: u32,
    pub(super) prefill_step_tokens: u32,
    pub(super) cache_resident_tokens: u64,
    pub(super) cache_exported_tokens: u64,
}

impl ModelOptions {
    /// Most threads.
    pub const MAX_THREADS: u32 = 256;
    /// Largest page.
    pub const MAX_PAGE_SIZE_TOKENS: u32 = 1024;
    /// Most lanes of a decode step.
    pub const MAX_LANES: u32 = 4096;
    /// Most levels of a grammar's document: the stack of a compilation is made for them.
    pub const MAX_GRAMMAR_DEPTH: u32 = 64;
    /// Most tokens in a pool: page numbers and positions stay within 32 bits.
    pub const MAX_POOL_TOKENS: u64 = 1 << 31;
    const DEFAULT_CONTEXT_TOKENS: usize = 8192;

    /// Element type of cached keys and values, with the default filled in.
    fn kv_type(&self) -> KvType {
        self.kv_type.unwrap_or(match self.arithmetic {
            Arithmetic::Exact => KvType::F32,
            Arithmetic::Fast => KvType::F16,
        })
    }

    /// Checks what can be checked without a model.
    ///
    /// # Errors
    /// The first field out of range.
    pub fn check(&self) -> Result<(), OptionsError> {
        let refuse = |name, value, allowed| Err(OptionsError { name, value, allowed });
        if self.threads > Self::MAX_THREADS {
            return refuse("threads", self.threads.into(), "at most 256");
        }
        let page = self.page_size_tokens;
        if page > Self::MAX_PAGE_SIZE_TOKENS || (page != 0 && !page.is_power_of_two()) {
            return refuse("page_size_tokens", page.into(), "0 or a power of two up to 1024");
        }
        if self.pool_tokens > Self::MAX_POOL_TOKENS {
            return refuse("pool_tokens", self.pool_tokens, "at most 2^31");
        }
        if self.max_lanes > Self::MAX_LANES {
            return refuse("max_lanes", self.max_lanes.into(), "at most 4096");
        }
        if self.prefill_step_tokens > 1 << 20 {
            return refuse("prefill_step_tokens", self.prefill_step_tokens.into(), "at most 2^20");
        }
        if self.device_mask != 0 && self.device == Device::Cpu {
            return refuse("device_mask", self.device_mask, "0 on the processor");
        }
        if self.device_mask != 0 && self.device_index != 0 {
            return refuse("device_index", self.device_index.into(), "0 beside device_mask");
        }
        if let Some(set) = self.instruction_set
            && self.device != Device::Cpu
        {
            return refuse("instruction_set", set as u64, "0, the best, beside a CUDA device");
        }
        if self.grammar_depth > Self::MAX_GRAMMAR_DEPTH {
            return refuse("grammar_depth", self.grammar_depth.into(), "at most 64");
        }
        Ok(())
    }

    /// What they say of an executor, the defaults filled in.
    pub(super) fn of_executor(&self) -> ExecutorOptions {
        let default = ExecutorOptions::default();
        let limits = default.grammar_limits;
        let slice = if self.op_slice_bytes == 0 { default.op_slice_bytes } else { self.op_slice_bytes };
        let or = |value: u64, default: usize| match value {
            0 => default,
            value => usize::try_from(value).unwrap_or(usize::MAX),
        };
        ExecutorOptions {
            op_slice_bytes: slice,
            cache_slice_bytes: slice,
            op_fast_checksum: self.op_fast_checksum,
            grammar_limits: Limits {
                document_bytes: or(self.grammar_document_bytes, limits.document_bytes),
                depth: or(self.grammar_depth.into(), limits.depth),
                compile_fuel: or(self.grammar_compile_fuel, limits.compile_fuel as usize) as u64,
                mask_fuel: or(self.grammar_mask_fuel, limits.mask_fuel as usize) as u64,
                mask_items: or(self.grammar_mask_items.into(), limits.mask_items),
                lexer_states: or(self.grammar_lexer_states.into(), limits.lexer_states),
                ..limits
            },
            ..default
        }
    }

    /// Fills in the defaults for a model with these numbers and weights.
    pub(super) fn resolve(&self, config: &ModelConfig, weights_bytes: u64) -> Result<Resolved, OptionsError> {
        self.check()?;
        let trained_tokens = config.context_tokens;
        let kv_type = self.kv_type();
        let demand = ModelDemand {
            budget_bytes: self.memory_budget_bytes,
            weights_bytes,
            // `ModelConfig::check` has multiplied these, by a whole context.
            token_bytes: (2 * kv_type.bytes() * config.layers * config.n_kv_heads * config.head_dim) as u64,
            trained_tokens: trained_tokens as u64,
        };
        let affordable = sizing::window_tokens(&[demand], 1).map_or(usize::MAX, |tokens| tokens as usize);
        let context_tokens = match self.context_tokens as usize {
            0 => trained_tokens.min(Self::DEFAULT_CONTEXT_TOKENS).min(affordable),
            tokens if tokens <= trained_tokens => tokens,
            tokens => {
                let allowed = "at most what the model was trained for";
                return Err(OptionsError { name: "context_tokens", value: tokens as u64, allowed });
            }
        };
        let page_size_tokens = or_default(self.page_size_tokens, 16) as usize;
        let pool_tokens = match self.pool_tokens {
            0 => within_budget(&demand, (context_tokens as u64 * 4).min(Self::MAX_POOL_TOKENS), context_tokens as u64),
            tokens => tokens,
        };
        let threads = match self.threads as usize {
            0 => std::thread::available_parallelism().map_or(1, usize::from).min(Self::MAX_THREADS as usize),
            threads => threads,
        };
        let cache_resident_tokens = match self.cache_tokens {
            0 => (pool_tokens / 2).max(1),
            tokens => tokens,
        };
        Ok(Resolved {
            devices: Devices::of(self),
            threads,
            host_threads: self.host_threads.clone(),
            arithmetic: self.arithmetic,
            kv_type,
            page_size_tokens,
            context_tokens,
            pool_pages: pool_tokens.div_ceil(page_size_tokens as u64) as usize,
            max_lanes: or_default(self.max_lanes, 64),
            prefill_step_tokens: or_default(self.prefill_step_tokens, 512),
            cache_resident_tokens,
            cache_exported_tokens: self.cache_export_tokens,
        })
    }
}

/// Tokens of the pool under the budget: 0.60 of what the weights leave, less what the headroom lacks then, and never less
/// than one sequence.
fn within_budget(demand: &ModelDemand, desired: u64, sequence: u64) -> u64 {
    let ModelDemand { budget_bytes, weights_bytes, token_bytes, .. } = *demand;
    if budget_bytes == 0 {
        return desired;
    }
    let free = budget_bytes.saturating_sub(weights_bytes);
    let pool = sizing::pool_cells(desired, sequence, Some(free), token_bytes);
    let free = free.saturating_sub(pool.saturating_mul(token_bytes));
    let back = sizing::cells_to_give_back(budget_bytes, free, token_bytes);
    pool.saturating_sub(back).max(sequence.min(desired))
}

fn or_default(value: u32, default: u32) -> u32 {
    if value == 0 { default } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Family, RopeConfig, RopePairing, RopeScaling};

    fn trained_on(context_tokens: usize) -> ModelConfig {
        let rope = RopeConfig {
            pairing: RopePairing::Halves,
            dims: 64,
            base: 1e4,
            local_base: None,
            scaling: RopeScaling::None,
        };
        ModelConfig {
            family: Family::Qwen3,
            architecture: "qwen3".to_owned(),
            layers: 16,
            hidden: 64,
            ffn_hidden: 64,
            n_heads: 8,
            n_kv_heads: 8,
            head_dim: 64,
            vocab: 100,
            context_tokens,
            norm_epsilon: 1e-6,
            attention_scale: 0.125,
            rope,
            window: None,
        }
    }

    fn resolve(options: &ModelOptions, trained: usize) -> Result<Resolved, OptionsError> {
        options.resolve(&trained_on(trained), 1 << 30)
    }

    /// 16 layers of 8 heads of 64 take 64 KiB per token, the weights 1 GiB.
    #[test]
    fn budget_decides_what_is_left_open() {
        let with = |gib: u64| ModelOptions { memory_budget_bytes: gib << 30, ..ModelOptions::default() };
        let plenty = resolve(&with(64), 131_072).expect("legal");
        assert_eq!((plenty.context_tokens, plenty.pool_pages), (8192, 4 * 8192 / 16));
        // 0.6 x (3 - 1 - 1) GiB: 9830 tokens; the pool 0.6 x 2 GiB: 19 660 tokens.
        let some = resolve(&with(3), 131_072).expect("legal");
        assert_eq!((some.context_tokens, some.pool_pages), (8192, 19_660_usize.div_ceil(16)));
        let little = resolve(&with(2), 131_072).expect("legal");
        // 0.6 x 1 GiB is 9830 tokens; what they leave is less than the headroom of half a GiB by 1638.4 tokens.
        assert_eq!((little.context_tokens, little.pool_pages), (4096, (9830 - 1638_usize).div_ceil(16)));
        let nothing = resolve(&with(1), 131_072).expect("legal");
        assert_eq!((nothing.context_tokens, nothing.pool_pages), (4096, 4096 / 16), "one sequence");
        let stated = ModelOptions { context_tokens: 100, pool_tokens: 1600, ..with(1) };
        let stated = resolve(&stated, 131_072).expect("legal");
        assert_eq!((stated.context_tokens, stated.pool_pages), (100, 100), "what is stated holds");
    }

    #[test]
    fn zero_means_the_documented_default() {
        let resolved = resolve(&ModelOptions::default(), 2048).expect("defaults are legal");
        assert_eq!(resolved.page_size_tokens, 16);
        assert_eq!(resolved.context_tokens, 2048);
        assert_eq!(resolved.pool_pages, 4 * 2048 / 16);
        assert_eq!(resolved.max_lanes, 64);
        assert_eq!(resolved.prefill_step_tokens, 512);
        assert_eq!((resolved.cache_resident_tokens, resolved.cache_exported_tokens), (4 * 2048 / 2, 0));
        assert!(resolved.threads >= 1);
        assert_eq!(resolve(&ModelOptions::default(), 1 << 20).expect("legal").context_tokens, 8192);
    }

    #[test]
    fn executor_gets_what_was_chosen_and_defaults_for_the_rest() {
        assert_eq!(ModelOptions::default().of_executor(), ExecutorOptions::default());
        let chosen = ModelOptions {
            op_slice_bytes: 1,
            op_fast_checksum: true,
            grammar_document_bytes: 2,
            grammar_depth: 3,
            grammar_compile_fuel: 4,
            grammar_mask_fuel: 5,
            grammar_mask_items: 6,
            grammar_lexer_states: 7,
            ..ModelOptions::default()
        };
        let limits = Limits {
            document_bytes: 2,
            depth: 3,
            compile_fuel: 4,
            mask_fuel: 5,
            mask_items: 6,
            lexer_states: 7,
            ..Limits::default()
        };
        let expected = ExecutorOptions {
            op_slice_bytes: 1,
            cache_slice_bytes: 1,
            op_fast_checksum: true,
            grammar_limits: limits,
            ..ExecutorOptions::default()
        };
        assert_eq!(chosen.of_executor(), expected);
        assert_eq!(Limits::default().depth, ModelOptions::MAX_GRAMMAR_DEPTH as usize);
    }

    #[test]
    fn element_type_of_the_pool_follows_the_arithmetic_unless_stated() {
        use Arithmetic::{Exact, Fast};
        use KvType::{F16, F32};
        let cases = [(Exact, None, F32), (Fast, None, F16), (Exact, Some(F16), F16), (Fast, Some(F32), F32)];
        for (arithmetic, kv_type, expected) in cases {
            let resolved = resolve(&ModelOptions { arithmetic, kv_type, ..ModelOptions::default() }, 2048);
            let resolved = resolved.expect("legal");
            assert_eq!((resolved.arithmetic, resolved.kv_type), (arithmetic, expected));
        }
    }

    #[test]
    fn each_value_out_of_range_is_named() {
        let base = ModelOptions::default();
        let cases = [
            ("threads", ModelOptions { threads: 257, ..base.clone() }),
            ("page_size_tokens", ModelOptions { page_size_tokens: 24, ..base.clone() }),
            ("page_size_tokens", ModelOptions { page_size_tokens: 2048, ..base.clone() }),
            ("context_tokens", ModelOptions { context_tokens: 4097, ..base.clone() }),
            ("pool_tokens", ModelOptions { pool_tokens: (1 << 31) + 1, ..base.clone() }),
            ("max_lanes", ModelOptions { max_lanes: 4097, ..base.clone() }),
            ("prefill_step_tokens", ModelOptions { prefill_step_tokens: (1 << 20) + 1, ..base.clone() }),
            ("grammar_depth", ModelOptions { grammar_depth: 65, ..base.clone() }),
            ("device_mask", ModelOptions { device_mask: 3, ..base.clone() }),
            ("device_index", ModelOptions { device: Device::Cuda, device_mask: 3, device_index: 1, ..base.clone() }),
            (
                "instruction_set",
                ModelOptions { device: Device::Cuda, instruction_set: Some(InstructionSet::Portable), ..base.clone() },
            ),
        ];
        for (name, options) in cases {
            for _ in 0..2 {
                assert_eq!(resolve(&options, 4096).expect_err("out of range").name, name);
            }
        }
    }

    #[test]
    fn pool_is_rounded_up_to_whole_pages() {
        let options = ModelOptions { pool_tokens: 17, page_size_tokens: 16, ..ModelOptions::default() };
        assert_eq!(resolve(&options, 4096).expect("legal").pool_pages, 2);
    }
}
