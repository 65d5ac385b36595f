//! What the scenarios of the cache say in one line: publish a prompt, seed a lane, see what was lost.

use ictus::engine::Engine;
use ictus::record::constant::{determinism, shed_kind};
use ictus::runtime::FakeOptions;
use ictus::testing::Events;

use super::host::*;

/// Tag of the lanes that only publish.
const PUBLISHER: u64 = 900;

/// The fake of the table: page 1, a byte per token, copies share cells, `resident` cells may rest, `exported` tokens may lie outside.
pub(crate) fn pool(resident: u64, exported: u64) -> impl Fn(&mut FakeOptions) + Copy {
    move |options| {
        tokens_are_bytes(options);
        options.descriptor.copy_shares_cells = true;
        options.descriptor.cache_resident_cells = resident;
        options.descriptor.cache_exported_cells = exported;
    }
}

/// Page 1 and a byte per token.
pub(crate) fn tokens_are_bytes(options: &mut FakeOptions) {
    options.descriptor.page_size_tokens = 1;
    options.descriptor.kv_bytes_per_token = 1;
}

/// A lane with this prompt, retired publishing; gives the events of its last tick.
#[track_caller]
pub(crate) fn publish(h: &mut Fake, prompt: &[u32]) -> Events {
    admit_whole(h, PUBLISHER, prompt, plain);
    let events = ok(h, |plan| plan.retire(PUBLISHER, true));
    h.engine.audit().expect("the engine is sound");
    events
}

/// A lease on the first `len` tokens of a span.
#[track_caller]
pub(crate) fn lease(h: &mut Fake, span: &[u32], len: u64) -> u64 {
    h.engine.seed_acquire(span, len, determinism::BEST_EFFORT).expect("the seed is served")
}

/// Admits a lane from a lease, prefills the rest of its prompt and decodes `grant`.
#[track_caller]
pub(crate) fn seeded(h: &mut Fake, lane: u64, prompt: &[u32], lease: u64, len: usize, grant: u16) -> Events {
    let staged = h.prompt(prompt);
    let rest = (prompt.len() - len) as u32;
    let events = ok(h, |plan| {
        let plan = plan.admit_with(|admit| admit.seed_handle = lease, lane, staged);
        let plan = if rest > 0 { plan.prefill(lane, len as u32, rest) } else { plan };
        plan.decode(lane, grant)
    });
    assert_eq!(h.tokens_of(&events, lane), greedy_after(h, prompt, grant.into()), "as a cold lane");
    h.engine.audit().expect("the engine is sound");
    events
}

/// Seeds a lane with `len` tokens, decodes, and retires it without publishing.
#[track_caller]
pub(crate) fn seed_and_drop(h: &mut Fake, prompt: &[u32], len: usize) {
    let lease = lease(h, prompt, len as u64);
    seeded(h, 901, prompt, lease, len, 1);
    ok(h, |plan| plan.retire(901, false));
}

/// A turn of a conversation: seeded with what the last one left, published under the whole prompt.
#[track_caller]
pub(crate) fn turn(h: &mut Fake, prompt: &[u32], len: usize) -> Events {
    let lease = lease(h, prompt, len as u64);
    let staged = h.prompt(prompt);
    let rest = (prompt.len() - len) as u32;
    ok(h, |plan| plan.admit_with(|admit| admit.seed_handle = lease, 902, staged).prefill(902, len as u32, rest));
    ok(h, |plan| plan.retire(902, true))
}

/// Bytes and tokens of the evictions that a tick reports, and the lane they were for.
pub(crate) fn losses(events: &Events) -> Vec<(u64, u64, u64)> {
    let evictions = events.shed_entries.iter().filter(|entry| entry.kind == shed_kind::CACHE_EVICTION);
    let losses: Vec<_> = evictions.map(|entry| (entry.lane_tag, entry.bytes, entry.tokens)).collect();
    assert_eq!(losses.len() as u32, events.evictions, "T-143: the counter");
    assert_eq!(losses.iter().map(|loss| loss.1).sum::<u64>(), events.bytes_evicted, "T-143: the bytes");
    losses
}

/// A span that goes on after a key.
pub(crate) fn beyond(key: &[u32]) -> Vec<u32> {
    [key, &[31_000, 31_001]].concat()
}

/// A bare sequence that holds these tokens, forked from a lane that is gone.
#[track_caller]
pub(crate) fn bare(h: &mut Fake, tokens: &[u32], flags: u32) -> u64 {
    admit_whole(h, PUBLISHER, &beyond(tokens)[..=tokens.len()], plain);
    let parent = sequence(h, PUBLISHER);
    let child = h.engine.seq_fork(parent, flags).expect("there is room");
    ok(h, |plan| plan.retire(PUBLISHER, false));
    assert_eq!(h.engine.primitives().contents(child), Some(tokens));
    child
}
