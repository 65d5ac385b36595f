#![forbid(unsafe_code)]
//! Pages of one pool: a free list and reference counts.
//!
//! # Invariants
//! `references[page]` is 0 exactly when the page is on the free list, where it is once.

use super::KvError;

/// Number of a page in its pool.
pub type PageRef = u32;

/// Free list and reference counts of equal pages. Every operation is constant time.
#[derive(Debug)]
pub struct PagePool {
    /// Free pages; the last one is handed out next, so a page just freed is still warm.
    free: Vec<PageRef>,
    /// Holders of each page.
    references: Vec<u32>,
}

impl PagePool {
    /// A pool of `pages` free pages; page 0 is handed out first.
    ///
    /// # Errors
    /// `OutOfMemory` when the lists cannot be had, or `pages` does not fit a page number.
    pub fn new(pages: usize) -> Result<Self, KvError> {
        let count = PageRef::try_from(pages).map_err(|_| KvError::OutOfMemory)?;
        let mut free = Vec::new();
        let mut references = Vec::new();
        free.try_reserve_exact(pages).map_err(|_| KvError::OutOfMemory)?;
        references.try_reserve_exact(pages).map_err(|_| KvError::OutOfMemory)?;
        free.extend((0..count).rev());
        references.resize(pages, 0);
        Ok(Self { free, references })
    }

    /// Bytes that a pool of `pages` pages keeps for itself.
    pub const fn table_bytes(pages: usize) -> u64 {
        pages as u64 * 2 * size_of::<PageRef>() as u64
    }

    /// All pages.
    pub fn pages(&self) -> usize {
        self.references.len()
    }

    /// Pages that nobody holds.
    pub fn pages_free(&self) -> usize {
        self.free.len()
    }

    /// Pages that somebody holds.
    pub fn pages_used(&self) -> usize {
        self.references.len() - self.free.len()
    }

    /// Holders of a page.
    pub fn references(&self, page: PageRef) -> u32 {
        self.references.get(page as usize).copied().unwrap_or(0)
    }

    /// A free page, now held once; none when there is none.
    pub(super) fn take(&mut self) -> Option<PageRef> {
        let page = self.free.pop()?;
        self.references[page as usize] = 1;
        Some(page)
    }

    /// One more holder of a held page.
    pub(super) fn retain(&mut self, page: PageRef) {
        debug_assert!(self.references[page as usize] > 0, "a free page is not shared");
        self.references[page as usize] += 1;
    }

    /// One holder less of a held page; the last one frees it.
    pub(super) fn release(&mut self, page: PageRef) {
        let references = &mut self.references[page as usize];
        debug_assert!(*references > 0, "a free page is not released");
        *references -= 1;
        if *references == 0 {
            self.free.push(page);
        }
    }

    /// Checks that the free list and the reference counts agree, and that the counts are `expected`.
    #[cfg(debug_assertions)]
    pub(super) fn audit(&self, expected: &[u32]) -> Result<(), String> {
        if self.references != expected {
            return Err("reference counts differ from the block tables".to_owned());
        }
        let mut seen = vec![false; self.references.len()];
        for &page in &self.free {
            if self.references[page as usize] != 0 || std::mem::replace(&mut seen[page as usize], true) {
                return Err(format!("page {page} is free and held, or free twice"));
            }
        }
        let unheld = self.references.iter().filter(|&&count| count == 0).count();
        if unheld != self.free.len() {
            return Err(format!("{unheld} pages are unheld, {} are free", self.free.len()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_holder_frees_a_page() {
        let mut pool = PagePool::new(2).expect("small");
        let page = pool.take().expect("free");
        pool.retain(page);
        pool.release(page);
        assert_eq!((pool.references(page), pool.pages_used()), (1, 1));
        pool.release(page);
        assert_eq!((pool.references(page), pool.pages_used()), (0, 0));
    }

    #[test]
    fn empty_pool_gives_nothing() {
        let mut pool = PagePool::new(1).expect("small");
        assert_eq!(pool.take(), Some(0));
        assert_eq!(pool.take(), None);
        assert_eq!(pool.take(), None);
    }

    #[test]
    fn page_numbers_are_32_bits() {
        assert!(matches!(PagePool::new(usize::MAX), Err(KvError::OutOfMemory)));
    }
}
