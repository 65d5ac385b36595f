#![forbid(unsafe_code)]
#![allow(
    clippy::result_large_err,
    reason = "a refusal is plain data without heap parts, so that evidence costs nothing where there is none (X-7)"
)]
//! Capacity that never lies: one coordinator counts what there is and what is taken, and is the one place to wait.
//!
//! ```text
//!   core:   Ledger    claim - release - settle - grow            one lock; all domains of a demand, or none
//!   host:   Capacity  now - changed - wait - memory              evidence and news, and no authority
//!
//!   refused:  Blocked { what is short, ticket }                  the ticket watches what is short, as the refusal saw it
//!             wait(ticket) - woken - ask the real question again
//! ```
//!
//! It holds no memory and knows no device, no page and no sequence: [`Units`] of seven [`Domain`]s are numbers. Whoever frees something tells
//! the ledger, which advances the epoch of that domain by one and wakes who watches it. So nobody probes in a loop, an unrelated release
//! wakes nobody, and a change between a refusal and the wait for it is never missed, because the ticket remembers what was seen.
//!
//! | file | what |
//! |---|---|
//! | `domain.rs`, `demand.rs` | what is counted; what is asked of it |
//! | `book.rs` | the counts and the epochs, without locks |
//! | `shared.rs` | the lock, the waiters, poison |
//! | `ledger.rs` | both ends |
//! | `refusal.rs`, `ticket.rs` | evidence as plain data |
//! | `wait.rs` | a future, a blocking form, a descriptor to poll |
//! | `growth.rs`, `account.rs` | bytes for growth; the device that several cores share |
//! | `memory.rs` | the level of memory, and what must hold of it |
//!
//! # Invariants
//! - A refusal changes nothing, and its ticket moves when what it lacks comes, not by its own rollback.
//! - An epoch advances by one per operation that can make a blocked demand satisfiable, and by nothing else.
//! - Wakers run outside all locks. Order: submission, sequence, capacity, device account (X-72).
//! - What is in doubt is never handed out: it goes to quarantine and is counted (X-28).
//!
//! # Limits
//! All counters are 64 bits and checked: at their end an operation is refused as `Exhausted`.
//!
//! # Not here
//! What a plan needs (`executor/reserve`); which entry is evicted (`prefix`); pages (`kv`).

mod account;
mod book;
mod demand;
mod domain;
mod growth;
mod ledger;
mod memory;
mod refusal;
mod shared;
mod ticket;
mod wait;

#[cfg(test)]
mod tests;

pub use account::DeviceAccount;
pub use demand::{Demand, Limits, Settlement};
pub use domain::{DOMAINS, Domain, EVERY, NOTHING, Units};
pub use growth::Growing;
pub use ledger::{Capacity, Ledger};
pub use memory::Memory;
pub use refusal::{Bad, Blocked, Feature, Lack, Refusal, Remedy, Shortfall};
pub use shared::Woken;
pub use ticket::{Receipt, Ticket};
pub use wait::{Wait, WaitDescriptor};
