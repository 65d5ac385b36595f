//! What the driver adds to a tick: every lane decodes one token over a runtime whose step is free.
//!
//! `cargo bench --bench driver`. The time is that of a whole step, the executor's tick in it; `benches/tick.rs` measures that alone.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use ictus::driver::{Driver, DriverOptions, Progress, Request};
use ictus::executor::Executor;
use ictus::testing::FreeRuntime;

/// Lanes that decode at once.
const LANES: [u32; 3] = [1, 8, 64];

/// A driver whose lanes have their first token and decode for ever.
fn decoding(lanes: u32) -> Driver<Executor<FreeRuntime>> {
    let options = DriverOptions { max_lanes: lanes, queue_limit: 64, share_min_tokens: 0, ..DriverOptions::default() };
    let mut driver = Driver::new(Executor::new(FreeRuntime::new(lanes)), options).expect("options are in range");
    for lane in 0..lanes {
        let request = Request { max_tokens: u64::MAX, ignore_eos: true, ..Request::tokens([lane % 2; 8]) };
        driver.submit(request).expect("the queue has room");
    }
    while driver.waiting() > 0 {
        driver.step();
    }
    driver.step();
    while driver.next_event().is_some() {}
    driver
}

fn driver_step(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("driver step, decode");
    for lanes in LANES {
        let mut driver = decoding(lanes);
        group.bench_function(BenchmarkId::from_parameter(lanes), |bencher| {
            bencher.iter(|| {
                assert_eq!(driver.step(), Progress::Worked);
                let mut events = 0;
                while driver.next_event().is_some() {
                    events += 1;
                }
                assert_eq!(events, lanes, "every lane says something");
            });
        });
    }
    group.finish();
}

criterion_group!(benches, driver_step);
criterion_main!(benches);
