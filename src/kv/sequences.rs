#![forbid(unsafe_code)]
//! Sequences over one pool: create, grow, cut, share, free.
//!
//! A handle is a serial number and a slot in one integer, `serial << 24 | slot`: it finds its slot without a search, and since
//! the serial only rises, handles ascend and none is used twice.
//!
//! # Invariants
//! A handle is live exactly when its slot holds it. Slots and block tables of freed sequences are kept and used again, so
//! that creating and freeing does not allocate once the tables are warm.

use smallvec::SmallVec;

use super::KvError;
use super::block_table::BlockTable;
use super::pool::{PagePool, PageRef};

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
        Ok(handle)
    }

    /// Frees a sequence; false when there is none.
    pub fn free(&mut self, handle: Handle) -> bool {
        let Ok(index) = self.find(handle) else { return false };
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

    /// Appends tokens to several sequences at once, all or none, and adds to `copies` the pages whose bytes the caller
    /// must copy before anything is written: page `.1` becomes page `.0`.
    ///
    /// # Errors
    /// `UnknownSequence`, `Repeated`, `TooLong`, `OutOfPages`, `OutOfMemory`; nothing changed.
    pub fn grow(&mut self, growths: &[Growth], copies: &mut Vec<(PageRef, PageRef)>) -> Result<(), KvError> {
        let needed = self.check_growths(growths)?;
        if needed > self.pool.pages_free() {
            return Err(KvError::OutOfPages { needed, free: self.pool.pages_free() });
        }
        copies.try_reserve(growths.len()).map_err(|_| KvError::OutOfMemory)?;
        for growth in growths {
            let index = self.find(growth.handle)?;
            let table = &mut self.slots[index].table;
            copies.extend(table.grow(growth.tokens, self.shape.page_size_tokens, &mut self.pool));
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
        // Of the holders of an open page, each that grows here copies it, but the last holder of all keeps it.
        self.open_pages.sort_unstable();
        for holders in self.open_pages.chunk_by(|a, b| a == b) {
            needed += holders.len().min(self.pool.references(holders[0]) as usize - 1);
        }
        Ok(needed)
    }

    /// Cuts a sequence to `len` tokens.
    ///
    /// # Errors
    /// `UnknownSequence`, `PastEnd`; nothing changed.
    pub fn truncate(&mut self, handle: Handle, len: u64) -> Result<(), KvError> {
        let index = self.find(handle)?;
        let len = self.cut(index, len)?;
        self.slots[index].table.truncate(len, self.shape.page_size_tokens, &mut self.pool);
        Ok(())
    }

    /// Makes `target` the first `len` tokens of `source`, sharing its pages; what `target` held is released. Takes no page.
    ///
    /// # Errors
    /// `UnknownSequence`, `PastEnd`, `OutOfMemory`; nothing changed.
    pub fn share(&mut self, source: Handle, target: Handle, len: u64) -> Result<(), KvError> {
        let from = self.find(source)?;
        let to = self.find(target)?;
        let len = self.cut(from, len)?;
        let pages = len.div_ceil(self.shape.page_size_tokens);
        let Ok([from, to]) = self.slots.get_disjoint_mut([from, to]) else {
            return self.truncate(target, len as u64);
        };
        if !to.table.reserve(pages) {
            return Err(KvError::OutOfMemory);
        }
        to.table.adopt(&from.table.pages()[..pages], len, &mut self.pool);
        Ok(())
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
        let mut held: Vec<PageRef> =
            distinct.iter().filter_map(|&handle| self.table(handle).ok()).flat_map(|t| t.pages()).copied().collect();
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
            own.sort_unstable();
            if own.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(format!("slot {index} names a page twice"));
            }
            own.iter().for_each(|&page| references[page as usize] += 1);
        }
        self.pool.audit(&references)
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
