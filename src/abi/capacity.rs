//! Capacity across the boundary: evidence and tickets by value, waits with a time limit or a descriptor to poll.
//!
//! Nothing here takes a model's lock but [`ictus_last_blocked`], which reads what a tick has left: a thread may wait while another one ticks.
//!
//! # Limits
//! A wait with a descriptor keeps two of the process's descriptors until it ends.

use core::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::bundle::{ModelHandle, StatusCode, code, status, without_model};
use super::guard::{Failure, Outcome, contain, out, plain, sized_out};
use super::handle;
use crate::capacity::{Bad, Blocked, Capacity, DOMAINS, Refusal, Shortfall, Ticket, WaitDescriptor};
use crate::record::Status;
use crate::record::view::{Plain, record, zeroed};

// The header spells the number of domains out.
const _: () = assert!(DOMAINS == 7);

/// What was seen of the epochs of a model. Data without authority: it can be copied, kept and compared.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TicketRecord {
    /// The coordinator that it is of; never 0.
    pub core: u64,
    /// The epoch that was seen of each domain, from `ICTUS_DOMAIN_SLOTS` on.
    pub seen: [u64; 7],
    /// Operations that had freed something; for audits only.
    pub released: u64,
    /// Publications of growth until then.
    pub resized: u64,
    /// The domains that it watches: bit `ICTUS_DOMAIN_* - 1` of each.
    pub watch: u32,
    /// Zero.
    pub _pad0: u32,
}
const _: () = assert!(size_of::<TicketRecord>() == 88);
zeroed!(TicketRecord);

/// One domain that is short.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ShortfallRecord {
    /// Units that have to be free.
    pub need: u64,
    /// Units that are free.
    pub free: u64,
    /// Units that are installed.
    pub total: u64,
    /// Units that can be installed; `UINT64_MAX` is without bound.
    pub max: u64,
    /// `ICTUS_DOMAIN_*`.
    pub domain: u32,
    /// `ICTUS_LACK_*`.
    pub lack: u32,
}
const _: () = assert!(size_of::<ShortfallRecord>() == 40);
zeroed!(ShortfallRecord);

/// Why something does not fit now.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BlockedRecord {
    /// The reader's size of this record in bytes; at least 400.
    pub struct_size: u64,
    /// Watches exactly the domains that are short; nothing where waiting never helps.
    pub ticket: TicketRecord,
    /// The domains that are short; the first `n_short` count.
    pub short_of: [ShortfallRecord; 7],
    /// Proof of growth: the ticket's `resized` of the last publication that helped; else 0.
    pub grew: u64,
    /// Items of a batch that would have fitted together, from the first one.
    pub fits: u32,
    /// `ICTUS_REMEDY_*`.
    pub remedy: u32,
    /// How many domains are short.
    pub n_short: u32,
    /// Zero.
    pub _pad0: u32,
}
const _: () = assert!(size_of::<BlockedRecord>() == 400);
record!(BlockedRecord, min_prefix: 400);

/// The level of memory at one moment: bytes, but for the three that count pages.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemoryRecord {
    /// The reader's size of this record in bytes; at least 112.
    pub struct_size: u64,
    /// Bytes that the device has.
    pub capacity: u64,
    /// Bytes that may be claimed.
    pub usable: u64,
    /// Bytes that all cores of the device account have claimed.
    pub device_claimed: u64,
    /// Bytes that this core has claimed.
    pub own_claimed: u64,
    /// Bytes that never change.
    pub static_bytes: u64,
    /// Bytes of the pool and of arenas.
    pub resident: u64,
    /// Bytes of those that nobody uses.
    pub resident_free: u64,
    /// Bytes that an attempt to grow has claimed and not published.
    pub growing: u64,
    /// Bytes that are never handed out again.
    pub quarantined: u64,
    /// Bytes of a page.
    pub block_size: u64,
    /// Pages that are installed.
    pub blocks_total: u64,
    /// Pages on the free list.
    pub blocks_free: u64,
    /// Pages that only cached state holds which may be evicted.
    pub blocks_evictable: u64,
}
const _: () = assert!(size_of::<MemoryRecord>() == 112);
record!(MemoryRecord, min_prefix: 112);

