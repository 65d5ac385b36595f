//! Speculation strategies.

use super::bundle::{ModelHandle, StatusCode, status};
use super::guard::{Failure, out, versioned};
use crate::record::view::Unbounded;
use crate::record::{StrategyGrant, StrategyRegistration};

/// Registers a speculation strategy: `prompt-lookup`, or `draft-model` with the file of a smaller model as its draft weights. Admits
/// then name `grant->strategy_slot`. Registering a strategy again keeps its slot and replaces its configuration for lanes admitted later.
///
/// Owner: `*grant` is the model's, until the next registration. Threads: any; one at a time.
/// Codes: `ICTUS_ERR_REGISTRATION_REFUSED`, the statuses of arrays. What was registered before stays then, and the last error says why.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_strategy_register(
    model: ModelHandle,
    registration: *const StrategyRegistration,
    grant: *mut *const StrategyGrant,
) -> StatusCode {
    status(model, "ictus_strategy_register", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let registration = unsafe { versioned(registration) }?;
        // SAFETY: as above.
        let grant = unsafe { out(grant) }?;
        // SAFETY: the caller promises that the arrays of the registration are readable and constant during the call.
        let memory = unsafe { Unbounded::new() };
        let granted = inside.engine.strategy_register(&registration, &memory).map(|grant| &raw const *grant);
        grant.set(granted.map_err(|status| match inside.engine.strategy_refusal() {
            Some(reason) => Failure::new(status, reason),
            None => status.into(),
        })?);
        Ok(())
    })
}
