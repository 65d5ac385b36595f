#![forbid(unsafe_code)]
//! The engine as the host calls it.

use std::cell::RefCell;
use std::process::ExitStatus;
use std::sync::Arc;

use super::Launcher;
use super::connection::{Connection, Trouble};
use super::error::{LinkError, WorkerGone};
use super::events::{EventStore, GrantStore, MatchStore};
use super::handles::{BiasSource, GrammarSource, LeaseSource};
use super::lanes::Lane;
use super::options::RemoteOptions;
use super::strategy;
use super::transfer::sealed_memory;
use crate::engine::{Engine, EventsView, ExportSize, OpHandle, SeqHandle, StageOutput};
use crate::record::view::Memory;
use crate::record::{
    CacheKey, ExactnessCert, MatchCandidate, MatchResult, MediaInfo, OpStatus, SpaceMatch, StateSpaceDesc, Status,
    StrategyGrant, StrategyRegistration, TickPlan, TokenRange,
};
use crate::ring::{ControlWords, Rings};
use crate::worker::memory::SharedMemory;
use crate::worker::message::kind;
use crate::worker::payload::{Shed, StateOp, SyncOk, SyncRequest};

/// An engine in a process of its own.
///
/// Each call waits for the worker, at most as long as [`RemoteOptions`] says. When the worker is gone, a call starts a fresh one and is made
/// again there, and live lanes go on with the same bits; once as many as [`RemoteOptions::restarts`] were used up it answers
/// `Fatal`, and [`RemoteEngine::gone`] says why. A later call tries again.
///
/// The host keeps its own rings, of any kind: prompts are carried into those of the link, and what lanes emit out of them.
#[derive(Debug)]
pub struct RemoteEngine {
    // Some calls that only look have to speak to the worker all the same.
    connection: RefCell<Connection>,
    spaces: Vec<StateSpaceDesc>,
    kv_bits: u32,
    capabilities: Option<String>,
    events: EventStore,
    matches: MatchStore,
    grant: GrantStore,
    // What the last sizings said, so that a buffer need not be larger.
    sizings: Vec<ExportSize>,
}

impl RemoteEngine {
    /// Starts a worker and waits until it serves; with it comes the load of its model.
    ///
    /// # Errors
    /// It cannot be started, or did not get as far.
    pub fn start(launcher: impl Launcher + Send + 'static, options: RemoteOptions) -> Result<Self, WorkerGone> {
        let mut connection = Connection::new(Box::new(launcher), options)?;
        let ack = connection.session().map(|session| session.ack.clone()).unwrap_or_default();
        Ok(Self {
            connection: RefCell::new(connection),
            spaces: ack.spaces.iter().map(Into::into).collect(),
            kv_bits: ack.kv_bits,
            capabilities: (!ack.capabilities.is_empty()).then_some(ack.capabilities),
            events: EventStore::default(),
            matches: MatchStore::default(),
            grant: GrantStore::default(),
            sizings: Vec::new(),
        })
    }

    /// Why the last worker is gone; none when none ever was.
    pub fn gone(&mut self) -> Option<&WorkerGone> {
        self.connection.get_mut().gone.as_ref()
    }

    /// How many workers were started so far, the first among them.
    pub fn started(&self) -> u64 {
        self.connection.borrow().started
    }

    /// How many tokens of lanes fresh workers took from snapshots that the host had made, instead of computing them again.
    pub fn restored_tokens(&self) -> u64 {
        self.connection.borrow().restored_tokens
    }

    /// The number of the worker's process; none when there is none now, or somebody else started it.
    pub fn process_id(&self) -> Option<u32> {
        self.connection.borrow().process_id()
    }

    /// The words that hurry the engine, for any thread while a tick runs. They stay the same when the worker is replaced.
    pub fn control(&self) -> Arc<ControlWords> {
        Arc::clone(&self.connection.borrow().control)
    }

