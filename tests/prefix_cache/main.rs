//! The index of the prefix cache against a plain list of entries: the same random operations, every answer compared.

#[path = "../common/random.rs"]
#[expect(dead_code, reason = "not every test needs every kind of random number")]
mod random;

mod model;

use ictus::prefix::{CacheShape, Candidate, EntryId, Leaving, NewEntry, Place, PrefixCache, Scope};
use model::{Item, Match, Model};
use random::Random;

/// The cache, its model, and what both are asked.
struct Pair {
    cache: PrefixCache,
    model: Model,
    random: Random,
    now: u64,
    /// Names that are not used yet, mixed: names do not ascend with insertion.
    names: Vec<u64>,
    /// Token lists that spans and keys are made from.
    texts: Vec<Vec<u32>>,
    seen: Seen,
}

/// How often something happened that a run should have seen.
#[derive(Debug, Default)]
struct Seen {
    from_pool: usize,
    from_export: usize,
    seeds: usize,
    refused_seeds: usize,
    exports: usize,
    dropped_for_room: usize,
    covered: usize,
    swept: usize,
}

impl std::ops::AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        self.from_pool += other.from_pool;
        self.from_export += other.from_export;
        self.seeds += other.seeds;
        self.refused_seeds += other.refused_seeds;
        self.exports += other.exports;
        self.dropped_for_room += other.dropped_for_room;
        self.covered += other.covered;
        self.swept += other.swept;
    }
}

const SCOPES: [Scope; 2] = [Scope([0; 32]), Scope([7; 32])];
/// Ids that share their high bits, differ in the highest, or in the lowest.
const ALPHABET: [u32; 6] = [0, 1, 2, 3, 0x8000_0000, u32::MAX];
const TAINTS: [u64; 4] = [0, 1, 2, 3];

impl Pair {
    fn new(mut random: Random) -> Self {
        let shape = CacheShape {
            page_size_tokens: *random.pick(&[1, 2, 16]),
            cuttable: random.below(4) > 0,
            bytes_per_token: random.between(1, 3) as u64,
            seed_min_tokens: *random.pick(&[0, 1, 4, 20]),
            exported_tokens_max: *random.pick(&[0, 40, 200, 1000]),
            lease_ticks: random.between(0, 6) as u64,
        };
        println!("{shape:?}");
        let mut names: Vec<u64> = (1..=4000).collect();
        random.shuffle(&mut names);
        let cache = PrefixCache::new(shape);
        Self { cache, model: Model::new(shape), random, now: 1, names, texts: vec![Vec::new()], seen: Seen::default() }
    }

    fn scope(&mut self) -> Scope {
        SCOPES[usize::from(self.random.below(5) == 0)]
    }

    fn taint(&mut self) -> u64 {
        if self.random.below(3) > 0 { 0 } else { *self.random.pick(&TAINTS) }
    }

    /// A list of tokens that begins like an earlier one, mostly.
    fn text(&mut self) -> Vec<u32> {
        let mut text = self.random.pick(&self.texts).clone();
        let cut = match self.random.below(3) {
            0 => text.len(),
            _ => self.random.between(0, text.len()),
        };
        text.truncate(cut);
        let most = *self.random.pick(&[2, 10, 70]);
        let more = self.random.between(0, most);
        text.extend((0..more).map(|_| *self.random.pick(&ALPHABET)));
        if self.texts.len() < 40 {
            self.texts.push(text.clone());
        } else {
            let at = self.random.below(self.texts.len());
            self.texts[at] = text.clone();
        }
        text
    }

    fn key(&mut self) -> Vec<u32> {
        let mut key = self.text();
        if self.model.shape.cuttable && self.random.below(4) > 0 {
            key.truncate(key.len() / self.model.shape.page_size_tokens * self.model.shape.page_size_tokens);
        }
        key
    }

    fn any(&mut self) -> Option<EntryId> {
        match self.model.items.len() {
            0 => None,
            len => Some(self.model.items[self.random.below(len)].id),
        }
    }

