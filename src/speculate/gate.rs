#![forbid(unsafe_code)]
//! Whether ticks draft: only while it makes them faster (R-44 .. R-48).
//!
//! A verified draft costs a wider step. With one lane the wider step is nearly free, with many it may cost more than the
//! accepted tokens bring. So ticks are timed, apart for each number of decoding lanes:
//!
//! ```text
//!   Probe(drafting, 2) --> Probe(plain, 1) --> decide --> Run(winner, its window), which then doubles
//!                               ^                 ^         |
//!                               |                 +-- Probe(drafting, 2) <-- plain window over
//!                               +------------------------------------------ drafting window over
//! ```
//! In a drafting window a tick after which drafting is clearly slower decides at once.

use std::collections::BTreeMap;

use super::Config;

/// Ticks of a probe of drafting.
const PROBE_DRAFTING_TICKS: u32 = 2;
/// Ticks of a probe of not drafting.
const PROBE_PLAIN_TICKS: u32 = 1;
/// Weight of the old rate when a tick was timed.
const OLD_WEIGHT: f64 = 0.7;

/// A way to run ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Drafting,
    Plain,
}

/// What the ticks of one number of lanes are doing.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stage {
    way: Way,
    probing: bool,
    ticks_left: u32,
}

/// Memory for one number of lanes.
#[derive(Clone, Debug)]
struct Track {
    stage: Stage,
    /// Tokens per second, once known.
    drafting: Option<f64>,
    plain: Option<f64>,
    /// Ticks of the next window of each way.
    drafting_window: u32,
    plain_window: u32,
    /// The first drafted tick warms things up, and is not counted.
    warmed: bool,
}

/// The gate of an engine.
#[derive(Clone, Debug)]
pub struct Gate {
    config: Config,
    tracks: BTreeMap<u32, Track>,
}

impl Gate {
    /// A gate that knows nothing.
    pub fn new(config: Config) -> Self {
        Self { config, tracks: BTreeMap::new() }
    }

    /// Whether a tick with this many decoding lanes drafts.
    pub fn is_open(&self, lanes: u32) -> bool {
        !self.config.throughput_gate || self.tracks.get(&lanes).is_none_or(|track| track.stage.way == Way::Drafting)
    }

    /// Learns from a tick in which a speculating lane decoded: `tokens` from decode steps in `secs` seconds, with drafts verified or
    /// without.
    ///
    /// A tick with fewer tokens than lanes says nothing.
    pub fn record(&mut self, lanes: u32, drafted: bool, tokens: u64, secs: f64) {
        if !self.config.throughput_gate || tokens < u64::from(lanes) || tokens == 0 {
            return;
        }
        let config = self.config;
        let rate = tokens as f64 / secs.max(f64::MIN_POSITIVE);
        self.tracks.entry(lanes).or_insert_with(|| Track::new(&config)).record(drafted, rate, &config);
    }
}

impl Track {
    fn new(config: &Config) -> Self {
        Self {
            stage: Stage { way: Way::Drafting, probing: true, ticks_left: PROBE_DRAFTING_TICKS },
            drafting: None,
            plain: None,
            drafting_window: config.gate_reprobe,
            plain_window: config.gate_reprobe,
            warmed: false,
        }
    }

    fn record(&mut self, drafted: bool, rate: f64, config: &Config) {
        let warms = drafted && !self.warmed;
        self.warmed |= drafted;
        if !warms {
            let known = if drafted { &mut self.drafting } else { &mut self.plain };
            *known = Some(known.map_or(rate, |known| OLD_WEIGHT * known + (1.0 - OLD_WEIGHT) * rate));
        }
        let Stage { way, probing, .. } = self.stage;
        let hopeless = match (self.drafting, self.plain) {
            (Some(drafting), Some(plain)) => drafting * config.min_speedup < plain,
            _ => false,
        };
        if !probing && way == Way::Drafting && drafted && hopeless {
            return self.decide(config);
        }
        self.stage.ticks_left = self.stage.ticks_left.saturating_sub(1);
        if self.stage.ticks_left > 0 {
            return;
        }
        match (probing, way) {
            (true, Way::Drafting) if self.plain.is_none() => self.probe(Way::Plain, PROBE_PLAIN_TICKS),
            (true, _) => self.decide(config),
            (false, Way::Drafting) => self.probe(Way::Plain, PROBE_PLAIN_TICKS),
            (false, Way::Plain) => self.probe(Way::Drafting, PROBE_DRAFTING_TICKS),
        }
    }

