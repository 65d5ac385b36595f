#![forbid(unsafe_code)]
//! The driver: what an application wants that has no scheduler of its own.
//!
//! Requests go in, tokens and text come out. In between, on any [`Engine`](crate::engine::Engine): continuous batching, chunked prefill under a budget of tokens,
//! reuse of common prefixes, preemption when memory is short, priorities that age, deadlines, stop strings, back-pressure.
//!
//! ```
//! use ictus::driver::{Driver, DriverOptions, EventKind, Request};
//! use ictus::executor::Executor;
//! use ictus::runtime::FakeRuntime;
//!
//! let mut driver = Driver::new(Executor::new(FakeRuntime::default()), DriverOptions::default())?;
//! let request = driver.submit(Request { max_tokens: 4, ..Request::tokens([10, 20, 30]) })?;
//! let mut tokens = Vec::new();
//! while let Some(event) = driver.poll() {
//!     assert_eq!(event.request, request);
//!     if let EventKind::Tokens(piece) = event.kind {
//!         tokens.extend(piece.tokens);
//!     }
//! }
//! assert_eq!(tokens, [19927, 17910, 10995, 14421]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Driver`] is driven by its owner, step by step; [`Driver::serve`] moves it to a thread that sleeps while there is nothing to do, and
//! gives a [`DriverHandle`] for any number of threads.
//!
//! | file | what |
//! |---|---|
//! | `request.rs`, `options.rs`, `event.rs` | what the host says and hears |
//! | `scheduler.rs` | the requests, and one step |
//! | `admission.rs`, `chain.rs` | who starts, and from which cached state |
//! | `draft.rs`, `pace.rs`, `rank.rs` | what a plan asks for |
//! | `ladder.rs` | what happens when it is refused |
//! | `settle.rs`, `job.rs`, `output.rs`, `stop.rs` | what its events mean for a request |
//! | `stepped.rs`, `source.rs`, `clock.rs` | a driver that its owner drives |
//! | `serve.rs`, `outbox.rs` | a driver on a thread of its own |
//!
//! # Invariants
//! - The tokens of a request are those of the request alone: when its turn comes, how its prompt is cut, what is cached and how often
//!   it gives way decide when they come, never which.
//! - Each request has exactly one last event.
//! - When all requests are over and the driver is idle, it holds nothing in the engine.
//!
//! # Limits
//! [`DriverOptions`] bounds lanes, tokens of a tick, and waiting requests. Work of a step: the lanes, and what is admitted.
//!
//! # Not here
//! What a plan means: `engine`, `executor`. Chat templates: [`chat`](crate::chat).

mod admission;
mod chain;
mod clock;
mod draft;
mod event;
mod job;
mod ladder;
mod lanes;
mod options;
mod outbox;
mod output;
mod pace;
mod pool;
mod rank;
mod request;
mod scheduler;
mod serve;
mod settle;
mod source;
mod stepped;
mod stop;

pub use clock::{Clock, ManualClock, SystemClock};
pub use event::{Event, EventKind, Failure, Finish, Piece, Stats, TokenLogprob};
pub use options::{DriverOptions, DriverOptionsError};
pub use outbox::Next;
pub(crate) use outbox::{Outbox, Wanted};
pub use request::{Grammar, Prompt, Request, RequestId, Sampling, SubmitError, draw_base};
pub use scheduler::Progress;
pub use serve::{DriverHandle, Server, TokenStream};
pub use source::EngineSource;
pub use stepped::{Driver, DriverError};
