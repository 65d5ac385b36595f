#![forbid(unsafe_code)]
//! What a checkpoint recommends for sampling.

/// Sampling parameters that a checkpoint recommends; members it does not claim are none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    /// Temperature.
    pub temperature: Option<f32>,
    /// Nucleus mass.
    pub top_p: Option<f32>,
    /// Number of candidates.
    pub top_k: Option<u32>,
    /// Relative probability floor.
    pub min_p: Option<f32>,
    /// Repetition penalty.
    pub repetition_penalty: Option<f32>,
    /// Whether to sample at all.
    pub do_sample: Option<bool>,
}
