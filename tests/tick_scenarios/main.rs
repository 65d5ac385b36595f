//! The scenarios of the tick contract (TS-n), black box, on the executor over the fake runtime.
//!
//! TS-1 .. TS-15 are `ictus::testing::tick_contract`; `contract` runs them over every way of stepping and picking.

#[path = "../state_scenarios/cached.rs"]
#[expect(dead_code, reason = "these scenarios use a part of it")]
mod cached;
mod capacity;
mod contract;
mod decode;
mod emits;
mod engine;
mod evictions;
mod faults;
mod host;
mod host_lanes;
mod prefill;
mod pressure;
mod sampling;
mod seeded;
mod takeover;
