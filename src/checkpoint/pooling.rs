#![forbid(unsafe_code)]
//! How the hidden states of a text become one vector.

/// Which hidden states make the vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// The last token's: the only one that has seen the whole text in a causal model. What is taken where a model names none.
    #[default]
    Last,
    /// The mean of all.
    Mean,
    /// The first token's.
    First,
}

impl Pooling {
    /// Its name in documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Last => "last",
            Self::Mean => "mean",
            Self::First => "cls",
        }
    }
}

/// How a model embeds a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Embedding {
    /// Which hidden states make the vector.
    pub pooling: Pooling,
    /// The model says that the vector is scaled to length 1. Without such a word it is left as it is.
    pub normalised: bool,
}
