//! The prefix cache as a list (S-40 .. S-60).

use ictus::record::Status;
use ictus::record::constant::{cache_class, determinism, shed_kind, tier};

use super::calls::Candidate;
use super::{Entry, Lease, Loss, Model, Target};

fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// FNV-1a-64 from a given start (S-82).
pub(super) fn fnv(bytes: &[u8], start: u64) -> u64 {
    bytes.iter().fold(start, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

pub(super) const BASIS: u64 = 0xCBF2_9CE4_8422_2325;

/// S-81.
pub(crate) fn digest(tokens: &[u32]) -> [u8; 32] {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&fnv(&bytes, BASIS).to_le_bytes());
    digest[8..16].copy_from_slice(&fnv(&bytes, !BASIS).to_le_bytes());
    digest
}

/// S-80, for the one space there is.
pub(crate) fn compat_identity(runtime: &str, version: &str, weights: [u8; 32], adapter: Option<[u8; 32]>) -> [u8; 32] {
    let mut input = Vec::new();
    input.extend(1u32.to_le_bytes());
    input.extend(1u64.to_le_bytes());
    input.extend(runtime.as_bytes());
    input.push(0);
    input.extend(version.as_bytes());
    input.push(0);
    input.extend(weights);
    input.extend(adapter.into_iter().flatten());
    let first = fnv(&input, BASIS);
    let mut identity = [0; 32];
    identity[..8].copy_from_slice(&first.to_le_bytes());
    identity[8..16].copy_from_slice(&fnv(&input, first).to_le_bytes());
    identity
}

/// A seed of `n` tokens is a real part of an entry of `len` (S-51).
pub(super) fn real_part(n: usize, len: usize) -> bool {
    n * 8 >= len
}

impl Entry {
    /// S-52.
    fn is_shared_prefix(&self) -> bool {
        self.shared || self.seeded >= 2
    }
}

impl Model {
    /// S-48.
    pub(super) fn bytes_of(&self, name: u64) -> u64 {
        let entry = self.entry(name).expect("an entry that exists");
        entry.key.len() as u64 * self.shape.bytes_per_token.max(1)
    }

    /// S-48: what entries in the pool account for.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.entries.iter().filter(|entry| !entry.exported).map(|entry| self.bytes_of(entry.name)).sum()
    }

    /// S-48.
    pub(crate) fn exported_tokens(&self) -> u64 {
        self.entries.iter().filter(|entry| entry.exported).map(|entry| entry.key.len() as u64).sum()
    }

    /// T-145.
    pub(crate) fn evictable_bytes(&self) -> u64 {
        let unpinned = self.entries.iter().filter(|entry| !entry.exported && entry.pins == 0);
        unpinned.map(|entry| self.bytes_of(entry.name)).sum()
    }

    /// S-54.
    pub(super) fn eviction_order(&self) -> Vec<u64> {
        let mut order: Vec<&Entry> = self.entries.iter().filter(|entry| !entry.exported && entry.pins == 0).collect();
        // Stable: insertion order breaks ties.
        order.sort_by_key(|entry| (entry.is_shared_prefix(), entry.last_use));
        order.iter().map(|entry| entry.name).collect()
    }

    /// S-53.
    pub(super) fn is_covered(&self, name: u64) -> bool {
        let entry = self.entry(name).expect("an entry that exists");
        let len = entry.key.len();
        if !self.shape.cuts || len < self.shape.seed_min {
            return false;
        }
        self.entries.iter().any(|other| {
            if other.name == name || other.taint & !entry.taint != 0 || other.scope != entry.scope {
                return false;
            }
            let shared = common(&other.key, &entry.key);
            let later = (other.last_use, other.name) > (entry.last_use, entry.name);
            real_part(shared, other.key.len())
                && match shared == len {
                    true => other.key.len() > len || later,
                    false => later && (len - shared) * 8 <= len,
                }
        })
    }

    /// S-56: an entry leaves the pool, to an export or for good.
    pub(super) fn leave_pool(&mut self, name: u64, losses: &mut Vec<Loss>) {
        let len = self.entry(name).expect("an entry that exists").key.len();
        let bytes = self.bytes_of(name);
        if !self.is_covered(name) && self.export(name, losses) {
            self.seq_free(name);
            self.entry_mut(name).exported = true;
            return;
        }
        self.entries.retain(|entry| entry.name != name);
        self.seq_free(name);
        losses.push(Loss { tag: 0, kind: shed_kind::CACHE_EVICTION, bytes, tokens: len as u64 });
    }

    /// S-56: makes room among the exports; whether the entry may be one.
    fn export(&mut self, name: u64, losses: &mut Vec<Loss>) -> bool {
        let entry = self.entry(name).expect("an entry that exists").clone();
        let len = entry.key.len() as u64;
        let shortage = self.shortage_until.is_some_and(|until| self.now <= until);
        if self.shape.exported < len || self.seq(name).tokens.len() != entry.key.len() || shortage {
            return false;
        }
        let worth = |entry: &Entry| (entry.is_shared_prefix(), entry.last_use);
        let mut droppable: Vec<&Entry> = self
            .entries
            .iter()
            .filter(|other| other.exported && other.pins == 0 && worth(other) <= worth(&entry))
            .collect();
        droppable.sort_by_key(|other| worth(other));
        let mut held = self.exported_tokens();
        let mut dropped = Vec::new();
        for other in droppable {
            if held + len <= self.shape.exported {
                break;
            }
            held -= other.key.len() as u64;
            dropped.push(other.name);
        }
        if held + len > self.shape.exported {
            return false;
        }
        if self.seq_export().is_err() {
            return false;
        }
        for other in dropped {
            self.drop_export(other, losses);
        }
        true
    }

    fn drop_export(&mut self, name: u64, losses: &mut Vec<Loss>) {
        let tokens = self.entry(name).expect("an entry that exists").key.len() as u64;
        self.entries.retain(|entry| entry.name != name);
        losses.push(Loss { tag: 0, kind: shed_kind::CACHE_EVICTION, bytes: 0, tokens });
    }

    /// S-57.
    pub(super) fn settle_cache(&mut self, losses: &mut Vec<Loss>) {
        while self.shape.resident > 0 {
            let pool: Vec<u64> = self.entries.iter().filter(|entry| !entry.exported).map(|entry| entry.name).collect();
            if self.cells_released(&pool) <= self.shape.resident {
                break;
            }
            let order = self.eviction_order();
            let useful = order.iter().find(|&&name| self.is_covered(name) || self.cells_released(&[name]) > 0);
            let Some(&name) = useful.or(order.first()) else { break };
            self.leave_pool(name, losses);
        }
        if std::mem::take(&mut self.changed) {
            let exports: Vec<u64> = self
                .entries
                .iter()
                .filter(|entry| entry.exported && entry.pins == 0 && self.is_covered(entry.name))
                .map(|entry| entry.name)
                .collect();
            for name in exports {
                // An earlier one may have been what covered it.
                if self.is_covered(name) {
                    self.drop_export(name, losses);
                }
            }
        }
    }

    /// S-49, S-50, T-73, T-90: the sequence becomes an entry.
    pub(super) fn insert_entry(&mut self, seq: u64, key: Vec<u32>, prompt_len: usize, shared: bool) {
        let taint = self.seq(seq).taint;
        let scope = self.scope(self.seq(seq).adapter);
        self.entries.push(Entry {
            name: seq,
            key,
            prompt_len,
            pins: 0,
            last_use: self.now,
            seeded: 0,
            shared,
            taint,
            scope,
            exported: false,
        });
        self.changed = true;
    }

    /// S-46.
    pub(crate) fn candidates(&self, span: &[u32], scope: [u8; 32]) -> Vec<Candidate> {
        let page = self.shape.page;
        let mut found: Vec<Candidate> = Vec::new();
        let in_pool = self.entries.iter().filter(|entry| !entry.exported);
        let all = in_pool.chain(self.entries.iter().filter(|entry| entry.exported));
        for entry in all.filter(|entry| entry.scope == scope) {
            let len = if self.shape.cuts {
                common(&entry.key, span) / page * page
            } else if span.starts_with(&entry.key) && span.len() > entry.key.len() {
                entry.key.len()
            } else {
                continue;
            };
            let served = !entry.exported || real_part(len, entry.key.len());
            if len >= page && len % page == 0 && served && found.iter().all(|other| other.len != len as u64) {
                found.push(Candidate {
                    len: len as u64,
                    digest: digest(&span[..len]),
                    taint: entry.taint,
                    tier: if entry.exported { tier::HOST } else { tier::GPU },
                });
            }
        }
        found.sort_by_key(|candidate| std::cmp::Reverse(candidate.len));
        found
    }

    /// S-40 .. S-43, S-94.
    pub(super) fn acquire(&mut self, span: &[u32], n: u64, class: u8, adapter: Option<u64>) -> Result<u64, Status> {
        let scope = self.scope_of_call(adapter)?;
        let whole = n as usize;
        let head_only = !self.shape.cuts;
        if n == 0
            || n > span.len() as u64
            || !whole.is_multiple_of(self.shape.page)
            || (head_only && whole == span.len())
        {
            return Err(Status::SeedUnservable);
        }
        let prefix = &span[..whole];
        let serves = |entry: &Entry| {
            entry.scope == scope
                && entry.key.starts_with(prefix)
                && (self.shape.cuts || entry.key.len() == whole)
                && (whole >= self.shape.seed_min || entry.key.len() == whole)
                && (!entry.exported || real_part(whole, entry.key.len()))
                && (class != determinism::DETERMINISTIC || entry.taint == 0)
        };
        let in_pool = self.entries.iter().find(|entry| !entry.exported && serves(entry));
        let entry = in_pool.or_else(|| self.entries.iter().find(|entry| entry.exported && serves(entry)));
        let name = entry.ok_or(Status::SeedUnservable)?.name;
        self.entry_mut(name).pins += 1;
        Ok(self.new_lease(Target::Entry(name), prefix.to_vec(), class))
    }

    pub(super) fn new_lease(&mut self, target: Target, prefix: Vec<u32>, class: u8) -> u64 {
        let handle = self.next_lease;
        self.next_lease += 1;
        self.leases.push(Lease { handle, target, prefix, class, expires_at: self.now + self.shape.ttl });
        handle
    }

    /// A lease goes, and with it the pin or the claim (S-32, S-43).
    pub(super) fn drop_lease(&mut self, handle: u64) -> Lease {
        let at = self.leases.iter().position(|lease| lease.handle == handle).expect("a lease that exists");
        let lease = self.leases.remove(at);
        match lease.target {
            Target::Entry(name) => self.entry_mut(name).pins -= 1,
            Target::Bare(seq) => {
                if let Some(bare) = self.bares.iter_mut().find(|bare| bare.seq == seq) {
                    bare.leased = false;
                }
            }
        }
        lease
    }

    /// S-55, S-60.
    pub(super) fn evict(&mut self, classes: u64, quota: u64, max: u64, target: u64) -> u64 {
        let mut unreported = Vec::new();
        if classes & cache_class::HOST_EXPORT != 0 {
            self.entries.retain(|entry| !entry.exported || entry.pins > 0);
            self.shortage_until = Some(self.now + 64);
        }
        if classes & cache_class::RESIDENT == 0 {
            return 0;
        }
        let cap = max.min(self.resident_bytes().saturating_sub(quota));
        let want = target.min(cap);
        let mut bytes = 0;
        let mut victims = Vec::new();
        for name in self.eviction_order() {
            if bytes >= want {
                break;
            }
            let shared = self.entry(name).is_some_and(Entry::is_shared_prefix);
            if (shared && classes & cache_class::SHARED == 0) || bytes + self.bytes_of(name) > cap {
                continue;
            }
            bytes += self.bytes_of(name);
            victims.push(name);
        }
        for name in victims {
            self.leave_pool(name, &mut unreported);
        }
        bytes
    }

    /// S-58, S-59: unpinned entries of either tier are dropped.
    pub(super) fn drop_entries(&mut self, named: impl Fn(&Entry) -> bool) {
        let names: Vec<u64> =
            self.entries.iter().filter(|entry| entry.pins == 0 && named(entry)).map(|entry| entry.name).collect();
        for name in names {
            self.entries.retain(|entry| entry.name != name);
            self.seq_free(name);
        }
    }
}
