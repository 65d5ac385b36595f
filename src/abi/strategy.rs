//! Speculation strategies.

use super::bundle::{ModelHandle, StatusCode, status};
use super::guard::{out, versioned};
use crate::record::view::Unbounded;
use crate::record::{StrategyGrant, StrategyRegistration};

/// Registers a speculation strategy in place of the one before.
///
/// Owner: `*grant` is the model's, until the next registration. Threads: any; one at a time.
/// Codes: `ICTUS_ERR_REGISTRATION_REFUSED`, the statuses of arrays, `ICTUS_ERR_OP_UNSUPPORTED`. The strategy before stays then.
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
        grant.set(&raw const *inside.engine.strategy_register(&registration, &memory)?);
        Ok(())
    })
}
