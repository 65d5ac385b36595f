#![forbid(unsafe_code)]
//! Registered strategies, and the certificates that lanes are admitted under (R-50 .. R-57).
//!
//! Each strategy has a slot of its own. Registering it again keeps the slot and replaces the configuration for lanes admitted
//! later. Hashes say which code and which configuration a certificate speaks of: the pair that came first is the one
//! that is certified, and a registration with another pair is granted its slot without certificates.
//!
//! # Invariants
//! - A refused registration changes nothing.

use super::Config;
use super::certificate::{self, Admission, Applicant, Certificate};
use crate::record::constant::strategy_cap;

/// Strategies that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Drafts repeat the lane's own text.
    PromptLookup,
    /// A second, smaller model drafts.
    DraftModel,
}

impl Strategy {
    /// All of them; the slot of each is its place, counted from 1.
    const ALL: [Self; 2] = [Self::PromptLookup, Self::DraftModel];

    /// Its id in a registration.
    pub const fn id(self) -> &'static str {
        match self {
            Self::PromptLookup => "prompt-lookup",
            Self::DraftModel => "draft-model",
        }
    }

    /// Its slot, which admits name.
    pub const fn slot(self) -> u32 {
        match self {
            Self::PromptLookup => 1,
            Self::DraftModel => 2,
        }
    }

    fn by_id(id: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|strategy| strategy.id() == id)
    }
}

/// Which code and which configuration a registration speaks of.
pub type Hashes = ([u8; 32], [u8; 32]);

/// What an engine can do for a strategy.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// A feed may want every row.
    pub verify_rows: bool,
    /// Sequences can be cut at any length.
    pub truncate_partial: bool,
    /// Layers that a tap can name; 0 offers none.
    pub layers: u32,
    /// Architecture of the model.
    pub architecture: &'a str,
    /// Kernel capabilities.
    pub kernel_caps: u32,
}

/// A registration as it was read.
#[derive(Clone, Debug, Default)]
pub struct Registration<'a> {
    /// The strategy; none when it was not named.
    pub id: Option<&'a str>,
    /// Of implementation and configuration.
    pub hashes: Hashes,
    /// Kinds of the capabilities (`STRATEGY_CAP_*`).
    pub capabilities: &'a [u32],
    /// The configuration text.
    pub config: &'a str,
    /// Samplers of hosts that HOST lanes may name.
    pub host_identities: &'a [[u8; 32]],
    /// Layers of the taps.
    pub tap_layers: &'a [u32],
    /// Architectures that the strategy is made for; none is any.
    pub target_archs: &'a [&'a str],
    /// Kernel capabilities that it needs.
    pub kernel_caps: u32,
    /// Whether a draft model came with it.
    pub draft_weights: bool,
}

/// Why a registration is refused. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The runtime cannot answer one row per fed token.
    #[error("the runtime does not verify drafts")]
    NoRows,
    /// The runtime cannot take rejected tokens back.
    #[error("the runtime cuts state only at its head")]
    HeadOnly,
    /// No strategy is named, or none that is known.
    #[error("no strategy of this name")]
    UnknownStrategy,
    /// Kernels are needed that are not there.
    #[error("kernel capabilities {missing:#x} are not offered")]
    KernelCaps {
        /// The bits that are not offered.
        missing: u32,
    },
    /// The strategy is made for other architectures.
    #[error("made for other architectures")]
    ForeignArchitecture,
    /// A capability is not offered, or not known.
    #[error("capability {kind} is not offered")]
    Capability {
        /// `STRATEGY_CAP_*`.
        kind: u32,
    },
    /// A tap names a layer that is not there.
    #[error("there is no layer {layer} to tap")]
    Tap {
        /// The layer.
        layer: u32,
    },
    /// The strategy needs a draft model, and none came with the registration.
    #[error("no draft weights among the artifacts")]
    NoDraftWeights,
}

/// A registered strategy.
#[derive(Clone, Debug)]
pub struct Slot {
    strategy: Strategy,
    config: Config,
    certificates: Vec<Certificate>,
    /// The pair that is certified.
    certified: Hashes,
    host_compatible: bool,
}

