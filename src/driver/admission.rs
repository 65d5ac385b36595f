#![forbid(unsafe_code)]
//! Who gets a lane, and from which state it starts.
//!
//! The best waiting request is looked at first. It starts from the longest prefix that the cache has. When a prompt that is under way on
//! a lane begins the same for longer, it waits until that one is through the common part, which is then forked, published, and leased as
//! any other entry: the part is computed once, however many requests begin with it. While it waits, the lane's prompt ranks as high.
//!
//! A request that does not fit keeps those behind it from overtaking, or a large one would never fit. When a lane of a lower priority
//! and rank runs, that one gives way.

use std::ops::Bound;

use super::event::{Failure, Finish};
use super::job::{Job, Live};
use super::lanes::Slot;
use super::rank::Rank;
use super::request::Grammar;
use super::scheduler::Scheduler;
use crate::engine::Engine;
use crate::record::Status;
use crate::record::constant::misc::ALL_SPACES;

/// Requests that may be passed over in a step because they wait for a prefix.
const PASSED_OVER_MAX: usize = 256;
/// Ticks after which a request that did not fit is looked at again, though nothing seems to have changed.
const TRY_AGAIN_TICKS: u64 = 16;

/// From what a request starts.
enum Start {
    /// Its whole prompt is computed.
    Cold,
    /// From this many cached tokens.
    Cached(u64),
    /// Later, from the prefix of a lane.
    Later,
}

impl Scheduler {
    /// Puts waiting requests on lanes, for the next plan to admit.
    pub(super) fn admit(&mut self, engine: &mut dyn Engine) {
        if self.waiting.is_empty() || (self.has_no_room() && !self.lanes.is_empty()) {
            return;
        }
        let mut passed = 0;
        let mut after: Option<Rank> = None;
        while self.lanes.len() < self.lanes.capacity() {
            let Some(rank) = self.next_waiting(after) else { return };
            let Some(job) = self.waiting.remove(&rank) else { return };
            let start = self.start_of(&job, engine);
            if matches!(start, Start::Later) {
                self.wait(job);
                after = Some(rank);
                passed += 1;
                if passed == PASSED_OVER_MAX {
                    return;
                }
                continue;
            }
            let cached = if let Start::Cached(tokens) = start { tokens } else { 0 };
            if !self.lanes.is_empty() && !self.has_room(&job, cached) {
                self.wait(job);
                self.note_no_room();
                break;
            }
            self.put_on_lane(job, cached, engine);
        }
        self.ask_for_way(after);
    }