    /// Replaces the worker now, whatever it does. Live lanes go on in the fresh one.
    ///
    /// # Errors
    /// `Fatal`: none could be started.
    pub fn respawn(&mut self) -> Result<(), Status> {
        let connection = self.connection.get_mut();
        connection.lost(LinkError::Closed);
        let mut patience = connection.patience();
        connection.ensure(&mut patience)?;
        connection.succeeded();
        Ok(())
    }

    /// Leaves the worker in good order and answers how it ended, if it was started here (W-70).
    pub fn close(mut self) -> Option<ExitStatus> {
        self.connection.get_mut().leave()
    }

    /// The tokens of a live lane that the host knows to be committed; of a tail that is being replayed, those before it.
    pub fn lane_tokens(&self, lane_tag: u64) -> Option<Vec<u32>> {
        self.connection.borrow().lanes.get(&lane_tag).map(|lane| lane.committed().to_vec())
    }

    /// Asks something whose answer is picked by `pick`.
    fn ask<T>(
        &self,
        request: impl Fn(&mut Connection) -> Result<SyncRequest, Trouble>,
        pick: impl Fn(SyncOk) -> Option<T>,
    ) -> Result<T, Status> {
        self.connection.borrow_mut().with_worker(|connection| {
            let request = request(connection)?;
            let answer = connection.sync(&request)?;
            pick(answer).ok_or_else(|| LinkError::Protocol("another answer than to the question").into())
        })
    }

    /// Memory for an export: what was sized, or what the host says that it has.
    fn room_for(&self, dst_bytes: u64, sizing_gen: u64) -> Result<SharedMemory, Status> {
        let of_sizing = |size: &&ExportSize| size.sizing_gen == sizing_gen;
        let sized = self.sizings.iter().filter(of_sizing).map(|size| size.bytes).max();
        let bytes = dst_bytes.min(sized.unwrap_or(0).max(1)).max(1);
        let bytes = usize::try_from(bytes).map_err(|_| Status::NeedsReplan)?;
        SharedMemory::create("ictus-export", bytes).map_err(|_| Status::NeedsReplan)
    }

    fn make_grammar(&mut self, source: &GrammarSource) -> Result<u32, Status> {
        self.connection.get_mut().with_worker(|connection| {
            let remote = connection.make_grammar(source)?;
            let name = connection.grammars.add(source.clone(), u64::from(remote));
            u32::try_from(name).map_err(|_| Status::NeedsReplan.into())
        })
    }
}

