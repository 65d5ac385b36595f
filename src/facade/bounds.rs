#![forbid(unsafe_code)]
//! What a core may take of its device.

use super::core::CoreError;
use crate::capacity::{DeviceAccount, Domain, Ledger, Limits};

/// Bounds of the bytes of a core; 0 is the documented default.
#[derive(Clone, Debug, Default)]
pub struct CoreBounds {
    /// Bytes of workspace that are installed at first; 0 is without bound.
    pub arena_bytes: u64,
    /// Bytes of workspace that can be installed; 0 is what is installed at first.
    pub arena_max_bytes: u64,
    /// Bytes of host memory for state that leaves; 0 is without bound.
    pub host_export_bytes: u64,
    /// Device bytes that the core may claim; 0 is without bound.
    pub budget_bytes: u64,
    /// The account that they are counted in, with those of other cores; none is one of its own.
    pub account: Option<DeviceAccount>,
    /// Device bytes that all cores of the account may claim together, as this one declares; 0 declares nothing.
    pub ceiling_bytes: u64,
}

impl CoreBounds {
    /// A coordinator of a core with these limits and these bytes beside its pool.
    ///
    /// # Errors
    /// `Arena` where more is installed than can be; `Memory` where what is installed exceeds the budget or what the account has left.
    pub fn ledger(&self, mut limits: Limits, static_bytes: u64) -> Result<Ledger, CoreError> {
        let bound = |bytes: u64| if bytes == 0 { u64::MAX } else { bytes };
        let most = if self.arena_max_bytes == 0 { self.arena_bytes } else { self.arena_max_bytes };
        if self.arena_bytes > most {
            return Err(CoreError::Arena { bytes: self.arena_bytes, most });
        }
        // An arena that may grow from nothing is bounded too.
        if most != 0 {
            limits.total[Domain::Workspace.index()] = self.arena_bytes;
            limits.max[Domain::Workspace.index()] = most;
        }
        limits.total[Domain::HostExport.index()] = bound(self.host_export_bytes);
        limits.max[Domain::HostExport.index()] = bound(self.host_export_bytes);
        limits.static_bytes = static_bytes;
        let budget = bound(self.budget_bytes);
        limits.max[Domain::Budget.index()] = budget;
        match &self.account {
            Some(account) => Ledger::with_account(limits, account, bound(self.ceiling_bytes)),
            // Alone, a core has as much of its device as it may claim.
            None if budget == u64::MAX => Ok(Ledger::new(limits)),
            None => Ledger::with_account(limits, &DeviceAccount::new(budget), bound(self.ceiling_bytes)),
        }
        .map_err(|_| CoreError::Memory)
    }
}