/// What an `ictus_wait_t` points to: nothing that C could look at.
#[derive(Debug)]
pub struct OpaqueWait(());

/// Handle of a wait. NULL is none.
pub type WaitNumber = *mut OpaqueWait;

/// What a handle of a wait stands for.
#[derive(Debug)]
pub(super) struct WaitObject(Mutex<WaitDescriptor>);

impl From<&Ticket> for TicketRecord {
    fn from(ticket: &Ticket) -> Self {
        Self {
            core: ticket.core().get(),
            seen: *ticket.epochs(),
            released: ticket.released(),
            resized: ticket.resized(),
            watch: ticket.watches().into(),
            _pad0: 0,
        }
    }
}

impl TicketRecord {
    pub(super) fn ticket(&self) -> Outcome<Ticket> {
        let watch = u8::try_from(self.watch).map_err(|_| Status::RejectBounds)?;
        Ticket::from_parts(self.core, watch, self.seen, self.released, self.resized).map_err(refused)
    }
}

impl From<&Shortfall> for ShortfallRecord {
    fn from(entry: &Shortfall) -> Self {
        let Shortfall { need, free, total, max, .. } = *entry;
        Self { need, free, total, max, domain: entry.domain.code(), lack: entry.lack as u32 }
    }
}

impl BlockedRecord {
    pub(super) fn of(blocked: &Blocked, struct_size: u64) -> Self {
        let mut short_of = [ShortfallRecord::zeroed(); DOMAINS];
        for (place, entry) in short_of.iter_mut().zip(blocked.shortfalls()) {
            *place = entry.into();
        }
        Self {
            struct_size,
            ticket: (&blocked.ticket).into(),
            short_of,
            grew: blocked.grew,
            fits: blocked.fits,
            remedy: blocked.remedy as u32,
            n_short: blocked.n.into(),
            _pad0: 0,
        }
    }
}

/// The status that a refusal is.
pub(super) fn status_of(refusal: &Refusal) -> Status {
    match refusal {
        Refusal::Blocked(_) => Status::NeedsReplan,
        Refusal::Never(_) => Status::RejectBudget,
        Refusal::Unsupported(_) => Status::Unsupported,
        Refusal::Bad { why, .. } => match why {
            Bad::Bounds => Status::RejectBounds,
            Bad::Frontier => Status::OutOfBoundary,
            Bad::Duplicate => Status::RejectDuplicateLane,
            Bad::Stale | Bad::Closed => Status::UnknownHandle,
            Bad::Foreign => Status::IdentityMismatch,
            Bad::Busy => Status::Busy,
            Bad::Faulted | Bad::Policy => Status::RejectIllegalCombination,
            Bad::Regressed | Bad::Exhausted | Bad::Poisoned => Status::Fatal,
        },
    }
}

pub(super) fn refused(refusal: Refusal) -> Failure {
    Failure::new(status_of(&refusal), refusal)
}

/// Handle of what has a coordinator: a model, or an executor. NULL is none.
pub type CapacityHandle = *mut c_void;

/// A call that any thread may make, on the coordinator of a model or an executor.
fn counted(of: CapacityHandle, body: impl FnOnce(&Capacity) -> Outcome<()>) -> StatusCode {
    code(coordinator(of).and_then(|capacity| {
        let outcome = contain(|| body(&capacity)).unwrap_or(Err(Status::Fatal.into()));
        outcome.map_err(|failure| failure.status)
    }))
}

/// The coordinator of a model or of an executor.
fn coordinator(of: CapacityHandle) -> Result<Capacity, Status> {
    match handle::executor(of.addr()) {
        Ok(executor) => Ok(executor.capacity().clone()),
        // An engine in another process counts there.
        Err(_) => handle::model(of.addr())?.capacity().cloned().ok_or(Status::Unsupported),
    }
}

/// The epochs of a model or an executor now; the ticket watches every domain.
///
/// Threads: any, also while another one ticks or runs. Codes: `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_ERR_OP_UNSUPPORTED` (the engine counts elsewhere).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_capacity_now(of: CapacityHandle, ticket: *mut TicketRecord) -> StatusCode {
    counted(of, |capacity| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let target = unsafe { out(ticket) }?;
        target.set((&capacity.now()).into());
        Ok(())
    })
}

