//! Adapters: who is loaded, who will have which, and what state of different adapters may meet (none).
//!
//! A sequence carries an adapter from when it is empty. An adapter is gone when it was unloaded as often as loaded and no sequence carries
//! it; loaded again before that, it is the same one.

use ictus::record::Status;

use super::{Answer, Candidate, Model};

/// An adapter that is loaded, or was.
#[derive(Clone, Debug)]
pub(crate) struct Adapter {
    pub(crate) handle: u64,
    /// Which of the shape's adapters.
    pub(crate) name: usize,
    pub(crate) loads: u32,
}

impl Model {
    fn adapter(&self, handle: u64) -> Option<&Adapter> {
        self.adapters.iter().find(|adapter| adapter.handle == handle)
    }

    pub(super) fn is_loaded(&self, handle: u64) -> bool {
        handle == 0 || self.adapter(handle).is_some_and(|adapter| adapter.loads > 0)
    }

    /// What an adapter computes; zeros for the model alone.
    pub(super) fn scope(&self, handle: u64) -> [u8; 32] {
        self.adapter(handle).map_or([0; 32], |adapter| self.shape.adapter_digest(adapter.name))
    }

    /// Which of the shape's adapters a sequence is computed with.
    pub(super) fn adapter_name(&self, seq: u64) -> Option<usize> {
        self.adapter(self.seq(seq).adapter).map(|adapter| adapter.name)
    }

    /// S-80 for the state of an adapter.
    pub(super) fn identity(&self, handle: u64) -> [u8; 32] {
        self.shape.identity(self.adapter(handle).map(|adapter| adapter.name))
    }

    /// The adapter that an admit of this tag would have.
    pub(super) fn adapter_of(&self, tag: u64) -> u64 {
        let bound = self.bound.iter().find(|(other, _)| *other == tag);
        bound.map_or(self.default_adapter, |(_, adapter)| *adapter)
    }

    pub(super) fn adapter_load(&mut self, name: usize) -> Result<u64, Status> {
        if !self.shape.adapts {
            return Err(Status::Unsupported);
        }
        let carried = |adapter: &Adapter| self.seqs.iter().any(|seq| seq.adapter == adapter.handle);
        let there = self.adapters.iter().position(|known| known.name == name && (known.loads > 0 || carried(known)));
        let at = there.unwrap_or_else(|| {
            let handle = self.adapters.len() as u64 + 1;
            self.adapters.push(Adapter { handle, name, loads: 0 });
            self.adapters.len() - 1
        });
        self.adapters[at].loads += 1;
        Ok(self.adapters[at].handle)
    }

    pub(super) fn adapter_unload(&mut self, handle: u64) -> Result<(), Status> {
        if !self.shape.adapts {
            return Err(Status::Unsupported);
        }
        let adapter = self.adapters.iter_mut().find(|adapter| adapter.handle == handle && adapter.loads > 0);
        let adapter = adapter.ok_or(Status::UnknownHandle)?;
        adapter.loads -= 1;
        if adapter.loads == 0 {
            self.bound.retain(|(_, bound)| *bound != handle);
            if self.default_adapter == handle {
                self.default_adapter = 0;
            }
        }
        Ok(())
    }

    pub(super) fn adapter_bind(&mut self, tag: u64, handle: u64) -> Result<(), Status> {
        if !self.shape.adapts {
            return Err(Status::Unsupported);
        }
        if !self.is_loaded(handle) {
            return Err(Status::UnknownHandle);
        }
        self.bound.retain(|(other, _)| *other != tag);
        self.bound.extend((handle != 0).then_some((tag, handle)));
        Ok(())
    }

    /// Loads an adapter as the default, in place of the one before.
    pub(super) fn default_load(&mut self, name: usize) -> Result<(), Status> {
        let loaded = self.adapter_load(name)?;
        match std::mem::replace(&mut self.default_adapter, loaded) {
            0 => Ok(()),
            before => self.adapter_unload(before),
        }
    }

    pub(super) fn default_unload(&mut self) -> Result<(), Status> {
        if !self.shape.adapts {
            return Err(Status::Unsupported);
        }
        match std::mem::take(&mut self.default_adapter) {
            0 => Err(Status::UnknownHandle),
            before => self.adapter_unload(before),
        }
    }

    /// An empty bare sequence will be computed with an adapter.
    pub(super) fn sequence_adapt(&mut self, seq: u64, handle: u64) -> Result<(), Status> {
        if !self.is_loaded(handle) {
            return Err(Status::UnknownHandle);
        }
        let Some(bare) = self.bare(seq) else {
            return Err(if self.is_known(seq) { Status::Busy } else { Status::UnknownHandle });
        };
        if bare.leased || !self.seq(seq).tokens.is_empty() {
            return Err(Status::Busy);
        }
        self.seq_mut(seq).adapter = handle;
        Ok(())
    }

    /// The scope in which a call looks: of the adapter that it names, or of the default one.
    pub(super) fn scope_of_call(&self, adapter: Option<u64>) -> Result<[u8; 32], Status> {
        match adapter {
            None => Ok(self.scope(self.default_adapter)),
            Some(handle) if self.is_loaded(handle) => Ok(self.scope(handle)),
            Some(_) => Err(Status::UnknownHandle),
        }
    }

    /// S-46, without a word about an adapter.
    pub(crate) fn default_candidates(&self, span: &[u32]) -> Vec<Candidate> {
        self.candidates(span, self.scope(self.default_adapter))
    }

    /// S-46, for a host that looks before it asks.
    pub(crate) fn candidates_of_call(&self, span: &[u32], adapter: Option<u64>) -> Vec<Candidate> {
        self.scope_of_call(adapter).map_or(vec![], |scope| self.candidates(span, scope))
    }

    pub(super) fn match_call(&self, space: u32, span: &[u32], adapter: Option<u64>) -> Answer {
        use ictus::record::constant::{misc, space_id};
        match (self.scope_of_call(adapter), space) {
            (Err(status), _) => Answer::Refused(status),
            (Ok(scope), space_id::KV | misc::ALL_SPACES) => Answer::Candidates(self.candidates(span, scope)),
            _ => Answer::Refused(Status::UnknownHandle),
        }
    }
}
