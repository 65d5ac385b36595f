#![forbid(unsafe_code)]
//! What lanes of a schedule start from beside nothing: leases on cached prefixes, forks of other lanes, some of which left the engine
//! as bytes and came back.

use super::Below;
use super::draw::{Lane, Stage};
use super::request::Counts;
use crate::engine::{OpHandle, SeqHandle};
use crate::record::constant::{cache_class, encoding, fork_flag, misc::ALL_SPACES, op_state, space_id, tier};
use crate::record::{Status, TokenRange};
use crate::testing::{EngineInspect, Harness, StageRings};

/// Bare sequences and leases that the host of the schedule holds.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    forks: Vec<Fork>,
    leases: Vec<u64>,
}

/// A bare sequence, and the tokens that it holds.
#[derive(Debug)]
struct Fork {
    sequence: SeqHandle,
    tokens: Vec<u32>,
    adapter: u64,
    /// It was restored from a snapshot.
    restored: bool,
}

/// A lease that the next admit uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub(super) lease: u64,
    /// Prompt tokens that it covers.
    pub(super) len: usize,
    adopted: Option<SeqHandle>,
    imported: bool,
    restored: bool,
}

impl Start {
    /// Counts a start that came about.
    pub(super) fn count(&self, counts: &mut Counts) {
        counts.adopted += u64::from(self.adopted.is_some());
        counts.imported += u64::from(self.imported);
        counts.restored += u64::from(self.restored);
        counts.seeded += u64::from(self.adopted.is_none());
    }
}

impl Holdings {
    /// A start for this prompt; `choice` says of what kind and which, 0 is a cold one.
    pub(super) fn start<E: EngineInspect, R: StageRings>(
        &self,
        harness: &mut Harness<E, R>,
        prompt: &[u32],
        adapter: u64,
        choice: usize,
    ) -> Option<Start> {
        match choice {
            0 => None,
            _ if choice.is_multiple_of(2) => self.adopt(harness, prompt, adapter, choice / 2),
            _ => seed(harness, prompt, adapter, choice / 2),
        }
    }

    fn adopt<E: EngineInspect, R: StageRings>(
        &self,
        harness: &mut Harness<E, R>,
        prompt: &[u32],
        adapter: u64,
        choice: usize,
    ) -> Option<Start> {
        // Shorter than the prompt, so that every runtime takes it (T-35).
        let fits = |fork: &&Fork| {
            fork.adapter == adapter && fork.tokens.len() < prompt.len() && prompt.starts_with(&fork.tokens)
        };
        let fitting: Vec<&Fork> = self.forks.iter().filter(fits).collect();
        let fork = fitting.get(choice % fitting.len().max(1))?;
        // Another admit of the plan may have claimed it.
        let lease = harness.engine.seed_adopt(fork.sequence, &fork.tokens).ok()?;
        let restored = fork.restored;
        Some(Start { lease, len: fork.tokens.len(), adopted: Some(fork.sequence), imported: false, restored })
    }

    /// The plan with this start was accepted: an adopted sequence is the lane's.
    pub(super) fn consumed(&mut self, start: &Start) {
        self.forks.retain(|fork| Some(fork.sequence) != start.adopted);
    }

    /// What a host does between ticks: forks lanes, moves, publishes and frees what it forked, leases and evicts.
    pub(super) fn disturb<E: EngineInspect, R: StageRings>(
        &mut self,
        harness: &mut Harness<E, R>,
        lanes: &[Lane],
        below: &mut Below<'_>,
    ) {
        let live: Vec<&Lane> = lanes.iter().filter(|lane| lane.stage == Stage::Live).collect();
        if below(6) == 0 && !live.is_empty() {
            let flags = [0, fork_flag::PRIVATE, fork_flag::EAGER][below(3)];
            self.fork(harness, live[below(live.len())], flags);
        }
        if below(6) == 0 && !self.forks.is_empty() {
            let fork = self.forks.swap_remove(below(self.forks.len()));
            self.forks.extend(move_out_and_in(harness, fork));
        }
        if below(8) == 0 && !self.forks.is_empty() {
            let fork = self.forks.swap_remove(below(self.forks.len()));
            let done = match below(2) {
                0 => harness.engine.publish_sequence(fork.sequence, &fork.tokens),
                _ => harness.engine.free_sequence(fork.sequence),
            };
            done.expect("it is bare and not leased");
        }
        if below(10) == 0 {
            let classes = [cache_class::RESIDENT, !cache_class::HOST_EXPORT][below(2)];
            harness.engine.cache_evict(classes, 0, u64::MAX, below(4000) as u64).expect("evicting is offered");
        }
        if below(8) == 0 && !lanes.is_empty() {
            let lane = &lanes[below(lanes.len())];
            self.leases.extend(seed(harness, &lane.request.prompt, lane.adapter, below(9)).map(|start| start.lease));
        }
        if below(4) == 0 {
            self.leases.pop().map(|lease| harness.engine.seed_release(lease));
        }
    }