    fn insert(&mut self) {
        let (scope, taint, key) = (self.scope(), self.taint(), self.key());
        let Some(name) = self.names.pop().filter(|_| !key.is_empty()) else { return };
        let held = key.len() as u64 + u64::from(self.random.below(8) == 0);
        let shared = self.random.below(6) == 0;
        let id = self.cache.insert(NewEntry {
            scope,
            sequence: name,
            tokens: key.clone(),
            prompt_len: key.len() / 2,
            held_tokens: held,
            now: self.now,
            shared,
            taint,
            generation: 1,
            adapter: 0,
        });
        assert!(self.model.items.iter().all(|item| item.id < id), "ids ascend");
        self.model.changed = true;
        let item =
            Item { id, name, scope, key, held, taint, shared, seeded: 0, last_use: self.now, pins: 0, exported: None };
        self.model.items.push(item);
    }

    fn remove(&mut self, id: EntryId) {
        let removed = self.cache.remove(id).expect("the entry exists");
        let at = self.model.items.iter().position(|item| item.id == id).expect("the entry exists");
        let item = self.model.items.remove(at);
        assert_eq!((removed.sequence, &*removed.tokens), (item.name, &*item.key));
        assert!(self.cache.remove(id).is_none() && self.cache.get(id).is_none());
    }

    fn ask(&mut self) {
        let (scope, span) = (self.scope(), self.text());
        let mut found: Vec<Candidate> = Vec::new();
        self.cache.matches(&scope, &span, &mut found);
        let found: Vec<Match> = found.iter().map(|c| (c.len, c.entry, c.in_pool, c.taint, c.digest)).collect();
        assert_eq!(found, self.model.matches(&scope, &span), "candidates of {span:?}");

        self.seen.from_pool += found.iter().filter(|found| found.2).count();
        self.seen.from_export += found.iter().filter(|found| !found.2).count();

        let n = self.random.between(0, span.len() + 1);
        let n = if self.random.below(2) == 0 { n / 2 * 2 } else { n };
        for untainted in [false, true] {
            let seed = if n <= span.len() { self.model.seed(&scope, &span, n, untainted) } else { None };
            assert_eq!(self.cache.find_seed(&scope, &span, n, untainted), seed, "seed of {n} of {span:?}");
        }

        let mut same = Vec::new();
        let key = match self.any() {
            Some(id) => self.model.item(id).key.clone(),
            None => span,
        };
        self.cache.exact(&scope, &key, &mut same);
        let plain = |holds: &dyn Fn(&Item) -> bool| -> Vec<EntryId> {
            self.model.items.iter().filter(|item| holds(item)).map(|item| item.id).collect()
        };
        assert_eq!(same, plain(&|item| item.scope == scope && item.key == key));
        self.cache.of_digest(&ictus::identity::content_digest(&key), &mut same);
        assert_eq!(same, plain(&|item| item.key == key));
    }

    fn acquire(&mut self) {
        let (scope, span) = (self.scope(), self.text());
        let n = self.random.between(0, span.len() + 1);
        let untainted = self.random.below(4) == 0;
        let seed = if n <= span.len() { self.model.seed(&scope, &span, n, untainted) } else { None };
        let lease = self.cache.acquire(&scope, &span, n as u64, 1, untainted, self.now);
        match seed {
            Some(id) => {
                let handle = lease.expect("an entry serves");
                assert_eq!(handle, self.model.lease(Some(id), self.now));
                let lease = self.cache.lease(handle).expect("it is live");
                self.seen.seeds += 1;
                assert_eq!((lease.prefix_tokens, lease.expires_at), (n, self.now + self.model.shape.lease_ticks));
            }
            None => {
                self.seen.refused_seeds += 1;
                assert_eq!(lease.expect_err("no entry serves").len, n as u64);
            }
        }
    }

