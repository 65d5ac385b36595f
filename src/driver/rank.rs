#![forbid(unsafe_code)]
//! Who goes first.
//!
//! A request ranks by the moment of its submission, moved back by [`DriverOptions::ageing`](super::DriverOptions::ageing) for each level of
//! its priority. So waiting earns rank without anything being recomputed, and nobody starves: a request can be overtaken only by those
//! that come within `(their priority - its priority) x ageing` of it.

use core::time::Duration;

use super::clock::nanoseconds;
use super::request::RequestId;

/// The smaller one goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    arrival_ns: i128,
    id: RequestId,
}

impl Rank {
    pub(super) fn new(submitted: Duration, priority: i16, ageing: Duration, id: RequestId) -> Self {
        let head_start = i128::from(priority) * i128::from(nanoseconds(ageing));
        Self { arrival_ns: i128::from(nanoseconds(submitted)) - head_start, id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_of_priority_is_worth_its_waiting_time() {
        let rank = |seconds, priority, id| {
            Rank::new(Duration::from_secs(seconds), priority, Duration::from_secs(10), RequestId(id))
        };
        assert!(rank(5, 0, 1) < rank(5, 0, 2), "the older one of two alike");
        assert!(rank(9, 1, 2) < rank(0, 0, 1), "a level up, nine seconds later");
        assert!(rank(11, 1, 2) > rank(0, 0, 1), "eleven seconds later it does not overtake");
        assert!(rank(0, i16::MIN, 1) > rank(0, i16::MAX, 2));
        let huge = Rank::new(Duration::MAX, i16::MIN, Duration::MAX, RequestId(1));
        assert!(huge > rank(0, 0, 1));
    }
}
