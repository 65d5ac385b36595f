//! The prefix cache as a plain list: each answer is its rule, read over all entries.

use ictus::identity::content_digest;
use ictus::prefix::{CacheShape, EntryId, Scope};

/// What a rule may ask of an entry.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) id: EntryId,
    pub(crate) name: u64,
    pub(crate) scope: Scope,
    pub(crate) key: Vec<u32>,
    pub(crate) held: u64,
    pub(crate) taint: u64,
    pub(crate) shared: bool,
    pub(crate) seeded: u64,
    pub(crate) last_use: u64,
    pub(crate) pins: u32,
    /// Payload bytes when exported.
    pub(crate) exported: Option<u64>,
}

/// A lease on an item, or on a bare sequence.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) handle: u64,
    pub(crate) entry: Option<EntryId>,
    pub(crate) expires_at: u64,
}

/// Items in insertion order.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) shape: CacheShape,
    pub(crate) items: Vec<Item>,
    pub(crate) leases: Vec<Lease>,
    pub(crate) handles: u64,
    pub(crate) changed: bool,
    /// Ticks that the shortage still lasts, the present one included.
    pub(crate) shortage_ticks: u64,
}

/// A candidate: length, entry, in the pool, taint, digest.
pub(crate) type Match = (usize, EntryId, bool, u64, [u8; 32]);

fn common(a: &[u32], b: &[u32]) -> usize {
    let mut n = 0;
    while n < a.len() && n < b.len() && a[n] == b[n] {
        n += 1;
    }
    n
}

fn begins(key: &[u32], with: &[u32]) -> bool {
    common(key, with) == with.len()
}

impl Item {
    fn shared_prefix(&self) -> bool {
        self.shared || self.seeded >= 2
    }

    /// S-51.
    fn serves(&self, n: usize) -> bool {
        self.exported.is_none() || n * 8 >= self.key.len()
    }
}

impl Model {
    pub(crate) fn new(shape: CacheShape) -> Self {
        Self { shape, items: Vec::new(), leases: Vec::new(), handles: 0, changed: false, shortage_ticks: 0 }
    }

    fn tiers(&self, scope: &Scope) -> Vec<&Item> {
        let of = |exported| self.items.iter().filter(move |i| i.scope == *scope && i.exported.is_some() == exported);
        of(false).chain(of(true)).collect()
    }

    /// S-46.
    pub(crate) fn matches(&self, scope: &Scope, span: &[u32]) -> Vec<Match> {
        let page = self.shape.page_size_tokens;
        let mut found: Vec<Match> = Vec::new();
        for item in self.tiers(scope) {
            let len = if self.shape.cuttable {
                common(&item.key, span) / page * page
            } else if begins(span, &item.key) && span.len() > item.key.len() {
                item.key.len()
            } else {
                0
            };
            let kept = len >= page && len.is_multiple_of(page) && item.serves(len);
            if kept && !found.iter().any(|other| other.0 == len) {
                found.push((len, item.id, item.exported.is_none(), item.taint, content_digest(&span[..len])));
            }
        }
        found.sort_by_key(|found| std::cmp::Reverse(found.0));
        found
    }

    /// S-40, S-41, S-94.
    pub(crate) fn seed(&self, scope: &Scope, span: &[u32], n: usize, untainted: bool) -> Option<EntryId> {
        let legal = n >= 1
            && n.is_multiple_of(self.shape.page_size_tokens)
            && n <= span.len()
            && (self.shape.cuttable || n < span.len());
        let serves = |item: &&Item| {
            begins(&item.key, &span[..n])
                && (self.shape.cuttable || item.key.len() == n)
                && (n as u64 >= self.shape.seed_min_tokens || item.key.len() == n)
                && item.serves(n)
                && (!untainted || item.taint == 0)
        };
        if legal { self.tiers(scope).into_iter().find(serves).map(|item| item.id) } else { None }
    }

    /// S-53.
    pub(crate) fn covered(&self, id: EntryId) -> bool {
        let Some(e) = self.items.iter().find(|item| item.id == id) else { return false };
        let n = e.key.len();
        if !self.shape.cuttable || (n as u64) < self.shape.seed_min_tokens {
            return false;
        }
        self.items.iter().filter(|o| o.id != id && o.scope == e.scope && o.taint | e.taint == e.taint).any(|o| {
            let c = common(&o.key, &e.key);
            let later = (o.last_use, o.name) > (e.last_use, e.name);
            let real = c * 8 >= o.key.len();
            real && if c == n { o.key.len() > n || later } else { later && (n - c) * 8 <= n }
        })
    }

