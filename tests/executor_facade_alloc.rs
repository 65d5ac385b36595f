//! What the facade costs: runs that allocate nothing (XS-68), long use that leaves nothing (XS-65), waits that take no time.

#[path = "common/allocations.rs"]
mod allocations;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use allocations::allocated_bytes;
use ictus::abi::constant::executor::{out, work};
use ictus::abi::{ExecutorSeq, RowRecord, WorkRecord, adopt_core, ictus_executor_destroy, ictus_executor_run};
use ictus::capacity::Ledger;
use ictus::executor::Executor;
use ictus::facade::{
    Admission, Chunk, Core, CoreOptions, Domain, End, Fit, Logits, ModelExecutor, Out, Remedy, Row, Seq, TokenMask,
    Work,
};
use ictus::record::Array;
use ictus::record::view::Plain;
use ictus::runtime::Runtime;
use ictus::testing::{FreePagedRuntime, FreeRuntime};

const LANES: usize = 32;
const PROMPT: [u32; 8] = [1; 8];

/// Sequences that have had their prompts, over a runtime whose step is free.
fn decoding<R: Runtime + Send + 'static>(runtime: R, ceiling: usize) -> (Arc<dyn ModelExecutor>, Vec<Seq>) {
    let core = Core::new(Executor::new(runtime), CoreOptions::default()).expect("the options are legal");
    let executor = core.executor();
    let seqs = started(&*executor, ceiling);
    (executor, seqs)
}

fn started(executor: &dyn ModelExecutor, ceiling: usize) -> Vec<Seq> {
    let (greedy, mut rows) = (Logits::greedy(), Vec::new());
    let chunk = Chunk::new(0, PROMPT.len(), PROMPT.len()).expect("it is one");
    let seqs = (0..LANES).map(|_| {
        let seq = executor.admit(&Admission::of(&PROMPT, ceiling)).expect("there is room");
        let work = Work::Prefill { seq, chunk, whole: false, logits: &greedy };
        executor.run(&[work], &mut rows).expect("there is room");
        seq
    });
    seqs.collect()
}

/// One test at a time: the process's memory is looked at.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(dead_code, reason = "the shared helpers have more than this file uses")]
#[path = "executor_facade/host.rs"]
mod host;

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

/// 10^5 runs of 32 decodes each. How long one takes is printed, and measured by `cargo bench --bench facade`.
#[test]
fn xs_68_decodes_allocate_nothing() {
    let _alone = alone();
    const RUNS: usize = 100_000;
    // The counter counts.
    assert!(allocated_bytes(|| drop(std::hint::black_box(vec![1u8; 100]))).1 >= 100);
    let (executor, seqs) = decoding(FreeRuntime::new(64), RUNS + 100);
    let started = std::time::Instant::now();
    assert_eq!(allocated(&*executor, &seqs, 8, RUNS), 0, "over a runtime that counts tokens");
    let time = started.elapsed();
    println!("{RUNS} runs of {LANES} decodes: {:.1} us each", time.as_secs_f64() * 1e6 / RUNS as f64);
    // Block tables double at 16, 32, 64 ... pages of 16 tokens: counted are runs between two doublings.
    let paged = FreePagedRuntime::new(64, 64 * 128, 16).expect("tables");
    let (executor, seqs) = decoding(paged, 2048);
    assert_eq!(allocated(&*executor, &seqs, 550, 400), 0, "over block tables");
}

