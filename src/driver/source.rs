#![forbid(unsafe_code)]
//! Where a driver finds its engine: its own, or one that it shares and has to wait for.

use crate::engine::Engine;
use crate::record::Status;

/// Gives access to an engine for the length of a step.
pub trait EngineSource {
    /// Runs `work` on the engine.
    ///
    /// # Errors
    /// The engine cannot be had any more; `work` may have run in part, or not at all.
    fn with_engine(&mut self, work: &mut dyn FnMut(&mut dyn Engine)) -> Result<(), Status>;
}

impl<E: Engine> EngineSource for E {
    fn with_engine(&mut self, work: &mut dyn FnMut(&mut dyn Engine)) -> Result<(), Status> {
        work(self);
        Ok(())
    }
}

impl EngineSource for Box<dyn Engine> {
    fn with_engine(&mut self, work: &mut dyn FnMut(&mut dyn Engine)) -> Result<(), Status> {
        work(&mut **self);
        Ok(())
    }
}

impl EngineSource for Box<dyn Engine + Send> {
    fn with_engine(&mut self, work: &mut dyn FnMut(&mut dyn Engine)) -> Result<(), Status> {
        work(&mut **self);
        Ok(())
    }
}
