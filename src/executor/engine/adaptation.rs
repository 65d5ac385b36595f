#![forbid(unsafe_code)]
//! Calls of the host about adapters, and about texts outside lanes: embeddings and stages by layers.

use std::path::Path;

use crate::executor::Executor;
use crate::record::Status;
use crate::runtime::{LoadedAdapter, Runtime, SeqHandle, Stage, StageOutput};

impl<R: Runtime> Executor<R> {
    /// Loads an adapter and remembers in words why not.
    pub(super) fn load_adapter(&mut self, path: &str) -> Result<LoadedAdapter, Status> {
        self.adapter_refusal = None;
        match self.state.runtime.adapter_load(Path::new(path)) {
            Ok(loaded) => {
                self.state.adapters.loaded(loaded);
                Ok(loaded)
            }
            Err(error) => {
                self.adapter_refusal = Some(in_words(&error));
                Err((&error).into())
            }
        }
    }

    pub(super) fn unload_adapter(&mut self, adapter: u64) -> Result<(), Status> {
        self.check_adapters()?;
        if self.state.adapters.unload(adapter)? {
            self.state.runtime.adapter_unload(adapter);
        }
        Ok(())
    }

    pub(super) fn bind_adapter(&mut self, lane_tag: u64, adapter: u64) -> Result<(), Status> {
        self.check_adapters()?;
        self.check_loaded(adapter)?;
        self.state.adapters.bind(lane_tag, adapter);
        Ok(())
    }

    pub(super) fn adapt_bare(&mut self, sequence: SeqHandle, adapter: u64) -> Result<(), Status> {
        self.check_loaded(adapter)?;
        let Some(bare) = self.state.bare.get_mut(&sequence) else {
            return Err(self.state.owner_of(sequence).map_or(Status::UnknownHandle, |_| Status::Busy));
        };
        if bare.lease.is_some() || self.state.runtime.seq_len(sequence) > 0 {
            return Err(Status::Busy);
        }
        self.state.runtime.seq_adapt(sequence, adapter)?;
        bare.content.adapter = adapter;
        Ok(())
    }

    /// Loads an adapter and makes it the default in place of the one before, which goes.
    pub(super) fn load_default(&mut self, path: &str) -> Result<(), Status> {
        let loaded = self.load_adapter(path)?;
        match self.state.adapters.set_default(loaded.handle) {
            0 => Ok(()),
            before => self.unload_adapter(before),
        }
    }

    pub(super) fn unload_default(&mut self) -> Result<(), Status> {
        self.check_adapters()?;
        match self.state.adapters.set_default(0) {
            0 => Err(Status::UnknownHandle),
            before => self.unload_adapter(before),
        }
    }

    pub(super) fn check_loaded(&self, adapter: u64) -> Result<(), Status> {
        if self.state.adapters.is_loaded(adapter) { Ok(()) } else { Err(Status::UnknownHandle) }
    }

    fn check_adapters(&self) -> Result<(), Status> {
        if self.state.descriptor.workloads.adapters { Ok(()) } else { Err(Status::Unsupported) }
    }

    pub(super) fn embed_text(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Status> {
        let descriptor = &self.state.descriptor;
        if descriptor.workloads.embedding.is_none() {
            return Err(Status::Unsupported);
        }
        let foreign = tokens.iter().any(|&token| token >= descriptor.vocab_size);
        if tokens.is_empty() || foreign || tokens.len() as u64 > descriptor.max_seq_len {
            return Err(Status::RejectBounds);
        }
        let adapter = self.state.adapters.default_adapter();
        Ok(self.state.with_room(|runtime| runtime.embed(tokens, adapter))?)
    }

    pub(super) fn run_stage(
        &mut self,
        tokens: &[u32],
        first: u32,
        end: u32,
        incoming: Option<&[u8]>,
    ) -> Result<StageOutput, Status> {
        if self.state.descriptor.workloads.layers == 0 {
            return Err(Status::Unsupported);
        }
        let adapter = self.state.adapters.default_adapter();
        self.state.have_room_for(tokens.len() as u64);
        Ok(self.state.runtime.forward_stage(&Stage { tokens, adapter, first, end, incoming })?)
    }
}

/// An error and all that caused it.
fn in_words(error: &dyn core::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}
