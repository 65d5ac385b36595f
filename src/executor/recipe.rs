#![forbid(unsafe_code)]
//! How a lane picks its tokens: the sampling part of its admit, made ready once.
//!
//! # Not here
//! The picking itself: `crate::sample`. What a row is checked for first: `evaluate.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::record::constant::misc::MAX_TOP_LOGPROBS;
use crate::record::constant::{sampling, sampling_flag};
use crate::record::{LaneAdmit, SamplingParams};
use crate::sample::{Penalty, SampleRequest};

/// Committed tokens that the penalties look at (T-113).
pub(super) const PENALTY_WINDOW: usize = 64;

/// A token id and its addend.
pub(super) type Bias = Arc<[(u32, f32)]>;

/// Who picks the tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Picker {
    /// The best logit.
    #[default]
    Greedy,
    /// A draw at a temperature above 0.
    Draw,
    /// The host, from the raw row.
    Host,
}

/// Strengths of the penalties that are on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Strengths {
    repeat: f32,
    presence: f32,
    frequency: f32,
}

/// The sampling choices of one lane.
#[derive(Clone, Debug, Default)]
pub(super) struct Recipe {
    /// Who picks.
    pub(super) picker: Picker,
    /// The parameters as they were sent.
    pub(super) params: SamplingKnobs,
    /// Position of the first draw.
    pub(super) rng_base: u64,
    /// Addends, copied at admission: freeing the handle later does not touch the lane (E-12).
    pub(super) bias: Option<Bias>,
    /// Alternatives wanted beside each log-probability; none wants no log-probabilities.
    pub(super) logprobs: Option<u32>,
    /// Whether an end token is a token like any other.
    pub(super) ignore_eos: bool,
}

/// Filters and penalties.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SamplingKnobs {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    penalties: Option<Strengths>,
}

impl From<&SamplingParams> for SamplingKnobs {
    fn from(params: &SamplingParams) -> Self {
        let repeat = if params.repeat_penalty == 0.0 { 1.0 } else { params.repeat_penalty };
        let strengths = Strengths { repeat, presence: params.presence_penalty, frequency: params.freq_penalty };
        let off = Strengths { repeat: 1.0, presence: 0.0, frequency: 0.0 };
        Self {
            temperature: params.temperature,
            top_k: params.top_k,
            top_p: params.top_p,
            min_p: params.min_p,
            penalties: (strengths != off).then_some(strengths),
        }
    }
}

impl Recipe {
    /// The recipe of an admit, with the bias that its handle names.
    pub(super) fn new(admit: &LaneAdmit, bias: Option<Bias>) -> Self {
        let picker = match admit.sampling {
            sampling::HOST => Picker::Host,
            sampling::GPU_GUMBEL if admit.params.temperature > 0.0 => Picker::Draw,
            _ => Picker::Greedy,
        };
        Self {
            picker,
            params: SamplingKnobs::from(&admit.params),
            rng_base: admit.rng_counter_base,
            bias: bias.filter(|bias| !bias.is_empty()),
            logprobs: admit.want_logprobs.checked_sub(1).map(|k| u32::from(k).min(MAX_TOP_LOGPROBS as u32)),
            ignore_eos: admit.params.flags & sampling_flag::IGNORE_EOS != 0,
        }
    }

    /// Whether the host picks.
    pub(super) fn is_host(&self) -> bool {
        self.picker == Picker::Host
    }

    /// Whether its requests look at no token: the runtime can be given one before the tokens in front of it are known.
    pub(super) fn is_blind(&self) -> bool {
        !self.is_host() && self.params.penalties.is_none()
    }

    /// The request for the token after `committed`, drawn at `position`; ids in `exempt` are not penalised (T-114).
    pub(super) fn request<'a>(&'a self, committed: &'a [u32], position: u64, exempt: &'a [u32]) -> SampleRequest<'a> {
        let window = committed.get(committed.len().saturating_sub(PENALTY_WINDOW)..).unwrap_or_default();
        let knobs = &self.params;
        SampleRequest {
            temperature: if self.picker == Picker::Draw { knobs.temperature } else { 0.0 },
            top_k: knobs.top_k,
            top_p: knobs.top_p,
            min_p: knobs.min_p,
            position,
            bias: self.bias.as_deref().unwrap_or_default(),
            penalty: knobs.penalties.map(|on| Penalty {
                repeat: on.repeat,
                presence: on.presence,
                frequency: on.frequency,
                window,
                exempt,
            }),
            mask: None,
            logprobs: self.logprobs,
        }
    }
}

