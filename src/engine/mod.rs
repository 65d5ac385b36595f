#![forbid(unsafe_code)]
//! The engine: one loaded model, driven tick by tick by one host thread.
//!
//! Every host speaks to [`Engine`], whatever stands behind it: the executor in this process, or a worker in another.
//! Rule ids E-1 .. E-14. An optional method that an engine does not offer answers `Unsupported`.
//!
//! # Invariants
//! - A refused plan changes nothing; the previous events stay (T-3).
//! - Between ticks a lane's sequence holds its committed tokens less the pending one (E-1).
//! - No method blocks on anything but model work, and none calls back except the partial-emit callback of a plan (E-2).

mod cost;
mod events;
mod plan;
mod strategy;

pub use cost::LaneCost;
pub use events::EventsView;
pub use plan::{PlanBuilder, basic_admit};
pub use strategy::StrategyBuilder;

use crate::capacity::{Blocked, Capacity};
use crate::record::view::Memory;
use crate::record::{
    CacheKey, ExactnessCert, MatchCandidate, MatchResult, MediaInfo, OpStatus, RingDesc, SpaceMatch, StateSpaceDesc,
    Status, StrategyGrant, StrategyRegistration, TickPlan, TokenRange, TokenRef,
};
use crate::ring::Rings;
pub use crate::runtime::{SeqHandle, StageOutput};
use crate::timeline::Timeline;

/// Names a state operation; never reused, 0 is none.
pub type OpHandle = u64;

/// Bytes of an export and the generation that names the sizing (S-62, S-63).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportSize {
    /// Bytes with the envelope.
    pub bytes: u64,
    /// The sizing generation.
    pub sizing_gen: u64,
}

/// One loaded model, driven by one host thread.
///
/// Object-safe; neither `Send` nor `Sync` is required of an implementation (E-14).
pub trait Engine {
    /// Runs one plan and answers with its events, which stay until the next tick.
    ///
    /// `memory` is where the arrays of `plan` lie.
    ///
    /// # Errors
    /// A plan rejection ([`Status::is_plan_rejection`]): nothing changed. `Fatal`: the engine must be discarded.
    fn tick(&mut self, plan: &TickPlan, memory: &dyn Memory, rings: &mut dyn Rings) -> Result<EventsView<'_>, Status>;

    /// The events of the last accepted tick; none before the first.
    fn last_events(&self) -> Option<EventsView<'_>>;

    /// What can be seen of this core's capacity, and waited for; none where it is counted in another process.
    fn capacity(&self) -> Option<&Capacity> {
        None
    }

    /// Why the last plan that was refused as `NeedsReplan` lacked room: its ticket can be waited on with [`Engine::capacity`]. None when no
    /// plan was, or when one has found room since.
    fn last_blocked(&self) -> Option<&Blocked> {
        None
    }

    /// Gives asynchronous operations a chance to finish.
    fn pump(&mut self) {}

    /// Learns of a ring that the host attached; the default accepts and ignores it.
    ///
    /// # Errors
    /// `RingLayout`.
    fn attach_ring(&mut self, ring: &RingDesc) -> Result<(), Status> {
        let _ = ring;
        Ok(())
    }

    /// The state spaces; constant.
    fn state_spaces(&self) -> &[StateSpaceDesc];

    /// Effective width of a key or value element in bits; 0 is unknown.
    fn kv_bits(&self) -> u32 {
        0
    }

    /// The capability descriptor as JSON, or none.
    fn capability_descriptor(&self) -> Option<&str> {
        None
    }

    /// Registers a speculation strategy; the grant stays until the next registration.
    ///
    /// # Errors
    /// `RegistrationRefused`, array statuses, `Unsupported`.
    fn strategy_register(
        &mut self,
        registration: &StrategyRegistration,
        memory: &dyn Memory,
    ) -> Result<&StrategyGrant, Status>;

    /// The certificates of the last grant, for a host that holds no pointers; empty before the first one.
    ///
    /// The records are those that the arrays of the [`StrategyGrant`] point at.
    fn strategy_certificates(&self) -> &[ExactnessCert] {
        &[]
    }

    /// The samplers of hosts that those certificates name, certificate by certificate, for a host that holds no pointers; the counts of
    /// their arrays say which are whose.
    fn strategy_identities(&self) -> &[[u8; 32]] {
        &[]
    }

    /// Cached prefixes of `span` in one space or all.
    ///
    /// # Errors
    /// `UnknownHandle` (space), `Unsupported`.
    fn space_match(&mut self, space_id: u32, span: &[u32], media: &[[u8; 32]]) -> Result<&MatchResult, Status>;

