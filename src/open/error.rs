#![forbid(unsafe_code)]
//! Why a model could not be opened, whichever layer refused.

use super::options::OptionsError;
use crate::backend::BackendError;
use crate::checkpoint::CheckpointError;
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
    /// The progress callback broke off.
    #[error("cancelled")]
    Cancelled,
}
