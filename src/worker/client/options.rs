#![forbid(unsafe_code)]
//! What a host may choose about its worker.

use std::time::Duration;

/// How long a worker may take, and how often it is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteOptions {
    /// From the start to the end of the handshake, the load of the model with it; none waits for ever. 10 minutes.
    pub start_timeout: Option<Duration>,
    /// One tick; none waits for ever. 10 minutes.
    pub tick_timeout: Option<Duration>,
    /// Any other request; none waits for ever. 1 minute.
    pub request_timeout: Option<Duration>,
    /// How many fresh workers a call may use up; 0 never replaces one: the first end is the last. 3.
    pub restarts: u32,
    /// Pause before the second fresh worker in a row; each further one doubles it. 100 ms.
    pub backoff: Duration,
    /// How often the words of [`Rings`](crate::ring::Rings) that hurry the engine are looked at while it ticks. 1 ms.
    pub control_interval: Duration,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self {
            start_timeout: Some(Duration::from_secs(600)),
            tick_timeout: Some(Duration::from_secs(600)),
            request_timeout: Some(Duration::from_secs(60)),
            restarts: 3,
            backoff: Duration::from_millis(100),
            control_interval: Duration::from_millis(1),
        }
    }
}
