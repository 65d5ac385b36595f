//! The prefix cache: giving room back.

use super::bundle::{ModelHandle, StatusCode, status};
use super::guard::{list, out, plain};
use crate::record::view::Unbounded;
use crate::record::{Array, CacheKey, ShedPolicy};

/// Evicts cached state until `target_bytes` of the pool are free of it, within the policy's classes, quota and cap.
///
/// `*freed_bytes`: what was freed, possibly less. Victim lanes are checked and not acted on.
/// Threads: any; one at a time. Codes: the statuses of arrays (victim lanes). Nothing is evicted then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_cache_evict(
    model: ModelHandle,
    policy: *const ShedPolicy,
    target_bytes: u64,
    freed_bytes: *mut u64,
) -> StatusCode {
    status(model, "ictus_cache_evict", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let policy = unsafe { plain(policy) }?;
        // SAFETY: as above.
        let freed_bytes = unsafe { out(freed_bytes) }?;
        // SAFETY: the caller promises that the array is readable and constant during the call.
        let memory = unsafe { Unbounded::new() };
        policy.victim_lanes.elements::<u64>(&memory)?;
        let ShedPolicy { evictable_cache_classes, protected_quota_bytes, max_evict_bytes, .. } = policy;
        let freed =
            inside.engine.cache_evict(evictable_cache_classes, protected_quota_bytes, max_evict_bytes, target_bytes)?;
        freed_bytes.set(freed);
        Ok(())
    })
}

/// Drops named cache entries; `keys` is an array of `ictus_cache_key_t`. A key that names no entry is fine.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_IDENTITY_MISMATCH` (a key of another model), the statuses of arrays,
/// `ICTUS_ERR_OP_UNSUPPORTED`. Nothing is dropped then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_cache_evict_entries(model: ModelHandle, keys: Array) -> StatusCode {
    status(model, "ictus_cache_evict_entries", |inside| {
        // SAFETY: the caller promises that the array is readable and constant during the call.
        let memory = unsafe { Unbounded::new() };
        let keys: Vec<CacheKey> = keys.elements(&memory)?.collect();
        Ok(inside.engine.cache_evict_entries(&keys)?)
    })
}

/// Drops the cache entries with exactly these tokens; that there are none is fine.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_OP_UNSUPPORTED`. Nothing is dropped then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_unpublish(model: ModelHandle, tokens: *const u32, n_tokens: u32) -> StatusCode {
    status(model, "ictus_unpublish", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let tokens = unsafe { list(tokens, n_tokens.into()) }?;
        Ok(inside.engine.unpublish(tokens)?)
    })
}
