#![forbid(unsafe_code)]
//! Questions and changes that are answered at once (W-60 .. W-62).

use super::{Request, ServeError, WorkerServer};
use crate::engine::{Engine, StageOutput};
use crate::record::{CacheKey, Status, TokenRef};
use crate::worker::frame::FrameError;
use crate::worker::message::Message;
use crate::worker::payload::{self, SyncOk, SyncRequest, SyncResult};

impl<E: Engine + ?Sized> WorkerServer<E> {
    pub(super) fn answer_sync(&mut self, request: Request, asked: SyncRequest) -> Result<(), ServeError> {
        let result = match self.sync(asked) {
            Ok(answer) => SyncResult::Ok(answer),
            Err(status) => SyncResult::Err { status: status.code() },
        };
        match self.link.reply(request.seq, &Message::StateSyncRes(result)) {
            // Activations may be larger than a frame; nothing of it was sent.
            Err(ServeError::Frame(FrameError::TooLarge { .. })) => {
                let refused = SyncResult::Err { status: Status::BufferTooSmall.code() };
                self.link.reply(request.seq, &Message::StateSyncRes(refused))
            }
            sent => sent,
        }
    }

    fn sync(&mut self, asked: SyncRequest) -> Result<SyncOk, Status> {
        let engine = &mut self.engine;
        Ok(match asked {
            SyncRequest::Fork { parent_sequence, flags } => {
                SyncOk::Fork { child_sequence: engine.seq_fork(parent_sequence, flags)? }
            }
            SyncRequest::Trim { sequence, space_id, new_len } => {
                engine.space_trim(sequence, space_id, new_len)?;
                SyncOk::Trim
            }
            SyncRequest::ExportSize { sequence, space_id, range, encoding } => {
                let size = engine.space_export_size(sequence, space_id, range.into(), encoding)?;
                SyncOk::ExportSize { required_bytes: size.bytes, sizing_gen: size.sizing_gen }
            }
            SyncRequest::CacheEvict { bytes_target, policy } => {
                let (classes, quota) = (policy.evictable_cache_classes, policy.protected_quota_bytes);
                let bytes_freed = engine.cache_evict(classes, quota, policy.max_evict_bytes, bytes_target)?;
                SyncOk::CacheEvict { bytes_freed }
            }
            SyncRequest::LaneSequence { lane_tag } => {
                SyncOk::LaneSequence { sequence: engine.lane_sequence(lane_tag).ok_or(Status::UnknownHandle)? }
            }
            SyncRequest::CreateSequence => SyncOk::CreateSequence { sequence: engine.create_sequence()? },
            SyncRequest::FreeSequence { sequence } => {
                engine.free_sequence(sequence)?;
                SyncOk::FreeSequence
            }
            SyncRequest::SnapshotBoundary { sequence, space_id, cap } => {
                SyncOk::SnapshotBoundary { boundary: engine.space_snapshot_boundary(sequence, space_id, cap)? }
            }
            SyncRequest::CacheEvictEntries { keys } => {
                let keys: Vec<CacheKey> = keys.iter().map(Into::into).collect();
                engine.cache_evict_entries(&keys)?;
                SyncOk::CacheEvictEntries
            }
            SyncRequest::Capabilities => {
                SyncOk::Capabilities { json: engine.capability_descriptor().unwrap_or_default().to_owned() }
            }
            SyncRequest::PublishSequence { sequence, span } => {
                self.asked_span(&span)?;
                self.engine.publish_sequence(sequence, &self.span)?;
                SyncOk::PublishSequence
            }
            SyncRequest::AdoptSequence { sequence, span } => {
                self.asked_span(&span)?;
                let reference = TokenRef::from(&span);
                SyncOk::AdoptSequence { seed_handle: self.engine.seed_adopt_ref(sequence, &self.span, &reference)? }
            }
            SyncRequest::Unpublish { span } => {
                self.asked_span(&span)?;
                self.engine.unpublish(&self.span)?;
                SyncOk::Unpublish
            }
            other => return self.sync_inputs(other),
        })
    }

    /// Grammars, biases, adapters, media and whole computations.
    fn sync_inputs(&mut self, asked: SyncRequest) -> Result<SyncOk, Status> {
        let engine = &mut self.engine;
        Ok(match asked {
            SyncRequest::CreateGrammar { json_schema } => {
                SyncOk::CreateGrammar { grammar_handle: engine.grammar_create(&json_schema)? }
            }
            SyncRequest::CreateGrammarStructural { tag_json } => {
                SyncOk::CreateGrammar { grammar_handle: engine.grammar_create_structural(&tag_json)? }
            }
            SyncRequest::FreeGrammar { grammar_handle } => {
                engine.grammar_free(grammar_handle)?;
                SyncOk::FreeGrammar
            }
            SyncRequest::CreateLogitBias { tokens, values } => {
                let addends: Vec<f32> = values.into_iter().map(f32::from_bits).collect();
                SyncOk::CreateLogitBias { handle: engine.logit_bias_create(&tokens, &addends)? }
            }
            SyncRequest::FreeLogitBias { handle } => {
                engine.logit_bias_free(handle)?;
                SyncOk::FreeLogitBias
            }
            SyncRequest::LoraLoad { adapter_path } => {
                engine.lora_load(&adapter_path)?;
                SyncOk::LoraId { id: adapter_id(engine.lora_id()) }
            }
            SyncRequest::LoraUnload => {
                engine.lora_unload()?;
                SyncOk::LoraId { id: adapter_id(engine.lora_id()) }
            }
            SyncRequest::LoraId => SyncOk::LoraId { id: adapter_id(engine.lora_id()) },
            SyncRequest::MediaProbe { image_path } => {
                SyncOk::MediaProbe { info: engine.media_probe(&image_path)?.into() }
            }
            SyncRequest::MediaEncode { image_path } => {
                let (media_handle, info) = engine.media_encode(&image_path)?;
                SyncOk::MediaEncode { media_handle, info: info.into() }
            }
            SyncRequest::MediaRelease { media_handle } => {
                engine.media_release(media_handle)?;
                SyncOk::MediaRelease
            }
            SyncRequest::MediaBind { lane_tag, media_handle, token_offset } => {
                engine.media_bind(lane_tag, media_handle, token_offset)?;
                SyncOk::MediaBind
            }
            SyncRequest::ForwardStage { tokens, start_layer, end_layer, hidden_in } => {
                match engine.forward_stage(&tokens, start_layer, end_layer, hidden_in.as_deref())? {
                    StageOutput::Hidden(bytes) => SyncOk::ForwardStage { hidden: Some(bytes), token: None },
                    StageOutput::Token(token) => SyncOk::ForwardStage { hidden: None, token: Some(token) },
                }
            }
            SyncRequest::Embed { tokens } => {
                let embedding = engine.embed(&tokens)?;
                SyncOk::Embed { embedding: embedding.iter().flat_map(|value| value.to_le_bytes()).collect() }
            }
            // The engines of this crate hear nothing; what is left was answered before.
            _ => return Err(Status::Unsupported),
        })
    }

    /// The tokens of a span that a message names, in `self.span` (W-61).
    fn asked_span(&mut self, span: &payload::TokenRef) -> Result<(), Status> {
        let read = self.attached.is_live() && self.read_span(&TokenRef::from(span));
        if read { Ok(()) } else { Err(Status::RejectBadRefGeneration) }
    }
}

/// An adapter's digest as text; none when there is none.
fn adapter_id(digest: Option<[u8; 32]>) -> Option<String> {
    digest.map(|digest| digest.iter().map(|byte| format!("{byte:02x}")).collect())
}
