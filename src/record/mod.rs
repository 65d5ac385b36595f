//! The records that cross the boundary: plain data, byte-identical with tick schema draft 7.
//!
//! Every record is `repr(C)` with explicit padding; its size is asserted beside it, and [`layout`] holds one table of
//! all sizes, offsets and constants. A record has no behaviour here: what the fields mean to the engine is the business of
//! `executor`.
//!
//! # Invariants
//! - A record grows at its end only, and zero in a new field means "as before". So any two versions of host and
//!   engine read each other's records by their common prefix ([`view`]).
//! - Enum-like values travel as integers of fixed width and are checked where they are used.

pub mod arena;
pub mod constant;
mod event;
pub(crate) mod explain;
pub mod layout;
mod partial;
mod plan;
mod registration;
mod state;
mod status;
mod value;
pub mod view;

pub use arena::RecordArena;
pub use event::*;
pub use explain::{explain_admit, explain_fault, explain_finish, explain_shed};
pub use partial::PartialEmit;
pub use plan::*;
pub use registration::*;
pub use state::*;
pub use status::{STATUSES, Status};
pub use value::*;
