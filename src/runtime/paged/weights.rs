#![forbid(unsafe_code)]
//! Weights that several runtimes of one model have in common.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::PagedError;
use crate::backend::Backend;
use crate::checkpoint::ModelConfig;
use crate::model::{self, Network, TensorSource};

/// The weights of one model in a backend's form: made for the first runtime, held by all of them, gone with the last.
///
/// # Invariants
/// All that use it name the same tensors and numbers, and backends of one kind. A network does not change, so nobody notices who else
/// computes with it.
pub struct SharedWeights<B: Backend>(Mutex<Option<Weak<dyn Network<B>>>>);

impl<B: Backend> Default for SharedWeights<B> {
    /// Nobody's yet.
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<B: Backend> core::fmt::Debug for SharedWeights<B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SharedWeights")
    }
}

impl<B: Backend> SharedWeights<B> {
    /// What others hold, or else loads. Who comes while another one loads waits for it.
    pub(super) fn get(
        &self,
        backend: &B,
        config: &ModelConfig,
        tensors: &dyn TensorSource,
    ) -> Result<Arc<dyn Network<B>>, PagedError> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(network) = kept.as_ref().and_then(Weak::upgrade) {
            return model::share(backend, tensors).map(|()| network).map_err(PagedError::from);
        }
        let network = model::load(backend, config, tensors)?;
        *kept = Some(Arc::downgrade(&network));
        Ok(network)
    }
}