    fn next_waiting(&self, after: Option<Rank>) -> Option<Rank> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.waiting.range((from, Bound::Unbounded)).next().map(|(&rank, _)| rank)
    }

    /// Whether nothing has changed since a request did not fit.
    fn has_no_room(&self) -> bool {
        self.no_room.is_some_and(|(used_pages, lanes, tick)| {
            self.pool.used_pages() >= used_pages && self.lanes.len() >= lanes && self.ticks < tick + TRY_AGAIN_TICKS
        })
    }

    /// Whether a job fits beside the lanes, as far as the counters tell.
    fn has_room(&self, job: &Job, cached: u64) -> bool {
        let ahead = |live: &Live| u64::from(live.prefill_left()) + self.reserve(&live.job);
        let own = if self.pool.shares { cached } else { 0 };
        let new = (job.tokens.len() as u64).saturating_sub(own).saturating_add(self.reserve(job));
        self.pool.fits(self.lanes.iter().map(|(_, live)| ahead(live)).chain([new]), cached)
    }

    fn reserve(&self, job: &Job) -> u64 {
        u64::from(self.options.reserve_tokens).min(job.output.tokens_left())
    }

    /// Lets the worst lane give way when the best request that could start now has a higher priority and rank.
    fn ask_for_way(&mut self, after: Option<Rank>) {
        let Some(job) = self.next_waiting(after).and_then(|rank| self.waiting.get(&rank)) else { return };
        let Some((slot, worst)) = self.lanes.iter().next_back() else { return };
        let lower = worst.job.request.priority < job.request.priority && worst.job.rank > job.rank;
        if lower && !worst.fresh && self.prefix_on_lane(job, 0).is_none() {
            self.gives_way = Some(slot);
        }
    }

    /// From what a job starts.
    fn start_of(&mut self, job: &Job, engine: &mut dyn Engine) -> Start {
        if !self.caches {
            return Start::Cold;
        }
        let cached = self.longest_cached(job, engine);
        match self.prefix_on_lane(job, cached) {
            Some((tokens, slot)) => match self.publish_prefix(slot, tokens, engine) {
                Published::Yes => {
                    let cached = self.longest_cached(job, engine);
                    self.start_from(cached)
                }
                Published::NotYet => {
                    let rank = job.rank;
                    if let Some(live) = self.lanes.get_mut(slot) {
                        live.prefill_rank = live.prefill_rank.min(rank);
                    }
                    Start::Later
                }
                Published::No => self.start_from(cached),
            },
            None => self.start_from(cached),
        }
    }

    fn start_from(&self, cached: u64) -> Start {
        if cached >= u64::from(self.options.seed_min_tokens).max(1) { Start::Cached(cached) } else { Start::Cold }
    }

    /// The longest prefix that the cache offers; 0 is none.
    fn longest_cached(&mut self, job: &Job, engine: &mut dyn Engine) -> u64 {
        let exact = job.request.deterministic;
        let found = match job.request.adapter {
            0 => engine.space_match(ALL_SPACES, &job.tokens, &[]),
            adapter => engine.space_match_adapted(ALL_SPACES, &job.tokens, &[], adapter),
        };
        match found {
            Ok(_) => {
                let offered = engine.match_candidates().iter().filter(|offer| !exact || offer.taint_bits == 0);
                offered.map(|offer| offer.prefix_len).max().unwrap_or(0)
            }
            Err(Status::Unsupported) => {
                self.caches = false;
                0
            }
            Err(_) => 0,
        }
    }

    /// A prompt on a lane that begins like this one, for so much longer than what is cached that it pays.
    fn prefix_on_lane(&self, job: &Job, cached: u64) -> Option<(u64, Slot)> {
        if !self.forks {
            return None;
        }
        let (pages, slot) = self.beginnings.longest(&job.chain)?;
        let tokens = pages as u64 * self.pool.page_tokens;
        let common = usize::try_from(tokens).ok()?;
        let live = self.lanes.get(slot)?;
        let same = live.job.tokens.get(..common)? == job.tokens.get(..common)?;
        (same && tokens >= cached + u64::from(self.options.share_min_tokens)).then_some((tokens, slot))
    }

    /// Copies the prefix of a lane into the cache, once the lane is through it.
    fn publish_prefix(&mut self, slot: Slot, tokens: u64, engine: &mut dyn Engine) -> Published {
        let Some(live) = self.lanes.get(slot) else { return Published::No };
        if live.fresh || u64::from(live.fed_at_least()) < tokens {
            return Published::NotYet;
        }
        let prefix = usize::try_from(tokens).ok().and_then(|tokens| live.job.tokens.get(..tokens));
        let (Some(prefix), Some(parent)) = (prefix, engine.lane_sequence(live.lane_tag)) else { return Published::No };
        let outcome = engine.seq_fork(parent, 0).and_then(|child| {
            engine.publish_sequence(child, prefix).inspect_err(|_| {
                // Still ours; were it not, there would be nothing to free.
                let _ = engine.free_sequence(child);
            })
        });
        match outcome {
            Ok(()) => Published::Yes,
            // Now is not the time: no room, or an operation is running on the lane.
            Err(Status::NeedsReplan | Status::Busy) => Published::No,
            Err(_) => {
                self.forks = false;
                Published::No
            }
        }
    }

    /// Makes what the job needs in the engine and puts it on a lane.
    fn put_on_lane(&mut self, mut job: Job, cached: u64, engine: &mut dyn Engine) {
        if let Err(failure) = make_handles(&mut job, engine) {
            return self.finish(job, Finish::Failed(failure));
        }
        let Ok(staged) = self.rings.try_stage_prompt(&job.tokens) else {
            return self.finish(job, Finish::Failed(Failure::Rejected(Status::RejectBounds)));
        };
        // The cache may have changed its mind; then the job starts cold.
        let lease = if cached > 0 { acquire(&job, cached, engine).unwrap_or(0) } else { 0 };
        let seeded = if lease == 0 { 0 } else { u32::try_from(cached).unwrap_or(0) };
        let (id, adapter) = (job.id, job.request.adapter);
        let Some(slot) = self.lanes.insert(|tag| Live::new(job, tag, staged, lease, seeded)) else { return };
        self.place_on_lane(id, slot);
        let Some(live) = self.lanes.get(slot) else { return };
        // Listed at once, so that the next one with this beginning waits for it.
        self.beginnings.insert(&live.job.chain, slot);
        if adapter != 0
            && let Err(status) = engine.adapter_bind(live.lane_tag, adapter)
        {
            self.leave(slot, Finish::Failed(Failure::Adapter(status)));
        }
    }
}

fn acquire(job: &Job, tokens: u64, engine: &mut dyn Engine) -> Result<u64, Status> {
    match job.request.adapter {
        0 => engine.seed_acquire(&job.tokens, tokens, job.determinism()),
        adapter => engine.seed_acquire_adapted(&job.tokens, tokens, job.determinism(), adapter),
    }
}

/// What became of the wish to publish a lane's prefix.
enum Published {
    Yes,
    NotYet,
    No,
}

/// Makes the grammar and the bias list of a job, once.
fn make_handles(job: &mut Job, engine: &mut dyn Engine) -> Result<(), Failure> {
    if job.handles.ready {
        return Ok(());
    }
    let made = match &job.request.grammar {
        Grammar::None => Ok(0),
        Grammar::Handle(handle) => Ok(*handle),
        Grammar::Schema(schema) => engine.grammar_create(schema),
        Grammar::Structural(document) => engine.grammar_create_structural(document),
    };
    job.handles.grammar = made.map_err(Failure::Grammar)?;
    job.handles.grammar_borrowed = !job.makes_grammar();
    if !job.request.logit_bias.is_empty() {
        // An id past `i32` is no token, and dropped by the engine as any other one outside the vocabulary (E-12).
        let ids: Vec<i32> = job.request.logit_bias.iter().map(|&(id, _)| i32::try_from(id).unwrap_or(-1)).collect();
        let addends: Vec<f32> = job.request.logit_bias.iter().map(|&(_, addend)| addend).collect();
        job.handles.bias = engine.logit_bias_create(&ids, &addends).map_err(Failure::Bias)?;
    }
    job.handles.ready = true;
    Ok(())
}
