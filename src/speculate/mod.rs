#![forbid(unsafe_code)]
//! Speculation: what a lane may say next, guessed cheaply, to be verified by the model several tokens at a time.
//!
//! A draft never changes what is emitted. It is fed behind the lane's pending token, the model answers one row per fed token,
//! and the rows are picked from in order with the very code of a round without drafts; the first pick that differs from the
//! draft ends it. So everything here is about speed, and may guess, count and measure as it likes.
//!
//! ```text
//!   register --> Registry: slots, configurations, certificates (R-50 .. R-57)
//!   admit    --> Registry::choose: under which certificate, or none
//!   tick     --> Gate: do ticks with this many lanes gain from drafts (R-44 .. R-48)?
//!   round    --> Depth: how many tokens, or a rest (R-42, R-43)
//!                NgramIndex, or a Drafter: which tokens (R-40)
//!   verified --> Depth learns;  tick done --> Gate learns
//! ```
//!
//! # Invariants
//! - Nothing here reads a clock: durations come in as parameters, so that tests are deterministic.
//! - Depth, gate and index decide how many tokens are guessed and which; never what is emitted.
//!
//! # Not here
//! Feeding and verifying drafts: `executor`. The model behind a [`Drafter`]: `executor` too, over any runtime.

mod certificate;
mod config;
mod depth;
mod drafter;
mod gate;
mod ngram;
mod registry;

pub use certificate::{Admission, Applicant, Certificate, VERIFICATION_SHAPE_CLASS};
pub use config::{Config, DRAFT_MAX};
pub use depth::Depth;
pub use drafter::{Ask, DraftModelError, DraftModels, Drafter};
pub use gate::Gate;
pub use ngram::{NgramIndex, scan};
pub use registry::{Hashes, Offer, Refusal, Registration, Registry, Slot, Strategy};
