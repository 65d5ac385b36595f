//! Batches: what is refused, what is narrowed, what runs.

use std::sync::Arc;
use std::time::Duration;

use ictus::capacity::Limits;
use ictus::executor::Executor;
use ictus::facade::{Bad, Chunk, CoreOptions, Domain, Feature, Out, Refusal, Remedy, Row, Seq, Work};

use crate::host::{Host, bad, blocked, host, pool, prompt, short, text, token};

const BLOCKS: usize = Domain::Blocks.index();

fn run(host: &Host, work: &[Work<'_>]) -> Result<Vec<Row>, Refusal> {
    let mut rows = Vec::new();
    host.executor.run(work, &mut rows).map(|()| rows)
}

///
#[test]
fn xs_30_batch_with_a_wrong_name_runs_nothing() {
    let host = host(16, 8);
    let started: Vec<(Seq, u32)> = (0..3).map(|salt| host.started(&prompt(5, salt), 16)).collect();
    let decode = |index: usize| {
        let (seq, token) = started[index];
        Work::Decode { seq, at: 5, token, logits: &host.greedy }
    };
    assert_eq!(bad(run(&host, &[decode(0), decode(1), decode(0)])), (Bad::Duplicate, 2));
    host.close(started[2].0);
    for _ in 0..2 {
        assert_eq!(bad(run(&host, &[decode(0), decode(1), decode(2)])), (Bad::Stale, 2));
    }
    let foreign = crate::host::host(4, 4).started(&prompt(5, 0), 16).0;
    assert_eq!(bad(host.executor.frontier(foreign)).0, Bad::Foreign);
    assert_eq!(bad(host.executor.close(Seq::default(), ictus::facade::End::Failed)).0, Bad::Foreign);
    assert_eq!(started[..2].iter().map(|&(seq, _)| host.executor.frontier(seq)).collect::<Vec<_>>(), [Ok(5), Ok(5)]);
}

///
#[test]
fn xs_31_items_start_at_the_frontier() {
    let host = host(16, 8);
    let seq = host.admit(&prompt(6, 1), 7).expect("there is room");
    host.chunk(seq, 0, 3, 6).expect("there is room");
    for at in [2, 4] {
        assert_eq!(bad(host.chunk(seq, at, 1, 6)).0, Bad::Frontier);
    }
    assert_eq!(bad(host.decode(seq, 3, 1)).0, Bad::Frontier, "the prompt is not done");
    assert_eq!(bad(host.chunk(seq, 3, 3, 7)).0, Bad::Bounds, "another context");
    let next = token(&host.chunk(seq, 3, 3, 6).expect("there is room"));
    assert_eq!(bad(host.chunk(seq, 0, 6, 6)).0, Bad::Frontier, "the prompt is done");
    assert_eq!(bad(host.decode(seq, 6, 64)).0, Bad::Bounds, "an id of no vocabulary");
    host.decode(seq, 6, next).expect("there is room");
    assert_eq!(bad(host.decode(seq, 7, 1)).0, Bad::Bounds, "the ceiling");
}

///
#[test]
fn xs_32_rows_come_in_the_order_of_the_items() {
    let host = host(16, 8);
    let started: Vec<(Seq, u32)> = (0..5).map(|salt| host.started(&prompt(5, salt), 16)).collect();
    let work: Vec<Work<'_>> =
        started.iter().rev().map(|&(seq, token)| Work::Decode { seq, at: 5, token, logits: &host.greedy }).collect();
    let rows = run(&host, &work).expect("there is room");
    for (row, salt) in rows.iter().zip((0..5).rev()) {
        assert_eq!((row.seq, row.ran.clone(), row.probes), (started[salt as usize].0, 5..6, 0));
        assert_eq!(token(row), text(&prompt(5, salt), 2)[1]);
    }
    let seen = host.executor.capacity().now();
    let mut rows = rows;
    host.executor.run(&[], &mut rows).expect("nothing is always possible");
    assert!(rows.is_empty());
    assert_eq!(host.executor.capacity().changed(&seen), Ok(false));
}

///
#[test]
fn xs_33_batch_short_by_a_block_changes_nothing() {
    let host = host(4, 8);
    let texts: Vec<Vec<u32>> = (0..2).map(|salt| text(&prompt(32, salt), 3)).collect();
    let started: Vec<Seq> = (0..2).map(|salt| host.started(&prompt(32, salt), 64).0).collect();
    let (hog, _) = host.started(&prompt(10, 9), 64);
    let decode = |index: usize, at: usize| Work::Decode {
        seq: started[index],
        at: 32 + at,
        token: texts[index][at],
        logits: &host.greedy,
    };
    let before = host.memory();
    let refused = blocked(run(&host, &[decode(0, 0), decode(1, 0)]));
    assert_eq!((short(&refused), refused.fits, refused.grew), (vec![Domain::Blocks], 1, 0));
    assert_eq!(host.memory(), before);
    for &seq in &started {
        assert_eq!(host.executor.frontier(seq), Ok(32));
        assert_eq!(host.executor.held(seq).expect("it is open")[BLOCKS], 1);
    }
    assert_eq!(token(&host.one(decode(0, 0)).expect("one fits")), texts[0][1]);
    host.close(hog);
    assert_eq!(host.executor.capacity().changed(&refused.ticket), Ok(true));
    let rows = run(&host, &[decode(0, 1), decode(1, 0)]).expect("there is room now");
    assert_eq!([token(&rows[0]), token(&rows[1])], [texts[0][2], texts[1][1]]);
}

///
#[test]
fn xs_34_fits_says_how_many_would_have_run() {
    let host = host(10, 8);
    let started: Vec<(Seq, u32)> = (0..6).map(|salt| host.started(&prompt(32, salt), 64)).collect();
    let work: Vec<Work<'_>> =
        started.iter().map(|&(seq, token)| Work::Decode { seq, at: 32, token, logits: &host.greedy }).collect();
    let refused = blocked(run(&host, &work));
    assert_eq!(refused.fits, 4);
    assert_eq!(run(&host, &work[..4]).expect("they fit").len(), 4);
    assert_eq!(blocked(run(&host, &work[4..])).fits, 0);
}

///
#[test]
fn xs_36_chunk_is_narrowed_to_a_proper_head() {
    let host = host(3, 4);
    let (hog, _) = host.started(&prompt(10, 9), 32);
    let question = prompt(96, 1);
    let seq = host.admit(&question, 96).expect("there is room");
    let chunk = Chunk::new(0, 96, 96).expect("it is one");
    let whole = Work::Prefill { seq, chunk, whole: true, logits: &host.greedy };
    assert_eq!(short(&blocked(host.one(whole))), [Domain::Blocks]);
    assert_eq!(host.executor.frontier(seq), Ok(0));
    let row = host.chunk(seq, 0, 96, 96).expect("a head of it fits");
    assert!(row.probes >= 1 && row.ran.start == 0 && row.ran.end < 96 && row.ran.end >= 33, "{row:?}");
    assert_eq!(row.out, Ok(Out::Silent));
    let at = row.ran.end;
    assert_eq!(host.executor.frontier(seq), Ok(at));
    host.close(hog);
    let row = host.chunk(seq, at, 96 - at, 96).expect("the rest fits");
    assert_eq!((row.probes, row.ran.clone(), token(&row)), (0, at..96, text(&question, 1)[0]));
    assert_eq!(host.executor.stats().narrowings, 1);
}

/// decodes never shrink, and a workspace that is short narrows the chunk alone.
#[test]
fn xs_37_workspace_narrows_chunks_alone() {
    let executor = Executor::new(pool(32, 8));
    let mut limits: Limits = executor.limits();
    limits.total[Domain::Workspace.index()] = 40;
    limits.max[Domain::Workspace.index()] = 40;
    let executor = executor.with_ledger(ictus::capacity::Ledger::new(limits));
    let host = Host::with(executor, CoreOptions { workspace_token_bytes: 1, ..CoreOptions::default() });
    let started: Vec<(Seq, u32)> = (0..3).map(|salt| host.started(&prompt(20, salt), 64)).collect();
    let question = prompt(64, 7);
    let seq = host.admit(&question, 64).expect("there is room");
    let chunk = Chunk::new(0, 64, 64).expect("it is one");
    let mut work: Vec<Work<'_>> =
        started.iter().map(|&(seq, token)| Work::Decode { seq, at: 20, token, logits: &host.greedy }).collect();
    work.push(Work::Prefill { seq, chunk, whole: false, logits: &host.greedy });
    let rows = run(&host, &work).expect("a head of the chunk fits");
    for (row, salt) in rows[..3].iter().zip(0..) {
        assert_eq!((row.probes, token(row)), (0, text(&prompt(20, salt), 2)[1]));
    }
    assert!(rows[3].probes >= 1 && (1..=37).contains(&rows[3].ran.len()), "{:?}", rows[3]);
    assert_eq!(host.executor.capacity().memory().blocks_total, 32);
    work.pop();
    assert_eq!(bad(run(&host, &work)).0, Bad::Frontier, "they have advanced");
}

///
#[test]
fn xs_39_kinds_are_kept_apart_where_mixing_is_not_offered() {
    let host = Host::with(Executor::new(pool(16, 8)), CoreOptions { mixed: false, ..CoreOptions::default() });
    assert!(!host.executor.info().has(Feature::Mixed));
    assert!(host.executor.info().absent.iter().any(|(feature, why)| *feature == Feature::Mixed && !why.is_empty()));
    let (seq, next) = host.started(&prompt(5, 1), 16);
    let other = host.admit(&prompt(5, 2), 16).expect("there is room");
    let chunk = Chunk::new(0, 5, 5).expect("it is one");
    let work = [
        Work::Decode { seq, at: 5, token: next, logits: &host.greedy },
        Work::Prefill { seq: other, chunk, whole: false, logits: &host.greedy },
    ];
    assert_eq!(run(&host, &work), Err(Refusal::Unsupported(Feature::Mixed)));
    assert_eq!(token(&run(&host, &work[..1]).expect("one kind")[0]), text(&prompt(5, 1), 2)[1]);
    assert_eq!(token(&run(&host, &work[1..]).expect("one kind")[0]), text(&prompt(5, 2), 1)[0]);

    let narrow = CoreOptions { max_items: 1, max_batch_tokens: 2, ..CoreOptions::default() };
    let narrow = Host::with(Executor::new(pool(16, 8)), narrow);
    let (seq, next) = narrow.started(&prompt(40, 1), 64);
    let (other, more) = narrow.started(&prompt(40, 2), 64);
    let decode = |seq, token| Work::Decode { seq, at: 40, token, logits: &narrow.greedy };
    let both = [decode(seq, next), decode(other, more)];
    assert_eq!(run(&narrow, &both), Err(Refusal::Unsupported(Feature::Items)));
    run(&narrow, &both[..1]).expect("a single item is never too much");
}

///
#[test]
fn xs_40_sequence_has_one_run_at_a_time() {
    let host = Arc::new(host(16, 8));
    let question = prompt(64, 1);
    let seq = host.admit(&question, 80).expect("there is room");
    host.slow_steps(Duration::from_millis(100));
    let runner = Arc::clone(&host);
    let running = std::thread::spawn(move || runner.chunk(seq, 0, 32, 64));
    host.wait_in_flight(seq);
    let before = host.memory();
    let refused = blocked(host.chunk(seq, 0, 32, 64));
    assert_eq!((short(&refused), refused.remedy), (vec![Domain::Flight], Remedy::Quiesce));
    assert_eq!(host.memory(), before);
    let wait = host.executor.capacity().wait(refused.ticket).expect("it can be waited for");
    wait.block(Some(Duration::from_secs(10))).expect("it is not closed").expect("the run ends");
    running.join().expect("it ends").expect("it ran");
    assert_eq!(token(&host.chunk(seq, 32, 32, 64).expect("it is idle")), text(&question, 1)[0]);
}
