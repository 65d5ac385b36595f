//! The driver, on the fake runtime and on the tiny model: what it promises whatever the load.

#[path = "../common/random.rs"]
#[expect(dead_code, reason = "not every test needs every kind of random number")]
mod random;

mod alone;
mod engine;
mod fairness;
mod gap;
mod meddler;
mod pressure;
mod refusals;
mod sharing;
mod texts;
mod threads;

use ictus::runtime::FakeOptions;
use ictus::{Model, ModelOptions};

use ictus::executor::Executor;
use ictus::runtime::FakeRuntime;

/// A small fake model that forgets what it was fed.
fn small(options: &mut FakeOptions) {
    options.descriptor.vocab_size = 64;
    options.descriptor.max_seq_len = 200;
    options.end_ids = vec![5];
    options.record = false;
}

/// The engine under the driver, over the small fake.
fn fake(change: impl FnOnce(&mut FakeOptions)) -> engine::Under {
    engine::under_test(|options| {
        small(options);
        change(options);
    })
}

/// An engine in this process, for what a request says alone.
fn here(change: impl FnOnce(&mut FakeOptions)) -> Executor<FakeRuntime> {
    Executor::new(FakeRuntime::with(|options| {
        small(options);
        change(options);
    }))
}

/// The model that comes with the repository.
fn tiny(options: ModelOptions) -> Model {
    let options = ModelOptions { threads: 1, ..options };
    Model::open(concat!(env!("CARGO_MANIFEST_DIR"), "/models/ictus-tiny.gguf"), &options).expect("it opens")
}
