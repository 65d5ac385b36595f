//! What the facade costs beside the model: 32 sequences decode one token each over a runtime whose step is free; and how soon somebody who
//! waits for room is awake.
//!
//! `cargo bench --bench facade`. The batch is built outside the measured time, as a host would keep it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use ictus::executor::Executor;
use ictus::facade::{Admission, Chunk, Core, CoreOptions, Domain, End, Logits, ModelExecutor, Row, Seq, Work};
use ictus::runtime::Runtime;
use ictus::testing::{FreePagedRuntime, FreeRuntime};

const PROMPT: [u32; 8] = [1; 8];
/// Tokens of a sequence before it is cut back to its prompt.
const TOKENS: usize = 4096;

fn decoding<R: Runtime + Send + 'static>(runtime: R, lanes: usize) -> (Arc<dyn ModelExecutor>, Vec<Seq>) {
    let core = Core::new(Executor::new(runtime), CoreOptions::default()).expect("the options are legal");
    let executor = core.executor();
    let (greedy, mut rows) = (Logits::greedy(), Vec::new());
    let chunk = Chunk::new(0, PROMPT.len(), PROMPT.len()).expect("it is one");
    let seqs = (0..lanes).map(|_| {
        let seq = executor.admit(&Admission::of(&PROMPT, TOKENS)).expect("there is room");
        executor.run(&[Work::Prefill { seq, chunk, whole: false, logits: &greedy }], &mut rows).expect("there is room");
        seq
    });
    let seqs = seqs.collect();
    (executor, seqs)
}

fn measure<R: Runtime + Send + 'static>(criterion: &mut Criterion, name: &str, runtime: impl Fn() -> R) {
    let mut group = criterion.benchmark_group(format!("facade: run of decodes, {name}"));
    for lanes in [1, 8, 32] {
        let (executor, seqs) = decoding(runtime(), lanes);
        let greedy = Logits::greedy();
        let mut rows: Vec<Row> = Vec::new();
        let mut work: Vec<Work<'_>> = Vec::new();
        let mut next = PROMPT.len();
        group.bench_function(BenchmarkId::from_parameter(lanes), |bencher| {
            bencher.iter_batched_ref(
                || {
                    if next == TOKENS {
                        for &seq in &seqs {
                            executor.truncate(seq, PROMPT.len()).expect("it is idle");
                        }
                        next = PROMPT.len();
                    }
                    work.clear();
                    work.extend(seqs.iter().map(|&seq| Work::Decode { seq, at: next, token: 1, logits: &greedy }));
                    next += 1;
                    std::mem::take(&mut work)
                },
                |work| executor.run(work, &mut rows).expect("there is room"),
                criterion::BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

fn run_decodes(criterion: &mut Criterion) {
    measure(criterion, "tokens counted", || FreeRuntime::new(64));
    measure(criterion, "block tables", || FreePagedRuntime::new(64, 64 * 256, 16).expect("tables"));
}

/// From the close that frees a slot to the thread that waited for one, awake.
fn wake_up(criterion: &mut Criterion) {
    let core = Core::new(Executor::new(FreePagedRuntime::new(64, 64, 16).expect("tables")), CoreOptions::default());
    let executor = core.expect("the options are legal").executor();
    let mut group = criterion.benchmark_group("facade: from a close to who waited");
    group.bench_function("thread", |bencher| {
        bencher.iter_custom(|rounds| {
            let mut sum = Duration::ZERO;
            for _ in 0..rounds {
                let held = executor.admit(&Admission::of(&PROMPT, 16)).expect("there is room");
                let ticket = executor.capacity().now().watching(Domain::Slots.bit());
                let wait = executor.capacity().wait(ticket).expect("it can be waited for");
                let waiting = std::thread::spawn(move || {
                    let news = wait.block(None).expect("nobody closes it");
                    assert!(news.is_some());
                    Instant::now()
                });
                // Until it sleeps: a wait that finds news is another question.
                std::thread::sleep(Duration::from_micros(200));
                let closed = Instant::now();
                executor.close(held, End::Cancelled).expect("it is open");
                sum += waiting.join().expect("it ends").saturating_duration_since(closed);
            }
            sum
        });
    });
    group.finish();
}

criterion_group!(benches, run_decodes, wake_up);
criterion_main!(benches);