/// The level of memory, from one moment. Set `memory->struct_size` before the call.
///
/// Threads: any, also while another one ticks or runs. Codes: `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_ERR_OP_UNSUPPORTED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_capacity_memory(of: CapacityHandle, memory: *mut MemoryRecord) -> StatusCode {
    counted(of, |capacity| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let target = unsafe { sized_out(memory) }?;
        let memory = capacity.memory();
        target.set(MemoryRecord {
            struct_size: target.bytes(),
            capacity: memory.capacity,
            usable: memory.usable,
            device_claimed: memory.device_claimed,
            own_claimed: memory.own_claimed,
            static_bytes: memory.static_bytes,
            resident: memory.resident,
            resident_free: memory.resident_free,
            growing: memory.growing,
            quarantined: memory.quarantined,
            block_size: memory.block_size,
            blocks_total: memory.blocks_total,
            blocks_free: memory.blocks_free,
            blocks_evictable: memory.blocks_evictable,
        });
        Ok(())
    })
}

/// Why the last plan that was refused with `ICTUS_NEEDS_REPLAN` lacked room. Set `blocked->struct_size` before the call.
///
/// Threads: any; one at a time. Codes: `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_ERR_UNKNOWN_HANDLE` (no plan lacked room, or one has found it
/// since).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_last_blocked(model: ModelHandle, blocked: *mut BlockedRecord) -> StatusCode {
    status(model, "ictus_last_blocked", |inside| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let target = unsafe { sized_out(blocked) }?;
        let blocked = inside.engine.last_blocked().ok_or(Status::UnknownHandle)?;
        target.set(BlockedRecord::of(blocked, target.bytes()));
        Ok(())
    })
}

/// Whether a domain that the ticket watches has moved since: `*changed` is 1 or 0.
///
/// Threads: any, also while another one ticks or runs. Codes: `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_REJECT_BOUNDS` (no ticket),
/// `ICTUS_ERR_IDENTITY_MISMATCH` (of another one), `ICTUS_ERR_FATAL` (an epoch is lower than what was seen), `ICTUS_ERR_OP_UNSUPPORTED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_capacity_changed(
    of: CapacityHandle,
    ticket: *const TicketRecord,
    changed: *mut u32,
) -> StatusCode {
    counted(of, |capacity| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let source = unsafe { plain(ticket) }?;
        // SAFETY: as above.
        let target = unsafe { out(changed) }?;
        let moved = capacity.changed(&source.ticket()?).map_err(refused)?;
        target.set(moved.into());
        Ok(())
    })
}

/// A ticket that watches what either watches; of each domain the older observation counts.
///
/// Threads: any. Codes: `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_REJECT_BOUNDS` (no ticket), `ICTUS_ERR_IDENTITY_MISMATCH` (of two coordinators).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_ticket_union(
    a: *const TicketRecord,
    b: *const TicketRecord,
    both: *mut TicketRecord,
) -> StatusCode {
    without_model(|| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let a = unsafe { plain(a) }?;
        // SAFETY: as above.
        let b = unsafe { plain(b) }?;
        // SAFETY: as above.
        let target = unsafe { out(both) }?;
        let union = Ticket::union(&a.ticket()?, &b.ticket()?).map_err(refused)?;
        target.set((&union).into());
        Ok(())
    })
}

