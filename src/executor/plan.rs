#![forbid(unsafe_code)]
//! Stage 1, decode plan: the records of a plan, read into lists and grouped by lane (T-10 .. T-15).
//!
//! Each tag that occurs becomes one [`Party`]; the records point at their party, and the party at its records. Later stages
//! follow these numbers and never look a tag up again. Whether a plan passes here does not depend on the engine: its lanes
//! only say which tags they have, so that a live lane's party is found by its slot and needs no map of its own.
//!
//! # Invariants
//! - `entry.party` indexes `parties`; the records of a party index their lists; each party has at most one of a kind (T-12).

use super::lanes::{LaneId, Lanes};
use super::tags::TagMap;
use crate::record::constant::sampling;
use crate::record::view::{Memory, Record};
use crate::record::{Array, LaneAdmit, LaneCommit, LaneDecode, LanePrefill, LaneRetire, PartialEmit, Status, TickPlan};

/// A record, and the party that its tag belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<T> {
    pub(super) record: T,
    pub(super) party: usize,
}

/// Everything a plan says about one tag, as indices into its lists.
#[derive(Clone, Copy, Debug)]
pub(super) struct Party {
    pub(super) tag: u64,
    /// The live lane with this tag.
    pub(super) lane: Option<LaneId>,
    pub(super) admit: Option<u32>,
    pub(super) commit: Option<u32>,
    pub(super) prefill: Option<u32>,
    pub(super) decode: Option<u32>,
    pub(super) retire: Option<u32>,
    /// Its admit found no certificate: the other records of the tag are ignored.
    pub(super) rejected: bool,
    /// Where the lane stands, once validation has found it or an admit has described it.
    pub(super) standing: Option<Standing>,
}

/// What validation has to know of a lane, live or about to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// The live lane; none for one that this plan admits.
    pub(super) lane: Option<LaneId>,
    pub(super) host: bool,
    pub(super) finished: bool,
    /// Generation of the row that waits for a commit.
    pub(super) row_nonce: Option<u64>,
    /// Tokens in the sequence before this plan.
    pub(super) fed: u64,
    /// Committed tokens the decode demand starts from: of a live lane now, of an admitted one at its prefill end (T-60).
    pub(super) decode_start: u64,
    /// Where prefill stands: moves as the prefills of the plan are walked (T-49).
    pub(super) prefilled: u64,
    pub(super) prefill_end: u64,
}

/// The plan without its arrays.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) plan_seq: u64,
    pub(super) flags: u32,
    pub(super) prefill_token_budget: u32,
    pub(super) max_decode_lanes: u32,
    pub(super) partial_emit: Option<PartialEmit>,
    pub(super) eviction: EvictionPolicy,
}

/// What the plan lets go of the cache (T-68).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EvictionPolicy {
    /// `CACHE_CLASS_*` bits.
    pub(super) classes: u64,
    /// Bytes of the cache that stay.
    pub(super) quota_bytes: u64,
    /// Most bytes to evict.
    pub(super) max_bytes: u64,
}

/// A plan whose structure is sound.
#[derive(Debug)]
pub(super) struct Decoded<'s> {
    pub(super) header: Header,
    pub(super) admits: &'s [Entry<LaneAdmit>],
    pub(super) commits: &'s [Entry<LaneCommit>],
    pub(super) prefills: &'s [Entry<LanePrefill>],
    pub(super) decodes: &'s [Entry<LaneDecode>],
    pub(super) retires: &'s [Entry<LaneRetire>],
    pub(super) parties: &'s mut [Party],
}

/// Lists that are filled anew by every plan.
#[derive(Clone, Debug, Default)]
pub(super) struct PlanBuffers {
    admits: Vec<Entry<LaneAdmit>>,
    commits: Vec<Entry<LaneCommit>>,
    prefills: Vec<Entry<LanePrefill>>,
    decodes: Vec<Entry<LaneDecode>>,
    retires: Vec<Entry<LaneRetire>>,
    parties: Vec<Party>,
    /// Parties of the tags without a lane.
    strangers: TagMap<usize>,
    /// Party of each lane, by slot, and the plan in which it was that.
    residents: Vec<(u64, usize)>,
    /// Plans read so far.
    plans: u64,
}

