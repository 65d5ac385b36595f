//! A run of 32 decodes allocates nothing, and costs the host some microseconds (XS-68).

#[path = "common/allocations.rs"]
mod allocations;

use std::sync::Arc;

use allocations::allocated_bytes;
use ictus::executor::Executor;
use ictus::facade::{Admission, Chunk, Core, CoreOptions, Logits, ModelExecutor, Out, Row, Seq, Work};
use ictus::runtime::Runtime;
use ictus::testing::{FreePagedRuntime, FreeRuntime};

const LANES: usize = 32;
const PROMPT: [u32; 8] = [1; 8];

/// Sequences that have had their prompts, over a runtime whose step is free.
fn decoding<R: Runtime + Send + 'static>(runtime: R, ceiling: usize) -> (Arc<dyn ModelExecutor>, Vec<Seq>) {
    let core = Core::new(Executor::new(runtime), CoreOptions::default()).expect("the options are legal");
    let executor = core.executor();
    let (greedy, mut rows) = (Logits::greedy(), Vec::new());
    let chunk = Chunk::new(0, PROMPT.len(), PROMPT.len()).expect("it is one");
    let seqs: Vec<Seq> = (0..LANES)
        .map(|_| {
            let seq = executor.admit(&Admission::of(&PROMPT, ceiling)).expect("there is room");
            let work = Work::Prefill { seq, chunk, whole: false, logits: &greedy };
            executor.run(&[work], &mut rows).expect("there is room");
            seq
        })
        .collect();
    (executor, seqs)
}

/// Bytes that `runs` runs of all sequences allocate after `warm` others.
fn allocated(executor: &dyn ModelExecutor, seqs: &[Seq], warm: usize, runs: usize) -> u64 {
    let greedy = Logits::greedy();
    let mut rows: Vec<Row> = Vec::new();
    let mut step = |at: usize| {
        let mut work = [const { None }; LANES];
        for (place, &seq) in work.iter_mut().zip(seqs) {
            *place = Some(Work::Decode { seq, at, token: 1, logits: &greedy });
        }
        let work = work.map(|item| item.expect("as many as lanes"));
        executor.run(&work, &mut rows).expect("there is room");
        assert!(rows.iter().all(|row| matches!(&row.out, Ok(Out::Tokens(tokens)) if tokens.len() == 1)));
    };
    (PROMPT.len()..PROMPT.len() + warm).for_each(&mut step);
    let from = PROMPT.len() + warm;
    allocated_bytes(|| (from..from + runs).for_each(&mut step)).1
}

#[test]
fn xs_68_decodes_allocate_nothing() {
    // The counter counts.
    assert!(allocated_bytes(|| drop(std::hint::black_box(vec![1u8; 100]))).1 >= 100);
    let (executor, seqs) = decoding(FreeRuntime::new(64), 2048);
    assert_eq!(allocated(&*executor, &seqs, 8, 2000), 0, "over a runtime that counts tokens");
    // Block tables double at 16, 32, 64 ... pages of 16 tokens: counted are runs between two doublings.
    let paged = FreePagedRuntime::new(64, 64 * 128, 16).expect("tables");
    let (executor, seqs) = decoding(paged, 2048);
    assert_eq!(allocated(&*executor, &seqs, 550, 400), 0, "over block tables");
}