    /// As [`Engine::space_match`] with the ring reference of the span.
    ///
    /// # Errors
    /// As there.
    fn space_match_ref(
        &mut self,
        space_id: u32,
        span: &[u32],
        reference: &TokenRef,
        media: &[[u8; 32]],
    ) -> Result<&MatchResult, Status> {
        let _ = reference;
        self.space_match(space_id, span, media)
    }

    /// The candidates of the last match, longest first, for a host that holds no pointers; empty before the first one.
    ///
    /// The records are those that the arrays of its [`MatchResult`] point at, space by space.
    fn match_candidates(&self) -> &[MatchCandidate] {
        &[]
    }

    /// The spaces of the last match, for a host that holds no pointers; empty before the first one. The counts of their arrays say which of
    /// [`Engine::match_candidates`] are whose, in order.
    fn match_spaces(&self) -> &[SpaceMatch] {
        &[]
    }

    /// Leases the cached prefix of `span`; the lease is at least 1.
    ///
    /// # Errors
    /// `SeedUnservable`, `Unsupported`.
    fn seed_acquire(&mut self, span: &[u32], prefix_len: u64, determinism_class: u8) -> Result<u64, Status>;

    /// As [`Engine::seed_acquire`] with the ring reference of the span.
    ///
    /// # Errors
    /// As there.
    fn seed_acquire_ref(
        &mut self,
        span: &[u32],
        reference: &TokenRef,
        prefix_len: u64,
        determinism_class: u8,
    ) -> Result<u64, Status> {
        let _ = reference;
        self.seed_acquire(span, prefix_len, determinism_class)
    }

    /// Gives a lease back.
    ///
    /// # Errors
    /// `UnknownHandle`.
    fn seed_release(&mut self, lease: u64) -> Result<(), Status>;

    /// How many accepted ticks a lease lives; none when the engine declares no time.
    fn seed_lease_ticks(&self) -> Option<u64> {
        None
    }

    /// Leases a bare sequence that holds `span`.
    ///
    /// # Errors
    /// `UnknownHandle`, `Busy`, `OutOfBoundary`, `Unsupported`.
    fn seed_adopt(&mut self, sequence: SeqHandle, span: &[u32]) -> Result<u64, Status> {
        let _ = (sequence, span);
        Err(Status::Unsupported)
    }

    /// As [`Engine::seed_adopt`] with the ring reference of the span.
    ///
    /// # Errors
    /// As there.
    fn seed_adopt_ref(&mut self, sequence: SeqHandle, span: &[u32], reference: &TokenRef) -> Result<u64, Status> {
        let _ = reference;
        self.seed_adopt(sequence, span)
    }

    /// A bare child that starts where `parent` stands.
    ///
    /// # Errors
    /// `UnknownHandle`, `NeedsReplan`, `Unsupported`.
    fn seq_fork(&mut self, parent: SeqHandle, flags: u32) -> Result<SeqHandle, Status>;

    /// The sequence of a live lane.
    fn lane_sequence(&self, lane_tag: u64) -> Option<SeqHandle> {
        let _ = lane_tag;
        None
    }

    /// What a live lane has cost so far.
    fn lane_cost(&self, lane_tag: u64) -> Option<LaneCost> {
        let _ = lane_tag;
        None
    }

    /// Records what happens from here on; replaces, and drops, a timeline that was being recorded.
    ///
    /// # Errors
    /// `Unsupported`.
    #[expect(clippy::boxed_local, reason = "an engine that records keeps the box, as its host gave it")]
    fn timeline_start(&mut self, timeline: Box<Timeline>) -> Result<(), Status> {
        let _ = timeline;
        Err(Status::Unsupported)
    }

    /// Records no more and gives the timeline back, for the caller to finish; none when none was recorded.
    fn timeline_stop(&mut self) -> Option<Box<Timeline>> {
        None
    }

    /// A bare empty sequence.
    ///
    /// # Errors
    /// `NeedsReplan`, `Unsupported`.
    fn create_sequence(&mut self) -> Result<SeqHandle, Status> {
        Err(Status::Unsupported)
    }

    /// Frees a bare sequence.
    ///
    /// # Errors
    /// `UnknownHandle`, `Busy`, `Unsupported`.
    fn free_sequence(&mut self, sequence: SeqHandle) -> Result<(), Status> {
        let _ = sequence;
        Err(Status::Unsupported)
    }

