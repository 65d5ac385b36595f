//! The contract once more, plain and slow, written from its rules and from nothing else.
//!
//! Lists and linear scans: lanes, bare sequences, entries and leases lie in vectors, cells are numbers in lists, and every
//! question is answered by looking at all of them. One file per theme; each function names the rules it states.

mod adapters;
mod cache;
mod calls;
mod capacity;
mod decode;
mod grammar;
mod ops;
mod pool;
mod predict;
mod prefill;
mod rows;
mod running;
mod settle;
mod validate;

pub(crate) use cache::{compat_identity, digest};
pub(crate) use calls::{Answer, Call, Candidate};
pub(crate) use grammar::{LANGUAGES, Language};
pub(crate) use ops::{Envelope, HEADER, Spoil, checksum, seal_text, u64_at};
pub(crate) use predict::{Emit, Predicted};
pub(crate) use rows::hash;

use std::rc::Rc;

use ictus::record::SamplingParams;

use super::runtime::Planned;
use super::shape::Shape;

/// A sequence of the runtime; handles ascend from 1.
#[derive(Clone, Debug)]
pub(crate) struct Seq {
    pub(crate) handle: u64,
    pub(crate) tokens: Vec<u32>,
    /// The granules of cells that its tokens lie in, first to last.
    pub(crate) granules: Vec<u32>,
    /// S-3.
    pub(crate) generation: u64,
    /// S-5.
    pub(crate) taint: u32,
    pub(crate) sizings: Vec<Sizing>,
    /// Ranges that were demoted and are not back (S-91).
    pub(crate) holes: Vec<Hole>,
    /// Granules that were copied for it because others held them too.
    pub(crate) copies: u64,
    /// The adapter that it is computed with; 0 is none.
    pub(crate) adapter: u64,
}

/// A pending sizing (S-62).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sizing {
    pub(crate) generation: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) encoding: u8,
}

/// A demoted range, and the digest of the tokens it was computed from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Hole {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) provenance: [u8; 32],
}

#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(crate) tag: u64,
    pub(crate) seq: u64,
    pub(crate) prompt: Vec<u32>,
    pub(crate) committed: Vec<u32>,
    pub(crate) prefilled: usize,
    pub(crate) prefill_end: usize,
    pub(crate) mode: u32,
    pub(crate) params: SamplingParams,
    pub(crate) base: u64,
    pub(crate) drawn: u64,
    pub(crate) logprobs: u8,
    pub(crate) bias: Vec<(u32, f32)>,
    pub(crate) grammar: Option<grammar::Cursor>,
    /// The newest committed token has not been fed.
    pub(crate) pending: bool,
    /// Generation of the row that waits for its commit.
    pub(crate) row: Option<u64>,
    pub(crate) finished: bool,
    /// The fault that its next decode record meets (T-96).
    pub(crate) doomed: Option<u32>,
    pub(crate) cost: Cost,
    pub(crate) speculates: bool,
    /// Within a tick: the row after the last token is there.
    pub(crate) has_row: bool,
}

/// What a lane has cost: the rest follows from where it stands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) seeded: usize,
    pub(crate) answered: u64,
}

impl Cost {
    /// Seeded, prefilled, replayed and decoded tokens that its sequence holds, and its answers.
    pub(crate) fn counts(&self, lane: &Lane) -> (u64, u64, u64, u64, u64) {
        let (held, end, prompt) = (lane.held(), lane.prefill_end, lane.prompt.len());
        let prefilled = held.min(end).saturating_sub(self.seeded);
        let replayed = held.min(prompt).saturating_sub(end.max(self.seeded));
        let decoded = held.saturating_sub(prompt);
        (self.seeded as u64, prefilled as u64, replayed as u64, decoded as u64, self.answered)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Bare {
    pub(crate) seq: u64,
    /// S-4.
    pub(crate) known: Vec<u32>,
    /// S-15.
    pub(crate) for_others: bool,
    pub(crate) leased: bool,
}

/// S-47.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: u64,
    pub(crate) key: Vec<u32>,
    pub(crate) prompt_len: usize,
    pub(crate) pins: u32,
    pub(crate) last_use: u64,
    pub(crate) seeded: u64,
    pub(crate) shared: bool,
    pub(crate) taint: u32,
    /// Which adapter it was computed with, by what it computes.
    pub(crate) scope: [u8; 32],
    /// Out of the pool: the sequence is gone, the tokens are kept.
    pub(crate) exported: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    Entry(u64),
    Bare(u64),
}

#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) handle: u64,
    pub(crate) target: Target,
    pub(crate) prefix: Vec<u32>,
    pub(crate) class: u8,
    pub(crate) expires_at: u64,
}

