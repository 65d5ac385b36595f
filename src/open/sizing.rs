#![forbid(unsafe_code)]
//! How long sequences and how large a pool fit a budget of memory (R-80 .. R-82).
//!
//! ```text
//!   budget  = weights + reserve + pool / 0.60                 reserve: activations, other programs, what grows later
//!   window  = the longest sequence such that every lane of every model could have one
//!   pool    = 0.60 of what is free before it is made, no more than wanted, no less than one sequence
//! ```
//! All functions are pure; sizes are in bytes, lengths in tokens.

/// Least bytes kept in reserve.
const RESERVE_LEAST_BYTES: u64 = 1 << 30;
/// A window is a multiple of this many tokens.
const WINDOW_STEP_TOKENS: u64 = 1024;
/// The window that a model gets whatever the budget, if it was trained for as much.
const WINDOW_LEAST_TOKENS: u64 = 4096;

/// A model among those that share a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelDemand {
    /// Bytes that models on this device may take together.
    pub budget_bytes: u64,
    /// Bytes of its weights.
    pub weights_bytes: u64,
    /// Bytes of state per token.
    pub token_bytes: u64,
    /// Longest sequence trained on, in tokens.
    pub trained_tokens: u64,
}

/// Six tenths, rounded down.
fn six_tenths(bytes: u64) -> u64 {
    // At most the operand.
    (u128::from(bytes) * 6 / 10) as u64
}

/// Bytes to keep free of weights and pools: an eighth of the budget, and at least 1 GiB (R-82).
pub fn reserve_bytes(budget_bytes: u64) -> u64 {
    RESERVE_LEAST_BYTES.max(budget_bytes / 8)
}

/// Bytes that should be free once everything is loaded: half of the reserve (R-82).
pub fn headroom_bytes(budget_bytes: u64) -> u64 {
    reserve_bytes(budget_bytes) / 2
}

/// The longest sequence, in tokens, for models that share a device with so many lanes each (R-80).
///
/// None without models, or when a budget, a size per token or a trained length is 0.
pub fn window_tokens(models: &[ModelDemand], lanes: u64) -> Option<u64> {
    let budget = models.iter().map(|model| model.budget_bytes).min()?;
    let trained = models.iter().map(|model| model.trained_tokens).min()?;
    let sum = |of: fn(&ModelDemand) -> u64| models.iter().map(of).fold(0, u64::saturating_add);
    let (weights, token) = (sum(|model| model.weights_bytes), sum(|model| model.token_bytes));
    if budget == 0 || trained == 0 || models.iter().any(|model| model.token_bytes == 0 || model.weights_bytes == 0) {
        return None;
    }
    let pool = six_tenths(budget.saturating_sub(weights).saturating_sub(reserve_bytes(budget)));
    let affordable = pool / token.saturating_mul(lanes.max(1));
    let whole = affordable / WINDOW_STEP_TOKENS * WINDOW_STEP_TOKENS;
    Some(whole.min(trained).max(WINDOW_LEAST_TOKENS.min(trained)))
}

/// Cells of a pool of which `desired_cells` are wanted (R-81): those, or 0.60 of the free memory when that is less, but never less
/// than one sequence of `sequence_cells`.
///
/// `free_bytes` is none, and `cell_bytes` 0, when they are not known: the pool is then as large as wanted.
pub fn pool_cells(desired_cells: u64, sequence_cells: u64, free_bytes: Option<u64>, cell_bytes: u64) -> u64 {
    let (Some(free), 1..) = (free_bytes, cell_bytes) else { return desired_cells };
    desired_cells.min(six_tenths(free) / cell_bytes).max(sequence_cells.min(desired_cells))
}