    fn end_a_lease(&mut self) {
        let handle = self.random.between(0, self.model.handles as usize) as u64;
        assert_eq!(self.cache.release(handle).is_some(), self.model.release(handle));
        assert!(self.cache.release(handle).is_none() && self.cache.lease(handle).is_none());
    }

    fn tick(&mut self) {
        self.now += 1;
        self.model.shortage_ticks = self.model.shortage_ticks.saturating_sub(1);
        let over = self.model.expired(self.now);
        let swept: Vec<u64> = std::iter::from_fn(|| self.cache.pop_expired(self.now)).map(|l| l.handle).collect();
        assert_eq!(swept, over);
    }

    fn seed_a_lane(&mut self) {
        let Some(id) = self.any() else { return };
        let keep = self.random.between(1, self.model.item(id).key.len());
        let keep = if self.random.below(2) == 0 { keep.div_ceil(12) } else { keep };
        self.cache.seeded(id, keep, self.now);
        self.model.seeded(id, keep, self.now);
    }

    /// One entry leaves the pool, as a caller makes it leave.
    fn leave(&mut self, id: EntryId) {
        let mut drops = vec![id];
        let leaving = self.cache.leaving(id, self.now, &mut drops);
        match self.model.export_drops(id) {
            Some(expected) => {
                assert_eq!((leaving, &drops), (Leaving::Export, &expected));
                if self.random.below(6) == 0 {
                    return self.remove(id); // the runtime's export failed
                }
                self.seen.exports += 1;
                self.seen.dropped_for_room += expected.len();
                expected.into_iter().for_each(|drop| self.remove(drop));
                let bytes = self.random.between(1, 50);
                let item = self.model.item(id);
                item.exported = Some(bytes as u64);
                item.held = item.key.len() as u64;
                let name = item.name;
                assert_eq!(self.cache.export_done(id, vec![0; bytes]), Some(name));
                assert_eq!(self.cache.export_done(id, Vec::new()), None, "it left the pool already");
            }
            None => {
                assert_eq!((leaving, &*drops), (Leaving::Evict, &[][..]));
                self.remove(id);
            }
        }
    }

    fn evict(&mut self) {
        let (cap, want) = (self.random.between(0, 200) as u64, self.random.between(0, 200) as u64);
        let (shared, count) = (self.random.below(2) == 0, self.random.below(3));
        let mut chosen = Vec::new();
        let enough = self
            .cache
            .choose_evictions(cap, shared, &mut chosen, |bytes, chosen| bytes >= want && chosen.len() >= count);
        assert_eq!((chosen.clone(), enough), self.model.evictions(cap, shared, want, count));
        if self.random.below(4) == 0 {
            chosen.into_iter().for_each(|id| self.leave(id));
        }
    }

    fn settle(&mut self) {
        for _ in 0..self.random.below(3) {
            let remainder = self.random.next() % 3;
            let victim = self.cache.settling_victim(|entry| entry.sequence % 3 == remainder);
            assert_eq!(victim, self.model.settling_victim(|name| name % 3 == remainder));
            if let Some(id) = victim {
                self.leave(id);
            }
        }
        assert_eq!(self.cache.changed(), self.model.changed);
        let expected = self.model.sweep();
        let mut dropped = Vec::new();
        while let Some(id) = self.cache.next_covered_export() {
            dropped.push(id);
            assert!(self.cache.remove(id).is_some());
        }
        self.seen.swept += dropped.len();
        assert_eq!(dropped, expected, "covered exports");
        assert!(!self.cache.changed());
    }

    fn shortage(&mut self) {
        let mut drops = Vec::new();
        self.cache.begin_shortage(self.now, &mut drops);
        let mut expected = self.model.exports();
        assert_eq!(drops, expected);
        self.model.shortage_ticks = 65; // now and the next 64
        expected.drain(..).for_each(|id| self.remove(id));
    }

