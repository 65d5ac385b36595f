#![forbid(unsafe_code)]
//! When two ways of computing the same thing agree (E-50 .. E-52).

use crate::record::LaneLogprob;

/// Why two rows disagree.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RowDisagreement {
    /// The rows have different lengths.
    #[error("one row has {left} logits, the other {right}")]
    Length {
        /// Length of the first.
        left: usize,
        /// Length of the second.
        right: usize,
    },
    /// This token has the largest difference, or one that cannot be compared.
    #[error("token {token}: {left} against {right}")]
    Logit {
        /// The token.
        token: u32,
        /// Its logit in the first row.
        left: f32,
        /// Its logit in the second.
        right: f32,
    },
}

/// Whether two rows agree within a tolerance (E-50): equal infinities agree, NaN agrees with nothing.
///
/// # Errors
/// What differs most.
pub fn rows_agree(left: &[f32], right: &[f32], tolerance: f32) -> Result<(), RowDisagreement> {
    if left.len() != right.len() {
        return Err(RowDisagreement::Length { left: left.len(), right: right.len() });
    }
    let mut worst = (0.0, 0);
    for (token, (&a, &b)) in left.iter().zip(right).enumerate() {
        let difference = difference(a, b);
        if difference > worst.0 {
            worst = (difference, token);
        }
    }
    let (difference, token) = worst;
    if difference <= tolerance {
        return Ok(());
    }
    Err(RowDisagreement::Logit { token: token as u32, left: left[token], right: right[token] })
}

/// Infinite where the two cannot be compared.
fn difference(a: f32, b: f32) -> f32 {
    if a == b {
        return 0.0;
    }
    let difference = (a - b).abs();
    if difference.is_nan() { f32::INFINITY } else { difference }
}

/// Why two token lists disagree.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenDisagreement {
    /// They differ where the reference was sure.
    #[error("step {step}: {reference} against {other}, where the reference had a margin of {margin}")]
    Token {
        /// The first step that differs.
        step: usize,
        /// The reference's token.
        reference: u32,
        /// The other's.
        other: u32,
        /// Distance of the reference's two best tokens.
        margin: f32,
    },
    /// One list ends early.
    #[error("the reference has {reference} tokens, the other {other}")]
    Length {
        /// Length of the reference.
        reference: usize,
        /// Length of the other.
        other: usize,
    },
}

/// Whether two token lists agree (E-51): equal, or first different where the reference's two best were within twice the
/// tolerance; what comes after that is ignored. `margins` has one per reference token; a missing one is infinite.
///
/// # Errors
/// Where they part.
pub fn tokens_agree(
    reference: &[u32],
    other: &[u32],
    margins: &[f32],
    tolerance: f32,
) -> Result<(), TokenDisagreement> {
    for (step, (&a, &b)) in reference.iter().zip(other).enumerate() {
        if a == b {
            continue;
        }
        let margin = margins.get(step).copied().unwrap_or(f32::INFINITY);
        if margin <= 2.0 * tolerance {
            return Ok(());
        }
        return Err(TokenDisagreement::Token { step, reference: a, other: b, margin });
    }
    if reference.len() == other.len() {
        return Ok(());
    }
    Err(TokenDisagreement::Length { reference: reference.len(), other: other.len() })
}

/// How far the best token is above the second; infinite when the record has fewer than two (E-52).
pub fn top_margin(record: &LaneLogprob) -> f32 {
    if record.n_top < 2 {
        return f32::INFINITY;
    }
    record.top_logprobs[0] - record.top_logprobs[1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::view::Plain;

    const INF: f32 = f32::INFINITY;
    const NAN: f32 = f32::NAN;

    /// ES-8, E-50.
    #[test]
    fn rows_agree_within_the_tolerance_and_name_the_worst_token() {
        let row = [1.0, 5.0, -2.0];
        assert_eq!(rows_agree(&row, &[1.2, 4.9, -2.1], 0.25), Ok(()));
        let far = rows_agree(&row, &[1.0, 3.0, -2.0], 0.25);
        assert_eq!(far, Err(RowDisagreement::Logit { token: 1, left: 5.0, right: 3.0 }));
        assert_eq!(rows_agree(&row, &row[..2], 0.25), Err(RowDisagreement::Length { left: 3, right: 2 }));
        assert_eq!(rows_agree(&[1.0], &[1.25], 0.25), Ok(()));
    }

    /// ES-9, E-50.
    #[test]
    fn nan_agrees_with_nothing_and_infinities_with_themselves() {
        for (a, b) in [(NAN, 0.0), (0.0, NAN), (NAN, NAN), (-INF, 0.0), (0.0, INF), (-INF, INF)] {
            let result = rows_agree(&[0.0, a], &[0.0, b], 1e30);
            assert!(matches!(result, Err(RowDisagreement::Logit { token: 1, .. })), "{a} {b}: {result:?}");
        }
        assert_eq!(rows_agree(&[-INF, INF], &[-INF, INF], 0.0), Ok(()));
    }

    /// ES-10, E-51.
    #[test]
    fn tokens_may_part_only_where_the_reference_was_unsure() {
        let (reference, other) = ([1, 2, 3], [1, 9, 4]);
        assert_eq!(tokens_agree(&reference, &other, &[9.0, 0.6, 9.0], 0.5), Ok(()));
        let sure = tokens_agree(&reference, &other, &[9.0, 3.0, 9.0], 0.5);
        assert_eq!(sure, Err(TokenDisagreement::Token { step: 1, reference: 2, other: 9, margin: 3.0 }));
        let unknown = tokens_agree(&reference, &other, &[], 0.5);
        assert!(matches!(unknown, Err(TokenDisagreement::Token { margin: INF, .. })));
        let short = tokens_agree(&reference, &[1, 2], &[0.0; 3], 0.5);
        assert_eq!(short, Err(TokenDisagreement::Length { reference: 3, other: 2 }));
        assert_eq!(tokens_agree(&reference, &reference, &[], 0.0), Ok(()));
    }

    /// E-52.
    #[test]
    fn margin_needs_two_alternatives() {
        let mut record = LaneLogprob::zeroed();
        record.top_logprobs[..2].copy_from_slice(&[-0.5, -2.0]);
        assert_eq!(top_margin(&record), INF);
        record.n_top = 1;
        assert_eq!(top_margin(&record), INF);
        record.n_top = 2;
        assert_eq!(top_margin(&record), 1.5);
    }
}
