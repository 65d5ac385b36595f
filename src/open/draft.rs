#![forbid(unsafe_code)]
//! Draft models: a second, smaller model of the same vocabulary, opened when a host registers it.
//!
//! # Limits
//! A draft model has a pool for as many tokens as the engine's own, and its own threads, which sleep while the other ones work. On several devices it is
//! spread over all of them too, or runs on the first where it has fewer key and value heads.
//! [`Drafter::reserved_bytes`] says what it takes, its mapped weights included; a grant reports it.

use std::path::Path;

use super::{Error, Model, ModelOptions};
use crate::backend::BackendError;
use crate::speculate::{DraftModelError, DraftModels, Drafter};
use crate::tokenizer::Tokenizer;

/// Opens draft models for engines of one model.
#[derive(Debug)]
pub(super) struct DraftFiles {
    target: Model,
}

impl DraftFiles {
    pub(super) fn new(target: Model) -> Self {
        Self { target }
    }
}

impl DraftModels for DraftFiles {
    fn open(&mut self, path: &str) -> Result<Box<dyn Drafter>, DraftModelError> {
        self.target.drafter(path)
    }
}

impl Model {
    /// The model at `path` as a drafter for engines of this one, with memory and threads of its own.
    ///
    /// # Errors
    /// The file does not open, or its vocabulary is another one. Nothing is kept.
    pub fn drafter(&self, path: impl AsRef<Path>) -> Result<Box<dyn Drafter>, DraftModelError> {
        let refused = |error: Error| DraftModelError::Open { reason: error.to_string() };
        let options = self.draft_options();
        let draft = match Self::open(&path, &options) {
            // It has too few heads for all devices: it runs on the first.
            Err(Error::Backend(BackendError::CannotSpread { .. })) => {
                let device_index = self.device_indices().first().copied().unwrap_or(0);
                Self::open(&path, &ModelOptions { device_index, device_mask: 0, ..options })
            }
            opened => opened,
        };
        let draft = draft.map_err(refused)?;
        same_vocabulary(self.tokenizer(), draft.tokenizer())?;
        let plan = draft.memory_plan().map_err(refused)?;
        draft.as_drafter(plan.total_bytes()).map_err(refused)
    }

    /// Room for the same lanes at the same lengths, as far as the draft model goes.
    fn draft_options(&self) -> ModelOptions {
        let own = &self.inner.options;
        ModelOptions {
            device: own.devices.kind,
            device_index: self.inner.asked.device_index,
            device_mask: self.inner.asked.device_mask,
            threads: own.threads as u32,
            host_threads: own.host_threads.clone(),
            instruction_set: own.devices.instruction_set,
            arithmetic: own.arithmetic,
            kv_type: Some(own.kv_type),
            page_size_tokens: own.page_size_tokens as u32,
            pool_tokens: own.pool_pages as u64 * own.page_size_tokens as u64,
            max_lanes: own.max_lanes,
            prefill_step_tokens: own.prefill_step_tokens,
            ..ModelOptions::default()
        }
    }
}

/// Each id must mean the same text, and the same ids be control tokens.
fn same_vocabulary(target: &Tokenizer, draft: &Tokenizer) -> Result<(), DraftModelError> {
    let both = target.vocab_size().max(draft.vocab_size()) as u32;
    let differs = |&token: &u32| {
        target.token_bytes(token) != draft.token_bytes(token) || target.is_control(token) != draft.is_control(token)
    };
    match (0..both).find(differs) {
        Some(token) => Err(DraftModelError::Vocabulary { token }),
        None => Ok(()),
    }
}