impl Slot {
    /// What was registered.
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// The configuration of lanes admitted from now on.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What it is certified for.
    pub fn certificates(&self) -> &[Certificate] {
        &self.certificates
    }

    /// Whether HOST lanes may name it.
    pub fn host_compatible(&self) -> bool {
        self.host_compatible
    }

    /// Under which certificate a lane is admitted.
    pub fn choose(&self, applicant: &Applicant<'_>) -> Admission {
        certificate::choose(&self.certificates, applicant)
    }
}

/// The registered strategies of an engine.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    slots: [Option<Slot>; Strategy::ALL.len()],
}

impl Registry {
    /// Checks a registration without taking it in.
    ///
    /// # Errors
    /// The first [`Refusal`].
    pub fn check(registration: &Registration<'_>, offer: &Offer<'_>) -> Result<Strategy, Refusal> {
        if !offer.verify_rows {
            return Err(Refusal::NoRows);
        }
        if !offer.truncate_partial {
            return Err(Refusal::HeadOnly);
        }
        let strategy = registration.id.and_then(Strategy::by_id).ok_or(Refusal::UnknownStrategy)?;
        let missing = registration.kernel_caps & !offer.kernel_caps;
        if missing != 0 {
            return Err(Refusal::KernelCaps { missing });
        }
        let archs = registration.target_archs;
        if !archs.is_empty() && !archs.contains(&offer.architecture) {
            return Err(Refusal::ForeignArchitecture);
        }
        let offered = [strategy_cap::PROPOSAL_LINEAR, strategy_cap::HOST_COMPATIBLE];
        if let Some(&kind) = registration.capabilities.iter().find(|kind| !offered.contains(kind)) {
            return Err(Refusal::Capability { kind });
        }
        if let Some(&layer) = registration.tap_layers.iter().find(|&&layer| layer >= offer.layers) {
            return Err(Refusal::Tap { layer });
        }
        if strategy == Strategy::DraftModel && !registration.draft_weights {
            return Err(Refusal::NoDraftWeights);
        }
        Ok(strategy)
    }

    /// Takes in a registration that was checked, and gives its slot (R-51 .. ).
    pub fn register(&mut self, strategy: Strategy, registration: &Registration<'_>) -> Option<&Slot> {
        let place = self.slots.get_mut(strategy.slot() as usize - 1)?;
        let certified = place.as_ref().map_or(registration.hashes, |slot| slot.certified);
        let config = Config::parse(registration.config);
        let host_compatible = registration.capabilities.contains(&strategy_cap::HOST_COMPATIBLE);
        let certificates = match certified == registration.hashes {
            true => certificate::certificates(&config, host_compatible, registration.host_identities),
            false => Vec::new(),
        };
        Some(place.insert(Slot { strategy, config, certificates, certified, host_compatible }))
    }

    /// The strategy in a slot that was granted (T-30, R-54).
    pub fn slot(&self, slot: u32) -> Option<&Slot> {
        self.slots.get(slot.checked_sub(1)? as usize)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::constant::{cert_domain, cert_mode, exactness};

    const OFFER: Offer<'_> =
        Offer { verify_rows: true, truncate_partial: true, layers: 4, architecture: "llama", kernel_caps: 0b100 };
    const LINEAR: &[u32] = &[strategy_cap::PROPOSAL_LINEAR];

    fn lookup() -> Registration<'static> {
        Registration { id: Some("prompt-lookup"), capabilities: LINEAR, ..Registration::default() }
    }

    fn registered(registration: &Registration<'_>) -> Slot {
        let mut registry = Registry::default();
        let strategy = Registry::check(registration, &OFFER).expect("the registration is good");
        registry.register(strategy, registration).expect("every strategy has a slot").clone()
    }

