//! State operations over real models on the processor; on a CUDA device: `tests/cuda_state.rs`.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/model.rs"]
mod model;
#[path = "state_models/scenarios.rs"]
mod scenarios;

/// What the scenarios run on.
mod engine {
    use ictus::backend::Arithmetic;
    use ictus::backend::cpu::CpuBackend;

    pub(crate) type Under = CpuBackend;

    pub(crate) const FILES: [&str; 6] = [
        "models/ictus-tiny.gguf",
        "tests/data/llama-window.gguf",
        "tests/data/llama-rope-scaled.gguf",
        "tests/data/gemma3.gguf",
        "tests/data/qwen2.gguf",
        "tests/data/qwen3.gguf",
    ];

    /// The processor is always there.
    pub(crate) fn device() -> Option<()> {
        Some(())
    }

    pub(crate) fn under(arithmetic: Arithmetic, threads: usize) -> CpuBackend {
        CpuBackend::new(threads).with_arithmetic(arithmetic)
    }
}