    fn probe(&mut self, way: Way, ticks: u32) {
        self.stage = Stage { way, probing: true, ticks_left: ticks };
    }

    /// The winner runs for its window, which then doubles; the loser's starts over (R-47).
    fn decide(&mut self, config: &Config) {
        let drafting_wins = match (self.drafting, self.plain) {
            (Some(drafting), Some(plain)) => drafting >= plain * config.min_speedup,
            _ => true,
        };
        let (way, winner, loser) = match drafting_wins {
            true => (Way::Drafting, &mut self.drafting_window, &mut self.plain_window),
            false => (Way::Plain, &mut self.plain_window, &mut self.drafting_window),
        };
        self.stage = Stage { way, probing: false, ticks_left: *winner };
        *winner = winner.saturating_mul(2).min(config.gate_reprobe_max);
        *loser = config.gate_reprobe;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks at a rate that depends on whether they draft; answers which of them drafted.
    fn run(gate: &mut Gate, lanes: u32, ticks: usize, drafting: f64, plain: f64) -> Vec<bool> {
        let mut drafted = Vec::new();
        for _ in 0..ticks {
            let open = gate.is_open(lanes);
            let rate = if open { drafting } else { plain };
            gate.record(lanes, open, 100, 100.0 / rate);
            drafted.push(open);
        }
        drafted
    }

    fn count(ticks: &[bool]) -> usize {
        ticks.iter().filter(|&&drafted| drafted).count()
    }

    /// RS-10, R-44 .. R-47.
    #[test]
    fn rs_10_gate_opens_where_drafts_pay_and_closes_when_they_stop_paying() {
        let mut gate = Gate::new(Config::default());
        let eight = run(&mut gate, 8, 40, 80.0, 100.0);
        assert!(count(&eight[20..]) <= 6, "{eight:?}");
        let one = run(&mut gate, 1, 40, 150.0, 100.0);
        assert!(count(&one[20..]) >= 14, "{one:?}");
        assert!(gate.is_open(1) && !gate.is_open(8), "each number of lanes has a gate of its own");
        let slow = run(&mut gate, 1, 10, 30.0, 100.0);
        assert!(!slow[3], "closed within 3 ticks: {slow:?}");
    }

    /// RS-11, R-45.
    #[test]
    fn rs_11_first_drafted_tick_is_not_counted() {
        let mut gate = Gate::new(Config::default());
        gate.record(1, true, 100, 1000.0);
        let drafted = run(&mut gate, 1, 20, 150.0, 100.0);
        assert_eq!(count(&drafted), 19, "all but one probe draft: {drafted:?}");
    }

    /// R-44, R-46: the states one after another, for a gate that drafts and for one that does not.
    #[test]
    fn windows_double_and_end_in_probes_of_the_other_way() {
        let config = Config { gate_reprobe: 4, gate_reprobe_max: 8, ..Config::default() };
        let pattern = |drafting, plain| {
            let ticks = run(&mut Gate::new(config), 1, 32, drafting, plain);
            ticks.iter().map(|&drafted| if drafted { 'd' } else { 'p' }).collect::<String>()
        };
        assert_eq!(pattern(200.0, 100.0), "ddpddddpddddddddpddddddddpdddddd");
        assert_eq!(pattern(100.0, 100.0), "ddpppppddppppppppddppppppppddppp");
    }

    /// R-45: too few tokens say nothing; a tick that drafted nothing although it could counts as plain.
    #[test]
    fn ticks_that_say_nothing_move_nothing() {
        let mut gate = Gate::new(Config::default());
        for _ in 0..100 {
            gate.record(4, true, 3, 1.0);
        }
        assert!(gate.tracks.is_empty());
        for _ in 0..3 {
            gate.record(4, false, 4, 1.0);
        }
        assert!(gate.is_open(4), "nothing is known of drafting, so it wins (R-47)");
        assert_eq!(gate.tracks[&4].plain, Some(4.0));
    }

    /// R-44.
    #[test]
    fn gate_that_is_off_is_open() {
        let mut gate = Gate::new(Config { throughput_gate: false, ..Config::default() });
        assert_eq!(count(&run(&mut gate, 3, 50, 1.0, 100.0)), 50);
    }

    /// R-45: rates move by three tenths.
    #[test]
    fn rates_are_averaged() {
        let mut gate = Gate::new(Config::default());
        for rate in [1.0, 100.0, 200.0] {
            gate.record(1, true, 100, 100.0 / rate);
        }
        let rate = gate.tracks[&1].drafting.unwrap_or(0.0);
        assert!((rate - 130.0).abs() < 1e-9, "{rate}");
    }
}
