#![forbid(unsafe_code)]
//! What the driver knows of the engine's memory: the counters of the last tick, in tokens.

use crate::record::{StateSpaceDesc, TickMemCounters};

/// Room in the pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    /// Tokens of a page; at least 1.
    pub(super) page_tokens: u64,
    page_bytes: u64,
    /// Copies of a sequence hold the same pages.
    pub(super) shares: bool,
    /// None when the pool is unbounded.
    total_pages: Option<u64>,
    used_pages: u64,
    evictable_pages: u64,
}

impl Pool {
    pub(super) fn new(space: Option<&StateSpaceDesc>) -> Self {
        const COPIES: u32 = 2;
        let page_tokens = space.map_or(1, |space| u64::from(space.page_size_tokens)).max(1);
        let page_bytes = space.map_or(0, |space| space.bytes_per_token).max(1).saturating_mul(page_tokens);
        let shares = space.is_none_or(|space| space.fork_cost_class != COPIES);
        Self { page_tokens, page_bytes, shares, total_pages: None, used_pages: 0, evictable_pages: 0 }
    }

    /// Takes the counters of a tick over.
    pub(super) fn update(&mut self, mem: &TickMemCounters) {
        self.used_pages = mem.pool_blocks_used;
        self.evictable_pages = mem.pool_bytes_evictable / self.page_bytes;
        self.total_pages = Some(mem.pool_blocks_total).filter(|&total| total != 0);
    }

    /// Pages in use.
    pub(super) fn used_pages(&self) -> u64 {
        self.used_pages
    }

    /// Whether sequences can grow by these numbers of tokens, as far as one knows, while `leased` tokens of the cache stay.
    pub(super) fn fits(&self, growths: impl Iterator<Item = u64>, leased: u64) -> bool {
        let Some(total) = self.total_pages else { return true };
        let evictable = self.evictable_pages.saturating_sub(leased / self.page_tokens);
        let free = total.saturating_sub(self.used_pages).saturating_add(evictable);
        let needed = growths.map(|tokens| tokens.div_ceil(self.page_tokens)).fold(0, u64::saturating_add);
        needed <= free
    }
}
