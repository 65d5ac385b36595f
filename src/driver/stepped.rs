#![forbid(unsafe_code)]
//! A driver that its owner drives.

use std::sync::Arc;

use super::clock::{Clock, SystemClock};
use super::event::{Event, Failure, Finish};
use super::options::{DriverOptions, DriverOptionsError};
use super::request::{Limits, Request, RequestId, SubmitError, Words};
use super::scheduler::{Progress, Scheduler};
use super::source::EngineSource;
use crate::engine::Engine;
use crate::record::Status;
use crate::tokenizer::Tokenizer;

/// Why no driver was made. The engine is dropped with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// An option out of range.
    #[error("an option is out of range")]
    Options(#[from] DriverOptionsError),
    /// The engine refuses an empty plan.
    #[error("the engine refuses an empty plan: {0}")]
    Engine(Status),
}

/// Requests on an engine, driven by one thread.
#[derive(Debug)]
pub struct Driver<E> {
    pub(super) engine: E,
    pub(super) scheduler: Scheduler,
    pub(super) last_id: u64,
}

impl<E: EngineSource> Driver<E> {
    /// A driver of this engine, without a tokenizer: prompts are tokens, and there is no text.
    ///
    /// The engine may have been used before, and others may call it between steps, as long as they tick no lanes of their own.
    ///
    /// # Errors
    /// An option out of range, or the engine refuses even an empty plan.
    pub fn new(engine: E, options: DriverOptions) -> Result<Self, DriverError> {
        Self::with_clock(engine, options, SystemClock::default())
    }

    /// As [`Driver::new`], with a clock of the host's.
    ///
    /// # Errors
    /// As there.
    pub fn with_clock(mut engine: E, options: DriverOptions, clock: impl Clock + 'static) -> Result<Self, DriverError> {
        options.check()?;
        let clock: Arc<dyn Clock> = Arc::new(clock);
        let mut made = Err(Status::Fatal);
        let mut make = |engine: &mut dyn Engine| made = Scheduler::new(engine, options.clone(), Arc::clone(&clock));
        engine.with_engine(&mut make).map_err(DriverError::Engine)?;
        Ok(Self { engine, scheduler: made.map_err(DriverError::Engine)?, last_id: 0 })
    }

    /// Gives the driver a tokenizer: a [`Tokenizer`] in an [`Arc`], or a [`Model`](crate::Model).
    pub fn with_tokenizer(mut self, words: impl AsRef<Tokenizer> + Send + Sync + 'static) -> Self {
        let words = Words(Arc::new(words));
        self.scheduler.limits = Limits::new(&self.scheduler.options, Some(words));
        self
    }

    /// Takes a request over.
    ///
    /// # Errors
    /// What is wrong with it, or that too many wait. Nothing is kept.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, SubmitError> {
        if self.scheduler.broken {
            return Err(SubmitError::Closed);
        }
        let limit = self.scheduler.options.queue_limit;
        if self.scheduler.waiting.len() >= limit {
            return Err(SubmitError::QueueFull { limit });
        }
        let checked = self.scheduler.limits.check(request)?;
        self.last_id += 1;
        let id = RequestId(self.last_id);
        let now = self.scheduler.clock.now();
        self.scheduler.enqueue(id, checked, now);
        Ok(id)
    }

    /// Ends a request. Its last event says [`Finish::Cancelled`]; it says nothing more before. Answers whether it was there.
    pub fn cancel(&mut self, request: RequestId) -> bool {
        self.scheduler.end(request, Finish::Cancelled)
    }

    /// Makes one plan and ticks. Events go to [`Driver::next_event`].
    pub fn step(&mut self) -> Progress {
        let mut progress = Progress::Idle;
        let scheduler = &mut self.scheduler;
        match self.engine.with_engine(&mut |engine| progress = scheduler.step(engine)) {
            Ok(()) => progress,
            // Called from inside a call on the engine.
            Err(Status::Busy) => Progress::Stalled,
            Err(_) if self.scheduler.broken => Progress::Idle,
            Err(_) => {
                self.scheduler.break_down();
                Progress::Worked
            }
        }
    }

    /// The next event that is there already.
    pub fn next_event(&mut self) -> Option<Event> {
        self.scheduler.events.pop_front()
    }

    /// The next event, after as many steps as it takes; none when there is nothing to do, or nothing can be done now.
    pub fn poll(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.next_event() {
                return Some(event);
            }
            if self.step() != Progress::Worked {
                return self.next_event();
            }
        }
    }

    /// Whether nothing is left to do: no request, and nothing of one in the engine. Events may still be there.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    /// Requests that wait for a lane.
    pub fn waiting(&self) -> usize {
        self.scheduler.waiting.len()
    }

    /// Requests on lanes.
    pub fn running(&self) -> usize {
        self.scheduler.lanes.len()
    }

    /// Accepted ticks, without the empty ones of the beginning.
    pub fn ticks(&self) -> u64 {
        self.scheduler.ticks
    }

    /// The options, with the lanes that the engine takes.
    pub fn options(&self) -> DriverOptions {
        let max_lanes = u32::try_from(self.scheduler.lanes.capacity()).unwrap_or(u32::MAX);
        DriverOptions { max_lanes, ..self.scheduler.options.clone() }
    }

    /// The engine.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// The engine, for calls between steps. Ticking lanes on it is up to the driver alone.
    pub fn engine_mut(&mut self) -> &mut E {
        &mut self.engine
    }

    /// Ends all requests ([`Failure::Closed`]), takes what they left out of the engine, and gives the engine back with the events
    /// that nobody has read.
    pub fn close(mut self) -> (E, Vec<Event>) {
        self.scheduler.end_all(&Finish::Failed(Failure::Closed));
        while !self.is_idle() && self.step() == Progress::Worked {}
        (self.engine, self.scheduler.events.into())
    }
}
