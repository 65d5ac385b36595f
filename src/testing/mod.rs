#![forbid(unsafe_code)]
//! How an engine proves the tick contract: a harness, a view of its inside, and the scenarios (engine.md, section 5).
//!
//! Any engine goes through the same surface: give [`tick_contract`] a function that makes a [`Harness`] around a fresh one.
//!
//! ```
//! use ictus::executor::Executor;
//! use ictus::runtime::FakeRuntime;
//! use ictus::testing::{Harness, tick_contract};
//!
//! tick_contract::run_all(|| Harness::with_engine(Executor::new(FakeRuntime::default())));
//! ```
//!
//! Everything here panics when the engine is wrong: it is for tests.

mod agreement;
mod events;
mod executor;
mod free_pages;
mod free_runtime;
mod harness;
mod restless;
pub mod schedule;
mod shared;
mod strategy;
pub mod tick_contract;

pub use crate::engine::{PlanBuilder, basic_admit};
pub use agreement::{RowDisagreement, TokenDisagreement, rows_agree, tokens_agree, top_margin};
pub use events::Events;
pub use free_pages::FreePagedRuntime;
pub use free_runtime::FreeRuntime;
pub use harness::Harness;
pub use restless::RestlessRings;
pub use shared::SharedStage;
pub use strategy::{register_prompt_lookup_with, register_strategy};

use core::hash::{Hash, Hasher};
use std::hash::DefaultHasher;

use crate::engine::Engine;
use crate::record::TokenRef;
use crate::ring::{MemoryRings, Rings};

/// Rings whose host end is in the test's hands.
pub trait StageRings: Rings {
    /// Writes a prompt into token-in.
    fn stage_prompt(&mut self, tokens: &[u32]) -> TokenRef;

    /// A digest of everything in the rings, cursors included.
    fn rings_digest(&self) -> u64;
}

impl StageRings for MemoryRings {
    fn stage_prompt(&mut self, tokens: &[u32]) -> TokenRef {
        Self::stage_prompt(self, tokens)
    }

    fn rings_digest(&self) -> u64 {
        digest_of_debug(self)
    }
}

/// What tests see and do inside an engine.
pub trait EngineInspect: Engine {
    /// The committed tokens of a live lane.
    fn lane_committed(&self, lane_tag: u64) -> Option<Vec<u32>>;

    /// The lane's next decode record faults with `code` (T-96).
    fn inject_fault(&mut self, lane_tag: u64, code: u32);

    /// A digest of all that a refused plan must leave alone (T-3).
    ///
    /// It covers the accepted plan number, the tick count, every lane with its tokens, counters, pending row and sampling state,
    /// the marks of faulted tags, the bias lists, what the runtime holds for every sequence, and the last events.
    fn state_digest(&self) -> u64;

    /// Checks what must hold between ticks.
    ///
    /// # Panics
    /// When it does not. An engine that cannot tell checks nothing.
    fn audit(&self) {}
}

/// A digest of what `Debug` shows, for values that have no hash of their own.
pub fn digest_of_debug(value: &impl core::fmt::Debug) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{value:?}").hash(&mut hasher);
    hasher.finish()
}
