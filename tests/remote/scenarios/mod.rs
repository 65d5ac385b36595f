//! The scenarios of the tick, of state and of grammars, as `tests/tick_scenarios`, `tests/state_scenarios` and `tests/grammar` have them, on
//! an engine in a worker process (see [`engine`]).
//!
//! Left out, because they are about the inside of an executor and not about what its host is told:
//!
//! | file, test | why |
//! |---|---|
//! | `tick_scenarios/contract.rs` | [`contract`](crate::contract) runs TS-1 .. TS-15 over the link |
//! | `tick_scenarios/pressure.rs` | the ledger of the executor, and waiting on it from other threads |
//! | of `running.rs` `operations_that_are_over_are_forgotten` | a host knows the last 4096 operations, whatever its worker forgets |
//! | of `demotion.rs` `range_of_an_unloaded_adapter_is_promoted` | adapters of single lanes have no message |
//! | of `seeds.rs` `ss_28_…` | how long leases live is told with the first lease only (W-51) |
//! | of `sequences.rs` `expired_adopt_lease_lifts_its_claim` | a release has no answer (W-51) |
//! | of `grammar/scenarios.rs` `rs_20_…`, `rs_21_…` | a refusal travels as its status, without its words |
//! | of `grammar/rules.rs` those over regular expressions | grammars of other notations have no message |
//! | `grammar/hostile.rs`, `schemas.rs`, `model.rs` | why a document is refused, and how long a compiler takes; the compiler alone, some hundred engines; a fetched model |

#[path = "../../state_scenarios/cached.rs"]
#[allow(dead_code, reason = "these scenarios use a part of it")]
mod cached;
#[path = "../../tick_scenarios/capacity.rs"]
mod capacity;
#[path = "../../tick_scenarios/decode.rs"]
mod decode;
#[path = "../../state_scenarios/demotion.rs"]
mod demotion;
#[path = "../../state_scenarios/departures.rs"]
mod departures;
#[path = "../../grammar/drafts.rs"]
mod drafts;
#[path = "../../tick_scenarios/emits.rs"]
mod emits;
pub(crate) mod engine;
#[path = "../../state_scenarios/entries.rs"]
mod entries;
#[path = "../../tick_scenarios/evictions.rs"]
mod evictions;
#[path = "../../state_scenarios/exports.rs"]
mod exports;
#[path = "../../tick_scenarios/faults.rs"]
mod faults;
#[path = "../../tick_scenarios/host.rs"]
#[allow(dead_code, reason = "these scenarios use a part of the host")]
mod host;
#[path = "../../tick_scenarios/host_lanes.rs"]
mod host_lanes;
#[path = "../../state_scenarios/hostile.rs"]
mod hostile;
#[path = "../../state_scenarios/mover.rs"]
#[allow(dead_code, reason = "these scenarios use a part of it")]
mod mover;
#[path = "../../state_scenarios/ops.rs"]
mod ops;
#[path = "../../state_scenarios/park.rs"]
mod park;
#[path = "../../tick_scenarios/prefill.rs"]
mod prefill;
#[path = "../../grammar/rules.rs"]
mod rules;
#[path = "../../state_scenarios/running.rs"]
mod running;
#[path = "../../tick_scenarios/sampling.rs"]
mod sampling;
#[path = "../../grammar/scenarios.rs"]
#[allow(clippy::module_inception, reason = "the name that its neighbours know it by")]
mod scenarios;
#[path = "../../tick_scenarios/seeded.rs"]
mod seeded;
#[path = "../../state_scenarios/seeds.rs"]
mod seeds;
#[path = "../../state_scenarios/sequences.rs"]
mod sequences;
#[path = "../../state_scenarios/spaces.rs"]
mod spaces;
#[path = "../../grammar/structural.rs"]
mod structural;
#[path = "../../tick_scenarios/takeover.rs"]
mod takeover;
#[path = "../../grammar/words.rs"]
#[allow(dead_code, reason = "these scenarios use a part of it")]
mod words;

pub(crate) use crate::driving::random;
