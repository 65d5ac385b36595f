#![forbid(unsafe_code)]
//! The block table of one sequence: logical page to physical page.
//!
//! # Invariants
//! `pages` has exactly `ceil(len / page_size_tokens)` entries, no page twice; `holes` of them are [`HOLE`].

use std::ops::Range;

use super::pool::{HOLE, PagePool, PageRef};

/// Pages of a sequence in position order, and how many tokens they hold.
#[derive(Clone, Debug, Default)]
pub struct BlockTable {
    pages: Vec<PageRef>,
    holes: usize,
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

    /// Whether pages were given back.
    pub fn has_holes(&self) -> bool {
        self.holes > 0
    }

    /// Whether pages of this range were given back; positions past the end count for nothing.
    pub fn has_holes_in(&self, pages: Range<usize>) -> bool {
        let end = pages.end.min(self.pages.len());
        self.holes > 0 && self.pages.get(pages.start..end).is_some_and(|pages| pages.contains(&HOLE))
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
            match page {
                HOLE => self.holes -= 1,
                page => pool.release(page),
            }
        }
        self.len = len;
    }

    /// Gives the pages of a range back; the caller has checked that none is a hole.
    pub(super) fn punch(&mut self, range: Range<usize>, pool: &mut PagePool) {
        self.holes += range.len();
        for page in self.pages[range].iter_mut().rev() {
            pool.release(core::mem::replace(page, HOLE));
        }
    }

    /// Takes pages for a range of holes; the caller has checked that `pool` has them.
    pub(super) fn fill(&mut self, range: Range<usize>, pool: &mut PagePool) {
        for page in &mut self.pages[range] {
            if let Some(fresh) = pool.take() {
                *page = fresh;
                self.holes -= 1;
            }
        }
    }

    /// Becomes the first `len` tokens of a table whose first pages are `shared`; the caller has made room.
    pub(super) fn adopt(&mut self, shared: &[PageRef], len: usize, pool: &mut PagePool) {
        pool.retain_all(shared);
        // Of no length, the size of pages does not matter.
        self.truncate(0, 1, pool);
        self.pages.extend_from_slice(shared);
        self.len = len;
    }
}
