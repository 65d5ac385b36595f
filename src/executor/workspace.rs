#![forbid(unsafe_code)]
//! What a step's scratch memory is charged, where the core's owner bounds it.
//!
//! A tick is charged as a run is: so many bytes, and so many for each token of its widest step, at most all its prompt tokens and one of each
//! lane that decodes. Where that is more than is free the prompts are cut short: the rest is reported and planned again.

use crate::capacity::{Domain, Ledger};

/// Bytes that a step is charged; nothing, unless the core's owner says otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WorkspaceCost {
    pub(super) step_bytes: u64,
    pub(super) token_bytes: u64,
}

impl WorkspaceCost {
    /// Bytes for so many tokens; none for none.
    pub(super) fn of(&self, tokens: u64) -> u64 {
        if tokens == 0 { 0 } else { self.step_bytes.saturating_add(self.token_bytes.saturating_mul(tokens)) }
    }

    /// Prompt tokens that there is room for beside the decodes, at least one where nothing else runs; none is without bound.
    pub(super) fn prompt_tokens(&self, ledger: &Ledger, decodes: u64) -> Option<u64> {
        if self.token_bytes == 0 || ledger.total(Domain::Workspace) == u64::MAX {
            return None;
        }
        let tokens = ledger.free(Domain::Workspace).saturating_sub(self.step_bytes) / self.token_bytes;
        Some(tokens.saturating_sub(decodes).max(u64::from(decodes == 0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::Limits;

    #[test]
    fn room_is_what_the_decodes_leave() {
        let bounded = |bytes| {
            let mut limits = Limits::default();
            limits.total[Domain::Workspace.index()] = bytes;
            limits.max[Domain::Workspace.index()] = bytes;
            Ledger::new(limits)
        };
        let cost = WorkspaceCost { step_bytes: 10, token_bytes: 2 };
        assert_eq!((cost.of(0), cost.of(5), cost.of(u64::MAX)), (0, 20, u64::MAX));
        assert_eq!(cost.prompt_tokens(&bounded(50), 3), Some(17));
        assert_eq!(cost.prompt_tokens(&bounded(14), 3), Some(0));
        assert_eq!(cost.prompt_tokens(&bounded(5), 0), Some(1), "one token, or the plan says what is short");
        assert_eq!(cost.prompt_tokens(&Ledger::new(Limits::default()), 3), None);
        assert_eq!(WorkspaceCost::default().prompt_tokens(&bounded(5), 0), None);
    }
}
