//! The executor over the fake runtime goes through the scenarios of the tick contract.

use ictus::executor::Executor;
use ictus::runtime::FakeRuntime;
use ictus::testing::{Harness, tick_contract};

#[test]
fn executor_passes_the_tick_contract() {
    tick_contract::run_all(|| Harness::with_engine(Executor::new(FakeRuntime::default())));
}
