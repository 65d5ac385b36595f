#![forbid(unsafe_code)]
//! A registration as it goes over the wire, and its grant (W-65).

use core::ffi::c_char;

use super::connection::{Connection, DoneList, status_of};
use crate::record::view::Memory;
use crate::record::{Artifact, CapabilityReq, Status, StrategyRegistration, TapSpec};
use crate::worker::message::kind;
use crate::worker::payload;

/// Reads a registration out of the memory that it points into. A text that is missing or no UTF-8 is empty, which the engine refuses
/// where it needs one.
///
/// # Errors
/// What is wrong with its arrays.
pub(super) fn registration(
    source: &StrategyRegistration,
    memory: &dyn Memory,
) -> Result<payload::Registration, Status> {
    let text = |start: *const c_char| {
        memory.text(start).and_then(|text| core::str::from_utf8(text).ok()).unwrap_or_default().to_owned()
    };
    let artifacts = source.artifacts.elements::<Artifact>(memory)?.map(|artifact| payload::Artifact {
        role: artifact.role,
        content_hash: artifact.content_hash,
        byte_size: artifact.byte_size,
        load_path: text(artifact.load_path),
    });
    let taps = source.taps.elements::<TapSpec>(memory)?.map(|tap| payload::Tap {
        layer: tap.layer,
        tensor: tap.tensor,
        dtype: tap.dtype,
        layout: tap.layout,
    });
    let mut capabilities = Vec::new();
    for capability in source.capabilities.elements::<CapabilityReq>(memory)? {
        let params = capability.params.elements::<u8>(memory)?.collect();
        capabilities.push(payload::CapReq { kind_id: capability.kind_id, params });
    }
    let archs = source.target_archs.elements::<u64>(memory)?;
    // The pointers of the array are numbers there.
    let archs = archs.map(|address| text(core::ptr::with_exposed_provenance(address as usize)));
    Ok(payload::Registration {
        strategy_id: text(source.strategy_id),
        impl_version: text(source.impl_version),
        impl_hash: source.impl_hash,
        config_hash: source.config_hash,
        artifacts: artifacts.collect(),
        taps: taps.collect(),
        capabilities,
        target_archs: archs.collect(),
        kernel_caps_required: source.kernel_caps_required,
        est_state_bytes: source.est_state_bytes,
        claimed_exactness: source.claimed_exactness,
        rng_contract_version: source.rng_contract_version,
    })
}

impl Connection {
    /// Registers a strategy, here and in every worker to come.
    ///
    /// # Errors
    /// The worker's refusal; `Fatal`: no worker is left.
    pub(super) fn register(&mut self, wire: &payload::Registration) -> Result<payload::Grant, Status> {
        self.with_worker(|connection| {
            let (limit, mut grant) = (connection.options.request_timeout, payload::StrategyGrant::default());
            let kinds = (kind::STRATEGY_REGISTER, kind::STRATEGY_GRANT);
            connection.live()?.ask(kinds, wire, &mut grant, &mut DoneList::default(), limit)?;
            match grant {
                payload::StrategyGrant::Granted(grant) => {
                    connection.remember_registration(wire.clone());
                    Ok(grant)
                }
                payload::StrategyGrant::Refused { status } => Err(status_of(status).into()),
            }
        })
    }
}
