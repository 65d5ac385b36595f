#![forbid(unsafe_code)]
//! Why a model could not be opened, whichever layer refused.

use super::options::OptionsError;
use crate::backend::BackendError;
use crate::checkpoint::CheckpointError;
use crate::facade::CoreError;
use crate::runtime::PagedError;
use crate::tokenizer::TokenizerError;

/// Why a model or an engine could not be made. Nothing is kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option is out of range.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The files are not a model that this crate reads.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A core cannot serve so.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// The files have no vocabulary.
    #[error("the model has no vocabulary")]
    NoVocabulary,
    /// The vocabulary is of no known kind, or broken.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The device is not there, or has no memory left.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The runtime could not be made.
    #[error(transparent)]
    Runtime(#[from] PagedError),
    /// The sizes that the options ask for do not fit 64 bits.
    #[error("the memory plan does not fit 64 bits")]
    PlanTooLarge,
    /// The model does not fit the budget, even with a pool of one sequence.
    #[error("the model takes {needed_bytes} bytes, the budget is {budget_bytes}")]
    OverBudget {
        /// Bytes of the plan.
        needed_bytes: u64,
        /// Bytes that the options allow.
        budget_bytes: u64,
    },
    /// There is no worker program.
    #[cfg(all(feature = "worker", target_os = "linux"))]
    #[error(transparent)]
    NoWorker(#[from] crate::worker::client::NoWorker),
    /// A worker could not be started, or did not get as far as serving.
    #[cfg(all(feature = "worker", target_os = "linux"))]
    #[error(transparent)]
    Worker(Box<crate::worker::client::WorkerGone>),
    /// This build has no workers.
    #[cfg(not(all(feature = "worker", target_os = "linux")))]
    #[error("this build has no workers: they need the feature worker, and Linux")]
    NoWorkers,
    /// An option that an engine in another process cannot have.
    #[error("option {option} is of this process only, not of a worker")]
    NotInWorker {
        /// The field.
        option: &'static str,
    },
    /// The progress callback broke off.
    #[error("cancelled")]
    Cancelled,
}
