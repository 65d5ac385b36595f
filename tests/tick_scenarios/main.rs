//! The scenarios of the tick contract (TS-n), black box, on the executor over the fake runtime.
//!
//! TS-1 .. TS-15 are `ictus::testing::tick_contract`; `contract` runs them over every way of stepping and picking. Scenarios that
//! need the prefix cache, grammars, speculation or forks come with those.

mod capacity;
mod contract;
mod decode;
mod emits;
mod faults;
mod host;
mod host_lanes;
mod prefill;
mod sampling;
