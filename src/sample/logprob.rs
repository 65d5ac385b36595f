#![forbid(unsafe_code)]
//! Log-probabilities of a picked token and of the best alternatives (T-122).
//!
//! One normaliser serves every path: the sum of the weights in the order of T-121, whose logarithm is taken in f64.

use super::draw::{maximum, weight_sum};
use crate::record::constant::misc::MAX_TOP_LOGPROBS;

/// The log-probability of a picked token (T-122).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logprobs {
    /// Natural logarithm of the probability of the token.
    pub logprob: f32,
    /// Number of alternatives.
    pub n_top: u32,
    /// Their ids, best first; 0 past `n_top`.
    pub top_ids: [u32; MAX_TOP_LOGPROBS],
    /// Their log-probabilities, descending; 0.0 past `n_top`.
    pub top_logprobs: [f32; MAX_TOP_LOGPROBS],
}

/// The log-probability of `token` under a shaped row, and the `k` best tokens, at most 20 (T-122).
///
/// Ties go to the lower id. A token without mass has minus infinity; a NaN counts as one. A token past the row has minus
/// infinity too.
pub fn logprobs(row: &[f32], token: u32, k: u32) -> Logprobs {
    logprobs_below(row, maximum(row), token, k)
}

/// As [`logprobs`], of a row whose maximum is known.
pub(super) fn logprobs_below(row: &[f32], best: f32, token: u32, k: u32) -> Logprobs {
    let mut top = [(0u32, 0.0f32); MAX_TOP_LOGPROBS];
    let n_top = best_of(row, &mut top[..(k as usize).min(MAX_TOP_LOGPROBS)]);
    let chosen = row.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
    LogprobParts { best, weight_sum: weight_sum(row, best), chosen }.record(top[..n_top].iter().copied())
}

/// What the log-probabilities of a shaped row are made of, for a row that lies elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct LogprobParts {
    /// The largest logit that is a number; minus infinity when there is none.
    pub best: f32,
    /// The sum of the weights against it, in the order of T-121.
    pub weight_sum: f32,
    /// The logit of the token; minus infinity for one past the row.
    pub chosen: f32,
}

impl LogprobParts {
    /// The record, with these alternatives and their logits, best first; more than 20 are left out.
    pub fn record(&self, top: impl Iterator<Item = (u32, f32)>) -> Logprobs {
        let log_sum_exp = f64::from(self.best) + f64::from(self.weight_sum).ln();
        let logprob = |logit: f32| {
            if log_sum_exp.is_finite() && !logit.is_nan() {
                // No probability is above 1, whatever the rounding says.
                (f64::from(logit) - log_sum_exp).min(0.0) as f32
            } else if logit == f32::INFINITY {
                0.0
            } else {
                f32::NEG_INFINITY
            }
        };
        let mut record = Logprobs {
            logprob: logprob(self.chosen),
            n_top: 0,
            top_ids: [0; MAX_TOP_LOGPROBS],
            top_logprobs: [0.0; MAX_TOP_LOGPROBS],
        };
        for ((id, logit), (own_id, own)) in top.zip(record.top_ids.iter_mut().zip(&mut record.top_logprobs)) {
            (*own_id, *own) = (id, logprob(logit));
            record.n_top += 1;
        }
        record
    }
}

/// Fills `top` with the best tokens of the row and their logits, best first; answers how many there are.
fn best_of(row: &[f32], top: &mut [(u32, f32)]) -> usize {
    const BLOCK: usize = 64;
    let mut count = 0;
    for (block, first) in row.chunks(BLOCK).zip((0u32..).step_by(BLOCK)) {
        // A later token with an equal logit ranks below, so once the list is full only a larger one enters it.
        let worst = if count < top.len() { None } else { top.last().map(|&(_, worst)| worst) };
        let enters = worst.is_none_or(|worst| block.iter().fold(false, |any, &logit| any | (logit > worst)));
        if top.is_empty() || !enters {
            continue;
        }
        for (&logit, id) in block.iter().zip(first..) {
            count = insert(top, count, id, logit);
        }
    }
    count
}

/// Puts one token where it belongs among the first `count`, if it belongs there; answers how many there are now.
fn insert(top: &mut [(u32, f32)], count: usize, id: u32, logit: f32) -> usize {
    let full = count == top.len();
    if logit.is_nan() || (full && top.last().is_none_or(|&(_, worst)| logit <= worst)) {
        return count;
    }
    let place = top[..count].partition_point(|&(_, better)| better >= logit);
    let count = count + usize::from(!full);
    top[place..count].rotate_right(1);
    top[place] = (id, logit);
    count
}