/// Cells to give back once everything is loaded, so that the headroom is free (R-82); 0 when the budget or the size of a cell is not
/// known.
pub fn cells_to_give_back(budget_bytes: u64, free_bytes: u64, cell_bytes: u64) -> u64 {
    if budget_bytes == 0 || cell_bytes == 0 {
        return 0;
    }
    headroom_bytes(budget_bytes).saturating_sub(free_bytes).div_ceil(cell_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn model(budget_bytes: u64) -> ModelDemand {
        ModelDemand { budget_bytes, weights_bytes: 2 * GIB, token_bytes: 128 << 10, trained_tokens: 131_072 }
    }

    /// RS-30: R-80.
    #[test]
    fn windows_follow_lanes_models_and_floors() {
        // 0.6 x (16 - 2 - 2) GiB at 128 KiB per token: 58 982 tokens, whole thousands of them.
        assert_eq!(window_tokens(&[model(16 * GIB)], 1), Some(58_368));
        assert_eq!(window_tokens(&[model(16 * GIB)], 0), Some(58_368), "no lanes count as one");
        assert_eq!(window_tokens(&[model(16 * GIB)], 4), Some(14_336));
        assert_eq!(window_tokens(&[model(16 * GIB)], 64), Some(4096), "the floor");
        assert_eq!(window_tokens(&[model(64 * GIB)], 1), Some(131_072), "no longer than trained");
        assert_eq!(window_tokens(&[model(2 * GIB)], 1), Some(4096), "no pool at all");
        let short = ModelDemand { trained_tokens: 2048, ..model(2 * GIB) };
        assert_eq!(window_tokens(&[short], 1), Some(2048), "the floor is no longer than trained");
        // Two models: weights and bytes per token add, of budgets and trained lengths the smallest counts.
        let other = ModelDemand { budget_bytes: 20 * GIB, trained_tokens: 32_768, ..model(0) };
        assert_eq!(window_tokens(&[model(16 * GIB), other], 1), Some(24_576));
        assert_eq!(window_tokens(&[model(64 * GIB), ModelDemand { budget_bytes: 64 * GIB, ..other }], 1), Some(32_768));
        for unknown in [
            model(0),
            ModelDemand { weights_bytes: 0, ..model(16 * GIB) },
            ModelDemand { token_bytes: 0, ..model(16 * GIB) },
            ModelDemand { trained_tokens: 0, ..model(16 * GIB) },
        ] {
            assert_eq!(window_tokens(&[unknown], 1), None);
        }
        assert_eq!(window_tokens(&[], 1), None);
    }

    /// RS-30: R-81.
    #[test]
    fn pools_are_affordable_and_hold_a_sequence() {
        assert_eq!(pool_cells(1000, 100, Some(10_000), 2), 1000, "affordable");
        assert_eq!(pool_cells(1000, 100, Some(1000), 2), 300, "capped at 0.6 of the free memory");
        assert_eq!(pool_cells(1000, 100, Some(100), 2), 100, "one sequence");
        assert_eq!(pool_cells(50, 100, Some(0), 2), 50, "no more than wanted");
        assert_eq!(pool_cells(1000, 100, None, 2), 1000, "unknown free memory");
        assert_eq!(pool_cells(1000, 100, Some(1), 0), 1000, "unknown size of a cell");
    }

    /// RS-30: R-82.
    #[test]
    fn cells_are_given_back_until_the_headroom_is_free() {
        assert_eq!((reserve_bytes(4 * GIB), reserve_bytes(16 * GIB)), (GIB, 2 * GIB));
        assert_eq!(cells_to_give_back(16 * GIB, GIB, 1000), 0, "the headroom is free");
        assert_eq!(cells_to_give_back(16 * GIB, GIB - 1, 1000), 1, "rounded up");
        assert_eq!(cells_to_give_back(16 * GIB, 0, 1 << 20), 1024);
        assert_eq!((cells_to_give_back(0, 0, 10), cells_to_give_back(GIB, 0, 0)), (0, 0), "unknown");
    }

    #[test]
    fn largest_numbers_do_not_overflow() {
        let huge = ModelDemand {
            budget_bytes: u64::MAX,
            weights_bytes: u64::MAX,
            token_bytes: u64::MAX,
            trained_tokens: u64::MAX,
        };
        assert_eq!(window_tokens(&[huge, huge], u64::MAX), Some(4096));
        assert_eq!(pool_cells(u64::MAX, u64::MAX, Some(u64::MAX), 1), u64::MAX);
        assert!(cells_to_give_back(u64::MAX, 0, 1) > 0);
    }
}
