//! Random numbers that a test can replay: the key is printed, and `ICTUS_RNG` gives it back.

/// A stream of random numbers from one key (splitmix64).
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// From `ICTUS_RNG`, or from the clock; prints the key, which the harness shows when the test fails.
    pub(crate) fn new(test: &str) -> Self {
        let key = std::env::var("ICTUS_RNG").ok().and_then(|key| key.parse().ok()).unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
            now.as_nanos() as u64
        });
        println!("{test}: replay with ICTUS_RNG={key}");
        Self::from_key(key)
    }

    /// From a key.
    pub(crate) fn from_key(key: u64) -> Self {
        Self { state: key }
    }

    /// What it stands at: as a key it goes on from here.
    pub(crate) fn key(&self) -> u64 {
        self.state
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is above 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// A number in `low..=high`.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// One of the items.
    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// Mixes the items.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}
