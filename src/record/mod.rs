//! The records that cross the boundary: plain data, byte-identical with tick schema draft 7.
//!
//! Every record is `repr(C)` with explicit padding; sizes are asserted beside each, offsets in `tests/`. A record has
//! no behaviour here: what the fields mean to the engine is the business of `executor`.

pub mod arena;
pub mod constant;
mod event;
mod partial;
mod plan;
mod registration;
mod state;
mod status;
mod value;
pub mod view;

pub use arena::RecordArena;
pub use event::*;
pub use partial::PartialEmit;
pub use plan::*;
pub use registration::*;
pub use state::*;
pub use status::{STATUSES, Status};
pub use value::*;
