#![forbid(unsafe_code)]
//! What is done to a row before a token is looked for: the soundness check, the mask and the bias.
//!
//! # Invariants
//! A model's own row is finite: minus infinity enters a row through a mask or a bias only. So an infinity that the model
//! wrote is an overflow like any other, and its lane faults.

/// Whether every logit is finite. A row that is not is the fault of its lane, whatever is asked of it.
pub fn row_is_finite(row: &[f32]) -> bool {
    // The exponent of NaN and of the infinities is all ones. Folding a block at a time keeps the loop free of branches.
    const EXPONENT: u32 = 0x7F80_0000;
    row.chunks(256).all(|block| block.iter().map(|x| x.to_bits() & EXPONENT).fold(0, u32::max) != EXPONENT)
}

/// Sets every logit to minus infinity that `mask` does not allow; answers whether one is left.
///
/// One bit per id, lowest bit first; ids past the end of `mask` are not allowed.
pub fn apply_mask(row: &mut [f32], mask: &[u32]) -> bool {
    let mut any = false;
    let words = mask.iter().copied().chain(core::iter::repeat(0));
    for (block, word) in row.chunks_mut(32).zip(words) {
        if word == u32::MAX {
            any = true;
            continue;
        }
        for (bit, logit) in block.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            } else {
                any = true;
            }
        }
    }
    any
}

/// Adds each addend to its logit, in the order of the list; ids past the row are ignored (E-12).
pub fn add_bias(row: &mut [f32], bias: &[(u32, f32)]) {
    for &(id, addend) in bias {
        if let Some(logit) = row.get_mut(id as usize) {
            *logit += addend;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_unsound_logit_anywhere_is_noticed() {
        for len in [1, 7, 255, 256, 257, 1000] {
            let sound = vec![f32::MAX; len];
            assert!(row_is_finite(&sound), "{len}");
            for at in [0, len / 2, len - 1] {
                for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut row = sound.clone();
                    row[at] = bad;
                    assert!(!row_is_finite(&row), "{bad} at {at} of {len}");
                }
            }
        }
        assert!(row_is_finite(&[]));
    }

    ///
    #[test]
    fn mask_keeps_its_bits_and_ends_where_it_ends() {
        let mut row: Vec<f32> = (0..70).map(|i| i as f32).collect();
        assert!(apply_mask(&mut row, &[u32::MAX, 0b101]));
        let kept: Vec<usize> = (0..70).filter(|&i| row[i] != f32::NEG_INFINITY).collect();
        assert_eq!(kept, (0..32).chain([32, 34]).collect::<Vec<_>>());
        assert!(!apply_mask(&mut row, &[0, 0, 0]));
        assert!(!apply_mask(&mut row, &[]));
    }

    #[test]
    fn mask_bits_past_the_row_allow_nothing() {
        assert!(!apply_mask(&mut [1.0, 2.0], &[0b100]));
    }

    /// E-12.
    #[test]
    fn bias_listed_twice_is_added_twice_and_foreign_ids_are_ignored() {
        let mut row = [1.0, 2.0];
        add_bias(&mut row, &[(1, 0.5), (9, 7.0), (1, 0.25)]);
        assert_eq!(row, [1.0, 2.75]);
    }
}
