//! Prefix matches and seed leases.

use super::bundle::{Inside, ModelHandle, SequenceHandle, StatusCode, status};
use super::guard::{Outcome, out};
use super::handle;
use crate::record::view::Unbounded;
use crate::record::{Array, MatchResult, Status, TokenRef};
use crate::ring::Rings;

/// The tokens that a reference names, from an attached ring.
pub(super) fn span(inside: &Inside, reference: &TokenRef) -> Outcome<Vec<u32>> {
    let mut tokens = Vec::new();
    inside.rings.read_tokens(reference, &mut tokens)?;
    Ok(tokens)
}

/// Which prefixes of a span are cached, in one space or in all (`ICTUS_ALL_SPACES`). Nothing is pinned by asking.
///
/// `media_hashes`: an array of 32-byte hashes of the media in the span, empty when there are none.
/// Owner: `*result` is the model's, until the next call on it. Threads: any; one at a time.
/// Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (space), `ICTUS_REJECT_BAD_REF_GENERATION`, `ICTUS_REJECT_BOUNDS` (span), the statuses of
/// arrays, `ICTUS_ERR_OP_UNSUPPORTED`. Nothing changes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_space_match(
    model: ModelHandle,
    space_id: u32,
    span: TokenRef,
    media_hashes: Array,
    result: *mut *const MatchResult,
) -> StatusCode {
    status(model, "ictus_space_match", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let result = unsafe { out(result) }?;
        // SAFETY: the caller promises that the array is readable and constant during the call.
        let memory = unsafe { Unbounded::new() };
        let media: Vec<[u8; 32]> = media_hashes.elements(&memory)?.collect();
        let tokens = self::span(inside, &span)?;
        result.set(&raw const *inside.engine.space_match_ref(space_id, &tokens, &span, &media)?);
        Ok(())
    })
}

/// Leases the cached prefix of `prefix_len` tokens of a span, for an admit to start from. The lease is not 0.
///
/// Owner: the host, which gives the lease back with `ictus_seed_release`; an admit that uses it consumes it; after
/// `ictus_seed_lease_ticks` it expires by itself. Threads: any; one at a time.
/// Codes: `ICTUS_ERR_SEED_UNSERVABLE`, `ICTUS_REJECT_BAD_REF_GENERATION`, `ICTUS_REJECT_BOUNDS` (span). Nothing changes then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_seed_acquire(
    model: ModelHandle,
    span: TokenRef,
    prefix_len: u64,
    determinism_class: u8,
    lease: *mut u64,
) -> StatusCode {
    status(model, "ictus_seed_acquire", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let lease = unsafe { out(lease) }?;
        let tokens = self::span(inside, &span)?;
        lease.set(inside.engine.seed_acquire_ref(&tokens, &span, prefix_len, determinism_class)?);
        Ok(())
    })
}

/// Gives a lease back; the state behind it may be evicted again, and an adopted sequence is bare again.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_UNKNOWN_HANDLE`: no such lease, or it was consumed or expired.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_seed_release(model: ModelHandle, lease: u64) -> StatusCode {
    status(model, "ictus_seed_release", |inside| Ok(inside.engine.seed_release(lease)?))
}

/// How many accepted ticks a lease lives.
///
/// Threads: any; one at a time. Codes: `ICTUS_ERR_OP_UNSUPPORTED`: the engine declares no time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_seed_lease_ticks(model: ModelHandle, ticks: *mut u64) -> StatusCode {
    status(model, "ictus_seed_lease_ticks", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let ticks = unsafe { out(ticks) }?;
        ticks.set(inside.engine.seed_lease_ticks().ok_or(Status::Unsupported)?);
        Ok(())
    })
}

/// Leases a bare sequence as it stands; `span` names the tokens that it holds, all of them.
///
/// Owner: the lease is the host's, as with `ictus_seed_acquire`; so is the sequence until an admit takes it. While it is leased it
/// can be neither freed, trimmed, published, restored nor adopted again. Threads: any; one at a time.
/// Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (not a bare sequence of this model), `ICTUS_EBUSY` (leased already), `ICTUS_ERR_OUT_OF_BOUNDARY`
/// (not the number of tokens it holds), `ICTUS_REJECT_BAD_REF_GENERATION`, `ICTUS_REJECT_BOUNDS` (span). Nothing changes then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_seed_adopt(
    model: ModelHandle,
    sequence: SequenceHandle,
    span: TokenRef,
    lease: *mut u64,
) -> StatusCode {
    status(model, "ictus_seed_adopt", |inside| {
        let sequence = handle::sequence_of(inside.number, sequence.addr())?;
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let lease = unsafe { out(lease) }?;
        let tokens = self::span(inside, &span)?;
        lease.set(inside.engine.seed_adopt_ref(sequence, &tokens, &span)?);
        Ok(())
    })
}