/// Reads the plan.
///
/// # Errors
/// In the order of T-10 .. T-15; `buffers` may hold anything then.
pub(super) fn decode<'s>(
    plan: &TickPlan,
    memory: &dyn Memory,
    lanes: &Lanes,
    buffers: &'s mut PlanBuffers,
) -> Result<Decoded<'s>, Status> {
    if plan.struct_size < TickPlan::MIN_PREFIX as u64 {
        return Err(Status::RejectBadStruct);
    }
    read(&plan.admits, memory, &mut buffers.admits)?;
    read(&plan.commits, memory, &mut buffers.commits)?;
    read(&plan.prefills, memory, &mut buffers.prefills)?;
    read(&plan.decodes, memory, &mut buffers.decodes)?;
    read(&plan.retires, memory, &mut buffers.retires)?;
    plan.shed_policy.victim_lanes.elements_within::<u64>(memory)?;

    group(buffers, lanes)?;
    check_disjoint(buffers)?;
    check_host_grants(buffers)?;
    if buffers.decodes.len() > plan.max_decode_lanes as usize {
        return Err(Status::RejectBudget);
    }
    let header = Header {
        plan_seq: plan.plan_seq,
        flags: plan.flags,
        prefill_token_budget: plan.prefill_token_budget,
        max_decode_lanes: plan.max_decode_lanes,
        partial_emit: plan.partial_emit(),
        eviction: EvictionPolicy {
            classes: plan.shed_policy.evictable_cache_classes,
            quota_bytes: plan.shed_policy.protected_quota_bytes,
            max_bytes: plan.shed_policy.max_evict_bytes,
        },
    };
    let PlanBuffers { admits, commits, prefills, decodes, retires, parties, .. } = buffers;
    Ok(Decoded { header, admits, commits, prefills, decodes, retires, parties })
}

/// Reads one array (T-11).
fn read<T: Record>(array: &Array, memory: &dyn Memory, entries: &mut Vec<Entry<T>>) -> Result<(), Status> {
    entries.clear();
    entries.extend(array.elements_within::<T>(memory)?.map(|record| Entry { record, party: 0 }));
    Ok(())
}

/// Records that name a lane.
trait Tagged {
    fn tag(&self) -> u64;
}

macro_rules! tagged {
    ($($record:ident),*) => { $(
        impl Tagged for $record {
            fn tag(&self) -> u64 {
                self.lane_tag
            }
        }
    )* };
}
tagged!(LaneAdmit, LaneCommit, LanePrefill, LaneDecode, LaneRetire);

/// Gives every tag its party and every record its place in it (T-12).
fn group(buffers: &mut PlanBuffers, lanes: &Lanes) -> Result<(), Status> {
    let PlanBuffers { admits, commits, prefills, decodes, retires, parties, strangers, residents, plans } = buffers;
    parties.clear();
    strangers.clear();
    residents.resize(lanes.slots(), (0, 0));
    *plans += 1;
    let mut parties = Parties { list: parties, strangers, residents, plan: *plans, lanes };
    parties.enter(admits, |party| &mut party.admit)?;
    parties.enter(commits, |party| &mut party.commit)?;
    parties.enter(prefills, |party| &mut party.prefill)?;
    parties.enter(decodes, |party| &mut party.decode)?;
    parties.enter(retires, |party| &mut party.retire)
}

struct Parties<'b> {
    list: &'b mut Vec<Party>,
    strangers: &'b mut TagMap<usize>,
    residents: &'b mut [(u64, usize)],
    plan: u64,
    lanes: &'b Lanes,
}

impl Parties<'_> {
    fn enter<T: Tagged>(
        &mut self,
        entries: &mut [Entry<T>],
        place: impl Fn(&mut Party) -> &mut Option<u32>,
    ) -> Result<(), Status> {
        for (number, entry) in (0u32..).zip(entries) {
            entry.party = self.number(entry.record.tag());
            let party = self.list.get_mut(entry.party).ok_or(Status::RejectDuplicateLane)?;
            if place(party).replace(number).is_some() {
                return Err(Status::RejectDuplicateLane);
            }
        }
        Ok(())
    }

    /// The party of a tag, which is made when the tag is new.
    fn number(&mut self, tag: u64) -> usize {
        let new = self.list.len();
        let lane = self.lanes.find(tag);
        let party = match lane.and_then(|lane| self.residents.get_mut(lane.slot())) {
            Some((plan, party)) if *plan == self.plan => *party,
            Some(resident) => {
                *resident = (self.plan, new);
                new
            }
            None => *self.strangers.entry(tag).or_insert(new),
        };
        if party == new {
            self.list.push(Party::new(tag, lane));
        }
        party
    }
}

impl Party {
    fn new(tag: u64, lane: Option<LaneId>) -> Self {
        Self {
            tag,
            lane,
            admit: None,
            commit: None,
            prefill: None,
            decode: None,
            retire: None,
            rejected: false,
            standing: None,
        }
    }
}

/// Pairs that exclude each other on one tag (T-13).
fn check_disjoint(buffers: &PlanBuffers) -> Result<(), Status> {
    let excluded = |party: &Party| {
        let (admit, commit, retire) = (party.admit.is_some(), party.commit.is_some(), party.retire.is_some());
        (admit && (retire || commit)) || (retire && (commit || party.decode.is_some() || party.prefill.is_some()))
    };
    if buffers.parties.iter().any(excluded) {
        return Err(Status::RejectIllegalCombination);
    }
    Ok(())
}

