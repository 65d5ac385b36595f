#![forbid(unsafe_code)]
//! Penalties for tokens that came lately (T-113, T-114).

use crate::record::SamplingParams;

/// Committed tokens that penalties look back on.
pub const PENALTY_WINDOW: usize = 64;

/// Penalties of one lane (T-113).
#[derive(Clone, Copy, Debug)]
pub struct Penalty<'a> {
    /// Divides positive and multiplies other logits; 1.0 is off.
    pub repeat: f32,
    /// Subtracted once per distinct token.
    pub presence: f32,
    /// Subtracted per occurrence.
    pub frequency: f32,
    /// The lane's tokens so far; the last [`PENALTY_WINDOW`] count.
    pub window: &'a [u32],
    /// Ids that are never penalised, ascending (T-114).
    pub exempt: &'a [u32],
}

impl<'a> Penalty<'a> {
    /// Whether the parameters penalise anything: a repeat penalty of 0 means 1, which is off (T-113).
    pub fn is_on(params: &SamplingParams) -> bool {
        repeat(params) != 1.0 || params.presence_penalty != 0.0 || params.freq_penalty != 0.0
    }

    /// The penalties that `params` ask for; none when they are off.
    pub fn of(params: &SamplingParams, window: &'a [u32], exempt: &'a [u32]) -> Option<Self> {
        Self::is_on(params).then_some(Self {
            repeat: repeat(params),
            presence: params.presence_penalty,
            frequency: params.freq_penalty,
            window,
            exempt,
        })
    }

    /// Calls `f` with each distinct id of the window that is not exempt, ascending, and how often it is there.
    pub fn each(&self, mut f: impl FnMut(u32, u32)) {
        let start = self.window.len().saturating_sub(PENALTY_WINDOW);
        let mut sorted = [0u32; PENALTY_WINDOW];
        let recent = &self.window[start..];
        let sorted = &mut sorted[..recent.len()];
        sorted.copy_from_slice(recent);
        sorted.sort_unstable();
        for run in sorted.chunk_by(|a, b| a == b) {
            if self.exempt.binary_search(&run[0]).is_err() {
                f(run[0], run.len() as u32);
            }
        }
    }

    /// Applies them to a row; ids past the row are ignored.
    pub fn apply(&self, row: &mut [f32]) {
        self.each(|id, count| {
            let Some(logit) = row.get_mut(id as usize) else { return };
            if self.repeat != 1.0 {
                *logit = if *logit > 0.0 { *logit / self.repeat } else { *logit * self.repeat };
            }
            *logit -= self.presence + self.frequency * count as f32;
        });
    }
}

fn repeat(params: &SamplingParams) -> f32 {
    if params.repeat_penalty == 0.0 { 1.0 } else { params.repeat_penalty }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::view::Plain;

    const PENALTY: Penalty<'_> = Penalty { repeat: 2.0, presence: 0.25, frequency: 0.5, window: &[], exempt: &[] };

    /// T-113: positive logits are divided, the others multiplied; presence counts once, frequency per occurrence.
    #[test]
    fn seen_tokens_lose_by_sign_and_count() {
        let mut row = [4.0, -4.0, 0.0, 4.0];
        Penalty { window: &[0, 1, 1, 2, 2, 2], ..PENALTY }.apply(&mut row);
        assert_eq!(row, [2.0 - 0.75, -8.0 - 1.25, 0.0 - 1.75, 4.0]);
    }

    /// T-113: only the last 64 tokens count.
    #[test]
    fn token_older_than_the_window_is_untouched() {
        let mut window = vec![1];
        window.extend([0; PENALTY_WINDOW]);
        let mut row = [0.0, 8.0];
        Penalty { window: &window, ..PENALTY }.apply(&mut row);
        assert_eq!(row, [-32.25, 8.0]);
        Penalty { window: &window[..PENALTY_WINDOW], ..PENALTY }.apply(&mut row);
        assert_eq!(row[1], 8.0 / 2.0 - 0.75);
    }

    /// T-114.
    #[test]
    fn exempt_and_foreign_ids_are_untouched() {
        let mut row = [4.0, 4.0];
        Penalty { window: &[0, 1, 77], exempt: &[1, 5], ..PENALTY }.apply(&mut row);
        assert_eq!(row, [1.25, 4.0]);
    }

    /// T-113: off altogether when repeat is 1, or 0 which means 1, and the others are 0.
    #[test]
    fn neutral_parameters_are_off() {
        let mut params = SamplingParams::zeroed();
        assert!(Penalty::of(&params, &[1], &[]).is_none());
        params.repeat_penalty = 1.0;
        assert!(Penalty::of(&params, &[1], &[]).is_none());
        params.freq_penalty = 0.5;
        assert_eq!(Penalty::of(&params, &[1], &[]).map(|penalty| penalty.repeat), Some(1.0));
        params.repeat_penalty = 0.0;
        assert_eq!(Penalty::of(&params, &[1], &[]).map(|penalty| penalty.repeat), Some(1.0));
    }
}