    /// Moves a bare sequence into the prefix cache under the tokens it holds.
    ///
    /// # Errors
    /// `UnknownHandle`, `Busy`, `OutOfBoundary`, `Unsupported`; the sequence stays the caller's.
    fn publish_sequence(&mut self, sequence: SeqHandle, tokens: &[u32]) -> Result<(), Status> {
        let _ = (sequence, tokens);
        Err(Status::Unsupported)
    }

    /// Drops the cache entries with exactly these tokens.
    ///
    /// # Errors
    /// `Unsupported`.
    fn unpublish(&mut self, tokens: &[u32]) -> Result<(), Status> {
        let _ = tokens;
        Err(Status::Unsupported)
    }

    /// Evicts cache entries and answers the pool bytes freed.
    ///
    /// # Errors
    /// `Unsupported`.
    fn cache_evict(&mut self, classes: u64, quota_bytes: u64, cap_bytes: u64, target_bytes: u64)
    -> Result<u64, Status>;

    /// Drops the named cache entries; unknown names are fine.
    ///
    /// # Errors
    /// `IdentityMismatch`, `Unsupported`.
    fn cache_evict_entries(&mut self, keys: &[CacheKey]) -> Result<(), Status> {
        let _ = keys;
        Err(Status::Unsupported)
    }

    /// Sizes an export.
    ///
    /// # Errors
    /// `UnknownHandle`, `Unsupported`, `RejectBounds`, `OutOfBoundary`.
    fn space_export_size(
        &mut self,
        sequence: SeqHandle,
        space_id: u32,
        range: TokenRange,
        encoding: u8,
    ) -> Result<ExportSize, Status>;

    /// Exports a sequence up to a boundary.
    ///
    /// # Errors
    /// `UnknownHandle`, `RejectBounds`, `OutOfBoundary`, `StaleSizing`, `BufferTooSmall`, `Unsupported`.
    fn space_snapshot(
        &mut self,
        sequence: SeqHandle,
        space_id: u32,
        boundary: u64,
        dst_bytes: u64,
        sizing_gen: u64,
    ) -> Result<OpHandle, Status>;

    /// The largest position up to `cap` that may be snapshot.
    ///
    /// # Errors
    /// `UnknownHandle`, `Unsupported`.
    fn space_snapshot_boundary(&self, sequence: SeqHandle, space_id: u32, cap: u64) -> Result<u64, Status> {
        let _ = (sequence, space_id, cap);
        Err(Status::Unsupported)
    }

    /// Fills a sequence from a sealed export.
    ///
    /// # Errors
    /// `UnknownHandle`, `Busy`, `EnvelopeMismatch`, `IdentityMismatch`, `Checksum`, `Unsupported`.
    fn space_restore(&mut self, sequence: SeqHandle, space_id: u32, sealed: &[u8]) -> Result<OpHandle, Status>;

    /// Cuts a sequence.
    ///
    /// # Errors
    /// `UnknownHandle`, `Busy`, `RejectBounds`, `OutOfBoundary`, `Unsupported`.
    fn space_trim(&mut self, sequence: SeqHandle, space_id: u32, len: u64) -> Result<(), Status>;

    /// Moves a range out of the pool.
    ///
    /// # Errors
    /// As [`Engine::space_snapshot`], plus `Unsupported`.
    fn space_demote(
        &mut self,
        sequence: SeqHandle,
        space_id: u32,
        range: TokenRange,
        encoding: u8,
        dst_bytes: u64,
        sizing_gen: u64,
    ) -> Result<OpHandle, Status>;

    /// Brings a demoted range back.
    ///
    /// # Errors
    /// `Unsupported`, and as [`Engine::space_restore`].
    fn space_promote(
        &mut self,
        sequence: SeqHandle,
        space_id: u32,
        range: TokenRange,
        sealed: &[u8],
    ) -> Result<OpHandle, Status>;

    /// Where an operation stands.
    ///
    /// # Errors
    /// `UnknownHandle`.
    fn op_poll(&self, op: OpHandle) -> Result<OpStatus, Status>;

    /// The sealed bytes of a finished export, once.
    fn take_op_output(&mut self, op: OpHandle) -> Option<Vec<u8>> {
        let _ = op;
        None
    }

    /// Asks an operation to stop.
    ///
    /// # Errors
    /// `UnknownHandle`.
    fn op_cancel(&mut self, op: OpHandle) -> Result<(), Status>;

    /// Compiles a JSON schema.
    ///
    /// # Errors
    /// `RejectBadStruct`, `Unsupported`.
    fn grammar_create(&mut self, schema: &str) -> Result<u32, Status> {
        let _ = schema;
        Err(Status::Unsupported)
    }

