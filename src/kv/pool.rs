#![forbid(unsafe_code)]
//! Pages of one pool: a free list and reference counts.
//!
//! Some holders rest: nobody works with their sequences. Pages that only resting holders hold are counted as they come and go, so that
//! a cache knows what it alone keeps without looking at a page.
//!
//! # Invariants
//! - `references[page]` is 0 exactly when the page is on the free list, where it is once.
//! - `awake[page]` is at most `references[page]`; `resting` counts the held pages where it is 0.

use super::KvError;

/// Number of a page in its pool.
pub type PageRef = u32;

/// Stands in a block table where a page was given back; no pool has a page of this number.
pub const HOLE: PageRef = PageRef::MAX;

/// Free list and reference counts of equal pages. Every operation is constant time.
#[derive(Debug)]
pub struct PagePool {
    /// Free pages; the last one is handed out next, so a page just freed is still warm.
    free: Vec<PageRef>,
    /// Holders of each page.
    references: Vec<u32>,
    /// Holders of each page that do not rest.
    awake: Vec<u32>,
    /// Pages that only resting holders hold.
    resting: usize,
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
        let mut awake = Vec::new();
        free.try_reserve_exact(pages).map_err(|_| KvError::OutOfMemory)?;
        references.try_reserve_exact(pages).map_err(|_| KvError::OutOfMemory)?;
        awake.try_reserve_exact(pages).map_err(|_| KvError::OutOfMemory)?;
        free.extend((0..count).rev());
        references.resize(pages, 0);
        awake.resize(pages, 0);
        Ok(Self { free, references, awake, resting: 0 })
    }

    /// Bytes that a pool of `pages` pages keeps for itself.
    pub const fn table_bytes(pages: usize) -> u64 {
        pages as u64 * 3 * size_of::<PageRef>() as u64
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

    /// Pages that only resting holders hold.
    pub fn pages_resting(&self) -> usize {
        self.resting
    }

    /// Holders of a page.
    pub fn references(&self, page: PageRef) -> u32 {
        self.references.get(page as usize).copied().unwrap_or(0)
    }

    /// A free page, now held once; none when there is none.
    pub(super) fn take(&mut self) -> Option<PageRef> {
        let page = self.free.pop()?;
        self.references[page as usize] = 1;
        self.awake[page as usize] = 1;
        Some(page)
    }

    /// One more holder of a held page.
    pub(super) fn retain(&mut self, page: PageRef) {
        debug_assert!(self.references[page as usize] > 0, "a free page is not shared");
        self.references[page as usize] += 1;
        self.wake(page);
    }

    /// A holder of a page falls asleep.
    pub(super) fn rest(&mut self, page: PageRef) {
        let awake = &mut self.awake[page as usize];
        debug_assert!(*awake > 0, "who rests was awake");
        *awake -= 1;
        self.resting += usize::from(*awake == 0);
    }

    /// A resting holder of a page wakes up, or a new one comes.
    pub(super) fn wake(&mut self, page: PageRef) {
        let awake = &mut self.awake[page as usize];
        self.resting -= usize::from(*awake == 0);
        *awake += 1;
        debug_assert!(*awake <= self.references[page as usize], "who wakes was a holder");
    }

    /// One more holder of each of these held pages.
    pub(super) fn retain_all(&mut self, pages: &[PageRef]) {
        // Pages are mostly taken in order, so that most runs of a table are runs of the counts, which are added to side by side.
        const RUN: usize = 16;
        for run in pages.chunks(RUN) {
            let first = run.first().copied().unwrap_or(0);
            let in_order =
                run.iter().zip(0..).fold(true, |in_order, (&page, i)| in_order & (page == first.wrapping_add(i)));
            let pages = first as usize..first as usize + run.len();
            match (self.references.get_mut(pages.clone()), self.awake.get_mut(pages)) {
                (Some(references), Some(awake)) if in_order => {
                    debug_assert!(references.iter().all(|&count| count > 0), "a free page is not shared");
                    references.iter_mut().for_each(|count| *count += 1);
                    self.resting -= awake.iter().map(|&count| usize::from(count == 0)).sum::<usize>();
                    awake.iter_mut().for_each(|count| *count += 1);
                }
                _ => run.iter().for_each(|&page| self.retain(page)),
            }
        }
    }

    /// One holder less of a held page, one that was awake; the last one frees it.
    pub(super) fn release(&mut self, page: PageRef) {
        let references = &mut self.references[page as usize];
        let awake = &mut self.awake[page as usize];
        debug_assert!(*references > 0 && *awake > 0, "a free page is not released, nor by who rests");
        *references -= 1;
        *awake -= 1;
        if *references == 0 {
            self.free.push(page);
        } else {
            self.resting += usize::from(*awake == 0);
        }
    }

    /// Checks that the free list and the counts agree, and that holders and those of them that are awake are as many as `references`
    /// and `awake` say.
    #[cfg(debug_assertions)]
    pub(super) fn audit(&self, references: &[u32], awake: &[u32]) -> Result<(), String> {
        if self.references != references || self.awake != awake {
            return Err("reference counts differ from the block tables".to_owned());
        }
        let resting = references.iter().zip(awake).filter(|&(&held, &awake)| held > 0 && awake == 0).count();
        if resting != self.resting {
            return Err(format!("{resting} pages rest, {} are counted", self.resting));
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
