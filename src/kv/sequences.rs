#![forbid(unsafe_code)]
//! Sequences over one pool: create, grow, cut, share, free.
//!
//! A handle is a serial number and a slot in one integer, `serial << 24 | slot`: it finds its slot without a search, and since
//! the serial only rises, handles ascend and none is used twice.
//!
//! A sequence that nobody works with can rest ([`Sequences::rest`]); whatever changes it wakes it.
//!
//! # Invariants
//! A handle is live exactly when its slot holds it. Slots and block tables of freed sequences are kept and used again, so
//! that creating and freeing does not allocate once the tables are warm.

use std::ops::Range;

use smallvec::SmallVec;

use super::KvError;
use super::block_table::BlockTable;
use super::pool::{HOLE, PagePool, PageRef};

/// Names a sequence; 0 names none.
pub type Handle = u64;

const SLOT_BITS: u32 = 24;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
const SERIAL_MAX: u64 = u64::MAX >> SLOT_BITS;

/// Sizes that are fixed when the tables are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequencesShape {
    /// Pages of the pool.
    pub pages: usize,
    /// Tokens per page; 0 counts as 1.
    pub page_size_tokens: usize,
    /// Most tokens of a sequence.
    pub sequence_tokens: usize,
    /// Most sequences at once; 0 is what handles can name.
    pub sequences: usize,
}

/// Tokens to append to a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// The sequence.
    pub handle: Handle,
    /// Tokens to append.
    pub tokens: usize,
}

#[derive(Debug, Default)]
struct Slot {
    /// The sequence that lives here, or 0.
    handle: Handle,
    /// The last call of `grow` that named it: finds repetitions without a search.
    grown_in: u64,
    /// What the caller keeps with the sequence.
    mark: u64,
    /// Pages copied for it since it was made.
    copies: u64,
    /// Nobody works with it.
    resting: bool,
    table: BlockTable,
}

/// All sequences of a pool.
#[derive(Debug)]
pub struct Sequences {
    shape: SequencesShape,
    pool: PagePool,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    serial: u64,
    grow_calls: u64,
    open_pages: Vec<PageRef>,
}

