#![forbid(unsafe_code)]
//! Everything that a plan can change.
//!
//! The stages that may refuse a plan see it as `&State`, the others as `&mut State`; nothing else of the executor outlives
//! a tick but the events of the last one.
//!
//! # Invariants
//! [`State::audit`] checks them.
//! - Each lane owns one sequence of its own, which holds the tokens the lane says were fed (E-1).
//! - A tag is live or marked faulted, not both (T-24, T-133).

use std::collections::BTreeSet;

use super::lane::Lane;
use super::lanes::Lanes;
use super::pace::Pace;
use super::recipe::BiasLists;
use super::tags::TagSet;
use crate::runtime::{Descriptor, Runtime, SeqHandle};

/// The runtime, and what the executor knows beside it.
#[derive(Debug)]
pub(super) struct State<R> {
    pub(super) runtime: R,
    /// As the runtime gave it at construction.
    pub(super) descriptor: Descriptor,
    pub(super) lanes: Lanes,
    /// Tags of faulted lanes that were neither retired nor admitted again.
    pub(super) faulted: TagSet,
    /// Sequences that the host owns.
    pub(super) bare: BTreeSet<SeqHandle>,
    pub(super) bias: BiasLists,
    /// Ids that are never penalised, ascending (T-114).
    pub(super) exempt: Vec<u32>,
    /// Number of the last accepted plan.
    pub(super) plan_seq: Option<u64>,
    /// Accepted plans.
    pub(super) tick_count: u64,
    pub(super) pace: Pace,
    /// A fatal tick happened: every later call answers `Fatal`.
    pub(super) broken: bool,
}

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// The sequence of a lane holds other than the lane's fed tokens.
    #[error("lane {lane_tag}: its sequence holds {held} tokens, the lane fed {fed}")]
    Fed {
        /// The lane.
        lane_tag: u64,
        /// Tokens that the runtime says the sequence holds.
        held: u64,
        /// Tokens that the lane fed.
        fed: u64,
    },
    /// The marks of a lane are out of order.
    #[error("lane {lane_tag}: fed {fed}, committed {committed}, known {known}")]
    Marks {
        /// The lane.
        lane_tag: u64,
        /// Tokens fed.
        fed: usize,
        /// Tokens committed.
        committed: usize,
        /// Tokens known.
        known: usize,
    },
    /// A sequence has two owners.
    #[error("sequence {sequence} is owned twice")]
    SharedSequence {
        /// The sequence.
        sequence: SeqHandle,
    },
    /// A live lane is marked faulted.
    #[error("lane {lane_tag} is live and marked faulted")]
    LiveAndFaulted {
        /// The lane.
        lane_tag: u64,
    },
}

impl<R: Runtime> State<R> {
    pub(super) fn new(runtime: R) -> Self {
        let descriptor = runtime.describe().clone();
        let mut exempt: Vec<u32> = runtime.vocabulary().map_or_else(Vec::new, |vocabulary| {
            vocabulary.special.iter().map(|&(_, id)| id).chain(vocabulary.end_ids.iter().copied()).collect()
        });
        exempt.sort_unstable();
        exempt.dedup();
        Self {
            runtime,
            descriptor,
            lanes: Lanes::default(),
            faulted: TagSet::default(),
            bare: BTreeSet::new(),
            bias: BiasLists::default(),
            exempt,
            plan_seq: None,
            tick_count: 0,
            pace: Pace::default(),
            broken: false,
        }
    }

    /// Sequences that exist: lanes and bare ones.
    pub(super) fn live_sequences(&self) -> usize {
        self.lanes.len() + self.bare.len()
    }

    /// Walks everything and checks the invariants.
    pub(super) fn audit(&self) -> Result<(), AuditError> {
        let mut owned = self.bare.clone();
        for lane in self.lanes.iter() {
            self.audit_lane(lane)?;
            if !owned.insert(lane.sequence()) {
                return Err(AuditError::SharedSequence { sequence: lane.sequence() });
            }
        }
        Ok(())
    }

    fn audit_lane(&self, lane: &Lane) -> Result<(), AuditError> {
        let lane_tag = lane.tag();
        let (fed, committed, known) = (lane.fed_len(), lane.committed_len(), lane.known_len());
        if fed > committed || committed > fed + 1 || known != committed.max(lane.prompt_len()) {
            return Err(AuditError::Marks { lane_tag, fed, committed, known });
        }
        let held = self.runtime.seq_len(lane.sequence());
        if held != fed as u64 {
            return Err(AuditError::Fed { lane_tag, held, fed: fed as u64 });
        }
        if self.faulted.contains(&lane_tag) {
            return Err(AuditError::LiveAndFaulted { lane_tag });
        }
        Ok(())
    }
}
