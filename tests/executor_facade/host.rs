//! A core over the fake, and calls spelled shortly.

use std::sync::Arc;
use std::time::Duration;

use ictus::executor::Executor;
use ictus::facade::{
    Admission, Bad, Blocked, Chunk, Core, CoreOptions, Domain, End, Logits, Memory, ModelExecutor, Out, Receipt,
    Refusal, Remedy, Row, Seq, Work,
};
use ictus::runtime::{FakeOptions, FakeRuntime};

/// Ids are below it.
pub const VOCAB: u32 = 64;

pub struct Host {
    pub core: Core<FakeRuntime>,
    pub executor: Arc<dyn ModelExecutor>,
    pub greedy: Logits,
}

/// A pool of `blocks` blocks of 32 tokens for `slots` sequences.
pub fn pool(blocks: u64, slots: u32) -> FakeRuntime {
    pool_with(blocks, slots, |_| {})
}

pub fn pool_with(blocks: u64, slots: u32, change: impl FnOnce(&mut FakeOptions)) -> FakeRuntime {
    FakeRuntime::with(|options| {
        let descriptor = &mut options.descriptor;
        descriptor.vocab_size = VOCAB;
        descriptor.max_batch = 64;
        descriptor.max_seqs = slots;
        descriptor.page_size_tokens = 32;
        descriptor.cell_granule_tokens = 32;
        descriptor.cells_total = 32 * blocks;
        descriptor.copy_shares_cells = true;
        descriptor.verify_rows = true;
        options.record = false;
        change(options);
    })
}

pub fn host(blocks: u64, slots: u32) -> Host {
    Host::over(pool(blocks, slots))
}

/// `prompt` tokens that differ by `salt`.
pub fn prompt(len: usize, salt: u32) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 7 + salt * 13 + i / 5) % (VOCAB - 1)).collect()
}

/// What follows a prompt, greedily.
pub fn text(prompt: &[u32], tokens: usize) -> Vec<u32> {
    let fake = FakeRuntime::with(|options| options.descriptor.vocab_size = VOCAB);
    let mut all = prompt.to_vec();
    (0..tokens).for_each(|_| all.push(fake.token_for(&all)));
    all.split_off(prompt.len())
}

impl Host {
    pub fn over(runtime: FakeRuntime) -> Self {
        Self::with(Executor::new(runtime), CoreOptions::default())
    }

    pub fn with(executor: Executor<FakeRuntime>, options: CoreOptions) -> Self {
        let core = Core::new(executor, options).expect("the options are legal");
        let executor = core.executor();
        Self { core, executor, greedy: Logits::greedy() }
    }

    pub fn admit(&self, prompt: &[u32], ceiling: usize) -> Result<Seq, Refusal> {
        self.executor.admit(&Admission::of(prompt, ceiling))
    }

    /// Runs one chunk.
    pub fn chunk(&self, seq: Seq, start: usize, len: usize, total: usize) -> Result<Row, Refusal> {
        let chunk = Chunk::new(start, len, total)?;
        self.one(Work::Prefill { seq, chunk, whole: false, logits: &self.greedy })
    }

    pub fn decode(&self, seq: Seq, at: usize, token: u32) -> Result<Row, Refusal> {
        self.one(Work::Decode { seq, at, token, logits: &self.greedy })
    }

    pub fn one(&self, work: Work<'_>) -> Result<Row, Refusal> {
        let mut rows = Vec::new();
        self.executor.run(&[work], &mut rows)?;
        assert_eq!(rows.len(), 1);
        rows.pop().ok_or(Refusal::bad(Bad::Bounds))
    }

    /// Admits a prompt and runs it; the sequence and its first token.
    pub fn started(&self, prompt: &[u32], ceiling: usize) -> (Seq, u32) {
        let seq = self.admit(prompt, ceiling).expect("there is room");
        let row = self.chunk(seq, 0, prompt.len(), prompt.len()).expect("there is room");
        (seq, token(&row))
    }

    pub fn memory(&self) -> Memory {
        let memory = self.executor.capacity().memory();
        memory.check().expect("the level of memory holds together");
        memory
    }

    /// Blocks that are free.
    pub fn free(&self) -> u64 {
        self.memory().blocks_free + self.memory().blocks_evictable
    }

    pub fn close(&self, seq: Seq) -> Receipt {
        self.executor.close(seq, End::Cancelled).expect("it is open")
    }

    /// Walks the engine below.
    pub fn audit(&self) {
        self.core.inspect(|executor| executor.audit()).expect("the engine is sound");
    }

    /// How long a step takes from here on.
    pub fn slow_steps(&self, delay: Duration) {
        self.core.inspect(|executor| executor.primitives_mut().set_step_delay(delay));
    }

    /// Waits until a run has the sequence.
    pub fn wait_in_flight(&self, seq: Seq) {
        while self.executor.held(seq).map_or(0, |units| units[Domain::Flight.index()]) == 0 {
            std::thread::yield_now();
        }
    }
}

/// The one token of a row.
#[track_caller]
pub fn token(row: &Row) -> u32 {
    match &row.out {
        Ok(Out::Tokens(tokens)) if tokens.len() == 1 => tokens[0],
        other => panic!("no token: {other:?}"),
    }
}

#[track_caller]
pub fn blocked<T: std::fmt::Debug>(outcome: Result<T, Refusal>) -> Blocked {
    match outcome {
        Err(Refusal::Blocked(blocked)) => blocked,
        other => panic!("not blocked: {other:?}"),
    }
}

#[track_caller]
pub fn bad<T: std::fmt::Debug>(outcome: Result<T, Refusal>) -> (Bad, u32) {
    match outcome {
        Err(Refusal::Bad { why, at }) => (why, at),
        other => panic!("not refused as wrong: {other:?}"),
    }
}

/// The domains that are short.
pub fn short(blocked: &Blocked) -> Vec<Domain> {
    blocked.shortfalls().iter().map(|entry| entry.domain).collect()
}

/// An admission that looks for a victim.
pub fn victim_wanted(prompt: &[u32], ceiling: usize) -> Admission<'_> {
    Admission { pressure: Remedy::Recompute, ..Admission::of(prompt, ceiling) }
}
