#![forbid(unsafe_code)]
//! The block table of one sequence: logical page to physical page.
//!
//! # Invariants
//! `pages` has exactly `ceil(len / page_size_tokens)` entries, none twice.

use super::pool::{PagePool, PageRef};

/// Pages of a sequence in position order, and how many tokens they hold.
#[derive(Clone, Debug, Default)]
pub struct BlockTable {
    pages: Vec<PageRef>,
    len: usize,
}

impl BlockTable {
    /// Tokens held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no token is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Physical page of each logical page.
    pub fn pages(&self) -> &[PageRef] {
        &self.pages
    }

    /// New pages that `tokens` more tokens take, the copy of a shared tail left out.
    pub(super) fn pages_to_grow(&self, tokens: usize, page_size_tokens: usize) -> usize {
        (self.len + tokens).div_ceil(page_size_tokens) - self.pages.len()
    }

    /// The partly filled page, which the next token is written into; none when the last page is full.
    pub(super) fn open_page(&self, page_size_tokens: usize) -> Option<PageRef> {
        if self.len.is_multiple_of(page_size_tokens) { None } else { self.pages.last().copied() }
    }

    /// Makes room for `pages` more entries; false when the host has no memory for them.
    pub(super) fn reserve(&mut self, pages: usize) -> bool {
        self.pages.try_reserve(pages).is_ok()
    }

    /// Appends `tokens` tokens; the caller has checked that `pool` has the pages. Answers the copy that the open page needs
    /// when others hold it too.
    pub(super) fn grow(
        &mut self,
        tokens: usize,
        page_size_tokens: usize,
        pool: &mut PagePool,
    ) -> Option<(PageRef, PageRef)> {
        let mut copy = None;
        if let Some(open) = self.open_page(page_size_tokens).filter(|&open| tokens > 0 && pool.references(open) > 1)
            && let Some(fresh) = pool.take()
        {
            pool.release(open);
            self.pages.pop();
            self.pages.push(fresh);
            copy = Some((open, fresh));
        }
        let more = self.pages_to_grow(tokens, page_size_tokens);
        self.pages.extend((0..more).map_while(|_| pool.take()));
        self.len += tokens;
        copy
    }

    /// Cuts to `len` tokens, at most those held; the pages past them lose a holder.
    pub(super) fn truncate(&mut self, len: usize, page_size_tokens: usize, pool: &mut PagePool) {
        // Last first, so that the next sequence takes them in position order.
        for page in self.pages.drain(len.div_ceil(page_size_tokens)..).rev() {
            pool.release(page);
        }
        self.len = len;
    }

    /// Becomes the first `len` tokens of a table whose first pages are `shared`; the caller has made room.
    pub(super) fn adopt(&mut self, shared: &[PageRef], len: usize, pool: &mut PagePool) {
        for &page in shared {
            pool.retain(page);
        }
        for page in self.pages.drain(..).rev() {
            pool.release(page);
        }
        self.pages.extend_from_slice(shared);
        self.len = len;
    }
}
