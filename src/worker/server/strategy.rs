#![forbid(unsafe_code)]
//! Registering a strategy for drafts (W-65).

use std::ffi::CString;

use super::{Request, ServeError, WorkerServer};
use crate::engine::Engine;
use crate::record::constant::strategy_cap;
use crate::record::view::Plain;
use crate::record::{Array, Artifact, CapabilityReq, ExactnessCert, RecordArena, StrategyRegistration, TapSpec};
use crate::worker::message::Message;
use crate::worker::payload::{CapReq, Cert, Grant, Registration, StrategyGrant};

impl<E: Engine + ?Sized> WorkerServer<E> {
    pub(super) fn register_strategy(&mut self, request: Request, asked: &Registration) -> Result<(), ServeError> {
        let mut arena = RecordArena::new();
        let record = registration_record(asked, &mut arena);
        let granted = self.engine.strategy_register(&record, &arena).copied();
        let answer = match granted {
            Ok(grant) => StrategyGrant::Granted(Grant {
                strategy_slot: grant.strategy_slot,
                certificates: certificates_of(&*self.engine),
                // No strategy of these engines has a space of its own.
                state_spaces: Vec::new(),
                reserved_bytes: grant.reserved_bytes,
            }),
            Err(status) => StrategyGrant::Refused { status: status.code() },
        };
        self.link.reply(request.seq, &Message::StrategyGrant(answer))
    }
}

/// The certificates of the last grant, each with the samplers that it names.
fn certificates_of<E: Engine + ?Sized>(engine: &E) -> Vec<Cert> {
    let mut left = engine.strategy_identities().iter();
    let certificate = |record: &ExactnessCert| Cert {
        cert_id: record.cert_id,
        exactness: record.exactness,
        sampling_modes: record.sampling_modes,
        param_domain: record.param_domain,
        grammar_allowed: record.grammar_allowed != 0,
        logit_bias_allowed: record.logit_bias_allowed != 0,
        verification_shape_class: record.verification_shape_class,
        admissible_host_identities: left
            .by_ref()
            .take(record.admissible_host_identities.count as usize)
            .copied()
            .collect(),
    };
    engine.strategy_certificates().iter().map(certificate).collect()
}

/// The record of a registration, its arrays and texts in `arena`.
fn registration_record(asked: &Registration, arena: &mut RecordArena) -> StrategyRegistration {
    let mut record = StrategyRegistration::zeroed();
    record.struct_size = size_of::<StrategyRegistration>() as u64;
    record.strategy_id = text(&asked.strategy_id, arena).data.cast();
    record.impl_version = text(&asked.impl_version, arena).data.cast();
    record.impl_hash = asked.impl_hash;
    record.config_hash = asked.config_hash;
    let artifacts: Vec<Artifact> = asked
        .artifacts
        .iter()
        .map(|artifact| Artifact {
            role: artifact.role,
            _pad0: 0,
            content_hash: artifact.content_hash,
            byte_size: artifact.byte_size,
            load_path: text(&artifact.load_path, arena).data.cast(),
        })
        .collect();
    record.artifacts = arena.push_records(&artifacts);
    record.taps = arena.push_records(&asked.taps.iter().map(Into::into).collect::<Vec<TapSpec>>());
    let capabilities: Vec<CapabilityReq> = asked
        .capabilities
        .iter()
        .map(|capability| CapabilityReq { kind_id: capability.kind_id, _pad0: 0, params: params(capability, arena) })
        .collect();
    record.capabilities = arena.push_records(&capabilities);
    let archs: Vec<u64> =
        asked.target_archs.iter().map(|arch| text(arch, arena).data.expose_provenance() as u64).collect();
    record.target_archs = arena.push_records(&archs);
    record.kernel_caps_required = asked.kernel_caps_required;
    record.est_state_bytes = asked.est_state_bytes;
    record.claimed_exactness = asked.claimed_exactness;
    record.rng_contract_version = asked.rng_contract_version;
    record
}

/// A C string in the arena; a text with a NUL inside is the empty one.
fn text(text: &str, arena: &mut RecordArena) -> Array {
    let text = CString::new(text).unwrap_or_default();
    arena.push_records(text.as_bytes_with_nul())
}

/// A byte array; the names of samplers are the one kind of parameters that has larger elements.
fn params(capability: &CapReq, arena: &mut RecordArena) -> Array {
    let (names, rest) = capability.params.as_chunks::<32>();
    if capability.kind_id == strategy_cap::HOST_COMPATIBLE && rest.is_empty() {
        return arena.push_records(names);
    }
    arena.push_records(&capability.params)
}
