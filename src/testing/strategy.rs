#![forbid(unsafe_code)]
//! Registering strategies with the engine of a harness.

use super::Harness;
use crate::engine::{Engine, StrategyBuilder};
use crate::record::{ExactnessCert, Status};

/// Registers a strategy; answers its slot and its certificates.
///
/// # Errors
/// The status of the engine.
pub fn register_strategy<E: Engine, R>(
    harness: &mut Harness<E, R>,
    strategy: &StrategyBuilder,
) -> Result<(u32, Vec<ExactnessCert>), Status> {
    let (registration, memory) = strategy.build();
    let slot = harness.engine.strategy_register(&registration, &memory)?.strategy_slot;
    Ok((slot, harness.engine.strategy_certificates().to_vec()))
}

/// Registers `prompt-lookup`, version `1.0.0`, with one capability for linear proposals that has no parameters.
///
/// # Errors
/// The status of the engine.
pub fn register_prompt_lookup_with<E: Engine, R>(
    harness: &mut Harness<E, R>,
    impl_hash: [u8; 32],
    config_hash: [u8; 32],
    kernel_caps: u32,
) -> Result<(u32, Vec<ExactnessCert>), Status> {
    let strategy = StrategyBuilder::new("prompt-lookup").hashes(impl_hash, config_hash).kernel_caps(kernel_caps);
    register_strategy(harness, &strategy)
}
