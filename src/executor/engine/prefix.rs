#![forbid(unsafe_code)]
//! Calls of the host about cached prefixes, seeds, forks and bare sequences.
//!
//! Each call checks everything first: one that is refused changed nothing.

use crate::executor::Executor;
use crate::executor::sequences::Bare;
use crate::identity::content_digest;
use crate::prefix::Candidate;
use crate::record::constant::{cache_class, determinism, fork_flag, misc::ALL_SPACES, space_id, tier};
use crate::record::view::Plain;
use crate::record::{CacheKey, MatchCandidate, MatchResult, RecordArena, SpaceMatch, Status};
use crate::runtime::{Runtime, SeqHandle};

/// The last match: the record, and the memory its arrays lie in. Valid until the next match.
#[derive(Debug)]
pub(in crate::executor) struct Matches {
    arena: RecordArena,
    result: MatchResult,
    found: Vec<Candidate>,
    candidates: Vec<MatchCandidate>,
    /// None before the first match.
    spaces: Vec<SpaceMatch>,
}

impl Matches {
    /// The candidates of the last match.
    pub(super) fn candidates(&self) -> &[MatchCandidate] {
        &self.candidates
    }

    /// The spaces of the last match.
    pub(super) fn spaces(&self) -> &[SpaceMatch] {
        &self.spaces
    }
}

impl Default for Matches {
    fn default() -> Self {
        Self {
            arena: RecordArena::new(),
            result: MatchResult::zeroed(),
            found: Vec::new(),
            candidates: Vec::new(),
            spaces: Vec::new(),
        }
    }
}

fn candidate_record(candidate: &Candidate) -> MatchCandidate {
    MatchCandidate {
        prefix_len: candidate.len as u64,
        provenance_digest: candidate.digest,
        // The bits that exist fit the record's field.
        taint_bits: candidate.taint as u32,
        resident_tier: if candidate.in_pool { tier::GPU } else { tier::HOST },
        _pad0: [0; 3],
    }
}

impl<R: Runtime> Executor<R> {
    /// The prefixes of a span that the cache serves, longest first (S-46). A text-only engine ignores media hashes.
    pub(super) fn match_prefixes(
        &mut self,
        space: u32,
        span: &[u32],
        _: &[[u8; 32]],
        adapter: u64,
    ) -> Result<&MatchResult, Status> {
        if space != space_id::KV && space != ALL_SPACES {
            return Err(Status::UnknownHandle);
        }
        let Matches { arena, result, found, candidates, spaces } = &mut self.matches;
        self.state.cache.matches(&self.state.scope(adapter), span, found);
        candidates.clear();
        candidates.extend(found.iter().map(candidate_record));
        *arena = RecordArena::new();
        let candidates = arena.push_records(candidates);
        spaces.clear();
        spaces.push(SpaceMatch { space_id: space_id::KV, _pad0: 0, candidates });
        *result = MatchResult { struct_size: size_of::<MatchResult>() as u64, spaces: arena.push_records(spaces) };
        Ok(result)
    }

    /// Leases a prefix of a span (S-40 .. S-43); a DETERMINISTIC lease only on state without taint (S-94).
    pub(super) fn acquire_seed(
        &mut self,
        span: &[u32],
        prefix_len: u64,
        class: u8,
        adapter: u64,
    ) -> Result<u64, Status> {
        let state = &mut self.state;
        if !state.spaces_serve_seeds() {
            return Err(Status::SeedUnservable);
        }
        let scope = state.scope(adapter);
        let untainted = class == determinism::DETERMINISTIC;
        let lease = state.cache.acquire(&scope, span, prefix_len, class, untainted, state.tick_count);
        lease.map_err(|_| Status::SeedUnservable)
    }

    /// Gives a lease back (S-44, S-32).
    pub(super) fn release_seed(&mut self, lease: u64) -> Result<(), Status> {
        let state = &mut self.state;
        let live = state.cache.lease(lease).is_some_and(|lease| lease.expires_at >= state.tick_count);
        if !live {
            return Err(Status::UnknownHandle);
        }
        state.end_lease(lease);
        Ok(())
    }