/// An admitted HOST lane that decodes is granted exactly one token (T-14).
fn check_host_grants(buffers: &PlanBuffers) -> Result<(), Status> {
    for admit in buffers.admits.iter().filter(|admit| admit.record.sampling == sampling::HOST) {
        let decode = buffers.parties.get(admit.party).and_then(|party| party.decode);
        let grant = decode.and_then(|decode| buffers.decodes.get(decode as usize));
        if grant.is_some_and(|decode| decode.record.max_new_tokens != 1) {
            return Err(Status::RejectHostRules);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::PlanBuilder;
    use crate::record::TokenRef;
    use crate::record::view::Plain;

    fn decoded(build: impl FnOnce(PlanBuilder) -> PlanBuilder) -> Result<usize, Status> {
        let (plan, arena) = build(PlanBuilder::new(1)).build();
        let mut buffers = PlanBuffers::default();
        let lanes = Lanes::default();
        let first = decode(&plan, &arena, &lanes, &mut buffers).map(|decoded| decoded.parties.len());
        let second = decode(&plan, &arena, &lanes, &mut buffers).map(|decoded| decoded.parties.len());
        assert_eq!(first, second, "a plan reads the same twice");
        first
    }

    #[test]
    fn tag_twice_in_one_array_is_a_duplicate() {
        let prompt = TokenRef::zeroed();
        assert_eq!(decoded(|p| p.admit(7, prompt).admit(7, prompt)), Err(Status::RejectDuplicateLane));
        assert_eq!(decoded(|p| p.commit(7, 0, 0).commit(7, 0, 0)), Err(Status::RejectDuplicateLane));
        assert_eq!(decoded(|p| p.prefill(7, 0, 1).prefill(7, 1, 1)), Err(Status::RejectDuplicateLane));
        assert_eq!(decoded(|p| p.decode(7, 1).decode(7, 1)), Err(Status::RejectDuplicateLane));
        assert_eq!(decoded(|p| p.retire(7, false).retire(7, true)), Err(Status::RejectDuplicateLane));
        assert_eq!(decoded(|p| p.admit(7, prompt).prefill(7, 0, 1).decode(7, 1).decode(8, 1)), Ok(2));
    }

    #[test]
    fn each_excluded_pair_is_refused_and_each_other_pair_passes() {
        let prompt = TokenRef::zeroed();
        let add = |plan: PlanBuilder, kind: usize| match kind {
            0 => plan.admit(7, prompt),
            1 => plan.commit(7, 0, 0),
            2 => plan.prefill(7, 0, 1),
            3 => plan.decode(7, 1),
            _ => plan.retire(7, false),
        };
        let excluded = [(0, 4), (0, 1), (1, 4), (3, 4), (2, 4)];
        for a in 0..5 {
            for b in (a + 1)..5 {
                let refused = decoded(|plan| add(add(plan, a), b)) == Err(Status::RejectIllegalCombination);
                assert_eq!(refused, excluded.contains(&(a, b)), "T-13: kinds {a} and {b}");
            }
        }
    }

    #[test]
    fn duplicate_comes_before_exclusion_and_exclusion_before_host_rules() {
        let prompt = TokenRef::zeroed();
        let host = |admit: &mut LaneAdmit| admit.sampling = sampling::HOST;
        assert_eq!(
            decoded(|p| p.admit(1, prompt).retire(1, false).decode(2, 1).decode(2, 1)),
            Err(Status::RejectDuplicateLane)
        );
        assert_eq!(
            decoded(|p| p.admit_with(host, 1, prompt).decode(1, 4).retire(2, false).commit(2, 0, 0)),
            Err(Status::RejectIllegalCombination)
        );
        assert_eq!(
            decoded(|p| p.admit_with(host, 1, prompt).decode(1, 4).max_decode_lanes(0)),
            Err(Status::RejectHostRules)
        );
        assert_eq!(decoded(|p| p.decode(1, 4).max_decode_lanes(0)), Err(Status::RejectBudget));
    }

    #[test]
    fn arrays_are_read_in_the_order_of_the_rule() {
        let (mut plan, arena) = PlanBuilder::new(1).decode(1, 1).retire(2, false).build();
        plan.struct_size = 151;
        let mut buffers = PlanBuffers::default();
        let mut status = |plan: &TickPlan| decode(plan, &arena, &Lanes::default(), &mut buffers).err();
        assert_eq!(status(&plan), Some(Status::RejectBadStruct));
        plan.struct_size = 152;
        assert_eq!(status(&plan), None, "A-18");
        plan.shed_policy.victim_lanes = Array { data: core::ptr::without_provenance(4), count: 0, elem_size: 8 };
        assert_eq!(status(&plan), Some(Status::RejectBadAlignment));
        plan.retires.elem_size = 8;
        assert_eq!(status(&plan), Some(Status::RejectBadStride), "retires come before victims");
        plan.decodes.data = plan.decodes.data.wrapping_byte_add(1 << 30);
        assert_eq!(status(&plan), Some(Status::RejectBounds), "decodes come before retires");
    }
}
