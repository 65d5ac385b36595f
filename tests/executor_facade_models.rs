//! Rows of the facade are those of the tick engine, bit for bit, on a real model: the same tokens, in a run or in a tick.

use std::path::Path;

use ictus::capacity::DeviceAccount;
use ictus::facade::{Admission, Chunk, CoreBounds, CoreError, CoreOptions, Logits, Out, Row, Seq, Work};
use ictus::record::constant::sampling;
use ictus::ring::Rings;
use ictus::testing::Harness;
use ictus::{Error, Model, ModelOptions};

fn model() -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/ictus-tiny.gguf");
    let options = ModelOptions { context_tokens: 128, pool_tokens: 1024, threads: 1, ..ModelOptions::default() };
    Model::open(path, &options).expect("the model opens")
}

fn prompts(model: &Model) -> Vec<Vec<u32>> {
    let vocab = model.config().vocab as u32;
    (0..3).map(|salt| (0..19 + 7 * salt).map(|i| (i * 37 + salt * 101 + 5) % vocab).collect()).collect()
}

/// The tokens that a tick engine says, and its row behind the prompt.
fn ticked(model: &Model, prompt: &[u32], tokens: u16) -> (Vec<u32>, Vec<u32>) {
    let engine = model.core(CoreOptions::default()).expect("a core").tick_host().expect("nobody else ticks");
    let mut harness = Harness::with_engine(engine);
    let mut said = Vec::new();
    let staged = harness.prompt(prompt);
    let plan = harness.plan().admit(1, staged).prefill(1, 0, prompt.len() as u32).decode(1, tokens);
    let events = harness.tick_ok(plan);
    harness.rings.read_tokens(&events.emits[0].token_ref, &mut said).expect("it was just written");
    let staged = harness.prompt(prompt);
    let host = |admit: &mut ictus::record::LaneAdmit| admit.sampling = sampling::HOST;
    let plan = harness.plan().admit_with(host, 2, staged).prefill(2, 0, prompt.len() as u32).decode(2, 1);
    let events = harness.tick_ok(plan);
    let mut row = Vec::new();
    harness.rings.read_logits_row(&events.emits[0].logits_row, &mut row).expect("it was just written");
    (said, row.iter().map(|value| value.to_bits()).collect())
}

fn token(row: &Row) -> u32 {
    match &row.out {
        Ok(Out::Tokens(tokens)) if tokens.len() == 1 => tokens[0],
        other => panic!("no token: {other:?}"),
    }
}