/// X-46, in C: the layer above adds no allocation.
#[test]
fn xs_68_decodes_allocate_nothing_in_c() {
    let _alone = alone();
    let paged = FreePagedRuntime::new(64, 64 * 128, 16).expect("tables");
    let core = Core::new(Executor::new(paged), CoreOptions::default()).expect("the options are legal");
    let seqs = started(&*core.executor(), 2048);
    let executor = adopt_core(core);
    let (mut rows, mut tokens) = ([RowRecord::zeroed(); LANES], [0u32; LANES]);
    let token = 1u32;
    let mut step = |at: usize| {
        let work: [WorkRecord; LANES] = std::array::from_fn(|lane| {
            let (core, slot, generation) = seqs[lane].to_parts();
            let seq = ExecutorSeq { core, slot, generation };
            let (start, tokens) = (at as u64, &raw const token);
            WorkRecord { seq, start, count: 1, tokens, kind: work::DECODE, ..WorkRecord::zeroed() }
        });
        let (rows, tokens, n) = (rows.as_mut_ptr(), tokens.as_mut_ptr(), LANES as u64);
        // SAFETY: all lists are locals, as long as they are said to be.
        let status = unsafe {
            let none = std::ptr::null_mut();
            ictus_executor_run(executor, Array::over(&work), rows, n, tokens, n, std::ptr::null_mut(), 0, none)
        };
        assert_eq!(status, 0);
    };
    // Between two doublings of the block tables.
    let from = PROMPT.len() + 550;
    (PROMPT.len()..from).for_each(&mut step);
    assert_eq!(allocated_bytes(|| (from..from + 400).for_each(&mut step)).1, 0);
    assert!(rows.iter().all(|row| (row.kind, row.count) == (out::TOKENS, 1)));
    // SAFETY: a handle is a number.
    assert_eq!(unsafe { ictus_executor_destroy(executor) }, 0);
}

/// Pages of this process that are in memory.
fn resident_pages() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux says");
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).expect("a number")
}

/// 10^4 cycles with every option there is; what is counted is at its start values afterwards, and memory is flat.
#[test]
fn xs_65_ten_thousand_cycles_leave_nothing() {
    let _alone = alone();
    use host::{Host, VOCAB, pool, prompt, text, token};
    const WORKSPACE: usize = Domain::Workspace.index();
    let executor = Executor::new(pool(16, 8));
    let mut limits = executor.limits();
    (limits.total[WORKSPACE], limits.max[WORKSPACE]) = (1 << 16, 1 << 16);
    let ledger = Ledger::new(limits);
    let counted = ledger.clone();
    let options = CoreOptions { workspace_bytes: 64, workspace_token_bytes: 8, ..CoreOptions::default() };
    let host = Host::with(executor.with_ledger(ledger), options);
    let used = |domain| counted.used(domain);
    let four = || [Domain::Slots, Domain::Blocks, Domain::Workspace, Domain::Flight].map(used);
    let (before, memory) = (four(), host.memory());
    assert_eq!(before, [0; 4]);
    for _ in 0..2 {
        host.executor.prepare().expect("there is room");
        assert_eq!((four(), host.memory()), (before, memory));
    }
    let (full, mask) = (Logits::Full, TokenMask::new([1u8; VOCAB as usize].as_slice()));
    let masked = Logits::Greedy { mask: Some(mask), penalty: 1.0, penalised: Arc::from([]) };
    let punished = Logits::Greedy { mask: None, penalty: 1.5, penalised: Arc::from([VOCAB - 1]) };
    let mut cycle = |round: u32| {
        let question = prompt(2 + round as usize % 60, round % 7);
        let said = text(&question, 4);
        let replays = usize::from(round % 3 == 1);
        let admission = Admission {
            replayed: &said[..replays],
            fit: [Fit::Now, Fit::Input, Fit::Ceiling][round as usize % 3],
            pressure: if round.is_multiple_of(5) { Remedy::Recompute } else { Remedy::Wait },
            reuse: round.is_multiple_of(2),
            counted: replays > 0 || !round.is_multiple_of(7),
            tag: round.into(),
            ..Admission::of(&question, question.len() + 8)
        };
        let context = question.len() + replays;
        let seq = host.executor.admit(&admission).expect("there is room");
        let at = host.executor.frontier(seq).expect("it is open");
        let chunk = Chunk::new(at, context - at, context).expect("a token is left");
        let logits = [&host.greedy, &masked, &punished][round as usize % 3];
        let work = Work::Prefill { seq, chunk, whole: round.is_multiple_of(4), logits };
        if round % 4 == 1 {
            host.executor.reserve(&[work], admission.fit).expect("there is room");
        }
        assert_eq!(token(&host.one(work).expect("there is room")), said[replays]);
        let at = context;
        match round % 4 {
            0 => host.one(Work::Decode { seq, at, token: said[replays], logits: &full }).map(drop),
            1 => host.one(Work::Verify { seq, at, tokens: &said[replays..replays + 2], logits: &full }).map(drop),
            2 => host.decode(seq, at, said[replays]).map(drop),
            _ => Ok(()),
        }
        .expect("there is room");
        if round % 5 == 2 {
            host.executor.truncate(seq, context - 1).expect("it is idle");
        }
        let end = match round % 4 {
            0 if round % 5 != 2 => End::Completed { prompt: question.len(), output: replays + 1 },
            0 | 1 => End::Cancelled,
            2 => End::Failed,
            _ => End::Recompute,
        };
        host.executor.close(seq, end).expect("it is idle");
    };
    (0..1000).for_each(&mut cycle);
    let resident = resident_pages();
    (1000..11_000).for_each(&mut cycle);
    // The allocator may keep a little; a leak of a kilobyte per cycle would be 2500 pages.
    let grown = resident_pages().saturating_sub(resident);
    println!("{grown} pages more after 10000 cycles");
    assert!(grown < 600, "{grown} pages");
    host.core.inspect(|executor| {
        use ictus::engine::Engine;
        executor.cache_evict(u64::MAX, 0, u64::MAX, u64::MAX).expect("it can be emptied");
        assert_eq!(executor.primitives().live_sequences(), 0);
    });
    assert_eq!((four(), host.memory()), (before, memory));
    let stats = host.executor.stats();
    assert_eq!((stats.accounting_faults, stats.faults, stats.waiters), (0, [0; 4], 0));
    host.audit();
}

