#![forbid(unsafe_code)]
//! Everything that a plan can change.
//!
//! The stages that may refuse a plan see it as `&State`, the others as `&mut State`; nothing else of the executor outlives
//! a tick but the events of the last one.
//!
//! # Invariants
//! [`State::audit`] checks them.
//! - Every sequence of the runtime is a lane's, a bare one, an entry's, a departure's or a guest's, and no cell is held by another (S-1).
//! - Each lane owns one sequence of its own, which holds the tokens the lane says were fed (E-1).
//! - A tag is live or marked faulted, not both (T-24, T-133).
//! - A grammar is borrowed by the one lane that says so, or by none.

use std::collections::{BTreeMap, BTreeSet};

use super::ExecutorOptions;
use super::adapters::AdapterTable;
use super::cache::{Loss, cache_shape};
use super::capacity;
use super::departures::Departures;
use super::guests::Guests;
use super::lane::Lane;
use super::lanes::Lanes;
use super::pace::Pace;
use super::recipe::BiasLists;
use super::sequences::BareSequences;
use super::spaces;
use super::speculation::Speculation;
use super::tags::TagSet;
use super::transfers::Transfers;
use super::workspace::WorkspaceCost;
use crate::capacity::{Ledger, Woken};
use crate::grammar::{Grammars, SharedCompiler};
use crate::identity::{CompatInput, compat_identity};
use crate::prefix::{LeaseSource, PrefixCache};
use crate::record::StateSpaceDesc;
use crate::record::constant::space_kind;
use crate::runtime::{Descriptor, Runtime, SeqHandle};

/// Version of the layout of exported state (S-2).
pub(super) const SPACE_VERSION_TAG: u64 = 1;

/// The runtime, and what the executor knows beside it.
#[derive(Debug)]
pub(super) struct State<R> {
    pub(super) runtime: R,
    /// As the runtime gave it at construction.
    pub(super) descriptor: Descriptor,
    pub(super) options: ExecutorOptions,
    pub(super) lanes: Lanes,
    /// Tags of faulted lanes that were neither retired nor admitted again.
    pub(super) faulted: TagSet,
    /// Sequences of another facade.
    pub(super) guests: Guests,
    /// Sequences that the host owns.
    pub(super) bare: BareSequences,
    /// Retired state that lanes may start from, and the leases on it.
    pub(super) cache: PrefixCache,
    /// Entries of the cache on their way to host memory.
    pub(super) departures: Departures,
    /// What the cache lost between ticks, for the next report.
    pub(super) losses: Vec<Loss>,
    /// Sequences came, went, or stopped sharing cells since the cache last settled: it may hold more cells alone than before.
    pub(super) cells_moved: bool,
    /// The coordinator of what this core has; shared with whoever claims beside the ticks.
    pub(super) ledger: Ledger,
    /// Domains of which something was given back since the coordinator was told last, as a set.
    pub(super) freed: u8,
    /// Those who waited for what came free.
    pub(super) woken: Woken,
    /// The owner of the core takes them, and wakes them when it holds no lock.
    pub(super) wakes_later: bool,
    /// Cells that the drafts of the running tick may take.
    pub(super) draft_cells: u64,
    /// Identity of engines that can exchange state with this one (S-80).
    pub(super) compat: [u8; 32],
    pub(super) bias: BiasLists,
    pub(super) grammars: Grammars,
    pub(super) adapters: AdapterTable,
    /// Ids that are never penalised, ascending (T-114).
    pub(super) exempt: Vec<u32>,
    /// Number of the last accepted plan.
    pub(super) plan_seq: Option<u64>,
    /// Accepted plans.
    pub(super) tick_count: u64,
    pub(super) pace: Pace,
    pub(super) speculation: Speculation,
    /// The runtime's spaces as records; constant.
    pub(super) spaces: Vec<StateSpaceDesc>,
    /// State operations and what they leave behind.
    pub(super) transfers: Transfers,
    /// What steps are charged.
    pub(super) workspace: WorkspaceCost,
    /// A fatal tick happened: every later call answers `Fatal`.
    pub(super) broken: bool,
}

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// An operation works on a sequence that is not there, or on one with another, or past its end.
    #[error("an operation on sequence {sequence} is out of place")]
    Operation {
        /// The sequence.
        sequence: SeqHandle,
    },
    /// An entry departs without a sequence on its way, or the other way round.
    #[error("the departure of sequence {sequence} and its entry do not agree")]
    Departure {
        /// The sequence.
        sequence: SeqHandle,
    },
    /// A demoted range lies outside its sequence.
    #[error("a demoted range lies outside sequence {sequence}")]
    Demoted {
        /// The sequence.
        sequence: SeqHandle,
    },
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
    /// The cache's own bookkeeping is wrong.
    #[error("prefix cache: {0}")]
    Cache(String),
    /// The sequence of an entry holds other than the entry says.
    #[error("entry {sequence}: its sequence holds {held} tokens, the entry {expected}")]
    Entry {
        /// The sequence.
        sequence: SeqHandle,
        /// Tokens that the runtime says it holds.
        held: u64,
        /// Tokens that the entry says it holds.
        expected: u64,
    },
    /// Adopt leases and the claims on bare sequences differ.
    #[error("adopt leases and leased bare sequences differ")]
    AdoptLeases,
    /// Cells are held by sequences that nobody owns.
    #[error("owned sequences hold {held} cells, {used} are in use")]
    Cells {
        /// Cells that would be free without the owned sequences.
        held: u64,
        /// Cells that the runtime says are in use.
        used: u64,
    },
    /// The runtime counts other cells as resting than entries alone hold, departing ones included.
    #[error("entries alone hold {held} cells, {counted} are counted as resting")]
    Resting {
        /// Cells that would be free without the entries.
        held: u64,
        /// Cells that the runtime counts.
        counted: u64,
    },
    /// A grammar is borrowed other than lanes have it.
    #[error("grammars {borrowed:?} are noted as borrowed, lanes have {held:?}")]
    Grammars {
        /// Handles noted as borrowed, ascending.
        borrowed: Vec<u32>,
        /// Handles that lanes have, ascending.
        held: Vec<u32>,
    },
    /// A sequence carries another adapter than its owner says.
    #[error("sequence {sequence} carries adapter {carried}, its owner says {expected}")]
    Adapter {
        /// The sequence.
        sequence: SeqHandle,
        /// The adapter that the runtime computes it with.
        carried: u64,
        /// The adapter of its owner.
        expected: u64,
    },
    /// An adapter that is not loaded is the default, or bound to a tag.
    #[error("adapter {adapter} is not loaded, and lanes will have it")]
    DanglingAdapter {
        /// The adapter.
        adapter: u64,
    },
    /// A live lane is marked faulted.
    #[error("lane {lane_tag} is live and marked faulted")]
    LiveAndFaulted {
        /// The lane.
        lane_tag: u64,
    },
}