/// X-51 and promise 1: alone or together, in chunks or whole, verified or decoded, here or there.
#[test]
fn rows_of_runs_are_those_of_ticks() {
    const TOKENS: usize = 12;
    let model = model();
    let core = model.core(CoreOptions::default()).expect("a core");
    let executor = core.executor();
    let (greedy, full, mut rows) = (Logits::greedy(), Logits::Full, Vec::new());
    let prompts = prompts(&model);
    let truths: Vec<(Vec<u32>, Vec<u32>)> =
        prompts.iter().map(|prompt| ticked(&model, prompt, TOKENS as u16)).collect();
    let mut live: Vec<(Seq, usize, Vec<u32>)> = Vec::new();
    // Each prompt in two chunks, the second beside a decode of all earlier ones.
    for (prompt, (_, row_bits)) in prompts.iter().zip(&truths) {
        let seq = executor.admit(&Admission::of(prompt, 128)).expect("there is room");
        let head = Chunk::new(0, 7, prompt.len()).expect("it is one");
        let rest = Chunk::new(7, prompt.len() - 7, prompt.len()).expect("it is one");
        executor.run(&[Work::Prefill { seq, chunk: head, whole: true, logits: &full }], &mut rows).expect("room");
        assert_eq!(rows[0].out, Ok(Out::Silent));
        let mut work: Vec<Work<'_>> = live
            .iter()
            .map(|(seq, at, said)| Work::Decode {
                seq: *seq,
                at: *at,
                token: *said.last().expect("one"),
                logits: &greedy,
            })
            .collect();
        work.push(Work::Prefill { seq, chunk: rest, whole: true, logits: &full });
        executor.run(&work, &mut rows).expect("there is room");
        for ((_, at, said), row) in live.iter_mut().zip(&rows) {
            *at += 1;
            said.push(token(row));
        }
        let Some(Ok(Out::Logits { rows: 1, data })) = rows.last().map(|row| &row.out) else { panic!("a row") };
        assert_eq!(data.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), *row_bits);
        let first = ictus::facade::select(&mut data.clone(), 1.0, &[], None).expect("a finite value");
        live.push((seq, prompt.len(), vec![first]));
    }
    while live.iter().any(|(_, _, said)| said.len() < TOKENS) {
        let work: Vec<Work<'_>> = live
            .iter()
            .map(|(seq, at, said)| Work::Decode {
                seq: *seq,
                at: *at,
                token: *said.last().expect("one"),
                logits: &greedy,
            })
            .collect();
        executor.run(&work, &mut rows).expect("there is room");
        for ((_, at, said), row) in live.iter_mut().zip(&rows) {
            *at += 1;
            said.push(token(row));
        }
    }
    for ((_, _, said), (truth, _)) in live.iter().zip(&truths) {
        assert_eq!(said[..TOKENS], truth[..]);
    }
    // Verified in one pass: the rows of the decodes.
    let (seq, at, said) = &live[0];
    let start = *at - 9;
    executor.truncate(*seq, start).expect("it is idle");
    let fed = &said[said.len() - 10..said.len() - 1];
    executor.run(&[Work::Verify { seq: *seq, at: start, tokens: fed, logits: &greedy }], &mut rows).expect("room");
    assert_eq!(rows[0].out, Ok(Out::Tokens(said[said.len() - 9..].to_vec())));
    core.inspect(|executor| executor.audit()).expect("the engine is sound");
}

/// weights and tables are bytes of the core like its pool, in its own books and in the account that it shares.
#[test]
fn weights_count_in_the_books_of_a_core() {
    let model = model();
    let plan = model.memory_plan().expect("it fits 64 bits");
    let static_bytes = plan.total_bytes() - plan.kv_pool_bytes;
    let alone = model.core(CoreOptions::default()).expect("a core").executor();
    let memory = alone.capacity().memory();
    memory.check().expect("the level of memory holds together");
    assert_eq!((memory.static_bytes, alone.info().static_bytes), (static_bytes, static_bytes));
    assert_eq!(memory.own_claimed, static_bytes + memory.blocks_total * memory.block_size);
    let engine = model.engine().expect("an engine");
    assert_eq!(engine.capacity().expect("it counts here").memory().own_claimed, memory.own_claimed);
    let account = DeviceAccount::new(2 * memory.own_claimed);
    let shared = CoreBounds { account: Some(account.clone()), ..CoreBounds::default() };
    let two = [0, 1].map(|_| model.core_within(CoreOptions::default(), &shared).expect("it fits"));
    assert_eq!(account.claimed(), 2 * memory.own_claimed);
    let device = two[0].executor().capacity().memory();
    assert_eq!(
        (device.device_claimed, device.usable, device.own_claimed),
        (account.claimed(), account.usable(), memory.own_claimed)
    );
    for bounds in [shared.clone(), CoreBounds { budget_bytes: memory.own_claimed - 1, ..CoreBounds::default() }] {
        let refused = model.core_within(CoreOptions::default(), &bounds).map(drop);
        assert!(matches!(refused, Err(Error::Core(CoreError::Memory))), "{refused:?}");
    }
    assert_eq!(account.claimed(), 2 * memory.own_claimed, "a core that is not made claims nothing");
    drop(two);
    assert_eq!(account.claimed(), 0);
}