/// An identity as it is written: 64 hexadecimal digits.
fn identity(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// Picks an answer that says nothing but that it went well.
macro_rules! done {
    ($variant:ident) => {
        |answer| matches!(answer, SyncOk::$variant).then_some(())
    };
}

/// Picks one field of an answer.
macro_rules! field {
    ($variant:ident, $field:ident) => {
        |answer| if let SyncOk::$variant { $field } = answer { Some($field) } else { None }
    };
}

impl Engine for RemoteEngine {
    fn tick(&mut self, plan: &TickPlan, memory: &dyn Memory, rings: &mut dyn Rings) -> Result<EventsView<'_>, Status> {
        self.connection.get_mut().tick(plan, memory, rings, &mut self.events)?;
        self.events.view().ok_or(Status::Fatal)
    }

    fn last_events(&self) -> Option<EventsView<'_>> {
        self.events.view()
    }

    fn pump(&mut self) {
        let connection = self.connection.get_mut();
        if !connection.ops.are_running() {
            connection.listen();
        } else if let Err(Trouble::Gone(cause)) = connection.ping() {
            connection.lost(cause);
        }
    }

    fn fatal_reason(&self) -> Option<String> {
        self.connection.borrow().gone.as_ref().map(WorkerGone::to_string)
    }

    fn state_spaces(&self) -> &[StateSpaceDesc] {
        &self.spaces
    }

    fn kv_bits(&self) -> u32 {
        self.kv_bits
    }

    fn capability_descriptor(&self) -> Option<&str> {
        self.capabilities.as_deref()
    }

    fn strategy_register(
        &mut self,
        registration: &StrategyRegistration,
        memory: &dyn Memory,
    ) -> Result<&StrategyGrant, Status> {
        let wire = strategy::registration(registration, memory)?;
        let granted = self.connection.get_mut().register(&wire)?;
        Ok(self.grant.fill(&granted))
    }

    fn strategy_certificates(&self) -> &[ExactnessCert] {
        self.grant.certificates()
    }

    fn strategy_identities(&self) -> &[[u8; 32]] {
        self.grant.identities()
    }

    fn space_match(&mut self, space_id: u32, span: &[u32], media: &[[u8; 32]]) -> Result<&MatchResult, Status> {
        let answer = self.connection.get_mut().matches(space_id, span, media)?;
        let known = |id: u32| {
            id == crate::record::constant::misc::ALL_SPACES || self.spaces.iter().any(|space| space.space_id == id)
        };
        // On the wire an error is an empty answer (W-50); which spaces there are is known here.
        if !known(space_id) {
            return Err(Status::UnknownHandle);
        }
        Ok(self.matches.fill(&answer))
    }

    fn match_candidates(&self) -> &[MatchCandidate] {
        self.matches.candidates()
    }

    fn match_spaces(&self) -> &[SpaceMatch] {
        self.matches.spaces()
    }

    fn seed_acquire(&mut self, span: &[u32], prefix_len: u64, determinism_class: u8) -> Result<u64, Status> {
        self.connection.get_mut().acquire(span, prefix_len, determinism_class)
    }

    fn seed_release(&mut self, lease: u64) -> Result<(), Status> {
        self.connection.get_mut().release(lease)
    }

    fn seed_lease_ticks(&self) -> Option<u64> {
        self.connection.borrow().lease_ticks
    }

    fn seed_adopt(&mut self, sequence: SeqHandle, span: &[u32]) -> Result<u64, Status> {
        let adopt = |connection: &mut Connection| {
            let remote = connection.sequence(sequence)?;
            Ok(SyncRequest::AdoptSequence { sequence: remote, span: connection.stage(span)? })
        };
        let remote = self.ask(adopt, field!(AdoptSequence, seed_handle))?;
        let connection = self.connection.get_mut();
        let expires_at = connection.lease_ticks.map(|ticks| connection.ticks.saturating_add(ticks));
        let source = LeaseSource { prefix: span.to_vec(), determinism_class: 0, adopted: true, expires_at };
        Ok(connection.leases.add(source, remote))
    }

    fn seq_fork(&mut self, parent: SeqHandle, flags: u32) -> Result<SeqHandle, Status> {
        let fork = |connection: &mut Connection| {
            bring_lane_of(connection, parent)?;
            Ok(SyncRequest::Fork { parent_sequence: connection.sequence(parent)?, flags })
        };
        let child = self.ask(fork, field!(Fork, child_sequence))?;
        Ok(self.connection.get_mut().sequences.name(child))
    }

    fn lane_sequence(&self, lane_tag: u64) -> Option<SeqHandle> {
        if !self.connection.borrow().lanes.contains_key(&lane_tag) {
            return None;
        }
        let ask = |connection: &mut Connection| {
            connection.renew([lane_tag])?;
            Ok(SyncRequest::LaneSequence { lane_tag })
        };
        let remote = self.ask(ask, field!(LaneSequence, sequence)).ok()?;
        let mut connection = self.connection.borrow_mut();
        let name = connection.sequences.name(remote);
        if let Some(lane) = connection.lanes.get_mut(&lane_tag) {
            lane.sequence = Some(name);
        }
        Some(name)
    }

    fn create_sequence(&mut self) -> Result<SeqHandle, Status> {
        let remote = self.ask(|_| Ok(SyncRequest::CreateSequence), field!(CreateSequence, sequence))?;
        Ok(self.connection.get_mut().sequences.name(remote))
    }

    fn free_sequence(&mut self, sequence: SeqHandle) -> Result<(), Status> {
        let free =
            |connection: &mut Connection| Ok(SyncRequest::FreeSequence { sequence: connection.sequence(sequence)? });
        self.ask(free, done!(FreeSequence))?;
        self.connection.get_mut().sequences.forget(sequence);
        Ok(())
    }

    fn publish_sequence(&mut self, sequence: SeqHandle, tokens: &[u32]) -> Result<(), Status> {
        let publish = |connection: &mut Connection| {
            let remote = connection.sequence(sequence)?;
            Ok(SyncRequest::PublishSequence { sequence: remote, span: connection.stage(tokens)? })
        };
        self.ask(publish, done!(PublishSequence))
    }

    fn unpublish(&mut self, tokens: &[u32]) -> Result<(), Status> {
        self.ask(|connection| Ok(SyncRequest::Unpublish { span: connection.stage(tokens)? }), done!(Unpublish))
    }

    fn cache_evict(&mut self, classes: u64, quota_bytes: u64, cap_bytes: u64, target: u64) -> Result<u64, Status> {
        let policy = Shed {
            victim_lanes: Vec::new(),
            evictable_cache_classes: classes,
            protected_quota_bytes: quota_bytes,
            max_evict_bytes: cap_bytes,
        };
        let evict = SyncRequest::CacheEvict { bytes_target: target, policy };
        self.ask(|_| Ok(evict.clone()), field!(CacheEvict, bytes_freed))
    }

    fn cache_evict_entries(&mut self, keys: &[CacheKey]) -> Result<(), Status> {
        let evict = SyncRequest::CacheEvictEntries { keys: keys.iter().map(Into::into).collect() };
        self.ask(|_| Ok(evict.clone()), done!(CacheEvictEntries))
    }

    fn space_export_size(
        &mut self,
        sequence: SeqHandle,
        space_id: u32,
        range: TokenRange,
        encoding: u8,
    ) -> Result<ExportSize, Status> {
        let size = |connection: &mut Connection| {
            bring_lane_of(connection, sequence)?;
            let sequence = connection.sequence(sequence)?;
            Ok(SyncRequest::ExportSize { sequence, space_id, range: range.into(), encoding })
        };
        let size = self.ask(size, |answer| match answer {
            SyncOk::ExportSize { required_bytes, sizing_gen } => Some(ExportSize { bytes: required_bytes, sizing_gen }),
            _ => None,
        })?;
        if self.sizings.len() >= 64 {
            self.sizings.remove(0);
        }
        self.sizings.push(size);
        Ok(size)
    }

    fn space_snapshot(
        &mut self,
        sequence: SeqHandle,
        space_id: u32,
        boundary: u64,
        dst_bytes: u64,
        sizing_gen: u64,
    ) -> Result<OpHandle, Status> {
        let memory = self.room_for(dst_bytes, sizing_gen)?;
        let make =
            |sequence, buf_id| StateOp::Snapshot { sequence, space_id, boundary_pos: boundary, buf_id, sizing_gen };
        self.connection.get_mut().operate(sequence, &|| Ok(memory.clone()), true, Some((space_id, boundary)), &make)
    }

    fn space_snapshot_boundary(&self, sequence: SeqHandle, space_id: u32, cap: u64) -> Result<u64, Status> {
        let ask = |connection: &mut Connection| {
            bring_lane_of(connection, sequence)?;
            Ok(SyncRequest::SnapshotBoundary { sequence: connection.sequence(sequence)?, space_id, cap })
        };
        self.ask(ask, field!(SnapshotBoundary, boundary))
    }

    fn space_restore(&mut self, sequence: SeqHandle, space_id: u32, sealed: &[u8]) -> Result<OpHandle, Status> {
        let make = |sequence, buf_id| StateOp::Restore { sequence, space_id, buf_id };
        self.connection.get_mut().operate(sequence, &|| sealed_memory(sealed), false, None, &make)
    }

    fn space_trim(&mut self, sequence: SeqHandle, space_id: u32, len: u64) -> Result<(), Status> {
        let trim = |connection: &mut Connection| {
            Ok(SyncRequest::Trim { sequence: connection.sequence(sequence)?, space_id, new_len: len })
        };
        self.ask(trim, done!(Trim))
    }

    fn space_demote(
        &mut self,
        sequence: SeqHandle,
        space_id: u32,
        range: TokenRange,
        encoding: u8,
        dst_bytes: u64,
        sizing_gen: u64,
    ) -> Result<OpHandle, Status> {
        let memory = self.room_for(dst_bytes, sizing_gen)?;
        let make = |sequence, buf_id| StateOp::Demote {
            sequence,
            space_id,
            range: range.into(),
            encoding,
            buf_id,
            sizing_gen,
        };
        self.connection.get_mut().operate(sequence, &|| Ok(memory.clone()), true, None, &make)
    }

    fn space_promote(
        &mut self,
        sequence: SeqHandle,
        space_id: u32,
        range: TokenRange,
        sealed: &[u8],
    ) -> Result<OpHandle, Status> {
        let make = |sequence, buf_id| StateOp::Promote { sequence, space_id, range: range.into(), buf_id };
        self.connection.get_mut().operate(sequence, &|| sealed_memory(sealed), false, None, &make)
    }

    fn op_poll(&self, op: OpHandle) -> Result<OpStatus, Status> {
        let mut connection = self.connection.borrow_mut();
        connection.listen();
        connection.ops.status(op).ok_or(Status::UnknownHandle)
    }

    fn take_op_output(&mut self, op: OpHandle) -> Option<Vec<u8>> {
        let connection = self.connection.get_mut();
        connection.listen();
        connection.ops.take_output(op)
    }

    fn op_cancel(&mut self, op: OpHandle) -> Result<(), Status> {
        let connection = self.connection.get_mut();
        let status = connection.ops.status(op).ok_or(Status::UnknownHandle)?;
        let running = status.state < crate::record::constant::op_state::DONE;
        let Some(remote) = connection.ops.remote(op).filter(|_| running) else { return Ok(()) };
        let limit = connection.options.request_timeout;
        let told = connection.live().and_then(|session| Ok(session.tell(kind::OP_CANCEL, &remote, limit)?));
        // How it ended comes before the answer to what is asked next.
        if let Err(Trouble::Gone(cause)) = told.and_then(|()| connection.ping()) {
            connection.lost(cause);
        }
        Ok(())
    }

    fn grammar_create(&mut self, schema: &str) -> Result<u32, Status> {
        self.make_grammar(&GrammarSource::Schema(schema.to_owned()))
    }

    fn grammar_create_structural(&mut self, document: &str) -> Result<u32, Status> {
        self.make_grammar(&GrammarSource::Structural(document.to_owned()))
    }

    fn grammar_free(&mut self, grammar: u32) -> Result<(), Status> {
        let connection = self.connection.get_mut();
        let Some(remote) = connection.grammars.remove(u64::from(grammar)) else { return Err(Status::UnknownHandle) };
        let Some(remote) = remote else { return Ok(()) };
        free_there(connection, &SyncRequest::FreeGrammar { grammar_handle: remote as u32 })
    }

    fn logit_bias_create(&mut self, tokens: &[i32], addends: &[f32]) -> Result<u32, Status> {
        let pairs = tokens.iter().zip(addends).map(|(&token, addend)| (token, addend.to_bits()));
        let (tokens, bits) = pairs.unzip();
        let source = BiasSource { tokens, bits };
        self.connection.get_mut().with_worker(|connection| {
            let remote = connection.bias_for(&source)?;
            let name = connection.biases.add(source.clone(), u64::from(remote));
            u32::try_from(name).map_err(|_| Status::NeedsReplan.into())
        })
    }

    fn logit_bias_free(&mut self, bias: u32) -> Result<(), Status> {
        let connection = self.connection.get_mut();
        let Some(remote) = connection.biases.remove(u64::from(bias)) else { return Err(Status::UnknownHandle) };
        let Some(remote) = remote else { return Ok(()) };
        free_there(connection, &SyncRequest::FreeLogitBias { handle: remote as u32 })
    }

    fn media_probe(&mut self, path: &str) -> Result<MediaInfo, Status> {
        let probe = SyncRequest::MediaProbe { image_path: path.to_owned() };
        self.ask(|_| Ok(probe.clone()), field!(MediaProbe, info)).map(|info| (&info).into())
    }

    fn media_encode(&mut self, path: &str) -> Result<(u64, MediaInfo), Status> {
        let encode = SyncRequest::MediaEncode { image_path: path.to_owned() };
        let picked = self.ask(
            |_| Ok(encode.clone()),
            |answer| match answer {
                SyncOk::MediaEncode { media_handle, info } => Some((media_handle, info)),
                _ => None,
            },
        );
        picked.map(|(handle, info)| (handle, (&info).into()))
    }

    fn media_release(&mut self, media_handle: u64) -> Result<(), Status> {
        self.ask(|_| Ok(SyncRequest::MediaRelease { media_handle }), done!(MediaRelease))
    }

    fn media_bind(&mut self, lane_tag: u64, media_handle: u64, token_offset: u32) -> Result<(), Status> {
        self.ask(|_| Ok(SyncRequest::MediaBind { lane_tag, media_handle, token_offset }), done!(MediaBind))
    }

    fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Status> {
        let embed = SyncRequest::Embed { tokens: tokens.to_vec() };
        let bytes = self.ask(|_| Ok(embed.clone()), field!(Embed, embedding))?;
        Ok(bytes.chunks_exact(4).map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect())
    }

    fn lora_load(&mut self, path: &str) -> Result<(), Status> {
        let load = SyncRequest::LoraLoad { adapter_path: path.to_owned() };
        self.ask(|_| Ok(load.clone()), field!(LoraId, id))?;
        self.connection.get_mut().remember_adapter(Some(path));
        Ok(())
    }

    fn lora_unload(&mut self) -> Result<(), Status> {
        self.ask(|_| Ok(SyncRequest::LoraUnload), field!(LoraId, id))?;
        self.connection.get_mut().remember_adapter(None);
        Ok(())
    }

    fn lora_id(&self) -> Option<[u8; 32]> {
        let id = self.ask(|_| Ok(SyncRequest::LoraId), field!(LoraId, id)).ok()??;
        identity(&id)
    }

    fn forward_stage(
        &mut self,
        tokens: &[u32],
        first: u32,
        end: u32,
        incoming: Option<&[u8]>,
    ) -> Result<StageOutput, Status> {
        let forward = SyncRequest::ForwardStage {
            tokens: tokens.to_vec(),
            start_layer: first,
            end_layer: end,
            hidden_in: incoming.map(<[u8]>::to_vec),
        };
        self.ask(
            |_| Ok(forward.clone()),
            |answer| match answer {
                SyncOk::ForwardStage { hidden: Some(hidden), token: None } => Some(StageOutput::Hidden(hidden)),
                SyncOk::ForwardStage { hidden: None, token: Some(token) } => Some(StageOutput::Token(token)),
                _ => None,
            },
        )
    }
}

/// A sequence that a lane has is in the worker once the lane is.
fn bring_lane_of(connection: &mut Connection, sequence: SeqHandle) -> Result<(), Trouble> {
    let has = |lane: &Lane| lane.sequence == Some(sequence) && !lane.resident;
    let tag = connection.lanes.iter().find(|(_, lane)| has(lane)).map(|(&tag, _)| tag);
    tag.map_or(Ok(()), |tag| connection.renew([tag]))
}

/// Frees something whose name is given back already; a worker that is gone has none of it.
fn free_there(connection: &mut Connection, request: &SyncRequest) -> Result<(), Status> {
    if connection.session().is_none() {
        return Ok(());
    }
    match connection.sync(request) {
        Ok(_) => Ok(()),
        Err(Trouble::Refused(status)) => Err(status),
        Err(Trouble::Gone(cause)) => {
            connection.lost(cause);
            Ok(())
        }
    }
}