/// Waits until a domain that the ticket watches has moved, or for `timeout_ns`; `UINT64_MAX` waits without limit.
///
/// `*woken` is 1 when there is news, and `*fresh` the ticket to go on with; 0 when the time is over, and `*fresh` is not written. News grant
/// nothing: ask again. It holds no lock: another thread ticks meanwhile.
/// Threads: any. Codes: `ICTUS_REJECT_BAD_STRUCT`, `ICTUS_REJECT_BOUNDS` (no ticket), `ICTUS_REJECT_ILLEGAL_COMBINATION` (it watches nothing),
/// `ICTUS_ERR_IDENTITY_MISMATCH` (of another one), `ICTUS_ERR_UNKNOWN_HANDLE` (it was released or shut down, or broke),
/// `ICTUS_ERR_FATAL` (an epoch is lower than what was seen), `ICTUS_ERR_OP_UNSUPPORTED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_capacity_wait(
    of: CapacityHandle,
    ticket: *const TicketRecord,
    timeout_ns: u64,
    fresh: *mut TicketRecord,
    woken: *mut u32,
) -> StatusCode {
    let timeout = (timeout_ns != u64::MAX).then(|| Duration::from_nanos(timeout_ns));
    // The model or the executor is let go before the wait: it may be released meanwhile, which ends the wait.
    let begun = coordinator(of).and_then(|capacity| {
        let begin = || -> Outcome<_> {
            // SAFETY: the caller's pointer, as the module's documentation asks.
            let source = unsafe { plain(ticket) }?;
            // SAFETY: as above.
            let fresh = unsafe { out(fresh) }?;
            // SAFETY: as above.
            let woken = unsafe { out(woken) }?;
            let wait = capacity.wait(source.ticket()?).map_err(refused)?;
            Ok((wait, fresh, woken))
        };
        contain(begin).unwrap_or(Err(Status::Fatal.into())).map_err(|failure| failure.status)
    });
    code(begun.and_then(|(wait, fresh, woken)| {
        let news = wait.block(timeout).map_err(|refusal| status_of(&refusal))?;
        woken.set(news.is_some().into());
        if let Some(ticket) = news {
            fresh.set((&ticket).into());
        }
        Ok(())
    }))
}

/// Begins to wait, and gives a descriptor that `poll` and its kin report as readable or hung up when there is news.
///
/// Owner: `*wait` is the host's, which ends it with `ictus_capacity_wait_end`; the descriptor stays the library's, is valid until then, and is
/// only polled. A process that is forked without `exec` delays the news until it ends.
/// Threads: any, also while another one ticks or runs. Codes: those of `ictus_capacity_wait`; `ICTUS_NEEDS_REPLAN` (no descriptor is left).
/// There is no wait then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_capacity_wait_begin(
    of: CapacityHandle,
    ticket: *const TicketRecord,
    wait: *mut WaitNumber,
    descriptor: *mut i32,
) -> StatusCode {
    counted(of, |capacity| {
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let source = unsafe { plain(ticket) }?;
        // SAFETY: as above.
        let target = unsafe { out(wait) }?;
        // SAFETY: as above.
        let descriptor = unsafe { out(descriptor) }?;
        let wait = capacity.wait(source.ticket()?).map_err(refused)?;
        let polled = wait.descriptor().map_err(|error| Failure::because(Status::NeedsReplan, &error))?;
        descriptor.set(polled.as_fd().as_raw_fd());
        let number = handle::insert_wait(WaitObject(Mutex::new(polled)));
        target.set(core::ptr::without_provenance_mut(number));
        Ok(())
    })
}

/// Ends a wait, whether or not there is news: `*woken` is 1 when there is, and `*fresh` the ticket to go on with; else 0, and `*fresh` is not
/// written. `fresh` and `woken` may be NULL, both, for a wait that is given up.
///
/// Threads: any. Codes: `ICTUS_ERR_UNKNOWN_HANDLE` (no such wait: nothing ended; or the model was released or broke: it has ended),
/// `ICTUS_REJECT_BAD_STRUCT` (one of the two is NULL: nothing ended), `ICTUS_ERR_FATAL` (it has ended).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ictus_capacity_wait_end(
    wait: WaitNumber,
    fresh: *mut TicketRecord,
    woken: *mut u32,
) -> StatusCode {
    without_model(|| {
        if fresh.is_null() && woken.is_null() {
            handle::remove_wait(wait.addr())?;
            return Ok(());
        }
        // SAFETY: the caller's pointer, as the module's documentation asks.
        let fresh = unsafe { out(fresh) }?;
        // SAFETY: as above.
        let woken = unsafe { out(woken) }?;
        let object = handle::remove_wait(wait.addr())?;
        let news = object.0.lock().unwrap_or_else(PoisonError::into_inner).take().map_err(refused)?;
        woken.set(news.is_some().into());
        if let Some(ticket) = news {
            fresh.set((&ticket).into());
        }
        Ok(())
    })
}