/// The bias lists that the host keeps here, by handle.
#[derive(Clone, Debug, Default)]
pub(super) struct BiasLists {
    lists: BTreeMap<u32, Bias>,
    last_handle: u32,
}

impl BiasLists {
    /// Keeps a list, without the ids outside the vocabulary; none when the handles are used up (E-12).
    pub(super) fn create(&mut self, tokens: &[i32], addends: &[f32], vocab_size: u32) -> Option<u32> {
        let handle = self.last_handle.checked_add(1)?;
        let entries = tokens.iter().zip(addends);
        let inside = entries.filter_map(|(&token, &addend)| {
            let token = u32::try_from(token).ok().filter(|&token| token < vocab_size)?;
            Some((token, addend))
        });
        self.lists.insert(handle, inside.collect());
        self.last_handle = handle;
        Some(handle)
    }

    /// Forgets a list; false when there is none with this handle.
    pub(super) fn free(&mut self, handle: u32) -> bool {
        self.lists.remove(&handle).is_some()
    }

    /// The list with this handle.
    pub(super) fn get(&self, handle: u32) -> Option<&Bias> {
        self.lists.get(&handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::view::Plain;

    fn admit(change: impl FnOnce(&mut LaneAdmit)) -> Recipe {
        let mut admit = LaneAdmit::zeroed();
        change(&mut admit);
        Recipe::new(&admit, None)
    }

    #[test]
    fn mode_and_temperature_decide_who_picks() {
        assert_eq!(
            admit(|a| a.params.temperature = 0.9).picker,
            Picker::Greedy,
            "greedy whatever the temperature (T-115)"
        );
        assert_eq!(admit(|a| a.sampling = sampling::GPU_GUMBEL).picker, Picker::Greedy);
        let drawn = |temperature| {
            admit(|a| {
                a.sampling = sampling::GPU_GUMBEL;
                a.params.temperature = temperature;
            })
        };
        assert_eq!(drawn(0.5).picker, Picker::Draw);
        assert_eq!(drawn(f32::NAN).picker, Picker::Greedy);
        assert_eq!(admit(|a| a.sampling = sampling::HOST).picker, Picker::Host);
    }

    #[test]
    fn penalties_are_off_at_their_neutral_values_and_see_the_last_64_tokens() {
        assert!(admit(|_| {}).request(&[1], 0, &[]).penalty.is_none(), "repeat 0 means 1 (T-113)");
        assert!(admit(|a| a.params.repeat_penalty = 1.0).request(&[1], 0, &[]).penalty.is_none());
        let recipe = admit(|a| a.params.freq_penalty = 0.5);
        let tokens: Vec<u32> = (0..100).collect();
        let window = recipe.request(&tokens, 0, &[]).penalty.map(|penalty| penalty.window);
        assert_eq!(window, tokens.get(36..));
    }

    #[test]
    fn wanted_logprobs_count_from_one_and_stop_at_twenty() {
        let wanted = |want| admit(|a| a.want_logprobs = want).logprobs;
        assert_eq!([0, 1, 4, 25, 255].map(wanted), [None, Some(0), Some(3), Some(20), Some(20)], "T-122");
    }

    #[test]
    fn bias_handles_ascend_and_drop_ids_outside_the_vocabulary() {
        let mut lists = BiasLists::default();
        assert_eq!(lists.create(&[5, -1, 10, 5], &[1.0, 2.0, 3.0, 4.0, 9.0], 10), Some(1));
        assert_eq!(lists.get(1).map(|list| list.to_vec()), Some(vec![(5, 1.0), (5, 4.0)]), "E-12");
        assert!(lists.free(1) && !lists.free(1));
        assert_eq!(lists.create(&[], &[], 10), Some(2), "handles are never reused");
    }
}