impl Sequences {
    /// No sequences over a pool of free pages.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(shape: SequencesShape) -> Result<Self, KvError> {
        let named = SLOT_MASK as usize + 1;
        let sequences = if shape.sequences == 0 { named } else { shape.sequences.min(named) };
        Ok(Self {
            shape: SequencesShape { sequences, page_size_tokens: shape.page_size_tokens.max(1), ..shape },
            pool: PagePool::new(shape.pages)?,
            slots: Vec::new(),
            vacant: Vec::new(),
            serial: 0,
            grow_calls: 0,
            open_pages: Vec::new(),
        })
    }

    /// The sizes, with zeros replaced by what they stand for.
    pub fn shape(&self) -> &SequencesShape {
        &self.shape
    }

    /// The pages.
    pub fn pool(&self) -> &PagePool {
        &self.pool
    }

    /// A new empty sequence.
    ///
    /// # Errors
    /// `OutOfSequences`, `OutOfMemory`.
    pub fn create(&mut self) -> Result<Handle, KvError> {
        let exhausted = KvError::OutOfSequences { limit: self.shape.sequences };
        if self.serial == SERIAL_MAX {
            return Err(exhausted);
        }
        let slot = match self.vacant.pop() {
            Some(slot) => slot as usize,
            None if self.slots.len() < self.shape.sequences => {
                // Room in `vacant` too, so that freeing never allocates.
                self.slots.try_reserve(1).map_err(|_| KvError::OutOfMemory)?;
                self.vacant.try_reserve(self.slots.len() + 1).map_err(|_| KvError::OutOfMemory)?;
                self.slots.push(Slot::default());
                self.slots.len() - 1
            }
            None => return Err(exhausted),
        };
        self.serial += 1;
        let handle = self.serial << SLOT_BITS | slot as u64;
        self.slots[slot].handle = handle;
        self.slots[slot].mark = 0;
        self.slots[slot].copies = 0;
        Ok(handle)
    }

    /// Frees a sequence; false when there is none.
    pub fn free(&mut self, handle: Handle) -> bool {
        let Ok(index) = self.find(handle) else { return false };
        self.wake(index);
        let slot = &mut self.slots[index];
        slot.table.truncate(0, self.shape.page_size_tokens, &mut self.pool);
        slot.handle = 0;
        self.vacant.push(index as u32);
        true
    }

    /// The block table of a sequence.
    ///
    /// # Errors
    /// `UnknownSequence`.
    pub fn table(&self, handle: Handle) -> Result<&BlockTable, KvError> {
        Ok(&self.slots[self.find(handle)?].table)
    }

    /// Lets a sequence rest until it is changed, which costs its pages once; false when there is none. Copying from it does not wake it.
    pub fn rest(&mut self, handle: Handle) -> bool {
        let Ok(index) = self.find(handle) else { return false };
        let slot = &mut self.slots[index];
        if !std::mem::replace(&mut slot.resting, true) {
            slot.table.pages().iter().filter(|&&page| page != HOLE).for_each(|&page| self.pool.rest(page));
        }
        true
    }

    /// The sequence in slot `index` no longer rests.
    fn wake(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if std::mem::take(&mut slot.resting) {
            slot.table.pages().iter().filter(|&&page| page != HOLE).for_each(|&page| self.pool.wake(page));
        }
    }

    /// A number that the caller keeps with a sequence: 0 for a new one, and for one that is not there.
    pub fn mark(&self, handle: Handle) -> u64 {
        self.find(handle).map_or(0, |index| self.slots[index].mark)
    }

    /// Pages that [`Sequences::grow`] copied for a sequence because they were shared; 0 for one that is not there.
    pub fn page_copies(&self, handle: Handle) -> u64 {
        self.find(handle).map_or(0, |index| self.slots[index].copies)
    }

    /// Keeps a number with a sequence. [`Sequences::share`] hands it on.
    ///
    /// # Errors
    /// `UnknownSequence`.
    pub fn set_mark(&mut self, handle: Handle, mark: u64) -> Result<(), KvError> {
        let index = self.find(handle)?;
        self.slots[index].mark = mark;
        Ok(())
    }

    /// Appends tokens to several sequences at once, all or none, and adds to `copies` the pages whose bytes the caller
    /// must copy before anything is written: page `.1` becomes page `.0`.
    ///
    /// # Errors
    /// `UnknownSequence`, `Repeated`, `Hole`, `TooLong`, `OutOfPages`, `OutOfMemory`; nothing changed.
    pub fn grow(&mut self, growths: &[Growth], copies: &mut Vec<(PageRef, PageRef)>) -> Result<(), KvError> {
        let needed = self.check_growths(growths)?;
        if needed > self.pool.pages_free() {
            return Err(KvError::OutOfPages { needed, free: self.pool.pages_free() });
        }
        copies.try_reserve(growths.len()).map_err(|_| KvError::OutOfMemory)?;
        for growth in growths {
            let index = self.find(growth.handle)?;
            self.wake(index);
            let slot = &mut self.slots[index];
            let before = copies.len();
            copies.extend(slot.table.grow(growth.tokens, self.shape.page_size_tokens, &mut self.pool));
            slot.copies += (copies.len() - before) as u64;
        }
        Ok(())
    }

    /// Pages that [`Sequences::grow`] would take from the free list.
    ///
    /// # Errors
    /// As [`Sequences::grow`], `OutOfPages` excepted.
    pub fn pages_to_grow(&mut self, growths: &[Growth]) -> Result<usize, KvError> {
        self.check_growths(growths)
    }

    fn check_growths(&mut self, growths: &[Growth]) -> Result<usize, KvError> {
        let SequencesShape { page_size_tokens, sequence_tokens, .. } = self.shape;
        self.grow_calls += 1;
        self.open_pages.clear();
        let mut needed = 0;
        for &Growth { handle, tokens } in growths {
            let index = self.find(handle)?;
            let slot = &mut self.slots[index];
            if std::mem::replace(&mut slot.grown_in, self.grow_calls) == self.grow_calls {
                return Err(KvError::Repeated { handle });
            }
            if slot.table.has_holes() {
                return Err(KvError::Hole { handle });
            }
            let len = slot.table.len() as u64 + tokens as u64;
            if len > sequence_tokens as u64 {
                return Err(KvError::TooLong { tokens: len, limit: sequence_tokens });
            }
            let pages = slot.table.pages_to_grow(tokens, page_size_tokens);
            if !slot.table.reserve(pages) {
                return Err(KvError::OutOfMemory);
            }
            needed += pages;
            let open = slot.table.open_page(page_size_tokens).filter(|_| tokens > 0);
            self.open_pages.extend(open.filter(|&open| self.pool.references(open) > 1));
        }
        Ok(needed + copies_of(&mut self.open_pages, &self.pool))
    }

    /// Pages that it would take from the free list to cut each sequence to the length beside it and then append its tokens, when the
    /// sequences `leaving` are gone by then. Unknown sequences take none; each occurs once.
    pub fn pages_to_regrow(&self, growths: &[(usize, Growth)], leaving: &[Handle]) -> usize {
        let page_size_tokens = self.shape.page_size_tokens;
        // Sequences share a page at one place of their tables only.
        let holders = |place: usize, page: PageRef| {
            let leaves = |&&handle: &&Handle| self.table(handle).is_ok_and(|t| t.pages().get(place) == Some(&page));
            // A page that was given back has no holder at all.
            (self.pool.references(page) as usize).saturating_sub(leaving.iter().filter(leaves).count())
        };
        let mut open_pages: SmallVec<[(PageRef, usize); 16]> = SmallVec::new();
        let mut needed = 0;
        for &(keep, Growth { handle, tokens }) in growths {
            let Ok(table) = self.table(handle) else { continue };
            let kept = keep.div_ceil(page_size_tokens).min(table.pages().len());
            let pages = table.pages().iter().copied().enumerate();
            let freed = pages.skip(kept).filter(|&(place, page)| holders(place, page) == 1).count();
            needed += ((keep + tokens).div_ceil(page_size_tokens) - kept).saturating_sub(freed);
            let open = table.pages()[..kept].last().filter(|_| tokens > 0 && !keep.is_multiple_of(page_size_tokens));
            open_pages.extend(open.map(|&page| (page, holders(kept - 1, page))).filter(|&(_, holders)| holders > 1));
        }
        open_pages.sort_unstable();
        let held = open_pages.chunk_by(|a, b| a.0 == b.0);
        needed + held.map(|growing| growing.len().min(growing[0].1 - 1)).sum::<usize>()
    }

    /// Cuts a sequence to `len` tokens.
    ///
    /// # Errors
    /// `UnknownSequence`, `PastEnd`; nothing changed.
    pub fn truncate(&mut self, handle: Handle, len: u64) -> Result<(), KvError> {
        let index = self.find(handle)?;
        let len = self.cut(index, len)?;
        self.wake(index);
        self.slots[index].table.truncate(len, self.shape.page_size_tokens, &mut self.pool);
        Ok(())
    }

    /// Makes `target` the first `len` tokens of `source`, sharing its pages; what `target` held is released. Takes no page.
    ///
    /// # Errors
    /// `UnknownSequence`, `PastEnd`, `Hole`, `OutOfMemory`; nothing changed.
    pub fn share(&mut self, source: Handle, target: Handle, len: u64) -> Result<(), KvError> {
        let from = self.find(source)?;
        let to = self.find(target)?;
        let len = self.cut(from, len)?;
        let pages = len.div_ceil(self.shape.page_size_tokens);
        if self.slots[from].table.has_holes_in(0..pages) {
            return Err(KvError::Hole { handle: source });
        }
        if from == to {
            return self.truncate(target, len as u64);
        }
        if !self.slots[to].table.reserve(pages) {
            return Err(KvError::OutOfMemory);
        }
        self.wake(to);
        let Ok([from, to]) = self.slots.get_disjoint_mut([from, to]) else { return Ok(()) };
        to.mark = from.mark;
        to.table.adopt(&from.table.pages()[..pages], len, &mut self.pool);
        Ok(())
    }

    /// Gives the pages of a range of tokens back to the pool, as far as no other sequence holds them. The sequence keeps its length.
    ///
    /// # Errors
    /// `UnknownSequence`, `PastEnd`, `CutsPage`, `Hole` when one of the pages is gone already; nothing changed.
    pub fn punch(&mut self, handle: Handle, tokens: Range<u64>) -> Result<(), KvError> {
        let (index, pages) = self.whole_pages(handle, tokens)?;
        let table = &self.slots[index].table;
        if table.has_holes_in(pages.clone()) {
            return Err(KvError::Hole { handle });
        }
        self.wake(index);
        self.slots[index].table.punch(pages, &mut self.pool);
        Ok(())
    }

    /// Takes fresh pages for a range of tokens whose pages were all given back.
    ///
    /// # Errors
    /// `UnknownSequence`, `PastEnd`, `CutsPage`, `Hole` when one of the pages is there, `OutOfPages`; nothing changed.
    pub fn fill(&mut self, handle: Handle, tokens: Range<u64>) -> Result<(), KvError> {
        let (index, pages) = self.whole_pages(handle, tokens)?;
        let table = &self.slots[index].table;
        if table.pages()[pages.clone()].iter().any(|&page| page != HOLE) {
            return Err(KvError::Hole { handle });
        }
        if pages.len() > self.pool.pages_free() {
            return Err(KvError::OutOfPages { needed: pages.len(), free: self.pool.pages_free() });
        }
        self.wake(index);
        self.slots[index].table.fill(pages, &mut self.pool);
        Ok(())
    }

    /// The slot, and the logical pages that exactly hold `tokens`; the last one may be partly filled.
    fn whole_pages(&self, handle: Handle, tokens: Range<u64>) -> Result<(usize, Range<usize>), KvError> {
        let index = self.find(handle)?;
        let end = self.cut(index, tokens.end)?;
        let start = self.cut(index, tokens.start)?;
        let page = self.shape.page_size_tokens;
        let held = self.slots[index].table.len();
        if start > end || !start.is_multiple_of(page) || !(end.is_multiple_of(page) || end == held) {
            return Err(KvError::CutsPage);
        }
        Ok((index, start / page..end.div_ceil(page)))
    }

    /// Pages that become free if exactly these sequences are freed; unknown ones and repetitions count for nothing.
    pub fn pages_released(&self, handles: &[Handle]) -> usize {
        if let &[handle] = handles {
            let table = self.table(handle);
            return table.map_or(0, |table| table.pages().iter().filter(|&&p| self.pool.references(p) == 1).count());
        }
        let mut distinct: SmallVec<[Handle; 16]> = SmallVec::from_slice(handles);
        distinct.sort_unstable();
        distinct.dedup();
        let mut held: Vec<PageRef> = distinct
            .iter()
            .filter_map(|&handle| self.table(handle).ok())
            .flat_map(|t| t.pages())
            .copied()
            .filter(|&page| page != HOLE)
            .collect();
        held.sort_unstable();
        held.chunk_by(|a, b| a == b).filter(|page| page.len() == self.pool.references(page[0]) as usize).count()
    }

    /// Walks all tables and checks the invariants of this module.
    ///
    /// # Errors
    /// What is wrong, in words.
    #[cfg(debug_assertions)]
    pub fn audit(&self) -> Result<(), String> {
        let mut references = vec![0; self.pool.pages()];
        let mut awake = vec![0; self.pool.pages()];
        for (index, slot) in self.slots.iter().enumerate() {
            let table = &slot.table;
            if slot.handle == 0 {
                if !table.pages().is_empty() || !self.vacant.contains(&(index as u32)) {
                    return Err(format!("slot {index} is empty but holds pages, or is not vacant"));
                }
                continue;
            }
            if slot.handle & SLOT_MASK != index as u64 || self.vacant.contains(&(index as u32)) {
                return Err(format!("slot {index} holds handle {}, or is vacant", slot.handle));
            }
            if table.pages().len() != table.len().div_ceil(self.shape.page_size_tokens) {
                return Err(format!("{} pages for {} tokens", table.pages().len(), table.len()));
            }
            let mut own = table.pages().to_vec();
            own.retain(|&page| page != HOLE);
            if table.has_holes() != (own.len() < table.pages().len()) {
                return Err(format!("slot {index} has other holes than it counts"));
            }
            own.sort_unstable();
            if own.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(format!("slot {index} names a page twice"));
            }
            own.iter().for_each(|&page| references[page as usize] += 1);
            own.iter().for_each(|&page| awake[page as usize] += u32::from(!slot.resting));
        }
        self.pool.audit(&references, &awake)
    }

    fn find(&self, handle: Handle) -> Result<usize, KvError> {
        let index = (handle & SLOT_MASK) as usize;
        match self.slots.get(index) {
            Some(slot) if slot.handle == handle && handle != 0 => Ok(index),
            _ => Err(KvError::UnknownSequence { handle }),
        }
    }

    /// `len` as a length of the sequence in slot `index`.
    fn cut(&self, index: usize, len: u64) -> Result<usize, KvError> {
        let held = self.slots[index].table.len();
        match usize::try_from(len) {
            Ok(cut) if cut <= held => Ok(cut),
            _ => Err(KvError::PastEnd { len, held }),
        }
    }
}

/// Pages that the growing holders of these shared open pages take for copies, one entry per holder: each that grows copies its
/// page, but the last holder of all keeps it.
fn copies_of(open_pages: &mut [PageRef], pool: &PagePool) -> usize {
    open_pages.sort_unstable();
    let held = open_pages.chunk_by(|a, b| a == b);
    held.map(|holders| holders.len().min(pool.references(holders[0]) as usize - 1)).sum()
}