/// Times that this thread has given the processor up by itself, and the ticks of it that it has used.
fn thread_cost() -> (u64, u64) {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/{name}")).expect("Linux says");
    let status = read("status");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).expect("Linux says");
    let stat = read("stat");
    let behind_name = stat.rsplit(')').next().expect("a name");
    let ticks = behind_name.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().expect("a number")).sum();
    (line.trim().parse().expect("a number"), ticks)
}

/// who waits is asleep. A thousand releases of other domains wake nobody, and the one that is waited for wakes each once.
#[test]
fn xs_13_parked_waits_cost_no_time() {
    let _alone = alone();
    use host::{blocked, prompt, short};
    let host = Arc::new(host::host(64, 2));
    let (first, _) = host.started(&prompt(40, 1), 64);
    host.started(&prompt(4, 2), 8);
    let refused = blocked(host.admit(&prompt(3, 3), 8));
    assert_eq!(short(&refused), [Domain::Slots]);
    let parked: Vec<_> = (0..8)
        .map(|_| {
            let wait = host.executor.capacity().wait(refused.ticket).expect("it can be waited for");
            std::thread::spawn(move || {
                let before = thread_cost();
                let woken = wait.block(None).expect("nobody closes it");
                let after = thread_cost();
                assert!(woken.is_some());
                (after.0 - before.0, after.1 - before.1)
            })
        })
        .collect();
    while host.executor.stats().waiters < 8 {
        std::thread::yield_now();
    }
    std::thread::sleep(std::time::Duration::from_millis(100));
    for _ in 0..1000 {
        // Blocks come and go, and runs end.
        host.executor.truncate(first, 32).expect("it is idle");
        host.chunk(first, 32, 8, 40).expect("there is room");
    }
    host.close(first);
    for thread in parked {
        let (switches, ticks) = thread.join().expect("it ends");
        // Once to sleep; locks that others held may add some. A thousand wake-ups would be a thousand.
        assert!(switches <= 20, "{switches} times awake");
        assert!(ticks <= 2, "{ticks} ticks of processor time");
    }
}
