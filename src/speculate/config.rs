#![forbid(unsafe_code)]
//! The configuration text of a strategy.

/// Most tokens of a draft: a verified step feeds them behind one pending token, and answers at most eight rows.
pub const DRAFT_MAX: usize = 7;

/// How a strategy drafts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Most tokens of a draft, between 1 and [`DRAFT_MAX`].
    pub max_draft: usize,
    /// Lanes shorten their drafts when few tokens are accepted.
    pub adaptive: bool,
    /// Accepted tokens per round below which a lane rests.
    pub min_yield: f64,
    /// Rounds over which that is measured, at least 1.
    pub yield_rounds: u32,
    /// Ticks are drafted only while that is faster.
    pub throughput_gate: bool,
    /// How much faster drafting must be than not drafting.
    pub min_speedup: f64,
    /// Ticks, or rounds of rest, until the other way is tried again, at least 1.
    pub gate_reprobe: u32,
    /// What that doubles up to, at least `gate_reprobe`.
    pub gate_reprobe_max: u32,
    /// Certificates cover lanes with a grammar or a bias too. Not a key of the baseline, where such lanes never draft.
    pub shaped: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_draft: 4,
            adaptive: true,
            min_yield: 0.75,
            yield_rounds: 24,
            throughput_gate: true,
            min_speedup: 1.08,
            gate_reprobe: 32,
            gate_reprobe_max: 1024,
            shaped: false,
        }
    }
}

impl Config {
    /// Reads `key=value` pairs separated by commas.
    ///
    /// Blanks around keys and values are ignored, and so are keys that are not known and values that are not numbers; the
    /// last pair of a key counts. Numbers out of range are brought into it. A switch is off for `0` only.
    pub fn parse(text: &str) -> Self {
        let mut config = Self::default();
        for (key, value) in text.split(',').filter_map(|pair| pair.split_once('=')) {
            config.set(key.trim(), value.trim());
        }
        config.max_draft = config.max_draft.clamp(1, DRAFT_MAX);
        config.yield_rounds = config.yield_rounds.max(1);
        config.gate_reprobe = config.gate_reprobe.max(1);
        config.gate_reprobe_max = config.gate_reprobe_max.max(config.gate_reprobe);
        config
    }

    fn set(&mut self, key: &str, value: &str) {
        match key {
            "max_draft" => count(value, &mut self.max_draft),
            "adaptive" => self.adaptive = value != "0",
            "min_yield" => rate(value, &mut self.min_yield),
            "yield_rounds" => count(value, &mut self.yield_rounds),
            "throughput_gate" => self.throughput_gate = value != "0",
            "min_speedup" => rate(value, &mut self.min_speedup),
            "gate_reprobe" => count(value, &mut self.gate_reprobe),
            "gate_reprobe_max" => count(value, &mut self.gate_reprobe_max),
            "shaped" => self.shaped = value != "0",
            _ => {}
        }
    }
}

fn count<T: std::str::FromStr>(value: &str, target: &mut T) {
    if let Ok(number) = value.parse() {
        *target = number;
    }
}

fn rate(value: &str, target: &mut f64) {
    if let Some(number) = value.parse::<f64>().ok().filter(|number| number.is_finite()) {
        *target = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RS-8, R-41: empty is all defaults, every key is read, unknown ones are not.
    #[test]
    fn rs_8_config_text_is_read_key_by_key() {
        assert_eq!(Config::parse(""), Config::default());
        assert_eq!(Config::parse(" , ,=,max_draft,nonsense=5,max_draft=many"), Config::default());
        let all = "max_draft = 2, adaptive=0 ,min_yield=0.5,yield_rounds=4,throughput_gate=0,colour=red,\
                   min_speedup=1.5,gate_reprobe=3,gate_reprobe_max=48,shaped=1";
        let expected = Config {
            max_draft: 2,
            adaptive: false,
            min_yield: 0.5,
            yield_rounds: 4,
            throughput_gate: false,
            min_speedup: 1.5,
            gate_reprobe: 3,
            gate_reprobe_max: 48,
            shaped: true,
        };
        assert_eq!(Config::parse(all), expected);
        assert_eq!(Config::parse("max_draft=99").max_draft, 7);
        assert_eq!(Config::parse("max_draft=0").max_draft, 1);
    }

    ///
    #[test]
    fn values_out_of_range_are_brought_into_it() {
        let config = Config::parse("yield_rounds=0,gate_reprobe=0,gate_reprobe_max=0");
        assert_eq!((config.yield_rounds, config.gate_reprobe, config.gate_reprobe_max), (1, 1, 1));
        assert_eq!(Config::parse("gate_reprobe=2000").gate_reprobe_max, 2000);
        let odd = Config::parse("min_yield=nan,min_speedup=inf,max_draft=-3,yield_rounds=99999999999");
        assert_eq!(odd, Config::default(), "what is no number of its kind keeps the default");
        assert!(Config::parse("adaptive=false").adaptive, "off for 0 only");
        assert_eq!(Config::parse("max_draft=2,max_draft=6").max_draft, 6);
    }
}