/// Something given up, as the shed report lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Loss {
    pub(crate) tag: u64,
    pub(crate) kind: u32,
    pub(crate) bytes: u64,
    pub(crate) tokens: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) shape: Shape,
    pub(crate) seqs: Vec<Seq>,
    next_seq: u64,
    next_granule: u32,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) faulted: Vec<u64>,
    pub(crate) bares: Vec<Bare>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) leases: Vec<Lease>,
    next_lease: u64,
    pub(crate) biases: Vec<(u32, Vec<(u32, f32)>)>,
    next_bias: u32,
    pub(crate) adapters: Vec<adapters::Adapter>,
    pub(crate) default_adapter: u64,
    /// Tags, and the adapters that their next admits have.
    bound: Vec<(u64, u64)>,
    pub(crate) grammars: Vec<grammar::Grammar>,
    next_grammar: u32,
    /// Accepted ticks.
    pub(crate) now: u64,
    pub(crate) plan_seq: Option<u64>,
    rows_written: u64,
    /// Some entry was inserted or used after the last settling (S-57).
    changed: bool,
    /// Up to which tick leaving the pool means eviction (S-60).
    shortage_until: Option<u64>,
    /// Cells that nobody in this plan may need: checkpoints are made of them (the note on T-90).
    spare: u64,
    /// Entries taken over in this tick: the tag of the admit, the sequence, the tokens of the lease.
    taken: Vec<(u64, u64, usize)>,
    /// What was lost between ticks, for the report of the next one (the note on S-21 and S-50).
    unreported: Vec<Loss>,
    /// What of the runtime fails, and when.
    pub(crate) planned: Planned,
    pub(crate) broken: bool,
    pub(crate) ops: Vec<ops::Op>,
    completions: Vec<u64>,
    /// Exports that the host took, oldest first.
    pub(crate) handed_over: Vec<Rc<Vec<u8>>>,
}

impl Model {
    pub(crate) fn new(shape: Shape) -> Self {
        Self {
            shape,
            seqs: vec![],
            next_seq: 1,
            next_granule: 0,
            lanes: vec![],
            faulted: vec![],
            bares: vec![],
            entries: vec![],
            leases: vec![],
            next_lease: 1,
            biases: vec![],
            next_bias: 1,
            adapters: vec![],
            default_adapter: 0,
            bound: vec![],
            grammars: vec![],
            next_grammar: 1,
            now: 0,
            plan_seq: None,
            rows_written: 0,
            changed: false,
            shortage_until: None,
            spare: 0,
            taken: vec![],
            unreported: vec![],
            planned: Planned::default(),
            broken: false,
            ops: vec![],
            completions: vec![],
            handed_over: vec![],
        }
    }

    pub(crate) fn lane(&self, tag: u64) -> Option<&Lane> {
        self.lanes.iter().find(|lane| lane.tag == tag)
    }

    fn lane_mut(&mut self, tag: u64) -> &mut Lane {
        self.lanes.iter_mut().find(|lane| lane.tag == tag).expect("a live lane")
    }

    pub(crate) fn seq(&self, handle: u64) -> &Seq {
        self.seqs.iter().find(|seq| seq.handle == handle).expect("a sequence that exists")
    }

    fn seq_mut(&mut self, handle: u64) -> &mut Seq {
        self.seqs.iter_mut().find(|seq| seq.handle == handle).expect("a sequence that exists")
    }

    pub(crate) fn entry(&self, name: u64) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    fn entry_mut(&mut self, name: u64) -> &mut Entry {
        self.entries.iter_mut().find(|entry| entry.name == name).expect("an entry that exists")
    }

    pub(crate) fn bare(&self, seq: u64) -> Option<&Bare> {
        self.bares.iter().find(|bare| bare.seq == seq)
    }

    pub(crate) fn lease(&self, handle: u64) -> Option<&Lease> {
        self.leases.iter().find(|lease| lease.handle == handle)
    }

    /// Lanes, bare sequences, and entries in the pool (engine.md, section 4).
    pub(crate) fn live_sequences(&self) -> usize {
        self.lanes.len() + self.bares.len() + self.entries.iter().filter(|entry| !entry.exported).count()
    }
}

impl Lane {
    pub(crate) fn is_host(&self) -> bool {
        self.mode == ictus::record::constant::sampling::HOST
    }

    /// Tokens of its sequence (E-1).
    pub(crate) fn held(&self) -> usize {
        self.committed.len() - usize::from(self.pending)
    }
}