impl<R: Runtime> State<R> {
    pub(super) fn new(runtime: R, options: ExecutorOptions) -> Self {
        let descriptor = runtime.describe().clone();
        let spaces = spaces::describe(&descriptor);
        let mut exempt: Vec<u32> = runtime.exempt_ids();
        exempt.sort_unstable();
        exempt.dedup();
        let cache = PrefixCache::new(cache_shape(&descriptor, options.seed_ttl_ticks));
        let compat = compat_identity(&CompatInput {
            kind: space_kind::PAGED_TOKEN_KV,
            version_tag: SPACE_VERSION_TAG,
            runtime_id: &descriptor.runtime_id,
            runtime_version: &descriptor.runtime_version,
            weights_identity: &descriptor.weights_identity,
            adapter: None,
        });
        Self {
            runtime,
            grammars: Grammars::new(options.grammar_limits.clone(), SharedCompiler::default()),
            options,
            lanes: Lanes::default(),
            faulted: TagSet::default(),
            guests: Guests::default(),
            bare: BareSequences::new(),
            cache,
            departures: Departures::default(),
            losses: Vec::new(),
            cells_moved: false,
            ledger: Ledger::new(capacity::limits(&descriptor)),
            freed: 0,
            woken: Woken::default(),
            wakes_later: false,
            draft_cells: u64::MAX,
            compat,
            bias: BiasLists::default(),
            adapters: AdapterTable::default(),
            exempt,
            plan_seq: None,
            tick_count: 0,
            pace: Pace::default(),
            speculation: Speculation::none(),
            spaces,
            transfers: Transfers::default(),
            workspace: WorkspaceCost::default(),
            broken: false,
            descriptor,
        }
    }

    /// The adapter of a lane that is admitted under this tag now.
    pub(super) fn adapter_of(&self, lane_tag: u64) -> u64 {
        self.adapters.of_admit(lane_tag)
    }

