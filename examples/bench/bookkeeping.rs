//! What an engine costs beside the model: the calls of a host over a runtime whose steps are free and whose block tables are real.

use std::time::Instant;

use ictus::engine::Engine;
use ictus::executor::Executor;
use ictus::record::constant::{fork_flag, space_id};
use ictus::testing::{FreePagedRuntime, FreeRuntime, Harness};

use crate::host::{Failure, tokens};

const PAGE_SIZE_TOKENS: usize = 16;
/// Tokens of the keys that crowd the cache; every second one begins like the span.
const CROWD_TOKENS: usize = 1024;
const CROWD_COMMON_TOKENS: usize = 512;
const VOCAB: u32 = 1 << 15;
/// Lanes that a plan of the harness allows itself.
const LANES: u32 = 8;
/// Forks that live together: the first of them copies the list of tokens that they share.
const FORKS: usize = 64;
/// Times a figure is taken; the median is told.
const ROUNDS: usize = 31;

type PagedHarness = Harness<Executor<FreePagedRuntime>>;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn paged(pages: usize) -> Result<PagedHarness, Failure> {
    Ok(Harness::with_engine(Executor::new(FreePagedRuntime::new(LANES, pages, PAGE_SIZE_TOKENS)?)))
}

/// A lane that ran a whole prompt.
fn prefilled(harness: &mut PagedHarness, tag: u64, prompt: &[u32]) -> Result<(), Failure> {
    let staged = harness.prompt(prompt);
    let plan = harness.plan().prefill_budget(u32::MAX).admit(tag, staged).prefill(tag, 0, prompt.len() as u32);
    harness.tick(plan)?;
    Ok(())
}

/// Microseconds of `space_match` for a span of `span_tokens` that the longest of `entries` entries begins with.
pub fn match_us(span_tokens: usize, entries: usize) -> Result<f64, Failure> {
    let pages = (span_tokens + entries * CROWD_TOKENS).div_ceil(PAGE_SIZE_TOKENS) + 1;
    let mut harness = paged(pages)?;
    let span = tokens(span_tokens, VOCAB, 1);
    prefilled(&mut harness, 1, &span)?;
    for number in 1..entries {
        let plan = harness.plan().retire(number as u64, true);
        harness.tick(plan)?;
        let common = if number % 2 == 1 { CROWD_COMMON_TOKENS.min(span_tokens) } else { 0 };
        let mut key = span[..common].to_vec();
        key.extend(tokens(CROWD_TOKENS - common, VOCAB, number as u32 + 1));
        prefilled(&mut harness, number as u64 + 1, &key)?;
    }
    let plan = harness.plan().retire(entries as u64, true);
    harness.tick(plan)?;
    let bytes = ((entries - 1) * CROWD_TOKENS + span_tokens / PAGE_SIZE_TOKENS * PAGE_SIZE_TOKENS) as u64
        * harness.engine.descriptor().kv_bytes_per_token.max(1);
    if harness.engine.cache_bytes() != bytes {
        return Err(format!("{} bytes are cached instead of {bytes}", harness.engine.cache_bytes()).into());
    }
    let mut once = || -> Result<f64, Failure> {
        let started = Instant::now();
        let found = harness.engine.space_match(space_id::KV, &span, &[])?;
        let us = started.elapsed().as_secs_f64() * 1e6;
        if found.spaces.count != 1 {
            return Err("the span is in the cache, and was not found".into());
        }
        Ok(us)
    };
    once()?;
    Ok(median((0..ROUNDS).map(|_| once()).collect::<Result<_, _>>()?))
}

/// Microseconds of `seq_fork` of a lane that holds `tokens` tokens, the mean of forks that live together.
pub fn fork_us(held: usize) -> Result<f64, Failure> {
    let mut harness = paged(held.div_ceil(PAGE_SIZE_TOKENS) + 1)?;
    prefilled(&mut harness, 1, &tokens(held + 1, VOCAB, 1))?;
    let parent = harness.engine.lane_sequence(1).ok_or("the lane has a sequence")?;
    let mut forks = Vec::with_capacity(FORKS);
    let mut once = || -> Result<f64, Failure> {
        let started = Instant::now();
        for _ in 0..FORKS {
            forks.push(harness.engine.seq_fork(parent, fork_flag::PRIVATE)?);
        }
        let us = started.elapsed().as_secs_f64() * 1e6 / FORKS as f64;
        for fork in forks.drain(..) {
            harness.engine.free_sequence(fork)?;
        }
        Ok(us)
    };
    once()?;
    Ok(median((0..ROUNDS).map(|_| once()).collect::<Result<_, _>>()?))
}

/// Microseconds of a tick in which every lane decodes one token.
pub fn tick_us(lanes: u64) -> Result<f64, Failure> {
    const TICKS: usize = 200;
    let engine = Executor::new(FreeRuntime::new(lanes as u32));
    let mut harness = Harness::with_engine(engine).with_max_decode_lanes(lanes as u32);
    for tag in 0..lanes {
        let prompt = harness.prompt(&[1; 8]);
        let plan = harness.plan().admit(tag, prompt).prefill(tag, 0, 8);
        harness.tick(plan)?;
    }
    // A host in C fills its own arrays: the plan is built once.
    let (mut plan, arena) = (0..lanes).fold(harness.plan(), |plan, tag| plan.decode(tag, 1)).build();
    let mut once = || -> Result<f64, Failure> {
        let started = Instant::now();
        for _ in 0..TICKS {
            let emits = harness.engine.tick(&plan, &arena, &mut harness.rings)?.emits.len() as u64;
            plan.plan_seq += 1;
            if emits != lanes {
                return Err(format!("{emits} of {lanes} lanes emitted").into());
            }
        }
        Ok(started.elapsed().as_secs_f64() * 1e6 / TICKS as f64)
    };
    once()?;
    Ok(median((0..ROUNDS).map(|_| once()).collect::<Result<_, _>>()?))
}