    /// Compiles a structural tag document.
    ///
    /// # Errors
    /// `RejectBadStruct`, `Unsupported`.
    fn grammar_create_structural(&mut self, document: &str) -> Result<u32, Status> {
        let _ = document;
        Err(Status::Unsupported)
    }

    /// Compiles a regular expression that the whole text has to match; beyond the contract.
    ///
    /// # Errors
    /// `RejectBadStruct`, `Unsupported`.
    fn grammar_create_regex(&mut self, pattern: &str) -> Result<u32, Status> {
        let _ = pattern;
        Err(Status::Unsupported)
    }

    /// Compiles a grammar in Lark notation; beyond the contract.
    ///
    /// # Errors
    /// `RejectBadStruct`, `Unsupported`.
    fn grammar_create_lark(&mut self, grammar: &str) -> Result<u32, Status> {
        let _ = grammar;
        Err(Status::Unsupported)
    }

    /// Why the last grammar that was not made was refused, in words.
    fn grammar_refusal(&self) -> Option<String> {
        None
    }

    /// Frees a grammar; a borrowed one goes when its lane returns it.
    ///
    /// # Errors
    /// `UnknownHandle`, `Unsupported`.
    fn grammar_free(&mut self, grammar: u32) -> Result<(), Status> {
        let _ = grammar;
        Err(Status::Unsupported)
    }

    /// Keeps a bias list, zipped to the shorter of the two (E-12).
    ///
    /// # Errors
    /// `Unsupported`.
    fn logit_bias_create(&mut self, tokens: &[i32], addends: &[f32]) -> Result<u32, Status> {
        let _ = (tokens, addends);
        Err(Status::Unsupported)
    }

    /// Frees a bias list; lanes that took it keep their copy.
    ///
    /// # Errors
    /// `UnknownHandle`, `Unsupported`.
    fn logit_bias_free(&mut self, bias: u32) -> Result<(), Status> {
        let _ = bias;
        Err(Status::Unsupported)
    }

    /// What a media file would become in a prompt.
    ///
    /// # Errors
    /// `Unsupported`.
    fn media_probe(&mut self, path: &str) -> Result<MediaInfo, Status> {
        let _ = path;
        Err(Status::Unsupported)
    }

    /// Encodes a media file.
    ///
    /// # Errors
    /// `Unsupported`.
    fn media_encode(&mut self, path: &str) -> Result<(u64, MediaInfo), Status> {
        let _ = path;
        Err(Status::Unsupported)
    }

    /// Frees encoded media.
    ///
    /// # Errors
    /// `UnknownHandle`, `Unsupported`.
    fn media_release(&mut self, media: u64) -> Result<(), Status> {
        let _ = media;
        Err(Status::Unsupported)
    }

    /// Binds encoded media to a place in a lane's prompt.
    ///
    /// # Errors
    /// `UnknownHandle`, `Unsupported`.
    fn media_bind(&mut self, lane_tag: u64, media: u64, prompt_offset: u32) -> Result<(), Status> {
        let _ = (lane_tag, media, prompt_offset);
        Err(Status::Unsupported)
    }

    /// As [`Engine::space_match`], among the state of one adapter; 0 is the model alone. Without one the default adapter counts.
    ///
    /// # Errors
    /// As there, and `UnknownHandle` (adapter).
    fn space_match_adapted(
        &mut self,
        space_id: u32,
        span: &[u32],
        media: &[[u8; 32]],
        adapter: u64,
    ) -> Result<&MatchResult, Status> {
        if adapter == 0 { self.space_match(space_id, span, media) } else { Err(Status::Unsupported) }
    }

    /// As [`Engine::seed_acquire`], among the state of one adapter; without one the default adapter counts. An admit that takes the lease must have the same one, else it is
    /// `RejectStaleSeed`.
    ///
    /// # Errors
    /// As there, and `UnknownHandle` (adapter).
    fn seed_acquire_adapted(
        &mut self,
        span: &[u32],
        prefix_len: u64,
        determinism_class: u8,
        adapter: u64,
    ) -> Result<u64, Status> {
        if adapter == 0 { self.seed_acquire(span, prefix_len, determinism_class) } else { Err(Status::Unsupported) }
    }