    /// what the engine cannot do is refused, each for its reason.
    #[test]
    fn registration_is_refused_for_what_is_not_offered() {
        let refused = |registration: Registration<'_>, offer: &Offer<'_>| Registry::check(&registration, offer).err();
        assert_eq!(refused(lookup(), &OFFER), None);
        assert_eq!(refused(lookup(), &Offer { verify_rows: false, ..OFFER }), Some(Refusal::NoRows));
        assert_eq!(refused(lookup(), &Offer { truncate_partial: false, ..OFFER }), Some(Refusal::HeadOnly));
        for id in [None, Some("prompt-lookup-2"), Some("")] {
            assert_eq!(refused(Registration { id, ..lookup() }, &OFFER), Some(Refusal::UnknownStrategy));
        }
        let caps = |kernel_caps| Registration { kernel_caps, ..lookup() };
        assert_eq!(refused(caps(0b101), &OFFER), Some(Refusal::KernelCaps { missing: 1 }));
        assert_eq!(refused(caps(0b100), &OFFER), None);
        let archs = |target_archs| Registration { target_archs, ..lookup() };
        assert_eq!(refused(archs(&["gemma3", "qwen2"]), &OFFER), Some(Refusal::ForeignArchitecture));
        assert_eq!(refused(archs(&["gemma3", "llama"]), &OFFER), None);
        for kind in [0, 2, 3, 4, 6, 99] {
            let capabilities = [1, kind];
            let registration = Registration { capabilities: &capabilities, ..lookup() };
            assert_eq!(refused(registration, &OFFER), Some(Refusal::Capability { kind }));
        }
        let taps = |tap_layers| Registration { tap_layers, ..lookup() };
        assert_eq!(refused(taps(&[3, 4]), &OFFER), Some(Refusal::Tap { layer: 4 }));
        assert_eq!(refused(taps(&[3]), &OFFER), None);
        let draft = Registration { id: Some("draft-model"), ..lookup() };
        assert_eq!(refused(draft.clone(), &OFFER), Some(Refusal::NoDraftWeights));
        assert_eq!(refused(Registration { draft_weights: true, ..draft }, &OFFER), None);
    }

    ///
    #[test]
    fn prompt_lookup_is_granted_one_certificate() {
        let slot = registered(&lookup());
        let expected = Certificate {
            id: 1,
            exactness: exactness::DISTRIBUTION_EXACT,
            modes: cert_mode::GREEDY | cert_mode::GUMBEL,
            grammar: false,
            bias: false,
            domain: cert_domain::ANY,
            host_identities: Vec::new(),
        };
        assert_eq!(slot.certificates(), std::slice::from_ref(&expected));
        assert_eq!(slot.strategy().slot(), 1);
        let shaped = registered(&Registration { config: "shaped=1", ..lookup() });
        assert_eq!(shaped.certificates(), [Certificate { grammar: true, bias: true, ..expected }]);
    }

    /// one slot per strategy, kept; the configuration is the last one.
    #[test]
    fn registering_again_keeps_the_slot_and_replaces_the_configuration() {
        let mut registry = Registry::default();
        for slot in [0, 1, 2, 3, u32::MAX] {
            assert!(registry.slot(slot).is_none(), "R-54");
        }
        for (text, max_draft) in [("max_draft=2", 2), ("max_draft=6", 6)] {
            let registration = Registration { config: text, ..lookup() };
            registry.register(Strategy::PromptLookup, &registration);
            assert_eq!(registry.slot(1).map(|slot| slot.config().max_draft), Some(max_draft));
            assert_eq!(registry.slot(1).map(|slot| slot.certificates().len()), Some(1));
        }
        registry.register(Strategy::DraftModel, &Registration { id: Some("draft-model"), ..lookup() });
        assert_eq!(registry.slot(2).map(Slot::strategy), Some(Strategy::DraftModel));
        assert_eq!(registry.slot(1).map(|slot| slot.config().max_draft), Some(6), "the other slot is as it was");
    }

    /// only the pair that came first is certified.
    #[test]
    fn other_hashes_are_granted_without_certificates() {
        let mut registry = Registry::default();
        let with = |implementation, config| Registration { hashes: ([implementation; 32], [config; 32]), ..lookup() };
        let mut certificates = |registration: Registration<'_>| {
            registry.register(Strategy::PromptLookup, &registration).map(|slot| slot.certificates().len())
        };
        assert_eq!(certificates(with(1, 1)), Some(1));
        assert_eq!(certificates(with(1, 2)), Some(0));
        assert_eq!(certificates(with(2, 1)), Some(0));
        assert_eq!(certificates(with(1, 1)), Some(1), "the first pair stays the certified one");
    }
}