    /// Forks a lane. What the child holds is what the lane committed, or one token less.
    fn fork<E: EngineInspect, R: StageRings>(&mut self, harness: &mut Harness<E, R>, lane: &Lane, flags: u32) {
        let Some(parent) = harness.engine.lane_sequence(lane.tag) else { return };
        let mut tokens = harness.committed(lane.tag);
        let sequence = match harness.engine.seq_fork(parent, flags) {
            Err(Status::NeedsReplan) => return,
            forked => forked.expect("a lane can be forked"),
        };
        let mut lease = harness.engine.seed_adopt(sequence, &tokens);
        if lease == Err(Status::OutOfBoundary) {
            tokens.pop();
            lease = harness.engine.seed_adopt(sequence, &tokens);
        }
        match lease {
            Ok(lease) => {
                harness.engine.seed_release(lease).expect("it was just acquired");
                self.forks.push(Fork { sequence, tokens, adapter: lane.adapter, restored: false });
            }
            // Nothing is in the sequence yet.
            Err(_) => {
                assert!(tokens.is_empty(), "the child holds what the lane committed, or one token less");
                harness.engine.free_sequence(sequence).expect("it is bare");
            }
        }
    }

    /// Gives everything back.
    pub(super) fn release<E: EngineInspect, R: StageRings>(&mut self, harness: &mut Harness<E, R>) {
        for fork in self.forks.drain(..) {
            harness.engine.free_sequence(fork.sequence).expect("it is bare and not leased");
        }
        for lease in self.leases.drain(..) {
            // It may have expired.
            let _ = harness.engine.seed_release(lease);
        }
    }
}

/// A lease on some cached prefix of the prompt.
fn seed<E: EngineInspect, R: StageRings>(
    harness: &mut Harness<E, R>,
    prompt: &[u32],
    adapter: u64,
    choice: usize,
) -> Option<Start> {
    harness.engine.space_match_adapted(ALL_SPACES, prompt, &[], adapter).ok()?;
    let candidates = harness.engine.match_candidates();
    let candidate = candidates.get(choice % candidates.len().max(1))?;
    let (len, tier) = (candidate.prefix_len, candidate.resident_tier);
    // A match does not ask whether the prefix is worth taking (S-40).
    let lease = harness.engine.seed_acquire_adapted(prompt, len, 0, adapter).ok()?;
    Some(Start { lease, len: len as usize, adopted: None, imported: tier == tier::HOST, restored: false })
}

/// Snapshots a fork, frees it, and restores the bytes into a new sequence; none when the pool has no room for it any more.
fn move_out_and_in<E: EngineInspect, R: StageRings>(harness: &mut Harness<E, R>, fork: Fork) -> Option<Fork> {
    let len = fork.tokens.len() as u64;
    let range = TokenRange { start: 0, end: len };
    let engine = &mut harness.engine;
    let sized = match engine.space_export_size(fork.sequence, space_id::KV, range, encoding::LOSSLESS) {
        // Not every runtime moves its state.
        Err(Status::Unsupported) => return Some(fork),
        sized => sized.expect("it can be sized"),
    };
    let op = engine
        .space_snapshot(fork.sequence, space_id::KV, len, sized.bytes, sized.sizing_gen)
        .expect("it was just sized");
    assert_eq!(finished(engine, op), op_state::DONE, "a snapshot takes nothing that could be missing");
    let sealed = engine.take_op_output(op).expect("it is done");
    engine.free_sequence(fork.sequence).expect("it is bare and not leased");
    let sequence = engine.create_sequence().expect("a slot was just freed");
    let op = engine.space_restore(sequence, space_id::KV, &sealed).expect("its own bytes");
    if finished(engine, op) == op_state::DONE {
        return Some(Fork { sequence, restored: true, ..fork });
    }
    engine.free_sequence(sequence).expect("it is bare");
    None
}

/// The state in which an operation ends.
fn finished(engine: &mut impl EngineInspect, op: OpHandle) -> u8 {
    loop {
        let state = engine.op_poll(op).expect("the operation is known").state;
        if state != op_state::PENDING && state != op_state::RUNNING {
            return state;
        }
        engine.pump();
    }
}
