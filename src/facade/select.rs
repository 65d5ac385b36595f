#![forbid(unsafe_code)]
//! Greedy selection: penalty, then mask, then the largest finite value, the lowest id among equals.
//!
//! # Invariants
//! The token is a function of the row, the penalty and the mask alone. NaN and the infinities are never selected.

use super::mask::TokenMask;

/// The token of a row; none when no allowed value of it is finite. The row is penalised in place.
///
/// A value above 0 is divided by `penalty`, every other one multiplied, once per distinct id. `penalised` has each id once.
pub fn select(row: &mut [f32], penalty: f32, penalised: &[u32], mask: Option<&TokenMask>) -> Option<u32> {
    if penalty != 1.0 {
        for &id in penalised {
            if let Some(value) = row.get_mut(id as usize) {
                *value = if *value > 0.0 { *value / penalty } else { *value * penalty };
            }
        }
    }
    match mask {
        None => largest(row, |_| true),
        Some(mask) => largest(row, |id| mask.bytes().get(id).is_some_and(|&byte| byte != 0)),
    }
}

fn largest(row: &[f32], allowed: impl Fn(usize) -> bool) -> Option<u32> {
    let mut best: Option<(usize, f32)> = None;
    for (id, &value) in row.iter().enumerate() {
        if value.is_finite() && best.is_none_or(|(_, most)| value > most) && allowed(id) {
            best = Some((id, value));
        }
    }
    best.map(|(id, _)| id as u32)
}

/// Keeps the first of each id, in order.
pub(super) fn distinct<'a>(ids: &[u32], kept: &'a mut Vec<u32>) -> &'a [u32] {
    kept.clear();
    for &id in ids {
        if !kept.contains(&id) {
            kept.push(id);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    /// XS-50: once per distinct id, by sign, in the order in which they were first named.
    #[test]
    fn xs_50_penalty_counts_an_id_once() {
        let mut row = [0.0f32; 16];
        (row[11], row[4]) = (2.0, -2.0);
        let mut kept = Vec::new();
        assert_eq!(distinct(&[11, 4, 11], &mut kept), [11, 4]);
        assert_eq!(select(&mut row, 1.3, &kept, None), Some(11));
        assert_eq!((row[11], row[4]), (2.0 / 1.3, -2.0 * 1.3));
        let mut kept_as_it_is = [3.0f32, 1.0];
        assert_eq!(select(&mut kept_as_it_is, 1.0, &[0, 1], None), Some(0));
        assert_eq!(kept_as_it_is, [3.0, 1.0], "a penalty of 1 is none");
    }

    /// XS-49, the selection half.
    #[test]
    fn xs_49_only_finite_values_are_candidates() {
        let nan = f32::NAN;
        assert_eq!(select(&mut [nan, f32::NEG_INFINITY, f32::INFINITY], 1.0, &[], None), None);
        assert_eq!(
            select(&mut [nan, 1.0, 2.0, 2.0, f32::INFINITY], 1.0, &[], None),
            Some(2),
            "the lowest among equals"
        );
        let mask = TokenMask::new([1, 0, 0, 1].as_slice());
        assert_eq!(select(&mut [0.0, 9.0, 8.0, 1.0, 10.0], 1.0, &[], Some(&mask)), Some(3));
        assert_eq!(select(&mut [nan, 9.0, 8.0, f32::NEG_INFINITY], 1.0, &[], Some(&mask)), None);
        assert_eq!(select(&mut [0.0, 9.0], 1.0, &[], Some(&TokenMask::new([].as_slice()))), None);
    }
}
