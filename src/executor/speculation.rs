#![forbid(unsafe_code)]
//! What an executor keeps of speculation: the strategies, the gate, and the model that drafts.

use crate::record::LaneAdmit;
use crate::record::constant::sampling;
use crate::speculate::{Admission, Applicant, Ask, Config, Drafter, Gate, Registry, Slot};

/// Speculation of one engine.
#[derive(Debug)]
pub(super) struct Speculation {
    registry: Registry,
    gate: Gate,
    drafter: Option<Box<dyn Drafter>>,
}

impl Speculation {
    /// No strategy is registered.
    pub(super) fn none() -> Self {
        Self { registry: Registry::default(), gate: Gate::new(Config::default()), drafter: None }
    }

    /// The strategies.
    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The strategies, to take one in; the gate starts over with the configuration of the newest.
    pub(super) fn register(&mut self, with: impl FnOnce(&mut Registry) -> Option<&Slot>) -> Option<&Slot> {
        let slot = with(&mut self.registry)?;
        self.gate = Gate::new(*slot.config());
        Some(slot)
    }

    /// Whether ticks gain from drafts.
    pub(super) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The gate, to be told of a tick.
    pub(super) fn gate_mut(&mut self) -> &mut Gate {
        &mut self.gate
    }

    /// Makes `drafter` the model that drafts, in place of the one before.
    pub(super) fn set_drafter(&mut self, drafter: Box<dyn Drafter>) {
        self.drafter = Some(drafter);
    }

    /// The model that drafts.
    pub(super) fn drafter(&self) -> Option<&dyn Drafter> {
        self.drafter.as_deref()
    }

    /// Lets the drafter answer.
    pub(super) fn propose(&mut self, asks: &mut [Ask<'_>]) {
        if let Some(drafter) = &mut self.drafter
            && !asks.is_empty()
        {
            drafter.propose(asks);
        }
    }

    /// Frees what the drafter keeps for lanes that are gone, by their sequences.
    pub(super) fn forget(&mut self, sequences: impl Iterator<Item = u64>) {
        for sequence in sequences {
            if let Some(drafter) = &mut self.drafter {
                drafter.forget(sequence);
            }
        }
    }

    /// How an admit that names the strategy in `slot` fares.
    pub(super) fn admission(slot: &Slot, admit: &LaneAdmit) -> Admission {
        let params = &admit.params;
        let repeats = params.repeat_penalty != 0.0 && params.repeat_penalty != 1.0;
        slot.choose(&Applicant {
            sampling: admit.sampling,
            greedy: admit.sampling == sampling::GPU_GREEDY || params.temperature <= 0.0,
            penalised: repeats || params.presence_penalty != 0.0 || params.freq_penalty != 0.0,
            grammar: admit.grammar_handle != 0,
            minimum_exactness: admit.minimum_exactness,
            allow_approximate: admit.allow_approximate != 0,
            required_cert_id: admit.required_cert_id,
            host_identity: &admit.host_sampler_identity,
        })
    }
}
