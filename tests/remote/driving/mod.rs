//! The driver's tests (`tests/driver`) on engines in worker processes: what a request says there is what it says alone, in process.

#[path = "../../driver/alone.rs"]
mod alone;
pub(crate) mod engine;
#[path = "../../driver/fairness.rs"]
mod fairness;
#[path = "../../driver/gap.rs"]
mod gap;
#[path = "../../driver/meddler.rs"]
mod meddler;
#[path = "../../driver/pressure.rs"]
mod pressure;
#[path = "../../driver/refusals.rs"]
mod refusals;
#[path = "../../driver/sharing.rs"]
mod sharing;
#[path = "../../driver/texts.rs"]
mod texts;
#[path = "../../driver/threads.rs"]
mod threads;

use ictus::executor::Executor;
use ictus::runtime::{FakeOptions, FakeRuntime};
use ictus::{Model, ModelOptions};

/// Random numbers that the worker of a test draws as its host does.
pub(crate) mod random {
    use std::ops::{Deref, DerefMut};
    use std::sync::OnceLock;

    pub(crate) struct Random(crate::random::Random);

    impl Random {
        pub(crate) fn new(test: &str) -> Self {
            Self(crate::random::Random::from_key(super::key(test)))
        }
    }

    impl Deref for Random {
        type Target = crate::random::Random;
        fn deref(&self) -> &Self::Target {
            &self.0
        }
    }

    impl DerefMut for Random {
        fn deref_mut(&mut self) -> &mut Self::Target {
            &mut self.0
        }
    }

    /// One key for this process and its workers.
    pub(super) static KEY: OnceLock<u64> = OnceLock::new();
}

/// The key of this run, which workers are told.
pub(crate) fn key(test: &str) -> u64 {
    *random::KEY.get_or_init(|| crate::random::Random::new(test).key())
}

/// As `tests/driver/main.rs` has it.
fn small(options: &mut FakeOptions) {
    options.descriptor.vocab_size = 64;
    options.descriptor.max_seq_len = 200;
    options.end_ids = vec![5];
    options.record = false;
}

fn fake(change: impl FnOnce(&mut FakeOptions)) -> engine::Under {
    engine::under_test(|options| {
        small(options);
        change(options);
    })
}

fn here(change: impl FnOnce(&mut FakeOptions)) -> Executor<FakeRuntime> {
    Executor::new(FakeRuntime::with(|options| {
        small(options);
        change(options);
    }))
}

fn tiny(options: ModelOptions) -> Model {
    Model::open(crate::tiny(), &ModelOptions { threads: 1, ..options }).expect("it opens")
}
