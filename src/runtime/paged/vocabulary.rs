#![forbid(unsafe_code)]
//! A vocabulary that nobody pays for before a grammar asks for it: listing a quarter of a million tokens takes tens of milliseconds, and
//! as many megabytes.

use std::sync::{Arc, OnceLock};

use crate::runtime::Vocabulary;

/// Says the vocabulary on demand, and at once which tokens penalties leave alone.
#[derive(Clone)]
pub struct LazyVocabulary {
    exempt_ids: Vec<u32>,
    list: Arc<dyn Fn() -> Vocabulary + Send + Sync>,
    listed: OnceLock<Vocabulary>,
}

impl LazyVocabulary {
    /// A vocabulary that `list` lists, when somebody asks for the first time; always the same one. `exempt_ids` are its special and end
    /// tokens.
    pub fn new(exempt_ids: Vec<u32>, list: impl Fn() -> Vocabulary + Send + Sync + 'static) -> Self {
        Self { exempt_ids, list: Arc::new(list), listed: OnceLock::new() }
    }

    /// The special and end tokens.
    pub fn exempt_ids(&self) -> &[u32] {
        &self.exempt_ids
    }

    /// The vocabulary.
    pub fn get(&self) -> &Vocabulary {
        self.listed.get_or_init(|| (self.list)())
    }
}

impl core::fmt::Debug for LazyVocabulary {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("LazyVocabulary").field("listed", &self.listed.get().is_some()).finish_non_exhaustive()
    }
}
