#![forbid(unsafe_code)]
//! How many tokens one lane drafts, and when it rests.

use super::Config;

/// Weight of the old average when a verified round comes.
const OLD_WEIGHT: f64 = 0.8;

/// The drafting habits of one lane.
#[derive(Clone, Debug)]
pub struct Depth {
    config: Config,
    depth: usize,
    /// Accepted tokens per round, once a round was verified.
    accepted_mean: Option<f64>,
    /// Of the window that runs.
    rounds: u32,
    accepted: u64,
    /// Rounds that the lane still rests.
    resting: u32,
    /// How long the next rest will be.
    next_rest: u32,
}

impl Depth {
    /// A lane that drafts as much as it may.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            depth: config.max_draft,
            accepted_mean: None,
            rounds: 0,
            accepted: 0,
            resting: 0,
            next_rest: config.gate_reprobe,
        }
    }

    /// Tokens to draft in a round of a drafting tick; 0 while the lane rests. A round of rest counts down here.
    pub fn next_round(&mut self) -> usize {
        if self.resting > 0 {
            self.resting -= 1;
            return 0;
        }
        self.depth
    }

    /// Learns from a verified round whose draft was not empty.
    pub fn learn(&mut self, accepted: usize) {
        let mean = match self.accepted_mean {
            Some(mean) => OLD_WEIGHT * mean + (1.0 - OLD_WEIGHT) * accepted as f64,
            None => accepted as f64,
        };
        self.accepted_mean = Some(mean);
        if self.config.adaptive {
            // At most `DRAFT_MAX` is ever accepted, so the average fits.
            self.depth = (mean.ceil() as usize + 1).clamp(1, self.config.max_draft);
        }
        self.rounds += 1;
        self.accepted += accepted as u64;
        if self.rounds >= self.config.yield_rounds {
            self.end_window();
        }
    }

    fn end_window(&mut self) {
        let per_round = self.accepted as f64 / f64::from(self.rounds);
        if per_round < self.config.min_yield {
            self.resting = self.next_rest;
            self.next_rest = self.next_rest.saturating_mul(2).min(self.config.gate_reprobe_max);
        } else {
            self.next_rest = self.config.gate_reprobe;
        }
        (self.rounds, self.accepted) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// the average moves by a fifth, the depth is one above it.
    #[test]
    fn depth_follows_what_is_accepted() {
        let mut depth = Depth::new(Config { max_draft: 6, ..Config::default() });
        assert_eq!(depth.next_round(), 6, "a lane starts with the most it may");
        depth.learn(2);
        assert_eq!(depth.next_round(), 3, "the first round is the average");
        depth.learn(6);
        assert_eq!(depth.next_round(), 4, "0.8 * 2 + 0.2 * 6 = 2.8");
        for _ in 0..30 {
            depth.learn(6);
        }
        assert_eq!(depth.next_round(), 6);
        let mut stiff = Depth::new(Config { max_draft: 6, adaptive: false, ..Config::default() });
        stiff.learn(0);
        assert_eq!(stiff.next_round(), 6);
    }

    /// RS-9, R-43: rounds of rest are counted, and double while nothing comes of the drafts.
    #[test]
    fn rs_9_lane_without_yield_rests_and_tries_again() {
        let config =
            Config { yield_rounds: 4, min_yield: 1.0, gate_reprobe: 3, gate_reprobe_max: 12, ..Config::default() };
        let mut depth = Depth::new(config);
        let mut rests = Vec::new();
        for window in 0..5 {
            for round in 0..4 {
                assert!(depth.next_round() > 0, "window {window}, round {round}");
                depth.learn(0);
            }
            let mut rested = 0;
            while depth.clone().next_round() == 0 {
                depth.next_round();
                rested += 1;
            }
            assert_eq!(depth.depth, 1);
            rests.push(rested);
        }
        assert_eq!(rests, [3, 6, 12, 12, 12]);
        for accepted in [1, 1, 1, 1, 0, 0, 0] {
            assert_ne!(depth.next_round(), 0, "after a good window the lane goes on");
            depth.learn(accepted);
        }
        depth.learn(3);
        assert_eq!((0..4).map(|_| depth.next_round().min(1)).collect::<Vec<_>>(), [0, 0, 0, 1], "rests start over");
    }
}
