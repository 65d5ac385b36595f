#![forbid(unsafe_code)]
//! Adapters of a model: loading, and which rows of a part each one changes.

use std::path::Path;

use smallvec::SmallVec;

use super::ModelRuntime;
use crate::backend::Backend;
use crate::checkpoint::AdapterFile;
use crate::model::{Adapted, Adapter};
use crate::runtime::adapters::Adapters;
use crate::runtime::{AdapterLoadError, LoadedAdapter, RuntimeError, SeqHandle};

/// Which adapter changes which row of a part, and the rows one adapter after another.
#[derive(Debug, Default)]
pub(super) struct Carried {
    pairs: Vec<(u64, usize)>,
    rows: Vec<usize>,
}

impl Carried {
    pub(super) fn clear(&mut self) {
        self.pairs.clear();
    }

    /// Notes that rows `first..first + count` are those of a sequence that carries `adapter`; 0 is none.
    pub(super) fn note(&mut self, adapter: u64, first: usize, count: usize) {
        if adapter != 0 {
            self.pairs.extend((first..first + count).map(|row| (adapter, row)));
        }
    }

    /// The rows by adapter; none when one of the adapters is gone.
    pub(super) fn by_adapter<'a, B: Backend>(
        &'a mut self,
        adapters: &'a Adapters<Adapter<B>>,
    ) -> Option<SmallVec<[Adapted<'a, B>; 8]>> {
        let Self { pairs, rows } = self;
        pairs.sort_unstable();
        rows.clear();
        rows.extend(pairs.iter().map(|&(_, row)| row));
        let mut rest: &'a [usize] = rows;
        let groups = pairs.chunk_by(|a, b| a.0 == b.0).map(|group| {
            let (rows, behind) = rest.split_at(group.len());
            rest = behind;
            Some(Adapted { adapter: adapters.get(group.first()?.0)?, rows })
        });
        groups.collect()
    }
}

impl<B: Backend> ModelRuntime<B> {
    pub(super) fn load_adapter(&mut self, path: &Path) -> Result<LoadedAdapter, AdapterLoadError> {
        let file = AdapterFile::open(path, &self.config)?;
        if let Some(loaded) = self.adapters.revive(file.digest()) {
            return Ok(loaded);
        }
        let adapter = Adapter::load(&self.backend, &self.config, &file)?;
        self.work.make_room(&self.backend, &self.rows.shape, &adapter)?;
        Ok(self.adapters.insert(file.digest(), adapter))
    }

    pub(super) fn adapt_sequence(&mut self, sequence: SeqHandle, adapter: u64) -> Result<(), RuntimeError> {
        if !self.sequences.table(sequence)?.is_empty() {
            return Err(RuntimeError::OutOfBoundary);
        }
        if !self.adapters.is_loaded(adapter) {
            return Err(RuntimeError::UnknownSeq);
        }
        self.carry(sequence, adapter)
    }

    /// Makes a sequence carry an adapter that is there.
    pub(super) fn carry(&mut self, sequence: SeqHandle, adapter: u64) -> Result<(), RuntimeError> {
        let carried = self.sequences.mark(sequence);
        self.sequences.set_mark(sequence, adapter)?;
        self.adapters.pass_on(carried, adapter);
        Ok(())
    }
}