    /// Loads an adapter from a file or a directory and answers its handle, at least 1.
    ///
    /// The same content gives the same handle again; it is unloaded as often as it was loaded.
    ///
    /// # Errors
    /// `UnknownHandle` (cannot be read), `RejectBadStruct` (broken, or not for this model), `Unsupported` (a variant that is not computed,
    /// or no adapters at all), `NeedsReplan` (memory). [`Engine::adapter_refusal`] has the place. Nothing changed.
    fn adapter_load(&mut self, path: &str) -> Result<u64, Status> {
        let _ = path;
        Err(Status::Unsupported)
    }

    /// Takes back one load. After the last one the adapter is bound to no tag and is no default; lanes, sequences and cached state that
    /// have it keep it, and its memory is free when they are gone.
    ///
    /// # Errors
    /// `UnknownHandle`, `Unsupported`; nothing changed.
    fn adapter_unload(&mut self, adapter: u64) -> Result<(), Status> {
        let _ = adapter;
        Err(Status::Unsupported)
    }

    /// The next admit of a tag is a lane with this adapter; 0 takes the word back, and the default holds again.
    ///
    /// # Errors
    /// `UnknownHandle`, `Unsupported`; nothing changed.
    fn adapter_bind(&mut self, lane_tag: u64, adapter: u64) -> Result<(), Status> {
        let _ = (lane_tag, adapter);
        Err(Status::Unsupported)
    }

    /// A bare empty sequence will hold state of this adapter; 0 is the model alone. So a restore can bring such state in.
    ///
    /// # Errors
    /// `UnknownHandle` (sequence, adapter), `Busy` (it has tokens, or is leased), `Unsupported`; nothing changed.
    fn sequence_adapt(&mut self, sequence: SeqHandle, adapter: u64) -> Result<(), Status> {
        let _ = (sequence, adapter);
        Err(Status::Unsupported)
    }

    /// Bytes that adapters take now, beyond the plan of the model: those that are loaded, those that a lane, a sequence or a cached state still
    /// carries, and the rows to compute with them, which stay once there was one.
    fn adapter_bytes(&self) -> u64 {
        0
    }

    /// Identity of a loaded adapter: a digest of what it computes.
    fn adapter_digest(&self, adapter: u64) -> Option<[u8; 32]> {
        let _ = adapter;
        None
    }

    /// Why the last call answered `Fatal`, in words; none when it did not, or no more is known.
    fn fatal_reason(&self) -> Option<String> {
        None
    }

    /// Why the last registration of a strategy was refused, in words; none when it was not.
    fn strategy_refusal(&self) -> Option<&str> {
        None
    }

    /// Why the last adapter was refused, in words; none when it was not.
    fn adapter_refusal(&self) -> Option<&str> {
        None
    }

    /// Embeds a text: the pooled hidden states behind the last norm. How they are pooled says the capability descriptor: as the
    /// model names it, else the last token's. The vector is scaled to length 1 only where the model says so.
    ///
    /// Computed with the default adapter, if there is one. No lane sees anything of it.
    ///
    /// # Errors
    /// `RejectBounds` (no tokens, foreign ones, more than the context), `NeedsReplan` (no room in the pool), `Unsupported`.
    fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Status> {
        let _ = tokens;
        Err(Status::Unsupported)
    }

    /// Loads an adapter and makes it the default: lanes admitted later have it, unless their tag is bound to another.
    ///
    /// # Errors
    /// As [`Engine::adapter_load`]; the default before stays.
    fn lora_load(&mut self, path: &str) -> Result<(), Status> {
        let _ = path;
        Err(Status::Unsupported)
    }

    /// Ends the default adapter and unloads it; lanes that have it keep it.
    ///
    /// # Errors
    /// `UnknownHandle` (there is none), `Unsupported`.
    fn lora_unload(&mut self) -> Result<(), Status> {
        Err(Status::Unsupported)
    }

    /// Identity of the default adapter.
    fn lora_id(&self) -> Option<[u8; 32]> {
        None
    }

    /// Number of layers for pipeline stages; 0 when the engine cannot be split.
    fn n_layers(&self) -> u32 {
        0
    }

    /// Runs layers `[first, end)` over all of `tokens` (E-11), with the default adapter, if there is one.
    ///
    /// `incoming`: what the stage before gave; none for the first.
    ///
    /// # Errors
    /// `RejectBounds` (layers, tokens), `RejectBadStruct` (bytes that are not of the stage before), `NeedsReplan` (no room in the pool),
    /// `Unsupported`.
    fn forward_stage(
        &mut self,
        tokens: &[u32],
        first: u32,
        end: u32,
        incoming: Option<&[u8]>,
    ) -> Result<StageOutput, Status> {
        let _ = (tokens, first, end, incoming);
        Err(Status::Unsupported)
    }
}