    fn in_order(&self, exported: bool) -> Vec<&Item> {
        let mut items: Vec<&Item> =
            self.items.iter().filter(|i| i.pins == 0 && i.exported.is_some() == exported).collect();
        items.sort_by_key(|item| (item.shared_prefix(), item.last_use));
        items
    }

    /// S-54.
    pub(crate) fn eviction_order(&self) -> Vec<EntryId> {
        self.in_order(false).iter().map(|item| item.id).collect()
    }

    /// S-56: exports by worth.
    pub(crate) fn exports(&self) -> Vec<EntryId> {
        self.in_order(true).iter().map(|item| item.id).collect()
    }

    /// S-55, T-68: until `want` bytes and `count` entries are chosen.
    pub(crate) fn evictions(&self, cap: u64, shared: bool, want: u64, count: usize) -> (Vec<EntryId>, bool) {
        let (mut chosen, mut sum) = (Vec::new(), 0);
        for item in self.in_order(false) {
            if sum >= want && chosen.len() >= count {
                break;
            }
            let bytes = item.held * self.shape.bytes_per_token;
            if (shared || !item.shared_prefix()) && sum + bytes <= cap {
                sum += bytes;
                chosen.push(item.id);
            }
        }
        let enough = sum >= want && chosen.len() >= count;
        (chosen, enough)
    }

    /// S-56: the exports to drop when the entry is exported; none when it is evicted.
    pub(crate) fn export_drops(&self, id: EntryId) -> Option<Vec<EntryId>> {
        let item = self.items.iter().find(|item| item.id == id)?;
        let tokens = item.key.len() as u64;
        let room = self.shape.exported_tokens_max;
        if room < tokens || item.held != tokens || self.shortage_ticks > 0 || self.covered(id) {
            return None;
        }
        let mut sum: u64 = self.items.iter().filter(|i| i.exported.is_some()).map(|i| i.key.len() as u64).sum();
        let mut drops = Vec::new();
        for export in self.in_order(true) {
            if sum + tokens > room && (export.shared_prefix(), export.last_use) <= (item.shared_prefix(), item.last_use)
            {
                sum -= export.key.len() as u64;
                drops.push(export.id);
            }
        }
        (sum + tokens <= room).then_some(drops)
    }

    /// S-57, first sentence.
    pub(crate) fn settling_victim(&self, frees: impl Fn(u64) -> bool) -> Option<EntryId> {
        let order = self.in_order(false);
        let better = order.iter().find(|item| self.covered(item.id) || frees(item.name));
        better.or(order.first()).map(|item| item.id)
    }

    /// S-57, second sentence: drops and answers what is dropped.
    pub(crate) fn sweep(&mut self) -> Vec<EntryId> {
        let mut dropped = Vec::new();
        if std::mem::take(&mut self.changed) {
            for item in self.items.clone() {
                if item.exported.is_some() && item.pins == 0 && self.covered(item.id) {
                    self.items.retain(|other| other.id != item.id);
                    dropped.push(item.id);
                }
            }
        }
        dropped
    }

    pub(crate) fn item(&mut self, id: EntryId) -> &mut Item {
        self.items.iter_mut().find(|item| item.id == id).expect("the entry exists")
    }

    /// T-80, S-51.
    pub(crate) fn seeded(&mut self, id: EntryId, keep: usize, now: u64) {
        let item = self.item(id);
        item.seeded += 1;
        if keep * 8 >= item.key.len() {
            item.last_use = now;
            self.changed = true;
        }
    }

    pub(crate) fn lease(&mut self, entry: Option<EntryId>, now: u64) -> u64 {
        self.handles += 1;
        self.leases.push(Lease { handle: self.handles, entry, expires_at: now + self.shape.lease_ticks });
        if let Some(id) = entry {
            self.item(id).pins += 1;
        }
        self.handles
    }

    pub(crate) fn release(&mut self, handle: u64) -> bool {
        let Some(at) = self.leases.iter().position(|lease| lease.handle == handle) else { return false };
        if let Some(item) = self.leases.remove(at).entry.and_then(|id| self.items.iter_mut().find(|i| i.id == id)) {
            item.pins -= 1;
        }
        true
    }

    /// S-43: leases that are over when a tick begins at `now`.
    pub(crate) fn expired(&mut self, now: u64) -> Vec<u64> {
        let over: Vec<u64> = self.leases.iter().filter(|l| l.expires_at < now).map(|l| l.handle).collect();
        over.iter().for_each(|&handle| assert!(self.release(handle)));
        over
    }
}
