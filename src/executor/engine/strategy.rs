#![forbid(unsafe_code)]
//! Calls of the host about speculation: registrations, read, checked, granted (R-50 .. R-57).

use core::ffi::c_char;

use crate::executor::Executor;
use crate::record::constant::{artifact_role, strategy_cap};
use crate::record::view::{Memory, Plain};
use crate::record::{
    Array, Artifact, CapabilityReq, ExactnessCert, Status, StrategyGrant, StrategyRegistration, TapSpec,
};
use crate::runtime::Runtime;
use crate::speculate::{
    Certificate, DraftModels, Drafter, Offer, Registration, Registry, Slot, Strategy, VERIFICATION_SHAPE_CLASS,
};

/// The grant of the newest registration, in memory that stays until the next.
#[derive(Default)]
pub(in crate::executor) struct Grant {
    record: Option<StrategyGrant>,
    certificates: Vec<ExactnessCert>,
    /// What the certificates point at, one after the other.
    identities: Vec<[u8; 32]>,
}

impl Grant {
    /// The newest grant.
    pub(super) fn record(&self) -> Option<&StrategyGrant> {
        self.record.as_ref()
    }

    /// The certificates; none before the first grant.
    pub(super) fn certificates(&self) -> &[ExactnessCert] {
        &self.certificates
    }

    /// The samplers of hosts that the certificates name, in their order.
    pub(super) fn identities(&self) -> &[[u8; 32]] {
        &self.identities
    }

    /// The grant of a slot. The arrays point into `self`, whose lists do not change before the next grant.
    fn of(slot: &Slot, reserved_bytes: u64) -> Self {
        let names = slot.certificates().iter().flat_map(|certificate| &certificate.host_identities);
        let identities: Vec<[u8; 32]> = names.copied().collect();
        let mut left = &identities[..];
        let certificates: Vec<_> = slot
            .certificates()
            .iter()
            .map(|certificate| {
                let (names, rest) = left.split_at(certificate.host_identities.len());
                left = rest;
                record(certificate, names)
            })
            .collect();
        let mut record = StrategyGrant::zeroed();
        record.struct_size = size_of::<StrategyGrant>() as u64;
        record.strategy_slot = slot.strategy().slot();
        record.certificates = Array::over(&certificates);
        record.reserved_bytes = reserved_bytes;
        Self { record: Some(record), certificates, identities }
    }
}

impl core::fmt::Debug for Grant {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let slot = self.record.map(|record| record.strategy_slot);
        f.debug_struct("Grant")
            .field("slot", &slot)
            .field("certificates", &self.certificates.len())
            .finish_non_exhaustive()
    }
}

fn record(certificate: &Certificate, names: &[[u8; 32]]) -> ExactnessCert {
    ExactnessCert {
        cert_id: certificate.id,
        exactness: certificate.exactness,
        sampling_modes: certificate.modes,
        grammar_allowed: certificate.grammar.into(),
        logit_bias_allowed: certificate.bias.into(),
        param_domain: certificate.domain,
        verification_shape_class: VERIFICATION_SHAPE_CLASS,
        admissible_host_identities: Array::over(names),
    }
}

/// What a registration's arrays and texts hold.
#[derive(Debug, Default)]
struct Read {
    id: Option<String>,
    capabilities: Vec<u32>,
    config: Vec<u8>,
    host_identities: Vec<[u8; 32]>,
    tap_layers: Vec<u32>,
    target_archs: Vec<String>,
    draft_weights: Option<String>,
}

impl Read {
    fn of(registration: &StrategyRegistration, memory: &dyn Memory) -> Result<Self, Status> {
        let mut read = Self { id: text(registration.strategy_id, memory), ..Self::default() };
        for artifact in registration.artifacts.elements_within::<Artifact>(memory)? {
            if artifact.role == artifact_role::DRAFT_WEIGHTS {
                read.draft_weights = text(artifact.load_path, memory);
            }
        }
        read.tap_layers.extend(registration.taps.elements_within::<TapSpec>(memory)?.map(|tap| tap.layer));
        for capability in registration.capabilities.elements_within::<CapabilityReq>(memory)? {
            read.capabilities.push(capability.kind_id);
            // The names of host samplers are the only parameters that are no text.
            match capability.kind_id {
                strategy_cap::HOST_COMPATIBLE => {
                    read.host_identities.extend(capability.params.elements_within::<[u8; 32]>(memory)?);
                }
                _ => read.config.extend(capability.params.elements_within::<u8>(memory)?),
            }
        }
        for address in registration.target_archs.elements_within::<u64>(memory)? {
            let pointer = usize::try_from(address).map_or(core::ptr::null(), core::ptr::with_exposed_provenance);
            read.target_archs.push(text(pointer, memory).unwrap_or_default());
        }
        Ok(read)
    }
}

/// A C string; none when it is NULL, outside the memory, or not UTF-8.
fn text(pointer: *const c_char, memory: &dyn Memory) -> Option<String> {
    memory.text(pointer).and_then(|bytes| core::str::from_utf8(bytes).ok()).map(str::to_owned)
}

impl<R: Runtime> Executor<R> {
    /// Lets `draft-model` be registered, with models that `models` opens.
    pub fn with_draft_models(mut self, models: Box<dyn DraftModels>) -> Self {
        self.draft_models = Some(models);
        self
    }

    /// Checks the registration, and only then takes it in.
    ///
    /// # Errors
    /// The status, and why in words where there is more to say.
    pub(super) fn register_strategy(
        &mut self,
        registration: &StrategyRegistration,
        memory: &dyn Memory,
    ) -> Result<(), (Status, Option<String>)> {
        let refused = |reason: String| (Status::RegistrationRefused, Some(reason));
        let read = Read::of(registration, memory).map_err(|status| (status, None))?;
        let config = String::from_utf8_lossy(&read.config);
        let archs: Vec<&str> = read.target_archs.iter().map(String::as_str).collect();
        let wanted = Registration {
            id: read.id.as_deref(),
            hashes: (registration.impl_hash, registration.config_hash),
            capabilities: &read.capabilities,
            config: &config,
            host_identities: &read.host_identities,
            tap_layers: &read.tap_layers,
            target_archs: &archs,
            kernel_caps: registration.kernel_caps_required,
            draft_weights: read.draft_weights.is_some(),
        };
        let descriptor = &self.state.descriptor;
        let offer = Offer {
            verify_rows: descriptor.verify_rows,
            truncate_partial: descriptor.truncate_partial,
            layers: descriptor.workloads.layers,
            architecture: &descriptor.architecture,
            kernel_caps: 0,
        };
        let strategy = Registry::check(&wanted, &offer).map_err(|refusal| refused(refusal.to_string()))?;
        if strategy == Strategy::DraftModel {
            let none = "this engine opens no draft models";
            let path = read.draft_weights.as_deref().unwrap_or_default();
            let models = self.draft_models.as_mut().ok_or_else(|| refused(none.to_owned()))?;
            let drafter = models.open(path).map_err(|error| refused(error.to_string()))?;
            self.state.speculation.set_drafter(drafter);
        }
        let drafter_bytes = self.state.speculation.drafter().map_or(0, Drafter::reserved_bytes);
        let reserved_bytes = if strategy == Strategy::DraftModel { drafter_bytes } else { 0 };
        let slot = self.state.speculation.register(|registry| registry.register(strategy, &wanted));
        self.grant = Grant::of(slot.ok_or((Status::RegistrationRefused, None))?, reserved_bytes);
        Ok(())
    }
}