    /// Sequences that exist: those of lanes, bare ones, and those of entries in the pool. Those of departing entries go when their slots are
    /// needed.
    pub(super) fn live_sequences(&self) -> usize {
        self.lanes.len() + self.bare.len() + self.cache.pool_len()
    }

    /// Walks everything and checks the invariants.
    pub(super) fn audit(&self) -> Result<(), AuditError> {
        let mut owned: BTreeSet<SeqHandle> = BTreeSet::new();
        let bare = self.bare.keys().copied();
        let resting = self.cache.entries().into_iter().filter(|entry| entry.in_pool()).map(|entry| entry.sequence);
        let laned = self.lanes.iter().map(Lane::sequence);
        for sequence in
            bare.chain(resting).chain(laned).chain(self.departures.sequences()).chain(self.guests.sequences())
        {
            if !owned.insert(sequence) {
                return Err(AuditError::SharedSequence { sequence });
            }
        }
        for lane in self.lanes.iter() {
            self.audit_lane(lane)?;
        }
        self.audit_grammars()?;
        self.audit_adapters()?;
        self.audit_cache()?;
        self.audit_transfers()?;
        self.audit_departures()?;
        self.audit_cells(owned)
    }

    /// Entries hold what they say, and every lease has what it promises.
    fn audit_cache(&self) -> Result<(), AuditError> {
        self.cache.audit().map_err(AuditError::Cache)?;
        for entry in self.cache.entries().into_iter().filter(|entry| entry.in_pool()) {
            let held = self.runtime.seq_len(entry.sequence);
            if held != entry.held_tokens || held < entry.tokens.len() as u64 {
                return Err(AuditError::Entry { sequence: entry.sequence, held, expected: entry.held_tokens });
            }
        }
        let promised: BTreeMap<SeqHandle, u64> = self
            .cache
            .leases()
            .filter_map(|lease| match lease.source {
                LeaseSource::Sequence(sequence) => Some((sequence, lease.handle)),
                LeaseSource::Entry(_) => None,
            })
            .collect();
        let claimed: BTreeMap<SeqHandle, u64> =
            self.bare.iter().filter_map(|(&sequence, bare)| Some((sequence, bare.lease?))).collect();
        if promised != claimed {
            return Err(AuditError::AdoptLeases);
        }
        Ok(())
    }

    /// The cells in use are those of the owned sequences and of nobody else.
    fn audit_cells(&self, owned: BTreeSet<SeqHandle>) -> Result<(), AuditError> {
        let owned: Vec<SeqHandle> = owned.into_iter().collect();
        let (held, used) = (self.runtime.cells_released(&owned), self.runtime.mem_counters().cells_used);
        if held != used {
            return Err(AuditError::Cells { held, used });
        }
        if let Some(counted) = self.runtime.cells_resting() {
            let mut resting = self.pool_sequences();
            resting.extend(self.departures.sequences());
            let held = self.runtime.cells_released(&resting);
            if held != counted {
                return Err(AuditError::Resting { held, counted });
            }
        }
        Ok(())
    }

    /// Sequences carry the adapters that their owners say, and those that lanes will have are loaded.
    fn audit_adapters(&self) -> Result<(), AuditError> {
        if let Some(adapter) = self.adapters.dangling() {
            return Err(AuditError::DanglingAdapter { adapter });
        }
        let bare = self.bare.iter().map(|(&sequence, bare)| (sequence, bare.content.adapter));
        let lanes = self.lanes.iter().map(|lane| (lane.sequence(), lane.content().adapter));
        let entries = self.cache.entries();
        let resting = entries.iter().filter(|entry| entry.in_pool()).map(|entry| (entry.sequence, entry.adapter));
        for (sequence, expected) in bare.chain(lanes).chain(resting) {
            let carried = self.runtime.seq_adapter(sequence);
            if carried != expected {
                return Err(AuditError::Adapter { sequence, carried, expected });
            }
        }
        Ok(())
    }

    /// Grammars are with the lanes that say so.
    fn audit_grammars(&self) -> Result<(), AuditError> {
        let borrowed: Vec<u32> = self.grammars.borrowed().collect();
        let mut held: Vec<u32> = self.lanes.iter().filter_map(Lane::grammar).collect();
        held.sort_unstable();
        if borrowed != held {
            return Err(AuditError::Grammars { borrowed, held });
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