    /// Leases a bare sequence whole (S-30, S-31).
    pub(super) fn adopt(&mut self, sequence: SeqHandle, tokens: &[u32]) -> Result<u64, Status> {
        let state = &mut self.state;
        let bare = state.bare.get_mut(&sequence).ok_or(Status::UnknownHandle)?;
        if bare.lease.is_some() {
            return Err(Status::Busy);
        }
        state.transfers.check_whole(sequence)?;
        if tokens.is_empty() || tokens.len() as u64 != state.runtime.seq_len(sequence) {
            return Err(Status::OutOfBoundary);
        }
        let lease = state.cache.adopt(sequence, tokens.len(), determinism::BEST_EFFORT, state.tick_count);
        bare.tokens = tokens.into();
        bare.lease = Some(lease);
        Ok(lease)
    }

    /// A bare child that holds all tokens of `parent` (S-10 .. S-12).
    pub(super) fn fork(&mut self, parent: SeqHandle, flags: u32) -> Result<SeqHandle, Status> {
        let state = &mut self.state;
        let content = state.content_of(parent).ok_or(Status::UnknownHandle)?.copied();
        state.transfers.check_whole(parent)?;
        let len = state.runtime.seq_len(parent);
        let tokens = state.inherited_tokens(parent, usize::try_from(len).unwrap_or(usize::MAX));
        let child = state.make_sequence(Some(parent))?;
        if let Err(error) = state.with_room(|runtime| runtime.seq_copy(parent, child, len)) {
            state.runtime.seq_free(child);
            return Err(error.into());
        }
        let for_others = flags & fork_flag::PRIVATE == 0;
        state.bare.insert(child, Bare { content, tokens, for_others, lease: None });
        state.note_sharing(parent);
        Ok(child)
    }

    /// An empty bare sequence (S-20).
    pub(super) fn create_bare(&mut self) -> Result<SeqHandle, Status> {
        let sequence = self.state.make_sequence(None)?;
        self.state.bare.insert(sequence, Bare::default());
        Ok(sequence)
    }

    /// Frees a bare sequence that is not leased (S-22, S-31).
    pub(super) fn free_bare(&mut self, sequence: SeqHandle) -> Result<(), Status> {
        let bare = self.state.bare.get(&sequence).ok_or(Status::UnknownHandle)?;
        if bare.lease.is_some() {
            return Err(Status::Busy);
        }
        self.state.transfers.check_unclaimed(sequence)?;
        self.state.bare.remove(&sequence);
        self.state.free_sequence(sequence);
        Ok(())
    }

    /// Evicts resting entries, or begins a shortage of host memory, and answers the bytes that left the pool (S-55, S-60).
    pub(super) fn evict(&mut self, classes: u64, quota: u64, max_bytes: u64, target: u64) -> Result<u64, Status> {
        let state = &mut self.state;
        let (mut chosen, mut losses) = (Vec::new(), Vec::new());
        if classes & cache_class::HOST_EXPORT != 0 {
            state.cache.begin_shortage(state.tick_count, &mut chosen);
            chosen.drain(..).for_each(|export| state.drop_entry(export, &mut losses));
        }
        if classes & cache_class::RESIDENT == 0 {
            return Ok(0);
        }
        let resident = state.cache.resident_bytes();
        let cap = max_bytes.min(resident.saturating_sub(quota));
        let want = target.min(cap);
        let shared_too = classes & cache_class::SHARED != 0;
        state.cache.choose_evictions(cap, shared_too, &mut chosen, |bytes, _| bytes >= want);
        chosen.into_iter().for_each(|entry| state.leave_pool(entry, &mut losses));
        Ok(resident - state.cache.resident_bytes())
    }

    /// Drops the entries of these digests that nobody leases (S-58).
    pub(super) fn evict_entries(&mut self, keys: &[CacheKey]) -> Result<(), Status> {
        if keys.iter().any(|key| key.compat_key != self.state.compat) {
            return Err(Status::IdentityMismatch);
        }
        keys.iter().for_each(|key| self.drop_unpinned(&key.provenance_digest, |_| true));
        Ok(())
    }

    /// Drops the entries with exactly these tokens that nobody leases (S-59).
    pub(super) fn drop_published(&mut self, tokens: &[u32]) {
        self.drop_unpinned(&content_digest(tokens), |key| key == tokens);
    }

    fn drop_unpinned(&mut self, digest: &[u8; 32], wanted: impl Fn(&[u32]) -> bool) {
        let state = &mut self.state;
        let (mut found, mut losses) = (Vec::new(), Vec::new());
        state.cache.of_digest(digest, &mut found);
        let cache = &state.cache;
        found.retain(|&id| cache.get(id).is_some_and(|entry| entry.pins == 0 && wanted(&entry.tokens)));
        found.into_iter().for_each(|id| state.drop_entry(id, &mut losses));
    }
}