    fn compare_everything(&mut self) {
        let order: Vec<EntryId> = self.cache.eviction_order().map(|entry| entry.id).collect();
        assert_eq!(order, self.model.eviction_order());
        let exports: Vec<EntryId> = self.cache.exports_by_worth().map(|entry| entry.id).collect();
        assert_eq!(exports, self.model.exports());
        let bytes =
            |item: &Item| if item.exported.is_some() { 0 } else { item.held * self.model.shape.bytes_per_token };
        let items = &self.model.items;
        let sums = [
            items.len() as u64,
            items.iter().map(bytes).sum(),
            items.iter().filter(|item| item.pins == 0).map(bytes).sum(),
            items.iter().filter_map(|item| item.exported).sum(),
            items.iter().filter(|item| item.exported.is_some()).map(|item| item.key.len() as u64).sum(),
            items.iter().map(|item| u64::from(item.pins)).sum(),
        ];
        let cache = &self.cache;
        let counted = [
            cache.len() as u64,
            cache.resident_bytes(),
            cache.evictable_bytes(),
            cache.host_bytes(),
            cache.exported_tokens(),
            cache.pins(),
        ];
        assert_eq!(counted, sums);
        for (item, entry) in items.iter().zip(cache.entries()) {
            assert_eq!(entry.id, item.id);
            let covered = cache.is_covered(item.id);
            assert_eq!(covered, self.model.covered(item.id), "covered: {item:?}");
            self.seen.covered += usize::from(covered);
            assert_eq!(cache.of_sequence(item.name).is_some(), item.exported.is_none());
            let standing = (entry.pins, entry.last_use, entry.seeded, entry.place == Place::Pool);
            assert_eq!(standing, (item.pins, item.last_use, item.seeded, item.exported.is_none()));
        }
        assert_eq!(cache.leases().count(), self.model.leases.len());
        cache.audit().expect("the invariants hold");
    }

    fn step(&mut self) {
        match self.random.below(28) {
            0..=4 | 24..=27 => self.insert(),
            5..=7 => self.ask(),
            8 | 9 => self.acquire(),
            10 => self.end_a_lease(),
            11 | 12 => self.tick(),
            13 | 14 => self.seed_a_lane(),
            15 => self.evict(),
            16 | 20 => self.settle(),
            17 => {
                // Few entries stay for long.
                let pinned = |item: &Item| item.pins > 0;
                if let Some(id) = self.any().filter(|&id| !pinned(self.model.item(id))) {
                    self.remove(id);
                }
            }
            18 | 21 | 22 => match self.model.eviction_order() {
                order if order.is_empty() => {}
                order => {
                    let id = *self.random.pick(&order);
                    self.leave(id);
                }
            },
            _ if self.random.below(30) == 0 => self.shortage(),
            _ => {
                let (name, now) = (self.random.next(), self.now);
                let handle = self.cache.adopt(name, 3, 2, now);
                assert_eq!(handle, self.model.lease(None, now));
            }
        }
    }
}

/// Caches of one run.
const PAIRS: usize = 300;

/// S-40 .. S-49, S-51 .. S-60, S-94, S-95, T-21, T-34, T-68, T-80, T-90, T-145: the index answers as the rules over a list, on
/// cuttable and head-only runtimes, pages of 1, 2 and 16 tokens, with scopes, taints, exports, pins and equal keys.
#[test]
fn index_matches_the_plain_list_under_random_operations() {
    let mut random = Random::new("index_matches_the_plain_list_under_random_operations");
    let mut seen = Seen::default();
    for _ in 0..PAIRS {
        let mut pair = Pair::new(Random::from_key(random.next()));
        for step in 0..600 {
            pair.step();
            if step % 5 == 0 {
                pair.compare_everything();
            }
        }
        seen += pair.seen;
    }
    println!("{seen:?}");
    let Seen { from_pool, from_export, seeds, refused_seeds, exports, dropped_for_room, covered, swept } = seen;
    let least = [from_pool, from_export, seeds, refused_seeds, exports, dropped_for_room, covered, swept];
    assert!(least.into_iter().all(|times| times > PAIRS / 4), "what the run is about hardly happened");
}
