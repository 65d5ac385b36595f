#![forbid(unsafe_code)]
//! What a host may choose when it opens a model; every value is checked before a file is touched.

use crate::backend::KvType;

/// Where the model runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Device {
    /// The processor.
    #[default]
    Cpu,
    /// A CUDA device. This build has none: opening answers the reason.
    Cuda,
}

/// Choices of a host. Zero means the default of that field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ModelOptions {
    /// Where the model runs.
    pub device: Device,
    /// Threads that compute, the caller's among them; 0 is one per processor. At most [`ModelOptions::MAX_THREADS`].
    pub threads: u32,
    /// Element type of cached keys and values. Single precision is the default: it rounds nothing.
    pub kv_type: KvType,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resolved {
    pub(super) threads: usize,
    pub(super) kv_type: KvType,
    pub(super) page_size_tokens: usize,
    pub(super) context_tokens: usize,
    pub(super) pool_pages: usize,
    pub(super) max_lanes: u32,
    pub(super) prefill_step_tokens: u32,
}

impl ModelOptions {
    /// Most threads.
    pub const MAX_THREADS: u32 = 256;
    /// Largest page.
    pub const MAX_PAGE_SIZE_TOKENS: u32 = 1024;
    /// Most lanes of a decode step.
    pub const MAX_LANES: u32 = 4096;
    /// Most tokens in a pool: page numbers and positions stay within 32 bits.
    pub const MAX_POOL_TOKENS: u64 = 1 << 31;
    const DEFAULT_CONTEXT_TOKENS: usize = 8192;

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
        Ok(())
    }

    /// Fills in the defaults for a model trained on `trained_tokens`.
    pub(super) fn resolve(&self, trained_tokens: usize) -> Result<Resolved, OptionsError> {
        self.check()?;
        let context_tokens = match self.context_tokens as usize {
            0 => trained_tokens.min(Self::DEFAULT_CONTEXT_TOKENS),
            tokens if tokens <= trained_tokens => tokens,
            tokens => {
                let allowed = "at most what the model was trained for";
                return Err(OptionsError { name: "context_tokens", value: tokens as u64, allowed });
            }
        };
        let page_size_tokens = or_default(self.page_size_tokens, 16) as usize;
        let pool_tokens = match self.pool_tokens {
            0 => (context_tokens as u64 * 4).min(Self::MAX_POOL_TOKENS),
            tokens => tokens,
        };
        let threads = match self.threads as usize {
            0 => std::thread::available_parallelism().map_or(1, usize::from).min(Self::MAX_THREADS as usize),
            threads => threads,
        };
        Ok(Resolved {
            threads,
            kv_type: self.kv_type,
            page_size_tokens,
            context_tokens,
            pool_pages: pool_tokens.div_ceil(page_size_tokens as u64) as usize,
            max_lanes: or_default(self.max_lanes, 64),
            prefill_step_tokens: or_default(self.prefill_step_tokens, 512),
        })
    }
}

fn or_default(value: u32, default: u32) -> u32 {
    if value == 0 { default } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_means_the_documented_default() {
        let resolved = ModelOptions::default().resolve(2048).expect("defaults are legal");
        assert_eq!(resolved.page_size_tokens, 16);
        assert_eq!(resolved.context_tokens, 2048);
        assert_eq!(resolved.pool_pages, 4 * 2048 / 16);
        assert_eq!(resolved.max_lanes, 64);
        assert_eq!(resolved.prefill_step_tokens, 512);
        assert!(resolved.threads >= 1);
        assert_eq!(ModelOptions::default().resolve(1 << 20).expect("legal").context_tokens, 8192);
    }

    #[test]
    fn each_value_out_of_range_is_named() {
        let base = ModelOptions::default();
        let cases = [
            ("threads", ModelOptions { threads: 257, ..base }),
            ("page_size_tokens", ModelOptions { page_size_tokens: 24, ..base }),
            ("page_size_tokens", ModelOptions { page_size_tokens: 2048, ..base }),
            ("context_tokens", ModelOptions { context_tokens: 4097, ..base }),
            ("pool_tokens", ModelOptions { pool_tokens: (1 << 31) + 1, ..base }),
            ("max_lanes", ModelOptions { max_lanes: 4097, ..base }),
            ("prefill_step_tokens", ModelOptions { prefill_step_tokens: (1 << 20) + 1, ..base }),
        ];
        for (name, options) in cases {
            for _ in 0..2 {
                assert_eq!(options.resolve(4096).expect_err("out of range").name, name);
            }
        }
    }

    #[test]
    fn pool_is_rounded_up_to_whole_pages() {
        let options = ModelOptions { pool_tokens: 17, page_size_tokens: 16, ..ModelOptions::default() };
        assert_eq!(options.resolve(4096).expect("legal").pool_pages, 2);
    }
}
