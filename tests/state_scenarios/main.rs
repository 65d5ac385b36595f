//! The scenarios of sequences, seeds, the prefix cache and state transfer (SS-n), on the executor over the fake runtime.

#[path = "../common/random.rs"]
#[expect(dead_code, reason = "not every test needs every kind of random number")]
mod random;

#[path = "../tick_scenarios/host.rs"]
#[expect(dead_code, reason = "these scenarios use a part of the host")]
mod host;

#[path = "../tick_scenarios/engine.rs"]
mod engine;

mod cached;
mod demotion;
mod departures;
mod entries;
mod exports;
mod hostile;
mod mover;
mod ops;
mod park;
mod running;
mod seeds;
mod sequences;
mod spaces;
